//! Traces, workloads, reference models and experiments for Highwater.
