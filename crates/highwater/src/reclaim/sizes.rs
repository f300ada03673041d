//! Lengths of a group's lists, and which of two is too long.

use std::iter::Sum;
use std::ops::Add;

use super::lists::{LruList, PageType};
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
    /// Pages on the list of those that stay.
    pub unevictable: Pages,
}

impl ListSizes {
    /// From the length of each list, in their order.
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

    /// Pages on one list.
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

    /// Pages on all lists.
    #[must_use]
    pub fn total(self) -> Pages {
        self.evictable() + self.unevictable
    }

    /// Pages on the lists that reclaim looks at.
    #[must_use]
    pub fn evictable(self) -> Pages {
        self.of_type(PageType::Anon) + self.of_type(PageType::File)
    }

    /// Evictable pages of one type.
    #[must_use]
    pub fn of_type(self, page_type: PageType) -> Pages {
        self.of(page_type.inactive()) + self.of(page_type.active())
    }

    /// Pages that would have made room for a page of a type, had they been evicted in its place:
    /// what a refault's distance is held against.
    pub(super) fn workingset_for(self, page_type: PageType) -> Pages {
        let other = match page_type {
            PageType::Anon => self.inactive_file,
            PageType::File => self.inactive_anon,
        };
        self.active_file + self.active_anon + other
    }

    /// As if there were no anonymous pages.
    pub(super) const fn without_anon(mut self) -> Self {
        self.inactive_anon = Pages::ZERO;
        self.active_anon = Pages::ZERO;
        self
    }

    /// Whether the active list of a type should be aged: it has outgrown the inactive list, by
    /// `ratio`, or by a factor that grows with both (1 below 1 GiB, 3 at 1 GiB, 10 at 10 GiB).
    pub(super) fn inactive_is_low(self, page_type: PageType, ratio: Option<u64>) -> bool {
        const GIB_PAGES: u64 = 1 << 18;
        let by_size = match self.of_type(page_type).0 / GIB_PAGES {
            0 => 1,
            gib => (10 * gib).isqrt(),
        };
        let inactive = self.of(page_type.inactive()).0;
        inactive.saturating_mul(ratio.unwrap_or(by_size)) < self.of(page_type.active()).0
    }
}

impl ListSizes {
    /// The part of each list that is to all of them as `part` is to what may be evicted. Rounded
    /// up: a small part has a page of each list, whichever of them is looked at.
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
