//! The promise: polling a charge that waits takes one bounded step, and never sleeps.

mod support;

use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use highwater::units::{FilePage, OomScoreAdj, PAGE_BYTES};
use highwater::{Access, Backing, Charge, ChargeWait, Limits, Manager, Mapping, Pages, Throttling};
use support::{TestFile, assert_empty, manager, mapped};

/// Pages that a poll may reclaim: its goal, and the rest of a cluster.
const STEP: Pages = Pages(128 + 32);

#[test]
fn a_poll_reclaims_no_more_than_a_step() {
    // Goal: a task returns its worker soon, whatever the size of its request. Method: a pool full
    // of cached pages, and a charge for nearly all of them: each poll evicts at most a step, and
    // polls alone complete it.
    let hw = manager(2048);
    let (_file, map) = mapped(&hw, &TestFile::new(2048), Access::ReadOnly);
    for page in 0..2048 {
        assert_eq!(map.read(&hw.enter(), page).unwrap().len(), 4096);
    }
    let mut charge = pin!(hw.root().charge_async(Pages(1900).bytes()));
    let mut context = Context::from_waker(Waker::noop());
    let resident = || hw.snapshot().frames.allocated;
    let mut polls = 0;
    let charge = loop {
        let before = resident();
        let outcome = charge.as_mut().poll(&mut context);
        assert!(before - resident() <= STEP, "{before} to {}", resident());
        polls += 1;
        if let Poll::Ready(outcome) = outcome {
            break outcome.unwrap();
        }
        assert!(polls < 1000, "no progress");
    };
    assert!(polls > 1900 / STEP.0, "{polls} polls");
    assert_eq!(charge.bytes(), Pages(1900).bytes());
    drop(charge);
    drop(map);
    assert_empty(&hw);
}

// Symptom: a charge for which room had appeared where it waited stopped a group at the next full
// one, beside pages that could be evicted.
#[test]
fn a_charge_that_moves_to_another_queue_evicts_pages_there_first() {
    // Goal: what it knows of one full group is not taken for knowledge of another. Method: the
    // first has no page; before the charge is polled again, another takes the room of the parent,
    // where the rest is clean pages.
    let hw = manager(4096);
    hw.root().on_exhausted(|victim| panic!("{victim:?}"));
    let limits = |pages| Limits::max(Pages(pages).bytes());
    let parent = hw.root().child("parent", limits(2048)).unwrap();
    let [full, cached, rest] = [("full", 256), ("cached", 2048), ("rest", 2048)]
        .map(|(name, pages)| parent.child(name, limits(pages)).unwrap());
    full.set_oom_score_adj(OomScoreAdj::UNKILLABLE);
    let file = hw.open_backing(TestFile::new(1536), Access::ReadOnly);
    let file = file.unwrap();
    file.will_need(&cached, 0..1536);
    let held = full.charge(Pages(256).bytes()).unwrap();
    let mut charge = pin!(full.charge_async(Pages(256).bytes()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(charge.as_mut().poll(&mut context).is_pending());
    drop(held);
    let rest = rest.charge(Pages(512).bytes()).unwrap();
    let granted = (0..1000).find_map(|_| match charge.as_mut().poll(&mut context) {
        Poll::Ready(outcome) => Some(outcome.unwrap()),
        Poll::Pending => None,
    });
    assert_eq!(granted.as_ref().unwrap().bytes(), Pages(256).bytes());
    drop((granted, rest, file));
    assert_empty(&hw);
}

#[test]
fn a_charge_that_owes_a_delay_is_told_it_also_where_the_library_sleeps() {
    // Goal: no sleep on the polling thread. Method: a manager that sleeps the delay above `high`,
    // after which none is left: so for an immediate charge and for a thread that waits; a task is
    // returned its delay.
    let builder = Manager::builder().capacity(Pages(4096).bytes());
    let hw = builder.throttling(Throttling::Sleep).build().unwrap();
    let limits = Limits {
        high: Pages(2048).bytes(),
        ..Limits::default()
    };
    let group = hw.root().child("group", limits).unwrap();
    let within = group.charge(Pages(2048).bytes()).unwrap();
    let above = Pages(128).bytes();
    {
        let mut charge = pin!(group.charge_async(above));
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(told)) = charge.as_mut().poll(&mut context) else {
            panic!("there is room");
        };
        assert!(told.throttle_delay() > Duration::ZERO);
    }
    let slept = group.charge(above).unwrap();
    assert!(slept.throttle_delay().is_zero());
    drop(slept);
    let slept = group.charge_async(above).wait().unwrap();
    assert!(slept.throttle_delay().is_zero());
    assert_eq!(group.events().high, 3);
    drop((within, slept));
    assert_empty(&hw);
}

/// Records that it was called.
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_charge_that_no_timer_wakes_does_not_sleep_for_a_page_in_transit() {
    // Goal: liveness without a timer and without a background thread: the arrival of a page wakes
    // no queue. Method: a group full of a victim's memory and of one page that storage keeps; an
    // executor that polls only called tasks; the victim must be told.
    let hw = manager(64);
    let storage = TestFile::new(8);
    let (_file, map) = mapped(&hw, &storage, Access::ReadOnly);
    let group = hw.root().child("group", Limits::default()).unwrap();
    let held = Mutex::new(Some(group.charge(Pages(63).bytes()).unwrap()));
    hw.root()
        .on_exhausted(move |_| drop(held.lock().unwrap().take()));
    thread::scope(|scope| {
        let answers = storage.pages.lock().unwrap();
        let fault = scope.spawn(|| map.read(&hw.enter(), 0).unwrap()[0]);
        while storage.reads.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let bell = Arc::new(Bell(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&bell));
        let mut charge = pin!(hw.root().charge_async(Pages(2).bytes()));
        let charge = loop {
            assert!(bell.0.swap(false, Ordering::SeqCst), "it sleeps");
            if let Poll::Ready(outcome) = charge.as_mut().poll(&mut Context::from_waker(&waker)) {
                break outcome.unwrap();
            }
        };
        drop(answers);
        assert_eq!(fault.join().unwrap(), 0);
        drop(charge);
    });
    assert_eq!(hw.snapshot().counter("oom_kill"), 1);
    drop(map);
    hw.root().on_exhausted(|_| ());
    assert_empty(&hw);
}

/// A manager full of a group's memory but for one page, and storage that is mapped. Victims are
/// not to be told.
fn full_but_for_a_page(access: Access) -> (Manager, Arc<TestFile>, Mapping, Charge) {
    let hw = manager(64);
    let storage = TestFile::new(8);
    let (_file, map) = mapped(&hw, &storage, access);
    let held = hw.root().child("group", Limits::default());
    let held = held.expect("a name that is free");
    let held = held.charge(Pages(63).bytes()).expect("there is room");
    hw.root()
        .on_exhausted(|victim| panic!("{} is told", victim.group().path()));
    (hw, storage, map, held)
}

// Symptom: a group was stopped while a page was being read in, after some thousand polls: within
// milliseconds where no timer wakes the task. Method: a group full of memory and of one page that
// storage keeps, which is evicted when it has come.
#[test]
fn no_victim_is_told_while_a_page_is_read_in() {
    let (hw, storage, map, held) = full_but_for_a_page(Access::ReadOnly);
    thread::scope(|scope| {
        let answers = storage.pages.lock().unwrap();
        let fault = scope.spawn(|| map.read(&hw.enter(), 0).unwrap()[0]);
        while storage.reads.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let mut charge = pin!(hw.root().charge_async(Pages(1).bytes()));
        poll_for_a_while(charge.as_mut(), 5_000);
        drop(answers);
        assert_eq!(fault.join().unwrap(), 0);
        drop(granted_soon(charge));
    });
    drop(held);
    drop(map);
    assert_empty(&hw);
}

/// Polls a charge in vain, that often, or for less than it waits for a page.
fn poll_for_a_while(mut charge: Pin<&mut ChargeWait>, times: u32) {
    let mut context = Context::from_waker(Waker::noop());
    let began = Instant::now();
    for _ in 0..times {
        assert!(charge.as_mut().poll(&mut context).is_pending());
        if began.elapsed() > Duration::from_millis(300) {
            break;
        }
    }
}

/// Polls a charge until it is granted.
fn granted_soon(mut charge: Pin<&mut ChargeWait>) -> Charge {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10_000 {
        if let Poll::Ready(outcome) = charge.as_mut().poll(&mut context) {
            return outcome.expect("it fits");
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no progress");
}

// Symptom: a group was stopped while another reclaimer wrote a page of the full group out. Method:
// as above; the page is dirty, and storage keeps the write.
#[test]
fn no_victim_is_told_while_a_page_is_written_out() {
    let (hw, storage, map, held) = full_but_for_a_page(Access::ReadWrite);
    map.write(0).unwrap()[0] = 1;
    thread::scope(|scope| {
        let takes = storage.pages.lock().unwrap();
        let reclaimer = scope.spawn(|| hw.root().reclaim(Pages(1).bytes()));
        while hw.snapshot().counter("nr_isolated_file") == 0 {
            thread::yield_now();
        }
        let mut charge = pin!(hw.root().charge_async(Pages(1).bytes()));
        poll_for_a_while(charge.as_mut(), 1_000);
        drop(takes);
        reclaimer.join().unwrap();
        drop(granted_soon(charge));
    });
    assert_eq!(storage.pages.lock().unwrap()[0][0], 1);
    drop(held);
    drop(map);
    assert_empty(&hw);
}

/// Storage that refuses pages, and calls the program at each.
struct Refusing<F>(F);

impl<F> fmt::Debug for Refusing<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refusing")
    }
}

impl<F: Fn() + Send + Sync> Backing for Refusing<F> {
    fn len(&self) -> u64 {
        PAGE_BYTES
    }

    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn write_page(&self, _: FilePage, _: &[u8]) -> io::Result<usize> {
        (self.0)();
        Err(io::ErrorKind::StorageFull.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

// Symptom: a group was stopped though room had appeared while the poll reclaimed. Method: a group
// full of memory and of one page that cannot be written; another group gives its memory back in
// the middle of a pass.
#[test]
fn room_that_appears_in_a_pass_is_looked_for_before_a_victim_is_told() {
    let hw = manager(64);
    let held = Arc::new(Mutex::new(None));
    let gives_way = Arc::new(AtomicBool::new(false));
    let storage = Refusing({
        let (held, gives_way) = (Arc::clone(&held), Arc::clone(&gives_way));
        move || {
            if gives_way.load(Ordering::SeqCst) {
                drop::<Option<Charge>>(held.lock().unwrap().take());
            }
        }
    });
    let file = hw.open_backing(Arc::new(storage), Access::ReadWrite);
    let file = file.unwrap();
    let map = hw.space(&hw.root()).map_file(&file, 0..1).unwrap();
    map.write(0).unwrap()[0] = 1;
    let group = |name| hw.root().child(name, Limits::default()).unwrap();
    let stays = group("stays").charge(Pages(20).bytes()).unwrap();
    let goes = group("goes").charge(Pages(43).bytes()).unwrap();
    *held.lock().unwrap() = Some(goes);
    let mut charge = pin!(hw.root().charge_async(Pages(8).bytes()));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100 {
        assert!(charge.as_mut().poll(&mut context).is_pending());
    }
    hw.root()
        .on_exhausted(|victim| panic!("{} is told", victim.group().path()));
    gives_way.store(true, Ordering::SeqCst);
    // Until the next pass, a victim is in order.
    thread::sleep(Duration::from_millis(150));
    drop(granted_soon(charge));
    drop(stays);
    assert!(held.lock().unwrap().is_none(), "in the middle of a pass");
}

// Symptom: where a pass took longer than the time to the next one, as storage that fails after a
// while makes it, or where the task was polled as rarely, no victim was ever told. Method: a page
// that cannot be written, and polls that are further apart than passes.
#[test]
fn a_victim_is_told_though_polls_are_rare() {
    let hw = manager(64);
    let storage = TestFile::new(1);
    let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
    map.write(0).unwrap()[0] = 1;
    storage.fails_writes.store(true, Ordering::SeqCst);
    let group = hw.root().child("group", Limits::default()).unwrap();
    let held = Mutex::new(Some(group.charge(Pages(63).bytes()).unwrap()));
    let mut charge = pin!(hw.root().charge_async(Pages(8).bytes()));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10 {
        assert!(charge.as_mut().poll(&mut context).is_pending());
    }
    hw.root()
        .on_exhausted(move |_| drop(held.lock().unwrap().take()));
    let is_granted = (0..6).any(|_| {
        thread::sleep(Duration::from_millis(110));
        charge.as_mut().poll(&mut context).is_ready()
    });
    assert!(is_granted, "nobody is told");
    assert_eq!(hw.snapshot().counter("oom_kill"), 1);
}
