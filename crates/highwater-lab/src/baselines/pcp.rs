//! Rules of per-CPU lists (pcp) that the library's are compared with: lists of a fixed size, those
//! of Linux 5.14 to 6.6, and drains in one hold of the zone's lock.
//!
//! | policy | `high` | a refill brings | a drain takes |
//! |---|---|---|---|
//! | `fixed` | `high_min` | `batch << grow` | the run of frees |
//! | `legacy` | `high_min` | `batch` | `batch << f`; each drain raises `f`, each allocation halves it |
//! | `auto` | moves | `batch << grow` | the run of frees |
//!
//! In `legacy`, the run of frees is that `f`, which has no bound but the list's size.
//!
//! Source: the frames-and-reclaim specification, section 5.1.

use std::fmt;

use highwater::frame::{
    AutoTuned, Freed, ListState, PcpPolicy, PcpSizes, Refill, Rules, Shortage, Use,
};
use highwater::units::Order;

/// How a CPU's list is sized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// Always as large as a list that is idle.
    Fixed,
    /// As Linux 5.14 to 6.6: of one size, and each drain takes twice as much as the one before it.
    Legacy,
    /// The library's.
    Auto,
}

/// How a list drains more than a batch at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// All under one hold of the zone's lock.
    OneHold,
    /// As Linux since October 2025: a batch at a time, with all locks dropped in between.
    Pieces,
    /// The library's: as many as a refill may bring, since its back end holds no lock.
    Capped,
}

/// Rules of the lists of a pool.
#[derive(Debug)]
struct Lists(Sizing, Drain);

static LISTS: [Lists; 9] = [
    Lists(Sizing::Fixed, Drain::OneHold),
    Lists(Sizing::Fixed, Drain::Pieces),
    Lists(Sizing::Fixed, Drain::Capped),
    Lists(Sizing::Legacy, Drain::OneHold),
    Lists(Sizing::Legacy, Drain::Pieces),
    Lists(Sizing::Legacy, Drain::Capped),
    Lists(Sizing::Auto, Drain::OneHold),
    Lists(Sizing::Auto, Drain::Pieces),
    Lists(Sizing::Auto, Drain::Capped),
];

impl Sizing {
    /// Returns the rules of lists that are sized so and drain as `drain` says.
    ///
    /// # Panics
    ///
    /// Never: all combinations are there.
    #[must_use]
    pub fn with(self, drain: Drain) -> &'static dyn PcpPolicy {
        let lists = LISTS
            .iter()
            .find(|lists| lists.0 == self && lists.1 == drain);
        lists.expect("all combinations are there")
    }
}

impl PcpPolicy for Lists {
    fn sizes(&self, sizes: PcpSizes) -> PcpSizes {
        let high_max = match self.0 {
            Sizing::Fixed | Sizing::Legacy => sizes.high_min,
            Sizing::Auto => sizes.high_max,
        };
        PcpSizes { high_max, ..sizes }
    }

    fn run_max(&self, rules: &Rules) -> u32 {
        match self.0 {
            // Pushes count none.
            Sizing::Legacy => 0,
            Sizing::Fixed | Sizing::Auto => AutoTuned.run_max(rules),
        }
    }

    fn refill(
        &self,
        rules: &Rules,
        list: &mut ListState,
        used: Use,
        order: Order,
        shortage: Shortage,
    ) -> Refill {
        if self.0 != Sizing::Legacy {
            return AutoTuned.refill(rules, list, used, order, shortage);
        }
        let blocks = match rules.batch {
            batch if rules.high_max < batch => 1,
            0 | 1 => 1,
            batch => (batch >> order.get()).max(2),
        };
        let grow = used.grow;
        Refill { blocks, grow }
    }

    fn freed(
        &self,
        rules: &Rules,
        list: &mut ListState,
        used: Use,
        order: Order,
        shortage: Shortage,
    ) -> Freed {
        match self.0 {
            Sizing::Legacy => freed_legacy(rules, list, used, order, shortage),
            Sizing::Fixed | Sizing::Auto => AutoTuned.freed(rules, list, used, order, shortage),
        }
    }

    fn piece(&self, rules: &Rules, count: u32) -> u32 {
        match self.1 {
            Drain::OneHold => count,
            Drain::Pieces => rules.batch.min(count),
            Drain::Capped => AutoTuned.piece(rules, count),
        }
    }
}

/// Largest order of blocks that lists hold, except huge ones.
const COSTLY: u8 = 3;

fn freed_legacy(
    rules: &Rules,
    list: &mut ListState,
    used: Use,
    order: Order,
    shortage: Shortage,
) -> Freed {
    let (batch, high, count) = (rules.batch, rules.high_max, used.count);
    list.prev_high_order = (1..=COSTLY).contains(&order.get());
    let is_drain_all = list.prev_high_order && used.free_run > 0;
    let limit = match shortage.reclaim_active {
        _ if is_drain_all => 0,
        true => (4 * batch).min(high),
        false => high,
    };
    let most = limit.saturating_sub(batch);
    let doubled = u32::try_from(u64::from(batch) << used.free_run.min(32)).unwrap_or(u32::MAX);
    let (drain, free_run) = match limit {
        _ if count < limit => (0, used.free_run),
        _ if is_drain_all => (count, used.free_run),
        _ if limit < batch => (1, used.free_run),
        _ => {
            let longer = used.free_run + u32::from(doubled < most);
            (doubled.max(batch).min(most).max(1), longer)
        }
    };
    Freed {
        limit,
        drain: drain.min(count),
        is_drain_all,
        free_run,
    }
}

impl fmt::Display for Sizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fixed => "fixed",
            Self::Legacy => "legacy",
            Self::Auto => "auto",
        })
    }
}

impl fmt::Display for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OneHold => "one-hold",
            Self::Pieces => "pieces",
            Self::Capped => "capped",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use highwater::frame::{AllocFlags, FramePool, PoolConfig, Tunables};
    use highwater::lab::memmap::FrameMemory;
    use highwater::units::{CpuId, Pages};

    use super::*;

    const CPU: CpuId = CpuId(0);

    fn pool_of(pages: u64, sizing: Sizing, drain: Drain, fraction: i64) -> FramePool {
        let memory = FrameMemory::new(Pages(pages)).expect("a small range");
        let tunables = Tunables::default().with("percpu_pagelist_high_fraction", fraction);
        let config = PoolConfig {
            policy: sizing.with(drain),
            tunables: tunables.expect("in range"),
            ..PoolConfig::new(1)
        };
        FramePool::with_config(Arc::new(memory), config).expect("a pool")
    }

    /// Goal: the baseline of the thread: drains double, bounded only by the list's size, and in one
    /// go, whatever the list holds, where a block is freed after frames. Method: frees alone on a
    /// list of 3,000 frames, and the frames that each drain took; then a block.
    #[test]
    fn legacy_drains_double_without_a_bound() {
        let pool = pool_of(300_000, Sizing::Legacy, Drain::OneHold, 100);
        let sizes = pool.zoneinfo().lists[0];
        assert_eq!(
            (sizes.batch, sizes.high_min, sizes.high_max),
            (63, 3000, 3000)
        );
        let mut frames = Vec::new();
        pool.at(CPU)
            .alloc_bulk(20_000, AllocFlags::new(), &mut frames);
        let order = Order::new(1).expect("in range");
        let block = pool.at(CPU).alloc_block(order, AllocFlags::new());
        let mut drains = Vec::new();
        for frame in frames.drain(..) {
            let before = pool.counters().drained;
            pool.at(CPU).free(frame);
            let drained = pool.counters().drained - before;
            drains.extend((drained > 0).then_some(drained));
        }
        assert_eq!(drains[..8], [63, 126, 252, 504, 1008, 2016, 2937, 2937]);
        let (held, before) = (pool.zoneinfo().lists[0].count, pool.counters());
        pool.at(CPU).free_block(block.expect("a block"));
        let seen = pool.counters().since(&before);
        assert_eq!((seen.drain_alls, seen.drained), (1, u64::from(held) + 2));
        pool.check_invariants();
    }

    /// Goal: frames are conserved under all rules. Method: random bursts of frees and allocations,
    /// with decays and reclaim between them; in the end all frames are free.
    #[test]
    fn all_rules_conserve_frames() {
        let mut random = fastrand::Rng::with_seed(7);
        for Lists(sizing, drain) in &LISTS {
            let pool = pool_of(20_000, *sizing, *drain, 0);
            let mut frames = Vec::new();
            for _ in 0..400 {
                let count = random.usize(..500);
                let _reclaiming = (random.u8(..8) == 0).then(|| pool.reclaiming());
                if random.bool() {
                    pool.at(CPU)
                        .alloc_bulk(count, AllocFlags::new(), &mut frames);
                } else {
                    let kept = frames.len().saturating_sub(count);
                    frames
                        .drain(kept..)
                        .for_each(|frame| pool.at(CPU).free(frame));
                }
                pool.decay_tick();
                pool.check_invariants();
            }
            pool.at(CPU).free_bulk(&mut frames);
            pool.drain_all();
            assert_eq!(pool.nr_free(), Pages(20_000), "{sizing}, {drain}");
        }
    }
}
