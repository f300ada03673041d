//! The counters of a manager, by the names that `/proc/vmstat` uses where it has one.
//!
//! `docs/stats.md` says what each means, its unit and what moves it.

use super::Core;
use crate::cache::SwapStats;
use crate::reclaim::PageType;
use crate::sync::StatCell;

/// Events that the manager itself counts.
#[derive(Debug, Default)]
pub(super) struct ManagerStats {
    pub(super) pgfault: StatCell,
    pub(super) pgmajfault: StatCell,
    pub(super) readahead: StatCell,
    pub(super) drain_all: StatCell,
    pub(super) pageoutrun: StatCell,
    pub(super) oom_kill: StatCell,
    pub(super) on_reclaim_asked: StatCell,
    pub(super) on_reclaim_given: StatCell,
    pub(super) on_reclaim_late: StatCell,
    pub(super) nr_dirty_throttled: StatCell,
}

/// How a counter is read.
type Read = fn(&Core) -> u64;

/// Pairs every counter with its name.
macro_rules! counters {
    ($($read:expr => $name:literal),* $(,)?) => {
        const COUNTERS: &[(&str, Read)] = &[$(($name, $read)),*];
    };
}

counters! {
    |core| core.pool.nr_free().0 => "nr_free_pages",
    |core| core.reclaim.total_sizes().inactive_anon.0 => "nr_inactive_anon",
    |core| core.reclaim.total_sizes().active_anon.0 => "nr_active_anon",
    |core| core.reclaim.total_sizes().inactive_file.0 => "nr_inactive_file",
    |core| core.reclaim.total_sizes().active_file.0 => "nr_active_file",
    |core| core.reclaim.total_sizes().unevictable.0 => "nr_unevictable",
    |core| core.reclaim.nr_isolated_of(&core.groups.root(), PageType::Anon).0 => "nr_isolated_anon",
    |core| core.reclaim.nr_isolated_of(&core.groups.root(), PageType::File).0 => "nr_isolated_file",
    |core| core.cache.nr_dirty().0 => "nr_dirty",
    |core| core.cache.dirty_limits().0.0 => "nr_dirty_background_threshold",
    |core| core.cache.dirty_limits().1.0 => "nr_dirty_threshold",
    |core| core.cache.dirty_events().nr_dirtied => "nr_dirtied",
    |core| core.cache.dirty_events().nr_written => "nr_written",
    |core| core.cache.dirty_events().nr_write_failed => "nr_write_failed",
    |core| core.stats.nr_dirty_throttled.get() => "nr_dirty_throttled",
    |core| core.stats.pgfault.get() => "pgfault",
    |core| core.stats.pgmajfault.get() => "pgmajfault",
    |core| core.stats.readahead.get() => "pgreadahead",
    |core| core.reclaim.stats().pgrefill.get() => "pgrefill",
    |core| core.reclaim.stats().pgactivate.get() => "pgactivate",
    |core| core.reclaim.stats().pgdeactivate.get() => "pgdeactivate",
    |core| core.reclaim.stats().pgrotated.get() => "pgrotated",
    |core| core.reclaim.stats().pgscan_kswapd.get() => "pgscan_kswapd",
    |core| core.reclaim.stats().pgscan_direct.get() => "pgscan_direct",
    |core| core.reclaim.stats().pgscan[0].get() => "pgscan_anon",
    |core| core.reclaim.stats().pgscan[1].get() => "pgscan_file",
    |core| core.reclaim.stats().pgsteal_kswapd.get() => "pgsteal_kswapd",
    |core| core.reclaim.stats().pgsteal_direct.get() => "pgsteal_direct",
    |core| core.reclaim.stats().pgsteal[0].get() => "pgsteal_anon",
    |core| core.reclaim.stats().pgsteal[1].get() => "pgsteal_file",
    |core| core.reclaim.stats().allocstall.get() => "allocstall_movable",
    |core| core.reclaim.stats().throttle_isolated.get() => "throttle_isolated",
    |core| core.reclaim.stats().throttle_noprogress.get() => "throttle_noprogress",
    |core| core.stats.pageoutrun.get() => "pageoutrun",
    |core| core.stats.drain_all.get() => "pcp_drain_all",
    |core| core.pool.counters().refills => "pcp_refills",
    |core| core.pool.counters().refilled => "pcp_refilled",
    |core| core.pool.counters().drains => "pcp_drains",
    |core| core.pool.counters().drained => "pcp_drained",
    |core| core.pool.counters().drain_alls => "pcp_free_high",
    |core| core.pool.counters().fallbacks => "pcp_fallbacks",
    |core| core.pool.counters().decayed => "pcp_decayed",
    |core| core.reclaim.stats().nr_vmscan_write.get() => "nr_vmscan_write",
    |core| core.reclaim.stats().nr_vmscan_write_failed.get() => "nr_vmscan_write_failed",
    |core| core.reclaim.stats().nr_vmscan_immediate.get() => "nr_vmscan_immediate",
    |core| core.reclaim.stats().workingset_refault[0].get() => "workingset_refault_anon",
    |core| core.reclaim.stats().workingset_refault[1].get() => "workingset_refault_file",
    |core| core.reclaim.stats().workingset_activate[0].get() => "workingset_activate_anon",
    |core| core.reclaim.stats().workingset_activate[1].get() => "workingset_activate_file",
    |core| core.reclaim.stats().workingset_restore[0].get() => "workingset_restore_anon",
    |core| core.reclaim.stats().workingset_restore[1].get() => "workingset_restore_file",
    |core| core.reclaim.rmap_stats().checks.get() => "rmap_checks",
    |core| core.reclaim.rmap_stats().checks_contended.get() => "rmap_checks_contended",
    |core| core.reclaim.rmap_stats().unmaps_contended.get() => "rmap_unmaps_contended",
    |core| core.reclaim.rmap_stats().deferred.get() => "rmap_deferred",
    |core| core.reclaim.rmap_stats().settled.get() => "rmap_settled",
    |core| core.reclaim.rmap_stats().over_debt.get() => "rmap_over_debt",
    |core| core.cache.swap().map_or(0, |swap| swap.total().0) => "nr_swap_total",
    |core| core.cache.swap().map_or(0, |swap| swap.used().0) => "nr_swap_used",
    |core| swap_stat(core, |stats| &stats.pswpin) => "pswpin",
    |core| swap_stat(core, |stats| &stats.pswpout) => "pswpout",
    |core| swap_stat(core, |stats| &stats.swpout_zero) => "swpout_zero",
    |core| swap_stat(core, |stats| &stats.swap_fail) => "swap_fail",
    |core| swap_stat(core, |stats| &stats.swap_read_failed) => "swap_read_failed",
    |core| swap_stat(core, |stats| &stats.swap_write_failed) => "swap_write_failed",
    |core| core.stats.on_reclaim_asked.get() => "on_reclaim_asked",
    |core| core.stats.on_reclaim_given.get() => "on_reclaim_given",
    |core| core.stats.on_reclaim_late.get() => "on_reclaim_late",
    |core| core.stats.oom_kill.get() => "oom_kill",
    |core| core.cache.nr_rss_residues() => "bad_rss_counter",
}

/// A counter of the swap area; 0 without one.
fn swap_stat(core: &Core, of: fn(&SwapStats) -> &StatCell) -> u64 {
    core.cache.swap().map_or(0, |swap| of(swap.stats()).get())
}

/// Every counter and its value now, in the table's order.
pub(super) fn read(core: &Core) -> Vec<(&'static str, u64)> {
    COUNTERS
        .iter()
        .map(|(name, read)| (*name, read(core)))
        .collect()
}
