//! Contention of the lock classes, over all managers of the process.

use std::time::Duration;

use ratatui_core::text::Line;

use super::super::model::Lock;
use super::super::numbers::{duration, short};
use super::Context;

/// Returns the lines of the pane.
pub(crate) fn lines(context: &Context<'_>, width: u16) -> Vec<Line<'static>> {
    let mut locks: Vec<&Lock> = context.state.locks.iter().collect();
    // The sort is stable: locks without contention stay in the recording's order.
    locks.sort_by_key(|lock| std::cmp::Reverse(lock.wait));
    let titles = format!(
        "{:18} {:>9} {:>8} {:>8} {:>6} {:>7}",
        "CLASS", "CONTENDED", "WAITED", "EACH", "HOLDS", "HELD"
    );
    let mut lines = vec![context.heading("LOCKS", width), context.faint(titles)];
    lines.extend(locks.into_iter().map(of_class));
    lines
}

fn of_class(lock: &Lock) -> Line<'static> {
    let each = each(lock.wait, lock.contended);
    let held = |shown: fn(&(Duration, u64)) -> String| {
        lock.held.as_ref().map_or_else(|| "-".to_owned(), shown)
    };
    Line::raw(format!(
        "{:18} {:>9} {:>8} {:>8} {:>6} {:>7}",
        lock.class,
        short(lock.contended),
        duration(lock.wait),
        each.map_or_else(|| "-".to_owned(), duration),
        held(|(_, holds)| short(*holds)),
        held(|(held, _)| duration(*held)),
    ))
}

/// Mean wait of a contended acquisition.
fn each(wait: Duration, contended: u64) -> Option<Duration> {
    let nanos = wait.as_nanos().checked_div(u128::from(contended))?;
    Some(Duration::from_nanos(
        u64::try_from(nanos).unwrap_or(u64::MAX),
    ))
}
