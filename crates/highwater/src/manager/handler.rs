//! Code of the embedder on threads of the manager: whether a handler runs on a thread, so that a
//! request that it makes selects no victim; and destructors that panic.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether a handler runs on this thread.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Marks that the embedder's handler runs on this thread, until dropped.
pub(super) struct InHandler;

impl InHandler {
    /// Returns `None` if a handler already runs on this thread.
    pub(super) fn enter() -> Option<Self> {
        // Made only then: dropping it ends the mark of the handler that runs.
        (!IN_HANDLER.replace(true)).then(|| Self)
    }

    /// Returns whether a handler runs on this thread.
    pub(super) fn is_running() -> bool {
        IN_HANDLER.get()
    }
}

impl Drop for InHandler {
    fn drop(&mut self) {
        debug_assert!(IN_HANDLER.get(), "a handler ends on its thread");
        IN_HANDLER.set(false);
    }
}

/// Takes a step that may drop objects of the embedder: a group's data, a storage, a waker. A panic
/// of a destructor is reported, and ends the step alone: the thread has other work to do.
pub(super) fn survive(step: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(step)).is_err() {
        tracing::error!("a step of the manager panicked");
    }
}
