//! Reading a recording, also while it is being written.
//!
//! **Finding records.** `open` looks at each aligned offset of the ring: a record has its magic, a
//! position that fits the offset, and the right checksum. Sorted by number they are the log, oldest
//! first. `refresh` goes on behind the newest record, at the place where the writer puts the next;
//! if the hint names a newer one and none is there, the writer has gone once round the ring, and
//! the ring is scanned again.
//!
//! **Moments.** A whole moment is one record or several parts; a record of changes names the whole
//! moment that it changes, and is readable as long as that is. Nothing is kept in memory but the
//! places of records: a moment is read when it is asked for, and its records are checked again.
//!
//! No input makes the reader panic: every length is checked, and what is decoded is bounded by the
//! bytes of the ring.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::assemble::Assembly;
use super::format::{
    ALIGN, FileHeader, HEADER_MAX, HINT_AT, HINT_LEN, HeaderFault, Hint, Opened, RECORD_HEAD,
    RING_AT, RecordHead, VERSION,
};
use super::log::{Log, Record, RecordPlace};
use super::moment::{Mark, Moment, VictimRecord};
use super::window::{RECORD_MAX, RingWindow, read_some};
use crate::manager::error::RecordingError;
use crate::units::Bytes;

/// The header of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingInfo {
    /// Version of the format.
    pub version: u32,
    /// The process that recorded.
    pub pid: u32,
    /// The wall clock at time zero of the manager, since 1970.
    pub started_unix: Duration,
    /// Name of its executable; may be empty.
    pub program: String,
    /// Size of the ring.
    pub ring: Bytes,
    /// Size of a page, in bytes.
    pub page_size: u64,
    /// CPUs of the manager.
    pub nr_cpus: u32,
}

/// A recording, opened for reading: [`Builder::recorder`](crate::Builder::recorder) writes one.
#[derive(Debug)]
pub struct Recording {
    file: File,
    path: PathBuf,
    info: RecordingInfo,
    log: Log,
    /// The newest moment at the last refresh that found nothing new: it counts from then on.
    settled: Option<u64>,
    /// Where the last scan found records whose checksum was wrong.
    torn_at: Vec<u64>,
    /// The newest record that the hint named and a scan did not find.
    missed: u64,
}

impl Recording {
    /// Opens a recording, also one that is being written, and finds its records. Reads the whole
    /// file once.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or is no recording that this version reads.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RecordingError> {
        let path = path.as_ref().to_path_buf();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(source) => return Err(RecordingError::Open { path, source }),
        };
        let mut head = vec![0; HEADER_MAX];
        let len = match read_some(&file, &mut head, 0) {
            Ok(len) => len,
            Err(source) => return Err(RecordingError::Read { path, source }),
        };
        let header = match FileHeader::decode(&head[..len]) {
            Ok(header) => header,
            Err(HeaderFault::NotARecording) => return Err(RecordingError::NotARecording { path }),
            Err(HeaderFault::Damaged) => return Err(RecordingError::Damaged { path }),
            Err(HeaderFault::Version(found)) => {
                let known = VERSION;
                return Err(RecordingError::Version { path, found, known });
            }
        };
        let mut this = Self {
            file,
            path,
            info: RecordingInfo {
                version: VERSION,
                pid: header.pid,
                started_unix: header.started_unix,
                program: header.program,
                ring: Bytes(header.ring),
                page_size: u64::from(header.page_size),
                nr_cpus: header.nr_cpus,
            },
            log: Log::default(),
            settled: None,
            torn_at: Vec::new(),
            missed: 0,
        };
        this.scan().map_err(|source| this.unreadable(source))?;
        this.refresh()?;
        Ok(this)
    }

    /// Reads what was written since the last call, and forgets what was overwritten. Returns the
    /// number of new moments.
    ///
    /// # Errors
    ///
    /// When the system returns one.
    pub fn refresh(&mut self) -> Result<usize, RecordingError> {
        let (newest, seq) = (self.newest(), self.log.seq);
        self.follow().map_err(|source| self.unreadable(source))?;
        if self.log.seq == seq {
            self.settled = self.newest();
        }
        let new = self.log.ticks.range(newest.map_or(0, |tick| tick + 1)..);
        Ok(new.count())
    }

    /// Returns the recording's header.
    #[must_use]
    pub fn info(&self) -> &RecordingInfo {
        &self.info
    }

    /// Returns whether the manager ended in order. If not, and the file no longer grows, the
    /// program was killed, or crashed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.log.has_ended
    }

    /// Returns whether another file has taken the path since: the program was started again.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        match (fs::metadata(&self.path), self.file.metadata()) {
            (Ok(there), Ok(here)) => (there.dev(), there.ino()) != (here.dev(), here.ino()),
            _ => false,
        }
    }

    /// Returns the number of records whose checksum was wrong: cut short by a kill, or overwritten
    /// in part.
    #[must_use]
    pub fn nr_torn(&self) -> u64 {
        self.log.nr_torn
    }

    /// Returns the number of complete records found so far.
    #[must_use]
    pub fn nr_records(&self) -> u64 {
        self.log.nr_records
    }

    /// Returns the number of the newest record: as many were written so far, at least.
    #[must_use]
    pub fn newest_record(&self) -> u64 {
        self.log.seq
    }

    /// Returns the first moment.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.log.ticks.keys().next().copied()
    }

    /// Returns the last moment. One whose parts are being written counts once they are there, or
    /// when nothing more was written by the next [`refresh`](Self::refresh). Never goes back.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        let mut newest = self.log.ticks.iter().rev();
        let (tick, last) = newest.next()?;
        let is_settled = self.settled == Some(*tick);
        let is_in_progress = last.base == *tick && !last.is_complete() && !is_settled;
        match (is_in_progress, newest.next()) {
            (true, Some((before, _))) => Some(*before),
            _ => Some(*tick),
        }
    }

    /// Returns the number of moments that can be read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.log.ticks.len()
    }

    /// Returns whether there is no moment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.log.ticks.is_empty()
    }

    /// Returns the moment `by` moments after `tick`, or before it if negative, as far as there are
    /// any.
    #[must_use]
    pub fn step(&self, tick: u64, by: i64) -> Option<u64> {
        let last = self.last()?;
        let steps = usize::try_from(by.unsigned_abs()).unwrap_or(usize::MAX);
        let ticks = &self.log.ticks;
        let found = match by {
            0 => ticks.range(..=tick).next_back(),
            1.. => {
                let after = ticks.range(tick.saturating_add(1)..);
                after.take(steps).last()
            }
            _ => ticks.range(..tick).rev().take(steps).last(),
        };
        let near = || ticks.range(..=tick).next_back().or(ticks.iter().next());
        found.or_else(near).map(|(tick, _)| (*tick).min(last))
    }

    /// Returns the last moment that is not after `time`; the first if there is none.
    #[must_use]
    pub fn at_time(&self, time: Duration) -> Option<u64> {
        let last = self.last()?;
        let mut before = self.log.ticks.range(..=last).rev();
        let found = before.find(|(_, found)| found.time <= time);
        found.map(|(tick, _)| *tick).or_else(|| self.first())
    }

    /// Returns the time of a moment.
    #[must_use]
    pub fn time(&self, tick: u64) -> Option<Duration> {
        Some(self.log.ticks.get(&tick)?.time)
    }

    /// Returns the marks, oldest first.
    #[must_use]
    pub fn marks(&self) -> &[Mark] {
        &self.log.marks
    }

    /// Returns the victims, oldest first.
    #[must_use]
    pub fn victims(&self) -> &[VictimRecord] {
        &self.log.victims
    }

    /// Returns the state at a moment: everything as it was recorded last, and the changes since.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Overwritten`] when there is no such moment, or no longer; when the system
    /// returns an error.
    pub fn moment(&self, tick: u64) -> Result<Moment, RecordingError> {
        let missing = || RecordingError::Overwritten {
            path: self.path.clone(),
            tick,
        };
        let ticks = &self.log.ticks;
        let base = ticks.get(&tick).ok_or_else(missing)?.base;
        let whole = ticks.get(&base).ok_or_else(missing)?;
        let mut assembly = Assembly::new(Moment {
            tick,
            whole_at: whole.time,
            is_whole: whole.is_complete(),
            ..Moment::default()
        });
        let mut buffer = vec![0; RECORD_MAX];
        for (number, found) in ticks.range(base..=tick) {
            for place in &found.parts {
                let payload = self.read(*place, &mut buffer);
                let payload = payload.map_err(|source| self.unreadable(source))?;
                let payload = payload.ok_or_else(missing)?;
                let decoded = match *number == base {
                    true => assembly.add_whole(payload),
                    false => assembly.add_changes(found.time, payload),
                };
                decoded.ok_or_else(missing)?;
            }
        }
        let time = ticks.get(&tick).map_or(Duration::ZERO, |found| found.time);
        Ok(assembly.finish(time))
    }

    /// Returns a record's payload, if it is still there.
    fn read<'a>(&self, place: RecordPlace, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let len = RECORD_HEAD + place.len as usize;
        let offset = RING_AT + place.at % self.info.ring.0;
        let read = read_some(&self.file, &mut buffer[..len], offset)?;
        Ok(match RecordHead::open(&buffer[..read]) {
            Opened::Record(head, payload) if (head.seq, head.at) == (place.seq, place.at) => {
                Some(payload)
            }
            _ => None,
        })
    }

    fn newest(&self) -> Option<u64> {
        self.log.ticks.keys().next_back().copied()
    }

    fn unreadable(&self, source: io::Error) -> RecordingError {
        RecordingError::Read {
            path: self.path.clone(),
            source,
        }
    }

    /// Finds every record of the ring.
    fn scan(&mut self) -> io::Result<()> {
        let ring = self.info.ring.0;
        let mut found = Vec::new();
        let mut window = RingWindow::default();
        let (mut offset, mut torn_at) = (0, Vec::new());
        while offset < ring {
            let opened = RecordHead::open(window.at(&self.file, ring, offset)?);
            offset += match opened {
                Opened::Record(head, payload) if head.at % ring == offset => {
                    if let Some(record) = Record::of(head, payload) {
                        found.push(record);
                    }
                    head.size()
                }
                Opened::Torn => {
                    torn_at.push(offset);
                    ALIGN
                }
                _ => ALIGN,
            };
        }
        found.sort_by_key(|record| record.head.seq);
        let is_known = |at: &&u64| self.torn_at.binary_search(at).is_ok();
        let nr_known = torn_at.iter().filter(is_known).count();
        self.log = Log::with_torn(self.log.nr_torn + (torn_at.len() - nr_known) as u64);
        self.torn_at = torn_at;
        let nr_found = found.len() as u64;
        for record in found {
            self.log.add(record, ring);
        }
        debug_assert_eq!(self.log.nr_records, nr_found, "each record is in the log");
        Ok(())
    }

    /// Reads the records behind the newest.
    fn follow(&mut self) -> io::Result<()> {
        let ring = self.info.ring.0;
        let mut window = RingWindow::default();
        let before = self.log.seq;
        // Terminates: each round adds a record of a higher number, and the writer is not faster.
        // Bounded for a writer that is: a ring of records, then the rest is for the next call.
        let mut left = ring;
        while left > 0 {
            let next_lap = self.log.end.checked_next_multiple_of(ring);
            let places = [Some(self.log.end), next_lap].into_iter().flatten();
            let mut found = places.filter_map(|at| self.next_at(at, &mut window).transpose());
            let Some(record) = found.next().transpose()? else {
                break;
            };
            debug_assert!(
                record.head.seq > self.log.seq,
                "records are followed in order"
            );
            if record.head.seq > self.log.seq + 1 {
                // Those between were written after this looked there, or are behind a damaged one.
                return self.scan();
            }
            left = left.saturating_sub(record.head.size());
            self.log.add(record, ring);
        }
        let mut hint = [0; HINT_LEN];
        read_some(&self.file, &mut hint, HINT_AT)?;
        match Hint::decode(&hint) {
            Some(hint) if self.log.seq == before && hint.seq > before.max(self.missed) => {
                self.scan()?;
                if self.log.seq < hint.seq {
                    // Damaged: not looked for again.
                    self.missed = hint.seq;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the record at a position, if it is newer than all that are known.
    fn next_at(&self, at: u64, window: &mut RingWindow) -> io::Result<Option<Record>> {
        let ring = self.info.ring.0;
        let opened = RecordHead::open(window.at(&self.file, ring, at % ring)?);
        Ok(match opened {
            Opened::Record(head, payload) if head.at == at && head.seq > self.log.seq => {
                Record::of(head, payload)
            }
            _ => None,
        })
    }
}
