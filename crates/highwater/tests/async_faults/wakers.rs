//! Wakers that do more than wake, and tasks that are polled more often than they are woken.

use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::time::Instant;

use super::*;
use crate::support::{TestFile, mapped};

/// Waits until a waker has done its work.
#[track_caller]
fn wait_for(is_done: &AtomicBool, what: &str) {
    let begun = Instant::now();
    while !is_done.load(Ordering::SeqCst) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A task that owns the last handle of its file, a read or a mapping, as an executor that is gone
/// leaves it.
#[derive(Default)]
struct Closer {
    owns: Mutex<Option<Box<dyn Any + Send>>>,
    is_woken: AtomicBool,
    is_closed: Arc<AtomicBool>,
}

impl Wake for Closer {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        if let Some(last) = self.owns.lock().unwrap().take() {
            drop(last);
            self.is_closed.store(true, Ordering::SeqCst);
        }
    }
}

// Symptom: the thread that had landed one read of a file, and was about to land another, called a
// waker that closed the file, and waited there for the other.
#[test]
fn a_waker_may_close_a_file_with_other_reads_in_flight() {
    for (engine, builder) in engines() {
        for _ in 0..20 {
            let Scene { hw, map, _file } = Scene::new(builder.clone(), 64);
            map.prefetch([1, 20, 40, 60]).unwrap();
            let task = Arc::new(Closer::default());
            let is_closed = Arc::clone(&task.is_closed);
            let mut read = Box::pin(map.read_async(1));
            let waker = Waker::from(Arc::clone(&task));
            let polled = read.as_mut().poll(&mut Context::from_waker(&waker));
            drop(map);
            *task.owns.lock().unwrap() = Some(Box::new(read));
            drop(waker);
            // A read that has landed before the task owned the file closes nothing.
            if polled.is_pending() && !task.is_woken.load(Ordering::SeqCst) {
                drop(task);
                wait_for(&is_closed, engine);
            }
            drop(hw);
        }
    }
}

/// A task that owns the last handle of its file and is dropped with its waker.
struct Owner {
    owns: Mutex<Option<Mapping>>,
    is_closed: Arc<AtomicBool>,
}

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.owns.lock().unwrap().take());
        self.is_closed.store(true, Ordering::SeqCst);
    }
}

// Symptom: the thread that landed a read whose task was gone dropped the task's waker, which closed
// the file, and waited there for the read that it was landing.
#[test]
fn a_waker_that_is_dropped_may_close_the_file_of_its_read() {
    for (engine, builder) in engines() {
        for pause_us in [0, 100, 10_000] {
            let hw = builder.clone().build().unwrap();
            let storage = TestFile::new(64);
            storage.read_pause_us.store(pause_us, Ordering::Relaxed);
            let (file, map) = mapped(&hw, &storage, Access::ReadOnly);
            let is_closed = Arc::new(AtomicBool::new(false));
            let task = Arc::new(Owner {
                owns: Mutex::default(),
                is_closed: Arc::clone(&is_closed),
            });
            let mut read = Box::pin(map.read_async(1));
            let waker = Waker::from(Arc::clone(&task));
            let _ = read.as_mut().poll(&mut Context::from_waker(&waker));
            drop((read, file));
            *task.owns.lock().unwrap() = Some(map);
            drop((waker, task));
            wait_for(&is_closed, engine);
        }
    }
}

/// A task that panics when it is woken, or notes it.
struct Woken {
    panics: bool,
    is_woken: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        assert!(!self.panics, "this panic is part of a test");
        self.is_woken.store(true, Ordering::SeqCst);
    }
}

// Symptom: a waker that panicked ended the thread that lands reads.
#[test]
fn a_waker_that_panics_takes_no_other_with_it() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder, 64);
        for page in 0..20 {
            scene.map.prefetch([page]).unwrap();
            let tasks = [true, false].map(|panics| {
                let is_woken = AtomicBool::new(false);
                Arc::new(Woken { panics, is_woken })
            });
            let mut reads = tasks
                .each_ref()
                .map(|_| Box::pin(scene.map.read_async(page)));
            let pending = [0, 1].map(|nth: usize| {
                let waker = Waker::from(Arc::clone(&tasks[nth]));
                let polled = reads[nth].as_mut().poll(&mut Context::from_waker(&waker));
                polled.is_pending()
            });
            if pending[1] {
                wait_for(&tasks[1].is_woken, engine);
            }
        }
        Scene::is_right(30, &scene.hw.block_on(scene.map.read_async(30)));
        scene.settle();
    }
}

/// A task that panics when it is dropped.
struct PanicsAtEnd;

impl Wake for PanicsAtEnd {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsAtEnd {
    fn drop(&mut self) {
        panic!("this panic is part of a test");
    }
}

/// Polls a read once, and leaves the only waker of its task to it.
fn leave_behind(map: &Mapping, page: u64) {
    let mut read = Box::pin(map.read_async(page));
    let waker = Waker::from(Arc::new(PanicsAtEnd));
    let polled = read.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    drop(read);
}

// Symptom: a waker that panicked when it was dropped, with a read that had been dropped, ended the
// thread that landed the read: later reads, and the file's end, waited for ever. Method: one for
// each thread, and one more, whose storage does not answer until they are dropped. With io_uring,
// the reads are dropped before they are submitted, and left to the reaper.
#[test]
fn a_waker_that_panics_when_it_is_dropped_ends_no_thread() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder.clone(), 64);
        let hw = builder.build().unwrap();
        let storage = TestFile::new(64);
        let (file, map) = mapped(&hw, &storage, Access::ReadOnly);
        map.set_read_pattern(ReadPattern::Random);
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        // Not joined where it fails.
        thread::spawn(move || {
            let held_up = storage.pages.lock().unwrap();
            (0..17).for_each(|nth| leave_behind(&map, nth * 2));
            drop(held_up);
            hw.block_on(map.read_async(63)).unwrap();
            drop((map, file, hw));
            if engine == "io_uring" {
                scene.hw.block_on(async { leave_behind(&scene.map, 1) });
                scene.map.prefetch([63]).unwrap();
                scene.settle();
            }
            drop(scene);
            done.store(true, Ordering::SeqCst);
        });
        wait_for(&is_done, engine);
    }
}

// Symptom: the page of a read that was dropped stayed charged, because its file was closed while
// the read still had it pinned.
#[test]
fn a_read_that_is_the_last_handle_of_its_file_closes_it() {
    for (engine, builder) in engines() {
        let Scene { hw, map, _file } = Scene::new(builder, 64);
        let mut read = Box::pin(map.read_async(7));
        _ = Scene::poll_once(read.as_mut());
        drop(map);
        settle(&hw);
        drop(read);
        assert_eq!(hw.root().usage_precise(), Bytes::ZERO, "{engine}");
    }
}

// Symptom: a task that was polled ten thousand times while another's read was in flight, as an
// executor that spins does, failed as starved.
#[test]
fn polls_do_not_starve_a_read() {
    let hw = Manager::builder().build().unwrap();
    let storage = TestFile::new(8);
    storage.read_pause_us.store(300_000, Ordering::Relaxed);
    let file = hw.open_backing(storage, Access::ReadOnly).unwrap();
    let map = hw.space(&hw.root()).map_file(&file, 0..8).unwrap();
    map.set_read_pattern(ReadPattern::Random);
    map.prefetch([3]).unwrap();
    let mut read = Box::pin(map.read_async(3));
    for polls in 0..20_000 {
        match Scene::poll_once(read.as_mut()) {
            Poll::Pending => {}
            // A slow machine.
            Poll::Ready(Ok(_)) => return,
            Poll::Ready(Err(error)) => panic!("{error} after {polls} polls"),
        }
    }
    hw.block_on(read).unwrap();
}

// Symptom: a driver whose poll waits for another thread's read waited for ever, because the thread
// that lands reads had left them to the driver. Method: many reads from outside, awaited inside.
#[test]
fn a_driver_may_wait_for_reads_from_outside() {
    for (engine, builder) in engines() {
        let pages = 3000;
        let scene = Scene::new(builder.capacity(Bytes::mib(32)), pages);
        let is_read = Arc::new(AtomicBool::new(false));
        scene.hw.block_on(async {
            Scene::is_right(0, &scene.map.read_async(0).await);
            let (map, tell) = (scene.map.clone(), Arc::clone(&is_read));
            let outside = thread::spawn(move || {
                // No two are neighbours: each is a read.
                map.prefetch((1..pages).step_by(2)).unwrap();
                let last = map.read_async(pages - 1);
                let mut last = pin!(last);
                let task = Arc::new(Woken {
                    panics: false,
                    is_woken: AtomicBool::new(false),
                });
                let waker = Waker::from(Arc::clone(&task));
                if last
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
                {
                    wait_for(&task.is_woken, engine);
                }
                tell.store(true, Ordering::SeqCst);
            });
            wait_for(&is_read, engine);
            outside.join().unwrap();
        });
        scene.settle();
    }
}

// Symptom: a read that failed gave its charge back while it still counted as in flight, and called
// the waker of a charge that waited for it, which closed the file and waited there for the read.
#[test]
fn a_charge_that_waits_for_a_failing_read_may_close_its_file() {
    let hw = Manager::builder().build().unwrap();
    let limits = Limits::max(Bytes::kib(64));
    let group = hw.root().child("reader", limits).unwrap();
    let storage = TestFile::new(8);
    storage.read_pause_us.store(100_000, Ordering::Relaxed);
    storage.fails_reads.store(true, Ordering::Relaxed);
    let file = hw.open_backing(storage, Access::ReadOnly).unwrap();
    let map = hw.space(&group).map_file(&file, 0..8).unwrap();
    map.set_read_pattern(ReadPattern::Random);
    let mut read = Box::pin(map.read_async(3));
    assert!(Scene::poll_once(read.as_mut()).is_pending());
    let rest = limits.max.0 - group.usage_precise().0;
    let _rest = group.try_charge(Bytes(rest)).unwrap();
    let task = Arc::new(Closer::default());
    let is_closed = Arc::clone(&task.is_closed);
    let waker = Waker::from(Arc::clone(&task));
    let mut charge = Box::pin(group.charge_async(Bytes::kib(4)));
    // Until it waits in line.
    for _ in 0..3 {
        let polled = charge.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "the group is full");
    }
    drop((read, file));
    *task.owns.lock().unwrap() = Some(Box::new(map));
    drop(task);
    wait_for(&is_closed, "the waker returns");
}

// Symptom: a read whose group had no memory to give waited for as long as another group's reads
// kept coming. Method: it is looked at again and again while one of them is in flight.
#[test]
fn a_read_without_memory_is_told_beside_another_groups_reads() {
    let hw = Manager::builder().build().unwrap();
    let storage = TestFile::new(8);
    storage.read_pause_us.store(1_000_000, Ordering::Relaxed);
    let file = hw.open_backing(storage, Access::ReadOnly).unwrap();
    let full = hw
        .root()
        .child("full", Limits::max(Bytes::kib(64)))
        .unwrap();
    let _all = full.try_charge(Bytes::kib(64)).unwrap();
    let [other, map] = [hw.root(), full].map(|group| {
        let map = hw.space(&group).map_file(&file, 0..8).unwrap();
        map.set_read_pattern(ReadPattern::Random);
        map
    });
    other.prefetch([0]).unwrap();
    let mut read = Box::pin(map.read_async(3));
    let polls = (0..20_000).map(|_| Scene::poll_once(read.as_mut()));
    let read = polls.into_iter().find(Poll::is_ready);
    assert!(
        matches!(read, Some(Poll::Ready(Err(ReadError::NoMemory { .. })))),
        "{read:?}"
    );
}
