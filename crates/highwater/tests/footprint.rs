//! Promise: a manager's memory footprint follows usage, not capacity.
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]
#![expect(unsafe_code, reason = "asks the system for small pages")]
#![expect(clippy::print_stdout, reason = "the figures of the documents")]

mod support;

use highwater::group::GroupTree;
use highwater::{Access, Bytes, Limits, Manager, Mapping, Pages, Topology};
use support::TestFile;

/// Footprint of this process: resident memory, and all private writable mappings.
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

/// Returns the result of `make`, and the memory it takes.
fn measured<T>(make: impl FnOnce() -> T) -> (T, Footprint) {
    let before = Footprint::now();
    let made = make();
    (made, Footprint::now().since(before))
}

// One test, so that nothing else allocates meanwhile.
#[test]
fn what_a_manager_takes_follows_its_use() {
    // For allocations that happen once in a process.
    drop(support::manager(256));
    a_manager_that_only_accounts_takes_less_than_a_mebibyte();
    an_idle_manager_of_16_gib_does_not_take_276_mib();
    memory_is_given_back_after_use();
}

// Goal: a budget alone costs no memory. Method: managers without frames, the largest of a budget
// beyond any machine, and one for 384 CPUs; a group and a charge in each. Eight of each kind, so
// that memory which the allocator has already cached does not hide the cost.
fn a_manager_that_only_accounts_takes_less_than_a_mebibyte() {
    const MANAGERS: i64 = 8;
    for (capacity, topology) in [
        (Bytes::gib(16), Topology::detect()),
        (GroupTree::CHARGED_MAX, Topology::detect()),
        (Bytes::gib(16), "2x12x8x2".parse().unwrap()),
    ] {
        let charged = || {
            let builder = Manager::builder().capacity(capacity).frames(Bytes(0));
            let hw = builder.topology(topology.clone()).build().unwrap();
            let tenant = hw.root().child("tenant", Limits::default()).unwrap();
            let charge = tenant.charge(Bytes::gib(15)).unwrap();
            (hw, tenant, charge)
        };
        let many = || (0..MANAGERS).map(|_| charged()).collect::<Vec<_>>();
        let (held, all) = measured(many);
        let each = Footprint {
            resident_kib: all.resident_kib / MANAGERS,
            committed_kib: all.committed_kib / MANAGERS,
        };
        println!("{capacity} on {} CPUs: {each:?}", topology.nr_cpus());
        assert!(each.resident_kib < 1024, "{each:?} for {capacity}");
        assert!(each.committed_kib < 1024, "{each:?} for {capacity}");
        drop(held);
    }
}

/// Runs `within` while the process gets no huge pages: if the system gives them to all processes,
/// each array begins with one, 2 MiB of zeros.
fn without_huge_pages<R>(within: impl FnOnce() -> R) -> R {
    let disable = |disabled: libc::c_ulong| {
        let no: libc::c_ulong = 0;
        // SAFETY: a setting of the process that affects the size of pages only.
        let result = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, disabled, no, no, no) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    };
    disable(1);
    let result = within();
    disable(0);
    result
}

/// Creates a manager as large as the machine allows, up to 16 GiB.
fn large() -> Manager {
    let sizes = [
        Bytes::gib(16),
        Bytes::gib(4),
        Bytes::gib(1),
        Bytes::mib(128),
    ]
    .into_iter();
    let built = sizes.map(|capacity| Manager::builder().capacity(capacity).build());
    let mut built = built.skip_while(Result::is_err);
    built.next().expect("a machine of 128 MiB").unwrap()
}

// Goal: frame metadata costs nothing before a frame is used. Method: an idle manager, then as many
// pages as touch a small part of the metadata.
fn an_idle_manager_of_16_gib_does_not_take_276_mib() {
    let (hw, idle) = without_huge_pages(|| measured(large));
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
    // The pages are 4 MiB. With huge pages, a few of those.
    assert!(used.resident_kib < 32 << 10, "{used:?} for 1,024 pages");
    drop(mapped);
    hw.check_invariants();
}

/// Maps anonymous memory of `pages` pages, written.
fn scratch(hw: &Manager, pages: u64) -> Mapping {
    let scratch = hw.space(&hw.root()).map_anon(Pages(pages)).unwrap();
    for page in 0..pages {
        scratch.write(page).unwrap()[0] = 1;
    }
    scratch
}

// Goal: a process does not stay at its peak. Method: 64 MiB are written and unmapped; a trim, and a
// smaller capacity, return them to the system.
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
