//! Promise: a file is open once in a manager: a second open of it, by whichever path, gives the
//! same pages or an error that says why not, and never a second copy.

mod support;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use highwater::{Access, Bytes, File, FileBacking, Manager, Mapping, OpenError, WriteGate};
use support::{assert_empty, manager};

fn source() -> tempfile::NamedTempFile {
    let source = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(source.path(), [7; 3 * 4096]).expect("there is room");
    source
}

fn map(hw: &Manager, file: &File) -> Mapping {
    let map = hw.space(&hw.root()).map_file(file, 0..file.pages());
    map.expect("the whole file")
}

#[test]
fn another_path_of_an_open_file_gives_the_same_pages() {
    // Method: a symbolic link, a hard link, and the path itself. A page that is written through one
    // handle is read through the others before it is in the file, and the file is closed with the
    // last handle.
    let (hw, source) = (manager(64), source());
    let dir = tempfile::tempdir().expect("a temporary directory");
    let [soft, hard] = ["soft", "hard"].map(|name| dir.path().join(name));
    symlink(source.path(), &soft).expect("links are possible");
    let mut paths = vec![source.path(), &soft];
    if fs::hard_link(source.path(), &hard).is_ok() {
        paths.push(&hard);
    }
    let first = hw.open_writable(source.path()).expect("it can be opened");
    let others = paths
        .iter()
        .map(|path| hw.open_writable(path).expect("it is open"));
    let others: Vec<File> = others.collect();
    map(&hw, &first).write(1).expect("memory")[0] = 8;
    drop(first);
    for other in &others {
        assert_eq!(map(&hw, other).read_latched(1).expect("it is cached")[0], 8);
        assert_eq!(hw.snapshot().counter("nr_dirty"), 1);
    }
    drop(others);
    assert_eq!(fs::read(source.path()).expect("it is read")[4096], 8);
    let again = hw.open(source.path()).expect("it is closed");
    assert_eq!(
        map(&hw, &again).read(&hw.enter(), 1).expect("it is read")[0],
        8
    );
    drop(again);
    assert_empty(&hw);
}

#[test]
fn another_access_is_an_error_that_says_so() {
    let (hw, source) = (manager(64), source());
    let refused = |opened: Result<File, OpenError>| match opened {
        Err(OpenError::OpenOtherwise { path, is, wanted }) => {
            assert_eq!(path, source.path().display().to_string());
            format!("{wanted}: {is}")
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a second copy"),
    };
    let file = hw.open(source.path()).expect("it can be opened");
    assert_eq!(
        refused(hw.open_writable(source.path())),
        "to write: to read"
    );
    // Elsewhere it is another matter.
    drop(
        manager(64)
            .open_writable(source.path())
            .expect("it can be opened"),
    );
    drop(file);
    let file = hw.open_writable(source.path()).expect("it is closed");
    assert_eq!(refused(hw.open(source.path())), "to read: to write");
    match hw.open_direct_writable(source.path()) {
        Err(OpenError::NotDirect { source, .. }) => println!("not tested direct: {source}"),
        opened => assert_eq!(refused(opened), "to write, directly: to write"),
    }
    drop(file);
    assert_empty(&hw);
}

/// A log that stands still until it is told.
#[derive(Debug, Default)]
struct Log(AtomicBool);

impl WriteGate for Log {
    fn durable_lsn(&self) -> u64 {
        if self.0.load(SeqCst) { u64::MAX } else { 0 }
    }
    fn flush(&self, _lsn: u64) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_whose_pages_are_not_stored_yet_is_not_opened_behind_their_back() {
    // Goal: while a closed file has dirty pages in the cache, opening it fails; it works, and finds
    // them stored, once they can be written. Method: a page that waits for a log.
    let (hw, source) = (manager(64), source());
    let (file, log) = (
        hw.open_writable(source.path()).expect("it can be opened"),
        Log::default(),
    );
    let log = Arc::new(log);
    file.set_write_gate(Arc::clone(&log) as Arc<dyn WriteGate>);
    let whole = map(&hw, &file);
    let mut page = whole.write(1).expect("memory");
    page[0] = 8;
    page.set_lsn(1);
    drop(page);
    drop((whole, file));
    for _ in 0..2 {
        let refused = hw.open(source.path());
        assert!(
            matches!(refused, Err(OpenError::StillClosing { .. })),
            "{refused:?}"
        );
    }
    log.0.store(true, SeqCst);
    let again = hw.open(source.path()).expect("the page can be stored");
    assert_eq!(
        map(&hw, &again).read(&hw.enter(), 1).expect("it is read")[0],
        8
    );
    drop(again);
    assert_empty(&hw);
}

#[test]
fn threads_that_open_and_close_a_file_agree_about_its_pages() {
    // Goal: no thread finds an old page, whenever others close the file. Method: each thread opens
    // the file, counts in its first page, and drops it.
    let (hw, source) = (manager(64), source());
    fs::write(source.path(), [0; 4096]).expect("there is room");
    let begins = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                begins.wait();
                for _ in 0..200 {
                    let file = hw.open_writable(source.path()).expect("it can be opened");
                    let map = map(&hw, &file);
                    let mut page = map.write(0).expect("memory");
                    let count = u64::from_le_bytes(page[..8].try_into().expect("eight bytes"));
                    page[..8].copy_from_slice(&(count + 1).to_le_bytes());
                }
            });
        }
    });
    let stored = fs::read(source.path()).expect("it is read");
    assert_eq!(stored[..8], 800_u64.to_le_bytes());
    assert_empty(&hw);
}

// Symptom: a file that was closed and opened again at once was still closing, where another thread
// reclaimed memory at this moment.
#[test]
fn a_file_that_others_reclaim_from_can_be_opened_again() {
    let (hw, source) = (manager(256), source());
    fs::write(source.path(), vec![7; 64 * 4096]).expect("there is room");
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(SeqCst) {
                hw.root().reclaim(Bytes::kib(16));
            }
        });
        let opened = (0..5_000).try_for_each(|_| {
            let file = hw.open(source.path())?;
            let whole = map(&hw, &file);
            (0..file.pages()).for_each(|page| drop(whole.pin(page).expect("memory")));
            Ok::<(), OpenError>(())
        });
        ends.store(true, SeqCst);
        opened.expect("it is closed each time");
    });
}

// Symptom: a thread that opened a file while others resized and closed it had the length from
// before: what lay behind that was neither read nor written, or a shorter file was made longer
// again. Method: the length is looked at first, as by an open that waits for others; then another
// handle resizes and closes the file.
#[test]
fn a_file_is_opened_with_its_present_length() {
    for len in [100, 2 * 4096, 3 * 4096 + 100, 5 * 4096] {
        let (hw, source) = (manager(64), source());
        let mut to_write = OpenOptions::new();
        let early = to_write.read(true).write(true).open(source.path());
        let early = early.and_then(FileBacking::new).expect("it is there");
        let first = hw.open_writable(source.path()).expect("it can be opened");
        first.set_len(Bytes(len)).expect("there is room");
        drop(first);
        let late = hw
            .open_file(early, Access::ReadWrite)
            .expect("it is closed");
        assert_eq!(late.pages(), len.div_ceil(4096));
        let last = usize::try_from(len - 1).expect("a few pages");
        map(&hw, &late).write(late.pages() - 1).expect("memory")[last % 4096] = 9;
        late.sync().expect("there is room");
        let stored = fs::read(source.path()).expect("it is read");
        assert_eq!((stored.len(), stored[last]), (last + 1, 9));
        drop(late);
        assert_empty(&hw);
    }
}
