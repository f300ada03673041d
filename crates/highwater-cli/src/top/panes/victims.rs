//! Victims: the last one's record in full, the earlier ones in a line each.

use ratatui_core::text::Line;

use super::super::model::Victim;
use super::super::numbers::{bytes, interval, moment, short};
use super::Context;
use highwater::Bytes;

/// Returns the lines of the pane.
pub(crate) fn lines(context: &Context<'_>, width: u16) -> Vec<Line<'static>> {
    let mut victims = so_far(context).rev();
    let Some(last) = victims.next() else {
        let none = Line::raw("no group was selected as a victim up to this moment");
        return vec![context.heading("VICTIMS", width), none];
    };
    let mut lines = vec![context.heading("VICTIMS", width)];
    lines.extend(record(last, width));
    lines.push(Line::default());
    lines.push(context.faint("earlier, from the latest on"));
    for victim in victims {
        let line = format!("{:>9}  {}", moment(victim.time), victim.text);
        lines.push(Line::raw(line));
    }
    lines
}

/// Returns the last victim for a place below the tree: in full, or in one line if `rows_max` is 1.
pub(crate) fn last(context: &Context<'_>, width: u16, rows_max: usize) -> Vec<Line<'static>> {
    let Some(victim) = so_far(context).next_back() else {
        return vec![context.faint("no victim up to this moment")];
    };
    if rows_max == 1 {
        let line = format!(
            "victim at {} (5: in full): {}",
            moment(victim.time),
            victim.text
        );
        return vec![Line::raw(line)];
    }
    let mut lines = vec![context.heading("LAST VICTIM", width)];
    lines.extend(record(victim, width));
    lines
}

/// Victims up to the moment shown.
fn so_far<'a>(context: &Context<'a>) -> impl DoubleEndedIterator<Item = &'a Victim> + use<'a> {
    let now = context.state.time;
    context.victims.iter().filter(move |it| it.time <= now)
}

/// The whole record.
fn record(victim: &Victim, width: u16) -> Vec<Line<'static>> {
    let exact = victim.exact.map_or_else(|| "not read".to_owned(), bytes);
    let runner_up = victim.runner_up.as_ref();
    let runner_up = runner_up.map_or_else(
        || "none".to_owned(),
        |(path, next)| format!("{path} with {}", badness(*next)),
    );
    let census = victim.census.iter();
    let census: Vec<String> = census
        .map(|(name, count)| format!("{name} {}", short(*count)))
        .collect();
    let mut text = vec![
        format!("{} for room in {}", moment(victim.time), victim.target),
        format!("victim    {}", victim.path),
        format!("usage     {}, exact {exact}", interval(&victim.estimate)),
        format!(
            "badness   {}; another may be worse by {}",
            badness(victim.badness),
            bytes(victim.gap)
        ),
        format!("next      {runner_up}"),
        format!("search    {}", census.join(", ")),
    ];
    text.extend(wrapped(&victim.text, usize::from(width)));
    text.into_iter().map(Line::raw).collect()
}

/// Badness may be negative, and is the greatest number for a group that goes first.
fn badness(badness: i64) -> String {
    match badness {
        i64::MAX => "goes first".to_owned(),
        badness if badness < 0 => format!("-{}", bytes(Bytes(badness.unsigned_abs()))),
        badness => bytes(Bytes(badness.unsigned_abs())),
    }
}

/// Breaks a text at spaces into lines of at most `width` columns.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if Line::raw(line.as_str()).width() + word.len() < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
