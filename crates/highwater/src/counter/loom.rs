//! Models: all interleavings of two or three CPUs on the smallest trees and sets that have every
//! part.
//!
//! Three positions and a batch of 2 make a level between words and root: positions 0 and 1 share a
//! node. The assembly is not compiled here; the models check the climb, words that several threads
//! act on, the reads, and how a set gets its words.

use ::loom::model;

use super::*;
use crate::sync::thread;
use crate::units::CpuId;

fn small_layout() -> Arc<Layout> {
    let layout = Layout::with_batch(&Topology::flat(3), Regime::Atomic, 2, u64::MAX);
    layout.expect("2 is a power of two")
}

fn small_tree() -> Arc<CounterTree> {
    Arc::new(CounterTree::with_layout(&small_layout()))
}

/// Like the small tree, with CPU 3 in the place of CPU 2, which has a word apart: it carries
/// straight into the root.
fn tree_with_a_word_apart() -> Arc<CounterTree> {
    let machine = Topology::with_offline(4, &[2]);
    let tree = CounterTree::with_batch(&machine, Regime::Atomic, 2);
    Arc::new(tree.expect("2 is a power of two"))
}

/// Adds `deltas` on `cpu` from a thread of its own.
fn adder<const N: usize>(
    tree: &Arc<CounterTree>,
    cpu: u32,
    deltas: [i64; N],
) -> thread::JoinHandle<()> {
    let tree = Arc::clone(tree);
    thread::spawn(move || {
        for delta in deltas {
            tree.at(CpuId(cpu)).add(delta);
        }
    })
}

fn assert_at_rest(tree: &CounterTree, sum: i64) {
    assert_eq!(tree.precise_sum(), sum);
    assert!(tree.approximate_sum().contains(sum), "{tree:?}");
    tree.check_invariants();
}

// Goal: carries telescope whatever the interleaving.
// Method: two CPUs below one node, with deltas that carry through every level and back.
#[test]
fn carries_of_two_cpus_telescope() {
    model(|| {
        let tree = small_tree();
        let other = adder(&tree, 1, [1, 2]);
        for delta in [3, -1] {
            tree.at(CpuId(0)).add(delta);
        }
        other.join().expect("the model's thread ends");
        assert_at_rest(&tree, 5);
    });
}

// Goal: the same when both threads act as one CPU, which both may be first to touch.
#[test]
fn carries_of_one_cpu_telescope() {
    model(|| {
        let tree = small_tree();
        let other = adder(&tree, 0, [1, 1]);
        for delta in [1, -4] {
            tree.at(CpuId(0)).add(delta);
        }
        other.join().expect("the model's thread ends");
        assert_at_rest(&tree, -1);
    });
}

// Goal: an addition that has returned is in every later sum and interval, whichever thread marked
// its slot. Method: two threads touch one CPU's word; one that has returned reads while the other
// adds. -1 stays inside the word's neighbourhood if the other's 4 is there already.
#[test]
fn a_finished_addition_is_in_the_sums_of_touched_cpus() {
    for own in [1, -1] {
        model(move || {
            let tree = small_tree();
            let reader = Arc::clone(&tree);
            let reader = thread::spawn(move || {
                reader.at(CpuId(2)).add(own);
                let sum = reader.precise_sum();
                assert!(sum == own || sum == own + 4, "{sum}");
            });
            tree.at(CpuId(2)).add(4);
            reader.join().expect("the model's thread ends");
            assert_at_rest(&tree, own + 4);
        });
    }
}

// Goal: a reader among updates stays inside the widened bound.
// Method: sums of any moment lie in 0..=4; two updates by at most 2 can be in flight.
#[test]
fn reads_in_flight_stay_inside_the_widened_bound() {
    model(|| {
        let tree = small_tree();
        let adders = [adder(&tree, 0, [1, 1]), adder(&tree, 1, [2, -2])];
        let seen = tree.approximate_sum().value;
        let bound = tree.accuracy_in_flight(2, 2);
        assert!(
            -bound.under <= seen && seen <= 4 + bound.over,
            "{seen} {bound:?}"
        );
        for adder in adders {
            adder.join().expect("the model's thread ends");
        }
        assert_at_rest(&tree, 2);
    });
}

/// A thread that has updated, and reads while another updates, sees the sum with or without that.
/// The other runs first as far as the model chooses, so that the amount it has in hand can be
/// carried on; with words that were added to before, or not.
fn assert_reads_own_update_among(
    make: fn() -> Arc<CounterTree>,
    own: (u32, i64),
    others: (u32, i64),
) {
    for is_touched in [false, true] {
        model(move || {
            let tree = make();
            if is_touched {
                tree.at(CpuId(own.0)).add(0);
                tree.at(CpuId(others.0)).add(0);
            }
            let reader = Arc::clone(&tree);
            let reader = thread::spawn(move || {
                reader.at(CpuId(own.0)).add(own.1);
                let seen = reader.approximate_sum_in_flight();
                let sums = [own.1, own.1 + others.1];
                assert!(sums.iter().any(|sum| seen.contains(*sum)), "{seen}");
            });
            tree.at(CpuId(others.0)).add(others.1);
            reader.join().expect("the model's thread ends");
            assert_at_rest(&tree, own.1 + others.1);
        });
    }
}

/// A thread that only reads while two others update sees the sum with any of their updates.
fn assert_reads_among_updates_of_others(make: fn() -> Arc<CounterTree>, updates: [(u32, i64); 2]) {
    let [first, second] = updates.map(|(_, delta)| delta);
    model(move || {
        let tree = make();
        for (cpu, _) in updates {
            tree.at(CpuId(cpu)).add(0);
        }
        let (reader, other) = (Arc::clone(&tree), adder(&tree, updates[1].0, [second]));
        let reader = thread::spawn(move || {
            let seen = reader.approximate_sum_in_flight();
            let sums = [0, first, second, first + second];
            assert!(sums.iter().any(|sum| seen.contains(*sum)), "{seen}");
        });
        tree.at(CpuId(updates[0].0)).add(first);
        for thread in [other, reader] {
            thread.join().expect("the model's thread ends");
        }
        assert_at_rest(&tree, first + second);
    });
}

// Goal: the interval of a read among updates holds a value that the sum had meanwhile. Method: +1
// rounds up to a carry of 2, which the node rounds up to 4. Another CPU below the same node takes
// it down again: -2 carries -2, and the node -4. A reader that sees the second carry in the root
// without the first must know that it is in hand, because no interval around -4 holds a sum.
#[test]
fn a_read_among_updates_holds_a_value_of_the_moment() {
    assert_reads_own_update_among(small_tree, (1, -2), (0, 1));
    assert_reads_among_updates_of_others(small_tree, [(0, 1), (1, -2)]);
}

// Goal: the same when the second update carries on from the word of the first.
// Method: +1 carries 2 from the word, and -3 takes 4 back, which the node passes on.
#[test]
fn a_read_among_updates_of_one_word_holds_a_value_of_the_moment() {
    assert_reads_own_update_among(small_tree, (2, -3), (2, 1));
}

// Goal: a word that has no position in the tree is read like any other, at rest and among updates.
// Method: its carries meet those of a CPU, which go through a node, in the root.
#[test]
fn a_word_apart_is_in_the_reads_of_the_moment() {
    assert_reads_own_update_among(tree_with_a_word_apart, (2, -2), (0, 1));
    assert_reads_own_update_among(tree_with_a_word_apart, (0, -2), (2, 1));
    assert_reads_among_updates_of_others(tree_with_a_word_apart, [(2, 1), (1, -2)]);
    model(|| {
        let tree = tree_with_a_word_apart();
        let other = adder(&tree, 2, [3, -1]);
        tree.at(CpuId(2)).add(1);
        tree.at(CpuId(0)).add(-4);
        other.join().expect("the model's thread ends");
        assert_at_rest(&tree, -1);
    });
}

// Goal: a reader that sees a carry in the root sees how much of it may be rounding. Method: +1
// carries 2; a reader that has made no update itself.
#[test]
fn a_carry_is_not_seen_before_its_bounds() {
    model(|| {
        let tree = small_tree();
        let reader = Arc::clone(&tree);
        let reader = thread::spawn(move || {
            for seen in [reader.approximate_sum(), reader.approximate_sum_in_flight()] {
                assert!(seen.contains(0) || seen.contains(1), "{seen}");
            }
        });
        tree.at(CpuId(2)).add(1);
        reader.join().expect("the model's thread ends");
        assert_at_rest(&tree, 1);
    });
}

// Goal: a set that two CPUs first use at the same time gets one block, and loses nothing. Method:
// the first CPU at home, two others that both bring a block; one reads its own addition.
#[test]
fn two_cpus_that_come_at_once_lose_nothing() {
    model(|| {
        let set = Arc::new(CounterSet::<1>::new(&small_layout()));
        set.at(CpuId(0)).add(0, 1);
        let others = [1, 2].map(|cpu| {
            let set = Arc::clone(&set);
            thread::spawn(move || {
                set.at(CpuId(cpu)).add(0, 10);
                assert!(set.precise_sum(0) >= 11);
            })
        });
        for other in others {
            other.join().expect("the model's thread ends");
        }
        assert_eq!(set.precise_sum(0), 21);
        assert!(set.approximate_sum(0).contains(21));
        assert_eq!(set.layout().nr_blocks(), 1);
        set.check_invariants();
    });
}

// Goal: the owner of a set's home goes on adding while another CPU brings the block.
#[test]
fn the_first_cpu_adds_through_an_upgrade() {
    model(|| {
        let set = Arc::new(CounterSet::<1>::new(&small_layout()));
        let other = {
            let set = Arc::clone(&set);
            thread::spawn(move || set.at(CpuId(1)).add(0, 10))
        };
        set.at(CpuId(0)).add(0, 1);
        set.at(CpuId(0)).add(0, 1);
        let seen = set.approximate_sum(0);
        assert!(seen.low <= 12 && 2 <= seen.high, "{seen}");
        other.join().expect("the model's thread ends");
        assert_eq!(set.precise_sum(0), 12);
        set.check_invariants();
    });
}

// Goal: threads that act as the CPU at home, and CPUs away from it that get no words, lose nothing.
// Method: two threads on one CPU; then two other CPUs, in a layout that allows no block.
#[test]
fn additions_without_words_lose_nothing() {
    for cpus in [[0, 0], [1, 2]] {
        model(move || {
            let layout = Layout::with_batch(&Topology::flat(3), Regime::Atomic, 2, 0);
            let set = CounterSet::<1>::new(&layout.expect("2 is a power of two"));
            let set = Arc::new(set);
            set.at(CpuId(0)).add(0, 1);
            let other = {
                let set = Arc::clone(&set);
                thread::spawn(move || set.at(CpuId(cpus[0])).add(0, 10))
            };
            set.at(CpuId(cpus[1])).add(0, 100);
            other.join().expect("the model's thread ends");
            assert!(!set.has_cpu_words());
            assert_eq!(set.approximate_sum(0), Estimate::exact(111));
        });
    }
}

// Goal: a peak never falls, and never reads as a `low` above its `high`. Method: two observers; a
// reader that reads twice.
#[test]
fn a_peak_only_rises() {
    fn estimate(low: i64, high: i64) -> Estimate<i64> {
        let value = low;
        Estimate { value, low, high }
    }
    model(|| {
        let peak = Arc::new(Peak::new());
        let (reader, other) = (Arc::clone(&peak), Arc::clone(&peak));
        let reader = thread::spawn(move || {
            let (first, second) = (reader.get(), reader.get());
            for seen in [first, second] {
                assert!(seen.low <= seen.high, "{seen}");
            }
            assert!(first.low <= second.low && first.high <= second.high);
        });
        let other = thread::spawn(move || other.observe(estimate(4, 9)));
        peak.observe(estimate(3, 5));
        for thread in [reader, other] {
            thread.join().expect("the model's thread ends");
        }
        assert_eq!((peak.get().low, peak.get().high), (4, 9));
    });
}
