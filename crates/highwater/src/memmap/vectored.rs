//! Vectored file I/O at an offset: `preadv` and `pwritev` of many frames by one system call.
//!
//! The standard library has `readv` and `writev` at a file's position, and `pread` and `pwrite` of
//! one buffer; frames of neighbouring pages are not adjacent, and all threads that use a file share
//! its position.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

/// A write of neighbouring pages.
pub(crate) struct PlacedWrite<'a> {
    pub(crate) file: &'a File,
    pub(crate) offset: u64,
    pub(crate) bufs: &'a [IoSlice<'a>],
    /// The bytes that the file has taken, from the first on: 0 after an error.
    pub(crate) taken: usize,
}

/// Buffers of one call. Chosen: the limit of every Linux (`UIO_MAXIOV`).
#[cfg(target_os = "linux")]
const BUFS_MAX: usize = 1024;

/// Reads into `bufs`, in order, starting at `offset`; returns the number of bytes read, which may
/// be fewer than requested.
///
/// # Errors
///
/// Any error of the system.
#[cfg(target_os = "linux")]
pub(crate) fn read_vectored_at(
    file: &File,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
) -> io::Result<usize> {
    use std::os::fd::AsRawFd;

    let count = bufs.len().min(BUFS_MAX);
    let count = libc::c_int::try_from(count).expect("at most `BUFS_MAX`");
    let offset =
        libc::off64_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let iovecs = bufs.as_mut_ptr().cast::<libc::iovec>();
    // SAFETY: the first `count` buffers are borrowed exclusively for the call, and an `IoSliceMut`
    // is laid out as an `iovec` (so the standard library says). The file is open.
    let read = unsafe { libc::preadv64(file.as_raw_fd(), iovecs, count, offset) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// As above, for systems without such a call: reads the first buffer alone.
#[cfg(not(target_os = "linux"))]
pub(crate) fn read_vectored_at(
    file: &File,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
) -> io::Result<usize> {
    use std::os::unix::fs::FileExt;

    match bufs.first_mut() {
        Some(first) => file.read_at(first, offset),
        None => Ok(0),
    }
}

/// Writes `bufs`, in order, starting at `offset`; returns the number of bytes written, which may be
/// fewer than given.
///
/// # Errors
///
/// Any error of the system.
#[cfg(target_os = "linux")]
pub(crate) fn write_vectored_at(
    file: &File,
    bufs: &[IoSlice<'_>],
    offset: u64,
) -> io::Result<usize> {
    use std::os::fd::AsRawFd;

    let count = bufs.len().min(BUFS_MAX);
    let count = libc::c_int::try_from(count).expect("at most `BUFS_MAX`");
    let offset =
        libc::off64_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let iovecs = bufs.as_ptr().cast::<libc::iovec>();
    // SAFETY: the first `count` buffers are borrowed for the call, which only reads them, and an
    // `IoSlice` is laid out as an `iovec` (so the standard library says). The file is open.
    let wrote = unsafe { libc::pwritev64(file.as_raw_fd(), iovecs, count, offset) };
    usize::try_from(wrote).map_err(|_| io::Error::last_os_error())
}

/// As above, for systems without such a call: writes the first buffer alone.
#[cfg(not(target_os = "linux"))]
pub(crate) fn write_vectored_at(
    file: &File,
    bufs: &[IoSlice<'_>],
    offset: u64,
) -> io::Result<usize> {
    use std::os::unix::fs::FileExt;

    match bufs.first() {
        Some(first) => file.write_at(first, offset),
        None => Ok(0),
    }
}
