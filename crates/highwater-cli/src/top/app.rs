//! The state machine of `top`: the moment shown, folds, filter, pane; keys and time change it.
//!
//! A position is a tick number, never an index: the ring forgets old moments while `top` shows
//! them. It follows the newest moment until a key leaves it, and again after one returns there.

use std::time::Duration;

use clap::ValueEnum;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::{Source, State};
use super::rates::{Rate, complete};
use super::tree::{Row, Shape, rows};

/// Rates compare a moment with the last one that is so much older: with the second if no flush of
/// statistics lies between it and the first, since the background thread flushes each two seconds.
const RATE_SPANS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// Seconds of a leap by `{` and `}`.
const LEAP: Duration = Duration::from_secs(10);

/// Rows of the keys for pages.
const PAGE: usize = 10;

/// Moments that the ring may overwrite while one is read, before `top` shows none.
const READS_MAX: u32 = 3;

/// Numerators of the speeds of play, in quarters.
const SPEEDS: [u32; 7] = [1, 2, 4, 8, 16, 40, 120];

/// The speed of 1 in [`SPEEDS`].
const REAL_TIME: usize = 2;

/// A part of the screen that a digit selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pane {
    /// The tree of groups, the selected one in full, the last victim.
    #[default]
    Groups,
    /// Frames, watermarks and per-CPU lists.
    Frames,
    /// Contention of lock classes.
    Locks,
    /// Open files.
    Files,
    /// Victims.
    Victims,
    /// Marks of the program, and victims.
    Marks,
}

impl Pane {
    pub(crate) const ALL: [Self; 6] = [
        Self::Groups,
        Self::Frames,
        Self::Locks,
        Self::Files,
        Self::Victims,
        Self::Marks,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Groups => "groups",
            Self::Frames => "frames",
            Self::Locks => "locks",
            Self::Files => "files",
            Self::Victims => "victims",
            Self::Marks => "marks",
        }
    }

    fn after(self, by: usize) -> Self {
        let index = Self::ALL.iter().position(|pane| *pane == self);
        Self::ALL[(index.unwrap_or(0) + by) % Self::ALL.len()]
    }
}

/// The consequence of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Quit,
    /// Ctrl-C: the exit status says so.
    Interrupt,
}

/// What is on the screen.
#[derive(Debug, Default)]
pub(crate) struct App {
    pub(crate) pane: Pane,
    pub(crate) shape: Shape,
    /// The filter before `/`, while one is typed: Escape restores it.
    pub(crate) typing: Option<String>,
    pub(crate) is_helping: bool,
    /// Whether all bars have the same scale.
    pub(crate) is_one_scale: bool,
    /// First row of the panes but the groups.
    pub(crate) scroll: usize,
    /// Path of the selected group; may have gone.
    pub(crate) selected: String,
    pub(crate) is_following: bool,
    /// The time that play has reached, since the manager was built.
    pub(crate) playing: Option<Duration>,
    speed: usize,
    pub(crate) shown: Shown,
}

/// The moment on the screen.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// `None` while the recording has no moment.
    pub(crate) state: Option<State>,
    pub(crate) rates: Vec<Rate>,
    pub(crate) rows: Vec<Row>,
}

impl App {
    /// Starts at the newest moment and follows it.
    pub(crate) fn new() -> Self {
        Self {
            is_following: true,
            selected: "/".to_owned(),
            speed: REAL_TIME,
            ..Self::default()
        }
    }

    /// Returns the speed of play in quarters: 4 is real time.
    pub(crate) fn quarters(&self) -> u32 {
        SPEEDS[self.speed]
    }

    /// Returns the row of the selected group: the first if that has gone.
    pub(crate) fn selected_row(&self) -> usize {
        let Some(state) = &self.shown.state else {
            return 0;
        };
        let is_selected = |row: &Row| state.groups[row.index].path == self.selected;
        self.shown.rows.iter().position(is_selected).unwrap_or(0)
    }

    /// Lets time pass: play goes on, or the newest moment is shown.
    ///
    /// # Errors
    ///
    /// When the recording cannot be read.
    pub(crate) fn pass<S: Source>(&mut self, elapsed: Duration, source: &S) -> Result<(), String> {
        let newest = source.last();
        if let Some(at) = self.playing {
            let at = at + elapsed * SPEEDS[self.speed] / 4;
            self.playing = Some(at);
            let tick = source.at_time(at);
            if tick == newest {
                self.playing = None;
                self.is_following = true;
            }
            return self.show(tick, source);
        }
        if self.is_following {
            return self.show(newest, source);
        }
        // A moment that the ring has overwritten gives way to the oldest one.
        let tick = self.tick().max(source.first());
        self.show(tick, source)
    }

    /// Goes to the last moment that is not after `time`, and stays there.
    ///
    /// # Errors
    ///
    /// When the recording cannot be read.
    pub(crate) fn seek<S: Source>(&mut self, time: Duration, source: &S) -> Result<(), String> {
        self.is_following = false;
        self.playing = None;
        self.show(source.at_time(time), source)
    }

    /// Shows a moment, unless it is on the screen.
    fn show<S: Source>(&mut self, tick: Option<u64>, source: &S) -> Result<(), String> {
        if tick.is_some() && tick == self.tick() {
            return Ok(());
        }
        let mut wanted = tick;
        for _ in 0..READS_MAX {
            let Some(tick) = wanted else { break };
            if let Some(state) = source.state(tick)? {
                self.shown.rates = rates(&state, source)?;
                self.shown.state = Some(state);
                self.arrange();
                return Ok(());
            }
            wanted = source.step(tick, 1).filter(|next| *next != tick);
        }
        Ok(())
    }

    /// Arranges the rows anew.
    fn arrange(&mut self) {
        if let Some(state) = &self.shown.state {
            self.shown.rows = rows(state, &self.shown.rates, &self.shape);
        }
    }

    fn tick(&self) -> Option<u64> {
        self.shown.state.as_ref().map(|state| state.tick)
    }

    /// Handles a key.
    ///
    /// # Errors
    ///
    /// When the recording cannot be read.
    pub(crate) fn key<S: Source>(&mut self, key: KeyEvent, source: &S) -> Result<Flow, String> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Ok(Flow::Interrupt);
        }
        if self.typing.is_some() {
            self.type_filter(key.code);
            return Ok(Flow::Continue);
        }
        if self.is_helping {
            self.is_helping = false;
            return Ok(Flow::Continue);
        }
        match key.code {
            KeyCode::Char('q') => return Ok(Flow::Quit),
            KeyCode::Char('?') => self.is_helping = true,
            KeyCode::Char('/') => self.typing = Some(self.shape.filter.clone()),
            KeyCode::Esc => self.shape.filter.clear(),
            KeyCode::Tab => self.open(self.pane.after(1)),
            KeyCode::BackTab => self.open(self.pane.after(Pane::ALL.len() - 1)),
            KeyCode::Char(digit @ '1'..='6') => {
                let index = digit.to_digit(10).unwrap_or(1) as usize - 1;
                self.open(Pane::ALL[index]);
            }
            code if self.pane == Pane::Groups && self.in_tree(code) => {}
            code if self.in_list(code) => {}
            code => self.in_time(code, source)?,
        }
        self.arrange();
        Ok(Flow::Continue)
    }

    fn open(&mut self, pane: Pane) {
        self.pane = pane;
        self.scroll = 0;
    }

    fn type_filter(&mut self, code: KeyCode) {
        let filter = &mut self.shape.filter;
        match code {
            KeyCode::Enter => self.typing = None,
            KeyCode::Esc => *filter = self.typing.take().unwrap_or_default(),
            KeyCode::Backspace => {
                filter.pop();
            }
            KeyCode::Char(letter) if !letter.is_control() => filter.push(letter),
            _ => {}
        }
        self.arrange();
    }

    /// Keys of the tree. Returns whether the key is one of them.
    fn in_tree(&mut self, code: KeyCode) -> bool {
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.select(|row| row.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|row| row + 1),
            KeyCode::PageUp => self.select(|row| row.saturating_sub(PAGE)),
            KeyCode::PageDown => self.select(|row| row + PAGE),
            KeyCode::Left => self.fold_or_leave(),
            KeyCode::Right => {
                self.shape.folded.remove(&self.selected);
            }
            KeyCode::Enter => {
                if !self.shape.folded.remove(&self.selected) {
                    self.shape.folded.insert(self.selected.clone());
                }
            }
            KeyCode::Char('-') => self.fold_all(),
            KeyCode::Char('+') => self.shape.folded.clear(),
            KeyCode::Char('s') => self.shape.sort = self.shape.sort.next(),
            KeyCode::Char('c') => self.is_one_scale = !self.is_one_scale,
            _ => return false,
        }
        true
    }

    fn select(&mut self, to: impl FnOnce(usize) -> usize) {
        let last = self.shown.rows.len().saturating_sub(1);
        let row = self.shown.rows.get(to(self.selected_row()).min(last));
        if let (Some(row), Some(state)) = (row, &self.shown.state) {
            self.selected.clone_from(&state.groups[row.index].path);
        }
    }

    /// Folds an open group, or selects the parent of one that has nothing to fold.
    fn fold_or_leave(&mut self) {
        let (Some(row), Some(state)) =
            (self.shown.rows.get(self.selected_row()), &self.shown.state)
        else {
            return;
        };
        if row.has_children && !row.is_folded {
            self.shape.folded.insert(self.selected.clone());
        } else if let Some(parent) = state.groups[row.index].parent {
            self.selected.clone_from(&state.groups[parent].path);
        }
    }

    /// Folds every group below the first level, and selects a group that is still shown.
    fn fold_all(&mut self) {
        let Some(state) = &self.shown.state else {
            return;
        };
        let below = state.groups.iter().filter(|group| group.parent.is_some());
        self.shape.folded = below.map(|group| group.path.clone()).collect();
        let first_level = self.selected.split('/').nth(1).unwrap_or("");
        self.selected = format!("/{first_level}");
    }

    /// Keys of panes that scroll. Returns whether the key is one of them.
    fn in_list(&mut self, code: KeyCode) -> bool {
        self.scroll = match code {
            KeyCode::Up | KeyCode::Char('k') => self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll + 1,
            KeyCode::PageUp => self.scroll.saturating_sub(PAGE),
            KeyCode::PageDown => self.scroll + PAGE,
            _ => return false,
        };
        true
    }

    /// Keys that seek and play.
    fn in_time<S: Source>(&mut self, code: KeyCode, source: &S) -> Result<(), String> {
        let (Some(tick), Some(time)) = (
            self.tick(),
            self.shown.state.as_ref().map(|state| state.time),
        ) else {
            return Ok(());
        };
        let to = match code {
            KeyCode::Char('[') => source.step(tick, -1),
            KeyCode::Char(']') => source.step(tick, 1),
            KeyCode::Char('{') => source.at_time(time.saturating_sub(LEAP)),
            KeyCode::Char('}') => source.at_time(time + LEAP),
            KeyCode::Char('(') => incident(source, |at| at < time).max(),
            KeyCode::Char(')') => incident(source, |at| at > time).min(),
            KeyCode::Home | KeyCode::Char('g') => source.first(),
            KeyCode::End | KeyCode::Char('G') => source.last(),
            KeyCode::Char(' ') => {
                self.play_or_pause(time, source);
                return Ok(());
            }
            KeyCode::Char('<') => {
                self.speed = self.speed.saturating_sub(1);
                return Ok(());
            }
            KeyCode::Char('>') => {
                self.speed = (self.speed + 1).min(SPEEDS.len() - 1);
                return Ok(());
            }
            _ => return Ok(()),
        };
        if to.is_none() {
            return Ok(());
        }
        self.playing = None;
        self.is_following = to == source.last();
        self.show(to, source)
    }

    /// Pauses what moves; plays on from the moment shown, from the first after the last.
    fn play_or_pause<S: Source>(&mut self, time: Duration, source: &S) {
        let is_last = self.tick() == source.last();
        if self.playing.take().is_some() {
            return;
        }
        if self.is_following && !source.has_ended() {
            self.is_following = false;
            return;
        }
        self.is_following = false;
        let first = source.first().and_then(|first| source.time(first));
        self.playing = if is_last { first } else { Some(time) };
    }
}

/// Returns the rates of all groups of a moment; zero for those that have no earlier one.
fn rates<S: Source>(state: &State, source: &S) -> Result<Vec<Rate>, String> {
    let mut rates = vec![None; state.groups.len()];
    for span in RATE_SPANS {
        let before = source.at_time(state.time.saturating_sub(span));
        let before = before.filter(|before| *before < state.tick);
        if let Some(before) = before.map_or(Ok(None), |tick| source.state(tick))? {
            complete(&mut rates, state, &before);
        }
        if rates.iter().all(Option::is_some) {
            break;
        }
    }
    Ok(rates.into_iter().map(Option::unwrap_or_default).collect())
}

/// Returns the first moments that show the marks and victims at times that `is_wanted`.
fn incident<S: Source>(
    source: &S,
    is_wanted: impl Fn(Duration) -> bool,
) -> impl Iterator<Item = u64> {
    let marks = source.marks().iter().map(|mark| mark.time);
    let victims = source.victims().iter().map(|victim| victim.time);
    let moments = marks.chain(victims).filter_map(|time| {
        let before = source.at_time(time)?;
        let is_shown = source.time(before).is_some_and(|at| at >= time);
        let tick = if is_shown {
            Some(before)
        } else {
            source.step(before, 1)
        };
        tick.and_then(|tick| source.time(tick).map(|at| (tick, at)))
    });
    moments
        .filter(move |(_, at)| is_wanted(*at))
        .map(|(tick, _)| tick)
}

#[cfg(test)]
#[path = "app_tests.rs"]
mod tests;
