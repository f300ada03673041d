//! The delay that a group owes for using more than its `Limits::high`.
//!
//! `high` refuses nothing. Who charges beyond it reclaims what is beyond, and if that does not bring
//! the group back, is slowed down: by nothing worth mentioning for a percent, by seconds for a fifth,
//! so that a group which grows faster than it can be reclaimed is held where reclaim keeps up.
//! With `r`, the part of `high` by which a group is above it, a charge of `pages` owes
//!
//! ```text
//! 64 s x r^2 x pages / 64,   at most 2 s,   nothing if that is 10 ms or less
//! ```
//!
//! and of a group and its ancestors the one with the largest `r` counts. This module computes; nobody
//! is put to sleep who did not ask for it.
//!
//! Source: accounting spec 8.4. Fixed point as there: `r` has 20 fraction bits and is rounded down.
//! Deviation: nanoseconds instead of ticks.

use std::time::Duration;

use crate::units::Pages;

/// Fraction bits of an [`Overage`].
const FRACTION_BITS: u32 = 20;
/// Longest delay for one charge. Chosen: as the kernel's.
pub(crate) const DELAY_MAX: Duration = Duration::from_secs(2);
/// Delays up to this are not worth a sleep. Chosen: as the kernel's.
pub(crate) const DELAY_IGNORED: Duration = Duration::from_millis(10);

/// By what part of its `Limits::high` a group is above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Overage(u128);

impl Overage {
    /// Of a group that uses `usage`. A `limit_high` of zero counts as one page.
    pub(crate) fn of(usage: Pages, limit_high: Pages) -> Self {
        let over = u128::from(usage.saturating_sub(limit_high).0);
        Self((over << FRACTION_BITS) / u128::from(limit_high.0.max(1)))
    }

    /// What a charge of `pages` owes.
    pub(crate) fn delay(self, pages: Pages) -> Duration {
        const NANOS_PER_SEC: u128 = 1_000_000_000;
        let pages = u128::from(pages.0);
        let nanos = self
            .0
            .checked_mul(self.0)
            .and_then(|square| square.checked_mul(pages))
            .and_then(|product| product.checked_mul(NANOS_PER_SEC))
            .map_or(u128::MAX, |product| product >> (2 * FRACTION_BITS));
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
    use crate::units::Bytes;

    #[test]
    fn delays_are_those_of_the_kernel() {
        // Goal: accounting spec 8.4 by its published figures: high at 100 MB, 64 pages, milliseconds.
        // Method: 117 MB and above are as published; the others are the formula, rounded down as there.
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
            let at = |mib| Bytes::mib(mib).pages_floor();
            let delay = Overage::of(at(usage), at(100)).delay(Pages(64));
            assert_eq!(delay.as_millis(), delay_ms, "{usage} MB of 100 MB");
        }
    }

    #[test]
    fn delays_grow_with_the_overage_and_with_the_charge() {
        // Goal: monotone, and within 10 ms to 2 s or nothing. Method: small cases exhaustively.
        for limit_high in 0..=20 {
            for pages in 1..=70 {
                let mut before = Duration::ZERO;
                for usage in 0..=30 {
                    let overage = Overage::of(Pages(usage), Pages(limit_high));
                    let delay = overage.delay(Pages(pages));
                    assert!(delay >= before && delay >= overage.delay(Pages(pages - 1)));
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
        assert_eq!(
            Overage::of(Pages(0), Pages(0)).delay(Pages(64)),
            Duration::ZERO
        );
        assert_eq!(Overage::of(Pages(1), Pages(0)).delay(Pages(64)), DELAY_MAX);
        assert_eq!(
            Overage::of(Pages(u64::MAX), Pages(0)).delay(Pages::MAX),
            DELAY_MAX
        );
        assert_eq!(
            Overage::of(Pages(9), Pages(1)).delay(Pages(0)),
            Duration::ZERO
        );
        assert_eq!(Overage::of(Pages(9), Pages::MAX), Overage::default());
    }
}
