//! Refill and drain: moving frames between lists (pcp) and zones.
//!
//! A list's lock is never held while the zones are visited: frames are taken from the list before,
//! or put there afterwards, on whichever CPU the thread is then. In between they are in neither: a
//! transfer of more frames than a request gets is marked ([`Stock::withhold`]), so that no other
//! thread takes memory for exhausted meanwhile.

use super::policy::{Freed, Rules};
use super::scratch::TransferScratch;
use super::{At, IDLE_TICKS, LockedList, PcpLists};
use crate::frame::backend::Wait;
use crate::frame::stock::Stock;
use crate::frame::{AllocError, AllocFlags};
use crate::memmap::{Block, Frame};
use crate::sync::atomic::Ordering;
use crate::units::{CpuId, Order, Pages, Pfn};

impl PcpLists {
    /// Allocates a frame that the stack did not have.
    ///
    /// # Errors
    ///
    /// When the zones have none to give.
    #[cold]
    #[inline(never)]
    pub(in crate::frame) fn alloc_slow(
        &self,
        stock: &Stock,
        at: At,
        flags: AllocFlags,
    ) -> Result<Frame, AllocError> {
        // One is returned: nothing is appended.
        self.bring(stock, at, 1, flags, &mut Vec::new())
    }

    /// Allocates up to `count` frames, the first of which the stack did not have, and appends them
    /// to `out`; at least one.
    ///
    /// # Errors
    ///
    /// When the zones have none to give.
    #[cold]
    #[inline(never)]
    pub(in crate::frame) fn alloc_many_slow(
        &self,
        stock: &Stock,
        at: At,
        count: usize,
        flags: AllocFlags,
        out: &mut Vec<Frame>,
    ) -> Result<(), AllocError> {
        let first = self.bring(stock, at, count, flags, out)?;
        out.push(first);
        Ok(())
    }

    /// Visits the zones once, for `count` frames to hand out and for the refill of the list by the
    /// rules. One is returned, up to `count` - 1 are appended to `out`, and the others go to the
    /// list.
    fn bring(
        &self,
        stock: &Stock,
        at: At,
        count: usize,
        flags: AllocFlags,
        out: &mut Vec<Frame>,
    ) -> Result<Frame, AllocError> {
        let list = self.try_lock(at);
        let is_held = list.is_none();
        let (cpu, wanted, idle) = match list {
            Some(mut list) => {
                if let Some(frame) = list.pop() {
                    return Ok(frame);
                }
                let idle = list.rules().high_min;
                // As many refills as bringing them one by one would have taken.
                let cap = list.rules().cap().max(1) as usize;
                let first = list.refill(Order::ZERO).blocks as usize;
                let mut wanted = first;
                while wanted < count.min(cap) {
                    wanted += list.refill(Order::ZERO).blocks as usize;
                }
                (list.cpu(), wanted.min(cap).max(first), Some(idle))
            }
            None => {
                let cpu = self.near(at);
                self.beside(cpu).events.fallbacks.add(1);
                (cpu, 1, None)
            }
        };
        let kept =
            idle.filter(|_| flags.may_block() && self.look_around(stock, cpu, Order::ZERO, wanted));
        let mut scratch = TransferScratch::take();
        // A single frame is handed out; idle lists may give a block instead.
        let withholding = (wanted > 1 || kept.is_some()).then(|| stock.withhold());
        if let Some(kept) = kept {
            self.take_over(stock, cpu, kept, wanted, &mut scratch);
        }
        if scratch.frames.is_empty() {
            self.visit_zones(stock, cpu, wanted, count, flags, &mut scratch);
        }
        let nr_brought = scratch.frames.len();
        let first = scratch.frames.pop();
        let for_list = nr_brought.saturating_sub(count);
        out.extend(
            scratch
                .frames
                .drain(for_list.min(scratch.frames.len())..)
                .rev(),
        );
        if for_list > 0 {
            self.put(stock, at, flags.wait(), &mut scratch);
        }
        drop(withholding);
        scratch.keep();
        match first {
            Some(frame) => Ok(frame),
            None if is_held && flags.may_block() => self.bring_after_wait(stock, cpu, flags),
            None => Err(stock.refusal(Order::ZERO, flags)),
        }
    }

    /// Takes up to `wanted` frames from the zones, the lowest last. Up to `handed_out` of them may
    /// come from the reserve.
    fn visit_zones(
        &self,
        stock: &Stock,
        cpu: CpuId,
        wanted: usize,
        handed_out: usize,
        flags: AllocFlags,
        scratch: &mut TransferScratch,
    ) {
        scratch.pfns.resize(wanted, Pfn(0));
        let taken = stock.take(cpu, Order::ZERO, flags, handed_out, &mut scratch.pfns);
        self.look_at_watermark(stock);
        scratch.pfns.truncate(taken);
        let events = &self.beside(cpu).events;
        events.refills.add(u64::from(taken > 0));
        events.refilled.add(taken as u64);
        // The lowest is handed out at once, and the others in ascending order, as far as the zones
        // returned them so.
        scratch.pfns.reverse();
        stock.memory.claim_all(&scratch.pfns, &mut scratch.frames);
    }

    /// Waits for a list that was held when the zones had nothing. The former holder has left frames
    /// there (it read the list), or has given them to the zones (it drained the list).
    ///
    /// # Errors
    ///
    /// When neither has any.
    #[cold]
    fn bring_after_wait(
        &self,
        stock: &Stock,
        cpu: CpuId,
        flags: AllocFlags,
    ) -> Result<Frame, AllocError> {
        if let Some(frame) = self.lock(cpu).pop() {
            return Ok(frame);
        }
        let mut pfn = [Pfn(0)];
        if stock.take(cpu, Order::ZERO, flags, 1, &mut pfn) == 0 {
            return Err(stock.refusal(Order::ZERO, flags));
        }
        let events = &self.beside(cpu).events;
        events.refills.add(1);
        events.refilled.add(1);
        Ok(stock.memory.claim(pfn[0]))
    }

    /// Puts frames or blocks from the zones into a list, or back if they do not fit or the list is
    /// held.
    fn put(&self, stock: &Stock, at: At, wait: Wait, scratch: &mut TransferScratch) {
        if let Some(mut list) = self.try_lock(at) {
            list.put(scratch);
        }
        if !scratch.frames.is_empty() || !scratch.blocks.is_empty() {
            self.give(stock, self.near(at), wait, scratch);
        }
    }

    /// Stops the growth of lists while few frames are free.
    fn look_at_watermark(&self, stock: &Stock) {
        if stock.nr_free() < stock.watermarks().high {
            self.set_below_high();
        }
    }

    /// Frees a frame that the stack refused.
    #[cold]
    #[inline(never)]
    pub(in crate::frame) fn free_slow(&self, stock: &Stock, at: At, frame: Frame) {
        let Some(mut list) = self.try_lock(at) else {
            let cpu = self.near(at);
            self.beside(cpu).events.fallbacks.add(1);
            return Self::give_one(stock, cpu, Wait::Allowed, frame);
        };
        match list.push(frame) {
            Ok(freed) => self.drain_after(stock, at, list, freed, Order::ZERO),
            Err(frame) => {
                let cpu = list.cpu();
                drop(list);
                Self::give_one(stock, cpu, Wait::Allowed, frame);
            }
        }
    }

    /// Frees a frame without waiting for a lock: it may stay in the list beyond its limit, until
    /// the next free, or be deferred by the zones.
    pub(in crate::frame) fn free_unlooked(&self, stock: &Stock, at: At, frame: Frame) {
        let frame = match self.try_lock(at) {
            Some(mut list) => list.push_unlooked(frame),
            None => Err(frame),
        };
        if let Err(frame) = frame {
            Self::give_one(stock, self.near(at), Wait::Never, frame);
        }
    }

    fn give_one(stock: &Stock, cpu: CpuId, wait: Wait, frame: Frame) {
        let pfn = stock.memory.surrender(frame);
        stock.give(cpu, Order::ZERO, wait, &mut [pfn]);
    }

    /// Lets lists grow again once enough frames are free.
    fn look_whether_enough(&self, stock: &Stock) {
        if self.shortage().below_high && stock.nr_free() >= stock.watermarks().high {
            self.clear_below_high();
        }
    }

    /// Allocates a block, from the list of its order if there is one.
    ///
    /// # Errors
    ///
    /// When the zones have none to give.
    pub(in crate::frame) fn alloc_block(
        &self,
        stock: &Stock,
        at: At,
        order: Order,
        flags: AllocFlags,
    ) -> Result<Block, AllocError> {
        let list = super::is_listed(order).then(|| self.try_lock(at));
        let is_held = matches!(list, Some(None));
        let (cpu, wanted, idle) = match list {
            Some(Some(mut list)) => {
                if let Some(block) = list.pop_block(order) {
                    return Ok(block);
                }
                let idle = list.rules().high_min;
                (list.cpu(), list.refill(order).blocks as usize, Some(idle))
            }
            _ => (self.near(at), 1, None),
        };
        if let Some(kept) = idle.filter(|_| flags.may_block())
            && self.look_around(stock, cpu, order, wanted)
        {
            self.drain_idle_lists(stock, cpu, kept, order);
        }
        let mut scratch = TransferScratch::take();
        scratch.pfns.resize(wanted, Pfn(0));
        let withholding = (wanted > 1).then(|| stock.withhold());
        let taken = stock.take(cpu, order, flags, 1, &mut scratch.pfns);
        self.look_at_watermark(stock);
        let events = &self.beside(cpu).events;
        events.fallbacks.add(is_held.into());
        events.refills.add(u64::from(taken > 0));
        events.refilled.add((taken as u64) << order.get());
        let blocks = scratch.pfns[..taken].iter().rev();
        let blocks = blocks.map(|&first| stock.memory.claim_block(first, order));
        scratch.blocks.extend(blocks);
        let mut first = scratch.blocks.pop();
        if !scratch.blocks.is_empty() {
            self.put(stock, at, flags.wait(), &mut scratch);
        }
        drop(withholding);
        scratch.keep();
        if first.is_none() && is_held && flags.may_block() {
            // As for frames: the former holder may have left a block there.
            first = self.lock(cpu).pop_block(order);
        }
        first.ok_or_else(|| stock.refusal(order, flags))
    }

    /// Frees a block, to the list of its order if there is one.
    pub(in crate::frame) fn free_block(&self, stock: &Stock, at: At, block: Block) {
        let order = block.order();
        let list = super::is_listed(order).then(|| self.try_lock(at)).flatten();
        let Some(mut list) = list else {
            let cpu = self.near(at);
            let events = &self.beside(cpu).events;
            events.fallbacks.add(super::is_listed(order).into());
            let (first, order) = stock.memory.surrender_block(block);
            return stock.give(cpu, order, Wait::Allowed, &mut [first]);
        };
        let freed = list.push_block(block);
        self.drain_after(stock, at, list, freed, order);
    }

    /// Drains the excess after a free, blocks of `first` before others.
    fn drain_after(&self, stock: &Stock, at: At, list: LockedList<'_>, freed: Freed, first: Order) {
        if freed.drain == 0 {
            return;
        }
        let events = &self.beside(list.cpu()).events;
        events.drains.add(1);
        events.drain_alls.add(freed.is_drain_all.into());
        let drained = self.drain_list(stock, at, list, freed.drain, first);
        events.drained.add(drained.0);
        self.look_whether_enough(stock);
    }

    /// Moves `count` frames of a list to the zones, in pieces as the policy says; stops when
    /// the list is then held by another thread, is another CPU's, or is empty.
    ///
    /// Deviation: the specification (4.7) has a drain in pieces stop below the limit, too. Here a
    /// list drains as soon as it reaches the limit, so that its first piece would be its last, and
    /// a long run of frees would never move more than a batch.
    pub(super) fn drain_list<'a>(
        &'a self,
        stock: &Stock,
        at: At,
        mut list: LockedList<'a>,
        count: u32,
        first: Order,
    ) -> Pages {
        let (cpu, rules) = (list.cpu(), list.rules());
        let piece = rules.policy.piece(&rules, count);
        let mut scratch = TransferScratch::take();
        // While the list is locked: a thread that finds it empty sees the mark.
        let withholding = stock.withhold();
        let mut drained = 0;
        loop {
            drained += list.take(piece.min(count - drained), first, &mut scratch);
            drop(list);
            self.give(stock, cpu, Wait::Allowed, &mut scratch);
            if drained >= count {
                break;
            }
            match self.try_lock(at) {
                // Counted again: other threads took and put frames meanwhile.
                Some(again) if again.cpu() == cpu && again.count() > 0 => list = again,
                _ => break,
            }
        }
        drop(withholding);
        scratch.keep();
        Pages(drained.into())
    }

    /// Gives the frames and blocks in the scratch to the zones. No lock is held.
    fn give(&self, stock: &Stock, near: CpuId, wait: Wait, scratch: &mut TransferScratch) {
        let TransferScratch { frames, pfns, .. } = scratch;
        pfns.clear();
        stock.memory.surrender_all(frames, pfns);
        stock.give(near, Order::ZERO, wait, pfns);
        Self::give_blocks(stock, near, wait, scratch);
    }

    /// Gives the blocks in the scratch to the zones.
    pub(super) fn give_blocks(
        stock: &Stock,
        near: CpuId,
        wait: Wait,
        scratch: &mut TransferScratch,
    ) {
        let TransferScratch { blocks, pfns, .. } = scratch;
        while let Some(order) = blocks.last().map(Block::order) {
            pfns.clear();
            while blocks.last().is_some_and(|block| block.order() == order) {
                let block = blocks.pop().expect("there is a last one");
                pfns.push(stock.memory.surrender_block(block).0);
            }
            stock.give(near, order, wait, pfns);
        }
        pfns.clear();
    }

    /// Moves every frame of one list to the zones, a batch at a time. One that the thread cannot
    /// reach stays as it is.
    pub(in crate::frame) fn drain(&self, stock: &Stock, cpu: CpuId) -> Pages {
        let mut scratch = TransferScratch::take();
        let mut drained = 0;
        let mut left = None;
        while let Some(mut list) = self.reach(cpu) {
            // Counted under the lock. Bounded: a list that is filled as fast as it is drained is in
            // use.
            let most = *left.get_or_insert(list.count());
            // As in `drain_list`. Not for an empty list: requests that find all of them empty would
            // wait for one another.
            let withholding = (most > 0).then(|| stock.withhold());
            let taken = list.take(list.rules().batch.min(most), Order::ZERO, &mut scratch);
            drop(list);
            self.give(stock, cpu, Wait::Allowed, &mut scratch);
            drop(withholding);
            drained += taken;
            left = Some(most.saturating_sub(taken));
            if taken == 0 || left == Some(0) {
                break;
            }
        }
        scratch.keep();
        self.look_whether_enough(stock);
        Pages(drained.into())
    }

    /// Moves every frame of the lists that seem to have some to the zones.
    pub(in crate::frame) fn drain_filled(&self, stock: &Stock) -> Pages {
        let filled = self.stacks.cpus().filter(|&cpu| self.nr_cached_on(cpu) > 0);
        filled.map(|cpu| self.drain(stock, cpu)).sum()
    }

    /// Moves every frame of every list to the zones, also of lists that seem to be empty.
    pub(in crate::frame) fn drain_all(&self, stock: &Stock) -> Pages {
        self.stacks.cpus().map(|cpu| self.drain(stock, cpu)).sum()
    }

    /// Shrinks lists by a step; returns the frames that went to the zones.
    pub(in crate::frame) fn decay(&self, stock: &Stock) -> Pages {
        let decayed = self.stacks.cpus().map(|cpu| {
            let decayed = self.decay_one(stock, cpu);
            self.beside(cpu).events.decayed.add(decayed.0);
            decayed
        });
        let decayed = decayed.sum();
        self.look_whether_enough(stock);
        decayed
    }

    fn decay_one(&self, stock: &Stock, cpu: CpuId) -> Pages {
        let beside = self.beside(cpu);
        // Relaxed: one thread decays at a time, and a visit in vain loses nothing.
        let is_grown = beside.is_grown.load(Ordering::Relaxed);
        let seen = self.trace_of(cpu);
        if beside.last_seen.swap(seen, Ordering::Relaxed) != seen {
            beside.idle_ticks.store(0, Ordering::Relaxed);
        } else if self.nr_cached_on(cpu) > 0 {
            let ticks = beside.idle_ticks.fetch_add(1, Ordering::Relaxed) + 1;
            if ticks >= IDLE_TICKS {
                return self.drain_idle(stock, cpu);
            }
        }
        if !is_grown {
            return Pages::ZERO;
        }
        let Some(mut list) = self.reach(cpu) else {
            return Pages::ZERO;
        };
        match list.decay() {
            0 => Pages::ZERO,
            count => self.drain_list(stock, At::On(cpu), list, count, Order::ZERO),
        }
    }

    /// Empties the list of an idle CPU, unless its size was set by hand.
    fn drain_idle(&self, stock: &Stock, cpu: CpuId) -> Pages {
        let is_manual = self.stacks.look(cpu, |list, _| list.rules().is_manual());
        match is_manual {
            true => Pages::ZERO,
            false => self.drain(stock, cpu),
        }
    }

    /// Replaces the rules of all lists that the thread can reach; those that hold too many frames
    /// drain to the zones. Returns whether it has reached all.
    pub(in crate::frame) fn set_rules(&self, stock: &Stock, rules: Rules) -> bool {
        let cpus = self.stacks.cpus();
        // No short circuit: each list is tried.
        cpus.fold(true, |all, cpu| self.set_rules_of(stock, cpu, rules) & all)
    }

    fn set_rules_of(&self, stock: &Stock, cpu: CpuId, rules: Rules) -> bool {
        // Terminates: a list that takes no more frames than the rules allow has no excess.
        while let Some(mut list) = self.reach(cpu) {
            let excess = list.set_rules(rules);
            let drain = |list| self.drain_list(stock, At::On(cpu), list, excess, Order::ZERO);
            if excess == 0 || drain(list) == Pages::ZERO {
                return true;
            }
        }
        false
    }
}
