//! One pass over the candidates, keeping the highest upper bounds in reserved memory.

use std::collections::BinaryHeap;
use std::fmt;
use std::mem;

use crate::units::{Bytes, Estimate, OomScoreAdj};

use super::choice::{Census, Choice, Decision};
use super::rank::{CandidateRank, RankEntry, UNSURE};
use super::search::Search;
use super::{Candidates, Policy, Standing, State};

/// Selects victims, in memory reserved beforehand.
///
/// # Examples
///
/// ```
/// use highwater::units::{Bytes, Estimate, OomScoreAdj};
/// use highwater::victim::{Candidates, Decision, Policy, Selector, Standing, State};
///
/// /// Memory of each worker, known to 10 pages in O(1).
/// struct Workers(Vec<u64>);
///
/// impl Candidates for Workers {
///     type Id = usize;
///
///     fn for_each(&self, mut visit: impl FnMut(usize, &Standing)) {
///         for (id, pages) in self.0.iter().enumerate() {
///             let (low, high) = (Bytes(pages - pages % 10), Bytes(pages - pages % 10 + 9));
///             let usage = Estimate { value: low, low, high };
///             let oom_score_adj = OomScoreAdj::default();
///             visit(id, &Standing { usage, oom_score_adj, state: State::Ordinary });
///         }
///     }
///
///     fn precise_usage(&self, id: usize) -> Option<Bytes> {
///         self.0.get(id).copied().map(Bytes)
///     }
/// }
///
/// let mut selector = Selector::with_capacity(17);
/// let workers = Workers(vec![25, 321, 327, 46]);
/// let Decision::Chosen(chosen) = selector.select(&workers, &Policy::default()) else {
///     panic!("one of them uses memory");
/// };
/// assert_eq!((chosen.id, chosen.exact), (2, Some(Bytes(327))));
/// assert_eq!(chosen.census.reads, 2); // the others cannot hold as much
/// ```
pub struct Selector<Id> {
    /// Empty between calls, with its capacity.
    entries: Vec<RankEntry<Id>>,
}

/// The reserved entries as a heap whose greatest is the last in rank. Returned to their place on
/// drop, also if a candidate's code panics.
struct Lent<'a, Id: Copy + Ord> {
    heap: BinaryHeap<RankEntry<Id>>,
    place: &'a mut Vec<RankEntry<Id>>,
}

impl<'a, Id: Copy + Ord> Lent<'a, Id> {
    fn new(place: &'a mut Vec<RankEntry<Id>>) -> Self {
        Self {
            heap: BinaryHeap::from(mem::take(place)),
            place,
        }
    }
}

impl<Id: Copy + Ord> Drop for Lent<'_, Id> {
    fn drop(&mut self) {
        debug_assert!(
            self.place.is_empty(),
            "entries were kept beside the lent ones"
        );
        *self.place = mem::take(&mut self.heap).into_vec();
    }
}

/// Results of one pass.
struct SelectPass<Id> {
    census: Census,
    /// The highest lower bound, with ties to the lowest number; none below [`UNSURE`].
    surest: Option<RankEntry<Id>>,
    dying: Option<(Id, Estimate<Bytes>)>,
    /// The first rank that was not kept.
    left_out: Option<CandidateRank<Id>>,
    /// Upper bounds below this do not affect the result.
    dull_below: i64,
}

impl<Id: Copy + Ord> Selector<Id> {
    /// Creates a selector that keeps `capacity` candidates in a pass, at least two: one would take
    /// a further pass without a read where the candidate kept is not the one that leads.
    ///
    /// A search with up to `n` exact reads takes one pass with a capacity of `n + 1`. Any capacity
    /// gives the same choice; a search that reads `r` candidates takes about `r / capacity` passes.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::victim::{Policy, Selector};
    ///
    /// // One pass for as many exact reads as the default policy allows.
    /// let selector = Selector::<u64>::with_capacity(Policy::READS_MAX + 1);
    /// # drop(selector);
    /// ```
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            entries: Vec::with_capacity(capacity.max(2)),
        }
    }

    /// Returns the number of candidates kept in a pass.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Selects a victim.
    ///
    /// # Accuracy
    ///
    /// See [`Choice::gap`]. Candidates that change meanwhile are judged by their state when they
    /// were visited or read.
    ///
    /// # Cost
    ///
    /// One pass over the candidates at a few comparisons each, then one exact read after the other;
    /// never more reads than candidates, and no more passes than reads, but at least one. No
    /// allocation, no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::units::{Bytes, Estimate};
    /// use highwater::victim::{Candidates, Decision, Policy, Selector, Standing};
    ///
    /// /// Workers that know their memory exactly.
    /// struct Workers(Vec<u64>);
    ///
    /// impl Candidates for Workers {
    ///     type Id = usize;
    ///
    ///     fn for_each(&self, mut visit: impl FnMut(usize, &Standing)) {
    ///         for (id, bytes) in self.0.iter().enumerate() {
    ///             visit(id, &Standing::from(Estimate::exact(Bytes(*bytes))));
    ///         }
    ///     }
    ///
    ///     fn precise_usage(&self, id: usize) -> Option<Bytes> {
    ///         self.0.get(id).copied().map(Bytes)
    ///     }
    /// }
    ///
    /// let mut selector = Selector::with_capacity(17);
    /// let decision = selector.select(&Workers(vec![3, 9, 4]), &Policy::default());
    /// let Decision::Chosen(worst) = decision else {
    ///     panic!("{decision:?}");
    /// };
    /// assert_eq!((worst.id, worst.gap, worst.census.reads), (1, Bytes(0), 0));
    /// // Stopping either of these would free nothing.
    /// let decision = selector.select(&Workers(vec![0, 0]), &Policy::default());
    /// assert!(!matches!(decision, Decision::Chosen(_)));
    /// ```
    pub fn select<C: Candidates<Id = Id>>(
        &mut self,
        candidates: &C,
        policy: &Policy,
    ) -> Decision<Choice<Id>, Id> {
        let policy = &Policy {
            floor: policy.floor.max(Bytes(1)),
            ..*policy
        };
        let pass = self.pass(candidates, policy, None);
        if let Some((dying, _)) = pass.dying {
            let census = pass.census;
            return Decision::Wait { dying, census };
        }
        let mut search = Search::new(candidates, policy, pass.census, pass.surest);
        let mut left_out = pass.left_out;
        if let Some(end) = search.settled_at_once(&self.entries, left_out) {
            self.entries.clear();
            return search.conclude(end.rival);
        }
        self.entries.sort_unstable();
        // Progress: each further pass begins after the last rank of the one before, and runs only
        // while fewer candidates were read than the first pass visited.
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
            self.entries.sort_unstable();
            search.began_pass();
        };
        debug_assert!(
            rival.is_none_or(|rival| !search.leads_unread(rival.id)),
            "the victim is its own rival"
        );
        self.entries.clear();
        search.conclude(rival)
    }

    /// Visits all candidates and keeps the first ranks after `cursor`, in no order.
    fn pass<C: Candidates<Id = Id>>(
        &mut self,
        candidates: &C,
        policy: &Policy,
        cursor: Option<CandidateRank<Id>>,
    ) -> SelectPass<Id> {
        self.entries.clear();
        let capacity = self.entries.capacity();
        let room = capacity.min(policy.reads_max.saturating_add(1));
        let mut lent = Lent::new(&mut self.entries);
        let kept = &mut lent.heap;
        let mut pass = SelectPass::new();
        candidates.for_each(|id, standing| {
            pass.census.scanned += 1;
            if !pass.is_eligible(policy, id, standing) {
                return;
            }
            pass.census.eligible += 1;
            let upper = policy.badness(standing, standing.usage.high);
            // The common case: below every candidate that matters so far.
            if upper < pass.dull_below {
                return;
            }
            let entry = RankEntry::new(policy, id, upper, standing);
            pass.weigh(&entry);
            if cursor.is_none_or(|cursor| entry.rank() > cursor) {
                pass.keep(kept, room, entry);
            }
        });
        drop(lent);
        debug_assert_eq!(
            capacity,
            self.entries.capacity(),
            "a pass allocates nothing"
        );
        debug_assert!(
            pass.left_out
                .is_none_or(|first| self.entries.iter().all(|kept| kept.rank() < first)),
            "every rank that is kept comes before the first that is not"
        );
        pass
    }
}

impl<Id: Copy + Ord> SelectPass<Id> {
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

    /// Returns whether a candidate can be selected.
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

    fn dies(&mut self, id: Id, usage: Estimate<Bytes>) {
        let is_larger = |(other, known): (Id, Estimate<Bytes>)| {
            usage.high > known.high || (usage.high == known.high && id < other)
        };
        if self.dying.is_none_or(is_larger) {
            self.dying = Some((id, usage));
        }
        debug_assert!(
            self.dying
                .is_some_and(|(_, known)| known.high >= usage.high),
            "the dying candidate that may use most is not waited for"
        );
    }

    /// Compares a candidate's lower bound with the highest.
    fn weigh(&mut self, entry: &RankEntry<Id>) {
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
        debug_assert!(
            self.surest.is_none_or(|surest| surest.lower >= entry.lower),
            "no lower bound is above the surest's"
        );
    }

    /// Keeps a candidate if it is among the first `room` ranks so far.
    fn keep(&mut self, kept: &mut BinaryHeap<RankEntry<Id>>, room: usize, entry: RankEntry<Id>) {
        if kept.len() < room {
            debug_assert!(
                kept.len() < kept.capacity(),
                "a selection allocates nothing"
            );
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

    /// Raises the bound below which a candidate cannot change the result: it reaches neither the
    /// first rank left out nor the highest lower bound.
    fn raise(&mut self) {
        let known = self.surest.map_or(i64::MIN, |surest| surest.lower);
        let left_out = self.left_out.map_or(i64::MIN, |first| first.upper);
        let dull_below = known.min(left_out);
        debug_assert!(dull_below >= self.dull_below, "bounds only rise");
        self.dull_below = dull_below;
    }
}

impl<Id> fmt::Debug for Selector<Id> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selector")
            .field("capacity", &self.entries.capacity())
            .finish_non_exhaustive()
    }
}
