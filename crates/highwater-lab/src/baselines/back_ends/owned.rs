//! Per-CPU lists (pcp) that own page blocks, as proposed in April 2026: a CPU claims blocks of 2
//! MiB and splits them itself, and each free goes to the list of the CPU that owns the frame's
//! block, whichever CPU frees it.
//!
//! | phase of a refill | takes, in one hold of the zone's lock |
//! |---|---|
//! | 0 | fragments of the CPU's own blocks, which drains had put into the zone |
//! | 1 | whole blocks, which the CPU owns from now on |
//! | 2 | smaller chunks, which it does not own |
//! | 3 | single frames |
//!
//! A list merges by itself: it keeps a bit for each free frame of a block. A drain passes over its
//! blocks under the list's lock, the emptiest use first: whole blocks go back to the zone and have
//! no owner then; of others, the largest chunks go, and the owner remembers them. Sizes, growth
//! and decay are those of Linux since 6.7, and a drain drops the zone's lock after each batch of
//! frames or chunk.
//!
//! Source: J. Weiner, "pcp buddy allocator" (RFC for the page allocator, 3 April 2026), as its
//! cover letter and the frames-and-reclaim specification, section 8.2, describe it. Deviations: no
//! migrate types; the lowest free frame of the block used last is handed out, instead of the frame
//! freed last; a list finds a block in a B-tree; a frame whose block changes owner during its free
//! stays in the list that was locked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use highwater::frame::PcpSizes;
use highwater::units::{CpuId, Order, Pages, Pfn};

use super::buddy::Buddy;

/// Doublings of refills and drains.
const SCALE: u8 = 5;
/// Frames of a block, and words of its bits.
const BLOCK: u32 = 512;
const WORDS: usize = 8;
const WORD: u32 = 64;
/// No CPU owns a block.
const NO_OWNER: u32 = 0;

/// Free frames of one zone, and the lists of all CPUs.
#[derive(Debug)]
pub struct OwnedLists {
    sizes: PcpSizes,
    zone: Mutex<Buddy>,
    /// By block: the CPU that owns it plus one. Written by: holders of the zone's lock. Read by:
    /// any thread. Publishes: nothing: a stale owner costs locality.
    owners: Box<[AtomicU32]>,
    lists: Box<[CachePadded<Mutex<OwnedList>>]>,
    counts: CachePadded<Counts>,
}

/// Events of the zone, and waits. Written and read by any thread; they publish nothing.
#[derive(Debug, Default)]
struct Counts {
    refills: AtomicU64,
    drains: AtomicU64,
    waits: AtomicU64,
    waited_ns: AtomicU64,
}

/// Counts of events since the lists were created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnedCounts {
    /// Holds of the zone's lock that took frames.
    pub refills: u64,
    /// Holds of it that gave frames back.
    pub drains: u64,
    /// Frees that took the lock of another CPU's list.
    pub remote: u64,
    /// Locks of lists and of the zone that were waited for, and how long.
    pub waits: u64,
    /// Nanoseconds of waits.
    pub waited_ns: u64,
}

/// One CPU's list.
#[derive(Debug, Default)]
struct OwnedList {
    /// Free frames by block, a bit each; no block without any.
    blocks: BTreeMap<u32, [u64; WORDS]>,
    /// The block that frames are taken from.
    current: Option<u32>,
    /// Own blocks of which the zone has fragments.
    fragments: BTreeSet<u32>,
    count: u32,
    high: u32,
    free_run: u32,
    grow: u8,
    /// Frees by other CPUs.
    remote: u64,
}

impl OwnedList {
    fn insert(&mut self, first: u32, order: u8) {
        let bits = self.blocks.entry(first / BLOCK).or_default();
        for frame in first..first + (1 << order) {
            let (word, bit) = place(frame);
            assert_eq!(bits[word] & bit, 0, "frame {frame} freed twice");
            bits[word] |= bit;
        }
        self.count += 1 << order;
    }

    fn pop(&mut self) -> Option<Pfn> {
        let current = self.current.filter(|block| self.blocks.contains_key(block));
        // A block that is in use already comes before whole ones.
        let block = current.or_else(|| {
            let is_part = |bits: &[u64; WORDS]| bits.iter().any(|word| *word != u64::MAX);
            let part = self.blocks.iter().find(|(_, bits)| is_part(bits));
            part.or_else(|| self.blocks.iter().next())
                .map(|(block, _)| *block)
        })?;
        self.current = Some(block);
        let bits = self.blocks.get_mut(&block)?;
        let word = bits.iter().position(|word| *word != 0)?;
        let at = bits[word].trailing_zeros();
        bits[word] &= bits[word] - 1;
        if bits.iter().all(|word| *word == 0) {
            self.blocks.remove(&block);
        }
        self.count -= 1;
        let word = u32::try_from(word).expect("one of eight");
        Some(Pfn(block * BLOCK + word * WORD + at))
    }

    /// Takes the largest chunk that is free: a whole block if there is one.
    fn take_chunk(&mut self) -> Option<(u32, u8)> {
        let is_whole = |(_, bits): &(&u32, &[u64; WORDS])| bits.iter().all(|w| *w == u64::MAX);
        if let Some((&block, _)) = self.blocks.iter().find(is_whole) {
            self.blocks.remove(&block);
            self.count -= BLOCK;
            return Some((block * BLOCK, Order::HUGE.get()));
        }
        // Of the block with the most free frames, the largest run.
        let free = |bits: &[u64; WORDS]| bits.iter().map(|word| word.count_ones()).sum::<u32>();
        let (&block, bits) = self.blocks.iter_mut().max_by_key(|(_, bits)| free(bits))?;
        let order = (0..Order::HUGE.get()).rev();
        let (first, order) = order
            .filter_map(|order| Some((first_run(bits, order)?, order)))
            .next()?;
        for frame in first..first + (1 << order) {
            let (word, bit) = place(frame);
            bits[word] &= !bit;
        }
        if free(bits) == 0 {
            self.blocks.remove(&block);
        }
        self.count -= 1 << order;
        Some((block * BLOCK + first, order))
    }
}

/// Returns word and bit of a frame in its block.
const fn place(frame: u32) -> (usize, u64) {
    let at = frame % BLOCK;
    ((at / WORD) as usize, 1 << (at % WORD))
}

/// Returns the first aligned run of 2^order free frames in a block.
fn first_run(bits: &[u64; WORDS], order: u8) -> Option<u32> {
    let is_free = |frame: u32| {
        let (word, bit) = place(frame);
        bits[word] & bit != 0
    };
    let mut firsts = (0..BLOCK).step_by(1 << order);
    firsts.find(|&first| (first..first + (1 << order)).all(is_free))
}

impl OwnedLists {
    /// Returns lists for `nr_cpus` CPUs of those sizes, over `frames` frames, all free in the zone.
    #[must_use]
    pub fn new(frames: u32, nr_cpus: usize, sizes: PcpSizes) -> Self {
        let list = |_| {
            CachePadded::new(Mutex::new(OwnedList {
                high: sizes.high_min,
                ..OwnedList::default()
            }))
        };
        Self {
            sizes,
            zone: Mutex::new(Buddy::new(0..frames)),
            owners: (0..frames.div_ceil(BLOCK))
                .map(|_| AtomicU32::new(NO_OWNER))
                .collect(),
            lists: (0..nr_cpus).map(list).collect(),
            counts: CachePadded::new(Counts::default()),
        }
    }

    /// Allocates a frame on `cpu`.
    ///
    /// # Panics
    ///
    /// When there is no such CPU.
    pub fn alloc(&self, cpu: CpuId) -> Option<Pfn> {
        let mut list = self.lock(&self.lists[cpu.index()]);
        list.free_run /= 2;
        if list.count == 0 {
            self.refill(cpu, &mut list);
        }
        list.pop()
    }

    /// Frees a frame on `cpu`, to the list of the CPU that owns its block.
    ///
    /// # Panics
    ///
    /// When there is no such CPU, or the frame is free.
    pub fn free(&self, cpu: CpuId, pfn: Pfn) {
        // Relaxed: see the field.
        let owner = self.owners[(pfn.0 / BLOCK) as usize].load(Ordering::Relaxed);
        let target = match owner {
            NO_OWNER => cpu,
            owner => CpuId(owner - 1),
        };
        let mut list = self.lock(&self.lists[target.index()]);
        list.remote += u64::from(target != cpu);
        list.insert(pfn.0, 0);
        list.grow /= 2;
        let cap = self.sizes.batch << SCALE;
        list.free_run = (list.free_run + 1).min(cap);
        if list.count >= list.high {
            let PcpSizes {
                batch,
                high_min,
                high_max,
            } = self.sizes;
            let most = list.high.saturating_sub(batch);
            let excess = list.free_run.max(batch).min(most).max(1);
            let burst = list.high.max(list.free_run + batch);
            list.high = burst.max(high_min).min(high_max);
            self.drain(target, &mut list, excess);
        }
    }

    /// Brings frames, as many as the rules of Linux since 6.7 say.
    fn refill(&self, cpu: CpuId, list: &mut OwnedList) {
        let PcpSizes {
            batch, high_max, ..
        } = self.sizes;
        let doubled = batch << list.grow;
        list.high = list.high.saturating_add(doubled).min(high_max);
        let room = list.high.saturating_sub(list.count + batch).max(batch);
        if doubled <= room && list.grow < SCALE {
            list.grow += 1;
        }
        let wanted = list.count + doubled.min(room);
        let mut zone = self.lock(&self.zone);
        self.counts.refills.fetch_add(1, Ordering::Relaxed);
        while list.count < wanted
            && let Some(block) = list.fragments.pop_first()
        {
            recover(&mut zone, list, block);
        }
        let mine = cpu.0 + 1;
        for order in (0..=Order::HUGE.get()).rev() {
            let size = Order::new(order).expect("an order of the zone");
            while list.count < wanted
                && let Some(first) = zone.alloc(size)
            {
                if order == Order::HUGE.get() {
                    // Relaxed: see the field.
                    self.owner_of(first.0).store(mine, Ordering::Relaxed);
                }
                list.insert(first.0, order);
            }
        }
    }

    /// Gives `excess` frames or a little more back, in holds of a batch or a chunk.
    fn drain(&self, cpu: CpuId, list: &mut OwnedList, excess: u32) {
        let mut left = excess;
        while left > 0 && list.count > 0 {
            let mut zone = self.lock(&self.zone);
            self.counts.drains.fetch_add(1, Ordering::Relaxed);
            let mut given = 0;
            while given < self.sizes.batch.min(left)
                && let Some((first, order)) = list.take_chunk()
            {
                self.give(&mut zone, cpu, list, first, order);
                given += 1 << order;
            }
            left = left.saturating_sub(given);
        }
    }

    /// Gives a chunk to the zone. A block that is whole there has no owner.
    fn give(&self, zone: &mut Buddy, cpu: CpuId, list: &mut OwnedList, first: u32, order: u8) {
        zone.free(Pfn(first), Order::new(order).expect("at most a block"));
        let block = first / BLOCK;
        let owner = self.owner_of(first);
        let is_whole = is_whole(zone, block);
        // Relaxed: see the field.
        if is_whole {
            owner.store(NO_OWNER, Ordering::Relaxed);
            list.fragments.remove(&block);
        } else if owner.load(Ordering::Relaxed) == cpu.0 + 1 {
            list.fragments.insert(block);
        }
    }

    fn owner_of(&self, frame: u32) -> &AtomicU32 {
        &self.owners[(frame / BLOCK) as usize]
    }

    /// Shrinks all lists by a step, as a tick of decay does.
    pub fn decay_tick(&self) {
        let most = self.sizes.batch << SCALE;
        for (cpu, list) in self.lists.iter().enumerate() {
            let mut list = self.lock(list);
            if list.high > self.sizes.high_min {
                let kept = list.count.saturating_sub(most);
                let shrunk = list.high - (list.high / 8).max(1);
                list.high = kept.max(shrunk).max(self.sizes.high_min).min(list.high);
            }
            let excess = list.count.saturating_sub(list.high).min(most);
            self.drain(CpuId::from_index(cpu), &mut list, excess);
        }
    }

    /// Moves all frames of all lists to the zone.
    pub fn drain_all(&self) {
        for (cpu, list) in self.lists.iter().enumerate() {
            let mut list = self.lock(list);
            let all = list.count;
            self.drain(CpuId::from_index(cpu), &mut list, all);
        }
    }

    /// Returns the number of frames in one CPU's list.
    ///
    /// # Panics
    ///
    /// When there is no such CPU.
    #[must_use]
    pub fn cached_on(&self, cpu: CpuId) -> u64 {
        self.lock(&self.lists[cpu.index()]).count.into()
    }

    /// Returns the number of frames in the zone.
    #[must_use]
    pub fn nr_free(&self) -> Pages {
        self.lock(&self.zone).nr_free()
    }

    /// Returns the counts of events.
    #[must_use]
    pub fn counts(&self) -> OwnedCounts {
        let lists = self.lists.iter();
        let remote = lists.map(|list| self.lock(list).remote).sum();
        let counts = &self.counts;
        let [refills, drains, waits, waited_ns] = [
            &counts.refills,
            &counts.drains,
            &counts.waits,
            &counts.waited_ns,
        ]
        .map(|count| count.load(Ordering::Relaxed));
        OwnedCounts {
            refills,
            drains,
            remote,
            waits,
            waited_ns,
        }
    }

    /// Takes a lock, and counts a wait for it.
    fn lock<'a, T>(&self, of: &'a Mutex<T>) -> MutexGuard<'a, T> {
        match of.try_lock() {
            Ok(locked) => locked,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let begun = Instant::now();
                let locked = of.lock().unwrap_or_else(PoisonError::into_inner);
                let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.counts.waits.fetch_add(1, Ordering::Relaxed);
                self.counts.waited_ns.fetch_add(ns, Ordering::Relaxed);
                locked
            }
        }
    }
}

/// Takes all free frames of a block from the zone.
fn recover(zone: &mut Buddy, list: &mut OwnedList, block: u32) {
    let (mut frame, end) = (block * BLOCK, (block + 1) * BLOCK);
    while frame < end {
        match zone.order_at(Pfn(frame)) {
            Some(order) if order < Order::HUGE => {
                zone.take(Pfn(frame), order);
                list.insert(frame, order.get());
                frame += 1 << order.get();
            }
            _ => frame += 1,
        }
    }
}

/// Returns whether a whole block is free in the zone, alone or in a larger one.
fn is_whole(zone: &Buddy, block: u32) -> bool {
    let first = block * BLOCK;
    let larger = (Order::HUGE.get()..=Order::MAX.get()).find_map(|order| {
        let head = first & !((1 << order) - 1);
        zone.order_at(Pfn(head))
            .filter(|found| found.get() >= order)
    });
    larger.is_some()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    const SIZES: PcpSizes = PcpSizes {
        batch: 63,
        high_min: 252,
        high_max: 3000,
    };

    /// Goal: frames are conserved, and none is handed out twice. Method: random allocations and
    /// frees on random CPUs, with decay; at the end all frames are free and in whole blocks.
    #[test]
    fn frames_are_conserved() {
        let mut random = fastrand::Rng::with_seed(5);
        let lists = OwnedLists::new(1 << 15, 4, SIZES);
        let mut held = Vec::new();
        let mut is_held = vec![false; 1 << 15];
        for step in 0..200_000 {
            let cpu = CpuId::from_index(random.usize(..4));
            if random.usize(..30_000) > held.len() {
                let pfn: Pfn = lists.alloc(cpu).expect("frames");
                assert!(!std::mem::replace(&mut is_held[pfn.index()], true));
                held.push(pfn);
            } else {
                let pfn = held.swap_remove(random.usize(..held.len()));
                is_held[pfn.index()] = false;
                lists.free(cpu, pfn);
            }
            if step % 1000 == 0 {
                lists.decay_tick();
            }
        }
        held.drain(..).for_each(|pfn| lists.free(CpuId(1), pfn));
        lists.drain_all();
        assert_eq!(lists.nr_free(), Pages(1 << 15));
        let zone = lists.zone.lock().expect("no panic");
        zone.check_invariants();
        assert_eq!(zone.nr_free_blocks(Order::HUGE), 64);
        // Relaxed: nothing runs.
        let owners = lists.owners.iter();
        assert!(
            owners
                .map(|owner| owner.load(Ordering::Relaxed))
                .all(|owner| owner == NO_OWNER)
        );
    }

    /// Goal: as published, a frame freed on another CPU goes to its owner's list, which then serves
    /// the owner without the zone.
    #[test]
    fn frees_go_to_the_owner() {
        let lists = OwnedLists::new(1 << 15, 2, SIZES);
        let frames: Vec<_> = (0..200).map(|_| lists.alloc(CpuId(0))).collect();
        let before = lists.counts();
        for frame in frames {
            lists.free(CpuId(1), frame.expect("frames"));
        }
        let after = lists.counts();
        assert_eq!(after.remote - before.remote, 200);
        assert_eq!(lists.cached_on(CpuId(1)), 0);
        assert!(lists.cached_on(CpuId(0)) >= 200);
        for _ in 0..200 {
            lists.alloc(CpuId(0)).expect("frames");
        }
        assert_eq!(lists.counts().refills, after.refills);
    }

    /// Goal: conservation with threads that free each other's frames.
    #[test]
    fn threads_conserve_frames() {
        let lists = OwnedLists::new(1 << 14, 3, SIZES);
        let way = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for cpu in 0..3 {
                let (lists, way) = (&lists, &way);
                scope.spawn(move || {
                    let cpu = CpuId(cpu);
                    for _ in 0..2000 {
                        let own: Vec<_> = (0..16).filter_map(|_| lists.alloc(cpu)).collect();
                        let theirs = std::mem::replace(&mut *way.lock().expect("no panic"), own);
                        theirs.into_iter().for_each(|pfn| lists.free(cpu, pfn));
                    }
                });
            }
        });
        let rest = way.into_inner().expect("no panic");
        rest.into_iter().for_each(|pfn| lists.free(CpuId(0), pfn));
        lists.drain_all();
        assert_eq!(lists.nr_free(), Pages(1 << 14));
    }
}
