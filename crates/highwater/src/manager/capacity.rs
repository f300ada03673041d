//! The capacity while the manager runs: changing it, giving memory back, following the control
//! group's limit.
//!
//! The capacity is the root's maximum. A pool with more frames than that is wider than what pages
//! may use, and would over time touch all of its frames. So the pool is shrunk with the capacity
//! ([`FramePool::inflate`](crate::frame::FramePool::inflate)): `frames managed = min(frames
//! reserved, capacity)`.
//!
//! Shrinking goes from the account to the frames: the maximum is installed, pages are reclaimed
//! until usage fits, then frames are taken out of the pool and their memory is given back. Growing
//! goes the other way round, so that what may be charged has frames. Threads that change the
//! capacity at once need no lock: each brings the pool to what the root's maximum is at that
//! moment, whoever set it, and looks again afterwards.

use std::ops::RangeInclusive;
use std::time::Duration;

use thiserror::Error;

use super::cgroup::Memcg;
use super::slow::Effort;
use super::{Core, Manager};
use crate::frame::Leaving;
use crate::group::MaxError;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Bytes, Pages};

/// How often the background thread looks at the control group's limit. Chosen: an orchestrator that
/// resizes a container waits for about as long.
pub(super) const FOLLOW_PERIOD: Duration = Duration::from_secs(1);
/// The share of the limit that a followed capacity leaves to all else that the control group pays
/// for: one eighth. Chosen: the books of frames take a third of that; the rest is for the program's
/// heap and stacks, and for what it takes until the next look.
const MARGIN_SHARE: u64 = 8;
/// Times that a change looks whether another thread has set another capacity meanwhile. Chosen:
/// whoever comes last looks, too.
const LOOKS_MAX: usize = 8;
/// Rounds of reclaim by which a pool that shrinks makes room for its reserve, while others take
/// what is freed. Chosen: as the background thread's passes.
const ROUNDS_MAX: usize = 16;

/// A capacity that was not set, or that usage is above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// The capacity is outside the allowed range; nothing has changed.
    #[error(
        "a capacity of {capacity} cannot be set: give {min} to {max}, which is what `Builder::capacity_max` has reserved"
    )]
    Range {
        /// What was asked for.
        capacity: Bytes,
        /// The least.
        min: Bytes,
        /// The most.
        max: Bytes,
    },
    /// More is in use than the new capacity, and could not be reclaimed. The capacity **is** set
    /// all the same: nothing is charged until usage is below it.
    #[error(
        "the capacity is {capacity}, and {usage} are in use, {over} more, which cannot be reclaimed now"
    )]
    BelowUsage {
        /// The capacity, as set.
        capacity: Bytes,
        /// What is in use.
        usage: Bytes,
        /// How far that is above the capacity.
        over: Bytes,
    },
}

/// What the capacity may be, and what it should be.
#[derive(Debug)]
pub(super) struct CapacityRange {
    allowed: RangeInclusive<Bytes>,
    /// Whether it is rounded down to whole pages: where pages are cached.
    in_pages: bool,
    /// What was asked for last. Written by: whoever asks. Read by: those who set the capacity.
    /// Publishes: nothing: it is looked at again.
    wanted: AtomicU64,
    /// Whose limit the capacity stays below.
    follows: Option<Memcg>,
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
        }
    }

    /// Says what the capacity should be, as far as the control group allows it.
    pub(super) fn ask_for(&self, capacity: Bytes) {
        // Relaxed: see the field.
        self.wanted.store(capacity.0, Ordering::Relaxed);
    }

    /// The capacity as it should be now: what was asked for, or what the control group allows if
    /// that is less.
    pub(super) fn target(&self) -> Bytes {
        // Relaxed: see the field.
        let mut target = Bytes(self.wanted.load(Ordering::Relaxed));
        if let Some(limit) = self.follows.as_ref().and_then(Memcg::limit) {
            target = target.min(below(limit.bytes)).max(*self.allowed.start());
        }
        match self.in_pages {
            true => target.pages_floor().bytes(),
            false => target,
        }
    }
}

/// The most that a capacity which follows a limit may be.
fn below(limit: Bytes) -> Bytes {
    Bytes(limit.0 - limit.0.div_ceil(MARGIN_SHARE))
}

impl Manager {
    /// Sets the most that may be charged in all, rounded down to whole pages where pages are
    /// cached, and brings the page cache's frames to it.
    ///
    /// Less: pages are reclaimed until usage fits, and frames that are free then leave the pool and
    /// are given back to the system. More: frames come back, to be committed as they are used. A
    /// manager that [follows its control group](crate::Builder::follow_cgroup) takes less than was
    /// asked for while the limit demands it: [`capacity`](Self::capacity) says what holds.
    ///
    /// # Cost
    ///
    /// That of reclaiming what is above, and a few system calls for each block of frames that
    /// leaves the pool: 4 MiB where they are whole.
    ///
    /// # Errors
    ///
    /// [`CapacityError::Range`] for less than the least, or for more than was reserved.
    /// [`CapacityError::BelowUsage`] when charges, or pages that cannot leave, use more: the
    /// capacity is set, and what has to go is in the error; calling again reclaims again.
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
    /// assert_eq!((hw.capacity(), hw.frames()), (Bytes::mib(8), Bytes::mib(8)));
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

    /// The most that [`set_capacity`](Self::set_capacity) can set.
    #[must_use]
    pub fn capacity_max(&self) -> Bytes {
        *self.core().capacity.allowed.end()
    }

    /// Looks at the limit of the control group, and brings the capacity to what was asked for, or
    /// to seven eighths of the limit if that is less: for managers that
    /// [follow](crate::Builder::follow_cgroup) it and have no background thread, to be called every
    /// second or so. Returns the capacity. Does nothing where none is followed.
    ///
    /// # Cost
    ///
    /// Reads two files of `/proc` and a file for each ancestor of the group; where the limit has
    /// changed, that of [`set_capacity`](Self::set_capacity).
    ///
    /// # Errors
    ///
    /// As [`set_capacity`](Self::set_capacity).
    pub fn cgroup_tick(&self) -> Result<Bytes, CapacityError> {
        self.core().follow_cgroup()?;
        Ok(self.capacity())
    }

    /// Gives the memory of free frames back to the system; returns how much was resident. They stay
    /// free, and are committed again as they are used. Pages stay where they are:
    /// [`drop_caches`](Self::drop_caches) evicts them before.
    ///
    /// # Cost
    ///
    /// A look at every frame, up to two system calls for each run of free ones, and page faults
    /// when they are used again. Withholds 4 MiB of frames at a time from others. The reserve that
    /// ordinary requests leave is passed over when nothing else is free.
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
    /// Brings the capacity to its target if it has one to follow.
    pub(super) fn follow_cgroup(&self) -> Result<(), CapacityError> {
        if self.capacity.follows.is_none() {
            return Ok(());
        }
        let (before, target) = (self.groups.root().limits().max, self.capacity.target());
        if before == target && self.pool.managed() == self.frames_for(target) {
            return Ok(());
        }
        tracing::info!(%before, %target, "the capacity follows the control group's limit");
        self.bring_to_capacity()
    }

    /// Brings the root's maximum to the target, and the frames to the maximum, until no other
    /// thread has changed the target.
    pub(super) fn bring_to_capacity(&self) -> Result<(), CapacityError> {
        let root = self.groups.root();
        let mut target = self.capacity.target();
        let mut result = Ok(());
        for _ in 0..LOOKS_MAX {
            if target > root.limits().max {
                self.pool
                    .deflate(self.frames_for(target).saturating_sub(self.pool.managed()));
            }
            result = self.set_max(&root, target);
            self.fit_frames();
            let now = self.capacity.target();
            if now == target {
                break;
            }
            target = now;
        }
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

    /// Frames that the pool should manage at some capacity.
    fn frames_for(&self, capacity: Bytes) -> Pages {
        self.memory.pages().min(capacity.pages_floor())
    }

    /// Brings the pool to as many frames as the root's maximum allows, or as near as pages in use
    /// let it.
    fn fit_frames(&self) {
        let root = self.groups.root();
        let mut effort = Effort::default();
        for _ in 0..ROUNDS_MAX {
            let wanted = self.frames_for(root.limits().max);
            let managed = self.pool.managed();
            self.pool.deflate(wanted.saturating_sub(managed));
            let over = managed.saturating_sub(wanted);
            let left = over - self.pool.inflate(over, Leaving::Reserve);
            if left == Pages::ZERO {
                return;
            }
            if !self.shrink_by(left, &root, &mut effort) {
                break;
            }
        }
        // As many frames are free as the new capacity leaves, or nothing more can be reclaimed:
        // what there is goes.
        let wanted = self.frames_for(root.limits().max);
        let over = self.pool.managed().saturating_sub(wanted);
        self.pool.inflate(over, Leaving::Nothing);
    }
}
