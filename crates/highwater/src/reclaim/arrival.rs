//! Pages in transit: charged to a group and not on an LRU list yet; waiting for their arrival.
//!
//! A page fault charges the group first and puts the page on a list last. In between the group is
//! full of a page that reclaim cannot see, for as long as storage or the scheduler takes. So a
//! request that finds nothing to reclaim is not refused while a page of its target is in transit:
//! it sleeps until one arrives. The counts are in `transit.rs`.
//!
//! # No spurious refusal
//!
//! A request reads the number of arrivals, then attempts its charge and a pass, then reads the word
//! again. If there were no arrivals in between and nothing is in transit now, nothing was in
//! transit when the charge was refused: every page of the target was on a list or in a batch, and
//! the pass has seen it, or it is held. Otherwise the request waits, or retries at once. The count
//! is stored before its charge, and an arrival after its page, so a thread that sees the charge
//! sees the count, and one that sees the arrival finds the page.
//!
//! # No lost wake-up
//!
//! The waiter sets its flag and then reads the word; the arrival changes the word and then reads
//! the flag. Each has a fence in between, so at least one of them sees the other (model: `loom`).
//!
//! # No deadlock
//!
//! A request waits without a bound of its own only for threads that are further along:
//!
//! | the waiting thread has | and waits for | it waits for threads that have |
//! |---|---|---|
//! | nothing | room in a group | a charge, or pages isolated |
//! | a charge | a frame | a charge and a frame, or pages isolated |
//! | pages in transit besides (storage that itself reads from the cache) | either | anything, for less long |
//!
//! So a cycle of such waits contains a thread of the last row, and that thread gives up. A thread
//! that has pages isolated itself (storage that reads from the cache in order to write) does not
//! wait for isolated ones. A thread that calls the embedder's handler has nothing in transit
//! meanwhile ([`OnItsWay::hide_while`]), nor does one that waits for a page's latch. Only storage
//! remains: a page is in transit until the storage has answered.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use super::lists::PageType;
use super::lruvec::Lruvec;
use super::transit::{Stage, in_hand};
use super::{LruvecRef, Reclaim};
use crate::group::GroupNode;

thread_local! {
    /// Number of live `OnItsWay` of this thread.
    static ALIVE: Cell<u32> = const { Cell::new(0) };
}

/// Marks the pages of one fault as in transit, until dropped. Not `Send`.
pub struct OnItsWay<'a> {
    reclaim: &'a Reclaim,
    /// Lists of the paying group; none if it was removed and no longer pays.
    lruvec: Option<LruvecRef>,
    stage: Cell<Stage>,
    is_paid: Cell<bool>,
}

impl fmt::Debug for OnItsWay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnItsWay").field(&self.stage.get()).finish()
    }
}

impl<'a> OnItsWay<'a> {
    fn begin(reclaim: &'a Reclaim, lruvec: Option<LruvecRef>) -> Self {
        ALIVE.set(ALIVE.get() + 1);
        let way = Self {
            reclaim,
            lruvec,
            stage: Cell::new(Stage::Nowhere),
            is_paid: Cell::new(false),
        };
        way.count_as(Stage::Framed);
        way
    }

    /// Marks a part of the pages, which are charged, as in transit by itself; also if the group was
    /// removed meanwhile.
    #[must_use = "the pages are in transit until this is dropped"]
    pub fn part(&self) -> Self {
        debug_assert!(
            self.is_paid.get(),
            "pages are charged before they are parted"
        );
        let part = Self::begin(self.reclaim, self.lruvec.clone());
        part.note_paid();
        part
    }
}

impl OnItsWay<'_> {
    /// Records that the pages are charged: their end counts as an arrival from now on.
    pub fn note_paid(&self) {
        self.is_paid.set(true);
    }

    /// Records that the thread found no frame: other threads in the same state do not wait for it.
    pub fn lack_frame(&self) {
        self.count_as(Stage::Charged);
    }

    /// Records that the thread is about to try again to allocate a frame.
    pub fn seek_frame(&self) {
        self.count_as(Stage::Framed);
    }

    /// Records that the pages have arrived, or will not come.
    pub fn arrive(&self) {
        self.count_as(match self.is_paid.get() {
            true => Stage::Arrived,
            false => Stage::Nowhere,
        });
    }

    /// Runs `call`, which may wait for any thread, with this transit hidden: no thread waits for it
    /// meanwhile.
    pub fn hide_while<R>(&self, call: impl FnOnce() -> R) -> R {
        let stage = self.stage.get();
        self.count_as(Stage::Nowhere);
        let called = call();
        self.count_as(stage);
        called
    }

    /// Runs `call`, which may call a handler of the program or sleep, with a request's transit
    /// hidden, if it has one.
    pub fn hiding<R>(way: Option<&Self>, call: impl FnOnce() -> R) -> R {
        match way {
            Some(way) => way.hide_while(call),
            None => call(),
        }
    }

    fn count_as(&self, to: Stage) {
        let from = self.stage.replace(to);
        if let Some(lruvec) = self.lruvec.as_ref().filter(|_| from != to) {
            lruvec.transit.step(from, to);
            if to < from {
                self.reclaim.note_arrival(lruvec);
            }
        }
    }
}

/// Pages in transit that no thread brings in: storage does. Must be attached, never dropped.
#[must_use = "the pages would be in transit for ever"]
pub struct Afloat {
    lruvec: Option<LruvecRef>,
    stage: Stage,
    is_paid: bool,
}

impl fmt::Debug for Afloat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Afloat").field(&self.stage).finish()
    }
}

impl OnItsWay<'_> {
    /// Leaves the pages in transit, without this thread.
    pub fn detach(mut self) -> Afloat {
        debug_assert!(
            self.is_paid.get() && self.stage.get() == Stage::Framed,
            "storage brings pages in that are charged and have frames"
        );
        let lruvec = self.lruvec.take();
        // Without lists, the drop changes no count but the thread's.
        Afloat {
            lruvec,
            stage: self.stage.get(),
            is_paid: self.is_paid.get(),
        }
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.arrive();
        ALIVE.set(ALIVE.get() - 1);
    }
}

/// The object of a request's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Room below the target's maximum.
    Room,
    /// A frame.
    Frame,
}

/// A target's pages in transit.
#[derive(Clone, Copy, Debug)]
pub struct Coming {
    /// Threads that bring pages in, and arrivals.
    nr_coming: u64,
    nr_arrived: u64,
    /// Pages that reclaimers have isolated, and pages that they have put back or freed.
    nr_isolated: u64,
    nr_settled: u64,
}

impl Coming {
    /// Returns whether pages have arrived since `before`.
    pub const fn has_more_arrivals(self, before: Self) -> bool {
        self.nr_arrived != before.nr_arrived
    }

    /// Returns whether pages that were in transit in `self` still are in `now`.
    pub const fn lasts(self, now: Self) -> bool {
        // In this order: the lists of a group that was removed since count nothing any more, nor
        // settled pages.
        now.nr_coming > 0
            || now.nr_isolated > 0 && now.nr_settled - self.nr_settled < self.nr_isolated
    }
}

/// Result of waiting for pages in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Nothing was in transit, or an attempt was taken back.
    Nothing,
    /// A page or room has arrived.
    Came,
    /// Reclaimers have put back or freed as many pages as they had isolated.
    Settled,
    /// Pages are still in transit.
    Late,
}

impl Reclaim {
    /// Marks pages as in transit before they are charged to a group and frames are allocated for
    /// them, until the result is dropped.
    ///
    /// # Cost
    ///
    /// A lock for reading, and an atomic on a cache line of the group; another on drop. The first
    /// page of a group makes its lists, under that lock for writing.
    #[must_use = "the pages are in transit until this is dropped"]
    pub fn page_on_its_way(&self, group: &GroupNode) -> OnItsWay<'_> {
        OnItsWay::begin(self, self.lruvecs.of_or_new(group))
    }

    /// Makes pages that were [detached](OnItsWay::detach) this thread's.
    pub fn attach(&self, afloat: Afloat) -> OnItsWay<'_> {
        ALIVE.set(ALIVE.get() + 1);
        OnItsWay {
            reclaim: self,
            lruvec: afloat.lruvec,
            stage: Cell::new(afloat.stage),
            is_paid: Cell::new(afloat.is_paid),
        }
    }

    /// Returns the number of this thread's faults in progress: more than one if storage itself
    /// reads from the cache.
    #[must_use]
    pub fn nr_own_on_their_way() -> u32 {
        ALIVE.get()
    }

    /// Waits until a page of a target in transit arrives, none is in transit any more, or the time
    /// is over; also returns the arrivals so far. Does not wait if there were arrivals after the
    /// `seen` ones, or if those were never read.
    pub fn wait_for_arrival(
        &self,
        target: &GroupNode,
        want: Want,
        seen: Option<u64>,
        at_most: Duration,
    ) -> (Arrival, u64) {
        let first = self.coming(target, want);
        let has_come = match seen {
            Some(seen) => first.nr_arrived != seen,
            None => first.nr_coming > 0,
        };
        if has_come {
            return (Arrival::Came, first.nr_arrived);
        }
        if in_hand() > 0 && first.nr_coming == 0 {
            return (Arrival::Settled, first.nr_arrived);
        }
        let Some(lruvec) = self.lruvecs.of(target).filter(|_| first.lasts(first)) else {
            return (Arrival::Nothing, first.nr_arrived);
        };
        self.stats.throttle_noprogress.add(1);
        lruvec.note_awaited();
        self.arrivals.wait(at_most, || {
            let now = self.coming(target, want);
            now.nr_arrived == first.nr_arrived && first.lasts(now)
        });
        lruvec.note_not_awaited();
        let last = self.coming(target, want);
        let arrival = match () {
            () if last.nr_arrived != first.nr_arrived => Arrival::Came,
            () if first.lasts(last) => Arrival::Late,
            () if first.nr_isolated > 0 => Arrival::Settled,
            () => Arrival::Nothing,
        };
        (arrival, last.nr_arrived)
    }

    /// Returns the pages of a target that are on their way below its maximum, or out of it; without
    /// those that this thread has isolated itself and is writing.
    #[must_use]
    pub fn transit_of(&self, target: &GroupNode) -> Coming {
        let mut transit = self.coming(target, Want::Room);
        if in_hand() > 0 {
            transit.nr_isolated = 0;
        }
        transit
    }

    /// Returns the number of threads that bring pages of a target in.
    #[must_use]
    pub fn nr_coming_to(&self, target: &GroupNode) -> u64 {
        self.coming(target, Want::Room).nr_coming
    }

    fn coming(&self, target: &GroupNode, want: Want) -> Coming {
        let (nr_coming, nr_arrived) =
            self.lruvecs
                .fold_transit(target, (0, 0), |(coming, arrived), state| {
                    let here = match want {
                        Want::Room => state.nr_charged(),
                        Want::Frame => state.nr_framed(),
                    };
                    (coming + here, arrived + state.nr_arrived())
                });
        let (nr_isolated, nr_settled) = self.lruvecs.of(target).map_or((0, 0), |lruvec| {
            // In this order: a page that is settled in between counts at most once.
            let nr_settled = lruvec.nr_settled();
            let nr_isolated = PageType::ALL.iter().map(|it| lruvec.nr_isolated(*it));
            (nr_isolated.sum(), nr_settled)
        });
        Coming {
            nr_coming,
            nr_arrived,
            nr_isolated,
            nr_settled,
        }
    }

    /// Wakes requests that wait for pages of a group, after a change.
    pub(super) fn note_arrival(&self, lruvec: &Lruvec) {
        if self.arrivals.is_anybody_waiting() && lruvec.is_awaited() {
            self.arrivals.wake();
        }
    }
}
