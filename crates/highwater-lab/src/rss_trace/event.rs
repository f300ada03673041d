//! Events of an RSS trace: counter changes, context switches, and the lives of tasks.

use std::fmt;

use highwater::units::Pages;

/// One lifetime of an address space: a dense number, from 0 in order of first sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u32);

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "space {}", self.0)
    }
}

/// The four counters of a space, in the kernel's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Member {
    /// Pages of mapped files.
    File,
    /// Anonymous pages.
    Anon,
    /// Entries in swap: not resident.
    Swap,
    /// Pages of shared memory.
    Shmem,
}

impl Member {
    /// All members, at the index that the trace writes.
    pub const ALL: [Self; 4] = [Self::File, Self::Anon, Self::Swap, Self::Shmem];

    /// Returns the index in [`ALL`](Self::ALL).
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// One event of an RSS trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssEvent {
    /// Nanoseconds since the first event; never decreasing.
    pub time_ns: u64,
    /// The CPU of the event.
    pub cpu: u32,
    /// The task that ran there; for a switch, the previous one.
    pub pid: u32,
    /// The space active on that CPU at the event; for a switch, after it. `None` if it is no space
    /// of the trace or is not known yet.
    pub active: Option<SpaceId>,
    /// Kind of the event.
    pub kind: RssEventKind,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RssEventKind {
    /// A counter changed.
    Rss(RssChange),
    /// The CPU switches to another task.
    Switch {
        /// The task; 0 is idle.
        next: u32,
    },
    /// The task created another one.
    Fork {
        /// The new task.
        child: u32,
        /// Whether it runs in its parent's space: a thread, or a child until it replaces its image.
        is_sharing: bool,
    },
    /// The task is about to replace its space by the one that it has built.
    Exec,
    /// The task exits.
    Exit {
        /// Whether it is the last of its process.
        is_last: bool,
    },
}

/// A change of one counter of one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssChange {
    /// The space, which may differ from the active one.
    pub space: SpaceId,
    /// Whether the kernel marked the space as the task's own.
    pub is_current: bool,
    /// The counter.
    pub member: Member,
    /// The counter after the change: exact.
    pub size: Pages,
    /// Pages added to or removed from the counter; `None` if the previous size is not known, so
    /// that counting begins at `size`.
    pub delta_pages: Option<i64>,
    /// Whether this is the lifetime's first event.
    pub is_first: bool,
    /// Whether every known counter of the space is zero after it.
    pub is_empty: bool,
}
