//! "Statistics are as fresh as a read says": the staleness of a value is attacked on purpose,
//! flushes include everything that was counted before them, and lose nothing.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot set itself up fails, and says its seed"
)]

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use highwater::group::{GroupNode, GroupTree, StatItem, Tolerance};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::CpuId;
use highwater::{Access, Backing, Bytes, Limits, Pages};
use support::{TestFile, manager};

const T: Duration = Duration::ZERO;

/// A tree, and how threads act as its CPUs.
struct Case {
    tree: GroupTree,
    /// Virtual CPUs; `None` for the CPU that the thread runs on.
    nr_virtual: Option<usize>,
}

/// Returns a tree for `nr_cpus` virtual CPUs, and one for this machine, where updates are
/// restartable sequences.
fn cases(nr_cpus: usize) -> [Case; 2] {
    let here = Topology::detect().nr_cpus();
    let case = |tree, nr_virtual| Case { tree, nr_virtual };
    [
        case(GroupTree::new(nr_cpus), Some(nr_cpus)),
        case(GroupTree::with_regime(Regime::Restartable, here), None),
    ]
}

impl Case {
    fn add(&self, group: &GroupNode, cpu: usize, item: StatItem, delta: i64) {
        match self.nr_virtual {
            Some(nr_cpus) => group
                .at(CpuId::from_index(cpu % nr_cpus))
                .add_stat(item, delta),
            None => group.add_stat(item, delta),
        }
    }
}

/// Creates up to `width` groups below each of `depth` levels; returns them, the root first.
fn groups(tree: &GroupTree, width: usize, depth: usize) -> Vec<GroupNode> {
    let mut groups = vec![tree.root()];
    let mut level = vec![tree.root()];
    for _ in 0..depth {
        let children = level.iter().flat_map(|parent| {
            (0..width).map(|nth| parent.child(&format!("g{nth}"), Limits::default()).unwrap())
        });
        level = children.collect();
        groups.extend(level.iter().cloned());
    }
    groups
}

#[test]
fn the_stated_staleness_is_reached_and_not_passed() {
    // Goal: the bound is tight and still right. Method: the worst item: every CPU hides as much of
    // it as its window takes, all in one direction; then one more on one CPU.
    let tree = GroupTree::new(384);
    let group = tree.root().child("g", Limits::default()).unwrap();
    for cpu in 0..384 {
        for _ in 0..16 {
            group.at(CpuId(cpu)).add_stat(StatItem::File, -1);
        }
    }
    let read = |group: &GroupNode| group.read_stat(StatItem::File, Tolerance::ANY, T);
    for group in [&group, &tree.root()] {
        assert_eq!((read(group).value, read(group).staleness), (0, 384 * 16));
    }
    group.at(CpuId(5)).add_stat(StatItem::File, -1);
    assert_eq!(read(&group).staleness, 384 * 16 + 16);
    // Within the kernel's tolerance there is no flush; one beyond it, there is.
    let kernel = Tolerance::as_kernel(384);
    assert_eq!(group.read_stat(StatItem::File, kernel, T).value, 0);
    let strict = Tolerance {
        pages: 384 * 16,
        ..kernel
    };
    let flushed = group.read_stat(StatItem::File, strict, T);
    assert_eq!((flushed.value, flushed.staleness), (-384 * 16 - 1, 0));
    assert_eq!(
        (read(&tree.root()).value, read(&tree.root()).staleness),
        (0, 384 * 16 + 16)
    );
}

/// The counts of a group, from both sides of each update.
#[derive(Default)]
struct Truth {
    begun: AtomicI64,
    done: AtomicI64,
}

#[test]
fn no_read_is_staler_than_it_says() {
    // Goal: beside running updates and flushes, a value differs by at most the stated staleness
    // from the count when the read began, or from the count begun when it ended. Method: threads
    // count up one item, in steps of all sizes, noting each step before and after; another item up
    // and down, so that it is never far from zero; readers with all kinds of tolerance at all
    // levels flush meanwhile.
    for case in cases(48) {
        no_read_is_staler_than_it_says_in(&case);
    }
}

fn no_read_is_staler_than_it_says_in(case: &Case) {
    let tree = &case.tree;
    let groups = groups(tree, 3, 3);
    let truths: Vec<Truth> = groups.iter().map(|_| Truth::default()).collect();
    let (is_over, most) = (AtomicBool::new(false), 300);
    let seed = seed::seed(7);
    thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (groups, truths, is_over) = (&groups, &truths, &is_over);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed + thread);
                while !is_over.load(Ordering::SeqCst) {
                    let at = random.usize(..groups.len());
                    let cpu = random.usize(..48);
                    let step = random.i64(1..=most) >> random.u32(..9);
                    let above: Vec<_> = (0..groups.len())
                        .filter(|&above| groups[at].is_descendant_of(&groups[above]))
                        .collect();
                    for &above in &above {
                        truths[above].begun.fetch_add(step, Ordering::SeqCst);
                    }
                    case.add(&groups[at], cpu, StatItem::Pgfault, step);
                    for &above in &above {
                        truths[above].done.fetch_add(step, Ordering::SeqCst);
                    }
                    case.add(&groups[at], cpu, StatItem::File, step);
                    case.add(&groups[at], cpu, StatItem::File, -step);
                }
            });
        }
        let mut random = fastrand::Rng::with_seed(seed + 99);
        for _ in 0..60_000 {
            let at = random.usize(..groups.len());
            let pages = match random.u32(..4) {
                0 => 0,
                1 => u64::MAX,
                _ => random.u64(..4000),
            };
            let tolerance = Tolerance {
                pages,
                age: Duration::MAX,
            };
            let done = truths[at].done.load(Ordering::SeqCst);
            let read = groups[at].read_stat(StatItem::Pgfault, tolerance, T);
            let begun = truths[at].begun.load(Ordering::SeqCst);
            let staleness = i64::try_from(read.staleness).unwrap();
            assert!(read.staleness <= pages);
            assert!(
                read.value + staleness >= done,
                "{read:?}, {done} were counted before"
            );
            assert!(
                read.value - staleness <= begun,
                "{read:?}, {begun} were counted after"
            );
            let read = groups[at].read_stat(StatItem::File, tolerance, T);
            assert!(read.value.unsigned_abs() <= read.staleness + 2 * most.unsigned_abs());
            if random.u32(..500) == 0 {
                tree.flush_periodically(T);
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
    for (group, truth) in groups.iter().zip(&truths) {
        let read = group.read_stat(StatItem::Pgfault, Tolerance::EXACT, T);
        assert_eq!(read.value, truth.done.load(Ordering::SeqCst));
        assert_eq!(
            group.read_stat(StatItem::File, Tolerance::EXACT, T).value,
            0
        );
    }
}

#[test]
fn what_was_counted_before_a_read_is_in_it() {
    // Goal: a reader sees its own updates, beside any other flushes and counts: never skip. Method:
    // each thread counts in a group of its own below a shared one and reads exactly, its own group
    // and the shared one, while the others do the same.
    for case in cases(4) {
        what_was_counted_before_a_read_is_in_it_in(&case);
    }
}

fn what_was_counted_before_a_read_is_in_it_in(case: &Case) {
    let tree = &case.tree;
    let parent = tree.root().child("p", Limits::default()).unwrap();
    let all = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (parent, all) = (&parent, &all);
            scope.spawn(move || {
                let group = parent
                    .child(&format!("g{thread}"), Limits::default())
                    .unwrap();
                for round in 1..=5000 {
                    case.add(&group, thread, StatItem::Pgfault, 1);
                    let before = all.fetch_add(1, Ordering::SeqCst) + 1;
                    let read = parent.read_stat(StatItem::Pgfault, Tolerance::EXACT, T);
                    assert!(read.value.unsigned_abs() >= before);
                    let own = group.read_stat(StatItem::Pgfault, Tolerance::EXACT, T);
                    assert_eq!(own.value, round);
                }
            });
        }
    });
    assert_eq!(
        tree.root()
            .read_stat(StatItem::Pgfault, Tolerance::EXACT, T)
            .value,
        20_000
    );
    println!("{:?}", tree.flush_counts());
}

#[test]
fn groups_that_end_leave_what_they_counted() {
    // Goal: nothing is lost when groups end, however their handles go, beside flushes from above.
    // Method: threads create groups two deep, count in them, remove them, count once more and drop
    // the handles in any order.
    for case in cases(4) {
        groups_that_end_leave_what_they_counted_in(&case);
    }
}

fn groups_that_end_leave_what_they_counted_in(case: &Case) {
    let tree = &case.tree;
    let parent = tree.root().child("p", Limits::default()).unwrap();
    let (all, is_over) = (AtomicI64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2_u32)
            .map(|thread| {
                let (parent, all) = (&parent, &all);
                scope.spawn(move || {
                    for round in 0..3000_u32 {
                        let name = format!("g{thread}-{round}");
                        let group = parent.child(&name, Limits::default()).unwrap();
                        let leaf = group.child("leaf", Limits::default()).unwrap();
                        let cpu = (thread + round) as usize % 4;
                        case.add(&leaf, cpu, StatItem::Anon, 3);
                        case.add(&group, cpu, StatItem::Anon, 40);
                        tree.remove(&leaf).unwrap();
                        tree.remove(&group).unwrap();
                        case.add(&leaf, cpu, StatItem::Anon, 500);
                        if round % 2 == 0 {
                            drop(group);
                            drop(leaf);
                        }
                        all.fetch_add(543, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let (parent, is_over) = (&parent, &is_over);
        scope.spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                _ = parent.read_stat(StatItem::Anon, Tolerance::EXACT, T);
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
    });
    let all = all.load(Ordering::SeqCst);
    assert_eq!(
        tree.root()
            .read_stat(StatItem::Anon, Tolerance::EXACT, T)
            .value,
        all
    );
    assert_eq!(
        parent.read_stat(StatItem::Anon, Tolerance::EXACT, T).value,
        all
    );
}

#[test]
fn after_reclaim_every_read_sees_it() {
    // Goal: a thread that has reclaimed sees the effects in every read, with any tolerance, at
    // every level. Method: fill two groups side by side, read so that all levels know it, reclaim
    // one, and read without flushing. Each page comes by a fault of its own.
    let hw = manager(256);
    hw.set_readahead(Pages(0));
    let parent = hw.root().child("parent", Limits::default()).unwrap();
    let [one, other] = ["one", "other"].map(|name| parent.child(name, Limits::default()).unwrap());
    let mut open = Vec::new();
    for group in [&one, &other] {
        let storage: Arc<dyn Backing> = TestFile::new(60);
        let file = hw.open_backing(storage, Access::ReadOnly).unwrap();
        let map = hw.space(group).map_file(&file, 0..60).unwrap();
        for page in 0..60 {
            map.read(&hw.enter(), page).unwrap();
        }
        open.push((file, map));
    }
    let file = |group: &highwater::Group, tolerance| group.stat(StatItem::File, tolerance).value;
    assert_eq!(file(&one, Tolerance::EXACT), 60);
    assert_eq!(file(&hw.root(), Tolerance::EXACT), 120);
    let exact = hw.root().stats(Tolerance::EXACT);
    assert_eq!(
        (
            exact.get(StatItem::Pgfault),
            exact.get(StatItem::Pgmajfault)
        ),
        (120, 120)
    );
    let on_lists = [StatItem::InactiveFile, StatItem::ActiveFile].map(|item| exact.get(item));
    assert_eq!(on_lists.iter().sum::<i64>(), 120);
    let freed = one.reclaim(Bytes::mib(1));
    assert_eq!(freed, Pages(60));
    for (group, pages) in [(&one, 0), (&parent, 60), (&hw.root(), 60)] {
        assert_eq!(file(group, Tolerance::ANY), pages);
        let stolen = group.stat(StatItem::PgstealDirect, Tolerance::ANY);
        assert_eq!(stolen.value, 60);
    }
    let snapshot = hw.snapshot().to_string();
    assert!(
        snapshot.contains("/parent/other/memory.stat file 60\n"),
        "{snapshot}"
    );
    hw.check_invariants();
}

#[test]
fn readers_of_all_depths_never_wait_for_one_another_in_a_circle() {
    // Goal: no deadlock, and each reader sees its own updates. Method: four readers of groups of
    // every depth, on two chains of three, beside the ends of groups.
    for case in cases(4) {
        let tree = &case.tree;
        let chain = |name: &str| {
            let top = tree.root().child(name, Limits::default()).unwrap();
            let middle = top.child("m", Limits::default()).unwrap();
            let deep = middle.child("d", Limits::default()).unwrap();
            [top, middle, deep]
        };
        let (one, two) = (chain("one"), chain("two"));
        let all: Vec<&GroupNode> = one.iter().chain(&two).collect();
        thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (all, case) = (&all, &case);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    let own = all[2 + 3 * random.usize(..2)]
                        .child(&format!("t{thread}"), Limits::default());
                    let own = own.unwrap();
                    for counted in 1..400 {
                        case.add(&own, random.usize(..4), StatItem::Pgfault, 1);
                        let read = own.read_stat(StatItem::Pgfault, Tolerance::EXACT, T);
                        assert_eq!(read.value, counted);
                        let any = all[random.usize(..6)];
                        _ = any.read_stat(StatItem::Pgfault, Tolerance::EXACT, T);
                    }
                });
            }
        });
        let root = tree
            .root()
            .read_stat(StatItem::Pgfault, Tolerance::EXACT, T);
        assert_eq!(root.value, 4 * 399);
    }
}
