//! System files that are open by a path: each of them is open once in a manager.
//!
//! A second open of the same file, by whichever path, returns the same pages. A file that is being
//! closed still has pages that may be newer than its storage, so an open waits for the end of that;
//! if pages could not be written back, it fails.

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
    /// It was closed, and has pages that could not be written back.
    Stuck,
}

/// Result of looking a file up.
pub(super) enum OpenPath<'a, F> {
    /// It is open.
    Open(Arc<F>),
    /// It is not open; others wait until the claim is settled.
    Claimed(PathClaim<'a, F>),
    /// It was closed, and has pages that could not be written back.
    Stuck,
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
                Some(PathSlot::Stuck) => return OpenPath::Stuck,
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

    /// Records that a file was closed, and has pages that stay; unless another thread has released
    /// it since, and perhaps opened it again.
    pub(super) fn note_stuck(&self, file: FileIdentity) {
        if let Some(slot) = self.slots.lock().get_mut(&file)
            && matches!(slot, PathSlot::Open(open) if open.strong_count() == 0)
        {
            *slot = PathSlot::Stuck;
            self.changed.notify_all();
        }
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

    // Goal: a file that another thread has released while it was being closed is not stuck for
    // ever, nor is one that was opened again. Method: the steps of both threads, one by one.
    #[test]
    fn what_was_released_meanwhile_is_not_stuck() {
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
        paths.note_stuck(file);
        assert!(
            matches!(paths.find(file), OpenPath::Stuck),
            "its pages stay"
        );
        paths.note_closed(file);
        drop(open(&paths));
        paths.note_closed(file);
        paths.note_stuck(file);
        let again = open(&paths);
        paths.note_stuck(file);
        assert!(matches!(paths.find(file), OpenPath::Open(it) if Arc::ptr_eq(&it, &again)));
    }
}
