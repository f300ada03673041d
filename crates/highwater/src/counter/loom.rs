//! All interleavings of two CPUs that share a node, over two levels, with a batch of 2.
//!
//! Three positions make the smallest tree with a level between words and root: positions 0 and 1
//! share a node. The assembly is not compiled here; what is checked is the climb, and words that
//! several threads act on.

use ::loom::model;

use super::*;
use crate::sync::{Arc, thread};

fn small_tree() -> Arc<CounterTree> {
    let tree = CounterTree::with_batch(&Topology::flat(3), Regime::Atomic, 2);
    Arc::new(tree.expect("2 is a power of two"))
}

/// Adds `deltas` on `cpu` from a thread of its own.
fn adder(tree: &Arc<CounterTree>, cpu: u32, deltas: [i64; 2]) -> thread::JoinHandle<()> {
    let tree = Arc::clone(tree);
    thread::spawn(move || {
        for delta in deltas {
            tree.add_on(CpuId(cpu), delta);
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
            tree.add_on(CpuId(0), delta);
        }
        other.join().expect("the model's thread ends");
        assert_at_rest(&tree, 5);
    });
}

// Goal: the same when both threads act as one CPU.
#[test]
fn carries_of_one_cpu_telescope() {
    model(|| {
        let tree = small_tree();
        let other = adder(&tree, 0, [1, 1]);
        for delta in [1, -4] {
            tree.add_on(CpuId(0), delta);
        }
        other.join().expect("the model's thread ends");
        assert_at_rest(&tree, -1);
    });
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
