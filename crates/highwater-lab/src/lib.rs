//! Traces, workloads, reference models and experiments for Highwater.
//!
//! Under loom (`cfg(loom)`) only the lock-free baseline is compiled.

#[cfg(not(loom))]
pub mod baselines;
#[cfg(not(loom))]
pub mod comparison;
#[cfg(not(loom))]
pub mod control;
#[cfg(not(loom))]
pub mod curve;
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
    //! The designs that have loom models.
    pub mod active_cache;
    pub mod back_ends;
}

/// Where tests get their randomness.
#[cfg(all(test, not(loom)))]
#[path = "../../highwater/src/seed.rs"]
mod seed;
