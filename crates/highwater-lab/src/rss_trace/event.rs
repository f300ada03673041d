//! What an rss trace tells: changes of counters, switches, and the lives of tasks.

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
    /// All of them, at the index that the trace writes.
    pub const ALL: [Self; 4] = [Self::File, Self::Anon, Self::Swap, Self::Shmem];

    /// Its place in [`ALL`](Self::ALL).
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// One event of an rss trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssEvent {
    /// Nanoseconds since the first event; never less than the event before's.
    pub time_ns: u64,
    /// The CPU that it happened on.
    pub cpu: u32,
    /// The task that ran there: for a switch, the one that it was taken from.
    pub pid: u32,
    /// The space active on that CPU when it happened; for a switch, after it. `None` when it is
    /// none of the trace's or is not known yet.
    pub active: Option<SpaceId>,
    /// What happened.
    pub kind: RssEventKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RssEventKind {
    /// A counter changed.
    Rss(RssChange),
    /// The CPU goes on with another task.
    Switch {
        /// The task; 0 is idle.
        next: u32,
    },
    /// The task made another one.
    Fork {
        /// The new task.
        child: u32,
        /// Whether it runs in its parent's space: a thread, or a child until it replaces its image.
        is_sharing: bool,
    },
    /// The task is about to replace its space by the one it has built.
    Exec,
    /// The task ends.
    Exit {
        /// Whether it is the last of its process.
        is_last: bool,
    },
}

/// A change of one counter of one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssChange {
    /// The space, which need not be the one that is active.
    pub space: SpaceId,
    /// Whether the kernel said that the space is the task's own.
    pub is_current: bool,
    /// Which counter.
    pub member: Member,
    /// The counter after the change: exact.
    pub size: Pages,
    /// Pages added to or taken from the counter; `None` when the size before is not known, which
    /// makes `size` the point where counting begins.
    pub delta_pages: Option<i64>,
    /// Whether this is the lifetime's first event.
    pub is_first: bool,
    /// Whether every counter seen of the space is zero after it.
    pub is_empty: bool,
}
