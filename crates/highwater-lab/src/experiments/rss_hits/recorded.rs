//! Recorded traces of a kernel's RSS counting, as steps that the designs follow.
//!
//! A trace is read three times: for its size, for the hits of an ideal cache ([`RssTally`], which
//! shares no code with the library's cache), and to replay it.

use std::collections::HashMap;
use std::path::PathBuf;

use highwater::units::CpuId;

use super::drive::{Drive, Driven};
use crate::baselines::active_cache::ActiveCache;
use crate::baselines::{Count, Member, SpaceId, TaskId, Writer};
use crate::control::Control;
use crate::experiments::{ExperimentError, machine_of};
use crate::report::Check;
use crate::rss_trace::{self, RssChange, RssEvent, RssEventKind, RssTally, RssTrace, Shipped};
use crate::workloads::Step;

/// Location of a trace.
#[derive(Debug)]
pub(super) enum Recording {
    Shipped(Shipped),
    File(PathBuf),
}

impl Recording {
    fn name(&self) -> String {
        match self {
            Self::Shipped(shipped) => shipped.name().to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    fn open(&self) -> Result<RssTrace, ExperimentError> {
        Ok(match self {
            Self::Shipped(shipped) => shipped.open()?,
            Self::File(path) => RssTrace::open(path)?,
        })
    }
}

/// Results of a trace.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) name: String,
    pub(super) driven: Driven,
    /// Hits and misses of an ideal cache.
    tally: RssTally,
}

impl Recorded {
    /// Checks that the library's cache hits and misses as an ideal one does.
    pub(super) fn checks(&self, checks: &mut Vec<Check>) {
        let active = &self.driven.active;
        for (what, got, want) in [
            ("hits", active.hits, self.tally.hits),
            ("misses", active.misses, self.tally.misses),
        ] {
            let name = format!("{}: {what}, as of an ideal cache", self.name);
            checks.push(Check::counted(name).equal(&got, &want));
        }
    }
}

/// Replays a trace.
pub(super) fn replay(
    recording: &Recording,
    control: &Control,
) -> Result<Recorded, ExperimentError> {
    let name = recording.name();
    let size = Size::of(&mut recording.open()?)?;
    if size.cpus > ActiveCache::CPUS_MAX {
        let (trace, cpus, max) = (name, size.cpus, ActiveCache::CPUS_MAX);
        return Err(ExperimentError::TraceCpus { trace, cpus, max });
    }
    let tally = RssTally::of(&mut recording.open()?)?;
    control.expect(tally.rss_events);
    let machine = machine_of(size.cpus.max(1))?;
    let mut drive = Drive::new(&machine, size.spaces, size.tasks.len());
    let mut follower = Follower::new(size.cpus, size.tasks);
    let mut steps = Vec::new();
    for event in recording.open()? {
        follower.follow(event?, &mut steps);
        drive.run(steps.drain(..), control)?;
    }
    let driven = drive.finish();
    Ok(Recorded {
        name,
        driven,
        tally,
    })
}

/// Numbers of a trace's entities.
#[derive(Debug, Default)]
struct Size {
    cpus: usize,
    spaces: usize,
    /// Tasks by their number in the kernel.
    tasks: HashMap<u32, TaskId>,
}

impl Size {
    fn of(trace: &mut RssTrace) -> Result<Self, ExperimentError> {
        let mut size = Self::default();
        for event in trace.by_ref() {
            let event = event?;
            size.cpus = size.cpus.max(event.cpu as usize + 1);
            let next = TaskId(u32::try_from(size.tasks.len()).unwrap_or(u32::MAX));
            size.tasks.entry(event.pid).or_insert(next);
        }
        size.spaces = usize::try_from(trace.spaces()).unwrap_or(usize::MAX);
        Ok(size)
    }
}

/// Tracks the space of each task, as far as counting goes, and the active space of each CPU.
#[derive(Debug)]
struct Follower {
    tasks: HashMap<u32, TaskId>,
    /// Space by task.
    spaces: Vec<Option<SpaceId>>,
    /// Active space by CPU.
    active: Vec<Option<SpaceId>>,
}

impl Follower {
    fn new(cpus: usize, tasks: HashMap<u32, TaskId>) -> Self {
        Self {
            spaces: vec![None; tasks.len()],
            tasks,
            active: vec![None; cpus],
        }
    }

    /// Appends the steps of one event.
    fn follow(&mut self, event: RssEvent, steps: &mut Vec<Step>) {
        let cpu = CpuId(event.cpu);
        let to = event.active.map(|space| SpaceId(space.0));
        if std::mem::replace(&mut self.active[cpu.index()], to) != to {
            steps.push(Step::Switch { cpu, to });
        }
        let task = self.tasks[&event.pid];
        match event.kind {
            RssEventKind::Rss(change) => self.change(cpu, task, change, steps),
            RssEventKind::Exec | RssEventKind::Exit { .. } => self.leave(cpu, task, steps),
            RssEventKind::Switch { .. } | RssEventKind::Fork { .. } => {}
        }
    }

    /// Detaches the task from its space.
    fn leave(&mut self, cpu: CpuId, task: TaskId, steps: &mut Vec<Step>) {
        let space = self.spaces[task.index()].take();
        if space.is_some() {
            let by = Writer { cpu, task, space };
            steps.push(Step::Leave { by });
        }
    }

    fn change(&mut self, cpu: CpuId, task: TaskId, change: RssChange, steps: &mut Vec<Step>) {
        let space = SpaceId(change.space.0);
        let own = self.spaces[task.index()];
        if change.is_current != (own == Some(space)) && (change.is_current || own == Some(space)) {
            self.leave(cpu, task, steps);
        }
        if change.is_current {
            self.spaces[task.index()] = Some(space);
        }
        let by = Writer {
            cpu,
            task,
            space: self.spaces[task.index()],
        };
        let member = member_of(change.member);
        let to = Count { space, member };
        // Without a known size before, counting starts at the size after.
        let after = i64::try_from(change.size.0).unwrap_or(i64::MAX);
        let pages = change.delta_pages.unwrap_or(after);
        let is_own = by.space == Some(space);
        steps.push(match pages {
            1.. if is_own => Step::Fault { by, to, pages },
            ..=-2 if is_own => {
                let mut deltas = [0; Member::ALL.len()];
                deltas[member.index()] = pages;
                Step::Unmap { by, space, deltas }
            }
            _ => Step::Add { by, to, pages },
        });
    }
}

/// Converts a trace's member to the designs'.
const fn member_of(member: rss_trace::Member) -> Member {
    match member {
        rss_trace::Member::File => Member::File,
        rss_trace::Member::Anon => Member::Anon,
        rss_trace::Member::Swap => Member::Swap,
        rss_trace::Member::Shmem => Member::Shmem,
    }
}
