//! Loom models of the page cache's protocols, with two or three threads: filling, looking up,
//! evicting, borrowing and writing one page.

use ::loom::{model, thread};

use super::{
    Access, Backing, EvictBatch, FileEntry, Kept, PageCache, PageKey, Presence, SyncError, ToldOf,
    WriteGate, WrittenBack,
};
use crate::memmap::FrameMemory;
use crate::percpu::Regime;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::sync::{Arc, Woken};
use crate::topology::Topology;
use crate::units::{FilePage, GroupId, PAGE_BYTES, Pages, Pfn};

/// Storage that no model reads.
#[derive(Debug)]
pub(crate) struct Nothing;

impl Backing for Nothing {
    fn len(&self) -> u64 {
        PAGE_BYTES
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn write_page(&self, _: FilePage, buf: &[u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Storage of one byte whose sync makes durable the value that it sees. Relaxed: the cache has to
/// order the two.
#[derive(Debug)]
struct Relayed {
    written: AtomicU8,
    durable: AtomicU8,
}

impl Backing for Relayed {
    fn len(&self) -> u64 {
        PAGE_BYTES
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn write_page(&self, _: FilePage, buf: &[u8]) -> std::io::Result<usize> {
        self.written.store(buf[0], Ordering::Relaxed);
        Ok(buf.len())
    }
    fn sync(&self) -> std::io::Result<()> {
        let written = self.written.load(Ordering::Relaxed);
        self.durable.store(written, Ordering::Relaxed);
        Ok(())
    }
}

/// Storage that has failed, and reports it to one sync.
#[derive(Debug)]
struct TellsOne {
    has_failed: AtomicBool,
}

impl Backing for TellsOne {
    fn len(&self) -> u64 {
        PAGE_BYTES
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn write_page(&self, _: FilePage, buf: &[u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn sync(&self) -> std::io::Result<()> {
        match self.has_failed.swap(false, Ordering::Relaxed) {
            true => Err(std::io::Error::from_raw_os_error(5 /* EIO */)),
            false => Ok(()),
        }
    }
}

/// A cache of two frames, and the first page of one file.
pub(super) struct Scene {
    pub(super) memory: Arc<FrameMemory>,
    pub(super) cache: PageCache,
    file: Arc<FileEntry>,
    pub(super) key: PageKey,
}

impl Scene {
    pub(super) fn new(access: Access) -> Arc<Self> {
        Self::over(Arc::new(Nothing), access)
    }

    fn over(backing: Arc<dyn Backing>, access: Access) -> Arc<Self> {
        let memory = Arc::new(FrameMemory::new(Pages(2)).unwrap());
        let cache = PageCache::new(Arc::clone(&memory), &Topology::flat(1), Regime::Atomic);
        let file = cache.open(backing, access).unwrap();
        let key = PageKey::new(file.id(), 0);
        Arc::new(Self {
            memory,
            cache,
            file,
            key,
        })
    }

    /// Reads the page into a frame, as the manager does; false if another thread was first.
    fn fill(&self, pfn: u32, byte: u8) -> bool {
        self.fill_with(self.key, pfn, byte)
    }

    fn write_back(&self) -> Result<WrittenBack, super::WriteBackError> {
        self.cache.try_write_back(Pfn(0), &mut Woken::default())
    }

    /// Writes the first byte of a resident page.
    fn write(&self, key: PageKey, byte: u8) {
        let mut page = self.cache.try_write(key).unwrap();
        page.bytes_mut(&self.cache)[0] = byte;
    }

    fn fill_with(&self, key: PageKey, pfn: u32, byte: u8) -> bool {
        let frame = self.memory.claim(Pfn(pfn));
        match self.cache.begin_fill(key, frame, GroupId(0)) {
            Ok(mut filling) => {
                self.cache.filling_bytes(&mut filling)[0] = byte;
                self.cache.finish_fill(filling);
                self.file.note_filled();
                true
            }
            Err(frame) => {
                self.memory.surrender(frame);
                false
            }
        }
    }

    fn sync(&self, told: &ToldOf) -> Result<(), SyncError> {
        let before = self.file.failures_before();
        let dirty = self.cache.dirty_pages_of(self.file.id());
        let written = self.cache.write_back_pages(&dirty);
        written.all_written()?;
        self.cache.make_durable(&self.file, told, before)
    }

    /// Evicts the page from a frame; returns why it was kept otherwise.
    fn evict(&self, pfn: u32) -> Result<(), Kept> {
        let mut batch = EvictBatch::default();
        self.cache.evict(&[Pfn(pfn)], &mut batch);
        let Some(evicted) = batch.evicted.pop() else {
            return Err(batch.kept[0].1);
        };
        // The next owner of the frame writes it.
        let mut frame = evicted.frame;
        self.memory.bytes_mut(&mut frame)[0] = 99;
        self.memory.surrender(frame);
        Ok(())
    }
}

#[test]
fn a_waiter_sees_the_filled_page() {
    model(|| {
        let scene = Scene::new(Access::ReadOnly);
        let filler = Arc::clone(&scene);
        let filler = thread::spawn(move || assert!(filler.fill(0, 1)));
        if let Presence::Resident(pfn) = scene.cache.lookup(scene.key) {
            let reader = scene.memory.reader(scene.memory.seat());
            let bytes = scene.cache.try_read_at(&reader, scene.key, pfn).unwrap();
            assert_eq!(bytes[0], 1);
        }
        filler.join().unwrap();
        assert_eq!(scene.cache.lookup(scene.key), Presence::Resident(Pfn(0)));
    });
}

#[test]
fn a_waiter_is_woken_when_a_fill_is_given_up() {
    model(|| {
        let scene = Scene::new(Access::ReadOnly);
        let frame = scene.memory.claim(Pfn(0));
        let filling = scene
            .cache
            .begin_fill(scene.key, frame, GroupId(0))
            .unwrap();
        let waiter = Arc::clone(&scene);
        let waiter = thread::spawn(move || waiter.cache.lookup(waiter.key));
        scene
            .memory
            .surrender(scene.cache.abort_fill_and(filling, &mut Woken::default()));
        assert_eq!(waiter.join().unwrap(), Presence::Absent);
    });
}

#[test]
fn one_of_two_fillers_fills() {
    model(|| {
        let scene = Scene::new(Access::ReadOnly);
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || other.fill(1, 2));
        let mine = scene.fill(0, 1);
        assert!(mine ^ other.join().unwrap());
        assert_eq!(scene.memory.count_free(), Pages(1));
    });
}

#[test]
fn a_borrowed_page_is_not_evicted() {
    model(|| {
        let scene = Scene::new(Access::ReadOnly);
        assert!(scene.fill(0, 1));
        let reclaimer = Arc::clone(&scene);
        let reclaimer = thread::spawn(move || reclaimer.evict(0));
        {
            let reader = scene.memory.reader(scene.memory.seat());
            if let Some(bytes) = scene.cache.try_read(&reader, scene.key) {
                thread::yield_now();
                assert_eq!(bytes[0], 1);
            }
        }
        match reclaimer.join().unwrap() {
            Ok(()) => assert_eq!(scene.cache.lookup(scene.key), Presence::Absent),
            Err(kept) => {
                assert_eq!(kept, Kept::Borrowed);
                assert_eq!(scene.cache.lookup(scene.key), Presence::Resident(Pfn(0)));
            }
        }
    });
}

#[test]
fn one_of_two_reclaimers_evicts() {
    model(|| {
        let scene = Scene::new(Access::ReadOnly);
        assert!(scene.fill(0, 1));
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || other.evict(0));
        let mine = scene.evict(0);
        let other = other.join().unwrap();
        assert!(mine.is_ok() ^ other.is_ok(), "{mine:?} {other:?}");
        assert_eq!(mine.and(other), Err(Kept::Busy));
    });
}

#[test]
fn a_write_is_never_evicted_unwritten() {
    model(|| {
        let scene = Scene::new(Access::ReadWrite);
        assert!(scene.fill(0, 1));
        let reclaimer = Arc::clone(&scene);
        let reclaimer = thread::spawn(move || reclaimer.evict(0));
        let page = scene.cache.try_write(scene.key);
        let wrote = page
            .map(|mut page| page.bytes_mut(&scene.cache)[0] = 7)
            .is_some();
        let evicted = reclaimer.join().unwrap();
        if wrote {
            assert!(
                matches!(evicted, Err(Kept::Dirty | Kept::Borrowed)),
                "{evicted:?}"
            );
            assert_eq!(scene.cache.try_read_latched(scene.key).unwrap()[0], 7);
            assert!(scene.cache.is_dirty(Pfn(0)));
        }
    });
}

#[test]
fn a_latch_is_not_taken_for_a_page_that_has_left() {
    // The frame is evicted and filled with another page of the file while a reader looks it up.
    model(|| {
        let scene = Scene::new(Access::ReadWrite);
        assert!(scene.fill(0, 1));
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            if other.evict(0).is_ok() {
                let frame = other.memory.claim(Pfn(0));
                let key = PageKey::new(other.file.id(), 1);
                let mut filling = other.cache.begin_fill(key, frame, GroupId(0)).unwrap();
                other.cache.filling_bytes(&mut filling)[0] = 2;
                other.cache.finish_fill(filling);
            }
        });
        if let Some(page) = scene.cache.try_read_latched(scene.key) {
            assert_eq!(page[0], 1);
        }
        other.join().unwrap();
    });
}

#[test]
fn an_optimistic_read_is_of_its_own_page() {
    // Goal: a read that is valid shows the page, and bytes of one moment. Method: the page is
    // written, evicted, and another read into its frame, while a reader copies two bytes.
    model(|| {
        let scene = Scene::new(Access::ReadWrite);
        assert!(scene.fill(0, 1));
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            if let Some(mut page) = other.cache.try_write(other.key) {
                let bytes = page.bytes_mut(&other.cache);
                bytes[0] = 3;
                thread::yield_now();
                bytes[1] = 2;
            }
            if other.write_back().is_ok() && other.evict(0).is_ok() {
                assert!(other.fill_with(PageKey::new(other.file.id(), 1), 0, 9));
            }
        });
        if let Some(page) = scene.cache.glimpse_at(scene.key, Pfn(0)) {
            let mut bytes = [0; 2];
            page.copy_to(0, &mut bytes[..1]);
            thread::yield_now();
            page.copy_to(1, &mut bytes[1..]);
            if page.is_unchanged() {
                assert!(bytes == [1, 0] || bytes == [3, 2], "{bytes:?}");
            }
        }
        other.join().unwrap();
    });
}

#[test]
fn a_sync_makes_durable_what_reclaim_wrote_before_it_evicted() {
    // Goal: every page that was dirty when sync began is durable when it returns, wherever sync
    // finds the page: dirty, clean, gone, or replaced by another in its frame. Method: concurrent
    // reclaim writes back and evicts.
    model(|| {
        let storage = Arc::new(Relayed {
            written: AtomicU8::new(0),
            durable: AtomicU8::new(0),
        });
        let scene = Scene::over(Arc::clone(&storage) as Arc<dyn Backing>, Access::ReadWrite);
        assert!(scene.fill(0, 1));
        scene.write(scene.key, 7);
        let syncing = Arc::clone(&scene);
        let syncing = thread::spawn(move || {
            let told = syncing.file.told_of_failures();
            syncing.sync(&told).unwrap();
            assert_eq!(storage.durable.load(Ordering::Relaxed), 7);
        });
        if scene.write_back().is_ok() && scene.evict(0).is_ok() {
            let next = PageKey::new(scene.file.id(), 1);
            assert!(scene.fill_with(next, 0, 2));
        }
        syncing.join().unwrap();
    });
}

#[test]
fn a_failed_sync_is_told_to_each_handle_once() {
    // Goal: of two handles that sync concurrently, one gets the failure and the other reports it as
    // an earlier one, in that sync and in no other, whichever ends first.
    model(|| {
        let storage = TellsOne {
            has_failed: AtomicBool::new(true),
        };
        let scene = Scene::over(Arc::new(storage), Access::ReadWrite);
        let (mine, theirs) = (scene.file.told_of_failures(), scene.file.told_of_failures());
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            let result = other.sync(&theirs);
            (result, theirs)
        });
        let own = scene.sync(&mine);
        let (others, theirs) = other.join().unwrap();
        let met = |result: &Result<(), SyncError>| matches!(result, Err(SyncError::Durability(_)));
        let heard = |result: &Result<(), SyncError>| {
            matches!(result, Err(SyncError::Earlier { failures: 1, .. }))
        };
        let is_told = met(&own) && heard(&others) || met(&others) && heard(&own);
        assert!(is_told, "{own:?} {others:?}");
        assert!(scene.sync(&mine).is_ok());
        assert!(scene.sync(&theirs).is_ok());
    });
}

#[test]
fn latches_in_order_do_not_deadlock_over_a_reused_frame() {
    // Goal: a thread that waits for a latch waits for holders of that page, not of the next page in
    // its frame. Method: both threads take latches in the order 0, 1, 2; page 2 is evicted, and
    // page 0 is read into its frame, while one of them, which holds page 1, is about to take page
    // 2.
    model(|| {
        let scene = Scene::new(Access::ReadWrite);
        let key = |page| PageKey::new(scene.file.id(), page);
        let keys = [key(0), key(1), key(2)];
        assert!(scene.fill_with(keys[1], 0, 1));
        assert!(scene.fill_with(keys[2], 1, 2));
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            if other.evict(1).is_ok() {
                assert!(other.fill_with(keys[0], 1, 0));
                let first = other.cache.try_write(keys[0]);
                let second = other.cache.try_write(keys[1]);
                drop((second, first));
            }
        });
        let first = scene.cache.try_read_latched(keys[1]);
        let second = scene.cache.try_read_latched(keys[2]);
        drop((second, first));
        other.join().unwrap();
    });
}

/// Storage of one byte for each of two pages.
#[derive(Debug, Default)]
struct TwoBytes([AtomicU8; 2]);

impl Backing for TwoBytes {
    fn len(&self) -> u64 {
        2 * PAGE_BYTES
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> std::io::Result<usize> {
        self.0[usize::from(page == 1)].store(buf[0], Ordering::Relaxed);
        Ok(buf.len())
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn neighbours_that_are_written_together_are_dirty_or_in_their_file() {
    // Goal: no page is marked clean that is not in its file. Method: both pages are written to, the
    // later one first, beside write-back of both. One latch at a time: loom takes a thread that
    // only tries a lock for blocked if its holder waits (`without_waiting`).
    model(|| {
        let storage = Arc::new(TwoBytes::default());
        let scene = Scene::over(Arc::clone(&storage) as Arc<dyn Backing>, Access::ReadWrite);
        let keys = [0, 1].map(|page| PageKey::new(scene.file.id(), page));
        for (key, pfn) in keys.into_iter().zip([0, 1]) {
            assert!(scene.fill_with(key, pfn, 0));
            scene.write(key, 7);
        }
        let writer = Arc::clone(&scene);
        let writer = thread::spawn(move || {
            for key in [keys[1], keys[0]] {
                writer.write(key, 8);
            }
        });
        let dirty = scene.cache.dirty_pages_of(scene.file.id());
        let outcome = scene.cache.write_back_pages(&dirty);
        writer.join().unwrap();
        assert_eq!((outcome.nr_failed, outcome.nr_latched), (0, 0));
        for (pfn, stored) in [Pfn(0), Pfn(1)].into_iter().zip(&storage.0) {
            let stored = stored.load(Ordering::Relaxed);
            assert!(stored == 8 || scene.cache.is_dirty(pfn) && stored == 7);
        }
        scene.cache.check_invariants();
    });
}

/// Storage and log of a page that holds the LSN of its last change. Relaxed: the cache has to order
/// the two.
#[derive(Debug, Default)]
struct Logged {
    durable: AtomicU8,
    is_ahead: AtomicBool,
}

impl Backing for Logged {
    fn len(&self) -> u64 {
        PAGE_BYTES
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn write_page(&self, _: FilePage, buf: &[u8]) -> std::io::Result<usize> {
        if self.durable.load(Ordering::Relaxed) < buf[0] {
            self.is_ahead.store(true, Ordering::Relaxed);
        }
        Ok(buf.len())
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

impl WriteGate for Logged {
    fn durable_lsn(&self) -> u64 {
        u64::from(self.durable.load(Ordering::Relaxed))
    }
    fn flush(&self, lsn: u64) -> std::io::Result<()> {
        let lsn = u8::try_from(lsn).unwrap();
        self.durable.fetch_max(lsn, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn no_page_is_written_before_its_log() {
    // Goal: whichever thread has asked the log, and however often the page is changed, the storage
    // sees a log that has the page's LSN. Method: one thread asks the log when the page is held up,
    // beside another that changes the page and writes it back; then a sync, which misses nothing.
    model(|| {
        let storage = Arc::new(Logged::default());
        let scene = Scene::over(Arc::clone(&storage) as Arc<dyn Backing>, Access::ReadWrite);
        let gate: Arc<dyn WriteGate> = storage.clone();
        assert!(scene.file.set_gate(gate));
        assert!(scene.fill(0, 0));
        let change = |scene: &Scene, lsn: u8| {
            let mut page = scene.cache.try_write(scene.key).unwrap();
            page.bytes_mut(&scene.cache)[0] = lsn;
            page.set_lsn(u64::from(lsn), &scene.cache);
        };
        change(&scene, 1);
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            change(&other, 2);
            other.write_back().unwrap()
        });
        if scene.write_back().unwrap() == WrittenBack::HeldUp {
            assert!(scene.cache.ask_logs());
            scene.write_back().unwrap();
        }
        other.join().unwrap();
        let dirty = scene.cache.dirty_pages_of(scene.file.id());
        let outcome = scene.cache.write_back_pages(&dirty);
        let held_up = &outcome.held_up;
        let outcome = scene.cache.write_back_held_up(&scene.file, held_up);
        outcome.all_written().unwrap();
        assert!(!storage.is_ahead.load(Ordering::Relaxed));
        assert!(!scene.cache.is_dirty(Pfn(0)));
        scene.cache.check_invariants();
    });
}

/// Storage of two pages whose second one loses its contents when the file is shortened.
#[derive(Debug)]
struct Shortened {
    len: AtomicU64,
    second: AtomicU8,
}

impl Backing for Shortened {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        // A read-modify-write: a read of storage returns what was last written.
        buf[0] = self.second.fetch_add(0, Ordering::SeqCst);
        Ok(buf.len())
    }
    fn write_page(&self, _: FilePage, buf: &[u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        if len <= PAGE_BYTES {
            self.second.store(0, Ordering::SeqCst);
        }
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_fill_beside_a_shrink_brings_nothing_back() {
    // Goal: the contents that a file has lost are not there when it grows again. Method: a fill of
    // the lost page, as the manager does it, beside a shrink and a growth.
    model(|| {
        let storage = Arc::new(Shortened {
            len: AtomicU64::new(2 * PAGE_BYTES),
            second: AtomicU8::new(7),
        });
        let scene = Scene::over(Arc::clone(&storage) as Arc<dyn Backing>, Access::ReadWrite);
        let key = PageKey::new(scene.file.id(), 1);
        let filler = Arc::clone(&scene);
        let filler = thread::spawn(move || {
            let frame = filler.memory.claim(Pfn(0));
            let mut filling = filler.cache.begin_fill(key, frame, GroupId(0)).unwrap();
            if filler.file.pages_for_fill() < 2 {
                let woken = &mut Woken::default();
                let frame = filler.cache.abort_fill_and(filling, woken);
                filler.memory.surrender(frame);
                return;
            }
            let bytes = filler.cache.filling_bytes(&mut filling);
            storage.read_page(FilePage(1), bytes).unwrap();
            filler.cache.finish_fill(filling);
        });
        scene.cache.resize(&scene.file, PAGE_BYTES).unwrap();
        scene.cache.resize(&scene.file, 2 * PAGE_BYTES).unwrap();
        filler.join().unwrap();
        if let Some(page) = scene.cache.try_read_latched(key) {
            assert_eq!(page[0], 0, "the file has lost it");
        }
    });
}
