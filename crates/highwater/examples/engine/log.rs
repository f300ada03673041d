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
    /// Its leaf has this value of a key, or none.
    Set(u64, Option<Vec<u8>>),
}

impl Change {
    pub(crate) fn apply(&self, page: &mut Page) {
        match self {
            Self::Image(image) => page.copy_from_slice(&image[..]),
            Self::Set(key, Some(value)) => node::put(page, *key, value),
            Self::Set(key, None) => node::remove(page, *key),
        }
    }

    fn write(&self, page: u64, into: &mut Vec<u8>) {
        let (kind, key, bytes): (u8, u64, &[u8]) = match self {
            Self::Image(image) => (0, 0, &image[..]),
            Self::Set(key, Some(value)) => (1, *key, value),
            Self::Set(key, None) => (2, *key, &[]),
        };
        let len = u16::try_from(bytes.len()).expect("at most a page");
        into.push(kind);
        into.extend([page, key].map(u64::to_le_bytes).as_flattened());
        into.extend(len.to_le_bytes());
        into.extend(bytes);
    }

    /// Reads the next change of a record.
    fn read(rest: &mut &[u8]) -> Option<(u64, Self)> {
        let [kind] = take(rest)?;
        let [page, key] = [take(rest)?, take(rest)?].map(u64::from_le_bytes);
        let len = u16::from_le_bytes(take(rest)?);
        let bytes = rest.split_off(..len.into())?;
        let change = match kind {
            0 => Self::Image(bytes.into()),
            1 => Self::Set(key, Some(bytes.to_vec())),
            2 => Self::Set(key, None),
            _ => return None,
        };
        Some((page, change))
    }
}

fn take<const LEN: usize>(rest: &mut &[u8]) -> Option<[u8; LEN]> {
    rest.split_off(..LEN)?.try_into().ok()
}

/// A record: what it changes, page by page.
pub(crate) type Record = Vec<(u64, Change)>;

/// Appends the record's length and checksum, both of what follows: its LSN and its changes.
fn frame(lsn: u64, record: Record, into: &mut Vec<u8>) {
    let mut body = lsn.to_le_bytes().to_vec();
    for (page, change) in record {
        change.write(page, &mut body);
    }
    let len = u32::try_from(body.len()).expect("a record changes few pages");
    let header = [len, crc32fast::hash(&body)].map(u32::to_le_bytes);
    into.extend(header.as_flattened());
    into.extend(body);
}

/// Reads the next record, if it has this LSN and was written whole.
fn unframe(rest: &mut &[u8], lsn: u64) -> Option<Record> {
    let [len, sum] = [take(rest)?, take(rest)?].map(u32::from_le_bytes);
    let mut body = rest.split_off(..usize::try_from(len).ok()?)?;
    if crc32fast::hash(body) != sum || u64::from_le_bytes(take(&mut body)?) != lsn {
        return None;
    }
    let mut record = Record::new();
    while !body.is_empty() {
        record.push(Change::read(&mut body)?);
    }
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

#[derive(Debug, Default)]
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

impl Tail {
    fn check(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }
}

impl Log {
    /// Begins a log at a record, in a segment of its own.
    pub(crate) fn begin(dir: &Path, next: u64, append: Append) -> io::Result<Self> {
        let tail = Tail {
            next,
            redo: next,
            segment: Some(create_segment(dir, next)?),
            ..Tail::default()
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
        frame(lsn, record, &mut tail.pending);
        tail.next += 1;
        lsn
    }

    /// Begins a new segment for a checkpoint; returns its first LSN.
    pub(crate) fn switch(&self) -> io::Result<u64> {
        self.write(None)
    }

    /// Writes what is pending, in turn with other threads, unless record `wanted` is durable by
    /// then. If none is wanted, what follows goes to a new segment. Returns the LSN that is next.
    fn write(&self, wanted: Option<u64>) -> io::Result<u64> {
        let is_durable = || wanted.is_some_and(|lsn| lsn <= self.durable_lsn());
        let is_busy = |it: &mut Tail| it.segment.is_none() && it.failed.is_none() && !is_durable();
        let waited = self.written.wait_while(self.tail(), is_busy);
        let mut tail = waited.unwrap_or_else(PoisonError::into_inner);
        tail.check()?;
        if is_durable() {
            return Ok(tail.next);
        }
        let mut segment = tail.segment.take().expect("no other thread writes");
        let (bytes, next) = (std::mem::take(&mut tail.pending), tail.next);
        if wanted.is_none() {
            // If this fails, pages are logged whole once more than they need to be.
            tail.redo = next;
        }
        drop(tail);
        let appended = (self.append)(&mut segment, &bytes);
        let mut switched = Ok(());
        if appended.is_ok() && wanted.is_none() {
            switched = create_segment(&self.dir, next).map(|new| segment = new);
        }
        let mut tail = self.tail();
        tail.segment = Some(segment);
        match &appended {
            Ok(()) => self.durable.store(next - 1, Ordering::Release),
            Err(error) => tail.failed = Some(error.kind()),
        }
        self.written.notify_all();
        appended.and(switched).map(|()| next)
    }

    /// Refuses all that follows: the data file may have lost pages that counted as durable, and
    /// only a recovery from this log brings them back.
    pub(crate) fn fail(&self, kind: io::ErrorKind) {
        self.tail().failed = Some(kind);
        self.written.notify_all();
    }

    /// Removes the segments before the one that begins at `lsn`, oldest first. After an error all
    /// are kept.
    pub(crate) fn remove_before(&self, lsn: u64) -> io::Result<()> {
        self.tail().check()?;
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
        self.write(Some(lsn)).map(|_| ())
    }
}

/// Creates an empty segment, also in the place of one that never got a whole record.
fn create_segment(dir: &Path, first: u64) -> io::Result<File> {
    let path = dir.join(format!("log.{first:020}"));
    let file = File::create(&path)?;
    sync_dir(dir).or_else(|error| {
        // The records that it is named for may go elsewhere.
        fs::remove_file(path)?;
        Err(error)
    })?;
    Ok(file)
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
        // An empty one may be named for records that went elsewhere.
        if first != next && !bytes.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut rest = &bytes[..];
        while let Some(record) = unframe(&mut rest, next) {
            visit(next, record);
            next += 1;
        }
    }
    Ok(next)
}
