//! What one pass may take from whom: protection, worked out for each group when the pass comes to
//! it.
//!
//! A pass goes round twice at most. The first time it passes over every group that uses no more
//! than its effective `min` or `low`. Only if it has so freed nothing, and passed over some because
//! of `low` alone, does it go round again and take from those too, which is a `low` event for each.
//! What is below `min` it never takes.
//!
//! Whether a group is protected depends on what it and its siblings use, so it is asked anew for
//! each cluster; what its settings are worth is worked out once in a pass, as in the kernel. Where
//! nobody has a `min` or a `low`, a pass costs what it did without any of this: one load more.

use std::collections::{HashMap, HashSet};

use super::ScanControl;
use super::lruvec::Lruvec;
use crate::group::{Depth, Exposure, GroupKey, GroupNode, GroupTree, Protection};
use crate::units::Bytes;

/// What a pass may do with a group's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing.
    PassOver,
    /// Look at pages of it.
    Scan {
        /// Pages on its lists that pressure is in proportion to.
        size: u64,
        /// Pages that may go before it is protected.
        exposed: u64,
    },
}

/// The state of one pass.
pub(super) struct Pass<'a> {
    target: &'a GroupNode,
    depth: Depth,
    /// Whether anybody is protected.
    heeds: bool,
    known: HashMap<GroupKey, Protection>,
    passed_over: HashSet<GroupKey>,
    is_any_sheltered: bool,
    told_low: HashSet<GroupKey>,
}

impl<'a> Pass<'a> {
    pub(super) fn new(control: &ScanControl<'a>, groups: &GroupTree) -> Self {
        Self {
            target: control.target,
            depth: Depth::AboveLow,
            heeds: groups.has_protection() && !control.ignores_protection,
            known: HashMap::new(),
            passed_over: HashSet::new(),
            is_any_sheltered: false,
            told_low: HashSet::new(),
        }
    }

    /// Whether the pass may look at a group's lists, as far as it knows.
    pub(super) fn accepts(&self, lruvec: &Lruvec) -> bool {
        let group = lruvec.group();
        group.is_descendant_of(self.target) && !self.passed_over.contains(&group.key())
    }

    /// Goes on to groups below their `low`, if some were passed over for that; false when all was
    /// seen.
    pub(super) fn deepen(&mut self) -> bool {
        if !std::mem::take(&mut self.is_any_sheltered) {
            return false;
        }
        self.depth = Depth::AboveMin;
        self.passed_over.clear();
        true
    }

    /// What the pass may do with a group's lists now. No lock is held.
    pub(super) fn judge(&mut self, lruvec: &Lruvec) -> Turn {
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
        let usage = usage_beside(group, protection.min.max(protection.low));
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

/// Returns what a group uses: a lower bound if that is a page or more above `threshold`, so that
/// reclaim goes on by it, else exactly.
fn usage_beside(group: &GroupNode, threshold: Bytes) -> Bytes {
    let certain = group.usage_bounds().low;
    if certain >= threshold.saturating_add(Bytes::PAGE) {
        certain
    } else {
        group.usage_precise()
    }
}
