//! Question: how long does a read take whose thread must reclaim, in a pool of a GiB, at the worst;
//! for one group, and for 1,000 of a few hundred pages each?
//!
//! Command: `cargo bench -p highwater --bench long_reads`. Prints times of single reads: the mean,
//! those that all but one read in 100, 1,000 and 10,000 keep to, and the longest; the median of
//! each over interleaved rounds. They are wall-clock times, so that other load on the machine shows
//! in the longest. Ratios carry over to other machines, single times do not. Without `--bench` it
//! does a hundredth of it in small pools, to show that it works.
//!
//! One thread copies eight bytes of a page, of twice as many pages as there are frames, all as
//! often, from storage at the speed of memory; pages belong to the groups in turn. So every other
//! read misses. Either the thread reclaims for itself, or the background thread does first.
//!
//! The program fails when this is broken, where the thread reclaims for itself: under the default
//! policy, one read in 10,000 with 1,000 groups takes at most 4 times as long as with one group.
//!
//! What would change our mind: where storage takes milliseconds, the time of reclaim does not show
//! in a read.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod numbers;
#[expect(
    dead_code,
    reason = "pages are read, and neither a file nor their lines"
)]
mod places;
mod promise;
#[expect(dead_code, reason = "single reads are timed")]
mod timing;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::PAGE_BYTES;
use highwater::{Access, Background, File, Group, Limits, Manager, Pages, ReadPattern};
use numbers::Numbers;
use promise::Promise;
use timing::{is_bench, print_figure};

const POLICIES: [PolicyKind; 2] = [PolicyKind::Balanced, PolicyKind::S3Fifo];
const GROUPS: [u32; 2] = [1, 1_000];
const ROUNDS: usize = 5;

/// Promised time of one read in 10,000 with many groups, as a ratio to that with one.
const RATIO_MAX: f64 = 4.0;

/// Columns of the table: one read in so many takes longer.
const PERCENTILES: [(&str, usize); 4] = [
    ("99 %", 100),
    ("99.9 %", 1_000),
    ("99.99 %", 10_000),
    ("longest", usize::MAX),
];

/// How much is done.
struct Size {
    frames: u32,
    reads: u32,
}

impl Size {
    fn wanted() -> Self {
        match is_bench() {
            true => Self {
                frames: 1 << 18,
                reads: 200_000,
            },
            false => Self {
                frames: 1 << 12,
                reads: 2_000,
            },
        }
    }
}

/// A full pool, and the groups whose pages are in it.
struct Pool {
    policy: PolicyKind,
    background: Background,
    file: File,
    pages: u32,
    groups: Vec<Group>,
    random: fastrand::Rng,
}

impl Pool {
    fn new(policy: PolicyKind, background: Background, nr_groups: u32, frames: u32) -> Self {
        let builder = Manager::builder().capacity(Pages(frames.into()).bytes());
        let builder = builder.eviction_policy(policy).background(background);
        let hw = builder.build().expect("a GiB of memory");
        let pages = 2 * frames;
        let file = hw.open_backing(Arc::new(Numbers(pages)), Access::ReadOnly);
        let file = file.expect("one file");
        file.set_read_pattern(ReadPattern::Random);
        let groups = (0..nr_groups).map(|number| {
            let group = hw.root().child(&format!("g{number}"), Limits::default());
            group.expect("a new name")
        });
        let pool = Self {
            policy,
            background,
            groups: groups.collect(),
            file,
            pages,
            random: fastrand::Rng::with_seed(1),
        };
        (0..pages).for_each(|page| pool.read(page));
        pool
    }

    fn name(&self) -> String {
        let by = match self.background {
            Background::Off => "the reader",
            _ => "background thread",
        };
        format!("{}, {} groups, {by}", self.policy, self.groups.len())
    }

    fn read(&self, page: u32) {
        let mut word = [0; 8];
        let group = &self.groups[page as usize % self.groups.len()];
        let read = self
            .file
            .read_at(group, u64::from(page) * PAGE_BYTES, &mut word);
        assert_eq!(read.expect("a frame"), word.len());
        assert_eq!(u64::from_le_bytes(word), u64::from(page));
    }

    /// Returns the mean and the [`PERCENTILES`] of that many reads, in microseconds.
    fn round(&mut self, reads: u32) -> Vec<f64> {
        let mut times: Vec<Duration> = (0..reads)
            .map(|_| {
                let page = self.random.u32(..self.pages);
                let since = Instant::now();
                self.read(black_box(page));
                since.elapsed()
            })
            .collect();
        times.sort();
        let mean = times.iter().sum::<Duration>() / reads;
        let last = times.len() - 1;
        let at = PERCENTILES.map(|(_, one_in)| times[last - last / one_in]);
        let all = std::iter::once(mean).chain(at);
        all.map(|time| time.as_secs_f64() * 1e6).collect()
    }
}

/// Returns the median of each column.
fn medians(rounds: &[Vec<f64>]) -> Vec<f64> {
    (0..rounds[0].len())
        .map(|column| {
            let mut values: Vec<f64> = rounds.iter().map(|round| round[column]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        })
        .collect()
}

fn main() -> ExitCode {
    let size = Size::wanted();
    let mut promises = Vec::new();
    print!("{:42}{:>10}", "microseconds for a read", "mean");
    PERCENTILES
        .iter()
        .for_each(|(name, _)| print!("{name:>10}"));
    println!();
    for (background, policy) in [Background::Off, Background::Thread]
        .into_iter()
        .flat_map(|background| POLICIES.into_iter().map(move |policy| (background, policy)))
    {
        let pool = |nr_groups| Pool::new(policy, background, nr_groups, size.frames);
        let mut pools = GROUPS.map(pool);
        let mut rounds = GROUPS.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (pool, rounds) in pools.iter_mut().zip(&mut rounds) {
                rounds.push(pool.round(size.reads));
            }
        }
        let medians = rounds.map(|rounds| medians(&rounds));
        for (pool, medians) in pools.iter().zip(&medians) {
            print!("{:42}", pool.name());
            medians.iter().for_each(|time| print!("{time:10.1}"));
            println!();
            print_figure(&format!("{}, mean", pool.name()), 1, 1000.0 * medians[0]);
        }
        if background == Background::Off && policy == PolicyKind::Balanced {
            let ratio = medians[1][3] / medians[0][3];
            let name = "1,000 groups: one read in 10,000, of that of one group";
            promises.push(Promise::new(name, ratio, ..=RATIO_MAX));
        }
    }
    promise::report(Ok(&promises))
}
