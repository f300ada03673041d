//! System files as storage of pages: through the kernel's page cache, or past it (`O_DIRECT`).
//!
//! A direct file has two descriptors. Whole pages go through the one opened with `O_DIRECT`, from
//! and to frames, which are aligned to 4 KiB. A partial last page goes through a second one, by way
//! of the kernel's cache: direct I/O moves whole blocks, so that a direct write of that page would
//! write beyond the file's end, and truncating afterwards would show other readers of the file a
//! wrong length, for ever after a crash. The kernel is told not to read around that page, and to
//! drop it again.
//!
//! Invariant: a request of a direct file starts at a multiple of 4 KiB and is a multiple of 4 KiB
//! long, as pages are, from a buffer aligned to 4 KiB, or is for the partial last page alone. So
//! nothing is written beyond the end, and no page goes both ways.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::aligned::AlignedBytes;
use super::backing::{Backing, order_of_size, page_len};
use super::identity::{FileIdentity, check_flags, len_of};
use super::key::Access;
use crate::memmap::{
    Advice, DirectAlign, advise, direct_align, read_vectored_at, write_vectored_at,
};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Bytes, FilePage, Order, PAGE_BYTES, PAGE_SIZE};

/// A system file.
#[derive(Debug)]
pub struct FileBacking {
    file: File,
    /// Length in bytes. Written by: [`set_len`](Backing::set_len), one thread at a time. Read by:
    /// any thread. Publishes: that a resize has begun.
    len: AtomicU64,
    identity: FileIdentity,
    order: Order,
    route: Route,
    /// The path by which it was opened; empty if it is not known.
    name: Box<str>,
}

/// The way of pages to and from storage.
#[derive(Debug)]
enum Route {
    /// Through the kernel's page cache.
    Buffered,
    /// Past it, except for a partial last page: the same file, buffered.
    Direct { tail: File },
}

/// A file without direct I/O.
#[derive(Debug, Error)]
enum NotDirect {
    #[error("its file system refuses O_DIRECT ({0})")]
    Refused(io::Error),
    #[error("its file system has no direct I/O for it")]
    Absent,
    #[error(
        "direct I/O on it is aligned to {} bytes in memory and {} in the file, and pages are \
         aligned to {PAGE_SIZE}", .0.memory, .0.offset
    )]
    Alignment(DirectAlign),
}

impl From<NotDirect> for io::Error {
    fn from(reason: NotDirect) -> Self {
        Self::new(io::ErrorKind::Unsupported, reason)
    }
}

/// The greatest offset of the system.
const OFFSET_MAX: u64 = i64::MAX.cast_unsigned();

/// Direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    Read,
    Write,
}

impl FileBacking {
    /// Wraps an open file, or block device, of the current length; it changes only through the
    /// result. Pages go through the kernel's page cache.
    ///
    /// # Errors
    ///
    /// When the system does not return the length. [`InvalidInput`](io::ErrorKind::InvalidInput)
    /// for a directory, a pipe or another kind of file, and for one that was opened to append
    /// (`O_APPEND`: the system would write each page at the end) or with `O_DIRECT` (use
    /// [`open_direct`](Self::open_direct)).
    pub fn new(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        check_flags(&file, libc::O_APPEND | libc::O_DIRECT)?;
        Ok(Self {
            len: AtomicU64::new(len_of(&file, &metadata)?),
            file,
            identity: FileIdentity::of(&metadata),
            order: Order::ZERO,
            route: Route::Buffered,
            name: "".into(),
        })
    }

    /// Opens a file whose pages go past the kernel's page cache (`O_DIRECT`), except a partial last
    /// one: for [`Manager::open_backing`](crate::Manager::open_backing) under a wrapper, and for
    /// [`Builder::swap_on`](crate::Builder::swap_on). Its length is the current one, and changes
    /// only through the result.
    ///
    /// # Cost
    ///
    /// Buffers of whole pages that are aligned to 4 KiB, as frames are, are read and written in
    /// place, others through a copy.
    ///
    /// # Errors
    ///
    /// Any error of the system; [`Unsupported`](io::ErrorKind::Unsupported), with the reason, when
    /// the file system has no direct I/O or aligns it to more than 4 KiB.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use highwater::{Access, FileBacking, Manager};
    ///
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// let hw = Manager::builder().build()?;
    /// let storage = match FileBacking::open_direct(source.path(), Access::ReadOnly) {
    ///     Ok(storage) => storage,
    ///     Err(_) => FileBacking::new(std::fs::File::open(source.path())?)?, // buffered
    /// };
    /// let file = hw.open_backing(Arc::new(storage), Access::ReadOnly)?;
    /// assert_eq!(file.pages(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_direct(path: impl AsRef<Path>, access: Access) -> io::Result<Self> {
        let path = path.as_ref();
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::ReadWrite);
        // First, so that only a refusal of the flag is one of direct I/O.
        let buffered = options.open(path)?;
        let file = options.custom_flags(libc::O_DIRECT).open(path);
        let file = file.map_err(refusal)?;
        let (there, here) = (buffered.metadata()?, file.metadata()?);
        if FileIdentity::of(&there) != FileIdentity::of(&here) {
            return Err(io::Error::other("it was replaced while it was opened"));
        }
        Ok(Self::over_direct(file, buffered)?.named(path))
    }

    /// Sets the size of a page: 4, 8, 16, 32 or 64 KiB, and 4 by default. A page is in one piece of
    /// memory, has one latch, and is read and written whole. To be opened by
    /// [`Manager::open_file`](crate::Manager::open_file).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for another size.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Access, Bytes, FileBacking, Manager};
    ///
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 40_000])?;
    /// let hw = Manager::builder().build()?;
    /// let storage = FileBacking::new(std::fs::File::open(source.path())?)?;
    /// let file = hw.open_file(storage.with_page_size(Bytes::kib(16))?, Access::ReadOnly)?;
    /// assert_eq!(file.pages(), 3);
    /// let map = hw.space(&hw.root()).map_file(&file, 0..3)?;
    /// assert_eq!(map.read(&hw.enter(), 1)?.len(), 16_384);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_page_size(mut self, size: Bytes) -> io::Result<Self> {
        let order = usize::try_from(size.0).ok().and_then(order_of_size);
        self.order = order.ok_or_else(|| {
            let text = format!("pages of {size}: expected 4, 8, 16, 32 or 64 KiB");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        Ok(self)
    }

    /// Returns the order of its pages.
    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// Returns the offset of a page in the file.
    pub(crate) fn offset_of(&self, page: FilePage) -> u64 {
        page.0 * self.order.size() as u64
    }

    fn page_len(&self, page: FilePage) -> usize {
        page_len(self.len(), self.order, page)
    }

    /// Checks the lengths of buffers: a wrapper may have pages of another size, and would read or
    /// write other parts of the file. A buffer to read into may reach behind the file's end.
    fn check_lens(
        &self,
        first: FilePage,
        lens: impl ExactSizeIterator<Item = usize>,
        transfer: Transfer,
    ) -> io::Result<()> {
        let size = self.order.size();
        if first.0.saturating_add(lens.len() as u64) > OFFSET_MAX / size as u64 {
            let text = format!("page {first}: a file has at most {OFFSET_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        for (page, len) in (first.0..).map(FilePage).zip(lens) {
            let want = self.page_len(page);
            let most = match (transfer, want) {
                // What is written behind the last page is the program's affair.
                (Transfer::Write, 0) if self.order == Order::ZERO => size,
                (Transfer::Write, want) => want,
                (Transfer::Read, _) => size,
            };
            if len < want || len > most {
                let text = format!(
                    "a buffer of {len} bytes for page {page}, which has {want} of {size}: the \
                     storage and its wrapper must agree on `page_size` and `len`"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        }
        Ok(())
    }

    /// Returns the path that the system knows for the file, if any.
    pub(crate) fn path_of_system(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()
    }

    /// Checks that a file is open for writing.
    ///
    /// # Errors
    ///
    /// The system's, if it is not.
    pub(crate) fn check_writable(&self) -> io::Result<()> {
        self.file.write_at(&[], 0).map(drop)
    }

    /// Wraps a file opened with `O_DIRECT`, and the same file opened without.
    fn over_direct(file: File, buffered: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        check_flags(&file, libc::O_APPEND)?;
        let len = len_of(&file, &metadata)?;
        check_direct(&file, len)?;
        advise(&buffered, 0, 0, Advice::Random);
        Ok(Self {
            file,
            len: AtomicU64::new(len),
            identity: FileIdentity::of(&metadata),
            order: Order::ZERO,
            route: Route::Direct { tail: buffered },
            name: "".into(),
        })
    }

    /// Takes the system's length. The caller is alone with the file.
    ///
    /// # Errors
    ///
    /// When the system does not return it.
    pub(crate) fn renew_len(&self) -> io::Result<()> {
        let len = len_of(&self.file, &self.file.metadata()?)?;
        // Relaxed: the file is not shared yet.
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }

    /// Notes the path by which it was opened.
    pub(crate) fn named(mut self, path: &Path) -> Self {
        self.name = path.to_string_lossy().into();
        self
    }

    /// Returns the path by which it was opened; empty if it is not known.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file's identity, which all its paths share.
    pub(crate) fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Returns whether whole pages go past the kernel's page cache.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.route, Route::Direct { .. })
    }

    /// Returns the open file through which a page is read and written, at the page's offset. Runs
    /// of pages with the same file may be one request.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn file_of(&self, page: FilePage) -> &File {
        self.tail_of(page).unwrap_or(&self.file)
    }

    /// Returns the buffered file of a page that direct I/O can not move.
    fn tail_of(&self, page: FilePage) -> Option<&File> {
        match &self.route {
            Route::Direct { tail } if self.page_len(page) < self.order.size() => Some(tail),
            _ => None,
        }
    }

    /// Returns how many of `count` pages from `first` on can be moved by one request.
    fn run_len(&self, first: FilePage, count: usize) -> usize {
        let Some(rest) = count.checked_sub(1) else {
            return 0;
        };
        let last = FilePage(first.0 + rest as u64);
        count - usize::from(self.tail_of(last).is_some())
    }

    /// Returns whether the buffer of a whole page has to be copied, because it is not aligned as
    /// direct I/O needs it.
    fn needs_copy(&self, buf: &[u8]) -> bool {
        let is_whole = buf.len() == self.order.size();
        self.is_direct() && is_whole && !buf.as_ptr().addr().is_multiple_of(PAGE_SIZE)
    }

    /// Advises the kernel about its copy, if pages go through it.
    pub(super) fn advise(&self, advice: Advice) {
        if !self.is_direct() {
            advise(&self.file, 0, 0, advice);
        }
    }

    /// Has the kernel drop its copy of a partial last page.
    fn drop_tail(&self) {
        let (len, size) = (self.len(), self.order.size() as u64);
        if let Route::Direct { tail } = &self.route
            && !len.is_multiple_of(size)
        {
            advise(tail, len - len % size, size, Advice::DontNeed);
        }
    }

    fn read_run(&self, first: FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let offset = self.offset_of(first);
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

    /// As [`read_run`](Self::read_run), by way of aligned memory.
    fn read_copied(&self, first: FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let aligned = |buf: &&mut [u8]| AlignedBytes::zeroed(buf.len());
        let mut copies: Vec<_> = bufs.iter().map(aligned).collect();
        let mut aligned: Vec<_> = copies.iter_mut().map(|copy| &mut copy[..]).collect();
        let done = self.read_run(first, &mut aligned)?;
        for (buf, copy) in bufs.iter_mut().zip(&copies) {
            buf.copy_from_slice(copy);
        }
        Ok(done)
    }

    fn write_run(&self, first: FilePage, bufs: &[&[u8]]) -> io::Result<usize> {
        let offset = self.offset_of(first);
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

    /// As [`write_run`](Self::write_run), by way of aligned memory.
    fn write_copied(&self, first: FilePage, bufs: &[&[u8]]) -> io::Result<usize> {
        let copies: Vec<_> = bufs.iter().map(|buf| AlignedBytes::copy_of(buf)).collect();
        let aligned: Vec<_> = copies.iter().map(|copy| &copy[..]).collect();
        self.write_run(first, &aligned)
    }
}

/// Checks that a file opened with `O_DIRECT` can be read and written in pages.
fn check_direct(file: &File, len: u64) -> io::Result<()> {
    match direct_align(file) {
        Some(align) => Ok(suits_pages(align)?),
        // Not told: the first page shows it.
        None if len >= PAGE_BYTES => {
            let mut page = AlignedBytes::zeroed(PAGE_SIZE);
            file.read_at(&mut page, 0).map(drop).map_err(refusal)
        }
        None => Ok(()),
    }
}

fn suits_pages(align: DirectAlign) -> Result<(), NotDirect> {
    let divides_page = |align: u32| PAGE_BYTES.is_multiple_of(u64::from(align)) && align > 0;
    match align {
        DirectAlign {
            memory: 0,
            offset: 0,
        } => Err(NotDirect::Absent),
        align if divides_page(align.memory) && divides_page(align.offset) => Ok(()),
        align => Err(NotDirect::Alignment(align)),
    }
}

/// Turns the error of a file system that knows no direct I/O into one that says so.
fn refusal(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP) => NotDirect::Refused(error).into(),
        _ => error,
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
        // Acquire. Pairs with: the store in `set_len`.
        self.len.load(Ordering::Acquire)
    }

    fn page_size(&self) -> usize {
        self.order.size()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.check_lens(page, [buf.len()].into_iter(), Transfer::Read)?;
        if self.needs_copy(buf) {
            return self.read_copied(page, &mut [buf]);
        }
        let (file, offset) = (self.file_of(page), self.offset_of(page));
        let result = complete(buf.len(), |done| {
            file.read_at(&mut buf[done..], offset + done as u64)
        });
        if self.tail_of(page).is_some() {
            self.drop_tail();
        }
        result
    }

    fn read_pages(&self, first: FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        self.check_lens(first, bufs.iter().map(|buf| buf.len()), Transfer::Read)?;
        let (run, tail) = bufs.split_at_mut(self.run_len(first, bufs.len()));
        let want: usize = run.iter().map(|buf| buf.len()).sum();
        let mut done = match run.iter().any(|buf| self.needs_copy(buf)) {
            true => self.read_copied(first, run)?,
            false => self.read_run(first, run)?,
        };
        if let [tail] = tail
            && done == want
        {
            match self.read_page(FilePage(first.0 + run.len() as u64), tail) {
                Ok(count) => done += count,
                Err(error) if want == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(done)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.check_lens(page, [buf.len()].into_iter(), Transfer::Write)?;
        if self.needs_copy(buf) {
            return self.write_copied(page, &[buf]);
        }
        let (file, offset) = (self.file_of(page), self.offset_of(page));
        complete(buf.len(), |done| {
            file.write_at(&buf[done..], offset + done as u64)
        })
    }

    fn write_pages(&self, first: FilePage, bufs: &[&[u8]]) -> io::Result<usize> {
        self.check_lens(first, bufs.iter().map(|buf| buf.len()), Transfer::Write)?;
        let (run, tail) = bufs.split_at(self.run_len(first, bufs.len()));
        let want: usize = run.iter().map(|buf| buf.len()).sum();
        let mut done = match run.iter().any(|buf| self.needs_copy(buf)) {
            true => self.write_copied(first, run)?,
            false => self.write_run(first, run)?,
        };
        if let [tail] = tail
            && done == want
        {
            match self.write_page(FilePage(first.0 + run.len() as u64), tail) {
                Ok(count) => done += count,
                Err(error) if want == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(done)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        // Release. Pairs with: the load in `len`: a read that fails by the new length learns that
        // the file is being resized.
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        self.drop_tail();
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;

    use super::{DirectAlign, refusal, suits_pages};

    // Goal: only alignments that pages have are accepted, and the others say why.
    #[test]
    fn pages_suit_alignments_that_divide_them() {
        let text = |memory, offset| {
            let checked = suits_pages(DirectAlign { memory, offset });
            checked.map_err(|reason| reason.to_string())
        };
        for (memory, offset) in [(1, 512), (4, 512), (512, 4096), (4096, 4096)] {
            assert_eq!(text(memory, offset), Ok(()), "{memory}, {offset}");
        }
        let absent = text(0, 0).expect_err("the kernel says that there is none");
        assert!(absent.contains("no direct I/O"), "{absent}");
        for (memory, offset) in [(4, 65_536), (8192, 512), (4, 0), (4, 3000)] {
            let refused = text(memory, offset).expect_err("no page is aligned so");
            assert!(refused.contains(&offset.to_string()), "{refused}");
        }
    }

    // Goal: only errors about the flag are a lack of direct I/O.
    #[test]
    fn other_errors_stay_what_they_are() {
        let kind = |errno| refusal(io::Error::from_raw_os_error(errno)).kind();
        assert_eq!(kind(libc::EINVAL), io::ErrorKind::Unsupported);
        assert_eq!(
            kind(libc::EIO),
            io::Error::from_raw_os_error(libc::EIO).kind()
        );
        assert_eq!(kind(libc::ENOENT), io::ErrorKind::NotFound);
    }
}
