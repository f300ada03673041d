//! Promise: storage that itself reads from the cache, or waits for other storage, never waits for
//! a read behind its own, and holds up no task that waits for neither.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

mod support;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use highwater::units::{FilePage, PAGE_BYTES};
use highwater::{Access, Backing, Bytes, Group, Limits, Manager, Mapping, ReadError, ReadPattern};

use support::{TestFile, first_word};

/// Threads that read for tasks.
const THREADS: u8 = 16;

/// Fails a test that does not end in time.
fn within_a_minute(test: impl FnOnce() + Send + 'static) {
    let (sender, done) = mpsc::channel();
    let tested = thread::spawn(move || {
        test();
        sender.send(()).unwrap();
    });
    match done.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it waits for ever"),
        _ => tested.join().unwrap(),
    }
}

type ReadPage = dyn Fn(u64, &mut [u8]) -> io::Result<()> + Send + Sync;

/// Storage whose pages are read by a closure.
struct Layer(Box<ReadPage>);

impl std::fmt::Debug for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Layer")
    }
}

impl Backing for Layer {
    fn len(&self) -> u64 {
        64 * PAGE_BYTES
    }

    fn read_page(&self, FilePage(page): FilePage, into: &mut [u8]) -> io::Result<usize> {
        (self.0)(page, into).map(|()| into.len())
    }

    fn write_page(&self, _: FilePage, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("never written"))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn map_of(hw: &Manager, group: &Group, backing: Arc<dyn Backing>) -> Mapping {
    let file = hw.open_backing(backing, Access::ReadOnly).unwrap();
    let map = hw.space(group).map_file(&file, 0..file.pages()).unwrap();
    map.set_read_pattern(ReadPattern::Random);
    map
}

fn layered(
    hw: &Manager,
    read: impl Fn(u64, &mut [u8]) -> io::Result<()> + Send + Sync + 'static,
) -> Mapping {
    map_of(hw, &hw.root(), Arc::new(Layer(Box::new(read))))
}

/// Runs a future without the manager's help.
fn run<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Polls until all are done.
async fn all<F: Future + Unpin>(mut futures: Vec<F>) {
    poll_fn(|context| {
        futures.retain_mut(|future| std::pin::Pin::new(future).poll(context).is_pending());
        match futures.is_empty() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

// Goal: a thread that runs a future in the midst of a read does not take up reads which wait for
// its own. Method: all threads run futures that end late, in reads of the lower file; reads of the
// upper one, which need the same pages, are queued behind them.
#[test]
fn a_read_that_runs_a_future_takes_up_no_other() {
    within_a_minute(|| {
        let hw = Manager::builder().build().unwrap();
        let (inner, began) = (hw.clone(), Arc::new(Barrier::new(usize::from(THREADS) + 1)));
        let inside = Arc::clone(&began);
        let lower = layered(&hw, move |page, into| {
            inside.wait();
            let mut looks = 0;
            inner.block_on(poll_fn(|context| {
                looks += 1;
                context.waker().wake_by_ref();
                match looks > 100 {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }));
            into[..8].copy_from_slice(&page.to_ne_bytes());
            Ok(())
        });
        let below = lower.clone();
        let upper = layered(&hw, move |page, into| {
            let pinned = below.pin(page).map_err(io::Error::other)?;
            into.copy_from_slice(&pinned);
            Ok(())
        });
        let mut reads: Vec<_> = (0..u64::from(THREADS))
            .map(|page| Box::pin(lower.read_async(page)))
            .collect();
        let mut context = Context::from_waker(Waker::noop());
        for read in &mut reads {
            assert!(read.as_mut().poll(&mut context).is_pending());
        }
        reads.extend((0..u64::from(THREADS)).map(|page| Box::pin(upper.read_async(page))));
        for read in &mut reads[usize::from(THREADS)..] {
            assert!(read.as_mut().poll(&mut context).is_pending());
        }
        began.wait();
        hw.block_on(all(reads));
        for page in 0..u64::from(THREADS) {
            assert_eq!(first_word(&upper.pin(page).unwrap()), page);
        }
    });
}

// Goal: a page whose read is queued behind busy threads is read although those that wait for it
// looked before. Method: all threads wait for a page, in reads of the upper file, while a blocking
// read holds it as filling; that read fails, and a task launches it anew.
#[test]
fn a_read_that_is_queued_late_wakes_those_that_wait_for_it() {
    within_a_minute(|| {
        let hw = Manager::builder().build().unwrap();
        let (door, nr_reads) = (Arc::new(Door::default()), Arc::new(AtomicU64::new(0)));
        let (inside, count) = (Arc::clone(&door), Arc::clone(&nr_reads));
        let lower = layered(&hw, move |_, _| {
            match count.fetch_add(1, Ordering::Relaxed) {
                0 => {
                    inside.pass();
                    Err(io::Error::other("the first fails"))
                }
                _ => Ok(()),
            }
        });
        let (below, all_in) = (
            lower.clone(),
            Arc::new(Barrier::new(usize::from(THREADS) + 1)),
        );
        let waits = Arc::clone(&all_in);
        let upper = layered(&hw, move |_, _| {
            waits.wait();
            run(below.read_async(0)).map_err(io::Error::other)?;
            Ok(())
        });
        let reads: Vec<_> = (0..u64::from(THREADS))
            .map(|page| Box::pin(upper.read_async(page)))
            .collect();
        thread::scope(|scope| {
            let blocking = scope.spawn(|| lower.pin(0).is_err());
            while nr_reads.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            let driven = scope.spawn(|| hw.block_on(all(reads)));
            all_in.wait();
            thread::sleep(Duration::from_millis(20));
            door.open();
            assert!(blocking.join().unwrap(), "the first fails");
            driven.join().unwrap();
        });
    });
}

// Symptom: reads of the lower file were queued behind those of the upper one, which waited for
// them. Method: as many reads of the upper file as there are threads meet in its storage; each
// then has its page of the lower file read in by one of four ways, and waits for it.
#[test]
fn reads_of_tasks_do_not_wait_behind_those_that_wait_for_them() {
    let ways: [fn(&Manager, &Mapping, u64); 4] = [
        |_, lower, page| {
            lower.prefetch([page]).unwrap();
            assert_eq!(first_word(&lower.pin(page).unwrap()), page);
        },
        |hw, lower, page| {
            let pinned = hw.block_on(lower.read_async(page)).unwrap();
            assert_eq!(first_word(&pinned), page);
        },
        |_, lower, page| {
            assert_eq!(first_word(&run(lower.read_async(page)).unwrap()), page);
        },
        |_, lower, page| {
            let mut dropped = Box::pin(lower.read_async(page));
            let _ = dropped
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            drop(dropped);
            assert_eq!(first_word(&lower.pin(page).unwrap()), page);
        },
    ];
    for way in ways {
        within_a_minute(move || {
            let hw = Manager::builder().build().unwrap();
            let lower = map_of(&hw, &hw.root(), TestFile::new(64));
            let (inner, met) = (hw.clone(), Barrier::new(usize::from(THREADS)));
            let upper = layered(&hw, move |page, into| {
                met.wait();
                way(&inner, &lower, page);
                into[..8].copy_from_slice(&page.to_ne_bytes());
                Ok(())
            });
            let reads = (0..u64::from(THREADS)).map(|page| Box::pin(upper.read_async(page)));
            hw.block_on(all(reads.collect()));
            for page in 0..u64::from(THREADS) {
                assert_eq!(first_word(&upper.pin(page).unwrap()), page);
            }
        });
    }
}

/// Storage that answers once it is open.
#[derive(Debug, Default)]
struct Door {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Door {
    fn pass(&self) {
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap();
        }
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

// Symptom: a task whose group was full waited for reads of other groups, which could give it
// nothing: for as long as their storage did not answer, or, polled again and again, for 10,000
// looks while a task had not taken its page.
#[test]
fn a_task_without_memory_does_not_wait_for_other_groups() {
    within_a_minute(|| {
        let hw = Manager::builder().build().unwrap();
        let full = hw
            .root()
            .child("full", Limits::max(Bytes::kib(64)))
            .unwrap();
        let _all = full.try_charge(Bytes::kib(64)).unwrap();
        let map = map_of(&hw, &full, TestFile::new(8));
        let door = Arc::new(Door::default());
        let inside = Arc::clone(&door);
        let other = layered(&hw, move |page, _| {
            if page == 0 {
                inside.pass();
            }
            Ok(())
        });
        other.prefetch([0]).unwrap();
        let refused = hw.block_on(map.read_async(3));
        assert!(matches!(refused, Err(ReadError::NoMemory { .. })));
        // A page that has landed and that no task takes.
        let mut untaken = pin!(other.read_async(1));
        let polled = untaken
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        while hw.snapshot().counter("nr_async_reads") > 1 {
            thread::yield_now();
        }
        let (nr_polls, mut read) = (AtomicU64::new(0), pin!(map.read_async(3)));
        let refused = hw.block_on(poll_fn(|context| {
            nr_polls.fetch_add(1, Ordering::Relaxed);
            read.as_mut().poll(context)
        }));
        assert!(matches!(refused, Err(ReadError::NoMemory { .. })));
        assert!(nr_polls.into_inner() < 100);
        door.open();
    });
}
