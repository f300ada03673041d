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
