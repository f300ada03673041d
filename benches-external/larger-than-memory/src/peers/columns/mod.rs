//! The columns: ways to read and update pages that are on storage.

mod highwater_pages;
mod kernel;
mod stores;
mod vmcache;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use hdrhistogram::Histogram;

use super::workload::{Accesses, PageAccess, Writes};
use super::{COMMIT, PAGE};
use crate::Error;

/// Cache lines of a page that accesses touch: as many as a value of the stores has.
pub const LINES: usize = 62;
/// Bytes of a line.
const LINE: usize = 64;
/// Bytes of a value of the stores: with their headers, it fits into a page of theirs.
const VALUE: usize = LINES * LINE;

/// What a column reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Pages of a file.
    Pages,
    /// Values of a key-value store.
    Values,
}

/// A column of the table.
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    open: fn(&Config) -> Result<Box<dyn Paged>, Error>,
}

pub const COLUMNS: &[Column] = &[
    Column {
        name: "pread",
        kind: Kind::Pages,
        open: |config| kernel::Pread::open(config, kernel::Advice::Normal),
    },
    Column {
        name: "pread, random advice",
        kind: Kind::Pages,
        open: |config| kernel::Pread::open(config, kernel::Advice::Random),
    },
    Column {
        name: "mmap",
        kind: Kind::Pages,
        open: |config| kernel::Mmap::open(config, kernel::Advice::Normal),
    },
    Column {
        name: "mmap, random advice",
        kind: Kind::Pages,
        open: |config| kernel::Mmap::open(config, kernel::Advice::Random),
    },
    Column {
        name: "LMDB",
        kind: Kind::Values,
        open: stores::Lmdb::open,
    },
    Column {
        name: "redb",
        kind: Kind::Values,
        open: stores::Redb::open,
    },
    Column {
        name: "vmcache",
        kind: Kind::Pages,
        open: vmcache::Vmcache::open,
    },
    Column {
        name: "Highwater",
        kind: Kind::Pages,
        open: highwater_pages::Blocking::open,
    },
    Column {
        name: "Highwater, in flight",
        kind: Kind::Pages,
        open: highwater_pages::InFlight::open,
    },
];

/// What a column is opened with.
pub struct Config {
    dir: PathBuf,
    /// Bytes that the process may use.
    memory: u64,
    writes: Writes,
}

impl Config {
    /// Returns the bytes for a cache of the column's own. The rest is for its books, which grow
    /// with it, the program, its heap, and what the kernel needs for it.
    fn cache(&self) -> u64 {
        self.memory - (8 << 20) - self.memory / 32
    }

    fn pages(&self) -> PathBuf {
        self.dir.join("pages")
    }

    /// Returns a new log.
    fn log(&self) -> Result<File, Error> {
        Ok(File::create(self.dir.join("log"))?)
    }
}

/// Pages that are read and updated.
pub trait Paged {
    /// Returns the first word of a line of a page.
    fn read(&mut self, page: u64, line: usize) -> Result<u64, Error>;
    /// Changes the second word of a line of a page.
    fn update(&mut self, page: u64, line: usize, value: u64) -> Result<(), Error>;
    /// Makes the updates durable.
    fn commit(&mut self) -> Result<(), Error>;

    /// Makes accesses until the deadline; notes the latency of each, in nanoseconds.
    fn run(
        &mut self,
        accesses: &mut Accesses,
        deadline: Instant,
        latency: &mut Histogram<u64>,
    ) -> Result<(), Error> {
        let is_durable = accesses.writes() == Writes::Durably;
        let (mut begun, mut updates) = (Instant::now(), 0);
        while begun < deadline {
            let PageAccess {
                page,
                line,
                is_update,
            } = accesses.next();
            if is_update {
                self.update(page, line, updates)?;
                updates += 1;
                if is_durable && updates % COMMIT == 0 {
                    self.commit()?;
                }
            } else {
                assert_eq!(self.read(page, line)?, page, "page {page}");
            }
            let now = Instant::now();
            latency.saturating_record((now - begun).as_nanos() as u64);
            begun = now;
        }
        Ok(())
    }
}

/// Opens a column.
pub fn open(name: &str, dir: &Path, memory: u64, writes: Writes) -> Result<Box<dyn Paged>, Error> {
    let column = COLUMNS.iter().find(|column| column.name == name);
    let column = column.ok_or_else(|| format!("no column {name:?}"))?;
    let dir = dir.to_owned();
    (column.open)(&Config {
        dir,
        memory,
        writes,
    })
}

impl Column {
    /// Returns whether it can run here.
    pub fn is_here(&self) -> bool {
        self.name != "vmcache" || vmcache::is_here()
    }
}

/// Writes the data of all kinds of columns.
pub fn create_all(dir: &Path, pages: u64) -> Result<(), Error> {
    let mut file = File::create(dir.join("pages"))?;
    for page in 0..pages {
        let mut bytes = [0; PAGE];
        fill(page, &mut bytes);
        file.write_all(&bytes)?;
    }
    file.sync_all()?;
    if vmcache::is_here() {
        vmcache::create(dir, pages)?;
    }
    stores::create_lmdb(dir, pages)?;
    stores::create_redb(dir, pages)
}

/// Writes the number of a page at the beginning of each of its lines.
fn fill(page: u64, bytes: &mut [u8]) {
    for line in bytes.chunks_exact_mut(LINE) {
        line[..8].copy_from_slice(&page.to_ne_bytes());
    }
}

/// Returns the first word of a line.
fn word_of(bytes: &[u8], line: usize) -> u64 {
    let at = line * LINE;
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Changes the second word of a line.
fn change(bytes: &mut [u8], line: usize, value: u64) {
    let at = line * LINE + 8;
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

/// Has the kernel drop its cached pages of all files.
pub fn forget_cached(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir)? {
        let file = File::open(entry?.path())?;
        if file.metadata()?.is_dir() {
            continue;
        }
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}
