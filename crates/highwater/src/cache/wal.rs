//! Log before page (write-ahead logging): the LSNs of dirty pages, and the gates that hold their
//! write-back up until the log is durable.
//!
//! A page carries the LSN of its last change and its *recovery LSN*, that of the first change since
//! the page was clean. Both are set under the page's exclusive latch, and cleared with its dirty
//! mark.
//!
//! Invariant: the storage of a file with a gate is given a page only if the log is durable up to
//! the page's LSN. The check and the write happen under one hold of the page's latch, so the bytes
//! that are written are those whose LSN was checked.
//!
//! A page that fails the check is skipped and counted, and its LSN is noted in the gate. A
//! reclaimer that freed nothing because of such pages asks their logs to flush, up to the highest
//! noted LSN, with no lock held ([`PageCache::ask_logs`]). A sync asks first, and writes
//! afterwards; pages that were changed again meanwhile are then written one by one, each with its
//! latch held while the log is flushed, so that a page that is changed all the time delays the
//! sync, but cannot fail it.
//!
//! Source: `FlushBuffer` of PostgreSQL; ARIES (Mohan et al. 1992) for recovery LSNs.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::gather::IfHeld;
use super::{FileEntry, PageCache, PageKey, WriteBackError, WriteBackOutcome, WrittenBack};
use crate::memmap::zeroed;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, OnceLock, StatCell, Woken};
use crate::units::{FilePage, Pages, Pfn};

/// The log of an engine, as the page cache sees it: pages whose last change
/// ([`PageWrite::set_lsn`](crate::PageWrite::set_lsn)) is not durable in it are not written back.
/// Attached to a file by [`File::set_write_gate`](crate::File::set_write_gate).
///
/// Both methods are called from any thread that writes back, also from one that faults a page in
/// while it holds latches. So they must not use the manager, nor wait for a thread that holds
/// latches or waits for memory. A panic counts as an error.
///
/// # Examples
///
/// ```
/// use std::io;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
/// use highwater::{Manager, WriteGate};
///
/// /// A log that is durable as soon as it is asked.
/// #[derive(Debug, Default)]
/// struct Log(AtomicU64);
///
/// impl WriteGate for Log {
///     fn durable_lsn(&self) -> u64 {
///         self.0.load(SeqCst)
///     }
///     fn flush(&self, lsn: u64) -> io::Result<()> {
///         self.0.fetch_max(lsn, SeqCst); // after the log's fdatasync(2)
///         Ok(())
///     }
/// }
///
/// # let source = tempfile::NamedTempFile::new()?;
/// # std::fs::write(source.path(), [7; 3 * 4096])?;
/// # let hw = Manager::builder().build()?;
/// let file = hw.open_writable(source.path())?;
/// let log = Arc::new(Log::default());
/// file.set_write_gate(log.clone());
/// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
/// let mut page = map.write(0)?;
/// page.set_lsn(17); // of the record that describes the change
/// page[0] = 8;
/// drop(page);
/// file.sync()?; // asks the log first
/// assert_eq!(log.durable_lsn(), 17);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait WriteGate: Send + Sync + fmt::Debug {
    /// Returns the LSN up to which the log is durable, the record with this LSN included. It never
    /// falls.
    ///
    /// Called with a page's latch held, for each page whose LSN is above all results so far: it
    /// should cost a load, and must not block.
    fn durable_lsn(&self) -> u64;

    /// Makes the log durable up to `lsn` and returns, or fails. Several threads may ask at once.
    ///
    /// Called when reclaim frees nothing because of pages that wait for the log, at most once
    /// between two pages that it frees, or writes to make room for a larger page, with none of the
    /// library's locks held; by the write-back thread in the same way, or where there is none, by
    /// writers above the dirty limit (also as a task is polled), which may hold latches; by a sync,
    /// which may hold the latch of the page whose LSN it is; by
    /// [`File::set_len`](crate::File::set_len), for changed pages that the file loses; and after
    /// the file was closed, as long as pages of it wait. So it must neither sync nor resize the
    /// file, nor wait for a thread that does.
    ///
    /// # Errors
    ///
    /// Any error of the log; the pages then stay dirty. Reclaim goes on without them.
    fn flush(&self, lsn: u64) -> io::Result<()>;
}

/// The LSNs of all dirty pages: 16 bytes a frame, once the first LSN is set.
pub(super) struct PageLsns {
    /// By frame: the recovery LSN, and the LSN of the last change; 0 without one.
    /// Written by: holders of the exclusive latch, and the thread that writes the page back. Read
    /// by: these, and checkpoints without the latch. Publishes: nothing.
    words: OnceLock<Box<[(AtomicU64, AtomicU64)]>>,
    nr_frames: usize,
}

impl PageLsns {
    pub(super) fn new(frames: Pages) -> Self {
        Self {
            words: OnceLock::new(),
            nr_frames: usize::try_from(frames.0).expect("frames fit memory"),
        }
    }

    /// Records a change of a page. The exclusive latch is held.
    pub(super) fn raise(&self, pfn: Pfn, lsn: u64) {
        let words = self.words.get_or_init(|| zeroed(self.nr_frames));
        let (recovery, last) = &words[pfn.index()];
        // Relaxed, all: ordered by the latch. A checkpoint that reads without it may see an older
        // value, which is lower.
        let first = recovery.load(Ordering::Relaxed);
        if first == 0 || lsn < first {
            recovery.store(lsn, Ordering::Relaxed);
        }
        if last.load(Ordering::Relaxed) < lsn {
            last.store(lsn, Ordering::Relaxed);
        }
    }

    /// Forgets the changes of a page that is clean now, and still held for write-back.
    pub(super) fn clear(&self, pfn: Pfn) {
        let Some(words) = self.words.get() else {
            return;
        };
        let (recovery, last) = &words[pfn.index()];
        // Relaxed, all: as in `raise`.
        if last.load(Ordering::Relaxed) > 0 {
            recovery.store(0, Ordering::Relaxed);
            last.store(0, Ordering::Relaxed);
        }
    }

    /// Returns a page's recovery LSN; 0 if no LSN was set since the page was clean. Without the
    /// latch it may be an earlier one, which is lower, as LSNs are set in order.
    pub(super) fn recovery(&self, pfn: Pfn) -> u64 {
        // Relaxed: as in `raise`.
        let words = self.words.get();
        words.map_or(0, |words| words[pfn.index()].0.load(Ordering::Relaxed))
    }

    /// Returns the LSN of a page's last change; 0 if it was set by none since the page was clean.
    pub(super) fn last(&self, pfn: Pfn) -> u64 {
        // Relaxed: as in `raise`.
        let words = self.words.get();
        words.map_or(0, |words| words[pfn.index()].1.load(Ordering::Relaxed))
    }
}

/// A file's gate, and the results of asking it.
#[derive(Debug)]
pub(super) struct LogGate {
    gate: Arc<dyn WriteGate>,
    /// The highest durable LSN that the gate has returned.
    /// Written by: threads that asked. Read by: threads about to write a page. Publishes: the
    /// durable log.
    durable: AtomicU64,
    /// The highest LSN that held a page up since the log last reached it; 0 for none.
    /// Written by: write-back. Read by: threads about to ask for a flush. Publishes: nothing.
    wanted: AtomicU64,
    nr_refused: StatCell,
}

impl LogGate {
    fn new(gate: Arc<dyn WriteGate>) -> Self {
        Self {
            gate,
            durable: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            nr_refused: StatCell::new(),
        }
    }

    /// Returns whether the log is known to be durable up to `lsn`.
    fn has(&self, lsn: u64) -> bool {
        // Acquire. Pairs with: the release of `look`: the page is written after the log.
        lsn <= self.durable.load(Ordering::Acquire) || lsn <= self.look()
    }

    /// Asks how far the log is durable.
    fn look(&self) -> u64 {
        // A gate that panics has not said that more is durable.
        let now = guarded(|| Ok(self.gate.durable_lsn())).unwrap_or(0);
        // Release, and Acquire for the value of another thread. Pairs with: `has`, and itself.
        self.durable.fetch_max(now, Ordering::AcqRel).max(now)
    }

    /// Asks the log to flush up to `lsn`; returns how far it is durable then.
    fn flush(&self, lsn: u64) -> io::Result<u64> {
        guarded(|| self.gate.flush(lsn))?;
        Ok(self.look())
    }

    /// Asks the log to flush up to the highest LSN that held a page up; returns whether it is
    /// durable as far.
    fn ask(&self) -> io::Result<bool> {
        // Relaxed, both: a thread that acts on the result looks at the pages again.
        let wanted = self.wanted.load(Ordering::Relaxed);
        // Cleared only once the log is there: threads that ask meanwhile wait for the same flush.
        if !self.has(wanted) && self.flush(wanted)? < wanted {
            return Ok(false);
        }
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        // An exchange that fails leaves an LSN that was noted meanwhile.
        _ = self.wanted.compare_exchange(wanted, 0, done, failed);
        Ok(true)
    }

    fn is_wanted(&self) -> bool {
        // Relaxed: as in `ask`.
        self.wanted.load(Ordering::Relaxed) > 0
    }
}

impl FileEntry {
    /// Attaches a gate; returns false if the file has one.
    #[must_use]
    pub fn set_gate(&self, gate: Arc<dyn WriteGate>) -> bool {
        self.gate.set(LogGate::new(gate)).is_ok()
    }

    /// Has the log flush up to `lsn`, if the file has one that is not durable as far.
    pub(super) fn flush_log(&self, lsn: u64) -> io::Result<()> {
        let Some(gate) = self.gate.get().filter(|gate| !gate.has(lsn)) else {
            return Ok(());
        };
        match gate.flush(lsn)? {
            durable if durable >= lsn => Ok(()),
            durable => Err(io::Error::other(format!(
                "the log is durable up to LSN {durable} after it was asked to flush up to {lsn}"
            ))),
        }
    }

    /// Returns whether pages of the file wait for its log.
    pub(super) fn is_held_up(&self) -> bool {
        self.gate.get().is_some_and(LogGate::is_wanted)
    }
}

impl PageCache {
    /// Returns whether a page's last change is durable in the log of its file, if that has a gate.
    /// The exclusive latch is held.
    pub(super) fn is_logged(&self, file: &FileEntry, pfn: Pfn) -> bool {
        let gate = file.gate.get();
        gate.is_none_or(|gate| gate.has(self.lsns.last(pfn)))
    }

    /// As [`is_logged`](Self::is_logged); counts a page that is not, and notes its LSN.
    pub(super) fn is_logged_noting(&self, file: &FileEntry, pfn: Pfn) -> bool {
        if self.is_logged(file, pfn) {
            return true;
        }
        self.dirty.nr_wal_blocked.add(1);
        if let Some(gate) = file.gate.get() {
            // Relaxed: see the field.
            gate.wanted
                .fetch_max(self.lsns.last(pfn), Ordering::Relaxed);
        }
        false
    }

    /// Asks each log that holds pages up to flush as far as these need it; returns whether any is
    /// durable as far now. No lock or latch of the cache is held by this thread.
    ///
    /// # Cost
    ///
    /// The flushes; a look at each open file.
    pub fn ask_logs(&self) -> bool {
        let mut is_of_use = false;
        for file in self.files.held_up() {
            let Some(gate) = file.gate.get() else {
                continue;
            };
            match gate.ask() {
                Ok(is_there) => is_of_use |= is_there,
                Err(error) => {
                    if let Some(times) = gate.nr_refused.recur() {
                        tracing::warn!(file = ?file.id(), %error, times, "the log was not flushed, pages stay dirty");
                    }
                }
            }
        }
        is_of_use
    }

    /// Writes back pages that the file's log has held up: asks it to flush first. A page that was
    /// changed again meanwhile is latched, and written when the log is flushed up to its LSN.
    /// Without success, each page is a failure.
    pub fn write_back_held_up(
        &self,
        file: &FileEntry,
        pages: &[(PageKey, Pfn)],
    ) -> WriteBackOutcome {
        let mut outcome = WriteBackOutcome::default();
        let Some(gate) = file.gate.get() else {
            return outcome;
        };
        let mut asked = gate.ask();
        self.write_back_in_order(pages, IfHeld::Wait, &mut outcome);
        for (key, pfn) in std::mem::take(&mut outcome.held_up) {
            let Some(latch) = self.latch_exclusively(key, pfn) else {
                continue;
            };
            let lsn = self.lsns.last(pfn);
            // A log that refused or stood still is not asked again for each page.
            if matches!(asked, Ok(true)) && !gate.has(lsn) {
                asked = gate.flush(lsn).map(|durable| lsn <= durable);
            }
            let mut woken = Woken::default();
            outcome.note(self, pfn, || {
                match self.write_back_latched(key, file, latch, &mut woken)? {
                    WrittenBack::HeldUp => Err(gate.held_up(key.page(), lsn, &asked)),
                    written => Ok(written),
                }
            });
        }
        outcome
    }

    /// Checks that clean pages have no LSN.
    pub(super) fn check_lsns(&self) {
        for pfn in (0..).map(Pfn).take(self.lsns.nr_frames) {
            let lsn = self.lsns.last(pfn);
            assert!(
                lsn == 0 || self.is_dirty(pfn),
                "{pfn} is clean at LSN {lsn}"
            );
        }
    }
}

impl LogGate {
    /// Returns the error of a page that the log held up although it was asked.
    fn held_up(&self, page: FilePage, lsn: u64, asked: &io::Result<bool>) -> WriteBackError {
        match asked {
            // Each page tells it, and the system's errors cannot be cloned.
            Err(error) => WriteBackError::Log {
                page,
                lsn,
                source: io::Error::new(error.kind(), error.to_string()),
            },
            Ok(_) => WriteBackError::LogBehind {
                page,
                lsn,
                durable: self.look(),
            },
        }
    }
}

/// Calls a gate, and turns a panic into an error: as for storage, the caller may be reclaiming for
/// a request that has nothing to do with the log.
fn guarded<R>(ask: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    catch_unwind(AssertUnwindSafe(ask))
        .unwrap_or_else(|_| Err(io::Error::other("the log's gate panicked")))
}
