//! Promise: each limit, reclaim, throttle and victim event (`docs/events.md`) carries the numbers
//! of what happened, as integers in the units of its fields; a storm of refusals is silent above
//! `debug`; and without a subscriber nothing is formatted or allocated.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]
#![expect(unsafe_code, reason = "counts the allocator's calls")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use highwater::Throttling;
use highwater::group::{GroupTree, StatItem, Tolerance};
use highwater::{Access, Background, Backing, Bytes, Charge, Group, Limits, Manager, Pages};
use support::{TestFile, manager, mapped};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, span};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts the calls of each thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    /// # Safety
    ///
    /// As for the trait.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of this function, which is the same.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    ///
    /// As for the trait.
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Returns the allocations of this thread in `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// An event that a subscriber was given.
#[derive(Clone, Debug)]
struct Seen {
    target: &'static str,
    level: Level,
    fields: BTreeMap<&'static str, String>,
}

impl Seen {
    fn text(&self, field: &str) -> &str {
        let value = self.fields.get(field);
        value.unwrap_or_else(|| panic!("no field `{field}` in {self:#?}"))
    }

    fn number(&self, field: &str) -> u64 {
        self.text(field).parse().unwrap()
    }

    fn bytes(&self, field: &str) -> Bytes {
        Bytes(self.number(field))
    }

    fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }
}

impl Visit for Seen {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

/// Collects events up to a level.
#[derive(Clone)]
struct Collector {
    up_to: LevelFilter,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.up_to
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.up_to)
    }

    fn event(&self, event: &Event<'_>) {
        let mut seen = Seen {
            target: event.metadata().target(),
            level: *event.metadata().level(),
            fields: BTreeMap::new(),
        };
        event.record(&mut seen);
        self.seen.lock().unwrap().push(seen);
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

/// Returns the events of `work` up to a level.
fn events(up_to: LevelFilter, work: impl FnOnce()) -> Vec<Seen> {
    let seen = Arc::default();
    let collector = Collector {
        up_to,
        seen: Arc::clone(&seen),
    };
    tracing::subscriber::with_default(collector, work);
    Arc::into_inner(seen).unwrap().into_inner().unwrap()
}

/// Returns the only event of this target and message.
fn only(events: &[Seen], target: &str, message: &str) -> Seen {
    let mut found = all(events, target, message).into_iter();
    match (found.next(), found.next()) {
        (Some(event), None) => event,
        (first, _) => panic!("{first:?} is not the only `{message}`: {events:#?}"),
    }
}

fn all(events: &[Seen], target: &str, message: &str) -> Vec<Seen> {
    let is_it = |event: &&Seen| event.target == target && event.text("message") == message;
    events.iter().filter(is_it).cloned().collect()
}

fn pages(count: u64) -> Bytes {
    Pages(count).bytes()
}

/// A group below a full one: 200 of 256 pages are charged.
fn nearly_full(hw: &Manager) -> (Group, Charge) {
    let limits = Limits::max(pages(256));
    let tenant = hw.root().child("tenant", limits).unwrap();
    let query = tenant.child("query", Limits::default()).unwrap();
    let charge = query.charge(pages(200)).unwrap();
    (query, charge)
}

#[test]
fn a_refused_charge_names_the_limit() {
    // Goal: a log tells which limit refused which charge, and the attempts. Method: an ancestor's
    // maximum without anything to reclaim.
    let hw = manager(1024);
    let (query, _charge) = nearly_full(&hw);
    let events = events(LevelFilter::DEBUG, || {
        query.charge(pages(100)).unwrap_err();
    });
    let event = only(&events, "highwater::limit", "a charge was refused");
    assert_eq!(event.level, Level::DEBUG);
    let texts = ["group", "limit_group", "reason", "is_optional"].map(|name| event.text(name));
    assert_eq!(texts, ["/tenant/query", "/tenant", "over_max", "false"]);
    let sizes = ["requested_bytes", "usage_bytes", "max_bytes"].map(|name| event.bytes(name));
    assert_eq!(sizes, [100, 200, 256].map(pages));
    assert!(event.number("attempts") >= 1 && !event.has("waiting_charges"));
    for none in [
        "reclaimed_pages",
        "borrowed_pages",
        "unwritten_pages",
        "victims",
        "dying",
    ] {
        assert_eq!(event.number(none), 0, "{none}");
    }
    assert!(event.number("duration_ns") > 0);
}

#[test]
fn a_charge_that_waited_in_vain_says_how_long() {
    // Goal: the refusal of a waiting charge has the queue and the time. Method: a deadline of 5 ms.
    let hw = manager(1024);
    let (query, _charge) = nearly_full(&hw);
    let events = events(LevelFilter::DEBUG, || {
        let deadline = Instant::now() + Duration::from_millis(200);
        let wait = query.charge_async(pages(100)).with_deadline(deadline);
        wait.wait().unwrap_err();
    });
    let event = only(&events, "highwater::limit", "a charge was refused");
    assert_eq!(event.text("reason"), "deadline_passed");
    assert_eq!(event.number("waiting_charges"), 1);
    assert_eq!(event.bytes("max_bytes"), pages(256));
    // The manager's clock starts after the deadline was taken, much later if this thread had to
    // wait for a CPU.
    assert!(event.number("duration_ns") >= 1_000_000, "{event:?}");
}

#[test]
fn direct_reclaim_says_which_pages_went() {
    // Goal: the events' pages are those that the group's statistics count, and each charge that
    // met the maximum is there with its passes. Method: 256 pages through 64.
    let hw = manager(1024);
    hw.set_readahead(Pages(0));
    let tenant = hw.root().child("tenant", Limits::max(pages(64))).unwrap();
    let storage = TestFile::new(256) as Arc<dyn Backing>;
    let file = hw.open_backing(storage, Access::ReadOnly).unwrap();
    let map = hw.space(&tenant).map_file(&file, 0..256).unwrap();
    let events = events(LevelFilter::TRACE, || {
        (0..256).for_each(|page| _ = map.read(&hw.enter(), page).unwrap());
    });
    let passes = all(&events, "highwater::reclaim", "a pass of direct reclaim");
    let sum = |field| passes.iter().map(|pass| pass.number(field)).sum::<u64>();
    let stats = tenant.stats(Tolerance::EXACT);
    let stat = |item| u64::try_from(stats.get(item)).unwrap();
    assert_eq!(sum("scanned_pages"), stat(StatItem::PgscanDirect));
    assert_eq!(sum("reclaimed_pages"), stat(StatItem::PgstealDirect));
    assert!(sum("reclaimed_pages") >= 256 - 64);
    for pass in &passes {
        assert_eq!(
            (pass.text("group"), pass.text("actor")),
            ("/tenant", "direct")
        );
        assert_eq!(pass.bytes("max_bytes"), pages(64));
        assert!(pass.bytes("usage_bytes") <= pages(64));
        assert!(pass.number("goal_pages") >= 1 && pass.number("priority") <= 12);
        assert!(pass.number("duration_ns") > 0);
        assert_eq!(pass.level, Level::TRACE);
    }
    let rooms = all(&events, "highwater::limit", "room was made for a charge");
    assert!(!rooms.is_empty() && rooms.len() <= passes.len());
    let freed: u64 = rooms
        .iter()
        .map(|room| room.number("reclaimed_pages"))
        .sum();
    assert_eq!(freed, sum("reclaimed_pages"));
    for room in &rooms {
        assert_eq!(
            (room.text("group"), room.text("reason")),
            ("/tenant", "over_max")
        );
        assert_eq!(room.bytes("requested_bytes"), Bytes::PAGE);
        assert!(room.number("attempts") >= 1);
    }
}

#[test]
fn a_background_run_says_how_far_it_came() {
    // Goal: one event for a run, with the watermark that it reached. Method: a full pool, balanced
    // by hand.
    let builder = Manager::builder().capacity(pages(1024));
    let hw = builder.background(Background::Off).build().unwrap();
    let storage = TestFile::new(2048) as Arc<dyn Backing>;
    let file = hw.open_backing(storage, Access::ReadOnly).unwrap();
    let map = hw.space(&hw.root()).map_file(&file, 0..2048).unwrap();
    (0..2048).for_each(|page| _ = map.read(&hw.enter(), page).unwrap());
    let before = hw.snapshot().counter("pgsteal_kswapd");
    let events = events(LevelFilter::DEBUG, || hw.balance());
    let run = only(&events, "highwater::reclaim", "a run of background reclaim");
    assert_eq!(run.level, Level::DEBUG);
    let freed = hw.snapshot().counter("pgsteal_kswapd") - before;
    assert_eq!(run.number("reclaimed_pages"), freed);
    assert!(freed > 0 && run.number("scanned_pages") >= freed);
    assert!(run.number("free_pages") >= run.number("watermark_high_pages"));
    assert!(run.number("passes") > run.number("fruitless_passes"));
    assert!(run.number("duration_ns") > 0);
    let again = crate::events(LevelFilter::DEBUG, || hw.balance());
    assert_eq!(again.len(), 0, "a run without a pass: {again:?}");
}

#[test]
fn a_throttled_charge_says_what_it_owes() {
    // Goal: the delay, and the ancestor whose `high` is furthest exceeded. Method: charges without
    // pages to reclaim, with the delay reported and slept.
    for throttling in [Throttling::Report, Throttling::Sleep] {
        let builder = Manager::builder().capacity(pages(4096));
        let hw = builder.throttling(throttling).build().unwrap();
        let limits = Limits {
            high: pages(1000),
            ..Limits::default()
        };
        let tenant = hw.root().child("tenant", limits).unwrap();
        let query = tenant.child("query", Limits::default()).unwrap();
        let _base = query.charge(pages(1000)).unwrap();
        let mut owed = Duration::ZERO;
        let events = events(LevelFilter::DEBUG, || {
            owed = query.charge(pages(64)).unwrap().throttle_delay();
        });
        let event = only(
            &events,
            "highwater::throttle",
            "a charge above high owes a delay",
        );
        assert_eq!(event.level, Level::DEBUG);
        let names = (event.text("group"), event.text("limit_group"));
        assert_eq!(names, ("/tenant/query", "/tenant"));
        assert_eq!(event.bytes("usage_bytes"), pages(1064));
        assert_eq!(event.bytes("high_bytes"), pages(1000));
        assert_eq!(event.bytes("over_bytes"), pages(64));
        assert!(event.bytes("reserved_bytes") >= pages(64));
        assert_eq!(
            (event.number("rounds"), event.number("reclaimed_pages")),
            (1, 0)
        );
        let delay = Duration::from_nanos(event.number("delay_ns"));
        assert!(delay > Duration::ZERO && event.number("duration_ns") > 0);
        let sleeps = throttling == Throttling::Sleep;
        assert_eq!(event.text("sleeps"), sleeps.to_string());
        assert_eq!(owed, if sleeps { Duration::ZERO } else { delay });
    }
}

#[test]
fn a_victim_comes_with_its_score() {
    // Goal: the warning has the victim, its score and the limit; a request that waits for it is
    // quiet. Method: two groups below a full one, and a handler that frees nothing.
    let hw = manager(1024);
    let tenant = hw.root().child("tenant", Limits::max(pages(512))).unwrap();
    let [large, small] =
        ["large", "small"].map(|name| tenant.child(name, Limits::default()).unwrap());
    let _held = [large.charge(pages(300)), small.charge(pages(200))].map(Result::unwrap);
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let handler_told = Arc::clone(&told);
    hw.root().on_exhausted(move |victim| {
        handler_told
            .lock()
            .unwrap()
            .push(victim.group().path().to_string());
        victim.group().exit_oom_victim();
    });
    let seen = events(LevelFilter::WARN, || {
        small.charge(pages(100)).unwrap_err();
    });
    let victims = all(&seen, "highwater::victim", "memory is exhausted");
    let names: Vec<_> = victims.iter().map(|victim| victim.text("group")).collect();
    assert_eq!(names, *told.lock().unwrap());
    let first = &victims[0];
    assert_eq!(
        (first.level, first.text("group")),
        (Level::WARN, "/tenant/large")
    );
    assert_eq!(first.text("limit_group"), "/tenant");
    assert_eq!(first.bytes("limit_bytes"), pages(512));
    let [low, high] = ["usage_low_bytes", "usage_high_bytes"].map(|name| first.bytes(name));
    assert!((low..=high).contains(&pages(300)), "{low} to {high}");
    assert!((low..=high).contains(&first.bytes("usage_bytes")));
    assert!(first.bytes("badness_bytes") <= pages(300));
    assert_eq!(
        (first.text("runner_up"), first.number("oom_score_adj")),
        ("/tenant/small", 0)
    );
    assert!(first.bytes("runner_up_badness_bytes") >= pages(200));
    assert_eq!(first.number("candidates"), 2);
    assert_eq!(
        (first.number("nth_of_request"), first.bytes("gap_bytes")),
        (1, Bytes::ZERO)
    );
    assert_eq!(first.number("group_id"), u64::from(large.id().0));
    assert!(first.text("decision").starts_with("/tenant/large: ") && first.has("duration_ns"));
}

#[test]
fn a_request_that_waits_for_a_dying_group_is_quiet() {
    // Goal: no line at `info` for each of many requests beside one dying group. Method: refusals
    // while a group is marked.
    let hw = manager(1024);
    let (query, _charge) = nearly_full(&hw);
    hw.root().on_exhausted(|_| ());
    query.mark_oom_victim();
    let seen = events(LevelFilter::DEBUG, || {
        query.charge(pages(100)).unwrap_err();
    });
    let message = "memory is exhausted, and a group is being stopped";
    for event in all(&seen, "highwater::victim", message) {
        assert_eq!(
            (event.level, event.text("group")),
            (Level::DEBUG, "/tenant/query")
        );
        assert_eq!(
            (event.text("limit_group"), event.bytes("usage_bytes")),
            ("/tenant", pages(200))
        );
        assert!(event.has("grace_ns"));
    }
    let mut loud = seen.iter().filter(|event| event.level <= Level::INFO);
    assert!(
        loud.all(|event| event.text("message") == "memory is exhausted"),
        "{seen:#?}"
    );
}

#[test]
fn a_storm_of_refusals_is_silent_above_debug() {
    // Goal: a program that is refused in a loop does not fill its log. Method: a thousand refusals.
    let hw = manager(1024);
    let (query, _charge) = nearly_full(&hw);
    let storm = || (0..1000).for_each(|_| _ = query.charge(pages(100)).unwrap_err());
    assert_eq!(events(LevelFilter::INFO, storm).len(), 0);
    let seen = events(LevelFilter::DEBUG, storm);
    assert_eq!(
        all(&seen, "highwater::limit", "a charge was refused").len(),
        1000
    );
}

#[test]
fn a_storm_of_failed_writes_is_reported_at_powers_of_two() {
    // Goal: a disk that fails does not fill the log: of failed pages the 1st, 2nd, 4th .. is
    // reported, with that number. Method: writes through a cache from which no dirty page can be
    // evicted; then a close, whose retries are silent.
    let hw = manager(64);
    hw.set_readahead(Pages(0));
    let storage = TestFile::new(256);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    storage.fails_writes.store(true, Ordering::Relaxed);
    let seen = events(LevelFilter::WARN, || {
        (0..256).for_each(|page| _ = map.write(page).map(|mut bytes| bytes[0] = 7));
    });
    let failed = hw.snapshot().counter("nr_vmscan_write_failed");
    let reclaim = all(
        &seen,
        "highwater::reclaim::shrink",
        "write-back failed in reclaim, the page stays dirty",
    );
    let times: Vec<_> = reclaim.iter().map(|event| event.number("times")).collect();
    let expected: Vec<_> = (0..=failed.ilog2()).map(|power| 1 << power).collect();
    assert!(failed > 8, "{failed}");
    assert_eq!(times, expected, "of {failed}");
    let closed = events(LevelFilter::WARN, || {
        drop((file, map));
        (0..100).for_each(|_| hw.balance());
    });
    let lost = "dirty pages stay in the cache after their file's close";
    let event = only(&closed, "highwater::manager::file", lost);
    assert_eq!(event.level, Level::ERROR);
    storage.fails_writes.store(false, Ordering::Relaxed);
}

#[test]
fn without_a_subscriber_nothing_is_allocated() {
    // Goal: an event costs a program without a log nothing but a load. Method: a refusal allocates
    // as much as one of a bare tree, which has no events; with a subscriber it allocates more.
    let tree = GroupTree::new(2);
    let bare = tree.root().child("tenant", Limits::max(pages(16))).unwrap();
    let hw = manager(1024);
    let tenant = hw.root().child("tenant", Limits::max(pages(16))).unwrap();
    let refused_bare = || drop(bare.try_charge(pages(17)).unwrap_err());
    let refused = || drop(tenant.charge(pages(17)).unwrap_err());
    refused_bare();
    refused();
    assert_eq!(allocations(refused), allocations(refused_bare));
    let mut with_subscriber = 0;
    let seen = events(LevelFilter::DEBUG, || {
        with_subscriber = allocations(refused)
    });
    assert!(seen.len() == 1 && with_subscriber > allocations(refused));
}
