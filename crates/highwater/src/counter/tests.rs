//! Counter trees: the arithmetic exhaustively, the shape against its source's figures, the tree
//! against a model.

use super::shape::{Modulus, Shape};
use super::*;
use crate::percpu::harness::{allowed_cpus, run_on, run_unregistered, skipped};
use crate::percpu::{Touched, has_restartable_sequences};
use crate::sync::atomic::Ordering;
use crate::sync::thread;
use crate::units::CpuId;

const REGIMES: [Regime; 2] = [Regime::Restartable, Regime::Atomic];

/// Returns the seed of a test's traffic: `SEED` in the environment, or its own.
fn seed(own: u64) -> u64 {
    std::env::var("SEED").map_or(own, |text| text.parse().expect("SEED is a number"))
}

fn atomic_tree(nr_cpus: usize) -> CounterTree {
    CounterTree::with_regime(&Topology::flat(nr_cpus), Regime::Atomic)
}

fn assert_at_rest(tree: &CounterTree, sum: i64) {
    assert_eq!(tree.precise_sum(), sum, "{tree:?}");
    assert!(tree.approximate_sum().contains(sum), "{sum}: {tree:?}");
    tree.check_invariants();
}

/// Returns the nearest multiple, halves up, by division in wider numbers.
fn rounded_by_division(value: i128, modulus: i128) -> i128 {
    (value + modulus / 2).div_euclid(modulus) * modulus
}

/// Returns the low 64 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "wrap-around is what is tested"
)]
fn wrapped(value: i128) -> i64 {
    value as i64
}

// Goal: the shift form of a carry is the difference of rounded values, also where a word wraps.
// Method: every old value and increment within four moduli of zero and of the ends of the word,
// against division in 128 bits.
#[test]
fn carries_are_differences_of_rounded_values() {
    for shift in 1..=6 {
        let modulus = Modulus::from_shift(shift);
        let wide = i128::from(modulus.get());
        for centre in [0, i64::MAX, i64::MIN, i64::MAX - modulus.half()] {
            for offset in -4 * modulus.get()..=4 * modulus.get() {
                let old = centre.wrapping_add(offset);
                let rounded = rounded_by_division(i128::from(old), wide);
                assert_eq!(modulus.rounded(old), wrapped(rounded));
                let residual = modulus.residual(old);
                assert!(-modulus.half() <= residual && residual < modulus.half());
                for increment in -4 * modulus.get()..=4 * modulus.get() {
                    let new = i128::from(old) + i128::from(increment);
                    let expected = rounded_by_division(new, wide) - rounded;
                    let carry = modulus.carry(old, wrapped(new));
                    assert_eq!(carry, wrapped(expected), "{old} + {increment}, {modulus:?}");
                }
            }
        }
    }
}

// Goal: skipping a level is right: a multiple of its modulus changes no residual there, and nothing
// else leaves them all alone.
// Method: every small value and amount.
#[test]
fn multiples_of_the_modulus_leave_residuals_alone() {
    for shift in 1..=6 {
        let modulus = Modulus::from_shift(shift);
        for value in -300..=300 {
            for amount in -300..=300_i64 {
                let same = modulus.residual(value + amount) == modulus.residual(value);
                assert_eq!(
                    modulus.divides(amount),
                    same,
                    "{value} + {amount}, {modulus:?}"
                );
            }
        }
    }
}

// Goal: shapes are those of the published table.
// Method: the node counts of full trees as published, for each order.
#[test]
fn full_trees_have_the_published_number_of_nodes() {
    let published = [
        0, 1, 3, 7, 7, 11, 21, 21, 37, 73, 149, 293, 585, 1173, 2341, 4681, 4681, 8777, 17481,
        34953, 69905,
    ];
    for (order, nodes) in published.into_iter().enumerate() {
        assert_eq!(
            Shape::new(1 << order, 0, Modulus::from_shift(5)).nr_nodes,
            nodes
        );
    }
    // Contiguous grouping needs 54 nodes and a root where grouping by modulo needs 72.
    assert_eq!(Shape::new(384, 0, Modulus::from_shift(5)).nr_nodes, 55);
}

// Goal: every position has a node on every level, inside that level.
// Method: the first and last position of trees of all sizes, full or not.
#[test]
fn every_position_is_below_a_node_of_each_level() {
    for positions in (1..600).chain([1023, 1024, 1025, 8192, 65537]) {
        let shape = Shape::new(positions, 0, Modulus::from_shift(5));
        let mut ends = shape.levels.iter().skip(1).map(|level| level.first);
        for level in &shape.levels {
            let end = ends.next().unwrap_or(shape.nr_nodes - 1);
            assert_eq!(level.node(0), level.first);
            assert_eq!(level.node(positions - 1) + 1, end, "{positions}");
        }
    }
}

// Goal: the tree counts like a plain number, through wrap-around too. Method: random CPUs and
// deltas of every size against a wrapping model.
#[test]
fn random_updates_match_a_model() {
    let seed = seed(11);
    for nr_cpus in [1, 2, 3, 5, 8, 17, 64, 250, 384] {
        let mut random = fastrand::Rng::with_seed(seed);
        let (tree, mut sum) = (atomic_tree(nr_cpus), 0_i64);
        for step in 0..20_000 {
            let magnitude = random.u32(..64);
            let delta = random.i64(..) >> magnitude;
            tree.at(CpuId::from_index(random.usize(..nr_cpus)))
                .add(delta);
            sum = sum.wrapping_add(delta);
            if step % 1_000 == 0 {
                tree.check_invariants();
            }
        }
        assert_eq!(
            tree.precise_sum(),
            sum << 1 >> 1,
            "SEED={seed}, {nr_cpus} CPUs"
        );
        tree.check_invariants();
    }
}

// Goal: the corners of the word, and updates by zero. Method: the extremes of 32 and 64 bits in a
// row that cancels, checked after each.
#[test]
fn extreme_updates_cancel() {
    for nr_cpus in [1, 2, 384] {
        let tree = atomic_tree(nr_cpus);
        let last = CpuId::from_index(nr_cpus - 1);
        for delta in [
            0,
            i64::MAX,
            i64::MIN,
            1,
            i64::from(i32::MIN),
            i64::from(i32::MAX),
            1,
        ] {
            tree.at(last).add(delta);
            tree.check_invariants();
        }
        assert_at_rest(&tree, 0);
        assert_eq!(tree.at(last).add(0), Climb::default());
    }
}

// Goal: updates from many threads are exact in both regimes, with and without rseq. Method: more
// threads than CPUs, each adding once registered and once from an unregistered thread.
#[test]
fn concurrent_updates_are_exact() {
    let seed = seed(12);
    let machine = Topology::detect();
    for regime in REGIMES {
        let tree = CounterTree::with_regime(&machine, regime);
        let adds = |mut random: fastrand::Rng| {
            (0..30_000).fold(0, |sum, _| {
                let delta = random.i64(-40..=40) + random.i64(0..=1) * 512;
                tree.add(delta);
                sum + delta
            })
        };
        let sum: i64 = thread::scope(|scope| {
            let workers: Vec<_> = (0..6)
                .map(|index| {
                    let adds = &adds;
                    let random = fastrand::Rng::with_seed(seed + index);
                    scope.spawn(move || {
                        let without = random.clone();
                        adds(random) + run_unregistered(|| adds(without)).unwrap_or(0)
                    })
                })
                .collect();
            let joined = workers.into_iter().map(|worker| worker.join());
            joined.map(|sum| sum.expect("a worker panicked")).sum()
        });
        assert_eq!(tree.precise_sum(), sum, "SEED={seed} {regime:?}");
        assert_at_rest(&tree, sum);
    }
}

// Goal: the extra slot has no position in the tree: the bound of the restartable regime is that of
// the atomic one plus one residual, also where one position more would begin a level, and it is
// reached. Method: trees over as many CPUs as are here and over many more; every residual that can
// be filled from here is filled, by a thread on each CPU and by one without rseq.
#[test]
fn threads_without_rseq_cost_the_bound_one_residual() {
    let cpus = allowed_cpus();
    if !has_restartable_sequences() {
        skipped("needs restartable sequences");
        return;
    }
    let here = cpus.iter().max().expect("a thread runs somewhere").index() + 1;
    for nr_cpus in [1, 2, 4, 64, 384, 512].into_iter().chain([here]) {
        let machine = Topology::flat(nr_cpus);
        for sign in [1, -1] {
            let tree = CounterTree::with_regime(&machine, Regime::Restartable);
            // A single word is the root; beside another it has a residual.
            let atomic = match nr_cpus {
                1 => ONE_WORD,
                _ => CounterTree::with_regime(&machine, Regime::Atomic).accuracy_max(),
            };
            assert_eq!(tree.accuracy_max(), atomic.plus(ONE_WORD), "{nr_cpus} CPUs");
            let mut filled = Filled::default();
            for &cpu in cpus.iter().filter(|cpu| cpu.index() < nr_cpus) {
                let delta = filled.next(&tree, machine.position(cpu), sign);
                run_on(cpu, || tree.add(delta));
            }
            let delta = filled.next(&tree, nr_cpus, sign);
            run_unregistered(|| tree.add(delta)).expect("a thread can be unregistered");
            assert_worst_case(&tree, sign);
            if cpus.len() == nr_cpus {
                assert_eq!(tree.accuracy(), tree.accuracy_max());
            }
        }
    }
}

// Goal: CPUs in gaps of the numbering, which were offline when it was made, cost a residual each
// and no position: the tree is that of the CPUs that were online. Method: every other one of 8 and
// of 128 is offline, and all add; the bound is reached.
#[test]
fn cpus_that_come_later_cost_the_bound_one_residual_each() {
    for nr_cpus in [8, 128] {
        let offline: Vec<usize> = (0..nr_cpus).step_by(2).collect();
        let machine = Topology::with_offline(nr_cpus, &offline);
        let online = atomic_tree(nr_cpus / 2).accuracy_max();
        for sign in [1, -1] {
            let tree = CounterTree::with_regime(&machine, Regime::Atomic);
            let most = offline.iter().fold(online, |sum, _| sum.plus(ONE_WORD));
            assert_eq!(tree.accuracy_max(), most, "{nr_cpus} CPUs");
            let mut filled = Filled::default();
            for cpu in (0..nr_cpus).map(CpuId::from_index) {
                tree.at(cpu)
                    .add(filled.next(&tree, machine.position(cpu), sign));
                assert!(tree.accuracy().over <= most.over, "{tree:?}");
            }
            assert_eq!(tree.accuracy(), most);
            assert_worst_case(&tree, sign);
        }
    }
}

// Goal: 4 CPUs of a machine with room for 64 pay for 4, in words, nodes and interval.
// Method: the same machine without that room.
#[test]
fn words_and_interval_follow_the_cpus_that_were_online() {
    let room: Vec<usize> = (4..64).collect();
    let (roomy, exact) = (Topology::with_offline(64, &room), Topology::flat(4));
    for regime in REGIMES {
        let [roomy, exact] =
            [&roomy, &exact].map(|machine| CounterTree::with_regime(machine, regime));
        assert_eq!(roomy.accuracy_max(), exact.accuracy_max());
        let [roomy, exact] = [roomy, exact]
            .map(|CounterTree { trees }| (trees.cells.slots(), trees.layout.shape.nr_nodes));
        assert_eq!(roomy, exact, "words and nodes");
    }
}

/// The error that a word with a batch of 32 can hide.
const ONE_WORD: Accuracy = Accuracy {
    under: 15,
    over: 16,
};

/// The nodes whose residuals an adversary has filled.
#[derive(Default)]
struct Filled(std::collections::BTreeSet<usize>);

impl Filled {
    /// Returns the amount to add at `position` so that its word, and every node above it that is
    /// not filled yet, is at the extreme of its residual: the upper one for a positive sign.
    fn next(&mut self, tree: &CounterTree, position: usize, sign: i64) -> i64 {
        let shape = &tree.trees.layout.shape;
        let levels = shape.levels_above(position).iter();
        let begun = levels.filter(|level| self.0.insert(level.node(position)));
        extreme(shape.leaf, 1, sign)
            + begun
                .map(|level| extreme(level.modulus, level.quantum, sign))
                .sum::<i64>()
    }
}

/// Returns the upper end of a level's residuals for a positive sign, otherwise the lower one.
fn extreme(modulus: Modulus, quantum: i64, sign: i64) -> i64 {
    if sign > 0 {
        modulus.half() - quantum
    } else {
        -modulus.half()
    }
}

fn assert_worst_case(tree: &CounterTree, sign: i64) {
    let error = tree.precise_sum() - tree.approximate_sum().value;
    let Accuracy { under, over } = tree.accuracy();
    assert_eq!(error, if sign > 0 { under } else { -over }, "{tree:?}");
    tree.check_invariants();
}

// Goal: the in-flight term is reached exactly, and not exceeded in that state. Method: fill every
// residual; let one update of `delta` carry up to the root but not into it, as if preempted there;
// fill the residuals on its path again. Its whole carry is missing.
#[test]
fn in_flight_carries_reach_their_bound() {
    for nr_cpus in [2, 3, 8, 64, 384, 1024] {
        for delta in [1, 2, 31, 32, 500, 2048, 5000] {
            let tree = atomic_tree(nr_cpus);
            let mut filled = Filled::default();
            for cpu in 0..nr_cpus {
                tree.at(CpuId::from_index(cpu))
                    .add(filled.next(&tree, cpu, 1));
            }
            let before = tree.precise_sum();
            let root = tree.approximate_sum().value;
            tree.at(CpuId(0)).add(delta);
            let in_hand = tree.approximate_sum().value - root;
            // Back to the state in which the carry has left the last level and not reached the
            // root.
            let root = tree.trees.layout.shape.nr_nodes - 1;
            tree.trees
                .node(root, ONLY)
                .fetch_sub(in_hand, Ordering::Relaxed);
            // The path's residuals sit as far below their extreme as the carry exceeds the delta.
            tree.at(CpuId(0)).add(in_hand - delta);
            assert_eq!(tree.precise_sum(), before + in_hand);
            let error = tree.precise_sum() - tree.approximate_sum().value;
            let bound = tree.accuracy_in_flight(1, delta.unsigned_abs());
            assert_eq!(error, bound.under, "{nr_cpus} CPUs, {delta}");
        }
    }
    assert_eq!(
        atomic_tree(1).accuracy_in_flight(9, 9),
        Accuracy { under: 0, over: 0 }
    );
    let saturated = atomic_tree(8).accuracy_in_flight(u64::MAX, u64::MAX);
    assert_eq!(saturated.under, i64::MAX);
}

// Goal: one thread that hops over 384 CPUs, mapping and unmapping, is seen almost truly: the
// kernel's counters are off by hundreds of MiB there, and rounding down by 80 MiB on average.
// Method: random CPUs and sizes around one GiB; the root mean square of the error is checked.
#[test]
fn hopping_over_384_cpus_keeps_the_error_small() {
    let seed = seed(13);
    let mut random = fastrand::Rng::with_seed(seed);
    let machine: Topology = "2x12x8x2".parse().expect("a topology");
    let tree = CounterTree::with_regime(&machine, Regime::Atomic);
    let (mut sum, mut squares) = (0_i64, 0_i64);
    for _ in 0..200_000 {
        let pages = random.i64(1..=64);
        let delta = if sum > random.i64(0..524_288) {
            -pages.min(sum)
        } else {
            pages
        };
        tree.at(CpuId(random.u32(..384))).add(delta);
        sum += delta;
        let estimate = tree.approximate_sum();
        assert!(estimate.contains(sum), "SEED={seed}: {sum} {estimate}");
        squares += (sum - estimate.value).pow(2);
    }
    assert_at_rest(&tree, sum);
    assert!(sum > 65_536, "the traffic must fill the counter, not {sum}");
    // Derived for uniform residuals: a mean of 6.75 MiB and a deviation of 6 make 9 MiB; 1.5 times
    // that is allowed.
    let mean_square = squares / 200_000;
    assert!(
        mean_square < (9 * 256 * 3 / 2_i64).pow(2),
        "SEED={seed}: {mean_square}"
    );
}

// Goal: a counter that moves around zero costs no shared write, on any CPU. Method: the traffic
// that makes rounding down carry three times for every single update.
#[test]
fn moving_around_empty_writes_nothing_shared() {
    let tree = atomic_tree(384);
    for cpu in (0..384).map(CpuId) {
        for swing in [1, -1, 15, -15] {
            for _ in 0..10 {
                assert_eq!(tree.at(cpu).add(-swing), Climb::default());
                assert_eq!(tree.at(cpu).add(swing), Climb::default());
            }
        }
    }
    assert_at_rest(&tree, 0);
}

// Goal: carries are as rare as the batch promises, and multiples of a level skip it.
// Method: count shared writes of single steps, and of steps as large as a level's modulus.
#[test]
fn carries_are_rare_and_skip_levels() {
    let tree = atomic_tree(384);
    let written: u32 = (0..65_536).map(|_| tree.at(CpuId(7)).add(1).written).sum();
    assert_eq!(written, 65_536 / 32 + 65_536 / 256 + 65_536 / 2048);
    let huge_page = tree.at(CpuId(300)).add(512);
    assert_eq!(
        huge_page,
        Climb {
            written: 1,
            skipped: 1
        }
    );
    let four = tree.at(CpuId(301)).add(2048);
    assert_eq!(
        four,
        Climb {
            written: 1,
            skipped: 2
        }
    );
    assert_at_rest(&tree, 65_536 + 512 + 2048);
}

// Goal: neighbours in position share nodes, whatever their numbers. Method: a machine whose second
// threads are numbered 32 above the first ones; the four threads of two cores must fill one node of
// level 1, whose carry goes to one node of level 2.
#[test]
fn updates_climb_through_the_node_of_their_position() {
    let tree = CounterTree::with_regime(&Topology::siblings_apart(32), Regime::Atomic);
    for cpu in [8, 40, 9, 41] {
        tree.at(CpuId(cpu)).add(32);
    }
    let held = |index: usize| tree.trees.node(index, ONLY).load(Ordering::Relaxed);
    let filled: Vec<usize> = (0..tree.trees.layout.shape.nr_nodes)
        .filter(|&index| held(index) != 0)
        .collect();
    // Positions 16 to 19: node 4 of the 16 on level 1, node 1 of the 4 on level 2.
    assert_eq!(filled, [4, 16 + 1]);
    assert_eq!((held(4), held(17)), (128, 128));
    assert_at_rest(&tree, 128);
}

// Goal: the interval is that of the CPUs that have added, and an adversary on them reaches it.
// Method: add on a few CPUs; the sum of the ranges of their words and the nodes above them is the
// bound, and residuals filled to either end make an error of exactly that.
#[test]
fn the_interval_is_that_of_the_touched_cpus() {
    let bound_of = |cpus: &[usize]| {
        let touched = Touched::none_of(384);
        cpus.iter().for_each(|&cpu| touched.mark(cpu));
        Shape::new(384, 0, Modulus::from_shift(5)).accuracy_of(&touched)
    };
    for cpus in [
        vec![0],
        vec![8, 9],
        vec![0, 64, 128],
        (0..384).step_by(7).collect(),
    ] {
        for sign in [1, -1] {
            let tree = atomic_tree(384);
            assert_eq!(tree.accuracy(), Accuracy::EXACT);
            let mut filled = Filled::default();
            for &cpu in &cpus {
                let delta = filled.next(&tree, cpu, sign);
                tree.at(CpuId::from_index(cpu)).add(delta);
            }
            assert_eq!(tree.accuracy(), bound_of(&cpus), "{cpus:?}");
            assert_worst_case(&tree, sign);
        }
    }
    let everywhere = bound_of(&(0..384).collect::<Vec<_>>());
    assert_eq!(everywhere, atomic_tree(384).accuracy_max());
}

// Goal: the read among updates is as wide as the one at rest when nothing is in flight, and covers
// the amount that an update has in hand. Method: an update that has begun and not ended, with its
// carry taken out of the root again.
#[test]
fn an_update_in_hand_widens_the_read_among_updates() {
    let tree = atomic_tree(384);
    tree.at(CpuId(3)).add(100_000);
    assert_eq!(tree.approximate_sum_in_flight(), tree.approximate_sum());
    let begun = 1;
    tree.trees.cells.add_on(CpuId(3), begun, 102_400);
    let root = tree.trees.layout.shape.nr_nodes - 1;
    let carried = tree.trees.node(root, ONLY).swap(0, Ordering::Relaxed);
    assert!(carried > 90_000 && !tree.approximate_sum().contains(100_000));
    assert!(tree.approximate_sum_in_flight().contains(100_000));
}

// Goal: comparisons are exact, whether one load decides them or a walk. Method: values on both
// sides of both edges of the interval, and around the sum itself.
#[test]
fn comparisons_are_sharp_at_the_edges() {
    for nr_cpus in [1, 2, 8, 384] {
        let tree = atomic_tree(nr_cpus);
        tree.at(CpuId(0)).add(1_000_003);
        let Estimate { low, high, .. } = tree.approximate_sum();
        for value in [
            low - 1,
            low,
            1_000_002,
            1_000_003,
            1_000_004,
            high,
            high + 1,
        ] {
            assert_eq!(tree.precise_cmp_value(value), 1_000_003.cmp(&value));
        }
    }
}

// Goal: a smaller batch is proportionally more accurate, and impossible ones are refused.
// Method: the bound of 384 CPUs scaled from the smallest batch to the largest.
#[test]
fn batches_are_powers_of_two() {
    let machine = Topology::flat(384);
    for batch in [0, 1, 3, 33, u32::MAX] {
        let refused = CounterTree::with_batch(&machine, Regime::Atomic, batch);
        let error = refused.expect_err("not a power of two above 1");
        assert_eq!(error, BatchError::NotAPowerOfTwo { batch });
        assert!(error.to_string().contains(&batch.to_string()));
    }
    for shift in [1, 4, 5, 31] {
        let tree = CounterTree::with_batch(&machine, Regime::Atomic, 1 << shift)
            .expect("a power of two above 1");
        assert_eq!(tree.batch(), 1 << shift);
        assert_eq!(tree.accuracy_max().over, (18_432 << shift) >> 5);
    }
}

// Goal: the check of conservation can fail.
// Method: take a carry away from a node.
#[test]
#[should_panic(expected = "but the words of all CPUs make 40")]
fn a_lost_carry_breaks_conservation() {
    let tree = atomic_tree(8);
    tree.at(CpuId(0)).add(40);
    tree.trees.node(0, ONLY).fetch_sub(32, Ordering::Relaxed);
    tree.check_invariants();
}
