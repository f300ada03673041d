//! Question: how long does a scrape of 10,000 groups take?
//!
//! `cargo bench -p highwater-prometheus --bench scrape`; `-- --test` runs each case once. The
//! target is 20 ms with the default of 100 named groups. A median above it would change our mind.

#![expect(clippy::print_stdout, reason = "the bench's table")]

use std::time::{Duration, Instant};

use highwater::{Bytes, Limits, Manager};
use highwater_prometheus::ManagerCollector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

const GROUPS: u64 = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds = if std::env::args().any(|arg| arg == "--test") {
        1
    } else {
        51
    };
    let hw = Manager::builder().capacity(Bytes::mib(256)).build()?;
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
    let names = [0, 100, 1_000, 10_000];
    let registries = names.map(|named| {
        let mut registry = Registry::default();
        let collector = ManagerCollector::new(&hw).groups_max(named);
        registry.register_collector(Box::new(collector));
        registry
    });
    let mut times: [Vec<Duration>; 4] = Default::default();
    let mut sizes = [0; 4];
    let mut page = String::new();
    for _ in 0..rounds {
        for (at, registry) in registries.iter().enumerate() {
            page.clear();
            let begin = Instant::now();
            encode(&mut page, registry)?;
            times[at].push(begin.elapsed());
            sizes[at] = page.len();
        }
    }
    println!("{GROUPS} groups, median of {rounds} interleaved scrapes");
    println!(
        "{:>8} {:>10} {:>10} {:>10}",
        "named", "median_ms", "max_ms", "page_kib"
    );
    for (at, named) in names.iter().enumerate() {
        times[at].sort_unstable();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (median, max) = (ms(times[at][rounds / 2]), ms(times[at][rounds - 1]));
        let kib = sizes[at] / 1024;
        println!("{named:>8} {median:>10.2} {max:>10.2} {kib:>10}");
    }
    Ok(())
}
