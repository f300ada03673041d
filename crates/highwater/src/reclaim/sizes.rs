//! Lengths of a group's lists.

use std::iter::Sum;
use std::ops::Add;

use super::lists::{LruList, PageType};
use super::policy::Lens;
use crate::units::Pages;

/// Lengths of a group's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ListSizes {
    /// Pages on the inactive list of anonymous pages.
    pub inactive_anon: Pages,
    /// Pages on the active list of anonymous pages.
    pub active_anon: Pages,
    /// Pages on the inactive list of files.
    pub inactive_file: Pages,
    /// Pages on the active list of files.
    pub active_file: Pages,
    /// Pages on the unevictable list.
    pub unevictable: Pages,
}

impl ListSizes {
    /// Converts from the length of each list, in their order.
    pub(super) fn from_lists(lens: [u64; LruList::COUNT]) -> Self {
        let [
            inactive_anon,
            active_anon,
            inactive_file,
            active_file,
            unevictable,
        ] = lens.map(Pages);
        Self {
            inactive_anon,
            active_anon,
            inactive_file,
            active_file,
            unevictable,
        }
    }

    /// Returns the pages on one list.
    #[must_use]
    pub const fn of(self, list: LruList) -> Pages {
        match list {
            LruList::InactiveAnon => self.inactive_anon,
            LruList::ActiveAnon => self.active_anon,
            LruList::InactiveFile => self.inactive_file,
            LruList::ActiveFile => self.active_file,
            LruList::Unevictable => self.unevictable,
        }
    }

    /// Returns the pages on all lists.
    #[must_use]
    pub fn total(self) -> Pages {
        self.evictable() + self.unevictable
    }

    /// Returns the pages on the lists that reclaim scans.
    #[must_use]
    pub fn evictable(self) -> Pages {
        self.of_type(PageType::Anon) + self.of_type(PageType::File)
    }

    /// Returns the evictable pages of one type.
    #[must_use]
    pub fn of_type(self, page_type: PageType) -> Pages {
        self.of(page_type.inactive()) + self.of(page_type.active())
    }

    /// Returns the pages that could have been evicted instead of a page of a type: the size that a
    /// refault's distance is compared with.
    pub(super) fn workingset_for(self, page_type: PageType) -> Pages {
        let other = match page_type {
            PageType::Anon => self.inactive_file,
            PageType::File => self.inactive_anon,
        };
        self.active_file + self.active_anon + other
    }

    /// Returns the sizes without anonymous pages.
    pub(super) const fn without_anon(mut self) -> Self {
        self.inactive_anon = Pages::ZERO;
        self.active_anon = Pages::ZERO;
        self
    }

    /// Returns the lengths of the two lists of a type, for a policy.
    pub(super) fn lens(self, page_type: PageType) -> Lens {
        Lens {
            inactive: self.of(page_type.inactive()).0,
            active: self.of(page_type.active()).0,
            capacity: self.of_type(page_type).0,
        }
    }
}

impl ListSizes {
    /// Scales each list by the ratio of `part` to the evictable pages. Rounded up, so that a small
    /// part has at least one page of each list.
    pub(super) fn scaled(self, part: Pages) -> Self {
        let whole = self.evictable().0;
        if part.0 >= whole {
            return self;
        }
        let scale = |list| {
            let scaled = u128::from(self.of(list).0) * u128::from(part.0);
            let scaled = scaled.div_ceil(u128::from(whole));
            u64::try_from(scaled).expect("at most the list")
        };
        Self::from_lists(LruList::ALL.map(scale))
    }
}

impl Add for ListSizes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::from_lists(LruList::ALL.map(|list| (self.of(list) + other.of(list)).0))
    }
}

impl Sum for ListSizes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), Add::add)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns lists of random lengths, some of them empty and some of more than 32 bits.
    fn random_sizes(random: &mut fastrand::Rng) -> ListSizes {
        let mut len = || match random.u8(..4) {
            0 => 0,
            _ => random.u64(..1 << 44) >> random.u32(..44),
        };
        ListSizes::from_lists([(); LruList::COUNT].map(|()| len()))
    }

    #[test]
    fn a_part_has_its_share_of_each_list() {
        // Goal: each list is scaled by the same ratio, rounded up, so that no list with pages is
        // left out and the evictable lists exceed the part by less than a page each; no part is
        // larger than the whole. Method: random lists and parts, at their ends too, in 128 bits.
        let mut random = crate::seed::rng(91);
        for _ in 0..5_000 {
            let sizes = random_sizes(&mut random);
            let whole = sizes.evictable().0;
            for part in [0, 1, random.u64(..=whole), whole.saturating_sub(1)] {
                let scaled = sizes.scaled(Pages(part));
                if part >= whole {
                    assert_eq!(scaled, sizes);
                    continue;
                }
                for list in LruList::ALL {
                    let [len, scaled] = [sizes, scaled].map(|sizes| u128::from(sizes.of(list).0));
                    let (whole, part) = (u128::from(whole), u128::from(part));
                    assert!(
                        scaled * whole >= len * part,
                        "{list:?} of {sizes:?} by {part}"
                    );
                    let rest = scaled * whole - len * part;
                    assert!(
                        rest < whole,
                        "{list:?} of {sizes:?} by {part}: a page too many"
                    );
                }
                let sum = scaled.evictable().0;
                assert!(
                    (part..part + 4).contains(&sum),
                    "{sum} for {part} of {sizes:?}"
                );
            }
            assert_eq!(sizes.scaled(Pages(whole)), sizes);
            assert_eq!(sizes.scaled(Pages(u64::MAX)), sizes);
        }
    }

    #[test]
    fn sums_of_sizes_are_sums_of_each_list() {
        // Goal: the evictable pages are those of both types and no unevictable ones; a refault
        // competes with all evictable pages but the inactive ones of its own type; without swap,
        // those of files only. Method: random lists, counted one by one.
        let mut random = crate::seed::rng(92);
        for _ in 0..1_000 {
            let sizes = random_sizes(&mut random);
            let evictable = LruList::ALL
                .into_iter()
                .filter(|&list| list != LruList::Unevictable);
            let sum = |sizes: ListSizes, of: &dyn Fn(&LruList) -> bool| -> Pages {
                evictable
                    .clone()
                    .filter(of)
                    .map(|list| sizes.of(list))
                    .sum()
            };
            assert_eq!(sizes.evictable(), sum(sizes, &|_| true));
            assert_eq!(sizes.total() - sizes.evictable(), sizes.unevictable);
            for page_type in PageType::ALL {
                let rivals = sum(sizes, &|&list| list != page_type.inactive());
                assert_eq!(sizes.workingset_for(page_type), rivals, "{page_type:?}");
                let own = [page_type.inactive(), page_type.active()];
                let lens = sizes.lens(page_type);
                assert_eq!(Pages(lens.capacity), sum(sizes, &|list| own.contains(list)));
                assert_eq!(
                    own.map(|list| sizes.of(list).0),
                    [lens.inactive, lens.active]
                );
            }
            let unswapped = sizes.without_anon();
            assert_eq!(unswapped.of_type(PageType::Anon), Pages::ZERO);
            assert_eq!(unswapped.workingset_for(PageType::File), sizes.active_file);
            let other = random_sizes(&mut random);
            let both: ListSizes = [sizes, other].into_iter().sum();
            for list in LruList::ALL {
                assert_eq!(both.of(list), sizes.of(list) + other.of(list));
            }
        }
    }
}
