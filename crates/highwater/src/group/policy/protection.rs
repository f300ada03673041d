//! Effective protection (emin, elow): how much of a group's `min` and `low` counts when another
//! group reclaims.
//!
//! Both are promises of a parent to its children, and a parent cannot promise more than it has
//! itself. So the *effective* value of a setting is computed from the group that is short of memory
//! (the *reclaim root*) downwards, anew for each reclaim:
//!
//! - A child of the reclaim root has its setting in full: the groups that compete there have the
//!   same parent, and groups above have no say.
//! - Further down, a group *claims* its setting, at most its usage. Where siblings claim more than
//!   their parent has, each gets its proportional share; the part of a setting that one does not
//!   use is not kept from the others.
//! - The part that no child claims *floats*: it is divided among the children by each one's usage
//!   beyond its claim. So a tenant's protection covers its queries, although no query has a setting
//!   of its own.
//!
//! The same rules hold for `min` and for `low`, each with its own numbers.
//!
//! | usage of a group | reclaim |
//! |---|---|
//! | less than a page above effective `min` | never |
//! | less than a page above effective `low` | only if nothing else can be reclaimed; an event if it is at most `low` |
//! | above | the whole pages that are not protected |
//!
//! Invariant: where no group is charged less than its children together, the effective values of
//! children that are not children of the reclaim root add up to at most their parent's, whatever
//! the settings.
//!
//! Source: accounting spec 8.5; frames-and-reclaim spec 9.6 and 15. Deviation: a protected group is
//! scanned for its usage beyond its protection and for no cluster more, so that one pass alone
//! never reclaims protected bytes; the kernel scans 32 pages at least. Deviation: products are
//! computed in 128 bits.

use crate::units::{Bytes, Pages};

/// The inputs from which the effective protection of a group's children is divided.
#[derive(Clone, Copy, Debug)]
pub(in crate::group) struct Parent {
    /// Usage of the parent.
    pub(in crate::group) usage: Bytes,
    /// Effective value of the parent's own setting.
    pub(in crate::group) effective: Bytes,
    /// Sum of its children's claims.
    pub(in crate::group) claimed: Bytes,
}

/// Usage and setting of one group.
#[derive(Clone, Copy, Debug)]
pub(in crate::group) struct Claim {
    /// Its usage.
    pub(in crate::group) usage: Bytes,
    /// Its setting.
    pub(in crate::group) setting: Bytes,
}

impl Claim {
    /// Returns the part of its parent's protection that the group claims.
    fn bytes(self) -> Bytes {
        self.usage.min(self.setting)
    }

    /// Returns the effective value of the setting, for a group that is not a child of the reclaim
    /// root.
    pub(in crate::group) fn effective(self, parent: Parent) -> Bytes {
        let claim = self.bytes();
        if parent.claimed > parent.effective {
            return Bytes(share(parent.effective.0, claim.0, parent.claimed.0));
        }
        let floating = parent.effective - parent.claimed;
        let beyond_claims = parent.usage.saturating_sub(parent.claimed);
        if floating == Bytes::ZERO || beyond_claims == Bytes::ZERO {
            return claim;
        }
        let beyond = self.usage - claim;
        claim.saturating_add(Bytes(share(floating.0, beyond.0, beyond_claims.0)))
    }
}

/// Returns `whole * part / of`, rounded down. `of` is never zero here.
fn share(whole: u64, part: u64, of: u64) -> u64 {
    let share = u128::from(whole) * u128::from(part) / u128::from(of);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// The effective protection of a group in one reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Effective `min`: while usage is at most this, nothing is reclaimed from the group.
    pub min: Bytes,
    /// Effective `low`: while usage is at most this, other groups are reclaimed from first.
    pub low: Bytes,
}

/// How far reclaim goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Groups whose usage is at most their effective `low` are skipped.
    AboveLow,
    /// Only groups whose usage is at most their effective `min` are skipped: nothing else was left.
    AboveMin,
}

/// How far a group is exposed to reclaim, which takes whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// Usage is less than a page beyond the effective `min`.
    Protected,
    /// Usage is less than a page beyond the effective `low`, and other groups may have more.
    Sheltered,
    /// Number of whole pages that are not protected.
    Exposed(Pages),
}

impl Protection {
    /// No protection at all.
    pub const NONE: Self = Self {
        min: Bytes::ZERO,
        low: Bytes::ZERO,
    };

    /// Returns how far a group with this `usage` is exposed to reclaim to `depth`.
    #[must_use]
    pub fn exposure(self, usage: Bytes, depth: Depth) -> Exposure {
        let beyond = |protection| usage.saturating_sub(protection).pages_floor();
        // Taking a page must not leave the group below its protection.
        let covers = |protection| protection > Bytes::ZERO && beyond(protection) == Pages::ZERO;
        if covers(self.min) {
            return Exposure::Protected;
        }
        if depth == Depth::AboveLow && covers(self.low) {
            return Exposure::Sheltered;
        }
        Exposure::Exposed(beyond(self.at(depth)))
    }

    /// Returns the bytes protected from reclaim to `depth`.
    #[must_use]
    pub fn at(self, depth: Depth) -> Bytes {
        match depth {
            Depth::AboveLow => self.min.max(self.low),
            Depth::AboveMin => self.min,
        }
    }

    /// Returns how many of `size` pages on a group's LRU lists reclaim to `depth` scans, where the
    /// group uses `usage`: the part that is not protected, at least one page, and never more than
    /// is not protected.
    #[must_use]
    pub fn scanned(self, size: u64, usage: Bytes, depth: Depth) -> u64 {
        let Exposure::Exposed(exposed) = self.exposure(usage, depth) else {
            return 0;
        };
        if self.at(depth) == Bytes::ZERO {
            return size;
        }
        share(size, exposed.0, usage.pages_ceil().0.max(1)).clamp(1, exposed.0.max(1))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::units::PAGE_BYTES;

    fn claim(usage: u64, setting: u64) -> Claim {
        let (usage, setting) = (Bytes(usage), Bytes(setting));
        Claim { usage, setting }
    }

    fn a_parent(usage: u64, effective: u64, claimed: u64) -> Parent {
        Parent {
            usage: Bytes(usage),
            effective: Bytes(effective),
            claimed: Bytes(claimed),
        }
    }

    #[test]
    fn small_families_share_what_their_parent_has() {
        // Goal: the invariant, and the promise of each rule. Method: every parent of up to 6 bytes
        // with two children and every setting up to 4, including bytes of the parent's own.
        let settings = 0..=4;
        for (own, effective) in pairs(0..=2, 0..=6) {
            for ((one, two), (first, second)) in pairs_of(pairs(0..=3, 0..=3), settings.clone()) {
                let children = [claim(one, first), claim(two, second)];
                let claimed = children[0].bytes() + children[1].bytes();
                let parent = a_parent(own + one + two, effective, claimed.0);
                let got = children.map(|child| child.effective(parent));
                let what = || format!("{children:?} of {parent:?}: {got:?}");
                assert!(got[0] + got[1] <= parent.effective, "{}", what());
                for (child, got) in children.iter().zip(got) {
                    if claimed <= parent.effective {
                        assert!(got >= child.bytes(), "a claim was cut: {}", what());
                    } else {
                        assert!(got <= child.bytes(), "{}", what());
                        let exact = effective * child.bytes().0;
                        assert!(got.0 * claimed.0 <= exact, "{}", what());
                        assert!((got.0 + 1) * claimed.0 > exact, "{}", what());
                    }
                    if child.usage == Bytes::ZERO {
                        assert_eq!(got, Bytes::ZERO, "{}", what());
                    }
                }
            }
        }
    }

    fn pairs(
        one: std::ops::RangeInclusive<u64>,
        two: std::ops::RangeInclusive<u64>,
    ) -> Vec<(u64, u64)> {
        one.flat_map(|a| two.clone().map(move |b| (a, b))).collect()
    }

    fn pairs_of(
        usages: Vec<(u64, u64)>,
        settings: std::ops::RangeInclusive<u64>,
    ) -> Vec<((u64, u64), (u64, u64))> {
        let settings = pairs(settings.clone(), settings);
        let with_all = |usage| settings.iter().map(move |&setting| (usage, setting));
        usages.into_iter().flat_map(with_all).collect()
    }

    #[test]
    fn worked_examples_come_out_as_specified() {
        // Goal: the formulas of accounting spec 8.5, by numbers. Method: computed by hand.
        // Overcommitted: 100 bytes of protection, claims of 120 and 80: 60 and 40.
        let parent = a_parent(300, 100, 200);
        assert_eq!(claim(120, 150).effective(parent), Bytes(60));
        assert_eq!(claim(180, 80).effective(parent), Bytes(40));
        // Work conserving: the second uses 10 of its 80, so the first loses less.
        let parent = a_parent(300, 100, 130);
        assert_eq!(claim(120, 150).effective(parent), Bytes(92));
        assert_eq!(claim(10, 80).effective(parent), Bytes(7));
        // Floating: 100 bytes, 20 claimed by one; 80 are divided by usage beyond claims, 60 and 20
        // of 80.
        let parent = a_parent(100, 100, 20);
        assert_eq!(claim(80, 20).effective(parent), Bytes(80));
        assert_eq!(claim(20, 0).effective(parent), Bytes(20));
        // And less where the parent pays for bytes of its own.
        let parent = a_parent(180, 100, 20);
        assert_eq!(claim(80, 20).effective(parent), Bytes(20 + 80 * 60 / 160));
    }

    #[test]
    fn empty_groups_divide_by_nothing() {
        // Goal: the corner cases of accounting spec 12. Method: nothing claimed, a parent that uses
        // exactly the claims, nothing used, and amounts whose product needs 128 bits.
        assert_eq!(claim(5, 0).effective(a_parent(0, 0, 0)), Bytes(0));
        assert_eq!(claim(5, 0).effective(a_parent(5, 0, 0)), Bytes(0));
        assert_eq!(claim(5, 5).effective(a_parent(5, 9, 5)), Bytes(5));
        assert_eq!(claim(7, 5).effective(a_parent(5, 9, 5)), Bytes(5));
        assert_eq!(claim(0, 5).effective(a_parent(0, 5, 0)), Bytes(0));
        assert_eq!(claim(0, 5).effective(a_parent(9, 5, 0)), Bytes(0));
        let huge = 1 << 51;
        let parent = a_parent(4 * huge, 2 * huge, 4 * huge);
        assert_eq!(claim(huge, u64::MAX).effective(parent), Bytes(huge / 2));
        let parent = a_parent(2 * huge, u64::MAX, 0);
        assert_eq!(claim(huge, 0).effective(parent), Bytes(u64::MAX / 2));
    }

    #[test]
    fn exposure_follows_usage_and_depth() {
        // Goal: min is never reclaimed, low only at the second depth, a group without settings
        // always, also when it uses nothing. Method: every small case, in half pages, against the
        // table of the module; two half pages are one page for reclaim.
        for min in 0..=4 {
            for low in 0..=4 {
                for usage in 0..=12 {
                    check_exposure(min, low, usage);
                }
            }
        }
    }

    fn check_exposure(min: u64, low: u64, usage: u64) {
        let halves = |count| Bytes(count * PAGE_BYTES / 2);
        let protection = Protection {
            min: halves(min),
            low: halves(low),
        };
        let at = |depth| protection.exposure(halves(usage), depth);
        let is_min = min > 0 && usage < min + 2;
        let is_low = low > 0 && usage < low + 2;
        match at(Depth::AboveLow) {
            Exposure::Protected => assert!(is_min),
            Exposure::Sheltered => assert!(is_low && !is_min),
            Exposure::Exposed(pages) => {
                assert!(!is_low && !is_min);
                assert_eq!(pages.0, usage.saturating_sub(min.max(low)) / 2);
            }
        }
        match at(Depth::AboveMin) {
            Exposure::Protected => assert!(is_min),
            Exposure::Sheltered => panic!("nothing is sheltered when nothing else is left"),
            Exposure::Exposed(pages) => {
                assert!(!is_min);
                assert_eq!(pages.0, usage.saturating_sub(min) / 2);
            }
        }
        for depth in [Depth::AboveLow, Depth::AboveMin] {
            for size in 0..=usage / 2 {
                let scanned = protection.scanned(size, halves(usage), depth);
                match protection.exposure(halves(usage), depth) {
                    Exposure::Exposed(pages) if protection.at(depth) > Bytes::ZERO => {
                        assert!(scanned <= pages.0 && scanned >= 1);
                        assert!(scanned == 1 || scanned * usage.div_ceil(2) <= size * pages.0);
                    }
                    Exposure::Exposed(_) => assert_eq!(scanned, size),
                    _ => assert_eq!(scanned, 0),
                }
            }
        }
    }
}
