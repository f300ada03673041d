//! The promise: time lost to memory stalls is known for each group. It is at least the waits of its
//! threads, at most the duration of their calls, and zero if memory was available.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

mod support;

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use highwater::group::Stalls;
use highwater::{Access, Backing, Bytes, Group, Limits, Manager, Mapping, Pages, Working};
use support::{TestFile, assert_empty, manager};
use tokio::runtime::Builder;
use tokio::task::yield_now;

/// Duration of one page write.
const WRITE_US: u64 = 500;

fn pages(count: u64) -> Bytes {
    Pages(count).bytes()
}

/// A tenant with a child of 32 pages at most, and a file whose pages are slow to write.
struct Scene {
    hw: Manager,
    tenant: Group,
    query: Group,
    storage: Arc<TestFile>,
    map: Mapping,
}

impl Scene {
    fn new() -> Self {
        let hw = manager(1024);
        let tenant = hw.root().child("tenant", Limits::default()).unwrap();
        let query = tenant.child("query", Limits::max(pages(32))).unwrap();
        let storage = TestFile::new(64);
        storage.write_pause_us.store(WRITE_US, Ordering::Relaxed);
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let file = hw.open_backing(backing, Access::ReadWrite).unwrap();
        let map = hw.space(&query).map_file(&file, 0..64).unwrap();
        Self {
            hw,
            tenant,
            query,
            storage,
            map,
        }
    }

    /// Dirties twice as many pages as the query may have, so that half of them are written back on
    /// the way; returns the duration.
    fn stall(&self) -> Duration {
        let begun = Instant::now();
        for page in 0..64 {
            self.map.write(page).unwrap()[0] ^= 1;
        }
        begun.elapsed()
    }

    fn pressure(&self) -> [Stalls; 3] {
        [
            self.query.pressure(),
            self.tenant.pressure(),
            self.hw.root().pressure(),
        ]
    }

    fn end(self) {
        self.storage.write_pause_us.store(0, Ordering::Relaxed);
        drop(self.map);
        assert_empty(&self.hw);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

#[test]
fn who_makes_room_stalls_for_its_group_and_those_above() {
    // Goal: the total is time, of the right groups. Method: a query that writes back as it faults:
    // each level lost at least the time of the writes and at most that of the calls, a sibling
    // nothing.
    let scene = Scene::new();
    let sibling = scene.tenant.child("sibling", Limits::default()).unwrap();
    let kept = sibling.charge(pages(500)).unwrap();
    assert_eq!(scene.pressure(), [Stalls::default(); 3], "nothing is short");
    let took = micros(scene.stall());
    let written = scene.hw.snapshot().counter("nr_vmscan_write");
    assert!(written >= 32);
    for pressure in scene.pressure() {
        let lost = pressure.some.total_us;
        assert!(lost >= written * WRITE_US, "{lost} us for {written} writes");
        assert!(lost <= took, "{lost} us in {took} us");
        assert_eq!(pressure.some, pressure.full, "no known thread can run");
    }
    assert_eq!(sibling.pressure(), Stalls::default());
    let quiet = scene.pressure();
    thread::sleep(Duration::from_millis(5));
    assert_eq!(scene.pressure()[0].some.total_us, quiet[0].some.total_us);
    drop(kept);
    scene.end();
}

#[test]
fn stalls_are_counted_by_their_duration() {
    // Goal: the histogram of a snapshot has each stall once, in the right power of two, and their
    // total. Method: one thread that writes back as it faults, so that its stalls do not overlap:
    // their total is the pressure's, which counts whole microseconds, and lies between the least
    // and the most that the buckets can hold.
    let scene = Scene::new();
    let quiet = scene.hw.snapshot();
    assert!(quiet.stall_ns.is_empty() && quiet.stall_ns_total == 0);
    scene.stall();
    let snapshot = scene.hw.snapshot();
    let stalls = &snapshot.stall_ns;
    let nr_stalls: u64 = stalls.iter().map(|(_, nr)| nr).sum();
    assert!((1..=64).contains(&nr_stalls), "{stalls:?}");
    let least: u64 = stalls.iter().map(|(least, nr)| least * nr).sum();
    let total = snapshot.stall_ns_total;
    assert!(least <= total && total < 2 * least, "{total} of {stalls:?}");
    let written = snapshot.counter("nr_vmscan_write");
    assert!(total >= written * WRITE_US * 1000);
    let lost = scene.pressure()[2].some.total_us;
    assert!(lost.abs_diff(total / 1000) <= total / 10_000 + 2 * nr_stalls);
    let of_writes = stalls
        .iter()
        .filter(|(least, _)| 2 * least > WRITE_US * 1000);
    assert!(of_writes.count() > 0, "no stall is as long as a write");
    scene.end();
}

#[test]
fn full_is_not_lost_while_a_known_thread_can_go_on() {
    // Goal: some and full depend on the threads known to work. Method: a thread that works for the
    // tenant and does nothing while another stalls for its query: full for the query, where it does
    // not work, but not for the tenant. When it has ended, full equals some. A thread that declares
    // itself twice, in any order, counts once.
    let scene = Scene::new();
    let (arrived, leave) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let working = scene.tenant.work();
            arrived.wait();
            leave.wait();
            drop(working);
        });
        arrived.wait();
        let working = (scene.query.work(), scene.tenant.work());
        scene.stall();
        drop(working.0);
        drop(working.1);
        leave.wait();
    });
    let before = scene.pressure();
    assert!(before[0].full.total_us > 0 && before[0].full.total_us == before[0].some.total_us);
    for above in &before[1..] {
        assert!(above.some.total_us >= before[0].some.total_us);
        assert_eq!(above.full.total_us, 0);
    }
    let working = scene.query.work();
    scene.stall();
    drop(working);
    scene.stall();
    let [query, tenant, root] = scene.pressure();
    for (before, now) in before.iter().zip([query, tenant, root]) {
        let lost = now.some.total_us - before.some.total_us;
        let full = now.full.total_us - before.full.total_us;
        // Each total is rounded down to a microsecond.
        assert!(full.abs_diff(lost) <= 1 && lost > 1, "{full} of {lost} us");
    }
    scene.end();
}

thread_local! {
    /// What this thread works for until it ends.
    static TO_THE_END: RefCell<Vec<Working>> = const { RefCell::new(Vec::new()) };
    /// Works for a group when the thread ends.
    static AT_THE_END: RefCell<Option<WorksLast>> = const { RefCell::new(None) };
}

struct WorksLast(Group, mpsc::Sender<Stalls>);

impl Drop for WorksLast {
    fn drop(&mut self) {
        let Self(group, pressure) = self;
        let working = group.work();
        pressure.send(group.pressure()).expect("the test waits");
        drop(working);
    }
}

// Symptom: a thread that worked for two siblings until its end, by a thread-local, left the groups
// above them twice: *full* grew there although another thread worked for them.
#[test]
fn work_that_ends_with_its_thread_ends_once() {
    let scene = Scene::new();
    let sibling = scene.tenant.child("sibling", Limits::default()).unwrap();
    let working = scene.tenant.work();
    let groups = [scene.query.clone(), sibling];
    let ended = thread::spawn(move || {
        // Used before the library's own thread-locals, and so dropped after them.
        TO_THE_END.with_borrow_mut(|works| works.extend(groups.iter().map(Group::work)));
    });
    ended.join().unwrap();
    // A thread that works for no group; this one still works for the tenant.
    thread::scope(|scope| drop(scope.spawn(|| scene.stall())));
    let [_, tenant, root] = scene.pressure();
    for above in [tenant, root] {
        assert!(above.some.total_us > 0);
        assert_eq!(above.full.total_us, 0);
    }
    drop(working);
    scene.end();
}

// Symptom: `work` in the destructor of a thread-local aborted the process.
#[test]
fn a_destructor_of_a_thread_local_can_work() {
    let hw = manager(256);
    let tenant = hw.root().child("tenant", Limits::default()).unwrap();
    let (sender, seen) = mpsc::channel();
    let group = tenant.clone();
    let ended = thread::spawn(move || {
        AT_THE_END.set(Some(WorksLast(group.clone(), sender)));
        drop(group.work());
    });
    ended.join().unwrap();
    assert_eq!(seen.recv(), Ok(Stalls::default()));
    assert_empty(&hw);
}

#[test]
fn a_handler_that_runs_is_no_stall() {
    // Goal: the embedder's own time is not counted as lost. Method: a handler that takes 20 ms, and
    // makes charges itself: the lost time and the handler's time fit into the duration of the call.
    let hw = manager(256);
    let tenant = hw.root().child("tenant", Limits::default()).unwrap();
    let held = std::sync::Mutex::new(Some(tenant.charge(pages(200)).unwrap()));
    let handled = Arc::new(AtomicU64::new(0));
    let took = Arc::clone(&handled);
    let worker = tenant.clone();
    hw.root().on_exhausted(move |_| {
        let begun = Instant::now();
        let _working = worker.work();
        thread::sleep(Duration::from_millis(20));
        drop(held.lock().unwrap().take());
        took.fetch_add(micros(begun.elapsed()), Ordering::Relaxed);
    });
    let begun = Instant::now();
    let work = tenant.charge(pages(200)).unwrap();
    let call = micros(begun.elapsed());
    let handled = handled.load(Ordering::Relaxed);
    let lost = tenant.pressure().some.total_us;
    assert!(handled >= 20_000);
    assert!(lost + handled <= call, "{lost} + {handled} us in {call} us");
    assert_eq!(tenant.pressure().full.total_us, lost);
    drop(work);
    hw.root().on_exhausted(|_| ());
    assert_empty(&hw);
}

/// A future that adds up the microseconds of its polls.
async fn timed<F: Future>(polled: Arc<AtomicU64>, future: F) -> F::Output {
    let mut future = pin!(future);
    let poll = poll_fn(|context| {
        let begun = Instant::now();
        let poll = future.as_mut().poll(context);
        // Rounded up.
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap() + 1;
        polled.fetch_add(took, Ordering::Relaxed);
        poll
    });
    poll.await
}

#[test]
fn full_pressure_is_less_than_some_while_a_task_works() {
    // Goal: *full* follows tasks from thread to thread. Before, it equalled *some* in async
    // programs. Method: a task waits in the queue of its group while another one of the group
    // computes for 20 ms on the same worker, and then sleeps for 20 ms: the first is not full, the
    // second is, except for the time that either is polled, which a slow machine may make long.
    let hw = manager(4096);
    let tenant = hw.root().child("tenant", Limits::default()).unwrap();
    let held = tenant.charge(Bytes::mib(16)).unwrap();
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build();
    runtime.unwrap().block_on(async {
        let (waiting, working) = (tenant.clone(), tenant.clone());
        let polled = Arc::new(AtomicU64::new(0));
        let waiting = tokio::spawn(timed(
            Arc::clone(&polled),
            tenant.work_on(async move { waiting.charge_async(Bytes::mib(1)).await }),
        ));
        while hw.root().nr_waiting() == 0 {
            yield_now().await;
        }
        let busy = Duration::from_millis(20);
        let before = tenant.pressure();
        let work = tokio::spawn(timed(
            Arc::clone(&polled),
            tenant.work_on(async move {
                thread::sleep(busy);
                let worked = working.pressure();
                tokio::time::sleep(busy).await;
                (worked, working.pressure())
            }),
        ));
        let (worked, slept) = work.await.unwrap();
        let polled = polled.load(Ordering::Relaxed);
        assert!(
            worked.some.total_us - worked.full.total_us >= 20_000,
            "{worked}"
        );
        let [some, full] = [|of: Stalls| of.some, |of: Stalls| of.full]
            .map(|of| of(slept).total_us - of(before).total_us);
        assert!(some >= 40_000, "{before}\n{slept}");
        // The first two are rounded down to microseconds.
        assert!(full + polled + 2 >= some, "{before}\n{slept}\n{polled} us");
        drop(held);
        drop(waiting.await.unwrap().unwrap());
    });
    let after = tenant.pressure();
    thread::sleep(Duration::from_millis(5));
    assert_eq!(tenant.pressure().some.total_us, after.some.total_us);
    assert_empty(&hw);
}
