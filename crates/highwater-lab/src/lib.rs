//! Traces, workloads, reference models and experiments for Highwater.
//!
//! Under the model checker (`cfg(loom)`) there is only what it checks: the lock-free baseline.

#[cfg(not(loom))]
pub mod baselines;
#[cfg(not(loom))]
pub mod experiments;
#[cfg(not(loom))]
pub mod models;
#[cfg(not(loom))]
pub mod promises;
#[cfg(not(loom))]
pub mod replay;
#[cfg(not(loom))]
pub mod report;
#[cfg(not(loom))]
pub mod rss_trace;
#[cfg(not(loom))]
pub mod trace;
#[cfg(not(loom))]
pub mod workloads;

#[cfg(loom)]
pub mod baselines {
    //! The designs that have models.
    pub mod active_cache;
}
