//! Promise: under every eviction policy, each page reads as it was written, lists and counters
//! agree, a scan does not evict the working set if the policy says so, and reclaim makes progress.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fs::File;
use std::io::Write;

use highwater::lab::reclaim::policy::PolicyKind;
use highwater::topology::Topology;
use highwater::units::Pages;
use highwater::{Manager, Mapping};

const POOL: u64 = 1024;

/// Creates a manager of 1,024 pages under a policy, and maps a file of `pages` pages that hold
/// their numbers.
fn setup(policy: PolicyKind, pages: u64) -> (Manager, Mapping, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = File::create(file.path()).unwrap();
    for page in 0..pages {
        writer.write_all(&page.to_le_bytes().repeat(512)).unwrap();
    }
    let manager = Manager::builder()
        .capacity(Pages(POOL).bytes())
        .topology(Topology::flat(1))
        .eviction_policy(policy)
        .readahead(Pages(0))
        .build()
        .unwrap();
    let opened = manager.open(file.path()).unwrap();
    let space = manager.space(&manager.root());
    let mapping = space.map_file(&opened, 0..pages).unwrap();
    (manager, mapping, file)
}

/// Reads a page and verifies it; returns whether it was resident.
fn read(manager: &Manager, mapping: &Mapping, page: u64) -> bool {
    let guard = manager.enter();
    let is_hit = mapping.try_read(&guard, page).is_some();
    let bytes = mapping.read(&guard, page).unwrap();
    assert!(
        bytes.chunks(8).all(|word| word == page.to_le_bytes()),
        "page {page}"
    );
    is_hit
}

// Goal: no policy loses a page, or counts wrongly. Method: random reads of three times the pool,
// some by copy, under each; then lists against the index, and counters against each other.
#[test]
fn every_page_reads_as_written_under_every_policy() {
    let seed = std::env::var("SEED").map_or(3, |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    for policy in PolicyKind::ALL {
        let mut random = fastrand::Rng::with_seed(seed);
        let (manager, mapping, _file) = setup(policy, 3 * POOL);
        for _ in 0..20_000 {
            let page = random.u64(0..3 * POOL).min(random.u64(0..3 * POOL));
            read(&manager, &mapping, page);
        }
        manager.check_invariants();
        let snapshot = manager.snapshot();
        let count = |name| snapshot.counter(name);
        assert!(count("pgsteal_direct") > 3 * POOL, "{policy}");
        assert!(
            count("pgscan_direct") >= count("pgsteal_direct"),
            "{policy}"
        );
        assert!(count("workingset_refault_file") > 0, "{policy}");
    }
}

/// Returns the share of a hot set that is resident after the second of two scans of four times the
/// pool. Before each, the hot set was read four times, with others in between.
fn survives_a_scan(policy: PolicyKind) -> f64 {
    const HOT: u64 = POOL / 2;
    let (manager, mapping, _file) = setup(policy, 12 * POOL);
    for scan in 0..2 {
        let first = POOL + scan * 5 * POOL;
        for round in 0..4 {
            for page in 0..HOT {
                read(&manager, &mapping, page);
            }
            for page in 0..POOL / 4 {
                read(&manager, &mapping, first + round * POOL / 4 + page);
            }
        }
        for page in POOL..5 * POOL {
            read(&manager, &mapping, first + page);
        }
    }
    let resident = (0..HOT)
        .filter(|&page| read(&manager, &mapping, page))
        .count();
    f64::from(u32::try_from(resident).unwrap()) / f64::from(u32::try_from(HOT).unwrap())
}

// Goal: a scan leaves the working set resident, under the policies that promise it; balanced may
// learn that from the first. Method: as described there; CLOCK, which does not, shows that the
// scan is one.
#[test]
fn a_scan_leaves_the_working_set() {
    for policy in [PolicyKind::S3Fifo, PolicyKind::Car, PolicyKind::Balanced] {
        let survived = survives_a_scan(policy);
        assert!(survived >= 0.95, "{policy}: {survived}");
    }
    let survived = survives_a_scan(PolicyKind::Clock);
    assert!(survived <= 0.5, "clock: {survived}");
}

// Goal: a request gets memory, though every page was just read. Method: read all of a resident file
// again and again, then another as large.
#[test]
fn pages_go_though_all_are_young() {
    for policy in PolicyKind::ALL {
        let (manager, mapping, _file) = setup(policy, 2 * POOL);
        for round in 0..8 {
            for page in 0..POOL / 2 {
                read(&manager, &mapping, page + round % 2 * POOL);
            }
        }
        for page in 0..2 * POOL {
            read(&manager, &mapping, page);
        }
        manager.check_invariants();
        let usage = manager.root().usage_precise();
        assert!(usage <= Pages(POOL).bytes(), "{policy}");
    }
}
