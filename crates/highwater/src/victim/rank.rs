//! Candidates with their bounds, and their order of reading.
//!
//! A candidate's *rank* is its upper bound, with ties to the lower number: the candidate that may
//! be worst comes first.

use std::cmp::Ordering;

use super::{Policy, Standing};

/// Below every badness: the lower bound of a candidate that may not reach the floor.
pub(super) const UNSURE: i64 = i64::MIN;

/// A candidate and its bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankEntry<Id> {
    pub(super) upper: i64,
    pub(super) lower: i64,
    pub(super) id: Id,
    pub(super) standing: Standing,
}

/// An upper bound and its candidate. Greater ranks come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CandidateRank<Id> {
    pub(super) upper: i64,
    pub(super) id: Id,
}

impl<Id: Ord> Ord for CandidateRank<Id> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.upper.cmp(&self.upper).then(self.id.cmp(&other.id))
    }
}

impl<Id: Ord> PartialOrd for CandidateRank<Id> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<Id: Copy> RankEntry<Id> {
    pub(super) fn new(policy: &Policy, id: Id, upper: i64, standing: &Standing) -> Self {
        let lower = if standing.usage.low >= policy.floor {
            policy.badness(standing, standing.usage.low).min(upper)
        } else {
            UNSURE
        };
        Self {
            upper,
            lower,
            id,
            standing: *standing,
        }
    }

    pub(super) fn rank(&self) -> CandidateRank<Id> {
        CandidateRank {
            upper: self.upper,
            id: self.id,
        }
    }
}

impl<Id: Copy + Ord> Ord for RankEntry<Id> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl<Id: Copy + Ord> PartialOrd for RankEntry<Id> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<Id: Copy + Ord> PartialEq for RankEntry<Id> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<Id: Copy + Ord> Eq for RankEntry<Id> {}
