//! The terminal: raw mode and the alternate screen, restored at every end, also by a panic.

use std::io::{self, BufWriter, Stdout, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
use std::time::Duration;
use std::{panic, process};

use crossterm::style::{Attribute, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{Clear, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue, terminal};
use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Whether the terminal is to be restored. Written by: the thread that enters or restores. Read by:
/// the same, and a panic's thread. Publishes: only itself.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// Time in which the screen ends by itself after its terminal was closed.
const PATIENCE: Duration = Duration::from_millis(500);

/// The exit status after SIGHUP, which a closed terminal sends.
const HUNG_UP: i32 = 128 + 1;

/// The terminal in raw mode, on its alternate screen, until it is dropped.
#[derive(Debug)]
pub(crate) struct Entered(());

impl Entered {
    /// Enters, and has the panic hook restore the terminal before the message of a panic.
    ///
    /// # Errors
    ///
    /// When the terminal refuses.
    pub(crate) fn enter() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        // Relaxed: the flag publishes no other data.
        IS_ENTERED.store(true, Ordering::Relaxed);
        let entered = Self(());
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        execute!(stdout(), EnterAlternateScreen, cursor::Hide)?;
        end_with_the_terminal()?;
        Ok(entered)
    }
}

/// Ends the program when its terminal is closed: a read of keys, by crossterm, would find the end
/// of the terminal again and again, and not return.
fn end_with_the_terminal() -> io::Result<()> {
    let watched = Builder::new().name("terminal".into()).spawn(|| {
        let terminal = stdout();
        loop {
            // Without events of interest, this returns when the terminal hangs up.
            let mut states = [PollFd::new(&terminal, PollFlags::empty())];
            match poll(&mut states, None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
        // A signal of the same cause ends the program by itself.
        thread::sleep(PATIENCE);
        process::exit(HUNG_UP);
    });
    watched.map(drop)
}

impl Drop for Entered {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal once. A failure is of no use to a caller: the terminal is gone then.
fn restore() {
    // Relaxed: the flag publishes no other data.
    if IS_ENTERED.swap(false, Ordering::Relaxed) {
        let _ = execute!(stdout(), ResetColor, cursor::Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// Draws cells by escape sequences: what the crate `ratatui-crossterm` does, without its eleven
/// dependencies, for the colours and attributes of `top`.
#[derive(Debug)]
pub(crate) struct Screen {
    out: BufWriter<Stdout>,
    cursor: Position,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self {
            out: BufWriter::new(stdout()),
            cursor: Position::ORIGIN,
        }
    }

    fn dress(&mut self, cell: &Cell) -> io::Result<()> {
        queue!(self.out, SetAttribute(Attribute::Reset))?;
        if cell.fg != Color::Reset {
            queue!(self.out, SetForegroundColor(colour(cell.fg)))?;
        }
        for (modifier, attribute) in [
            (Modifier::BOLD, Attribute::Bold),
            (Modifier::REVERSED, Attribute::Reverse),
        ] {
            if cell.modifier.contains(modifier) {
                queue!(self.out, SetAttribute(attribute))?;
            }
        }
        Ok(())
    }
}

/// Returns the terminal's colour; its own foreground for those that `top` does not use.
fn colour(colour: Color) -> crossterm::style::Color {
    use crossterm::style::Color as Terminal;
    match colour {
        Color::Red => Terminal::DarkRed,
        Color::Green => Terminal::DarkGreen,
        Color::Yellow => Terminal::DarkYellow,
        Color::Blue => Terminal::DarkBlue,
        Color::Cyan => Terminal::DarkCyan,
        Color::DarkGray => Terminal::DarkGrey,
        _ => Terminal::Reset,
    }
}

impl Backend for Screen {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut style = None;
        let mut next = None;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                queue!(self.out, cursor::MoveTo(x, y))?;
            }
            // A wide character takes two columns; after it the cursor is placed anew.
            next = cell.symbol().is_ascii().then_some((x + 1, y));
            if style != Some((cell.fg, cell.modifier)) {
                self.dress(cell)?;
                style = Some((cell.fg, cell.modifier));
            }
            queue!(self.out, Print(cell.symbol()))?;
        }
        queue!(self.out, SetAttribute(Attribute::Reset))
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        execute!(self.out, cursor::Hide)
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        execute!(self.out, cursor::Show)
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(self.cursor)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        self.cursor = position.into();
        execute!(self.out, cursor::MoveTo(self.cursor.x, self.cursor.y))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        use terminal::ClearType as Terminal;
        let region = match region {
            ClearType::All => Terminal::All,
            ClearType::AfterCursor => Terminal::FromCursorDown,
            ClearType::BeforeCursor => Terminal::FromCursorUp,
            ClearType::CurrentLine => Terminal::CurrentLine,
            ClearType::UntilNewLine => Terminal::UntilNewLine,
        };
        execute!(self.out, Clear(region))
    }

    fn size(&self) -> io::Result<Size> {
        let (width, height) = terminal::size()?;
        Ok(Size::new(width, height))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        let columns_rows = self.size()?;
        // `top` draws no pixels.
        let pixels = Size::ZERO;
        Ok(WindowSize {
            columns_rows,
            pixels,
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
