//! Storage of pages: a system file (module `system_file`), or an implementation by the embedder or
//! a test.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::units::{FilePage, Order, PAGE_SIZE};

/// Storage of one file's pages. Called from many threads concurrently, with no lock held except the
/// latches of the pages concerned, for writable files. Some are the manager's own: those of
/// asynchronous reads, and with [`Background::Thread`](crate::Background::Thread) those of
/// write-back and of readahead.
///
/// A page has [`page_size`](Self::page_size) bytes, 4,096 unless the storage says otherwise; a
/// partial last page ends with the file, and so does its buffer. The cache's buffers are frames,
/// aligned to 4 KiB as `O_DIRECT` needs them. A wrapper that copies pages should align its copies
/// likewise; [`FileBacking::open_direct`](super::FileBacking::open_direct) copies those that are
/// not.
#[expect(
    clippy::len_without_is_empty,
    reason = "the length of a file, not of a collection"
)]
pub trait Backing: Send + Sync + fmt::Debug {
    /// Length in bytes. It changes only by [`set_len`](Self::set_len).
    fn len(&self) -> u64;

    /// Size of a page in bytes: 4,096, 8,192, 16,384, 32,768 or 65,536. It never changes. A wrapper
    /// returns that of the storage which it wraps.
    fn page_size(&self) -> usize {
        PAGE_SIZE
    }

    /// Reads a page into `buf`, which has its length; returns the number of bytes read. Fewer or
    /// more is an error to the cache. `buf` is zeroed: bytes that are not written stay zero,
    /// whatever is returned.
    ///
    /// # Errors
    ///
    /// Any error of the storage; the page is then not cached. A panic propagates to the thread that
    /// wanted the page; in a thread of the manager it counts as an error.
    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize>;

    /// Reads neighbouring pages starting at `first`, each into a buffer of the page's length;
    /// returns the total number of bytes read, contiguous from the start. Fewer than requested is
    /// an error only for accesses to a page that is incomplete; more is an error for all. The
    /// buffers are zeroed, as for [`read_page`](Self::read_page).
    ///
    /// # Errors
    ///
    /// When nothing of the first page could be read; as [`read_page`](Self::read_page).
    fn read_pages(&self, first: FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let mut done = 0;
        for (page, buf) in (first.0..).map(FilePage).zip(bufs) {
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

    /// Writes a page; returns the number of bytes written. Fewer or more than given is an error to
    /// the cache.
    ///
    /// # Errors
    ///
    /// Any error of the storage; the page then stays dirty. A panic counts as an error, because the
    /// writing thread may be reclaiming for a request that has nothing to do with this file.
    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize>;

    /// Writes neighbouring pages starting at `first`, from buffers of the pages' lengths; returns
    /// the total number of bytes written, contiguous from the start. The cache writes pages that
    /// were not completely written again, one by one, which gives each its own result; if more
    /// bytes are reported than were given, it writes all of them again.
    ///
    /// # Errors
    ///
    /// When nothing of the first page was written; as [`write_page`](Self::write_page).
    fn write_pages(&self, first: FilePage, bufs: &[&[u8]]) -> io::Result<usize> {
        let mut done = 0;
        for (page, buf) in (first.0..).map(FilePage).zip(bufs) {
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

    /// Returns whether pages are sealed before they are written: then each write is of a copy,
    /// which [`seal`](Self::seal) has completed. The result never changes.
    fn seals(&self) -> bool {
        false
    }

    /// Completes the copy of a page that is about to be written, for example by a checksum in bytes
    /// that the program reserves for it. The cached page does not change. Called with the page's
    /// latch held, after the log that the page waits for, and only if [`seals`](Self::seals) is
    /// true; `copy` has the page's length. Not called for swap. A panic counts as an error of the
    /// write.
    ///
    /// A partial last page is sealed as it is, up to the file's end. A change of the length that
    /// begins or ends within a page does not seal it anew: keep the length a multiple of the page
    /// size.
    ///
    /// # Examples
    ///
    /// See [building an engine](crate::docs::engine#checksums).
    fn seal(&self, page: FilePage, copy: &mut [u8]) {
        let _ = (page, copy);
    }

    /// Checks a page that was read whole, before any thread sees it. `bytes` has the page's length.
    ///
    /// # Errors
    ///
    /// When the bytes are not what was sealed: the error is the read's, and the page is not cached.
    /// A panic propagates to the thread that wanted the page.
    ///
    /// # Examples
    ///
    /// See [building an engine](crate::docs::engine#checksums).
    fn verify(&self, page: FilePage, bytes: &[u8]) -> io::Result<()> {
        let _ = (page, bytes);
        Ok(())
    }

    /// Makes everything written durable.
    ///
    /// # Errors
    ///
    /// Any error of the storage.
    fn sync(&self) -> io::Result<()>;

    /// Changes the length ([`File::set_len`](crate::File::set_len)); new bytes are zero. From then
    /// on [`len`](Self::len) returns it. Pages before both ends may be read and written meanwhile,
    /// a page at an end may be read.
    ///
    /// # Errors
    ///
    /// Any error of the storage; its length and contents are unchanged then. By default
    /// [`Unsupported`](io::ErrorKind::Unsupported). A panic counts as an error.
    fn set_len(&self, len: u64) -> io::Result<()> {
        let _ = len;
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the length of this storage is fixed",
        ))
    }
}

/// The largest size of a page: 64 KiB.
const PAGE_ORDER_MAX: u8 = 4;

/// Returns the order of pages of `size` bytes, if they may have that size.
#[must_use]
pub fn order_of_size(size: usize) -> Option<Order> {
    let mut orders = (0..=PAGE_ORDER_MAX).filter_map(Order::new);
    orders.find(|order| order.size() == size)
}

/// Returns the number of pages in `len` bytes, the last of which may be partial.
#[must_use]
pub fn pages_in(len: u64, order: Order) -> u64 {
    len.div_ceil(order.size() as u64)
}

/// Returns the number of bytes in a page of a file of `len` bytes: less in a partial last one, and
/// none behind it.
pub(super) fn page_len(len: u64, order: Order, page: FilePage) -> usize {
    let size = order.size();
    let rest = len.saturating_sub(page.0.saturating_mul(size as u64));
    usize::try_from(rest).unwrap_or(size).min(size)
}

/// Checks the number of bytes moved for one page. An excess would count for its neighbours, which
/// were not moved.
fn at_most(want: usize, got: usize) -> io::Result<usize> {
    if got <= want {
        return Ok(got);
    }
    Err(io::Error::other(format!(
        "the storage says that it moved {got} of {want} bytes"
    )))
}

/// Calls storage to write, and turns a panic into an error. Reclaim writes on behalf of other
/// requests, with pages isolated from their lists: it has to return, and the page stays dirty.
pub(super) fn guarded<R>(write: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    catch_unwind(AssertUnwindSafe(write))
        .unwrap_or_else(|_| Err(io::Error::other("the storage panicked")))
}
