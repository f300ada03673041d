//! Outcomes of write-back and of sync, and their errors.

use std::io;

use thiserror::Error;

use super::key::PageKey;
use crate::sync::Arc;
use crate::units::{FilePage, Pfn};

/// Result of writing a page back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenBack {
    /// It was dirty and is in the file now.
    Written,
    /// The same, and reclaim awaits it: the caller must [rotate](crate::reclaim::Reclaim::rotate)
    /// it.
    Awaited(PageKey),
    /// There was nothing to write: it is clean, or the frame no longer holds a page of that file.
    Clean,
    /// Another thread holds its latch.
    Latched,
    /// Its last change is not durable in the log yet. It stays dirty.
    HeldUp,
    /// There is no swap area, or no free slot. It stays dirty.
    NoSlot,
}

/// A page could not be written back. It stays dirty.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteBackError {
    /// The file returned an error.
    #[error("writing page {page} back failed, it stays dirty: {source}")]
    Io {
        /// The page's number in its file.
        page: FilePage,
        /// The file's error.
        source: io::Error,
    },
    /// The file took only part of the page.
    #[error("short write-back of page {page}, it stays dirty: {got} of {want} bytes")]
    Short {
        /// The page's number in its file.
        page: FilePage,
        /// Bytes written.
        got: usize,
        /// Bytes given.
        want: usize,
    },
    /// The log that the page waits for could not be flushed.
    #[error(
        "page {page} stays dirty: its last change has LSN {lsn}, and flushing the log up to it failed: {source}"
    )]
    Log {
        /// The page's number in its file.
        page: FilePage,
        /// LSN of the page's last change.
        lsn: u64,
        /// The log's error.
        source: io::Error,
    },
    /// The log was asked to flush, and is still not durable up to the page's last change.
    #[error(
        "page {page} stays dirty: its last change has LSN {lsn}, and the log is durable up to LSN {durable} only, although it was flushed"
    )]
    LogBehind {
        /// The page's number in its file.
        page: FilePage,
        /// LSN of the page's last change.
        lsn: u64,
        /// LSN up to which the log is durable.
        durable: u64,
    },
}

/// Result of writing several pages back.
#[derive(Debug, Default)]
pub struct WriteBackOutcome {
    /// Pages that their files have taken, in frames.
    pub nr_written: u64,
    /// Pages whose write failed; they stay dirty.
    pub nr_failed: u64,
    /// Pages of `nr_failed` that had not failed since they were last written: other pages now come
    /// before them.
    pub nr_failed_first: u64,
    /// Pages that were pinned or latched; they stay dirty.
    pub nr_latched: u64,
    /// Pages whose logs are not durable as far as their last changes; they stay dirty.
    pub held_up: Vec<(PageKey, Pfn)>,
    /// The first error.
    pub first_error: Option<WriteBackError>,
    /// Written pages that reclaim awaits: the caller must [rotate](crate::reclaim::Reclaim::rotate)
    /// them.
    pub awaited: Vec<(Pfn, PageKey)>,
}

/// A sync failed: part of a file is not on its storage.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SyncError {
    /// Pages could not be written; they stay dirty and the next sync tries again.
    #[error("{failed} pages could not be written back and stay dirty; first: {first}")]
    WriteBack {
        /// Number of pages.
        failed: u64,
        /// Error of the first.
        first: WriteBackError,
    },
    /// Every page was written, but the file could not make that durable. The pages count as
    /// written: the next sync does not write them again, and may succeed without them (Linux
    /// reports a failed fsync once). To make them durable, write them again.
    #[error("all pages were written, but making them durable failed: {0}")]
    Durability(#[source] Arc<io::Error>),
    /// This sync succeeded, but since this handle's last report, a sync by another caller failed to
    /// make the file durable. Data that was written before can be lost. Each handle that was open
    /// then reports it once.
    #[error(
        "this sync succeeded, but {failures} others failed to make pages durable since this handle's last sync, and \
         data can be lost; last: {last}"
    )]
    Earlier {
        /// Number of failures.
        failures: u64,
        /// The last failure.
        last: Arc<io::Error>,
    },
}
