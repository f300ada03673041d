//! Changes of a group's statistics between two moments, per second.

use std::collections::HashMap;
use std::time::Duration;

use super::model::{Group, State};

/// Events per second of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) refaults: u64,
    pub(crate) scanned: u64,
    pub(crate) reclaimed: u64,
    pub(crate) major_faults: u64,
    /// Pages reclaimed of those scanned, in percent; `None` if none was scanned.
    pub(crate) efficiency: Option<u64>,
}

/// Least time between two states of a group's statistics for a rate: less is that of two reads.
const APART: Duration = Duration::from_millis(100);

/// Completes `rates`, those of the groups of `now` in their order, by an earlier moment. A group
/// has no rate yet if it is not in `before`, or has the same statistics there: a flush brings them
/// up to date, the background thread's each two seconds.
pub(crate) fn complete(rates: &mut [Option<Rate>], now: &State, before: &State) {
    let by_id: HashMap<u64, &Group> = before.groups.iter().map(|it| (it.id, it)).collect();
    for (rate, group) in rates.iter_mut().zip(&now.groups) {
        let before = by_id.get(&group.id);
        *rate = rate.or_else(|| before.and_then(|before| between(group, before)));
    }
}

/// Returns the changes of the statistics by the time between their flushes, not between the reads.
fn between(now: &Group, before: &Group) -> Option<Rate> {
    let flushed_at = |group: &Group| group.read_at.saturating_sub(group.stat_age);
    let elapsed = flushed_at(now).saturating_sub(flushed_at(before));
    if elapsed < APART {
        return None;
    }
    let scanned = now.stat.scanned.saturating_sub(before.stat.scanned);
    let reclaimed = now.stat.reclaimed.saturating_sub(before.stat.reclaimed);
    let refaults = now.stat.refault.saturating_sub(before.stat.refault);
    let major_faults = now.stat.major_fault.saturating_sub(before.stat.major_fault);
    Some(Rate {
        refaults: per_second(refaults, elapsed),
        scanned: per_second(scanned, elapsed),
        reclaimed: per_second(reclaimed, elapsed),
        major_faults: per_second(major_faults, elapsed),
        efficiency: efficiency(reclaimed, scanned),
    })
}

/// Returns the pages reclaimed of those scanned, in percent.
pub(crate) fn efficiency(reclaimed: u64, scanned: u64) -> Option<u64> {
    let percent = u128::from(reclaimed) * 100;
    let percent = percent.checked_div(u128::from(scanned))?;
    Some(u64::try_from(percent).unwrap_or(u64::MAX))
}

fn per_second(events: u64, elapsed: Duration) -> u64 {
    let micros = elapsed.as_micros();
    let rate = (u128::from(events) * 1_000_000).checked_div(micros);
    rate.map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::made::state;
    use super::*;

    /// Goal: rates are per second of what was counted, however old the statistics were when they
    /// were read. Method: a moment whose statistics were last flushed 100 ms after those of the
    /// earlier one, and one that has those of the earlier one.
    #[test]
    fn rates_are_of_the_time_between_flushes() {
        let (before, mut now) = (state(30), state(40));
        let mut rates = vec![None; now.groups.len()];
        for group in &mut now.groups {
            group.stat_age += Duration::from_millis(900);
        }
        complete(&mut rates, &now, &before);
        // 18 MiB of usage refault 18 * 5 pages a tick, here in a tenth of a second.
        assert_eq!(rates[2].unwrap().refaults, 18 * 5 * 10 * 10);

        let mut rates = vec![None; now.groups.len()];
        for group in &mut now.groups {
            group.stat_age += Duration::from_millis(100);
        }
        complete(&mut rates, &now, &before);
        assert_eq!(rates[2], None);
        complete(&mut rates, &now, &state(20));
        assert_eq!(rates[2].unwrap().refaults, 18 * 5 * 20);
    }
}
