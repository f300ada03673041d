//! A space that is counted by an [`ActiveCache`].
//!
//! **Why totals have a bound.** An amount that is not in a space's totals is parked on a CPU that
//! the space owns, which is marked in it. So for each member
//!
//! ```text
//! |precise sum - totals| <= marked CPUs * (threshold - 1)
//! ```
//!
//! with updates in flight too: one that runs during the read is in it or not, completely. The marks
//! are read before the totals. So an amount that was parked before the call, and has not reached
//! the totals that are read, lies on a CPU whose mark was read; and a cleared mark implies that the
//! totals contain it. With the default threshold of 1,024 the bound is 4 MiB of pages for each CPU
//! on which the space is active: 1.5 GiB if that is all of 384, but 4 MiB for a task on one of
//! them.

use std::fmt;

use highwater::lab::sync::{Arc, thread};
use highwater::units::{CpuId, Estimate};

use super::slots::Owner;
use super::{ActiveCache, Counted, MEMBERS, READ_TRIES};

/// Four counters of a space: totals, and parked amounts on each CPU where the space is active.
///
/// Dropping it flushes the parked amounts; [`end`](Self::end) also returns what is left.
///
/// # Examples
///
/// See [`ActiveCache`].
pub struct ActiveSpace {
    cache: Arc<ActiveCache>,
    /// `None` once it has ended.
    owner: Option<Owner>,
}

impl ActiveSpace {
    pub(super) fn new(cache: Arc<ActiveCache>, owner: Owner) -> Self {
        Self {
            cache,
            owner: Some(owner),
        }
    }

    /// Adds `delta` to `member`, counted on the CPU that the calling thread runs on.
    ///
    /// # Cost
    ///
    /// If the space is active there, a plain add to a line of this CPU, and one in `threshold` an
    /// atomic add to each total; no locks, no system calls, no allocation. Else an atomic add to
    /// the total, or a switch: [`Foreign`](super::Foreign).
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[inline]
    pub fn add(&self, member: usize, delta: i64) -> Counted {
        if self.cache.slots.try_park(self.owner(), member, delta) {
            return Counted::Hit;
        }
        self.cache.count(None, self, member, delta)
    }

    /// As [`add`](Self::add), as if running on `cpu`. Any thread may act as any CPU; of several
    /// that do at once, one is sure to find the words free.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when there is no such CPU or member.
    pub fn add_on(&self, cpu: CpuId, member: usize, delta: i64) -> Counted {
        self.cache.count(Some(cpu), self, member, delta)
    }

    /// Returns the flushed sum, and the interval that holds the precise one.
    ///
    /// # Accuracy
    ///
    /// `low..=high` is `marked CPUs * (threshold - 1)` wide on either side. It includes every
    /// addition that is ordered before the call, once, and some of the concurrent ones, each
    /// completely: updates in flight do not widen it. Adversary:
    /// `active_cache::tests::totals_reach_their_bound`.
    ///
    /// # Cost
    ///
    /// Loads of two lines, and of one more for each 512 CPUs beyond 256. No line of a CPU is
    /// touched.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn approximate_sum(&self, member: usize) -> Estimate<i64> {
        self.approximate_sum_of(&[member])
    }

    /// As [`approximate_sum`](Self::approximate_sum), of several members together.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn approximate_sum_of(&self, members: &[usize]) -> Estimate<i64> {
        let space = self.cache.spaces.get(self.owner());
        // Read first, so that an amount that was parked before the call and is not in the totals is
        // on a CPU that is counted.
        let marked = i64::from(space.marks.count());
        let value = sum_of(space.sums(), members);
        let parked_max = i64::from(self.cache.config.threshold - 1) * marked;
        let nr_members = i64::try_from(members.len()).unwrap_or(i64::MAX);
        let bound = parked_max.saturating_mul(nr_members);
        Estimate {
            value,
            low: value.saturating_sub(bound),
            high: value.saturating_add(bound),
        }
    }

    /// Returns the sum over totals and all CPUs on which the space is active.
    ///
    /// # Accuracy
    ///
    /// Exact (`low == high`) unless flushes have interfered [`READ_TRIES`] times; then the
    /// approximate sum. Includes every addition that is ordered before the call, once, and some of
    /// the concurrent ones, each completely.
    ///
    /// # Cost
    ///
    /// Loads of two lines for each marked CPU and of the totals; the same again each time that a
    /// flush interferes. Writes no line except statistics.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn precise_sum(&self, member: usize) -> Estimate<i64> {
        self.precise_sum_of(&[member])
    }

    /// As [`precise_sum`](Self::precise_sum), of several members together, in one walk.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn precise_sum_of(&self, members: &[usize]) -> Estimate<i64> {
        let events = &self.cache.events;
        events.reads.add(1);
        for turn in 0..READ_TRIES {
            if turn > 0 {
                thread::yield_now();
            }
            if let Some(sums) = self.try_read() {
                return Estimate::exact(sum_of(sums, members));
            }
            events.rejects.add(1);
        }
        events.fallbacks.add(1);
        self.approximate_sum_of(members)
    }

    /// Returns the number of CPUs on which the space may have something parked.
    #[must_use]
    pub fn nr_marked(&self) -> u32 {
        self.cache.spaces.get(self.owner()).marks.count()
    }

    /// Returns the cache that counts the space.
    #[must_use]
    #[inline]
    pub fn cache(&self) -> &Arc<ActiveCache> {
        &self.cache
    }

    /// Ends the space: flushes the parked amounts, and returns what is left although everything
    /// counted should have been uncounted; `None` if nothing is.
    ///
    /// # Cost
    ///
    /// As [`ActiveCache::offline`], for each CPU on which the space is active still.
    #[must_use]
    pub fn end(mut self) -> Option<Residue> {
        self.finish()
    }

    #[inline]
    pub(super) fn owner(&self) -> Owner {
        self.owner.expect("the space has not ended")
    }

    fn try_read(&self) -> Option<[i64; MEMBERS]> {
        let owner = self.owner();
        let space = self.cache.spaces.get(owner);
        let seen = space.marks.seen();
        let visits = seen.cpus().count();
        self.cache.events.visits.add(visits as u64);
        self.cache.slots.read(owner, seen.cpus(), || space.sums())
    }

    fn finish(&mut self) -> Option<Residue> {
        let owner = self.owner.take()?;
        let sums = self.cache.end(owner);
        sums.iter().any(|sum| *sum != 0).then_some(Residue { sums })
    }
}

/// The sums that an ended space still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residue {
    /// The precise sum of each member.
    pub sums: [i64; MEMBERS],
}

fn sum_of(sums: [i64; MEMBERS], members: &[usize]) -> i64 {
    members.iter().fold(0, |total: i64, &member| {
        assert!(
            member < MEMBERS,
            "there is no member {member}: a space has {MEMBERS}"
        );
        total.wrapping_add(sums[member])
    })
}

impl Drop for ActiveSpace {
    fn drop(&mut self) {
        self.finish();
    }
}

impl fmt::Debug for ActiveSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums: [_; MEMBERS] = std::array::from_fn(|member| self.approximate_sum(member));
        f.debug_struct("ActiveSpace")
            .field("owner", &self.owner)
            .field("sums", &sums)
            .finish_non_exhaustive()
    }
}
