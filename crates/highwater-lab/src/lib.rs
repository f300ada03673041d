//! Traces, workloads, reference models and experiments for Highwater.

pub mod models;
pub mod replay;
pub mod report;
pub mod trace;
