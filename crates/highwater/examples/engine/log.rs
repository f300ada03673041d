//! The log: records of changes, in segments that are files of their own.
//!
//! An LSN is the number of a record. A segment is named by its first. A checkpoint begins a new one
//! and in the end removes those before it, so that the oldest segment is where recovery begins.
//!
//! The first record that changes a page after a checkpoint began holds the whole page. So recovery
//! never reads the data file, and a page that was torn by a crash is mended.
//!
//! Commits are durable in groups: one thread writes and syncs for all that wait by then. After an
//! error of the log nothing is durable any more: the store has to be opened again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use highwater::WriteGate;

use super::node::{self, Page};

/// A change of one page.
pub(crate) enum Change {
    /// The page is this.
    Image(Box<Page>),
    /// Its leaf has this record.
    Put(u64, Vec<u8>),
    /// Its leaf has no record of this key.
    Remove(u64),
}

impl Change {
    pub(crate) fn apply(&self, page: &mut Page) {
        match self {
            Self::Image(image) => page.copy_from_slice(&image[..]),
            Self::Put(key, value) => node::put(page, *key, value),
            Self::Remove(key) => node::remove(page, *key),
        }
    }

    fn write(&self, page: u64, into: &mut Vec<u8>) {
        let (kind, key, bytes): (u8, u64, &[u8]) = match self {
            Self::Image(image) => (0, 0, &image[..]),
            Self::Put(key, value) => (1, *key, value),
            Self::Remove(key) => (2, *key, &[]),
        };
        let len = u16::try_from(bytes.len()).expect("at most a page");
        into.push(kind);
        into.extend([page, key].map(u64::to_le_bytes).as_flattened());
        into.extend(len.to_le_bytes());
        into.extend(bytes);
    }

    /// Reads the next change of a record.
    fn read(rest: &mut &[u8]) -> Option<(u64, Self)> {
        let kind = take(rest, 1)?[0];
        let (page, key) = (number(rest)?, number(rest)?);
        let len = u16::from_le_bytes(take(rest, 2)?.try_into().ok()?);
        let bytes = take(rest, len.into())?;
        let change = match kind {
            0 => Self::Image(bytes.into()),
            1 => Self::Put(key, bytes.to_vec()),
            2 => Self::Remove(key),
            _ => return None,
        };
        Some((page, change))
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?))
}

/// A record: what it changes, page by page.
pub(crate) type Record = Vec<(u64, Change)>;

/// Length, checksum and LSN before each record.
const HEADER: usize = 16;

fn frame(lsn: u64, record: &Record, into: &mut Vec<u8>) {
    let begin = into.len();
    into.extend([0; HEADER]);
    for (page, change) in record {
        change.write(*page, into);
    }
    let len = u32::try_from(into.len() - begin).expect("a record changes few pages");
    into[begin..begin + 4].copy_from_slice(&len.to_le_bytes());
    into[begin + 8..begin + HEADER].copy_from_slice(&lsn.to_le_bytes());
    let sum = crc32fast::hash(&into[begin + 8..]);
    into[begin + 4..begin + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Reads the next record, if it has this LSN and was written whole.
fn unframe(rest: &mut &[u8], lsn: u64) -> Option<Record> {
    let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let (len, sum) = (usize::try_from(word(0)?).ok()?, word(4)?);
    let whole = rest.get(..len).filter(|whole| whole.len() >= HEADER)?;
    let mut body = &whole[8..];
    if crc32fast::hash(body) != sum || number(&mut body)? != lsn {
        return None;
    }
    let mut record = Record::new();
    while !body.is_empty() {
        record.push(Change::read(&mut body)?);
    }
    *rest = &rest[len..];
    Some(record)
}

/// Appends to a segment and makes it durable: a test puts a slow and forgetful disk between.
pub(crate) type Append = fn(&mut File, &[u8]) -> io::Result<()>;

/// Appends to a file and makes it durable.
pub(crate) fn append_and_sync(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.sync_data()
}

#[derive(Debug)]
pub(crate) struct Log {
    dir: PathBuf,
    append: Append,
    tail: Mutex<Tail>,
    written: Condvar,
    /// The last record that is durable.
    durable: AtomicU64,
}

#[derive(Debug)]
struct Tail {
    /// LSN of the next record.
    next: u64,
    /// LSN from which recovery would begin after the checkpoint that began last.
    redo: u64,
    /// Records that no thread has begun to write.
    pending: Vec<u8>,
    /// The segment; a thread that writes has it.
    segment: Option<File>,
    /// The error after which nothing is durable.
    failed: Option<io::ErrorKind>,
}

impl Log {
    /// Begins a log at a record, in a segment of its own.
    pub(crate) fn begin(dir: &Path, next: u64, append: Append) -> io::Result<Self> {
        let tail = Tail {
            next,
            redo: next,
            pending: Vec::new(),
            segment: Some(create_segment(dir, next)?),
            failed: None,
        };
        Ok(Self {
            dir: dir.to_path_buf(),
            append,
            tail: Mutex::new(tail),
            written: Condvar::new(),
            durable: AtomicU64::new(next - 1),
        })
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record; returns its LSN. `make` is told the LSN, and the one below which a page
    /// has to be logged whole; it stamps the pages before a checkpoint can begin.
    pub(crate) fn append(&self, make: impl FnOnce(u64, u64) -> Record) -> u64 {
        let mut tail = self.tail();
        let lsn = tail.next;
        let record = make(lsn, tail.redo);
        frame(lsn, &record, &mut tail.pending);
        tail.next += 1;
        lsn
    }

    /// Begins a new segment for a checkpoint; returns its first LSN.
    pub(crate) fn switch(&self) -> io::Result<u64> {
        let mut tail = self.tail();
        let mut segment = loop {
            match (tail.failed, tail.segment.take()) {
                (Some(kind), _) => return Err(kind.into()),
                (None, Some(segment)) => break segment,
                (None, None) => tail = self.wait(tail),
            }
        };
        // If this fails, pages are logged whole once more than they need to be.
        tail.redo = tail.next;
        let (bytes, next) = (std::mem::take(&mut tail.pending), tail.next);
        drop(tail);
        let appended = (self.append)(&mut segment, &bytes);
        let created = match &appended {
            Ok(()) => create_segment(&self.dir, next),
            Err(error) => Err(error.kind().into()),
        };
        let mut tail = self.tail();
        match appended {
            Ok(()) => self.durable.store(next - 1, Ordering::Release),
            Err(error) => tail.failed = Some(error.kind()),
        }
        let (segment, begun) = match created {
            Ok(created) => (created, Ok(next)),
            Err(error) => (segment, Err(error)),
        };
        tail.segment = Some(segment);
        self.written.notify_all();
        begun
    }

    /// Refuses all that follows: the data file may have lost pages that counted as durable, and
    /// only a recovery from this log brings them back.
    pub(crate) fn fail(&self, kind: io::ErrorKind) {
        self.tail().failed = Some(kind);
        self.written.notify_all();
    }

    fn wait<'t>(&self, tail: MutexGuard<'t, Tail>) -> MutexGuard<'t, Tail> {
        let waited = self.written.wait(tail);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the segments before the one that begins at `lsn`, oldest first. After an error all
    /// are kept.
    pub(crate) fn remove_before(&self, lsn: u64) -> io::Result<()> {
        if let Some(kind) = self.tail().failed {
            return Err(kind.into());
        }
        for (first, path) in segments(&self.dir)? {
            if first < lsn {
                fs::remove_file(path)?;
            }
        }
        sync_dir(&self.dir)
    }
}

impl WriteGate for Log {
    fn durable_lsn(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    fn flush(&self, lsn: u64) -> io::Result<()> {
        let mut tail = self.tail();
        loop {
            if let Some(kind) = tail.failed {
                return Err(kind.into());
            }
            if self.durable.load(Ordering::Acquire) >= lsn {
                return Ok(());
            }
            let Some(mut segment) = tail.segment.take() else {
                tail = self.wait(tail);
                continue;
            };
            let (bytes, last) = (std::mem::take(&mut tail.pending), tail.next - 1);
            drop(tail);
            let outcome = (self.append)(&mut segment, &bytes);
            tail = self.tail();
            tail.segment = Some(segment);
            match outcome {
                Ok(()) => self.durable.store(last, Ordering::Release),
                Err(error) => tail.failed = Some(error.kind()),
            }
            self.written.notify_all();
        }
    }
}

/// Creates an empty segment, also in the place of one that never got a whole record.
fn create_segment(dir: &Path, first: u64) -> io::Result<File> {
    let path = dir.join(format!("log.{first:020}"));
    let file = File::create(&path)?;
    match sync_dir(dir) {
        Ok(()) => Ok(file),
        Err(error) => {
            // The records that it is named for may go elsewhere.
            fs::remove_file(path)?;
            Err(error)
        }
    }
}

pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Returns the segments with their first LSNs, oldest first.
pub(crate) fn segments(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let first = name.and_then(|name| name.strip_prefix("log.")?.parse().ok());
        found.extend(first.map(|first| (first, path)));
    }
    found.sort();
    Ok(found)
}

/// Calls `visit` with each record that is whole, in order, up to the first that is not; returns
/// the LSN after the last. All of them are durable then.
pub(crate) fn replay(dir: &Path, mut visit: impl FnMut(u64, Record)) -> io::Result<u64> {
    let segments = segments(dir)?;
    let mut next = segments.first().map_or(1, |(first, _)| *first);
    sync_dir(dir)?;
    for (first, path) in segments {
        let bytes = fs::read(&path)?;
        // What another process wrote may be in the system's memory alone, where it counts as
        // durable if a sync has failed: written again, it is synced.
        let mut file = File::options().write(true).open(path)?;
        append_and_sync(&mut file, &bytes)?;
        match first {
            first if first == next => {}
            // Created for records that went elsewhere.
            _ if bytes.is_empty() => continue,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        let mut rest = &bytes[..];
        while let Some(record) = unframe(&mut rest, next) {
            visit(next, record);
            next += 1;
        }
    }
    Ok(next)
}
