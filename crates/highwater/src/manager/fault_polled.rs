//! Page faults of tasks: faults during which no thread waits.
//!
//! The steps are those of a blocking fault (`fault.rs`, `fill.rs`), except for the three that wait:
//!
//! | a blocking fault waits for | a polled one |
//! |---|---|
//! | a fill or eviction of the page by another thread | is woken when it ends, and looks again |
//! | memory | reclaims clean pages; if there are none, is woken when a flight lands while pages are on their way to the full group, or polled a few times more while other tasks have pages to take; otherwise waits like a blocking fault |
//! | storage | launches the window, and is woken when its own page has landed |

use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Core;
use super::alarm::Alarm;
use super::error::ReadError;
use super::fault::{Found, ROUNDS_MAX};
use super::fill::InRead;
use super::flight::{Arrived, Landing, TaskWait};
use super::mapping::Mapping;
use super::slow::{ARRIVAL_MAX, ATTEMPTS_MAX, Patience};
use super::source::FillSource;
use crate::cache::{PageFlag, PageKey, Presence, VmArea};
use crate::sync::{Arc, WakerTicket};
use crate::units::{GroupId, MapPage, Pfn};

/// The page fault of a task.
#[derive(Debug, Default)]
pub(super) struct TaskFault {
    /// Where the page will land, once it is afloat.
    landing: Option<Arc<Landing>>,
    /// Whether it was counted as a page fault.
    is_counted: bool,
    /// Looks at the page that another thread had been first at.
    rounds: u32,
    /// Its wait for another thread's fill or eviction of the page.
    turn: Option<WakerTicket>,
    shortage: MemoryWait,
    /// How it is counted as waiting for a page that another thread fills.
    counted: Option<TaskWait>,
}

/// A task's wait for memory.
#[derive(Default)]
struct MemoryWait {
    /// When it began, on the manager's clock.
    since: Option<Duration>,
    /// Looks while no page was on its way to the full group.
    nr_idle: u32,
    /// Its wait for the next flight to land.
    watch: Option<WakerTicket>,
    alarm: Option<Alarm>,
}

/// The longest wait for pages on their way to a full group. Chosen: as that of a blocking fault.
const SHORT_MAX: Duration = ARRIVAL_MAX.saturating_mul(ATTEMPTS_MAX);
/// Looks while nothing is on its way, but other tasks have pages to take. Chosen: each of these is
/// polled as often meanwhile.
const IDLE_LOOKS: u32 = 16;
/// The time until the next look if no flight lands. Chosen: storage that takes so long is rare.
const SHORT_LOOK: Duration = Duration::from_millis(100);

/// Result of one look at a missing page.
enum PolledFault {
    /// It is in the cache.
    Taken(Arrived, Found),
    /// It is afloat, and will land there.
    Launched(Arc<Landing>),
    /// Another thread was first: look again.
    Again,
    /// The task is woken when another thread's fill or eviction of the page ends.
    Waits,
    /// The task is woken when memory may have come.
    Short,
}

impl TaskFault {
    /// Returns whether its page is being read in.
    pub(super) fn is_afloat(&self) -> bool {
        self.landing.is_some()
    }

    /// Begins a poll of the task.
    pub(super) fn end_announcement(&mut self, core: &Core) {
        self.shortage.alarm = None;
        if let Some(wait) = self.counted.take() {
            core.io.flights.end_task_wait(wait);
        }
    }

    /// Ends the fault: it wakes the task no more, unless the page is afloat.
    pub(super) fn end(&mut self, map: &Mapping, page: MapPage) {
        let core = map.core();
        self.end_announcement(core);
        if let Some(ticket) = self.turn.take() {
            core.cache.cancel_lookup(map.area().key(page), ticket);
        }
        if let Some(ticket) = self.shortage.watch.take() {
            core.io.flights.end_watch(ticket);
        }
    }

    /// Brings in a page that the caller has not found.
    pub(super) fn poll(
        &mut self,
        map: &Mapping,
        page: MapPage,
        context: &mut Context<'_>,
    ) -> Poll<Result<Arrived, ReadError>> {
        if self.is_afloat() {
            debug_assert!(self.is_counted, "a page that is afloat was a fault");
            let landed = self.poll_landing(map, page, context);
            if landed.is_pending() {
                map.core().see_to_it_from_outside();
            }
            return landed;
        }
        if !std::mem::replace(&mut self.is_counted, true) {
            map.core().note_fault(FillSource::of(map.area()));
        }
        self.look(map, page, context)
    }

    /// Counts a look at a page that has left its frame again.
    pub(super) fn note_round(&mut self, key: PageKey) -> Result<(), ReadError> {
        self.rounds += 1;
        match self.rounds < ROUNDS_MAX {
            true => Ok(()),
            false => Err(ReadError::Starved {
                page: key.page(),
                rounds: ROUNDS_MAX,
            }),
        }
    }

    /// Looks at a missing page until it is afloat, another thread has it, or it is found.
    fn look(
        &mut self,
        map: &Mapping,
        page: MapPage,
        context: &mut Context<'_>,
    ) -> Poll<Result<Arrived, ReadError>> {
        debug_assert!(self.landing.is_none(), "a page is launched once");
        let (core, area) = (map.core(), map.area());
        let key = area.key(page);
        // Terminates: the rounds are counted.
        loop {
            match core.fault_polled(area, page, self, context)? {
                PolledFault::Again => self.note_round(key)?,
                PolledFault::Taken(arrived, found) => {
                    core.note_found(FillSource::of(area), key.page(), found);
                    return Poll::Ready(Ok(arrived));
                }
                PolledFault::Launched(landing) => {
                    self.landing = Some(landing);
                    return self.poll_landing(map, page, context);
                }
                PolledFault::Waits | PolledFault::Short => {
                    self.counted = Some(core.wait_of_task());
                    return Poll::Pending;
                }
            }
        }
    }

    fn poll_landing(
        &mut self,
        map: &Mapping,
        page: MapPage,
        context: &mut Context<'_>,
    ) -> Poll<Result<Arrived, ReadError>> {
        debug_assert_eq!(self.counted, None, "the page is in this task's own flight");
        let landing = self.landing.as_ref().expect("it is afloat");
        let landed = landing.poll(context);
        if landed.is_ready() {
            self.landing = None;
        }
        if let Poll::Ready(Ok(_)) = &landed {
            let source = FillSource::of(map.area());
            let page = map.area().key(page).page();
            map.core().note_found(source, page, Found::Read);
        }
        landed
    }
}

impl Core {
    /// Looks at a page of a mapping once: takes it, launches it, or has the task woken. If none may
    /// come from other reads, takes memory by any means.
    fn fault_polled(
        &self,
        area: &Arc<VmArea>,
        page: MapPage,
        fault: &mut TaskFault,
        context: &mut Context<'_>,
    ) -> Result<PolledFault, ReadError> {
        let source = FillSource::of(area);
        let key = area.key(page);
        source.file.check_end(key.page())?;
        match self.cache.poll_lookup(key, &mut fault.turn, context) {
            Poll::Pending if InRead::is_now() && self.fly_queued(key) => {
                return Ok(PolledFault::Again);
            }
            Poll::Pending => {
                source.readahead.note_late(source.file, key.page());
                return Ok(PolledFault::Waits);
            }
            Poll::Ready(Presence::Absent) => {}
            Poll::Ready(Presence::Resident(pfn)) => {
                if self.cache.clear_flag(pfn, PageFlag::Readahead) {
                    self.read_ahead_from(source, key.page(), Patience::Polled);
                }
                return Ok(self.take_polled(area, page, pfn));
            }
        }
        let supply = match self.supply_now(source) {
            Ok(supply) => supply,
            Err(full) if self.may_have_memory(full, &mut fault.shortage, context) => {
                return Ok(PolledFault::Short);
            }
            Err(_) => self.supply_one(source, key.page())?,
        };
        // Once for each miss: a second look at the same page would count as a jump.
        let window = self.window_of_miss(source, key.page(), 1);
        let Some(mut fills) = self.begin_wanted(source, &window, supply) else {
            return Ok(PolledFault::Again);
        };
        if !source.file.is_stored(key.page()) {
            fills.read()?;
            let arrived = fills.finish_for(page, |arrived| arrived);
            return Ok(PolledFault::Taken(arrived, Found::Zeroed));
        }
        let mut flights = fills.set_afloat();
        let landing = flights[0].deliver(page, &self.io.flights);
        self.launch(flights);
        Ok(PolledFault::Launched(landing))
    }

    /// Takes a page that was found in a frame: pins and maps it, unless it has left, or is to be
    /// latched.
    fn take_polled(&self, area: &VmArea, page: MapPage, pfn: Pfn) -> PolledFault {
        let key = area.key(page);
        if key.file().is_writable() {
            return PolledFault::Taken(Arrived::Found(pfn), Found::Cached);
        }
        let take = |pfn| {
            let pinned = self.cache.pin_at(key, pfn)?;
            self.cache.install(area, page, pfn);
            Some(pinned)
        };
        let taken = self.take_cached(area.file(), pfn, take);
        taken.map_or(PolledFault::Again, |(pinned, found)| {
            PolledFault::Taken(Arrived::Pinned(pinned), found)
        })
    }

    /// Returns whether other reads may give memory back to a full group; has the task woken then.
    fn may_have_memory(
        &self,
        full: GroupId,
        shortage: &mut MemoryWait,
        context: &mut Context<'_>,
    ) -> bool {
        let now = self.now();
        let waits_since = *shortage.since.get_or_insert(now);
        let full = self.groups.get(full);
        let is_coming = full.is_some_and(|full| self.reclaim.nr_coming_to(&full) > 0);
        let is_short = is_coming && now - waits_since < SHORT_MAX;
        if is_short && self.io.flights.watch(&mut shortage.watch, context) {
            shortage.set_alarm(self, now + SHORT_LOOK, context);
            return true;
        }
        // Other tasks have pages pinned that they have not been polled for.
        shortage.nr_idle += 1;
        let is_soon = shortage.nr_idle < IDLE_LOOKS && self.io.flights.is_any_untaken();
        if is_soon {
            context.waker().wake_by_ref();
        }
        is_soon
    }
}

impl MemoryWait {
    /// Has the task woken at `at` although no flight has landed: storage may never answer.
    fn set_alarm(&mut self, core: &Core, at: Duration, context: &mut Context<'_>) {
        let alarm = self.alarm.insert(Alarm::new(&core.alarms, core.begun, at));
        if alarm.poll(core.now(), context).is_ready() {
            context.waker().wake_by_ref();
        }
    }
}

impl fmt::Debug for MemoryWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWait")
            .field("since", &self.since)
            .field("nr_idle", &self.nr_idle)
            .finish_non_exhaustive()
    }
}
