//! Texts of topologies: an accepted one is written as a text of the same machine.
#![no_main]

use highwater::topology::Topology;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<Topology>() {
        Ok(topology) => {
            let again: Topology = topology.to_string().parse().unwrap();
            assert_eq!(again.nr_cpus(), topology.nr_cpus());
            assert_eq!(again.to_string(), topology.to_string());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
