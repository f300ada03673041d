//! Loom models: all interleavings of two or three threads on one CPU's slot, or on two.
//!
//! The sequences of the restartable regime are not compiled here. The models check the tenure, the
//! settling of a slot, the reader, and the marks, which both regimes share.

use ::loom::model;

use super::*;
use highwater::lab::sync::thread;
use highwater::units::Estimate;

const C0: CpuId = CpuId(0);

fn small_cache(threshold: u32, foreign: Foreign) -> Arc<ActiveCache> {
    let config = ActiveConfig { threshold, foreign };
    ActiveCache::with_config(&Topology::flat(2), Regime::Atomic, config)
}

/// Returns a cache in which the first space has 5 parked on CPU 0, and a second space.
fn parked_and_other() -> (Arc<ActiveCache>, ActiveSpace, Arc<ActiveSpace>) {
    let cache = small_cache(8, Foreign::Miss);
    let (space, other) = (cache.space(), cache.space());
    assert!(matches!(
        cache.switch_on(C0, Some(&space)),
        Switch::Done { .. }
    ));
    assert_eq!(space.add_on(C0, 1, 5), Counted::Hit);
    (cache, space, Arc::new(other))
}

fn switcher(cache: &Arc<ActiveCache>, next: Option<&Arc<ActiveSpace>>) -> thread::JoinHandle<()> {
    let (cache, next) = (Arc::clone(cache), next.map(Arc::clone));
    thread::spawn(move || {
        cache.switch_on(C0, next.as_deref());
    })
}

fn adder(space: &Arc<ActiveSpace>, delta: i64) -> thread::JoinHandle<()> {
    let space = Arc::clone(space);
    thread::spawn(move || {
        space.add_on(C0, 1, delta);
    })
}

fn left(sum: i64) -> Option<Residue> {
    let sums = [0, sum, 0, 0];
    (sum != 0).then_some(Residue { sums })
}

fn joined(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("the model's thread ends");
    }
}

// Goal: a reader finds the amount that a switch moves in the totals or parked, exactly once.
#[test]
fn a_read_against_a_switch_is_exact() {
    model(|| {
        let (cache, space, other) = parked_and_other();
        let threads = [switcher(&cache, Some(&other))];
        // Exact, or an interval: that of the totals alone, which have another value.
        let seen = space.precise_sum(1);
        assert!(seen.contains(5), "{seen}");
        joined(threads);
        assert_eq!(space.precise_sum(1), Estimate::exact(5));
        assert_eq!(space.end(), left(5));
    });
}

// Goal: a reader does not take the next owner's parked amount for the last one's. Method: a third
// thread adds for the next owner as soon as it may.
#[test]
fn a_read_against_the_next_owner_is_exact() {
    model(|| {
        let (cache, space, other) = parked_and_other();
        let threads = [switcher(&cache, Some(&other)), adder(&other, 2)];
        let seen = space.precise_sum(1);
        assert!(seen.contains(5), "{seen}");
        joined(threads);
        assert_eq!(space.precise_sum(1), Estimate::exact(5));
        assert_eq!(other.precise_sum(1), Estimate::exact(2));
    });
}

// Goal: the bound of the totals holds during a flush.
#[test]
fn totals_against_a_switch_stay_inside_their_bound() {
    model(|| {
        let (cache, space, _other) = parked_and_other();
        let threads = [switcher(&cache, None)];
        let seen = space.approximate_sum(1);
        assert!(seen.contains(5), "{seen}");
        joined(threads);
        assert_eq!(space.approximate_sum(1), Estimate::exact(5));
    });
}

// Goal: an addition by another thread of the CPU is counted once, at any point of a switch.
#[test]
fn an_addition_against_a_switch_is_counted_once() {
    model(|| {
        let (cache, space, other) = parked_and_other();
        let space = Arc::new(space);
        let threads = [adder(&space, 1)];
        cache.switch_on(C0, Some(&other));
        other.add_on(C0, 1, 2);
        joined(threads);
        assert_eq!(space.precise_sum(1), Estimate::exact(6));
        assert_eq!(other.precise_sum(1), Estimate::exact(2));
        cache.check_invariants();
    });
}

// Goal: additions that switch the CPU to their space, from two threads, lose nothing.
#[test]
fn additions_that_switch_are_counted_once() {
    model(|| {
        let cache = small_cache(4, Foreign::Switch);
        let spaces = [(); 2].map(|()| Arc::new(cache.space()));
        let threads = [adder(&spaces[0], 1)];
        spaces[1].add_on(C0, 1, 2);
        spaces[0].add_on(C0, 1, 1);
        joined(threads);
        assert_eq!(spaces[0].precise_sum(1), Estimate::exact(2));
        assert_eq!(spaces[1].precise_sum(1), Estimate::exact(2));
        cache.check_invariants();
    });
}

// Goal: two threads that switch one CPU at once flush it once.
#[test]
fn two_switches_flush_once() {
    model(|| {
        let (cache, space, other) = parked_and_other();
        let threads = [switcher(&cache, None)];
        cache.switch_on(C0, Some(&other));
        joined(threads);
        assert_eq!(space.end(), left(5));
        assert_eq!(cache.stats().flushes, 1);
        cache.check_invariants();
    });
}

// Goal: a fold at the threshold hides nothing from a reader, and shows nothing twice.
#[test]
fn a_read_against_a_fold_is_exact() {
    model(|| {
        let cache = small_cache(3, Foreign::Switch);
        let space = Arc::new(cache.space());
        space.add_on(C0, 1, 2);
        let threads = [adder(&space, 1)];
        let seen = space.precise_sum(1);
        assert!(seen.low <= 3 && 2 <= seen.high, "{seen}");
        assert!(
            seen.low < seen.high || seen.contains(2) || seen.contains(3),
            "{seen}"
        );
        joined(threads);
        assert_eq!(space.precise_sum(1), Estimate::exact(3));
        assert_eq!(space.approximate_sum(1).value, 3);
    });
}

// Goal: the end of a space finds everything parked, while another thread flushes it.
#[test]
fn an_end_against_a_switch_finds_everything() {
    model(|| {
        let (cache, space, other) = parked_and_other();
        let threads = [switcher(&cache, Some(&other))];
        assert_eq!(space.end(), left(5));
        joined(threads);
        cache.check_invariants();
    });
}

// Goal: the same, when the number is reused at once, and its next space comes to the same CPU.
#[test]
fn a_number_that_is_given_again_starts_at_zero() {
    model(|| {
        let (cache, space, _other) = parked_and_other();
        let threads = [switcher(&cache, None)];
        let number = space.owner();
        assert_eq!(space.end(), left(5));
        let next = cache.space();
        assert_eq!(next.owner(), number);
        cache.switch_on(C0, Some(&next));
        next.add_on(C0, 1, 3);
        assert_eq!(next.precise_sum(1), Estimate::exact(3));
        joined(threads);
        assert_eq!(next.end(), left(3));
        cache.check_invariants();
    });
}

// Goal: taking a CPU offline flushes it, whether that comes before or after an addition by a thread
// that acts as it.
#[test]
fn an_offline_cpu_against_an_addition_loses_nothing() {
    model(|| {
        let (cache, space, _other) = parked_and_other();
        let space = Arc::new(space);
        let threads = [adder(&space, 1)];
        assert!(cache.offline(C0));
        joined(threads);
        assert_eq!(space.precise_sum(1), Estimate::exact(6));
        cache.check_invariants();
    });
}
