//! The screen: two lines about the recording, a summary, the panes, a line of keys.
//!
//! From 140 columns and 30 rows on, frames, locks and files have a column of their own.

use std::time::Duration;

use highwater::Bytes;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::app::{App, Pane};
use super::look::Look;
use super::model::{Source, State};
use super::numbers::{bytes, duration, moment, percent, short, utc};
use super::panes::{self, Context};

/// Least size of a screen.
const LEAST: (u16, u16) = (40, 12);

/// From this size on there are two columns.
const WIDE: (u16, u16) = (140, 30);

/// Columns of the right one.
const RIGHT: u16 = 62;

/// Rows above the panes.
const HEAD: u16 = 4;

/// A recording whose newest moment is older than this is not being written: there is one each
/// second while the program runs.
const SILENCE: Duration = Duration::from_secs(5);

/// Draws everything. `now` is the wall clock since 1970.
pub(crate) fn draw<S: Source>(
    app: &App,
    source: &S,
    now: Duration,
    look: &Look,
    area: Rect,
    buffer: &mut Buffer,
) {
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("needs {}x{}", LEAST.0, LEAST.1);
        put(&Line::raw(text), area, 0, buffer);
        return;
    }
    put(&title(app, source, now, look, area.width), area, 0, buffer);
    put(&timeline(app, source, look, area.width), area, 1, buffer);
    put(&tabs(app, look), area, 3, buffer);
    put(&footer(app, source, look), area, area.height - 1, buffer);
    let body = Rect {
        y: area.y + HEAD,
        height: area.height - HEAD - 1,
        ..area
    };
    if app.is_helping {
        list(&panes::help::lines(look), 0, body, buffer);
        return;
    }
    let Some(state) = &app.shown.state else {
        let text = "no moment is recorded yet: the recorder writes one each second";
        put(&Line::raw(text), body, 1, buffer);
        return;
    };
    let summary = summary(app, source, state, look, area.width);
    put(&summary, area, 2, buffer);
    let context = Context {
        app,
        state,
        look,
        origin: source.origin(),
        marks: source.marks(),
        victims: source.victims(),
    };
    if area.width >= WIDE.0 && area.height >= WIDE.1 {
        let left = Rect {
            width: body.width - RIGHT - 2,
            ..body
        };
        let right = Rect {
            x: body.x + body.width - RIGHT,
            width: RIGHT,
            ..body
        };
        pane(&context, left, buffer);
        side(&context, right, buffer);
    } else {
        pane(&context, body, buffer);
    }
}

/// Draws the selected pane.
fn pane(context: &Context<'_>, area: Rect, buffer: &mut Buffer) {
    if context.app.pane == Pane::Groups {
        groups(context, area, buffer);
    } else {
        let lines = panes::lines(context, context.app.pane, area.width);
        let (head, rows) = lines.split_at(lines.len().min(1));
        list(head, 0, area, buffer);
        list(rows, context.app.scroll, below(area, 1), buffer);
    }
}

/// Draws the tree, below it the selected group and the last victim.
fn groups(context: &Context<'_>, area: Rect, buffer: &mut Buffer) {
    let detail = panes::detail::lines(context, area.width);
    let rows_max = if area.height < WIDE.1 {
        1
    } else {
        usize::from(area.height)
    };
    let victim = panes::victims::last(context, area.width, rows_max);
    let under = [detail, victim].concat();
    let nr_under = u16::try_from(under.len()).unwrap_or(u16::MAX);
    let nr_rows = area.height.saturating_sub(nr_under + 1).max(1);
    put(&panes::groups::head(context, area.width), area, 0, buffer);
    let tree = Rect {
        height: nr_rows,
        ..below(area, 1)
    };
    let rows = &context.app.shown.rows;
    let selected = context.app.selected_row();
    let height = usize::from(tree.height);
    let first = selected
        .saturating_sub(height / 2)
        .min(rows.len().saturating_sub(height));
    for (y, (index, row)) in (0..tree.height).zip(rows.iter().enumerate().skip(first)) {
        put(
            &panes::groups::line(context, row, area.width),
            tree,
            y,
            buffer,
        );
        if index == selected {
            let line = Rect {
                y: tree.y + y,
                height: 1,
                ..tree
            };
            buffer.set_style(line, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
    if rows.is_empty() {
        let text = format!("no group's path contains `{}`", context.app.shape.filter);
        put(&Line::raw(text), tree, 0, buffer);
    }
    list(&under, 0, below(area, nr_rows + 1), buffer);
}

/// Draws frames, locks and files one below the other.
fn side(context: &Context<'_>, area: Rect, buffer: &mut Buffer) {
    let mut lines = Vec::new();
    for pane in [Pane::Frames, Pane::Locks, Pane::Files] {
        let mut part = panes::lines(context, pane, area.width);
        // Each gets its share, so that many CPUs do not hide the locks.
        part.truncate(usize::from(area.height) / 3);
        lines.extend(part);
        lines.push(Line::default());
    }
    list(&lines, 0, area, buffer);
}

/// Writes one line at row `y` of `area`, cut at its right end.
fn put(line: &Line<'_>, area: Rect, y: u16, buffer: &mut Buffer) {
    if y < area.height {
        buffer.set_line(area.x, area.y + y, line, area.width);
    }
}

/// Writes lines from the one at `scroll` on, at least the last of them.
fn list(lines: &[Line<'_>], scroll: usize, area: Rect, buffer: &mut Buffer) {
    let first = scroll.min(lines.len().saturating_sub(usize::from(area.height)));
    for (y, line) in (0..area.height).zip(&lines[first..]) {
        put(line, area, y, buffer);
    }
}

fn below(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    Rect {
        y: area.y + rows,
        height: area.height - rows,
        ..area
    }
}

/// File, program and whether it lives; the time of the moment at the right, as much as there is
/// room for.
fn title<S: Source>(
    app: &App,
    source: &S,
    now: Duration,
    look: &Look,
    width: u16,
) -> Line<'static> {
    let origin = source.origin();
    let (status, colour) = status(source, now);
    let mode = match app.playing {
        Some(_) => format!(" PLAY x{}", speed(app.quarters())),
        None if app.is_following => String::new(),
        None => " PAUSED".to_owned(),
    };
    let program = match origin.program.as_str() {
        "" => format!("process {}", origin.pid),
        name => format!("{name} [{}]", origin.pid),
    };
    let name = format!("top {}  {program}  ", origin.file);
    let used = Line::raw(format!("{name}{status}{mode}")).width();
    let room = usize::from(width).saturating_sub(used);
    let time = app.shown.state.as_ref().map(|state| state.time);
    let right = time.map_or_else(String::new, |time| {
        let wall = utc(origin.started_unix + time);
        // Without the date, or without the wall clock.
        let clock = wall.split_once(' ').map_or("", |(_, clock)| clock);
        let moment = moment(time);
        let forms = [format!("{moment}  {wall}"), format!("{moment}  {clock}")];
        let fitting = forms.into_iter().find(|form| form.len() < room);
        fitting.unwrap_or(moment)
    });
    let gap = " ".repeat(room.saturating_sub(right.len()).max(1));
    Line::from(vec![
        Span::styled(name, look.heading()),
        Span::styled(status, look.colour(colour).add_modifier(Modifier::BOLD)),
        Span::styled(mode, look.colour(Color::Yellow)),
        Span::raw(gap),
        Span::raw(right),
    ])
}

/// Whether the program still records.
fn status<S: Source>(source: &S, now: Duration) -> (String, Color) {
    if source.has_ended() {
        return ("ENDED".to_owned(), Color::Blue);
    }
    let newest = source.last().and_then(|last| source.time(last));
    let newest = source.origin().started_unix + newest.unwrap_or_default();
    let age = now.saturating_sub(newest);
    if age > SILENCE {
        (format!("SILENT for {}", duration(age)), Color::Red)
    } else {
        ("LIVE".to_owned(), Color::Green)
    }
}

fn speed(quarters: u32) -> String {
    match quarters {
        1 => "0.25".to_owned(),
        2 => "0.5".to_owned(),
        quarters => (quarters / 4).to_string(),
    }
}

/// All moments from left to right, with marks, victims and the moment shown.
fn timeline<S: Source>(app: &App, source: &S, look: &Look, width: u16) -> Line<'static> {
    let ends = [source.first(), source.last()].map(|tick| tick.and_then(|it| source.time(it)));
    let [Some(first), Some(last)] = ends else {
        return Line::default();
    };
    let (left, right) = (format!("{} ", moment(first)), format!(" {}", moment(last)));
    let columns = usize::from(width).saturating_sub(left.len() + right.len());
    let mut track = vec![look.glyphs.rule; columns];
    let span = last.saturating_sub(first).as_micros().max(1);
    let mut set = |time: Duration, glyph| {
        if (first..=last).contains(&time) && columns > 0 {
            let part = time.saturating_sub(first).as_micros() * (columns as u128 - 1) / span;
            track[usize::try_from(part).unwrap_or(0)] = glyph;
        }
    };
    for mark in source.marks() {
        set(mark.time, look.glyphs.mark);
    }
    for victim in source.victims() {
        set(victim.time, look.glyphs.victim);
    }
    if let Some(state) = &app.shown.state {
        set(state.time, look.glyphs.here);
    }
    let track: String = track.into_iter().collect();
    Line::from(vec![
        Span::styled(left, look.faint()),
        Span::raw(track),
        Span::styled(right, look.faint()),
    ])
}

/// The manager in one line: as many of the parts as there is room for, the most important first.
fn summary<S: Source>(
    app: &App,
    source: &S,
    state: &State,
    look: &Look,
    width: u16,
) -> Line<'static> {
    let page_size = source.origin().page_size;
    let frames = &state.frames;
    let of_pages = |pages: u64| bytes(Bytes(pages.saturating_mul(page_size)));
    let (free, managed) = (of_pages(frames.free), of_pages(frames.managed));
    let mut parts = vec![format!("free {free} of {managed}")];
    if !state.is_whole {
        parts.push("(parts lost)".to_owned());
    }
    if source.nr_torn() > 0 {
        parts.push(format!("{} torn", short(source.nr_torn())));
    }
    let charges: u64 = state.groups.iter().map(|group| group.waiting.charges).sum();
    let longest = state.groups.iter().map(|group| group.waiting.longest).max();
    if charges > 0 {
        let longest = duration(longest.unwrap_or_default());
        parts.push(format!("wait {}:{longest}", short(charges)));
    }
    if let (Some(root), Some(rate)) = (state.groups.first(), app.shown.rates.first()) {
        let efficiency = panes::efficiency(rate.efficiency);
        parts.push(format!("refaults {}/s", short(rate.refaults)));
        parts.push(format!("reclaim {}/s {efficiency}", short(rate.reclaimed)));
        let [some, full] = [&root.some, &root.full].map(|stall| percent(stall.averages[0]));
        parts.push(format!("psi {some}/{full}"));
    }
    let mut text = String::new();
    for part in parts {
        if text.len() + 2 + part.len() <= usize::from(width) {
            text += if text.is_empty() { "" } else { "  " };
            text += &part;
        }
    }
    Line::styled(text, look.colour(Color::White))
}

/// Names of the panes behind their digits.
fn tabs(app: &App, look: &Look) -> Line<'static> {
    let mut spans = Vec::new();
    for (digit, pane) in (1..).zip(Pane::ALL) {
        let is_open = pane == app.pane && !app.is_helping;
        let text = if is_open {
            format!("[{digit} {}]", pane.name())
        } else {
            format!(" {digit} {} ", pane.name())
        };
        let style = if is_open {
            look.heading()
        } else {
            look.faint()
        };
        spans.push(Span::styled(text, style));
    }
    spans.push(Span::styled(
        format!("  sort: {}", app.shape.sort.name()),
        look.faint(),
    ));
    Line::from(spans)
}

/// Keys, or the filter that is typed.
fn footer<S: Source>(app: &App, source: &S, look: &Look) -> Line<'static> {
    let filter = &app.shape.filter;
    match app.typing {
        Some(_) => Line::raw(format!("/{filter}_  (Enter keeps, Esc undoes)")),
        None if app.is_helping => Line::styled("any key closes the help", look.faint()),
        None => {
            let filtered = if filter.is_empty() {
                String::new()
            } else {
                format!("/{filter} (Esc clears)  ")
            };
            // At the end of all groups there is nothing left to see.
            let keys = if source.has_ended() && app.is_following {
                "space plays from the start  { } 10 s back, forward  / filter  ? help  q quit"
            } else {
                "[ ] step  space play  { } 10 s  ( ) incident  / filter  s sort  ? help  q quit"
            };
            Line::from(vec![
                Span::styled(filtered, look.colour(Color::Yellow)),
                Span::styled(keys, look.faint()),
            ])
        }
    }
}
