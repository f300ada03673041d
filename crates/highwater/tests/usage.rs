//! The promise: a cheap read of a group's usage is near the usage, and its interval contains it, in
//! both regimes, also with threads without rseq. (`limits.rs` covers the distribution of tokens in
//! the atomic one.)

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;
#[path = "support/threads.rs"]
mod threads;

use std::sync::atomic::{AtomicU64, Ordering};

use highwater::group::{GroupNode, GroupTree, Limits};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::{Bytes, CpuId};
use threads::{allowed_cpus, run_on, run_unregistered};

/// Maximum number of tokens in a word, as documented at `GroupNode::usage`.
const TOKENS_MAX: Bytes = Bytes::kib(224);
/// What one CPU parks at most as any group sees it: 7 groups of 64 pages in the kernel's stock.
const STOCK_MAX: Bytes = Bytes::kib(7 * 256);

fn child(parent: &GroupNode, name: &str) -> GroupNode {
    parent.child(name, Limits::default()).unwrap()
}

/// Runs `work` on a thread on each existing CPU, and on one without rseq, one after the other: all
/// words of a tree in the restartable regime. `None` if that regime, or such a thread, is not
/// available.
fn on_every_word<T: Send>(tree: &GroupTree, work: impl Fn() -> T + Sync) -> Option<Vec<T>> {
    if tree.regime() != Regime::Restartable {
        return None;
    }
    let cpus = allowed_cpus().into_iter();
    let known = cpus.filter(|cpu| cpu.index() < tree.nr_cpus());
    let mut done: Vec<T> = known.map(|cpu| run_on(cpu, &work)).collect();
    done.push(run_unregistered(&work)?);
    Some(done)
}

/// Panics unless the interval of each group, at rest, holds what it uses and is within the bound of
/// that many words.
fn check_widths(groups: &[(&GroupNode, Bytes)], nr_words: usize) -> Bytes {
    let bound = Bytes(nr_words as u64 * STOCK_MAX.0);
    let mut widest = Bytes::ZERO;
    for &(group, used) in groups {
        let usage = group.usage();
        let path = group.path();
        assert!(usage.contains(used), "{path} uses {used}, not {usage:?}");
        let width = usage.high - usage.low;
        assert!(width <= bound, "{path} is uncertain by {width}");
        assert!(
            group.escrowed() <= bound,
            "{path} parks {}",
            group.escrowed()
        );
        widest = widest.max(width);
    }
    widest
}

// Goal: what a CPU parks is bounded whatever the number of groups, as every group sees it: the
// root, tenants, and the groups that charge. Method: 1,000 groups below 10 tenants on 384 CPUs;
// each CPU is used by each group, in random order, which leaves as many tokens as a word takes;
// then each CPU has favourites, which take its stock over. One group in 100 keeps a
// GiB, so that no interval ends at zero.
#[test]
fn a_thousand_groups_on_384_cpus_park_no_more_than_a_stock() {
    const NR_CPUS: usize = 384;
    let tree = GroupTree::new(NR_CPUS);
    let root = tree.root();
    let tenants: Vec<_> = (0..10)
        .map(|nth| child(&root, &format!("t{nth}")))
        .collect();
    let groups: Vec<_> = (0..1000)
        .map(|nth| child(&tenants[nth % 10], &format!("g{nth}")))
        .collect();
    let mut rng = fastrand::Rng::with_seed(19);
    let mut order: Vec<_> = (0..groups.len() * NR_CPUS).collect();
    rng.shuffle(&mut order);
    for at in order {
        let (group, cpu) = (&groups[at % 1000], CpuId::from_index(at / 1000));
        let held = group.at(cpu).try_charge(TOKENS_MAX).unwrap();
        group.at(cpu).uncharge(held.disown());
    }
    let keepers: Vec<_> = (0..10).map(|nth| 100 * nth + nth).collect();
    let kept: Vec<_> = keepers
        .iter()
        .map(|nth| {
            groups[*nth]
                .at(CpuId(383))
                .try_charge(Bytes::gib(1))
                .unwrap()
        })
        .collect();
    let used = |nth: usize| Bytes(Bytes::gib(1).0 * u64::from(keepers.contains(&nth)));
    let all = || {
        let leaves = groups
            .iter()
            .enumerate()
            .map(|(nth, group)| (group, used(nth)));
        let tenants = tenants.iter().map(|tenant| (tenant, Bytes::gib(1)));
        let inner = tenants.chain([(&root, Bytes::gib(10))]);
        leaves.chain(inner).collect::<Vec<_>>()
    };
    let widest = check_widths(&all(), NR_CPUS);
    println!("after all: {widest}");
    for nth in 0..NR_CPUS * 3 {
        let cpu = CpuId::from_index(nth % NR_CPUS);
        let favourites: [usize; 9] = std::array::from_fn(|_| rng.usize(..groups.len()));
        for _ in 0..200 {
            let group = &groups[favourites[rng.usize(..9)]];
            let held = group.at(cpu).try_charge(Bytes::PAGE).unwrap();
            group.at(cpu).uncharge(held.disown());
        }
    }
    let widest = check_widths(&all(), NR_CPUS);
    println!("after favourites: {widest}");
    // The bound is reached to within a word for each CPU: it is no looser than it has to be.
    let width = root.usage().high - root.usage().low;
    let least = NR_CPUS as u64 * (STOCK_MAX.0 - 2 * TOKENS_MAX.0);
    assert!(width >= Bytes(least), "{width}");
    drop(kept);
    tree.check_invariants();
    let idle: Vec<_> = all()
        .iter()
        .map(|(group, _)| (*group, Bytes::ZERO))
        .collect();
    check_widths(&idle, NR_CPUS);
}

// Goal: the same in the restartable regime, on the words of the existing CPUs and of threads
// without rseq.
#[test]
fn a_thousand_groups_park_no_more_than_a_stock_here() {
    let machine = Topology::detect();
    let tree = GroupTree::with_regime(Regime::Restartable, machine.nr_cpus());
    let groups: Vec<_> = (0..1000)
        .map(|nth| child(&tree.root(), &format!("g{nth}")))
        .collect();
    let work = || {
        for _ in 0..3 {
            for group in &groups {
                drop(group.try_charge(TOKENS_MAX).unwrap());
            }
        }
        for _ in 0..2_000 {
            drop(groups[999].try_charge(Bytes::PAGE).unwrap());
        }
    };
    let Some(words) = on_every_word(&tree, work) else {
        println!("skipped: no restartable sequences, or no threads without them");
        return;
    };
    let root = tree.root();
    let all = groups
        .iter()
        .chain([&root])
        .map(|group| (group, Bytes::ZERO))
        .collect::<Vec<_>>();
    let widest = check_widths(&all, words.len());
    println!("{widest} in {} words", words.len());
    tree.check_invariants();
}

// Goal: the same in the restartable regime, with threads without rseq: every word is filled and
// emptied by the thread that owns it. Then random amounts, on words at random.
#[test]
fn the_interval_holds_the_usage_of_threads_that_stay_on_their_cpus() {
    let machine = Topology::detect();
    let tree = GroupTree::with_regime(Regime::Restartable, machine.nr_cpus());
    let top = child(&tree.root(), "top");
    let groups = ["a", "b"].map(|name| child(&top, name));
    let fill = || {
        for group in &groups {
            let half = Bytes(TOKENS_MAX.0 / 2);
            let mut charge = group.try_charge(half).unwrap();
            charge.try_grow(half).unwrap();
            charge.shrink(TOKENS_MAX);
        }
    };
    let Some(filled) = on_every_word(&tree, fill) else {
        return;
    };
    let width = Bytes(TOKENS_MAX.0 * (groups.len() * filled.len()) as u64);
    let seen = top.usage();
    assert_eq!((seen.low, seen.high), (Bytes::ZERO, width));
    assert_eq!((seen.value, top.escrowed()), (Bytes::ZERO, width));
    let take = || {
        groups
            .each_ref()
            .map(|group| group.try_charge(TOKENS_MAX).unwrap())
    };
    let held = on_every_word(&tree, take).unwrap();
    let full = top.usage();
    assert_eq!((full.low, full.high), (Bytes::ZERO, width));
    assert_eq!((full.value, top.escrowed()), (width, Bytes::ZERO));
    assert_eq!(top.usage_precise(), width);
    drop(held);
    let seed = seed::seed(2);
    for round in 0..50 {
        let nth = AtomicU64::new(100 * round);
        let held = on_every_word(&tree, || {
            let mut rng =
                fastrand::Rng::with_seed(seed * 10_000 + nth.fetch_add(1, Ordering::Relaxed));
            let group = &groups[rng.usize(..2)];
            let charges = (0..10).map(|_| group.try_charge(Bytes(rng.u64(..900_000))).unwrap());
            charges.filter(|_| round % 2 == 0).collect::<Vec<_>>()
        });
        let used: u64 = held
            .iter()
            .flatten()
            .flatten()
            .map(|charge| charge.bytes().0)
            .sum();
        let (seen, exact) = (top.usage(), Bytes(used));
        assert_eq!(
            (seen.value, top.usage_precise()),
            (exact, exact),
            "SEED={seed}"
        );
        assert!(seen.contains(exact), "SEED={seed}: {exact} {seen}");
    }
    tree.check_invariants();
}

// Goal: the value of a cheap read is near the usage, not at the top of its interval: 32 MiB for an
// empty group that 128 CPUs have used, 57 MiB for one of 5 on 384. Method: each CPU leaves its word
// full, or nearly so; then more words than are read.
#[test]
fn a_group_that_many_cpus_have_used_reads_as_what_it_uses() {
    for (nr_cpus, nr_groups, used) in [(128, 1, 0), (384, 1, 5 << 20), (384, 8, 5 << 20)] {
        let tree = GroupTree::new(nr_cpus);
        let top = child(&tree.root(), "top");
        let names = (0..nr_groups).map(|nth| format!("n{nth}"));
        let groups: Vec<_> = names.map(|name| child(&top, &name)).collect();
        for (group, on) in groups
            .iter()
            .flat_map(|group| (0..nr_cpus).map(move |on| (group, CpuId::from_index(on))))
        {
            let half = Bytes(TOKENS_MAX.0 / 2);
            let mut charge = group.at(on).try_charge(half).unwrap();
            charge.at(on).try_grow(half).unwrap();
            charge.at(on).shrink(TOKENS_MAX);
        }
        let held = groups[0].at(CpuId(1)).try_charge(Bytes(used)).unwrap();
        let (own, above) = (groups[0].usage(), top.usage());
        assert_eq!(
            (own.value, groups[0].usage_precise()),
            (Bytes(used), Bytes(used))
        );
        assert!(
            own.high.0 - used >= (nr_cpus as u64 - 1) * TOKENS_MAX.0,
            "{own}"
        );
        assert!(own.contains(own.value) && above.contains(above.value));
        // Of words beyond those that are read, half counts as used.
        let unseen = (nr_groups * nr_cpus).saturating_sub(1024) as u64;
        let error = above.value.0.abs_diff(used);
        assert!(error <= unseen * TOKENS_MAX.0 / 2, "{above}");
        drop(held);
    }
}

// Goal: a read within a tolerance holds the usage, is no wider, and is exact at a tolerance of
// zero. Method: tokens in the words of many CPUs of two groups, at random; tolerances around the
// width of the cheap interval.
#[test]
fn a_read_within_a_tolerance_holds_the_usage() {
    let mut rng = fastrand::Rng::with_seed(seed::seed(1));
    for nr_cpus in [1, 7, 64] {
        let tree = GroupTree::new(nr_cpus);
        let top = child(&tree.root(), "top");
        let groups = ["a", "b"].map(|name| child(&top, name));
        let mut held = Vec::new();
        for _ in 0..400 {
            let (group, cpu) = (
                &groups[rng.usize(..2)],
                CpuId::from_index(rng.usize(..nr_cpus)),
            );
            held.push(group.at(cpu).try_charge(Bytes(rng.u64(..300_000))).unwrap());
            if rng.bool() {
                let mut other = held.swap_remove(rng.usize(..held.len()));
                let all = other.bytes();
                other.at(cpu).shrink(all);
            }
            let used = held
                .iter()
                .fold(Bytes::ZERO, |sum, charge| sum + charge.bytes());
            let cheap = top.usage();
            let width = cheap.high - cheap.low;
            for tolerance in [Bytes::ZERO, Bytes(rng.u64(..=width.0)), width, Bytes::MAX] {
                let seen = top.usage_within(tolerance);
                assert!(seen.contains(used), "{seen:?} without {used}");
                assert!(
                    seen.high - seen.low <= tolerance,
                    "{seen:?}, wider than {tolerance}"
                );
                assert!(seen.contains(seen.value));
            }
            let (all, none) = (top.usage_within(Bytes::MAX), top.usage_within(Bytes::ZERO));
            assert_eq!(
                (all.low, all.high, none.value),
                (cheap.low, cheap.high, used)
            );
        }
    }
}
