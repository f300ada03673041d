//! Tests of the cache against a model of a kernel, at its bounds, and under threads in both
//! regimes.

use std::process::Command;

use super::*;
use highwater::lab::percpu::harness::{
    allowed_cpus, run_on, run_unregistered, skipped, while_moved_around,
};
use highwater::lab::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use highwater::lab::sync::thread;
use highwater::units::Estimate;

const FILE: usize = 0;
const ANON: usize = 1;
const SWAP: usize = 2;

fn atomic_cache(nr_cpus: usize, threshold: u32, foreign: Foreign) -> Arc<ActiveCache> {
    let config = ActiveConfig { threshold, foreign };
    ActiveCache::with_config(&Topology::flat(nr_cpus), Regime::Atomic, config)
}

/// Returns the cache of this machine, if it can have restartable words.
fn restartable_cache(threshold: u32) -> Option<Arc<ActiveCache>> {
    let config = ActiveConfig {
        threshold,
        foreign: Foreign::Switch,
    };
    let cache = ActiveCache::with_config(&Topology::detect(), Regime::Restartable, config);
    let is_restartable = cache.regime() == Regime::Restartable;
    if !is_restartable {
        skipped("no sequences here that other CPUs can restart");
    }
    is_restartable.then_some(cache)
}

/// The model: the state of spaces and CPUs in plain words.
struct Plain {
    threshold: i64,
    foreign: Foreign,
    /// By CPU: the space, and its parked amounts.
    cpus: Vec<(Option<usize>, [i64; MEMBERS])>,
    /// By space.
    totals: Vec<[i64; MEMBERS]>,
    stats: ActiveStats,
}

impl Plain {
    fn switch(&mut self, cpu: usize, next: Option<usize>) -> bool {
        if self.cpus[cpu].0 == next {
            return false;
        }
        let (last, parked) = std::mem::replace(&mut self.cpus[cpu], (next, [0; MEMBERS]));
        if let Some(last) = last {
            for (total, parked) in self.totals[last].iter_mut().zip(parked) {
                *total += parked;
            }
        }
        self.stats.switches += 1;
        let flushed = parked != [0; MEMBERS];
        self.stats.flushes += u64::from(flushed);
        flushed
    }

    fn add(&mut self, cpu: usize, space: usize, member: usize, delta: i64) -> Counted {
        let is_foreign = self.cpus[cpu].0 != Some(space);
        if is_foreign && self.foreign == Foreign::Miss {
            self.totals[space][member] += delta;
            self.stats.misses += 1;
            return Counted::Miss;
        }
        if is_foreign {
            self.switch(cpu, Some(space));
        }
        self.stats.hits += 1;
        let parked = &mut self.cpus[cpu].1;
        let folds = (parked[member] + delta).abs() >= self.threshold;
        parked[member] += delta;
        if folds {
            for (total, parked) in self.totals[space].iter_mut().zip(parked) {
                *total += std::mem::take(parked);
            }
            self.stats.folds += 1;
        }
        match (is_foreign, folds) {
            (true, _) => Counted::Switched { written: 0 },
            (false, true) => Counted::Folded { written: 0 },
            (false, false) => Counted::Hit,
        }
    }

    fn sum(&self, space: usize, member: usize) -> i64 {
        let owned = self.cpus.iter().filter(|(owner, _)| *owner == Some(space));
        self.totals[space][member] + owned.map(|(_, parked)| parked[member]).sum::<i64>()
    }
}

/// Returns whether two outcomes are of one kind, ignoring the number of writes.
fn same_kind(one: Counted, other: Counted) -> bool {
    std::mem::discriminant(&one) == std::mem::discriminant(&other)
}

// Goal: hits, misses, folds, flushes and sums are those of a kernel that does the same, in both
// modes. Method: random adds, switches, CPUs that go offline, and spaces that end and begin, on up
// to 384 CPUs, against plain words; every sum after every step of one space.
#[test]
fn everything_is_as_in_a_model() {
    let mut random = crate::seed::rng(51);
    for (nr_cpus, threshold) in [(1, 1), (2, 2), (3, 40), (64, 1024), (384, 40)] {
        for foreign in [Foreign::Miss, Foreign::Switch] {
            model_run(&mut random, nr_cpus, threshold, foreign);
        }
    }
}

fn model_run(random: &mut fastrand::Rng, nr_cpus: usize, threshold: u32, foreign: Foreign) {
    const SPACES: usize = 5;
    let cache = atomic_cache(nr_cpus, threshold, foreign);
    let mut spaces: Vec<_> = (0..SPACES).map(|_| cache.space()).collect();
    let mut plain = Plain {
        threshold: i64::from(threshold),
        foreign,
        cpus: vec![(None, [0; MEMBERS]); nr_cpus],
        totals: vec![[0; MEMBERS]; SPACES],
        stats: ActiveStats::default(),
    };
    for _ in 0..4_000 {
        let (at, cpu) = (random.usize(..SPACES), random.usize(..nr_cpus.min(7)));
        let on = CpuId::from_index(cpu);
        match random.u8(..20) {
            0 => {
                let flushed = plain.switch(cpu, None);
                assert_eq!(cache.offline(on), flushed);
            }
            1..5 => {
                let next = random.bool().then_some(at);
                let switched = cache.switch_on(on, next.map(|at| &spaces[at]));
                let was_active = plain.cpus[cpu].0 == next;
                let flushed = plain.switch(cpu, next);
                match switched {
                    Switch::Kept => assert!(was_active),
                    Switch::Done { flushed: seen, .. } => assert_eq!(seen, flushed),
                    Switch::Busy => panic!("no other thread acts as {on}"),
                }
            }
            5 => {
                let ended = std::mem::replace(&mut spaces[at], cache.space());
                let sums: [_; MEMBERS] = std::array::from_fn(|member| plain.sum(at, member));
                let left = ended.end().map_or([0; MEMBERS], |left| left.sums);
                assert_eq!(left, sums);
                for cpu in 0..nr_cpus {
                    if plain.cpus[cpu].0 == Some(at) {
                        plain.switch(cpu, None);
                    }
                }
                plain.totals[at] = [0; MEMBERS];
            }
            _ => {
                let member = random.usize(..MEMBERS);
                let delta = [1, 1, -1, 16, 512, -512][random.usize(..6)];
                let counted = spaces[at].add_on(on, member, delta);
                let expected = plain.add(cpu, at, member, delta);
                assert!(same_kind(counted, expected), "{counted:?} {expected:?}");
            }
        }
        for member in 0..MEMBERS {
            let sum = plain.sum(at, member);
            let seen = spaces[at].approximate_sum(member);
            assert_eq!(spaces[at].precise_sum(member), Estimate::exact(sum));
            assert!(seen.contains(sum) && seen.value == plain.totals[at][member]);
            let bound = i64::from(threshold - 1) * i64::from(spaces[at].nr_marked());
            assert_eq!(seen.high - seen.value, bound);
        }
    }
    cache.check_invariants();
    let ActiveStats {
        hits,
        misses,
        switches,
        flushes,
        folds,
        ..
    } = cache.stats();
    let of = |stats: &ActiveStats| (stats.hits, stats.misses, stats.folds, stats.flushes);
    assert_eq!((hits, misses, folds, flushes), of(&plain.stats));
    assert_eq!(switches, plain.stats.switches);
}

// Goal: totals are off by exactly the promised bound, in both directions, and never by more.
// Method: park as much as possible on every CPU; the next event of each folds.
#[test]
fn totals_reach_their_bound() {
    for nr_cpus in [1, 2, 3, 64, 250, 384] {
        for sign in [1, -1] {
            let cache = atomic_cache(nr_cpus, THRESHOLD_DEFAULT, Foreign::Switch);
            let space = cache.space();
            let most = i64::from(THRESHOLD_DEFAULT - 1) * sign;
            for cpu in (0..nr_cpus).map(CpuId::from_index) {
                space.add_on(cpu, ANON, most);
            }
            let all = most * i64::try_from(nr_cpus).expect("few CPUs");
            let seen = space.approximate_sum(ANON);
            assert_eq!(seen.value, 0);
            let end = if sign > 0 { seen.high } else { seen.low };
            assert_eq!(end, all, "{nr_cpus} CPUs");
            assert_eq!(space.precise_sum(ANON), Estimate::exact(all));
            for cpu in (0..nr_cpus).map(CpuId::from_index) {
                let counted = space.add_on(cpu, ANON, sign);
                assert_eq!(counted, Counted::Folded { written: 1 });
            }
            assert_eq!(
                space.approximate_sum(ANON).value,
                space.precise_sum(ANON).value
            );
        }
    }
}

// Goal: the interval of several members is the sum of theirs; a walk reads them all at once.
#[test]
fn members_add_up() {
    let cache = atomic_cache(4, 10, Foreign::Switch);
    let space = cache.space();
    for (member, pages) in [(FILE, 9), (ANON, -3), (SWAP, 100)] {
        space.add_on(CpuId(2), member, pages);
    }
    let resident = [FILE, ANON, 3];
    assert_eq!(space.precise_sum_of(&resident), Estimate::exact(6));
    let seen = space.approximate_sum_of(&resident);
    assert_eq!((seen.low, seen.value, seen.high), (-21, 6, 33));
    assert_eq!(cache.stats().visits, 1);
}

// Goal: a switch writes the documented lines: nothing shared if nothing was parked and the CPU has
// been visited; else the totals that changed and the marks.
#[test]
fn switches_write_what_they_must() {
    let cache = atomic_cache(2, 100, Foreign::Miss);
    let (one, other) = (cache.space(), cache.space());
    let to = |space| match cache.switch_on(CpuId(1), Some(space)) {
        Switch::Done { written, .. } => written,
        other => panic!("{other:?}"),
    };
    assert_eq!((to(&one), to(&other)), (1, 1), "a mark each");
    assert_eq!((to(&one), to(&other)), (0, 0), "both marks are still there");
    other.add_on(CpuId(1), ANON, 3);
    other.add_on(CpuId(1), FILE, 1);
    assert_eq!(to(&one), 3, "two totals, and the mark");
    assert_eq!(to(&other), 1, "the mark again");
    assert_eq!(cache.switch_on(CpuId(1), Some(&other)), Switch::Kept);
}

// Goal: numbers are reused, while a CPU of the ended space had not been switched.
#[test]
fn a_space_begins_at_zero_where_another_ended() {
    let cache = atomic_cache(3, 100, Foreign::Switch);
    for round in 1..100 {
        let space = cache.space();
        for cpu in [0, 2] {
            assert_eq!(
                space.precise_sum(ANON),
                Estimate::exact(i64::from(cpu / 2) * round)
            );
            space.add_on(CpuId(cpu), ANON, round);
        }
        assert_eq!(space.end().map(|left| left.sums[ANON]), Some(2 * round));
        assert_eq!(cache.stats().spaces, 0);
        cache.check_invariants();
    }
}

// Goal: threads that act as the same few CPUs lose nothing, and no reader sees too much or too
// little. Method: `under_fire`, with few adds to a fold and many.
#[test]
fn threads_that_act_as_cpus_are_exact() {
    for (threshold, foreign) in [(50, Foreign::Miss), (1024, Foreign::Switch)] {
        let cache = atomic_cache(3, threshold, foreign);
        Fire::at(&cache).burn(|random| Some(CpuId(random.u32(..3))));
    }
}

// Goal: the same with restartable words: threads are moved, interrupted, and some have no rseq.
#[test]
fn threads_of_the_machine_are_exact() {
    for threshold in [50, 1024] {
        let Some(cache) = restartable_cache(threshold) else {
            return;
        };
        Fire::at(&cache).burn(|_| None);
    }
}

/// Spaces that only grow, and the additions to each: begun and done.
struct Fire {
    cache: Arc<ActiveCache>,
    spaces: [ActiveSpace; 2],
    begun: [AtomicI64; 2],
    done: [AtomicI64; 2],
    is_over: AtomicBool,
}

impl Fire {
    const SLICES: usize = 150;
    const SLICES_MAX: usize = 3_000;
    const READS: u64 = 60_000;
    const READS_MIN: u64 = 1_000;
    const ADDS: usize = 60;

    fn at(cache: &Arc<ActiveCache>) -> Self {
        Self {
            cache: Arc::clone(cache),
            spaces: [(); 2].map(|()| cache.space()),
            begun: [(); 2].map(|()| AtomicI64::new(0)),
            done: [(); 2].map(|()| AtomicI64::new(0)),
            is_over: AtomicBool::new(false),
        }
    }

    /// Threads switch CPUs to a space, add to it for a while, and take CPUs offline at times;
    /// readers compare with the additions begun and done; then the spaces end with the right sums.
    fn burn(self, act_as: fn(&mut fastrand::Rng) -> Option<CpuId>) {
        let seed = crate::seed::rng(52).u64(..);
        let work = |index: u64| {
            let mut random = fastrand::Rng::with_seed(seed.wrapping_add(index));
            for slice in 0.. {
                let cpu = act_as(&mut random);
                self.slice(&mut random, cpu);
                let stats = self.cache.stats();
                // A busy machine may run the readers seldom.
                let are_enough = match slice {
                    ..Self::SLICES_MAX => stats.reads >= Self::READS,
                    _ => stats.reads > stats.fallbacks + Self::READS_MIN,
                };
                if slice >= Self::SLICES && are_enough {
                    break;
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| self.read_until_over());
            scope.spawn(|| run_unregistered(|| work(100)));
            while_moved_around(4, work);
            // Relaxed: ends the readers' loop.
            self.is_over.store(true, Ordering::Relaxed);
        });
        self.cache.check_invariants();
        let stats = self.cache.stats();
        assert!(
            stats.hits > 0 && stats.flushes > 0 && stats.folds > 0,
            "{stats:?}"
        );
        assert!(stats.reads > stats.fallbacks + Self::READS_MIN, "{stats:?}");
        for (space, done) in self.spaces.into_iter().zip(self.done) {
            let done = done.into_inner();
            assert_eq!(space.precise_sum(ANON), Estimate::exact(done), "{stats:?}");
            assert_eq!(
                space.end().map_or(0, |left| left.sums[ANON]),
                done,
                "{stats:?}"
            );
        }
    }

    fn slice(&self, random: &mut fastrand::Rng, cpu: Option<CpuId>) {
        let at = random.usize(..2);
        let space = &self.spaces[at];
        match cpu {
            Some(cpu) => self.cache.switch_on(cpu, Some(space)),
            None => self.cache.switch(Some(space)),
        };
        for _ in 0..Self::ADDS {
            let delta = random.i64(1..40);
            // Readers that see the addition see this, and readers that see `done` see the addition.
            self.begun[at].fetch_add(delta, Ordering::SeqCst);
            match cpu {
                Some(cpu) => space.add_on(cpu, ANON, delta),
                None => space.add(ANON, delta),
            };
            self.done[at].fetch_add(delta, Ordering::SeqCst);
        }
        if random.u8(..10) == 0 {
            let cpus = self.cache.nr_cpus();
            self.cache.offline(CpuId::from_index(random.usize(..cpus)));
        }
    }

    fn read_until_over(&self) {
        // Relaxed: ends the loop, and publishes nothing.
        while !self.is_over.load(Ordering::Relaxed) {
            for at in 0..2 {
                for read in [ActiveSpace::precise_sum, ActiveSpace::approximate_sum] {
                    let done = self.done[at].load(Ordering::SeqCst);
                    let seen = read(&self.spaces[at], ANON);
                    let begun = self.begun[at].load(Ordering::SeqCst);
                    assert!(
                        done <= seen.high && seen.low <= begun,
                        "{seen} is not in {done} to {begun}: {:?}",
                        self.cache
                    );
                }
            }
        }
    }
}

// Goal: spaces that end while others run on their CPUs are complete. Method: every thread
// repeatedly begins a space, adds a known sum from any CPU, and ends it.
#[test]
fn spaces_that_end_under_fire_are_complete() {
    let atomic = Some(atomic_cache(2, 20, Foreign::Switch));
    for cache in [atomic, restartable_cache(20)].into_iter().flatten() {
        while_moved_around(4, |_| {
            for round in 0..300 {
                let space = cache.space();
                for _ in 0..round % 60 {
                    space.add(SWAP, 2);
                }
                let left = space.end().map_or(0, |left| left.sums[SWAP]);
                assert_eq!(left, round % 60 * 2);
            }
        });
        assert_eq!(cache.stats().spaces, 0);
        cache.check_invariants();
    }
}

// Goal: the same if the C library does not register threads for rseq. Method: the test above in a
// process that was started that way.
#[test]
fn a_process_without_rseq_works() {
    let test = concat!(module_path!(), "::spaces_that_end_under_fire_are_complete");
    let test = test.split_once("::").expect("a path in this crate").1;
    let program = std::env::current_exe().expect("a test has a path");
    let output = Command::new(program)
        .args(["--exact", test])
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .output()
        .expect("the test program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

// Goal: a space that goes on adding where it is active writes nothing shared. Method: on each CPU
// of the machine, below the threshold; then a foreign addition.
#[test]
fn a_space_that_stays_hits() {
    let Some(cache) = restartable_cache(1024) else {
        return;
    };
    let (space, other) = (cache.space(), cache.space());
    let cpus = allowed_cpus();
    for &cpu in &cpus {
        run_on(cpu, || {
            space.add(ANON, 1);
            for _ in 0..1_000 {
                assert!(space.add(ANON, 1).is_hit());
            }
        });
    }
    let total = 1_001 * i64::try_from(cpus.len()).expect("few CPUs");
    assert_eq!(space.precise_sum(ANON), Estimate::exact(total));
    assert_eq!(space.approximate_sum(ANON).value, 0);
    run_on(cpus[0], || other.add(ANON, 5));
    assert_eq!(space.approximate_sum(ANON).value, 1_001);
    assert_eq!(space.precise_sum(ANON), Estimate::exact(total));
    assert_eq!(other.precise_sum(ANON), Estimate::exact(5));
}

// Goal: a thread without rseq counts in the totals.
#[test]
fn a_thread_without_rseq_misses() {
    let Some(cache) = restartable_cache(1024) else {
        return;
    };
    let space = cache.space();
    let missed = run_unregistered(|| {
        assert_eq!(cache.switch(Some(&space)), Switch::Busy);
        assert_eq!(space.add(ANON, 4), Counted::Miss);
    });
    if missed.is_some() {
        assert_eq!(space.approximate_sum(ANON), Estimate::exact(4));
    }
}

#[test]
#[should_panic(expected = "acting as C0 needs the atomic regime")]
fn acting_as_a_cpu_needs_the_atomic_regime() {
    match restartable_cache(8) {
        Some(cache) => _ = cache.space().add_on(CpuId(0), ANON, 1),
        None => panic!("acting as C0 needs the atomic regime: not checked here"),
    }
}

#[test]
#[should_panic(expected = "there is no word 4: a slot has 4")]
fn a_member_that_does_not_exist_is_refused() {
    atomic_cache(1, 8, Foreign::Miss).space().add(4, 1);
}

#[test]
#[should_panic(expected = "another cache")]
fn a_space_of_another_cache_is_refused() {
    let space = atomic_cache(1, 8, Foreign::Miss).space();
    atomic_cache(1, 8, Foreign::Miss).switch_on(CpuId(0), Some(&space));
}

#[test]
#[should_panic(expected = "a threshold of 0")]
fn a_threshold_of_nothing_is_refused() {
    let _ = atomic_cache(1, 0, Foreign::Miss);
}
