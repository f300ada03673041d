//! Limits and protection of a group (`memory.min/low/high/max`), and its event counts
//! (`memory.events`).
//!
//! The names are those of `memory.min`, `memory.low`, `memory.high`, `memory.max` and of the fields
//! of `memory.events`. Charges enforce `max` alone: `charge/escrow.rs`. The other three are
//! settings that reclaim and throttling read, and the code that acts on them records their events.
//!
//! An event is counted at its group (`memory.events.local`) and in the subtree of each of its
//! ancestors (`memory.events`), so ancestors keep the events of removed groups.
//!
//! Source: accounting spec 8.5, 8.7.

use thiserror::Error;

use crate::sync::StatCell;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::Bytes;

/// Limits and protection of a group, in bytes and exact to the byte.
///
/// # Examples
///
/// ```
/// use highwater::{Bytes, Limits, Manager};
///
/// let limits = Limits { high: Bytes::mib(60), low: Bytes(1000), ..Limits::max(Bytes::mib(64)) };
/// assert_eq!(limits.low, Bytes(1000));
/// assert_eq!((limits.min, Limits::default().max), (Bytes::ZERO, Bytes::MAX));
/// let hw = Manager::builder().build()?;
/// let contradiction = Limits { min: Bytes(200), ..Limits::max(Bytes(100)) };
/// assert!(hw.root().child("tenant-a", contradiction).is_err());
/// # Ok::<(), highwater::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Limits {
    /// Hard protection: reclaim takes nothing from the group while its usage is at most this, as
    /// far as its ancestors are protected themselves.
    pub min: Bytes,
    /// Soft protection: like `min`, until nothing else is left to reclaim.
    pub low: Bytes,
    /// Throttle point: a charge above it reclaims and is throttled; [`Bytes::MAX`] for none.
    pub high: Bytes,
    /// Hard limit of the group and its descendants together; [`Bytes::MAX`] for none.
    pub max: Bytes,
}

impl Limits {
    /// Returns a hard limit without protection or throttle point.
    #[must_use]
    pub const fn max(max: Bytes) -> Self {
        Self {
            min: Bytes::ZERO,
            low: Bytes::ZERO,
            high: Bytes::MAX,
            max,
        }
    }

    /// Whether a maximum is all that they set.
    pub(in crate::group) fn is_max_alone(self) -> bool {
        self == Self::max(self.max)
    }

    /// Checks that the limits do not contradict each other.
    ///
    /// # Errors
    ///
    /// When `min` or `low` is above `max`: memory that the group may never use cannot be protected.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn check(&self) -> Result<(), LimitsError> {
        for (protection, amount) in [("min", self.min), ("low", self.low)] {
            if amount > self.max {
                return Err(LimitsError {
                    protection,
                    amount,
                    max: self.max,
                });
            }
        }
        Ok(())
    }
}

impl Default for Limits {
    /// No limit, no protection.
    fn default() -> Self {
        Self::max(Bytes::MAX)
    }
}

/// Limits that contradict each other: a protection above the maximum. Nothing was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("limit `{protection}` is {amount}, above `max`, which is {max}: lower it or raise `max`")]
pub struct LimitsError {
    /// The limit that is too high: `min` or `low`.
    pub protection: &'static str,
    /// Its value.
    pub amount: Bytes,
    /// The maximum.
    pub max: Bytes,
}

/// Counts of how often a group ran into its limits. They start at zero with the group and never
/// fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GroupEvents {
    /// Times that the group was reclaimed from although its usage was at most its `low`.
    pub low: u64,
    /// Times that a charge found the group above its `high`.
    pub high: u64,
    /// Attempts to charge that its `max` refused: several for a charge that waited for room.
    pub max: u64,
    /// Forced charges that took it above its `max`, or further above it.
    pub debt: u64,
    /// Times that a group was told to stop because this one had no room.
    pub oom: u64,
    /// Times that it was told to stop to free memory for others.
    pub oom_kill: u64,
}

/// The limits of a group that this layer only stores. `max` is in the group's ledger.
#[derive(Debug)]
pub(in crate::group) struct Settings {
    /// Written by: its setter. Read by: reclaim. Publishes: nothing.
    min: AtomicU64,
    /// As `min`.
    low: AtomicU64,
    /// As `min`; also read by throttling.
    high: AtomicU64,
}

impl Settings {
    pub(in crate::group) fn new(limits: Limits) -> Self {
        Self {
            min: AtomicU64::new(limits.min.0),
            low: AtomicU64::new(limits.low.0),
            high: AtomicU64::new(limits.high.0),
        }
    }

    /// Returns `min` and `low`.
    pub(in crate::group) fn protection(&self) -> (Bytes, Bytes) {
        let limits = self.with_max(Bytes::MAX);
        (limits.min, limits.low)
    }

    pub(in crate::group) fn set_min(&self, min: Bytes) {
        // Relaxed: see below.
        self.min.store(min.0, Ordering::Relaxed);
    }

    pub(in crate::group) fn set_low(&self, low: Bytes) {
        // Relaxed: see below.
        self.low.store(low.0, Ordering::Relaxed);
    }

    pub(in crate::group) fn high(&self) -> Bytes {
        // Relaxed: see below.
        Bytes(self.high.load(Ordering::Relaxed))
    }

    /// Sets `high` and returns the former value.
    pub(in crate::group) fn replace_high(&self, high: Bytes) -> Bytes {
        // Relaxed: see below.
        Bytes(self.high.swap(high.0, Ordering::Relaxed))
    }

    pub(in crate::group) fn with_max(&self, max: Bytes) -> Limits {
        // Relaxed, here and below: each setting stands alone, and a concurrent pass may use the
        // former value.
        Limits {
            min: Bytes(self.min.load(Ordering::Relaxed)),
            low: Bytes(self.low.load(Ordering::Relaxed)),
            high: Bytes(self.high.load(Ordering::Relaxed)),
            max,
        }
    }
}

/// A limit event of a group.
#[derive(Clone, Copy, Debug)]
pub(in crate::group) enum Event {
    Low,
    High,
    Max,
    Debt,
    Oom,
    OomKill,
}

/// Event counts of one group, or of one subtree.
#[derive(Debug, Default)]
struct EventTally([StatCell; 6]);

impl EventTally {
    fn cell(&self, event: Event) -> &StatCell {
        &self.0[event as usize]
    }

    fn read(&self) -> GroupEvents {
        let count = |event| self.cell(event).get();
        GroupEvents {
            low: count(Event::Low),
            high: count(Event::High),
            max: count(Event::Max),
            debt: count(Event::Debt),
            oom: count(Event::Oom),
            oom_kill: count(Event::OomKill),
        }
    }
}

/// The events of a group and those of its subtree.
#[derive(Debug, Default)]
pub(in crate::group) struct EventCounts {
    local: EventTally,
    subtree: EventTally,
}

impl EventCounts {
    /// Returns the events of the group itself.
    pub(in crate::group) fn local(&self) -> GroupEvents {
        self.local.read()
    }

    /// Returns the events of the group and everything below it, also of groups removed since.
    pub(in crate::group) fn subtree(&self) -> GroupEvents {
        self.subtree.read()
    }

    pub(in crate::group) fn add_local(&self, event: Event) {
        self.local.cell(event).add(1);
    }

    pub(in crate::group) fn add_subtree(&self, event: Event) {
        self.subtree.cell(event).add(1);
    }
}
