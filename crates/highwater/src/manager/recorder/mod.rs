//! The flight recorder: what the manager knows, in a ring file that outlives the process.
//!
//! Once a second a whole moment is written: each group, the frames, locks, files and counters; ten
//! times a second the groups whose usage has changed; and at once the program's marks and each
//! victim. A reader follows the file live, or opens it after the program was killed.
//!
//! **Protocol.** The [`Scribe`] is the only writer of the file. A thread that records takes it out
//! of its place, and puts it back when it has written; a thread that finds the place empty leaves
//! the work to the one that has it. So no lock is held during I/O, none while the manager is read,
//! and a slow disk delays nothing but the recording. A note (mark or victim) is queued first. The
//! thread that puts the scribe back looks at the queue once more, so a note whose thread found the
//! place empty is not left behind.
//!
//! **Why no model.** Threads share the place and the queue, each under a lock, and no atomic: a
//! model of two locks would check the locks. The file has one writer; its readers are other
//! processes, which trust checksums alone (`tests/recorder.rs` kills the writer, and reads beside
//! it).
//!
//! | file | contents |
//! |---|---|
//! | `format` | header, record header, numbers: the bytes |
//! | `ring` | the file, and appending to it |
//! | `moment`, `codec` | a moment as values; how they are encoded |
//! | `gather` | reading the manager |
//! | `thread` | the thread that records |
//! | `reader`, `window`, `log` | finding records; the log of those found |
//! | `assemble` | putting a moment together |

mod format;
mod moment;
mod codec;
mod ring;
mod window;
mod log;
mod assemble;
mod reader;
mod gather;
mod thread;
#[cfg(all(test, not(loom), not(miri)))]
mod tests;

#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use super::error::RecordingError;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use moment::{
    FileMoment, FramesMoment, GroupMoment, GroupStat, LockMoment, Mark, Moment, PcpMoment,
    VictimRecord, Waiting,
};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use reader::{Recording, RecordingInfo};
pub(in crate::manager) use thread::RecorderThread;

use std::collections::VecDeque;
use std::env;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process;
use std::time::{Duration, SystemTime};

use super::error::BuildError;
use super::handler::survive;
use super::{Core, Manager};
use crate::group::{GroupNode, GroupPath};
use crate::sync::{Condvar, LockClass, Mutex, Rank};
use crate::units::{Bytes, PAGE_SIZE};
use crate::victim::Choice;
use format::{FileHeader, clip};
use gather::{MARK_MAX, Note, Scribe, TickKind};
use ring::{RingFile, Unpublished};

static SCRIBE_LOCK: LockClass = LockClass::new("recorder", Rank::Leaf);
static NOTES_LOCK: LockClass = LockClass::new("recorder notes", Rank::Leaf);

/// Notes that wait for the scribe. Chosen: a thread that has it is never as slow as that many
/// victims, unless the disk hangs.
const NOTES_MAX: usize = 256;

/// Sizes of the ring that are allowed.
const SIZES: RangeInclusive<Bytes> = Bytes::mib(1)..=Bytes::gib(1);

/// The recorder of a manager.
#[derive(Debug)]
pub(super) struct Recorder {
    /// The writer; empty while a thread has it.
    scribe: Mutex<Option<Box<Scribe>>>,
    notes: Mutex<Notes>,
    /// Signalled for the recorder's thread: a note, or the end.
    woken: Condvar,
}

#[derive(Debug, Default)]
struct Notes {
    queue: VecDeque<Note>,
    /// Notes that found the queue full.
    nr_lost: u64,
    has_thread: bool,
    /// A note since the thread last looked.
    is_nudged: bool,
    is_ending: bool,
}

/// The scribe in the hands of a thread; put back on drop.
struct HeldScribe<'a> {
    recorder: &'a Recorder,
    scribe: Option<Box<Scribe>>,
}

impl Drop for HeldScribe<'_> {
    fn drop(&mut self) {
        let former = std::mem::replace(&mut *self.recorder.scribe.lock(), self.scribe.take());
        debug_assert!(former.is_none(), "a recording has one scribe");
    }
}

impl Manager {
    /// Writes a mark into the recording, such as a deployment or the start of a test. Does nothing
    /// without a [recorder](super::Builder::recorder). Of a text above 1 KiB, the start is kept.
    ///
    /// # Cost
    ///
    /// An allocation, and a write to the file.
    ///
    /// # Examples
    ///
    /// ```
    /// let hw = highwater::Manager::builder().build()?;
    /// hw.mark("deploy 41");
    /// # Ok::<(), highwater::BuildError>(())
    /// ```
    pub fn mark(&self, text: &str) {
        let core = self.core();
        if let Some(recorder) = &core.recorder {
            let text = clip(text, MARK_MAX).to_owned();
            recorder.note(Note::Mark(core.now(), text));
            recorder.record(core, |_| TickKind::Nothing);
        }
    }

    /// Records what is due: everything a second after it was last recorded, the groups that have
    /// changed 100 ms after the last tick. For programs without
    /// [background threads](super::Background::Thread): call it ten times a second. Does nothing
    /// without a [recorder](super::Builder::recorder).
    ///
    /// # Cost
    ///
    /// Between ticks, a lock and a read of the clock. For a tick, four loads for each group, one
    /// write for each 64 KiB of records, and a read of each group that is written. A tick of
    /// changes allocates nothing. A whole moment makes some ten allocations, most of them as its
    /// list of groups grows. No tick flushes statistics.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn record_tick(&self) {
        self.core().record_tick();
    }

    /// Records everything, or the groups that have changed, whether it is due or not: for tests and
    /// measurements.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn record_now(&self, everything: Everything) {
        let core = self.core();
        if let Some(recorder) = &core.recorder {
            recorder.record(core, |_| match everything {
                Everything::Yes => TickKind::Everything,
                Everything::No => TickKind::Changes,
            });
        }
    }
}

/// What [`Manager::record_now`] records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) enum Everything {
    /// A whole moment.
    Yes,
    /// The groups that have changed.
    No,
}

impl Core {
    pub(super) fn record_tick(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.record(self, |scribe| scribe.due(self.now()));
        }
    }

    /// Records a victim, and has it written soon.
    pub(super) fn record_victim(&self, target: &GroupNode, choice: &Choice<GroupPath>) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let next = choice.runner_up.as_ref();
        let census = choice.census;
        let count = |number: usize| number as u64;
        let victim = Box::new(VictimRecord {
            time: self.now(),
            target: short(&target.path()),
            victim: short(&choice.id),
            estimate: choice.estimate,
            exact: choice.exact,
            badness: choice.badness,
            runner_up: next.map(|next| (short(&next.id), next.badness)),
            gap: choice.gap,
            scanned: count(census.scanned),
            eligible: count(census.eligible),
            in_reach: count(census.in_reach),
            reads: count(census.reads),
            passes: count(census.passes),
            text: clip(&choice.to_string(), PATH_MAX).to_owned(),
        });
        if !recorder.note(Note::Victim(victim)) {
            recorder.record(self, |_| TickKind::Nothing);
        }
    }
}

/// Longest path of a group in a record: 64 names of 255 bytes do fit.
const PATH_MAX: usize = 15 << 10;

fn short(path: &GroupPath) -> String {
    let path = path.to_string();
    clip(&path, PATH_MAX).to_owned()
}

/// Returns the error of a recording that cannot be made.
pub(super) fn refused(path: &Path, size: Bytes, source: io::Error) -> BuildError {
    let path = path.display().to_string();
    BuildError::Recorder { path, size, source }
}

impl Recorder {
    /// Creates the recording, which is not at its path before it is published.
    pub(super) fn create(
        path: &Path,
        size: Bytes,
        nr_cpus: usize,
    ) -> Result<(Self, Unpublished), BuildError> {
        let (min, max) = SIZES.into_inner();
        if !SIZES.contains(&size) {
            return Err(BuildError::RecorderSize { size, min, max });
        }
        let program = env::current_exe().ok();
        let program = program.as_deref().and_then(Path::file_name);
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let header = FileHeader {
            ring: size.pages_floor().bytes().0,
            started_unix: started.unwrap_or(Duration::ZERO),
            pid: process::id(),
            nr_cpus: u32::try_from(nr_cpus).unwrap_or(u32::MAX),
            page_size: u32::try_from(PAGE_SIZE).expect("a page is small"),
            program: program.map_or(String::new(), |name| name.to_string_lossy().into_owned()),
        };
        let created = RingFile::create(path, &header);
        let (ring, unpublished) = created.map_err(|source| refused(path, size, source))?;
        let recorder = Self {
            scribe: Mutex::new(&SCRIBE_LOCK, Some(Box::new(Scribe::new(ring)))),
            notes: Mutex::new(&NOTES_LOCK, Notes::default()),
            woken: Condvar::new(),
        };
        Ok((recorder, unpublished))
    }

    /// Queues a note, and wakes the thread. Returns whether there is a thread.
    fn note(&self, note: Note) -> bool {
        let mut notes = self.notes.lock();
        match notes.queue.len() < NOTES_MAX {
            true => notes.queue.push_back(note),
            false => notes.nr_lost += 1,
        }
        debug_assert!(
            notes.nr_lost == 0 || notes.queue.len() == NOTES_MAX,
            "notes were lost beside free room"
        );
        notes.is_nudged = true;
        self.woken.notify_one();
        notes.has_thread
    }

    /// Writes the notes, and what `due` says, unless another thread has the scribe: then that
    /// writes the notes.
    fn record(&self, core: &Core, due: impl Fn(&Scribe) -> TickKind) {
        let mut due = Some(due);
        // Terminates: after the first round only for notes that came meanwhile, and a round takes
        // them all. A thread that adds notes without end holds up none but itself: another thread
        // that adds one finds the place empty, and returns.
        loop {
            let Some(mut held) = self.take() else {
                return;
            };
            let scribe = held.scribe.as_mut().expect("taken above");
            let due = due.take().map_or(TickKind::Nothing, |due| due(scribe));
            let notes = self.take_notes(core);
            if due != TickKind::Nothing || !notes.is_empty() {
                scribe.record(core, due, notes.into_iter());
            }
            drop(held);
            if self.notes.lock().queue.is_empty() {
                return;
            }
        }
    }

    fn take(&self) -> Option<HeldScribe<'_>> {
        let scribe = self.scribe.lock().take()?;
        Some(HeldScribe {
            recorder: self,
            scribe: Some(scribe),
        })
    }

    fn take_notes(&self, core: &Core) -> VecDeque<Note> {
        let mut notes = self.notes.lock();
        debug_assert!(
            notes.queue.len() <= NOTES_MAX,
            "{} notes wait",
            notes.queue.len()
        );
        let nr_lost = std::mem::take(&mut notes.nr_lost);
        if nr_lost > 0 {
            let text = format!("{nr_lost} marks and victims were not recorded: too many at once");
            notes.queue.push_back(Note::Mark(core.now(), text));
        }
        std::mem::take(&mut notes.queue)
    }

    /// Records everything once more, and the orderly end.
    fn end(&self, core: &Core) {
        debug_assert!(
            self.notes.lock().is_ending,
            "the recording ends with the manager"
        );
        survive(|| self.record(core, |_| TickKind::Everything));
        if let Some(mut held) = self.take() {
            let scribe = held.scribe.as_mut().expect("taken above");
            scribe.end(core);
        }
    }
}
