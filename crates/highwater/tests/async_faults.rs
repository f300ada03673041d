//! Promise: pages are read in without a thread that waits for them, by io_uring or by threads; a
//! dropped read leaves nothing behind; what is in flight lands before its file or manager ends.
//!
//! Method: each test runs on both engines. Where the system has no io_uring, the first is skipped
//! with the reason.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]
#![expect(clippy::print_stderr, reason = "a test that skips something says so")]

#[path = "async_faults/adverse.rs"]
mod adverse;
#[path = "support/engines.rs"]
mod engines;
#[path = "async_faults/model.rs"]
mod model;
#[path = "async_faults/wakers.rs"]
mod wakers;
mod support;

use std::future::poll_fn;
use std::io::Write;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use highwater::{
    Access, Builder, Bytes, Limits, Manager, Mapping, Pages, PinnedPage, ReadError, ReadPattern,
};
use tempfile::NamedTempFile;

/// Builders with each engine that the system has.
fn engines() -> Vec<(&'static str, Builder)> {
    let probe = Scene::new(Manager::builder(), 1);
    probe.hw.block_on(probe.map.read_async(0)).unwrap();
    engines::engines(&probe.hw)
}

/// Word `word` of a page.
fn word(page: u64, word: u64) -> u64 {
    (page * 512 + word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn bytes_of(page: u64) -> Vec<u8> {
    (0..512)
        .flat_map(|at| word(page, at).to_ne_bytes())
        .collect()
}

struct Scene {
    hw: Manager,
    map: Mapping,
    _file: NamedTempFile,
}

impl Scene {
    fn new(builder: Builder, pages: u64) -> Self {
        let mut file = NamedTempFile::new().unwrap();
        for page in 0..pages {
            file.write_all(&bytes_of(page)).unwrap();
        }
        let hw = builder.build().unwrap();
        let open = hw.open(file.path()).unwrap();
        let map = hw.space(&hw.root()).map_file(&open, 0..pages).unwrap();
        map.set_read_pattern(ReadPattern::Random);
        Self {
            hw,
            map,
            _file: file,
        }
    }

    /// Polls a read once, without a runtime.
    fn poll_once(read: Pin<&mut highwater::ReadWait>) -> Poll<Result<PinnedPage, ReadError>> {
        read.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Waits until all flights have landed, and checks the invariants.
    fn settle(&self) {
        settle(&self.hw);
    }

    #[track_caller]
    fn is_right(page: u64, read: &Result<PinnedPage, ReadError>) {
        assert!(
            read.as_ref().unwrap()[..] == bytes_of(page)[..],
            "page {page}"
        );
    }
}

/// Waits until all flights have landed, and checks the invariants.
fn settle(hw: &Manager) {
    while hw.snapshot().counter("nr_async_reads") > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    hw.check_invariants();
}

/// Keeps up to `depth` reads of `pages` in flight, and checks each page.
async fn read_all(map: &Mapping, pages: impl IntoIterator<Item = u64>, depth: usize) {
    let mut pages = pages.into_iter().fuse();
    let mut reads: Vec<(u64, Pin<Box<highwater::ReadWait>>)> = Vec::new();
    poll_fn(|context| {
        loop {
            let missing = depth - reads.len();
            let more = pages.by_ref().take(missing);
            reads.extend(more.map(|page| (page, Box::pin(map.read_async(page)))));
            if reads.is_empty() {
                return Poll::Ready(());
            }
            let before = reads.len();
            reads.retain_mut(|(page, read)| match read.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(read) => {
                    Scene::is_right(*page, &read);
                    false
                }
            });
            if reads.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await;
}

#[test]
fn a_future_that_always_wakes_itself_does_not_hold_up_its_reads() {
    // Goal: reads go to the system and land between polls, also if the thread never sleeps. Method:
    // a future that wakes itself in each poll until its page is there.
    for (engine, builder) in engines() {
        let scene = Scene::new(builder, 4);
        let begun = std::time::Instant::now();
        let mut read = pin!(scene.map.read_async(3));
        let read = scene.hw.block_on(poll_fn(|context| {
            assert!(begun.elapsed() < Duration::from_secs(60), "{engine}");
            context.waker().wake_by_ref();
            read.as_mut().poll(context)
        }));
        Scene::is_right(3, &read);
    }
}

#[test]
fn a_page_is_read_in() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder, 8);
        let read = scene.hw.block_on(scene.map.read_async(3));
        Scene::is_right(3, &read);
        let snapshot = scene.hw.snapshot();
        assert_eq!(snapshot.counter("pgmajfault"), 1, "{engine}");
        assert_eq!(snapshot.counter("pgfault"), 1, "{engine}");
        // Resident now.
        let read = scene.hw.block_on(scene.map.read_async(3));
        Scene::is_right(3, &read);
        assert_eq!(scene.hw.snapshot().counter("pgfault"), 1, "{engine}");
        drop(read);
        scene.settle();
    }
}

#[test]
fn many_are_in_flight_through_a_small_memory() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder.capacity(Bytes::mib(1)), 4096);
        let mut rng = fastrand::Rng::with_seed(7);
        let pages: Vec<u64> = (0..20_000).map(|_| rng.u64(0..4096)).collect();
        scene.hw.block_on(read_all(&scene.map, pages, 64));
        let snapshot = scene.hw.snapshot();
        let reads = snapshot.counter("async_reads");
        assert!(reads > 10_000, "{engine}: {reads}");
        let by_ring = if engine == "threads" { 0 } else { reads };
        assert_eq!(snapshot.counter("async_reads_ring"), by_ring, "{engine}");
        if engine == "io_uring" {
            // A driver hands its reads to the system together.
            assert!(snapshot.counter("async_submits") < reads, "{snapshot}");
            assert_eq!(snapshot.counter("async_reaper_wakeups"), 0, "{snapshot}");
        }
        scene.settle();
    }
}

#[test]
fn runtimes_run_them() {
    for (_, builder) in engines() {
        let scene = Scene::new(builder.capacity(Bytes::mib(1)), 4096);
        let current = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        current.block_on(read_all(&scene.map, 0..4096, 64));
        let mut several = tokio::runtime::Builder::new_multi_thread();
        let several = several.worker_threads(2).build().unwrap();
        several.block_on(async {
            let tasks = (0..4).map(|task| {
                let map = scene.map.clone();
                tokio::spawn(async move {
                    let mut rng = fastrand::Rng::with_seed(task);
                    let pages: Vec<u64> = (0..4000).map(|_| rng.u64(0..4096)).collect();
                    read_all(&map, pages, 16).await;
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        });
        scene.settle();
    }
}

#[test]
fn a_dropped_read_leaves_its_page_in_the_cache() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder, 64);
        for page in 0..64 {
            let mut read = Box::pin(scene.map.read_async(page));
            _ = Scene::poll_once(read.as_mut());
        }
        scene.settle();
        let guard = scene.hw.enter();
        for page in 0..64 {
            let bytes = scene.map.try_read(&guard, page);
            assert!(bytes.unwrap()[..] == bytes_of(page)[..], "{engine}: {page}");
        }
    }
}

#[test]
fn handles_may_be_dropped_while_reads_are_in_flight() {
    // Symptom of a mistake: a debug assertion of the library, or a hang.
    for (_, builder) in engines() {
        for round in 0..50 {
            let scene = Scene::new(builder.clone(), 64);
            let reads = (0..64).map(|page| Box::pin(scene.map.read_async(page)));
            let mut reads: Vec<_> = reads.collect();
            for read in &mut reads {
                _ = Scene::poll_once(read.as_mut());
            }
            match round % 3 {
                0 => drop((reads, scene)),
                1 => drop((scene, reads)),
                _ => {
                    let Scene { hw, map, _file } = scene;
                    drop((hw, map));
                    let last = thread::spawn(move || drop(reads));
                    last.join().unwrap();
                }
            }
        }
    }
}

#[test]
fn a_read_is_cancelled_by_select() {
    for (_, builder) in engines() {
        let scene = Scene::new(builder, 64);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().build().unwrap().block_on(async {
            for page in 0..32 {
                let (one, other) = (scene.map.read_async(page), scene.map.read_async(63 - page));
                let (mut one, mut other) = (pin!(one), pin!(other));
                // The first that is there wins; the other is dropped in flight.
                let won = poll_fn(|context| {
                    if let Poll::Ready(read) = one.as_mut().poll(context) {
                        return Poll::Ready((page, read));
                    }
                    other.as_mut().poll(context).map(|read| (63 - page, read))
                });
                let (page, read) = won.await;
                Scene::is_right(page, &read);
            }
            let late = tokio::time::timeout(Duration::ZERO, poll_fn(|_| Poll::<()>::Pending));
            assert!(late.await.is_err());
        });
        scene.settle();
    }
}

#[test]
fn a_blocking_read_finds_a_page_that_its_own_thread_has_queued() {
    // A driver hands its reads to the system when it sleeps; here it waits for one before.
    for (_, builder) in engines() {
        let scene = Scene::new(builder, 8);
        scene.hw.block_on(async {
            let mut read = pin!(scene.map.read_async(5));
            let polled = poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_ready()));
            assert!(!polled.await);
            let guard = scene.hw.enter();
            assert!(scene.map.read(&guard, 5).unwrap()[..] == bytes_of(5)[..]);
            Scene::is_right(5, &read.await);
        });
        scene.settle();
    }
}

#[test]
fn threads_and_tasks_wait_for_the_same_page() {
    for (_, builder) in engines() {
        let scene = Scene::new(builder, 256);
        thread::scope(|scope| {
            for thread in 0..4 {
                let scene = &scene;
                scope.spawn(move || match thread % 2 {
                    0 => scene.hw.block_on(read_all(&scene.map, 0..256, 16)),
                    _ => (0..256).for_each(|page| {
                        let guard = scene.hw.enter();
                        let bytes = scene.map.read(&guard, page).unwrap();
                        assert!(bytes[..] == bytes_of(page)[..]);
                    }),
                });
            }
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            runtime.block_on(read_all(&scene.map, 0..256, 16));
        });
        scene.settle();
        assert_eq!(scene.hw.snapshot().counter("pgmajfault"), 256);
    }
}

#[test]
fn more_reads_are_in_flight_than_a_ring_holds() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder.capacity(Bytes::mib(16)), 2048);
        scene.hw.block_on(read_all(&scene.map, 0..2048, 2048));
        assert_eq!(scene.hw.snapshot().counter("async_reads"), 2048, "{engine}");
        scene.settle();
    }
}

#[test]
fn a_window_of_readahead_is_one_read() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder, 256);
        scene.map.set_read_pattern(ReadPattern::Normal);
        scene.hw.block_on(async {
            for page in 0..256 {
                Scene::is_right(page, &scene.map.read_async(page).await);
            }
        });
        scene.settle();
        let snapshot = scene.hw.snapshot();
        assert!(snapshot.counter("pgreadahead") > 200, "{engine}");
        assert!(snapshot.counter("async_reads") < 40, "{engine}: {snapshot}");
        assert!(snapshot.counter("pgmajfault") < 10, "{engine}: {snapshot}");
    }
}

#[test]
fn scattered_pages_are_prefetched_at_once() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder.capacity(Bytes::mib(16)), 1024);
        let pages: Vec<u64> = (0..1024).filter(|page| page % 3 == 0).rev().collect();
        scene.map.prefetch(pages.iter().copied()).unwrap();
        scene.map.prefetch([0, 0, 3]).unwrap();
        let snapshot = scene.hw.snapshot();
        assert_eq!(snapshot.counter("async_reads"), 342, "{engine}");
        if engine == "io_uring" {
            assert_eq!(
                snapshot.counter("async_submits"),
                342_u64.div_ceil(16),
                "{snapshot}"
            );
        }
        for page in &pages {
            let guard = scene.hw.enter();
            assert!(scene.map.read(&guard, *page).unwrap()[..] == bytes_of(*page)[..]);
        }
        scene.settle();
        assert_eq!(scene.hw.snapshot().counter("pgmajfault"), 0, "{engine}");
        assert_eq!(
            scene.hw.root().usage_precise(),
            Bytes(342 * 4096),
            "{engine}"
        );
        assert!(scene.map.prefetch([0, 1024]).is_err());
        // Neighbours are one read.
        scene.map.prefetch([1, 2, 4, 5]).unwrap();
        assert_eq!(scene.hw.snapshot().counter("async_reads"), 344, "{engine}");
        scene.settle();
    }
}

#[test]
fn a_prefetch_takes_no_more_than_there_is() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder, 1024);
        let group = scene
            .hw
            .root()
            .child("small", Limits::max(Bytes(40 * 4096)))
            .unwrap();
        let file = scene.hw.open(scene._file.path()).unwrap();
        let map = scene.hw.space(&group).map_file(&file, 0..1024).unwrap();
        map.prefetch(0..1024_u64).unwrap();
        settle(&scene.hw);
        let usage = group.usage_precise();
        assert!(
            usage >= Bytes(32 * 4096) && usage <= Bytes(40 * 4096),
            "{engine}: {usage}"
        );
    }
}

#[test]
fn nothing_wakes_up_when_nothing_is_in_flight() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder, 64);
        // Outside `block_on`, so that the reaper serves.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(read_all(&scene.map, 0..64, 16));
        scene.settle();
        let wakeups = || scene.hw.snapshot().counter("async_reaper_wakeups");
        let before = wakeups();
        thread::sleep(Duration::from_secs(1));
        assert_eq!(wakeups(), before, "{engine}");
    }
}
