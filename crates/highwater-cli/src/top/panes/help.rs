//! The keys.

use ratatui_core::text::Line;

use super::super::look::Look;

/// Returns the help, of at most 19 lines: it fits 24 rows.
pub(crate) fn lines(look: &Look) -> Vec<Line<'static>> {
    let glyphs = &look.glyphs;
    let text = format!(
        "\
KEYS
[ ]          previous, next moment          {{ }}  ten seconds back, forward
( )          previous, next mark or victim  g G  first, newest moment
space        pause, play                    < >  slower, faster play
1 to 6, Tab  panes                          q    quit (or Ctrl-C)
Up Down      select a group, or scroll (k j, PageUp, PageDown)
Enter        fold or open a group (Left, Right)   - +  fold, open all
s            sort siblings by name, usage, refaults, pressure, waiting
/            show only groups whose path contains a text; Esc shows all
c            bars of one scale: of all frames, not of each group's maximum

BARS
{full}{full} used for certain   {hatch}{hatch} uncertain: between the ends of the usage's interval
m l h M      limits min, low, high, max, where they are within the bar
of max       the right end is the lowest maximum of a group and its ancestors

TIMELINE     {here} moment shown   {mark} mark   {victim} victim
REFLT/s EFF  refaults; pages reclaimed of those scanned; WAIT charges:longest
PSI          share of time with a stalled thread (some), with only such (full)",
        full = glyphs.full,
        hatch = glyphs.uncertain,
        here = glyphs.here,
        mark = glyphs.mark,
        victim = glyphs.victim,
    );
    text.lines()
        .map(|line| match line {
            "KEYS" | "BARS" => Line::styled(line.to_owned(), look.heading()),
            line => Line::raw(line.to_owned()),
        })
        .collect()
}
