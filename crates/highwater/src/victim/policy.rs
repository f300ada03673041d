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
/// let cheap = Policy::default().indifferent_within(Bytes::mib(8)); // stops there
/// let proven = Policy::default().reads_max(usize::MAX); // as many exact reads as it takes
/// let large_only = Policy::default().floor(Bytes::mib(1));
/// # let _ = (cheap, proven, large_only);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Policy {
    pub(super) reads_max: usize,
    pub(super) width: Bytes,
    pub(super) floor: Bytes,
    pub(super) total: Bytes,
    pub(super) reads_victim: bool,
}

impl Default for Policy {
    /// [`Policy::READS_MAX`] exact reads, indifferent to nothing, a floor of one byte.
    fn default() -> Self {
        Self {
            reads_max: Self::READS_MAX,
            width: Bytes::ZERO,
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

    /// Sets the maximum number of exact reads; `usize::MAX` for as many as the proof takes.
    ///
    /// The limit ends the search for a worse candidate, never the search for any: while no read
    /// candidate reaches the [floor](Self::floor), reading continues. With no reads at all the
    /// candidate of the highest lower bound is selected, if that bound reaches the floor.
    pub const fn reads_max(mut self, nr_reads: usize) -> Self {
        self.reads_max = nr_reads;
        self
    }

    /// Stops once no candidate can be worse than the best by more than `width`.
    pub const fn indifferent_within(mut self, width: Bytes) -> Self {
        self.width = width;
        self
    }

    /// Sets the minimum usage of a victim: stopping a smaller one would free too little. At least
    /// one byte.
    pub const fn floor(mut self, floor: Bytes) -> Self {
        self.floor = Bytes(if floor.0 == 0 { 1 } else { floor.0 });
        self
    }

    /// Reads the victim exactly even if intervals alone prove that it is the worst, for its number
    /// in the record.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn reads_victim(mut self) -> Self {
        self.reads_victim = true;
        self
    }

    /// Sets the total that [`OomScoreAdj`] is thousandths of. Default: none, so that of the
    /// adjustments only [`OomScoreAdj::UNKILLABLE`] has an effect.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn total(mut self, total: Bytes) -> Self {
        self.total = total;
        self
    }

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
