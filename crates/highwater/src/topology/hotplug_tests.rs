//! CPU hotplug during detection, and the cost of detection on large machines.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a fake tree that cannot be changed fails the test"
)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use super::tests::{Machine, SERVER, assert_positions_are_a_permutation};
use super::*;

type Tree = BTreeMap<String, Rc<str>>;

/// The files of a machine at one moment.
type Moment = Rc<Tree>;

/// Files in memory that count reads and change between two reads.
struct Fake<C> {
    files: RefCell<Moment>,
    nr_reads: Cell<usize>,
    nr_bytes: Cell<usize>,
    /// The files at a read, by the number of reads before it.
    at: C,
}

impl<C: Fn(usize) -> Moment> Fake<C> {
    fn new(at: C) -> Self {
        Self {
            files: RefCell::new(at(0)),
            nr_reads: Cell::new(0),
            nr_bytes: Cell::new(0),
            at,
        }
    }

    fn detect(&self) -> Topology {
        let topology = Topology::detect_from(self);
        assert_positions_are_a_permutation(&topology);
        topology
    }
}

impl<C: Fn(usize) -> Moment> Files for Fake<C> {
    fn read(&self, name: &str) -> io::Result<String> {
        *self.files.borrow_mut() = (self.at)(self.nr_reads.get());
        self.nr_reads.set(self.nr_reads.get() + 1);
        let files = self.files.borrow();
        let text = files.get(name).ok_or(io::ErrorKind::NotFound)?;
        self.nr_bytes.set(self.nr_bytes.get() + text.len());
        Ok(text.to_string())
    }

    fn has(&self, name: &str) -> bool {
        let files = self.files.borrow();
        let mut from = files.range(name.to_owned()..);
        from.next().is_some_and(|(path, _)| {
            let below = path.strip_prefix(name);
            below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
        })
    }
}

/// Files that do not change.
fn still(machine: Machine) -> Fake<impl Fn(usize) -> Moment> {
    let files = Rc::new(machine.files());
    Fake::new(move |_| Rc::clone(&files))
}

/// The files that Linux removes for a CPU that goes offline, in this order; for one that comes
/// online they are missing in reverse.
const STAGES: [fn(&mut Tree, usize); 3] = [
    |files, cpu| {
        files.retain(|name, _| !name.starts_with(&format!("cpu{cpu}/cache/")));
        without(files, cpu, "shared_cpu_list");
    },
    |files, cpu| {
        without(files, cpu, "online");
        without(files, cpu, "thread_siblings_list");
    },
    |files, cpu| files.retain(|name, _| !name.starts_with(&format!("cpu{cpu}/"))),
];

/// Removes `cpu` from all lists in files of that name.
fn without(files: &mut Tree, cpu: usize, name: &str) {
    for (_, list) in files.iter_mut().filter(|(path, _)| path.ends_with(name)) {
        let ranges = list.split(',').map(|item| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            first.parse::<usize>().unwrap()..=last.parse().unwrap()
        });
        let others = ranges.flatten().filter(|&member| member != cpu);
        let others: Vec<String> = others.map(|member| member.to_string()).collect();
        *list = others.join(",").into();
    }
}

/// The server after the first `stage` stages of taking `cpu` offline.
fn at_stage(cpu: usize, stage: usize) -> Moment {
    let mut files = SERVER.files();
    for take_away in &STAGES[..stage] {
        take_away(&mut files, cpu);
    }
    Rc::new(files)
}

/// Panics unless all CPUs but `cpu` share the same parts as on a machine without hotplug, and `cpu`
/// has its place or none.
fn assert_only_one_is_unknown(topology: &Topology, still: &Topology, cpu: usize, context: &str) {
    let numbers = || (0..SERVER.nr_cpus()).map(CpuId::from_index);
    let moving = CpuId::from_index(cpu);
    for (one, other) in numbers().flat_map(|one| numbers().map(move |other| (one, other))) {
        let (shared, expected) = (topology.sharing(one, other), still.sharing(one, other));
        let is_unknown = shared == Sharing::Machine && (one == moving || other == moving);
        assert!(
            shared == expected || is_unknown,
            "{context}: {one:?} and {other:?} share {shared:?} instead of {expected:?}"
        );
    }
}

// Goal: a CPU that goes offline during detection costs at most its own place, not the whole order.
// Method: it goes, in the kernel's three stages, before each of the reads; and it stays between two
// stages for good.
#[test]
fn a_cpu_that_goes_offline_during_detection_does_not_make_the_machine_flat() {
    let fake = still(SERVER);
    let (expected, nr_reads) = (fake.detect(), fake.nr_reads.get());
    for cpu in [0, 4, 7, 31, 47] {
        let states = [0, 1, 2, 3].map(|stage| at_stage(cpu, stage));
        for (last, at) in (1..=3).flat_map(|last| (0..nr_reads).map(move |at| (last, at))) {
            let goes = |read: usize| Rc::clone(&states[(read + 1).saturating_sub(at).min(last)]);
            let topology = Fake::new(goes).detect();
            let context = format!("CPU {cpu} goes at read {at} up to stage {last}");
            assert_only_one_is_unknown(&topology, &expected, cpu, &context);
        }
    }
}

// Goal: as above, with a CPU that never settles, so that the second reading sees it change too.
// Method: it goes and comes back without end, one stage after each period of reads.
#[test]
fn a_cpu_that_comes_and_goes_all_the_time_does_not_make_the_machine_flat() {
    let expected = still(SERVER).detect();
    for cpu in [0, 4, 7, 31, 47] {
        let states = [0, 1, 2, 3, 2, 1].map(|stage| at_stage(cpu, stage));
        for period in 1..60 {
            let toggles = |read: usize| Rc::clone(&states[read / period % states.len()]);
            let topology = Fake::new(toggles).detect();
            let context = format!("CPU {cpu} moves each {period} reads");
            assert_only_one_is_unknown(&topology, &expected, cpu, &context);
        }
    }
}

// Goal: a machine that changed while it was read is read again, once, and is then completely known.
// Method: a CPU that is going in the first reading is back before the second.
#[test]
fn a_cpu_that_is_back_for_the_second_reading_has_its_place() {
    let (gone, back) = (at_stage(7, 1), at_stage(7, 0));
    let fake = still(SERVER);
    let (expected, nr_reads) = (fake.detect(), fake.nr_reads.get());
    let fake = Fake::new(|read| Rc::clone(if read < nr_reads / 2 { &gone } else { &back }));
    let topology = fake.detect();
    for cpu in (0..SERVER.nr_cpus()).map(CpuId::from_index) {
        assert_eq!(topology.position(cpu), expected.position(cpu));
    }
    assert!(fake.nr_reads.get() > nr_reads, "read again");
    assert!(fake.nr_reads.get() <= 2 * nr_reads, "once");
}

// Goal: the cost of detection is linear in CPUs, in files and in bytes, although the list of a
// group is as long as the group is wide. Method: count both on machines of 384 and 8,192 CPUs, in
// caches of 16 and in a single one; the numbers themselves grow from three to four digits.
#[test]
fn detection_reads_each_list_once() {
    for nr_cpus in [384, 8192] {
        for cores in [8, nr_cpus / 2] {
            let machine = Machine {
                sockets: 1,
                llcs: nr_cpus / 2 / cores,
                cores,
                threads: 2,
            };
            let fake = still(machine);
            let topology = fake.detect();
            let caches = format!("{} LLC", machine.llcs);
            assert!(topology.to_string().contains(&caches), "{topology}");
            // Three lists, two files for each core, five for each last-level cache.
            let reads = 3 + 2 * (nr_cpus / 2) + 5 * machine.llcs;
            assert_eq!(
                fake.nr_reads.get(),
                reads,
                "{nr_cpus} CPUs, {cores} a cache"
            );
            // Each CPU is named by the list of its core and that of its cache, in five bytes.
            let bytes = nr_cpus * (5 + 5) + 64 + reads;
            assert!(
                fake.nr_bytes.get() <= bytes,
                "{nr_cpus} CPUs, {cores} a cache: {} bytes",
                fake.nr_bytes.get()
            );
        }
    }
}
