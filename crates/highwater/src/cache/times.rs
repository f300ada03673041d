//! Access times: when the latest marked access to each page was, by the clock of its group.
//!
//! A mark says that a page was accessed since reclaim last looked at it, but not when. While
//! nothing is evicted, no page is looked at, and marks alone would not tell in which order a set
//! was read. So an access that sets a mark, or adds to one, records the time as well. A hit of a
//! page whose marks are full stores nothing, and its time is not known.
//!
//! A clock counts the marked accesses to the pages of its group, in order of magnitude: so that it
//! is no contended word, only accesses to a sample of the frames advance it, by the inverse of the
//! sampling rate. Groups share at most [`CLOCKS`] clocks by their number. An access of another
//! group lets a clock run faster, which costs precision and nothing else.

use super::PageCache;
use crate::memmap::{FrameMemory, zeroed};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::{GroupId, Pages, Pfn};

/// Clocks of all groups, a power of two: 1 KiB.
const CLOCKS: usize = 256;

/// Steps of a clock in which as many accesses are marked as there are pages. Chosen: eight for each
/// epoch of `reclaim::recency`.
const STEPS: u64 = 512;

/// Largest number of accesses for a step. Chosen: then a shared word is written at most once for
/// 64 accesses, each of which writes words of the page's frame as well.
const RATE_MAX: u32 = 64;

/// The time of each frame's page, and the clocks.
///
/// Written by: threads that mark accesses. Read by: reclaim. Publishes: nothing; a time that comes
/// late makes an access look older.
#[derive(Debug)]
pub struct AccessTimes {
    times: Box<[AtomicU32]>,
    clocks: Box<[AtomicU32]>,
    /// Marked accesses for a step of a clock; a power of two.
    rate: u32,
}

// Relaxed throughout: see the type.
impl AccessTimes {
    /// Creates the times of a memory's frames.
    pub(crate) fn of(memory: &FrameMemory) -> Self {
        Self::new([memory.pages(); 2], CLOCKS)
    }

    /// Creates the times of that many frames, of which `resident` hold pages at once, which that
    /// many groups pay for.
    ///
    /// # Panics
    ///
    /// If they do not fit into an address space.
    #[must_use]
    pub fn new([frames, resident]: [Pages; 2], nr_groups: usize) -> Self {
        let nr_frames = usize::try_from(frames.0).expect("frames fit memory");
        let rate = (resident.0 / STEPS).clamp(1, u64::from(RATE_MAX));
        Self {
            times: zeroed(nr_frames),
            clocks: zeroed(nr_groups.next_power_of_two().min(CLOCKS)),
            rate: u32::try_from(rate.next_power_of_two()).expect("at most 64"),
        }
    }

    fn clock(&self, group: GroupId) -> &AtomicU32 {
        // A power of two.
        &self.clocks[group.index() & (self.clocks.len() - 1)]
    }

    /// Returns the time by a group's clock.
    #[must_use]
    pub fn now(&self, group: GroupId) -> u32 {
        self.clock(group).load(Ordering::Relaxed)
    }

    /// Returns the time of the latest marked access to the page in a frame.
    #[must_use]
    pub fn at(&self, pfn: Pfn) -> u32 {
        self.times[pfn.index()].load(Ordering::Relaxed)
    }

    /// Records a marked access to the page in a frame, which `group` pays for.
    ///
    /// # Cost
    ///
    /// A load and a store; for one of `rate` frames, an atomic addition besides.
    pub fn note(&self, pfn: Pfn, group: GroupId) {
        let clock = self.clock(group);
        // Fibonacci hashing: the sample is spread over frames that are taken in any pattern.
        let is_sampled = (pfn.0.wrapping_mul(0x9E37_79B1) >> 8) & (self.rate - 1) == 0;
        let now = match is_sampled {
            true => clock.fetch_add(self.rate, Ordering::Relaxed),
            false => clock.load(Ordering::Relaxed),
        };
        self.times[pfn.index()].store(now, Ordering::Relaxed);
    }
}

impl PageCache {
    /// Sets where times of marked accesses are recorded, if a policy uses them. Each mark costs a
    /// load and two stores then, instead of one.
    #[must_use]
    pub(crate) fn timing_by(mut self, times: Option<AccessTimes>) -> Self {
        self.times = times;
        self
    }

    /// Records the time of an access that was marked.
    pub(super) fn note_time(&self, pfn: Pfn) {
        if let Some(times) = &self.times {
            // The page may pass to another group meanwhile: then its time is by another clock.
            times.note(pfn, self.group_of(pfn));
        }
    }

    /// Returns the time of the latest marked access to the page in a frame.
    #[must_use]
    pub fn accessed_at(&self, pfn: Pfn) -> u32 {
        self.times.as_ref().map_or(0, |times| times.at(pfn))
    }

    /// Returns the time by the access clock of a group.
    #[must_use]
    pub fn access_clock(&self, group: GroupId) -> u32 {
        self.times.as_ref().map_or(0, |times| times.now(group))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn times_tell_the_order_of_accesses() {
        // Goal: later accesses have later times, and a clock counts its group's accesses within a
        // quarter. Method: pages accessed in order, by two groups with a clock each.
        for pages in [100_u32, 1000, 100_000] {
            let times = AccessTimes::new([Pages(u64::from(pages)); 2], 2);
            for pfn in 0..pages {
                times.note(Pfn(pfn), GroupId(pfn % 4 / 3));
            }
            for pfn in (4..pages).filter(|pfn| pfn % 4 < 3) {
                assert!(times.at(Pfn(pfn)) >= times.at(Pfn(pfn / 4)), "{pfn}");
            }
            for (group, count) in [(0, 3 * pages / 4), (1, pages / 4)] {
                let off = times.now(GroupId(group)).abs_diff(count);
                assert!(off <= count / 4 + 64, "group {group}: {off} of {count}");
            }
        }
    }
}
