//! How much write-back by the clock does in one run.

use std::io;

use super::writeback::CHUNK;
use super::zeros::Zeros;
use super::*;
use crate::cache::{Access, WriteGate};
use crate::frame::Tunables;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::Bytes;

const PAGES: u64 = 3 * CHUNK.0;

/// A manager in which any dirty page has expired, and a file of it.
fn expiring() -> (Manager, File) {
    let tunables = Tunables::default()
        .with("dirty_ratio", 95)
        .and_then(|tunables| tunables.with("dirty_background_ratio", 90))
        .and_then(|tunables| tunables.with("dirty_expire_centisecs", 0))
        .expect("in range");
    let hw = Manager::builder().capacity(Bytes::mib(16)).build();
    let hw = hw.expect("a manager");
    hw.set_tunables(tunables);
    let storage = Arc::new(Zeros { pages: PAGES });
    let file = hw.open_backing(storage, Access::ReadWrite);
    (hw, file.expect("a file"))
}

// Goal: `drop_caches` waits for one chunk of a run, not for all pages that have expired, and the
// next run writes the others. Method: a run that is paused before it begins.
#[test]
fn a_run_by_the_clock_ends_with_its_chunk() {
    let (hw, file) = expiring();
    let map = hw.space(&hw.root()).map_file(&file, 0..PAGES).unwrap();
    for page in 0..PAGES {
        map.write(page).unwrap().mark_dirty();
    }
    let core = hw.core();
    let paused = core.writeback.pause();
    assert_eq!(hw.writeback_tick(), CHUNK);
    assert_eq!(core.cache.nr_dirty(), CHUNK + CHUNK);
    drop(paused);
    assert_eq!(hw.writeback_tick(), CHUNK + CHUNK);
}

/// A log that is never durable; counts how often it is asked.
#[derive(Debug, Default)]
struct StuckLog(AtomicU64);

impl WriteGate for StuckLog {
    fn durable_lsn(&self) -> u64 {
        0
    }
    fn flush(&self, _: u64) -> io::Result<()> {
        // Relaxed: a count, read by the same thread.
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(io::Error::other("stuck"))
    }
}

// Goal: a log that stands still is asked once in a run, not for each chunk that waits for it.
#[test]
fn a_log_that_stands_still_is_asked_once_in_a_run() {
    let (hw, file) = expiring();
    let log = Arc::new(StuckLog::default());
    file.set_write_gate(Arc::clone(&log) as Arc<dyn WriteGate>);
    let map = hw.space(&hw.root()).map_file(&file, 0..PAGES).unwrap();
    for page in 0..PAGES {
        map.write(page).unwrap().set_lsn(5);
    }
    assert_eq!(hw.writeback_tick(), Pages::ZERO);
    assert_eq!(log.0.load(Ordering::Relaxed), 1);
}
