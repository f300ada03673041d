//! The view model: the state of a manager at one moment, as the panes show it, and the source that
//! it comes from. `reader.rs` fills it from a recording, tests make it up.

use std::time::Duration;

use highwater::{Bytes, Estimate};

/// A recording: moments by tick number, marks and victims.
pub(crate) trait Source {
    /// Reads what was recorded since the last call.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    fn refresh(&mut self) -> Result<(), String>;

    /// The oldest moment that can be read.
    fn first(&self) -> Option<u64>;

    /// The newest.
    fn last(&self) -> Option<u64>;

    /// Number of moments that can be read.
    fn len(&self) -> usize;

    /// The moment `by` moments after `tick`, or before it if negative; clamped to the ends.
    fn step(&self, tick: u64, by: i64) -> Option<u64>;

    /// The last moment that is not after `time`, or else the first.
    fn at_time(&self, time: Duration) -> Option<u64>;

    /// When a moment was recorded, since the manager was built.
    fn time(&self, tick: u64) -> Option<Duration>;

    /// The state at a moment; `None` if the ring has overwritten it.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    fn state(&self, tick: u64) -> Result<Option<State>, String>;

    /// Marks of the program, oldest first.
    fn marks(&self) -> &[Mark];

    /// Victims, oldest first.
    fn victims(&self) -> &[Victim];

    /// Name, process and ring of the recording.
    fn origin(&self) -> &Origin;

    /// Whether the manager ended in order.
    fn has_ended(&self) -> bool;

    /// Records that are torn or damaged.
    fn nr_torn(&self) -> u64;
}

/// Where a recording comes from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// Name of the file, without its folders.
    pub(crate) file: String,
    /// Name of the recorded program; may be empty.
    pub(crate) program: String,
    pub(crate) pid: u32,
    /// Wall clock at the manager's time zero, since 1970.
    pub(crate) started_unix: Duration,
    pub(crate) page_size: u64,
}

/// The state at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) tick: u64,
    /// Since the manager was built.
    pub(crate) time: Duration,
    /// Time of frames, locks, files, counters, and of groups that did not change since.
    pub(crate) whole_at: Duration,
    /// Whether no part of that is missing.
    pub(crate) is_whole: bool,
    /// Parents before children.
    pub(crate) groups: Vec<Group>,
    pub(crate) frames: Frames,
    pub(crate) locks: Vec<Lock>,
    /// Those with most resident pages first.
    pub(crate) files: Vec<File>,
    /// Files that were not recorded.
    pub(crate) files_omitted: u64,
    /// By name, as in `/proc/vmstat`.
    pub(crate) counters: Vec<(String, u64)>,
}

/// A group and everything below it.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) id: u64,
    /// Index of the parent in [`State::groups`].
    pub(crate) parent: Option<usize>,
    /// Empty for the root.
    pub(crate) name: String,
    pub(crate) path: String,
    /// Since the manager was built.
    pub(crate) read_at: Duration,
    pub(crate) usage: Estimate<Bytes>,
    pub(crate) peak: Estimate<Bytes>,
    pub(crate) limits: Limits,
    /// Names and counts of limit events.
    pub(crate) events: [(&'static str, u64); 6],
    /// Time lost while some thread stalled.
    pub(crate) some: Stall,
    /// Time lost while no thread could run.
    pub(crate) full: Stall,
    pub(crate) stat: Stat,
    /// Upper bound on the error of each statistic, in pages or events.
    pub(crate) stat_staleness: u64,
    /// Upper bound on the age of the statistics.
    pub(crate) stat_age: Duration,
    /// Charges in the group's own wait queue.
    pub(crate) waiting: Waiting,
}

/// Limits of a group; `None` for one that is not set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) min: Option<Bytes>,
    pub(crate) low: Option<Bytes>,
    pub(crate) high: Option<Bytes>,
    pub(crate) max: Option<Bytes>,
}

/// A line of `memory.pressure`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    /// Shares of the last 10, 60 and 300 seconds, in percent.
    pub(crate) averages: [f64; 3],
    pub(crate) total: Duration,
}

/// Statistics: pages, and events since the group was created.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stat {
    pub(crate) anon: u64,
    pub(crate) file: u64,
    pub(crate) file_dirty: u64,
    pub(crate) refault: u64,
    pub(crate) activate: u64,
    pub(crate) scanned: u64,
    pub(crate) reclaimed: u64,
    pub(crate) fault: u64,
    pub(crate) major_fault: u64,
}

/// Charges that wait for room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) charges: u64,
    pub(crate) bytes: Bytes,
    /// The first of them has waited at least so long.
    pub(crate) longest: Duration,
}

/// Frames, in pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frames {
    pub(crate) managed: u64,
    pub(crate) ballooned: u64,
    pub(crate) free: u64,
    pub(crate) deferred: u64,
    pub(crate) cached: u64,
    pub(crate) allocated: u64,
    pub(crate) peak: u64,
    pub(crate) watermark_min: u64,
    pub(crate) watermark_low: u64,
    pub(crate) watermark_high: u64,
    pub(crate) is_reclaiming: bool,
    pub(crate) lists: Vec<PcpList>,
}

/// The list of free frames of one CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PcpList {
    /// `None` for threads on no known CPU.
    pub(crate) cpu: Option<u32>,
    pub(crate) count: u32,
    pub(crate) high: u32,
    pub(crate) high_min: u32,
    pub(crate) high_max: u32,
    pub(crate) batch: u32,
}

/// A lock class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    pub(crate) class: String,
    pub(crate) contended: u64,
    pub(crate) wait: Duration,
    /// Total hold time and number of holds, if they are measured.
    pub(crate) held: Option<(Duration, u64)>,
}

/// An open file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) id: u64,
    /// Empty if it is not known.
    pub(crate) path: String,
    pub(crate) pages: u64,
    pub(crate) resident: Estimate<Bytes>,
}

/// A mark of the program.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    /// Since the manager was built.
    pub(crate) time: Duration,
    pub(crate) text: String,
}

/// The record of a victim's selection.
#[derive(Clone, Debug)]
pub(crate) struct Victim {
    /// Since the manager was built.
    pub(crate) time: Duration,
    /// The group that had no room.
    pub(crate) target: String,
    /// The victim's path.
    pub(crate) path: String,
    pub(crate) estimate: Estimate<Bytes>,
    /// Its exact usage, if that was read.
    pub(crate) exact: Option<Bytes>,
    pub(crate) badness: i64,
    pub(crate) runner_up: Option<(String, i64)>,
    /// Another candidate may be worse by at most so much.
    pub(crate) gap: Bytes,
    /// Names and values of the costs of the search.
    pub(crate) census: [(&'static str, u64); 5],
    /// The record as one line.
    pub(crate) text: String,
}

impl State {
    /// Returns the memory of the bar's right end for a group: the lowest maximum of the group and
    /// its ancestors, or all frames; more if the usage exceeds it.
    pub(crate) fn scale_of(&self, group: &Group, page_size: u64) -> Bytes {
        let mut scale = self.capacity(page_size);
        let mut next = Some(group);
        // Parents come before children, so that each step goes down in index, and the walk ends.
        while let Some(group) = next {
            scale = group.limits.max.map_or(scale, |max| max.min(scale));
            next = group.parent.and_then(|parent| self.groups.get(parent));
        }
        scale.max(group.usage.high).max(Bytes(1))
    }

    /// Returns the memory of all frames.
    pub(crate) fn capacity(&self, page_size: u64) -> Bytes {
        Bytes(self.frames.managed.saturating_mul(page_size).max(1))
    }
}
