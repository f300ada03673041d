//! Scan balance: how many pages of each list one visit to a group scans (`get_scan_count`).
//!
//! Each list contributes its length divided by 2^priority; then the page types are weighed against
//! each other:
//!
//! | condition, first match | scanned |
//! |---|---|
//! | no swap, or a group that must not swap reclaims for itself | files only |
//! | the last priority, and swapping is allowed | both equally |
//! | few file pages are left in the pool | anonymous only |
//! | many inactive file pages, and no new working set of them | files only |
//! | otherwise | by the recent cost of reclaiming each type, and swappiness |
//!
//! Swappiness is the pool's, unless it is set on the group or an ancestor. A group with 0 is never
//! swapped.
//!
//! **Policies.** Under a policy that evicts from both lists, the list that a page is on does not
//! tell how many pages could be spared: both lists count as inactive. Recent refaults of a type
//! show that more of it is needed, as they do for a policy that ages the active list beside the
//! lists' lengths: then the third and fourth row do not apply.
//!
//! **Cost.** A page that was scanned and stayed costs 1; one that was written out, or refaulted
//! although it had been part of the working set, costs 32 times that ([`Costs`]). The weight of a
//! type is in inverse proportion to its cost, but at least a third of the pressure reaches each
//! side.
//!
//! Source: frames-and-reclaim specification, 9.5 and 9.6.

use super::lists::{LruList, PageType};
use super::sizes::ListSizes;

/// Cost of one write, in pages that were scanned and stayed.
const IO_COST: u64 = 32;

/// The highest swappiness. At half of it, reclaim of both types is taken to cost the same I/O, as
/// in the kernel.
pub(super) const SWAPPINESS_MAX: u64 = 200;

/// Recent cost of reclaiming each type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Costs {
    pub(super) anon: u64,
    pub(super) file: u64,
}

impl Costs {
    /// Adds `io` pages that were written or refaulted, and `rotated` pages that were scanned and
    /// stayed. Halved while it is above a quarter of the pages, so that recent events count most.
    #[must_use]
    pub(super) const fn noting(
        mut self,
        page_type: PageType,
        io: u64,
        rotated: u64,
        pages: u64,
    ) -> Self {
        let cost = io * IO_COST + rotated;
        match page_type {
            PageType::Anon => self.anon += cost,
            PageType::File => self.file += cost,
        }
        if self.anon + self.file > pages / 4 {
            self.anon /= 2;
            self.file /= 2;
        }
        self
    }
}

/// Pages of each list to scan; of the unevictable one, none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScanCounts([u64; LruList::COUNT]);

impl ScanCounts {
    pub(super) const fn of(self, list: LruList) -> u64 {
        self.0[list as usize]
    }

    pub(super) fn total(self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns whether only active anonymous pages are left, which is no reason to go on.
    pub(super) fn is_spent(self) -> bool {
        self.total() == self.of(LruList::ActiveAnon)
    }

    pub(super) fn set(&mut self, list: LruList, count: u64) {
        debug_assert!(
            count == 0 || list != LruList::Unevictable,
            "unevictable pages are not scanned"
        );
        self.0[list as usize] = count;
    }

    /// Returns whether any pages of a type are scanned.
    pub(super) fn has(self, page_type: PageType) -> bool {
        self.of(page_type.inactive()) + self.of(page_type.active()) > 0
    }

    /// Moves each type's count to its inactive list.
    pub(super) fn by_type(mut self) -> Self {
        let total = self.total();
        for page_type in PageType::ALL {
            let (inactive, active) = (page_type.inactive(), page_type.active());
            self.set(inactive, self.of(inactive) + self.of(active));
            self.set(active, 0);
        }
        debug_assert_eq!(self.total(), total, "pages are lost between the lists");
        self
    }

    /// Limits the counts of inactive lists to `most` in total.
    pub(super) fn at_most(mut self, most: u64) -> Self {
        let mut left = most;
        for page_type in [PageType::File, PageType::Anon] {
            let list = page_type.inactive();
            let count = self.of(list).min(left);
            self.set(list, count);
            left -= count;
        }
        debug_assert!(
            self.of(LruList::InactiveFile) + self.of(LruList::InactiveAnon) <= most,
            "more than {most} inactive pages"
        );
        self
    }

    /// Returns the smaller count of each list.
    pub(super) fn min(self, other: Self) -> Self {
        Self(std::array::from_fn(|list| self.0[list].min(other.0[list])))
    }

    /// Multiplies each list's count.
    pub(super) fn times(self, factor: u64) -> Self {
        Self(self.0.map(|count| count.saturating_mul(factor)))
    }

    /// Takes up to `cluster` of each list.
    pub(super) fn take(&mut self, cluster: u64) -> Self {
        let whole = self.total();
        let taken = self.0.map(|count| count.min(cluster));
        for (count, taken) in self.0.iter_mut().zip(taken) {
            *count -= taken;
        }
        let taken = Self(taken);
        debug_assert_eq!(
            self.total() + taken.total(),
            whole,
            "what is left and what is taken is not the whole"
        );
        taken
    }
}

/// Inputs of the scan counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanInput {
    /// Lengths of the lists, or of their unprotected part.
    pub(super) sizes: ListSizes,
    /// Lists are divided by 2 to the power of this.
    pub(super) priority: u32,
    pub(super) swappiness: Swappiness,
    /// Whether anonymous pages can be swapped out.
    pub(super) has_swap: bool,
    /// Whether a group reclaims because of its own limit.
    pub(super) is_group_reclaim: bool,
    /// Whether the file pages in the pool, free ones included, are no more than its reserve of free
    /// pages.
    pub(super) file_is_tiny: bool,
    /// Whether pages of a type may be deactivated, by type: 0 anonymous, 1 files.
    pub(super) may_deactivate: [bool; 2],
    /// Whether the policy ages the active lists; if not, both lists of a type count as one here.
    pub(super) ages: bool,
    pub(super) costs: Costs,
}

/// Cost of swap I/O relative to file I/O, 0 to 200; 100 is equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Swappiness {
    /// The pool's setting.
    Everywhere(u64),
    /// Set on the group or an ancestor: 0 means that it is never swapped.
    Group(u64),
}

impl Swappiness {
    const fn get(self) -> u64 {
        match self {
            Self::Everywhere(value) | Self::Group(value) => value,
        }
    }
}

/// The types to scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanBalance {
    /// Both, each by its length.
    Equal,
    Only(PageType),
    /// Each by its length and weight.
    Fractions {
        anon: u64,
        file: u64,
    },
}

impl ScanInput {
    /// Returns the pages of each list to scan: at least one of each eligible list that has any.
    pub(super) fn counts(&self) -> ScanCounts {
        if self.sizes.evictable().0 == 0 {
            return ScanCounts::default();
        }
        let balance = self.balance();
        let lists = PageType::ALL.into_iter().flat_map(|page_type| {
            let lists = [page_type.inactive(), page_type.active()];
            lists.map(|list| (page_type, list))
        });
        let lists = lists.filter(|&(page_type, list)| {
            !list.is_active() || !self.ages || self.may_deactivate[page_type as usize]
        });
        let mut counts = ScanCounts::default();
        for (page_type, list) in lists.clone() {
            let whole = self.sizes.of(list).0 >> self.priority;
            counts.set(list, balance.share(page_type, whole));
        }
        if counts.total() == 0 {
            let worth = |&(page_type, list): &(PageType, LruList)| {
                u128::from(self.sizes.of(list).0) * u128::from(balance.weight(page_type))
            };
            let most = lists.max_by_key(worth).filter(|list| worth(list) > 0);
            most.into_iter().for_each(|(_, list)| counts.set(list, 1));
        }
        match self.ages {
            true => counts,
            false => counts.by_type(),
        }
    }

    fn balance(&self) -> ScanBalance {
        let never_swaps = match self.swappiness {
            Swappiness::Group(0) => true,
            Swappiness::Everywhere(0) => self.is_group_reclaim,
            _ => false,
        };
        if !self.has_swap || never_swaps {
            return ScanBalance::Only(PageType::File);
        }
        if self.priority == 0 && self.swappiness.get() > 0 {
            return ScanBalance::Equal;
        }
        if self.file_is_tiny {
            return ScanBalance::Only(PageType::Anon);
        }
        let candidates = match self.ages {
            true => self.sizes.inactive_file,
            false => self.sizes.of_type(PageType::File),
        };
        if candidates.0 >> self.priority > 0 && !self.may_deactivate[PageType::File as usize] {
            return ScanBalance::Only(PageType::File);
        }
        self.fractions()
    }

    fn fractions(&self) -> ScanBalance {
        let both = self.costs.anon + self.costs.file;
        let (anon_cost, file_cost) = (both + self.costs.anon, both + self.costs.file);
        let total = anon_cost + file_cost + 1;
        ScanBalance::Fractions {
            anon: self.swappiness.get() * total / (anon_cost + 1),
            file: (SWAPPINESS_MAX - self.swappiness.get()) * total / (file_cost + 1),
        }
    }
}

impl ScanBalance {
    fn share(self, page_type: PageType, whole: u64) -> u64 {
        match self {
            Self::Equal => whole,
            Self::Only(only) if only == page_type => whole,
            Self::Only(_) => 0,
            Self::Fractions { anon, file } => whole * self.weight(page_type) / (anon + file).max(1),
        }
    }

    const fn weight(self, page_type: PageType) -> u64 {
        match (self, page_type) {
            (Self::Equal, _)
            | (Self::Only(PageType::Anon), PageType::Anon)
            | (Self::Only(PageType::File), PageType::File) => 1,
            (Self::Only(_), _) => 0,
            (Self::Fractions { anon, .. }, PageType::Anon) => anon,
            (Self::Fractions { file, .. }, PageType::File) => file,
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;
    use crate::units::Pages;

    /// Lists of both types, equally expensive and long enough for every priority.
    pub(in crate::reclaim) fn input() -> ScanInput {
        ScanInput {
            sizes: ListSizes {
                inactive_anon: Pages(4000),
                active_anon: Pages(8000),
                inactive_file: Pages(4000),
                active_file: Pages(8000),
                unevictable: Pages(1000),
            },
            priority: 2,
            swappiness: Swappiness::Everywhere(60),
            has_swap: true,
            is_group_reclaim: false,
            file_is_tiny: false,
            may_deactivate: [true, true],
            ages: true,
            costs: Costs::default(),
        }
    }

    fn counts(input: ScanInput) -> [u64; 4] {
        let counts = input.counts();
        assert_eq!(counts.of(LruList::Unevictable), 0);
        [0, 1, 2, 3].map(|nth| counts.of(LruList::ALL[nth]))
    }

    #[test]
    fn rules_are_asked_in_order() {
        // Goal: the table of the module; each row takes precedence over those below it.
        let files_only = [0, 0, 1000, 2000];
        assert_eq!(
            counts(ScanInput {
                has_swap: false,
                file_is_tiny: true,
                ..input()
            }),
            files_only
        );
        let own = ScanInput {
            is_group_reclaim: true,
            swappiness: Swappiness::Everywhere(0),
            ..input()
        };
        assert_eq!(counts(own), files_only);
        // For a shortage of the pool, with swappiness set on the group.
        let never = ScanInput {
            swappiness: Swappiness::Group(0),
            ..input()
        };
        assert_eq!(counts(never), files_only);
        let last = ScanInput {
            priority: 0,
            file_is_tiny: true,
            ..input()
        };
        assert_eq!(counts(last), [4000, 8000, 4000, 8000]);
        let tiny = ScanInput {
            file_is_tiny: true,
            may_deactivate: [true, false],
            ..input()
        };
        assert_eq!(counts(tiny), [1000, 2000, 0, 0]);
        let trims = ScanInput {
            may_deactivate: [true, false],
            ..input()
        };
        assert_eq!(counts(trims), [0, 0, 1000, 0]);
        // Without costs, by swappiness alone: 60 to 140.
        assert_eq!(counts(input()), [300, 600, 700, 1400]);
    }

    #[test]
    fn a_policys_lists_count_as_one() {
        // Goal: under a policy that evicts from both lists, the rules apply to all pages of a type.
        // Method: rows three to five of the table, and the last.
        let one = ScanInput {
            ages: false,
            may_deactivate: [false, false],
            ..input()
        };
        assert_eq!(counts(one), [0, 0, 3000, 0]);
        let few = ScanInput {
            priority: 14,
            ..one
        };
        assert_eq!(counts(few), [0, 0, 1, 0], "by weight: neither has many");
        let tiny = ScanInput {
            file_is_tiny: true,
            ..one
        };
        assert_eq!(counts(tiny), [3000, 0, 0, 0]);
        let wanted = ScanInput {
            may_deactivate: [false, true],
            ..one
        };
        assert_eq!(counts(wanted), [900, 0, 2100, 0]);
    }

    #[test]
    fn a_group_has_one_page_to_give_or_none() {
        // Goal: a small group gives one eligible page, at any priority; a group without any gives
        // none.
        let sizes = |inactive_anon, inactive_file| ListSizes {
            inactive_anon: Pages(inactive_anon),
            inactive_file: Pages(inactive_file),
            ..ListSizes::default()
        };
        let of = |sizes| ScanInput {
            sizes,
            priority: 12,
            ..input()
        };
        assert_eq!(counts(of(sizes(10, 10))), [0, 0, 1, 0]);
        assert_eq!(counts(of(sizes(100, 10))), [1, 0, 0, 0]);
        assert_eq!(counts(of(sizes(0, 0))), [0; 4]);
        let without_swap = ScanInput {
            has_swap: false,
            ..of(sizes(100, 0))
        };
        assert_eq!(counts(without_swap), [0; 4]);
    }

    #[test]
    fn each_side_gets_a_third_whatever_it_costs() {
        // Goal: weights in inverse proportion are bounded. Method: all cost on one side, at even
        // swappiness; and a higher cost gives less, monotonously.
        let even = |anon, file| {
            let costs = Costs { anon, file };
            counts(ScanInput {
                swappiness: Swappiness::Everywhere(SWAPPINESS_MAX / 2),
                costs,
                ..input()
            })
        };
        assert_eq!(even(5000, 5000), even(0, 0));
        let mut last = even(0, 1_000_000)[0];
        assert!(
            (660..=667).contains(&last),
            "two thirds of 1000, not {last}"
        );
        for anon in (0..1_000_000).step_by(50_000) {
            let now = even(anon, 1_000_000 - anon)[0];
            assert!(now <= last, "{now} after {last}");
            last = now;
        }
        assert!((333..=380).contains(&last), "a third of 1000, not {last}");
    }

    #[test]
    fn costs_are_those_of_late() {
        // Goal: a write costs 32 scans; costs stay below a quarter of the pages, twice that for one
        // step.
        let costs = Costs::default().noting(PageType::Anon, 2, 3, 10_000);
        assert_eq!(costs, Costs { anon: 67, file: 0 });
        let mut costs = Costs {
            anon: 0,
            file: 2000,
        };
        for _ in 0..1000 {
            costs = costs.noting(PageType::Anon, 0, 32, 10_000);
            assert!(costs.anon + costs.file <= 2500 + 32);
        }
        assert!(
            costs.file < costs.anon / 100,
            "{costs:?}: the past is forgotten"
        );
    }

    #[test]
    fn clusters_of_a_share_add_up_to_it() {
        let mut rest = input().counts();
        let (whole, mut sum) = (rest, 0);
        while !rest.is_spent() {
            let step = rest.take(32);
            assert!(LruList::ALL.iter().all(|list| step.of(*list) <= 32));
            sum += step.total();
        }
        assert_eq!(sum + rest.total(), whole.total());
    }
}
