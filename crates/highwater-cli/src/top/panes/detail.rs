//! The selected group in full.

use ratatui_core::text::Line;

use super::super::model::{Group, Stall};
use super::super::numbers::{bytes, duration, interval, limit, percent, short};
use super::super::rates::{Rate, efficiency as share};
use super::{Context, efficiency};

/// Returns the lines of the selected group.
pub(crate) fn lines(context: &Context<'_>, width: u16) -> Vec<Line<'static>> {
    let row = context.app.shown.rows.get(context.app.selected_row());
    let Some(index) = row.map(|row| row.index) else {
        return Vec::new();
    };
    let none = Rate::default();
    let rate = context.app.shown.rates.get(index).unwrap_or(&none);
    let group = &context.state.groups[index];
    let text = [
        memory(group),
        pressure(group),
        reclaim(group, rate),
        pages(context, group, rate),
        events(group),
        waiting(group),
    ];
    let mut lines = vec![context.heading(&group.path, width)];
    lines.extend(text.map(Line::raw));
    lines
}

fn memory(group: &Group) -> String {
    let limits = &group.limits;
    format!(
        "usage {}  peak {}  min {} low {} high {} max {}",
        interval(&group.usage),
        interval(&group.peak),
        limit(limits.min),
        limit(limits.low),
        limit(limits.high),
        limit(limits.max),
    )
}

fn pressure(group: &Group) -> String {
    let shown = |stall: &Stall| {
        let [ten, sixty, three_hundred] = stall.averages.map(percent);
        let total = duration(stall.total);
        format!("{ten}/{sixty}/{three_hundred}% {total}")
    };
    format!(
        "psi 10/60/300 s, total: some {}, full {}",
        shown(&group.some),
        shown(&group.full)
    )
}

fn reclaim(group: &Group, rate: &Rate) -> String {
    let stat = &group.stat;
    format!(
        "refaults {}/s of {}  reclaimed {} of {}/s: {}, ever {}",
        short(rate.refaults),
        short(stat.refault),
        short(rate.reclaimed),
        short(rate.scanned),
        efficiency(rate.efficiency),
        efficiency(share(stat.reclaimed, stat.scanned)),
    )
}

fn pages(context: &Context<'_>, group: &Group, rate: &Rate) -> String {
    let stat = &group.stat;
    format!(
        "anon {} file {} dirty {}  misses {}/s  (off by up to {}, {} old)",
        context.pages(stat.anon),
        context.pages(stat.file),
        context.pages(stat.file_dirty),
        short(rate.major_faults),
        short(group.stat_staleness),
        duration(group.stat_age),
    )
}

fn events(group: &Group) -> String {
    let events = group.events.iter();
    let events: Vec<String> = events
        .map(|(name, count)| format!("{name} {}", short(*count)))
        .collect();
    format!("events {}", events.join("  "))
}

fn waiting(group: &Group) -> String {
    let waiting = &group.waiting;
    match waiting.charges {
        0 => "no charge waits".to_owned(),
        charges => format!(
            "{} charges wait for {}, the first for {} or more",
            short(charges),
            bytes(waiting.bytes),
            duration(waiting.longest)
        ),
    }
}
