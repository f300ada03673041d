//! Units and identifiers that every layer shares: every number carries its unit.
//!
//! [`Pages`] and [`Bytes`] convert only by name, so that a page count cannot be mistaken for a byte
//! count. [`FilePage`] and [`MapPage`] are page numbers. [`Pfn`], [`CpuId`] and [`GroupId`] are
//! indices into dense arrays. [`Estimate`] is the result of reading a distributed value: the value
//! and an interval that contains the exact one.

mod page;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;

pub use crate::error::ParseBytesError;
pub use page::{FilePage, MapPage};

/// Bytes in one page frame: 4,096, whatever the system's own page size is.
pub const PAGE_SIZE: usize = 4096;

/// [`PAGE_SIZE`] as the type that byte totals are counted in.
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) const PAGE_BYTES: u64 = 4096;

const _: () = assert!(PAGE_SIZE as u64 == PAGE_BYTES && PAGE_SIZE.is_power_of_two());

/// A number of pages of 4,096 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct Pages(pub u64);

impl Pages {
    /// No pages.
    pub const ZERO: Self = Self(0);
    /// More pages than any machine has: "no limit".
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const MAX: Self = Self(u64::MAX / PAGE_BYTES);

    /// The same amount in bytes; saturates at `u64::MAX`.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Pages};
    ///
    /// assert_eq!(Pages(2).bytes(), Bytes(8192));
    /// ```
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0.saturating_mul(PAGE_BYTES))
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// One page frame.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const PAGE: Self = Self(PAGE_BYTES);
    /// More bytes than any machine has: "no limit".
    pub const MAX: Self = Self(u64::MAX);

    /// `n` times 1,024 bytes; saturates.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::Bytes;
    ///
    /// assert_eq!(Bytes::kib(3), Bytes(3 << 10));
    /// assert_eq!(Bytes::kib(u64::MAX), Bytes::MAX);
    /// ```
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// `n` times 1,048,576 bytes; saturates.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::Bytes;
    ///
    /// assert_eq!(Bytes::mib(3), Bytes(3 << 20));
    /// assert_eq!(Bytes::mib(u64::MAX), Bytes::MAX);
    /// ```
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `n` times 1,073,741,824 bytes; saturates.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::Bytes;
    ///
    /// assert_eq!(Bytes::gib(3), Bytes(3 << 30));
    /// assert_eq!(Bytes::gib(u64::MAX), Bytes::MAX);
    /// ```
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// The whole pages that fit into this many bytes.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn pages_floor(self) -> Pages {
        Pages(self.0 / PAGE_BYTES)
    }

    /// The pages that hold this many bytes.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn pages_ceil(self) -> Pages {
        Pages(self.0.div_ceil(PAGE_BYTES))
    }
}

macro_rules! amount {
    ($name:ident) => {
        impl $name {
            /// `self + other`, or the largest amount when that does not fit 64 bits.
            #[must_use]
            #[cfg_attr(feature = "lab", visibility::make(pub))]
            pub(crate) const fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }

            /// `self - other`, or zero when `other` is larger.
            #[must_use]
            #[cfg_attr(feature = "lab", visibility::make(pub))]
            pub(crate) const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// `self + other`, or `None` when that does not fit 64 bits.
            #[must_use]
            #[cfg_attr(feature = "lab", visibility::make(pub))]
            pub(crate) const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// `self - other`, or `None` when `other` is larger.
            #[must_use]
            #[cfg_attr(feature = "lab", visibility::make(pub))]
            pub(crate) const fn checked_sub(self, other: Self) -> Option<Self> {
                match self.0.checked_sub(other.0) {
                    Some(difference) => Some(Self(difference)),
                    None => None,
                }
            }
        }

        /// Panics, in release builds too, when the sum does not fit 64 bits.
        impl Add for $name {
            type Output = Self;
            #[inline]
            #[track_caller]
            fn add(self, other: Self) -> Self {
                match self.checked_add(other) {
                    Some(sum) => sum,
                    None => panic!("{self} + {other} does not fit 64 bits"),
                }
            }
        }
        impl AddAssign for $name {
            #[inline]
            #[track_caller]
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        /// Panics, in release builds too, when the difference is negative.
        impl Sub for $name {
            type Output = Self;
            #[inline]
            #[track_caller]
            fn sub(self, other: Self) -> Self {
                match self.checked_sub(other) {
                    Some(difference) => difference,
                    None => panic!("{self} - {other} is negative"),
                }
            }
        }
        impl SubAssign for $name {
            #[inline]
            #[track_caller]
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, |sum, item| sum + item)
            }
        }
    };
}
amount!(Pages);
amount!(Bytes);

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            self.0,
            if self.0 == 1 { "page" } else { "pages" }
        )
    }
}

impl fmt::Display for Bytes {
    /// Writes the largest unit that divides the amount: `64 MiB`, `1536 KiB`, `1000 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, unit) = match self.0 {
            0 => (0, "B"),
            n if n.trailing_zeros() >= 30 => (30, "GiB"),
            n if n.trailing_zeros() >= 20 => (20, "MiB"),
            n if n.trailing_zeros() >= 10 => (10, "KiB"),
            _ => (0, "B"),
        };
        write!(f, "{} {unit}", self.0 >> shift)
    }
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// Reads a whole number with an optional unit: `B` (or none), `KiB`, `MiB`, `GiB`, `TiB`, or
    /// their first letters, alone or with a `B`, all of them powers of 1,024. Letter case and
    /// spaces before the unit do not matter, but for the `B` of bytes: a small one that no `i`
    /// precedes is refused, because `4Mb` is 4 megabits elsewhere.
    ///
    /// # Errors
    ///
    /// Names the text when it is not of that form or does not fit 64 bits.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::units::Bytes;
    /// assert_eq!("64MiB".parse(), Ok(Bytes::mib(64)));
    /// assert_eq!("3 g".parse(), Ok(Bytes::gib(3)));
    /// assert!("64Mb".parse::<Bytes>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseBytesError {
            text: text.to_owned(),
        };
        let trimmed = text.trim();
        let digits_end = trimmed
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(digits_end);
        let unit = unit.trim();
        let are_bits = unit.ends_with('b') && !unit.ends_with("ib") && !unit.ends_with("Ib");
        let shift = match unit.to_ascii_lowercase().as_str() {
            _ if are_bits => return Err(refuse()),
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(refuse()),
        };
        let count: u64 = digits.parse().map_err(|_| refuse())?;
        count.checked_mul(1 << shift).map(Self).ok_or_else(refuse)
    }
}

/// Logarithm of a block's size: a block of order `n` is 2^n frames, aligned to 2^n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) struct Order(u8);

impl Order {
    /// One frame.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const ZERO: Self = Self(0);
    /// 2^10 frames, 4 MiB: the largest block that the buddy allocator keeps.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const MAX: Self = Self(10);
    /// 2^9 frames, 2 MiB: one huge page on x86-64.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const HUGE: Self = Self(9);

    /// Returns `order` as an [`Order`] if it is at most [`Order::MAX`].
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn new(order: u8) -> Option<Self> {
        if order <= Self::MAX.0 {
            Some(Self(order))
        } else {
            None
        }
    }

    /// Returns every order, lowest first.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..=Self::MAX.0).map(Self)
    }

    /// Returns the raw exponent.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn get(self) -> u8 {
        self.0
    }

    /// Returns the number of frames in a block of this order.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn pages(self) -> Pages {
        Pages(1 << self.0)
    }

    /// Returns the number of bytes in a block of this order.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn size(self) -> usize {
        PAGE_SIZE << self.0
    }
}

macro_rules! index {
    ($(#[$doc:meta])* $vis:vis $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
        $vis struct $name(pub u32);

        impl $name {
            /// Returns the identifier as an array index.
            #[must_use]
            #[cfg_attr(feature = "lab", visibility::make(pub))]
            pub(crate) const fn index(self) -> usize {
                self.0 as usize
            }

            /// Returns the identifier of the array element `index`.
            ///
            /// # Panics
            ///
            /// When `index` does not fit 32 bits: the indexed arrays are never that long.
            #[must_use]
            #[cfg_attr(feature = "lab", visibility::make(pub))]
            pub(crate) fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("identifiers are 32 bits wide"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}
index!(
    /// Page frame number: index of a frame in the manager's reserved range. Shown as `F17`.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) Pfn, "F"
);
index!(
    /// A CPU of the machine or of a synthetic topology. Shown as `C3`.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) CpuId, "C"
);
index!(
    /// A group in its tree; 0 is the root. Shown as `G5`.
    pub GroupId, "G"
);

/// OOM score adjustment of a group, as in `/proc/PID/oom_score_adj`: thousandths of all memory that
/// are added to the group's usage when a victim is selected; negative values protect it.
///
/// # Examples
///
/// ```
/// use highwater::units::OomScoreAdj;
/// assert_eq!(OomScoreAdj::clamped(-5000), OomScoreAdj::UNKILLABLE);
/// assert_eq!(i32::from(OomScoreAdj::clamped(250)), 250);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct OomScoreAdj(i16);

impl OomScoreAdj {
    /// Never selected as a victim.
    pub const UNKILLABLE: Self = Self(-1000);
    /// Scored by usage alone.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const ZERO: Self = Self(0);
    /// Scores all of memory above its usage: selected before any group without an adjustment.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const MAX: Self = Self(1000);

    /// Returns `thousandths`, clamped to -1000..=1000.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::units::OomScoreAdj;
    ///
    /// assert_eq!(OomScoreAdj::clamped(-5000), OomScoreAdj::UNKILLABLE);
    /// ```
    #[must_use]
    pub const fn clamped(thousandths: i32) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "1,000 fits 16 bits")]
        match thousandths {
            ..=-1000 => Self::UNKILLABLE,
            1000.. => Self::MAX,
            between => Self(between as i16),
        }
    }

    /// Returns the thousandths, -1000 to 1000.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn get(self) -> i32 {
        self.0 as i32
    }
}

impl From<OomScoreAdj> for i32 {
    /// Returns the thousandths, -1000 to 1000.
    fn from(adj: OomScoreAdj) -> Self {
        adj.get()
    }
}

impl fmt::Display for OomScoreAdj {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Result of reading a distributed value: the value, and the closed interval `low ..= high` that
/// contains the exact one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Estimate<T> {
    /// The value as read; inside the interval.
    pub value: T,
    /// The exact value is not below this.
    pub low: T,
    /// The exact value is not above this.
    pub high: T,
}

impl<T: Ord + Copy> Estimate<T> {
    /// Returns the estimate of an exactly known value.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::Estimate;
    ///
    /// let seven = Estimate::exact(7);
    /// assert_eq!((seven.low, seven.value, seven.high), (7, 7, 7));
    /// ```
    #[must_use]
    pub const fn exact(value: T) -> Self {
        Self {
            value,
            low: value,
            high: value,
        }
    }

    /// Returns whether `exact` lies inside the interval.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::Estimate;
    ///
    /// let about = Estimate { value: 10, low: 8, high: 13 };
    /// assert!(about.contains(8) && about.contains(13) && !about.contains(14));
    /// ```
    #[must_use]
    pub fn contains(&self, exact: T) -> bool {
        self.low <= exact && exact <= self.high
    }
}

impl From<Estimate<i64>> for Estimate<Pages> {
    /// The estimate of a count of pages, which cannot be negative: bounds below zero become zero.
    fn from(Estimate { value, low, high }: Estimate<i64>) -> Self {
        let positive = |value| Pages(u64::try_from(value).unwrap_or(0));
        Self {
            value: positive(value),
            low: positive(low),
            high: positive(high),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Estimate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} to {})", self.value, self.low, self.high)
    }
}
