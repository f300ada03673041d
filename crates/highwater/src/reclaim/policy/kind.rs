//! The eviction policies by name.

use std::fmt;
#[cfg(feature = "lab")]
use std::str::FromStr;

use super::{Balanced, Car, Clock, EvictionPolicy, S3Fifo, Sieve, TwoList};
use crate::sync::Arc;

/// The eviction policy of a manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicyKind {
    /// Two lists, aged as in Linux: LRU as far as marks can tell.
    TwoList,
    /// One list, and a second chance.
    Clock,
    /// One list, and a hand that skips accessed pages.
    Sieve,
    /// New pages apart, on a list of a fixed share.
    S3Fifo,
    /// Two clocks whose share adapts, as in ARC.
    Car,
    /// New pages apart, on a list with an adaptive share; as LRU where that pays. The default: over
    /// recorded traces it misses less than the others (`highwater lab policies`), and on none of
    /// them more than 2.5 % more than LRU, in caches of up to 10 % of the footprint;
    /// [limitations](crate::docs::limitations) has where it does. Costs 16 looks at pages for each
    /// page that comes in.
    #[default]
    Balanced,
}

impl PolicyKind {
    /// All policies.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const ALL: [Self; 6] = [
        Self::TwoList,
        Self::Clock,
        Self::Sieve,
        Self::S3Fifo,
        Self::Car,
        Self::Balanced,
    ];

    /// Returns its name, which parses back to it.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TwoList => "two-list",
            Self::Clock => "clock",
            Self::Sieve => "sieve",
            Self::S3Fifo => "s3-fifo",
            Self::Car => "car",
            Self::Balanced => "balanced",
        }
    }

    /// Returns its decisions.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn policy(self) -> Arc<dyn EvictionPolicy> {
        match self {
            Self::TwoList => Arc::new(TwoList),
            Self::Clock => Arc::new(Clock),
            Self::Sieve => Arc::new(Sieve),
            Self::S3Fifo => Arc::new(S3Fifo),
            Self::Car => Arc::new(Car),
            Self::Balanced => Arc::new(Balanced),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is not that of an eviction policy.
#[cfg(feature = "lab")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePolicyError(String);

#[cfg(feature = "lab")]
impl fmt::Display for ParsePolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = PolicyKind::ALL.map(PolicyKind::name).join(", ");
        write!(f, "eviction policy `{}`: expected one of {names}", self.0)
    }
}

#[cfg(feature = "lab")]
impl std::error::Error for ParsePolicyError {}

#[cfg(feature = "lab")]
impl FromStr for PolicyKind {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| ParsePolicyError(text.to_owned()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        // Goal: each policy parses from its name, and the error for a wrong one lists all of them.
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "lru".parse::<PolicyKind>().unwrap_err().to_string();
        assert!(
            PolicyKind::ALL
                .iter()
                .all(|kind| error.contains(kind.name())),
            "{error}"
        );
    }
}
