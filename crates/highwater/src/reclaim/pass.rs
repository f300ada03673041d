//! Protection in one pass: the pages that it may take from each group (`min` and `low`).
//!
//! A pass has at most two rounds over the groups. The first skips every group within its effective
//! `min` or `low`. Only if that freed nothing, and skipped some groups because of `low` alone, does
//! a second round scan those too, which is a `low` event for each. Pages below `min` are never
//! taken.
//!
//! A group's protection depends on its usage and its siblings', so it is checked again in each
//! visit; its settings are evaluated once in a pass, as in the kernel. If no group has a `min` or
//! a `low`, all this costs one load.

use std::collections::{HashMap, HashSet};

use super::Reclaim;
use super::control::ScanControl;
use super::lruvec::Lruvec;
use crate::group::{Depth, Exposure, GroupKey, GroupNode, GroupTree, Protection};
use crate::units::{Bytes, GroupId, Pages};

/// The decision for a group's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Skip them.
    PassOver,
    /// Scan pages of them.
    Scan {
        /// Pages on its lists, by which its share of the pressure is computed.
        size: u64,
        /// Pages that can be taken before the group is protected.
        exposed: u64,
    },
}

/// The state of one pass.
pub(super) struct Pass<'a> {
    target: &'a GroupNode,
    depth: Depth,
    /// The frames of the largest page that there may be.
    page_max: Pages,
    /// Whether any group is protected.
    heeds: bool,
    known: HashMap<GroupKey, Protection>,
    passed_over: HashSet<GroupKey>,
    is_any_sheltered: bool,
    told_low: HashSet<GroupKey>,
}

impl<'a> Pass<'a> {
    pub(super) fn new(control: &ScanControl<'a>, groups: &GroupTree, page_max: Pages) -> Self {
        Self {
            target: control.target,
            depth: Depth::AboveLow,
            page_max,
            heeds: groups.has_protection() && !control.ignores_protection,
            known: HashMap::new(),
            passed_over: HashSet::new(),
            is_any_sheltered: false,
            told_low: HashSet::new(),
        }
    }

    /// Returns whether the pass may scan a group's lists, as far as is known.
    pub(super) fn accepts(&self, lruvec: &Lruvec) -> bool {
        let group = lruvec.group();
        group.is_descendant_of(self.target) && !self.passed_over.contains(&group.key())
    }

    /// Starts the round over groups below their `low`, if some were skipped for that; returns false
    /// if none were.
    pub(super) fn deepen(&mut self) -> bool {
        if !std::mem::take(&mut self.is_any_sheltered) {
            return false;
        }
        debug_assert_eq!(self.depth, Depth::AboveLow, "`low` is passed once");
        self.depth = Depth::AboveMin;
        self.passed_over.clear();
        true
    }

    /// Skips a group from now on, whose next page holds more frames than it may give.
    pub(super) fn pass_over(&mut self, lruvec: &Lruvec) {
        self.is_any_sheltered |= self.depth == Depth::AboveLow;
        self.passed_over.insert(lruvec.group().key());
    }

    /// Returns whether any group was skipped.
    pub(super) fn has_passed_over(&self) -> bool {
        !self.passed_over.is_empty()
    }

    /// Returns whether it is the round over groups below their `low`.
    pub(super) fn is_deep(&self) -> bool {
        self.depth == Depth::AboveMin
    }

    /// Returns the decision for a group's lists at this moment. No lock is held.
    pub(super) fn judge(&mut self, lruvec: &Lruvec) -> Turn {
        debug_assert!(self.accepts(lruvec), "groups that were passed over stay so");
        let size = lruvec.sizes().evictable().0;
        let unprotected = Turn::Scan {
            size,
            exposed: u64::MAX,
        };
        if !self.heeds {
            return unprotected;
        }
        let group = lruvec.group();
        let protection = *self
            .known
            .entry(group.key())
            .or_insert_with(|| group.protection_below(self.target));
        if protection == Protection::NONE {
            return unprotected;
        }
        let usage = usage_beside(group, protection.min.max(protection.low), self.page_max);
        match protection.exposure(usage, self.depth) {
            Exposure::Exposed(exposed) => {
                if usage <= protection.low && self.told_low.insert(group.key()) {
                    group.record_low();
                }
                Turn::Scan {
                    size: protection.scanned(size, usage, self.depth),
                    exposed: exposed.0,
                }
            }
            passed_over => {
                self.is_any_sheltered |= passed_over == Exposure::Sheltered;
                self.passed_over.insert(group.key());
                Turn::PassOver
            }
        }
    }
}

impl Reclaim {
    /// Returns whether reclaim for `short`, to `depth`, may take so many frames from a group: those
    /// beyond its protection.
    pub fn exposes(
        &self,
        group: GroupId,
        frames: Pages,
        (short, depth): (&GroupNode, Depth),
    ) -> bool {
        if !self.groups.has_protection() {
            return true;
        }
        // A removed group has passed its pages on.
        let Some(group) = self.groups.get(group) else {
            return true;
        };
        let protection = group.protection_below(short);
        let protected = protection.at(depth);
        if protected == Bytes::ZERO {
            return true;
        }
        let usage = usage_beside(&group, protected, frames);
        match protection.exposure(usage, depth) {
            Exposure::Exposed(exposed) => exposed >= frames,
            _ => false,
        }
    }
}

/// Returns a group's usage: a lower bound if that exceeds `threshold` by as many frames as a page
/// may hold, which is enough for reclaim to continue, and otherwise exactly.
fn usage_beside(group: &GroupNode, threshold: Bytes, beyond: Pages) -> Bytes {
    let certain = group.usage_bounds().low;
    if certain >= threshold.saturating_add(beyond.bytes()) {
        certain
    } else {
        group.usage_precise()
    }
}
