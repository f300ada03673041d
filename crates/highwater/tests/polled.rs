//! The promise: polling a charge that waits takes one bounded step, and never sleeps.

mod support;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use highwater::{Access, Limits, Manager, Pages, Throttling};
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
