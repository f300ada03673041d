//! Marks of the program and victims, in order of time.

use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::Line;

use super::super::numbers::moment;
use super::Context;

/// Returns the lines of the pane; those up to the moment shown are bold.
pub(crate) fn lines(context: &Context<'_>, width: u16) -> Vec<Line<'static>> {
    let glyphs = &context.look.glyphs;
    let marks = context.marks.iter();
    let marks = marks.map(|mark| (mark.time, glyphs.mark, mark.text.clone()));
    let victims = context.victims.iter();
    let victims = victims.map(|victim| {
        (
            victim.time,
            glyphs.victim,
            format!("victim {}", victim.path),
        )
    });
    let mut incidents: Vec<_> = marks.chain(victims).collect();
    incidents.sort_by_key(|(time, ..)| *time);
    let mut lines = vec![context.heading("MARKS AND VICTIMS", width)];
    if incidents.is_empty() {
        lines.push(Line::raw("none: the program sets marks by `Manager::mark`"));
    }
    for (time, glyph, text) in incidents {
        let line = Line::raw(format!("{:>9} {glyph} {text}", moment(time)));
        let is_past = time <= context.state.time;
        lines.push(if is_past {
            line.style(Style::new().add_modifier(Modifier::BOLD))
        } else {
            line
        });
    }
    lines
}
