//! Tests of rstat against a plain model and the invariants of the accounting spec's section 12, and
//! of each rule's promise and flaw.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use highwater::units::CpuId;

use super::*;
use crate::baselines::tests::rng;

const NOW: Duration = Duration::ZERO;

const RULES: [FlushRule; 5] = [
    FlushRule::RootSkipIfBusy,
    FlushRule::Subtree,
    FlushRule::SubtreeOneThreshold,
    FlushRule::SubtreeThresholds,
    FlushRule::SubtreeUnderMutex,
];

/// Additions, by group and item, without descendants.
struct Model {
    shape: Shape,
    own: Vec<Stats>,
}

impl Model {
    fn new(shape: &Shape) -> Self {
        Self {
            shape: shape.clone(),
            own: vec![[0; ITEMS]; shape.nr_groups()],
        }
    }

    fn total(&self, top: usize) -> Stats {
        let mut total = [0; ITEMS];
        for group in 0..self.shape.nr_groups() {
            if self.shape.is_within(group, top) {
                for (sum, own) in total.iter_mut().zip(self.own[group]) {
                    *sum += own;
                }
            }
        }
        total
    }
}

/// Adds random amounts to random groups from random CPUs.
fn add_anything(
    random: &mut fastrand::Rng,
    statistics: &impl Flushing,
    cpus: usize,
    model: &mut Model,
) {
    let group = random.usize(..model.own.len());
    let cpu = CpuId::from_index(random.usize(..cpus));
    let item = Item::ALL[random.usize(..Item::ALL.len())];
    let delta = random.i64(-40..=60);
    statistics.add(group, cpu, item, delta);
    model.own[group][item.index()] += delta;
}

/// Goal: a flush of a group makes its whole subtree fresh, whatever was flushed before, and absorbs
/// each delta once. Method: random adds and flushes of random groups, each compared with a model.
/// After each, a group on a list has its ancestors on theirs; at the end, totals are own words plus
/// the children's.
#[test]
fn a_flush_makes_a_subtree_fresh() {
    let mut random = rng(1);
    for (tops, leaves, cpus) in [(1, 1, 1), (3, 4, 2), (2, 5, 40)] {
        let shape = Shape::of(tops, leaves);
        let rstat = Rstat::new(&shape, cpus, FlushRule::Subtree);
        let mut model = Model::new(&shape);
        for _ in 0..3000 {
            add_anything(&mut random, &rstat, cpus, &mut model);
            if random.u8(..8) == 0 {
                let top = random.usize(..shape.nr_groups());
                let read = rstat.read(top, NOW);
                assert_eq!(read.values, model.total(top), "group {top}");
                for below in (0..shape.nr_groups()).filter(|&at| shape.is_within(at, top)) {
                    assert_eq!(rstat.values(below), model.total(below));
                }
            }
            rstat.check_lists();
        }
        rstat.flush_periodic(NOW);
        rstat.check_lists();
        rstat.check_flushed(|group| model.own[group]);
        for group in 0..shape.nr_groups() {
            assert_eq!(rstat.values(group), model.total(group));
        }
    }
}

/// Goal: after a flush of a child, its parent's pending values are exactly what the child carried,
/// and the parent's total is unchanged. Method: two flushes, without and with updates in between.
#[test]
fn a_child_leaves_its_delta_pending() {
    let rstat = Rstat::new(&Shape::of(1, 2), 2, FlushRule::Subtree);
    let (top, first, second) = (1, 2, 3);
    let pending = |item: Item| rstat.pending(top)[item.index()];
    rstat.add(first, CpuId(0), Item::Anon, 5);
    rstat.add(second, CpuId(1), Item::Anon, 100);
    rstat.flush_for_reclaim(first, NOW);
    assert_eq!((pending(Item::Anon), pending(Item::Pgfault)), (5, 0));
    assert_eq!(rstat.values(top)[Item::Anon.index()], 0);
    rstat.flush_for_reclaim(first, NOW);
    assert_eq!(pending(Item::Anon), 5, "nothing was carried twice");
    rstat.add(first, CpuId(1), Item::Anon, -2);
    rstat.flush_for_reclaim(first, NOW);
    assert_eq!(pending(Item::Anon), 3);
    let read = rstat.read(top, NOW);
    assert_eq!(read.values[Item::Anon.index()], 103);
    assert_eq!(pending(Item::Anon), 0);
}

/// Goal: no update is lost beside concurrent flushes, under any rule. Method: threads add on all
/// CPUs while others read and flush; then the root is flushed, and totals are what was added.
#[test]
fn no_update_is_lost_beside_flushes() {
    const ADDS: u32 = 4000;
    const CPUS: usize = 20;
    for rule in RULES {
        let shape = Shape::of(2, 3);
        let rstat = Rstat::new(&shape, CPUS, rule);
        let is_over = AtomicBool::new(false);
        let leaves = 3..shape.nr_groups();
        thread::scope(|scope| {
            let adders: Vec<_> = (0..2)
                .map(|seed| {
                    let (rstat, leaves) = (&rstat, leaves.clone());
                    scope.spawn(move || {
                        let mut random = rng(seed);
                        for _ in 0..ADDS {
                            let cpu = CpuId::from_index(random.usize(..CPUS));
                            rstat.add(random.usize(leaves.clone()), cpu, Item::Pgfault, 30);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let mut random = rng(9);
                while !is_over.load(Ordering::Relaxed) {
                    rstat.flush_for_reclaim(random.usize(..shape.nr_groups()), NOW);
                    rstat.flush_periodic(NOW);
                }
            });
            for adder in adders {
                adder.join().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        rstat.flush_periodic(NOW);
        rstat.check_lists();
        let root = rstat.values(0)[Item::Pgfault.index()];
        assert_eq!(root, i64::from(2 * ADDS * 30), "{rule:?}");
    }
}

/// Goal: with a threshold for each group, an unflushed value's error is at most the stated bound,
/// and an adversary reaches it. Method: drift upwards, read after each add; then fill what each CPU
/// and the group may keep.
#[test]
fn per_group_thresholds_bound_staleness() {
    const CPUS: usize = 12;
    let mut random = rng(2);
    let shape = Shape::of(2, 2);
    let limit = staleness_max(CPUS).cast_signed();
    let rstat = Rstat::new(&shape, CPUS, FlushRule::SubtreeThresholds);
    let mut model = Model::new(&shape);
    let mut worst = 0;
    for _ in 0..20_000 {
        add_anything(&mut random, &rstat, CPUS, &mut model);
        let group = random.usize(..shape.nr_groups());
        let read = rstat.read(group, NOW);
        assert_eq!(read.staleness, Some(staleness_max(CPUS)));
        for (value, truth) in read.values.iter().zip(model.total(group)) {
            worst = worst.max((truth - value).abs());
        }
    }
    assert!(0 < worst && worst <= limit, "{worst} of {limit}");
    let rstat = Rstat::new(&shape, CPUS, FlushRule::SubtreeThresholds);
    let mut truth = 0;
    for part in [64, 63] {
        for cpu in 0..CPUS {
            rstat.add(4, CpuId::from_index(cpu), Item::Anon, part);
            truth += part;
        }
    }
    let seen = rstat.read(4, NOW).values[Item::Anon.index()];
    assert_eq!(truth - seen, limit, "the bound is reached");
    assert_eq!(rstat.tally().skipped_few, 1);
    rstat.add(4, CpuId(0), Item::Anon, 1);
    assert_eq!(
        rstat.read(4, NOW).values[Item::Anon.index()],
        truth + 1,
        "and not passed"
    );
}

/// Goal: with one threshold, busy groups make readers of quiet ones flush, and flushes of subtrees
/// do not reset it; before the patch, a reader skips while another thread flushes. Method: one of
/// each.
#[test]
fn rules_have_their_flaws() {
    let shape = Shape::of(2, 1);
    let (busy, quiet) = (3, 4);
    let fill = |rstat: &Rstat| rstat.add(busy, CpuId(1), Item::Anon, 64 * 2 + 1);
    let shared = Rstat::new(&shape, 2, FlushRule::SubtreeOneThreshold);
    shared.read(quiet, NOW);
    assert_eq!(shared.tally().flushes, 0);
    fill(&shared);
    for flushes in 1..=3 {
        shared.read(quiet, NOW);
        assert_eq!(shared.tally().flushes, flushes);
    }
    shared.flush_periodic(NOW);
    shared.read(quiet, NOW);
    let tally = shared.tally();
    assert_eq!((tally.flushes, tally.periodic), (3, 1));

    let skipping = Rstat::new(&shape, 2, FlushRule::RootSkipIfBusy);
    fill(&skipping);
    let read = skipping.beside_a_flush(|| skipping.read(busy, NOW));
    assert_eq!(read.values[Item::Anon.index()], 0);
    assert_eq!(skipping.tally().skipped_busy, 1);
    assert_eq!(skipping.read(busy, NOW).values[Item::Anon.index()], 129);
    let tally = skipping.tally();
    assert_eq!(
        (tally.cpus, tally.groups),
        (2, 3),
        "the root, {busy} and its parent"
    );
}

/// Goal: the library uses the same numbers of groups and items, stays within its stated bound, and
/// is exact after a periodic flush. Method: the same random adds, read after each, against the
/// model.
#[test]
fn the_library_is_within_what_it_states() {
    const CPUS: usize = 12;
    let mut random = rng(3);
    let shape = Shape::of(2, 3);
    let library = LibraryStatistics::new(&shape, CPUS);
    let mut model = Model::new(&shape);
    let mut worst = 0;
    for _ in 0..10_000 {
        add_anything(&mut random, &library, CPUS, &mut model);
        let group = random.usize(..shape.nr_groups());
        let read = library.read(group, NOW);
        let stated = read.staleness.unwrap();
        for (value, truth) in read.values.iter().zip(model.total(group)) {
            assert!(truth.abs_diff(*value) <= stated, "group {group}: {stated}");
            worst = worst.max(truth.abs_diff(*value));
        }
    }
    assert!(worst > 0, "some reads did without a flush");
    assert!(library.tally().flushes > 0, "and some did not");
    library.flush_periodic(NOW);
    assert_eq!(library.tally().periodic, 1);
    for group in 0..shape.nr_groups() {
        assert_eq!(library.read(group, NOW).values, model.total(group));
    }
}
