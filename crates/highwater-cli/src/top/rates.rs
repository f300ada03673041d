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

/// Returns the rates of all groups of `now`, in their order; zero for groups that are not in
/// `before`.
pub(crate) fn rates(now: &State, before: Option<&State>) -> Vec<Rate> {
    let before = before.map_or(&[][..], |before| &before.groups[..]);
    let by_id: HashMap<u64, &Group> = before.iter().map(|group| (group.id, group)).collect();
    let of = |group: &Group| {
        let before = by_id.get(&group.id);
        before.map_or_else(Rate::default, |before| rate(group, before))
    };
    now.groups.iter().map(of).collect()
}

fn rate(now: &Group, before: &Group) -> Rate {
    let elapsed = now.read_at.saturating_sub(before.read_at);
    let scanned = now.stat.scanned.saturating_sub(before.stat.scanned);
    let reclaimed = now.stat.reclaimed.saturating_sub(before.stat.reclaimed);
    let refaults = now.stat.refault.saturating_sub(before.stat.refault);
    let major_faults = now.stat.major_fault.saturating_sub(before.stat.major_fault);
    Rate {
        refaults: per_second(refaults, elapsed),
        scanned: per_second(scanned, elapsed),
        reclaimed: per_second(reclaimed, elapsed),
        major_faults: per_second(major_faults, elapsed),
        efficiency: efficiency(reclaimed, scanned),
    }
}

/// Returns the pages reclaimed of those scanned, in percent.
pub(crate) fn efficiency(reclaimed: u64, scanned: u64) -> Option<u64> {
    let percent = u128::from(reclaimed) * 100;
    let percent = percent.checked_div(u128::from(scanned))?;
    Some(u64::try_from(percent).unwrap_or(u64::MAX))
}

/// A group that was not read again has not changed: its rate is zero.
fn per_second(events: u64, elapsed: Duration) -> u64 {
    let micros = elapsed.as_micros();
    let rate = (u128::from(events) * 1_000_000).checked_div(micros);
    rate.map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
}
