//! The kernel's structure for hierarchical statistics (rstat), with the discussed rules as options.
//!
//! ```text
//! group, CPU    local[i], prev[i]      counted by the CPU; the part of it that was carried on
//! group         agg[i] of the subtree, own[i], pending[i] from children
//! ```
//!
//! A flush of g visits each CPU under the flush lock, which it drops in between. It takes g and the
//! updated groups below it off their lists. Children before parents, it moves a group's pending
//! values and its CPU's counts to the group's totals and to its parent's pending values. Ancestors
//! of g do not become fresh, but nothing is lost: they stay on their lists.
//!
//! Reads take no lock: each value is one that the word held at some moment.
//!
//! Source: accounting spec 7.2 to 7.5, 7.10; the discussion for the rules.
//! Deviation: locks park where the kernel's spin, and any thread may act as any CPU, so that a
//! CPU's words are updated atomically.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use highwater::lab::sync::StatCell;
use highwater::units::CpuId;

use super::block::{Block, Blocks};
use super::threshold::{GroupThreshold, OneThreshold, count_up, limit};
use super::{FlushRule, FlushTally, Flushing, ITEMS, Item, Shape, Stats, StatsRead, staleness_max};

/// Statistics of a tree of groups.
#[derive(Debug)]
pub struct Rstat {
    rule: FlushRule,
    nr_cpus: usize,
    shape: Shape,
    groups: Box<[Group]>,
    /// Lock of each CPU's lists.
    lists: Box<[ListLock]>,
    /// The flush lock; holds the buffer of groups found on the CPU being flushed.
    flush: Mutex<Vec<u32>>,
    one_threshold: OneThreshold,
    /// Whether a thread flushes the root. Written by: the thread that sets it, which also resets
    /// it. Publishes nothing.
    is_flushing: AtomicBool,
    readers: Mutex<()>,
    counts: Counts,
}

/// On a line of its own, as in a per-CPU area.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ListLock(Mutex<()>);

#[derive(Debug)]
struct Group {
    /// Totals of the subtree. Written under the flush lock, read by any thread, word by word.
    agg: [AtomicI64; ITEMS],
    /// As `agg`, without descendants.
    own: [AtomicI64; ITEMS],
    /// Carried here by children. Under the flush lock.
    pending: [AtomicI64; ITEMS],
    threshold: GroupThreshold,
    blocks: Blocks,
}

impl Group {
    fn new(nr_cpus: usize) -> Self {
        let zeros = || std::array::from_fn(|_| AtomicI64::new(0));
        Self {
            agg: zeros(),
            own: zeros(),
            pending: zeros(),
            threshold: GroupThreshold::default(),
            blocks: Blocks::none(nr_cpus),
        }
    }
}

/// See [`FlushTally`].
#[derive(Debug, Default)]
struct Counts {
    flushes: StatCell,
    periodic: StatCell,
    skipped_few: StatCell,
    skipped_busy: StatCell,
    cpus: StatCell,
    groups: StatCell,
    waits: StatCell,
}

impl Rstat {
    /// Creates statistics at zero.
    #[must_use]
    pub fn new(shape: &Shape, nr_cpus: usize, rule: FlushRule) -> Self {
        let groups = (0..shape.nr_groups()).map(|_| Group::new(nr_cpus));
        Self {
            rule,
            nr_cpus,
            shape: shape.clone(),
            groups: groups.collect(),
            lists: (0..nr_cpus).map(|_| ListLock::default()).collect(),
            flush: Mutex::default(),
            one_threshold: OneThreshold::new(nr_cpus),
            is_flushing: AtomicBool::new(false),
            readers: Mutex::default(),
            counts: Counts::default(),
        }
    }

    fn block(&self, group: usize, cpu: usize) -> &Arc<Block> {
        let blocks = &self.groups[group].blocks;
        if let Some(block) = blocks.get(cpu) {
            return block;
        }
        let parent = self.shape.parent(group);
        let parent = parent.map(|parent| Arc::clone(self.block(parent, cpu)));
        let number = u32::try_from(group).expect("groups have 32-bit numbers");
        blocks.get_or_make(cpu, || Block::new(number, parent))
    }

    fn lists(&self, cpu: usize) -> MutexGuard<'_, ()> {
        lock(&self.lists[cpu].0)
    }

    /// Flushes if the rule says so.
    fn flush_by_rule(&self, group: usize) {
        let limit = limit(self.nr_cpus);
        let is_worth_it = match self.rule {
            FlushRule::RootSkipIfBusy | FlushRule::SubtreeOneThreshold => {
                self.one_threshold.is_reached()
            }
            FlushRule::SubtreeThresholds => self.groups[group].threshold.is_reached(limit),
            FlushRule::Subtree | FlushRule::SubtreeUnderMutex => true,
        };
        if !is_worth_it {
            return self.counts.skipped_few.add(1);
        }
        match self.rule {
            FlushRule::RootSkipIfBusy => self.flush_root_or_skip(&self.counts.flushes),
            FlushRule::SubtreeUnderMutex => {
                let _alone = lock(&self.readers);
                self.flush(group, &self.counts.flushes);
            }
            FlushRule::Subtree | FlushRule::SubtreeOneThreshold | FlushRule::SubtreeThresholds => {
                self.flush(group, &self.counts.flushes);
            }
        }
    }

    /// Flushes the root, unless another thread does so.
    fn flush_root_or_skip(&self, count: &StatCell) {
        // Relaxed, here and below: a thread that finds it set skips the flush, and one that does
        // not synchronizes by the locks.
        if self.is_flushing.swap(true, Ordering::Relaxed) {
            return self.counts.skipped_busy.add(1);
        }
        self.flush(0, count);
        self.is_flushing.store(false, Ordering::Relaxed);
    }

    /// Flushes `top` and its descendants, and counts the flush.
    fn flush(&self, top: usize, count: &StatCell) {
        count.add(1);
        for cpu in 0..self.nr_cpus {
            let mut found = self.flush_lock();
            self.detach(top, cpu, &mut found);
            for &group in &*found {
                self.absorb(group as usize, cpu);
            }
            self.counts.groups.add(found.len() as u64);
            found.clear();
        }
        self.counts.cpus.add(self.nr_cpus as u64);
        // A flush of everything clears the one threshold.
        if top == 0 {
            self.one_threshold.reset();
        }
    }

    fn flush_lock(&self) -> MutexGuard<'_, Vec<u32>> {
        match self.flush.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.counts.waits.add(1);
                lock(&self.flush)
            }
        }
    }

    /// Takes the lock even if nothing was ever updated: the list is read only under it.
    fn detach(&self, top: usize, cpu: usize, found: &mut Vec<u32>) {
        let _lists = self.lists(cpu);
        let block_of = |group: u32| -> &Block {
            let block = self.groups[group as usize].blocks.get(cpu);
            block.expect("a group on a list has a block")
        };
        if let Some(block) = self.groups[top].blocks.get(cpu) {
            block.detach(found, block_of);
        }
    }

    /// Carries on a group's pending values and a CPU's counts. Under the flush lock.
    fn absorb(&self, at: usize, cpu: usize) {
        let group = &self.groups[at];
        let Some(block) = group.blocks.get(cpu) else {
            return;
        };
        let words = block.words();
        let parent = self.shape.parent(at).map(|parent| &self.groups[parent]);
        for item in 0..ITEMS {
            let counted = words.map_or(0, |words| words.take(item));
            let pending = take(&group.pending[item]);
            let delta = counted + pending;
            raise(&group.own[item], counted);
            raise(&group.agg[item], delta);
            if let Some(parent) = parent {
                raise(&parent.pending[item], delta);
            }
        }
        // Relaxed: a trigger. Updates counted meanwhile, on a CPU already visited, are forgotten
        // with it (spec 7.10); their data is not.
        block.updates.store(0, Ordering::Relaxed);
        group.threshold.reset();
    }
}

impl Flushing for Rstat {
    fn add(&self, group: usize, cpu: CpuId, item: Item, delta: i64) {
        let cpu = cpu.index();
        let block = self.block(group, cpu);
        block.add(item, delta);
        if !block.is_updated() {
            let _lists = self.lists(cpu);
            block.put_on();
        }
        let size = delta.unsigned_abs();
        match self.rule {
            FlushRule::RootSkipIfBusy | FlushRule::SubtreeOneThreshold => {
                self.one_threshold.count(cpu, size);
            }
            FlushRule::SubtreeThresholds => {
                let limit = limit(self.nr_cpus);
                count_up(block, size, limit, |group| &self.groups[group].threshold);
            }
            FlushRule::Subtree | FlushRule::SubtreeUnderMutex => {}
        }
    }

    fn read(&self, group: usize, _now: Duration) -> StatsRead {
        self.flush_by_rule(group);
        // Only this rule has a bound, and only without updates during a flush.
        let is_bounded = self.rule == FlushRule::SubtreeThresholds;
        StatsRead {
            values: self.values(group),
            staleness: is_bounded.then(|| staleness_max(self.nr_cpus)),
        }
    }

    fn flush_for_reclaim(&self, group: usize, _now: Duration) {
        self.flush_by_rule(group);
    }

    fn flush_periodic(&self, _now: Duration) {
        if self.rule == FlushRule::RootSkipIfBusy {
            self.flush_root_or_skip(&self.counts.periodic);
        } else {
            self.flush(0, &self.counts.periodic);
        }
    }

    fn tally(&self) -> FlushTally {
        let counts = &self.counts;
        FlushTally {
            flushes: counts.flushes.get(),
            periodic: counts.periodic.get(),
            shared: 0,
            skipped_few: counts.skipped_few.get(),
            skipped_busy: counts.skipped_busy.get(),
            cpus: counts.cpus.get(),
            groups: counts.groups.get(),
            waits: counts.waits.get(),
        }
    }
}

impl Rstat {
    /// Returns the present totals of a group.
    #[must_use]
    pub fn values(&self, group: usize) -> Stats {
        // Relaxed: each word is read on its own.
        let words = self.groups[group].agg.each_ref();
        words.map(|word| word.load(Ordering::Relaxed))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the run without a result.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds to a word that only the holder of the flush lock writes.
fn raise(word: &AtomicI64, delta: i64) {
    if delta != 0 {
        // Relaxed: one writer at a time, and readers use each word on its own.
        let sum = word.load(Ordering::Relaxed) + delta;
        word.store(sum, Ordering::Relaxed);
    }
}

/// Empties a word that only the holder of the flush lock writes, and returns its value.
fn take(word: &AtomicI64) -> i64 {
    // Relaxed: under the flush lock.
    let sum = word.load(Ordering::Relaxed);
    if sum != 0 {
        word.store(0, Ordering::Relaxed);
    }
    sum
}

/// For tests.
#[cfg(test)]
impl Rstat {
    pub(super) fn pending(&self, group: usize) -> Stats {
        let words = self.groups[group].pending.each_ref();
        words.map(|word| word.load(Ordering::Relaxed))
    }

    /// Runs `act` in the state in which another thread flushes the root.
    pub(super) fn beside_a_flush<T>(&self, act: impl FnOnce() -> T) -> T {
        self.is_flushing.store(true, Ordering::Relaxed);
        let result = act();
        self.is_flushing.store(false, Ordering::Relaxed);
        result
    }

    /// Checks that a group on a list has its ancestors on theirs, and is on its parent's list once.
    pub(super) fn check_lists(&self) {
        for cpu in 0..self.nr_cpus {
            let _lists = self.lists(cpu);
            for group in 0..self.shape.nr_groups() {
                let Some(block) = self.groups[group].blocks.get(cpu) else {
                    continue;
                };
                let children = block.children(|at| {
                    let block = self.groups[at as usize].blocks.get(cpu);
                    block.expect("a group on a list has a block")
                });
                let expected = (0..self.shape.nr_groups()).filter(|&at| {
                    let block = self.groups[at].blocks.get(cpu);
                    self.shape.parent(at) == Some(group)
                        && block.is_some_and(|block| block.is_updated())
                });
                let mut found: Vec<usize> = children.iter().map(|&at| at as usize).collect();
                found.sort_unstable();
                assert_eq!(found, expected.collect::<Vec<_>>());
                assert!(found.is_empty() || block.is_updated(), "{group} on {cpu}");
            }
        }
    }

    /// Checks, with everything flushed and no updates: nothing is pending, own words are what was
    /// added to the group, and a total is the own words plus the children's totals.
    pub(super) fn check_flushed(&self, added: impl Fn(usize) -> Stats) {
        let mut below = vec![[0; ITEMS]; self.groups.len()];
        for at in (0..self.groups.len()).rev() {
            assert_eq!(self.pending(at), [0; ITEMS]);
            let own = self.groups[at].own.each_ref();
            let own = own.map(|word| word.load(Ordering::Relaxed));
            assert_eq!(own, added(at));
            let total = self.values(at);
            for item in 0..ITEMS {
                assert_eq!(total[item], own[item] + below[at][item]);
                if let Some(parent) = self.shape.parent(at) {
                    below[parent][item] += total[item];
                }
            }
        }
    }
}
