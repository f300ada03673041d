//! `highwater top`: a recording on the screen, while it is written and after its program has ended.
//!
//! `model.rs` is what a moment looks like, `reader.rs` fills it from the file. `app.rs` decides
//! which moment, pane and rows are shown; keys and time change it. `screen.rs` and `panes/` draw
//! that into a buffer of cells, and know no terminal: `terminal.rs` brings the cells there,
//! `picture.rs` into text and SVG.

mod app;
mod bar;
mod json;
mod look;
#[cfg(test)]
mod made;
mod model;
mod numbers;
mod panes;
mod picture;
mod rates;
mod reader;
mod screen;
#[cfg(test)]
mod screen_tests;
mod terminal;
mod tree;

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use crossterm::event::{self, Event, KeyEventKind};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::terminal::Terminal;

use crate::Exit;
use crate::output::{Product, complain, print};
use crate::signals::Signals;

use app::{App, Flow, Pane};
use look::{Charset, Look, is_dumb};
use model::Source;
use reader::Reader;
use terminal::{Entered, Screen};

/// Time between looks at the file. The recorder writes ten times a second.
const TICK: Duration = Duration::from_millis(100);

/// Time between screens on a terminal without cursor addressing.
const SLOW_TICK: Duration = Duration::from_secs(1);

/// The screen where there is no terminal.
const SIZE: Size = Size(80, 24);

const EXAMPLES: &str = "\
Examples:
  highwater replay --record run.hwr
      records a replay of the shipped trace, to be shown in another terminal
  highwater top run.hwr
      shows it live, and after it has ended; `?` shows the keys
  highwater top run.hwr --once --pane victims
      the newest moment's victims as text, for scripts and mails
  highwater top run.hwr --json --at 12.5 | jq '.groups[].usage_bytes'
      the moment 12.5 s after the start as JSON
  highwater top run.hwr --svg run.svg --size 160x45
      the screen as a picture

Without colours if NO_COLOR is set. On a dumb terminal (TERM=dumb) one screen
each second, without keys. Exit status: 0, 2 if the recording cannot be read,
130 after Ctrl-C.";

/// Arguments of `highwater top`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArguments {
    /// The recording: a file that `Builder::recorder` or `highwater replay --record` writes
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print one screen as text, and end
    #[arg(long)]
    once: bool,

    /// Print the moment as one JSON object, and end
    #[arg(long, conflicts_with = "once")]
    json: bool,

    /// Write the screen as an SVG picture to this file, and end
    #[arg(long, value_name = "PICTURE", conflicts_with_all = ["once", "json"])]
    svg: Option<PathBuf>,

    /// Begin at the moment so many seconds after the start [default: the newest]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    at: Option<Duration>,

    /// The pane that is open at the beginning
    #[arg(long, value_enum, default_value_t = Pane::Groups)]
    pane: Pane,

    /// Columns and rows of --once and --svg [default: the terminal's, or 80x24]
    #[arg(long, value_name = "COLUMNSxROWS")]
    size: Option<Size>,

    /// Characters of the screen [default: utf8 if the locale says so]
    #[arg(long, value_enum)]
    charset: Option<Charset>,

    /// Panic at the first key, for a test of the terminal afterwards.
    #[cfg(debug_assertions)]
    #[arg(long, hide = true)]
    panic_at_key: bool,
}

impl TopArguments {
    /// Whether a key is to panic: never in a release.
    const fn panics(&self) -> bool {
        #[cfg(debug_assertions)]
        return self.panic_at_key;
        #[cfg(not(debug_assertions))]
        return false;
    }
}

/// Columns and rows of a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size(u16, u16);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides = text.split_once('x');
        let side = |side: &str| {
            side.parse::<u16>()
                .ok()
                .filter(|it| (10..=500).contains(it))
        };
        let size = sides.and_then(|(columns, rows)| Some(Self(side(columns)?, side(rows)?)));
        size.ok_or_else(|| "give columns and rows from 10 to 500, as in 80x24".to_owned())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "give seconds from 0 on, as in 12.5".to_owned())
}

/// Shows a recording.
pub(crate) fn run(arguments: &TopArguments) -> Exit {
    shown(arguments).unwrap_or_else(|e| {
        complain(format_args!("{e}"));
        Exit::Unusable
    })
}

fn shown(arguments: &TopArguments) -> Result<Exit, String> {
    let mut source = Reader::open(&arguments.file)?;
    let mut look = Look::of_environment(arguments.charset);
    let mut app = App::new();
    app.pane = arguments.pane;
    let to_moment = match arguments.at {
        Some(time) => app.seek(time, &source),
        None => app.pass(Duration::ZERO, &source),
    };
    to_moment?;
    if arguments.json {
        return print_json(&app, &source);
    }
    let size = arguments.size.unwrap_or_else(size_of_terminal);
    if let Some(path) = &arguments.svg {
        Product::Picture.check_replaceable(path)?;
        look.is_coloured = true;
        look.glyphs = look::Glyphs::UTF_8;
        let title = format!("highwater top {}", source.origin().file);
        let svg = picture::svg(&drawn(&app, &source, &look, size), &title);
        let written = fs::write(path, svg);
        let failed = |e| format!("cannot write {}: {e}", path.display());
        return written.map(|()| Exit::Fine).map_err(failed);
    }
    if arguments.once {
        let text = picture::text(&drawn(&app, &source, &look, size));
        return printed(print(format_args!("{text}")));
    }
    if !io::stdout().is_terminal() {
        let remedy = "give --once for one screen as text, or --json";
        return Err(format!("standard output is no terminal: {remedy}"));
    }
    let signals = Signals::install().map_err(|e| format!("cannot handle signals: {e}"))?;
    if is_dumb() {
        return scrolled(app, source, &look, &signals);
    }
    interactive(&mut app, &mut source, &look, &signals, arguments)
}

/// Shows the screen and handles keys until one of them, or a signal, ends it.
fn interactive(
    app: &mut App,
    source: &mut Reader,
    look: &Look,
    signals: &Signals,
    arguments: &TopArguments,
) -> Result<Exit, String> {
    let refused = |e: io::Error| format!("cannot use the terminal: {e}");
    let _entered = Entered::enter().map_err(refused)?;
    let mut terminal = Terminal::new(Screen::new()).map_err(refused)?;
    let mut before = Instant::now();
    loop {
        source.refresh()?;
        app.pass(before.elapsed(), source)?;
        before = Instant::now();
        terminal
            .draw(|frame| {
                let area = frame.area();
                screen::draw(app, source, now(), look, area, frame.buffer_mut());
            })
            .map_err(refused)?;
        let mut patience = TICK;
        // Keys that came meanwhile are handled before the next screen.
        while event::poll(patience).map_err(refused)? {
            patience = Duration::ZERO;
            let Event::Key(key) = event::read().map_err(refused)? else {
                continue;
            };
            assert!(!arguments.panics(), "a panic was asked for");
            if key.kind == KeyEventKind::Release {
                continue;
            }
            match app.key(key, source)? {
                Flow::Continue => {}
                Flow::Quit => return Ok(Exit::Fine),
                Flow::Interrupt => return Ok(Exit::Signal(2)),
            }
        }
        if let Some(signal) = signals.received() {
            return Ok(Exit::Signal(signal));
        }
    }
}

/// Prints a screen each second on a terminal that cannot do more, until the recording ends.
fn scrolled(
    mut app: App,
    mut source: Reader,
    look: &Look,
    signals: &Signals,
) -> Result<Exit, String> {
    loop {
        let text = picture::text(&drawn(&app, &source, look, size_of_terminal()));
        printed(print(format_args!("{text}\n")))?;
        if source.has_ended() {
            return Ok(Exit::Fine);
        }
        let end = Instant::now() + SLOW_TICK;
        while Instant::now() < end {
            thread::sleep(TICK);
            if let Some(signal) = signals.received() {
                return Ok(Exit::Signal(signal));
            }
        }
        source.refresh()?;
        app.pass(SLOW_TICK, &source)?;
    }
}

fn print_json(app: &App, source: &Reader) -> Result<Exit, String> {
    let shown = &app.shown;
    let Some(state) = &shown.state else {
        let file = &source.origin().file;
        return Err(format!(
            "{file} holds no moment yet: one is recorded each second"
        ));
    };
    let object = json::moment(state, &shown.rates, source);
    printed(print(format_args!("{object}\n")))
}

fn printed(printed: io::Result<()>) -> Result<Exit, String> {
    let failed = |e| format!("cannot write to standard output: {e}");
    printed.map(|()| Exit::Fine).map_err(failed)
}

/// Draws the screen into cells.
fn drawn<S: Source>(app: &App, source: &S, look: &Look, Size(width, height): Size) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    screen::draw(app, source, now(), look, area, &mut buffer);
    buffer
}

fn size_of_terminal() -> Size {
    let size = if io::stdout().is_terminal() {
        crossterm::terminal::size().ok()
    } else {
        None
    };
    // A terminal that does not know its size reports 0.
    let known = size.filter(|(columns, rows)| *columns > 0 && *rows > 0);
    known.map_or(SIZE, |(columns, rows)| Size(columns, rows))
}

/// The wall clock since 1970.
fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}
