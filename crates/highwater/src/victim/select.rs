//! The search: one pass that keeps the highest upper bounds, then exact reads, best first.
//!
//! A candidate's *rank* is its upper bound, and among equals the lower number first. The search
//! reads in that order and stops at the first rank that cannot beat the leader: none after it can.
//! (One whose upper bound equals the leader's badness can, if its number is lower.) The leader is the
//! worst of those read, or the candidate of the highest lower bound: who is above all others by
//! intervals alone need not be read at all.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::mem;

use crate::units::{Estimate, OomScoreAdj, Pages};

use super::choice::{Census, Choice, Decision, Proof, RunnerUp};
use super::{Candidates, Policy, Standing, State};

/// Below every badness: the lower bound of one that may turn out not to reach the floor.
const UNSURE: i64 = i64::MIN;

/// A candidate and its bounds.
#[derive(Clone, Copy, Debug)]
struct Entry<Id> {
    upper: i64,
    lower: i64,
    id: Id,
    standing: Standing,
}

/// An upper bound and whose it is. Greater ranks come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rank<Id> {
    upper: i64,
    id: Id,
}

impl<Id: Ord> Ord for Rank<Id> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.upper.cmp(&self.upper).then(self.id.cmp(&other.id))
    }
}

impl<Id: Ord> PartialOrd for Rank<Id> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<Id: Copy + Ord> Best<Id> {
    fn beats(&self, other: &Self) -> bool {
        self.badness > other.badness
            || (self.badness == other.badness && self.entry.id < other.entry.id)
    }
}

impl<Id: Copy> Entry<Id> {
    fn new(policy: &Policy, id: Id, upper: i64, standing: &Standing) -> Self {
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

    fn rank(&self) -> Rank<Id> {
        Rank {
            upper: self.upper,
            id: self.id,
        }
    }
}

impl<Id: Copy + Ord> Ord for Entry<Id> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl<Id: Copy + Ord> PartialOrd for Entry<Id> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<Id: Copy + Ord> PartialEq for Entry<Id> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<Id: Copy + Ord> Eq for Entry<Id> {}

/// Chooses victims, in memory reserved beforehand.
///
/// # Examples
///
/// ```
/// use highwater::units::{Estimate, Pages};
/// use highwater::victim::{Candidates, Policy, Selector, Standing};
///
/// /// What each worker holds, known to 10 pages at once.
/// struct Workers(Vec<u64>);
///
/// impl Candidates for Workers {
///     type Id = usize;
///
///     fn for_each(&self, mut visit: impl FnMut(usize, &Standing)) {
///         for (id, pages) in self.0.iter().enumerate() {
///             let (low, high) = (Pages(pages - pages % 10), Pages(pages - pages % 10 + 9));
///             visit(id, &Standing::of(Estimate { value: low, low, high }));
///         }
///     }
///
///     fn precise_usage(&self, id: usize) -> Option<Pages> {
///         self.0.get(id).copied().map(Pages)
///     }
/// }
///
/// let mut selector = Selector::with_capacity(17);
/// let workers = Workers(vec![25, 321, 327, 46]);
/// let chosen = selector.select(&workers, &Policy::default()).chosen().unwrap();
/// assert_eq!((chosen.id, chosen.exact), (2, Some(Pages(327))));
/// assert_eq!(chosen.census.reads, 2); // the others cannot hold as much
/// ```
pub struct Selector<Id> {
    /// Empty but for its capacity between calls.
    entries: Vec<Entry<Id>>,
}

/// The reserved entries as a heap whose greatest is the last in rank. They return to their place also
/// if a candidate's code panics.
struct Lent<'a, Id: Copy + Ord> {
    heap: BinaryHeap<Entry<Id>>,
    place: &'a mut Vec<Entry<Id>>,
}

impl<'a, Id: Copy + Ord> Lent<'a, Id> {
    fn new(place: &'a mut Vec<Entry<Id>>) -> Self {
        Self {
            heap: BinaryHeap::from(mem::take(place)),
            place,
        }
    }
}

impl<Id: Copy + Ord> Drop for Lent<'_, Id> {
    fn drop(&mut self) {
        *self.place = mem::take(&mut self.heap).into_vec();
    }
}

/// What one pass found.
struct Pass<Id> {
    census: Census,
    /// The highest lower bound, the lowest number among equals; none below [`UNSURE`].
    surest: Option<Entry<Id>>,
    dying: Option<(Id, Estimate<Pages>)>,
    /// The first rank that found no place.
    left_out: Option<Rank<Id>>,
    /// Upper bounds below this change nothing.
    dull_below: i64,
}

/// A candidate and what is known of its badness: exactly if it was read, else at least.
#[derive(Clone, Copy)]
struct Best<Id> {
    entry: Entry<Id>,
    exact: Option<Pages>,
    badness: i64,
}

/// A search between its reads.
struct Search<'a, C: Candidates> {
    candidates: &'a C,
    policy: &'a Policy,
    census: Census,
    /// As in [`Pass`], until it is read.
    surest: Option<Entry<C::Id>>,
    /// Who was read before its turn, and is to be passed over then.
    early: Option<C::Id>,
    /// The worst of those read.
    best: Option<Best<C::Id>>,
    second: Option<RunnerUp<C::Id>>,
}

impl<Id: Copy + Ord> Selector<Id> {
    /// A selector that keeps `capacity` candidates in a pass, and at least one.
    ///
    /// A search with up to `n` exact reads takes one pass with a capacity of `n + 1`. Any capacity
    /// gives the same choice; a search that reads `r` candidates takes about `r / capacity` passes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            entries: Vec::with_capacity(capacity.max(1)),
        }
    }

    /// Candidates kept in a pass.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Chooses whom to stop.
    ///
    /// # Accuracy
    ///
    /// See [`Choice::gap`]. Candidates that change meanwhile are judged by what they were when they
    /// were shown or read.
    ///
    /// # Cost
    ///
    /// One pass over the candidates, in which each costs a few comparisons, then one exact read after
    /// the other; never more reads than candidates, and no more passes than reads but one. No
    /// allocation, no lock.
    pub fn select<C: Candidates<Id = Id>>(
        &mut self,
        candidates: &C,
        policy: &Policy,
    ) -> Decision<Choice<Id>, Id> {
        let pass = self.pass(candidates, policy, None);
        if let Some((dying, _)) = pass.dying {
            let census = pass.census;
            return Decision::Wait { dying, census };
        }
        let mut search = Search {
            candidates,
            policy,
            census: pass.census,
            surest: pass.surest,
            early: None,
            best: None,
            second: None,
        };
        let mut left_out = pass.left_out;
        // Progress: each further pass begins after the last rank of the one before, and is made only
        // while fewer candidates were read than the first pass showed.
        let rival = loop {
            if let Some(end) = search.read_best_first(&self.entries, left_out) {
                break end.rival;
            }
            let (Some(cursor), Some(first_left_out)) = (self.entries.last(), left_out) else {
                break None;
            };
            if !search.leads_unread(first_left_out.id) && search.ends_before(left_out) {
                break left_out;
            }
            let cursor = cursor.rank();
            left_out = self.pass(candidates, policy, Some(cursor)).left_out;
            search.census.passes += 1;
        };
        self.entries.clear();
        search.conclude(rival)
    }

    /// Shows all candidates and keeps the first ranks after `cursor`, in order.
    fn pass<C: Candidates<Id = Id>>(
        &mut self,
        candidates: &C,
        policy: &Policy,
        cursor: Option<Rank<Id>>,
    ) -> Pass<Id> {
        self.entries.clear();
        let room = self.entries.capacity();
        let room = room.min(policy.reads_max.saturating_add(1));
        let mut lent = Lent::new(&mut self.entries);
        let kept = &mut lent.heap;
        let mut pass = Pass::new();
        candidates.for_each(|id, standing| {
            pass.census.scanned += 1;
            if !pass.is_eligible(policy, id, standing) {
                return;
            }
            pass.census.eligible += 1;
            let upper = policy.badness(standing, standing.usage.high);
            // Where most candidates end: below everybody that matters so far.
            if upper < pass.dull_below {
                return;
            }
            let entry = Entry::new(policy, id, upper, standing);
            pass.weigh(&entry);
            if cursor.is_none_or(|cursor| entry.rank() > cursor) {
                pass.keep(kept, room, entry);
            }
        });
        drop(lent);
        self.entries.sort_unstable();
        pass
    }
}

impl<Id: Copy + Ord> Pass<Id> {
    fn new() -> Self {
        Self {
            census: Census {
                passes: 1,
                ..Census::default()
            },
            surest: None,
            dying: None,
            left_out: None,
            dull_below: i64::MIN,
        }
    }

    /// Whether a candidate can be chosen.
    #[inline]
    fn is_eligible(&mut self, policy: &Policy, id: Id, standing: &Standing) -> bool {
        if standing.usage.high < policy.floor {
            return false;
        }
        match standing.state {
            State::Ordinary | State::First => standing.oom_score_adj != OomScoreAdj::UNKILLABLE,
            State::Spared => false,
            State::Dying => {
                self.dies(id, standing.usage);
                false
            }
        }
    }

    fn dies(&mut self, id: Id, usage: Estimate<Pages>) {
        let is_larger = |(other, known): (Id, Estimate<Pages>)| {
            usage.high > known.high || (usage.high == known.high && id < other)
        };
        if self.dying.is_none_or(is_larger) {
            self.dying = Some((id, usage));
        }
    }

    /// Compares a candidate's lower bound with the highest.
    fn weigh(&mut self, entry: &Entry<Id>) {
        let known = self.surest.map_or(UNSURE, |surest| surest.lower);
        self.census.in_reach += usize::from(entry.upper >= known);
        let is_surer = entry.lower > known
            || self
                .surest
                .is_some_and(|surest| entry.lower == known && entry.id < surest.id);
        if is_surer {
            self.surest = Some(*entry);
            self.raise();
        }
    }

    /// Keeps a candidate if it is among the first `room` ranks so far.
    fn keep(&mut self, kept: &mut BinaryHeap<Entry<Id>>, room: usize, entry: Entry<Id>) {
        if kept.len() < room {
            kept.push(entry);
            return;
        }
        let out = match kept.peek_mut() {
            Some(mut last) if entry < *last => mem::replace(&mut *last, entry).rank(),
            _ => entry.rank(),
        };
        if self.left_out.is_none_or(|first| out < first) {
            self.left_out = Some(out);
            self.raise();
        }
    }

    /// Who cannot reach the first rank left out, nor the highest lower bound, changes nothing.
    fn raise(&mut self) {
        let known = self.surest.map_or(i64::MIN, |surest| surest.lower);
        let left_out = self.left_out.map_or(i64::MIN, |first| first.upper);
        self.dull_below = known.min(left_out);
    }
}

/// No further read is wanted.
struct End<Id> {
    /// The first rank that was not read, but for the chosen's own.
    rival: Option<Rank<Id>>,
}

impl<C: Candidates> Search<'_, C> {
    /// Reads candidates in the order of their ranks until no further read is wanted. `None` when all
    /// were read. `left_out` is the first rank after those of `entries`.
    fn read_best_first(
        &mut self,
        entries: &[Entry<C::Id>],
        left_out: Option<Rank<C::Id>>,
    ) -> Option<End<C::Id>> {
        for (at, entry) in entries.iter().enumerate() {
            if self.early == Some(entry.id) {
                continue;
            }
            let rival = if self.leads_unread(entry.id) {
                let later = entries[at + 1..].iter();
                let mut others = later.filter(|other| self.early != Some(other.id));
                others.next().map(Entry::rank).or(left_out)
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

    /// Whether the search ends before it reads `rival`, the first of those left. Reads the victim, if
    /// that is wanted and was not done.
    fn ends_before(&mut self, rival: Option<Rank<C::Id>>) -> bool {
        let is_over = |search: &Self| rival.is_none_or(|rival| search.is_over(&rival));
        if !is_over(self) {
            return false;
        }
        if let Some(victim) = self.victim_to_read() {
            self.read_early(&victim);
        }
        is_over(self)
    }

    /// The worst as far as is known: of those read, or the one of the highest lower bound.
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

    /// Whether `id` leads and was not read.
    fn leads_unread(&self, id: C::Id) -> bool {
        self.leader()
            .is_some_and(|leader| leader.entry.id == id && leader.exact.is_none())
    }

    /// The leader, if it is to be read although nobody can beat it.
    fn victim_to_read(&self) -> Option<Entry<C::Id>> {
        let may_read = self.policy.reads_victim && self.census.reads < self.policy.reads_max;
        let leader = self.leader().filter(|_| may_read)?;
        leader.exact.is_none().then_some(leader.entry)
    }

    /// Whether a candidate of `rank`, and so all after it, need not be read.
    fn is_over(&self, rank: &Rank<C::Id>) -> bool {
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
        let width = self.policy.indifference(badness);
        width > 0 && upper <= badness.saturating_add_unsigned(width)
    }

    /// The candidate of the highest lower bound, if `entry` would be the last read and nothing read
    /// so far reaches that bound.
    fn surest_instead_of(&self, entry: &Entry<C::Id>) -> Option<Entry<C::Id>> {
        let is_last = self.census.reads.saturating_add(1) >= self.policy.reads_max;
        let leader = self.leader().filter(|_| is_last)?;
        (leader.exact.is_none() && leader.entry.id != entry.id).then_some(leader.entry)
    }

    fn read_early(&mut self, entry: &Entry<C::Id>) {
        self.early = Some(entry.id);
        self.read(entry);
    }

    fn read(&mut self, entry: &Entry<C::Id>) {
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
    }

    /// The record, when `rival` is the first rank that was not read.
    fn conclude(self, rival: Option<Rank<C::Id>>) -> Decision<Choice<C::Id>, C::Id> {
        let Some(leader) = self.leader() else {
            return Decision::Nobody(self.census);
        };
        let upper = rival.map_or(UNSURE, |rival| rival.upper);
        let gap = if upper > leader.badness {
            Pages(upper.abs_diff(leader.badness))
        } else {
            Pages::ZERO
        };
        let proof = match gap {
            Pages::ZERO => Proof::Proven,
            _ if self.is_indifferent(upper, leader.badness) => Proof::Indifferent,
            _ => Proof::ReadsSpent,
        };
        // Of those read, the next one; the worst if the leader was not.
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

impl<Id> fmt::Debug for Selector<Id> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selector")
            .field("capacity", &self.entries.capacity())
            .finish_non_exhaustive()
    }
}
