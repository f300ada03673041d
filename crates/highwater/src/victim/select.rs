//! The search: one pass that keeps the highest upper bounds, then exact reads, best first.
//!
//! A candidate's *rank* is its upper bound, and among equals the lower number first. The search
//! reads in that order and stops at the first rank that cannot beat the best read: none after it
//! can. (A candidate whose upper bound equals the best read can, if its number is lower.)

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

impl<Id: Copy> Entry<Id> {
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
}

/// The worst candidate read so far.
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
    /// Who was read in its place in the order, and is to be passed over later.
    surest_read: Option<C::Id>,
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
            surest_read: None,
            best: None,
            second: None,
        };
        if policy.reads_max == 0 {
            search.take_surest();
        }
        let mut left_out = pass.left_out;
        // Progress: each further pass begins after the last rank of the one before, and is made only
        // while fewer candidates were read than the first pass showed.
        let next = loop {
            if let Some(next) = search.read_best_first(&self.entries) {
                break Some(next);
            }
            let (Some(cursor), Some(first_left_out)) = (self.entries.last(), left_out) else {
                break None;
            };
            if search.is_over(&first_left_out) {
                break Some(first_left_out);
            }
            let cursor = cursor.rank();
            left_out = self.pass(candidates, policy, Some(cursor)).left_out;
            search.census.passes += 1;
        };
        self.entries.clear();
        search.conclude(next)
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
            let Some(entry) = pass.look(policy, id, standing) else {
                return;
            };
            let rank = entry.rank();
            if cursor.is_some_and(|cursor| rank <= cursor) {
                return;
            }
            if kept.len() < room {
                kept.push(entry);
                return;
            }
            let out = match kept.peek_mut() {
                Some(mut last) if entry < *last => mem::replace(&mut *last, entry).rank(),
                _ => rank,
            };
            if pass.left_out.is_none_or(|first| out < first) {
                pass.left_out = Some(out);
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
        }
    }

    /// Counts a candidate; returns its bounds if it can be chosen.
    #[inline]
    fn look(&mut self, policy: &Policy, id: Id, standing: &Standing) -> Option<Entry<Id>> {
        self.census.scanned += 1;
        if standing.usage.high < policy.floor || standing.state == State::Spared {
            return None;
        }
        if standing.state == State::Dying {
            let is_larger = |(other, usage): (Id, Estimate<Pages>)| {
                standing.usage.high > usage.high
                    || (standing.usage.high == usage.high && id < other)
            };
            if self.dying.is_none_or(is_larger) {
                self.dying = Some((id, standing.usage));
            }
            return None;
        }
        if standing.oom_score_adj == OomScoreAdj::UNKILLABLE {
            return None;
        }
        self.census.eligible += 1;
        let upper = policy.badness(standing, standing.usage.high);
        let lower = if standing.usage.low >= policy.floor {
            policy.badness(standing, standing.usage.low).min(upper)
        } else {
            UNSURE
        };
        let entry = Entry {
            upper,
            lower,
            id,
            standing: *standing,
        };
        let known = self.surest.map_or(UNSURE, |surest| surest.lower);
        self.census.in_reach += usize::from(upper >= known);
        if lower > known
            || self
                .surest
                .is_some_and(|surest| lower == known && id < surest.id)
        {
            self.surest = Some(entry);
        }
        Some(entry)
    }
}

impl<C: Candidates> Search<'_, C> {
    /// Reads candidates in the order of their ranks until no further read is wanted: the rank that
    /// would have been next. `None` when all were read.
    fn read_best_first(&mut self, entries: &[Entry<C::Id>]) -> Option<Rank<C::Id>> {
        for entry in entries {
            if self.surest_read == Some(entry.id) {
                continue;
            }
            if !self.is_over(&entry.rank())
                && let Some(surest) = self.surest_instead_of(entry)
            {
                self.surest_read = Some(surest.id);
                self.read(&surest);
            }
            if self.is_over(&entry.rank()) {
                return Some(entry.rank());
            }
            self.read(entry);
        }
        None
    }

    /// Whether a candidate of `rank`, and so all after it, need not be read.
    fn is_over(&self, rank: &Rank<C::Id>) -> bool {
        let Some(best) = &self.best else {
            return self.census.reads >= self.census.scanned;
        };
        let cannot_beat =
            rank.upper < best.badness || (rank.upper == best.badness && rank.id > best.entry.id);
        cannot_beat || self.is_indifferent(rank.upper) || self.census.reads >= self.policy.reads_max
    }

    fn is_indifferent(&self, upper: i64) -> bool {
        self.best.as_ref().is_some_and(|best| {
            let width = self.policy.indifference(best.badness);
            width > 0 && upper <= best.badness.saturating_add_unsigned(width)
        })
    }

    /// The candidate of the highest lower bound, if `entry` would be the last read and nothing read
    /// so far reaches that bound.
    fn surest_instead_of(&self, entry: &Entry<C::Id>) -> Option<Entry<C::Id>> {
        let is_last = self.census.reads.saturating_add(1) >= self.policy.reads_max;
        let surest = self.surest.filter(|_| is_last)?;
        let is_reached = self
            .best
            .as_ref()
            .is_some_and(|best| best.badness >= surest.lower);
        (surest.id != entry.id && !is_reached).then_some(surest)
    }

    /// Takes the candidate of the highest lower bound without reading it.
    fn take_surest(&mut self) {
        if let Some(entry) = self.surest.take() {
            self.surest_read = Some(entry.id);
            self.best = Some(Best {
                entry,
                exact: None,
                badness: entry.lower,
            });
        }
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
        let badness = self.policy.badness(&entry.standing, exact);
        let is_better = self.best.as_ref().is_none_or(|best| {
            badness > best.badness || (badness == best.badness && entry.id < best.entry.id)
        });
        let mut beaten = Some((entry.id, badness));
        if is_better {
            let best = Best {
                entry: *entry,
                exact: Some(exact),
                badness,
            };
            let former = self.best.replace(best);
            beaten = former.map(|former| (former.entry.id, former.badness));
        }
        if let Some((id, badness)) = beaten
            && self.second.is_none_or(|second| badness > second.badness)
        {
            self.second = Some(RunnerUp {
                id,
                badness,
                is_exact: true,
            });
        }
    }

    /// The record, when `next` is the first rank that was not read.
    fn conclude(self, next: Option<Rank<C::Id>>) -> Decision<Choice<C::Id>, C::Id> {
        let upper = next.map_or(UNSURE, |next| next.upper);
        let is_indifferent = self.is_indifferent(upper);
        let Some(best) = self.best else {
            return Decision::Nobody(self.census);
        };
        let gap = if upper > best.badness {
            Pages(upper.abs_diff(best.badness))
        } else {
            Pages::ZERO
        };
        let proof = match gap {
            Pages::ZERO => Proof::Proven,
            _ if is_indifferent => Proof::Indifferent,
            _ => Proof::ReadsSpent,
        };
        let unread = next.map(|next| RunnerUp {
            id: next.id,
            badness: next.upper,
            is_exact: false,
        });
        let runner_up = match (self.second, unread) {
            (Some(second), Some(unread)) if second.badness >= unread.badness => Some(second),
            (second, unread) => unread.or(second),
        };
        Decision::Chosen(Choice {
            id: best.entry.id,
            estimate: best.entry.standing.usage,
            exact: best.exact,
            oom_score_adj: best.entry.standing.oom_score_adj,
            badness: best.badness,
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
