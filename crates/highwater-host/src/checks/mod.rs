//! The checks: a file for each, with one function from a machine to a finding.

mod direct_reclaim;
mod drain;
mod exact_cost;
mod flush_storms;
mod group_reads;
mod lock_waits;
mod lru_flavour;
mod oom_choice;
mod parkable;
mod parked;
mod pressure;
mod reclaim_efficiency;
mod rss_bound;
mod rss_error;
mod stranded;
mod thrashing;
mod throttled;
mod zone_trips;

use crate::finding::Finding;
use crate::machine::Machine;

/// A check: how it is made, and why.
#[derive(Debug)]
pub struct Check {
    /// Its number, which never changes.
    pub nr: u8,
    /// Its name in JSON, which never changes.
    pub id: &'static str,
    /// Its name in a line of text.
    pub title: &'static str,
    /// Makes it.
    pub run: fn(&Machine) -> Finding,
    /// Whether it counts events between two samples; the others need no wait.
    pub needs_interval: bool,
    /// The mechanism that it looks for.
    pub mechanism: &'static str,
    /// The formula, in words.
    pub formula: &'static str,
    /// Where the thresholds come from.
    pub thresholds: &'static str,
    /// The discussion that the mechanism was published in.
    pub thread: &'static str,
    /// The kernels that it holds for.
    pub kernels: &'static str,
    /// What helps in general.
    pub advice: &'static str,
}

/// Every check, by number.
pub const CHECKS: [&Check; 18] = [
    &rss_bound::CHECK,
    &rss_error::CHECK,
    &oom_choice::CHECK,
    &exact_cost::CHECK,
    &parked::CHECK,
    &parkable::CHECK,
    &drain::CHECK,
    &zone_trips::CHECK,
    &lock_waits::CHECK,
    &reclaim_efficiency::CHECK,
    &direct_reclaim::CHECK,
    &thrashing::CHECK,
    &group_reads::CHECK,
    &flush_storms::CHECK,
    &stranded::CHECK,
    &throttled::CHECK,
    &pressure::CHECK,
    &lru_flavour::CHECK,
];

/// The discussions that the checks come from.
mod threads {
    pub(super) const RSS_CACHE: &str =
        "linux-mm, July 2022: Replace per-task RSS cache with per-CPU RSS cache";
    pub(super) const TREE: &str =
        "linux-mm, January 2026: hierarchical per-CPU counters for RSS tracking";
    pub(super) const PCP: &str = "linux-mm, 2024: a run-time knob for pcp_batch_scale_max";
    pub(super) const RMAP: &str =
        "linux-mm, May 2022: throttle skipped LRU pages on rmap lock contention";
    pub(super) const FLUSH: &str = "linux-mm, 2023: mm: memcg: restore subtree stats flushing";
}
