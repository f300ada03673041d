//! Threads that read: for storage without a descriptor, for systems without io_uring, and for reads
//! that io_uring gave back.
//!
//! A thread is started when a read finds no idle one, up to [`THREADS_MAX`]; idle threads sleep
//! until the manager ends. If none can be started, the thread that wants the page reads it.
//!
//! # Storage that itself reads from the cache
//!
//! All threads may be in such storage, which waits for pages whose reads are queued behind them. So
//! a thread that waits for a page takes its read out of the queue ([`Core::fly_queued`]), and so
//! does one that polls a future for the page while it is [in a read](crate::manager::fill::InRead).
//! A read that is queued behind busy threads wakes those that wait for its pages. And a thread that
//! is in a read queues none behind the others.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cache::{FileEntry, FileId, Filling, PageKey};
use crate::manager::Core;
use crate::manager::error::ReadError;
use crate::manager::fill::{MOVE_PAUSE, MOVES_MAX, read_run};
use crate::manager::flight::Flight;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, LockClass, Mutex, MutexGuard, Rank, StatCell};

static THREADS_LOCK: LockClass = LockClass::new("io_threads", Rank::Leaf);

/// Most threads of a manager. Chosen: a device's speed hardly grows beyond this depth, and a thread
/// costs the system about 20 KiB.
pub(super) const THREADS_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct ReadThreads {
    state: Mutex<ReadQueue>,
    woken: Condvar,
    nr_refused: StatCell,
}

#[derive(Debug, Default)]
struct ReadQueue {
    queue: VecDeque<Flight>,
    threads: Vec<JoinHandle<()>>,
    /// Threads that are in a read.
    nr_busy: usize,
    is_ending: bool,
}

impl ReadQueue {
    /// Returns the number of reads that find a thread at once: idle, or about to be.
    fn nr_free(&self) -> usize {
        debug_assert!(self.nr_busy <= self.threads.len(), "{self:?}");
        self.threads.len() - self.nr_busy
    }
}

impl ReadThreads {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(&THREADS_LOCK, ReadQueue::default()),
            woken: Condvar::new(),
            nr_refused: StatCell::new(),
        }
    }

    /// Returns the number of threads.
    pub(super) fn nr_threads(&self) -> usize {
        self.state.lock().threads.len()
    }

    /// Queues a read; returns its pages if all threads are busy, and the read if there is none.
    pub(super) fn read(&self, core: &Core, flight: Flight) -> Result<Vec<PageKey>, Flight> {
        let mut state = self.state.lock();
        let is_free = self.is_any_free(&mut state, core);
        if state.threads.is_empty() {
            return Err(flight);
        }
        let left = flight.cargo.filling.iter().filter(|_| !is_free);
        let left = left.map(Filling::key).collect();
        self.queue(state, flight);
        Ok(left)
    }

    /// As [`read`](Self::read), but returns the read also if all threads are busy.
    pub(super) fn read_if_free(&self, core: &Core, flight: Flight) -> Result<(), Flight> {
        let mut state = self.state.lock();
        if !self.is_any_free(&mut state, core) {
            return Err(flight);
        }
        self.queue(state, flight);
        Ok(())
    }

    fn queue(&self, mut state: MutexGuard<'_, ReadQueue>, flight: Flight) {
        state.queue.push_back(flight);
        drop(state);
        self.woken.notify_one();
    }

    /// Returns whether a thread has nothing to read; starts one if need be.
    fn is_any_free(&self, state: &mut ReadQueue, core: &Core) -> bool {
        debug_assert!(!state.is_ending, "files are closed before the threads end");
        if state.queue.len() >= state.nr_free() && state.threads.len() < THREADS_MAX {
            let started = self.start(core);
            state.threads.extend(started);
        }
        // Looked at again: where a thread could not be started before, older reads are left for the
        // one that was.
        state.queue.len() < state.nr_free()
    }

    /// Takes a read of a file that no thread has begun.
    pub(super) fn take(&self, file: FileId) -> Option<Flight> {
        let is_of = |flight: &Flight| flight.source.file().id() == file;
        Self::take_if(self.state.lock(), is_of)
    }

    /// Takes a wanted read that no thread has begun, nor is about to begin.
    pub(super) fn take_left(&self, is_wanted: impl Fn(&Flight) -> bool) -> Option<Flight> {
        let state = self.state.lock();
        let is_left = state.queue.len() > state.nr_free();
        is_left.then(|| Self::take_if(state, is_wanted)).flatten()
    }

    fn take_if(
        mut state: MutexGuard<'_, ReadQueue>,
        is_wanted: impl Fn(&Flight) -> bool,
    ) -> Option<Flight> {
        let at = state.queue.iter().position(is_wanted)?;
        state.queue.remove(at)
    }

    fn start(&self, core: &Core) -> Option<JoinHandle<()>> {
        let works_on = core.io.core()?;
        let builder = thread::Builder::new().name("highwater-io".into());
        let started = builder.spawn(move || works_on.io.threads.run(&works_on));
        started
            .inspect_err(|error| {
                if let Some(times) = self.nr_refused.recur() {
                    tracing::warn!(%error, times, "no thread for asynchronous reads");
                }
            })
            .ok()
    }

    fn run(&self, core: &Core) {
        while let Some(flight) = self.next() {
            core.fly(flight);
            self.state.lock().nr_busy -= 1;
        }
    }

    /// Waits for a read; `None` at the end.
    fn next(&self) -> Option<Flight> {
        let mut state = self.state.lock();
        loop {
            if let Some(flight) = state.queue.pop_front() {
                state.nr_busy += 1;
                return Some(flight);
            }
            if state.is_ending {
                return None;
            }
            self.woken.wait(&mut state);
        }
    }

    /// Ends the threads.
    pub(super) fn end(&self) {
        let threads = {
            let mut state = self.state.lock();
            debug_assert!(
                state.queue.is_empty(),
                "files are closed before the threads end"
            );
            state.is_ending = true;
            std::mem::take(&mut state.threads)
        };
        self.woken.notify_all();
        for thread in threads {
            // The manager's last handle may be dropped by a waker that this thread calls.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Core {
    /// Reads the pages of a flight on this thread, and lands it.
    pub(super) fn fly(&self, flight: Flight) {
        let Flight {
            source,
            mut cargo,
            wanted,
        } = flight;
        // This thread's meanwhile: storage that itself reads from the cache must not wait for them.
        let way = self.reclaim.attach(cargo.way);
        let read = self.read_flight(source.file(), &mut cargo.filling);
        cargo.way = way.detach();
        let flight = Flight {
            source,
            cargo,
            wanted,
        };
        drop(self.land(flight, read));
    }

    /// Reads the flight of a page, if it is queued and all threads are busy; returns whether.
    pub(in crate::manager) fn fly_queued(&self, key: PageKey) -> bool {
        let is_in = |flight: &Flight| {
            let mut pages = flight.cargo.filling.iter();
            flight.source.file().id() == key.file() && pages.any(|it| it.page() == key.page())
        };
        let queued = self.io.threads.take_left(is_in);
        queued.map(|flight| self.fly(flight)).is_some()
    }

    /// Reads the pages of a flight, again if the file's end has moved meanwhile.
    fn read_flight(&self, file: &FileEntry, filling: &mut [Filling]) -> Result<usize, ReadError> {
        let first = filling[0].page();
        let mut nr_moves = 0;
        loop {
            let version = file.size_version();
            let read = catch_unwind(AssertUnwindSafe(|| read_run(&self.cache, file, filling)));
            let Ok(read) = read else {
                return Err(ReadError::Io {
                    page: first,
                    source: std::io::Error::other("the storage panicked"),
                });
            };
            if read.is_ok() || !file.is_resized_since(version) || nr_moves == MOVES_MAX {
                return read;
            }
            nr_moves += 1;
            // Not until the resize ends: it may wait for these pages.
            thread::sleep(MOVE_PAUSE);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;
    use std::time::Duration;

    use super::*;
    use crate::cache::{Access, Backing};
    use crate::manager::Manager;
    use crate::sync::Arc;
    use crate::sync::atomic::{AtomicBool, Ordering};
    use crate::units::{FilePage, PAGE_BYTES};

    /// Storage of zeros whose reads wait until they may end.
    #[derive(Debug)]
    struct HeldUpReads(Arc<AtomicBool>);

    impl Backing for HeldUpReads {
        fn len(&self) -> u64 {
            64 * PAGE_BYTES
        }
        fn read_page(&self, _: FilePage, buf: &mut [u8]) -> io::Result<usize> {
            while !self.0.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            buf.fill(0);
            Ok(buf.len())
        }
        fn write_page(&self, _: FilePage, buf: &[u8]) -> io::Result<usize> {
            Ok(buf.len())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_new_thread_is_not_free_beside_an_older_read() {
        // Symptom: a thread in a read queued another behind busy threads, and waited for it.
        // Method: all threads are busy, and a read is left in the queue. One of them is left out of
        // the account, as if it had not started, so that another is started.
        let may_end = Arc::new(AtomicBool::new(false));
        let hw = Manager::builder().build().unwrap();
        let storage = Arc::new(HeldUpReads(Arc::clone(&may_end)));
        let file = hw.open_backing(storage, Access::ReadOnly).unwrap();
        let map = hw.space(&hw.root()).map_file(&file, 0..64).unwrap();
        let threads = &hw.core().io.threads;
        // Pages that are not neighbours are read one by one.
        for nth in 0..=THREADS_MAX as u64 {
            map.prefetch([nth * 2]).unwrap();
        }
        let mut state = threads.state.lock();
        while state.nr_busy < THREADS_MAX {
            drop(state);
            thread::yield_now();
            state = threads.state.lock();
        }
        assert_eq!(state.queue.len(), 1);
        let left_out = state.threads.pop();
        state.nr_busy -= 1;
        let is_free = threads.is_any_free(&mut state, hw.core());
        assert_eq!(state.threads.len(), THREADS_MAX, "a thread was started");
        state.threads.extend(left_out);
        state.nr_busy += 1;
        drop(state);
        may_end.store(true, Ordering::Relaxed);
        assert!(!is_free, "the older read takes the new thread");
    }
}
