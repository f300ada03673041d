//! Promise: a manager takes memory for what is used, not for what it may use.
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]
#![expect(clippy::print_stdout, reason = "the figures of the documents")]

mod support;

use highwater::cache::Access;
use highwater::{Bytes, Limits, Manager, Mapping, Pages, Topology};
use support::TestFile;

/// Of this process: resident memory, and all that is mapped private and writable.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    resident_kib: i64,
    committed_kib: i64,
}

impl Footprint {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        Self {
            resident_kib: kib("VmRSS:"),
            committed_kib: kib("VmData:"),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            resident_kib: self.resident_kib - before.resident_kib,
            committed_kib: self.committed_kib - before.committed_kib,
        }
    }
}

/// What `make` makes, and what it takes.
fn measured<T>(make: impl FnOnce() -> T) -> (T, Footprint) {
    let before = Footprint::now();
    let made = make();
    (made, Footprint::now().since(before))
}

// One test, so that nothing else allocates meanwhile.
#[test]
fn what_a_manager_takes_follows_its_use() {
    // For what is made only once in a process.
    drop(support::manager(256));
    a_manager_that_only_accounts_takes_less_than_a_mebibyte();
    an_idle_manager_of_16_gib_does_not_take_276_mib();
    memory_is_given_back_after_use();
}

// Goal: no budget costs memory by itself. Method: managers without frames, the largest of a budget
// beyond any machine, and one for 384 CPUs; a group and a charge in each.
fn a_manager_that_only_accounts_takes_less_than_a_mebibyte() {
    for (capacity, topology) in [
        (Bytes::gib(16), Topology::detect()),
        (Bytes::gib(1 << 17), Topology::detect()),
        (Bytes::gib(16), "2x12x8x2".parse().unwrap()),
    ] {
        let (held, taken) = measured(|| {
            let hw = Manager::builder()
                .capacity(capacity)
                .frames(Bytes(0))
                .topology(topology.clone())
                .build()
                .unwrap();
            let tenant = hw.root().child("tenant", Limits::default()).unwrap();
            let charge = tenant.charge(Bytes::gib(15)).unwrap();
            (hw, tenant, charge)
        });
        println!("{capacity} on {} CPUs: {taken:?}", topology.nr_cpus());
        assert!(taken.resident_kib < 1024, "{taken:?} for {capacity}");
        assert!(taken.committed_kib < 1024, "{taken:?} for {capacity}");
        drop(held);
    }
}

/// A manager of as much as the machine allows, up to 16 GiB.
fn large() -> Manager {
    let sizes = [16, 4, 1].map(Bytes::gib).into_iter();
    let built = sizes.map(|capacity| Manager::builder().capacity(capacity).build());
    let mut built = built.skip_while(Result::is_err);
    built.next().expect("a machine of 1 GiB").unwrap()
}

// Goal: books of frames cost nothing before a frame is used. Method: an idle manager, then as many
// pages as touch a small part of the books.
fn an_idle_manager_of_16_gib_does_not_take_276_mib() {
    let (hw, idle) = measured(large);
    println!("{} idle: {idle:?}", hw.capacity());
    assert!(idle.resident_kib < 4096, "{idle:?} for {}", hw.capacity());

    let storage = TestFile::new(1024);
    let (mapped, used) = measured(|| support::mapped(&hw, &storage, Access::ReadWrite));
    assert!(used.resident_kib < 1024, "{used:?} for opening a file");
    let (_, used) = measured(|| {
        for page in 0..1024 {
            drop(mapped.1.read_latched(page).unwrap());
        }
    });
    println!("1,024 pages: {used:?}");
    // The pages are 4 MiB. Where the system gives huge pages, a few of those.
    assert!(used.resident_kib < 32 << 10, "{used:?} for 1,024 pages");
    drop(mapped);
    hw.check_invariants();
}

/// Anonymous memory of so many pages, written.
fn scratch(hw: &Manager, pages: u64) -> Mapping {
    let scratch = hw.space(&hw.root()).map_anon(Pages(pages)).unwrap();
    for page in 0..pages {
        scratch.write(page).unwrap()[0] = 1;
    }
    scratch
}

// Goal: a process does not stay at its peak. Method: 64 MiB are written and given up; a trim, and a
// smaller capacity, give them back.
fn memory_is_given_back_after_use() {
    for gives_back in [(|hw| hw.trim()) as fn(&Manager) -> Bytes, |hw| {
        hw.set_capacity(Bytes::mib(4))
            .map(|()| Bytes::mib(48))
            .unwrap()
    }] {
        let hw = Manager::builder().capacity(Bytes::mib(80)).build().unwrap();
        let before = Footprint::now();
        let written = scratch(&hw, 16 << 10);
        let used = Footprint::now().since(before);
        drop(written);
        let free = Footprint::now().since(before);
        assert!(
            free.resident_kib > 60 << 10,
            "{used:?} used, {free:?} after it"
        );
        let given = gives_back(&hw);
        let left = Footprint::now().since(before);
        println!("{used:?} used, {free:?} free, {left:?} after {given} were given back");
        assert!(given >= Bytes::mib(48), "{given}");
        assert!(
            left.resident_kib < 24 << 10,
            "{left:?} after {given} were given back"
        );
        hw.check_invariants();
        hw.set_capacity(Bytes::mib(80)).unwrap();
        drop(scratch(&hw, 1024));
        hw.check_invariants();
    }
}
