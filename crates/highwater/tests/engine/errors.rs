//! Storage that fails: what the engine acknowledged stays in the log, and nothing else changes.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use highwater::{Backing, FileBacking, FilePage, Pages};

use super::{append_only, log, manager, open, put, storage};

/// Storage whose next sync fails.
#[derive(Debug)]
struct FailsOnce(Arc<FileBacking>, AtomicBool);

impl Backing for FailsOnce {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_page(page, buf)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.0.write_page(page, buf)
    }

    fn sync(&self) -> io::Result<()> {
        match self.1.swap(false, Ordering::Relaxed) {
            true => Err(io::Error::other("the system has dropped pages")),
            false => self.0.sync(),
        }
    }
}

// Symptom: a checkpoint after one whose sync had failed shortened the log, which alone had what the
// system may have dropped.
#[test]
fn no_checkpoint_follows_one_that_may_have_lost_pages() {
    let dir = tempfile::tempdir().unwrap();
    let hw = manager();
    let storage = Arc::new(FailsOnce(storage(dir.path()), AtomicBool::new(false)));
    let store = open(&hw, dir.path(), Arc::clone(&storage), append_only);
    put(&store, 7).unwrap();
    storage.1.store(true, Ordering::Relaxed);
    assert!(store.checkpoint(Pages(1), || ()).is_err());
    assert!(store.checkpoint(Pages(1), || ()).is_err());
    assert!(put(&store, 8).is_err());
    assert_eq!(
        log::replay(dir.path(), |_, _| ()).unwrap(),
        3,
        "the log has both"
    );
}

// Symptom: a checkpoint beside one whose sync had failed shortened the log.
#[test]
fn no_checkpoint_goes_on_beside_one_that_may_have_lost_pages() {
    let dir = tempfile::tempdir().unwrap();
    let hw = manager();
    let storage = Arc::new(FailsOnce(storage(dir.path()), AtomicBool::new(false)));
    let store = open(&hw, dir.path(), Arc::clone(&storage), append_only);
    (0..40).for_each(|key| put(&store, key).unwrap());
    let (segments, is_first) = (|| log::segments(dir.path()).unwrap(), AtomicBool::new(true));
    let before = segments();
    let outer = store.checkpoint(Pages(1), || {
        if is_first.swap(false, Ordering::Relaxed) {
            storage.1.store(true, Ordering::Relaxed);
            assert!(store.checkpoint(Pages(1), || ()).is_err());
        }
    });
    assert!(outer.is_err());
    assert!(segments().starts_with(&before), "{:?}", segments());
}

// Symptom: recovery took records for durable that a failed sync of the log had left in the system's
// memory alone, where they count as written. Method: it has written the segments again.
#[test]
fn recovery_writes_the_log_before_it_syncs_it() {
    let dir = tempfile::tempdir().unwrap();
    let hw = manager();
    let store = open(&hw, dir.path(), storage(dir.path()), append_only);
    (0..4).for_each(|key| put(&store, key).unwrap());
    drop(store);
    let [(_, path)] = &log::segments(dir.path()).unwrap()[..] else {
        panic!("one segment");
    };
    let bytes = fs::read(path).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    log::replay(dir.path(), |_, _| ()).unwrap();
    assert_ne!(
        file.metadata().unwrap().modified().unwrap(),
        SystemTime::UNIX_EPOCH
    );
    assert_eq!(fs::read(path).unwrap(), bytes);
}
