//! A zone: a range of frames behind one lock.

use std::ops::Range;

use super::Reserve;
use super::buddy::Buddy;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{LockClass, Mutex, Rank};
use crate::units::{Order, Pages, Pfn};

/// Class of every zone's lock.
pub(super) static ZONE_LOCK: LockClass = LockClass::new("zone", Rank::Zone);

/// A range of frames, its buddy allocator, and how many frames ordinary requests must leave.
#[derive(Debug)]
pub(super) struct Zone {
    end: Pfn,
    floor: Pages,
    buddy: Mutex<Buddy>,
    /// Written by: the holder of the buddy's lock. Read by: watermark probes of any thread.
    /// Publishes: nothing; a probe may be an update behind.
    nr_free: AtomicU64,
}

impl Zone {
    pub(super) fn new(frames: Range<u32>, floor: Pages) -> Self {
        let end = Pfn(frames.end);
        let buddy = Buddy::new(frames);
        let nr_free = AtomicU64::new(buddy.nr_free().0);
        Self {
            end,
            floor,
            buddy: Mutex::new(&ZONE_LOCK, buddy),
            nr_free,
        }
    }

    /// Hands up to `count` single frames to `take`; returns how many.
    pub(super) fn alloc_bulk(
        &self,
        count: usize,
        reserve: Reserve,
        take: &mut impl FnMut(Pfn),
    ) -> usize {
        let floor = match reserve {
            Reserve::Keep => self.floor,
            Reserve::Use => Pages::ZERO,
        };
        let mut buddy = self.buddy.lock();
        let mut taken = 0;
        while taken < count && buddy.nr_free() > floor {
            let Some(pfn) = buddy.alloc(Order::ZERO) else {
                break;
            };
            take(pfn);
            taken += 1;
        }
        self.note_free(&buddy);
        taken
    }

    pub(super) fn free(&self, pfn: Pfn) {
        let mut buddy = self.buddy.lock();
        buddy.free(pfn, Order::ZERO);
        self.note_free(&buddy);
    }

    /// One past the zone's last frame.
    pub(super) fn end(&self) -> Pfn {
        self.end
    }

    pub(super) fn nr_free(&self) -> Pages {
        // Relaxed: a probe orders nothing.
        Pages(self.nr_free.load(Ordering::Relaxed))
    }

    pub(super) fn check_invariants(&self) {
        let buddy = self.buddy.lock();
        buddy.check_invariants();
        assert_eq!(buddy.nr_free(), self.nr_free(), "the probes' count");
    }

    fn note_free(&self, buddy: &Buddy) {
        // Relaxed: a probe orders nothing; stores are in the lock's order.
        self.nr_free.store(buddy.nr_free().0, Ordering::Relaxed);
    }
}
