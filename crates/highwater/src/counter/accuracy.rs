//! Error bounds of approximate sums, and the error of a batch that is not usable.

use thiserror::Error;

use crate::units::Estimate;

/// Bounds on the error of the approximate sum of a counter at rest:
/// `precise - under <= approximate <= precise + over`. Both are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) struct Accuracy {
    /// Maximum by which the approximate sum is too low.
    pub under: i64,
    /// Maximum by which the approximate sum is too high.
    pub over: i64,
}

impl Accuracy {
    /// No error.
    pub(super) const EXACT: Self = Self { under: 0, over: 0 };

    /// Returns the interval of the precise sum when the approximate one is `value`.
    pub(super) fn around(self, value: i64) -> Estimate<i64> {
        Estimate {
            value,
            low: value.saturating_sub(self.over),
            high: value.saturating_add(self.under),
        }
    }

    pub(super) fn width(self) -> i64 {
        self.under.saturating_add(self.over)
    }

    /// Returns the accuracy when another `amount` may be missing or in excess.
    pub(super) fn widened(self, amount: i64) -> Self {
        Self {
            under: self.under.saturating_add(amount),
            over: self.over.saturating_add(amount),
        }
    }

    /// Returns the accuracy of the sum of two.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            under: self.under.saturating_add(other.under),
            over: self.over.saturating_add(other.over),
        }
    }
}

/// The batch is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) enum BatchError {
    /// Rounding is by shifts, and a batch of one would leave nothing to round.
    #[error("a batch of {batch} is not possible: use a power of two from 2 to 2147483648")]
    NotAPowerOfTwo {
        /// The batch as given.
        batch: u32,
    },
}
