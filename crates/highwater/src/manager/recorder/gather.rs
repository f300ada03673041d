//! Recording: reads the manager and encodes what it finds.
//!
//! A tick reads every group's reservations, four loads each, and compares them with those of the
//! last tick; a group whose reservations or maximum changed is read in full and written. Once a
//! second everything is. Statistics are read without a flush, with the bound of their error. A
//! change that stays within the tokens of a group's CPUs does not show in its reservations, nor
//! does an event without one: it is in the next whole moment.

use std::io;
use std::time::Duration;

use super::assemble::Item;
use super::codec::GroupNumbers;
use super::format::{Kind, Out, PAYLOAD_MAX, RECORD_HEAD, clip};
use super::moment::{
    FileMoment, FramesMoment, GroupStat, LockMoment, PcpMoment, VictimRecord, Waiting,
};
use super::ring::RingFile;
use crate::cache::{FileEntry, FileKind, PageCache};
use crate::frame::{FrameCounts, FramePool, Watermarks, Zoneinfo};
use crate::group::{GroupKey, GroupNode, GroupTree, QueueView, StatItem, Tolerance};
use crate::manager::{Core, vmstat};
use crate::reclaim::Reclaim;
use crate::sync::{Arc, LockTimes};
use crate::units::{Bytes, Estimate, PAGE_SIZE};

/// Time between whole moments.
pub(super) const WHOLE_PERIOD: Duration = Duration::from_secs(1);
/// Time between ticks.
pub(super) const TICK_PERIOD: Duration = Duration::from_millis(100);
/// Upper bound on the bytes of one item: a group with a name of 255 bytes, a file with a path of
/// [`PATH_MAX`].
const ITEM_MAX: usize = 2 << 10;
/// Longest path of a file that is recorded; of a longer one, the start.
const PATH_MAX: usize = 1 << 10;
/// Files in a whole moment. Chosen: more than a screen shows.
const FILES_MAX: usize = 64;
/// Waiting charges up to which each tick counts them; beyond, whole moments do. Chosen: 10 µs.
const COUNTED_MAX: usize = 1024;
/// Longest text of a mark.
pub(super) const MARK_MAX: usize = 1 << 10;

/// A record that is not part of a moment.
#[derive(Debug)]
pub(super) enum Note {
    Mark(Duration, String),
    Victim(Box<VictimRecord>),
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TickKind {
    Everything,
    Changes,
    Nothing,
}

/// The writer of a recording: one thread at a time has it.
#[derive(Debug)]
pub(super) struct Scribe {
    ring: RingFile,
    /// The record in the making, with room for its header.
    record: Vec<u8>,
    /// Number of the last moment.
    tick: u64,
    /// Number and time of the last whole moment.
    whole: (u64, Duration),
    /// Time of the last tick.
    ticked_at: Duration,
    /// The groups of the last whole moment, and what was last seen of each.
    groups: Vec<SeenGroup>,
    queues: Vec<SeenQueue>,
    /// The queues of the look before, and views of them: kept for their memory.
    queues_before: Vec<SeenQueue>,
    spare: Vec<QueueView>,
    has_failed: bool,
    /// The place in the ring at which the last whole moment began.
    whole_at: u64,
    has_warned_of_size: bool,
}

/// A group as it was last written.
#[derive(Clone, Copy, Debug)]
struct SeenGroup {
    key: GroupKey,
    bounds: Estimate<Bytes>,
    max: Bytes,
}

/// A wait queue, and since when its first charge has been seen there.
#[derive(Clone, Copy, Debug)]
struct SeenQueue {
    view: QueueView,
    since: Duration,
}

impl Scribe {
    pub(super) fn new(ring: RingFile) -> Self {
        Self {
            ring,
            record: Vec::with_capacity(RECORD_HEAD + PAYLOAD_MAX),
            tick: 0,
            whole: (0, Duration::ZERO),
            ticked_at: Duration::ZERO,
            groups: Vec::new(),
            queues: Vec::new(),
            queues_before: Vec::new(),
            spare: Vec::new(),
            has_failed: false,
            whole_at: 0,
            has_warned_of_size: false,
        }
    }

    #[cfg(all(test, not(loom), not(miri)))]
    pub(super) fn replace_file(&mut self, file: std::fs::File) -> std::fs::File {
        self.ring.replace_file(file)
    }

    /// Returns what is due at `now`.
    pub(super) fn due(&self, now: Duration) -> TickKind {
        if self.tick == 0 || now >= self.whole.1 + WHOLE_PERIOD {
            return TickKind::Everything;
        }
        match now >= self.ticked_at + TICK_PERIOD {
            true => TickKind::Changes,
            false => TickKind::Nothing,
        }
    }

    /// Records `due` of the manager, and the notes.
    pub(super) fn record(&mut self, core: &Core, due: TickKind, notes: impl Iterator<Item = Note>) {
        let seq = self.ring.newest();
        let mut result = Ok(());
        for note in notes {
            result = result.and(self.write_note(note));
        }
        let now = core.now();
        result = result.and(match due {
            TickKind::Everything => self.write_all(core, now),
            TickKind::Changes => self.write_changes(core, now),
            TickKind::Nothing => Ok(()),
        });
        debug_assert!(
            due != TickKind::Everything || self.ring.newest() > seq,
            "a whole moment has a record"
        );
        // A tick without a record says nothing about the disk.
        if self.ring.newest() > seq {
            result = result.and(self.ring.hint());
            self.report(result);
        }
    }

    /// Records the orderly end.
    pub(super) fn end(&mut self, core: &Core) {
        self.begin();
        let ended = self.append(Kind::End, core.now());
        let result = ended.and(self.ring.hint());
        self.report(result);
    }

    /// Reports the first of several failures in a row: the next ticks go on trying.
    fn report(&mut self, result: io::Result<()>) {
        let had_failed = std::mem::replace(&mut self.has_failed, result.is_err());
        if let Err(error) = result
            && !had_failed
        {
            tracing::warn!(%error, "the recording has gaps: a record could not be written");
        }
    }

    fn write_note(&mut self, note: Note) -> io::Result<()> {
        self.begin();
        let mut out = Out(&mut self.record);
        match note {
            Note::Mark(time, text) => {
                out.text(clip(&text, MARK_MAX));
                self.append(Kind::Mark, time)
            }
            Note::Victim(victim) => {
                victim.encode(&mut out);
                self.append(Kind::Victim, victim.time)
            }
        }
    }

    fn write_all(&mut self, core: &Core, now: Duration) -> io::Result<()> {
        self.look_at_queues(&core.groups, now, usize::MAX);
        self.tick += 1;
        debug_assert!(self.whole.0 < self.tick, "moments are numbered upwards");
        (self.whole, self.ticked_at) = ((self.tick, now), now);
        let begun_at = self.ring.end();
        let written = Part::begin(self, now).all(core);
        let end = self.ring.end();
        self.look_at_size(Bytes((end - self.whole_at).max(2 * (end - begun_at))));
        self.whole_at = begun_at;
        written
    }

    /// Warns once of a ring that does not hold two whole moments and the changes between them: the
    /// second overwrites the first while it is written, and one above the ring its own start.
    fn look_at_size(&mut self, needed: Bytes) {
        let size = self.ring.size();
        if needed > size && !std::mem::replace(&mut self.has_warned_of_size, true) {
            tracing::warn!(
                size_bytes = size.0,
                needed_bytes = needed.0,
                "the recording is too small for its groups: moments are lost"
            );
        }
    }

    fn write_changes(&mut self, core: &Core, now: Duration) -> io::Result<()> {
        self.ticked_at = now;
        self.look_at_queues(&core.groups, now, COUNTED_MAX);
        let mut groups = std::mem::take(&mut self.groups);
        debug_assert!(
            groups.is_empty() || self.whole.0 > 0,
            "groups are listed by a whole moment"
        );
        let written = self.write_changed(core, &mut groups, now);
        self.groups = groups;
        written
    }

    fn write_changed(
        &mut self,
        core: &Core,
        groups: &mut [SeenGroup],
        now: Duration,
    ) -> io::Result<()> {
        let mut is_begun = false;
        for seen in groups {
            let look = SeenGroup::of(&core.groups, seen.key);
            if !look.differs(seen) && !self.is_queued(seen.key) {
                continue;
            }
            let Some(group) = core.groups.find(seen.key).filter(|it| !it.is_removed()) else {
                continue;
            };
            if !std::mem::replace(&mut is_begun, true) {
                self.tick += 1;
                self.begin_changes();
            }
            let numbers = self.numbers(&group, now);
            let before = self.record.len();
            let mut out = Out(&mut self.record);
            out.number(u64::from(group.id().0));
            numbers.encode(&mut out);
            debug_assert!(self.record.len() - before <= ITEM_MAX, "a long {numbers:?}");
            *seen = look;
            if self.record.len() > RECORD_HEAD + PAYLOAD_MAX - ITEM_MAX {
                self.append(Kind::Changed, now)?;
                self.begin_changes();
            }
        }
        match is_begun {
            true => self.append(Kind::Changed, now),
            false => Ok(()),
        }
    }

    fn begin_changes(&mut self) {
        debug_assert!(
            0 < self.whole.0 && self.whole.0 < self.tick,
            "moment {} changes {}",
            self.tick,
            self.whole.0
        );
        self.begin();
        let mut out = Out(&mut self.record);
        out.byte(0);
        out.number(self.tick);
        out.number(self.whole.0);
    }

    /// Begins a record: leaves room for its header.
    fn begin(&mut self) {
        self.record.clear();
        self.record.resize(RECORD_HEAD, 0);
    }

    fn append(&mut self, kind: Kind, time: Duration) -> io::Result<()> {
        debug_assert!(
            self.record.len() <= RECORD_HEAD + PAYLOAD_MAX,
            "a record of {} bytes is too long",
            self.record.len()
        );
        self.ring.append(kind, time, &mut self.record)
    }

    /// Reads the wait queues: how many charges, and since when the first has been there. Not if
    /// more than `charges_max` charges wait.
    fn look_at_queues(&mut self, groups: &GroupTree, now: Duration, charges_max: usize) {
        self.spare.clear();
        if !groups.wait_queues(charges_max, &mut self.spare) {
            return;
        }
        debug_assert!(
            self.spare.is_sorted_by(|one, next| one.group < next.group),
            "queues are searched by group"
        );
        std::mem::swap(&mut self.queues, &mut self.queues_before);
        let before = &self.queues_before;
        let since = |view: &QueueView| {
            let found = before.binary_search_by_key(&view.group, |queue| queue.view.group);
            let found = found.ok().map(|index| before[index]);
            found.filter(|queue| queue.view.first == view.first)
        };
        self.queues.clear();
        self.queues.extend(self.spare.iter().map(|view| SeenQueue {
            view: *view,
            since: since(view).map_or(now, |queue| queue.since),
        }));
    }

    fn queue_of(&self, key: GroupKey) -> Option<&SeenQueue> {
        let found = self
            .queues
            .binary_search_by_key(&key.id(), |queue| queue.view.group);
        found.ok().map(|index| &self.queues[index])
    }

    fn is_queued(&self, key: GroupKey) -> bool {
        self.queue_of(key).is_some()
    }

    /// Reads a group without flushing its statistics.
    fn numbers(&self, group: &GroupNode, now: Duration) -> GroupNumbers {
        let stats = group.read_stats(Tolerance::ANY, now);
        let get = |item| stats.get(item);
        let stat = GroupStat {
            anon: get(StatItem::Anon),
            file: get(StatItem::File),
            shmem: get(StatItem::Shmem),
            file_dirty: get(StatItem::FileDirty),
            refault: get(StatItem::WorkingsetRefaultAnon) + get(StatItem::WorkingsetRefaultFile),
            activate: get(StatItem::WorkingsetActivateAnon) + get(StatItem::WorkingsetActivateFile),
            scanned: get(StatItem::PgscanKswapd) + get(StatItem::PgscanDirect),
            stolen: get(StatItem::PgstealKswapd) + get(StatItem::PgstealDirect),
            scanned_direct: get(StatItem::PgscanDirect),
            stolen_direct: get(StatItem::PgstealDirect),
            fault: get(StatItem::Pgfault),
            major_fault: get(StatItem::Pgmajfault),
        };
        let waiting = self.queue_of(group.key()).map(|queue| Waiting {
            charges: queue.view.charges,
            bytes: queue.view.bytes,
            longest: now.saturating_sub(queue.since),
        });
        GroupNumbers {
            usage: group.usage(),
            peak: group.peak(),
            limits: group.limits(),
            events: group.events(),
            pressure: group.pressure(now),
            stat,
            stat_staleness: stats.staleness,
            stat_age: stats.age,
            waiting: waiting.unwrap_or_default(),
        }
    }
}

impl SeenGroup {
    fn of(groups: &GroupTree, key: GroupKey) -> Self {
        let (bounds, max) = groups.glance(key.id());
        Self { key, bounds, max }
    }

    fn differs(&self, other: &Self) -> bool {
        (self.bounds, self.max) != (other.bounds, other.max)
    }
}

/// The parts of a whole moment as they are written.
struct Part<'a> {
    scribe: &'a mut Scribe,
    now: Duration,
    number: u64,
}

impl<'a> Part<'a> {
    fn begin(scribe: &'a mut Scribe, now: Duration) -> Self {
        let mut part = Self {
            scribe,
            now,
            number: 0,
        };
        part.open();
        part
    }

    fn open(&mut self) {
        debug_assert_eq!(
            self.scribe.tick, self.scribe.whole.0,
            "a part is of a whole moment"
        );
        self.scribe.begin();
        let mut out = Out(&mut self.scribe.record);
        out.byte(0);
        out.number(self.scribe.tick);
        out.number(self.number);
    }

    /// Begins an item, in a new part if this one has no room for it.
    fn item(&mut self, item: Item) -> io::Result<Out<'_>> {
        debug_assert!(
            self.scribe.record.len() <= RECORD_HEAD + PAYLOAD_MAX,
            "an item is above {ITEM_MAX} bytes"
        );
        if self.scribe.record.len() > RECORD_HEAD + PAYLOAD_MAX - ITEM_MAX {
            self.scribe.append(Kind::Whole, self.now)?;
            self.number += 1;
            self.open();
        }
        let mut out = Out(&mut self.scribe.record);
        out.byte(item as u8);
        Ok(out)
    }

    /// Writes the items, and ends.
    fn all(mut self, core: &Core) -> io::Result<()> {
        self.groups(core)?;
        self.frames(core)?;
        self.locks()?;
        self.files(core)?;
        self.counters(core)?;
        self.end()
    }

    fn end(self) -> io::Result<()> {
        debug_assert_eq!(
            self.scribe.record[RECORD_HEAD], 0,
            "a moment has one last part"
        );
        self.scribe.record[RECORD_HEAD] = 1;
        self.scribe.append(Kind::Whole, self.now)
    }

    fn groups(&mut self, core: &Core) -> io::Result<()> {
        let nodes = core.groups.subtree(&core.groups.root());
        self.scribe.groups.clear();
        for group in &nodes {
            let seen = SeenGroup::of(&core.groups, group.key());
            self.scribe.groups.push(seen);
            let numbers = self.scribe.numbers(group, self.now);
            let mut out = self.item(Item::Group)?;
            out.number(u64::from(group.id().0));
            out.number(group.parent_id().map_or(0, |id| u64::from(id.0) + 1));
            out.number(u64::from(group.depth()));
            out.text(group.name());
            numbers.encode(&mut out);
        }
        debug_assert_eq!(
            self.scribe.groups.len(),
            nodes.len(),
            "each group is listed"
        );
        Ok(())
    }

    fn frames(&mut self, core: &Core) -> io::Result<()> {
        let Zoneinfo {
            watermarks: Watermarks { min, low, high },
            reclaim_active,
            below_high,
            lists,
            ..
        } = core.pool.zoneinfo();
        let FrameCounts {
            managed,
            ballooned,
            free,
            deferred,
            cached,
            allocated,
            peak,
        } = core.pool.counts();
        let frames = FramesMoment {
            managed: managed.0,
            ballooned: ballooned.0,
            free: free.0,
            deferred: deferred.0,
            cached: cached.0,
            allocated: allocated.0,
            peak: peak.0,
            watermark_min: min.0,
            watermark_low: low.0,
            watermark_high: high.0,
            reclaim_active,
            below_high,
            ..FramesMoment::default()
        };
        frames.encode(&mut self.item(Item::Frames)?);
        for list in lists {
            let list = PcpMoment {
                cpu: list.cpu.map(|cpu| cpu.0),
                count: list.count,
                high: list.high,
                high_min: list.high_min,
                high_max: list.high_max,
                batch: list.batch,
            };
            list.encode(&mut self.item(Item::Pcp)?);
        }
        let (waits, held) = times(&core.pool.zone_times());
        LockMoment::encode(&mut self.item(Item::ZoneLock)?, "zone", waits, held);
        let (waits, held) = times(&core.cache.rmap_times());
        LockMoment::encode(&mut self.item(Item::Lock)?, "rmap, held", waits, held);
        Ok(())
    }

    fn locks(&mut self) -> io::Result<()> {
        let (pool, cache) = (FramePool::lock_events(), PageCache::lock_events());
        let classes = pool.into_iter().chain(cache).chain(Reclaim::lock_events());
        for events in classes {
            let waits = [events.contended, events.wait_ns];
            LockMoment::encode(&mut self.item(Item::Lock)?, events.class, waits, None);
        }
        Ok(())
    }

    fn files(&mut self, core: &Core) -> io::Result<()> {
        let files = core.cache.open_files();
        let resident = |file: &Arc<FileEntry>| file.resident();
        let mut files: Vec<_> = files.iter().map(|file| (resident(file), file)).collect();
        let omitted = files.len().saturating_sub(FILES_MAX);
        if omitted > 0 {
            files.select_nth_unstable_by_key(FILES_MAX, |(it, _)| std::cmp::Reverse(it.value));
            files.truncate(FILES_MAX);
            self.item(Item::FilesOmitted)?.number(omitted as u64);
        }
        debug_assert!(
            files.len() <= FILES_MAX,
            "{} files in a moment",
            files.len()
        );
        files.sort_by_key(|(resident, _)| std::cmp::Reverse(resident.value));
        for (resident, file) in files {
            let name = match (file.id().kind(), file.system_file()) {
                (FileKind::Anon, _) => "[anonymous]",
                (FileKind::Shmem, _) => "[shared]",
                (FileKind::File, Some(system)) => system.name(),
                (FileKind::File, None) => "[storage]",
            };
            let in_bytes = |pages: i64| Bytes(u64::try_from(pages).unwrap_or(0) * PAGE_SIZE as u64);
            let resident = Estimate {
                value: in_bytes(resident.value),
                low: in_bytes(resident.low),
                high: in_bytes(resident.high),
            };
            let mut out = self.item(Item::File)?;
            let id = u64::from(file.id().number());
            let pages = file.pages() << file.order().get();
            FileMoment::encode(&mut out, id, clip(name, PATH_MAX), pages, resident);
        }
        Ok(())
    }

    fn counters(&mut self, core: &Core) -> io::Result<()> {
        for (name, value) in vmstat::read_cheaply(core) {
            let mut out = self.item(Item::Counter)?;
            out.text(name);
            out.number(value);
        }
        Ok(())
    }
}

/// Returns waits, and holds with their time, of timed locks.
fn times(times: &LockTimes) -> ([u64; 2], Option<[u64; 2]>) {
    let waits = [times.contended(), times.wait_ns.sum()];
    (waits, Some([times.hold_ns.sum(), times.holds()]))
}
