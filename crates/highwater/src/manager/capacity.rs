//! Resizing at run time: changing the capacity, ballooning free frames, following the cgroup limit.
//!
//! The capacity is the root's maximum. A pool with more frames than that would over time touch all
//! of them. So the pool is ballooned to the capacity
//! ([`FramePool::inflate`](crate::frame::FramePool::inflate)):
//! `frames managed = min(frames reserved, capacity)`.
//!
//! Shrinking goes from charges to frames: install the maximum, reclaim until usage fits, then
//! inflate the balloon and return its memory to the system. Growing goes the other way round, so
//! that every page that may be charged has a frame. Threads that resize at once bring the pool to
//! the root's current maximum in turn, and each checks again afterwards.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::cgroup::{LimitsRead, Memcg};
use super::error::CapacityError;
use super::slow::Effort;
use super::{Core, Manager};
use crate::frame::Leaving;
use crate::group::MaxError;
use crate::sync::StatCell;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Bytes, PAGE_BYTES, Pages};

/// Interval at which the background thread checks the cgroup limit. Chosen: an orchestrator that
/// resizes a container waits for about as long.
pub(super) const FOLLOW_PERIOD: Duration = Duration::from_secs(1);
/// Share of the limit that a followed capacity leaves to other memory of the cgroup: one eighth.
/// Chosen: frame metadata takes a third of that; the rest is for the program's heap and stacks, and
/// for their growth until the next check.
const MARGIN_SHARE: u64 = 8;
/// Retries when another thread has set another capacity meanwhile. Chosen: the last thread checks,
/// too.
const LOOKS_MAX: usize = 8;
/// Rounds of reclaim with which a shrinking pool makes room for its reserve, while other threads
/// allocate the freed frames. Chosen: as the background thread's passes.
const ROUNDS_MAX: usize = 16;

/// The allowed range and the requested capacity.
#[derive(Debug)]
pub(super) struct CapacityRange {
    allowed: RangeInclusive<Bytes>,
    /// Round down to whole pages: set if the manager has a page cache.
    in_pages: bool,
    /// The last requested capacity. Written by: resize calls. Read by: threads that apply the
    /// capacity. Publishes: nothing: it is read again after applying.
    wanted: AtomicU64,
    /// The cgroup whose limit the capacity follows.
    follows: Option<Memcg>,
    /// The last limit that was read; above all others if there was none.
    /// Written and read by: threads that look at the limit. Publishes: nothing.
    limit: AtomicU64,
    nr_unreadable: StatCell,
}

impl CapacityRange {
    pub(super) fn new(
        allowed: RangeInclusive<Bytes>,
        frames: Pages,
        follows: Option<Memcg>,
    ) -> Self {
        Self {
            allowed,
            in_pages: frames > Pages::ZERO,
            wanted: AtomicU64::new(0),
            follows,
            limit: AtomicU64::new(u64::MAX),
            nr_unreadable: StatCell::new(),
        }
    }

    /// Records the requested capacity.
    pub(super) fn ask_for(&self, capacity: Bytes) {
        debug_assert!(
            self.allowed.contains(&capacity),
            "a capacity of {capacity} is not reserved"
        );
        // Relaxed: see the field.
        self.wanted.store(capacity.0, Ordering::Relaxed);
    }

    /// Returns whether the cgroup's limit makes the target lower than what was requested.
    fn is_limited(&self, target: Bytes) -> bool {
        // Relaxed: see the field.
        let wanted = Bytes(self.wanted.load(Ordering::Relaxed));
        target < wanted.pages_floor().bytes()
    }

    /// Returns the target: the requested capacity, or the one that the cgroup limit allows if that
    /// is less.
    pub(super) fn target(&self) -> Bytes {
        // Relaxed: see the field.
        let mut target = Bytes(self.wanted.load(Ordering::Relaxed));
        if let Some(memcg) = &self.follows {
            let limit = self.limit_of(memcg);
            target = target.min(below(limit)).max(*self.allowed.start());
        }
        match self.in_pages {
            true => target.pages_floor().bytes(),
            false => target,
        }
    }

    /// Returns the limit of a cgroup. If a part cannot be read (no descriptor is left, or the
    /// program has locked itself in), no higher one than before: the pool must not grow then.
    fn limit_of(&self, memcg: &Memcg) -> Bytes {
        let LimitsRead { lowest, unreadable } = memcg.read_limits();
        let mut limit = lowest.map_or(u64::MAX, |lowest| lowest.bytes.0);
        if let Some((file, error)) = unreadable {
            // Relaxed: see the field.
            limit = limit.min(self.limit.load(Ordering::Relaxed));
            if let Some(times) = self.nr_unreadable.recur() {
                let file = file.display();
                tracing::warn!(%file, %error, times, "the control group's limit cannot be read");
            }
        }
        // Relaxed: as above.
        self.limit.store(limit, Ordering::Relaxed);
        Bytes(limit)
    }
}

/// Returns the largest capacity that leaves the margin below `limit`.
fn below(limit: Bytes) -> Bytes {
    Bytes(limit.0 - limit.0.div_ceil(MARGIN_SHARE))
}

impl Manager {
    /// Sets the maximum of all charges together, rounded down to whole pages if the manager has a
    /// page cache, and resizes the page cache's frame pool to match.
    ///
    /// Shrinking reclaims pages until usage fits; free frames then leave the pool, and their memory
    /// returns to the system. Growing brings frames back, to be committed as they are used. A
    /// manager that [follows its cgroup](crate::Builder::follow_cgroup) stays below the requested
    /// capacity while the limit demands it: [`capacity`](Self::capacity) returns the one in force.
    /// # Cost
    ///
    /// Reclaim of the excess, and a few system calls for each block of frames that leaves the pool:
    /// 4 MiB where they are whole.
    ///
    /// # Errors
    ///
    /// [`CapacityError::Range`] if `capacity` is outside the range reserved by the builder.
    /// [`CapacityError::BelowUsage`] if charges, or pages that cannot be evicted, use more: the
    /// capacity is set, and the error holds the excess; calling again reclaims again.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Manager};
    ///
    /// let hw = Manager::builder()
    ///     .capacity(Bytes::mib(16))
    ///     .capacity_max(Bytes::mib(64))
    ///     .build()?;
    /// hw.set_capacity(Bytes::mib(64))?;
    /// hw.set_capacity(Bytes::mib(8))?;
    /// let frames = hw.snapshot().frames.managed.bytes();
    /// assert_eq!((hw.capacity(), frames), (Bytes::mib(8), Bytes::mib(8)));
    /// assert!(hw.set_capacity(Bytes::mib(128)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_capacity(&self, capacity: Bytes) -> Result<(), CapacityError> {
        let core = self.core();
        let allowed = &core.capacity.allowed;
        if !allowed.contains(&capacity) {
            let (min, max) = (*allowed.start(), *allowed.end());
            return Err(CapacityError::Range { capacity, min, max });
        }
        core.capacity.ask_for(capacity);
        core.bring_to_capacity()
    }

    /// Returns the maximum for [`set_capacity`](Self::set_capacity).
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn capacity_max(&self) -> Bytes {
        *self.core().capacity.allowed.end()
    }

    /// Checks the cgroup limit and sets the capacity to the requested one, or to seven eighths of
    /// the limit if that is less. Returns the capacity. Part of [`balance`](Self::balance). Does
    /// nothing on managers that do not [follow](crate::Builder::follow_cgroup) the limit.
    ///
    /// # Cost
    ///
    /// Reads two files of `/proc` and a file for each ancestor of the cgroup; if the limit has
    /// changed, the cost of [`set_capacity`](Self::set_capacity).
    ///
    /// # Errors
    ///
    /// As [`set_capacity`](Self::set_capacity).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn cgroup_tick(&self) -> Result<Bytes, CapacityError> {
        self.core().follow_cgroup()?;
        Ok(self.capacity())
    }

    /// Returns the memory of free frames to the system (`MADV_DONTNEED`); returns how much of it
    /// was resident. The frames stay free and are committed again as they are used. Cached pages
    /// stay: call [`drop_caches`](Self::drop_caches) first to evict them.
    ///
    /// # Cost
    ///
    /// A look at every frame, up to two system calls for each run of free ones, and page faults
    /// when they are used again. Withholds 4 MiB of frames at a time from allocations. If only the
    /// reserve that ordinary requests leave is free, it is skipped.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Manager, Pages};
    ///
    /// let hw = Manager::builder().capacity(Bytes::mib(4)).build()?;
    /// let scratch = hw.space(&hw.root()).map_anon(Pages(512))?;
    /// for page in 0..512 {
    ///     scratch.write(page)?[0] = 1;
    /// }
    /// drop(scratch);
    /// assert!(hw.trim() >= Bytes::mib(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim(&self) -> Bytes {
        self.core().pool.trim().bytes()
    }
}

impl Core {
    /// Brings a capacity that follows the cgroup to its target.
    pub(super) fn follow_cgroup(&self) -> Result<(), CapacityError> {
        if self.capacity.follows.is_none() {
            return Ok(());
        }
        let (before, target) = (self.groups.root().limits().max, self.capacity.target());
        if before == target && self.pool.managed() == self.frames_for(target) {
            return self.stay_within(target);
        }
        self.bring_to_capacity()?;
        if before != target {
            tracing::info!(
                before_bytes = before.0,
                target_bytes = target.0,
                "the capacity follows the control group's limit"
            );
        }
        Ok(())
    }

    /// Reclaims once more if usage was above a limit of the cgroup before, and is still.
    fn stay_within(&self, target: Bytes) -> Result<(), CapacityError> {
        let root = self.groups.root();
        let over = root.debt();
        if over == Bytes::ZERO || !self.capacity.is_limited(target) {
            return Ok(());
        }
        let pages = Pages(over.0.div_ceil(PAGE_BYTES));
        self.shrink_by(pages, &root, &mut Effort::default());
        match root.debt() {
            Bytes::ZERO => Ok(()),
            over => Err(CapacityError::BelowUsage {
                capacity: target,
                usage: target + over,
                over,
            }),
        }
    }

    /// Sets the root's maximum to the target, and the frames to the maximum, until the target is
    /// stable.
    pub(super) fn bring_to_capacity(&self) -> Result<(), CapacityError> {
        let root = self.groups.root();
        let mut target = self.capacity.target();
        let mut result = Ok(());
        for _ in 0..LOOKS_MAX {
            if target > root.limits().max {
                // Not below the maximum of now, which another thread may have raised.
                let most = || self.frames_for(target.max(root.limits().max));
                self.pool.manage(most, Leaving::Reserve);
            }
            result = self.set_max(&root, target);
            self.fit_frames();
            let now = self.capacity.target();
            if now == target {
                break;
            }
            target = now;
        }
        debug_assert!(
            self.pool.managed() <= self.memory.pages(),
            "the pool manages frames that are not there"
        );
        self.reclaim.note_managed();
        self.look_at_dirty_limits();
        match result {
            Err(MaxError::BelowUsage {
                max, usage, over, ..
            }) => Err(CapacityError::BelowUsage {
                capacity: max,
                usage,
                over,
            }),
            // The root is never removed.
            _ => Ok(()),
        }
    }

    /// Returns the number of frames that the pool should manage at `capacity`.
    fn frames_for(&self, capacity: Bytes) -> Pages {
        self.memory.pages().min(capacity.pages_floor())
    }

    /// Resizes the pool to the root's maximum, as far as pages in use allow.
    fn fit_frames(&self) {
        let root = self.groups.root();
        let wanted = || self.frames_for(root.limits().max);
        let mut effort = Effort::default();
        for _ in 0..ROUNDS_MAX {
            let left = self.pool.manage(wanted, Leaving::Reserve);
            if left == Pages::ZERO {
                return;
            }
            if !self.shrink_by(left, &root, &mut effort) {
                break;
            }
        }
        // As many frames are free as the new capacity leaves, or no more can be reclaimed: inflate
        // by the frames that are free.
        self.pool.manage(wanted, Leaving::Nothing);
        debug_assert!(
            self.pool.managed() <= self.memory.pages(),
            "no more is managed than is reserved"
        );
    }
}
