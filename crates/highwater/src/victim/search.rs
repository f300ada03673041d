//! The search: exact reads, best first, until no other candidate can beat the leader.
//!
//! The *leader* is the worst candidate read, or the one of the highest lower bound: one that is
//! above all others by intervals alone need not be read at all. Reading in the order of ranks, the
//! search ends at the first rank that cannot beat the leader: none after it can. (A candidate whose
//! upper bound equals the leader's badness can, if its number is lower.)

use crate::units::Bytes;

use super::choice::{Census, Choice, Decision, Proof, RunnerUp};
use super::rank::{CandidateRank, RankEntry, UNSURE};
use super::{Candidates, Policy};

/// A candidate and its badness: exact if it was read, otherwise a lower bound.
#[derive(Clone, Copy)]
struct Best<Id> {
    entry: RankEntry<Id>,
    exact: Option<Bytes>,
    badness: i64,
}

/// State of a search between its reads.
pub(super) struct Search<'a, C: Candidates> {
    candidates: &'a C,
    policy: &'a Policy,
    census: Census,
    /// The candidate of the highest lower bound, until it is read.
    surest: Option<RankEntry<C::Id>>,
    /// A candidate that was read early, and is skipped at its turn.
    early: Option<C::Id>,
    /// The worst candidate read.
    best: Option<Best<C::Id>>,
    second: Option<RunnerUp<C::Id>>,
}

impl<Id: Copy + Ord> Best<Id> {
    fn beats(&self, other: &Self) -> bool {
        self.badness > other.badness
            || (self.badness == other.badness && self.entry.id < other.entry.id)
    }
}

/// The end of a search.
pub(super) struct End<Id> {
    /// The first rank that was not read, other than the victim's own.
    pub(super) rival: Option<CandidateRank<Id>>,
}

impl<'a, C: Candidates> Search<'a, C> {
    /// Starts a search after a first pass with the counts `census` and the candidate `surest` of
    /// the highest lower bound.
    pub(super) fn new(
        candidates: &'a C,
        policy: &'a Policy,
        census: Census,
        surest: Option<RankEntry<C::Id>>,
    ) -> Self {
        debug_assert!(
            census.in_reach <= census.eligible && census.eligible <= census.scanned,
            "each count is a part of the one before: {census:?}"
        );
        Self {
            candidates,
            policy,
            census,
            surest,
            early: None,
            best: None,
            second: None,
        }
    }

    /// Counts a further pass.
    pub(super) fn began_pass(&mut self) {
        debug_assert!(self.census.reads > 0, "a further pass comes after reads");
        self.census.passes += 1;
    }

    /// Returns the end if intervals alone determine the victim: then none is read, and no order is
    /// needed.
    pub(super) fn settled_at_once(
        &self,
        entries: &[RankEntry<C::Id>],
        left_out: Option<CandidateRank<C::Id>>,
    ) -> Option<End<C::Id>> {
        let leader = self.leader()?.entry.id;
        let others = entries.iter().filter(|entry| entry.id != leader);
        let rival = others.map(RankEntry::rank).min().or(left_out);
        let is_settled = rival.is_none_or(|rival| self.is_over(&rival));
        (is_settled && self.victim_to_read().is_none()).then_some(End { rival })
    }

    /// Reads candidates in the order of their ranks until the search ends. Returns `None` if all
    /// were read. `left_out` is the first rank after those of `entries`.
    pub(super) fn read_best_first(
        &mut self,
        entries: &[RankEntry<C::Id>],
        left_out: Option<CandidateRank<C::Id>>,
    ) -> Option<End<C::Id>> {
        debug_assert!(entries.is_sorted(), "the order of reads is that of ranks");
        for (at, entry) in entries.iter().enumerate() {
            if self.early == Some(entry.id) {
                continue;
            }
            let rival = if self.leads_unread(entry.id) {
                let later = entries[at + 1..].iter();
                let mut others = later.filter(|other| self.early != Some(other.id));
                others.next().map(RankEntry::rank).or(left_out)
            } else {
                Some(entry.rank())
            };
            if self.ends_before(rival) {
                return Some(End { rival });
            }
            if let Some(surest) = self.surest_instead_of(entry) {
                self.read_early(&surest);
                if self.is_over(&entry.rank()) {
                    let rival = Some(entry.rank());
                    return Some(End { rival });
                }
            }
            if self.early != Some(entry.id) {
                self.read(entry);
            }
        }
        None
    }

    /// Returns whether the search ends before it reads `rival`, the first of the rest. Reads the
    /// victim, if the policy demands it and it was not read yet.
    pub(super) fn ends_before(&mut self, rival: Option<CandidateRank<C::Id>>) -> bool {
        let is_over = |search: &Self| rival.is_none_or(|rival| search.is_over(&rival));
        if !is_over(self) {
            return false;
        }
        if let Some(victim) = self.victim_to_read() {
            self.read_early(&victim);
        }
        is_over(self)
    }

    /// Returns the leader: the worst candidate read, or the one of the highest lower bound.
    fn leader(&self) -> Option<Best<C::Id>> {
        let surest = self.surest.map(|entry| Best {
            entry,
            exact: None,
            badness: entry.lower,
        });
        match (self.best, surest) {
            (Some(best), Some(surest)) if best.beats(&surest) => Some(best),
            (best, surest) => surest.or(best),
        }
    }

    /// Returns whether `id` leads and was not read.
    pub(super) fn leads_unread(&self, id: C::Id) -> bool {
        self.leader()
            .is_some_and(|leader| leader.entry.id == id && leader.exact.is_none())
    }

    /// Returns the leader, if it must be read although no candidate can beat it.
    fn victim_to_read(&self) -> Option<RankEntry<C::Id>> {
        let may_read = self.policy.reads_victim && self.census.reads < self.policy.reads_max;
        let leader = self.leader().filter(|_| may_read)?;
        leader.exact.is_none().then_some(leader.entry)
    }

    /// Returns whether a candidate of `rank`, and thus all after it, need not be read.
    fn is_over(&self, rank: &CandidateRank<C::Id>) -> bool {
        let Some(leader) = self.leader() else {
            return self.census.reads >= self.census.scanned;
        };
        let cannot_beat = rank.upper < leader.badness
            || (rank.upper == leader.badness && rank.id > leader.entry.id);
        cannot_beat
            || self.is_indifferent(rank.upper, leader.badness)
            || self.census.reads >= self.policy.reads_max
    }

    fn is_indifferent(&self, upper: i64, badness: i64) -> bool {
        let width = self.policy.indifferent_within.0;
        width > 0 && upper <= badness.saturating_add_unsigned(width)
    }

    /// Returns the candidate of the highest lower bound, if `entry` would be the last read and no
    /// read so far reaches that bound.
    fn surest_instead_of(&self, entry: &RankEntry<C::Id>) -> Option<RankEntry<C::Id>> {
        let is_last = self.census.reads.saturating_add(1) >= self.policy.reads_max;
        let leader = self.leader().filter(|_| is_last)?;
        (leader.exact.is_none() && leader.entry.id != entry.id).then_some(leader.entry)
    }

    fn read_early(&mut self, entry: &RankEntry<C::Id>) {
        debug_assert!(self.early.is_none(), "one candidate is read out of turn");
        self.early = Some(entry.id);
        self.read(entry);
    }

    fn read(&mut self, entry: &RankEntry<C::Id>) {
        self.census.reads += 1;
        if self.surest.is_some_and(|surest| surest.id == entry.id) {
            self.surest = None;
        }
        let exact = self.candidates.precise_usage(entry.id);
        let Some(exact) = exact.filter(|usage| *usage >= self.policy.floor) else {
            return;
        };
        let read = Best {
            entry: *entry,
            exact: Some(exact),
            badness: self.policy.badness(&entry.standing, exact),
        };
        let beaten = match self.best {
            Some(best) if best.beats(&read) => Some(read),
            _ => self.best.replace(read),
        };
        if let Some(beaten) = beaten
            && self
                .second
                .is_none_or(|second| beaten.badness > second.badness)
        {
            self.second = Some(RunnerUp {
                id: beaten.entry.id,
                badness: beaten.badness,
                is_exact: true,
            });
        }
        debug_assert!(
            self.second
                .zip(self.best)
                .is_none_or(|(second, best)| second.badness <= best.badness),
            "the runner-up is worse than the worst"
        );
    }

    /// Returns the decision, where `rival` is the first rank that was not read.
    pub(super) fn conclude(
        self,
        rival: Option<CandidateRank<C::Id>>,
    ) -> Decision<Choice<C::Id>, C::Id> {
        let Some(leader) = self.leader() else {
            return Decision::Nobody(self.census);
        };
        let upper = rival.map_or(UNSURE, |rival| rival.upper);
        let gap = if upper > leader.badness {
            Bytes(upper.abs_diff(leader.badness))
        } else {
            Bytes::ZERO
        };
        let proof = match gap {
            Bytes::ZERO => Proof::Proven,
            _ if self.is_indifferent(upper, leader.badness) => Proof::Indifferent,
            _ => Proof::ReadsSpent,
        };
        // The next of those read; the worst if the leader was not read.
        let read = match (leader.exact, self.best) {
            (None, Some(best)) => Some(RunnerUp {
                id: best.entry.id,
                badness: best.badness,
                is_exact: true,
            }),
            _ => self.second,
        };
        let unread = rival.map(|rival| RunnerUp {
            id: rival.id,
            badness: rival.upper,
            is_exact: false,
        });
        let runner_up = match (read, unread) {
            (Some(read), Some(unread)) if read.badness >= unread.badness => Some(read),
            (read, unread) => unread.or(read),
        };
        Decision::Chosen(Choice {
            id: leader.entry.id,
            estimate: leader.entry.standing.usage,
            exact: leader.exact,
            oom_score_adj: leader.entry.standing.oom_score_adj,
            badness: leader.badness,
            runner_up,
            gap,
            proof,
            census: self.census,
        })
    }
}
