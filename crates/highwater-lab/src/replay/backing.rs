//! The sparse file behind a tenant, laid out page by page on first touch.
//!
//! Invariant: a page of the file is a hole (its first word is zero) or holds the contents of one
//! version of that page; the oracle of versions knows which.
//!
//! Pages are laid out before the run (`layout`), or else the first read of a page finds a hole,
//! writes version 0 into the file, and reads it back: the cache only gets bytes that came out of
//! the file. One thread at a time reads a page into the cache, so the layout needs no lock of its
//! own.
//!
//! Pages go past the kernel's page cache (`O_DIRECT`) where the file system has that, so that the
//! capacity is all the memory that the run's pages use; else, and on request, through it.
//!
//! Failure: an I/O error goes to the cache unchanged. The first one is kept, with the page and the
//! operation, so that the report can say more than an error number.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use highwater::lab::memmap::kernel_cached;
use highwater::lab::sync::StatCell;
use highwater::units::{Bytes, FilePage, PAGE_BYTES};
use highwater::{Access, Backing, FileBacking};

use super::config::DataIo;
use super::content::{PageStamp, is_hole};
use crate::trace::PAGE_LIMIT;

/// The data file of one tenant.
#[derive(Debug)]
pub(super) struct TenantFile {
    file: FileBacking,
    /// Why it is buffered although it was to be direct.
    refusal: Option<String>,
    seed: u64,
    tenant: u32,
    laid_out: StatCell,
    first_fault: OnceLock<Fault>,
}

/// The first I/O error of a file.
#[derive(Debug)]
pub(super) struct Fault {
    /// The operation.
    pub(super) doing: Doing,
    /// The page.
    pub(super) page: u64,
    /// The error's kind.
    pub(super) kind: io::ErrorKind,
    /// The error's text.
    pub(super) message: String,
}

/// An operation on a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Reading a page.
    Read,
    /// Writing the first version of a page.
    LayOut,
    /// Writing a dirty page.
    WriteBack,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = match self.doing {
            Doing::Read => "reading",
            Doing::LayOut => "laying out",
            Doing::WriteBack => "writing back",
        };
        write!(f, "{doing} page {}: {}", self.page, self.message)?;
        match self.kind {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                write!(
                    f,
                    "; free space there or name another directory with `--dir`"
                )
            }
            _ => Ok(()),
        }
    }
}

impl TenantFile {
    /// Extends `file`, which is empty, to the longest length that the file system allows, without
    /// using space.
    ///
    /// # Errors
    ///
    /// When the file cannot hold a single page.
    pub(super) fn new(file: File, io: DataIo, seed: u64, tenant: u32) -> io::Result<Self> {
        stretch(&file)?;
        let direct = match io {
            // It has no name any more, except this one.
            DataIo::Direct => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                Some(FileBacking::open_direct(path, Access::ReadWrite))
            }
            DataIo::Buffered => None,
        };
        let (file, refusal) = match direct {
            Some(Ok(direct)) => (direct, None),
            Some(Err(error)) => (FileBacking::new(file)?, Some(error.to_string())),
            None => (FileBacking::new(file)?, None),
        };
        Ok(Self {
            file,
            refusal,
            seed,
            tenant,
            laid_out: StatCell::new(),
            first_fault: OnceLock::new(),
        })
    }

    /// Returns the page's contents at `version`.
    #[must_use]
    pub(super) fn stamp(&self, page: u64, version: u32) -> PageStamp {
        PageStamp {
            seed: self.seed,
            tenant: self.tenant,
            page,
            version,
        }
    }

    /// Returns the number of pages laid out so far: those that requests touched, and holes beside
    /// them that were read ahead.
    #[must_use]
    pub(super) fn laid_out(&self) -> u64 {
        self.laid_out.get()
    }

    /// Returns the way of its pages.
    #[must_use]
    pub(super) fn io(&self) -> DataIo {
        if self.file.is_direct() {
            DataIo::Direct
        } else {
            DataIo::Buffered
        }
    }

    /// Returns why the file is buffered although it was to be direct.
    #[must_use]
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Returns the open file.
    pub(super) fn file(&self) -> &File {
        self.file.file_of(FilePage(0))
    }

    /// Returns the number of pages that fit.
    pub(super) fn nr_pages(&self) -> u64 {
        self.file.len() / PAGE_BYTES
    }

    /// Counts a page that was laid out before the run.
    pub(super) fn note_laid_out(&self) {
        self.laid_out.add(1);
    }

    /// Returns how many bytes of the file the kernel caches; `None` if it does not tell.
    #[must_use]
    pub(super) fn kernel_cached(&self) -> Option<Bytes> {
        kernel_cached(self.file()).ok()
    }

    /// Returns the first I/O error, if there was one.
    #[must_use]
    pub(super) fn first_fault(&self) -> Option<&Fault> {
        self.first_fault.get()
    }

    /// Reads a page straight from the file; a hole reads as zeros.
    ///
    /// # Errors
    ///
    /// When reading fails.
    pub(super) fn read_raw(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_page(FilePage(page), buf)
    }

    fn write_raw(&self, page: u64, buf: &[u8]) -> io::Result<usize> {
        match self.file.write_page(FilePage(page), buf)? {
            written if written < buf.len() => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }

    fn lay_out(&self, page: u64, buf: &mut [u8]) -> io::Result<()> {
        self.stamp(page, 0).fill(buf);
        self.write_raw(page, buf)?;
        self.laid_out.add(1);
        Ok(())
    }

    fn keep_fault(&self, doing: Doing, page: u64, error: &io::Error) {
        // Keeps the first fault, which is more likely the cause.
        let _ = self.first_fault.set(Fault {
            doing,
            page,
            kind: error.kind(),
            message: error.to_string(),
        });
    }
}

impl Backing for TenantFile {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let fault = |doing| move |e: &io::Error| self.keep_fault(doing, page, e);
        let read = self.read_raw(page, buf).inspect_err(fault(Doing::Read))?;
        if read < buf.len() || !is_hole(buf) {
            return Ok(read);
        }
        self.lay_out(page, buf).inspect_err(fault(Doing::LayOut))?;
        buf.fill(0);
        self.read_raw(page, buf).inspect_err(fault(Doing::Read))
    }

    /// Lays out holes among them too: pages that are read ahead are pages of the file, although no
    /// request may ever touch them.
    fn read_pages(&self, first: FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let fault = |e: &io::Error| self.keep_fault(Doing::Read, first.0, e);
        let read = self.file.read_pages(first, bufs).inspect_err(fault)?;
        let mut done = 0;
        for (page, buf) in (first.0..).map(FilePage).zip(bufs) {
            if read < done + buf.len() {
                return Ok(read);
            }
            if is_hole(buf) && self.read_page(page, buf)? < buf.len() {
                return Ok(done);
            }
            done += buf.len();
        }
        Ok(done)
    }

    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> io::Result<usize> {
        self.write_raw(page, buf)
            .inspect_err(|e| self.keep_fault(Doing::WriteBack, page, e))
    }

    /// Does nothing: the file is unlinked and does not outlive the run, so durability is of no use,
    /// and forcing a footprint of hundreds of MiB to the disk would cost seconds. A page is in the
    /// file, for every reader, when its write returns.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Extends the file to the greatest length in pages that its file system takes and a trace can ask
/// for, by bisection: at most 46 calls, none of which uses space.
fn stretch(file: &File) -> io::Result<()> {
    let set = |pages: u64| file.set_len(pages * PAGE_BYTES);
    set(1)?;
    if set(PAGE_LIMIT).is_ok() {
        return Ok(());
    }
    let (mut fits, mut refused) = (1, PAGE_LIMIT);
    while refused - fits > 1 {
        let middle = fits + (refused - fits) / 2;
        match set(middle) {
            Ok(()) => fits = middle,
            Err(_) => refused = middle,
        }
    }
    set(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater::units::PAGE_SIZE;

    fn tenant_file() -> TenantFile {
        tenant_file_by(DataIo::Buffered)
    }

    fn tenant_file_by(io: DataIo) -> TenantFile {
        TenantFile::new(tempfile::tempfile().unwrap(), io, 5, 1).unwrap()
    }

    /// Goal: a read returns bytes that came out of the file. Method: read a page twice, change the
    /// file in between, and read pages at both ends.
    #[test]
    fn pages_are_laid_out_once_and_then_read() {
        for io in [DataIo::Direct, DataIo::Buffered] {
            lays_out_once(&tenant_file_by(io));
        }
    }

    fn lays_out_once(file: &TenantFile) {
        let mut page = vec![0; PAGE_SIZE];
        for number in [0, 17, file.nr_pages() - 1] {
            assert_eq!(
                file.read_page(FilePage(number), &mut page).unwrap(),
                PAGE_SIZE
            );
            assert_eq!(file.stamp(number, 0).verify(&page), Ok(()));
        }
        file.stamp(17, 4).fill(&mut page);
        assert_eq!(file.write_page(FilePage(17), &page).unwrap(), PAGE_SIZE);
        page.fill(0);
        file.read_page(FilePage(17), &mut page).unwrap();
        assert_eq!(file.stamp(17, 4).verify(&page), Ok(()));
        assert_eq!(file.laid_out(), 3);
        assert!(file.first_fault().is_none());
    }

    #[test]
    fn the_file_is_long_and_uses_no_space() {
        use std::os::unix::fs::MetadataExt;
        let file = tenant_file();
        assert!(file.nr_pages() >= 1 << 20, "{} pages", file.nr_pages());
        let metadata = file.file().metadata().unwrap();
        assert_eq!(metadata.len(), file.nr_pages() * PAGE_BYTES);
        assert_eq!(metadata.blocks(), 0);
    }

    #[test]
    fn the_first_fault_is_kept_with_its_page() {
        let file = tenant_file();
        // Reads zeros, a hole, and refuses the write that lays it out.
        let hole = tempfile::NamedTempFile::new().unwrap();
        hole.as_file().set_len(64 * PAGE_BYTES).unwrap();
        let full = TenantFile {
            file: FileBacking::new(File::open(hole.path()).unwrap()).unwrap(),
            ..tenant_file()
        };
        let mut page = vec![0; PAGE_SIZE];
        full.read_page(FilePage(3), &mut page).unwrap_err();
        full.write_page(FilePage(4), &page).unwrap_err();
        let fault = full.first_fault().unwrap();
        assert_eq!((fault.doing, fault.page), (Doing::LayOut, 3));
        let text = fault.to_string();
        assert!(text.starts_with("laying out page 3: "), "{text}");
        assert!(!text.contains("`--dir`"), "{text}");
        let on_full_disk = Fault {
            doing: fault.doing,
            page: fault.page,
            kind: io::ErrorKind::StorageFull,
            message: fault.message.clone(),
        };
        let text = on_full_disk.to_string();
        assert!(text.ends_with("`--dir`"), "{text}");
        assert!(file.first_fault().is_none());
    }
}
