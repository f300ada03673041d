//! System files as storage of pages.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;

use super::backing::Backing;
use crate::memmap::{read_vectored_at, write_vectored_at};
use crate::units::{FilePage, PAGE_BYTES};

/// A system file.
#[derive(Debug)]
pub struct FileBacking {
    file: File,
    len: u64,
}

impl FileBacking {
    /// Wraps an open file; its length is fixed at the current one.
    ///
    /// # Errors
    ///
    /// When the system does not return the length.
    pub fn new(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file, len })
    }

    /// Returns the open file through which a page is read and written, at the page's offset. Runs
    /// of pages with the same file may be one request.
    pub(crate) fn file_of(&self, _page: FilePage) -> &File {
        &self.file
    }
}

/// Repeats a read or write at growing offsets until `len` bytes are done or nothing moves. Retries
/// when a signal interrupts it.
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

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let (file, offset) = (self.file_of(page), page.0 * PAGE_BYTES);
        complete(buf.len(), |done| {
            file.read_at(&mut buf[done..], offset + done as u64)
        })
    }

    fn read_pages(&self, first: FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let offset = first.0 * PAGE_BYTES;
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

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        let (file, offset) = (self.file_of(page), page.0 * PAGE_BYTES);
        complete(buf.len(), |done| {
            file.write_at(&buf[done..], offset + done as u64)
        })
    }

    fn write_pages(&self, first: FilePage, bufs: &[&[u8]]) -> io::Result<usize> {
        let offset = first.0 * PAGE_BYTES;
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
