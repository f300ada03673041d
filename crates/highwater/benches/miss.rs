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
//! by a Zipf law of exponent 0.9; or read in order, over and over, with readahead. The last row
//! copies from twice as many pages as a pool of 256 MiB has frames, at random, under the default
//! policy: for 256 groups in turn, and for one.
//!
//! The program fails when one of these is broken, where all pages are as popular: an access takes
//! under the default policy at most 1.6 times as long as under S3-FIFO, and in a pool of 256 groups
//! at most 2 times as long as in a pool of one.
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
use std::sync::atomic::{AtomicU64, Ordering};

use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::PAGE_BYTES;
use highwater::{Access, Background, File, Group, Limits, Manager, Mapping, Pages, ReadPattern};
use numbers::Numbers;
use places::{COUNT, zipf};
use promise::Promise;
use timing::{Variant, measure};

const ACCESSES: u32 = 100_000;
const FRAMES: Pages = Pages(COUNT as u64 / 8);
/// Promised time under the default policy where all pages are as popular, as a ratio to S3-FIFO's.
const RATIO_MAX: f64 = 1.6;

/// Frames of the pool that many groups share, and their number; its pages are twice as many.
const MANY_FRAMES: u32 = 1 << 16;
const MANY_GROUPS: u32 = 256;
/// Promised time there, as a ratio to that of one group.
const MANY_RATIO_MAX: f64 = 2.0;

/// The policies, in the order of the table's columns.
const POLICIES: [(&str, PolicyKind); 2] = [
    ("balanced", PolicyKind::Balanced),
    ("S3-FIFO", PolicyKind::S3Fifo),
];

/// A file under one policy, a mapping of it, and the groups that copy from it in turn.
struct Pool {
    hw: Manager,
    file: File,
    map: Mapping,
    groups: Vec<Group>,
}

impl Pool {
    fn new(policy: PolicyKind, frames: Pages, pages: u32, nr_groups: u32) -> Self {
        let builder = Manager::builder().capacity(frames.bytes());
        let builder = builder.eviction_policy(policy).background(Background::Off);
        let hw = builder.build().expect("some MiB of memory");
        let file = hw.open_backing(Arc::new(Numbers(pages)), Access::ReadOnly);
        let file = file.expect("one file");
        let map = hw.space(&hw.root()).map_file(&file, 0..u64::from(pages));
        let map = map.expect("the whole file");
        let groups = (0..nr_groups).map(|number| {
            let group = hw.root().child(&format!("g{number}"), Limits::default());
            group.expect("a new name")
        });
        let groups = groups.collect();
        Self {
            hw,
            file,
            map,
            groups,
        }
    }

    fn mapped(&self, page: u32) -> u64 {
        let guard = self.hw.enter();
        let bytes = self.map.read(&guard, u64::from(page)).expect("a frame");
        u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
    }

    fn copied(&self, page: u32) -> u64 {
        let mut word = [0; 8];
        let offset = u64::from(page) * PAGE_BYTES;
        let group = &self.groups[page as usize % self.groups.len()];
        let read = self.file.read_at(group, offset, &mut word);
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
        let (pool, pages) = (Pool::new(policy, FRAMES, COUNT, 1), pages.to_vec());
        Variant::new(name, ACCESSES, move |times| {
            for &page in &pages[..times as usize] {
                assert_eq!(read(&pool, black_box(page)), u64::from(page));
            }
        })
    };
    let medians = measure(&POLICIES.map(variant), 1);
    medians.into_iter().map(|(_, ns)| ns).collect()
}

/// Returns the medians for many groups and for one, in nanoseconds for each access.
fn times_of_groups() -> Vec<f64> {
    let variant = |nr_groups| {
        let (frames, pages) = (Pages(MANY_FRAMES.into()), 2 * MANY_FRAMES);
        let pool = Pool::new(PolicyKind::Balanced, frames, pages, nr_groups);
        pool.file.set_read_pattern(ReadPattern::Random);
        for page in 0..pages {
            pool.copied(page);
        }
        // Other pages in each round: there are more than it accesses.
        let nr_rounds = AtomicU64::new(0);
        Variant::new("groups", ACCESSES, move |times| {
            let round = nr_rounds.fetch_add(1, Ordering::Relaxed);
            let mut random = fastrand::Rng::with_seed(round);
            for _ in 0..times {
                let page = random.u32(..pages);
                assert_eq!(pool.copied(black_box(page)), u64::from(page));
            }
        })
    };
    let medians = measure(&[MANY_GROUPS, 1].map(variant), 1);
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
    let times = times_of_groups();
    let (many, one) = (times[0], times[1]);
    let (name, ratio) = (format!("{MANY_GROUPS} groups"), many / one);
    println!("{:22}{name:>12}{:>12}{:>8}", "", "one", "ratio");
    println!(
        "{:22}{many:12.0}{one:12.0}{ratio:8.2}",
        "at random, read_at"
    );
    let name = format!("{name}: of the time of one");
    promises.push(Promise::new(name, ratio, ..=MANY_RATIO_MAX));
    promise::report(Ok(&promises))
}
