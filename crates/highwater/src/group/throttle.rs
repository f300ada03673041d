//! Throttling: the delay that a group owes for exceeding its `Limits::high` (`memory.high`).
//!
//! `high` refuses nothing. A thread that charges above it first reclaims the excess; any excess
//! that remains incurs a throttling delay: negligible at one percent, seconds at a fifth, so that a
//! group which grows faster than it can be reclaimed is held where reclaim keeps up. With `r`, the
//! excess as a fraction of `high`, a charge of `bytes` owes
//!
//! ```text
//! 1 s x r^2 x bytes / 4,096,   at most 2 s,   nothing if that is 10 ms or less
//! ```
//!
//! and of a group and its ancestors the one with the largest `r` counts. This module only computes
//! the delay; the caller decides whether to sleep.
//!
//! `high` is checked when a charge reserves bytes on the ancestors, not when it finds tokens: at
//! most once per 128 KiB. The charge returns what was reserved ([`Refilled`]), tokens included, and
//! owes the delay for all of that.
//!
//! Source: accounting spec 8.4 (`mem_cgroup_handle_over_high`). Fixed point as there: `r` has 20
//! fraction bits and is rounded down.
//! Deviation: nanoseconds instead of ticks.

use std::time::Duration;

use crate::sync::atomic::Ordering;
use crate::units::{Bytes, PAGE_BYTES};

use super::charge::Charge;
use super::error::ChargeError;
use super::node::{GroupNode, Meta};
use super::slot::Actor;
use super::tree::{Core, GroupTree};

/// Fraction bits of an [`Overage`].
const FRACTION_BITS: u32 = 20;
/// Longest delay for one charge. Chosen: the kernel's.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// Delays up to this are ignored. Chosen: the kernel's.
const DELAY_IGNORED: Duration = Duration::from_millis(10);

/// The excess of a group over its `Limits::high`, as a fraction of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Overage(u128);

impl Overage {
    /// Returns the overage of a group that uses `usage`. A `limit_high` below one page counts as
    /// one.
    fn of(usage: Bytes, limit_high: Bytes) -> Self {
        let over = u128::from(usage.saturating_sub(limit_high).0);
        Self((over << FRACTION_BITS) / u128::from(limit_high.0.max(PAGE_BYTES)))
    }

    /// Returns the delay that a charge of `bytes` owes.
    fn delay(self, bytes: Bytes) -> Duration {
        const NANOS_PER_SEC: u128 = 1_000_000_000;
        let bytes = u128::from(bytes.0);
        let nanos = self
            .0
            .checked_mul(self.0)
            .and_then(|square| square.checked_mul(bytes))
            .and_then(|product| product.checked_mul(NANOS_PER_SEC))
            .map_or(u128::MAX, |product| {
                (product >> (2 * FRACTION_BITS)) / u128::from(PAGE_BYTES)
            });
        let delay = u64::try_from(nanos).map_or(DELAY_MAX, Duration::from_nanos);
        if delay <= DELAY_IGNORED {
            return Duration::ZERO;
        }
        delay.min(DELAY_MAX)
    }
}

/// Bytes that a charge reserved on its group and all ancestors, including tokens for later charges;
/// none if the charge was served from tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a group with a `high` is to be throttled by it"]
pub struct Refilled(pub Bytes);

impl Refilled {
    /// The charge was served from tokens.
    pub const NOTHING: Self = Self(Bytes::ZERO);
}

/// A group that uses more than its `Limits::high`.
#[derive(Clone, Debug)]
pub struct OverHigh {
    /// The group.
    pub group: GroupNode,
    /// Its usage: [`GroupNode::usage_precise`].
    pub usage: Bytes,
    /// Its `Limits::high`.
    pub limit_high: Bytes,
}

impl OverHigh {
    /// Returns the bytes above `limit_high`.
    #[must_use]
    pub fn over(&self) -> Bytes {
        self.usage.saturating_sub(self.limit_high)
    }
}

impl GroupTree {
    /// Whether any group has a `high`.
    ///
    /// # Cost
    ///
    /// One load.
    #[must_use]
    pub fn has_high(&self) -> bool {
        // Relaxed: a setting takes effect for the charges that begin after it; a thread that learns
        // of the setting by synchronization sees this count too.
        self.shared.core.nr_throttled.load(Ordering::Relaxed) > 0
    }
}

impl GroupNode {
    /// Like [`GroupNode::try_charge`], and returns what it reserved: if not zero, the group or one
    /// of its ancestors may be [over its `high`](Self::over_high).
    ///
    /// # Errors
    ///
    /// As [`GroupNode::try_charge`].
    pub fn try_charge_refilling(&self, bytes: Bytes) -> Result<(Charge, Refilled), ChargeError> {
        self.charge_as(Actor::Here, bytes)
    }

    /// Returns the group and those of its ancestors that exceed their `high`, the lowest first.
    ///
    /// # Cost
    ///
    /// A few loads for each; [`GroupNode::usage_precise`] for those that have a `high` and may
    /// exceed it.
    #[must_use]
    pub fn over_high(&self) -> Vec<OverHigh> {
        let core = &self.shared().core;
        let mut metas = std::iter::successors(Some(self.meta()), |meta| meta.parent.as_deref());
        // Most are not above: checked without a handle to each.
        if !metas.any(|meta| core.may_be_over_high(meta)) {
            return Vec::new();
        }
        let up = std::iter::successors(Some(self.clone()), Self::parent);
        up.filter_map(|group| group.own_over_high()).collect()
    }

    /// Returns the delay that a charge of `bytes` owes now, before any reclaim, from the group or
    /// ancestor that is furthest above its `high`. Zero if that is 10 ms or less, and at most 2 s.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::over_high`].
    #[must_use]
    pub fn throttle_delay(&self, bytes: Bytes) -> Duration {
        let overage = |over: &OverHigh| Overage::of(over.usage, over.limit_high);
        let worst = self.over_high().iter().map(overage).max();
        worst.unwrap_or_default().delay(bytes)
    }

    fn own_over_high(&self) -> Option<OverHigh> {
        if !self.shared().core.may_be_over_high(self.meta()) {
            return None;
        }
        let limit_high = self.meta().settings.high();
        let usage = self.usage_precise();
        (usage > limit_high).then(|| OverHigh {
            group: self.clone(),
            usage,
            limit_high,
        })
    }
}

impl Core {
    /// Changes a living group's `high`; a removed group takes no more charges.
    pub(super) fn set_limit_high(&self, group: &Meta, limit_high: Bytes) {
        let shape = self.shape.write();
        if self.slot(group.key.id).incarnation() == group.key.incarnation {
            self.count_high(group.settings.replace_high(limit_high), limit_high);
        }
        drop(shape);
    }

    /// Whether a group has a `high` and may exceed it, tokens included.
    fn may_be_over_high(&self, group: &Meta) -> bool {
        let limit_high = group.settings.high();
        limit_high < Bytes::MAX && self.usage(group.key.id).high > limit_high
    }

    /// Counts a change of a group's `high`; a new or removed group has none before or after. The
    /// caller holds the tree's lock for writing.
    pub(super) fn count_high(&self, former: Bytes, new: Bytes) {
        // Relaxed: see `GroupTree::has_high`.
        match (former < Bytes::MAX, new < Bytes::MAX) {
            (false, true) => _ = self.nr_throttled.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.nr_throttled.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::units::Pages;

    #[test]
    fn delays_are_those_of_the_kernel() {
        // Goal: accounting spec 8.4 by its published figures: high at 100 MB, 64 pages,
        // milliseconds. Method: 117 MB and above are as published; the others are the formula,
        // rounded down as there.
        let published = [
            (100, 0),
            (101, 0), // 6 ms, which are ignored
            (102, 25),
            (103, 57),
            (104, 102),
            (105, 159),
            (106, 230),
            (107, 313),
            (108, 409),
            (109, 518),
            (110, 639),
            (115, 1439),
            (116, 1638),
            (117, 1849),
            (118, 2000),
            (119, 2000),
            (200, 2000),
        ];
        for (usage, delay_ms) in published {
            let overage = Overage::of(Bytes::mib(usage), Bytes::mib(100));
            let delay = overage.delay(Pages(64).bytes());
            assert_eq!(delay.as_millis(), delay_ms, "{usage} MB of 100 MB");
        }
    }

    #[test]
    fn delays_grow_with_the_overage_and_with_the_charge() {
        // Goal: monotone, and within 10 ms to 2 s or nothing. Method: small cases exhaustively.
        for limit_high in 0..=20 {
            for bytes in 1..=70 {
                let mut before = Duration::ZERO;
                for usage in 0..=30 {
                    let overage = Overage::of(Pages(usage).bytes(), Pages(limit_high).bytes());
                    let charge = Bytes(bytes * 4000);
                    let delay = overage.delay(charge);
                    assert!(delay >= before && delay >= overage.delay(charge - Bytes(1)));
                    assert!(delay.is_zero() || (delay > DELAY_IGNORED && delay <= DELAY_MAX));
                    assert!(usage > limit_high || delay.is_zero());
                    before = delay;
                }
            }
        }
    }

    #[test]
    fn extreme_overages_owe_the_longest_delay() {
        // Goal: no division by zero and no overflow. Method: nothing allowed, and everything used.
        let batch = Pages(64).bytes();
        assert_eq!(Overage::of(Bytes(0), Bytes(0)).delay(batch), Duration::ZERO);
        let page = Pages(1).bytes();
        assert_eq!(Overage::of(page, Bytes(0)).delay(batch), DELAY_MAX);
        assert_eq!(
            Overage::of(Bytes(u64::MAX), Bytes(0)).delay(Bytes::MAX),
            DELAY_MAX
        );
        assert_eq!(
            Overage::of(Bytes(9), Bytes(1)).delay(Bytes(0)),
            Duration::ZERO
        );
        assert_eq!(Overage::of(Bytes(9), Bytes::MAX), Overage::default());
    }
}
