//! Reads a recording of the library into the view model.

use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater::Bytes;
use highwater::group::{GroupEvents, StallTime};
use highwater::lab::recording::{
    FileMoment, FramesMoment, GroupMoment, GroupStat, LockMoment, Moment, Recording,
    RecordingError, VictimRecord,
};

use super::model::{
    File, Frames, Group, Limits, Lock, Mark, Origin, PcpList, Source, Stall, Stat, State, Victim,
    Waiting,
};

/// A recording as a source of moments.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    recording: Recording,
    origin: Origin,
    marks: Vec<Mark>,
    victims: Vec<Victim>,
}

impl Reader {
    /// Opens a recording.
    ///
    /// # Errors
    ///
    /// The message for the user: it names the file and the remedy.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let recording = Recording::open(path).map_err(|e| e.to_string())?;
        let info = recording.info();
        let file = path.file_name().unwrap_or(path.as_os_str());
        let origin = Origin {
            file: file.to_string_lossy().into_owned(),
            program: info.program.clone(),
            pid: info.pid,
            started_unix: info.started_unix,
            page_size: info.page_size,
        };
        let mut reader = Self {
            path: path.to_path_buf(),
            recording,
            origin,
            marks: Vec::new(),
            victims: Vec::new(),
        };
        reader.take_incidents();
        Ok(reader)
    }

    fn take_incidents(&mut self) {
        let marks = self.recording.marks().iter();
        self.marks = marks
            .map(|mark| Mark {
                time: mark.time,
                text: mark.text.clone(),
            })
            .collect();
        self.victims = self.recording.victims().iter().map(victim).collect();
    }
}

impl Source for Reader {
    fn refresh(&mut self) -> Result<(), String> {
        if self.recording.is_replaced() {
            // The program was started again; until the new file has its header the old one serves.
            if let Ok(again) = Self::open(&self.path) {
                *self = again;
                return Ok(());
            }
        }
        self.recording.refresh().map_err(|e| e.to_string())?;
        self.take_incidents();
        Ok(())
    }

    fn first(&self) -> Option<u64> {
        self.recording.first()
    }

    fn last(&self) -> Option<u64> {
        self.recording.last()
    }

    fn len(&self) -> usize {
        self.recording.len()
    }

    fn step(&self, tick: u64, by: i64) -> Option<u64> {
        self.recording.step(tick, by)
    }

    fn at_time(&self, time: Duration) -> Option<u64> {
        self.recording.at_time(time)
    }

    fn time(&self, tick: u64) -> Option<Duration> {
        self.recording.time(tick)
    }

    fn state(&self, tick: u64) -> Result<Option<State>, String> {
        match self.recording.moment(tick) {
            Ok(moment) => Ok(Some(state(moment))),
            Err(RecordingError::Overwritten { .. }) => Ok(None),
            Err(e) => Err(e.to_string()),
        }
    }

    fn marks(&self) -> &[Mark] {
        &self.marks
    }

    fn victims(&self) -> &[Victim] {
        &self.victims
    }

    fn origin(&self) -> &Origin {
        &self.origin
    }

    fn has_ended(&self) -> bool {
        self.recording.has_ended()
    }

    fn nr_torn(&self) -> u64 {
        self.recording.nr_torn()
    }
}

fn state(moment: Moment) -> State {
    let mut locks: Vec<Lock> = moment.locks.iter().map(lock).collect();
    let zone = &moment.frames.zone_lock;
    // The pool's own lock is recorded beside the classes.
    if !zone.class.is_empty() && locks.iter().all(|lock| lock.class != zone.class) {
        locks.push(lock(zone));
    }
    State {
        tick: moment.tick,
        time: moment.time,
        whole_at: moment.whole_at,
        is_whole: moment.is_whole,
        frames: frames(&moment.frames),
        locks,
        files: moment.files.into_iter().map(file).collect(),
        files_omitted: moment.files_omitted,
        counters: moment.counters,
        groups: moment.groups.into_iter().map(group).collect(),
    }
}

fn group(group: GroupMoment) -> Group {
    let GroupEvents {
        low,
        high,
        max,
        debt,
        oom,
        oom_kill,
        ..
    } = group.events;
    Group {
        id: u64::from(group.id.0),
        parent: group.parent,
        name: group.name,
        path: group.path,
        read_at: group.read_at,
        usage: group.usage,
        peak: group.peak,
        limits: limits(&group.limits),
        events: [
            ("low", low),
            ("high", high),
            ("max", max),
            ("debt", debt),
            ("oom", oom),
            ("oom_kill", oom_kill),
        ],
        some: stall(&group.pressure.some),
        full: stall(&group.pressure.full),
        stat: stat(&group.stat),
        stat_staleness: group.stat_staleness,
        stat_age: group.stat_age,
        waiting: Waiting {
            charges: group.waiting.charges,
            bytes: group.waiting.bytes,
            longest: group.waiting.longest,
        },
    }
}

fn limits(limits: &highwater::Limits) -> Limits {
    let above_zero = |limit: Bytes| (limit > Bytes::ZERO).then_some(limit);
    let set = |limit: Bytes| (limit < Bytes::MAX).then_some(limit);
    Limits {
        min: above_zero(limits.min),
        low: above_zero(limits.low),
        high: set(limits.high),
        max: set(limits.max),
    }
}

fn stall(stall: &StallTime) -> Stall {
    Stall {
        averages: [stall.avg10, stall.avg60, stall.avg300],
        total: Duration::from_micros(stall.total_us),
    }
}

/// Statistics that are read before they are flushed may be below zero for a moment.
fn stat(stat: &GroupStat) -> Stat {
    let not_negative = |value: i64| u64::try_from(value).unwrap_or(0);
    Stat {
        anon: not_negative(stat.anon),
        file: not_negative(stat.file),
        file_dirty: not_negative(stat.file_dirty),
        refault: not_negative(stat.refault),
        activate: not_negative(stat.activate),
        scanned: not_negative(stat.scanned),
        reclaimed: not_negative(stat.stolen),
        fault: not_negative(stat.fault),
        major_fault: not_negative(stat.major_fault),
    }
}

fn frames(frames: &FramesMoment) -> Frames {
    let lists = frames.lists.iter().map(|list| PcpList {
        cpu: list.cpu,
        count: list.count,
        high: list.high,
        high_min: list.high_min,
        high_max: list.high_max,
        batch: list.batch,
    });
    Frames {
        managed: frames.managed,
        ballooned: frames.ballooned,
        free: frames.free,
        deferred: frames.deferred,
        cached: frames.cached,
        allocated: frames.allocated,
        peak: frames.peak,
        watermark_min: frames.watermark_min,
        watermark_low: frames.watermark_low,
        watermark_high: frames.watermark_high,
        is_reclaiming: frames.reclaim_active,
        lists: lists.collect(),
    }
}

fn lock(lock: &LockMoment) -> Lock {
    let held = lock.hold_ns.zip(lock.holds);
    Lock {
        class: lock.class.clone(),
        contended: lock.contended,
        wait: Duration::from_nanos(lock.wait_ns),
        held: held.map(|(nanos, holds)| (Duration::from_nanos(nanos), holds)),
    }
}

fn file(file: FileMoment) -> File {
    File {
        id: file.id,
        path: file.path,
        pages: file.pages,
        resident: file.resident,
    }
}

fn victim(record: &VictimRecord) -> Victim {
    Victim {
        time: record.time,
        target: record.target.clone(),
        path: record.victim.clone(),
        estimate: record.estimate,
        exact: record.exact,
        badness: record.badness,
        runner_up: record.runner_up.clone(),
        gap: record.gap,
        census: [
            ("scanned", record.scanned),
            ("eligible", record.eligible),
            ("in reach", record.in_reach),
            ("exact reads", record.reads),
            ("passes", record.passes),
        ],
        text: record.text.clone(),
    }
}
