//! Question: what does an access cost that misses, where storage costs nothing; and how much of it
//! does the default policy pay for being bounded by LRU?
//!
//! Command: `cargo bench -p highwater --bench miss`. Prints nanoseconds of CPU time for each
//! access, the median over interleaved rounds of one thread, and how long the default policy takes
//! in comparison with S3-FIFO, which keeps no order of accesses and evicts pages that came in last.
//! The thread that misses reclaims, so all of that work is counted. Ratios carry over to other
//! machines, single times do not. Without `--bench` (as under `cargo test --benches`) it does a
//! thousandth of the accesses, to show that it works.
//!
//! 16,384 pages are read through 2,048 frames, from storage that fills a page with its number. Each
//! access looks at one word: through a mapping, or by a copying read of eight bytes. Pages are
//! drawn at random, all as often, so that policies miss alike and a miss is nearly every access; or
//! by a Zipf law of exponent 0.9; or read in order, over and over, with readahead.
//!
//! The program fails when this is broken: where all pages are as popular, an access takes under the
//! default policy at most 1.6 times as long as under S3-FIFO.
//!
//! What would change our mind: where misses cost more than the storage of today's fastest disks,
//! about 10 µs, a policy that saves a tenth of them is not worth its looks at pages.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod numbers;
#[expect(
    dead_code,
    reason = "pages are read, and neither a file nor their lines"
)]
mod places;
mod promise;
mod timing;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::PAGE_BYTES;
use highwater::{Access, Background, File, Manager, Mapping, Pages};
use numbers::Numbers;
use places::{COUNT, zipf};
use promise::Promise;
use timing::{Variant, measure};

const ACCESSES: u32 = 100_000;
const FRAMES: Pages = Pages(COUNT as u64 / 8);
/// Promised time under the default policy where all pages are as popular, as a ratio to S3-FIFO's.
const RATIO_MAX: f64 = 1.6;

/// The policies, in the order of the table's columns.
const POLICIES: [(&str, PolicyKind); 2] = [
    ("balanced", PolicyKind::Balanced),
    ("S3-FIFO", PolicyKind::S3Fifo),
];

/// A file under one policy, and a mapping of it.
struct Pool {
    hw: Manager,
    file: File,
    map: Mapping,
}

impl Pool {
    fn new(policy: PolicyKind) -> Self {
        let builder = Manager::builder().capacity(FRAMES.bytes());
        let builder = builder.eviction_policy(policy).background(Background::Off);
        let hw = builder.build().expect("a few MiB of memory");
        let file = hw.open_backing(Arc::new(Numbers(COUNT)), Access::ReadOnly);
        let file = file.expect("one file");
        let map = hw.space(&hw.root()).map_file(&file, 0..u64::from(COUNT));
        let map = map.expect("the whole file");
        Self { hw, file, map }
    }

    fn mapped(&self, page: u32) -> u64 {
        let guard = self.hw.enter();
        let bytes = self.map.read(&guard, u64::from(page)).expect("a frame");
        u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
    }

    fn copied(&self, page: u32) -> u64 {
        let mut word = [0; 8];
        let offset = u64::from(page) * PAGE_BYTES;
        let read = self.file.read_at(&self.hw.root(), offset, &mut word);
        assert_eq!(read.expect("a frame"), word.len());
        u64::from_le_bytes(word)
    }
}

/// A way to read a word of a page.
type Read = fn(&Pool, u32) -> u64;
const READS: [(&str, Read); 2] = [("mapped", Pool::mapped), ("read_at", Pool::copied)];

/// The orders in which pages are accessed; the first is judged.
fn orders() -> [(&'static str, Vec<u32>); 3] {
    let mut random = fastrand::Rng::with_seed(1);
    let uniform = (0..ACCESSES).map(|_| random.u32(..COUNT)).collect();
    let popular = zipf(ACCESSES, 1).into_iter().map(|place| place.page);
    let in_order = (0..ACCESSES).map(|at| at % COUNT).collect();
    [
        ("at random", uniform),
        ("Zipf", popular.collect()),
        ("in order", in_order),
    ]
}

/// Returns the medians under each policy, in nanoseconds for each access. The first of the rounds
/// fill the pools, which medians do not show.
fn times(read: Read, pages: &[u32]) -> Vec<f64> {
    let variant = |(name, policy)| {
        let (pool, pages) = (Pool::new(policy), pages.to_vec());
        Variant::new(name, ACCESSES, move |times| {
            for &page in &pages[..times as usize] {
                assert_eq!(read(&pool, black_box(page)), u64::from(page));
            }
        })
    };
    let medians = measure(&POLICIES.map(variant), 1);
    medians.into_iter().map(|(_, ns)| ns).collect()
}

fn main() -> ExitCode {
    let [balanced, s3_fifo] = POLICIES.map(|(name, _)| name);
    println!(
        "{:22}{balanced:>12}{s3_fifo:>12}{:>8}",
        "ns an access", "ratio"
    );
    let mut promises = Vec::new();
    for (at, (order, pages)) in orders().iter().enumerate() {
        for (way, read) in READS {
            let times = times(read, pages);
            let (balanced, s3_fifo) = (times[0], times[1]);
            let ratio = balanced / s3_fifo;
            let name = format!("{order}, {way}");
            println!("{name:22}{balanced:12.0}{s3_fifo:12.0}{ratio:8.2}");
            if at == 0 {
                let name = format!("balanced, {name}: of the time under S3-FIFO");
                promises.push(Promise::new(name, ratio, ..=RATIO_MAX));
            }
        }
    }
    promise::report(Ok(&promises))
}
