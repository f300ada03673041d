//! Throttling of direct reclaim: waits for other reclaimers that have too many pages isolated, or
//! after a pass without progress.
//!
//! **Too many isolated.** When other reclaimers have isolated more than an eighth of the inactive
//! pages of a type, another one would scan the few that are left, over and over, and evict pages
//! that it should not. It waits until they have settled enough, once in a pass and for at most
//! [`ISOLATED_MAX`], and then skips that list, except at the last priority, where it scans
//! regardless. The background thread never waits, and a thread that polls futures skips the list at
//! once.
//!
//! **No progress.** A request whose passes free nothing sleeps between them, each time longer, up
//! to a millisecond ([`Reclaim::wait_for_progress`]). A pass that frees more than an eighth of the
//! pages it scans wakes it.
//!
//! `arrival.rs` has the waits for pages in transit. All waits are counted (`throttle_isolated`,
//! `throttle_noprogress`). Each is bounded and needs no wake-up: the thread looks again in any
//! case.
//!
//! Source: frames-and-reclaim specification, 9.7. Deviations: a request without progress sleeps
//! after the pass instead of at priority 1, because a pass over a small pool takes less time than
//! the kernel's tick; no request waits for the background thread because the reserve is low: that
//! thread takes frames from the same pool, and may not exist.

use std::time::{Duration, Instant};

use super::Reclaim;
use super::control::Actor;
use super::lists::PageType;
use super::lruvec::Lruvec;
use super::round::Scan;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Condvar, LockClass, Mutex, Rank};

static THROTTLE_LOCK: LockClass = LockClass::new("reclaim_throttle", Rank::Leaf);

/// The longest wait for isolated pages. Chosen: as the kernel's.
pub(super) const ISOLATED_MAX: Duration = Duration::from_millis(20);
/// Isolated pages are too many above this part of the inactive pages.
const ISOLATED_FRACTION: u64 = 8;
/// A pass that frees more than this part of its scanned pages wakes requests without progress.
const EFFICIENT_FRACTION: u64 = 8;

/// Threads that wait for a change, and the count of changes (wait queue).
#[derive(Debug)]
pub(super) struct Sleepers {
    /// Number of changes announced.
    changes: Mutex<u64>,
    changed: Condvar,
    /// Written by: waiting threads. Read by: threads that change something. Publishes: nothing.
    nr_waiting: AtomicU64,
}

impl Default for Sleepers {
    fn default() -> Self {
        Self {
            changes: Mutex::new(&THROTTLE_LOCK, 0),
            changed: Condvar::new(),
            nr_waiting: AtomicU64::new(0),
        }
    }
}

impl Sleepers {
    /// Waits while `must_wait` returns true after each change, but not longer than `at_most`. Calls
    /// it without a lock.
    pub(super) fn wait(&self, at_most: Duration, must_wait: impl Fn() -> bool) {
        let begun = Instant::now();
        // Relaxed: the fence orders it before the look.
        self.nr_waiting.fetch_add(1, Ordering::Relaxed);
        // SeqCst. Pairs with: that of `is_anybody_waiting`: one of the two threads sees the other's
        // store.
        fence(Ordering::SeqCst);
        // Terminates: each round but the last ends with a change, and the time runs.
        while let Some(left) = at_most.checked_sub(begun.elapsed()) {
            let seen = *self.changes.lock();
            // Afterwards: a change that it does not see increments `changes` past `seen`.
            if !must_wait() {
                break;
            }
            self.wait_for_one(seen, left);
        }
        // Relaxed: a spuriously woken thread looks again.
        let before = self.nr_waiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "this thread was counted as waiting");
    }

    /// Waits until `changes` differs from `seen`, but not longer than `at_most`.
    fn wait_for_one(&self, seen: u64, at_most: Duration) {
        let begun = Instant::now();
        let mut changes = self.changes.lock();
        while *changes == seen
            && let Some(left) = at_most.checked_sub(begun.elapsed())
        {
            self.changed.wait_for(&mut changes, left);
        }
    }

    /// Returns whether a thread waits; called after a change. A fence, and a load of a cache line
    /// that only waiting threads write.
    pub(super) fn is_anybody_waiting(&self) -> bool {
        // SeqCst. Pairs with: that of `wait`; with less, each could miss the other's store.
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders it after the change.
        self.nr_waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits for the next change, but not longer than `at_most`.
    fn wait_for_change(&self, at_most: Duration) {
        let seen = *self.changes.lock();
        // Relaxed: a missed change is one that this thread could not have used either.
        self.nr_waiting.fetch_add(1, Ordering::Relaxed);
        self.wait_for_one(seen, at_most);
        // Relaxed: as above.
        let before = self.nr_waiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "this thread was counted as waiting");
    }

    /// Announces a change.
    pub(super) fn wake(&self) {
        if self.is_anybody_waiting() {
            *self.changes.lock() += 1;
            self.changed.notify_all();
        }
    }
}

impl Reclaim {
    /// Returns whether other reclaimers have isolated so many pages of a type that one more
    /// reclaimer is of no use.
    fn has_too_many_isolated(&self, root: &Lruvec, page_type: PageType) -> bool {
        let sizes = root.subtree_sizes();
        let candidates = self.policy.candidates(sizes.lens(page_type));
        root.nr_isolated(page_type) > candidates / ISOLATED_FRACTION
    }

    /// Waits for other reclaimers that have isolated too many pages of a type; returns whether to
    /// skip the list for that. This thread has isolated none.
    pub(super) fn waits_for_isolated(&self, page_type: PageType, scan: &mut Scan<'_>) -> bool {
        if scan.control.actor == Actor::Background {
            return false;
        }
        let Some(root) = self.lruvecs.of(&self.groups.root()) else {
            return false;
        };
        let must_wait = || self.has_too_many_isolated(&root, page_type);
        if !must_wait() {
            return false;
        }
        if scan.control.actor.may_sleep() && !std::mem::replace(&mut scan.has_waited, true) {
            self.stats.throttle_isolated.add(1);
            self.settling.wait(self.isolated_max, must_wait);
        }
        must_wait()
    }

    /// Records that this thread has put back or freed its isolated pages.
    pub(super) fn note_hands_empty(&self, lruvec: &Lruvec) {
        self.settling.wake();
        self.note_arrival(lruvec);
    }

    /// Waits until some pass frees a large part of its scanned pages, but not longer than
    /// `at_most`. Called after a pass without progress.
    pub fn wait_for_progress(&self, at_most: Duration) {
        self.stats.throttle_noprogress.add(1);
        self.progress.wait_for_change(at_most);
    }

    /// Records the efficiency of a pass.
    pub(super) fn note_efficiency(&self, freed: u64, scanned: u64) {
        if freed > scanned / EFFICIENT_FRACTION {
            self.progress.wake();
        }
    }
}
