//! Hierarchical per-CPU counters: one add to a per-CPU word, one load to read a sum, and an
//! interval that holds the exact value.
//!
//! A counter that many CPUs write is either one shared word, whose cache line they contend for, or
//! a word for each CPU, whose sum takes a walk over all of them. This one keeps a per-CPU word and
//! carries only the significant part: when a word passes the middle between two multiples of its
//! level's *modulus*, the difference is *carried* to a node that a few neighbours share, and from
//! there on in larger and rarer steps to the root. The root alone is the approximate sum.
//!
//! ```text
//! 2x12x8x2 = 384 CPUs, batch 32                               words   modulus   shared by
//!
//!  root                 [ approximate sum ]                       1         -   all CPUs
//!                     /         |           \
//!  level 2    [ 0..63 ]    [ 64..127 ] .. [ 320..383 ]            6      2048   64 neighbours
//!             /   |   \
//!  level 1  [0..7]  .. [56..63]                                  48       256   8 neighbours
//!           / | \
//!  level 0  0 1 .. 7                                            384        32   none: per CPU
//! ```
//!
//! Positions, not CPU numbers, are grouped: neighbours share caches ([`Topology::position`]). A
//! tree of one word has no nodes: its word is the root, and every read is exact. Two kinds of words
//! have no position, and carry straight into the root: in the restartable regime the extra slot, of
//! threads without rseq and of CPUs that were unknown when the tree was created; and the words of
//! CPUs that were offline then, in gaps of the CPU numbering. Positions for them would widen every
//! level, and at a power of two add one.
//!
//! # Rounding and carrying
//!
//! For a word `v` of a level with modulus `M`:
//!
//! ```text
//! R(v) = M * floor((v + M/2) / M)     the nearest multiple of M, halves up: counted above
//! r(v) = v - R(v)                     the residual, in -M/2 ..= M/2 - 1:    not counted above
//! ```
//!
//! A word that goes from `old` to `new` carries `R(new) - R(old)`. All arithmetic is modulo 2^64,
//! which `M` divides, so words may wrap around.
//!
//! A carry, worked, on CPU 3 of the machine above:
//!
//! | word | before | add | after | `(v + M/2) >> log2 M` | carry |
//! |---|---|---|---|---|---|
//! | CPU 3, M = 32 | 14 | 1 | 15 | 0, still 0 | none: done |
//! | CPU 3, M = 32 | 15 | 1 | 16 | 0, now 1 | 32 |
//! | node 0..7, M = 256 | 96 | 32 | 128 | 0, now 1 | 256 |
//! | node 0..63, M = 2048 | 512 | 256 | 768 | 0, still 0 | none: done |
//!
//! The word's residual went from 15 to -16, and the next 31 adds of one carry nothing. A word that
//! moves within 15 of zero never carries: a counter that is filled and emptied writes nothing
//! shared. (Rounding down carries through every level each time it crosses zero.) The cost is
//! moved, not removed: a word that alternates across exactly 16, or 48, carries each time.
//!
//! If a carry is a multiple of a level's modulus, it cannot change residuals there and skips the
//! level: a huge page (512) on 384 CPUs writes the word, skips level 1 and writes level 2. So nodes
//! are not subtotals; only their residuals are meaningful.
//!
//! # The bound
//!
//! **Conservation**: with no update in flight,
//!
//! ```text
//! precise sum = root + sum of r(w) over per-CPU words + sum of r(x) over nodes
//! ```
//!
//! because each update adds its delta to the left side, and on the right side each level splits the
//! amount that arrives into a change of residual and a carry, which arrives above. The interleaving
//! of concurrent updates does not matter: a carry is computed from the before and after values of
//! its own atomic addition, so the carries out of a word telescope to `R(current value)`.
//!
//! So the error is the sum of the residuals, and is bounded by the sum of their ranges. Residuals
//! of level `l` are multiples of the modulus below it, `q`: they range over `-M/2 ..= M/2 - q`.
//!
//! | level of 384 CPUs | words | M | q | `over`: words x M/2 | `under`: words x (M/2 - q) |
//! |---|---|---|---|---|---|
//! | 0 | 384 | 32 | 1 | 6144 | 5760 |
//! | 1 | 48 | 256 | 32 | 6144 | 4608 |
//! | 2 | 6 | 2048 | 256 | 6144 | 4608 |
//! | all | | | | 18432 pages = 72 MiB | 14976 pages = 58.5 MiB |
//!
//! A word without a position adds its own range, 16 and 15: in the restartable regime, that of the
//! extra slot makes 18448 and 14991.
//!
//! **In flight.** The bound is for a counter at rest. An update that has added to its word but not
//! finished climbing holds a carry in hand that neither side of the equation sees. A carry out of a
//! level with modulus `M` caused by a delta `d` is at most `|d|` rounded up to a multiple of `M`:
//! residuals change by less than `M` in all up to there, and carries are multiples of `M`. So `k`
//! updates in flight widen both ends by `k` times `|d|` rounded up to a multiple of the top modulus
//! (2048 above): [`CounterTree::accuracy_in_flight`]. A thread can be preempted in mid-climb, and
//! `k` is then at most the number of threads.
//!
//! The module `trees` documents the memory layout, the accounting of updates in flight, and the
//! orderings.
//!
//! # Types
//!
//! | type | for |
//! |---|---|
//! | [`CounterTree`] | one counter with words for all CPUs from the start |
//! | [`CounterSet`] | a few counters of one object, which cost two cache lines until a second CPU adds |
//! | [`Layout`] | topology, regime and batch, shared by the counters of one machine |
//! | [`Peak`] | the highest value seen, which never falls |
//!
//! Source: the percpu counter tree proposed for Linux by M. Desnoyers (v1 to v17, 2025 and 2026),
//! for the tree, its arities, the carry computed from an operation's own values, and the skip.
//! Deviation: rounding to nearest instead of down, which centres the error, halves the worst case
//! and ends the ping-pong of carries around zero; grouping by position instead of number modulo
//! width, so that sharers are neighbours and fewer nodes are needed where the number of CPUs is no
//! power of two; bounds from the nodes that exist; 64-bit words.

#[cfg(all(test, loom))]
mod loom;
mod accuracy;
mod bulk;
mod layout;
mod on_cpu;
mod peak;
mod set;
mod shape;
mod trees;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests;

use std::cmp;
use std::fmt;

use self::trees::CounterTrees;
use crate::percpu::Regime;
use crate::sync::Arc;
use crate::topology::Topology;
use crate::units::Estimate;

#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use accuracy::{Accuracy, BatchError};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use layout::Layout;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use peak::Peak;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use set::CounterSet;

/// Default batch of a tree: of events that all go one way, every 32nd carries.
///
/// Chosen: the batch with which the kernel's proposal counts resident pages.
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) const BATCH_DEFAULT: u32 = 32;

/// The shared writes of an update, beyond the word of its own CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) struct Climb {
    /// Shared nodes written, the root included.
    pub written: u32,
    /// Levels skipped because the carry could not change their residuals.
    pub skipped: u32,
}

/// A counter over the CPUs of a topology.
///
/// Values wrap around at 63 bits. Estimates and comparisons are right while the precise sum stays
/// within 63 bits by more than the [`accuracy`](Self::accuracy).
///
/// # Examples
///
/// ```
/// use highwater::counter::CounterTree;
/// use highwater::topology::Topology;
///
/// let machine = Topology::detect();
/// let pages = CounterTree::new(&machine);
/// pages.add(512);
/// pages.add(-12);
/// assert_eq!(pages.precise_sum(), 500);
/// assert!(pages.approximate_sum().contains(500));
/// ```
pub struct CounterTree {
    trees: CounterTrees,
}

/// The only member of a [`CounterTree`].
const ONLY: usize = 0;

impl CounterTree {
    /// Returns a counter at zero with a batch of [`BATCH_DEFAULT`].
    ///
    /// # Cost
    ///
    /// 64 bytes for each CPU and each node, allocated here and never later: about 28 KiB for 384
    /// CPUs.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Topology, counter::CounterTree};
    ///
    /// let pages = CounterTree::new(&Topology::detect());
    /// assert_eq!(pages.precise_sum(), 0);
    /// ```
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        Self::with_regime(topology, Regime::preferred(topology))
    }

    /// As [`new`](Self::new), with words that are written as `regime` says.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn with_regime(topology: &Topology, regime: Regime) -> Self {
        Self::with_layout(&Layout::new(topology, regime))
    }

    /// Returns a counter at zero with a batch of its own; see [`Layout::with_batch`].
    ///
    /// # Errors
    ///
    /// When `batch` is not a power of two above 1.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn with_batch(
        topology: &Topology,
        regime: Regime,
        batch: u32,
    ) -> Result<Self, BatchError> {
        let layout = Layout::with_batch(topology, regime, batch, u64::MAX)?;
        Ok(Self::with_layout(&layout))
    }

    /// Returns a counter at zero that shares its layout.
    ///
    /// # Panics
    ///
    /// When memory cannot be allocated.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn with_layout(layout: &Arc<Layout>) -> Self {
        let trees = CounterTrees::new(layout, 1).expect("memory for a counter's words");
        Self { trees }
    }

    /// Adds `delta`, counted on the CPU that the calling thread runs on.
    ///
    /// # Cost
    ///
    /// One add to this CPU's word ([`Cells::add`](crate::percpu::Cells::add)). At most one update
    /// by one in 32 (one in `batch`) also adds to a shared node, and ever fewer to each level
    /// above. No locks, no system calls, no allocation.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Topology, counter::CounterTree};
    ///
    /// let pages = CounterTree::new(&Topology::detect());
    /// pages.add(1 << 20); // far above the batch: carried to the root at once
    /// pages.add(-1);
    /// assert_eq!(pages.precise_sum(), (1 << 20) - 1);
    /// ```
    #[inline]
    pub fn add(&self, delta: i64) {
        let _climb = self.trees.add(ONLY, delta);
    }

    /// Returns the sum as last carried to the root, and the interval that holds the precise one.
    ///
    /// # Accuracy
    ///
    /// At rest, `precise - under <= value <= precise + over`, with both from
    /// [`accuracy`](Self::accuracy), and `low..=high` holds the precise sum. Updates in flight
    /// widen it as [`accuracy_in_flight`](Self::accuracy_in_flight) says.
    /// Adversaries: `tests/accuracy.rs::worst_case_carries`,
    /// `tests/accuracy.rs::worst_case_carries_beside_threads_without_rseq`.
    ///
    /// # Cost
    ///
    /// Loads two lines: one is written about once in a thousand events, the other once for each
    /// CPU. O(1).
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Topology, counter::CounterTree};
    ///
    /// let pages = CounterTree::new(&Topology::detect());
    /// (0..1000).for_each(|_| pages.add(1));
    /// let sum = pages.approximate_sum();
    /// assert!(sum.low <= 1000 && 1000 <= sum.high);
    /// ```
    #[must_use]
    pub fn approximate_sum(&self) -> Estimate<i64> {
        let root = self.trees.root(ONLY);
        self.trees.accuracy(ONLY).around(root)
    }

    /// Like [`approximate_sum`](Self::approximate_sum), with an interval that also covers the
    /// updates that were in flight at that moment.
    ///
    /// # Accuracy
    ///
    /// `low..=high` holds a value that the sum had during the call, whatever runs meanwhile. (A
    /// [`precise_sum`](Self::precise_sum) among updates gives no such guarantee.) At rest it is the
    /// interval of `approximate_sum`; each update that is caught between its word and the root
    /// widens both ends by its delta rounded up to a multiple of the largest modulus. Model:
    /// `counter::loom::a_read_among_updates_holds_a_value_of_the_moment`.
    ///
    /// # Cost
    ///
    /// Loads two words of each CPU that ever carried. O(CPUs touched). Updates pay two more adds to
    /// their CPU's line for each carry, and no shared write.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn approximate_sum_in_flight(&self) -> Estimate<i64> {
        let read = || {
            let root = self.trees.root(ONLY);
            (root, self.trees.accuracy(ONLY))
        };
        let ((root, accuracy), in_hand) = self.trees.in_hand_around(read);
        accuracy.widened(in_hand).around(root)
    }

    /// Returns the sum over the words of all CPUs.
    ///
    /// # Accuracy
    ///
    /// Exact at rest. Otherwise it holds every update ordered before the call, whole and once, and
    /// some of those that run meanwhile: it is not a snapshot. With +1 on one CPU followed by -1 on
    /// another, it can miss the first and hold the second, and so be below every value that the sum
    /// ever had.
    ///
    /// # Cost
    ///
    /// Loads one line of each CPU that ever added, and a word for each 64 CPUs. O(CPUs touched).
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Topology, counter::CounterTree};
    ///
    /// let pages = CounterTree::new(&Topology::detect());
    /// std::thread::scope(|scope| {
    ///     for _ in 0..4 {
    ///         scope.spawn(|| (0..1000).for_each(|_| pages.add(1)));
    ///     }
    /// });
    /// assert_eq!(pages.precise_sum(), 4000); // all threads have ended
    /// ```
    #[must_use]
    pub fn precise_sum(&self) -> i64 {
        self.trees.precise_sum(ONLY)
    }

    /// Returns the error bounds of the approximate sum at rest, given which CPUs have added so far:
    /// zero at first, and never more than [`accuracy_max`](Self::accuracy_max).
    ///
    /// # Cost
    ///
    /// Loads of one line. O(1).
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn accuracy(&self) -> Accuracy {
        // After the root: its value may come from a CPU that has only just been touched.
        let _ = self.trees.root(ONLY);
        self.trees.accuracy(ONLY)
    }

    /// Returns the error bounds of the approximate sum at rest once every CPU has added. Fixed by
    /// topology, regime and batch.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn accuracy_max(&self) -> Accuracy {
        self.trees.layout.accuracy_max()
    }

    /// Returns the error bounds of the approximate sum while up to `updates` updates, each with a
    /// delta of at most `delta_max` either way, have added to their word but not finished climbing.
    ///
    /// # Accuracy
    ///
    /// Reached exactly; saturates. Adversary:
    /// `counter::tests::in_flight_carries_reach_their_bound`.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn accuracy_in_flight(&self, updates: u64, delta_max: u64) -> Accuracy {
        let at_rest = self.accuracy_max();
        if at_rest.width() == 0 {
            return at_rest;
        }
        let one = self.trees.layout.shape.in_hand_max(delta_max);
        let updates = i64::try_from(updates).unwrap_or(i64::MAX);
        at_rest.widened(one.saturating_mul(updates))
    }

    /// Compares the sum with `value`; walks the CPUs only if the approximate sum cannot tell.
    ///
    /// # Accuracy
    ///
    /// Exact at rest; otherwise as the read that decided it.
    ///
    /// # Cost
    ///
    /// One load if the values are further apart than the accuracy, otherwise O(CPUs).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::cmp::Ordering;
    /// use highwater::{Topology, counter::CounterTree};
    ///
    /// let pages = CounterTree::new(&Topology::detect());
    /// (0..1000).for_each(|_| pages.add(1));
    /// assert_eq!(pages.precise_cmp_value(1000), Ordering::Equal);
    /// assert_eq!(pages.precise_cmp_value(999), Ordering::Greater);
    /// ```
    #[must_use]
    pub fn precise_cmp_value(&self, value: i64) -> cmp::Ordering {
        let about = self.approximate_sum();
        if about.high < value {
            cmp::Ordering::Less
        } else if about.low > value {
            cmp::Ordering::Greater
        } else {
            self.precise_sum().cmp(&value)
        }
    }

    /// Returns how the per-CPU words are written.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn regime(&self) -> Regime {
        self.trees.layout.regime
    }

    /// Returns the number of events from one carry of a CPU's word to the next, when all go one
    /// way.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn batch(&self) -> u64 {
        self.trees.layout.batch()
    }

    /// Checks conservation: root, residuals and precise sum agree. For a counter at rest.
    ///
    /// # Cost
    ///
    /// Loads one line for each CPU and each node. O(CPUs).
    ///
    /// # Panics
    ///
    /// When they do not agree, or a node holds a value that cannot have been carried into it.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn check_invariants(&self) {
        self.trees.check_invariants(ONLY);
    }
}

impl fmt::Debug for CounterTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CounterTree")
            .field("sum", &self.approximate_sum())
            .field("layout", &self.trees.layout)
            .finish_non_exhaustive()
    }
}
