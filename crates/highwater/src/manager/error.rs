//! Errors of the manager, from building it to a charge that failed.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::cache::TooManyFiles;
use crate::frame::AllocError;
use crate::group::ChargeError;
use crate::memmap::MapError;
#[cfg(feature = "lab")]
use crate::percpu::RegimeReason;
use crate::units::{Bytes, FilePage, MapPage, Pages};

/// A manager could not be built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The capacity is outside the allowed range.
    #[error("a capacity of {capacity} cannot be managed: give {min} to {max}")]
    Capacity {
        /// The requested capacity.
        capacity: Bytes,
        /// The minimum.
        min: Bytes,
        /// The maximum.
        max: Bytes,
    },
    /// The number of frames is outside the allowed range.
    #[error("a page cache of {frames} cannot be made: give 0 for none, or {min} to {max}")]
    FramesRange {
        /// The requested size.
        frames: Bytes,
        /// The minimum, except 0.
        min: Bytes,
        /// The maximum: the capacity limits the frames that can be used.
        max: Bytes,
    },
    /// The frames do not fit the process's memory cgroup: using them would get it OOM-killed.
    #[error(
        "a capacity of {capacity} with frames of {frames} is above the control group's memory limit of {limit} (in {file}), and the process would be killed: give less, with room for the program's other memory, raise the limit, or have the capacity follow it (`Builder::follow_cgroup`)"
    )]
    AboveCgroup {
        /// The requested capacity.
        capacity: Bytes,
        /// The part of it that pages could use.
        frames: Bytes,
        /// The lowest limit of the process's cgroup and its ancestors.
        limit: Bytes,
        /// The file that sets it.
        file: String,
    },
    /// Restartable sequences were requested and are not available.
    #[cfg(feature = "lab")]
    #[error("no restartable sequences ({reason}): use the atomic regime")]
    Regime {
        /// The reason.
        reason: RegimeReason,
    },
    /// The memory could not be reserved.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The swap file could not be created.
    #[error("cannot make a swap file of {size} in {dir}: {source}")]
    Swap {
        /// Its directory.
        dir: String,
        /// Its size.
        size: Bytes,
        /// The system's error.
        source: io::Error,
    },
    /// The size of the recorder's ring is outside the allowed range.
    #[error("a recording of {size} cannot be made: give {min} to {max}")]
    RecorderSize {
        /// The requested size.
        size: Bytes,
        /// The minimum.
        min: Bytes,
        /// The maximum.
        max: Bytes,
    },
    /// The recorder's file could not be created, with all of its blocks.
    #[error("cannot make a recording of {size} at {path}: {source}")]
    Recorder {
        /// Its path.
        path: String,
        /// The size of its ring.
        size: Bytes,
        /// The system's error.
        source: io::Error,
    },
    /// A background thread, for reclaim, write-back or the recorder, could not be started.
    #[error("a background thread could not be started: {0}")]
    Thread(#[source] io::Error),
}

/// A file could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system returned an error.
    #[error("cannot open {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be read and written past the kernel's page cache.
    #[error(
        "cannot open {path} for direct I/O: {source}; open it buffered (`Manager::open`, `Manager::open_writable`)"
    )]
    NotDirect {
        /// The file.
        path: String,
        /// The reason, of kind [`Unsupported`](io::ErrorKind::Unsupported).
        source: io::Error,
    },
    /// The file is open already, for another access or in pages of another size. Two sets of its
    /// pages would not agree.
    #[error("cannot open {path} {wanted}: it is open already, {is}; close all its handles first")]
    OpenOtherwise {
        /// The path.
        path: String,
        /// How the file is open.
        is: String,
        /// How it was to be opened.
        wanted: String,
    },
    /// The file was closed, and some of its pages could not be written back, or are in use. They
    /// are newer than the file, so it cannot be opened before they are gone.
    #[error("cannot open {path}: it was closed, and some of its pages are not in the file yet")]
    StillClosing {
        /// The path.
        path: String,
    },
    /// The file has more pages than page numbers allow.
    #[error("a file of {pages} pages is too large: the maximum is {max} pages")]
    TooLarge {
        /// Pages in the file.
        pages: u64,
        /// The maximum.
        max: u64,
    },
    /// The storage has pages of a size that frames cannot hold
    /// ([`Backing::page_size`](crate::Backing::page_size)).
    #[error(
        "storage with pages of {bytes} bytes: expected 4,096, 8,192, 16,384, 32,768 or 65,536 from `page_size`"
    )]
    PageSize {
        /// The size that it returned.
        bytes: usize,
    },
    /// Too many files are open.
    #[error("{}", TooManyFiles { max: *max })]
    TooMany {
        /// The maximum.
        max: usize,
    },
    /// The manager only accounts: it was built without [frames](super::Builder::frames) and has no
    /// page cache.
    #[error("{}", NoFrames)]
    NoFrames,
}

/// The manager has no page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the manager has no frames to cache pages in: build it with `Builder::frames` above 0")]
pub(super) struct NoFrames;

/// Opening a file and making memory fail alike where the manager has no place for another file.
macro_rules! from_those_of_opening {
    ($($error:ident),*) => {$(
        impl From<TooManyFiles> for $error {
            fn from(TooManyFiles { max }: TooManyFiles) -> Self {
                Self::TooMany { max }
            }
        }

        impl From<NoFrames> for $error {
            fn from(_: NoFrames) -> Self {
                Self::NoFrames
            }
        }
    )*};
}

from_those_of_opening!(OpenError, MemoryError);

/// A range is not within the file or mapping.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The range of a file.
    #[error("pages {start} to {end} (exclusive) are not within the file, which has {pages}")]
    File {
        /// Start of the range.
        start: FilePage,
        /// End of the range.
        end: FilePage,
        /// Pages in the file.
        pages: u64,
    },
    /// The range of a mapping.
    #[error("pages {start} to {end} (exclusive) are not within the mapping, which has {pages}")]
    Mapping {
        /// Start of the range.
        start: MapPage,
        /// End of the range.
        end: MapPage,
        /// Pages in the mapping.
        pages: u64,
    },
}

/// Anonymous or shared memory could not be created or discarded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The object has more pages than page numbers allow.
    #[error("memory of {pages} is too large: at most {max} at once")]
    TooLarge {
        /// The requested size.
        pages: Pages,
        /// The maximum.
        max: Pages,
    },
    /// Too many files are open.
    #[error("{}", TooManyFiles { max: *max })]
    TooMany {
        /// The maximum.
        max: usize,
    },
    /// The manager was built without [frames](super::Builder::frames).
    #[error("{}", NoFrames)]
    NoFrames,
    /// The mapping is of a file: discarding would lose its data.
    #[error("the mapping is of a file, and only memory can be discarded")]
    NotMemory,
    /// The range is not within the mapping.
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// The capacity was not set, or usage is above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// The capacity is outside the allowed range; nothing has changed.
    #[error(
        "a capacity of {capacity} cannot be set: give {min} to {max}, the range that `Builder::capacity_max` has reserved"
    )]
    Range {
        /// The requested capacity.
        capacity: Bytes,
        /// The minimum.
        min: Bytes,
        /// The maximum.
        max: Bytes,
    },
    /// Usage exceeds the new capacity, and the excess could not be reclaimed. The capacity **is**
    /// set all the same: nothing is charged until usage is below it.
    #[error(
        "the capacity is {capacity}, and {usage} are in use, {over} more, which cannot be reclaimed now"
    )]
    BelowUsage {
        /// The new capacity.
        capacity: Bytes,
        /// Current usage.
        usage: Bytes,
        /// Usage above the capacity.
        over: Bytes,
    },
}

/// A page could not be read. Nothing is cached and nothing is charged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The page is not in the mapping.
    #[error("page {page} is outside the mapping, which has {pages} pages from 0")]
    OutOfRange {
        /// The requested page.
        page: MapPage,
        /// Pages in the mapping.
        pages: u64,
    },
    /// The file was shortened ([`File::set_len`](crate::File::set_len)).
    #[error("page {page} is behind the end of the file, which has {pages} pages now")]
    BehindEnd {
        /// The page's number in its file.
        page: FilePage,
        /// Pages in the file.
        pages: u64,
    },
    /// The page was unmapped.
    #[error("page {page} of the mapping was unmapped")]
    Unmapped {
        /// The requested page.
        page: MapPage,
    },
    /// The file was opened for a different kind of access.
    #[error("the file is open {is}, but the call is for files open {needs}")]
    Access {
        /// Access mode of the file.
        is: &'static str,
        /// Access mode that the call needs.
        needs: &'static str,
    },
    /// The storage returned an error.
    #[error("reading page {page} failed: {source}")]
    Io {
        /// The page's number in its file.
        page: FilePage,
        /// The storage's error.
        source: io::Error,
    },
    /// The storage returned fewer bytes than the page has.
    #[error("short read of page {page}: {got} of {want} bytes; was the file truncated?")]
    Short {
        /// The page's number in its file.
        page: FilePage,
        /// Bytes read.
        got: usize,
        /// Bytes in the page.
        want: usize,
    },
    /// The storage reported more bytes than were requested, so its result cannot be trusted.
    #[error("reading page {page} failed: the storage reported {got} of {want} bytes")]
    Excess {
        /// The page's number in its file; the first, if several were requested.
        page: FilePage,
        /// Bytes that it reported.
        got: usize,
        /// Bytes that were requested.
        want: usize,
    },
    /// No memory for the page.
    #[error("no memory for page {page}: {source}")]
    NoMemory {
        /// The page's number in its file.
        page: FilePage,
        /// The reason.
        source: OutOfMemory,
    },
    /// Other threads filled and evicted the page before each lookup of this one.
    #[error(
        "page {page} was evicted {rounds} times before it could be used: the pool is too small"
    )]
    Starved {
        /// The page's number in its file.
        page: FilePage,
        /// Number of rounds.
        rounds: u32,
    },
}

/// A page could not be charged or allocated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OutOfMemory {
    /// A group would have exceeded its maximum.
    #[error(transparent)]
    Charge(#[from] ChargeFailed),
    /// No frame could be freed.
    #[error("{source}; {borrowed} pages were in use and {write_failed} could not be written back")]
    Exhausted {
        /// The state of the pool.
        source: AllocError,
        /// Pages that were pinned or latched in the last pass that scanned any.
        borrowed: u64,
        /// Pages whose write-back failed, or waits for a log, in the last pass.
        write_failed: u64,
    },
}

/// A group refused a charge, and neither reclaim nor victims helped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{refusal} (after {attempts} attempts: {reclaimed} reclaimed, {borrowed} in use, {write_failed} not written back, {victims} victims told to stop, {dying} others waited for)"
)]
pub struct ChargeFailed {
    /// The group that refused, with its numbers.
    #[source]
    pub refusal: ChargeError,
    /// Attempts made.
    pub attempts: u32,
    /// Pages reclaimed meanwhile.
    pub reclaimed: Pages,
    /// Pages that were pinned or latched in the last pass that scanned any: later passes may have
    /// found none because other reclaimers had isolated them.
    pub borrowed: u64,
    /// Pages whose write-back failed, or waits for a log, in the last pass.
    pub write_failed: u64,
    /// Victims that were told to stop.
    pub victims: usize,
    /// Groups that were already being stopped, and were waited for.
    pub dying: usize,
}

/// A recording could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file could not be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is something else.
    #[error(
        "{} is no recording: give a file that `Builder::recorder` or `highwater replay --record` has made",
        path.display()
    )]
    NotARecording {
        /// The file.
        path: PathBuf,
    },
    /// The recording has another version of the format.
    #[error(
        "{} is a recording of version {found}, and this program reads version {known}: use the program of the same release",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that can be read.
        known: u32,
    },
    /// The recording's header is damaged.
    #[error("the header of {} is damaged: the recording cannot be read", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The moment's records are not there, or no longer.
    #[error("moment {tick} is not in {}, or was overwritten meanwhile", path.display())]
    Overwritten {
        /// The file.
        path: PathBuf,
        /// The moment.
        tick: u64,
    },
}
