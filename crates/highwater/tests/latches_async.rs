//! Promise: tasks latch pages of writable files without a thread that waits for storage, for a
//! latch or for write-back; a dropped future leaves nothing behind; no update is lost.
//!
//! Method: each test runs on both engines of asynchronous reads. Where the system has no io_uring,
//! the first is skipped with the reason.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]
#![expect(clippy::print_stderr, reason = "a test that skips something says so")]

#[path = "support/engines.rs"]
mod engines;
mod support;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use highwater::frame::Tunables;
use highwater::{
    Access, Background, Builder, Bytes, File, Manager, Mapping, Owned, PageRead, PageWrite, Pages,
    ReadError,
};
use support::{TestFile, mapped};
use tempfile::NamedTempFile;

const PAGES: u64 = 256;

/// Builders with each engine that the system has.
fn engines() -> Vec<(&'static str, Builder)> {
    let probe = Scene::new(Manager::builder());
    drop(probe.hw.block_on(probe.map.read_latched_async(0)).unwrap());
    engines::engines(&probe.hw)
}

/// A writable file whose pages begin with their number, and a mapping of it.
struct Scene {
    hw: Manager,
    map: Mapping,
    file: File,
    stored: NamedTempFile,
}

impl Scene {
    fn new(builder: Builder) -> Self {
        let stored = NamedTempFile::new().unwrap();
        let pages = (0..PAGES).flat_map(|page| {
            let mut bytes = vec![0; 4096];
            bytes[..8].copy_from_slice(&page.to_ne_bytes());
            bytes
        });
        std::fs::write(stored.path(), pages.collect::<Vec<u8>>()).unwrap();
        let hw = builder.build().unwrap();
        let file = hw.open_writable(stored.path()).unwrap();
        let map = hw.space(&hw.root()).map_file(&file, 0..PAGES).unwrap();
        Self {
            hw,
            map,
            file,
            stored,
        }
    }
}

/// Waits until all flights have landed, and checks the invariants.
fn settle(hw: &Manager) {
    while hw.snapshot().counter("nr_async_reads") > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    hw.check_invariants();
}

fn number_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Adds one to the second word of a page, after another task had its turn.
async fn add_one(map: &Mapping, page: u64) -> Result<(), ReadError> {
    let mut write = map.write_async(page).await?;
    assert_eq!(number_at(&write, 0), page);
    let count = number_at(&write, 8);
    tokio::task::yield_now().await;
    write[8..16].copy_from_slice(&(count + 1).to_ne_bytes());
    Ok(())
}

/// Counts wake-ups.
#[derive(Default)]
struct Counted(AtomicU64);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a task that was not dropped.
fn poll_with<F: Future>(task: &mut Option<Pin<Box<F>>>, waker: &Arc<Counted>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(waker));
    let task = task.as_mut().unwrap();
    task.as_mut().poll(&mut Context::from_waker(&waker))
}

fn assert_send<T: Send>(it: T) -> T {
    it
}

#[test]
fn no_update_is_lost_through_a_small_memory() {
    // Method: tasks on several threads add to counters in random pages of a file four times as
    // large as memory; the sums count, in memory and in the file.
    const TASKS: u64 = 32;
    const ROUNDS: u64 = 200;
    for (engine, builder) in engines() {
        let scene = Scene::new(builder.capacity(Pages(PAGES / 4).bytes()));
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(3).build().unwrap();
        let tasks = (0..TASKS).map(|seed| {
            let map = scene.map.clone();
            assert_send(runtime.spawn(async move {
                let mut rng = fastrand::Rng::with_seed(seed);
                for _ in 0..ROUNDS {
                    let page = rng.u64(0..PAGES);
                    add_one(&map, page).await.unwrap();
                    let read = map.read_latched_async(rng.u64(0..PAGES)).await.unwrap();
                    assert!(number_at(&read, 0) < PAGES);
                    tokio::task::yield_now().await;
                    drop(read);
                }
            }))
        });
        for task in tasks.collect::<Vec<_>>() {
            runtime.block_on(task).unwrap();
        }
        settle(&scene.hw);
        let sum = (0..PAGES).map(|page| number_at(&scene.map.read_latched(page).unwrap(), 8));
        assert_eq!(sum.sum::<u64>(), TASKS * ROUNDS, "{engine}");
        scene.file.sync().unwrap();
        let stored = std::fs::read(scene.stored.path()).unwrap();
        let sum = stored.chunks_exact(4096).map(|page| number_at(page, 8));
        assert_eq!(sum.sum::<u64>(), TASKS * ROUNDS, "{engine}, in the file");
    }
}

#[test]
fn reads_of_one_thread_are_in_flight_together() {
    // Goal: no read waits for another. Method: many are polled before any is awaited.
    for (engine, builder) in engines() {
        let scene = Scene::new(builder);
        scene.map.set_read_pattern(highwater::ReadPattern::Random);
        let reads = (0..64).map(|page| Box::pin(scene.map.read_latched_async(page)));
        let mut reads: Vec<_> = reads.collect();
        for read in &mut reads {
            let _ = poll_once(read.as_mut()).map(|read| drop(read.unwrap()));
        }
        let snapshot = scene.hw.snapshot();
        let launched = snapshot.counter("async_reads");
        assert!(launched >= 32, "{engine}: {snapshot}");
        for (page, read) in (0..).zip(reads.drain(..).skip(1)) {
            let read = scene.hw.block_on(read);
            assert_eq!(number_at(&read.unwrap(), 0), page + 1, "{engine}");
        }
        settle(&scene.hw);
    }
}

#[test]
fn guards_go_to_other_threads() {
    // Goal: a latch is released where its guard is dropped, and its first thread may take it again.
    let scene = Scene::new(Manager::builder());
    let mut write: PageWrite<'static, Owned> = scene.hw.block_on(scene.map.write_async(3)).unwrap();
    write[8] = 1;
    write.mark_dirty();
    let read: PageRead<'static, Owned> = thread::spawn(move || write.downgrade()).join().unwrap();
    assert_eq!(scene.map.try_read_latched(3).unwrap()[8], 1);
    assert!(scene.map.try_write(3).is_none(), "it is held");
    let write = thread::spawn(move || read.try_upgrade().unwrap());
    let write = write.join().unwrap();
    assert!(scene.map.try_read_latched(3).is_none(), "it is held");
    thread::spawn(move || drop(write)).join().unwrap();
    assert_eq!(scene.map.write(3).unwrap()[8], 1);
    let (first, second) = (scene.map.read_latched_async(3), scene.map.read_latched(3));
    let first = scene.hw.block_on(first).unwrap();
    let first = first.try_upgrade().expect_err("there is another reader");
    drop(second);
    assert!(first.try_upgrade().is_ok());
}

#[test]
fn a_guard_keeps_its_mapping_and_its_file() {
    for (engine, builder) in engines() {
        let Scene {
            hw,
            map,
            file,
            stored,
        } = Scene::new(builder);
        let mut write = hw.block_on(map.write_async(5)).unwrap();
        drop((map, file));
        write[8] = 7;
        drop(write);
        drop(hw);
        let bytes = std::fs::read(stored.path()).unwrap();
        assert_eq!(bytes[5 * 4096 + 8], 7, "{engine}");
    }
}

#[test]
fn tasks_take_a_latch_in_turn() {
    // Goal: a task that waits for a latch is woken once it is free, and one that gives up makes
    // room for the next. Method: a holder, and three tasks in the queue, of which the second is
    // dropped.
    let scene = Scene::new(Manager::builder());
    let held = scene.map.write(0).unwrap();
    let wakers: Vec<_> = (0..3).map(|_| Arc::new(Counted::default())).collect();
    let mut tasks: Vec<_> = (0..3)
        .map(|_| Some(Box::pin(scene.map.write_async(0))))
        .collect();
    let woken = || wakers.iter().map(|it| it.0.load(Ordering::Relaxed));
    for (at, task) in tasks.iter_mut().enumerate() {
        assert!(poll_with(task, &wakers[at]).is_pending());
    }
    scene.hw.drop_caches();
    assert_eq!(woken().sum::<u64>(), 0);
    drop(held);
    assert_eq!(woken().collect::<Vec<_>>(), [1, 0, 0]);
    let first = match poll_with(&mut tasks[0], &wakers[0]) {
        Poll::Ready(write) => write.unwrap(),
        Poll::Pending => panic!("the latch is free"),
    };
    assert!(poll_with(&mut tasks[1], &wakers[1]).is_pending());
    drop(first);
    assert_eq!(woken().collect::<Vec<_>>(), [1, 1, 0]);
    tasks[1] = None;
    assert_eq!(woken().collect::<Vec<_>>(), [1, 1, 1]);
    assert!(poll_with(&mut tasks[2], &wakers[2]).is_ready());
    drop(tasks);
    drop(scene.map.write(0).unwrap());
    scene.hw.drop_caches();
    assert_eq!(scene.hw.root().usage_precise(), Bytes::ZERO);
}

#[test]
fn a_dropped_future_keeps_no_page() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder);
        for page in 0..8 {
            let mut read = pin!(scene.map.read_latched_async(page));
            drop(poll_once(read.as_mut()));
        }
        settle(&scene.hw);
        scene.hw.drop_caches();
        assert_eq!(scene.hw.root().usage_precise(), Bytes::ZERO, "{engine}");
    }
}

#[test]
fn a_page_stays_for_the_task_that_asked_for_it() {
    // Goal: a page that was read in for a task cannot be evicted before the task has it. Method:
    // all caches are dropped between the landing and the poll; the page is not read again.
    for (engine, builder) in engines() {
        let scene = Scene::new(builder);
        scene.map.set_read_pattern(highwater::ReadPattern::Random);
        let mut read = pin!(scene.map.read_latched_async(9));
        if poll_once(read.as_mut()).is_ready() {
            eprintln!("{engine}: it landed at once");
            continue;
        }
        settle(&scene.hw);
        scene.hw.drop_caches();
        let landed = scene.hw.snapshot().counter("pgmajfault");
        let Poll::Ready(read) = poll_once(read.as_mut()) else {
            panic!("{engine}: it has landed");
        };
        assert_eq!(number_at(&read.unwrap(), 0), 9);
        let after = scene.hw.snapshot().counter("pgmajfault");
        assert_eq!(after, landed + 1, "{engine}: counted once");
        scene.hw.drop_caches();
        assert_eq!(scene.hw.root().usage_precise(), Bytes::ZERO, "{engine}");
    }
}

// Symptom: an optimistic read returned a page that `set_len` had cut off, and that was kept for a
// task, as zeros that were valid.
#[test]
fn no_optimistic_read_is_of_a_page_that_was_cut_off() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder);
        scene.map.set_read_pattern(highwater::ReadPattern::Random);
        let mut read = pin!(scene.map.read_latched_async(200));
        let kept = poll_once(read.as_mut());
        settle(&scene.hw);
        scene.file.set_len(Bytes(100 * 4096)).unwrap();
        for _ in 0..8 {
            assert!(scene.map.read_optimistic(200).is_none(), "{engine}");
        }
        drop(kept);
    }
}

// Symptom: an optimistic read of anonymous memory became a write to a page that had been unmapped.
#[test]
fn no_optimistic_read_becomes_a_write_to_unmapped_memory() {
    let hw = Manager::builder().build().unwrap();
    let map = hw.space(&hw.root()).map_anon(Pages(4)).unwrap();
    map.write(0).unwrap()[0] = 1;
    let held = map.read_latched(0).unwrap();
    let seen = map.read_optimistic(0).unwrap();
    map.unmap(0..1).unwrap();
    drop(held);
    assert!(matches!(map.write(0), Err(ReadError::Unmapped { .. })));
    assert!(seen.try_write().is_none());
}

#[test]
fn a_page_that_is_cut_off_meanwhile_is_an_error() {
    // Goal: a task that waits for a page behind the new end gets an error and no stale data.
    for (engine, builder) in engines() {
        let scene = Scene::new(builder);
        let held = scene.map.write(200).unwrap();
        let mut waits = pin!(scene.map.write_async(200));
        assert!(poll_once(waits.as_mut()).is_pending());
        thread::scope(|scope| {
            let resized = scope.spawn(|| scene.file.set_len(Bytes(100 * 4096)));
            thread::sleep(Duration::from_millis(20));
            drop(held);
            let waited = scene.hw.block_on(waits);
            match waited {
                // It was in the queue before the resize.
                Ok(write) => drop(write),
                Err(error) => assert!(
                    matches!(error, ReadError::BehindEnd { .. }),
                    "{engine}: {error}"
                ),
            }
            resized.join().unwrap().unwrap();
        });
        let late = scene.hw.block_on(scene.map.write_async(200));
        assert!(
            matches!(late, Err(ReadError::BehindEnd { .. })),
            "{engine}: {late:?}"
        );
        settle(&scene.hw);
    }
}

#[test]
fn pages_that_cannot_be_latched_are_refused() {
    let scene = Scene::new(Manager::builder());
    let outside = scene.hw.block_on(scene.map.read_latched_async(PAGES));
    assert!(matches!(outside, Err(ReadError::OutOfRange { .. })));
    scene.map.unmap(4..5).unwrap();
    let unmapped = scene.hw.block_on(scene.map.write_async(4));
    assert!(matches!(unmapped, Err(ReadError::Unmapped { .. })));
    let read_only = NamedTempFile::new().unwrap();
    read_only.as_file().set_len(4096).unwrap();
    let file = scene.hw.open(read_only.path()).unwrap();
    let space = scene.hw.space(&scene.hw.root());
    let map = space.map_file(&file, 0..1).unwrap();
    let wrong = scene.hw.block_on(map.read_latched_async(0));
    assert!(matches!(wrong, Err(ReadError::Access { .. })), "{wrong:?}");
}

#[test]
fn writers_wait_for_write_back_without_a_thread() {
    // Goal: above the dirty limit, tasks are woken by the thread that writes back, and none
    // waits for ever. Method: many more writes than may be dirty at once, on one thread, and a
    // timer that never rings.
    for background in [Background::Thread, Background::Off] {
        let tunables = Tunables::default().with("dirty_ratio", 5).unwrap();
        let tunables = tunables.with("dirty_background_ratio", 2).unwrap();
        let builder = Manager::builder().capacity(Pages(PAGES).bytes());
        let builder = builder.tunables(tunables).background(background);
        let scene = Scene::new(builder.timer(|_| std::future::pending::<()>()));
        scene.hw.block_on(async {
            for round in 0..4 {
                for page in 0..PAGES {
                    let mut write = scene.map.write_async(page).await.unwrap();
                    write[8..16].copy_from_slice(&(round + 1_u64).to_ne_bytes());
                }
            }
        });
        let snapshot = scene.hw.snapshot();
        assert!(
            snapshot.counter("nr_dirty_throttled") > 0,
            "{background:?}: {snapshot}"
        );
        scene.file.sync().unwrap();
        let stored = std::fs::read(scene.stored.path()).unwrap();
        assert!(
            stored
                .chunks_exact(4096)
                .all(|page| number_at(page, 8) == 4)
        );
    }
}

#[test]
fn anonymous_memory_is_latched_by_tasks() {
    // Goal: pages that were never written are zeros without storage; others come back from swap.
    let dir = tempfile::tempdir().unwrap();
    for (engine, builder) in engines() {
        let builder = builder.capacity(Pages(64).bytes());
        let hw = builder.swap(dir.path(), Bytes::mib(1)).build().unwrap();
        let map = hw.space(&hw.root()).map_anon(Pages(128)).unwrap();
        hw.block_on(async {
            for page in 0..128 {
                let mut write = map.write_async(page).await.unwrap();
                assert_eq!(write[..8], [0; 8]);
                write[..8].copy_from_slice(&page.to_ne_bytes());
            }
            for page in 0..128 {
                let read = map.read_latched_async(page).await.unwrap();
                assert_eq!(number_at(&read, 0), page, "{engine}");
            }
        });
        settle(&hw);
        map.discard(0..128_u64).unwrap();
        let read = hw.block_on(map.read_latched_async(7)).unwrap();
        assert_eq!(read[..8], [0; 8]);
    }
}

#[test]
fn a_throttled_task_goes_on_at_its_deadline() {
    // Goal: a task is throttled for a bounded time, also if write-back hangs. Method: storage whose
    // write takes far longer than the longest pause; the task is ready long before it ends.
    let tunables = Tunables::default().with("dirty_ratio", 5).unwrap();
    let tunables = tunables.with("dirty_background_ratio", 2).unwrap();
    let builder = Manager::builder().capacity(Pages(PAGES).bytes());
    let builder = builder.tunables(tunables).background(Background::Thread);
    let hw = builder.build().unwrap();
    let storage = TestFile::new(PAGES);
    storage.write_pause_us.store(3_000_000, Ordering::Relaxed);
    let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
    hw.block_on(async {
        for page in 0..32 {
            map.write_async(page).await.unwrap()[8] = 1;
            if hw.snapshot().counter("nr_dirty_throttled") > 0 {
                break;
            }
        }
    });
    assert!(hw.snapshot().counter("nr_dirty_throttled") > 0);
    let stored = storage.pages.lock().unwrap();
    assert!(
        stored.iter().all(|page| page[8] != 1),
        "the first write hangs until now"
    );
    drop(stored);
    storage.write_pause_us.store(0, Ordering::Relaxed);
}
