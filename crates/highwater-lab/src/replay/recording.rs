//! Recording a replay whose manager has no background threads.
//!
//! A thread beside the replay's one records by the clock. It flushes statistics first, which a
//! record does not, so that refaults are those of each moment. It reads, and reclaims nothing, so a
//! run that is recorded has the results of one that is not.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use highwater::Manager;
use highwater::group::Tolerance;

/// Time between ticks. Chosen: as the library's own thread.
const PERIOD: Duration = Duration::from_millis(100);

/// The thread; ends when this is dropped.
#[derive(Debug)]
pub(super) struct Ticker {
    /// Dropped to end the thread.
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(super) fn start(manager: &Manager) -> io::Result<Self> {
        let manager = manager.clone();
        let (ends, ended) = mpsc::channel();
        let builder = thread::Builder::new().name("recorder".into());
        let tick = move || {
            // Read for the flush alone.
            let _ = manager.root().stats(Tolerance::EXACT);
            manager.record_tick();
        };
        let thread = builder.spawn(move || {
            tick();
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                tick();
            }
        })?;
        Ok(Self {
            ends: Some(ends),
            thread: Some(thread),
        })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked, which it has reported.
            let _ = thread.join();
        }
    }
}
