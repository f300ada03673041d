//! Question: how much of a CPU does the flight recorder take?
//!
//! Command: `cargo bench -p highwater --bench recorder`. Seconds of a program with many groups, of
//! which 100 are charged between two ticks, and 100 uncharged (of 100 groups, all are both): each
//! second one whole moment and nine of changes, recorded one after the other, without the waits
//! between them. Prints the CPU time that recording adds to such a second, system calls included,
//! and the bytes that are written: medians over interleaved rounds. Fails if 1,000 groups take more
//! than 0.1 % of a CPU, 1 ms a second. What the thread's ten wake-ups a second cost is not in it.
//! Without `--bench` (as under `cargo test --benches`) it records a few seconds and promises
//! nothing.
//!
//! What would change our mind: above 0.1 %, a program should not record all the time.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod promise;
mod timing;

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use highwater::lab::recording::Everything;
use highwater::topology::Topology;
use highwater::{Background, Bytes, Charge, Group, Limits, Manager};
use promise::Promise;
use tempfile::TempDir;
use timing::{Medians, ROUNDS, Variant, measure};

/// Seconds of each program in a round.
const SECONDS: u32 = 20;
/// Groups that are charged between two ticks.
const CHANGED: usize = 100;
/// Ticks of a second.
const TICKS: usize = 10;
/// Numbers of groups, and names of what is timed.
const PROGRAMS: [(usize, [&str; 2]); 3] = [
    (100, ["100 groups, recorded", "100 groups"]),
    (1_000, ["1,000 groups, recorded", "1,000 groups"]),
    (10_000, ["10,000 groups, recorded", "10,000 groups"]),
];
/// The number of groups that the promise is about.
const PROMISED: usize = 1_000;
/// Where a recording has the position behind its newest record (`docs/recorder.md`).
const END_AT: u64 = 2048 + 8;
/// Percent of a CPU.
const PERCENT_MAX: f64 = 0.1;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A program that records.
struct Recorded {
    hw: Manager,
    dir: TempDir,
    groups: Vec<Group>,
    /// A ring of charges: each change replaces the oldest by one to the next group.
    charges: Vec<Option<Charge>>,
    nr_changes: usize,
}

impl Recorded {
    fn new(nr_groups: usize) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let hw = Manager::builder()
            .capacity(Bytes::gib(8))
            .frames(Bytes::mib(64))
            .background(Background::Off)
            .recorder(path(&dir), Bytes::mib(32))
            .build()?;
        let tenants = (0..10).map(|nr| {
            let limits = Limits::max(Bytes::gib(4));
            hw.root().child(&format!("tenant-{nr}"), limits)
        });
        let tenants = tenants.collect::<std::result::Result<Vec<_>, _>>()?;
        let groups = (0..nr_groups).map(|nr| {
            let limits = Limits::max(Bytes::gib(1));
            tenants[nr % tenants.len()].child(&format!("query-{nr}"), limits)
        });
        let groups = groups.collect::<std::result::Result<_, _>>()?;
        let charges = (0..CHANGED * 2).map(|_| None).collect();
        Ok(Self {
            hw,
            dir,
            groups,
            charges,
            nr_changes: 0,
        })
    }

    fn change(&mut self) {
        for _ in 0..CHANGED {
            let slot = self.nr_changes % self.charges.len();
            let group = &self.groups[self.nr_changes % self.groups.len()];
            // The charge that goes, of the same group if there are 100, has another size.
            let size = Bytes::mib(1 + (self.nr_changes / CHANGED % 3) as u64);
            self.charges[slot] = Some(group.charge(size).expect("there is room"));
            self.nr_changes += 1;
        }
    }

    /// A second of the program, with what `tick` does after each change.
    fn second(&mut self, tick: impl Fn(&Manager, Everything)) {
        for nth in 0..TICKS {
            self.change();
            let everything = match nth {
                0 => Everything::Yes,
                _ => Everything::No,
            };
            tick(&self.hw, everything);
        }
    }

    /// Returns the bytes that a second takes of the ring, after a first one.
    fn bytes_a_second(&mut self) -> Result<u64> {
        self.second(record);
        let before = written(&path(&self.dir))?;
        self.second(record);
        Ok(written(&path(&self.dir))? - before)
    }
}

fn record(hw: &Manager, everything: Everything) {
    hw.record_now(everything);
}

const fn skip(_: &Manager, _: Everything) {}

fn path(dir: &TempDir) -> PathBuf {
    dir.path().join("flight.rec")
}

/// Returns the bytes of the ring that were used so far, in all laps: the file's hint has them.
fn written(recording: &Path) -> Result<u64> {
    let mut end = [0; 8];
    File::open(recording)?.read_exact_at(&mut end, END_AT)?;
    Ok(u64::from_le_bytes(end))
}

/// Seconds of a program, with and without recording.
fn variants(program: Recorded, [recorded, not_recorded]: [&'static str; 2]) -> [Variant; 2] {
    let program = Arc::new(Mutex::new(program));
    let of = |name, tick: fn(&Manager, Everything)| {
        let program = Arc::clone(&program);
        Variant::new(name, SECONDS, move |seconds| {
            let mut program = program.lock().expect("no round panics");
            (0..seconds).for_each(|_| program.second(tick));
        })
    };
    [of(recorded, record), of(not_recorded, skip)]
}

fn main() -> Result<ExitCode> {
    let (mut all, mut bytes) = (Vec::new(), Vec::new());
    for (nr_groups, names) in PROGRAMS {
        let mut program = Recorded::new(nr_groups)?;
        bytes.push(program.bytes_a_second()?);
        all.extend(variants(program, names));
    }
    let medians: Medians = measure(&all, 1);
    println!(
        "{}; {ROUNDS} interleaved rounds; medians of CPU time",
        Topology::detect()
    );
    println!("\n  groups   µs a second   % of a CPU   KiB a second");
    let mut promised = f64::NAN;
    for ((medians, (nr_groups, _)), bytes) in medians.chunks(2).zip(PROGRAMS).zip(bytes) {
        let us = (medians[0].1 - medians[1].1) / 1e3;
        let percent = us / 1e4;
        println!("  {nr_groups:6}{us:14.0}{percent:13.3}{:15}", bytes / 1024);
        if nr_groups == PROMISED {
            promised = percent;
        }
    }
    let name = format!("% of a CPU to record {PROMISED} groups, {CHANGED} charged in each tick");
    let promise = Promise::new(name, promised, ..=PERCENT_MAX);
    Ok(promise::report(Ok(&[promise])))
}
