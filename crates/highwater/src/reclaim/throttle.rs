//! Waits of direct reclaim for other reclaimers: because they have too many pages in hand, or
//! because there was nothing to free.
//!
//! **Too many isolated.** Who finds that others have taken more than an eighth of the inactive
//! pages of a type off the lists would look at the few that are left, over and over, and take what
//! the others are about to put back. It waits until they have settled enough, once in a pass and
//! for [`ISOLATED_MAX`] at most, and then passes over that list; but at the last priority, where it
//! looks whatever others have in hand. The background thread never waits, and a thread that polls
//! futures passes over the list at once.
//!
//! **No progress.** A request whose passes free nothing sleeps between them, each time longer, up
//! to a millisecond ([`Reclaim::wait_for_progress`]). It is woken by a pass that frees more than an
//! eighth of what it looks at.
//!
//! Waits for pages in transit are in `arrival.rs`. All are counted (`throttle_isolated`,
//! `throttle_noprogress`). A wait is bounded and hopes for nobody: whoever is woken, or not, looks
//! again.
//!
//! Source: frames-and-reclaim specification, 9.7. Deviations: a request without progress sleeps
//! after the pass instead of at priority 1, because a pass over a small pool takes less time than
//! the kernel's tick; nobody waits for the background thread because the reserve is low: that
//! thread takes frames from the same pool, and may not be there.

use std::time::{Duration, Instant};

use super::Reclaim;
use super::lists::PageType;
use super::lruvec::Lruvec;
use super::scan::{Actor, Scan};
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Condvar, LockClass, Mutex, Rank};

static THROTTLE_LOCK: LockClass = LockClass::new("reclaim_throttle", Rank::Leaf);

/// The longest wait for pages that others have in hand. Chosen: as the kernel's.
pub(super) const ISOLATED_MAX: Duration = Duration::from_millis(20);
/// Pages in others' hands are too many above this part of the inactive pages.
const ISOLATED_FRACTION: u64 = 8;
/// A pass that frees more than this part of what it looks at wakes those that had found nothing.
const EFFICIENT_FRACTION: u64 = 8;

/// Threads that wait for a change, and the change.
#[derive(Debug)]
pub(super) struct Sleepers {
    /// How often somebody has said that things have changed.
    changes: Mutex<u64>,
    changed: Condvar,
    /// Written by: who waits. Read by: who changes something. Publishes: nothing.
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
    /// Waits while `must_wait` says so after each change, but not longer than `at_most`. It is
    /// asked without a lock.
    pub(super) fn wait(&self, at_most: Duration, must_wait: impl Fn() -> bool) {
        let begun = Instant::now();
        // Relaxed: the fence orders it before the look.
        self.nr_waiting.fetch_add(1, Ordering::Relaxed);
        // SeqCst. Pairs with: that of `is_anybody_waiting`: one of the two sees what the other has
        // done.
        fence(Ordering::SeqCst);
        // Ends: each round but the last ends with a change, and the time runs.
        while let Some(left) = at_most.checked_sub(begun.elapsed()) {
            let seen = *self.changes.lock();
            // After that: a change that it does not see is one more than were seen.
            if !must_wait() {
                break;
            }
            self.wait_for_one(seen, left);
        }
        // Relaxed: who is woken for nothing looks again.
        self.nr_waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits until there are other changes than the `seen` ones, but not longer than `at_most`.
    fn wait_for_one(&self, seen: u64, at_most: Duration) {
        let begun = Instant::now();
        let mut changes = self.changes.lock();
        while *changes == seen
            && let Some(left) = at_most.checked_sub(begun.elapsed())
        {
            self.changed.wait_for(&mut changes, left);
        }
    }

    /// Whether a thread waits, for one that has just changed something. A fence, and a load of a
    /// line that only waiting threads write.
    pub(super) fn is_anybody_waiting(&self) -> bool {
        // SeqCst. Pairs with: that of `wait`; with less, each could miss what the other has stored.
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders it after the change.
        self.nr_waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits for the next change, but not longer than `at_most`.
    fn wait_for_change(&self, at_most: Duration) {
        let seen = *self.changes.lock();
        // Relaxed: a change that is missed is one that this thread has not found anything by
        // either.
        self.nr_waiting.fetch_add(1, Ordering::Relaxed);
        self.wait_for_one(seen, at_most);
        // Relaxed: as above.
        self.nr_waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Says that things have changed.
    pub(super) fn wake(&self) {
        if self.is_anybody_waiting() {
            *self.changes.lock() += 1;
            self.changed.notify_all();
        }
    }
}

impl Reclaim {
    /// Whether others have so many pages of a type in hand that one more reclaimer is of no use.
    fn has_too_many_isolated(&self, root: &Lruvec, page_type: PageType) -> bool {
        let sizes = root.subtree_sizes();
        let may_go = match self.policy {
            // Pages go from either list.
            Some(_) => sizes.of_type(page_type),
            None => sizes.of(page_type.inactive()),
        };
        root.nr_isolated(page_type) > may_go.0 / ISOLATED_FRACTION
    }

    /// Waits for others who have too many pages of a type in hand; whether the list is to be passed
    /// over for that. This thread has isolated none.
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
        if scan.control.actor != Actor::Polled && !std::mem::replace(&mut scan.has_waited, true) {
            self.stats.throttle_isolated.add(1);
            self.settling.wait(self.isolated_max, must_wait);
        }
        must_wait()
    }

    /// Says that this thread has put back or freed what it had in hand.
    pub(super) fn note_hands_empty(&self, lruvec: &Lruvec) {
        self.settling.wake();
        self.note_arrival(lruvec);
    }

    /// Waits until some pass frees much of what it looks at, but not longer than `at_most`. For who
    /// has found nothing.
    pub fn wait_for_progress(&self, at_most: Duration) {
        self.stats.throttle_noprogress.add(1);
        self.progress.wait_for_change(at_most);
    }

    /// Says what a pass has freed of what it looked at.
    pub(super) fn note_efficiency(&self, freed: u64, scanned: u64) {
        if freed > scanned / EFFICIENT_FRACTION {
            self.progress.wake();
        }
    }
}
