//! Per-CPU lists of free frames (pcp): most allocations and frees end here.
//!
//! A list holds up to `high` frames. An allocation from an empty list brings a `batch` from the
//! zone; a free that reaches `high` takes a batch back. The most recently freed frame is handed out
//! first (it is warm); the longest-held leave first.
//!
//! A list has a lock because other threads drain it, and because the CPU number is a hint: a thread
//! may be moved between reading it and using the list. Its own CPU only tries the lock and goes to
//! the zone when that fails, so no allocation waits for a drain.

use std::collections::VecDeque;

use super::ListInfo;
use crate::sync::{LockClass, Mutex, MutexGuard, Rank};
use crate::units::{CpuId, Pages, Pfn};

/// Class of every per-CPU list's lock.
pub(super) static PCP_LOCK: LockClass = LockClass::new("pcp", Rank::Pcp);

/// Sizes of a per-CPU list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PcpSizes {
    /// Frames moved between list and zone at once.
    pub batch: usize,
    /// A list with this many frames gives a batch back; 0: the list holds nothing.
    pub high: usize,
}

/// Chosen: all lists together hold at most 1/64 of the pool, so that what they keep back costs a
/// small cache at most 1.6 % of its frames. Models have pools of a few frames, all of which lists may
/// hold.
const SHARE: u64 = if cfg!(loom) { 1 } else { 64 };

impl PcpSizes {
    /// `batch` is 2^k - 1 near 3/8192 of the pool, at most 63; `high` is the CPU's share of the low
    /// watermark, at least four batches, within the CPU's part of 1/64 of the pool.
    #[must_use]
    pub fn for_managed(managed: Pages, low: Pages, nr_cpus: usize) -> Self {
        const MIB_PAGES: u64 = 256;
        let nr_cpus = nr_cpus as u64;
        let target = ((managed.0 / 1024).min(MIB_PAGES) / 4).max(1);
        let batch = ((1 << (target + target / 2).ilog2()) - 1).max(1);
        let high = (low.0 / nr_cpus)
            .max(4 * batch)
            .min(managed.0 / SHARE / nr_cpus);
        let batch = batch.min(high.div_ceil(4).max(1));
        let size = |pages| usize::try_from(pages).unwrap_or(usize::MAX);
        Self {
            batch: size(batch),
            high: size(high),
        }
    }
}

/// One CPU's free frames.
#[derive(Debug)]
pub(super) struct PcpList {
    sizes: PcpSizes,
    frames: Mutex<VecDeque<Pfn>>,
}

/// A locked list.
#[derive(Debug)]
pub(super) struct LockedPcp<'a> {
    sizes: PcpSizes,
    frames: MutexGuard<'a, VecDeque<Pfn>>,
}

impl PcpList {
    pub(super) fn new(sizes: PcpSizes) -> Self {
        let frames = VecDeque::with_capacity(sizes.high + sizes.batch);
        Self {
            sizes,
            frames: Mutex::new(&PCP_LOCK, frames),
        }
    }

    /// The list, unless another thread holds it or it is too small to hold anything.
    pub(super) fn try_lock(&self) -> Option<LockedPcp<'_>> {
        if self.sizes.high == 0 {
            return None;
        }
        let frames = self.frames.try_lock()?;
        Some(LockedPcp {
            sizes: self.sizes,
            frames,
        })
    }

    pub(super) fn info(&self, cpu: CpuId) -> ListInfo {
        let size = |size| u32::try_from(size).unwrap_or(u32::MAX);
        let (high, batch) = (size(self.sizes.high), size(self.sizes.batch));
        ListInfo {
            cpu: Some(cpu),
            count: size(self.frames.lock().len()),
            high,
            high_min: high,
            high_max: high,
            batch,
            free_run: 0,
            grow: 0,
        }
    }

    pub(super) fn nr_cached(&self) -> Pages {
        Pages(self.frames.lock().len() as u64)
    }

    /// Empties the list in batches; the lock is dropped between them.
    pub(super) fn drain(&self, mut give: impl FnMut(Pfn)) -> Pages {
        let mut drained = Pages::ZERO;
        // Bounded: a list that is refilled as fast as it is drained is in use, not idle.
        for _ in 0..=self.sizes.high / self.sizes.batch {
            let mut frames = self.frames.lock();
            let count = frames.len().min(self.sizes.batch);
            if count == 0 {
                break;
            }
            frames.drain(..count).for_each(&mut give);
            drained += Pages(count as u64);
        }
        drained
    }
}

impl LockedPcp<'_> {
    /// The most recently freed frame.
    pub(super) fn pop(&mut self) -> Option<Pfn> {
        self.frames.pop_back()
    }

    pub(super) fn push(&mut self, pfn: Pfn) {
        self.frames.push_back(pfn);
    }

    pub(super) fn batch(&self) -> usize {
        self.sizes.batch
    }

    /// Gives a batch of the longest-held frames away once `high` is reached; how many went.
    pub(super) fn drain_above_high(&mut self, give: impl FnMut(Pfn)) -> usize {
        if self.frames.len() < self.sizes.high {
            return 0;
        }
        let count = self.frames.len().min(self.sizes.batch);
        self.frames.drain(..count).for_each(give);
        count
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Watermarks;
    use crate::units::Bytes;

    fn sizes(bytes: Bytes, nr_cpus: usize) -> PcpSizes {
        let managed = bytes.pages_floor();
        PcpSizes::for_managed(managed, Watermarks::for_managed(managed).low, nr_cpus)
    }

    #[test]
    fn batches_follow_the_rule() {
        // The specification's table (frames, 4.2): 256 MiB -> 15, 512 MiB -> 31, >= 1 GiB -> 63.
        assert_eq!(sizes(Bytes::mib(256), 2).batch, 15);
        assert_eq!(sizes(Bytes::mib(512), 2).batch, 31);
        assert_eq!(
            sizes(Bytes::gib(1), 2),
            PcpSizes {
                batch: 63,
                high: 643
            }
        );
        assert_eq!(sizes(Bytes::gib(64), 2).batch, 63);
    }

    #[test]
    fn lists_hold_a_bounded_share_of_any_pool() {
        for nr_cpus in [1, 2, 8, 384] {
            for pages in [1, 10, 100, 1000, 10_000, 1 << 20] {
                let PcpSizes { batch, high } = sizes(Bytes(pages * 4096), nr_cpus);
                assert!(
                    (high * nr_cpus) as u64 <= pages / SHARE,
                    "{pages} pages, {nr_cpus} CPUs"
                );
                assert!(
                    batch >= 1 && (high == 0 || batch <= high),
                    "batch {batch}, high {high}"
                );
            }
        }
    }
}
