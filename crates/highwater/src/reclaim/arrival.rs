//! Pages in transit: charged to a group, and not on a list yet; and the wait for their arrival.
//!
//! A thread that faults a page in charges the group first and puts the page on a list last. In
//! between the group is full of a page that reclaim cannot see, for as long as storage takes, or
//! the scheduler. A request that finds nothing to reclaim is therefore not refused while a page of
//! its target is in transit: it sleeps until one arrives.
//!
//! # What is counted
//!
//! For each group one word ([`State`]): threads that have charged a page and not brought it to a
//! list, those of them that have a frame for it as well, and how many have arrived. Pages that a
//! reclaimer has isolated are in transit too (`Lruvec::nr_isolated`): they will be put back or
//! freed.
//!
//! - A fault counts itself *before* it charges ([`OnItsWay`]), and stops when the page is in an add
//!   batch, or after its charge and its frame were given back: that is an arrival as well, of room.
//! - An attempt to charge that is refused takes itself back: it is no arrival.
//!
//! # No spurious refusal
//!
//! A request reads the number of arrivals, then attempts its charge and a pass, then reads the word
//! again. If there were no arrivals in between and nothing is in transit now, nothing was in
//! transit when the charge was refused: every page of the target was on a list or in a batch, and
//! the pass has seen it, or it is held. Otherwise the request waits, or tries again at once. The
//! count is stored before the charge it is about and an arrival after the page it is about, so a
//! thread that sees the charge sees the count, and one that sees the arrival finds the page.
//!
//! # No lost wake-up
//!
//! The waiter says that it waits and then reads the word; the arrival changes the word and then
//! reads whether any thread waits. Each has a fence in between, so at least one of them sees the
//! other (model: `loom`).
//!
//! # No deadlock
//!
//! A request waits without a bound of its own only for threads that are further than itself:
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
//! meanwhile ([`OnItsWay::hide_while`]), and neither has one that waits for a page's latch. What is
//! left is storage: a page is in transit until the storage has answered.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use super::lists::PageType;
use super::lruvec::Lruvec;
use super::{LruvecRef, Reclaim};
use crate::group::GroupNode;
use crate::sync::atomic::{AtomicU64, Ordering};

const COUNT_BITS: u32 = 22;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const ONE_CHARGED: u64 = 1;
const ONE_FRAMED: u64 = 1 << COUNT_BITS;
const ONE_ARRIVED: u64 = 1 << (2 * COUNT_BITS);

/// What a group has in transit, at one moment: threads that have a charge (22 bits, as many as
/// Linux has threads), those of them that have a frame (22 bits), and arrivals so far (20 bits,
/// which wrap: two readings are one pass of reclaim apart).
#[derive(Clone, Copy, Debug)]
pub(super) struct State(u64);

impl State {
    pub(super) const fn nr_charged(self) -> u64 {
        self.0 & COUNT_MASK
    }

    pub(super) const fn nr_framed(self) -> u64 {
        self.0 >> COUNT_BITS & COUNT_MASK
    }

    pub(super) const fn nr_arrived(self) -> u64 {
        self.0 >> (2 * COUNT_BITS)
    }
}

/// The word of one group.
///
/// Written by: threads that fault. Read by: requests that found nothing to reclaim. Publishes: the
/// charge, the page or the room that a change is about.
#[derive(Debug, Default)]
pub(super) struct Transit(AtomicU64);

impl Transit {
    pub(super) fn load(&self) -> State {
        // Acquire. Pairs with: `step`.
        State(self.0.load(Ordering::Acquire))
    }

    /// Counts a thread as `to` that was counted as `from`.
    pub(super) fn step(&self, from: Stage, to: Stage) {
        let by = to.weight().wrapping_sub(from.weight());
        // Release. Pairs with: `load`. What is counted before a charge is seen by a thread that
        // sees the charge.
        self.0.fetch_add(by, Ordering::Release);
    }
}

/// What a thread that brings a page in is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Arrived,
    Nowhere,
    Charged,
    Framed,
}

impl Stage {
    const fn weight(self) -> u64 {
        match self {
            Self::Arrived => ONE_ARRIVED,
            Self::Nowhere => 0,
            Self::Charged => ONE_CHARGED,
            Self::Framed => ONE_CHARGED + ONE_FRAMED,
        }
    }
}

thread_local! {
    /// Of this thread, how many are alive.
    static ALIVE: Cell<u32> = const { Cell::new(0) };
    /// Pages that this thread has isolated.
    static IN_HAND: Cell<i64> = const { Cell::new(0) };
}

/// Counts pages that this thread isolates, or settles.
pub(super) fn note_in_hand(change: i64) {
    IN_HAND.set(IN_HAND.get() + change);
}

/// Pages of one fault that are in transit for as long as this lives. Stays on its thread.
pub struct OnItsWay<'a> {
    reclaim: &'a Reclaim,
    /// Of the group that pays; none when it was removed, and pays for nothing any more.
    lruvec: Option<LruvecRef>,
    stage: Cell<Stage>,
    is_paid: Cell<bool>,
}

impl fmt::Debug for OnItsWay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnItsWay").field(&self.stage.get()).finish()
    }
}

impl OnItsWay<'_> {
    /// Says that the pages are charged: their end is an arrival from here on.
    pub fn note_paid(&self) {
        self.is_paid.set(true);
    }

    /// Says that the thread looks for a frame in vain: others that do the same do not wait for it.
    pub fn lack_frame(&self) {
        self.count_as(Stage::Charged);
    }

    /// Says that the thread is about to try again to take a frame.
    pub fn seek_frame(&self) {
        self.count_as(Stage::Framed);
    }

    /// Says that the pages have arrived, or will not come.
    pub fn arrive(&self) {
        self.count_as(match self.is_paid.get() {
            true => Stage::Arrived,
            false => Stage::Nowhere,
        });
    }

    /// Calls what may wait for any thread: none waits for this one meanwhile.
    pub fn hide_while<R>(&self, call: impl FnOnce() -> R) -> R {
        let stage = self.stage.get();
        self.count_as(Stage::Nowhere);
        let called = call();
        self.count_as(stage);
        called
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

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.arrive();
        ALIVE.set(ALIVE.get() - 1);
    }
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Room in the target.
    Room,
    /// A frame.
    Frame,
}

/// What a target has in transit.
#[derive(Clone, Copy, Debug)]
struct Coming {
    /// Threads that bring pages in, and pages that have arrived.
    nr_coming: u64,
    nr_arrived: u64,
    /// Pages in the hands of reclaimers, and pages that were put back or freed.
    nr_isolated: u64,
    nr_settled: u64,
}

impl Coming {
    /// Whether something is in transit now that was when `self` was seen.
    const fn lasts(self, now: Self) -> bool {
        // In this order: the lists of a group that was removed since count nothing any more, nor
        // what has settled.
        now.nr_coming > 0
            || now.nr_isolated > 0 && now.nr_settled - self.nr_settled < self.nr_isolated
    }
}

/// How a wait for pages in transit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Nothing was in transit, or it was an attempt that came to nothing.
    Nothing,
    /// A page has arrived, or room.
    Came,
    /// Reclaimers have put back or freed as many pages as they had isolated.
    Settled,
    /// Something is still in transit.
    Late,
}

impl Reclaim {
    /// Says that this thread is about to charge pages to a group and to take frames for them. They
    /// are in transit until the result is dropped.
    ///
    /// # Cost
    ///
    /// A lock for reading, and an atomic on a line of the group; another when it is dropped.
    #[must_use = "the pages are in transit until this is dropped"]
    pub fn page_on_its_way(&self, group: &GroupNode) -> OnItsWay<'_> {
        ALIVE.set(ALIVE.get() + 1);
        let way = OnItsWay {
            reclaim: self,
            lruvec: self.lruvecs.of(group),
            stage: Cell::new(Stage::Nowhere),
            is_paid: Cell::new(false),
        };
        way.count_as(Stage::Framed);
        way
    }

    /// Faults of this thread that are under way: more than one where storage reads from the cache
    /// itself.
    #[must_use]
    pub fn nr_own_on_their_way() -> u32 {
        ALIVE.get()
    }

    /// Waits until a page of a target arrives that is in transit, none is any more, or the time is
    /// over; returns also how many had arrived by then. Does not wait where there were arrivals
    /// after the `seen` ones, or where those were never looked at.
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
        if IN_HAND.get() > 0 && first.nr_coming == 0 {
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

    /// Threads that bring pages of a target in.
    #[must_use]
    pub fn nr_coming_to(&self, target: &GroupNode) -> u64 {
        self.coming(target, Want::Room).nr_coming
    }

    fn coming(&self, target: &GroupNode, want: Want) -> Coming {
        let in_target = |lruvec: &Lruvec| lruvec.is_in_subtree_of(target);
        let (nr_coming, nr_arrived) =
            self.lruvecs
                .fold_of(in_target, (0, 0), |(coming, arrived), lruvec| {
                    let state = lruvec.transit.load();
                    let here = match want {
                        Want::Room => state.nr_charged(),
                        Want::Frame => state.nr_framed(),
                    };
                    (coming + here, arrived + state.nr_arrived())
                });
        let (nr_isolated, nr_settled) = self.lruvecs.of(target).map_or((0, 0), |lruvec| {
            // In this order: a page that is settled in between counts once at most.
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

    /// Wakes requests that wait for pages of a group that something has changed about.
    pub(super) fn note_arrival(&self, lruvec: &Lruvec) {
        if self.arrivals.is_anybody_waiting() && lruvec.is_awaited() {
            self.arrivals.wake();
        }
    }
}
