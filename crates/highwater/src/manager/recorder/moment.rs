//! One moment of a recording, as values.

use std::time::Duration;

use crate::group::{GroupEvents, Limits, Stalls};
use crate::units::{Bytes, Estimate, GroupId};

/// The state of a manager at one moment.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    /// Number of the moment.
    pub tick: u64,
    /// When it was recorded, since the manager was built.
    pub time: Duration,
    /// When everything was recorded last: frames, locks, files, counters and the groups that have
    /// not changed since are as of then.
    pub whole_at: Duration,
    /// Whether every record of that could be read. If not, groups or other parts are missing.
    pub is_whole: bool,
    /// Parents before children, children by name.
    pub groups: Vec<GroupMoment>,
    /// The frames.
    pub frames: FramesMoment,
    /// Lock classes of the page paths, over all managers of the process.
    pub locks: Vec<LockMoment>,
    /// Open files, those with most resident pages first.
    pub files: Vec<FileMoment>,
    /// Open files beyond those.
    pub files_omitted: u64,
    /// Counters of [`Snapshot::vmstat`](crate::Snapshot::vmstat), by name.
    pub counters: Vec<(String, u64)>,
}

impl Moment {
    /// Returns the indices of the children of `groups[index]`, in order.
    pub fn children(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let groups = self.groups.iter().enumerate();
        groups
            .filter(move |(_, group)| group.parent == Some(index))
            .map(|(index, _)| index)
    }

    /// Returns the group at `path`.
    #[must_use]
    pub fn group(&self, path: &str) -> Option<&GroupMoment> {
        self.groups.iter().find(|group| group.path == path)
    }
}

/// One group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupMoment {
    /// Its number.
    pub id: GroupId,
    /// Index of the parent in [`Moment::groups`]; `None` for the root, or if the parent's record
    /// was lost.
    pub parent: Option<usize>,
    /// Depth in the tree; 0 for the root.
    pub depth: u32,
    /// Its name; empty for the root.
    pub name: String,
    /// Its path, such as `/tenant-a/query-42`.
    pub path: String,
    /// When it was read, since the manager was built.
    pub read_at: Duration,
    /// Usage of the group and its descendants.
    pub usage: Estimate<Bytes>,
    /// Their highest usage.
    pub peak: Estimate<Bytes>,
    /// Its limits; `high` and `max` are [`Bytes::MAX`] if not set.
    pub limits: Limits,
    /// Limit events of the group and its descendants.
    pub events: GroupEvents,
    /// Memory stalls of the group and its descendants (PSI).
    pub pressure: Stalls,
    /// Statistics of the group and its descendants.
    pub stat: GroupStat,
    /// Upper bound on the error of each of them, in pages or events: the recorder never flushes.
    pub stat_staleness: u64,
    /// Upper bound on their age.
    pub stat_age: Duration,
    /// Charges in its wait queue.
    pub waiting: Waiting,
}

/// Statistics of a group: pages, and events since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStat {
    /// Anonymous pages.
    pub anon: i64,
    /// Pages of files.
    pub file: i64,
    /// Pages of shared memory.
    pub shmem: i64,
    /// Dirty pages of files.
    pub file_dirty: i64,
    /// Refaults, of files and anonymous pages.
    pub refault: i64,
    /// Refaults that were activated at once.
    pub activate: i64,
    /// Pages scanned by reclaim.
    pub scanned: i64,
    /// Pages freed by reclaim.
    pub stolen: i64,
    /// Pages scanned by direct reclaim.
    pub scanned_direct: i64,
    /// Pages freed by direct reclaim.
    pub stolen_direct: i64,
    /// Faults.
    pub fault: i64,
    /// Faults that read from storage.
    pub major_fault: i64,
}

/// Charges in a group's wait queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Their number.
    pub charges: u64,
    /// Bytes that they ask for.
    pub bytes: Bytes,
    /// How long the first has been seen waiting: up to the time between two ticks too short.
    pub longest: Duration,
}

/// The frames of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FramesMoment {
    /// All frames but ballooned ones.
    pub managed: u64,
    /// Frames taken out of the pool.
    pub ballooned: u64,
    /// Frames in the zones.
    pub free: u64,
    /// Frames freed to the zones and not merged yet.
    pub deferred: u64,
    /// Frames in per-CPU lists.
    pub cached: u64,
    /// Frames handed out.
    pub allocated: u64,
    /// Highest number of frames outside the zones.
    pub peak: u64,
    /// Watermark `min`, in frames.
    pub watermark_min: u64,
    /// Watermark `low`, in frames.
    pub watermark_low: u64,
    /// Watermark `high`, in frames.
    pub watermark_high: u64,
    /// Whether lists keep few frames because pages are being reclaimed.
    pub reclaim_active: bool,
    /// Whether lists stopped growing because an allocation saw less than `high` free.
    pub below_high: bool,
    /// Per-CPU lists (pcp).
    pub lists: Vec<PcpMoment>,
    /// The zones' locks.
    pub zone_lock: LockMoment,
}

/// One CPU's list of free frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcpMoment {
    /// The CPU; `None` for threads on no known one.
    pub cpu: Option<u32>,
    /// Frames in the list.
    pub count: u32,
    /// Current capacity.
    pub high: u32,
    /// Lower bound of `high`.
    pub high_min: u32,
    /// Upper bound of `high`.
    pub high_max: u32,
    /// Minimum number of frames moved at once.
    pub batch: u32,
}

/// Contention of a lock, or of a class of locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockMoment {
    /// Its name.
    pub class: String,
    /// Acquisitions that had to wait.
    pub contended: u64,
    /// Total time of those waits, in nanoseconds.
    pub wait_ns: u64,
    /// Total time that it was held, in nanoseconds, from a sample of holds; `None` if it is not
    /// timed.
    pub hold_ns: Option<u64>,
    /// Times that it was held; `None` if it is not timed.
    pub holds: Option<u64>,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMoment {
    /// Its number in the manager.
    pub id: u64,
    /// The path by which it was opened first; `[anonymous]` or `[shared]` for memory, `[storage]`
    /// for storage of the program.
    pub path: String,
    /// Its length in pages of 4 KiB.
    pub pages: u64,
    /// Its resident pages, in bytes.
    pub resident: Estimate<Bytes>,
}

/// A mark of the program: [`Manager::mark`](crate::Manager::mark).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When, since the manager was built.
    pub time: Duration,
    /// Its text.
    pub text: String,
}

/// A victim selection: the fields of [`Victim::record`](crate::Victim::record).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VictimRecord {
    /// When, since the manager was built.
    pub time: Duration,
    /// Path of the group without room.
    pub target: String,
    /// Path of the victim.
    pub victim: String,
    /// Its usage, as known without visiting any CPU.
    pub estimate: Estimate<Bytes>,
    /// Its exact usage, if it was read.
    pub exact: Option<Bytes>,
    /// Its badness, in bytes.
    pub badness: i64,
    /// Path and badness of the next candidate.
    pub runner_up: Option<(String, i64)>,
    /// Upper bound on how much worse another candidate may be.
    pub gap: Bytes,
    /// Candidates visited.
    pub scanned: u64,
    /// Candidates that may be selected.
    pub eligible: u64,
    /// Candidates whose upper bound reached the highest lower bound.
    pub in_reach: u64,
    /// Exact reads.
    pub reads: u64,
    /// Passes over all candidates.
    pub passes: u64,
    /// The record as one line.
    pub text: String,
}
