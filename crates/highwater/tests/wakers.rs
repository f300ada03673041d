//! Promise: a waker is the program's code, so it is cloned and dropped where no lock is held; and a
//! read that is dropped keeps none.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]
#![expect(
    unsafe_code,
    reason = "a waker whose clone runs code is made of raw parts"
)]

mod support;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};

use highwater::units::PAGE_SIZE;
use highwater::{Access, Backing, Bytes, Charge, Limits, Manager, Mapping, ReadPattern};
use support::TestFile;

type Code = Box<dyn Fn() + Send + Sync>;

/// The code of a waker.
struct WakerCode {
    on_clone: Code,
    on_drop: Code,
}

impl WakerCode {
    fn waker(self) -> Waker {
        let data = Arc::into_raw(Arc::new(self));
        // SAFETY: the functions of the table treat the data as this `Arc`, of which each waker owns
        // a count, and which any thread may use.
        unsafe { Waker::new(data.cast(), &TABLE) }
    }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(cloned, dropped, |_| {}, dropped);

/// # Safety
///
/// `data` is that of a waker of [`WakerCode`].
unsafe fn cloned(data: *const ()) -> RawWaker {
    let code: *const WakerCode = data.cast();
    // SAFETY: the waker that is cloned owns a count.
    unsafe { Arc::increment_strong_count(code) };
    // SAFETY: as above.
    (unsafe { &*code }.on_clone)();
    RawWaker::new(data, &TABLE)
}

/// # Safety
///
/// As [`cloned`]; the waker is not used any more.
unsafe fn dropped(data: *const ()) {
    let code: *const WakerCode = data.cast();
    // SAFETY: the waker's count, which it gives up.
    let code = unsafe { Arc::from_raw(code) };
    (code.on_drop)();
}

/// A file whose page 3 is in flight, mapped for a group that is full.
struct InFlight<'a> {
    /// Holds the storage's reads up. First, because the file's end waits for them.
    held_up: Option<MutexGuard<'a, Vec<[u8; PAGE_SIZE]>>>,
    hw: Manager,
    map: Mapping,
    /// The same pages, for a group that is not full.
    whole: Mapping,
    _rest: Charge,
}

impl<'a> InFlight<'a> {
    fn of(storage: &'a Arc<TestFile>, access: Access) -> Self {
        let held_up = Some(storage.pages.lock().unwrap());
        let hw = Manager::builder().build().unwrap();
        let limits = Limits::max(Bytes::kib(64));
        let group = hw.root().child("reader", limits).unwrap();
        let backing = Arc::clone(storage) as Arc<dyn Backing>;
        let file = hw.open_backing(backing, access).unwrap();
        let [map, whole] = [&group, &hw.root()].map(|group| {
            let map = hw.space(group).map_file(&file, 0..8).unwrap();
            map.set_read_pattern(ReadPattern::Random);
            map
        });
        map.prefetch([3]).unwrap();
        let rest = limits.max.0 - group.usage_precise().0;
        let rest = group.try_charge(Bytes(rest)).unwrap();
        Self {
            held_up,
            hw,
            map,
            whole,
            _rest: rest,
        }
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

// Symptom: a waker whose clone asked for a page waited for ever, because it was cloned under the
// lock under which pages are looked up. Method: the clone asks for the page in flight; the reads
// wait for that page, for memory, and for a page of their own.
#[test]
fn a_waker_may_read_when_it_is_cloned() {
    let storage = TestFile::new(8);
    let mut scene = InFlight::of(&storage, Access::ReadOnly);
    let map = scene.map.clone();
    let code = WakerCode {
        on_clone: Box::new(move || {
            let mut read = Box::pin(map.read_async(3));
            assert!(poll_once(read.as_mut(), Waker::noop()).is_pending());
        }),
        on_drop: Box::new(|| {}),
    };
    let waker = code.waker();
    let InFlight { map, whole, .. } = &scene;
    let reads = [map.read_async(3), map.read_async(5), whole.read_async(6)];
    let mut reads = reads.map(Box::pin);
    for read in &mut reads {
        assert!(poll_once(read.as_mut(), &waker).is_pending());
    }
    scene.held_up = None;
    let [first, _, last] = reads;
    scene.hw.block_on(first).unwrap();
    scene.hw.block_on(last).unwrap();
}

/// A task that counts its wakers.
struct Task;

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

// Symptom: while storage did not answer, each read that was dropped left its waker behind, with its
// task. Method: reads that wait for a page in flight, or for memory, are polled and dropped.
#[test]
fn a_read_that_is_dropped_keeps_no_waker() {
    let task = Arc::new(Task);
    let waker = Waker::from(Arc::clone(&task));
    let is_dropped = |page| {
        let count = Arc::strong_count(&task);
        assert_eq!(count, 2, "a read of page {page} was dropped");
    };
    for page in [3, 5] {
        let storage = TestFile::new(8);
        let scene = InFlight::of(&storage, Access::ReadOnly);
        let mut read = Box::pin(scene.map.read_async(page));
        assert!(poll_once(read.as_mut(), &waker).is_pending());
        drop(read);
        is_dropped(page);
    }
    for page in [3, 5] {
        let storage = TestFile::new(8);
        let scene = InFlight::of(&storage, Access::ReadWrite);
        let mut read = Box::pin(scene.map.read_latched_async(page));
        assert!(poll_once(read.as_mut(), &waker).is_pending());
        drop(read);
        is_dropped(page);
    }
}

// Goal: a read that is dropped takes the waker of no other read of its task along. Method: a driver
// awaits one of two reads of the page in flight.
#[test]
fn a_read_that_is_dropped_leaves_others_of_its_task() {
    let storage = TestFile::new(8);
    let scene = &mut InFlight::of(&storage, Access::ReadOnly);
    let InFlight {
        held_up, hw, map, ..
    } = scene;
    let mut reads = [Some(map.read_async(3)), Some(map.read_async(3))];
    let read = hw.block_on(poll_fn(|context| {
        let mut polled = Poll::Pending;
        for read in reads.iter_mut().flatten() {
            polled = Pin::new(read).poll(context);
        }
        reads[0] = None;
        *held_up = None;
        polled
    }));
    read.unwrap();
}

// Symptom: a reader that could have shared a latch waited until it was released, because the task
// before it left the queue with a waker that panicked when it was dropped.
// Goal: the next is woken in any case. Method: a page is latched by a reader; a writer waits and is
// dropped.
#[test]
fn a_waker_that_panics_when_it_is_dropped_keeps_no_other_task_waiting() {
    let hw = Manager::builder().build().unwrap();
    let storage = TestFile::new(1) as Arc<dyn Backing>;
    let file = hw.open_backing(storage, Access::ReadWrite).unwrap();
    let map = hw.space(&hw.root()).map_file(&file, 0..1).unwrap();
    let reading = map.read_latched(0).unwrap();
    let panics = Arc::new(AtomicBool::new(false));
    let is_told = Arc::clone(&panics);
    let code = WakerCode {
        on_clone: Box::new(|| {}),
        on_drop: Box::new(move || assert!(!is_told.swap(false, Ordering::Relaxed), "as told")),
    };
    let waker = code.waker();
    let mut write = Box::pin(map.write_async(0));
    assert!(poll_once(write.as_mut(), &waker).is_pending());
    let bell = Arc::new(Bell(AtomicBool::new(false)));
    let mut read = Box::pin(map.read_latched_async(0));
    assert!(poll_once(read.as_mut(), &Waker::from(Arc::clone(&bell))).is_pending());
    panics.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(write))).is_err());
    assert!(bell.0.load(Ordering::Relaxed), "it could share the latch");
    assert!(poll_once(read.as_mut(), Waker::noop()).is_ready());
    drop(reading);
}

/// Records that it was called.
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// Symptom: a charge that was granted or refused dropped its waker under the lock of the groups, and
// waited for ever if that asked for a usage.
#[test]
fn a_waker_may_ask_for_a_usage_when_it_is_dropped() {
    let hw = Manager::builder().build().unwrap();
    let limits = Limits::max(Bytes::mib(1));
    let group = hw.root().child("query", limits).unwrap();
    for is_granted in [true, false] {
        let held = group.try_charge(Bytes::mib(1)).unwrap();
        let asked = group.clone();
        let code = WakerCode {
            on_clone: Box::new(|| {}),
            on_drop: Box::new(move || {
                _ = asked.usage_precise();
            }),
        };
        let waker = code.waker();
        let mut charge = Box::pin(group.charge_async(Bytes::mib(1)));
        assert!(poll_once(charge.as_mut(), &waker).is_pending());
        match is_granted {
            true => drop(held),
            false => assert!(group.set_max(Bytes::kib(64)).is_err()),
        }
        let outcome = poll_once(charge.as_mut(), &waker);
        assert!(
            matches!(&outcome, Poll::Ready(charge) if charge.is_ok() == is_granted),
            "{outcome:?}"
        );
    }
}
