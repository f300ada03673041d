//! Frames: their states, watermarks, and the per-CPU lists (pcp).

use ratatui_core::text::Line;

use super::super::model::PcpList;
use super::super::numbers::count;
use super::Context;

/// Returns the lines of the pane.
pub(crate) fn lines(context: &Context<'_>, width: u16) -> Vec<Line<'static>> {
    let frames = &context.state.frames;
    let reclaiming = if frames.is_reclaiming {
        "reclaim is active"
    } else {
        "no reclaim"
    };
    let pages =
        |name: &str, pages: u64| format!("{name} {} ({})", count(pages), context.pages(pages));
    let mut lines = vec![
        context.heading("FRAMES", width),
        Line::raw(format!(
            "{}  {}",
            pages("managed", frames.managed),
            pages("allocated", frames.allocated)
        )),
        Line::raw(format!(
            "{}  {}",
            pages("free", frames.free),
            pages("in per-CPU lists", frames.cached)
        )),
        Line::raw(format!(
            "deferred {}  ballooned {}  {}",
            count(frames.deferred),
            count(frames.ballooned),
            pages("peak", frames.peak)
        )),
        Line::raw(format!(
            "watermarks min {} low {} high {}; {reclaiming}",
            count(frames.watermark_min),
            count(frames.watermark_low),
            count(frames.watermark_high)
        )),
        context.faint(" CPU  PAGES   HIGH    MIN    MAX  BATCH"),
    ];
    lines.extend(frames.lists.iter().map(|list| of_cpu(context, list, width)));
    lines
}

fn of_cpu(context: &Context<'_>, list: &PcpList, width: u16) -> Line<'static> {
    let cpu = list
        .cpu
        .map_or_else(|| "none".to_owned(), |cpu| cpu.to_string());
    let PcpList {
        count,
        high,
        high_min,
        high_max,
        batch,
        ..
    } = list;
    let room = usize::from(width).saturating_sub(42).min(30);
    // A list of no capacity has no bar.
    let filled = (*count as usize * room).checked_div(*high as usize);
    let filled = filled.unwrap_or(0).min(room);
    let glyphs = &context.look.glyphs;
    let bar = (0..room).map(|x| {
        if x < filled {
            glyphs.full
        } else {
            glyphs.empty
        }
    });
    let bar: String = bar.collect();
    Line::raw(format!(
        "{cpu:>4} {count:>6} {high:>6} {high_min:>6} {high_max:>6} {batch:>6}  {bar}"
    ))
}
