//! Counter sets (dual-mode per-CPU counters): a few counters of one object, in two cache lines
//! until a second CPU adds.
//!
//! Most objects are used by one CPU only, or die before a second one uses them. For those, per-CPU
//! words are wasted: 25 KiB and a walk over 384 lines. A set therefore begins with the words of one
//! CPU, the first that adds ([`Home`]), and gets words for all CPUs when another one adds:
//!
//! ```text
//!  line 0   home: words of the first CPU                plain adds by it
//!  line 1   away: words of all other CPUs               atomic adds, while there are no trees
//!           trees: none yet, or the block of all CPUs   from the second CPU on, all CPUs add here
//!           layout
//! ```
//!
//! **Invariant.** The value of a counter is the sum of all three places, always. Nothing is ever
//! moved from one to another: once the trees exist, `home` and `away` are no longer added to,
//! except by additions in progress, and readers go on to sum them. So nothing can be lost in an
//! upgrade, and one that fails for lack of memory changes nothing: other CPUs add to `away`, and
//! try to allocate the trees again after 1, 2, 4, 8 .. further additions.
//!
//! **Protocol.** A thread that adds away from home allocates a block and publishes it; of several,
//! the first wins ([`Published`]). A thread that finds a block adds to it. Reader: home, away, and
//! the trees if there are any.
//!
//! **Accuracy.** Home and away are exact, and so is a set without trees. With trees, the error is
//! theirs.
//!
//! Source: the dual-mode counters of G. Krisman Bertazi (RFC, November 2025; idea by J. Kara).
//! Deviation: the single writer is a CPU, not a thread; and the local word is left where it is
//! instead of being transferred, so no transfer can fail.

use std::fmt;

use super::trees::{CounterTrees, MEMBERS_MAX};
use super::{Accuracy, Climb, Layout};
use crate::percpu::{Home, Published};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use crate::units::{CpuId, Estimate};

/// `N` counters, at most 4, of an object used by few or many CPUs.
///
/// # Examples
///
/// See [`Layout`].
#[repr(C, align(64))]
pub struct CounterSet<const N: usize> {
    home: Home<N>,
    /// Written by: CPUs that are not at home, while there are no trees (relaxed add). Read by: any
    /// thread. Publishes: nothing but itself.
    away: [AtomicI64; N],
    pub(super) trees: Published<CounterTrees>,
    layout: Arc<Layout>,
    /// Additions away from home: at each power of two, an allocation of the trees is tried.
    ///
    /// Written by, read by: those additions (relaxed). Publishes: nothing.
    nr_away: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<CounterSet<4>>() == 128);

impl<const N: usize> CounterSet<N> {
    const FITS: () = assert!(0 < N && N <= MEMBERS_MAX, "a set has 1 to 4 counters");

    /// Returns counters at zero.
    ///
    /// # Cost
    ///
    /// No allocation. 128 bytes for four counters, and a reference to the layout.
    #[must_use]
    pub fn new(layout: &Arc<Layout>) -> Self {
        let () = Self::FITS;
        Self {
            home: Home::new(layout.regime),
            away: std::array::from_fn(|_| AtomicI64::new(0)),
            trees: Published::empty(),
            layout: Arc::clone(layout),
            nr_away: AtomicU32::new(0),
        }
    }

    /// Adds `delta` to `member`, counted on the CPU that the calling thread runs on.
    ///
    /// # Cost
    ///
    /// One plain add to a line of this CPU, as [`CounterTree::add`](super::CounterTree::add). The
    /// first addition by a second CPU allocates 64 bytes for each CPU and node (28 KiB for 384
    /// CPUs); if that fails, this and later ones by other CPUs cost an atomic addition each.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    // Always: the call would cost more than the addition.
    #[inline(always)]
    pub fn add(&self, member: usize, delta: i64) -> Climb {
        let is_added = match self.trees.get() {
            Some(trees) => trees.try_add_here(self.checked(member), delta),
            None => self.home.try_add_here(member, delta),
        };
        if is_added {
            return Climb::default();
        }
        self.add_slowly(member, delta)
    }

    /// Like [`add`](Self::add), after the plain store was not possible.
    #[inline(never)]
    fn add_slowly(&self, member: usize, delta: i64) -> Climb {
        match self.trees.get() {
            Some(trees) => trees.add(self.checked(member), delta),
            None if self.home.try_add(member, delta) => Climb::default(),
            None => self.add_away(None, member, delta),
        }
    }

    pub(super) fn add_early_on(&self, cpu: CpuId, member: usize, delta: i64) -> Climb {
        let nr_cpus = self.layout.topology.nr_cpus();
        assert!(
            cpu.index() < nr_cpus,
            "{cpu} is not one of the {nr_cpus} CPUs of this set"
        );
        if self.home.try_add_on(cpu, member, delta) {
            return Climb::default();
        }
        self.add_away(Some(cpu), member, delta)
    }

    /// Adds on a CPU that is not at home: to the trees if they can be allocated.
    #[cold]
    #[inline(never)]
    fn add_away(&self, cpu: Option<CpuId>, member: usize, delta: i64) -> Climb {
        match (self.spread(), cpu) {
            (Some(trees), None) => trees.add(self.checked(member), delta),
            (Some(trees), Some(cpu)) => trees.add_on(cpu, self.checked(member), delta),
            (None, _) => {
                // Relaxed: see the field.
                self.away[member].fetch_add(delta, Ordering::Relaxed);
                Climb {
                    written: 1,
                    skipped: 0,
                }
            }
        }
    }

    /// Returns the trees, allocated now if it is time to try.
    fn spread(&self) -> Option<&CounterTrees> {
        // Relaxed: see the field.
        let nr_away = self.nr_away.fetch_add(1, Ordering::Relaxed);
        if !(nr_away == 0 || nr_away.is_power_of_two()) || !self.layout.try_reserve_block() {
            return self.trees.get();
        }
        let Some(block) = self.trees_if_missing() else {
            self.layout.release_block();
            return self.trees.get();
        };
        let mine = &raw const *block;
        let published = self.trees.publish(block);
        if !std::ptr::eq(mine, published) {
            self.layout.release_block();
        }
        Some(published)
    }

    /// Returns a block to publish; none if there is one, or no memory.
    fn trees_if_missing(&self) -> Option<Box<CounterTrees>> {
        if self.trees.get().is_some() {
            return None;
        }
        let block = CounterTrees::new(&self.layout, N);
        if let Err(error) = &block {
            tracing::debug!(%error, "no per-CPU words for a set of counters: it stays atomic");
        }
        block.ok().map(Box::new)
    }

    /// Returns the sum as far as it is known without visiting any CPU, and the interval that holds
    /// it.
    ///
    /// # Accuracy
    ///
    /// At rest `low..=high` holds the precise sum; it is exact until a second CPU has added. After
    /// that, as [`CounterTree::approximate_sum`](super::CounterTree::approximate_sum).
    /// Adversary: `tests/accuracy.rs::sets_stay_inside_their_interval`.
    ///
    /// # Cost
    ///
    /// Loads of two lines, and of two more with per-CPU words. O(1).
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn approximate_sum(&self, member: usize) -> Estimate<i64> {
        self.approximate_sum_of(&[member])
    }

    /// Like [`approximate_sum`](Self::approximate_sum), for the sum of several members.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn approximate_sum_of(&self, members: &[usize]) -> Estimate<i64> {
        let early = members.iter().map(|&member| self.early(member));
        let mut sum = early.fold(0, i64::wrapping_add);
        let mut accuracy = Accuracy::EXACT;
        if let Some(trees) = self.trees.get() {
            for &member in members {
                sum = sum.wrapping_add(trees.root(member));
                accuracy = accuracy.plus(trees.accuracy(member));
            }
        }
        accuracy.around(sum)
    }

    /// Returns the sum over all CPUs that ever added.
    ///
    /// # Accuracy
    ///
    /// As [`CounterTree::precise_sum`](super::CounterTree::precise_sum).
    ///
    /// # Cost
    ///
    /// Loads of two lines; with per-CPU words one more for each CPU that ever added to this member,
    /// and a word for each 64 CPUs.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn precise_sum(&self, member: usize) -> i64 {
        let early = self.early(member);
        let trees = self.trees.get();
        trees.map_or(early, |trees| trees.precise_sum(member).wrapping_add(early))
    }

    /// Like [`precise_sum`](Self::precise_sum), for the sum of several members.
    ///
    /// # Cost
    ///
    /// As for one of them, if they are counted on the same CPUs: a CPU's words share a line.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn precise_sum_of(&self, members: &[usize]) -> i64 {
        let early = members.iter().map(|&member| self.early(member));
        let early = early.fold(0, i64::wrapping_add);
        let trees = self.trees.get();
        trees.map_or(early, |trees| {
            trees.precise_sum_of(members).wrapping_add(early)
        })
    }

    /// Returns the error bounds of the approximate sum at rest, given which CPUs have added so far.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn accuracy(&self, member: usize) -> Accuracy {
        assert!(member < N, "there is no member {member}: the set has {N}");
        self.trees.get().map_or(Accuracy::EXACT, |trees| {
            // After the root: its value may come from a CPU that has only just been touched.
            let _ = trees.root(member);
            trees.accuracy(member)
        })
    }

    /// Whether a second CPU has added, and the set has words for all CPUs.
    #[must_use]
    pub fn has_cpu_words(&self) -> bool {
        self.trees.get().is_some()
    }

    /// Returns the layout that the set's counters share with others.
    #[must_use]
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Checks conservation of every member. For counters at rest.
    ///
    /// # Panics
    ///
    /// As [`CounterTree::check_invariants`](super::CounterTree::check_invariants).
    pub fn check_invariants(&self) {
        if let Some(trees) = self.trees.get() {
            (0..N).for_each(|member| trees.check_invariants(member));
        }
    }

    /// Returns the sum added before there were trees.
    fn early(&self, member: usize) -> i64 {
        // Relaxed: see the field.
        let away = self.away[member].load(Ordering::Relaxed);
        self.home.load(member).wrapping_add(away)
    }

    /// Returns `member` after a check, because the words behind the members have other meanings.
    #[inline]
    pub(super) fn checked(&self, member: usize) -> usize {
        assert!(member < N, "there is no member {member}: the set has {N}");
        member
    }
}

impl<const N: usize> Drop for CounterSet<N> {
    fn drop(&mut self) {
        if self.has_cpu_words() {
            self.layout.release_block();
        }
    }
}

impl<const N: usize> fmt::Debug for CounterSet<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums: [_; N] = std::array::from_fn(|member| self.approximate_sum(member));
        f.debug_struct("CounterSet")
            .field("sums", &sums)
            .field("has_cpu_words", &self.has_cpu_words())
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::percpu::Regime;
    use crate::percpu::harness::{allowed_cpus, run_on, run_unregistered, skipped};
    use crate::sync::thread;
    use crate::topology::Topology;

    fn atomic_set(nr_cpus: usize, blocks_max: u64) -> CounterSet<4> {
        let topology = Topology::flat(nr_cpus);
        let layout = Layout::with_batch(&topology, Regime::Atomic, 32, blocks_max);
        CounterSet::new(&layout.expect("32 is a power of two"))
    }

    #[test]
    fn a_set_of_one_cpu_costs_two_lines() {
        // Goal: no words for other CPUs, and exact reads. Method: one CPU of 384, many additions.
        let set = atomic_set(384, u64::MAX);
        for step in 0..10_000 {
            assert_eq!(set.at(CpuId(77)).add(1, step), Climb::default());
            assert_eq!(set.approximate_sum(1), Estimate::exact(set.precise_sum(1)));
        }
        assert!(!set.has_cpu_words());
        assert_eq!((size_of_val(&set), set.layout().nr_blocks()), (128, 0));
    }

    #[test]
    fn words_for_all_cpus_come_with_the_second() {
        // Goal: nothing is moved or lost by it. Method: the earlier value stays in the sums.
        let set = atomic_set(384, u64::MAX);
        set.at(CpuId(3)).add(0, 1_000);
        set.at(CpuId(4)).add(0, 200);
        assert!(set.has_cpu_words());
        set.at(CpuId(3)).add(0, 30);
        assert_eq!(set.precise_sum(0), 1_230);
        assert!(set.approximate_sum(0).contains(1_230));
        let layout = Arc::clone(set.layout());
        assert_eq!(layout.nr_blocks(), 1);
        drop(set);
        assert_eq!(layout.nr_blocks(), 0);
    }

    #[test]
    fn a_set_that_gets_no_words_counts_exactly() {
        // Goal: no addition is lost when an upgrade fails, nor when it succeeds late. Method: a
        // layout with room for one set; the second one gets its words when the first is gone.
        let first = atomic_set(8, 1);
        first.at(CpuId(0)).add(0, 1);
        first.at(CpuId(1)).add(0, 1);
        let second = CounterSet::<4>::new(first.layout());
        for round in 0..100 {
            second.at(CpuId(round % 8)).add(2, 5);
        }
        assert!(first.has_cpu_words() && !second.has_cpu_words());
        assert_eq!(second.approximate_sum(2), Estimate::exact(500));
        drop(first);
        for round in 0..100 {
            second.at(CpuId(round % 8)).add(2, 5);
        }
        assert!(second.has_cpu_words());
        assert_eq!(second.precise_sum(2), 1_000);
        assert!(second.approximate_sum(2).contains(1_000));
        assert_eq!(second.layout().nr_blocks(), 1);
    }

    #[test]
    fn concurrent_first_additions_make_one_block() {
        // Goal: several CPUs that add first at the same time lose nothing. Method: many short-lived
        // sets, four threads that are four CPUs, with and without room for blocks.
        for blocks_max in [0, 1, u64::MAX] {
            for _ in 0..200 {
                let set = atomic_set(4, blocks_max);
                thread::scope(|scope| {
                    for cpu in (0..4).map(CpuId) {
                        let set = &set;
                        scope.spawn(move || {
                            for _ in 0..50 {
                                set.at(cpu).add(0, 3);
                                set.at(cpu).add(3, -1);
                            }
                        });
                    }
                });
                assert_eq!((set.precise_sum(0), set.precise_sum(3)), (600, -200));
                assert!(set.layout().nr_blocks() <= blocks_max.min(1));
                set.check_invariants();
            }
        }
    }

    #[test]
    fn threads_of_the_machine_lose_nothing() {
        // Goal: the restartable regime upgrades under load. Method: threads on every CPU, some
        // without rseq, on fresh sets repeatedly.
        let machine = Topology::detect();
        let layout = Layout::new(&machine, Regime::preferred(&machine));
        let cpus = allowed_cpus();
        if cpus.len() < 2 {
            skipped("only one CPU may be used");
        }
        for _ in 0..30 {
            let set = CounterSet::<4>::new(&layout);
            let adds = || (0..5_000).for_each(|_| _ = set.add(1, 2));
            let unregistered: i64 = thread::scope(|scope| {
                for &cpu in &cpus {
                    scope.spawn(move || run_on(cpu, adds));
                }
                let thread = scope.spawn(move || run_unregistered(adds));
                i64::from(thread.join().expect("a thread panicked").is_some())
            });
            let threads = i64::try_from(cpus.len()).expect("few CPUs") + unregistered;
            assert_eq!(set.precise_sum(1), threads * 10_000);
            assert!(set.approximate_sum(1).contains(threads * 10_000));
            set.check_invariants();
        }
    }

    #[test]
    #[should_panic(expected = "there is no member 4: the set has 4")]
    fn a_member_that_does_not_exist_is_refused() {
        let set = atomic_set(4, 1);
        set.at(CpuId(0)).add(0, 1);
        set.at(CpuId(1)).add(0, 1);
        set.at(CpuId(1)).add(4, 1);
    }

    #[test]
    #[should_panic(expected = "C4 is not one of the 4 CPUs")]
    fn a_cpu_that_does_not_exist_is_refused() {
        atomic_set(4, 1).at(CpuId(4)).add(0, 1);
    }
}
