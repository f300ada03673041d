//! The readers of a group's recent peak. The ledger keeps one recent peak; a reset takes it and
//! merges it into the value of every other reader. So charges cost the same however many readers
//! there are.

use crate::sync::{LockClass, Mutex, Rank, Sequence};

static PEAKS: LockClass = LockClass::new("group peaks", Rank::Leaf);

/// The readers of one group's peak.
#[derive(Debug)]
pub(in crate::group) struct Watches {
    /// For each reader, the highest reservation taken from the ledger since its reset.
    seen: Mutex<Vec<(u64, u64)>>,
    numbers: Sequence,
}

impl Watches {
    pub(in crate::group) fn new() -> Self {
        Self {
            seen: Mutex::new(&PEAKS, Vec::new()),
            numbers: Sequence::new(),
        }
    }

    /// Adds a reader; returns its number.
    pub(in crate::group) fn add(&self) -> u64 {
        let number = self.numbers.next();
        self.seen.lock().push((number, 0));
        number
    }

    pub(in crate::group) fn remove(&self, number: u64) {
        let mut seen = self.seen.lock();
        seen.retain(|(watch, _)| *watch != number);
    }

    /// Returns the peak of reader `number`, given the ledger's recent peak, which `recent` loads.
    pub(in crate::group) fn peak(&self, number: u64, recent: impl FnOnce() -> u64) -> u64 {
        let seen = self.seen.lock();
        let own = seen.iter().find(|(watch, _)| *watch == number);
        own.map_or(0, |(_, before)| *before).max(recent())
    }

    /// Restarts reader `number` with the recent peak that `take` takes from the ledger, which the
    /// others keep. `None` from `take` changes nothing.
    pub(in crate::group) fn reset(&self, number: u64, take: impl FnOnce() -> Option<u64>) {
        let mut seen = self.seen.lock();
        let Some(taken) = take() else {
            return;
        };
        for (watch, before) in &mut *seen {
            *before = if *watch == number {
                0
            } else {
                taken.max(*before)
            };
        }
    }
}
