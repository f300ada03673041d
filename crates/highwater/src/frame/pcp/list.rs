//! One CPU's list (pcp) while its lock is held: the state that the rules read and write.

use std::collections::VecDeque;

use crate::frame::ListInfo;
use crate::memmap::{Block, Frame};
use crate::percpu::{Header, Locked};
use crate::sync::atomic::{Ordering, fence};
use crate::units::{CpuId, Order};

use super::policy::{COSTLY, Freed, ListState, Refill, Rules, Use};
use super::recent::{RUN_MAX, Recent};
use super::scratch::TransferScratch;
use super::{Beside, Conditions};

/// The state of a list under its lock.
#[derive(Debug)]
pub(super) struct ListLock {
    rules: Rules,
    state: ListState,
    blocks: ListedBlocks,
}

/// Blocks in a list. Each order's newest is at the back.
#[derive(Debug, Default)]
struct ListedBlocks {
    /// Orders 1 to 3, and huge ones.
    of_order: [VecDeque<Block>; 4],
    /// Frames in them.
    frames: u32,
}

/// A locked list.
pub(super) struct LockedList<'a> {
    stack: Locked<'a, Frame, ListLock>,
    conditions: &'a Conditions,
    beside: &'a Beside,
}

impl ListLock {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            state: rules.initial(),
            blocks: ListedBlocks::default(),
        }
    }

    pub(super) fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns the use of the list whose stack has this header.
    fn used(&self, header: Header) -> Use {
        let recent = Recent(header.tally());
        Use {
            count: header.len() + self.blocks.frames,
            free_run: recent.run().into(),
            grow: recent.grow(),
        }
    }

    /// Returns the state of the list whose stack has this header, for statistics.
    pub(super) fn info(&self, header: Header, cpu: Option<CpuId>) -> ListInfo {
        let used = self.used(header);
        ListInfo {
            cpu,
            count: used.count,
            high: self.state.high,
            high_min: self.rules.high_min,
            high_max: self.rules.high_max,
            batch: self.rules.batch,
            free_run: used.free_run,
            grow: used.grow.into(),
        }
    }
}

impl ListedBlocks {
    /// Returns the index of the list of an order, for orders that have one.
    fn index(order: Order) -> Option<usize> {
        match order {
            Order::HUGE => Some(3),
            _ if (1..=COSTLY).contains(&order.get()) => Some(usize::from(order.get()) - 1),
            _ => None,
        }
    }

    fn push(&mut self, block: Block) {
        let index = Self::index(block.order()).expect("an order that has a list");
        self.frames += frames_in(block.order());
        self.of_order[index].push_back(block);
    }

    fn pop(&mut self, order: Order) -> Option<Block> {
        let block = self.of_order[Self::index(order)?].pop_back()?;
        self.frames -= frames_in(order);
        Some(block)
    }

    fn pop_oldest(&mut self, index: usize) -> Option<Block> {
        let block = self.of_order[index].pop_front()?;
        self.frames -= frames_in(block.order());
        Some(block)
    }
}

/// Whether lists hold blocks of that order.
pub(in crate::frame) fn is_listed(order: Order) -> bool {
    ListedBlocks::index(order).is_some()
}

fn frames_in(order: Order) -> u32 {
    1 << order.get()
}

impl<'a> LockedList<'a> {
    pub(super) fn new(
        stack: Locked<'a, Frame, ListLock>,
        conditions: &'a Conditions,
        beside: &'a Beside,
    ) -> Self {
        Self {
            stack,
            conditions,
            beside,
        }
    }

    pub(super) fn cpu(&self) -> CpuId {
        self.stack.cpu()
    }

    pub(super) fn rules(&self) -> Rules {
        self.stack.rules
    }

    /// Whether the list may hold anything.
    pub(super) fn is_enabled(&self) -> bool {
        self.stack.rules.high_max > 0
    }

    /// Returns the number of frames in the list.
    pub(super) fn count(&self) -> u32 {
        self.stack.header().len() + self.stack.blocks.frames
    }

    fn used(&self) -> Use {
        self.stack.used(self.stack.header())
    }

    fn recent(&self) -> Recent {
        Recent(self.stack.header().tally())
    }

    fn set_recent(&mut self, recent: Recent) {
        self.stack.set_tally(recent.0);
    }

    /// Checks whether a single frame was freed since the last block: such a free clears the mark.
    fn look_at_mark(&mut self) {
        self.stack.state.prev_high_order = self.recent().is_marked();
    }

    /// Returns the frame that was freed last.
    pub(super) fn pop(&mut self) -> Option<Frame> {
        self.stack.pop()
    }

    /// Returns the block of `order` that was freed last.
    pub(super) fn pop_block(&mut self, order: Order) -> Option<Block> {
        let block = self.stack.blocks.pop(order)?;
        self.halve_run();
        Some(block)
    }

    /// Halves the run of frees, as every allocation does.
    fn halve_run(&mut self) {
        let recent = self.recent();
        self.set_recent(recent.with_run(u32::from(recent.run()) / 2));
    }

    /// Returns how many blocks of `order` to bring for an allocation that found none.
    pub(super) fn refill(&mut self, order: Order) -> Refill {
        self.look_at_mark();
        self.halve_run();
        let (used, shortage) = (self.used(), self.conditions.shortage());
        let rules = self.stack.rules;
        let state = &mut self.stack.state;
        let refill = rules.policy.refill(&rules, state, used, order, shortage);
        self.set_recent(self.recent().with_grow(refill.grow));
        refill
    }

    /// Puts frames from the zones into the list, the last of them to be handed out first; those
    /// that do not fit stay in `scratch`, and all do if the list is disabled by now. Another thread
    /// may have filled the list since these were asked for, or lowered its size: then a batch is
    /// put.
    pub(super) fn put(&mut self, scratch: &mut TransferScratch) {
        if !self.is_enabled() {
            return;
        }
        let room = self.stack.state.high.saturating_sub(self.count());
        let most = room.max(self.rules().batch);
        self.stack.push_all(&mut scratch.frames, most);
        scratch
            .blocks
            .drain(..)
            .for_each(|block| self.stack.blocks.push(block));
    }

    /// Pushes a freed frame, however full the list is; the next free applies the rules.
    ///
    /// # Errors
    ///
    /// Gives it back when it does not fit or the list is disabled.
    pub(super) fn push_unlooked(&mut self, frame: Frame) -> Result<(), Frame> {
        if !self.is_enabled() {
            return Err(frame);
        }
        self.stack.push(frame)
    }

    /// Pushes a freed frame; returns the action that the rules demand.
    ///
    /// # Errors
    ///
    /// Gives it back when it does not fit.
    pub(super) fn push(&mut self, frame: Frame) -> Result<Freed, Frame> {
        self.look_at_mark();
        let before = self.used();
        self.stack.push(frame)?;
        Ok(self.freed(before.free_run, Order::ZERO))
    }

    /// Pushes a freed block; returns the action that the rules demand.
    pub(super) fn push_block(&mut self, block: Block) -> Freed {
        self.look_at_mark();
        let (order, before) = (block.order(), self.used());
        self.stack.blocks.push(block);
        self.set_recent(self.recent().with_grow(before.grow / 2));
        self.freed(before.free_run, order)
    }

    fn freed(&mut self, run_before: u32, order: Order) -> Freed {
        let used = Use {
            free_run: run_before,
            ..self.used()
        };
        let (rules, shortage) = (self.stack.rules, self.conditions.shortage());
        let state = &mut self.stack.state;
        let freed = rules.policy.freed(&rules, state, used, order, shortage);
        debug_assert!(freed.drain > 0 || used.count < freed.limit, "{freed:?}");
        let recent = self.recent().with_run(freed.free_run);
        self.set_recent(match self.stack.state.prev_high_order {
            true => recent.marked(),
            false => recent.unmarked(),
        });
        freed
    }

    /// Takes `count` frames or a little more, oldest first: singles or blocks of `first`, then the
    /// next order, and so on. Returns how many.
    pub(super) fn take(&mut self, count: u32, first: Order, scratch: &mut TransferScratch) -> u32 {
        const LISTS: usize = 5;
        let first = ListedBlocks::index(first).map_or(0, |index| index + 1);
        let mut taken = 0;
        for step in 0..LISTS {
            match (first + step) % LISTS {
                0 => taken += self.stack.take_oldest(count - taken, &mut scratch.frames),
                list => {
                    while taken < count
                        && let Some(block) = self.stack.blocks.pop_oldest(list - 1)
                    {
                        taken += frames_in(block.order());
                        scratch.blocks.push(block);
                    }
                }
            }
            if taken >= count {
                break;
            }
        }
        taken
    }

    /// Shrinks the list's size by a step; returns the frames to take.
    pub(super) fn decay(&mut self) -> u32 {
        let (rules, count) = (self.stack.rules, self.count());
        rules.decay(&mut self.stack.state, count)
    }

    /// Replaces the rules; returns the number of frames in excess.
    pub(super) fn set_rules(&mut self, rules: Rules) -> u32 {
        self.stack.rules = rules;
        let high = rules.clamp(&mut self.stack.state);
        if rules.policy.run_max(&rules) > 0 {
            let run = self.used().free_run.min(rules.policy.run_max(&rules));
            self.set_recent(self.recent().with_run(run));
        }
        self.count().saturating_sub(high)
    }
}

impl Drop for LockedList<'_> {
    /// Sets the count from which a push must apply the rules.
    fn drop(&mut self) {
        let (rules, frames) = (self.stack.rules, self.stack.blocks.frames);
        let run_max =
            u16::try_from(rules.policy.run_max(&rules)).map_or(RUN_MAX, |run| run.min(RUN_MAX));
        let shortage = self.conditions.shortage();
        let unlooked = rules.unlooked(&self.stack.state, shortage);
        self.stack
            .set_limits(unlooked.saturating_sub(frames), run_max);
        // Pairs with: the fence of `PcpLists::alarm`. Either pushes are refused after this, or the
        // new conditions are seen here.
        fence(Ordering::SeqCst);
        if self.conditions.shortage() != shortage {
            self.stack.set_limits(0, run_max);
        }
        let high = self.stack.state.high;
        let beyond = self.count().saturating_sub(high);
        let grown_by = high.saturating_sub(rules.high_min).max(beyond);
        self.beside.note(grown_by, frames);
    }
}
