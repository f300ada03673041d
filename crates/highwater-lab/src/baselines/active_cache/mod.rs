//! Per-CPU cache of counters for the active space: each CPU runs one space at a time and has one
//! cache for all spaces.
//!
//! Words of every CPU for every space are memory that grows with both: 4 words for 100,000 spaces
//! on 200 CPUs are 640 MB. But a CPU runs one space at a time. So each CPU has one set of words,
//! and lends it to the space that is *active* there. The space's additions are *parked* in the
//! words with plain adds; when another space becomes active, they are *flushed* to totals that the
//! space's CPUs share.
//!
//! ```text
//!  CPU 0        CPU 1        CPU 2        CPU 3         128 bytes each, for all spaces
//!  [A: +17]     [B: +3]      [A: -2]      [none]  
//!      |            |            |
//!      |       space B  [totals 50; marked: 1]           128 bytes each
//!      |                         |
//!  space A  [totals 1000; marked: 0, 2]
//!
//!  precise sum of A     = 1000 + 17 - 2
//!  approximate sum of A = 1000, off by at most 2 * (threshold - 1)
//! ```
//!
//! # Invariants
//!
//! * The sum of a space is its totals plus the amounts parked on the CPUs that it owns. Each
//!   addition is in one of them, once.
//! * The CPUs that a space owns are marked in it. So a reader visits only marked CPUs.
//! * A word is less than `threshold` away from zero, at every moment: an addition that would reach
//!   it is added to the totals together with the parked amount. So totals alone are off by at most
//!   `marked CPUs * (threshold - 1)`, also during updates: readers that must not walk (limits,
//!   peaks) have a bound for the price of two or three loads.
//! * No CPU names a space that has ended, except one whose holder has already flushed it. So
//!   numbers of spaces can be reused.
//!
//! # Protocol
//!
//! * **Add**: if this CPU's words are the space's, park ([`Counted::Hit`]); else add to the totals
//!   ([`Counted::Miss`]), or switch first: [`Foreign`].
//! * **Switch**: claim the CPU's slot; with its sequence odd, add the parked amounts to the old
//!   space's totals, and clear its mark; mark the CPU in the next space; install that. If another
//!   thread holds the slot, the switch does not happen: additions of the next space miss, and
//!   nothing is lost.
//! * **Read**: note the marked CPUs; sample their sequences; load the totals; load the parked
//!   amounts; sample again. Restart if anything was flushed meanwhile, at most [`READ_TRIES`]
//!   times; then return the approximate sum with its interval.
//! * **End**: claim each marked CPU that the space still owns, from afar, flush it, and check the
//!   sum.
//! * **Offline**: claim the CPU from afar, flush it, and leave it without an owner.
//!
//! The module `slots` explains how a slot is claimed, and the orderings of the protocol.
//!
//! # Cost of a switch
//!
//! A switch to the space that is active already is a load. One that finds nothing parked writes no
//! line of the old space, and leaves its mark, which costs later readers a load of that CPU's line.
//! One that finds something parked takes a locked instruction to claim, one for each member with
//! something parked, and one for each of the two marks. In nanoseconds, restartable words, medians
//! of medians (2 virtual CPUs of an Intel Xeon with 105 MiB of L3, shared with other work, November
//! 2026, `cargo bench -p highwater-lab --bench active_cache`): a hit 4, a miss 26, a switch that
//! finds nothing 31, an addition that switches and flushes 66, an approximate sum 12, a precise one
//! 80 for one CPU and 2,000 for 384.
//!
//! A kernel calls [`ActiveCache::switch`] where it switches spaces. In user space no scheduler
//! reports switches, so there is [`Foreign::Switch`]: an addition makes its space the active one of
//! the CPU. By these figures that is cheaper than misses if the space stays for four additions or
//! more; if threads of a CPU add to other spaces at every turn, misses are cheaper.
//! `highwater lab rss-hits` measures both in drawn and recorded traffic.
//!
//! Source: the per-CPU RSS cache proposed for Linux by K. Song (RFC, July 2022), and its review by
//! M. Guzik (April 2025).
//! Deviation: the sequence covers totals and all CPUs that are read, instead of one CPU's words; it
//! is odd during a flush, so that nothing is counted twice. A walk sums all members, starting from
//! all of their totals. Words fold at a threshold, so that totals have a bound, and hot readers
//! need no walk. The marks are the counters' own, not those of TLB shootdown. A CPU that goes
//! offline is flushed.

#[cfg(not(loom))]
mod design;
#[cfg(all(test, loom))]
mod loom;
mod marks;
mod slots;
mod space;
mod spaces;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests;

use std::fmt;

use highwater::lab::percpu::Regime;
use highwater::lab::sync::{Arc, StatCell};
use highwater::topology::Topology;
use highwater::units::CpuId;

use self::slots::{Claim, OwnedSlots, Owner, Place, WORDS};
use self::spaces::Spaces;

#[cfg(not(loom))]
pub use self::design::ActiveSpaces;
pub use self::space::{ActiveSpace, Residue};

/// Counters of a space. By convention, and in this order: pages of files, anonymous pages, swap
/// entries, and pages of shared memory.
pub const MEMBERS: usize = WORDS;

/// Default threshold: one CPU parks less than 4 MiB of pages of a member.
///
/// Chosen: a huge page of 512 can be parked, and one page in a thousand writes a shared line.
pub const THRESHOLD_DEFAULT: u32 = 1024;

/// Restarts of a precise read before it returns an interval. Chosen: each takes a flush of a
/// visited CPU during the visit.
#[cfg(not(loom))]
pub const READ_TRIES: u32 = 8;
/// In a model one restart shows all that more would show.
#[cfg(loom)]
pub const READ_TRIES: u32 = 2;

/// Effect of an addition on a CPU where another space is active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Foreign {
    /// Adds to the space's totals: for programs that report switches, as kernels do.
    #[default]
    Miss,
    /// Makes its space the active one, which flushes the other: for programs that do not report
    /// switches.
    Switch,
}

/// Configuration of a cache. The default is a kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveConfig {
    /// Parked amounts of a member on one CPU stay below this, in both directions. 1 parks nothing.
    pub threshold: u32,
    /// Effect of additions to spaces that are not active.
    pub foreign: Foreign,
}

impl Default for ActiveConfig {
    fn default() -> Self {
        Self {
            threshold: THRESHOLD_DEFAULT,
            foreign: Foreign::default(),
        }
    }
}

/// Outcome of an addition, with the number of locked instructions on shared lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Parked: no shared line was written.
    Hit,
    /// Added to the totals together with everything parked on the CPU, to stay below the threshold.
    Folded {
        /// Shared words written.
        written: u32,
    },
    /// Switched the CPU to the space first.
    Switched {
        /// Shared words written.
        written: u32,
    },
    /// Added to the totals: another space is active, or the CPU's words are held.
    Miss,
}

impl Counted {
    /// Returns whether the space had this CPU's words.
    #[must_use]
    pub fn is_hit(self) -> bool {
        matches!(self, Self::Hit | Self::Folded { .. })
    }

    /// Returns the number of shared words written, each with a locked instruction.
    #[must_use]
    pub fn written(self) -> u32 {
        match self {
            Self::Hit => 0,
            Self::Folded { written } | Self::Switched { written } => written,
            Self::Miss => 1,
        }
    }
}

/// Outcome of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The space was active already.
    Kept,
    /// The space is active now.
    Done {
        /// Whether anything was parked for the previous space.
        flushed: bool,
        /// Shared words written.
        written: u32,
    },
    /// Nothing changed: another thread holds the CPU's words, or the thread was interrupted too
    /// often.
    Busy,
}

/// Counters of a cache. Statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActiveStats {
    /// Additions that were parked, or folded with the parked amounts. In the restartable regime an
    /// addition that was interrupted right before its end is counted again when it is repeated.
    pub hits: u64,
    /// Additions that went to totals because another space was active, or the CPU's words were
    /// held.
    pub misses: u64,
    /// Switches from one space, or none, to another.
    pub switches: u64,
    /// Switches that found something parked.
    pub flushes: u64,
    /// Additions that would have reached the threshold.
    pub folds: u64,
    /// Switches that did not happen.
    pub busy: u64,
    /// Precise reads.
    pub reads: u64,
    /// CPUs that precise reads visited.
    pub visits: u64,
    /// Restarts of precise reads, because of a flush meanwhile.
    pub rejects: u64,
    /// Precise reads that returned an interval.
    pub fallbacks: u64,
    /// Waits for the holder of a CPU's words, by the end of a space or a CPU going offline.
    pub waits: u64,
    /// Live spaces.
    pub spaces: u64,
}

/// One cache for each CPU, for all spaces.
///
/// # Examples
///
/// ```
/// use highwater_lab::baselines::active_cache::ActiveCache;
/// use highwater::lab::percpu::Regime;
/// use highwater::topology::Topology;
/// use highwater::units::{CpuId, Estimate};
///
/// let server: Topology = "2x12x8x2".parse()?;
/// let cache = ActiveCache::new(&server, Regime::Atomic);
/// let (database, backup) = (cache.space(), cache.space());
/// let [file, anon] = [0, 1];
///
/// cache.switch_on(CpuId(7), Some(&database));
/// assert!(database.add_on(CpuId(7), anon, 200).is_hit());
/// assert!(!backup.add_on(CpuId(7), file, 1).is_hit());
/// // A walk over the one CPU on which it is active, or none.
/// assert_eq!(database.precise_sum(anon), Estimate::exact(200));
/// assert_eq!(database.approximate_sum(anon).to_string(), "0 (-1023 to 1023)");
///
/// cache.switch_on(CpuId(7), Some(&backup));
/// assert_eq!(database.approximate_sum(anon), Estimate::exact(200));
/// let left = database.end().expect("nothing was uncounted");
/// assert_eq!(left.sums[anon], 200);
/// # backup.add_on(CpuId(7), file, -1);
/// # assert_eq!(backup.end(), None);
/// # Ok::<(), highwater::topology::ParseTopologyError>(())
/// ```
pub struct ActiveCache {
    slots: OwnedSlots,
    spaces: Spaces,
    config: ActiveConfig,
    events: Events,
}

/// Counts by readers, which are few.
#[derive(Default)]
struct Events {
    reads: StatCell,
    visits: StatCell,
    rejects: StatCell,
    fallbacks: StatCell,
}

impl ActiveCache {
    /// Largest threshold.
    pub const THRESHOLD_MAX: u32 = 1 << 30;

    /// Upper bound of the CPUs: a precise read has a bit for each on its stack.
    pub const CPUS_MAX: usize = marks::CPUS_MAX;

    /// Creates a cache with the default configuration.
    ///
    /// # Cost
    ///
    /// 128 bytes for each CPU. A space is 128 bytes, and on more than 256 CPUs a bit for each
    /// further one; its memory is reused after its end.
    ///
    /// # Panics
    ///
    /// When the machine has more than [`CPUS_MAX`](Self::CPUS_MAX) CPUs.
    #[must_use]
    pub fn new(topology: &Topology, regime: Regime) -> Arc<Self> {
        Self::with_config(topology, regime, ActiveConfig::default())
    }

    /// Creates a cache with another configuration.
    ///
    /// The restartable regime needs membarrier(2) (Linux 5.10), so that threads on other CPUs can
    /// be interrupted in their sequences; without it, the cache is in the atomic regime.
    /// [`regime`](Self::regime) says which.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new), and when the threshold is 0 or above
    /// [`THRESHOLD_MAX`](Self::THRESHOLD_MAX).
    #[must_use]
    pub fn with_config(topology: &Topology, regime: Regime, config: ActiveConfig) -> Arc<Self> {
        let (nr_cpus, most) = (topology.nr_cpus(), Self::CPUS_MAX);
        assert!(
            nr_cpus <= most,
            "an active-space cache is for 1 to {most} CPUs, not {nr_cpus}"
        );
        assert!(
            (1..=Self::THRESHOLD_MAX).contains(&config.threshold),
            "a threshold of {} is not in 1 to {}",
            config.threshold,
            Self::THRESHOLD_MAX
        );
        Arc::new(Self {
            slots: OwnedSlots::new(regime, nr_cpus, config.threshold - 1),
            spaces: Spaces::new(nr_cpus),
            config,
            events: Events::default(),
        })
    }

    /// Creates a space at zero, active nowhere.
    ///
    /// # Cost
    ///
    /// A lock. An allocation, unless the memory of an ended space can be reused.
    ///
    /// # Panics
    ///
    /// When 2^30 spaces are live.
    #[must_use]
    pub fn space(self: &Arc<Self>) -> ActiveSpace {
        ActiveSpace::new(Arc::clone(self), self.spaces.begin())
    }

    /// Makes `next` the active space of the CPU that the calling thread runs on; `None` for none,
    /// as on an idle CPU.
    ///
    /// A thread that borrows the previous thread's space needs no switch.
    ///
    /// # Cost
    ///
    /// See the module. No locks, no system calls, no allocation.
    ///
    /// # Panics
    ///
    /// When `next` is a space of another cache.
    #[inline]
    pub fn switch(&self, next: Option<&ActiveSpace>) -> Switch {
        if self.slots.is_owned_by(self.owner_of(next)) {
            return Switch::Kept;
        }
        self.switch_to(self.slots.claim(), next)
    }

    /// As [`switch`](Self::switch), as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime; when there is no such CPU; and when `next` is a space of another
    /// cache.
    pub fn switch_on(&self, cpu: CpuId, next: Option<&ActiveSpace>) -> Switch {
        if self.slots.is_owned_on(cpu, self.owner_of(next)) {
            return Switch::Kept;
        }
        self.switch_to(self.slots.claim_on(cpu), next)
    }

    /// Flushes `cpu`, which is about to stop running or has stopped, and leaves it without an
    /// owner. Returns whether anything was parked.
    ///
    /// May be called from any thread, in both regimes. The CPU's next switch puts it into use
    /// again.
    ///
    /// # Cost
    ///
    /// In the restartable regime a system call, which interrupts that CPU if a thread of this
    /// process runs there: 0.2 us on the CPU itself, about 6 us from another. Waits if another
    /// thread holds the CPU's words, for a few dozen instructions unless that thread is preempted.
    ///
    /// # Panics
    ///
    /// When there is no such CPU.
    pub fn offline(&self, cpu: CpuId) -> bool {
        let Some(claim) = self.slots.claim_from_afar(cpu, |_| true) else {
            return false;
        };
        matches!(
            self.switch_to(Some(claim), None),
            Switch::Done { flushed: true, .. }
        )
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> ActiveStats {
        let slots = self.slots.stats();
        ActiveStats {
            hits: slots.hits + slots.folds,
            misses: slots.misses,
            switches: slots.switches,
            flushes: slots.flushes,
            folds: slots.folds,
            busy: slots.busy,
            reads: self.events.reads.get(),
            visits: self.events.visits.get(),
            rejects: self.events.rejects.get(),
            fallbacks: self.events.fallbacks.get(),
            waits: self.slots.waits(),
            spaces: self.spaces.nr_live(),
        }
    }

    /// Returns the regime of the words.
    #[must_use]
    pub fn regime(&self) -> Regime {
        self.slots.regime()
    }

    /// Returns the number of CPUs that have a cache.
    #[must_use]
    pub fn nr_cpus(&self) -> usize {
        self.slots.nr_cpus()
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> ActiveConfig {
        self.config
    }

    /// Checks the invariants at rest: no CPU's words are held, none is at the threshold, those
    /// without an owner are zero, and CPUs are marked in the spaces that own them.
    ///
    /// # Panics
    ///
    /// When an invariant is broken.
    pub fn check_invariants(&self) {
        for (cpu, owner) in self.slots.check_invariants().enumerate() {
            let Some(owner) = owner else { continue };
            let seen = self.spaces.get(owner).marks.seen();
            assert!(
                seen.cpus().any(|marked| marked == cpu),
                "C{cpu} is not marked in its space"
            );
        }
    }

    #[inline]
    fn owner_of(&self, space: Option<&ActiveSpace>) -> Option<Owner> {
        space.map(|space| {
            assert!(
                std::ptr::eq(self, &raw const **space.cache()),
                "the space belongs to another cache"
            );
            space.owner()
        })
    }

    /// Gives the CPU of `claim` to `next`.
    fn switch_to(&self, claim: Option<Claim<'_>>, next: Option<&ActiveSpace>) -> Switch {
        let Some(claim) = claim else {
            return Switch::Busy;
        };
        let next = self.owner_of(next);
        if claim.owner() == next {
            return Switch::Kept;
        }
        let (cpu, last) = (claim.cpu(), claim.owner());
        let mut flushed = false;
        let mut written = 0;
        claim.settle(next, |parked| {
            if let Some(last) = last {
                written += self.spaces.get(last).absorb_last(cpu, parked);
                flushed = written > 0;
            }
            if let Some(next) = next {
                written += u32::from(self.spaces.get(next).marks.mark(cpu));
            }
        });
        Switch::Done { flushed, written }
    }

    /// Counts an addition that may not be parked yet, as if running on `cpu` if one is given.
    #[cold]
    #[inline(never)]
    fn count(&self, cpu: Option<CpuId>, space: &ActiveSpace, member: usize, delta: i64) -> Counted {
        match self.place(cpu, space, member, delta) {
            Place::Parked => Counted::Hit,
            Place::Full(claim) => self.fold(claim, member, delta),
            Place::Foreign if self.config.foreign == Foreign::Switch => {
                self.count_after_switch(cpu, space, member, delta)
            }
            Place::Foreign | Place::Unavailable => self.miss(cpu, space, member, delta),
        }
    }

    fn place(
        &self,
        cpu: Option<CpuId>,
        space: &ActiveSpace,
        member: usize,
        delta: i64,
    ) -> Place<'_> {
        let owner = space.owner();
        match cpu {
            Some(cpu) => self.slots.park_or_claim_on(cpu, owner, member, delta),
            None => self.slots.park_or_claim(owner, member, delta),
        }
    }

    /// Adds the parked amounts and `delta` to the totals of the claim's owner.
    fn fold(&self, claim: Claim<'_>, member: usize, delta: i64) -> Counted {
        let owner = claim.owner().expect("only an owner's words are full");
        let space = self.spaces.get(owner);
        let mut written = 0;
        claim.settle(Some(owner), |mut parked| {
            // Modulo 2^64, as the totals.
            parked[member] = parked[member].wrapping_add(delta);
            written = space.absorb(parked);
        });
        Counted::Folded { written }
    }

    fn count_after_switch(
        &self,
        cpu: Option<CpuId>,
        space: &ActiveSpace,
        member: usize,
        delta: i64,
    ) -> Counted {
        let switched = match cpu {
            Some(cpu) => self.switch_on(cpu, Some(space)),
            None => self.switch(Some(space)),
        };
        let mut written = match switched {
            Switch::Done { written, .. } => written,
            Switch::Kept | Switch::Busy => 0,
        };
        match self.place(cpu, space, member, delta) {
            Place::Parked => {}
            Place::Full(claim) => written += self.fold(claim, member, delta).written(),
            // Other threads switch here too, at the same time.
            Place::Foreign | Place::Unavailable => return self.miss(cpu, space, member, delta),
        }
        Counted::Switched { written }
    }

    fn miss(&self, cpu: Option<CpuId>, space: &ActiveSpace, member: usize, delta: i64) -> Counted {
        self.spaces.get(space.owner()).add(member, delta);
        self.slots.missed(cpu);
        Counted::Miss
    }

    /// Flushes everything that `owner`, which is about to end, has parked anywhere, and returns its
    /// sums. Its number may be reused.
    fn end(&self, owner: Owner) -> [i64; MEMBERS] {
        let space = self.spaces.get(owner);
        for cpu in space.marks.seen().cpus().map(CpuId::from_index) {
            let claim = self.slots.claim_from_afar(cpu, |other| other == owner);
            if claim.is_some() {
                self.switch_to(claim, None);
            }
        }
        let sums = space.sums();
        self.spaces.end(owner);
        sums
    }
}

impl fmt::Debug for ActiveCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveCache")
            .field("slots", &self.slots)
            .field("config", &self.config)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
