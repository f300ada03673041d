//! Construction options of a pool.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{MakeBackend, Tunables};
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
    /// How lists are sized.
    pub policy: PcpPolicy,
    /// How a list drains more than a batch.
    pub drain: DrainMode,
    /// The settings that can also be changed later.
    pub tunables: Tunables,
    /// When frames are zeroed.
    pub zeroing: Zeroing,
    /// Data cache of one CPU: where that is more than three batches of frames, a batch may stay in
    /// a list whose blocks are freed in a row.
    pub cache_slice: Bytes,
}

/// How a CPU's list (pcp) is sized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PcpPolicy {
    /// Fixed: always as large as a list that is idle.
    Fixed,
    /// As Linux 5.14 to 6.6: of one size, and each drain takes twice as much as the one before it,
    /// bounded only by the list's size.
    Legacy,
    /// Auto-tuned, as Linux since 6.7: a list grows with each visit to the zones, and shrinks when
    /// it is idle or memory is short.
    #[default]
    Auto,
}

/// How a list drains more than a batch at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DrainMode {
    /// All under one hold of the zone's lock.
    OneHold,
    /// A batch at a time, with all locks dropped in between.
    #[default]
    Pieces,
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
            policy: PcpPolicy::default(),
            drain: DrainMode::default(),
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

macro_rules! names {
    ($type:ident, $what:literal, $known:literal, $($variant:ident = $name:literal),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$variant => $name),+ })
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, UnknownName> {
                match name {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(UnknownName { what: $what, name: name.into(), known: $known }),
                }
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

names!(
    PcpPolicy,
    "policy",
    "fixed, legacy or auto",
    Fixed = "fixed",
    Legacy = "legacy",
    Auto = "auto"
);
names!(
    DrainMode,
    "drain",
    "one-hold or pieces",
    OneHold = "one-hold",
    Pieces = "pieces"
);
names!(
    Zeroing,
    "zeroing",
    "on-request, on-alloc or on-free",
    OnRequest = "on-request",
    OnAlloc = "on-alloc",
    OnFree = "on-free"
);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for policy in [PcpPolicy::Fixed, PcpPolicy::Legacy, PcpPolicy::Auto] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for drain in [DrainMode::OneHold, DrainMode::Pieces] {
            assert_eq!(drain.to_string().parse(), Ok(drain));
        }
        for zeroing in [Zeroing::OnRequest, Zeroing::OnAlloc, Zeroing::OnFree] {
            assert_eq!(zeroing.to_string().parse(), Ok(zeroing));
        }
        let refused = "tcache".parse::<PcpPolicy>().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "there is no policy `tcache`: give fixed, legacy or auto"
        );
    }
}
