//! Absorbing what blocks hold, sharing that work, and the end of a group.
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
//! **Tickets.** Flushes of one group have numbers. Who needs one looks at the number of the newest that has
//! begun, then waits for the lock: any flush with a higher number that is done has begun after that, and is as
//! good as its own. If there is none, it flushes itself. So none is skipped that is needed, none repeated that
//! is not, and a reader waits for exactly the flushes that include its group, each for as long as it is in it.
//!
//! **Locks** are taken from ancestors to descendants, and otherwise in the order of [`Stat::rank`]: who waits
//! for one holds only lower ones.
//!
//! **The end of a group.** What it counted is its parent's from the last handle on: [`Stat::retire`].

use super::Stat;
use super::block::{Block, State};
use super::item::NR_ITEMS;
use crate::sync::atomic::{Ordering, fence};
use crate::sync::{Arc, MutexGuard};
use crate::units::CpuId;

/// One walk over a subtree.
pub(super) struct Pass<'a> {
    /// Nanoseconds since the caller's start of time.
    pub(super) now: u64,
    /// Groups whose lock the caller holds already, and that it flushes itself.
    pub(super) held: &'a [Arc<Stat>],
    pub(super) groups_visited: u64,
    pub(super) cpus_visited: u64,
}

impl<'a> Pass<'a> {
    pub(super) fn new(now: u64, held: &'a [Arc<Stat>]) -> Self {
        Self {
            now,
            held,
            groups_visited: 0,
            cpus_visited: 0,
        }
    }

    fn holds(&self, stat: &Arc<Stat>) -> bool {
        self.held.iter().any(|held| Arc::ptr_eq(held, stat))
    }
}

/// What a flush of one group has found.
struct Found {
    deltas: [i64; NR_ITEMS],
    /// What the group's bound is to be lowered by, and what goes up beside the deltas.
    bound: u64,
}

/// Holds a group's flush lock.
pub(super) struct Flushing<'a> {
    stat: &'a Arc<Stat>,
    guard: Option<MutexGuard<'a, ()>>,
}

impl Stat {
    /// Flushes the subtree, unless somebody else does so from now on. Whether it was shared.
    pub(super) fn flush_or_share(self: &Arc<Self>, now: u64) -> bool {
        // Pairs with the fence in `Flushing::run`, so that a flush that has not begun yet sees the
        // updates that this thread has made: those in a restartable sequence are plain stores.
        fence(Ordering::SeqCst);
        // Pairs with the store in `Flushing::run`.
        let ticket = self.started.load(Ordering::SeqCst);
        let flushing = self.lock();
        // Relaxed: guarded by the lock.
        if self.done.load(Ordering::Relaxed) > ticket {
            self.shared.counts.shared.add(1);
            return true;
        }
        let mut pass = Pass::new(now, &[]);
        flushing.run(&mut pass);
        drop(flushing);
        self.shared.counts.visited(&pass);
        false
    }

    pub(super) fn lock(self: &Arc<Self>) -> Flushing<'_> {
        let guard = self.flush.try_lock().unwrap_or_else(|| {
            self.shared.counts.lock_waits.add(1);
            self.flush.lock()
        });
        Flushing {
            stat: self,
            guard: Some(guard),
        }
    }

    /// Hands up what is left, when nobody can count here any more. Waits for no lock: whoever holds this
    /// group's does it when it lets go.
    pub(in crate::group) fn retire(self: &Arc<Self>) {
        // Pairs with the load in `Flushing::drop`.
        self.is_retired.store(true, Ordering::SeqCst);
        // Pairs with the fence in `Flushing::drop`. SeqCst: this stores the mark and then tries the
        // lock, the holder gives back the lock and then looks at the mark; both must not miss.
        fence(Ordering::SeqCst);
        if self.bound() != 0
            && let Some(guard) = self.flush.try_lock()
        {
            let guard = Some(guard);
            drop(Flushing { stat: self, guard });
        }
    }

    fn flush_children(&self, pass: &mut Pass<'_>) {
        let Some(children) = self.children.get() else {
            return;
        };
        children.take(|child| {
            if !pass.holds(&child) {
                child.lock().run(pass);
            }
        });
    }

    fn flush_blocks(self: &Arc<Self>, found: &mut Found, pass: &mut Pass<'_>) {
        for (nth, word) in self.dirty.iter().enumerate() {
            // Pairs with the read-modify-write in `finish_opening`. SeqCst: an opening that this does
            // not see yet has not let anybody count.
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

    /// Closes the block and absorbs its cells. What is added to them meanwhile opens it again.
    fn close(self: &Arc<Self>, cpu: CpuId, block: &Block, found: &mut Found) {
        let window = close_window(block);
        let cells: [i64; NR_ITEMS] = std::array::from_fn(|item| block.cell(item));
        // Updates that have added and not looked yet may have gone beyond the window.
        let hidden = (0..NR_ITEMS).map(|item| block.hidden(item, cells[item]));
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
                block.absorb(item, cell);
            }
        }
        // Pairs with the read-modify-write that adds. SeqCst: the window and the bases are moved
        // before the cells are looked at again, and who adds looks at those afterwards.
        fence(Ordering::SeqCst);
        let missed = |block: &Block| {
            let missed = (0..NR_ITEMS).map(|item| block.hidden(item, block.cell(item)));
            missed.map(i64::unsigned_abs).max().unwrap_or(0)
        };
        if missed(block) > 0 {
            self.cover(cpu, block, missed);
        }
    }

    /// Adds what was found to the sums and hands it up.
    fn publish(&self, found: &Found) {
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

/// Closes the block's window, which then was the one that is returned.
///
/// Progress: a compare-and-swap fails only because an update has opened or widened the window.
fn close_window(block: &Block) -> super::block::Window {
    loop {
        let window = block.window();
        if window.state() == State::Closed || block.exchange(window, window.closed()) {
            return window;
        }
    }
}

impl Flushing<'_> {
    /// Flushes the subtree.
    pub(super) fn run(&self, pass: &mut Pass<'_>) {
        let stat = self.stat;
        // Relaxed: written under the lock only.
        let number = stat.started.load(Ordering::Relaxed) + 1;
        // Pairs with the load in `flush_or_share`.
        stat.started.store(number, Ordering::SeqCst);
        // Pairs with the fence in `flush_or_share`. SeqCst: the number is stored before anything is looked
        // at; who has not seen it has stored what it counted before.
        fence(Ordering::SeqCst);
        pass.groups_visited += 1;
        stat.flush_children(pass);
        let mut found = Found {
            deltas: [0; NR_ITEMS],
            bound: 0,
        };
        found.bound = stat.take_pending(&mut found.deltas);
        stat.flush_blocks(&mut found, pass);
        stat.publish(&found);
        // Relaxed: it only describes.
        stat.flushed_at.fetch_max(pass.now, Ordering::Relaxed);
        // Relaxed: guarded by the lock.
        stat.done.store(number, Ordering::Relaxed);
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        let Self { stat, guard } = self;
        // Relaxed: who is last here looks again below.
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
            // Whoever has it looks after this.
            let Some(guard) = stat.flush.try_lock() else {
                return;
            };
            hand_up_rest(stat);
            drop(guard);
        }
    }
}

/// Empties a group in which nobody counts any more. The caller holds its lock.
fn hand_up_rest(stat: &Arc<Stat>) {
    let mut found = Found {
        deltas: [0; NR_ITEMS],
        bound: 0,
    };
    let mut pass = Pass::new(0, &[]);
    found.bound = stat.take_pending(&mut found.deltas);
    stat.flush_blocks(&mut found, &mut pass);
    stat.publish(&found);
    let Some(parent) = &stat.parent else {
        return;
    };
    // A parent that has ended too may have handed up its rest before this arrived.
    // Pairs with the store in `Stat::retire`.
    if parent.is_retired.load(Ordering::SeqCst) {
        parent.retire();
    } else {
        parent.mark_chain();
    }
}
