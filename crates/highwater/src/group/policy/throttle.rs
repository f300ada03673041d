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
//! most once per 112 KiB. The charge returns what was reserved
//! ([`Refilled`](crate::group::Refilled)), tokens included, and owes the delay for all of that.
//!
//! Source: accounting spec 8.4 (`mem_cgroup_handle_over_high`). Fixed point as there: `r` has 20
//! fraction bits and is rounded down.
//! Deviation: nanoseconds instead of ticks.

use std::time::Duration;

use crate::units::{Bytes, PAGE_BYTES};

/// Fraction bits of an [`Overage`].
const FRACTION_BITS: u32 = 20;

/// Longest delay for one charge. Chosen: the kernel's.
const DELAY_MAX: Duration = Duration::from_secs(2);

/// Delays up to this are ignored. Chosen: the kernel's.
const DELAY_IGNORED: Duration = Duration::from_millis(10);

/// The excess of a group over its `Limits::high`, as a fraction of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::group) struct Overage(u128);

impl Overage {
    /// Returns the overage of a group that uses `usage`. A `limit_high` below one page counts as
    /// one.
    pub(in crate::group) fn of(usage: Bytes, limit_high: Bytes) -> Self {
        let over = u128::from(usage.saturating_sub(limit_high).0);
        Self((over << FRACTION_BITS) / u128::from(limit_high.0.max(PAGE_BYTES)))
    }

    /// Returns the delay that a charge of `bytes` owes.
    pub(in crate::group) fn delay(self, bytes: Bytes) -> Duration {
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
