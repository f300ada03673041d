//! The tree of groups: usage with its interval, a bar, refaults, reclaim, pressure, waits.

use highwater_host::printable;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::super::bar::{Cell, Marked, cells};
use super::super::model::Group;
use super::super::numbers::{duration, interval, percent, short};
use super::super::rates::Rate;
use super::super::tree::Row;
use super::{Context, efficiency};

/// Columns of the usage.
const USAGE: usize = 15;

/// From this width on there are more columns of pressure.
const WIDE: usize = 110;

/// Text of a column from a group and its rates.
type Shown = fn(&Group, &Rate) -> String;

/// A column behind the bar: title, width, text.
type Column = (&'static str, usize, Shown);

const REFAULTS: Column = ("REFLT/s", 7, |_, rate| short(rate.refaults));
const EFFICIENCY: Column = ("EFF", 4, |_, rate| efficiency(rate.efficiency));
const SOME_10: Column = ("PSI10", 6, |group, _| percent(group.some.averages[0]));
const WAIT: Column = ("WAIT", 9, |group, _| waiting(group));

/// Columns at 80.
const NARROW: &[Column] = &[REFAULTS, EFFICIENCY, SOME_10, WAIT];

/// Columns with room.
const ALL: &[Column] = &[
    REFAULTS,
    ("SCAN/s", 7, |_, rate| short(rate.scanned)),
    EFFICIENCY,
    SOME_10,
    ("PSI60", 6, |group, _| percent(group.some.averages[1])),
    ("PSI300", 6, |group, _| percent(group.some.averages[2])),
    ("FULL10", 6, |group, _| percent(group.full.averages[0])),
    WAIT,
];

/// Columns of name and bar, and the others.
struct Widths {
    name: usize,
    bar: usize,
    columns: &'static [Column],
}

impl Widths {
    fn of(width: u16) -> Self {
        let width = usize::from(width);
        let columns = if width < WIDE { NARROW } else { ALL };
        let taken: usize = columns.iter().map(|(_, width, _)| width + 1).sum();
        let rest = width.saturating_sub(taken + USAGE + 2);
        let name = (rest * 9 / 20).min(40);
        Self {
            name,
            bar: rest - name,
            columns,
        }
    }
}

/// Returns the titles of the columns.
pub(crate) fn head(context: &Context<'_>, width: u16) -> Line<'static> {
    let Widths { name, bar, columns } = Widths::of(width);
    let filtered = if context.app.shape.filter.is_empty() {
        "GROUP"
    } else {
        "GROUP filtered"
    };
    let scale = if context.app.is_one_scale {
        "of all frames"
    } else {
        "of max"
    };
    let filtered: String = filtered.chars().take(name).collect();
    let scale: String = scale.chars().take(bar).collect();
    let mut text = format!("{filtered:name$} {:>USAGE$} {scale:bar$}", "USAGE");
    for (title, width, _) in columns {
        text += &format!(" {title:>width$}");
    }
    Line::styled(text, context.look.heading())
}

/// Returns the line of a group.
pub(crate) fn line(context: &Context<'_>, row: &Row, width: u16) -> Line<'static> {
    let Widths { name, bar, columns } = Widths::of(width);
    let group = &context.state.groups[row.index];
    let none = Rate::default();
    let rate = context.app.shown.rates.get(row.index).unwrap_or(&none);
    let usage = interval(&group.usage);
    let mut spans = vec![Span::raw(format!(
        "{} {usage:>USAGE$} ",
        named(context, row, group, name)
    ))];
    spans.extend(drawn(context, group, bar));
    for (_, width, shown) in columns {
        spans.push(Span::raw(format!(" {:>width$}", shown(group, rate))));
    }
    Line::from(spans)
}

/// The name, indented, behind a sign that it has groups below it; of exactly `width` columns.
fn named(context: &Context<'_>, row: &Row, group: &Group, width: usize) -> String {
    let glyphs = &context.look.glyphs;
    let sign = match (row.has_children, row.is_folded) {
        (false, _) => ' ',
        (true, true) => glyphs.folded,
        (true, false) => glyphs.open,
    };
    // Deep trees keep room for names.
    let indent = " ".repeat(row.depth.min(width / 4));
    let name = if group.name.is_empty() {
        &group.path
    } else {
        &group.name
    };
    // Characters that the screen leaves out would move the columns.
    let text = format!("{indent}{sign}{}", printable(name));
    fitted(text, width)
}

/// Cuts or fills a text to so many columns.
fn fitted(mut text: String, width: usize) -> String {
    while Line::raw(text.as_str()).width() > width {
        text.pop();
    }
    let gap = width - Line::raw(text.as_str()).width();
    text + &" ".repeat(gap)
}

/// The bar of a group: adjacent cells of one style are one span.
fn drawn(context: &Context<'_>, group: &Group, width: usize) -> Vec<Span<'static>> {
    let page_size = context.origin.page_size;
    let scale = if context.app.is_one_scale {
        let capacity = context.state.capacity(page_size);
        capacity.max(group.usage.high)
    } else {
        context.state.scale_of(group, page_size)
    };
    let colour = severity(group);
    let cells = cells(&group.usage, &group.limits, scale, width);
    let same = |a: &Marked, b: &Marked| style(context, *a, colour) == style(context, *b, colour);
    cells
        .chunk_by(same)
        .map(|run| {
            let text: String = run.iter().map(|cell| glyph(context, *cell)).collect();
            Span::styled(text, style(context, run[0], colour))
        })
        .collect()
}

fn glyph(context: &Context<'_>, marked: Marked) -> char {
    let glyphs = &context.look.glyphs;
    let plain = match marked.cell {
        Cell::Full => glyphs.full,
        Cell::Uncertain => glyphs.uncertain,
        Cell::Empty => glyphs.empty,
    };
    marked.tick.unwrap_or(plain)
}

/// A tick in the used part is reversed, so that the bar goes on behind the letter.
fn style(context: &Context<'_>, marked: Marked, colour: Color) -> Style {
    let look = context.look;
    match (marked.cell, marked.tick) {
        (Cell::Full | Cell::Uncertain, None) => look.colour(colour),
        (Cell::Full, Some(_)) => look.colour(colour).add_modifier(Modifier::REVERSED),
        (_, Some(_)) => Style::new().add_modifier(Modifier::BOLD),
        (Cell::Empty, None) => look.faint(),
    }
}

/// Red if the group may be within a sixteenth of its maximum, yellow above `high`.
fn severity(group: &Group) -> Color {
    let used = group.usage.high;
    let near = |max: highwater::Bytes| used.0 >= max.0 - max.0 / 16;
    if group.limits.max.is_some_and(near) {
        Color::Red
    } else if group.limits.high.is_some_and(|high| used > high) {
        Color::Yellow
    } else {
        Color::Green
    }
}

/// Number of charges that wait, and since when: `3: 1.2s`.
fn waiting(group: &Group) -> String {
    match group.waiting.charges {
        0 => "-".to_owned(),
        charges => format!("{}:{}", short(charges), duration(group.waiting.longest)),
    }
}
