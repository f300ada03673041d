//! Promise: a thread that loses its CPU in the middle of a fault or of a reclaim pass delays other
//! threads, but causes no refusal.
//!
//! A busy machine takes threads off their CPUs for tens of milliseconds. A signal whose handler
//! sleeps does the same at any instruction, on a machine with nothing else to do.

#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]
#![expect(unsafe_code, reason = "sends signals to threads, and handles them")]

mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use highwater::{Access, CapacityError, Limits, OutOfMemory, Pages, ReadError};
use support::{TestFile, assert_empty, first_word, manager};

#[path = "../src/seed.rs"]
mod seed;

/// Sleep time of the handler: drawn by the thread that sends signals, as a handler must not draw.
static SLEEP_MS: AtomicU64 = AtomicU64::new(0);

/// Takes the thread off its CPU for a while. Async-signal-safe: a load and a system call.
extern "C" fn sleep_in_handler(_: libc::c_int) {
    let ms = SLEEP_MS.load(Ordering::Relaxed).cast_signed();
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: ms * 1_000_000,
    };
    // SAFETY: `time` lives for the call, and no remaining time is asked for.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

/// A signal that does not queue: a thread that sleeps in the handler gets at most one more.
const SIGNAL: libc::c_int = libc::SIGUSR1;

fn install_handler() {
    // SAFETY: an action of zeros is valid: no flags, and a mask of no signals.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = sleep_in_handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler is async-signal-safe, and the former action is not asked for.
    let installed = unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) };
    assert_eq!(installed, 0);
}

/// Threads that are suspended at random moments while they work.
struct Torment {
    /// Without ended ones: their ids must not be used any more.
    threads: Mutex<Vec<libc::pthread_t>>,
    nr_sent: AtomicU64,
    /// Pages that threads have read meanwhile.
    nr_read: AtomicU64,
    begun: Instant,
}

impl Torment {
    fn new() -> Self {
        install_handler();
        Self {
            threads: Mutex::new(Vec::new()),
            nr_sent: AtomicU64::new(0),
            nr_read: AtomicU64::new(0),
            begun: Instant::now(),
        }
    }

    /// Returns whether enough has happened: within 3 seconds on most machines, later on an emulated
    /// one.
    fn is_over(&self) -> bool {
        let time = self.begun.elapsed();
        let is_enough =
            self.nr_sent.load(Ordering::Relaxed) > 20 && self.nr_read.load(Ordering::Relaxed) > 100;
        time > Duration::from_secs(if is_enough { 3 } else { 120 })
    }

    /// Asserts that enough has happened.
    fn assert_enough(&self) {
        let (sent, read) = (&self.nr_sent, &self.nr_read);
        assert!(
            sent.load(Ordering::Relaxed) > 20 && read.load(Ordering::Relaxed) > 100,
            "{sent:?} signals, {read:?} pages"
        );
    }

    /// Runs `work` on this thread, which is suspended meanwhile.
    fn around(&self, work: impl FnOnce()) {
        // SAFETY: has no requirements.
        let me = unsafe { libc::pthread_self() };
        self.threads.lock().unwrap().push(me);
        work();
        self.threads.lock().unwrap().retain(|thread| *thread != me);
    }

    /// Suspends each thread some 30 times a second until it is over.
    fn run(&self, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        while !self.is_over() {
            SLEEP_MS.store(rng.u64(12..=30), Ordering::Relaxed);
            let threads = self.threads.lock().unwrap();
            if let Some(&thread) = (!threads.is_empty())
                .then(|| rng.choice(&*threads))
                .flatten()
            {
                // SAFETY: the thread lives: it takes itself out under the lock before it ends.
                unsafe { libc::pthread_kill(thread, SIGNAL) };
                self.nr_sent.fetch_add(1, Ordering::Relaxed);
            }
            // A thread that is suspended as soon as it resumes makes no progress.
            let pause = rng.u64(16_000..40_000) / threads.len().max(1) as u64;
            drop(threads);
            thread::sleep(Duration::from_micros(pause));
        }
    }
}

/// Returns whether an error reports a group full of pages that no thread held.
fn is_spurious(error: &ReadError) -> bool {
    match error {
        ReadError::NoMemory {
            source: OutOfMemory::Charge(failed),
            ..
        } => failed.borrowed == 0,
        _ => true,
    }
}

// Goal: no refusal while the group's pages are only in transit, wherever the threads that bring
// them lose their CPUs. Method: four threads fault in a group of one page, and are suspended for 12
// to 30 ms at random moments: longer than the 8 ms that a request waits without progress. One that
// is suspended while it reads the page holds it for as long: that is a refusal, and the error says
// so.
#[test]
fn faults_in_a_tiny_group_wait_for_threads_that_lost_their_cpus() {
    let seed = seed::seed(1);
    let hw = manager(256);
    let file = hw
        .open_backing(TestFile::new(64), Access::ReadOnly)
        .unwrap();
    let tiny = hw
        .root()
        .child("tiny", Limits::max(Pages(1).bytes()))
        .unwrap();
    let torment = Torment::new();
    thread::scope(|scope| {
        scope.spawn(|| torment.run(seed));
        for nth in 0..4 {
            let (hw, file, tiny, torment) = (&hw, &file, &tiny, &torment);
            scope.spawn(move || {
                let map = hw.space(tiny).map_file(file, 0..64).unwrap();
                let pages = (0..64).cycle().skip(16 * nth);
                torment.around(|| {
                    for page in pages.take_while(|_| !torment.is_over()) {
                        match map.read(&hw.enter(), page) {
                            Ok(bytes) => assert_eq!(first_word(bytes), page),
                            Err(error) => assert!(!is_spurious(&error), "{error}"),
                        }
                        torment.nr_read.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
    });
    torment.assert_enough();
    assert!(tiny.usage_precise() <= Pages(1).bytes());
    assert_empty(&hw);
}

// Goal: no fault is refused a frame that a trim has taken out for a moment. Method: two threads
// fault in a small pool, while a third one trims it and changes its capacity, and is suspended for
// 12 to 30 ms at random moments.
#[test]
fn faults_wait_for_a_trim_that_lost_its_cpu() {
    let seed = seed::seed(2);
    let hw = manager(64);
    let file = hw
        .open_backing(TestFile::new(256), Access::ReadOnly)
        .unwrap();
    let torment = Torment::new();
    thread::scope(|scope| {
        scope.spawn(|| torment.run(seed));
        scope.spawn(|| {
            torment.around(|| {
                for pages in (40..=64).cycle().take_while(|_| !torment.is_over()) {
                    // Pages that are pinned at the moment may exceed it.
                    let set = hw.set_capacity(Pages(pages).bytes());
                    assert!(!matches!(set, Err(CapacityError::Range { .. })), "{set:?}");
                    hw.trim();
                }
            });
        });
        for nth in 0..2 {
            let (hw, file, torment) = (&hw, &file, &torment);
            scope.spawn(move || {
                let map = hw.space(&hw.root()).map_file(file, 0..256).unwrap();
                let pages = (0..256).cycle().skip(128 * nth);
                for page in pages.take_while(|_| !torment.is_over()) {
                    let guard = hw.enter();
                    assert_eq!(first_word(map.read(&guard, page).unwrap()), page);
                    torment.nr_read.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    torment.assert_enough();
    assert_empty(&hw);
}
