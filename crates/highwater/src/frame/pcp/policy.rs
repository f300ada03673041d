//! Auto-tuning of per-CPU lists (pcp): the rules for a list's size, pure arithmetic on its state.
//!
//! Three goals compete for a list's size: few visits to the zones (large lists, large transfers),
//! short holds of a zone's lock (small transfers), little idle memory (small lists that decay). A
//! list has
//!
//! | word | meaning | moved by |
//! |---|---|---|
//! | `count` | frames in it | everything |
//! | `high` | how many it may hold, from `high_min` to `high_max` | up by refills and by bursts of frees, down by decay and when memory is short |
//! | `free_run` | frees in a row | up by a free, halved by an allocation |
//! | `grow` | how often a refill doubles | up by a refill, halved by a free |
//! | `brought`, `drained` | frames moved since the last move the other way | up by a refill, and by a drain; to 0 by the other |
//!
//! A refill shows that a larger list would have saved a visit; that is the only reason to grow on
//! that side. A drain takes about as many as were freed in a row.
//!
//! A list that moves several times its maximum in one direction, and nothing in the other, belongs
//! to a CPU that allocates what others free, or frees what they allocate. However large it is, it
//! saves no visit, and while it fills up the others take cold frames for those that it holds. So it
//! holds one transfer, or its minimum if that is more, until the direction changes. A CPU that
//! allocates and frees by turns of more than four times the maximum is taken for such a one. It
//! makes about a third more visits at most, because a list would hold a quarter of such a turn.
//!
//! Other rules, for comparison with these, implement [`PcpPolicy`] in the lab.
//!
//! Source: the page allocator of Linux as the frames-and-reclaim specification describes it,
//! sections 4.3 to 4.8 (6.7 to 6.18), with the first two patches of the thread
//! pcp-batch-scale-review-2024: the run of frees never exceeds its cap, and decay does not
//! depend on the batch scale. Deviations: `high` falls by at least one in a decay (an eighth of 7
//! is 0, which would leave small lists above their minimum for ever); lists that move frames one
//! way are kept short (without that, 19,000 frames of a pool are touched where two CPUs hand over
//! 256 at a time, instead of 10,000 at most: `edge_tests.rs::frames_that_go_one_way_are_few`); a
//! list with a minimum of 0 may still grow, because only a maximum of 0 disables a list; a drain
//! moves at least one frame (a list as small as a batch would otherwise drain nothing and grow
//! without a bound).

use std::fmt;

use crate::frame::{PcpSizes, Tunables};
use crate::units::Order;

/// Doublings that bound what a decay moves, whatever the batch scale is.
const DECAY_SCALE: u32 = 5;
/// Frames go one way once a list has moved this many times its maximum in one direction. Chosen:
/// after a burst of frees of four times its maximum, a list still serves a quarter of as many
/// allocations.
const ONE_WAY: u32 = 4;
/// Largest order of blocks that lists hold, except huge ones.
pub(in crate::frame) const COSTLY: u8 = 3;

/// The rules in which designs of per-CPU lists differ. The defaults are the library's:
/// [`AutoTuned`].
pub trait PcpPolicy: fmt::Debug + Send + Sync {
    /// Returns the sizes of lists; `sizes` are those that follow from the pool and its tunables.
    fn sizes(&self, sizes: PcpSizes) -> PcpSizes {
        sizes
    }

    /// Returns the longest run of frees that a push counts: less than 2^12.
    fn run_max(&self, rules: &Rules) -> u32 {
        rules.cap()
    }

    /// Returns how much a list without a block of `order` brings from the zones, and moves its
    /// `high`: up, but down to one transfer where frames go one way.
    fn refill(
        &self,
        rules: &Rules,
        list: &mut ListState,
        used: Use,
        order: Order,
        shortage: Shortage,
    ) -> Refill {
        let mut grow = used.grow.min(rules.scale_max);
        let high = rules.clamp(list);
        if rules.high_max < rules.batch {
            return Refill { blocks: 1, grow };
        }
        let doubled = match order {
            Order::ZERO => rules.batch << grow,
            _ => rules.batch,
        };
        let held = used.count.saturating_add(rules.batch);
        if !rules.is_manual() && !shortage.below_high {
            let of_use = if rules.is_one_way(list) { held } else { high };
            let larger = of_use.saturating_add(doubled);
            list.high = within(larger, rules.high_min, rules.high_max);
        }
        let mut frames = doubled;
        if order == Order::ZERO {
            let room = list.high.saturating_sub(held).max(rules.batch);
            if doubled <= room && grow < rules.scale_max {
                grow += 1;
            }
            frames = doubled.min(room);
        }
        let blocks = match frames {
            0 | 1 => 1,
            _ => (frames >> order.get()).max(2),
        };
        list.bring(blocks << order.get());
        Refill { blocks, grow }
    }

    /// Applies the rules after a block of `order` has just been freed to the list. `used` counts
    /// the block; its run counts only the frees before it.
    fn freed(
        &self,
        rules: &Rules,
        list: &mut ListState,
        used: Use,
        order: Order,
        shortage: Shortage,
    ) -> Freed {
        let is_high_order = (1..=COSTLY).contains(&order.get());
        let extent = match is_high_order && rules.drains_all(list, used) {
            true => Extent::All,
            false => Extent::Excess,
        };
        let is_drain_all = extent == Extent::All;
        list.prev_high_order = is_high_order;
        let freed = u32::try_from(order.pages().0).expect("at most 1,024");
        // A run that is longer than a cap that was lowered is cut.
        let free_run = used.free_run.saturating_add(freed).min(rules.cap());
        let used = Use { free_run, ..used };
        let limit = rules.limit(list, used, shortage, extent);
        if used.count < limit {
            return Freed {
                limit,
                drain: 0,
                is_drain_all,
                free_run,
            };
        }
        let drain = rules.excess(used, limit, extent).min(used.count);
        list.drain(drain);
        Freed {
            limit,
            drain,
            is_drain_all,
            free_run,
        }
    }

    /// Returns how many of the `count` frames of a drain move in one visit to the zones: as many as
    /// a refill may bring. Smaller pieces shorten the holds of a lock, and the library's back end
    /// has none; each is one more visit, and with pieces of a batch a CPU that only frees, such as
    /// that of an allocator's purge thread, visited the zones 32 times as often as the CPUs whose
    /// frames it frees (`highwater lab pcp-remote`).
    fn piece(&self, rules: &Rules, count: u32) -> u32 {
        rules.cap().max(1).min(count)
    }
}

/// The library's rules, after those of Linux since 6.7: a list grows with each visit to the zones,
/// and shrinks when it is idle or memory is short.
#[derive(Clone, Copy, Debug)]
pub struct AutoTuned;

impl PcpPolicy for AutoTuned {}

/// The rules common to all lists of a pool, until a tunable is set.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub(in crate::frame) policy: &'static dyn PcpPolicy,
    /// Minimum number of frames moved at once.
    pub batch: u32,
    /// Capacity of an idle list; 0: lists hold nothing.
    pub high_min: u32,
    /// Capacity of the busiest list.
    pub high_max: u32,
    scale_max: u8,
    /// Whether a CPU's caches hold so many frames that a batch of blocks may stay.
    keeps_batch: bool,
}

/// The state that the rules keep for one list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListState {
    /// Current capacity of the list, in frames.
    pub high: u32,
    /// Whether the last free was that of a block of order 1 to 3.
    pub prev_high_order: bool,
    /// Frames that refills brought since the last drain.
    pub brought: u32,
    /// Frames that were drained since the last refill.
    pub drained: u32,
}

/// The contents of a list and its recent use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Frames in the list, those of blocks included.
    pub count: u32,
    /// Frees in a row.
    pub free_run: u32,
    /// Doublings of the next refill.
    pub grow: u8,
}

/// Shortage of memory in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Pages are being reclaimed.
    pub reclaim_active: bool,
    /// An allocation saw less free than the high watermark.
    pub below_high: bool,
}

/// How much of a list a free may drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// The excess above the limit.
    Excess,
    /// The whole list: blocks were freed in a row.
    All,
}

/// A refill from the zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refill {
    /// Number of blocks of the requested order.
    pub blocks: u32,
    /// Doublings of the refill after this one.
    pub grow: u8,
}

/// The result of a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// The list's limit: at this many or more, it drains.
    pub limit: u32,
    /// Frames to move to the zones; 0 if the list stays below the limit.
    pub drain: u32,
    /// Whether the drain is because blocks were freed in a row.
    pub is_drain_all: bool,
    /// The run of frees from now on.
    pub free_run: u32,
}

impl ListState {
    /// Counts frames that a refill asks for.
    fn bring(&mut self, frames: u32) {
        self.brought = self.brought.saturating_add(frames);
        self.drained = 0;
    }

    /// Counts frames of a drain.
    fn drain(&mut self, frames: u32) {
        self.drained = self.drained.saturating_add(frames);
        self.brought = 0;
    }
}

impl Rules {
    /// Returns the rules for lists of those sizes. `cache_frames` is the number of frames that fit
    /// one CPU's caches.
    pub(in crate::frame) fn new(
        policy: &'static dyn PcpPolicy,
        sizes: PcpSizes,
        tunables: &Tunables,
        cache_frames: u32,
    ) -> Self {
        let PcpSizes {
            batch,
            high_min,
            high_max,
        } = policy.sizes(sizes);
        Self {
            policy,
            batch,
            high_min,
            high_max,
            scale_max: tunables.pcp_batch_scale_max,
            keeps_batch: cache_frames > 3 * batch,
        }
    }

    /// Returns rules by which lists hold nothing. The batch stays, so that their frames leave in
    /// batches; of a disabled list, every free drains one frame and every refill brings one.
    pub(in crate::frame) fn disabled(self) -> Self {
        Self {
            high_min: 0,
            high_max: 0,
            ..self
        }
    }

    /// Returns the maximum number of frames that one refill or drain moves.
    pub(in crate::frame) fn cap(&self) -> u32 {
        self.batch << self.scale_max
    }

    /// Returns the state of a new list.
    pub(in crate::frame) fn initial(&self) -> ListState {
        ListState {
            high: self.high_min,
            prev_high_order: false,
            brought: 0,
            drained: 0,
        }
    }

    /// Whether the size is fixed.
    pub(in crate::frame) fn is_manual(&self) -> bool {
        self.high_min == self.high_max
    }

    /// Clamps `high` to the bounds, which may have changed since the list was last used.
    pub(in crate::frame) fn clamp(&self, list: &mut ListState) -> u32 {
        list.high = within(list.high, self.high_min, self.high_max);
        list.high
    }

    /// Whether frames only go through the list, in one direction.
    fn is_one_way(&self, list: &ListState) -> bool {
        list.brought.max(list.drained) / ONE_WAY > self.high_max
    }

    /// Whether blocks freed in a row show that this list's frames are wanted elsewhere.
    fn drains_all(&self, list: &ListState, used: Use) -> bool {
        used.free_run >= self.batch + self.high_min / 2
            && list.prev_high_order
            && (!self.keeps_batch || used.count >= self.batch)
    }

    /// Returns at how many frames a list drains; moves its `high`.
    fn limit(&self, list: &mut ListState, used: Use, shortage: Shortage, extent: Extent) -> u32 {
        let high = self.clamp(list);
        if self.high_max == 0 {
            return 0;
        }
        let run = used.free_run;
        let lower = |by: u32| high.saturating_sub(by).max(self.high_min);
        if extent == Extent::All {
            list.high = lower(self.cap());
            return 0;
        }
        if shortage.reclaim_active {
            list.high = lower(run.max(self.batch));
            return (4 * self.batch).min(list.high);
        }
        if self.is_manual() {
            return high;
        }
        if shortage.below_high {
            list.high = lower(run.max(self.batch));
            return used.count.max(self.high_min);
        }
        if used.count >= high {
            // A list holds a whole burst of frees, and more if that is of use.
            let burst = run.saturating_add(self.batch);
            let of_use = if self.is_one_way(list) { 0 } else { high };
            list.high = within(of_use.max(burst), self.high_min, self.high_max);
        }
        high
    }

    /// Returns how many frames a list at its limit drains.
    fn excess(&self, used: Use, limit: u32, extent: Extent) -> u32 {
        let most = limit.saturating_sub(self.batch);
        match extent {
            Extent::All => used.count.min(self.cap()),
            Extent::Excess if limit < self.batch => 1,
            Extent::Excess => within(used.free_run, self.batch, most).max(1),
        }
    }

    /// Returns the count below which a free need not apply the rules: they would neither drain the
    /// list nor move its `high`.
    pub(in crate::frame) fn unlooked(&self, list: &ListState, shortage: Shortage) -> u32 {
        let may_fall = !self.is_manual() && list.high > self.high_min;
        let limit = match shortage {
            Shortage {
                reclaim_active: true,
                ..
            } if may_fall => 0,
            Shortage {
                reclaim_active: true,
                ..
            } => (4 * self.batch).min(list.high),
            Shortage {
                below_high: true, ..
            } if may_fall => 0,
            _ => list.high,
        };
        // The free that reaches the limit applies them.
        limit.saturating_sub(1)
    }

    /// Shrinks a list's capacity by a step; returns how many frames it drains.
    pub(in crate::frame) fn decay(&self, list: &mut ListState, count: u32) -> u32 {
        let high = self.clamp(list);
        if high > self.high_min {
            let kept = count.saturating_sub(self.decay_max());
            let eighth = (high / 8).max(1);
            list.high = kept.max(high - eighth).max(self.high_min).min(high);
        }
        count.saturating_sub(list.high).min(self.decay_max())
    }

    /// Returns the maximum number of frames that one decay moves.
    pub(in crate::frame) fn decay_max(&self) -> u32 {
        self.batch << DECAY_SCALE
    }
}

/// Returns `value` clamped to the bounds, to the upper one if they are crossed.
const fn within(value: u32, least: u32, most: u32) -> u32 {
    let raised = if value > least { value } else { least };
    if raised < most { raised } else { most }
}
