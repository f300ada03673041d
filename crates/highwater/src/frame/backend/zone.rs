//! A zone: a range of frames behind one lock, and the blocks that were freed while it was held.

use std::ops::Range;

use super::Wait;
use super::buddy::Buddy;
use super::deferred::Deferred;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{LockClass, Mutex, MutexGuard, Rank};
use crate::units::{Order, Pages, Pfn};

/// Class of every zone's lock.
pub(in crate::frame) static ZONE_LOCK: LockClass = LockClass::new("zone", Rank::Zone);

/// A range of frames and its buddy allocator.
#[derive(Debug)]
pub(super) struct Zone {
    frames: Range<u32>,
    buddy: Mutex<Buddy>,
    deferred: Deferred,
    /// Written by: the holder of the buddy's lock. Read by: requests that choose a zone. Publishes:
    /// nothing; it may be an update behind.
    nr_free: AtomicU64,
}

/// A zone whose lock is held.
#[derive(Debug)]
pub(super) struct LockedZone<'a> {
    zone: &'a Zone,
    buddy: MutexGuard<'a, Buddy>,
}

impl Zone {
    pub(super) fn new(frames: Range<u32>) -> Self {
        let buddy = Buddy::new(frames.clone());
        Self {
            deferred: Deferred::new(frames.start, frames.len()),
            nr_free: AtomicU64::new(buddy.nr_free().0),
            buddy: Mutex::new(&ZONE_LOCK, buddy),
            frames,
        }
    }

    /// Takes the lock, or only tries to: a thread that must not wait does not get to know the
    /// lock's line twice.
    pub(super) fn enter(&self, wait: Wait) -> Option<LockedZone<'_>> {
        let buddy = if wait == Wait::Allowed {
            self.buddy.lock()
        } else {
            self.buddy.try_lock()?
        };
        Some(LockedZone { zone: self, buddy })
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

    pub(super) fn nr_deferred(&self) -> Pages {
        self.deferred.nr_frames()
    }
}

impl LockedZone<'_> {
    /// Moves the deferred blocks into the buddy: how many frames.
    pub(super) fn splice(&mut self) -> Pages {
        if self.zone.nr_deferred() == Pages::ZERO {
            return Pages::ZERO;
        }
        let before = self.buddy.nr_free();
        for order in Order::all() {
            let buddy = &mut *self.buddy;
            self.zone
                .deferred
                .take(order, |block| buddy.free(block, order));
        }
        self.buddy.nr_free() - before
    }

    /// Takes blocks until `out` is full or there are none: how many.
    pub(super) fn take(&mut self, order: Order, out: &mut [Pfn]) -> usize {
        for (taken, place) in out.iter_mut().enumerate() {
            let Some(block) = self.buddy.alloc(order) else {
                return taken;
            };
            *place = block;
        }
        out.len()
    }

    pub(super) fn give(&mut self, order: Order, blocks: &[Pfn]) {
        for &block in blocks {
            self.buddy.free(block, order);
        }
    }

    pub(super) fn buddy(&self) -> &Buddy {
        &self.buddy
    }
}

impl Drop for LockedZone<'_> {
    fn drop(&mut self) {
        // Relaxed: a probe orders nothing; stores are in the lock's order.
        self.zone
            .nr_free
            .store(self.buddy.nr_free().0, Ordering::Relaxed);
    }
}
