//! Recall: frames in idle lists of other CPUs (pcp) are taken over before fresh frames are touched.
//!
//! A thread that migrates leaves up to the list's `high` frames behind. They were used, and stay
//! resident; while their CPU is idle, the new CPU would touch as many fresh frames. So a refill
//! that would take fresh frames takes over the oldest frames of idle lists instead, down to the
//! minimum size of those lists. They move from list to list without a visit to the back end. Blocks
//! in those lists go to the back end, where they can merge. Lists in use are left alone: their
//! frames save visits to the back end, and the pool grows by them once.
//!
//! A list is idle when its header did not change while other CPUs brought half as many frames as it
//! could give. Each refill checks one other list, in turn, as long as there are fresh frames at
//! all.

use super::scratch::TransferScratch;
use super::{At, PcpLists};
use crate::frame::backend::Wait;
use crate::frame::stock::Stock;
use crate::sync::atomic::Ordering;
use crate::units::{CpuId, Order};

/// Frames are recalled from idle lists if those are more than one in this many of all used frames.
/// Chosen: one in 32 costs a pool 3 % of the frames in use.
const RECALLED_SHARE: u64 = 32;

impl PcpLists {
    /// Checks whether another list is idle, before a refill of the list of `near` by `blocks`
    /// blocks. Returns whether the refill would take fresh frames, so that idle lists should be
    /// tried first.
    pub(super) fn look_around(
        &self,
        stock: &Stock,
        near: CpuId,
        order: Order,
        blocks: usize,
    ) -> bool {
        let nr_lists = self.beside.len();
        if nr_lists == 1 || !stock.has_fresh() {
            return false;
        }
        // Each CPU checks a given list once in so many refills: its own frames stand for those of
        // all CPUs.
        let brought = (blocks << order.get()) * nr_lists;
        let turn = usize::try_from(self.beside(near).events.refills.get()).unwrap_or_default();
        self.watch(CpuId::from_index(turn % nr_lists), brought as u64);
        stock.is_short_of_used(order, blocks)
    }

    /// Records whether a list changed while others were brought that many frames.
    fn watch(&self, cpu: CpuId, brought: u64) {
        let (beside, now) = (self.beside(cpu), self.trace_of(cpu));
        // Relaxed throughout: one of two concurrent checks may get lost.
        if beside.watched.swap(now, Ordering::Relaxed) == now {
            beside
                .brought_meanwhile
                .fetch_add(brought, Ordering::Relaxed);
        } else {
            beside.brought_meanwhile.store(0, Ordering::Relaxed);
        }
    }

    /// Takes up to `count` frames over from idle lists, which keep `kept` each, into `scratch`.
    /// Skips lists that are held.
    #[cold]
    pub(super) fn take_over(
        &self,
        stock: &Stock,
        near: CpuId,
        kept: u32,
        count: usize,
        scratch: &mut TransferScratch,
    ) {
        let mut missing = u32::try_from(count).unwrap_or(u32::MAX);
        for (cpu, excess) in self.idle_lists(stock, near, kept) {
            if missing > 0
                && let Some(mut list) = self.try_lock(At::On(cpu))
            {
                let taken = list.take(excess.min(missing), Order::ZERO, scratch);
                drop(list);
                missing = missing.saturating_sub(taken);
                // Relaxed: as in `watch`. The list is as idle as before.
                let trace = self.trace_of(cpu);
                self.beside(cpu).watched.store(trace, Ordering::Relaxed);
                // Blocks that were taken once single frames ran out.
                Self::give_blocks(stock, cpu, Wait::Allowed, scratch);
            }
        }
        let taken = scratch.frames.len() as u64;
        self.beside(near).events.recalled.add(taken);
    }

    /// Drains idle lists down to `kept` frames each to the back end, where frames merge into
    /// blocks. Skips lists that are held.
    #[cold]
    pub(super) fn drain_idle_lists(&self, stock: &Stock, near: CpuId, kept: u32, order: Order) {
        for (cpu, excess) in self.idle_lists(stock, near, kept) {
            if let Some(list) = self.try_lock(At::On(cpu)) {
                let drained = self.drain_list(stock, At::On(cpu), list, excess, order);
                self.beside(near).events.recalled.add(drained.0);
            }
        }
    }

    /// Returns the idle lists other than that of `near`, with the frames that each holds beyond
    /// `kept`; none if those are not worth the visits.
    fn idle_lists(
        &self,
        stock: &Stock,
        near: CpuId,
        kept: u32,
    ) -> impl Iterator<Item = (CpuId, u32)> {
        let excess = move |cpu: CpuId| {
            let excess = self.nr_cached_on(cpu).saturating_sub(kept);
            let is_idle = excess > 0 && cpu != near && self.is_idle(cpu, excess);
            is_idle.then_some((cpu, excess))
        };
        let all: u64 = self
            .stacks
            .cpus()
            .filter_map(excess)
            .map(|(_, excess)| u64::from(excess))
            .sum();
        let is_worthwhile = all > stock.nr_used().0 / RECALLED_SHARE;
        let cpus = is_worthwhile.then(|| self.stacks.cpus());
        cpus.into_iter().flatten().filter_map(excess)
    }

    fn is_idle(&self, cpu: CpuId, excess: u32) -> bool {
        let beside = self.beside(cpu);
        // Relaxed: as in `watch`.
        let brought = beside.brought_meanwhile.load(Ordering::Relaxed);
        let watched = beside.watched.load(Ordering::Relaxed);
        brought >= u64::from(excess / 2) && watched == self.trace_of(cpu)
    }
}
