//! Guards: the right to read resident pages without locks.
//!
//! A guard is a reader on a seat. Each thread keeps the seats that it has used, so that entering
//! again takes nothing from anybody.

use std::cell::{Cell, RefCell};

use super::Core;
use crate::memmap::{Reader, Seat};

/// Seats that a thread keeps, of all managers together. Chosen: more guards at once in one thread
/// are rare; they take a seat each time.
const KEPT_MAX: usize = 16;

thread_local! {
    /// The seat that was left last: most often that of the next guard.
    static LAST: Cell<Option<Seat>> = const { Cell::new(None) };
    /// The others.
    static SEATS: RefCell<Vec<Seat>> = const { RefCell::new(Vec::new()) };
}

/// Takes a seat of another manager than that of the seat left last, or under another guard.
#[cold]
#[inline(never)]
fn find_seat(core: &Core) -> Option<Seat> {
    let kept = SEATS.try_with(|seats| {
        let mut seats = seats.borrow_mut();
        let at = seats.iter().rposition(|seat| core.memory.owns_seat(seat))?;
        Some(seats.swap_remove(at))
    });
    // Without thread locals (the thread is ending) or free seats, the reader pins.
    kept.ok().flatten().or_else(|| core.memory.seat())
}

/// Keeps a seat for later guards of this thread. A failure drops it: it is free for another thread.
#[cold]
#[inline(never)]
fn keep_seat(seat: Seat) {
    let _ = SEATS.try_with(|seats| {
        let mut seats = seats.borrow_mut();
        if seats.len() >= KEPT_MAX {
            seats.remove(0);
        }
        seats.push(seat);
    });
}

/// Keeps the pages that are read under it where they are. Cheap; for short use: hold it for one
/// operation, not across waiting. Up to 15 pages are held without a store to shared memory.
#[derive(Debug)]
pub struct Guard<'m> {
    core: &'m Core,
    reader: Reader<'m>,
}

impl<'m> Guard<'m> {
    #[inline]
    pub(super) fn new(core: &'m Core) -> Self {
        let seat = match LAST.try_with(Cell::take).ok().flatten() {
            Some(seat) if core.memory.owns_seat(&seat) => Some(seat),
            Some(others) => {
                keep_seat(others);
                find_seat(core)
            }
            None => find_seat(core),
        };
        Self {
            core,
            reader: core.memory.reader(seat),
        }
    }

    #[inline]
    pub(super) fn reader(&self) -> &Reader<'m> {
        &self.reader
    }

    /// # Panics
    ///
    /// When the guard is of another manager.
    #[inline]
    pub(super) fn assert_of(&self, core: &Core) {
        assert!(
            std::ptr::eq(self.core, core),
            "the guard is of another manager"
        );
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(seat) = self.reader.take_seat() else {
            return;
        };
        // A failure drops the seat: it is free for another thread.
        if let Ok(Some(former)) = LAST.try_with(|last| last.replace(Some(seat))) {
            keep_seat(former);
        }
    }
}
