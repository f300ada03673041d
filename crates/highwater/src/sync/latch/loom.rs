//! Loom models of latches: mutual exclusion, waiting, and optimistic reads beside writers and the
//! next page behind the same latch.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use ::loom::{model, thread};

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::block::block_on;
use crate::sync::{
    Arc, Latch, LatchMode, LatchQueues, LatchWait, LatchedData, LockClass, Rank, Untaken,
};

static CLASS: LockClass = LockClass::new("latch", Rank::Latch);

/// A latch, its queue, and a page of two words under a key. Relaxed throughout: the latch has to
/// order them.
struct Scene {
    latch: Latch,
    queues: LatchQueues,
    key: AtomicU64,
    words: [AtomicU64; 2],
}

impl Scene {
    fn new() -> Arc<Self> {
        let scene = Self {
            latch: Latch::default(),
            queues: LatchQueues::new(),
            key: AtomicU64::new(1),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        scene.latch.put();
        Arc::new(scene)
    }

    fn load(&self) -> [u64; 2] {
        [0, 1].map(|at: usize| self.words[at].load(Ordering::Relaxed))
    }

    fn store(&self, value: u64) {
        for word in &self.words {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Waits for the latch; false if the page of `key` is not behind it.
    fn take(&self, key: u64, mode: LatchMode) -> bool {
        let is_wanted = || self.key.load(Ordering::Relaxed) == key;
        LatchWait::new((&self.latch, &self.queues), 0, mode, is_wanted).block(&CLASS)
    }

    fn release(&self, mode: LatchMode, data: LatchedData) {
        match mode {
            LatchMode::Shared => self.latch.release_shared(&self.queues, 0),
            LatchMode::Exclusive => self.latch.release_exclusive(data, &self.queues, 0),
        }
    }

    /// Adds one to both words, which are the same.
    fn add(&self) {
        assert!(self.take(1, LatchMode::Exclusive));
        let [one, other] = self.load();
        assert_eq!(one, other);
        self.store(one + 1);
        self.release(LatchMode::Exclusive, LatchedData::Changed);
    }

    /// Evicts the page, and reads the page of key 2 into the same frame.
    fn replace(&self) -> bool {
        if self.latch.try_exclusive_to_retire().is_err() {
            return false;
        }
        if !self.latch.retire() {
            self.release(LatchMode::Exclusive, LatchedData::Unchanged);
            return false;
        }
        // Release, as in `FrameMemory::bytes_mut` for the next owner. Pairs with: the fence of
        // `is_unchanged`.
        fence(Ordering::Release);
        self.store(100);
        self.key.store(2, Ordering::Relaxed);
        self.latch.put();
        true
    }

    /// Returns the words of the page of key 1, if an optimistic read of them is valid.
    fn glimpse(&self) -> Option<[u64; 2]> {
        let seen = self.latch.see()?;
        let key = self.key.load(Ordering::Relaxed);
        let words = self.load();
        (self.latch.is_unchanged(seen) && key == 1).then_some(words)
    }
}

#[test]
fn writers_exclude_each_other_and_all_get_their_turn() {
    model(|| {
        let scene = Scene::new();
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || other.add());
        scene.add();
        other.join().unwrap();
        assert_eq!(scene.load(), [2, 2]);
        assert!(scene.latch.try_exclusive_to_retire().is_ok());
    });
}

#[test]
fn a_reader_that_waits_is_woken_and_sees_what_was_written() {
    model(|| {
        let scene = Scene::new();
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || other.add());
        assert!(scene.take(1, LatchMode::Shared));
        let [one, two] = scene.load();
        assert_eq!(one, two);
        scene.release(LatchMode::Shared, LatchedData::Unchanged);
        other.join().unwrap();
        assert!(scene.latch.try_exclusive_to_retire().is_ok());
    });
}

#[test]
fn an_optimistic_read_is_of_one_moment() {
    // Goal: a valid read is not torn. Method: a writer changes two words that must agree.
    model(|| {
        let scene = Scene::new();
        let writer = Arc::clone(&scene);
        let writer = thread::spawn(move || {
            writer.add();
            writer.add();
        });
        if let Some([one, other]) = scene.glimpse() {
            assert_eq!(one, other);
        }
        writer.join().unwrap();
        assert_eq!(scene.glimpse(), Some([2, 2]));
    });
}

#[test]
fn an_optimistic_read_is_never_of_the_next_page() {
    // Goal: a valid read is of the page that was asked for, whole. Method: beside it the page is
    // written, evicted, and another read into its frame.
    model(|| {
        let scene = Scene::new();
        let writer = Arc::clone(&scene);
        let reclaimer = Arc::clone(&scene);
        let writer = thread::spawn(move || {
            if writer.latch.try_exclusive().is_ok() {
                if writer.key.load(Ordering::Relaxed) == 1 {
                    writer.store(1);
                }
                writer.release(LatchMode::Exclusive, LatchedData::Changed);
            }
        });
        let reclaimer = thread::spawn(move || reclaimer.replace());
        if let Some(words) = scene.glimpse() {
            assert!(words == [0, 0] || words == [1, 1], "{words:?}");
        }
        writer.join().unwrap();
        reclaimer.join().unwrap();
    });
}

#[test]
fn a_page_that_is_waited_for_stays_and_one_that_left_is_not_latched() {
    // Goal: a thread that waits gets the page that it waits for, or learns that it has left;
    // reclaim does not wait. Method: a holder, a thread that waits, reclaim.
    model(|| {
        let scene = Scene::new();
        assert!(scene.latch.try_shared().is_ok());
        let waiting = Arc::clone(&scene);
        let waiting = thread::spawn(move || {
            let has = waiting.take(1, LatchMode::Exclusive);
            if has {
                assert_eq!(waiting.load(), [0, 0]);
                waiting.release(LatchMode::Exclusive, LatchedData::Unchanged);
            }
            has
        });
        scene.release(LatchMode::Shared, LatchedData::Unchanged);
        let is_replaced = scene.replace();
        let has = waiting.join().unwrap();
        assert!(has || is_replaced);
    });
}

#[test]
fn one_of_two_readers_upgrades_at_most() {
    model(|| {
        let scene = Scene::new();
        let upgrade = |scene: &Scene| {
            if scene.latch.try_shared().is_err() {
                return 0;
            }
            let seen = scene.load();
            let mode = match scene.latch.try_upgrade() {
                true => LatchMode::Exclusive,
                false => LatchMode::Shared,
            };
            // No thread wrote in between.
            assert_eq!(scene.load(), seen);
            let writes = mode == LatchMode::Exclusive;
            if writes {
                scene.store(seen[0] + 1);
            }
            let data = match writes {
                true => LatchedData::Changed,
                false => LatchedData::Unchanged,
            };
            scene.release(mode, data);
            u64::from(writes)
        };
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || upgrade(&other));
        let sum = upgrade(&scene) + other.join().unwrap();
        assert_eq!(scene.load(), [sum, sum]);
    });
}

#[test]
fn a_waiter_that_gives_up_wakes_the_next() {
    // Goal: no wake-up is lost with a future that is dropped. Method: a future is polled and
    // dropped beside the holder's release, with a thread behind it in the queue.
    model(|| {
        let scene = Scene::new();
        assert!(scene.latch.try_exclusive().is_ok());
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            assert!(other.take(1, LatchMode::Shared));
            other.release(LatchMode::Shared, LatchedData::Unchanged);
        });
        let holder = Arc::clone(&scene);
        let holder =
            thread::spawn(move || holder.release(LatchMode::Exclusive, LatchedData::Changed));
        {
            let queues = (&scene.latch, &scene.queues);
            let mut wait = pin!(LatchWait::new(queues, 0, LatchMode::Exclusive, || true));
            let mut context = Context::from_waker(Waker::noop());
            if wait.as_mut().poll(&mut context).is_ready() {
                scene.release(LatchMode::Exclusive, LatchedData::Unchanged);
            }
        }
        holder.join().unwrap();
        other.join().unwrap();
        assert_eq!(scene.latch.try_exclusive(), Ok(()));
        assert_eq!(scene.latch.try_shared(), Err(Untaken::Held));
    });
}

/// Takes the latch as a task does that suspends its wait between polls.
fn take_by_task(scene: &Scene, mode: LatchMode) -> bool {
    let mut ticket = None;
    let polled = poll_fn(|context| {
        let queues = (&scene.latch, &scene.queues);
        let mut wait = LatchWait::new(queues, 0, mode, || true).resumed(ticket);
        let polled = Pin::new(&mut wait).poll(context);
        ticket = wait.suspend();
        polled
    });
    block_on(polled, None).unwrap()
}

#[test]
fn a_wait_goes_on_after_it_was_suspended() {
    // Goal: a suspended wait keeps its place, and is woken. Method: a task and a thread wait for
    // the same latch beside the holder's release.
    model(|| {
        let scene = Scene::new();
        assert!(scene.latch.try_exclusive().is_ok());
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            assert!(other.take(1, LatchMode::Exclusive));
            other.release(LatchMode::Exclusive, LatchedData::Unchanged);
        });
        let task = Arc::clone(&scene);
        let task = thread::spawn(move || {
            assert!(take_by_task(&task, LatchMode::Exclusive));
            task.release(LatchMode::Exclusive, LatchedData::Changed);
        });
        scene.release(LatchMode::Exclusive, LatchedData::Unchanged);
        other.join().unwrap();
        task.join().unwrap();
        assert_eq!(scene.latch.try_exclusive(), Ok(()));
    });
}

#[test]
fn a_suspended_wait_that_is_left_wakes_the_next() {
    // Goal: as `a_waiter_that_gives_up_wakes_the_next`, for a task that is dropped while its wait
    // is suspended.
    model(|| {
        let scene = Scene::new();
        assert!(scene.latch.try_exclusive().is_ok());
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            assert!(take_by_task(&other, LatchMode::Shared));
            other.release(LatchMode::Shared, LatchedData::Unchanged);
        });
        let holder = Arc::clone(&scene);
        let holder =
            thread::spawn(move || holder.release(LatchMode::Exclusive, LatchedData::Changed));
        let queues = (&scene.latch, &scene.queues);
        let mut wait = LatchWait::new(queues, 0, LatchMode::Exclusive, || true);
        let mut context = Context::from_waker(Waker::noop());
        if Pin::new(&mut wait).poll(&mut context).is_ready() {
            scene.release(LatchMode::Exclusive, LatchedData::Unchanged);
        }
        let ticket = wait.suspend();
        LatchWait::new(queues, 0, LatchMode::Exclusive, || true)
            .resumed(ticket)
            .leave();
        holder.join().unwrap();
        other.join().unwrap();
        assert_eq!(scene.latch.try_exclusive(), Ok(()));
        assert_eq!(scene.latch.try_shared(), Err(Untaken::Held));
    });
}
