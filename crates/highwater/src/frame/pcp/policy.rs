//! The rules by which a per-CPU list finds its size: pure arithmetic on what the list knows.
//!
//! Three forces pull at a list: few visits to the zones (large lists, large transfers), short holds
//! of a zone's lock (small transfers), little idle memory (small lists that decay). A list has
//!
//! | word | what | moved by |
//! |---|---|---|
//! | `count` | frames in it | everything |
//! | `high` | how many it may hold, from `high_min` to `high_max` | up by refills and by bursts of frees, down by decay and when memory is short |
//! | `free_run` | frees in a row | up by a free, halved by an allocation |
//! | `grow` | how often a refill doubles | up by a refill, halved by a free |
//!
//! A refill says that a larger list would have saved a visit; that is the only reason to grow on
//! that side. A drain takes about as many as were freed in a row, so that a list which only ever
//! gets frames (its CPU frees what others allocated) holds few of them.
//!
//! | policy | `high` | a refill brings | a drain takes |
//! |---|---|---|---|
//! | [`Fixed`](PcpPolicy::Fixed) | `high_min` | `batch << grow` | the run of frees |
//! | [`Legacy`](PcpPolicy::Legacy) | `high_min` | `batch` | `batch << f`; each drain raises `f`, each allocation halves it |
//! | [`Auto`](PcpPolicy::Auto) | moves | `batch << grow` | the run of frees |
//!
//! In `Legacy`, `free_run` is that `f`, which has no bound but the list's size.
//!
//! Source: the page allocator of Linux as the frames-and-reclaim specification describes it,
//! sections 4.3 to 4.8 (6.7 to 6.18) and 5.1 (5.14 to 6.6), with the first two patches of the
//! thread pcp-batch-scale-review-2024: the run of frees never exceeds its cap, and decay does not
//! depend on the batch scale. Deviations: `high` falls by one at least in a decay (an eighth of 7
//! is 0, and would leave small lists above their least size for ever); a list whose least size is 0
//! may grow all the same, because only its largest size says that it is to hold nothing; a drain
//! moves one frame at least (a list that is as small as a batch would otherwise drain nothing and
//! grow without a bound).

use crate::frame::{PcpPolicy, PcpSizes, Tunables};
use crate::units::Order;

/// Doublings that bound what a decay moves, whatever the batch scale is.
const DECAY_SCALE: u32 = 5;
/// Largest order whose blocks are lists' business, but for huge ones.
pub(in crate::frame) const COSTLY: u8 = 3;

/// What is the same for all lists of a pool, until a knob is turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::frame) struct Rules {
    pub(in crate::frame) policy: PcpPolicy,
    /// Frames moved at once, at least.
    pub(in crate::frame) batch: u32,
    pub(in crate::frame) high_min: u32,
    pub(in crate::frame) high_max: u32,
    scale_max: u8,
    /// Whether a CPU's caches hold so many frames that a batch of blocks may stay.
    keeps_batch: bool,
}

/// What the rules remember of one list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::frame) struct ListState {
    /// Frames that the list may hold.
    pub(in crate::frame) high: u32,
    /// Whether the last free was that of a block of order 1 to 3.
    pub(in crate::frame) prev_high_order: bool,
}

/// What a list has and how it was used lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::frame) struct Use {
    /// Frames in the list, those of blocks included.
    pub(in crate::frame) count: u32,
    /// Frees in a row (in `Legacy`, the drain's doublings).
    pub(in crate::frame) free_run: u32,
    /// Doublings of the next refill.
    pub(in crate::frame) grow: u8,
}

/// How the pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::frame) struct Shortage {
    /// Pages are being reclaimed.
    pub(in crate::frame) reclaim_active: bool,
    /// An allocation saw less free than the high watermark.
    pub(in crate::frame) below_high: bool,
}

/// How much of a list a free may have drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// What is beyond the limit.
    Excess,
    /// The list: blocks were freed in a row.
    All,
}

/// What to bring from the zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::frame) struct Refill {
    /// How many blocks of the order that was asked for.
    pub(in crate::frame) blocks: u32,
    /// Doublings of the refill after this one.
    pub(in crate::frame) grow: u8,
}

/// What a free leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::frame) struct Freed {
    /// What the list may hold: at this many or more, it drains.
    pub(in crate::frame) limit: u32,
    /// Frames to move to the zones; 0 if the list stays below the limit.
    pub(in crate::frame) drain: u32,
    /// Whether that is because blocks were freed in a row.
    pub(in crate::frame) is_drain_all: bool,
    /// The run of frees (in `Legacy`, the doublings) from now on.
    pub(in crate::frame) free_run: u32,
}

impl Rules {
    /// The rules for lists of those sizes. `cache_frames` is what one CPU's caches hold.
    pub(in crate::frame) fn new(
        policy: PcpPolicy,
        sizes: PcpSizes,
        tunables: &Tunables,
        cache_frames: u32,
    ) -> Self {
        let PcpSizes {
            batch,
            high_min,
            high_max,
        } = sizes;
        let high_max = match policy {
            PcpPolicy::Fixed | PcpPolicy::Legacy => high_min,
            PcpPolicy::Auto => high_max,
        };
        Self {
            policy,
            batch,
            high_min,
            high_max,
            scale_max: tunables.pcp_batch_scale_max,
            keeps_batch: cache_frames > 3 * batch,
        }
    }

    /// Rules by which lists hold nothing. The batch stays, so that what they held leaves in pieces
    /// of it; of a list that may hold nothing, every free takes one frame and every refill brings
    /// one.
    pub(in crate::frame) fn disabled(self) -> Self {
        Self {
            high_min: 0,
            high_max: 0,
            ..self
        }
    }

    /// The most frames that one refill or drain moves, unless the policy is `Legacy`.
    pub(in crate::frame) fn cap(&self) -> u32 {
        self.batch << self.scale_max
    }

    /// The longest run of frees that a push counts: in `Legacy`, pushes count none.
    pub(in crate::frame) fn run_max(&self) -> u32 {
        match self.policy {
            PcpPolicy::Legacy => 0,
            PcpPolicy::Fixed | PcpPolicy::Auto => self.cap(),
        }
    }

    /// A list that was just made.
    pub(in crate::frame) fn initial(&self) -> ListState {
        ListState {
            high: self.high_min,
            prev_high_order: false,
        }
    }

    /// Whether the size does not move.
    pub(in crate::frame) fn is_manual(&self) -> bool {
        self.high_min == self.high_max
    }

    /// Bounds may have moved since the list was last looked at.
    pub(in crate::frame) fn clamp(&self, list: &mut ListState) -> u32 {
        list.high = within(list.high, self.high_min, self.high_max);
        list.high
    }

    /// How much a list without a block of `order` brings from the zones, and how much larger it may
    /// be afterwards.
    pub(in crate::frame) fn refill(
        &self,
        list: &mut ListState,
        used: Use,
        order: Order,
        shortage: Shortage,
    ) -> Refill {
        let mut grow = used.grow.min(self.scale_max);
        let high = self.clamp(list);
        if self.high_max < self.batch {
            return Refill { blocks: 1, grow };
        }
        let doubled = match (self.policy, order) {
            (PcpPolicy::Fixed | PcpPolicy::Auto, Order::ZERO) => self.batch << grow,
            _ => self.batch,
        };
        if !self.is_manual() && !shortage.below_high {
            list.high = high.saturating_add(doubled).min(self.high_max);
        }
        let mut frames = doubled;
        if order == Order::ZERO && self.policy != PcpPolicy::Legacy {
            let room = list
                .high
                .saturating_sub(used.count.saturating_add(self.batch));
            let room = room.max(self.batch);
            if doubled <= room && grow < self.scale_max {
                grow += 1;
            }
            frames = doubled.min(room);
        }
        let blocks = match frames {
            0 | 1 => 1,
            _ => (frames >> order.get()).max(2),
        };
        Refill { blocks, grow }
    }

    /// What becomes of a list when a block of `order` has just been put there. `used` counts the
    /// block, and its run those before it.
    pub(in crate::frame) fn freed(
        &self,
        list: &mut ListState,
        used: Use,
        order: Order,
        shortage: Shortage,
    ) -> Freed {
        let is_high_order = (1..=COSTLY).contains(&order.get());
        let extent = match is_high_order && self.drains_all(list, used) {
            true => Extent::All,
            false => Extent::Excess,
        };
        let is_drain_all = extent == Extent::All;
        list.prev_high_order = is_high_order;
        let free_run = match self.policy {
            PcpPolicy::Legacy => used.free_run,
            PcpPolicy::Fixed | PcpPolicy::Auto => {
                let freed = u32::try_from(order.pages().0).expect("at most 1,024");
                // A run that is longer than a cap that was lowered is cut.
                used.free_run.saturating_add(freed).min(self.cap())
            }
        };
        let used = Use { free_run, ..used };
        let limit = self.limit(list, used, shortage, extent);
        if used.count < limit {
            return Freed {
                limit,
                drain: 0,
                is_drain_all,
                free_run,
            };
        }
        let (drain, free_run) = self.excess(used, limit, extent);
        Freed {
            limit,
            drain: drain.min(used.count),
            is_drain_all,
            free_run,
        }
    }

    /// Whether blocks freed in a row say that this list's frames are wanted elsewhere.
    fn drains_all(&self, list: &ListState, used: Use) -> bool {
        match self.policy {
            PcpPolicy::Legacy => used.free_run > 0,
            PcpPolicy::Fixed | PcpPolicy::Auto => {
                used.free_run >= self.batch + self.high_min / 2
                    && list.prev_high_order
                    && (!self.keeps_batch || used.count >= self.batch)
            }
        }
    }

    /// At how many frames a list drains; moves its `high`.
    fn limit(&self, list: &mut ListState, used: Use, shortage: Shortage, extent: Extent) -> u32 {
        let high = self.clamp(list);
        if self.high_max == 0 {
            return 0;
        }
        let run = match self.policy {
            PcpPolicy::Legacy => 0,
            PcpPolicy::Fixed | PcpPolicy::Auto => used.free_run,
        };
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
            // A list holds a whole burst of frees.
            let burst = run.saturating_add(self.batch);
            list.high = within(high.max(burst), self.high_min, self.high_max);
        }
        high
    }

    /// How many frames a list at its limit gives away, and the run afterwards.
    fn excess(&self, used: Use, limit: u32, extent: Extent) -> (u32, u32) {
        let Use {
            count, free_run, ..
        } = used;
        let most = limit.saturating_sub(self.batch);
        match self.policy {
            PcpPolicy::Legacy if extent == Extent::All => (count, free_run),
            _ if extent == Extent::All => (count.min(self.cap()), free_run),
            _ if limit < self.batch => (1, free_run),
            PcpPolicy::Legacy => {
                let doubled = u32::try_from(u64::from(self.batch) << free_run.min(32));
                let doubled = doubled.unwrap_or(u32::MAX);
                let run = free_run + u32::from(doubled < most);
                (within(doubled, self.batch, most).max(1), run)
            }
            PcpPolicy::Fixed | PcpPolicy::Auto => {
                (within(free_run, self.batch, most).max(1), free_run)
            }
        }
    }

    /// Below how many frames a free need not look at the rules: they would neither drain the list
    /// nor move its `high`.
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
        // The free that reaches the limit looks.
        limit.saturating_sub(1)
    }

    /// Lets a list shrink a step: how many frames it gives away.
    pub(in crate::frame) fn decay(&self, list: &mut ListState, count: u32) -> u32 {
        let high = self.clamp(list);
        if high > self.high_min {
            let kept = count.saturating_sub(self.decay_max());
            let eighth = (high / 8).max(1);
            list.high = kept.max(high - eighth).max(self.high_min).min(high);
        }
        count.saturating_sub(list.high).min(self.decay_max())
    }

    /// The most frames that one decay moves.
    pub(in crate::frame) fn decay_max(&self) -> u32 {
        self.batch << DECAY_SCALE
    }
}

/// `value` within the bounds, the upper one if they are crossed.
const fn within(value: u32, least: u32, most: u32) -> u32 {
    let raised = if value > least { value } else { least };
    if raised < most { raised } else { most }
}
