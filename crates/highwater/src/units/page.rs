//! Page numbers in two coordinate systems: of a file, and of a mapping.
//!
//! A mapping may begin at any page of its file, so page 3 of a mapping can be page 1,003 of the
//! file. Each system has a type, made from a plain number; only a mapping converts one into the
//! other, because it knows where it begins.

use std::fmt;
use std::ops::{Add, Range};

macro_rules! page_number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
        pub struct $name(pub u64);

        impl $name {
            /// Converts both ends of a range of plain numbers.
            pub(crate) fn range(pages: Range<impl Into<Self>>) -> Range<Self> {
                pages.start.into()..pages.end.into()
            }

            /// Returns a range as plain numbers, which can be iterated.
            pub(crate) fn numbers(pages: &Range<Self>) -> Range<u64> {
                pages.start.0..pages.end.0
            }
        }

        impl From<u64> for $name {
            #[inline]
            fn from(number: u64) -> Self {
                Self(number)
            }
        }

        impl Add<u64> for $name {
            type Output = Self;
            #[inline]
            fn add(self, pages: u64) -> Self {
                Self(self.0 + pages)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
page_number!(
    /// A page's number in its file, from 0 (`pgoff_t`).
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::units::FilePage;
    /// use highwater::{Manager, ReadError};
    ///
    /// # let path = std::env::temp_dir().join(format!("highwater-page-{}", std::process::id()));
    /// # std::fs::write(&path, [7; 3 * 4096])?;
    /// let hw = Manager::builder().build()?;
    /// let file = hw.open(&path)?;
    /// let map = hw.space(&hw.root()).map_file(&file, 1..3)?;
    /// std::fs::write(&path, "truncated")?; // behind the back of the cache
    /// // Storage counts from the start of the file, and so do its errors.
    /// match map.read(&hw.enter(), 0) {
    ///     Err(ReadError::Short { page, .. }) => assert_eq!(page, FilePage(1)),
    ///     other => panic!("{other:?}"),
    /// }
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    FilePage
);
page_number!(
    /// A page's number in its mapping, from 0: the mapping may begin at any page of its file.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::units::MapPage;
    /// use highwater::{Manager, Pages, ReadError};
    ///
    /// let hw = Manager::builder().build()?;
    /// let map = hw.space(&hw.root()).map_anon(Pages(4))?;
    /// map.write(2)?[0] = 8; // plain numbers count from the start of the mapping
    /// assert_eq!(map.read_latched(MapPage(2))?[0], 8);
    /// let Err(ReadError::OutOfRange { page, pages }) = map.write(4) else {
    ///     panic!("the mapping has 4 pages");
    /// };
    /// assert_eq!((page, pages), (MapPage(4), 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A page of a file is not a page of a mapping:
    ///
    /// ```compile_fail,E0277
    /// use highwater::units::FilePage;
    ///
    /// fn read(map: &highwater::Mapping, page: FilePage) -> Option<u8> {
    ///     Some(map.read_latched(page).ok()?[0])
    /// }
    /// ```
    MapPage
);
