//! Allocating frames for pages: from the pool, and by the slow path (`slow.rs`) when it has none.

use super::Core;
use super::error::OutOfMemory;
use super::lumpy::LOOKS;
use super::slow::{Effort, Patience};
use crate::frame::{AllocError, AllocFlags, Pressure};
use crate::group::GroupNode;
use crate::memmap::Frame;
use crate::reclaim::OnItsWay;
use crate::units::{Order, Pages};

impl Core {
    /// Allocates a frame for a page in transit that `payer` pays for; reclaims if none is free.
    pub(super) fn alloc_frame(
        &self,
        payer: &GroupNode,
        order: Order,
        way: &OnItsWay<'_>,
    ) -> Result<Frame, OutOfMemory> {
        self.take_frame(order)
            .or_else(|exhausted| self.alloc_frame_again(payer, order, way, exhausted))
    }

    /// Allocates frames for readahead or for a thread that polls, and appends them to `frames`;
    /// returns their number. Makes at most one pass of reclaim.
    pub(super) fn alloc_frames_ahead(
        &self,
        (payer, order): (&GroupNode, Order),
        count: usize,
        patience: Patience,
        frames: &mut Vec<Frame>,
    ) -> usize {
        let mut effort = None;
        frames.reserve(count);
        let (before, wanted) = (frames.len(), frames.len() + count);
        while frames.len() < wanted {
            match self.take_frame(order) {
                Ok(frame) => frames.push(frame),
                Err(refusal) if effort.is_none() => {
                    let effort = effort.insert(match patience {
                        Patience::Polled => Effort::polled(),
                        _ => Effort::default(),
                    });
                    if matches!(refusal, AllocError::Fragmented { .. })
                        && self.evict_block(order, effort.actor(), LOOKS).is_found
                    {
                        continue;
                    }
                    effort.stall(self, payer);
                    self.wakeup.notify();
                    let goal = self.direct_goal(self.pool.managed().bytes());
                    let missing = (wanted - frames.len()) as u64;
                    let goal = goal.max(Pages(missing * order.pages().0));
                    self.reclaim_directly(&self.groups.root(), goal, effort);
                }
                Err(_) => break,
            }
        }
        frames.len() - before
    }

    /// Takes a free frame; wakes the background reclaimer if few are left.
    #[inline]
    pub(super) fn take_frame(&self, order: Order) -> Result<Frame, AllocError> {
        let (frame, pressure) = self.pool.alloc_for_page(order, AllocFlags::new())?;
        if pressure == Pressure::BelowLow {
            self.wakeup.notify();
        }
        Ok(frame)
    }
}
