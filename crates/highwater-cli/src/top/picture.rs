//! The screen without a terminal: as text, and as a picture in SVG.

use std::fmt::Write as _;

use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};

use super::look::Glyphs;

/// Width and height of a character cell, in units of the picture.
const CELL: (u32, u32) = (8, 17);

/// Returns the rows, without spaces at their ends.
pub(crate) fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in 0..buffer.area.height {
        let row: String = row(buffer, y).map(|(_, cell)| cell.symbol()).collect();
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// Returns a picture of the screen on a dark ground. Full and hatched cells are shapes, because
/// fonts draw the block characters differently.
pub(crate) fn svg(buffer: &Buffer, title: &str) -> String {
    let Rect { width, height, .. } = buffer.area;
    let (width, height) = (u32::from(width) * CELL.0, u32::from(height) * CELL.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-8 -8 {} {}\" role=\"img\" \
         font-family=\"DejaVu Sans Mono,Menlo,Consolas,monospace\" font-size=\"13\">\n<title>{}</title>\n\
         <defs><pattern id=\"hatch\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\">\
         <path d=\"M-1,5L5,-1M-1,1L1,-1M3,5L5,3\" stroke=\"#d8dee9\" stroke-width=\"1.2\"/>\
         </pattern></defs>\n\
         <rect x=\"-8\" y=\"-8\" width=\"100%\" height=\"100%\" fill=\"#15191f\"/>\n",
        width + 16,
        height + 16,
        escaped(title),
    );
    for y in 0..buffer.area.height {
        let cells: Vec<(u16, &Cell)> = row(buffer, y).collect();
        for run in cells.chunk_by(|(_, a), (_, b)| kind(a) == kind(b)) {
            draw_run(&mut svg, run, u32::from(y) * CELL.1);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Cells of one kind are drawn together.
fn kind(cell: &Cell) -> (Shape, Color, Modifier) {
    let symbol = cell.symbol();
    let is = |glyph: char| symbol.chars().eq([glyph]);
    let glyphs = Glyphs::UTF_8;
    let shape = match symbol {
        _ if is(glyphs.full) => Shape::Full,
        _ if is(glyphs.uncertain) => Shape::Hatched,
        _ if is(glyphs.rule) => Shape::Rule,
        _ => Shape::Text,
    };
    (shape, cell.fg, cell.modifier)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Full,
    Hatched,
    Rule,
    Text,
}

fn draw_run(svg: &mut String, run: &[(u16, &Cell)], y: u32) {
    let (first, cell) = run[0];
    let (shape, colour, modifier) = kind(cell);
    let x = u32::from(first) * CELL.0;
    let width = u32::try_from(run.len()).unwrap_or(0) * CELL.0;
    let mut ink = web(colour);
    let is_reversed = modifier.contains(Modifier::REVERSED);
    if is_reversed {
        rect(svg, (x, y, width, CELL.1), web(Color::Reset));
        if shape != Shape::Full {
            ink = "#15191f";
        }
    }
    // Writing to a string does not fail.
    match shape {
        Shape::Full => rect(svg, (x, y + 2, width, CELL.1 - 4), ink),
        Shape::Hatched => rect(svg, (x, y + 2, width, CELL.1 - 4), "url(#hatch)"),
        Shape::Rule => rect(svg, (x, y + CELL.1 / 2, width, 1), ink),
        Shape::Text => {
            let text: String = run.iter().map(|(_, cell)| cell.symbol()).collect();
            // Leading spaces move the text, those at the end are nothing to see.
            let left = text.len() - text.trim_start().len();
            let trimmed = text.trim();
            if trimmed.is_empty() {
                return;
            }
            let x = x + u32::try_from(left).unwrap_or(0) * CELL.0;
            let columns = u32::try_from(trimmed.chars().count()).unwrap_or(0);
            let bold = if modifier.contains(Modifier::BOLD) {
                " font-weight=\"bold\""
            } else {
                ""
            };
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{}\" textLength=\"{}\" fill=\"{ink}\"{bold}>{}</text>",
                y + 13,
                columns * CELL.0,
                // Not all browsers keep several spaces in a row, or a style that asks for it.
                escaped(trimmed).replace(' ', "\u{a0}")
            );
        }
    }
}

fn rect(svg: &mut String, (x, y, width, height): (u32, u32, u32, u32), fill: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>"
    );
}

/// Colours of the picture, distinct also for colour-blind eyes on its dark ground.
fn web(colour: Color) -> &'static str {
    match colour {
        Color::Red => "#ff8272",
        Color::Green => "#56b89a",
        Color::Yellow => "#f0c060",
        Color::Blue => "#7cb7ff",
        Color::Cyan => "#8fd3f4",
        Color::DarkGray => "#8b95a5",
        _ => "#d8dee9",
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

/// The cells of a row that are drawn: one behind a wide character is not.
fn row(buffer: &Buffer, y: u16) -> impl Iterator<Item = (u16, &Cell)> {
    let mut hidden = 0;
    (0..buffer.area.width).filter_map(move |x| {
        let cell = buffer.cell((buffer.area.x + x, buffer.area.y + y))?;
        if hidden > 0 {
            hidden -= 1;
            return None;
        }
        let columns = ratatui_core::text::Span::raw(cell.symbol()).width();
        hidden = columns.saturating_sub(1);
        Some((x, cell))
    })
}
