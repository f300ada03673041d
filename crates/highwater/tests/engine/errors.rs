//! Storage that fails: what the engine acknowledged stays in the log, and nothing else changes.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use highwater::{Backing, FileBacking, FilePage, Manager, Pages};

use super::log::{self, Change};
use super::node::{META, Node};
use super::{MEMORY, append_only, manager, open, put, storage};

/// Storage whose next sync fails.
#[derive(Debug)]
struct FailsOnce(Arc<FileBacking>, AtomicBool);

/// Storage that cannot read a page.
#[derive(Debug)]
struct Unreadable {
    file: Arc<FileBacking>,
    page: AtomicU64,
}

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

impl Backing for Unreadable {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        match page.0 == self.page.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(5 /* EIO */)),
            false => self.file.read_page(page, buf),
        }
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.file.write_page(page, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
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
        2,
        "the log has key 7"
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

// Symptom: a split that could not read its new page counted it as used, without a record.
#[test]
fn a_split_that_fails_changes_no_page() {
    let dir = tempfile::tempdir().unwrap();
    let hw = Manager::builder().capacity(MEMORY).build().unwrap();
    let storage = Arc::new(Unreadable {
        file: storage(dir.path()),
        page: AtomicU64::new(2),
    });
    let store = open(&hw, dir.path(), Arc::clone(&storage), append_only);
    let key = (0..1_000).find(|key| put(&store, *key).is_err()).unwrap();
    assert_eq!(hw.snapshot().counter("nr_dirty"), 1, "the root");
    storage.page.store(u64::MAX, Ordering::Relaxed);
    put(&store, key).unwrap();
    let mut unused = Vec::new();
    log::replay(dir.path(), |_, record| {
        for (number, change) in record {
            if let (META, Change::Image(page)) = (number, change) {
                unused.push(page.first_unused());
            }
        }
    })
    .unwrap();
    assert_eq!(unused, [3, 4], "after pages 2 and 3");
}
