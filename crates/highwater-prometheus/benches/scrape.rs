//! Question: how long does a scrape of 10,000 groups take?
//!
//! Command: `cargo bench -p highwater-prometheus --bench scrape`. Prints the CPU time of a scrape,
//! text included, with several numbers of named groups, as medians over interleaved rounds. Fails
//! if one with the default of 100 named groups takes more than 20 ms. Without `--bench` (as under
//! `cargo test --benches`) it makes a few scrapes and promises nothing.
//!
//! What would change our mind: above 20 ms, a scrape every second takes 2 % of a CPU.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

#[path = "../../highwater/benches/promise/mod.rs"]
mod promise;
#[path = "../../highwater/benches/timing/mod.rs"]
mod timing;

use std::process::ExitCode;
use std::sync::Arc;

use highwater::topology::Topology;
use highwater::{Bytes, Charge, Limits, Manager};
use highwater_prometheus::ManagerCollector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use promise::Promise;
use timing::{Medians, ROUNDS, Variant, measure};

const GROUPS: u64 = 10_000;
/// Scrapes in a round.
const TIMES: u32 = 5;
/// Numbers of named groups.
const NAMED: [(&str, usize); 4] = [
    ("none named", 0),
    (PROMISED, 100),
    ("1,000 named", 1_000),
    ("10,000 named", 10_000),
];
const PROMISED: &str = "100 named";
const MS_MAX: f64 = 20.0;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Makes the groups, each with a charge.
fn charged(hw: &Manager) -> Result<Vec<Charge>> {
    let mut charges = Vec::new();
    for tenant in 0..100 {
        let tenant = hw
            .root()
            .child(&format!("tenant-{tenant}"), Limits::default())?;
        for query in 0..GROUPS / 100 - 1 {
            let limits = Limits::max(Bytes::mib(1));
            let query = tenant.child(&format!("query-{query}"), limits)?;
            charges.push(query.charge(Bytes(1 + charges.len() as u64))?);
        }
    }
    Ok(charges)
}

fn page(registry: &Registry) -> String {
    let mut page = String::new();
    encode(&mut page, registry).expect("a string takes all");
    page
}

fn main() -> Result<ExitCode> {
    let hw = Manager::builder().capacity(Bytes::mib(256)).build()?;
    let _charges = charged(&hw)?;
    let registries = NAMED.map(|(_, named)| {
        let mut registry = Registry::default();
        let collector = ManagerCollector::new(&hw).groups_max(named);
        registry.register_collector(Box::new(collector));
        Arc::new(registry)
    });
    let variants: Vec<Variant> = NAMED
        .iter()
        .zip(&registries)
        .map(|((name, _), registry)| {
            let registry = Arc::clone(registry);
            Variant::new(name, TIMES, move |times| {
                (0..times).for_each(|_| drop(page(&registry)));
            })
        })
        .collect();
    let medians: Medians = measure(&variants, 1);
    println!(
        "{}; {ROUNDS} interleaved rounds; medians of CPU time",
        Topology::detect()
    );
    println!("\n{GROUPS} groups       ms each   KiB");
    for ((name, ns), registry) in medians.iter().zip(&registries) {
        println!(
            "  {name:16}{:10.2}{:6}",
            ns / 1e6,
            page(registry).len() / 1024
        );
    }
    let promised = medians.iter().find(|(name, _)| *name == PROMISED);
    let (_, ns) = promised.expect("it was measured");
    let name = format!("ms for a scrape of {GROUPS} groups, {PROMISED}");
    let promise = Promise::new(name, ns / 1e6, ..=MS_MAX);
    Ok(promise::report(Ok(&[promise])))
}
