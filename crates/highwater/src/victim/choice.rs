//! The record of a victim selection: the victim, its numbers, their certainty, and the cost.

use std::fmt;

use crate::units::{Bytes, Estimate, OomScoreAdj};

/// Result of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<C, D> {
    /// A victim was selected.
    Chosen(C),
    /// A candidate is already being stopped and will give memory back: wait.
    Wait {
        /// The dying candidate; the one that may use most if there are several.
        dying: D,
        /// Counts of the search.
        census: Census,
    },
    /// No candidate whose stopping would help.
    Nobody(Census),
}

impl<C, D> Decision<C, D> {
    /// Returns the victim, if one was selected.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn chosen(self) -> Option<C> {
        match self {
            Self::Chosen(chosen) => Some(chosen),
            Self::Wait { .. } | Self::Nobody(_) => None,
        }
    }
}

/// Counts of a selection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Census {
    /// Candidates visited.
    pub scanned: usize,
    /// Candidates that may be selected.
    pub eligible: usize,
    /// Eligible candidates whose upper bound reached the highest lower bound known at that point:
    /// at least as many as reach the final one.
    pub in_reach: usize,
    /// Exact reads.
    pub reads: usize,
    /// Passes over all candidates: one, if the reserved entries suffice.
    pub passes: usize,
}

/// Reason why a selection stopped reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Proof {
    /// No other candidate is worse.
    Proven,
    /// No other candidate is worse by more than the policy's indifference.
    Indifferent,
    /// The policy allows no more exact reads.
    ReadsSpent,
}

/// The candidate next to the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RunnerUp<Id> {
    /// The candidate.
    pub id: Id,
    /// Its badness, in bytes: exact if it was read, else its upper bound.
    pub badness: i64,
    /// Whether it was read exactly.
    pub is_exact: bool,
}

/// The selected victim, and the record of the decision.
///
/// Displays as one line for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Choice<Id> {
    /// The victim.
    pub id: Id,
    /// Its usage, as known without visiting any CPU.
    pub estimate: Estimate<Bytes>,
    /// Its exact usage; `None` if it was not read: because it is the worst by its interval alone,
    /// or the policy allows no exact reads.
    pub exact: Option<Bytes>,
    /// Its adjustment.
    pub oom_score_adj: OomScoreAdj,
    /// Its badness, in bytes: of its exact usage, otherwise of its lower bound. [`i64::MAX`] for
    /// one that is stopped before all others.
    pub badness: i64,
    /// The next candidate; `None` if no other is eligible.
    pub runner_up: Option<RunnerUp<Id>>,
    /// Upper bound on how much worse another candidate may be.
    ///
    /// # Accuracy
    ///
    /// While nothing changes: the exact badness of every eligible candidate is at most
    /// `badness + gap`. Oracle: `tests/victim.rs::no_other_is_worse_by_more_than_the_gap`.
    pub gap: Bytes,
    /// Reason why the search ended.
    pub proof: Proof,
    /// Cost of the search.
    pub census: Census,
}

impl<Id> Choice<Id> {
    /// Converts the candidates' ids by `name`.
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

    /// Returns its usage: exact if it was read, otherwise the lower bound.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn usage(&self) -> Bytes {
        self.exact.unwrap_or(self.estimate.low)
    }
}

/// Display of an amount that may be negative.
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
