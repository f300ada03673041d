//! Per-CPU lists of free frames (pcp), which serve most allocations and frees.
//!
//! A list is a stack of single frames, with lists of blocks beside it. Allocation is LIFO: the
//! frame freed last is handed out first (it is warm); a drain takes those freed longest ago.
//!
//! | file | contents |
//! |---|---|
//! | `sizes`, `policy` | bounds of a list's size, and its auto-tuning: arithmetic |
//! | `list` | one list while its lock is held |
//! | `recent` | its recent use, counted in the header of its stack |
//! | `transfer` | refill from the zones, and drain to them |
//! | `recall` | frames in idle lists of other CPUs, before fresh ones are taken |
//! | `scratch` | frames in transfer |
//!
//! **Fast path.** A pop or a push on the stack of the thread's CPU, and nothing else: the one store
//! that commits updates the stack's header, which counts frames and, as its tally, the run of frees
//! and the growth. A push that would reach the list's limit is refused and takes the slow path,
//! which applies the rules.
//!
//! **Slow path.** Under the list's lock the rules decide how many frames to move, and the frames
//! leave the list or are put there. The zones are visited with the lock dropped, so that other
//! threads on that CPU do not find the list held meanwhile. A thread that finds it held goes to the
//! zones for one frame.
//!
//! **Invariant.** A cached frame is owned by its list (its token is in the stack, as a number, or
//! in a list of blocks): a hit touches no tag word.
//!
//! **Conditions.** Lock holders check the conditions that the rules depend on beside the list
//! (pages are being reclaimed, few are free). When one changes for the worse, all pushes are
//! refused once ([`Stacks::refuse_pushes`]), so that each list applies the rules at its next free,
//! as if every free did.
//!
//! Frames of threads that have ended are in the lists of CPUs, and are found like any others. Decay
//! empties a list whose CPU is no longer used (it went offline, or the program may not run there
//! now).

mod list;
pub(super) mod policy;
mod recall;
mod recent;
mod scratch;
mod sizes;
mod transfer;

#[cfg(all(test, not(loom)))]
mod edge_tests;
#[cfg(all(test, not(loom)))]
mod policy_tests;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
mod twin_tests;

pub(super) use list::is_listed;
pub use policy::{AutoTuned, PcpPolicy};
#[cfg(feature = "lab")]
pub use policy::{Freed, ListState, Refill, Use};
pub(super) use sizes::FRAMES_MAX;
pub use sizes::PcpSizes;

use super::counters::Events;
use super::{ListInfo, PcpCounters};
use crate::memmap::{Frame, FrameMemory};
use crate::percpu::{Locked, Regime, Stacks};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::{CachePadded, LockClass, Rank};
use crate::units::{CpuId, Pages};
use list::{ListLock, LockedList};
pub use policy::{Rules, Shortage};

/// Class of every per-CPU list's lock.
pub(super) static PCP_LOCK: LockClass = LockClass::new("pcp", Rank::Pcp);

/// A list that was not used for this many decays is emptied. Chosen: a minute at the default
/// interval; a later use pays one visit to the zones.
const IDLE_TICKS: u64 = 60;

/// The lists of one pool.
pub(super) struct PcpLists {
    stacks: Stacks<Frame, ListLock>,
    beside: Box<[CachePadded<Beside>]>,
    /// Read at every hold, on a line apart from anything that changes more often.
    conditions: CachePadded<Conditions>,
}

/// Selects a list.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// The list of the CPU that the thread runs on.
    Here,
    /// The list of this CPU, wherever the thread runs.
    On(CpuId),
}

/// The conditions that the rules depend on beside the list.
#[derive(Debug, Default)]
struct Conditions {
    /// Written by: reclaim. Read by: holders of a list. Publishes: nothing.
    nr_reclaiming: AtomicU32,
    /// Written by: refills and drains. Read by: holders of a list. Publishes: nothing.
    is_below_high: AtomicBool,
}

/// The state of a list that is readable without its lock.
#[derive(Debug, Default)]
struct Beside {
    events: Events,
    /// Frames in blocks. Written by: the holder of the list. Read by: any thread. Publishes:
    /// nothing.
    block_frames: AtomicU32,
    /// Whether a decay has something to do. Written by: the holder of the list. Read by: decay.
    /// Publishes: nothing.
    is_grown: AtomicBool,
    /// The stack's header as the last decay saw it, and the number of decays since it changed.
    /// Written by: decay. Read by: decay. Publishes: nothing.
    last_seen: AtomicU64,
    idle_ticks: AtomicU64,
    /// The stack's header as another CPU saw it last, and about how many frames other CPUs have
    /// brought since then. Written and read by other CPUs' refills. Publishes: nothing: a hint
    /// whether the list is worth a visit.
    watched: AtomicU64,
    brought_meanwhile: AtomicU64,
}

impl Conditions {
    fn shortage(&self) -> Shortage {
        // Relaxed: code that must not miss a change has a fence.
        Shortage {
            reclaim_active: self.nr_reclaiming.load(Ordering::Relaxed) > 0,
            below_high: self.is_below_high.load(Ordering::Relaxed),
        }
    }
}

impl Beside {
    fn note(&self, grown_by: u32, frames_in_blocks: u32) {
        let is_grown = grown_by > 0;
        // Relaxed: see the fields. Loaded first: most of the time nothing changes.
        if self.block_frames.load(Ordering::Relaxed) != frames_in_blocks {
            self.block_frames.store(frames_in_blocks, Ordering::Relaxed);
        }
        if self.is_grown.load(Ordering::Relaxed) != is_grown {
            self.is_grown.store(is_grown, Ordering::Relaxed);
        }
    }
}

impl PcpLists {
    pub(super) fn new(
        memory: &FrameMemory,
        regime: Regime,
        nr_cpus: usize,
        rules: Rules,
        capacity: u32,
    ) -> Self {
        let state = |_| ListLock::new(rules);
        let stacks = Stacks::new(regime, nr_cpus, memory.id(), capacity, &PCP_LOCK, state);
        let lists = Self {
            beside: stacks.cpus().map(|_| CachePadded::default()).collect(),
            stacks,
            conditions: CachePadded::default(),
        };
        // Sets the limits of the stacks.
        lists.stacks.cpus().for_each(|cpu| drop(lists.lock(cpu)));
        lists
    }

    /// Like [`pop`](Self::pop), but may fail where `pop` succeeds: the fast path.
    #[inline]
    pub(super) fn try_pop(&self) -> Option<Frame> {
        self.stacks.try_pop()
    }

    /// Like [`push`](Self::push), but may fail where `push` succeeds: the fast path.
    ///
    /// # Errors
    ///
    /// Gives it back.
    #[inline]
    pub(super) fn try_push(&self, frame: Frame) -> Result<(), Frame> {
        self.stacks.try_push(frame)
    }

    /// Returns the frame freed last on the thread's CPU.
    #[inline]
    pub(super) fn pop(&self) -> Option<Frame> {
        self.stacks.pop()
    }

    /// Pushes a frame to the list of the thread's CPU.
    ///
    /// # Errors
    ///
    /// Gives it back when the slow path must apply the rules.
    #[inline]
    pub(super) fn push(&self, frame: Frame) -> Result<(), Frame> {
        self.stacks.push(frame)
    }

    /// Like [`pop`](Self::pop), from the list of `cpu`.
    pub(super) fn pop_on(&self, cpu: CpuId) -> Option<Frame> {
        match self.stacks.regime() {
            Regime::Atomic => self.stacks.pop_on(cpu),
            Regime::Restartable => self.try_lock(At::On(cpu))?.pop(),
        }
    }

    /// Like [`push`](Self::push), to the list of `cpu`.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push); always where CPUs are those of the system.
    pub(super) fn push_on(&self, cpu: CpuId, frame: Frame) -> Result<(), Frame> {
        match self.stacks.regime() {
            Regime::Atomic => self.stacks.push_on(cpu, frame),
            Regime::Restartable => Err(frame),
        }
    }

    fn try_lock(&self, at: At) -> Option<LockedList<'_>> {
        let stack = match at {
            At::Here => self.stacks.try_lock()?,
            At::On(cpu) => self.stacks.try_lock_on(cpu)?,
        };
        Some(self.locked(stack))
    }

    fn lock(&self, cpu: CpuId) -> LockedList<'_> {
        self.locked(self.stacks.lock_on(cpu))
    }

    /// Like [`lock`](Self::lock); `None` where the system lets the thread reach no other CPU.
    fn reach(&self, cpu: CpuId) -> Option<LockedList<'_>> {
        self.stacks.reach(cpu).ok().map(|stack| self.locked(stack))
    }

    fn locked<'a>(&'a self, stack: Locked<'a, Frame, ListLock>) -> LockedList<'a> {
        let beside = self.beside(stack.cpu());
        LockedList::new(stack, &self.conditions, beside)
    }

    fn beside(&self, cpu: CpuId) -> &Beside {
        &self.beside[cpu.index()]
    }

    /// Returns the list that `at` probably selects, without its lock.
    pub(super) fn near(&self, at: At) -> CpuId {
        match at {
            At::Here => self.stacks.here(),
            At::On(cpu) => cpu,
        }
    }

    /// Marks that pages are being reclaimed, until [`end_reclaim`](Self::end_reclaim).
    pub(super) fn begin_reclaim(&self) {
        // Relaxed: the fence orders it.
        if self
            .conditions
            .nr_reclaiming
            .fetch_add(1, Ordering::Relaxed)
            == 0
        {
            self.alarm();
        }
    }

    pub(super) fn end_reclaim(&self) {
        // Relaxed: a list that sees it late keeps few frames for a little longer.
        self.conditions
            .nr_reclaiming
            .fetch_sub(1, Ordering::Relaxed);
    }

    /// Marks that an allocation saw few free frames.
    fn set_below_high(&self) {
        // Relaxed: the fence orders it. Loaded first: it stays set while memory is short.
        if !self.conditions.is_below_high.load(Ordering::Relaxed)
            && !self.conditions.is_below_high.swap(true, Ordering::Relaxed)
        {
            self.alarm();
        }
    }

    fn clear_below_high(&self) {
        // Relaxed: a list that sees it late grows later.
        if self.conditions.is_below_high.load(Ordering::Relaxed) {
            self.conditions
                .is_below_high
                .store(false, Ordering::Relaxed);
        }
    }

    /// Makes every list apply the rules at its next free.
    fn alarm(&self) {
        // Pairs with: the fence of `LockedList::drop`.
        fence(Ordering::SeqCst);
        self.stacks.refuse_pushes();
    }

    /// Returns whether pages are being reclaimed, and whether few are free.
    pub(super) fn shortage(&self) -> Shortage {
        self.conditions.shortage()
    }

    /// Returns the frames in all lists. Exact when nothing runs.
    pub(super) fn nr_cached(&self) -> Pages {
        let each = self.stacks.cpus().map(|cpu| self.nr_cached_on(cpu));
        Pages(each.map(u64::from).sum())
    }

    /// Returns the frames in one list, without its lock. Exact when nothing runs.
    fn nr_cached_on(&self, cpu: CpuId) -> u32 {
        // Relaxed: a snapshot.
        let in_blocks = self.beside(cpu).block_frames.load(Ordering::Relaxed);
        self.stacks.probe(cpu).len() + in_blocks
    }

    /// Returns a word that changes when a list is used; without its lock.
    fn trace_of(&self, cpu: CpuId) -> u64 {
        let tally = self.stacks.probe(cpu).tally();
        u64::from(self.nr_cached_on(cpu)) << 16 | u64::from(tally)
    }

    pub(super) fn counters(&self) -> PcpCounters {
        let each = self.beside.iter().map(|beside| beside.events.read());
        each.fold(PcpCounters::default(), |sum, one| sum.plus(&one))
    }

    /// Returns the state of each list.
    pub(super) fn infos(&self, nr_cpus: usize) -> Vec<ListInfo> {
        let info = |cpu: CpuId| {
            let known = Some(cpu).filter(|cpu| cpu.index() < nr_cpus);
            self.stacks
                .look(cpu, |list, header| list.info(header, known))
        };
        self.stacks.cpus().map(info).collect()
    }

    /// Returns how lists are written.
    pub(super) fn regime(&self) -> Regime {
        self.stacks.regime()
    }
}
