//! Traces, workloads, reference models and experiments for Highwater.

pub mod baselines;
pub mod experiments;
pub mod models;
pub mod promises;
pub mod replay;
pub mod report;
pub mod rss_trace;
pub mod trace;
pub mod workloads;
