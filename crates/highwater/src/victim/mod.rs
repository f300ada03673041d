//! Victim selection (OOM badness): finds the candidate with most memory, with few exact reads.
//!
//! Each candidate's badness (usage and [`OomScoreAdj`]) is known as an interval in O(1), and
//! exactly at the cost of a walk over the CPUs it ran on. Selection passes all intervals to a
//! [`Selector`] once, and then reads exactly, in the order of upper bounds, until no other
//! candidate can be worse than the worst so far. Usually that takes a few reads of ten thousand, or
//! none.
//!
//! # Invariant
//!
//! Over the eligible candidates, while nothing changes:
//!
//! ```text
//! exact badness of the chosen  +  gap  >=  exact badness of every other
//! exact badness of the chosen  >=  highest lower bound         (unless a gap was indifferent)
//! ```
//!
//! The first line defines `gap`: it is the highest upper bound among the candidates not read, minus
//! the badness of the chosen, and those read are no worse. The second holds because the last read
//! that a policy allows goes to the candidate of the highest lower bound, if no read so far reaches
//! that. A gap of zero is a proof. Ties among read candidates go to the lowest number, and the same
//! state gives the same victim.
//!
//! # Memory
//!
//! Selection runs when memory is exhausted, so it allocates nothing: its memory was reserved with
//! the [`Selector`]. That is little: only the highest upper bounds need to be kept, as many as may
//! be read and one more for the gap: 17 entries, for any number of candidates. With fewer entries
//! than a search needs, all candidates are visited again, and the best of those that come after the
//! last one read are kept.
//!
//! # Parts
//!
//! | file | contents |
//! |---|---|
//! | `policy` | exact reads allowed, indifference, floor; badness |
//! | `select`, `rank` | the pass that keeps the highest upper bounds |
//! | `search` | exact reads, best first, and when they end |
//! | `choice` | the record |
//! | `groups` | the groups of a tree as candidates; [`ChosenGroup`] |
//!
//! Selecting changes nothing: the manager calls the embedder's handler, which stops the victim.
//!
//! Source: accounting spec 6; the two-pass selection proposed for Linux (M. Desnoyers, 2026), for
//! intervals before exact sums and the limit of 16. Deviations: best first instead of list order; a
//! candidate that was read exactly is never replaced by one that was not; the gap, floor and
//! indifference; a candidate that is being stopped and holds nothing is not waited for.

mod policy;
mod choice;
mod rank;
mod search;
mod select;
mod groups;
#[cfg(all(test, not(loom)))]
mod tests;

pub use choice::{Census, Choice, Decision, Proof, RunnerUp};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use groups::{ChosenGroup, select};
pub use policy::Policy;
pub use select::Selector;

use crate::units::{Bytes, Estimate, OomScoreAdj, Pages};

/// The candidates of a selection.
pub trait Candidates {
    /// Identifies a candidate. Ties go to the lowest.
    type Id: Copy + Ord;

    /// Calls `visit` with every candidate, once each, and its state as known in O(1). Called again
    /// when a search needs more passes.
    fn for_each(&self, visit: impl FnMut(Self::Id, &Standing));

    /// Returns a candidate's exact usage. `None` if it is gone.
    fn precise_usage(&self, id: Self::Id) -> Option<Bytes>;
}

/// A candidate's state as known in O(1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its usage.
    pub usage: Estimate<Bytes>,
    /// Its OOM score adjustment.
    pub oom_score_adj: OomScoreAdj,
    /// Its special state.
    pub state: State,
}

/// Special states of a candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    #[default]
    Ordinary,
    /// Stopped before all others, if it uses anything.
    First,
    /// Already being stopped. While it uses anything, no other candidate is. Not read: what counts
    /// is the upper bound of its usage.
    Dying,
    /// Left out of this selection.
    Spared,
}

impl From<Estimate<Bytes>> for Standing {
    /// An ordinary candidate with this usage.
    fn from(usage: Estimate<Bytes>) -> Self {
        Self {
            usage,
            oom_score_adj: OomScoreAdj::ZERO,
            state: State::Ordinary,
        }
    }
}

impl From<Estimate<Pages>> for Standing {
    /// An ordinary candidate with this usage.
    fn from(Estimate { value, low, high }: Estimate<Pages>) -> Self {
        Self::from(Estimate {
            value: value.bytes(),
            low: low.bytes(),
            high: high.bytes(),
        })
    }
}

impl Standing {
    fn is_first(&self) -> bool {
        self.state == State::First
    }
}
