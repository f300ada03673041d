//! The promise: no group ever uses more than its maximum, and no charge is refused while pages are
//! free or parked, on any number of CPUs. Usage is known as an interval that contains the exact
//! value.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use highwater::group::{ChargeError, GroupNode, GroupTree, Limits, MaxError, NodeCharge};
use highwater::units::{Bytes, CpuId, Estimate, GroupId};

/// Maximum number of tokens in a word, as documented at `GroupNode::usage`.
const TOKENS_MAX: Bytes = Bytes::kib(224);

/// `count` times an odd amount, so that no sum is a number of whole pages.
const fn amount(count: u64) -> Bytes {
    Bytes(count.saturating_mul(4001))
}

/// Returns a generator for the `nth` thread.
fn rng_of(seed: u64, nth: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed * 1000 + nth)
}

/// Stops the other threads on drop, also when this one fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn cpu(rng: &mut fastrand::Rng, nr_cpus: usize) -> CpuId {
    CpuId::from_index(rng.usize(..nr_cpus))
}

fn cpus(nr_cpus: usize) -> impl Iterator<Item = CpuId> {
    (0..nr_cpus).map(CpuId::from_index)
}

fn child(parent: &GroupNode, name: &str, max: u64) -> GroupNode {
    parent.child(name, Limits::max(amount(max))).unwrap()
}

/// Returns the charge if it succeeded; only a full group may have refused it.
fn charged(outcome: Result<NodeCharge, ChargeError>) -> Option<NodeCharge> {
    match outcome {
        Ok(charge) => Some(charge),
        Err(ChargeError::OverMax { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

// Goal: a maximum of N units takes exactly N, for small N, be they bytes or nearly pages, on any
// CPUs. Method: charge and uncharge single units of three groups on random CPUs, which leaves
// tokens everywhere; then fill up: exactly N must fit, and the refusal must say that N are used and
// none is in escrow.
#[test]
fn tiny_limits_are_exact_on_every_cpu() {
    let seed = seed::seed(1);
    let mut rng = rng_of(seed, 0);
    for (nr_cpus, unit) in [1, 2, 8, 384].into_iter().zip([1, 4001, 4001, 1]) {
        let amount = |count| Bytes(count * unit);
        for max in (0..=40).chain([64, 65, 100, 1000]) {
            let tree = GroupTree::new(nr_cpus);
            let middle = tree.root().child("middle", Limits::max(amount(max)));
            let middle = middle.unwrap();
            let leaves = ["a", "b", "c"].map(|name| child(&middle, name, Bytes::MAX.0));
            let mut held = Vec::new();
            for _ in 0..300 {
                let on = cpu(&mut rng, nr_cpus);
                if rng.bool() {
                    let leaf = &leaves[rng.usize(..leaves.len())];
                    held.extend(charged(leaf.at(on).try_charge(amount(1))));
                } else if !held.is_empty() {
                    let charge = held.swap_remove(rng.usize(..held.len()));
                    let leaf = tree.get(charge.group()).unwrap();
                    leaf.at(on).uncharge(charge.disown());
                }
                assert_eq!(middle.usage_precise(), amount(held.len() as u64));
            }
            let mut fill = || charged(leaves[0].at(cpu(&mut rng, nr_cpus)).try_charge(amount(1)));
            while let Some(charge) = fill() {
                held.push(charge);
            }
            assert_eq!(
                held.len() as u64,
                max,
                "units of {unit} bytes of {max} on {nr_cpus} CPUs"
            );
            let refused = ChargeError::OverMax {
                group: middle.path(),
                requested: amount(1),
                max: amount(max),
                usage: amount(max),
                escrowed: middle.escrowed(),
            };
            let outcome = leaves[1].at(cpu(&mut rng, nr_cpus)).try_charge(amount(1));
            assert_eq!(outcome.unwrap_err(), refused);
        }
    }
}

// Goal: one charge of everything succeeds however the pages lie in escrow. Method: leave tokens in
// the words of 384 CPUs of four groups, then charge the whole maximum at once.
#[test]
fn no_charge_is_refused_while_pages_are_free_or_parked() {
    let (nr_cpus, max) = (384, Bytes::mib(391));
    let tree = GroupTree::new(nr_cpus);
    let top = tree.root().child("top", Limits::max(max)).unwrap();
    let groups = ["a", "b", "c", "d"].map(|name| child(&top, name, Bytes::MAX.0));
    for nth in [0, 100, 383] {
        for group in &groups {
            let mut charge = group
                .at(CpuId(1))
                .try_charge(Bytes(TOKENS_MAX.0 * 384))
                .unwrap();
            cpus(nr_cpus).for_each(|on| charge.at(on).shrink(TOKENS_MAX));
        }
        assert_eq!(top.usage_precise(), Bytes::ZERO);
        let parked = top.escrowed();
        assert!(parked > Bytes::mib(176), "the adversary parked {parked}");
        let all = groups[0].at(CpuId(nth)).try_charge(max).unwrap();
        assert_eq!((top.usage_precise(), top.escrowed()), (max, Bytes::ZERO));
        assert!(charged(groups[1].at(CpuId(7)).try_charge(amount(1))).is_none());
        drop(all);
    }
    tree.check_invariants();
}

// Goal: 1,000 groups below one tight limit share it to the last byte, although each has words on
// many CPUs that could hold far more. Method: all groups charge and uncharge on random CPUs, which
// leaves tokens wherever there is room; then they charge in turn until the limit is full, one moves
// on, and another takes its place.
#[test]
fn a_thousand_groups_share_one_tight_limit() {
    const NR_CPUS: usize = 64;
    for (seed, max) in [
        (1, amount(1000)),
        (2, amount(1000) + Bytes(1)),
        (3, Bytes::mib(64)),
    ] {
        println!("seed {seed}, max {max}");
        let mut rng = rng_of(seed, 0);
        let tree = GroupTree::new(NR_CPUS);
        let parent = tree.root().child("parent", Limits::max(max)).unwrap();
        let name = |nth: usize| format!("group-{nth}");
        let groups: Vec<_> = (0..1000)
            .map(|nth| parent.child(&name(nth), Limits::default()).unwrap())
            .collect();
        for _ in 0..20_000 {
            let group = &groups[rng.usize(..groups.len())];
            let held = group
                .at(cpu(&mut rng, NR_CPUS))
                .try_charge(amount(rng.u64(1..20)));
            let held = held.expect("one charge at a time, far below the limit");
            group.at(cpu(&mut rng, NR_CPUS)).uncharge(held.disown());
        }
        assert_eq!(parent.usage_precise(), Bytes::ZERO);
        let share = Bytes(max.0 / 1000);
        let mut charges: Vec<_> = groups
            .iter()
            .map(|group| group.at(cpu(&mut rng, NR_CPUS)).try_charge(share).unwrap())
            .collect();
        let rest = max - parent.usage_precise();
        charges.push(groups[7].at(CpuId(7)).try_charge(rest).unwrap());
        let refused = groups[500].at(CpuId(9)).try_charge(Bytes(1)).unwrap_err();
        let ChargeError::OverMax {
            usage, escrowed, ..
        } = refused
        else {
            panic!("{refused}");
        };
        assert_eq!((usage, escrowed), (max, Bytes::ZERO));
        drop(charges.swap_remove(3));
        charges.push(groups[999].at(CpuId(11)).try_charge(share).unwrap());
        assert_eq!(parent.usage_precise(), max);
        drop(charges);
        tree.check_invariants();
        assert_eq!(parent.usage_precise(), Bytes::ZERO);
    }
}

// Goal: `low..=high` of usage and peak contain the exact values, and the promised width is reached,
// not exceeded. Method: fill every word to its cap, so that usage is at `low`; then take every
// token, so that usage is at `high`.
#[test]
fn the_interval_holds_the_usage_however_tokens_lie() {
    for nr_cpus in [1, 2, 8, 384] {
        let tree = GroupTree::new(nr_cpus);
        let top = child(&tree.root(), "top", Bytes::MAX.0);
        let groups = ["a", "b"].map(|name| child(&top, name, Bytes::MAX.0));
        let everywhere = || {
            groups
                .iter()
                .flat_map(|group| cpus(nr_cpus).map(move |on| (group, on)))
        };
        for (group, on) in everywhere() {
            // The first half brings as many tokens again, which are the second half.
            let half = Bytes(TOKENS_MAX.0 / 2);
            let mut charge = group.at(on).try_charge(half).unwrap();
            charge.at(on).try_grow(half).unwrap();
            charge.at(on).shrink(TOKENS_MAX);
        }
        let width = Bytes(TOKENS_MAX.0 * 2 * nr_cpus as u64);
        // Returns the interval while `used` is in use; every word is read.
        let interval = |used| Estimate {
            value: used,
            low: Bytes::ZERO,
            high: width,
        };
        let peak = interval(width);
        assert_eq!(top.usage(), interval(Bytes::ZERO));
        assert_eq!((top.usage_precise(), top.escrowed()), (Bytes::ZERO, width));
        let take = |(group, on): (&GroupNode, _)| group.at(on).try_charge(TOKENS_MAX).unwrap();
        let held: Vec<_> = everywhere().map(take).collect();
        assert_eq!(
            (top.usage(), top.escrowed()),
            (interval(width), Bytes::ZERO)
        );
        assert_eq!((top.usage_precise(), top.peak()), (width, peak));
        drop(held);
        assert_eq!((top.usage_precise(), top.peak()), (Bytes::ZERO, peak));
    }
}

// Symptom: the lower bound of a group's peak fell when words of more CPUs became live. Method: a
// large charge on one CPU, and small ones later on others.
#[test]
fn the_lower_bound_of_a_peak_never_falls() {
    let tree = GroupTree::new(8);
    let group = child(&tree.root(), "group", Bytes::MAX.0);
    drop(group.at(CpuId(0)).try_charge(Bytes::mib(4)).unwrap());
    let mut before = group.peak();
    for on in (1..8).map(CpuId) {
        drop(group.at(on).try_charge(Bytes(1)).unwrap());
        let now = group.peak();
        assert!(before.low <= now.low && before.high <= now.high, "{now}");
        assert!(now.contains(Bytes::mib(4)), "{now}");
        before = now;
    }
}

// Goal: an exact read is exact while other groups work, and so is the interval around it. Method:
// one thread resizes a charge of its own group and compares; three others churn sibling groups.
#[test]
fn precise_usage_is_exact_beside_other_groups() {
    let seed = seed::seed(1);
    let tree = GroupTree::new(8);
    let own = child(&tree.root(), "own", Bytes::MAX.0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for nth in 0..3 {
            let group = child(&tree.root(), &format!("n{nth}"), Bytes::MAX.0);
            let (mut rng, stop) = (rng_of(seed, nth), &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let pages = amount(rng.u64(1..100));
                    drop(group.at(cpu(&mut rng, 8)).try_charge(pages).unwrap());
                }
            });
        }
        let _stop = Stop(&stop);
        let mut rng = rng_of(seed, 9);
        let mut charge = own.try_charge(amount(0)).unwrap();
        for _ in 0..10_000 {
            let on = cpu(&mut rng, 8);
            if rng.bool() {
                charge.at(on).try_grow(amount(rng.u64(..80))).unwrap();
            } else {
                let part = Bytes(rng.u64(..=charge.bytes().0));
                charge.at(on).shrink(part);
            }
            assert_eq!(own.usage_precise(), charge.bytes());
            assert!(own.usage().contains(charge.bytes()));
            assert!(own.peak().high >= charge.bytes());
        }
    });
    tree.check_invariants();
}

/// Shared state of the threads of a torture.
struct Arena {
    tree: GroupTree,
    groups: Vec<GroupNode>,
    nr_cpus: usize,
    granted: AtomicU64,
    refused: AtomicU64,
}

impl Arena {
    /// A random tree with random limits, on some number of CPUs.
    fn new(rng: &mut fastrand::Rng) -> Self {
        let nr_cpus = [1, 2, 8, 384][rng.usize(..4)];
        let tree = GroupTree::new(nr_cpus);
        let mut groups = vec![tree.root()];
        for nth in 0..12 {
            let max = [5, 20, 60, 300, 2000][rng.usize(..5)];
            let parent = groups[rng.usize(..groups.len())].clone();
            groups.push(child(&parent, &format!("g{nth}"), max));
        }
        Self {
            tree,
            groups,
            nr_cpus,
            granted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Charges, grows, splits, shrinks and uncharges at random; ends with nothing held.
    fn churn(&self, mut rng: fastrand::Rng, nr_ops: usize) {
        let mut held: Vec<NodeCharge> = Vec::new();
        for _ in 0..nr_ops {
            let on = cpu(&mut rng, self.nr_cpus);
            let is_large = rng.u8(..8) == 0;
            let pages = amount(rng.u64(1..if is_large { 100 } else { 4 }));
            if held.is_empty() || (held.len() < 64 && rng.bool()) {
                let group = &self.groups[rng.usize(..self.groups.len())];
                let outcome = group.at(on).try_charge(pages);
                self.count(outcome.as_ref().err());
                held.extend(outcome);
                continue;
            }
            let nth = rng.usize(..held.len());
            match rng.u8(..4) {
                0 => self.count(held[nth].at(on).try_grow(pages).err().as_ref()),
                1 => {
                    let part = Bytes(rng.u64(..=held[nth].bytes().0));
                    let half = held[nth].split(part);
                    let group = self.tree.get(half.group()).unwrap();
                    group.at(on).uncharge(half.disown());
                }
                _ => drop(held.swap_remove(nth)),
            }
        }
    }

    fn count(&self, error: Option<&ChargeError>) {
        let outcomes = match error {
            None => &self.granted,
            Some(ChargeError::OverMax {
                usage,
                requested,
                max,
                ..
            }) => {
                assert!(*usage + *requested > *max, "refused with room");
                assert!(*usage <= *max, "{usage} used of {max}");
                &self.refused
            }
            Some(error) => panic!("{error}"),
        };
        outcomes.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks that no group is above its maximum, until stopped; returns the number of checks.
    fn observe(&self, stop: &AtomicBool) -> u64 {
        let mut looks = 0;
        while !stop.load(Ordering::Relaxed) {
            for group in &self.groups {
                let (usage, max) = (group.usage(), group.limits().max);
                assert!(
                    usage.high <= max,
                    "{} reserves {usage} of {max}",
                    group.path()
                );
                assert!(group.usage_precise() <= max);
            }
            looks += 1;
            thread::yield_now();
        }
        looks
    }
}

// Goal: under eight threads no maximum is ever exceeded at any group, no refusal is wrong, and
// nothing is lost. Method: random trees, limits and operations; an observer reads every group all
// the time; at the end every group must be at zero and able to take its whole maximum.
#[test]
fn torture_never_exceeds_a_maximum_and_loses_nothing() {
    let seed = seed::seed(1);
    let mut looks = 0;
    for round in 0..8 {
        let mut rng = rng_of(seed, 100 * round);
        let arena = Arena::new(&mut rng);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let observer = scope.spawn(|| arena.observe(&stop));
            let spawn = |nth| {
                let (arena, rng) = (&arena, rng_of(seed, 100 * round + nth));
                scope.spawn(move || arena.churn(rng, 8000))
            };
            let workers: Vec<_> = (1..=8).map(spawn).collect();
            // All are joined before any failure is passed on, so that the observer stops.
            let joined = workers.into_iter().map(thread::ScopedJoinHandle::join);
            let outcomes: Vec<_> = joined.collect();
            stop.store(true, Ordering::Relaxed);
            assert!(outcomes.iter().all(Result::is_ok), "a worker failed");
            looks += observer.join().unwrap();
        });
        let (granted, refused) = (arena.granted.into_inner(), arena.refused.into_inner());
        assert!(
            granted > 1000 && refused > 100,
            "{granted} granted, {refused} refused"
        );
        arena.tree.check_invariants();
        for group in &arena.groups {
            assert_eq!(group.usage_precise(), Bytes::ZERO, "{}", group.path());
        }
        for group in &arena.groups[1..] {
            let chain = std::iter::successors(Some(group.clone()), GroupNode::parent);
            let tightest = chain.map(|group| group.limits().max).min().unwrap();
            drop(group.at(CpuId(0)).try_charge(tightest).unwrap());
        }
    }
    assert!(looks > 8, "the observer looked {looks} times");
}

// Goal: a charge for which there is room at every moment is never refused, while pages move between
// CPUs and groups. Method: eight threads in eight groups below one maximum of 8 x 20 pages, each
// holding at most 20 at a time, so that most free pages are in escrow elsewhere.
#[test]
fn concurrent_charges_within_the_maximum_are_never_refused() {
    let seed = seed::seed(1);
    for nr_cpus in [2, 64] {
        let tree = GroupTree::new(nr_cpus);
        let top = child(&tree.root(), "top", 160);
        thread::scope(|scope| {
            for nth in 0..8 {
                let group = child(&top, &format!("g{nth}"), 20);
                let mut rng = rng_of(seed, nth);
                scope.spawn(move || {
                    for _ in 0..5000 {
                        let mut on = || cpu(&mut rng, nr_cpus);
                        let mut charge = group.at(on()).try_charge(amount(7)).unwrap();
                        charge.at(on()).try_grow(amount(13)).unwrap();
                        charge.at(on()).shrink(amount(9));
                        group.at(on()).uncharge(charge.disown());
                    }
                });
            }
        });
        tree.check_invariants();
        assert_eq!((top.usage_precise(), top.events().max), (Bytes::ZERO, 0));
    }
}

// Goal: from the return of `set_max` on, the reservations never grow above the new maximum, and it
// never returns Ok while usage is above. Method: six threads churn; one lowers and raises the
// maximum, and reads the reservations after each call: while they are above, they may only fall.
#[test]
fn a_lowered_maximum_holds_from_then_on() {
    let seed = seed::seed(1);
    let nr_cpus = 16;
    let tree = GroupTree::new(nr_cpus);
    let top = child(&tree.root(), "top", 500);
    let stop = AtomicBool::new(false);
    let churn = |group: GroupNode, mut rng: fastrand::Rng| {
        let mut held = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let (on, pages) = (cpu(&mut rng, nr_cpus), amount(rng.u64(1..6)));
            if rng.bool() && held.len() < 100 {
                held.extend(charged(group.at(on).try_charge(pages)));
            } else if !held.is_empty() {
                drop(held.swap_remove(rng.usize(..held.len())));
            }
        }
    };
    thread::scope(|scope| {
        for nth in 0..6 {
            let (group, rng) = (
                child(&top, &format!("g{nth}"), Bytes::MAX.0),
                rng_of(seed, nth),
            );
            let churn = &churn;
            scope.spawn(move || churn(group, rng));
        }
        let _stop = Stop(&stop);
        let mut rng = rng_of(seed, 9);
        let (mut nr_over, mut nr_within) = (0, 0);
        // On a busy machine the others may start late.
        for round in 0..100_000 {
            if round >= 1000 && nr_over > 0 && nr_within > 0 {
                break;
            }
            let max = amount(rng.u64(..500));
            let mut bound = match top.set_max(max) {
                Ok(()) => max,
                Err(MaxError::BelowUsage { usage, over, .. }) => {
                    assert_eq!(usage, max + over);
                    nr_over += 1;
                    top.usage().high
                }
                Err(error) => panic!("{error}"),
            };
            for _ in 0..20 {
                let reserved = top.usage().high;
                assert!(
                    reserved <= bound.max(max),
                    "{reserved} after {bound}, maximum {max}"
                );
                bound = reserved;
            }
            nr_within += u64::from(bound <= max);
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(
            nr_over > 0 && nr_within > 0,
            "{nr_over} over, {nr_within} within"
        );
    });
    tree.check_invariants();
    assert_eq!(tree.root().usage_precise(), Bytes::ZERO);
}

// Goal: groups come and go under load, ids are reused, and the ancestors are right in the end.
// Method: four threads create, charge, remove, and uncharge after the removal, by guard and by id.
#[test]
fn groups_come_and_go_under_load() {
    let seed = seed::seed(1);
    let tree = GroupTree::new(4);
    let top = child(&tree.root(), "top", 400);
    let id_max = AtomicU64::new(0);
    let live = |name: &str, rng: &mut fastrand::Rng| {
        let group = child(&top, name, Bytes::MAX.0);
        id_max.fetch_max(u64::from(group.id().0), Ordering::Relaxed);
        let guard = charged(group.at(cpu(rng, 4)).try_charge(amount(rng.u64(..100))));
        let page = charged(group.at(cpu(rng, 4)).try_charge(amount(1)));
        tree.remove(&group).unwrap();
        let refused = group.at(cpu(rng, 4)).try_charge(amount(1)).unwrap_err();
        assert_eq!(
            refused,
            ChargeError::Removed {
                group: group.path()
            }
        );
        if let Some(page) = page {
            assert_eq!(tree.get(group.id()).as_ref(), Some(&group));
            tree.uncharge(group.id(), page.disown());
        }
        drop(guard);
    };
    thread::scope(|scope| {
        for nth in 0..4 {
            let (live, mut rng) = (&live, rng_of(seed, nth));
            scope.spawn(move || {
                for round in 0..2000 {
                    live(&format!("t{nth}-{round}"), &mut rng);
                }
            });
        }
    });
    tree.check_invariants();
    assert_eq!(tree.root().usage_precise(), Bytes::ZERO);
    assert!(id_max.into_inner() < 100, "ids are not reused");
    assert!(tree.get(GroupId(5000)).is_none());
    drop(top.try_charge(amount(400)).unwrap());
}

// Goal: a charge moves between threads and outlives its tree.
#[test]
fn a_charge_outlives_its_tree_on_another_thread() {
    let charge = GroupTree::new(2).root().try_charge(amount(3)).unwrap();
    thread::spawn(move || drop(charge)).join().unwrap();
}
