//! What a selection may cost, how much it may be off, and who is worth stopping.

use crate::units::{Bytes, OomScoreAdj};

use super::Standing;

/// How a victim is chosen.
///
/// # Examples
///
/// ```
/// use highwater::units::Bytes;
/// use highwater::victim::Policy;
///
/// let cheap = Policy::default().indifferent_within_share(10); // stops at 1 %
/// let proven = Policy::default().reads_max(usize::MAX); // as many exact reads as it takes
/// let large_only = Policy::default().floor(Bytes::mib(1));
/// # let _ = (cheap, proven, large_only);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Policy {
    pub(super) reads_max: usize,
    pub(super) width: Bytes,
    pub(super) share: u32,
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
            share: 0,
            floor: Bytes(1),
            total: Bytes::ZERO,
            reads_victim: false,
        }
    }
}

impl Policy {
    /// Exact reads of one selection, unless it is told otherwise. Chosen: the limit of the
    /// published two-pass selection.
    pub const READS_MAX: usize = 16;

    /// Most candidates that are read exactly; `usize::MAX` for as many as the proof takes.
    ///
    /// The limit ends the search for a larger one, never the search for anybody: while none of
    /// those read reaches the [floor](Self::floor), reading goes on. With no reads at all the
    /// candidate of the highest lower bound is chosen, if that bound reaches the floor.
    pub const fn reads_max(mut self, nr_reads: usize) -> Self {
        self.reads_max = nr_reads;
        self
    }

    /// Stops once nobody can be worse than the best by more than `width`.
    pub const fn indifferent_within(mut self, width: Bytes) -> Self {
        self.width = width;
        self
    }

    /// Stops once nobody can be worse than the best by more than so many thousandths of the best.
    /// With a width as well, the larger of the two counts.
    pub const fn indifferent_within_share(mut self, thousandths: u32) -> Self {
        self.share = thousandths;
        self
    }

    /// Spares who uses fewer bytes than that: stopping them would give back too little. At least
    /// one byte, whatever is asked for.
    pub const fn floor(mut self, floor: Bytes) -> Self {
        self.floor = Bytes(if floor.0 == 0 { 1 } else { floor.0 });
        self
    }

    /// Reads the victim exactly also where intervals alone tell that it is the worst: for its
    /// number in the record.
    pub const fn reads_victim(mut self) -> Self {
        self.reads_victim = true;
        self
    }

    /// All of memory: what [`OomScoreAdj`] is thousandths of. Default: none, so that of the
    /// adjustments only [`OomScoreAdj::UNKILLABLE`] has an effect.
    pub const fn total(mut self, total: Bytes) -> Self {
        self.total = total;
        self
    }

    /// The badness of a candidate that uses `usage`, in bytes: usage and adjustment. Never
    /// [`i64::MIN`], and [`i64::MAX`] for who goes first only.
    #[inline]
    pub(super) fn badness(&self, standing: &Standing, usage: Bytes) -> i64 {
        /// The most of all but the first.
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

    /// How much worse another may be when the best has `badness`.
    pub(super) fn indifference(&self, badness: i64) -> u64 {
        let base = u128::from(u64::try_from(badness).unwrap_or(0));
        let share = base * u128::from(self.share) / 1000;
        self.width.0.max(u64::try_from(share).unwrap_or(u64::MAX))
    }
}
