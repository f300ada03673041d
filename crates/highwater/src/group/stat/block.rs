//! A block: the per-CPU counters of one CPU for one group, and how much of them is not absorbed
//! yet.
//!
//! For each item a cell adds up everything that the CPU has counted. `taken` is the part that has
//! been absorbed into the group's sums: the rest, `cell - taken`, is *hidden*. The block's window
//! bounds the hidden part, and its state tells how that bound is accounted for:
//!
//! | state | updates | hidden, of each item, at most |
//! |---|---|---|
//! | closed | are refused: they open it first | 0 |
//! | opening | are refused: they help to open it | its width |
//! | open | within the width of the base; else they widen it first | its width; twice that once *taken* |
//! | closing | are refused: they go to the group itself | as before |
//!
//! A flush of any ancestor finds an open block: `update.rs`.

use std::array;

use super::item::NR_CELLS;
use crate::percpu::{Sequences, Windowed};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::CpuId;

/// Narrowest window. Chosen: the kernel tolerates 64 pages per CPU, and a block that was taken from
/// hides up to two windows: so a group whose CPUs count little is fresh enough without a flush for
/// any reader that accepts the kernel's tolerance.
pub(super) const NARROWEST: u64 = 16;

/// The state of a block and the width of its window: `state`, `exponent` and `is_taken` in the high
/// half with a number of the change; in the low half the width while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatWindow(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowState {
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

impl StatWindow {
    pub(super) const fn state(self) -> WindowState {
        match self.0 >> STATE_SHIFT & STATE_MASK {
            0 => WindowState::Closed,
            1 => WindowState::Opening,
            2 => WindowState::Open,
            _ => WindowState::Closing,
        }
    }

    /// Returns how far a cell may be from its base.
    pub(super) const fn width(self) -> u64 {
        match self.state() {
            WindowState::Closed => 0,
            _ => 1 << (self.0 >> EXPONENT_SHIFT & EXPONENT_MAX),
        }
    }

    /// Returns how much of an item may be hidden, as accounted for in the bounds of the group and
    /// its ancestors.
    pub(super) const fn may_hide(self) -> u64 {
        self.width() << self.is_taken() as u32
    }

    pub(super) const fn is_taken(self) -> bool {
        self.0 & TAKEN != 0
    }

    /// Returns the window of the closed block opening with room for `distance`.
    pub(super) fn opening(self, distance: u64) -> Self {
        debug_assert_eq!(self.state(), WindowState::Closed);
        self.changed(WindowState::Opening, exponent_for(distance), 0)
    }

    pub(super) fn opened(self) -> Self {
        debug_assert_eq!(self.state(), WindowState::Opening);
        self.changed(WindowState::Open, self.exponent(), 0)
    }

    /// Returns a wider window with room for `distance`.
    pub(super) fn widened(self, distance: u64) -> Self {
        debug_assert!(self.state() == WindowState::Open && self.width() < distance);
        self.changed(WindowState::Open, exponent_for(distance), self.0 & TAKEN)
    }

    /// Returns the window after the block is taken from while it stays open, or closing.
    pub(super) fn taken(self) -> Self {
        self.changed(self.state(), self.exponent(), TAKEN)
    }

    pub(super) fn closing(self) -> Self {
        debug_assert_eq!(self.state(), WindowState::Open);
        self.changed(WindowState::Closing, self.exponent(), self.0 & TAKEN)
    }

    /// Returns the window reopened: additions could not be stopped.
    pub(super) fn reopened(self) -> Self {
        debug_assert_eq!(self.state(), WindowState::Closing);
        self.changed(WindowState::Open, self.exponent(), self.0 & TAKEN)
    }

    pub(super) fn closed(self) -> Self {
        self.changed(WindowState::Closed, 0, 0)
    }

    const fn exponent(self) -> u64 {
        self.0 >> EXPONENT_SHIFT & EXPONENT_MAX
    }

    /// Every change has a number, so that a compare-and-swap fails if the word changed in between.
    const fn changed(self, state: WindowState, exponent: u64, taken: u64) -> Self {
        let number = (self.0 & !(ONE_CHANGE - 1)).wrapping_add(ONE_CHANGE);
        let width = match state {
            // Wider ones are for atomic additions only, which read the exponent.
            WindowState::Open if exponent < 32 => 1 << exponent,
            WindowState::Open => 1 << 31,
            _ => 0,
        };
        Self(number | taken | (state as u64) << STATE_SHIFT | exponent << EXPONENT_SHIFT | width)
    }
}

/// Returns the exponent of the narrowest window with room for `distance`.
fn exponent_for(distance: u64) -> u64 {
    u64::from(distance.max(NARROWEST).next_power_of_two().ilog2())
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<StatBlock>() == 384);

/// One CPU's part of a group's statistics.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct StatBlock {
    cells: Windowed<NR_CELLS>,
    /// The part of each cell absorbed beyond its base: while the block is open, additions of
    /// sequences, which are within 32 bits as their windows are. An `i32`. Written and read by: the
    /// holder of the group's flush lock. Publishes: nothing.
    taken: [AtomicU32; NR_CELLS],
}

impl StatBlock {
    pub(super) fn new(sequences: Sequences, cpu: CpuId) -> Self {
        Self {
            cells: Windowed::new(sequences, cpu),
            taken: array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    pub(super) fn window(&self) -> StatWindow {
        StatWindow(self.cells.window())
    }

    pub(super) fn exchange(&self, old: StatWindow, new: StatWindow) -> bool {
        self.cells.exchange_window(old.0, new.0)
    }

    /// Adds in a restartable sequence, if that can be done here and now within the window; returns
    /// whether it did.
    #[inline]
    pub(super) fn try_add(
        &self,
        sequences: Sequences,
        cpu: CpuId,
        item: usize,
        delta: i64,
    ) -> bool {
        self.cells.try_add(sequences, cpu, item, delta)
    }

    /// Waits until no addition that has read the window before the call is in progress; false if
    /// the system refuses the membarrier.
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

    /// Returns the hidden part of the cell. The caller holds the flush lock.
    pub(super) fn hidden(&self, item: usize, cell: i64) -> i64 {
        // Relaxed: guarded by the flush lock.
        let taken = self.taken[item].load(Ordering::Relaxed).cast_signed();
        cell.wrapping_sub(self.base(item))
            .wrapping_sub(i64::from(taken))
    }

    /// Marks an open block as absorbed up to `cell`. The caller holds the flush lock.
    pub(super) fn take(&self, item: usize, cell: i64) {
        let taken = i32::try_from(cell.wrapping_sub(self.base(item)));
        let taken = taken.expect("sequences add within windows of 32 bits");
        // Relaxed: guarded by the flush lock.
        self.taken[item].store(taken.cast_unsigned(), Ordering::Relaxed);
    }

    /// Marks the block as absorbed up to `cell`, the base of the next window. The caller holds the
    /// flush lock.
    pub(super) fn move_base(&self, item: usize, cell: i64) {
        self.cells.set_base(item, cell);
        // Relaxed: guarded by the flush lock.
        self.taken[item].store(0, Ordering::Relaxed);
    }
}
