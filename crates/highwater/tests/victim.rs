//! The promise: no other candidate is worse than the victim by more than the stated gap, ineligible
//! candidates are never selected, and selection allocates nothing.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]
#![expect(unsafe_code, reason = "counts the allocator's calls")]

#[path = "../src/seed.rs"]
mod seed;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};

use highwater::group::{GroupTree, Limits};
use highwater::units::{Bytes, CpuId, Estimate, OomScoreAdj};
use highwater::victim::{
    Candidates, Choice, Decision, Policy, Proof, Selector, Standing, State, select,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts the calls of each thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    /// # Safety
    ///
    /// As for the trait.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of this function, which is the same.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    ///
    /// As for the trait.
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }

    /// # Safety
    ///
    /// As for the trait.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Returns the result of `work`, and the number of its allocations.
fn counting<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATIONS.get();
    let result = work();
    (result, ALLOCATIONS.get() - before)
}

/// Returns a generator for the `nth` test; prints the seed.
fn rng(nth: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed::seed(1) * 1000 + nth)
}

/// Candidates with their exact usage, by number.
struct Population {
    members: Vec<(Standing, u64)>,
    /// The order in which they are visited.
    order: Vec<usize>,
    total: u64,
    reads: Cell<usize>,
}

impl Candidates for Population {
    type Id = usize;

    fn for_each(&self, mut visit: impl FnMut(usize, &Standing)) {
        for id in &self.order {
            visit(*id, &self.members[*id].0);
        }
    }

    fn precise_usage(&self, id: usize) -> Option<Bytes> {
        self.reads.set(self.reads.get() + 1);
        Some(Bytes(self.members[id].1))
    }
}

impl Population {
    fn new(members: Vec<(Standing, u64)>, total: u64) -> Self {
        Self {
            order: (0..members.len()).collect(),
            members,
            total,
            reads: Cell::new(0),
        }
    }

    /// Ordinary members, each known within `below` and `above`.
    fn ordinary(usages: impl IntoIterator<Item = u64>, below: u64, above: u64) -> Self {
        let members = usages.into_iter().map(|exact| {
            let usage = around(exact, below, above);
            (Standing::from(usage), exact)
        });
        Self::new(members.collect(), 0)
    }

    /// Returns the exact badness, in numbers wide enough not to overflow.
    fn badness(&self, id: usize) -> i128 {
        let (standing, exact) = &self.members[id];
        self.score(standing, *exact)
    }

    fn score(&self, standing: &Standing, usage: u64) -> i128 {
        if standing.state == State::First {
            return i128::from(i64::MAX);
        }
        let points = i128::from(standing.oom_score_adj.get()) * i128::from(self.total) / 1000;
        (i128::from(usage) + points).clamp(i128::from(i64::MIN) + 1, i128::from(i64::MAX) - 1)
    }

    /// Returns the eligible candidates, worst first and lower numbers before.
    fn by_badness(&self, floor: u64) -> Vec<usize> {
        let is_eligible = |id: &usize| {
            let (standing, exact) = &self.members[*id];
            *exact >= floor
                && standing.oom_score_adj != OomScoreAdj::UNKILLABLE
                && matches!(standing.state, State::Ordinary | State::First)
        };
        let mut ids: Vec<_> = (0..self.members.len()).filter(is_eligible).collect();
        ids.sort_by_key(|id| (Reverse(self.badness(*id)), *id));
        ids
    }

    /// Returns the highest lower bound of a badness.
    fn surest(&self, floor: u64) -> Option<i128> {
        self.by_badness(floor)
            .into_iter()
            .filter(|id| self.members[*id].0.usage.low.0 >= floor)
            .map(|id| self.score(&self.members[id].0, self.members[id].0.usage.low.0))
            .max()
    }
}

fn around(exact: u64, below: u64, above: u64) -> Estimate<Bytes> {
    Estimate {
        value: Bytes(exact),
        low: Bytes(exact.saturating_sub(below)),
        high: Bytes(exact.saturating_add(above)),
    }
}

/// Returns a population that makes a search hard: near ties, intervals that end anywhere,
/// adjustments, and numbers up to the largest.
fn random_population(rng: &mut fastrand::Rng) -> Population {
    let spread = [3, 100, 1 << 20, 1 << 62, u64::MAX][rng.usize(..5)];
    let base = rng.u64(0..=u64::MAX - spread) >> rng.u32(0..64);
    let width = (spread >> rng.u32(0..6)).max(1);
    let is_plain = rng.bool();
    let members = (0..rng.usize(0..60)).map(|_| {
        let exact = base + rng.u64(0..=spread);
        let (below, above) = match rng.u32(0..4) {
            0 => (0, 0),
            1 => (0, rng.u64(0..width)),
            2 => (rng.u64(0..width), 0),
            _ => (rng.u64(0..width), rng.u64(0..width)),
        };
        let adj = match rng.u32(0..6) {
            _ if is_plain => 0,
            0 => -1000,
            1 => rng.i32(-999..=1000),
            _ => 0,
        };
        let state = match rng.u32(0..20) {
            _ if is_plain => State::Ordinary,
            0 => State::First,
            1 => State::Spared,
            _ => State::Ordinary,
        };
        let standing = Standing {
            usage: around(exact, below, above),
            oom_score_adj: OomScoreAdj::clamped(adj),
            state,
        };
        (standing, exact)
    });
    let members = members.collect();
    Population::new(members, [0, 1000, 1 << 40, u64::MAX][rng.usize(..4)])
}

/// Checks one decision against the sorted truth.
fn check(population: &Population, policy: Policy, reads_max: usize, floor: u64) -> Option<usize> {
    let policy = Policy {
        reads_max,
        floor: Bytes(floor),
        total: Bytes(population.total),
        ..policy
    };
    let truth = population.by_badness(floor);
    population.reads.set(0);
    let decision = Selector::with_capacity(100).select(population, &policy);
    let Decision::Chosen(choice) = decision else {
        assert_eq!(truth, [], "a candidate was eligible: {decision:?}");
        return None;
    };
    let census = choice.census;
    assert_eq!(census.reads, population.reads.get());
    assert_eq!(census.scanned, population.members.len());
    assert!(census.passes == 1 || census.reads > reads_max, "{choice}");
    assert!(census.in_reach <= census.eligible && census.eligible <= census.scanned);
    assert!(truth.contains(&choice.id), "{choice:?}");
    let exact = population.badness(choice.id);
    let was_stopped = choice.proof == Proof::ReadsSpent;
    assert!(choice.exact.is_some() || reads_max == 0 || !was_stopped);
    if choice.exact.is_some() {
        assert_eq!(i128::from(choice.badness), exact);
    } else {
        assert!(i128::from(choice.badness) <= exact);
    }
    for other in truth.iter().filter(|id| **id != choice.id) {
        let worse = population.badness(*other) - i128::from(choice.badness);
        assert!(
            worse <= i128::from(choice.gap.0),
            "{other} by {worse}: {choice}"
        );
    }
    if let Some(surest) = population.surest(floor) {
        let is_reached = exact >= surest || choice.proof == Proof::Indifferent;
        assert!(is_reached, "{surest} was certain: {choice}");
        assert!(census.reads <= reads_max, "{choice}");
    }
    if let Some(next) = truth.iter().find(|id| **id != choice.id) {
        let runner_up = choice.runner_up.unwrap();
        assert!(i128::from(runner_up.badness) >= population.badness(*next));
    }
    match choice.proof {
        Proof::Proven => assert_eq!(population.badness(truth[0]), exact),
        Proof::Indifferent => assert!(choice.gap > Bytes::ZERO),
        Proof::ReadsSpent => assert!(census.reads >= reads_max && choice.gap > Bytes::ZERO),
    }
    Some(choice.id)
}

// Goal: the stated guarantee, for every number of reads. Method: random hard populations; an oracle
// that sorts by exact badness in 128 bits.
#[test]
fn no_other_is_worse_by_more_than_the_gap() {
    let mut rng = rng(1);
    for _ in 0..4000 {
        let population = random_population(&mut rng);
        let floor = match rng.u32(0..3) {
            0 => 1 + rng.u64(..) / 2,
            _ => 1,
        };
        for reads_max in [0, 1, 2, 16] {
            check(&population, Policy::default(), reads_max, floor);
        }
        let wide = Policy {
            indifferent_within: Bytes(rng.u64(..) >> rng.u32(0..64)),
            ..Policy::default()
        };
        check(&population, wide, usize::MAX, floor);
        let worst = population.by_badness(floor).first().copied();
        let read = Policy {
            reads_victim: true,
            ..Policy::default()
        };
        check(&population, read, rng.usize(..20), floor);
        let proven = check(&population, Policy::default(), usize::MAX, floor);
        assert_eq!(
            proven, worst,
            "with all reads, the worst and the lowest number"
        );
    }
}

// Goal: too little memory costs passes, not the choice. Method: the same search with 2 to 20
// entries and with more than it needs; the first population is one of which all are read.
#[test]
fn any_capacity_gives_the_same_choice() {
    let mut rng = rng(2);
    let mut most_passes = 0;
    for round in 0..1500 {
        let population = match round {
            0 => Population::ordinary(1000..1060, 500, 500),
            _ => random_population(&mut rng),
        };
        for reads_max in [0, 1, 3, 16, usize::MAX] {
            let mut policy = Policy {
                reads_max,
                total: Bytes(population.total),
                ..Policy::default()
            };
            if rng.bool() {
                policy.indifferent_within = Bytes(rng.u64(..) >> rng.u32(0..64));
            }
            if rng.bool() {
                policy.reads_victim = true;
            }
            let with = |capacity| {
                let decision = Selector::with_capacity(capacity).select(&population, &policy);
                decision.chosen().map(|mut choice: Choice<usize>| {
                    let passes = std::mem::take(&mut choice.census.passes);
                    assert!(
                        passes <= choice.census.reads.max(1),
                        "{passes} passes: {choice}"
                    );
                    (choice, passes)
                })
            };
            let Some((roomy, passes)) = with(100) else {
                assert_eq!(with(rng.usize(0..20)), None);
                continue;
            };
            assert_eq!(passes, 1);
            for capacity in [0, 1, 2, rng.usize(3..20)] {
                let (choice, passes) = with(capacity).unwrap();
                assert_eq!(choice, roomy, "with {capacity} entries");
                most_passes = passes.max(most_passes);
            }
        }
    }
    assert!(most_passes > 10, "no search was made to begin again");
}

// Goal: no more passes than reads, also with the least memory. Method: the highest upper bound
// belongs to a small candidate, so that the leader is the first that one entry would leave out.
#[test]
fn the_least_capacity_takes_no_pass_without_a_read() {
    let members = [(0..=10, 3), (6..=8, 7), (0..=5, 1)].map(|(usage, exact)| {
        let (low, high) = (Bytes(*usage.start()), Bytes(*usage.end()));
        let value = Bytes(exact);
        (Standing::from(Estimate { value, low, high }), exact)
    });
    let population = Population::new(members.into(), 0);
    for capacity in [0, 1, 2, 17] {
        let decision = Selector::with_capacity(capacity).select(&population, &Policy::default());
        let chosen = decision.chosen().unwrap();
        assert_eq!((chosen.id, chosen.gap), (1, Bytes(0)));
        let census = chosen.census;
        assert_eq!((census.reads, census.passes), (1, 1), "capacity {capacity}");
    }
}

// Goal: the same state gives the same victim, in any order of visits. Method: shuffle; many are
// equal in one bound or the other.
#[test]
fn the_order_of_candidates_does_not_matter() {
    let mut rng = rng(4);
    for _ in 0..2000 {
        let mut population = random_population(&mut rng);
        for reads_max in [0, 1, 3, 16, usize::MAX] {
            let policy = Policy {
                reads_max,
                total: Bytes(population.total),
                ..Policy::default()
            };
            let mut selector = Selector::with_capacity(rng.usize(..20));
            let mut choose = |population: &Population| {
                let chosen = selector.select(population, &policy).chosen();
                chosen.map(|mut chosen| {
                    // The number in reach of the highest bound so far depends on the order.
                    chosen.census.in_reach = 0;
                    chosen
                })
            };
            population.order.sort_unstable();
            let in_order = choose(&population);
            rng.shuffle(&mut population.order);
            assert_eq!(choose(&population), in_order, "{:?}", population.order);
        }
    }
}

// Goal: a limit of 16 does not walk down a list. Method: the case that defeats the published
// two-pass selection: 10,000 near-equal candidates, larger ones first, intervals wider than they
// differ.
#[test]
fn near_equals_in_falling_order_do_not_lead_downhill() {
    let usages = (0..10_000_u64).map(|at| 51_200 - at / 2);
    let population = Population::ordinary(usages, 0, 40_000);
    let chosen = Selector::with_capacity(17)
        .select(&population, &Policy::default())
        .chosen()
        .unwrap();
    assert_eq!((chosen.id, chosen.census.reads), (0, 16), "{chosen}");
    assert_eq!(chosen.proof, Proof::ReadsSpent);
    assert_eq!(chosen.gap, Bytes(40_000 - 8), "{chosen}");
}

// Goal: one hog is found and proven by intervals alone, among any number. Method: one of 10,000
// holds 100 times the others, at each end of the list and inside; then the same with its exact
// number requested.
#[test]
fn a_hog_takes_no_read() {
    for hog in [0, 5000, 9999] {
        let usages = (0..10_000).map(|at| if at == hog { 1_000_000 } else { 10_000 });
        let population = Population::ordinary(usages, 2000, 2000);
        for (policy, exact) in [
            (Policy::default(), None),
            (
                Policy {
                    reads_victim: true,
                    ..Policy::default()
                },
                Some(Bytes(1_000_000)),
            ),
        ] {
            let decision = Selector::with_capacity(17).select(&population, &policy);
            let chosen = decision.chosen().unwrap();
            assert_eq!((chosen.id, chosen.exact), (hog, exact), "{chosen}");
            assert_eq!(chosen.census.reads, usize::from(exact.is_some()));
            assert_eq!(chosen.proof, Proof::Proven);
            let next = chosen.runner_up.unwrap();
            assert_eq!((next.badness, next.is_exact), (12_000, false));
        }
    }
}

// Goal: the last read is not wasted on an upper bound. Method: one read, a candidate that may hold
// much and one that certainly holds some.
#[test]
fn the_last_read_goes_to_who_certainly_holds_most() {
    let members = [(0, 1000, 5), (600, 700, 650), (0, 900, 10)];
    let members = members.map(|(low, high, exact)| {
        let usage = Estimate {
            value: Bytes(low),
            low: Bytes(low),
            high: Bytes(high),
        };
        (Standing::from(usage), exact)
    });
    let population = Population::new(members.to_vec(), 0);
    for reads_max in [0, 1, 2] {
        let policy = Policy {
            reads_max,
            ..Policy::default()
        };
        let decision = Selector::with_capacity(3).select(&population, &policy);
        let chosen = decision.chosen().unwrap();
        assert_eq!(chosen.id, 1, "with {reads_max} reads: {chosen}");
        assert_eq!(chosen.census.reads, reads_max);
    }
}

// Goal: a limit on reads never prevents a selection. Method: 100 candidates that seem to hold
// something and hold nothing, and one that holds a page.
#[test]
fn those_below_the_floor_use_up_no_reads() {
    let mut usages = vec![0; 100];
    usages[99] = 1;
    let population = Population::ordinary(usages, 1, 64);
    for reads_max in [0, 1, 16] {
        let policy = Policy {
            reads_max,
            ..Policy::default()
        };
        let decision = Selector::with_capacity(17).select(&population, &policy);
        assert_eq!(decision.chosen().unwrap().id, 99);
    }
    let nobody = Policy {
        floor: Bytes(2),
        ..Policy::default()
    };
    let decision = Selector::with_capacity(17).select(&population, &nobody);
    assert!(matches!(decision, Decision::Nobody(census) if census.reads == 100));
}

// Goal: while a candidate gives memory back, no other is stopped. Method: among larger ones, one
// that is dying; it counts while it may hold something.
#[test]
fn a_dying_candidate_means_wait() {
    let mut population = Population::ordinary([500, 40, 700, 30], 5, 5);
    population.members[1].0.state = State::Dying;
    population.members[3].0.state = State::Dying;
    let mut selector = Selector::with_capacity(17);
    let decision = selector.select(&population, &Policy::default());
    assert!(matches!(decision, Decision::Wait { dying: 1, census } if census.eligible == 2));
    assert_eq!(population.reads.get(), 0);
    let large_only = Policy {
        floor: Bytes(100),
        ..Policy::default()
    };
    let chosen = selector.select(&population, &large_only).chosen().unwrap();
    assert_eq!(chosen.id, 2, "its memory would be too little");
}

/// Candidates whose code panics after the given number of calls.
struct Broken<'a>(&'a Population, Cell<u32>);

impl Candidates for Broken<'_> {
    type Id = usize;

    fn for_each(&self, mut visit: impl FnMut(usize, &Standing)) {
        self.0.for_each(|id, standing| {
            self.1.set(self.1.get().checked_sub(1).expect("planted"));
            visit(id, standing);
        });
    }

    fn precise_usage(&self, id: usize) -> Option<Bytes> {
        self.1.set(self.1.get().checked_sub(1).expect("planted"));
        self.0.precise_usage(id)
    }
}

// Goal: the reserved memory survives a candidate that panics. Method: panic at every call in turn,
// then select with the same selector and count allocations.
#[test]
fn a_panic_of_a_candidate_leaves_the_selector_whole() {
    let population = Population::ordinary([500, 40, 700, 30], 5, 500);
    let mut selector = Selector::with_capacity(17);
    for calls in 0..5 {
        let broken = Broken(&population, Cell::new(calls));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            selector.select(&broken, &Policy::default())
        }));
        assert!(outcome.is_err());
        assert_eq!(selector.capacity(), 17);
        let (decision, allocations) = counting(|| selector.select(&population, &Policy::default()));
        assert_eq!((decision.chosen().unwrap().id, allocations), (2, 0));
    }
}

// Goal: selection runs when memory is exhausted. Method: count the allocator's calls during
// searches of every kind, over members of a list and over groups of a tree.
#[test]
fn choosing_allocates_nothing() {
    let mut rng = rng(3);
    let (_, seen) = counting(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(seen, 1, "the counter counts");
    for capacity in [0, 1, 17, 100] {
        let mut selector = Selector::with_capacity(capacity);
        for reads_max in [0, 1, 16, usize::MAX] {
            let population = random_population(&mut rng);
            let policy = Policy {
                reads_max,
                ..Policy::default()
            };
            let (_, allocations) = counting(|| selector.select(&population, &policy));
            assert_eq!(allocations, 0, "capacity {capacity}, {reads_max} reads");
        }
    }
    let tree = GroupTree::new(64);
    let charges: Vec<_> = (0..100_u64)
        .map(|at| {
            let parent = tree.root().child(&format!("t{at}"), Limits::default());
            let leaf = parent.unwrap().child("q", Limits::default()).unwrap();
            let cpu = CpuId::from_index(rng.usize(..64));
            leaf.at(cpu).try_charge(Bytes(1000 + at % 50)).unwrap()
        })
        .collect();
    let root = tree.root();
    let mut selector = Selector::with_capacity(17);
    for reads_max in [0, 16, usize::MAX] {
        let policy = Policy {
            reads_max,
            ..Policy::default()
        };
        let mut choose = || select(&tree, &root, |_| false, &policy, &mut selector).chosen();
        // Debug builds keep held locks in a list of the thread, allocated at its first lock.
        drop(choose());
        let (victim, allocations) = counting(choose);
        assert_eq!(allocations, 0, "{reads_max} reads");
        let usage = victim.unwrap().record.usage();
        let is_proven = reads_max == usize::MAX;
        assert!(usage >= Bytes(1000) && (usage == Bytes(1049) || !is_proven));
    }
    drop(charges);
}
