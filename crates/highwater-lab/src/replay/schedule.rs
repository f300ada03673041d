//! The schedule of requests: each trace's requests go out in order, in batches, and the seed
//! decides which tenant a thread serves next.
//!
//! Invariant: a tenant's batches are handed out in trace order, each to one thread. Threads that
//! serve one tenant at the same time may interleave their accesses, as clients of a server do; with
//! one thread the order of all accesses is a function of the traces and the seed.
//!
//! Protocol: a thread draws an unfinished tenant and fills its batch under the lock of that
//! tenant's reader. If another thread has the lock, it tries the next tenant, and it waits only if
//! all are busy. Key traces are laid out under the same lock, so that requests leave here as pages.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use fastrand::Rng;

use super::error::ReplayError;
use super::manifest::TraceReport;
use super::recorded::FileTallies;
use crate::control::Control;
use crate::trace::{DirectoryError, KeyDirectory, Op, Skipped, Target, TraceReader};

/// Requests in a batch. Chosen: enough to make the lock cheap, few enough that tenants take turns.
const BATCH_REQUESTS: usize = 64;

/// Pages after which a batch ends early, so that a tenant with large requests gets no more than its
/// turn. Chosen: 4 MiB.
const BATCH_PAGES: u64 = 1024;

/// One request, as pages of the tenant's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) op: Op,
    pub(super) first: u64,
    pub(super) count: u64,
    /// Number of the file that the trace names for these pages.
    pub(super) file: Option<usize>,
}

/// Learns which pages of its file a tenant accesses, in trace order.
pub trait PageObserver: fmt::Debug + Send {
    /// Called with the pages of each request, under the lock of the tenant's trace: it should be
    /// quick.
    fn pages(&mut self, pages: Range<u64>);
}

/// The trace of one tenant.
#[derive(Debug)]
pub(super) struct Source {
    tenant: String,
    /// Pages in the tenant's file; the limit of accesses.
    pages: u64,
    dir: PathBuf,
    state: Mutex<SourceState>,
    /// Whether the trace has ended. Written by: the thread that reads the end, under the lock. Read
    /// by: threads that choose a tenant. Publishes nothing: a thread that misses it finds the
    /// reader at its end.
    is_finished: AtomicBool,
}

#[derive(Debug)]
struct SourceState {
    reader: TraceReader,
    /// Pages of the keys; created with the first key.
    keys: Option<KeyDirectory>,
    /// Stored bytes of the trace that the progress bar has counted.
    bytes_told: u64,
    /// Whether the trace had a request.
    has_requests: bool,
    observer: Option<Box<dyn PageObserver>>,
}

impl Source {
    /// Wraps the trace `reader` of a tenant whose file has `pages` pages. The keys of a key trace
    /// are kept in unlinked files in `dir`.
    pub(super) fn new(tenant: String, pages: u64, reader: TraceReader, dir: PathBuf) -> Self {
        let state = Mutex::new(SourceState {
            reader,
            keys: None,
            bytes_told: 0,
            has_requests: false,
            observer: None,
        });
        Self {
            tenant,
            pages,
            dir,
            state,
            is_finished: AtomicBool::new(false),
        }
    }

    /// Tells `observer` of each request.
    pub(super) fn observe(&self, observer: Box<dyn PageObserver>) {
        self.lock().observer = Some(observer);
    }

    /// Returns the stored bytes of the trace; 0 if it is not a file.
    pub(super) fn bytes_total(&self) -> u64 {
        let progress = self.lock().reader.progress();
        progress.compressed_bytes_total.unwrap_or(0)
    }

    /// Returns what was skipped.
    pub(super) fn skipped(&self) -> Skipped {
        self.lock().reader.skipped()
    }

    /// Describes the trace, and the accesses to its files.
    pub(super) fn trace_report(&self, files: &FileTallies) -> TraceReport {
        TraceReport::new(&self.lock().reader, files)
    }

    fn is_finished(&self) -> bool {
        // Relaxed: see the field.
        self.is_finished.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, SourceState> {
        // A panic while the lock is held ends the run, so its state does not matter.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, SourceState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Fills `batch`; leaves it empty at the end of the trace. Returns the stored bytes that were
    /// read.
    fn fill(&self, state: &mut SourceState, batch: &mut Vec<Access>) -> Result<u64, ReplayError> {
        let mut pages: u64 = 0;
        while batch.len() < BATCH_REQUESTS && pages < BATCH_PAGES {
            let Some(request) = state.reader.next() else {
                // Relaxed: see the field.
                self.is_finished.store(true, Ordering::Relaxed);
                if !state.has_requests {
                    return Err(self.without_record(&state.reader));
                }
                break;
            };
            state.has_requests = true;
            let request = request.map_err(|source| {
                ReplayError::of_trace(&self.tenant, state.reader.stop(), source)
            })?;
            let (first, count) = match request.target {
                Target::Pages { first, count } => (first, count),
                Target::Key { key, pages } => {
                    let located = locate(&mut state.keys, &self.dir, key, pages);
                    let first = located.map_err(|source| ReplayError::Keys {
                        tenant: self.tenant.clone(),
                        source,
                    })?;
                    (first, pages)
                }
            };
            self.check_range(first, count)?;
            if let Some(observer) = &mut state.observer {
                observer.pages(first..first + count);
            }
            pages = pages.saturating_add(count);
            let op = request.op;
            let file = state.reader.recording();
            let file = file.and_then(|recording| recording.number_of_file(first));
            batch.push(Access {
                op,
                first,
                count,
                file,
            });
        }
        let read = state.reader.progress().compressed_bytes_read;
        let further = read.saturating_sub(state.bytes_told);
        state.bytes_told += further;
        Ok(further)
    }

    #[cold]
    fn without_record(&self, reader: &TraceReader) -> ReplayError {
        ReplayError::NoRecord {
            tenant: self.tenant.clone(),
            trace: reader.name().to_owned(),
            format: reader.format(),
            bad: reader.skipped().records,
            empty: reader.empty_records(),
        }
    }

    fn check_range(&self, first: u64, count: u64) -> Result<(), ReplayError> {
        let end = first.saturating_add(count);
        if end <= self.pages {
            return Ok(());
        }
        Err(ReplayError::PageBeyondFile {
            tenant: self.tenant.clone(),
            page: end - 1,
            pages: self.pages,
        })
    }
}

/// Returns the first of the key's pages.
fn locate(
    keys: &mut Option<KeyDirectory>,
    dir: &Path,
    key: u64,
    pages: u64,
) -> Result<u64, DirectoryError> {
    let keys = match keys {
        Some(keys) => keys,
        None => keys.insert(KeyDirectory::new_in(dir)?),
    };
    Ok(keys.locate(key, pages)?.start)
}

/// Fills `batch` from one of `sources` and returns which, or `None` if all have ended.
pub(super) fn next_batch(
    sources: &[Source],
    control: &Control,
    rng: &mut Rng,
    batch: &mut Vec<Access>,
) -> Result<Option<usize>, ReplayError> {
    batch.clear();
    loop {
        let unfinished = sources
            .iter()
            .filter(|source| !source.is_finished())
            .count();
        if unfinished == 0 {
            return Ok(None);
        }
        let drawn = rng.usize(..unfinished);
        let Some((index, mut state)) = lock_one(sources, drawn) else {
            continue;
        };
        control.advance(sources[index].fill(&mut state, batch)?)?;
        if !batch.is_empty() {
            return Ok(Some(index));
        }
        // The trace ended exactly at the last batch. Each round here finishes a source, so there
        // are no more rounds than sources.
    }
}

/// Locks the `drawn`-th unfinished source, or the first one after it (cyclically) that is not
/// locked; if all are, waits for the drawn one.
fn lock_one(sources: &[Source], drawn: usize) -> Option<(usize, MutexGuard<'_, SourceState>)> {
    let unfinished = || {
        let sources = sources.iter().enumerate();
        sources.filter(|(_, source)| !source.is_finished())
    };
    let around = unfinished().skip(drawn).chain(unfinished().take(drawn));
    for (index, source) in around {
        if let Some(state) = source.try_lock() {
            return Some((index, state));
        }
    }
    let (index, source) = unfinished().nth(drawn)?;
    Some((index, source.lock()))
}
