//! Whom to stop when memory is gone: the one that holds most, found without asking everybody
//! exactly.
//!
//! Each candidate's badness (usage and [`OomScoreAdj`]) is known at once as an interval, and
//! exactly for the price of a walk over the CPUs it ran on. Selection shows all intervals to a
//! [`Selector`] once, and then reads exactly, beginning with the highest upper bound, until nobody
//! left can be worse than the worst known so far. Usually that takes a few reads of ten thousand,
//! or none.
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
//! The first is how `gap` is defined: it is the highest upper bound among those not read, minus the
//! badness of the chosen, and those read are no worse. The second holds because the last read that
//! a policy allows goes to the candidate of the highest lower bound, if nothing that was read
//! reaches that. A gap of zero is a proof. Among equals that were read the lowest number is chosen,
//! and the same state gives the same victim.
//!
//! # Memory
//!
//! Selection runs when memory is gone, so it allocates nothing: what it keeps was reserved with the
//! [`Selector`]. That is little. Only the highest upper bounds are worth keeping, as many as may be
//! read and one more for the gap: 17 entries, whatever the number of candidates. With fewer entries
//! than a search needs, all candidates are shown again, and the best of those that come after
//! the last one read are kept.
//!
//! # Parts
//!
//! | file | what |
//! |---|---|
//! | `policy` | exact reads allowed, indifference, floor; badness |
//! | `select`, `rank` | the pass that keeps the highest upper bounds |
//! | `search` | exact reads, best first, and when they end |
//! | `choice` | its record |
//! | `groups` | the groups of a tree as candidates; [`ChosenGroup`] |
//!
//! Selecting changes nothing: the manager tells the embedder, who knows what "stop it" means.
//!
//! Source: accounting spec 6; the two-pass selection proposed for Linux (M. Desnoyers, 2026), for
//! intervals before exact sums and the limit of 16. Deviation: best first instead of list order;
//! what was read exactly is never given up for what was not; the gap, floor and indifference; who
//! is being stopped and holds nothing is not waited for.

mod policy;
mod choice;
mod rank;
mod search;
mod select;
mod groups;
#[cfg(all(test, not(loom)))]
mod tests;

pub use choice::{Census, Choice, Decision, Proof, RunnerUp};
pub use groups::{ChosenGroup, select};
pub use policy::Policy;
pub use select::Selector;

use crate::units::{Bytes, Estimate, OomScoreAdj, Pages};

/// Those among whom a victim is chosen.
pub trait Candidates {
    /// What a candidate is known by. The lowest is chosen among equals.
    type Id: Copy + Ord;

    /// Shows every candidate to `visit`, once each, with what is known of it at once. Called again
    /// when a search needs more passes.
    fn for_each(&self, visit: impl FnMut(Self::Id, &Standing));

    /// What a candidate uses, exactly. `None` when it is gone.
    fn precise_usage(&self, id: Self::Id) -> Option<Bytes>;
}

/// What is known of a candidate at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What it uses.
    pub usage: Estimate<Bytes>,
    /// How willingly it is stopped.
    pub oom_score_adj: OomScoreAdj,
    /// What else there is to it.
    pub state: State,
}

/// What there is to a candidate beside its numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    #[default]
    Ordinary,
    /// It is stopped before all others, if it uses anything.
    First,
    /// It is being stopped already. As long as it uses something, nobody else is.
    Dying,
    /// It is left out this time.
    Spared,
}

impl Standing {
    /// One of whom nothing is known but what it uses.
    #[must_use]
    pub const fn of(usage: Estimate<Bytes>) -> Self {
        Self {
            usage,
            oom_score_adj: OomScoreAdj::ZERO,
            state: State::Ordinary,
        }
    }

    /// One of whom nothing is known but what was counted, in pages: a count that, however it was
    /// read, is not negative.
    #[must_use]
    pub fn of_counted(count: Estimate<i64>) -> Self {
        let Estimate { value, low, high } = count.positive();
        Self::of(Estimate {
            value: Pages(value).bytes(),
            low: Pages(low).bytes(),
            high: Pages(high).bytes(),
        })
    }

    /// The same with another adjustment.
    #[must_use]
    pub const fn with_adj(self, oom_score_adj: OomScoreAdj) -> Self {
        Self {
            oom_score_adj,
            ..self
        }
    }

    /// The same with another state.
    #[must_use]
    pub const fn with_state(self, state: State) -> Self {
        Self { state, ..self }
    }

    fn is_first(&self) -> bool {
        self.state == State::First
    }
}
