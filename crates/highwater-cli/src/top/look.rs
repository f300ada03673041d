//! Glyphs and colours: UTF-8 or ASCII, with colours or without. Nothing is told by colour alone.

use std::env;

use clap::ValueEnum;
use ratatui_core::style::{Color, Modifier, Style};

/// The look of the screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) is_coloured: bool,
    pub(crate) glyphs: Glyphs,
}

/// Characters that have an ASCII form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glyphs {
    pub(crate) full: char,
    pub(crate) uncertain: char,
    pub(crate) empty: char,
    pub(crate) rule: char,
    pub(crate) folded: char,
    pub(crate) open: char,
    pub(crate) here: char,
    pub(crate) mark: char,
    pub(crate) victim: char,
}

impl Glyphs {
    pub(crate) const UTF_8: Self = Self {
        full: '█',
        uncertain: '▒',
        empty: '·',
        rule: '─',
        folded: '▸',
        open: '▾',
        here: '●',
        mark: '◆',
        victim: '×',
    };

    pub(crate) const ASCII: Self = Self {
        full: '#',
        uncertain: '/',
        empty: '.',
        rule: '-',
        folded: '+',
        open: '-',
        here: 'o',
        mark: '^',
        victim: 'x',
    };
}

/// Characters that the screen is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Charset {
    /// Block characters.
    Utf8,
    /// Only printable ASCII in everything that `top` draws itself.
    Ascii,
}

impl Look {
    /// Returns the look that the environment asks for: `NO_COLOR`, `TERM` and the locale.
    pub(crate) fn of_environment(charset: Option<Charset>) -> Self {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let is_plain = set("NO_COLOR").is_some() || is_dumb();
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let locale = locale.unwrap_or_default().to_lowercase();
        let is_utf_8 = locale.contains("utf-8") || locale.contains("utf8");
        let charset = charset.unwrap_or(if is_utf_8 && !is_dumb() {
            Charset::Utf8
        } else {
            Charset::Ascii
        });
        Self {
            is_coloured: !is_plain,
            glyphs: match charset {
                Charset::Utf8 => Glyphs::UTF_8,
                Charset::Ascii => Glyphs::ASCII,
            },
        }
    }

    /// The text has this colour, if there are colours.
    pub(crate) fn colour(&self, colour: Color) -> Style {
        if self.is_coloured {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    /// Less important text.
    pub(crate) fn faint(&self) -> Style {
        self.colour(Color::DarkGray)
    }

    /// Headings.
    pub(crate) fn heading(&self) -> Style {
        self.colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }
}

/// Whether the terminal has no cursor addressing.
pub(crate) fn is_dumb() -> bool {
    env::var("TERM").is_ok_and(|term| term == "dumb")
}
