//! Back ends of the frame pool that the library's trees are compared with: buddy allocators behind
//! locks.
//!
//! | kind | holds free frames in | to move many frames costs |
//! |---|---|---|
//! | [`SingleLock`](BackendKind::SingleLock) | one buddy allocator behind one lock | one hold of the lock |
//! | [`Sharded`](BackendKind::Sharded) | several of them, by address | one hold for each zone that is touched |
//! | [`Trees`](BackendKind::Trees), the library's | a bit each | an atomic operation for each word of 64 that is touched |
//!
//! What holds for all of them is said in the library's module `frame::backend`, whose suites of
//! tests run here over every kind. A free to a zone whose lock is held goes to a deferred list if
//! it must not wait; the next holder of the lock that may wait empties that. Whole blocks of 4 MiB
//! are fresh.
//!
//! # What they cost
//!
//! Nanoseconds a frame, alloc / free, in batches of 63: the median batch of one thread, and of two
//! at once (2 virtual CPUs with other load, 21 November 2026;
//! `cargo test --release -p highwater-lab --lib back_ends::measure -- --ignored --nocapture`, which
//! reads the clock twice a batch).
//!
//! | | threads | `single-lock` | `sharded:2` | `sharded:8` | `trees` |
//! |---|---|---|---|---|---|
//! | a batch out and back, from a pool that is free | 1 | 10.9 / 16.6 | 10.9 / 18.3 | 10.8 / 18.2 | 5.9 / 3.2 |
//! | | 2 | 10.7 / 16.1 | 10.8 / 18.2 | 10.8 / 18.2 | 5.9 / 3.2 |
//! | 64 Ki frames out and back in order | 1 | 7.2 / 9.6 | 7.0 / 10.6 | 7.4 / 10.5 | 2.3 / 2.4 |
//! | | 2 | 6.8 / 9.5 | 7.0 / 10.5 | 7.4 / 10.5 | 2.3 / 2.4 |
//! | 64 Ki frames out, back in random order | 1 | 10.9 / 24.4 | 8.5 / 21.3 | 10.3 / 23.9 | 2.8 / 9.7 |
//! | | 2 | 11.4 / 26.7 | 11.3 / 26.7 | 10.9 / 25.4 | 3.6 / 12.3 |
//! | a quarter of 2 GiB held, random batches replaced | 1 | 7.6 / 18.5 | 7.8 / 23.8 | 8.9 / 34.4 | 4.0 / 12.8 |
//! | | 2 | 7.5 / 22.0 | 7.6 / 25.7 | 9.6 / 41.0 | 4.1 / 13.2 |
//!
//! Fragmentation, as free 2 MiB blocks of 128 on average: 25 with trees and 10 with one lock when
//! 18 groups fill a pool and exit until three quarters are free; 54 and 28 when a quarter is held
//! and replaced at random
//! (`cargo test -p highwater-lab --lib back_ends::fragmentation -- --nocapture`).

mod buddy;
mod deferred;
mod owned;
mod zone;
mod zones;

#[cfg(all(test, not(loom)))]
mod fragmentation;
#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod measure;
#[cfg(all(test, not(loom)))]
mod pool_tests;
#[cfg(all(test, not(loom)))]
#[path = "../../../../highwater/src/frame/backend/stress.rs"]
mod stress;
#[cfg(all(test, not(loom)))]
#[path = "../../../../highwater/src/frame/backend/tests.rs"]
mod tests;
#[cfg(all(test, not(loom)))]
mod zone_tests;

use std::fmt;
use std::str::FromStr;

use highwater::frame::{Backend, MakeBackend};
use thiserror::Error;

pub use owned::{OwnedCounts, OwnedLists};
use zones::Zones;

/// What the library's suites of tests use and run over.
#[cfg(all(test, not(loom)))]
use {
    self::BackendKind as Kind,
    crate::seed,
    highwater::{
        frame::Wait,
        lab::sync,
        units::{CpuId, Order, Pages, Pfn},
    },
    std::ops::Range,
};
#[cfg(all(test, not(loom)))]
const KINDS: [Kind; 4] = [
    Kind::SingleLock,
    Kind::Sharded { shards: 2 },
    Kind::Sharded { shards: 5 },
    Kind::Trees,
];

/// How a pool keeps its free frames.
///
/// # Examples
///
/// ```
/// use highwater_lab::baselines::BackendKind;
/// let kind: BackendKind = "sharded:4".parse()?;
/// assert_eq!(kind, BackendKind::Sharded { shards: 4 });
/// assert_eq!(kind.to_string(), "sharded:4");
/// # Ok::<(), highwater_lab::baselines::ParseBackendError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// One buddy allocator behind one lock, as kernels have it for each zone.
    SingleLock,
    /// Buddy allocators by address, each behind its own lock. A CPU allocates from the zone of its
    /// number first; a frame goes back to the zone that it came from.
    Sharded {
        /// How many: 1 to [`BackendKind::SHARDS_MAX`]. A pool of fewer blocks of 4 MiB has as many
        /// as those.
        shards: u32,
    },
    /// The library's.
    #[default]
    Trees,
}

/// A text that names no back end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` is not a back end: single-lock, trees, or sharded:N with N from 1 to {}",
    BackendKind::SHARDS_MAX
)]
pub struct ParseBackendError {
    /// What was given.
    pub text: String,
}

impl BackendKind {
    /// The most zones that a pool is cut into.
    pub const SHARDS_MAX: u32 = 1024;

    /// What a pool or a manager is told to have this kind.
    ///
    /// # Panics
    ///
    /// When the number of shards is not in its range.
    #[must_use]
    pub fn make(self) -> MakeBackend {
        match self {
            Self::SingleLock => MakeBackend::new("single-lock", zones, 1),
            Self::Sharded { shards } => {
                assert!(
                    (1..=Self::SHARDS_MAX).contains(&shards),
                    "{shards} shards, 1 to {} are possible",
                    Self::SHARDS_MAX
                );
                MakeBackend::new("sharded", zones, shards)
            }
            Self::Trees => MakeBackend::TREES,
        }
    }

    #[cfg(all(test, not(loom)))]
    fn build(self, nr_frames: u32, nr_cpus: usize) -> Box<dyn Backend> {
        self.make().build(nr_frames, nr_cpus)
    }
}

fn zones(nr_frames: u32, _: usize, shards: u32) -> Box<dyn Backend> {
    Box::new(Zones::new(nr_frames, shards))
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SingleLock => f.pad("single-lock"),
            Self::Sharded { shards } => f.pad(&format!("sharded:{shards}")),
            Self::Trees => f.pad("trees"),
        }
    }
}

impl FromStr for BackendKind {
    type Err = ParseBackendError;

    /// Reads what [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    ///
    /// Names the text when it is no back end.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseBackendError {
            text: text.to_owned(),
        };
        match text.split_once(':') {
            None if text == "single-lock" => Ok(Self::SingleLock),
            None if text == "trees" => Ok(Self::Trees),
            Some(("sharded", shards)) => {
                let shards = shards.parse().map_err(|_| refuse())?;
                let is_possible = (1..=Self::SHARDS_MAX).contains(&shards);
                is_possible
                    .then_some(Self::Sharded { shards })
                    .ok_or_else(refuse)
            }
            _ => Err(refuse()),
        }
    }
}
