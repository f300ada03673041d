//! Where pages come from and go to: a file, or whatever an embedder or a test puts in its place.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::units::{PAGE_BYTES, PAGE_SIZE};

/// Storage of one file's pages. Called from many threads at once, with no lock held but, for pages
/// of writable files, the page's own latch.
pub trait Backing: Send + Sync + fmt::Debug {
    /// Length in bytes, fixed while the file is open.
    fn len(&self) -> u64;

    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads a page into `buf`, from its start; returns how many bytes there were. Fewer than the
    /// page has ([`page_len`](Self::page_len)) is an error to the cache.
    ///
    /// # Errors
    ///
    /// Whatever the storage says; the page is then not cached. A panic reaches who wanted the page.
    fn read_page(&self, page: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes a page; returns how many bytes were taken. Fewer than given is an error to the cache.
    ///
    /// # Errors
    ///
    /// Whatever the storage says; the page then stays dirty. A panic counts as an error: the write may
    /// be on behalf of somebody who never heard of this file.
    fn write_page(&self, page: u64, buf: &[u8]) -> io::Result<usize>;

    /// Makes everything written durable.
    ///
    /// # Errors
    ///
    /// Whatever the storage says.
    fn sync(&self) -> io::Result<()>;

    /// Number of pages, the last of which may be partial.
    fn pages(&self) -> u64 {
        self.len().div_ceil(PAGE_BYTES)
    }

    /// Bytes in a page: 4,096, or less in the last one.
    fn page_len(&self, page: u64) -> usize {
        let rest = self.len().saturating_sub(page.saturating_mul(PAGE_BYTES));
        usize::try_from(rest).unwrap_or(PAGE_SIZE).min(PAGE_SIZE)
    }
}

/// A file of the operating system.
#[derive(Debug)]
pub struct FileBacking {
    file: File,
    len: u64,
}

impl FileBacking {
    /// Takes an open file, with the length that it has now.
    ///
    /// # Errors
    ///
    /// When the system does not tell the length.
    pub fn new(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file, len })
    }
}

/// Repeats a read or write at growing offsets until `len` bytes are done or nothing moves. A signal
/// that interrupts is no reason to stop.
fn complete(len: usize, mut step: impl FnMut(usize) -> io::Result<usize>) -> io::Result<usize> {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl Backing for FileBacking {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_page(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        let offset = page * PAGE_BYTES;
        complete(buf.len(), |done| {
            self.file.read_at(&mut buf[done..], offset + done as u64)
        })
    }

    fn write_page(&self, page: u64, buf: &[u8]) -> io::Result<usize> {
        let offset = page * PAGE_BYTES;
        complete(buf.len(), |done| {
            self.file.write_at(&buf[done..], offset + done as u64)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
