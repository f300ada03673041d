//! CPUs that come online after a manager was built: correct, if slower.

use super::Manager;
use super::zeros::Zeros;
use crate::cache::Access;
use crate::group::Limits;
use crate::percpu::harness::{allowed_cpus, run_on, skipped};
use crate::percpu::{Regime, has_restartable_sequences};
use crate::sync::{Arc, thread};
use crate::topology::Topology;
use crate::units::{Bytes, CpuId, Pages};

/// Pages that each CPU writes.
const PAGES: u64 = 64;

/// Returns the CPUs that the process may use, and a manager that was built while only CPU 0 was
/// online; prints the reason if there is no later one.
fn with_later_cpus() -> Option<(Vec<CpuId>, Manager)> {
    let cpus = allowed_cpus();
    if !has_restartable_sequences() || cpus.len() < 2 {
        skipped("needs restartable sequences and two CPUs");
        return None;
    }
    let hw = Manager::builder()
        .capacity(Bytes::mib(8))
        .topology(Topology::with_offline(64, &(1..64).collect::<Vec<_>>()))
        .regime(Regime::Restartable)
        .build();
    Some((cpus, hw.expect("a small manager")))
}

// Goal: threads on CPUs that the manager does not know lose nothing and obey the limits. Method:
// build a manager while only CPU 0 is online; on each CPU a thread charges, writes anonymous pages
// and discards them, in a group that is too small for all; then check the invariants.
#[test]
fn cpus_that_come_later_lose_nothing() {
    let Some((cpus, hw)) = with_later_cpus() else {
        return;
    };
    let group = hw.root().child("tenant", Limits::max(Bytes::mib(2)));
    let group = group.expect("a group more");
    let (space, unused) = (hw.space(&group), group.usage_precise());
    let resident = Pages(PAGES * cpus.len() as u64);
    let map = space.map_anon(resident);
    let map = map.expect("a small mapping");
    thread::scope(|scope| {
        for (nth, &cpu) in cpus.iter().enumerate() {
            let (group, map) = (&group, &map);
            scope.spawn(move || {
                run_on(cpu, || {
                    for round in 0..2_000 {
                        let page = nth as u64 * PAGES + round % PAGES;
                        map.write(page).expect("memory for a page").fill(1);
                        drop(group.charge(Bytes::kib(16)).expect("room for 4 pages"));
                    }
                });
            });
        }
    });
    assert_eq!(space.rss_precise(), resident);
    assert!(space.rss().contains(resident), "{}", space.rss());
    let (seen, exact) = (group.usage(), group.usage_precise());
    assert!(seen.contains(exact), "{exact}: {seen}");
    drop(map);
    hw.check_invariants();
    assert_eq!(space.rss_precise(), Pages::ZERO);
    assert_eq!(group.usage_precise(), unused);
    assert_eq!(hw.snapshot().frames.allocated, Pages::ZERO);
}

// Symptom: a pass of background reclaim on a CPU that came later emptied another CPU's list, and
// left the frames that it had freed in its own, where they do not count as free. Method: a pass on
// such a CPU; the list that serves it is empty afterwards.
#[test]
fn a_pass_on_a_later_cpu_empties_the_list_that_it_freed_to() {
    let Some((cpus, hw)) = with_later_cpus() else {
        return;
    };
    let file = hw.open_backing(Arc::new(Zeros { pages: 4096 }), Access::ReadOnly);
    let map = hw
        .space(&hw.root())
        .map_file(&file.expect("a file"), 0..4096);
    let map = map.expect("within the file");
    let pool = &hw.core().pool;
    let nr_steals = || hw.core().reclaim.stats().pgsteal_kswapd.get();
    run_on(cpus[1], || {
        let mut pages = 0..4096;
        while pool.nr_free() >= pool.watermarks().high {
            let page = pages.next().expect("a file of two pools");
            map.read(&hw.enter(), page).expect("memory for a page");
        }
        hw.reclaim_ahead();
    });
    assert!(nr_steals() > 0, "a pass has freed pages");
    let lists = pool.zoneinfo().lists;
    let last = lists.last().expect("one for threads without sequences");
    assert_eq!((last.cpu, last.count), (None, 0), "{lists:?}");
    drop(map);
    hw.check_invariants();
}
