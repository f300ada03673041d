//! Workloads drawn from a seed: steps of CPUs, tasks and spaces.

mod processes;
mod step;

pub use processes::{Life, Mix, Processes};
pub use step::Step;
