//! The panes of `top` as lines of text. The first line of a pane is its heading.

use highwater::Bytes;
use ratatui_core::text::Line;

use super::app::{App, Pane};
use super::look::Look;
use super::model::{Mark, Origin, State, Victim};
use super::numbers::bytes;

pub(crate) mod detail;
pub(crate) mod files;
pub(crate) mod frames;
pub(crate) mod groups;
pub(crate) mod help;
pub(crate) mod locks;
pub(crate) mod marks;
pub(crate) mod victims;

/// Everything that a pane shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) app: &'a App,
    pub(crate) state: &'a State,
    pub(crate) look: &'a Look,
    pub(crate) origin: &'a Origin,
    pub(crate) marks: &'a [Mark],
    pub(crate) victims: &'a [Victim],
}

impl Context<'_> {
    /// Formats so many pages as an amount of memory.
    fn pages(&self, pages: u64) -> String {
        bytes(Bytes(pages.saturating_mul(self.origin.page_size)))
    }

    /// A heading, and a rule behind it.
    fn heading(&self, text: &str, width: u16) -> Line<'static> {
        let rule = usize::from(width).saturating_sub(Line::raw(text).width() + 1);
        let rule: String = std::iter::repeat_n(self.look.glyphs.rule, rule).collect();
        Line::styled(format!("{text} {rule}"), self.look.heading())
    }

    /// A faint line, as of column titles.
    fn faint(&self, text: impl Into<String>) -> Line<'static> {
        Line::styled(text.into(), self.look.faint())
    }
}

/// Returns the lines of a pane. The tree of groups scrolls by itself, and has none here.
pub(crate) fn lines(context: &Context<'_>, pane: Pane, width: u16) -> Vec<Line<'static>> {
    match pane {
        Pane::Groups => Vec::new(),
        Pane::Frames => frames::lines(context, width),
        Pane::Locks => locks::lines(context, width),
        Pane::Files => files::lines(context, width),
        Pane::Victims => victims::lines(context, width),
        Pane::Marks => marks::lines(context, width),
    }
}

/// Formats a reclaim efficiency: `-` if nothing was scanned.
pub(crate) fn efficiency(percent: Option<u64>) -> String {
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"))
}
