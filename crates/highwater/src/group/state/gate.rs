//! The gate of a tree: closed while one charge decides alone (`charge/proof.rs`).

use crate::sync::atomic::{AtomicBool, Ordering};

/// Whether the tree is open to new reservations.
#[derive(Debug)]
pub(in crate::group) struct Gate(
    /// Written by: the charge that decides alone, under the tree's lock for writing. Read by:
    /// refills, after they have marked themselves in flight. Publishes: nothing.
    AtomicBool,
);

impl Gate {
    pub(in crate::group) fn open() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(in crate::group) fn is_closed(&self) -> bool {
        // Pairs with `close`. SeqCst: a refill marks itself and then reads this, the deciding
        // charge writes this and then reads the marks; acquire and release let both miss.
        self.0.load(Ordering::SeqCst)
    }

    /// Closes the tree until the result is dropped.
    pub(in crate::group) fn close(&self) -> ClosedGate<'_> {
        // Pairs with `is_closed`; SeqCst as there.
        self.0.store(true, Ordering::SeqCst);
        ClosedGate(self)
    }
}

/// The tree is closed while this lives.
pub(in crate::group) struct ClosedGate<'a>(&'a Gate);

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        // Pairs with `is_closed`; SeqCst for uniformity: nothing depends on seeing it early.
        self.0.0.store(false, Ordering::SeqCst);
    }
}
