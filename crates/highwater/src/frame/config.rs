//! Construction options of a pool.

use std::fmt;

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
#[cfg_attr(
    not(feature = "lab"),
    expect(
        clippy::enum_variant_names,
        reason = "the kernel's: init_on_alloc, init_on_free"
    )
)]
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

impl fmt::Display for Zeroing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OnRequest => "on-request",
            Self::OnAlloc => "on-alloc",
            Self::OnFree => "on-free",
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Zeroing {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
