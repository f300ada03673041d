//! A watchdog: every worker records the step that it begins, and the watchdog ends the process with
//! a report when a step does not end.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

/// Longest step. Chosen: a thousand times the longest one on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A worker's current step.
#[derive(Debug)]
struct Doing {
    what: &'static str,
    page: u64,
    steps: u64,
    since: Instant,
    is_done: bool,
}

/// Record of one worker's steps.
#[derive(Debug)]
pub(crate) struct Post(Mutex<Doing>);

impl Post {
    fn new() -> Self {
        Self(Mutex::new(Doing {
            what: "starting",
            page: 0,
            steps: 0,
            since: Instant::now(),
            is_done: false,
        }))
    }

    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.0.lock().expect("no panic under the lock")
    }

    /// Records the start of a step.
    pub(crate) fn begin(&self, what: &'static str, page: u64) {
        let mut doing = self.doing();
        doing.steps += 1;
        (doing.what, doing.page, doing.since) = (what, page, Instant::now());
    }

    /// Records the end of all steps.
    pub(crate) fn end(&self) {
        self.doing().is_done = true;
    }
}

/// The posts of all workers.
#[derive(Debug)]
pub(crate) struct Watchdog {
    posts: Vec<Post>,
    seed: u64,
    patience: Duration,
    is_over: AtomicBool,
}

impl Watchdog {
    pub(crate) fn new(workers: usize, seed: u64, patience: Duration) -> Self {
        Self {
            posts: (0..workers).map(|_| Post::new()).collect(),
            seed,
            patience,
            is_over: AtomicBool::new(false),
        }
    }

    pub(crate) fn post(&self, worker: usize) -> &Post {
        &self.posts[worker]
    }

    /// Returns a report of all workers, if one is stalled.
    pub(crate) fn stalled(&self) -> Option<String> {
        let stands = |post: &Post| {
            let doing = post.doing();
            !doing.is_done && doing.since.elapsed() >= self.patience
        };
        self.posts.iter().any(stands).then(|| self.report())
    }

    fn report(&self) -> String {
        let mut text = format!("stalled, SEED={}\n", self.seed);
        for (nth, post) in self.posts.iter().enumerate() {
            let doing = post.doing();
            let state = if doing.is_done { "done" } else { doing.what };
            let (steps, page, since) = (doing.steps, doing.page, doing.since.elapsed());
            let _ = writeln!(
                text,
                "worker {nth}: step {steps}, {state}, page {page}, for {since:?}"
            );
        }
        for task in fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten()
        {
            let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let (name, waits_in, call) = (read("comm"), read("wchan"), read("syscall"));
            let _ = writeln!(
                text,
                "thread {}: {}",
                name.trim(),
                [waits_in.trim(), call.trim()].join(" ")
            );
        }
        text
    }

    /// Watches until the end; ends the process when a worker is stalled.
    pub(crate) fn watch(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            if let Some(report) = self.stalled() {
                // Not by a macro: their output is shown with a failing test's output, and this one
                // does not end.
                let _ = std::io::stderr().write_all(report.as_bytes());
                process::exit(101);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Lets `watch` end when the result is dropped, also by a panic.
    pub(crate) fn until_dropped(&self) -> impl Drop + '_ {
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        Over(&self.is_over)
    }
}
