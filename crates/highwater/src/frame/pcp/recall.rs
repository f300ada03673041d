//! Frames in lists of other CPUs that are idle, for a CPU that would otherwise take fresh ones.
//!
//! A thread that goes on on another CPU leaves up to the list's `high` frames behind. They were
//! used, and stay resident; if the CPU they lie on does nothing, the next one touches as many fresh
//! frames. So before a refill takes fresh frames, it has idle lists give what they hold beyond
//! their least size. Lists in use are left alone: what they hold saves visits to the zones, and the
//! pool grows by it once.
//!
//! A list is idle when its header stayed as it is while other CPUs brought half as many frames as
//! it could give. Each refill looks at one other list, in turn, as long as there are fresh frames
//! at all.

use super::{At, PcpLists};
use crate::frame::stock::Stock;
use crate::sync::atomic::Ordering;
use crate::units::{CpuId, Order};

/// Idle lists are asked for frames if those are a larger part of all that were used than this.
/// Chosen: one in 32 costs a pool 3 % of the frames in use.
const RECALLED_SHARE: u64 = 32;

impl PcpLists {
    /// Before a refill of the list of `near` by so many blocks: looks whether another list is idle,
    /// and moves to the zones what idle lists hold beyond `kept` frames if the refill would take
    /// fresh ones. Lists that are held are passed by.
    pub(super) fn look_around(
        &self,
        stock: &Stock,
        near: CpuId,
        kept: u32,
        order: Order,
        blocks: usize,
    ) {
        let nr_lists = self.beside.len();
        if nr_lists == 1 || !stock.has_fresh() {
            return;
        }
        // Seen by one CPU in so many looks: what it brought stands for what all did.
        let brought = (blocks << order.get()) * nr_lists;
        let turn = usize::try_from(self.beside(near).events.refills.get()).unwrap_or_default();
        self.watch(CpuId::from_index(turn % nr_lists), brought as u64);
        if stock.is_short_of_used(order, blocks) {
            self.recall(stock, near, kept, order);
        }
    }

    /// Learns whether a list changed while so many frames were brought to others.
    fn watch(&self, cpu: CpuId, brought: u64) {
        let (beside, now) = (self.beside(cpu), self.trace_of(cpu));
        // Relaxed throughout: of two looks at once one may get lost.
        if beside.watched.swap(now, Ordering::Relaxed) == now {
            beside
                .brought_meanwhile
                .fetch_add(brought, Ordering::Relaxed);
        } else {
            beside.brought_meanwhile.store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    fn recall(&self, stock: &Stock, near: CpuId, kept: u32, order: Order) {
        let excess = |cpu: CpuId| {
            let excess = self.nr_cached_on(cpu).saturating_sub(kept);
            let is_idle = cpu != near && self.is_idle(cpu, excess);
            if is_idle { excess } else { 0 }
        };
        let recalled: u64 = self.stacks.cpus().map(|cpu| u64::from(excess(cpu))).sum();
        if recalled <= stock.nr_used().0 / RECALLED_SHARE {
            return;
        }
        for cpu in self.stacks.cpus() {
            let excess = excess(cpu);
            if excess > 0
                && let Some(list) = self.try_lock(At::On(cpu))
            {
                self.drain_list(stock, At::On(cpu), list, excess, order);
            }
        }
    }

    fn is_idle(&self, cpu: CpuId, excess: u32) -> bool {
        let beside = self.beside(cpu);
        // Relaxed: as in `watch`.
        let brought = beside.brought_meanwhile.load(Ordering::Relaxed);
        let watched = beside.watched.load(Ordering::Relaxed);
        brought >= u64::from(excess / 2) && watched == self.trace_of(cpu)
    }
}
