//! Forced charges of a query, each of which knows its group: where a query's group was removed or
//! cannot be made, that is a group above it. All other charges are to the query's group, and the
//! reservations alone count them.

use std::sync::atomic::{AtomicBool, Ordering, fence};

use highwater::{Bytes, Charge};
use parking_lot::Mutex;

/// Charges that were forced and not returned.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    charges: Mutex<Vec<Charge>>,
    /// Whether there may be any.
    /// Written by: forcing and returning calls, with the lock. Read by: every return of memory.
    /// Publishes: nothing.
    are_there: AtomicBool,
}

impl Strays {
    /// Returns whether there are none that the caller may have to return.
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        // Pairs with: the fence of `keep`. Acquire: a caller that sees the forced bytes counted in
        // its reservation, which no lock guards, sees this too.
        fence(Ordering::Acquire);
        // Relaxed: see the fence.
        !self.are_there.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn keep(&self, stray: Charge) {
        let mut charges = self.charges.lock();
        let apart = match charges.last_mut() {
            Some(last) => last.merge(stray),
            None => Err(stray),
        };
        if let Err(stray) = apart {
            charges.push(stray);
        }
        // Relaxed: see the fence.
        self.are_there.store(true, Ordering::Relaxed);
        // Pairs with: the fence of `are_none`. Release: before the caller counts the bytes.
        fence(Ordering::Release);
    }

    /// Returns up to `bytes`; returns how many are left to return otherwise.
    #[cold]
    pub(crate) fn give_back(&self, bytes: u64) -> u64 {
        let mut charges = self.charges.lock();
        let (mut left, mut returned) = (bytes, Vec::new());
        while let Some(last) = charges.last_mut()
            && left > 0
        {
            let part = last.bytes().min(Bytes(left));
            returned.push(last.split(part));
            left -= part.0;
            if last.bytes() == Bytes::ZERO {
                charges.pop();
            }
        }
        // Relaxed: under the lock.
        self.are_there.store(!charges.is_empty(), Ordering::Relaxed);
        drop(charges);
        drop(returned); // wakes others, whose wakers may run any code
        left
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.charges
            .lock()
            .iter()
            .map(|charge| charge.bytes().0)
            .sum()
    }
}
