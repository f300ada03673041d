//! Where pages come from and go to: a file, or whatever an embedder or a test puts in its place.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;

use crate::memmap::{read_vectored_at, write_vectored_at};
use crate::units::{PAGE_BYTES, PAGE_SIZE};

/// Storage of one file's pages. Called from many threads at once, with no lock held but, for pages
/// of writable files, the latches of the pages that it is about.
pub trait Backing: Send + Sync + fmt::Debug {
    /// Length in bytes, fixed while the file is open.
    fn len(&self) -> u64;

    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads a page into `buf`, from its start; returns how many bytes there were. Fewer or more
    /// than the page has ([`page_len`](Self::page_len)) is an error to the cache. `buf` is all
    /// zeros: what is not written stays so, whatever is returned.
    ///
    /// # Errors
    ///
    /// Whatever the storage says; the page is then not cached. A panic reaches who wanted the page.
    fn read_page(&self, page: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Reads neighbouring pages from `first` on, each into a buffer of as many bytes as the page
    /// has ([`page_len`](Self::page_len)); returns how many bytes there were in all, without a gap
    /// from the start. Fewer than asked for is an error only to who wants a page that is not whole;
    /// more is an error to all. The buffers are all zeros, as for [`read_page`](Self::read_page).
    ///
    /// # Errors
    ///
    /// When nothing could be read of the first page; as [`read_page`](Self::read_page).
    fn read_pages(&self, first: u64, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let mut done = 0;
        for (page, buf) in (first..).zip(bufs) {
            let want = buf.len();
            match self.read_page(page, buf).and_then(|got| at_most(want, got)) {
                Ok(got) if got == want => done += got,
                Ok(got) => return Ok(done + got),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes a page; returns how many bytes were taken. Fewer or more than given is an error to
    /// the cache.
    ///
    /// # Errors
    ///
    /// Whatever the storage says; the page then stays dirty. A panic counts as an error: the write
    /// may be on behalf of somebody who never heard of this file.
    fn write_page(&self, page: u64, buf: &[u8]) -> io::Result<usize>;

    /// Writes neighbouring pages from `first` on, of each of which `bufs` has as many bytes as the
    /// page has ([`page_len`](Self::page_len)); returns how many bytes were taken in all, without a
    /// gap from the start. Whatever was not taken whole the cache writes again, page by page, which
    /// says what became of each; all of it, where more are said to be taken than were given.
    ///
    /// # Errors
    ///
    /// When nothing was taken of the first page; as [`write_page`](Self::write_page).
    fn write_pages(&self, first: u64, bufs: &[&[u8]]) -> io::Result<usize> {
        let mut done = 0;
        for (page, buf) in (first..).zip(bufs) {
            let want = buf.len();
            match self
                .write_page(page, buf)
                .and_then(|got| at_most(want, got))
            {
                Ok(got) if got == want => done += got,
                Ok(got) => return Ok(done + got),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

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

/// What was moved of a page. More than it has would count for its neighbours, which were not moved.
fn at_most(want: usize, got: usize) -> io::Result<usize> {
    if got <= want {
        return Ok(got);
    }
    Err(io::Error::other(format!(
        "the storage says that it moved {got} of {want} bytes"
    )))
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

    fn read_pages(&self, first: u64, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let offset = first * PAGE_BYTES;
        let mut slices: Vec<IoSliceMut<'_>> =
            bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        let (mut left, mut done) = (&mut slices[..], 0);
        while !left.is_empty() {
            match read_vectored_at(&self.file, left, offset + done as u64) {
                Ok(0) => break,
                Ok(count) => {
                    done += count;
                    IoSliceMut::advance_slices(&mut left, count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn write_page(&self, page: u64, buf: &[u8]) -> io::Result<usize> {
        let offset = page * PAGE_BYTES;
        complete(buf.len(), |done| {
            self.file.write_at(&buf[done..], offset + done as u64)
        })
    }

    fn write_pages(&self, first: u64, bufs: &[&[u8]]) -> io::Result<usize> {
        let offset = first * PAGE_BYTES;
        let mut slices: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
        let (mut left, mut done) = (&mut slices[..], 0);
        while !left.is_empty() {
            match write_vectored_at(&self.file, left, offset + done as u64) {
                Ok(0) => break,
                Ok(count) => {
                    done += count;
                    IoSlice::advance_slices(&mut left, count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
