//! What a selection says: whom it chose, on which numbers, how certainly, and what it cost.

use std::fmt;

use crate::units::{Bytes, Estimate, OomScoreAdj};

/// What came of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<C, D> {
    /// Somebody should be stopped.
    Chosen(C),
    /// Somebody is being stopped already and will give memory back: wait.
    Wait {
        /// Who, and if there are several, the one that may use most.
        dying: D,
        /// What was looked at.
        census: Census,
    },
    /// There is nobody whose stopping would help.
    Nobody(Census),
}

impl<C, D> Decision<C, D> {
    /// Who was chosen, if anybody.
    #[must_use]
    pub fn chosen(self) -> Option<C> {
        match self {
            Self::Chosen(chosen) => Some(chosen),
            Self::Wait { .. } | Self::Nobody(_) => None,
        }
    }
}

/// What a selection looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Census {
    /// Candidates that were shown.
    pub scanned: usize,
    /// Those of them that may be chosen.
    pub eligible: usize,
    /// Those of them whose upper bound reached the highest lower bound known by then. No fewer than
    /// reach the highest of all.
    pub in_reach: usize,
    /// Exact reads.
    pub reads: usize,
    /// Times that all candidates were shown: one, if the reserved entries suffice.
    pub passes: usize,
}

/// Why a selection read no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Proof {
    /// Nobody is worse.
    Proven,
    /// Nobody is worse by more than the policy cares about.
    Indifferent,
    /// The policy allows no more exact reads.
    ReadsSpent,
}

/// The one that comes closest to who was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RunnerUp<Id> {
    /// Who.
    pub id: Id,
    /// Its badness, in bytes: exact if it was read, else its upper bound.
    pub badness: i64,
    /// Whether it was read exactly.
    pub is_exact: bool,
}

/// Who should be stopped, and the record of how that was decided.
///
/// Shown, it is one line for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Choice<Id> {
    /// Who.
    pub id: Id,
    /// What it used, as known without visiting any CPU.
    pub estimate: Estimate<Bytes>,
    /// What it used exactly; `None` if it was not read: because it is the worst by its interval
    /// alone, or because the policy allows no exact reads.
    pub exact: Option<Bytes>,
    /// Its adjustment.
    pub oom_score_adj: OomScoreAdj,
    /// Its badness, in bytes: of its exact usage, else of its lower bound. [`i64::MAX`] for one
    /// that goes first.
    pub badness: i64,
    /// Who comes closest; `None` if nobody else is eligible.
    pub runner_up: Option<RunnerUp<Id>>,
    /// How much worse than this one another may be at most.
    ///
    /// # Accuracy
    ///
    /// While nothing changes: the exact badness of every eligible candidate is at most
    /// `badness + gap`. Oracle: `tests/victim.rs::no_other_is_worse_by_more_than_the_gap`.
    pub gap: Bytes,
    /// Why it ended there.
    pub proof: Proof,
    /// What it cost.
    pub census: Census,
}

impl<Id> Choice<Id> {
    /// The same with candidates named by `name`.
    pub(super) fn with_ids<Named>(self, name: impl Fn(Id) -> Named) -> Choice<Named> {
        let Self {
            estimate,
            exact,
            oom_score_adj,
            badness,
            gap,
            proof,
            census,
            ..
        } = self;
        Choice {
            id: name(self.id),
            runner_up: self.runner_up.map(|next| RunnerUp {
                id: name(next.id),
                badness: next.badness,
                is_exact: next.is_exact,
            }),
            estimate,
            exact,
            oom_score_adj,
            badness,
            gap,
            proof,
            census,
        }
    }

    /// What it used: exactly if it was read, else at least.
    #[must_use]
    pub fn usage(&self) -> Bytes {
        self.exact.unwrap_or(self.estimate.low)
    }
}

/// An amount that may be negative, as it is shown.
struct Badness(i64);

impl fmt::Display for Badness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(f, "{sign}{}", Bytes(self.0.unsigned_abs()))
    }
}

impl<Id: fmt::Display> fmt::Display for Choice<Id> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            estimate,
            badness,
            gap,
            ..
        } = self;
        match self.exact {
            Some(exact) => write!(f, "{id}: {exact} (estimate {estimate})")?,
            None => write!(f, "{id}: estimate {estimate}, not read")?,
        }
        if self.badness == i64::MAX {
            write!(f, ", goes first")?;
        } else if self.oom_score_adj != OomScoreAdj::ZERO {
            let adj = self.oom_score_adj;
            write!(
                f,
                ", badness {} with oom_score_adj {adj}",
                Badness(*badness)
            )?;
        }
        match self.proof {
            Proof::Proven => write!(f, "; proven")?,
            Proof::Indifferent => write!(f, "; another may have {gap} more, which is indifferent")?,
            Proof::ReadsSpent => write!(f, "; another may have {gap} more, reads are spent")?,
        }
        if let Some(next) = &self.runner_up {
            let at_most = if next.is_exact { "" } else { "at most " };
            write!(
                f,
                "; next {} with {at_most}{}",
                next.id,
                Badness(next.badness)
            )?;
        }
        let Census {
            scanned,
            eligible,
            in_reach,
            reads,
            passes,
        } = self.census;
        write!(
            f,
            "; {scanned} scanned, {eligible} eligible, {in_reach} in reach, {reads} read, {passes} {}",
            if passes == 1 { "pass" } else { "passes" }
        )
    }
}
