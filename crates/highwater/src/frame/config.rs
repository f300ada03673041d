//! Construction options of a pool.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{AutoTuned, MakeBackend, PcpPolicy, Tunables};
use crate::percpu::Regime;
use crate::units::{Bytes, Pages};

/// The configuration of a [`FramePool`](super::FramePool).
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// CPUs that have a list.
    pub nr_cpus: usize,
    /// How lists are written: restartable for the CPUs of the system, atomic for any others.
    pub regime: Regime,
    /// The back end behind the lists.
    pub backend: MakeBackend,
    /// How lists are sized, and move frames.
    pub policy: &'static dyn PcpPolicy,
    /// The settings that can also be changed later.
    pub tunables: Tunables,
    /// When frames are zeroed.
    pub zeroing: Zeroing,
    /// Data cache of one CPU: where that is more than three batches of frames, a batch may stay in
    /// a list whose blocks are freed in a row.
    pub cache_slice: Bytes,
}

/// When frames are zeroed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Zeroing {
    /// When a request asks for it. Otherwise the last owner's data may be read.
    #[default]
    OnRequest,
    /// At each allocation.
    OnAlloc,
    /// At each free, so that none of the owner's data remains, and when a request asks for it.
    OnFree,
}

/// Why a pool cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// There are no CPUs.
    #[error("a pool for no CPUs: give one at least")]
    NoCpus,
    /// Frames of the memory are in use.
    #[error("only {free} of {managed} are free: a pool needs the whole memory")]
    NotFree {
        /// Free frames.
        free: Pages,
        /// All frames.
        managed: Pages,
    },
}

impl PoolConfig {
    /// Returns the defaults, for lists that any thread may use as any CPU.
    #[must_use]
    pub fn new(nr_cpus: usize) -> Self {
        Self {
            nr_cpus,
            regime: Regime::Atomic,
            backend: MakeBackend::default(),
            policy: &AutoTuned,
            tunables: Tunables::default(),
            zeroing: Zeroing::default(),
            cache_slice: Bytes::mib(1),
        }
    }
}

/// An unknown name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no {what} `{name}`: give {known}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: &'static str,
}

impl Zeroing {
    const NAMES: [(&'static str, Self); 3] = [
        ("on-request", Self::OnRequest),
        ("on-alloc", Self::OnAlloc),
        ("on-free", Self::OnFree),
    ];
}

impl fmt::Display for Zeroing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Self::NAMES.iter().find(|(_, zeroing)| zeroing == self);
        f.pad(known.map_or("", |(name, _)| name))
    }
}

impl FromStr for Zeroing {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|&(_, zeroing)| zeroing).ok_or(UnknownName {
            what: "zeroing",
            name: name.into(),
            known: "on-request, on-alloc or on-free",
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Zeroing {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for zeroing in [Zeroing::OnRequest, Zeroing::OnAlloc, Zeroing::OnFree] {
            assert_eq!(zeroing.to_string().parse(), Ok(zeroing));
        }
        let refused = "never".parse::<Zeroing>().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "there is no zeroing `never`: give on-request, on-alloc or on-free"
        );
    }
}
