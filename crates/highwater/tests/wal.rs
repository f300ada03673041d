//! Promise: no page is written back before the log of its last change is durable, and a log that
//! fails, panics or stands still costs an error, and no data.

mod support;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use highwater::frame::Tunables;
use highwater::units::{FilePage, PAGE_BYTES};
use highwater::{
    Access, Background, Backing, Bytes, File, Manager, Mapping, OutOfMemory, Pages, ReadError,
    SyncError, WriteBackError, WriteGate,
};
use support::{TestFile, assert_empty};

/// How a log takes a request to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Flushes,
    Fails,
    Panics,
    StandsStill,
}

#[derive(Debug)]
struct Log {
    last: AtomicU64,
    durable: AtomicU64,
    mood: Mutex<Mood>,
    /// Calls of `flush`.
    asked: AtomicU64,
    /// A mapping whose resident pages another thread latches during each flush.
    probed: Mutex<Option<Mapping>>,
}

impl Log {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            last: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            mood: Mutex::new(Mood::Flushes),
            asked: AtomicU64::new(0),
            probed: Mutex::new(None),
        })
    }

    fn be(&self, mood: Mood) {
        *self.mood.lock().expect("no panic under the lock") = mood;
    }

    fn append(&self) -> u64 {
        self.last.fetch_add(1, SeqCst) + 1
    }

    fn asked(&self) -> u64 {
        self.asked.load(SeqCst)
    }
}

impl WriteGate for Log {
    fn durable_lsn(&self) -> u64 {
        self.durable.load(SeqCst)
    }

    fn flush(&self, lsn: u64) -> io::Result<()> {
        self.asked.fetch_add(1, SeqCst);
        let probed = self.probed.lock().expect("no panic under the lock").clone();
        if let Some(map) = probed {
            assert_none_latched(map);
        }
        let mood = *self.mood.lock().expect("no panic under the lock");
        match mood {
            Mood::Flushes => _ = self.durable.fetch_max(lsn, SeqCst),
            Mood::Fails => return Err(io::ErrorKind::StorageFull.into()),
            Mood::Panics => panic!("as told"),
            Mood::StandsStill => {}
        }
        Ok(())
    }
}

/// Storage that counts the pages that come before their log: a page's LSN is in its second word.
#[derive(Debug)]
struct Checked {
    file: Arc<TestFile>,
    log: Arc<Log>,
    ahead: AtomicU64,
    len: AtomicU64,
    /// How far the log was durable when the length was changed last.
    durable_at_cut: AtomicU64,
}

impl Backing for Checked {
    fn len(&self) -> u64 {
        self.len.load(SeqCst)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.durable_at_cut.store(self.log.durable_lsn(), SeqCst);
        self.len.store(len, SeqCst);
        Ok(())
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_page(page, buf)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        let is_ahead = lsn_of(buf) > self.log.durable_lsn();
        self.ahead.fetch_add(u64::from(is_ahead), SeqCst);
        self.file.write_page(page, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

fn lsn_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"))
}

/// A manager, and a mapping of a file with a log.
struct Scene {
    hw: Manager,
    storage: Arc<Checked>,
    log: Arc<Log>,
    file: File,
    map: Mapping,
}

impl Scene {
    fn new(hw: Manager, pages: u64) -> Self {
        let (log, file) = (Log::new(), TestFile::new(pages));
        for page in file
            .pages
            .lock()
            .expect("no panic under the lock")
            .iter_mut()
        {
            page[8..16].fill(0);
        }
        let storage = Arc::new(Checked {
            len: AtomicU64::new(file.len()),
            durable_at_cut: AtomicU64::new(0),
            file,
            log: Arc::clone(&log),
            ahead: AtomicU64::new(0),
        });
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let file = hw
            .open_backing(backing, Access::ReadWrite)
            .expect("one file");
        file.set_write_gate(Arc::clone(&log) as Arc<dyn WriteGate>);
        let map = hw.space(&hw.root()).map_file(&file, 0..pages);
        Self {
            map: map.expect("the whole file"),
            hw,
            storage,
            log,
            file,
        }
    }

    fn write(&self, page: u64) -> Result<u64, ReadError> {
        let mut bytes = self.map.write(page)?;
        let lsn = self.log.append();
        bytes[8..16].copy_from_slice(&lsn.to_le_bytes());
        bytes.set_lsn(lsn);
        Ok(lsn)
    }

    fn stored(&self, page: usize) -> u64 {
        let pages = self.storage.file.pages.lock();
        lsn_of(&pages.expect("no panic under the lock")[page])
    }

    fn nr_blocked(&self) -> u64 {
        self.hw.snapshot().counter("nr_wal_blocked")
    }

    /// Everything written is in storage, and none was before its log; everything is released.
    fn end(self, last: &[u64]) {
        self.log.be(Mood::Flushes);
        self.file
            .sync()
            .expect("the log flushes, and storage takes pages");
        for (page, &lsn) in last.iter().enumerate() {
            assert_eq!(self.stored(page), lsn, "page {page}");
        }
        assert_eq!(
            self.storage.ahead.load(SeqCst),
            0,
            "pages ahead of their log"
        );
        *self.log.probed.lock().expect("no panic under the lock") = None;
        let Self { hw, file, map, .. } = self;
        drop((map, file));
        assert_empty(&hw);
    }
}

/// A manager of 64 pages, all of which may be dirty.
fn quiet(background: Background) -> Manager {
    let tunables = Tunables::default();
    let tunables = tunables.with("dirty_ratio", 100).expect("in range");
    let tunables = tunables
        .with("dirty_background_ratio", 100)
        .expect("in range");
    let hw = Manager::builder().capacity(Pages(64).bytes());
    let hw = hw.tunables(tunables).background(background);
    hw.build().expect("a manager")
}

/// Asserts that another thread can latch every resident page.
fn assert_none_latched(map: Mapping) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        (0..map.pages()).for_each(|page| drop(map.try_read_latched(page)));
        done.send(())
    });
    let within = is_done.recv_timeout(Duration::from_secs(60));
    assert!(within.is_ok(), "a latch is held while the log is asked");
}

#[test]
fn write_back_skips_pages_whose_log_is_not_durable() {
    // Goal: background write-back takes no page ahead of its log, counts what it skips, writes what
    // it may, and asks only if nothing else is left to write. Method: pages of three LSNs, and a
    // log that stands still, at the second, and flushes.
    let tunables = Tunables::default();
    let tunables = tunables
        .with("dirty_expire_centisecs", 0)
        .expect("in range");
    let hw = Manager::builder()
        .capacity(Pages(64).bytes())
        .tunables(tunables);
    let hw = hw.background(Background::Off).build().expect("a manager");
    let scene = Scene::new(hw, 8);
    scene.log.be(Mood::StandsStill);
    let last: Vec<u64> = (0..3)
        .map(|page| scene.write(page).expect("memory"))
        .collect();
    scene.map.write(3).expect("memory")[100] = 1; // not logged: nothing to wait for
    assert_eq!(scene.hw.writeback_tick(), Pages(1));
    assert_eq!((scene.nr_blocked(), scene.log.asked()), (3, 0));
    scene.log.durable.store(last[1], SeqCst);
    assert_eq!(scene.hw.writeback_tick(), Pages(2));
    assert_eq!((scene.nr_blocked(), scene.log.asked()), (4, 0));
    assert_eq!(scene.hw.writeback_tick(), Pages::ZERO);
    assert_eq!(scene.log.asked(), 1);
    scene.log.be(Mood::Flushes);
    assert_eq!(scene.hw.writeback_tick(), Pages(1));
    assert_eq!((scene.log.asked(), scene.log.durable_lsn()), (2, last[2]));
    scene.hw.check_invariants();
    scene.end(&last);
}

#[test]
fn a_sync_asks_the_log_once_and_writes_everything() {
    let scene = Scene::new(quiet(Background::Off), 20);
    *scene.log.probed.lock().expect("no panic under the lock") = Some(scene.map.clone());
    let last: Vec<u64> = (0..20)
        .map(|page| scene.write(page).expect("memory"))
        .collect();
    scene.file.sync().expect("all is well");
    assert_eq!((scene.log.asked(), scene.log.durable_lsn()), (1, 20));
    assert_eq!(scene.stored(19), 20);
    scene.file.sync().expect("nothing is left");
    assert_eq!(scene.log.asked(), 1);
    scene.end(&last);
}

#[test]
fn a_sync_without_the_log_fails_and_loses_nothing() {
    // Goal: each way in which a log misbehaves gives an error that says so, every page stays dirty,
    // and the next sync writes them.
    for mood in [Mood::Fails, Mood::Panics, Mood::StandsStill] {
        let scene = Scene::new(quiet(Background::Off), 20);
        scene.log.be(mood);
        let last: Vec<u64> = (0..20)
            .map(|page| scene.write(page).expect("memory"))
            .collect();
        let Err(SyncError::WriteBack { failed, first }) = scene.file.sync() else {
            panic!("{mood:?}: pages were written without their log");
        };
        assert_eq!(failed, 20);
        let text = first.to_string();
        match (mood, first) {
            (Mood::StandsStill, WriteBackError::LogBehind { durable, .. }) => {
                assert_eq!(durable, 0, "{text}");
            }
            (Mood::Panics, WriteBackError::Log { .. }) => {
                assert!(text.contains("panicked"), "{text}")
            }
            (Mood::Fails, WriteBackError::Log { source, .. }) => {
                assert_eq!(source.kind(), io::ErrorKind::StorageFull, "{text}");
            }
            (mood, first) => panic!("{mood:?}: {first:?}"),
        }
        assert!(scene.log.asked() <= 2, "asked {} times", scene.log.asked());
        assert_eq!(scene.hw.snapshot().counter("nr_dirty"), 20);
        scene.end(&last);
    }
}

#[test]
fn a_page_that_is_written_all_the_time_is_synced() {
    // Goal: a sync ends beside a writer that is faster than the log. Method: one page is written to
    // without a pause; the log is durable only as far as it is asked.
    let scene = Scene::new(quiet(Background::Off), 2);
    let ends = AtomicBool::new(false);
    let mut last = 0;
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut last = 0;
            while !ends.load(SeqCst) {
                last = scene.write(0).expect("memory");
            }
            last
        });
        for _ in 0..50 {
            let before = scene.log.last.load(SeqCst).saturating_sub(1);
            scene.file.sync().expect("the log flushes");
            assert!(
                scene.stored(0) >= before,
                "what was written before is stored"
            );
        }
        ends.store(true, SeqCst);
        last = writer.join().expect("it does not panic");
    });
    scene.end(&[last]);
}

#[test]
fn reclaim_of_pages_that_wait_asks_the_log_and_goes_on() {
    // Goal: a pool full of pages that wait for the log is reclaimed after one question, with no
    // latch held; without an answer a read fails, soon and with a reason, and all is well again
    // as soon as the log is.
    for background in [Background::Off, Background::Thread] {
        let scene = Scene::new(quiet(background), 500);
        *scene.log.probed.lock().expect("no panic under the lock") = Some(scene.map.clone());
        let mut last: Vec<u64> = (0..200)
            .map(|page| scene.write(page).expect("memory"))
            .collect();
        let asked = scene.log.asked();
        assert!((1..=200).contains(&asked), "asked {asked} times");
        for mood in [Mood::StandsStill, Mood::Fails, Mood::Panics] {
            scene.log.be(mood);
            let refused = loop {
                match scene.write(last.len() as u64) {
                    Ok(lsn) => last.push(lsn),
                    Err(refused) => break refused,
                }
            };
            let ReadError::NoMemory { source, .. } = refused else {
                panic!("{mood:?}: {refused}");
            };
            match source {
                OutOfMemory::Exhausted { write_failed, .. } => assert!(write_failed > 0),
                OutOfMemory::Charge(failed) => assert!(failed.write_failed > 0, "{failed}"),
                other => panic!("{mood:?}: {other}"),
            }
            scene.log.be(Mood::Flushes);
            last.push(
                scene
                    .write(last.len() as u64)
                    .expect("the log flushes again"),
            );
        }
        assert!(scene.nr_blocked() > 0);
        scene.end(&last);
    }
}

#[test]
fn an_lsn_ends_with_its_page() {
    // Method: a page of a high LSN is written back and evicted; the next page in its frame is
    // written without an LSN, while the log stands still.
    let scene = Scene::new(quiet(Background::Off), 300);
    let mut last = vec![scene.write(0).expect("memory")];
    scene.file.sync().expect("the log flushes");
    scene.hw.drop_caches();
    scene.log.be(Mood::StandsStill);
    for page in 1..60 {
        scene.map.write(page).expect("memory")[100] = 1;
    }
    scene.file.sync().expect("nothing waits for the log");
    assert_eq!((scene.nr_blocked(), scene.log.asked()), (1, 1));
    last.push(0);
    scene.end(&last);
}

// Goal: what a shrink takes from storage may be elsewhere by records of the log, which are durable
// before. Method: a page behind the new end, and one that holds it, are changed; storage looks at
// the log when its length changes. A change before the end asks for nothing.
#[test]
fn a_shrink_waits_for_the_log_of_what_it_cuts() {
    let scene = Scene::new(quiet(Background::Off), 8);
    scene.write(1).unwrap();
    scene.file.set_len(Bytes(7 * PAGE_BYTES)).unwrap();
    assert_eq!(scene.log.asked(), 0, "nothing that was changed is cut");
    for (page, len) in [(5, 5 * PAGE_BYTES), (4, 4 * PAGE_BYTES + 100)] {
        let lsn = scene.write(page).unwrap();
        scene.file.set_len(Bytes(len)).unwrap();
        let durable = scene.storage.durable_at_cut.load(SeqCst);
        assert!(durable >= lsn, "page {page}: {durable} of {lsn}");
    }
    let Scene { hw, file, map, .. } = scene;
    drop((map, file));
    assert_empty(&hw);
}

// Goal: a log that does not become durable is an error of the shrink, and nothing is cut. Method:
// each way of a log to refuse; then it flushes.
#[test]
fn a_shrink_that_the_log_refuses_changes_nothing() {
    for mood in [Mood::Fails, Mood::Panics, Mood::StandsStill] {
        let scene = Scene::new(quiet(Background::Off), 8);
        let lsn = scene.write(5).unwrap();
        scene.log.be(mood);
        let len = Bytes(4 * PAGE_BYTES);
        scene.file.set_len(len).unwrap_err();
        assert_eq!(
            (scene.file.pages(), scene.storage.len()),
            (8, 8 * PAGE_BYTES),
            "{mood:?}"
        );
        assert_eq!(lsn_of(&scene.map.read_latched(5).unwrap()), lsn, "{mood:?}");
        assert_eq!(scene.file.dirty_pages().len(), 1, "{mood:?}");
        scene.log.be(Mood::Flushes);
        scene.file.set_len(len).unwrap();
        assert!(
            scene.map.read_latched(5).is_err(),
            "{mood:?}: behind the end"
        );
        let Scene { hw, file, map, .. } = scene;
        drop((map, file));
        assert_empty(&hw);
    }
}

// Goal: a panic before storage has taken a length changes nothing. Method: the thread holds a page
// behind the new end, which debug builds detect.
#[test]
#[cfg(debug_assertions)]
fn a_shrink_that_panics_changes_nothing() {
    let scene = Scene::new(quiet(Background::Off), 8);
    let held = scene.map.write(5).unwrap();
    let shrink = || scene.file.set_len(Bytes(4 * PAGE_BYTES));
    let shrunk = std::panic::catch_unwind(std::panic::AssertUnwindSafe(shrink));
    assert!(shrunk.is_err(), "it would wait for itself");
    drop(held);
    assert_eq!(scene.file.pages(), 8);
    scene.map.read_latched(5).unwrap();
    scene.file.set_len(Bytes(4 * PAGE_BYTES)).unwrap();
}
