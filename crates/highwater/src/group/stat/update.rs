//! Updates (rstat): adding to a per-CPU block, and opening or widening its window.
//!
//! ```text
//! add     block open?  no: open it first
//!         cell += delta
//!         |cell - base| <= width of the window?  no: widen it, or open it again
//!
//! open    bound of the group and all above += width;  closed -> opening
//!         the CPU's bit in the group, the group's in its parent, the parent's in its parent, ..
//!         opening -> open
//! widen   bound of the group and all above += the difference;  open -> open, twice as wide or more
//! ```
//!
//! Each step of the window is a compare-and-swap, and each change makes its word a new one. An
//! update that finds a block opening finishes the opening before it counts there, so that none
//! relies on bits that another thread is about to set. So:
//!
//! **A completed update is found.** It is in a block that was open, and so the CPU's bit and those
//! of the chain had been set after the block was last closed. The flush goes the other way: it
//! takes the bits from the top down, and closes the block last. If it took any of those bits before
//! it was set for this opening, the bit is set again; if after, it goes on to take the next, and in
//! the end the block's cells. A flush in between holds the locks of all groups whose bits it has
//! taken, down to where it is: another one that needs the update waits for it, or shares it.
//!
//! **The flush does not lose updates that come while it closes a block.** An update adds first and
//! reads window and base afterwards; the flush changes window and base first and reads the cell
//! again afterwards. So one of them notices a cell that is further from the base than the window
//! allows, and opens the block again.
//!
//! **In the restartable regime** the check is part of the addition: the sequence adds only if the
//! cell then is within the window, and is on its CPU alone. The base stays where it is until the
//! block is closed, so the cell is never further from it than the window, including updates in
//! flight and in store buffers. A flush leaves the block open and takes the visible value: that was
//! within the window of the same base, so at most two widths can be hidden after it, on any level.
//! `flush.rs` closes blocks. A thread that cannot add there (without sequences, on a CPU that the
//! tree does not know, to a block that is closing, in a storm of interruptions) hands the update to
//! the group as a child would: a line of each ancestor, instead of one of the CPU. In both regimes,
//! so does an update of an item without per-CPU cells.
//!
//! **Doubling** makes a block that counts a million events walk the chain 17 times, and one that
//! counts up and down by no more than its window never.

use super::block::{StatBlock, StatWindow, WindowState};
use super::group::Stat;
use super::item::{NR_ITEMS, StatItem};
use crate::percpu::{Regime, current_cpu};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::units::CpuId;

/// Largest update, and largest total that one CPU adds between two flushes: the windows of a
/// million blocks that hide as much do not overflow a bound. Chosen.
const DELTA_MAX: u64 = 1 << 42;

/// Widest window in which sequences add: their half of its word holds no more. A flush closes such
/// a block.
const WIDEST: u64 = 1 << 31;

/// Attempts of a sequence before the update goes to the group itself. Each needs another reason to
/// fail: no block, no window, one too narrow, an interruption. Chosen.
const ATTEMPTS_MAX: usize = 16;

impl Stat {
    /// Adds on the CPU that the thread runs on.
    ///
    /// # Panics
    ///
    /// When `delta` is above [`DELTA_MAX`].
    #[inline]
    pub(in crate::group) fn add(self: &Arc<Self>, item: StatItem, delta: i64) {
        let sequences = self.sequences;
        if item.has_cells()
            && let Some(cpu) = sequences.cpu()
            && let Some(block) = self.blocks.get(cpu.index())
            && block.try_add(sequences, cpu, item.index(), delta)
        {
            return;
        }
        self.add_again(item, delta);
    }

    /// Adds as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime; when there is no such CPU, or `delta` is above [`DELTA_MAX`].
    #[inline]
    pub(in crate::group) fn add_on(self: &Arc<Self>, cpu: CpuId, item: StatItem, delta: i64) {
        assert!(
            self.sequences.regime() == Regime::Atomic,
            "acting as {cpu} needs the atomic regime: statistics are written by their own CPU"
        );
        assert!(
            delta.unsigned_abs() <= DELTA_MAX,
            "{delta} is too much for one update"
        );
        self.add_as(cpu, item, delta);
    }

    fn known(&self, cpu: CpuId) -> CpuId {
        match cpu.index() {
            index if index < self.shared.nr_cpus => cpu,
            index => CpuId::from_index(index % self.shared.nr_cpus),
        }
    }

    #[inline]
    fn add_as(self: &Arc<Self>, cpu: CpuId, item: StatItem, delta: i64) {
        if delta == 0 {
            return;
        }
        if !item.has_cells() {
            return self.add_apart(item, delta);
        }
        let block = match self.blocks.get(cpu.index()) {
            Some(block) if block.window().state() == WindowState::Open => block,
            _ => self.open_for(cpu, delta),
        };
        let cell = block.add(item.index(), delta);
        let window = block.window();
        let distance = cell.wrapping_sub(block.base(item.index())).unsigned_abs();
        if window.state() != WindowState::Open || distance > window.width() {
            self.cover(cpu, block, |block| {
                cell.wrapping_sub(block.base(item.index())).unsigned_abs()
            });
        }
    }

    /// Continues after a sequence that did not add: makes room and retries. Also the path of the
    /// atomic regime.
    #[inline(never)]
    fn add_again(self: &Arc<Self>, item: StatItem, delta: i64) {
        let size = delta.unsigned_abs();
        assert!(size <= DELTA_MAX, "{delta} is too much for one update");
        if delta == 0 {
            return;
        }
        if self.sequences.regime() == Regime::Atomic {
            return self.add_as(self.known(current_cpu()), item, delta);
        }
        let attempts = if item.has_cells() { ATTEMPTS_MAX } else { 0 };
        for _ in 0..attempts {
            let cpu = self.sequences.cpu();
            let Some(cpu) = cpu.filter(|cpu| cpu.index() < self.shared.nr_cpus) else {
                break;
            };
            let block = self.block(cpu);
            if block.try_add(self.sequences, cpu, item.index(), delta) {
                return;
            }
            let window = block.window();
            let cell = block.cell(item.index()).wrapping_add(delta);
            let distance = cell.wrapping_sub(block.base(item.index()));
            // A window holds one less above its base than below it.
            let distance = distance.unsigned_abs() + u64::from(distance > 0);
            match window.state() {
                WindowState::Closing => break,
                _ if distance > WIDEST => break,
                WindowState::Open if distance <= window.width() => (),
                WindowState::Open => self.widen(block, window, distance),
                WindowState::Closed => self.open(cpu, block, window, distance),
                WindowState::Opening => self.finish_opening(cpu, block, window),
            }
        }
        self.add_apart(item, delta);
    }

    /// Hands the update to the group as a child would.
    fn add_apart(self: &Arc<Self>, item: StatItem, delta: i64) {
        let mut deltas = [0; NR_ITEMS];
        deltas[item.index()] = delta;
        let size = delta.unsigned_abs();
        self.raise_chain(size);
        self.receive(&deltas, size);
        self.mark_chain();
    }

    /// Opens the block with room for `delta`.
    #[cold]
    fn open_for(self: &Arc<Self>, cpu: CpuId, delta: i64) -> &StatBlock {
        let distance = delta.unsigned_abs();
        assert!(distance <= DELTA_MAX, "{delta} is too much for one update");
        let block = self.block(cpu);
        match block.window() {
            window if window.state() == WindowState::Closed => {
                self.open(cpu, block, window, distance)
            }
            window if window.state() == WindowState::Opening => {
                self.finish_opening(cpu, block, window)
            }
            _ => (),
        }
        block
    }

    /// Widens the block's window to hold `distance` from the base, which may move meanwhile.
    ///
    /// Progress: each turn follows a change of the window by this thread or another one. A window
    /// is widened 59 times at most before a flush closes it.
    #[cold]
    pub(super) fn cover(
        self: &Arc<Self>,
        cpu: CpuId,
        block: &StatBlock,
        distance: impl Fn(&StatBlock) -> u64,
    ) {
        loop {
            let window = block.window();
            let distance = distance(block);
            match window.state() {
                WindowState::Open | WindowState::Closed if distance <= window.width() => return,
                WindowState::Open => self.widen(block, window, distance),
                WindowState::Closed => self.open(cpu, block, window, distance),
                WindowState::Opening => self.finish_opening(cpu, block, window),
                WindowState::Closing => return,
            }
        }
    }

    fn open(self: &Arc<Self>, cpu: CpuId, block: &StatBlock, closed: StatWindow, distance: u64) {
        let opening = closed.opening(distance);
        self.raise_chain(opening.may_hide());
        if block.exchange(closed, opening) {
            self.finish_opening(cpu, block, opening);
        } else {
            self.lower_chain(opening.may_hide());
        }
    }

    /// Makes flushes find the block, then lets updates rely on it.
    fn finish_opening(self: &Arc<Self>, cpu: CpuId, block: &StatBlock, opening: StatWindow) {
        let (word, bit) = (&self.dirty[cpu.index() / 64], 1 << (cpu.index() % 64));
        // Pairs with the swap in `flush_blocks`. A read-modify-write even if the bit is set: if
        // that flush has passed, the bits that it took above are seen as taken here, and are set
        // anew.
        word.fetch_or(bit, Ordering::SeqCst);
        self.mark_chain();
        // If this fails, another thread has opened it, or a flush has closed it again.
        block.exchange(opening, opening.opened());
    }

    fn widen(&self, block: &StatBlock, window: StatWindow, distance: u64) {
        let wider = window.widened(distance);
        let more = wider.may_hide() - window.may_hide();
        self.raise_chain(more);
        if !block.exchange(window, wider) {
            self.lower_chain(more);
        }
    }
}
