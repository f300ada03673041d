//! What one CPU has counted for one group, and how much of it nobody knows yet.
//!
//! For each item a cell adds up everything that the CPU has counted. `taken` is how much of that
//! has been absorbed into the group's sums: the rest, `cell - taken`, is *hidden*. The block's
//! window says how much that can be, and its state what has been promised about it:
//!
//! | state | updates | hidden, of each item, at most |
//! |---|---|---|
//! | closed | are refused: they open it first | 0 |
//! | opening | are refused: they help to open it | its width |
//! | open | within the width of the base; else they widen it first | its width; twice that once *taken* |
//! | closing | are refused: they go to the group itself | as before |
//!
//! A block that is open is found by the flush of any group above: `update.rs`.

use std::array;

use super::item::NR_CELLS;
use crate::percpu::{Sequences, Windowed};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::CpuId;

/// Narrowest window. Chosen: the tolerance that the kernel gives each CPU is 64 pages, and a block
/// that was taken from hides up to two windows: so a group whose CPUs count little is fresh enough
/// without a flush for anybody who would be content with the kernel.
pub(super) const NARROWEST: u64 = 16;

/// The state of a block, and the width of its window: `state`, `exponent` and `is_taken` in the
/// high half with a number of the change; in the low half the width while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Closed,
    Opening,
    Open,
    Closing,
}

const EXPONENT_SHIFT: u32 = 32;
const EXPONENT_MAX: u64 = 63;
const STATE_SHIFT: u32 = 38;
const STATE_MASK: u64 = 3;
const TAKEN: u64 = 1 << 40;
const ONE_CHANGE: u64 = 1 << 41;

impl Window {
    pub(super) const fn state(self) -> State {
        match self.0 >> STATE_SHIFT & STATE_MASK {
            0 => State::Closed,
            1 => State::Opening,
            2 => State::Open,
            _ => State::Closing,
        }
    }

    /// How far a cell may be from its base.
    pub(super) const fn width(self) -> u64 {
        match self.state() {
            State::Closed => 0,
            _ => 1 << (self.0 >> EXPONENT_SHIFT & EXPONENT_MAX),
        }
    }

    /// How much of an item may be hidden, by what has been promised to the group and its ancestors.
    pub(super) const fn may_hide(self) -> u64 {
        self.width() << self.is_taken() as u32
    }

    pub(super) const fn is_taken(self) -> bool {
        self.0 & TAKEN != 0
    }

    /// A window of the closed block becomes one in which `distance` fits.
    pub(super) fn opening(self, distance: u64) -> Self {
        debug_assert_eq!(self.state(), State::Closed);
        self.changed(State::Opening, exponent_for(distance), 0)
    }

    pub(super) fn opened(self) -> Self {
        debug_assert_eq!(self.state(), State::Opening);
        self.changed(State::Open, self.exponent(), 0)
    }

    /// Wider, so that `distance` fits.
    pub(super) fn widened(self, distance: u64) -> Self {
        debug_assert!(self.state() == State::Open && self.width() < distance);
        self.changed(State::Open, exponent_for(distance), self.0 & TAKEN)
    }

    /// The block is taken from while it stays open, or closing.
    pub(super) fn taken(self) -> Self {
        self.changed(self.state(), self.exponent(), TAKEN)
    }

    pub(super) fn closing(self) -> Self {
        debug_assert_eq!(self.state(), State::Open);
        self.changed(State::Closing, self.exponent(), self.0 & TAKEN)
    }

    /// The block stays open: those who add could not be stopped.
    pub(super) fn reopened(self) -> Self {
        debug_assert_eq!(self.state(), State::Closing);
        self.changed(State::Open, self.exponent(), self.0 & TAKEN)
    }

    pub(super) fn closed(self) -> Self {
        self.changed(State::Closed, 0, 0)
    }

    const fn exponent(self) -> u64 {
        self.0 >> EXPONENT_SHIFT & EXPONENT_MAX
    }

    /// Every change has a number, so that a compare-and-swap fails if anything has happened since.
    const fn changed(self, state: State, exponent: u64, taken: u64) -> Self {
        let number = (self.0 & !(ONE_CHANGE - 1)).wrapping_add(ONE_CHANGE);
        let width = match state {
            // Wider ones are for atomic additions only, which look at the exponent.
            State::Open if exponent < 32 => 1 << exponent,
            State::Open => 1 << 31,
            _ => 0,
        };
        Self(number | taken | (state as u64) << STATE_SHIFT | exponent << EXPONENT_SHIFT | width)
    }
}

/// Of the narrowest window in which `distance` fits.
fn exponent_for(distance: u64) -> u64 {
    u64::from(distance.max(NARROWEST).next_power_of_two().ilog2())
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Block>() == 384);

/// One CPU's part of a group's statistics.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Block {
    cells: Windowed<NR_CELLS>,
    /// How much of each cell has been absorbed beyond its base: while the block is open, what
    /// sequences have added, which is within 32 bits as their windows are. An `i32`. Written and
    /// read by: who holds the group's flush lock. Publishes: nothing.
    taken: [AtomicU32; NR_CELLS],
}

impl Block {
    pub(super) fn new(sequences: Sequences, cpu: CpuId) -> Self {
        Self {
            cells: Windowed::new(sequences, cpu),
            taken: array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    pub(super) fn window(&self) -> Window {
        Window(self.cells.window())
    }

    pub(super) fn exchange(&self, old: Window, new: Window) -> bool {
        self.cells.exchange_window(old.0, new.0)
    }

    /// Adds in a restartable sequence, if that can be done here and now within the window.
    #[inline]
    pub(super) fn try_add(&self, sequences: Sequences, item: usize, delta: i64) -> bool {
        self.cells.try_add(sequences, item, delta)
    }

    /// Returns when nobody adds any more who has looked at the window before the call; false if the
    /// system refuses what that takes.
    pub(super) fn stop_additions(&self, sequences: Sequences) -> bool {
        self.cells.stop_additions(sequences).is_ok()
    }

    /// Adds atomically; returns the new value.
    #[inline]
    pub(super) fn add(&self, item: usize, delta: i64) -> i64 {
        self.cells.add(item, delta)
    }

    pub(super) fn cell(&self, item: usize) -> i64 {
        self.cells.cell(item)
    }

    #[inline]
    pub(super) fn base(&self, item: usize) -> i64 {
        self.cells.base(item)
    }

    /// How much of the cell is hidden. The caller holds the flush lock.
    pub(super) fn hidden(&self, item: usize, cell: i64) -> i64 {
        // Relaxed: guarded by the flush lock.
        let taken = self.taken[item].load(Ordering::Relaxed).cast_signed();
        cell.wrapping_sub(self.base(item))
            .wrapping_sub(i64::from(taken))
    }

    /// Absorbed up to `cell`, in an open block. The caller holds the flush lock.
    pub(super) fn take(&self, item: usize, cell: i64) {
        let taken = i32::try_from(cell.wrapping_sub(self.base(item)));
        let taken = taken.expect("sequences add within windows of 32 bits");
        // Relaxed: guarded by the flush lock.
        self.taken[item].store(taken.cast_unsigned(), Ordering::Relaxed);
    }

    /// Absorbed up to `cell`, with which the next window begins. The caller holds the flush lock.
    pub(super) fn move_base(&self, item: usize, cell: i64) {
        self.cells.set_base(item, cell);
        // Relaxed: guarded by the flush lock.
        self.taken[item].store(0, Ordering::Relaxed);
    }
}
