//! Lengths of a group's lists, and which of the two is too long.

use std::iter::Sum;
use std::ops::Add;

use crate::units::Pages;

/// Lengths of a group's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ListSizes {
    /// Pages on the inactive list.
    pub inactive: Pages,
    /// Pages on the active list.
    pub active: Pages,
}

impl ListSizes {
    /// Pages on both lists.
    #[must_use]
    pub fn total(self) -> Pages {
        self.inactive + self.active
    }

    /// Whether the active list should be aged: it has outgrown the inactive list, by a factor that
    /// grows with both (1 below 1 GiB, 3 at 1 GiB, 10 at 10 GiB).
    pub(super) fn inactive_is_low(self) -> bool {
        const GIB_PAGES: u64 = 1 << 18;
        let gib = self.total().0 / GIB_PAGES;
        let ratio = if gib == 0 { 1 } else { (10 * gib).isqrt() };
        self.inactive.0 * ratio < self.active.0
    }
}

impl Add for ListSizes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            inactive: self.inactive + other.inactive,
            active: self.active + other.active,
        }
    }
}

impl Sum for ListSizes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), Add::add)
    }
}
