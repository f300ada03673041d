//! The manager's counters, named as in `/proc/vmstat` where it has the counter.
//!
//! `docs/stats.md` defines each counter, its unit and the events that move it.

use std::time::Duration;

use super::Core;
use crate::cache::SwapStats;
use crate::reclaim::PageType;
use crate::sync::{HistogramCells, StatCell};

/// Events that the manager counts itself.
#[derive(Debug, Default)]
pub(super) struct ManagerStats {
    pub(super) pgfault: StatCell,
    pub(super) pgmajfault: StatCell,
    pub(super) readahead: StatCell,
    pub(super) drain_all: StatCell,
    pub(super) lumpy_success: StatCell,
    pub(super) lumpy_fail: StatCell,
    pub(super) pageoutrun: StatCell,
    pub(super) oom_kill: StatCell,
    pub(super) on_reclaim_asked: StatCell,
    pub(super) on_reclaim_given: StatCell,
    pub(super) on_reclaim_late: StatCell,
    pub(super) nr_dirty_throttled: StatCell,
    /// Durations of stalls: those that `memory.pressure` counts.
    pub(super) stall_ns: HistogramCells,
}

impl ManagerStats {
    pub(super) fn stall_lasted(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.stall_ns.record(nanoseconds, 1);
    }
}

/// A counter of a [`Snapshot`](super::Snapshot).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name: that of `/proc/vmstat` if it has one.
    pub name: &'static str,
    /// Its value at the time of the snapshot.
    pub value: u64,
    /// Event count or gauge.
    pub kind: CounterKind,
}

/// Whether a counter counts events or measures an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Events since the manager was built: never falls. Its rate is meaningful.
    Count,
    /// A current amount: rises and falls.
    Gauge,
}

/// Reads a counter.
type Read = fn(&Core) -> u64;

/// Pairs every counter with its name and kind.
macro_rules! counters {
    ($($kind:ident: $read:expr => $name:literal),* $(,)?) => {
        const COUNTERS: &[(&str, CounterKind, Read)] =
            &[$(($name, CounterKind::$kind, $read)),*];
    };
}

counters! {
    Gauge: |core| core.pool.nr_free().0 => "nr_free_pages",
    Gauge: |core| core.reclaim.total_sizes().inactive_anon.0 => "nr_inactive_anon",
    Gauge: |core| core.reclaim.total_sizes().active_anon.0 => "nr_active_anon",
    Gauge: |core| core.reclaim.total_sizes().inactive_file.0 => "nr_inactive_file",
    Gauge: |core| core.reclaim.total_sizes().active_file.0 => "nr_active_file",
    Gauge: |core| core.reclaim.total_sizes().unevictable.0 => "nr_unevictable",
    Gauge: |core| core.reclaim.nr_isolated_of(&core.groups.root(), PageType::Anon).0 => "nr_isolated_anon",
    Gauge: |core| core.reclaim.nr_isolated_of(&core.groups.root(), PageType::File).0 => "nr_isolated_file",
    Gauge: |core| core.cache.nr_dirty().0 => "nr_dirty",
    Gauge: |core| core.cache.dirty_limits().0.0 => "nr_dirty_background_threshold",
    Gauge: |core| core.cache.dirty_limits().1.0 => "nr_dirty_threshold",
    Count: |core| core.cache.dirty_events().nr_dirtied => "nr_dirtied",
    Count: |core| core.cache.dirty_events().nr_written => "nr_written",
    Count: |core| core.cache.dirty_events().nr_write_failed => "nr_write_failed",
    Count: |core| core.cache.dirty_events().nr_wal_blocked => "nr_wal_blocked",
    Count: |core| core.stats.nr_dirty_throttled.get() => "nr_dirty_throttled",
    Count: |core| core.stats.pgfault.get() => "pgfault",
    Count: |core| core.stats.pgmajfault.get() => "pgmajfault",
    Count: |core| core.stats.readahead.get() => "pgreadahead",
    Count: |core| core.cache.nr_unread() => "pgreadahead_unread",
    Gauge: |core| core.io.flights.nr_afloat() => "nr_async_reads",
    Count: |core| core.io.flights.nr_launched() => "async_reads",
    Count: |core| core.io.ring_counts().0 => "async_reads_ring",
    Count: |core| core.io.ring_counts().1 => "async_submits",
    Count: |core| core.io.nr_wakeups() => "async_reaper_wakeups",
    Count: |core| core.reclaim.stats().pgrefill.get() => "pgrefill",
    Count: |core| core.reclaim.stats().pgactivate.get() => "pgactivate",
    Count: |core| core.reclaim.stats().pgdeactivate.get() => "pgdeactivate",
    Count: |core| core.reclaim.stats().pgrotated.get() => "pgrotated",
    Count: |core| core.reclaim.stats().pgscan_kswapd.get() => "pgscan_kswapd",
    Count: |core| core.reclaim.stats().pgscan_direct.get() => "pgscan_direct",
    Count: |core| core.reclaim.stats().pgscan[0].get() => "pgscan_anon",
    Count: |core| core.reclaim.stats().pgscan[1].get() => "pgscan_file",
    Count: |core| core.reclaim.stats().pgsteal_kswapd.get() => "pgsteal_kswapd",
    Count: |core| core.reclaim.stats().pgsteal_direct.get() => "pgsteal_direct",
    Count: |core| core.reclaim.stats().pgsteal[0].get() => "pgsteal_anon",
    Count: |core| core.reclaim.stats().pgsteal[1].get() => "pgsteal_file",
    Count: |core| core.reclaim.stats().allocstall.get() => "allocstall_movable",
    Count: |core| core.reclaim.stats().throttle_isolated.get() => "throttle_isolated",
    Count: |core| core.reclaim.stats().throttle_noprogress.get() => "throttle_noprogress",
    Count: |core| core.stats.pageoutrun.get() => "pageoutrun",
    Count: |core| core.stats.drain_all.get() => "pcp_drain_all",
    Count: |core| core.stats.lumpy_success.get() => "lumpy_success",
    Count: |core| core.stats.lumpy_fail.get() => "lumpy_fail",
    Count: |core| core.pool.counters().refills => "pcp_refills",
    Count: |core| core.pool.counters().refilled => "pcp_refilled",
    Count: |core| core.pool.counters().recalled => "pcp_recalled",
    Count: |core| core.pool.counters().drains => "pcp_drains",
    Count: |core| core.pool.counters().drained => "pcp_drained",
    Count: |core| core.pool.counters().drain_alls => "pcp_free_high",
    Count: |core| core.pool.counters().fallbacks => "pcp_fallbacks",
    Count: |core| core.pool.counters().decayed => "pcp_decayed",
    Count: |core| core.reclaim.stats().nr_vmscan_write.get() => "nr_vmscan_write",
    Count: |core| core.reclaim.stats().nr_vmscan_write_failed.get() => "nr_vmscan_write_failed",
    Count: |core| core.reclaim.stats().nr_vmscan_immediate.get() => "nr_vmscan_immediate",
    Count: |core| core.reclaim.stats().workingset_refault[0].get() => "workingset_refault_anon",
    Count: |core| core.reclaim.stats().workingset_refault[1].get() => "workingset_refault_file",
    Count: |core| core.reclaim.stats().workingset_activate[0].get() => "workingset_activate_anon",
    Count: |core| core.reclaim.stats().workingset_activate[1].get() => "workingset_activate_file",
    Count: |core| core.reclaim.stats().workingset_restore[0].get() => "workingset_restore_anon",
    Count: |core| core.reclaim.stats().workingset_restore[1].get() => "workingset_restore_file",
    Count: |core| core.reclaim.rmap_stats().checks.get() => "rmap_checks",
    Count: |core| core.reclaim.rmap_stats().checks_contended.get() => "rmap_checks_contended",
    Count: |core| core.reclaim.rmap_stats().unmaps_contended.get() => "rmap_unmaps_contended",
    Count: |core| core.reclaim.rmap_stats().deferred.get() => "rmap_deferred",
    Count: |core| core.reclaim.rmap_stats().settled.get() => "rmap_settled",
    Count: |core| core.reclaim.rmap_stats().over_debt.get() => "rmap_over_debt",
    Gauge: |core| core.cache.swap().map_or(0, |swap| swap.total().0) => "nr_swap_total",
    Gauge: |core| core.cache.swap().map_or(0, |swap| swap.used().0) => "nr_swap_used",
    Count: |core| swap_stat(core, |stats| &stats.pswpin) => "pswpin",
    Count: |core| swap_stat(core, |stats| &stats.pswpout) => "pswpout",
    Count: |core| swap_stat(core, |stats| &stats.swpout_zero) => "swpout_zero",
    Count: |core| swap_stat(core, |stats| &stats.swap_fail) => "swap_fail",
    Count: |core| swap_stat(core, |stats| &stats.swap_read_failed) => "swap_read_failed",
    Count: |core| swap_stat(core, |stats| &stats.swap_write_failed) => "swap_write_failed",
    Count: |core| core.stats.on_reclaim_asked.get() => "on_reclaim_asked",
    Count: |core| core.stats.on_reclaim_given.get() => "on_reclaim_given",
    Count: |core| core.stats.on_reclaim_late.get() => "on_reclaim_late",
    Count: |core| core.stats.oom_kill.get() => "oom_kill",
    Count: |core| core.cache.nr_rss_residues() => "bad_rss_counter",
}

/// Returns a counter of the swap area; 0 without one.
fn swap_stat(core: &Core, of: fn(&SwapStats) -> &StatCell) -> u64 {
    core.cache.swap().map_or(0, |swap| of(swap.stats()).get())
}

/// Counters that are sums over the lists of all groups.
const WALKS: [&str; 4] = [
    "nr_inactive_",
    "nr_active_",
    "nr_unevictable",
    "nr_isolated_",
];

/// Returns the counters that cost a few loads each, with their current values.
pub(super) fn read_cheaply(core: &Core) -> impl Iterator<Item = (&'static str, u64)> {
    let walks = |name: &str| WALKS.iter().any(|start| name.starts_with(start));
    let cheap = COUNTERS.iter().filter(move |(name, ..)| !walks(name));
    cheap.map(|(name, _, read)| (*name, read(core)))
}

/// Returns every counter with its current value, in the table's order.
pub(super) fn read(core: &Core) -> Vec<Counter> {
    let counter = |&(name, kind, read): &(&'static str, CounterKind, Read)| Counter {
        name,
        value: read(core),
        kind,
    };
    COUNTERS.iter().map(counter).collect()
}
