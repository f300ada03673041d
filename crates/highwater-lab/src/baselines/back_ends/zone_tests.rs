//! Zones where locks are held, frames deferred, and CPUs have zones of their own; and names.

use super::buddy::Buddy;
use super::tests::{any_wait, order, panics, take};
use super::*;

const CPU: CpuId = CpuId(0);

#[test]
fn kinds_read_back_what_they_show() {
    for kind in KINDS {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    for text in [
        "",
        "sharded",
        "sharded:0",
        "sharded:1025",
        "single-lock:1",
        "arena",
    ] {
        let refused = text.parse::<BackendKind>();
        assert_eq!(
            refused,
            Err(ParseBackendError {
                text: text.to_owned()
            })
        );
    }
}

#[test]
fn a_free_that_must_not_wait_is_found_by_the_next_who_may() {
    // Goal: invariant 9 of the specification. Method: the zone's lock is held by this thread while
    // it frees without waiting; nothing is allocatable then, and everything after the next entry.
    let zones = Zones::new(1024, 1);
    let mut all = take(&zones, 1024, 0);
    let held = zones.hold(0);
    zones.free_bulk(CPU, Order::ZERO, Wait::Never, &mut all);
    assert_eq!(
        (zones.nr_free(), zones.nr_deferred()),
        (Pages::ZERO, Pages(1024))
    );
    let mut out = [Pfn(0); 1];
    let taken = zones.alloc_bulk(CPU, Order::ZERO, Pages::ZERO, Wait::Never, &mut out);
    assert_eq!(taken, 0, "one that must not wait frees nothing for others");
    drop(held);
    assert_eq!(take(&zones, 1, 0).len(), 1);
    assert_eq!(
        (zones.nr_free(), zones.nr_deferred()),
        (Pages(1023), Pages::ZERO)
    );
    zones.check_invariants();
}

#[test]
fn those_who_never_wait_find_what_they_deferred() {
    // Goal: frames do not stay deferred when no request ever waits. Method: all of a pool is freed
    // beside a held lock; then nothing but requests that must not wait.
    for of in [0, 3] {
        let zones = Zones::new(1024, 1);
        let mut out = vec![Pfn(0); 1024 >> of];
        let request =
            |out: &mut [Pfn]| zones.alloc_bulk(CPU, order(of), Pages::ZERO, Wait::Never, out);
        assert_eq!(request(&mut out), out.len());
        let held = zones.hold(0);
        for block in &mut out {
            zones.free_bulk(CPU, order(of), Wait::Never, std::slice::from_mut(block));
        }
        drop(held);
        let mut had = Vec::new();
        let mut batch = [Pfn(0); 63];
        loop {
            let taken = request(&mut batch);
            if taken == 0 {
                break;
            }
            had.extend_from_slice(&batch[..taken]);
        }
        assert_eq!(had.len(), 1024 >> of);
        assert_eq!(zones.nr_deferred(), Pages::ZERO);
        zones.free_bulk(CPU, order(of), Wait::Never, &mut had);
        zones.check_invariants();
        assert_eq!(zones.nr_free(), Pages(1024));
    }
}

#[test]
fn a_splice_frees_what_is_deferred() {
    let zones = Zones::new(4096, 4);
    let mut all = take(&zones, 4096, 0);
    let held = zones.hold(1);
    zones.free_bulk(CPU, Order::ZERO, Wait::Never, &mut all);
    assert_eq!(
        (zones.nr_free(), zones.nr_deferred()),
        (Pages(3072), Pages(1024))
    );
    drop(held);
    zones.splice();
    assert_eq!(
        (zones.nr_free(), zones.nr_deferred()),
        (Pages(4096), Pages::ZERO)
    );
    zones.check_invariants();
}

#[test]
fn a_frame_goes_back_to_its_zone_whoever_frees_it() {
    // Goal: owner routing. Method: the frames of all zones, shuffled, freed in bulks by one CPU.
    let mut rng = seed::rng(4);
    let zones = Zones::new(5 * 1024, 5);
    let mut all = take(&zones, 5 * 1024, 0);
    rng.shuffle(&mut all);
    for bulk in all.chunks_mut(63) {
        zones.free_bulk(CpuId(3), Order::ZERO, any_wait(&mut rng), bulk);
    }
    zones.check_invariants();
    assert_eq!(zones.nr_free_blocks(Order::MAX), 5);
    assert!(
        panics("F1024 freed as order 0", || {
            Buddy::new(0..1024).free(Pfn(1024), Order::ZERO);
        }),
        "a buddy takes frames of its range only"
    );
}

#[test]
fn holds_are_recorded_with_the_frames_they_moved() {
    let zones = Zones::new(2048, 2);
    let mut frames = take(&zones, 63, 0);
    zones.free_bulk(CPU, Order::ZERO, Wait::Allowed, &mut frames);
    let mut block = [Pfn(0)];
    zones.alloc_bulk(CPU, Order::HUGE, Pages::ZERO, Wait::Allowed, &mut block);
    let times = zones.times();
    assert_eq!((times.holds(), times.work.sum()), (3, 63 + 63 + 512));
    assert_eq!(times.contended(), 0);
    assert!(times.hold_ns.count() >= 1, "a hold for 512 frames is timed");
}

#[test]
fn a_cpu_is_served_by_its_own_zone_first() {
    let zones = Zones::new(4 * 1024, 4);
    for (cpu, first) in [(0, 0), (1, 1024), (6, 2048), (3, 3072)] {
        let mut out = [Pfn(0)];
        assert_eq!(
            zones.alloc_bulk(
                CpuId(cpu),
                Order::ZERO,
                Pages::ZERO,
                Wait::Allowed,
                &mut out
            ),
            1
        );
        assert_eq!(out[0], Pfn(first));
    }
}
