//! Snapshots: the counters and state of a manager as a value, shown as text or serialized with the
//! feature `serde`.

use std::fmt;

use super::vmstat::Counter;
use super::{Core, Manager, vmstat};
use crate::cache::PageCache;
use crate::frame::{FrameCounts, FramePool, Watermarks, Zoneinfo};
use crate::group::{Account, GroupEvents, GroupNode, Stalls, Tolerance};
use crate::percpu::ChosenRegime;
use crate::reclaim::{ListSizes, Reclaim};
use crate::sync::LockEvents;
use crate::units::{Bytes, Estimate, GroupId};

/// The counters, frames, locks and groups of a manager. Numbers are read one after the other;
/// together they are exact when the manager is quiescent.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Snapshot {
    /// Regime of per-CPU updates, and the reason for it.
    pub(crate) regime: ChosenRegime,
    /// Asynchronous reads: by io_uring or by threads, and why.
    pub(crate) io: String,
    /// The state of every frame.
    pub frames: FrameCounts,
    /// Watermarks: where reclaim begins and ends.
    pub(crate) watermarks: Watermarks,
    /// Per-CPU lists of free frames, and their tunables.
    pub(crate) zoneinfo: Zoneinfo,
    /// Counters by name, named as in `/proc/vmstat` where it has the counter.
    #[cfg_attr(feature = "serde", serde(serialize_with = "values_by_name"))]
    pub vmstat: Vec<Counter>,
    /// Rounds of reclaim by scan priority, for each priority that occurred: a measure of how hard
    /// memory was to find.
    pub reclaim_rounds: Vec<(u32, u64)>,
    /// Stalls by their duration: the least of each power of two that occurred, in nanoseconds, and
    /// the number of stalls from it up to its double. A stall is the time of one thread or task in
    /// reclaim, in a wait queue, or throttled; `memory.pressure` shows their union.
    pub stall_ns: Vec<(u64, u64)>,
    /// Sum of the durations of all stalls, in nanoseconds.
    pub stall_ns_total: u64,
    /// Contention of the lock classes on the page paths, over all managers of the process.
    pub(crate) locks: Vec<LockEvents>,
    /// Every group, parents before children.
    pub groups: Vec<GroupSnapshot>,
}

/// One group in a [`Snapshot`].
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GroupSnapshot {
    /// The group's number.
    pub id: GroupId,
    /// Its path in the tree.
    pub path: String,
    /// Usage of the group and its descendants, with the parts in escrow and in debt; read by
    /// visiting the CPUs that charged there.
    pub(crate) account: Account,
    /// Their usage as [`Group::usage`](super::Group::usage) returns it.
    pub usage: Estimate<Bytes>,
    /// Their highest usage.
    pub peak: Estimate<Bytes>,
    /// Its hard protection.
    pub min: Bytes,
    /// Its soft protection.
    pub low: Bytes,
    /// Its throttling threshold; `None` if not set.
    pub high: Option<Bytes>,
    /// Its maximum; `None` if it has no limit of its own.
    pub max: Option<Bytes>,
    /// Pages on its own lists.
    #[cfg_attr(
        not(feature = "serde"),
        expect(dead_code, reason = "for programs that read JSON")
    )]
    pub(crate) lists: ListSizes,
    /// Statistics of the group and its descendants, named as in `memory.stat`.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_map"))]
    pub stat: Vec<(&'static str, i64)>,
    /// Limit events of the group and its descendants.
    pub events: GroupEvents,
    /// Limit events of the group itself.
    pub events_local: GroupEvents,
    /// Memory stalls of the group and its descendants (PSI).
    pub pressure: Stalls,
}

impl Snapshot {
    /// How per-CPU words are written, and why.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn regime(&self) -> ChosenRegime {
        self.regime
    }

    /// When reclaim begins and ends.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn watermarks(&self) -> Watermarks {
        self.watermarks
    }

    pub(super) fn take(core: &Core) -> Self {
        core.reclaim.drain_batches();
        let root = core.groups.root();
        root.flush_subtree(core.now());
        let groups = core.groups.subtree(&root);
        Self {
            groups: groups
                .iter()
                .map(|group| GroupSnapshot::take(core, group))
                .collect(),
            ..Self::without_groups(core)
        }
    }

    fn without_groups(core: &Core) -> Self {
        let stalls = core.stats.stall_ns.read();
        let locks = [
            &FramePool::lock_events()[..],
            &PageCache::lock_events(),
            &Reclaim::lock_events(),
        ]
        .concat();
        Self {
            regime: core.regime,
            io: core.io.to_string(),
            frames: core.pool.counts(),
            watermarks: core.pool.watermarks(),
            zoneinfo: core.pool.zoneinfo(),
            vmstat: vmstat::read(core),
            reclaim_rounds: (0..)
                .zip(core.reclaim.stats().rounds())
                .filter(|(_, rounds)| *rounds > 0)
                .collect(),
            stall_ns: stalls.buckets().collect(),
            stall_ns_total: stalls.sum(),
            locks,
            groups: Vec::new(),
        }
    }

    /// Returns the value of a counter.
    ///
    /// # Panics
    ///
    /// When there is no counter of that name; `docs/stats.md` lists them.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let found = self.vmstat.iter().find(|counter| counter.name == name);
        found
            .unwrap_or_else(|| panic!("no counter is named `{name}`"))
            .value
    }
}

impl From<&Manager> for Snapshot {
    /// Reads counters, frames and locks alone, for callers that read often: visits no group
    /// (`groups` is empty), flushes no statistics, and drains no add batches, so that the sizes of
    /// the lists lack up to 31 pages for each CPU.
    fn from(manager: &Manager) -> Self {
        Self::without_groups(manager.core())
    }
}

impl GroupSnapshot {
    fn take(core: &Core, group: &GroupNode) -> Self {
        let limits = group.limits();
        let set = |limit| (limit < Bytes::MAX).then_some(limit);
        Self {
            id: group.id(),
            path: group.path().to_string(),
            account: group.account(),
            usage: group.usage(),
            peak: group.peak(),
            min: limits.min,
            low: limits.low,
            high: set(limits.high),
            max: set(limits.max),
            lists: core.reclaim.list_sizes(group),
            stat: group
                .read_stats(Tolerance::ANY, core.now())
                .iter()
                .map(|(item, value)| (item.name(), value))
                .collect(),
            events: group.events(),
            events_local: group.events_local(),
            pressure: group.pressure(core.now()),
        }
    }
}

/// Returns the events under the names of `memory.events`.
fn named(events: GroupEvents) -> [(&'static str, u64); 6] {
    let GroupEvents {
        low,
        high,
        max,
        debt,
        oom,
        oom_kill,
    } = events;
    [
        ("low", low),
        ("high", high),
        ("max", max),
        ("debt", debt),
        ("oom", oom),
        ("oom_kill", oom_kill),
    ]
}

#[cfg(feature = "serde")]
fn as_map<S: serde::Serializer, T: serde::Serialize + Copy>(
    counters: &[(&'static str, T)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counters.iter().copied())
}

/// Serializes counters as an object: values by name.
#[cfg(feature = "serde")]
fn values_by_name<S: serde::Serializer>(
    counters: &[Counter],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counters.iter().map(|it| (it.name, it.value)))
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FrameCounts {
            managed,
            ballooned,
            free,
            deferred,
            cached,
            allocated,
            peak,
        } = self.frames;
        let Watermarks { min, low, high } = self.watermarks;
        writeln!(f, "regime: {}", self.regime)?;
        writeln!(f, "io: {}", self.io)?;
        writeln!(
            f,
            "frames: {} managed, {} ballooned, {} free, {} deferred, {} cached, {} allocated, {} at peak",
            managed.0, ballooned.0, free.0, deferred.0, cached.0, allocated.0, peak.0
        )?;
        writeln!(
            f,
            "watermarks: min {}, low {}, high {}",
            min.0, low.0, high.0
        )?;
        write!(f, "{}", self.zoneinfo.tunables)?;
        for list in self.zoneinfo.lists.iter().filter(|list| list.count > 0) {
            writeln!(f, "pcp {list}")?;
        }
        for Counter { name, value, .. } in &self.vmstat {
            writeln!(f, "{name} {value}")?;
        }
        for (priority, rounds) in &self.reclaim_rounds {
            writeln!(f, "reclaim_rounds priority {priority}: {rounds}")?;
        }
        for (least, stalls) in &self.stall_ns {
            writeln!(f, "stalls from {least} ns: {stalls}")?;
        }
        for LockEvents {
            class,
            contended,
            wait_ns,
        } in &self.locks
        {
            writeln!(
                f,
                "lock {class}: contended {contended}, waited {wait_ns} ns"
            )?;
        }
        self.groups
            .iter()
            .try_for_each(|group| write!(f, "{group}"))
    }
}

impl fmt::Display for GroupSnapshot {
    /// Writes a line for each file that a kernel memcg has, as `grep` shows them; omits limits that
    /// are not set, statistics of zero, events that did not happen, and pressure that never was.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = format!("{}/memory.", self.path.trim_end_matches('/'));
        let Account {
            used,
            escrowed,
            debt,
            ..
        } = self.account;
        writeln!(f, "{memory}current {}", used.0)?;
        writeln!(f, "{memory}escrowed {}", escrowed.0)?;
        let Estimate { value, low, high } = self.peak;
        writeln!(f, "{memory}peak {} ({} to {})", value.0, low.0, high.0)?;
        let limits = [
            ("debt", Some(debt).filter(|debt| *debt > Bytes::ZERO)),
            ("min", Some(self.min).filter(|min| *min > Bytes::ZERO)),
            ("low", Some(self.low).filter(|low| *low > Bytes::ZERO)),
            ("high", self.high),
            ("max", self.max),
        ];
        for (name, limit) in limits {
            if let Some(limit) = limit {
                writeln!(f, "{memory}{name} {}", limit.0)?;
            }
        }
        for (name, value) in self.stat.iter().filter(|(_, value)| *value != 0) {
            writeln!(f, "{memory}stat {name} {value}")?;
        }
        let events = [("events", self.events), ("events.local", self.events_local)];
        for (name, events) in events {
            for (event, count) in named(events).into_iter().filter(|(_, count)| *count > 0) {
                writeln!(f, "{memory}{name} {event} {count}")?;
            }
        }
        let Stalls { some, full } = self.pressure;
        if some.total_us > 0 {
            writeln!(f, "{memory}pressure some {some}")?;
            writeln!(f, "{memory}pressure full {full}")?;
        }
        Ok(())
    }
}
