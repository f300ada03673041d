//! What per-CPU lists did.

use crate::sync::StatCell;

/// Events of per-CPU lists, since the pool was made. A hit counts nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PcpCounters {
    /// Visits to the zones that brought frames to a list.
    pub refills: u64,
    /// Frames that they brought (`alloc_zone`).
    pub refilled: u64,
    /// Frees that found their list full.
    pub drains: u64,
    /// Frames that they moved to the zones.
    pub drained: u64,
    /// Drains of a whole list because blocks were freed in a row (`free_high`).
    pub drain_alls: u64,
    /// Frames taken from the zones, or given to them, because another thread held the list.
    pub fallbacks: u64,
    /// Frames moved to the zones by decay.
    pub decayed: u64,
}

impl PcpCounters {
    /// Every count by its name.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("refills", self.refills),
            ("refilled", self.refilled),
            ("drains", self.drains),
            ("drained", self.drained),
            ("drain_alls", self.drain_alls),
            ("fallbacks", self.fallbacks),
            ("decayed", self.decayed),
        ]
    }

    /// What happened since `earlier`.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            refills: self.refills - earlier.refills,
            refilled: self.refilled - earlier.refilled,
            drains: self.drains - earlier.drains,
            drained: self.drained - earlier.drained,
            drain_alls: self.drain_alls - earlier.drain_alls,
            fallbacks: self.fallbacks - earlier.fallbacks,
            decayed: self.decayed - earlier.decayed,
        }
    }
}

/// Where the events are counted.
#[derive(Debug, Default)]
pub(super) struct Events {
    refills: StatCell,
    refilled: StatCell,
    drains: StatCell,
    drained: StatCell,
    fallbacks: StatCell,
}

impl Events {
    pub(super) fn refilled(&self, frames: usize) {
        self.refills.add(1);
        self.refilled.add(frames as u64);
    }

    pub(super) fn drained(&self, frames: usize) {
        if frames > 0 {
            self.drains.add(1);
            self.drained.add(frames as u64);
        }
    }

    pub(super) fn fell_back(&self) {
        self.fallbacks.add(1);
    }

    pub(super) fn read(&self) -> PcpCounters {
        PcpCounters {
            refills: self.refills.get(),
            refilled: self.refilled.get(),
            drains: self.drains.get(),
            drained: self.drained.get(),
            fallbacks: self.fallbacks.get(),
            ..PcpCounters::default()
        }
    }
}
