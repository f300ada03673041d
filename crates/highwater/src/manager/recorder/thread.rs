//! The thread that records. Apart from the reclaim thread: a slow disk must not delay reclaim.

use std::io;

use super::Recorder;
use super::gather::TICK_PERIOD;
use crate::manager::Core;
use crate::manager::background::Background;
use crate::manager::handler::survive;
use crate::sync::Arc;
use crate::sync::thread::{self, JoinHandle};

/// The thread, if there is one; the recording ends with it.
#[derive(Debug)]
pub(in crate::manager) struct RecorderThread {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl RecorderThread {
    pub(in crate::manager) fn start(background: Background, core: &Arc<Core>) -> io::Result<Self> {
        let core = Arc::clone(core);
        let thread = match (background, &core.recorder) {
            (Background::Thread, Some(recorder)) => {
                // Before the thread can end and clear it.
                let mut notes = recorder.notes.lock();
                debug_assert!(!notes.has_thread, "a recording has one thread");
                notes.has_thread = true;
                drop(notes);
                let works_on = Arc::clone(&core);
                let builder = thread::Builder::new().name("highwater-recorder".into());
                Some(builder.spawn(move || works_on.record_for_ever())?)
            }
            _ => None,
        };
        Ok(Self { core, thread })
    }
}

impl Drop for RecorderThread {
    fn drop(&mut self) {
        let Some(recorder) = &self.core.recorder else {
            return;
        };
        let mut notes = recorder.notes.lock();
        debug_assert!(!notes.is_ending, "a recording ends once");
        notes.is_ending = true;
        drop(notes);
        recorder.woken.notify_one();
        if let Some(thread) = self.thread.take() {
            // A storage or a group's data that holds the last handle may drop it in this thread,
            // which has the scribe then. It ends the recording when it has put that back. An error
            // of another means that it panicked, which it has reported.
            if thread.thread().id() == thread::current().id() || thread.join().is_ok() {
                return;
            }
        }
        recorder.end(&self.core);
    }
}

/// Marks the thread as gone when dropped, also by a panic: threads that add notes write them.
struct RecorderAlive<'a>(&'a Recorder);

impl Drop for RecorderAlive<'_> {
    fn drop(&mut self) {
        self.0.notes.lock().has_thread = false;
    }
}

impl Core {
    /// The thread's main loop.
    fn record_for_ever(&self) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let _alive = RecorderAlive(recorder);
        while recorder.wait() {
            survive(|| self.record_tick());
        }
        recorder.end(self);
    }
}

impl Recorder {
    /// Waits for the next tick, a note or the end. Returns whether to go on.
    fn wait(&self) -> bool {
        let mut notes = self.notes.lock();
        if !notes.is_nudged && !notes.is_ending {
            self.woken.wait_for(&mut notes, TICK_PERIOD);
        }
        debug_assert!(notes.has_thread, "the thread is known while it runs");
        notes.is_nudged = false;
        !notes.is_ending
    }
}
