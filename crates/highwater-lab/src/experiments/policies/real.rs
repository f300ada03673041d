//! The library itself: traces replayed through the whole cache, with real frames and a real file.
//!
//! Skips caches that are too small for a pool. Traces with keys larger than a page are not replayed
//! either, because a replay lays such a key out as several pages.

use highwater::frame::Tunables;
use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::Pages;

use super::traces::Source as Trace;
use crate::control::Control;
use crate::experiments::{ExperimentError, Setup};
use crate::replay::{DataIo, Replay, ReplayConfig, TenantConfig};

/// The replayed policies, and the figures for the misses that they avoid.
pub(super) const REPLAYED: [(PolicyKind, &str); 2] = [
    (PolicyKind::TwoList, "two_list_percent"),
    (PolicyKind::Balanced, "balanced_percent"),
];

/// Smaller pools are not replayed. Chosen: the pool's reserve is a noticeable part of a smaller
/// one.
pub(super) const POOL_MIN: usize = 512;

/// Returns the misses of a replay on a pool of `capacity` pages, in the order of [`REPLAYED`];
/// `None` for a pool that is skipped.
pub(super) fn misses(
    trace: &Trace,
    capacity: usize,
    setup: &Setup,
    control: &Control,
) -> Result<Option<[u64; REPLAYED.len()]>, ExperimentError> {
    if capacity < POOL_MIN {
        return Ok(None);
    }
    let mut misses = [0; REPLAYED.len()];
    for (misses, (policy, _)) in misses.iter_mut().zip(REPLAYED) {
        *misses = replayed(trace, capacity, policy, setup)?;
        control.advance(0)?;
    }
    Ok(Some(misses))
}

/// Threads of a replay.
pub(super) fn threads(setup: &Setup) -> usize {
    setup.options.threads.unwrap_or(1) as usize
}

fn replayed(
    trace: &Trace,
    capacity: usize,
    policy: PolicyKind,
    setup: &Setup,
) -> Result<u64, ExperimentError> {
    let failed = |source| ExperimentError::Replay {
        trace: trace.name.clone(),
        source: Box::new(source),
    };
    let tenant = TenantConfig {
        name: "recorded".to_owned(),
        trace: trace.input(),
        options: trace.options.clone(),
        max: None,
    };
    let config = ReplayConfig {
        tenants: vec![tenant],
        capacity: Pages(capacity as u64).bytes(),
        threads: threads(setup),
        in_flight: 1,
        backend: None,
        policy,
        tunables: Tunables::default(),
        seed: setup.options.seed,
        readahead: Pages(0),
        io: DataIo::Buffered,
        dir: std::env::temp_dir(),
    };
    let run = Replay::prepare(&config).map_err(failed)?;
    let outcome = run.run(&Control::default());
    let report = outcome.map_err(|failure| failed(failure.error))?.report;
    Ok(report.misses)
}
