//! Texts of topologies: an accepted one is a machine of at least one CPU and at most the most.
#![no_main]

use highwater::topology::{CPUS_MAX, Topology};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<Topology>() {
        Ok(topology) => {
            assert!((1..=CPUS_MAX).contains(&topology.nr_cpus()));
            assert!(!topology.to_string().is_empty());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
