//! A zone: a range of frames behind one lock, and the blocks that were freed while it was held.

use std::ops::Range;

use highwater::frame::{FreeCount, Wait};
use highwater::lab::sync::atomic::{AtomicU64, Ordering};
use highwater::lab::sync::{Hold, LockClass, LockTimes, Mutex, MutexGuard, Rank, TimeRecorder};
use highwater::units::{Order, Pages, Pfn};

use super::buddy::Buddy;
use super::deferred::Deferred;

pub(super) fn pages_of(order: Order, blocks: usize) -> Pages {
    Pages((blocks as u64) << order.get())
}

/// Class of every zone's lock.
static ZONE_LOCK: LockClass = LockClass::new("zone", Rank::Zone);

/// Deferred blocks of an order that a holder that must not wait takes off at most. Chosen: about
/// the batch of 63 frames that a per-CPU list moves, so that the hold stays as short as others.
const SPLICED_BRIEFLY: usize = 64;

/// A range of frames and its buddy allocator.
#[derive(Debug)]
pub(super) struct Zone {
    frames: Range<u32>,
    buddy: Mutex<Buddy>,
    deferred: Deferred,
    times: TimeRecorder,
    /// Written by: the holder of the buddy's lock, before what it freed is counted. Read by:
    /// requests that choose a zone. Publishes: nothing; a request that was promised frames acquired
    /// with the promise what was written here.
    nr_free: AtomicU64,
    /// Those of them that are fresh. Written and read as above.
    nr_fresh: AtomicU64,
}

/// A zone whose lock is held.
#[derive(Debug)]
pub(super) struct LockedZone<'a> {
    zone: &'a Zone,
    buddy: MutexGuard<'a, Buddy>,
    hold: Hold,
    /// Frames that this hold has moved.
    moved: Pages,
}

impl Zone {
    pub(super) fn new(frames: Range<u32>) -> Self {
        let buddy = Buddy::new(frames.clone());
        Self {
            deferred: Deferred::new(frames.start, frames.len()),
            times: TimeRecorder::new(),
            nr_free: AtomicU64::new(buddy.nr_free().0),
            nr_fresh: AtomicU64::new(buddy.nr_fresh().0),
            buddy: Mutex::new(&ZONE_LOCK, buddy),
            frames,
        }
    }

    /// Takes the lock to move about `frames`, or only tries to: a thread that must not wait does
    /// not ask for the lock's line twice.
    pub(super) fn enter(&self, wait: Wait, frames: Pages) -> Option<LockedZone<'_>> {
        let (buddy, waited) = match wait {
            Wait::Allowed => self.buddy.lock_timed(),
            Wait::Never => (self.buddy.try_lock()?, None),
        };
        Some(LockedZone {
            zone: self,
            hold: self.times.acquired(frames.0, waited),
            buddy,
            moved: Pages::ZERO,
        })
    }

    /// The buddy, for reports: not a hold that is recorded.
    pub(super) fn inspect(&self) -> MutexGuard<'_, Buddy> {
        self.buddy.lock()
    }

    pub(super) fn times(&self) -> LockTimes {
        self.times.read()
    }

    pub(super) fn contains(&self, pfn: Pfn) -> bool {
        self.frames.contains(&pfn.0)
    }

    /// Leaves blocks for the next holder of the lock.
    pub(super) fn defer(&self, order: Order, blocks: &[Pfn]) {
        self.deferred.push_all(order, blocks);
    }

    /// Frames in the buddy, as its last holder left them.
    pub(super) fn nr_free(&self) -> Pages {
        // Relaxed: a probe orders nothing.
        Pages(self.nr_free.load(Ordering::Relaxed))
    }

    /// Fresh frames in the buddy, as its last holder left them.
    pub(super) fn nr_fresh(&self) -> Pages {
        // Relaxed: a probe orders nothing.
        Pages(self.nr_fresh.load(Ordering::Relaxed))
    }

    /// Free frames that were used, deferred ones included.
    pub(super) fn nr_used(&self) -> Pages {
        self.nr_free().saturating_sub(self.nr_fresh()) + self.nr_deferred()
    }

    pub(super) fn nr_deferred(&self) -> Pages {
        self.deferred.nr_frames()
    }
}

impl LockedZone<'_> {
    /// Moves the deferred blocks into the buddy and counts them as free; a thread that must not
    /// wait, some of them.
    ///
    /// In this order: the frames are free, the zone shows them, they are counted, they stop being
    /// deferred. So a request that was promised some finds their zone, and one that finds nothing
    /// deferred finds them counted.
    pub(super) fn splice(&mut self, wait: Wait, count: &FreeCount) {
        if self.zone.nr_deferred() == Pages::ZERO {
            return;
        }
        let before = self.buddy.nr_free();
        let deferred = &self.zone.deferred;
        for order in Order::all() {
            let free = |block| self.buddy.free(block, order);
            match wait {
                Wait::Allowed => deferred.take(order, free),
                Wait::Never => {
                    deferred.take_some(order, SPLICED_BRIEFLY, free);
                }
            }
        }
        let spliced = self.buddy.nr_free() - before;
        self.moved += spliced;
        self.show();
        count.add_frames(spliced);
        deferred.are_free(spliced);
    }

    /// How many blocks of `order` can be taken in this hold.
    pub(super) fn nr_blocks(&self, order: Order) -> usize {
        usize::try_from(self.buddy.nr_free_blocks(order)).unwrap_or(usize::MAX)
    }

    /// Lets requests see how much is free here.
    fn show(&self) {
        // Relaxed: ordered by the count of free frames; stores are in the lock's order.
        self.zone
            .nr_free
            .store(self.buddy.nr_free().0, Ordering::Relaxed);
        let fresh = self.buddy.nr_fresh().0;
        if self.zone.nr_fresh.load(Ordering::Relaxed) != fresh {
            self.zone.nr_fresh.store(fresh, Ordering::Relaxed);
        }
    }

    /// Takes blocks until `out` is full or there are none: how many.
    pub(super) fn take(&mut self, order: Order, out: &mut [Pfn]) -> usize {
        let mut taken = 0;
        for place in out {
            let Some(block) = self.buddy.alloc(order) else {
                break;
            };
            *place = block;
            taken += 1;
        }
        self.moved += pages_of(order, taken);
        taken
    }

    /// Takes the free blocks of a range that are promised, frame by frame.
    pub(super) fn take_within(
        &mut self,
        frames: Range<u32>,
        is_promised: impl Fn(Order) -> bool,
        out: &mut Vec<Pfn>,
    ) {
        let mut at = frames.start;
        while at < frames.end {
            let Some(order) = self.buddy.order_at(Pfn(at)) else {
                at += 1;
                continue;
            };
            let end = at + (1 << order.get());
            if is_promised(order) {
                self.buddy.take(Pfn(at), order);
                out.extend((at..end).map(Pfn));
                self.moved += order.pages();
            }
            at = end;
        }
    }

    pub(super) fn give(&mut self, order: Order, blocks: &[Pfn]) {
        for &block in blocks {
            self.buddy.free(block, order);
        }
        self.moved += pages_of(order, blocks.len());
    }

    /// The memory of the largest block that begins at `first` was given back.
    pub(super) fn make_fresh(&mut self, first: Pfn) {
        self.buddy.make_fresh(first);
    }
}

impl Drop for LockedZone<'_> {
    fn drop(&mut self) {
        self.show();
        self.zone.times.released(&self.hold, self.moved.0);
    }
}
