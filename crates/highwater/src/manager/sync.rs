//! Sync: the dirty pages of one file reach it, after the log that they wait for, and are durable.

use super::Core;
use super::writeback::CHUNK;
use crate::cache::{FileEntry, SyncError, ToldOf, WriteBackOutcome};

impl Core {
    /// Writes back every page of a file that is dirty now, waiting for pages that are pinned or
    /// latched, and for the file's log. Tries all of them.
    pub(super) fn write_back_file(&self, entry: &FileEntry) -> Result<(), SyncError> {
        let mut whole = WriteBackOutcome::default();
        let chunk = usize::try_from(CHUNK.0).expect("a small number");
        for pages in self.cache.dirty_pages_of(entry.id()).chunks(chunk) {
            let outcome = self.cache.write_back_pages(pages);
            // Not to the end of the list: the threads that wait for them need memory now.
            self.reclaim.rotate(&outcome.awaited);
            whole += outcome;
        }
        // All at once: the log is asked to flush once.
        let held_up = std::mem::take(&mut whole.held_up);
        if !held_up.is_empty() {
            let outcome = self.cache.write_back_held_up(entry, &held_up);
            self.reclaim.rotate(&outcome.awaited);
            whole += outcome;
        }
        whole.all_written()
    }

    /// Writes every dirty page of a file back and makes the file durable.
    pub(super) fn sync(&self, entry: &FileEntry, told: &ToldOf) -> Result<(), SyncError> {
        // Memory has no durable storage.
        if entry.id().kind().is_swap_backed() {
            return Ok(());
        }
        self.write_back_file(entry)?;
        self.cache.make_durable(entry, told)
    }
}
