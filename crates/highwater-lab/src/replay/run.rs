//! A replay from its first access to its teardown.

use highwater::Group;
use highwater::units::PAGE_BYTES;

use super::engine;
use super::error::ReplayError;
use super::report::{Outcome, rss_peak_bytes};
use super::schedule::Source;
use super::setup::Replay;
use crate::control::Control;

/// Resources still held after everything was dropped: any is a bug.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaks {
    /// Frames still allocated.
    pub frames: u64,
    /// Bytes still charged to any group.
    pub bytes: u64,
}

/// An early end of a run, and the leaks found at teardown.
#[derive(Debug)]
pub struct Failure {
    /// The cause.
    pub error: ReplayError,
    /// Resources still held afterwards.
    pub leaks: Leaks,
}

impl Replay {
    /// Replays every trace to its end, verifies the written pages, and tears everything down.
    ///
    /// # Errors
    ///
    /// When a trace is bad, a page cannot be accessed, dirty pages cannot be written, or `control`
    /// was stopped. Pages that do not verify are counted in the report instead.
    pub fn run(self, control: &Control) -> Result<Outcome, Failure> {
        let total = self.sources.iter().map(Source::bytes_total).sum();
        control.expect(total);
        let result = engine::replay(&self, control);
        let left = self.take_down();
        match result {
            Ok(mut outcome) => {
                outcome.report.leaked_frames = left.held.frames;
                outcome.report.leaked_bytes = left.held.bytes;
                // After everything was taken down, which is part of the run.
                outcome.report.rss_peak_bytes = rss_peak_bytes();
                Ok(outcome)
            }
            Err(error) => Err(Failure {
                error,
                leaks: left.without_dirty(),
            }),
        }
    }

    /// Drops mappings and files, which writes back and evicts their pages, and counts the leaks.
    fn take_down(self) -> Left {
        let groups: Vec<Group> = self.tenants.iter().map(|t| t.group.clone()).collect();
        drop(self.tenants);
        self.manager.drop_caches();
        let of_tenants: u64 = groups.iter().map(|group| group.usage_precise().0).sum();
        let of_root = self.manager.root().usage_precise().0;
        let snapshot = self.manager.snapshot();
        Left {
            held: Leaks {
                frames: snapshot.frames.allocated.0,
                bytes: of_tenants.max(of_root),
            },
            dirty: snapshot.counter("nr_dirty"),
        }
    }
}

/// Resources left after teardown.
struct Left {
    held: Leaks,
    /// Pages that could not be written back.
    dirty: u64,
}

impl Left {
    /// After an I/O error, dirty pages that the file refuses are kept by design. A run without
    /// errors has written all of them back, and none is excused.
    fn without_dirty(&self) -> Leaks {
        let dirty_bytes = self.dirty * PAGE_BYTES;
        Leaks {
            frames: self.held.frames.saturating_sub(self.dirty),
            bytes: self.held.bytes.saturating_sub(dirty_bytes),
        }
    }
}
