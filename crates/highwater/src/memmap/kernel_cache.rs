//! The kernel's page cache of a file: whether I/O can go past it (`O_DIRECT`), advice about it
//! (fadvise), and how much it holds (cachestat, mincore).
//!
//! The standard library has none of these calls.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::reservation::system_page_bytes;
use crate::units::{Bytes, PAGE_SIZE};

/// Alignment that direct I/O on a file needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectAlign {
    /// Of buffers.
    pub(crate) memory: u32,
    /// Of offsets and lengths.
    pub(crate) offset: u32,
}

/// Advice about the kernel's cache of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Read as its reads show: the kernel reads ahead of sequential ones.
    Normal,
    /// Read at random: the kernel reads nothing ahead.
    Random,
    /// Not read again soon: the kernel drops clean pages.
    DontNeed,
}

/// Returns the alignment that direct I/O on a file needs, both 0 if the file has none; `None` if
/// the kernel does not tell (before Linux 6.1, and some file systems).
#[cfg(not(miri))]
pub(crate) fn direct_align(file: &File) -> Option<DirectAlign> {
    // SAFETY: the structure is made of integers, for which 0 is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is empty, so that the call is about the file, which is open; it writes one
    // structure, which is borrowed exclusively for the call.
    let rc = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut found,
        )
    };
    let is_told = rc == 0 && found.stx_mask & libc::STATX_DIOALIGN != 0;
    is_told.then_some(DirectAlign {
        memory: found.stx_dio_mem_align,
        offset: found.stx_dio_offset_align,
    })
}

/// As above, for an interpreter without the call.
#[cfg(miri)]
pub(crate) fn direct_align(_file: &File) -> Option<DirectAlign> {
    None
}

/// Returns the flags of an open file (`O_*`).
pub(crate) fn open_flags(file: &File) -> io::Result<libc::c_int> {
    // SAFETY: `F_GETFL` reads the flags of an open descriptor, and no memory.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) } {
        flags @ 0.. => Ok(flags),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives advice about `len` bytes of a file from `offset` on; a `len` of 0 reaches to its end. No
/// result: the kernel is free to ignore it.
pub(crate) fn advise(file: &File, offset: u64, len: u64, advice: Advice) {
    let advice = match advice {
        Advice::Normal => libc::POSIX_FADV_NORMAL,
        Advice::Random => libc::POSIX_FADV_RANDOM,
        Advice::DontNeed => libc::POSIX_FADV_DONTNEED,
    };
    let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else {
        return;
    };
    if cfg!(not(miri)) {
        // SAFETY: takes numbers only; the file is open.
        let _ignored = unsafe { libc::posix_fadvise64(file.as_raw_fd(), offset, len, advice) };
    }
}

/// Returns how many bytes of a file the kernel caches, in whole pages. Only the owner of a file
/// and users with the right to write to it are told.
///
/// # Errors
///
/// Any error of the system.
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) fn kernel_cached(file: &File) -> io::Result<Bytes> {
    match cachestat(file) {
        // `EPERM` as well: the call may be filtered, and mincore(2) asks for the same rights.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            resident_of_mapping(file)
        }
        pages => pages,
    }
}

/// Asks cachestat(2), of Linux 6.5 and later.
fn cachestat(file: &File) -> io::Result<Bytes> {
    /// From `linux/mman.h`; a length of 0 reaches to the end of the file.
    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }
    /// From `asm-generic/unistd.h`, the same on every architecture that Rust runs on.
    const CACHESTAT: libc::c_long = 451;

    let range = Range { offset: 0, len: 0 };
    // `struct cachestat`, from `linux/mman.h`: cached, dirty, under write-back, evicted, recently
    // evicted, all in pages.
    let mut counts = [0_u64; 5];
    let flags: libc::c_uint = 0;
    // SAFETY: the kernel reads one range and writes five numbers, both borrowed for the call; the
    // file is open.
    let rc = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            counts.as_mut_ptr(),
            flags,
        )
    };
    match rc {
        0 => Ok(of_system_pages(counts[0])),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps the file, a part at a time, and asks mincore(2) about each of its pages.
fn resident_of_mapping(file: &File) -> io::Result<Bytes> {
    /// Bytes of a part. Chosen: a vector of 64 KiB for its pages.
    const PART: usize = 1 << 28;

    let (end, mut start, mut pages) = (file.metadata()?.len(), 0_u64, 0_u64);
    while start < end {
        let len = usize::try_from(end - start).unwrap_or(PART).min(PART);
        let offset = start
            .try_into()
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: a new mapping at an address of the kernel's choice, never dereferenced; the file
        // is open.
        let base = unsafe {
            libc::mmap64(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut resident = vec![0_u8; len.div_ceil(PAGE_SIZE)];
        // SAFETY: the range is mapped, and the vector has a byte for each of its pages.
        let rc = unsafe { libc::mincore(base, len, resident.as_mut_ptr()) };
        let result = match rc {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        // SAFETY: the mapping was made above, and nothing refers to it.
        let _gone = unsafe { libc::munmap(base, len) };
        result?;
        pages += resident.iter().map(|byte| u64::from(byte & 1)).sum::<u64>();
        start += len as u64;
    }
    Ok(of_system_pages(pages))
}

fn of_system_pages(pages: u64) -> Bytes {
    Bytes(pages * system_page_bytes().unwrap_or(PAGE_SIZE) as u64)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::{Advice, advise, cachestat, resident_of_mapping};
    use crate::units::{Bytes, PAGE_BYTES};

    // Goal: both ways to count the kernel's cached bytes agree. Method: a file just written is
    // cached whole; after `DontNeed` on a synced file, both say the same again (0, except on a
    // file system that lives in the cache). A kernel without cachestat(2) is asked the other way.
    #[test]
    fn both_counts_of_cached_bytes_agree() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&vec![1; 5 * 4096 + 1]).expect("room");
        let both = |file: &File| {
            let mapped = resident_of_mapping(file).expect("its owner may ask");
            (cachestat(file).unwrap_or(mapped), mapped)
        };
        assert_eq!(both(&file), (Bytes(6 * PAGE_BYTES), Bytes(6 * PAGE_BYTES)));
        file.sync_all().expect("storage");
        advise(&file, 0, 0, Advice::DontNeed);
        let (told, mapped) = both(&file);
        assert_eq!(told, mapped);
        assert!(mapped <= Bytes(6 * PAGE_BYTES));
    }
}
