//! Selection policy: cost, tolerance and eligibility.

use crate::units::{Bytes, OomScoreAdj};

use super::Standing;

/// A selection policy.
///
/// # Examples
///
/// ```
/// use highwater::units::Bytes;
/// use highwater::victim::Policy;
///
/// let cheap = Policy { indifferent_within: Bytes::mib(8), ..Policy::default() }; // stops there
/// let proven = Policy { reads_max: usize::MAX, ..Policy::default() }; // as many exact reads as it takes
/// let large_only = Policy { floor: Bytes::mib(1), ..Policy::default() };
/// # let _ = (cheap, proven, large_only);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Policy {
    /// Maximum number of exact reads; `usize::MAX` for as many as the proof takes. Default:
    /// [`Policy::READS_MAX`].
    ///
    /// The limit ends the search for a worse candidate, never the search for any: while no read
    /// candidate reaches the [floor](Self::floor), reading continues. With no reads at all the
    /// candidate of the highest lower bound is selected, if that bound reaches the floor.
    pub reads_max: usize,
    /// Stops once no candidate can be worse than the best by more than this. Default: nothing.
    pub indifferent_within: Bytes,
    /// Minimum usage of a victim: stopping a smaller one would free too little. Default, and least:
    /// one byte.
    pub floor: Bytes,
    /// Total that [`OomScoreAdj`] is thousandths of. Default: none, so that of the adjustments only
    /// [`OomScoreAdj::UNKILLABLE`] has an effect.
    pub total: Bytes,
    /// Reads the victim exactly even if intervals alone prove that it is the worst, for its number
    /// in the record. Default: off.
    pub reads_victim: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            reads_max: Self::READS_MAX,
            indifferent_within: Bytes::ZERO,
            floor: Bytes(1),
            total: Bytes::ZERO,
            reads_victim: false,
        }
    }
}

impl Policy {
    /// Default of [`reads_max`](Self::reads_max). Chosen: the limit of the published two-pass
    /// selection.
    pub const READS_MAX: usize = 16;

    /// Returns the badness of a candidate that uses `usage`, in bytes: usage and adjustment. Never
    /// [`i64::MIN`], and [`i64::MAX`] only for [`State::First`](super::State::First).
    #[inline]
    pub(super) fn badness(&self, standing: &Standing, usage: Bytes) -> i64 {
        /// The maximum for all states but `First`.
        const MOST: i64 = i64::MAX - 1;
        if standing.is_first() {
            return i64::MAX;
        }
        let adj = standing.oom_score_adj;
        if adj == OomScoreAdj::ZERO {
            return i64::try_from(usage.0).unwrap_or(MOST).min(MOST);
        }
        self.adjusted(adj, usage, MOST)
    }

    fn adjusted(&self, adj: OomScoreAdj, usage: Bytes, most: i64) -> i64 {
        let points = i128::from(adj.get()) * i128::from(self.total.0) / 1000;
        let score = i128::from(usage.0) + points;
        let score = score.clamp(i128::from(i64::MIN + 1), i128::from(most));
        i64::try_from(score).unwrap_or(most)
    }
}
