//! Flushing (rstat): absorbing blocks, sharing a flush, and the end of a group.
//!
//! ```text
//! flush of a group, holding its lock
//!     started = its number
//!     for each child whose bit is taken: lock it, flush it
//!     take pending
//!     for each CPU whose bit is taken: close the block, absorb its cells, look at them again
//!     sums += all that;  lower the bound;  hand it up
//!     done = its number
//! ```
//!
//! In the restartable regime blocks stay open, and the flush takes their values without the CPU's
//! help. They are closed later, many at a time: `closing` refuses additions; each CPU is
//! interrupted once, so that no addition that has read the earlier window remains; the rest is
//! absorbed, the base moves there, and the block is closed. The periodic flush does this to blocks
//! that are idle or wide, any flush to those that are very wide.
//!
//! **Tickets.** Flushes of one group have numbers. A thread that needs one reads the number of the
//! newest that has begun, then waits for the lock: any flush with a higher number that is done has
//! begun after that, and is as good as its own. If there is none, it flushes itself. So no needed
//! flush is skipped, none is repeated without need, and a reader waits for exactly the flushes that
//! include its group, each for as long as it is in it.
//!
//! **Locks** are taken from ancestors to descendants: a thread that holds a group's waits further
//! down only.
//!
//! **The end of a group.** After its last handle is dropped, its counts belong to its parent:
//! [`Stat::retire`].

use super::block::{NARROWEST, StatBlock, StatWindow, WindowState};
use super::counts::{Cause, Counts};
use super::group::Stat;
use super::item::{NR_CELLS, NR_ITEMS};
use crate::percpu::Regime;
use crate::sync::atomic::{Ordering, fence};
use crate::sync::{Arc, MutexGuard};
use crate::units::CpuId;

/// Width from which any flush closes a block: it counts so much that opening it again costs little
/// in comparison. Chosen.
const WIDE: u64 = 1 << 12;

/// One walk over a subtree.
struct FlushWalk {
    /// Nanoseconds since the caller's start of time.
    now: u64,
    groups_visited: u64,
    cpus_visited: u64,
    /// Whether blocks without updates are closed, and how wide others may be.
    closes_idle: bool,
    close_above: u64,
    to_close: Vec<(Arc<Stat>, CpuId)>,
}

impl FlushWalk {
    fn new(now: u64) -> Self {
        Self {
            now,
            groups_visited: 0,
            cpus_visited: 0,
            closes_idle: false,
            close_above: WIDE,
            to_close: Vec::new(),
        }
    }

    /// Also closes blocks that are idle, or wider than the narrowest window.
    fn closing_idle(mut self) -> Self {
        (self.closes_idle, self.close_above) = (true, NARROWEST + 1);
        self
    }

    /// Does the rest of the work, when no lock is held.
    fn finish(self, counts: &Counts) {
        counts.visited(self.groups_visited, self.cpus_visited);
        Stat::close_all(self.to_close);
    }
}

/// The result of a flush of one group.
struct Absorbed {
    deltas: [i64; NR_ITEMS],
    /// The amount by which the group's bound is lowered, handed up beside the deltas.
    bound: u64,
}

impl Absorbed {
    const fn nothing() -> Self {
        Self {
            deltas: [0; NR_ITEMS],
            bound: 0,
        }
    }
}

/// Holds a group's flush lock.
struct Flushing<'a> {
    stat: &'a Arc<Stat>,
    guard: Option<MutexGuard<'a, ()>>,
}

impl Stat {
    /// Flushes the subtree, unless another thread's flush that begins from now on does. Returns
    /// whether it was shared.
    pub(super) fn flush_or_share(self: &Arc<Self>, cause: Cause, now: u64) -> bool {
        // Pairs with the fence in `Flushing::run`, so that a flush that has not begun yet sees this
        // thread's updates: those in a restartable sequence are plain stores.
        fence(Ordering::SeqCst);
        // Pairs with the store in `Flushing::run`.
        let ticket = self.started.load(Ordering::SeqCst);
        let flushing = self.lock();
        // Relaxed: guarded by the lock.
        if self.done.load(Ordering::Relaxed) > ticket {
            self.shared.counts.shared.add(1);
            return true;
        }
        let mut pass = match cause {
            Cause::Periodic => FlushWalk::new(now).closing_idle(),
            Cause::Read | Cause::Requested | Cause::Reclaim => FlushWalk::new(now),
        };
        flushing.run(&mut pass);
        drop(flushing);
        pass.finish(&self.shared.counts);
        false
    }

    /// Hands the values that a flush has left at the parent up to the root; pending values of other
    /// groups are handed up with them, their blocks are not visited.
    pub(in crate::group) fn hand_up(self: &Arc<Self>) {
        let mut next = &self.parent;
        while let Some(stat) = next {
            let flushing = stat.lock();
            let mut found = Absorbed::nothing();
            found.bound = stat.take_pending(&mut found.deltas);
            stat.publish(&found);
            drop(flushing);
            next = &stat.parent;
        }
        // Values handed to a group whose marks had just been taken are found by the next flush.
        if let Some(parent) = &self.parent {
            parent.mark_chain();
        }
    }

    fn lock(self: &Arc<Self>) -> Flushing<'_> {
        let guard = self.flush.try_lock().unwrap_or_else(|| {
            self.shared.counts.lock_waits.add(1);
            self.flush.lock()
        });
        Flushing {
            stat: self,
            guard: Some(guard),
        }
    }

    /// Hands up the rest when no update can come any more. Waits for no lock: the thread that holds
    /// this group's lock does it when it releases it.
    pub(in crate::group) fn retire(self: &Arc<Self>) {
        if self.bound() == 0 {
            // Everything has been handed up.
            return;
        }
        // Pairs with the load in `Flushing::drop`.
        self.is_retired.store(true, Ordering::SeqCst);
        // Pairs with the fence in `Flushing::drop`. SeqCst: this stores the mark and then tries the
        // lock, the holder releases the lock and then reads the mark; both must not miss.
        fence(Ordering::SeqCst);
        if let Some(guard) = self.flush.try_lock() {
            let guard = Some(guard);
            drop(Flushing { stat: self, guard });
        }
    }

    fn flush_children(&self, pass: &mut FlushWalk) {
        let Some(children) = self.children.get() else {
            return;
        };
        children.take(|child| child.lock().run(pass));
    }

    fn flush_blocks(self: &Arc<Self>, found: &mut Absorbed, pass: &mut FlushWalk) {
        // Pairs with the store in `retire`: no thread counts any more, so plain reads suffice.
        let is_retired = self.is_retired.load(Ordering::SeqCst);
        if self.sequences.regime() == Regime::Restartable && !is_retired {
            return self.take_from_blocks(found, pass);
        }
        for (nth, word) in self.dirty.iter().enumerate() {
            // Pairs with the read-modify-write in `finish_opening`. SeqCst: an opening that this
            // does not see yet has not let any update count.
            if word.load(Ordering::SeqCst) == 0 {
                continue;
            }
            // Pairs with the read-modify-write in `finish_opening`; SeqCst as above.
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                let cpu = CpuId::from_index(nth * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
                pass.cpus_visited += 1;
                self.close(cpu, self.block(cpu), found);
            }
        }
    }

    /// Absorbs the blocks' visible values and leaves them open; notes those that are to be closed.
    fn take_from_blocks(self: &Arc<Self>, found: &mut Absorbed, pass: &mut FlushWalk) {
        let mut is_any_open = false;
        for (nth, word) in self.dirty.iter().enumerate() {
            // Pairs with the read-modify-write in `finish_opening`. SeqCst: an opening that this
            // does not see yet has not let any update count.
            let mut bits = word.load(Ordering::SeqCst);
            while bits != 0 {
                let cpu = CpuId::from_index(nth * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
                pass.cpus_visited += 1;
                is_any_open = true;
                let block = self.block(cpu);
                let has_moved = self.take(block, found);
                let width = block.window().width();
                if width >= pass.close_above || (pass.closes_idle && !has_moved) {
                    pass.to_close.push((Arc::clone(self), cpu));
                }
            }
        }
        if is_any_open {
            // A flush from above has taken the marks, and must visit this group again.
            self.mark_chain();
        }
    }

    /// Absorbs the visible values of a block that sequences add to; returns whether there were any.
    fn take(&self, block: &StatBlock, found: &mut Absorbed) -> bool {
        let cells: [i64; NR_CELLS] = std::array::from_fn(|item| block.cell(item));
        let hidden = |item: usize| block.hidden(item, cells[item]);
        if (0..NR_CELLS).all(|item| hidden(item) == 0) {
            return false;
        }
        // Values taken now and values added later are within the same window, each on either side.
        loop {
            let window = block.window();
            if window.is_taken() || window.state() == WindowState::Closed {
                break;
            }
            let more = window.taken().may_hide() - window.may_hide();
            self.raise_chain(more);
            if block.exchange(window, window.taken()) {
                break;
            }
            self.lower_chain(more);
        }
        for (item, &cell) in cells.iter().enumerate() {
            let hidden = block.hidden(item, cell);
            found.deltas[item] = found.deltas[item].wrapping_add(hidden);
            block.take(item, cell);
        }
        true
    }

    /// Closes blocks that sequences add to: first all of them refuse additions; then each CPU is
    /// interrupted once, which restarts any addition that has read the earlier window; then the
    /// rest is absorbed.
    fn close_all(mut blocks: Vec<(Arc<Self>, CpuId)>) {
        blocks.retain(|(stat, cpu)| {
            let (_flushing, block) = (stat.lock(), stat.block(*cpu));
            let window = block.window();
            window.state() == WindowState::Open && block.exchange(window, window.closing())
        });
        blocks.sort_by_key(|(_, cpu)| *cpu);
        let mut last = None;
        blocks.retain(|(stat, cpu)| {
            let is_stopped = match last {
                Some((same, is_stopped)) if same == *cpu => is_stopped,
                _ => stat.block(*cpu).stop_additions(stat.sequences),
            };
            last = Some((*cpu, is_stopped));
            if !is_stopped {
                stat.reopen(*cpu);
            }
            is_stopped
        });
        for (stat, cpu) in &blocks {
            let flushing = stat.lock();
            stat.finish_closing(*cpu);
            drop(flushing);
        }
    }

    /// Leaves a block open whose additions could not be stopped: its bound is still accounted for.
    fn reopen(self: &Arc<Self>, cpu: CpuId) {
        let (_flushing, block) = (self.lock(), self.block(cpu));
        let window = block.window();
        // Unless the group has ended meanwhile.
        if window.state() == WindowState::Closing {
            block.exchange(window, window.reopened());
        }
    }

    /// The caller holds the flush lock.
    fn finish_closing(self: &Arc<Self>, cpu: CpuId) {
        let block = self.block(cpu);
        let window = block.window();
        if window.state() != WindowState::Closing {
            // The group has ended meanwhile, and its values have been handed up.
            return;
        }
        let mut found = Absorbed::nothing();
        self.take(block, &mut found);
        for item in 0..NR_CELLS {
            block.move_base(item, block.cell(item));
        }
        let window = block.window();
        found.bound = window.may_hide();
        let (word, bit) = (&self.dirty[cpu.index() / 64], 1 << (cpu.index() % 64));
        // Pairs with the load in `take_from_blocks`. SeqCst: in the order of openings.
        word.fetch_and(!bit, Ordering::SeqCst);
        let is_closed = block.exchange(window, window.closed());
        assert!(
            is_closed,
            "a closing block was changed without the flush lock"
        );
        self.publish(&found);
        if let Some(parent) = &self.parent {
            parent.mark_chain();
        }
    }

    /// Closes the block and absorbs its cells. An addition that comes meanwhile opens it again.
    fn close(self: &Arc<Self>, cpu: CpuId, block: &StatBlock, found: &mut Absorbed) {
        let window = close_window(block);
        let cells: [i64; NR_CELLS] = std::array::from_fn(|item| block.cell(item));
        // Updates that have added and not checked yet may have gone beyond the window.
        let hidden = (0..NR_CELLS).map(|item| block.hidden(item, cells[item]));
        let most = hidden.map(i64::unsigned_abs).max().unwrap_or(0);
        let allowed = window.may_hide();
        if most > allowed {
            self.raise_chain(most - allowed);
        }
        found.bound += most.max(allowed);
        for (item, &cell) in cells.iter().enumerate() {
            let hidden = block.hidden(item, cell);
            if hidden != 0 {
                found.deltas[item] = found.deltas[item].wrapping_add(hidden);
                block.move_base(item, cell);
            }
        }
        // Pairs with the read-modify-write that adds. SeqCst: the window and the bases are moved
        // before the cells are read again, and an addition reads those afterwards.
        fence(Ordering::SeqCst);
        let missed = |block: &StatBlock| {
            let missed = (0..NR_CELLS).map(|item| block.hidden(item, block.cell(item)));
            missed.map(i64::unsigned_abs).max().unwrap_or(0)
        };
        if missed(block) > 0 {
            self.cover(cpu, block, missed);
        }
    }

    /// Adds the result to the sums and hands it up.
    fn publish(&self, found: &Absorbed) {
        let has_any = found.deltas.iter().any(|&delta| delta != 0);
        if has_any {
            for (sum, &delta) in self.sums().sum.iter().zip(&found.deltas) {
                if delta != 0 {
                    // Relaxed: written under the flush lock; published by the bound.
                    let old = sum.load(Ordering::Relaxed);
                    sum.store(old.wrapping_add(delta), Ordering::Relaxed);
                }
            }
        }
        if let Some(parent) = &self.parent
            && (has_any || found.bound > 0)
        {
            parent.receive(&found.deltas, found.bound);
        }
        if found.bound > 0 {
            self.lower(found.bound);
        }
    }
}

/// Closes the block's window; returns the window before that.
///
/// Progress: a compare-and-swap fails only because an update has opened or widened the window.
fn close_window(block: &StatBlock) -> StatWindow {
    loop {
        let window = block.window();
        if window.state() == WindowState::Closed || block.exchange(window, window.closed()) {
            return window;
        }
    }
}

impl Flushing<'_> {
    /// Flushes the subtree.
    fn run(&self, pass: &mut FlushWalk) {
        let stat = self.stat;
        // Relaxed: written under the lock only.
        let number = stat.started.load(Ordering::Relaxed) + 1;
        // Pairs with the load in `flush_or_share`.
        stat.started.store(number, Ordering::SeqCst);
        // Pairs with the fence in `flush_or_share`. SeqCst: the number is stored before any block
        // is read; a thread that has not seen it has stored its updates before.
        fence(Ordering::SeqCst);
        pass.groups_visited += 1;
        stat.flush_children(pass);
        let mut found = Absorbed::nothing();
        found.bound = stat.take_pending(&mut found.deltas);
        stat.flush_blocks(&mut found, pass);
        stat.publish(&found);
        // Relaxed: a statistic.
        stat.flushed_at.fetch_max(pass.now, Ordering::Relaxed);
        // Relaxed: guarded by the lock.
        stat.done.store(number, Ordering::Relaxed);
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        let Self { stat, guard } = self;
        // Relaxed: the last thread here checks again below.
        if stat.is_retired.load(Ordering::Relaxed) {
            hand_up_rest(stat);
        }
        *guard = None;
        loop {
            // Pairs with the fence in `retire`.
            fence(Ordering::SeqCst);
            // Pairs with the store in `retire`.
            if !stat.is_retired.load(Ordering::SeqCst) || stat.bound() == 0 {
                return;
            }
            // The holder of the lock checks after this.
            let Some(guard) = stat.flush.try_lock() else {
                return;
            };
            hand_up_rest(stat);
            drop(guard);
        }
    }
}

/// Empties a group that no thread counts in any more. The caller holds its lock.
fn hand_up_rest(stat: &Arc<Stat>) {
    let mut found = Absorbed::nothing();
    let mut pass = FlushWalk::new(0);
    found.bound = stat.take_pending(&mut found.deltas);
    stat.flush_blocks(&mut found, &mut pass);
    stat.publish(&found);
    let Some(parent) = &stat.parent else {
        return;
    };
    // A parent that has also ended may have handed up its rest before this arrived.
    // Pairs with the store in `Stat::retire`.
    if parent.is_retired.load(Ordering::SeqCst) {
        parent.retire();
    } else {
        parent.mark_chain();
    }
}
