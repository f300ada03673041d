//! The experiments of the mailing-list discussions, on the library's code and the designs discussed
//! there.
//!
//! One file each. An experiment takes a machine (a topology of virtual CPUs unless it says
//! otherwise), a seed and a size, and returns an [`Outcome`](crate::report::Outcome) whose checks
//! say whether the published figures were reproduced and ours hold. The same request gives the same
//! counts; times differ.
//!
//! To add one: a file here with an `EXPERIMENT` of type [`Experiment`], and a line in
//! [`EXPERIMENTS`].

mod buckets;
pub mod charge_many;
pub(crate) mod clock;
mod contenders;
mod crew;
pub mod dirty_read;
mod error;
mod experiment;
mod fit;
mod flushers;
pub mod flush_mixed;
pub mod flush_reads;
mod lineup;
mod meeting;
mod memcg;
mod pages;
pub mod pcp_exit;
pub mod pcp_remote;
pub mod pcp_tune;
mod periodic;
pub mod policies;
mod published;
mod resident;
mod rmap;
pub mod rmap_mapped;
pub mod rmap_read;
pub mod rss_cost;
pub mod rss_hits;
pub mod rss_hop;
pub mod rss_theft;
mod service;
pub mod space_churn;
mod truth;
pub mod victim;

pub use error::ExperimentError;
pub use experiment::{
    Experiment, Extra, Findings, Options, Request, Setup, Size, THREADS_MAX, machine_of,
};

/// Every experiment, in the order in which `highwater lab all` runs them.
pub static EXPERIMENTS: &[&Experiment] = &[
    &rss_theft::EXPERIMENT,
    &rss_hits::EXPERIMENT,
    &rss_hop::EXPERIMENT,
    &rss_cost::EXPERIMENT,
    &charge_many::EXPERIMENT,
    &space_churn::EXPERIMENT,
    &victim::EXPERIMENT,
    &flush_mixed::EXPERIMENT,
    &flush_reads::EXPERIMENT,
    &pcp_exit::EXPERIMENT,
    &pcp_tune::EXPERIMENT,
    &pcp_remote::EXPERIMENT,
    &policies::EXPERIMENT,
    &dirty_read::EXPERIMENT,
    &rmap_mapped::EXPERIMENT,
    &rmap_read::EXPERIMENT,
];

/// Returns the experiment called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS
        .iter()
        .copied()
        .find(|experiment| experiment.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use highwater::topology::Topology;

    use super::*;

    /// Goal: names are unique, so that each experiment can be asked for, and defaults are valid.
    #[test]
    fn every_experiment_can_be_asked_for() {
        let names: BTreeSet<_> = EXPERIMENTS.iter().map(|each| each.name).collect();
        assert_eq!(names.len(), EXPERIMENTS.len());
        for experiment in EXPERIMENTS {
            let machine: Topology = experiment.topology.parse().unwrap();
            assert!(experiment.cpus.contains(&machine.nr_cpus()));
            assert!(find(experiment.name).is_some());
            assert!(!["list", "all"].contains(&experiment.name));
        }
    }
}
