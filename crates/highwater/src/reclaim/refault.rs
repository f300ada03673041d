//! Pages that come in, and the records of those that leave: departures and refaults (workingset).
//!
//! A page's shadow records its list and a clock. Under most policies, that is the list that the
//! page left and the number of pages that have left it, in the group that paid for the page. Under
//! a policy that [ages](super::policy::EvictionPolicy::ages) the active list, it is whether the
//! page had ever been active, and the clock of the group for whose shortage it was evicted; a
//! refault competes with the pages that could have been evicted in its place, in all of that group.
//!
//! A refault that is [near](super::policy::EvictionPolicy::is_near) is a *workingset activation*,
//! and a *restore* if the page had been active before: that is not a change of the working set but
//! thrashing.

use super::Reclaim;
use super::lists::{PageType, Side};
use super::lruvec::Lruvec;
use super::policy::{Departure, Lens};
use super::shadow::{Recalled, Refault, Shadow};
use super::table::{note_placement, type_of};
use crate::cache::{Evicted, PageFlag, PageKey};
use crate::units::{GroupId, Pfn};

impl Reclaim {
    /// Adds a page that has just become resident to its group's lists; returns its refault, if it
    /// was evicted before.
    pub fn add_page(&self, pfn: Pfn, key: PageKey) -> Option<Refault> {
        debug_assert!(!self.is_listed(pfn), "{pfn} was listed before it was added");
        let lruvec = self.lruvecs.of_isolated(&self.cache, &self.groups, pfn);
        let page_type = type_of(&self.cache, pfn);
        let shadow = self.shadows.take(key);
        let (lens, departure) = shadow
            .and_then(|shadow| self.recall(&lruvec, page_type, shadow))
            .map_or_else(
                || (lruvec.sizes().lens(page_type), None),
                |(lens, departure)| (lens, Some(departure)),
            );
        let state = lruvec.policy_state(page_type);
        let near = departure.filter(|&departure| self.policy.is_near(state, lens, departure));
        let to = self.policy.admit(state, lens, departure);
        // The lists of other threads' pages may have changed since.
        let near = near.filter(|_| to == Side::Active);
        note_placement(&self.cache, pfn, to.into());
        if let (Some(places), Some(shadow), Some(departure)) =
            (&self.lruvecs.places, shadow, departure)
            && let Some(stamp) = shadow.stamp_of(lruvec.serial())
        {
            places.note_known(pfn, stamp, departure.distance, lens.capacity);
        }
        let refault = shadow.map(|_| match near.map(|near| near.from) {
            Some(Side::Inactive) => Refault::WithinWorkingset,
            Some(Side::Active) => Refault::Restored,
            None => Refault::Beyond,
        });
        if let Some(refault) = refault {
            self.stats.count_refault(lruvec.group(), page_type, refault);
            lruvec.age(u64::from(refault != Refault::Beyond));
        }
        if refault == Some(Refault::Restored) {
            self.cache.set_flag(pfn, PageFlag::Workingset);
        }
        // Pages of its type are missing, whichever list it enters. If it had been among those that
        // stay, it costs as much as a write.
        if let Some(departure) = departure.filter(|it| it.distance <= lens.capacity) {
            lruvec.note_refault(page_type);
            lruvec.note_cost(page_type, u64::from(departure.from == Side::Active), 0);
        }
        if self.put_in_batch(pfn) {
            self.catch_up(&lruvec, page_type);
        }
        refault
    }

    /// Returns the departure record of a refault and the lengths that it is judged by; `None` if
    /// the clock is not known, or is one that taught these lists nothing.
    fn recall(
        &self,
        lruvec: &Lruvec,
        page_type: PageType,
        shadow: Recalled,
    ) -> Option<(Lens, Departure)> {
        let from = match shadow.was_active {
            true => Side::Active,
            false => Side::Inactive,
        };
        let (lens, clock) = if self.ages() {
            let short = self.lruvecs.get(GroupId(shadow.owner()?))?;
            let sizes = match self.has_swap() {
                true => short.subtree_sizes(),
                // Anonymous pages could not have been evicted in its place.
                false => short.subtree_sizes().without_anon(),
            };
            let lens = Lens {
                capacity: sizes.workingset_for(page_type).0,
                ..sizes.lens(page_type)
            };
            (lens, short.clock())
        } else {
            let state = lruvec.policy_state(page_type);
            let lens = lruvec.sizes().lens(page_type);
            let is_its = match &self.lruvecs.places {
                Some(_) => shadow.stamp_of(lruvec.serial()).is_some(),
                None => shadow.owner() == Some(lruvec.serial()),
            };
            is_its.then_some((lens, state.nr_left_of(from)))?
        };
        let distance = shadow.age.distance(clock);
        Some((lens, Departure { from, distance }))
    }

    /// Inserts shadows for pages of `lruvec` that are being evicted for a shortage in the group of
    /// `short`.
    pub(super) fn leave_shadows(&self, lruvec: &Lruvec, short: &Lruvec, evicted: &[Evicted]) {
        debug_assert!(
            evicted.iter().all(|it| !self.is_listed(it.frame.pfn())),
            "a page that leaves is on no list"
        );
        lruvec.note_evicted(evicted.len() as u64);
        let clock = short.age(evicted.len() as u64);
        let stamps = self.lruvecs.leave_order(&self.cache, lruvec, evicted);
        for (nth, (age, evicted)) in (clock..).zip(evicted).enumerate() {
            let pfn = evicted.frame.pfn();
            let shadow = if self.ages() {
                Shadow {
                    owner: short.group().id().0,
                    stamp: None,
                    age,
                    was_active: self.cache.has_flag(pfn, PageFlag::Workingset),
                }
            } else {
                let stamp = stamps.get(nth).copied();
                // Its group was removed: its return teaches no policy.
                if stamp == Some(None) {
                    continue;
                }
                let from = self.side_of(pfn);
                let state = lruvec.policy_state(type_of(&self.cache, pfn));
                Shadow {
                    owner: lruvec.serial(),
                    stamp: stamp.flatten(),
                    age: state.leave(from, 1),
                    was_active: from == Side::Active,
                }
            };
            self.shadows.insert(evicted.key, shadow);
        }
    }

    /// Returns the list of its type that a page belongs on, if it is evictable.
    pub(super) fn side_of(&self, pfn: Pfn) -> Side {
        match self.cache.has_flag(pfn, PageFlag::Active) {
            true => Side::Active,
            false => Side::Inactive,
        }
    }
}
