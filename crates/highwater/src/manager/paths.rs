//! System files that are open by a path: each of them is open once in a manager.
//!
//! A second open of the same file, by whichever path, returns the same pages. A file that is being
//! closed still has pages that may be newer than its storage, so an open waits for the end of that;
//! if pages stay, it fails.

use std::collections::HashMap;

use crate::cache::FileIdentity;
use crate::sync::{Arc, Condvar, LockClass, Mutex, Rank, Weak};

static PATHS_LOCK: LockClass = LockClass::new("open paths", Rank::Leaf);

/// The system files that are open or being closed; `F` is an open one.
#[derive(Debug)]
pub(super) struct OpenPaths<F> {
    slots: Mutex<HashMap<FileIdentity, PathSlot<F>>>,
    /// Signalled when a slot has changed.
    changed: Condvar,
}

#[derive(Debug)]
enum PathSlot<F> {
    /// It is being opened.
    Opening,
    /// It is open, or being closed if no handle is left.
    Open(Weak<F>),
    /// It was closed, and has pages that stay.
    Stuck(StuckBy),
}

/// Why pages stay when their file is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StuckBy {
    /// Storage refused them.
    Storage,
    /// They are in use, or in the hands of threads that evict them.
    Use,
}

/// Result of looking a file up.
pub(super) enum OpenPath<'a, F> {
    /// It is open.
    Open(Arc<F>),
    /// It is not open; others wait until the claim is settled.
    Claimed(PathClaim<'a, F>),
    /// It was closed, and has pages that stay.
    Stuck(StuckBy),
}

/// The right to open a file; given back when dropped.
pub(super) struct PathClaim<'a, F> {
    paths: &'a OpenPaths<F>,
    file: FileIdentity,
    is_settled: bool,
}

impl<F> OpenPaths<F> {
    pub(super) fn new() -> Self {
        Self {
            slots: Mutex::new(&PATHS_LOCK, HashMap::new()),
            changed: Condvar::new(),
        }
    }

    /// Looks a file up, after waiting while another thread opens or closes it.
    pub(super) fn find(&self, file: FileIdentity) -> OpenPath<'_, F> {
        let mut slots = self.slots.lock();
        // Terminates: every open and every close ends, and changes the slot.
        loop {
            match slots.get(&file) {
                None => break,
                Some(PathSlot::Stuck(by)) => return OpenPath::Stuck(*by),
                Some(PathSlot::Open(open)) => {
                    if let Some(open) = open.upgrade() {
                        return OpenPath::Open(open);
                    }
                }
                Some(PathSlot::Opening) => {}
            }
            self.changed.wait(&mut slots);
        }
        let former = slots.insert(file, PathSlot::Opening);
        debug_assert!(former.is_none(), "a file is opened once at a time");
        OpenPath::Claimed(PathClaim {
            paths: self,
            file,
            is_settled: false,
        })
    }

    /// Records that a file was closed.
    pub(super) fn note_closed(&self, file: FileIdentity) {
        let closed = self.slots.lock().remove(&file);
        debug_assert!(closed.is_some(), "a file is listed until it is closed");
        self.changed.notify_all();
    }

    /// Records that pages stay of a file that no handle has.
    pub(super) fn note_stuck(&self, file: FileIdentity, by: StuckBy) {
        let former = self.slots.lock().insert(file, PathSlot::Stuck(by));
        debug_assert!(
            match former {
                Some(PathSlot::Open(open)) => open.strong_count() == 0,
                Some(PathSlot::Stuck(_)) => true,
                Some(PathSlot::Opening) | None => false,
            },
            "a file is listed until it is closed"
        );
        self.changed.notify_all();
    }
}

impl<F> PathClaim<'_, F> {
    /// Records that the file is open.
    pub(super) fn settle(mut self, open: &Arc<F>) {
        self.is_settled = true;
        let slot = PathSlot::Open(Arc::downgrade(open));
        let former = self.paths.slots.lock().insert(self.file, slot);
        debug_assert!(
            matches!(former, Some(PathSlot::Opening)),
            "a claim is settled once"
        );
        self.paths.changed.notify_all();
    }
}

impl<F> Drop for PathClaim<'_, F> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.paths.note_closed(self.file);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // Goal: a file is found as it is: stuck for the latest reason, until it is closed or opened.
    #[test]
    fn a_file_is_stuck_until_it_is_closed() {
        let file = FileIdentity::of_test(7);
        let paths = OpenPaths::new();
        let open = |paths: &OpenPaths<u8>| match paths.find(file) {
            OpenPath::Claimed(claim) => {
                let open = Arc::new(0);
                claim.settle(&open);
                open
            }
            _ => panic!("it is not open"),
        };
        drop(open(&paths));
        for by in [StuckBy::Use, StuckBy::Storage] {
            paths.note_stuck(file, by);
            assert!(matches!(paths.find(file), OpenPath::Stuck(found) if found == by));
        }
        paths.note_closed(file);
        let again = open(&paths);
        assert!(matches!(paths.find(file), OpenPath::Open(it) if Arc::ptr_eq(&it, &again)));
    }
}
