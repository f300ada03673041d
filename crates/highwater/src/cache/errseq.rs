//! Failures to make a file durable (errseq), which each handle reports once.

use std::io;

use super::backing::{Backing, guarded};
use super::outcome::SyncError;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Condvar, LockClass, Mutex, Rank};

static SYNC_FAILURES_LOCK: LockClass = LockClass::new("sync_failures", Rank::Leaf);

/// Failures to make a file durable (errseq): a counter of failures, and the last error. Each handle
/// remembers the counter that it has reported.
///
/// Storage may report a failure to only one of several concurrent syncs. So a sync that succeeds
/// waits for all syncs that began earlier, to learn how they ended.
///
/// Source: errseq of Linux. Deviation: a failure to write a page back is not counted, because the
/// page stays dirty and every sync tries it again.
#[derive(Debug)]
pub(super) struct SyncFailures {
    so_far: Mutex<SoFar>,
    /// Signalled when a sync has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SoFar {
    failures: u64,
    last: Option<Arc<io::Error>>,
    /// Number of syncs that have begun; a sync's number is this count, itself included.
    nr_begun: u64,
    /// Numbers of the syncs in progress.
    under_way: Vec<u64>,
}

/// The errseq cursor of a handle: the number of failures that it has reported. A clone starts with
/// the same cursor.
#[derive(Debug)]
pub struct ToldOf {
    /// Written and read under the lock of the file's failures, but for clones. Publishes: nothing.
    failures: AtomicU64,
}

/// The failures that a sync does not answer for: those before it looked for pages. A page that it
/// then finds clean may be lost by any later one.
#[derive(Clone, Copy, Debug)]
pub struct FailuresBefore(u64);

impl Clone for ToldOf {
    fn clone(&self) -> Self {
        // Relaxed: a clone reports again the failures that its source reports meanwhile.
        let failures = self.failures.load(Ordering::Relaxed);
        Self {
            failures: AtomicU64::new(failures),
        }
    }
}

impl SyncFailures {
    pub(super) fn new() -> Self {
        Self {
            so_far: Mutex::new(&SYNC_FAILURES_LOCK, SoFar::default()),
            ended: Condvar::new(),
        }
    }

    /// Returns the cursor of a new handle: all earlier failures count as reported.
    pub(super) fn cursor(&self) -> ToldOf {
        ToldOf {
            failures: AtomicU64::new(self.so_far.lock().failures),
        }
    }

    /// Makes everything that was written durable; returns an error also for failures that the
    /// handle has not reported yet, and for those since `before`, whichever handle reports them.
    /// Holds no lock during the I/O.
    pub(super) fn sync(
        &self,
        backing: &dyn Backing,
        told: &ToldOf,
        before: FailuresBefore,
    ) -> Result<(), SyncError> {
        let number = self.begin();
        let result = guarded(|| backing.sync());
        self.end((number, before), result, told)
    }

    /// Returns the failures up to now: for a sync that is about to look for pages.
    pub(super) fn before(&self) -> FailuresBefore {
        FailuresBefore(self.so_far.lock().failures)
    }

    /// Begins a sync; returns its number.
    fn begin(&self) -> u64 {
        let mut so_far = self.so_far.lock();
        so_far.nr_begun += 1;
        let number = so_far.nr_begun;
        so_far.under_way.push(number);
        number
    }

    fn end(
        &self,
        (number, before): (u64, FailuresBefore),
        result: io::Result<()>,
        told: &ToldOf,
    ) -> Result<(), SyncError> {
        let mut so_far = self.so_far.lock();
        so_far.under_way.retain(|other| *other != number);
        self.ended.notify_all();
        if let Err(error) = result {
            let error = Arc::new(error);
            so_far.failures += 1;
            so_far.last = Some(Arc::clone(&error));
            // Relaxed: under the lock.
            told.failures.fetch_add(1, Ordering::Relaxed);
            return Err(SyncError::Durability(error));
        }
        let last = so_far.nr_begun;
        // Terminates: syncs that began before now end, and later ones are not waited for.
        while so_far.under_way.iter().any(|other| *other <= last) {
            self.ended.wait(&mut so_far);
        }
        // Relaxed: under the lock.
        let told = told.failures.swap(so_far.failures, Ordering::Relaxed);
        // Also what another thread of this handle was told meanwhile: it may be about pages that
        // this sync is to answer for.
        let failures = so_far.failures - told.min(before.0);
        match so_far.last.clone().filter(|_| failures > 0) {
            Some(last) => Err(SyncError::Earlier { failures, last }),
            None => Ok(()),
        }
    }
}
