//! A run over time: usage of each tenant with its interval, and counters of reclaim, at 128 to 256
//! points for any length of the run.
//!
//! Protocol: one thread beside the workers takes a point each interval, and one at the end. When
//! it has [`POINTS_MAX`] points it drops every second one and doubles the interval. So a point
//! costs less and less of a longer run, and memory does not grow.
//!
//! Invariant: it only reads. The counters are those of the root's statistics, which a read flushes;
//! neither lists nor limits see that, so a run of one thread stays a function of its traces and
//! seed. Oracle: `tests/timeline.rs::sampling_changes_no_count`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use highwater::group::{StatItem, Tolerance};
use serde::Serialize;

use super::error::ReplayError;
use super::setup::{Replay, Tenant};
use crate::control::Control;

/// Points after which every second one is dropped.
const POINTS_MAX: usize = 256;

/// The first interval. Chosen: the shipped trace, which takes 0.1 s or more, has 100 points.
const INTERVAL: Duration = Duration::from_millis(1);

/// A run over time. Each list has an entry for each point, except [`tenants`](Self::tenants);
/// counters are sums since the manager was built.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// Times since the accesses began, ascending.
    pub at_us: Vec<u64>,
    /// Pages accessed, as of the batches that are complete.
    pub page_accesses: Vec<u64>,
    /// Refaults of file pages (`workingset_refault_file`).
    pub refaults: Vec<u64>,
    /// Pages scanned by background and direct reclaim, also at a tenant's own maximum.
    pub pgscan: Vec<u64>,
    /// Pages freed by them.
    pub pgsteal: Vec<u64>,
    /// Time in which at least one thread was stalled on memory (PSI *some* of the root).
    pub stalled_us: Vec<u64>,
    /// One entry for each tenant, in the order given.
    pub tenants: Vec<TenantTimeline>,
}

/// One tenant's part of a [`Timeline`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TenantTimeline {
    /// The tenant's name.
    pub name: String,
    /// Estimated usage.
    pub usage_bytes: Vec<u64>,
    /// Lower bounds of the exact usage.
    pub usage_low_bytes: Vec<u64>,
    /// Upper bounds of the exact usage.
    pub usage_high_bytes: Vec<u64>,
}

/// Runs `work` while another thread takes points.
///
/// # Errors
///
/// When the system refuses the thread; `work` does not run then.
pub(super) fn beside<T>(
    run: &Replay,
    control: &Control,
    work: impl FnOnce() -> T,
) -> Result<(T, Timeline), ReplayError> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = Builder::new().name("replay-timeline".to_owned());
        let sampler = sampler.spawn_scoped(scope, || sample(run, control, &is_done));
        let sampler = sampler.map_err(|source| ReplayError::Sampler { source })?;
        let wake = Wake {
            is_done: &is_done,
            sampler: sampler.thread().clone(),
        };
        let worked = work();
        drop(wake);
        let timeline = sampler.join().map_err(|_| ReplayError::WorkerPanicked)?;
        Ok((worked, timeline))
    })
}

/// Ends the sampling when it is dropped, also by a panic.
struct Wake<'a> {
    /// Written by: the thread that waits for the workers. Read by: the sampler. Publishes: nothing.
    is_done: &'a AtomicBool,
    sampler: thread::Thread,
}

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        // Relaxed: the workers are joined, which orders what they have done.
        self.is_done.store(true, Ordering::Relaxed);
        self.sampler.unpark();
    }
}

fn sample(run: &Replay, control: &Control, is_done: &AtomicBool) -> Timeline {
    let start = Instant::now();
    let mut timeline = Timeline::new(&run.tenants);
    let mut interval = INTERVAL;
    // Relaxed: see `Wake`.
    while !is_done.load(Ordering::Relaxed) {
        timeline.add(run, control, start.elapsed());
        if timeline.at_us.len() >= POINTS_MAX {
            timeline.halve();
            interval *= 2;
        }
        thread::park_timeout(interval);
    }
    timeline.add(run, control, start.elapsed());
    timeline
}

impl Timeline {
    fn new(tenants: &[Tenant]) -> Self {
        let named = |tenant: &Tenant| TenantTimeline {
            name: tenant.name.clone(),
            ..TenantTimeline::default()
        };
        Self {
            tenants: tenants.iter().map(named).collect(),
            ..Self::default()
        }
    }

    fn add(&mut self, run: &Replay, control: &Control, at: Duration) {
        let root = run.manager.root();
        let stats = root.stats(Tolerance::EXACT);
        let stat = |item| u64::try_from(stats.get(item)).unwrap_or(0);
        self.at_us
            .push(u64::try_from(at.as_micros()).unwrap_or(u64::MAX));
        self.page_accesses.push(control.progress().page_accesses);
        self.refaults.push(stat(StatItem::WorkingsetRefaultFile));
        self.pgscan
            .push(stat(StatItem::PgscanKswapd) + stat(StatItem::PgscanDirect));
        self.pgsteal
            .push(stat(StatItem::PgstealKswapd) + stat(StatItem::PgstealDirect));
        self.stalled_us.push(root.pressure().some.total_us);
        for (series, tenant) in self.tenants.iter_mut().zip(&run.tenants) {
            let usage = tenant.group.usage();
            series.usage_bytes.push(usage.value.0);
            series.usage_low_bytes.push(usage.low.0);
            series.usage_high_bytes.push(usage.high.0);
        }
    }

    /// Drops every second point, never the first.
    fn halve(&mut self) {
        let own = [
            &mut self.at_us,
            &mut self.page_accesses,
            &mut self.refaults,
            &mut self.pgscan,
            &mut self.pgsteal,
            &mut self.stalled_us,
        ];
        let of_tenants = self.tenants.iter_mut().flat_map(|tenant| {
            [
                &mut tenant.usage_bytes,
                &mut tenant.usage_low_bytes,
                &mut tenant.usage_high_bytes,
            ]
        });
        for list in own.into_iter().chain(of_tenants) {
            let mut index = 0_usize;
            list.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }
}
