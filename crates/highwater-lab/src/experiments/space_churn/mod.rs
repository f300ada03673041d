//! `space-churn`: creating and dropping the counters of an address space, and a group.
//!
//! Most processes and most queries live shortly and run on one CPU, so what their counters cost
//! before anything is counted matters more than an addition. Spaces are made, used on none, one,
//! two and all of the virtual CPUs, a thread on each, and dropped: the experiment states bytes, CPU
//! time, and how often a lock that all spaces share was taken. Beside the library: the flat
//! counters of Linux, the published tree, and the proposed dual-mode counters, whose per-CPU words
//! come from an allocator with one lock.

mod per_cpu_areas;
mod spaces;

use highwater::units::CpuId;

use self::spaces::{DualMaker, FlatMaker, GroupMaker, Maker, SetMaker, Space, TreeMaker};
use super::clock::{median, time_threads};
use super::resident::process_anonymous_bytes;
use super::{Experiment, ExperimentError, Findings, Setup, published};
use crate::control::Control;
use crate::report::text::to_f64;
use crate::report::{Check, Headline, Noun, Row, Source, Unit};

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "space-churn",
    thread: "hierarchical-rss-counters-2026, dual-mode counters 2025",
    summary: "creating and dropping the counters of a space, and a group: bytes, time, locks",
    headline: Headline::of_variants(
        ONE_CPU,
        "space_bytes",
        Noun::Mass("memory of a space that one CPU uses"),
        [OURS, TREE],
    ),
    topology: "2x12x8x2",
    cpus: 2..=1024,
    extras: &[],
    run,
};

const FLAT: &str = "flat";
const TREE: &str = "published tree";
const DUAL: &str = "dual mode";
const OURS: &str = "Highwater, four counters";
const GROUP: &str = "Highwater, a group";

const UNUSED: &str = "created and dropped";
const ONE_CPU: &str = "used on one CPU";
const TWO_CPUS: &str = "used on two CPUs";
const ALL_CPUS: &str = "used on all CPUs";
const PUBLISHED: &str = "memory of a space's four counters, 384 CPUs";

/// CPUs of the published machine.
const THREAD_CPUS: usize = 384;
/// Pages counted on each CPU, and uncounted again.
const PAGES: i64 = 3;
/// Spaces that are kept to measure their memory, where they are small and where they are large. The
/// system counts pages of 4 KiB: an error of 4 and 32 bytes a space.
const KEPT_SMALL: usize = 1024;
const KEPT_LARGE: usize = 128;
/// Areas that a published design has in use at once at most.
const AREAS: usize = 2 * (KEPT_SMALL + KEPT_LARGE) + 16;

const NOTE: &str = "CPUs are virtual, each with a thread of its own; additions are atomic. Bytes \
    of the published designs are those of their authors' layout. Bytes of the library are \
    measured: the growth of this process's anonymous memory (smaps_rollup) over up to 1,024 \
    spaces, which are all kept. Times are CPU time on this machine, from creation to drop; a \
    per-CPU area is zeroed in the unit of each virtual CPU, as the kernel does it, on one node. \
    With two threads each makes spaces of its own. A group that is used on at most one CPU is used \
    on the one that its thread runs on; groups have names made beforehand. Shared locks are those \
    of the per-CPU allocator, and of the library's tree of groups; its counters have none.";

/// How spaces are used.
#[derive(Clone, Copy)]
struct Use {
    part: &'static str,
    nr_cpus: usize,
}

/// What one design did in one use.
struct Made {
    name: &'static str,
    kept: Kept,
    /// Shared locks taken for one space; `None` where the design has none.
    locks: Option<f64>,
    one_thread_ns: f64,
    two_threads_ns: f64,
}

/// The spaces of one design and use that were kept.
struct Kept {
    /// Memory of one, where it is known.
    bytes: Option<f64>,
    /// Pages by which their sums were wrong.
    wrong: u64,
}

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let nr_cpus = setup.topology.nr_cpus();
    let uses = [
        (UNUSED, 0),
        (ONE_CPU, 1),
        (TWO_CPUS, 2),
        (ALL_CPUS, nr_cpus),
    ];
    let uses = uses.map(|(part, nr_cpus)| Use { part, nr_cpus });
    let designs = designs(setup);
    control.expect(2 * (uses.len() * designs.len()) as u64);
    let mut kept = keep_all(&uses, &designs, control)?.into_iter();
    let (mut rows, mut checks) = (Vec::new(), Vec::new());
    for of in uses {
        let mut all = Vec::new();
        for ((name, maker), kept) in designs.iter().zip(&mut kept) {
            all.push(churn(setup, of, (*name, &**maker), kept)?);
            control.advance(1)?;
        }
        rows.extend(all.iter().map(|made| row(of.part, made)));
        judge(setup, of, &all, &mut checks);
    }
    Ok(Findings {
        config: setup.config().with("note_scope", NOTE),
        rows,
        published: published::rows(
            include_str!("../../../published/space-churn.json"),
            &[PUBLISHED],
        ),
        checks,
    })
}

fn designs(setup: &Setup) -> Vec<(&'static str, Box<dyn Maker>)> {
    let nr_cpus = setup.topology.nr_cpus();
    vec![
        (FLAT, Box::new(FlatMaker::new(nr_cpus, AREAS))),
        (TREE, Box::new(TreeMaker::new(nr_cpus, AREAS))),
        (DUAL, Box::new(DualMaker::new(nr_cpus, AREAS))),
        (OURS, Box::new(SetMaker::new(&setup.topology))),
        (GROUP, Box::new(GroupMaker::new(nr_cpus, AREAS))),
    ]
}

/// Makes spaces of each design for each use and keeps all of them: memory that one gives back would
/// serve the next, whose growth would then be too small.
fn keep_all(
    uses: &[Use],
    designs: &[(&'static str, Box<dyn Maker>)],
    control: &Control,
) -> Result<Vec<Kept>, ExperimentError> {
    let mut spaces = Vec::new();
    let mut kept = Vec::new();
    for of in uses {
        for (_, maker) in designs {
            let count = if of.nr_cpus > 1 {
                KEPT_LARGE
            } else {
                KEPT_SMALL
            };
            let before = process_anonymous_bytes();
            let own: Vec<_> = (0..count).map(|_| maker.make(of.nr_cpus)).collect();
            own.iter().for_each(|space| visit(*of, &**space, PAGES));
            let growth = process_anonymous_bytes().zip(before);
            let measured = growth
                .map(|(now, before)| to_f64(now.saturating_sub(before)) / to_f64(count as u64));
            let of_each = (0..of.nr_cpus).map(|_| PAGES).sum::<i64>();
            let wrong = own.iter().map(|space| space.sum().abs_diff(of_each)).sum();
            kept.push(Kept {
                bytes: own[0].bytes().map(to_f64).or(measured),
                wrong,
            });
            spaces.extend(own.into_iter().map(|space| (*of, space)));
            control.advance(1)?;
        }
    }
    for (of, space) in &spaces {
        visit(*of, &**space, -PAGES);
    }
    Ok(kept)
}

fn churn(
    setup: &Setup,
    of: Use,
    (name, maker): (&'static str, &dyn Maker),
    kept: Kept,
) -> Result<Made, ExperimentError> {
    let lives = setup.pick(200_000, 20_000) / (of.nr_cpus.max(1) * 4);
    let before = maker.locked();
    live(of, maker, lives);
    let taken = maker.locked().zip(before).map(|(now, before)| now - before);
    let locks = taken.map(|taken| to_f64(taken) / to_f64(lives as u64));
    let rounds = setup.repeats(7, 1, 1);
    let time = |threads: usize| {
        let times = (0..rounds).map(|_| {
            let took = time_threads(threads, &|_| live(of, maker, lives))?;
            Ok(took.cpu_ns / to_f64((threads * lives) as u64))
        });
        Ok::<_, ExperimentError>(median(times.collect::<Result<_, ExperimentError>>()?))
    };
    Ok(Made {
        name,
        kept,
        locks,
        one_thread_ns: time(1)?,
        two_threads_ns: time(2)?,
    })
}

/// Makes a number of spaces, one after the other, each from creation to drop.
fn live(of: Use, maker: &dyn Maker, lives: usize) {
    for _ in 0..lives {
        let space = maker.make(of.nr_cpus);
        visit(of, &*space, PAGES);
        visit(of, &*space, -PAGES);
    }
}

fn visit(of: Use, space: &dyn Space, pages: i64) {
    for cpu in 0..of.nr_cpus {
        space.add(CpuId::from_index(cpu), pages);
    }
}

fn row(part: &'static str, made: &Made) -> Row {
    let row = Row::new(part, Source::Run, made.name);
    let row = match made.kept.bytes {
        Some(bytes) => row.with("space_bytes", bytes.round()),
        None => row,
    };
    let row = match made.locks {
        Some(locks) => row.with("shared_locks", locks),
        None => row,
    };
    row.with("one_thread_ns", made.one_thread_ns)
        .with("two_threads_ns", made.two_threads_ns)
}

fn judge(setup: &Setup, of: Use, all: &[Made], checks: &mut Vec<Check>) {
    let made = |name: &str| {
        let found = all.iter().find(|made| made.name == name);
        found.expect("every design is measured")
    };
    let check = |what: &str| Check::counted(format!("{}: {what}", of.part));
    let wrong = all.iter().map(|made| made.kept.wrong);
    checks.push(check("pages that any design lost").equal(&wrong.sum::<u64>(), &0));
    // A per-CPU area is allocated and freed.
    let locks = |name| made(name).locks.unwrap_or(f64::NAN);
    checks.push(check("flat: locks for a space").equal(&locks(FLAT), &2.0));
    let of_dual = if of.nr_cpus > 1 { 2.0 } else { 0.0 };
    checks.push(check("dual mode: locks for a space").equal(&locks(DUAL), &of_dual));
    if setup.topology.nr_cpus() == THREAD_CPUS {
        let tree = made(TREE).kept.bytes.unwrap_or(f64::NAN);
        checks.push(check("published tree: bytes").between(tree, 29e3, 33e3, Unit::Bytes));
    }
    if of.nr_cpus > 1 {
        return;
    }
    for (name, bytes_max, ns_max) in [(OURS, 1024.0, 200.0), (GROUP, 1024.0, 200.0)] {
        if let Some(bytes) = made(name).kept.bytes {
            let subject = check(&format!("{name}: bytes"));
            checks.push(subject.at_most(bytes, bytes_max, Unit::Bytes));
        }
        let Made {
            one_thread_ns,
            two_threads_ns,
            ..
        } = *made(name);
        for (threads, ns) in [
            ("one thread", one_thread_ns),
            ("two threads", two_threads_ns),
        ] {
            let what = format!("{}: {name}: from creation to drop, {threads}", of.part);
            checks.push(Check::timed(what).at_most(ns, ns_max, Unit::Ns));
        }
    }
    // A thread that the system moves to another CPU finds no group to succeed there, and takes the
    // tree's lock: so this depends on its scheduling.
    let subject = Check::timed(format!("{}: {GROUP}: locks for a group", of.part));
    checks.push(subject.at_most(locks(GROUP), 0.01, Unit::Plain));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// Goal: counters of the library take no lock that spaces share, so that the experiment need
    /// not count. Method: no source of the module names one.
    #[test]
    fn the_counters_have_no_lock() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../highwater/src/counter");
        let mut nr_read = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            for lock in ["Mutex", "RwLock", "LockClass", ".lock()"] {
                assert!(!text.contains(lock), "{lock} in {}", path.display());
            }
            nr_read += 1;
        }
        assert!(nr_read > 4, "{nr_read} files");
    }
}
