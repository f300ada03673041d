//! Loom models of swap slots, with two or three threads: swapping out, reading in, writing again,
//! discarding, evicting, and the end of the object.

use ::loom::{model, thread};

use super::super::*;
use crate::sync::atomic::AtomicU8;
use crate::units::{FilePage, PAGE_BYTES, PAGE_SIZE};

/// Slots of one byte each. Relaxed: the cache has to order writers and readers of a slot.
#[derive(Debug)]
struct Bytes([AtomicU8; 2]);

impl Backing for Bytes {
    fn len(&self) -> u64 {
        self.0.len() as u64 * PAGE_BYTES
    }
    fn read_page(&self, FilePage(slot): FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        buf.fill(0);
        buf[0] = self.0[usize::from(slot > 0)].load(Ordering::Relaxed);
        Ok(buf.len())
    }
    fn write_page(&self, FilePage(slot): FilePage, buf: &[u8]) -> std::io::Result<usize> {
        self.0[usize::from(slot > 0)].store(buf[0], Ordering::Relaxed);
        Ok(buf.len())
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One slot.
#[derive(Debug)]
struct OneSlot(Bytes);

impl Backing for OneSlot {
    fn len(&self) -> u64 {
        PAGE_BYTES
    }
    fn read_page(&self, slot: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.read_page(slot, buf)
    }
    fn write_page(&self, slot: FilePage, buf: &[u8]) -> std::io::Result<usize> {
        self.0.write_page(slot, buf)
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

fn bytes() -> Bytes {
    Bytes([AtomicU8::new(0), AtomicU8::new(0)])
}

/// A cache of three frames, and memory of two pages: page 0 in frame 0, dirty.
struct Scene {
    memory: Arc<FrameMemory>,
    cache: PageCache,
    file: Arc<FileEntry>,
}

impl Scene {
    fn new(storage: Arc<dyn Backing>) -> Arc<Self> {
        let memory = Arc::new(FrameMemory::new(Pages(3)).unwrap());
        let cache = PageCache::new(Arc::clone(&memory), &Topology::flat(1), Regime::Atomic)
            .swapping_to(Some(SwapArea::on(storage)));
        let file = cache.open_memory(Pages(2), FileKind::Anon).unwrap();
        let scene = Self {
            memory,
            cache,
            file,
        };
        assert!(scene.read_in(0, 0));
        scene.write(0, 7).unwrap();
        Arc::new(scene)
    }

    fn key(&self, page: u64) -> PageKey {
        self.file.key(page)
    }

    /// Reads a page into a frame, as the manager does; false if another thread was first.
    fn read_in(&self, page: u64, pfn: u32) -> bool {
        let frame = self.memory.claim(Pfn(pfn));
        match self.cache.begin_fill(self.key(page), frame, GroupId(0)) {
            Ok(mut filling) => {
                let bytes = self.cache.filling_bytes(&mut filling);
                let got = self.file.backing().read_page(FilePage(page), bytes);
                assert_eq!(got.unwrap(), PAGE_SIZE);
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

    fn write(&self, page: u64, byte: u8) -> Option<()> {
        let mut page = self.cache.try_write(self.key(page))?;
        page.bytes_mut(&self.cache)[0] = byte;
        Some(())
    }

    fn read(&self, page: u64) -> Option<u8> {
        Some(self.cache.try_read_latched(self.key(page))?[0])
    }

    /// Evicts the page in a frame; returns whether it was evicted.
    fn evict(&self, pfn: u32) -> bool {
        let mut batch = EvictBatch::default();
        self.cache.evict(&[Pfn(pfn)], &mut batch);
        let evicted = batch.evicted.pop();
        evicted
            .map(|evicted| self.memory.surrender(evicted.frame))
            .is_some()
    }

    fn swap_out(&self, pfn: u32) -> WrittenBack {
        self.cache
            .try_write_back(Pfn(pfn), &mut Woken::default())
            .unwrap()
    }

    fn used(&self) -> u64 {
        self.cache.swap().unwrap().used().0
    }

    /// Checks that a page has a slot if and only if it needs one.
    fn check(&self) {
        self.cache.check_invariants();
    }
}

#[test]
fn a_page_that_goes_to_swap_comes_back() {
    // Goal: a thread that finds the page absent reads the written bytes. Method: reclaim swaps out
    // and evicts while another thread reads, from the frame or from swap.
    model(|| {
        let scene = Scene::new(Arc::new(bytes()));
        let reclaimer = Arc::clone(&scene);
        let reclaimer = thread::spawn(move || {
            reclaimer.swap_out(0);
            reclaimer.evict(0);
        });
        if scene.cache.lookup(scene.key(0)) == Presence::Absent {
            assert!(scene.read_in(0, 1));
            assert_eq!(scene.read(0), Some(7));
        } else if let Some(byte) = scene.read(0) {
            assert_eq!(byte, 7);
        }
        reclaimer.join().unwrap();
        scene.check();
        assert!(scene.used() == 1 || scene.read(0) == Some(7));
    });
}

#[test]
fn a_page_that_is_written_again_has_no_slot() {
    // Goal: a slot's contents are never taken for the page's once the page was written again; they
    // stay valid if the write came too late. Method: a page that is clean in a frame, with a slot,
    // is evicted while it is written.
    model(|| {
        let scene = Scene::new(Arc::new(bytes()));
        assert_eq!(scene.swap_out(0), WrittenBack::Written);
        let reclaimer = Arc::clone(&scene);
        let reclaimer = thread::spawn(move || reclaimer.evict(0));
        let wrote = scene.write(0, 8).is_some();
        let went = reclaimer.join().unwrap();
        assert!(!(wrote && went), "both wrote and evicted");
        scene.check();
        assert_eq!(scene.used(), u64::from(!wrote));
        if went {
            assert!(scene.read_in(0, 1));
        }
        assert_eq!(scene.read(0), Some(if wrote { 8 } else { 7 }));
    });
}

#[test]
fn a_page_that_is_discarded_while_it_is_read_in_is_zeros() {
    // Goal: after a discard no read returns the former contents, nor those that another page wrote
    // to the slot. Method: the page is read in beside the discard, while the other page is swapped
    // out: to the slot that is free by then, or another.
    model(|| {
        let scene = Scene::new(Arc::new(bytes()));
        assert_eq!(scene.swap_out(0), WrittenBack::Written);
        assert!(scene.evict(0) && scene.read_in(1, 1));
        scene.write(1, 9).unwrap();
        let [reader, discarder] = [(); 2].map(|()| Arc::clone(&scene));
        let reader = thread::spawn(move || {
            if reader.read_in(0, 0) {
                let byte = reader.read(0);
                assert!(byte == Some(7) || byte == Some(0), "{byte:?}");
            }
        });
        let discarder = thread::spawn(move || {
            let (file, cache) = (&discarder.file, &discarder.cache);
            cache.discard(file, FilePage(0)..FilePage(1), Discard::Wait, |_| false);
        });
        assert_eq!(scene.swap_out(1), WrittenBack::Written);
        reader.join().unwrap();
        discarder.join().unwrap();
        scene.check();
        assert_eq!((scene.read(0), scene.used()), (Some(0), 1));
    });
}

#[test]
fn memory_that_ends_has_no_slots() {
    // Goal: when an object has ended no slot is in use, whatever reclaim was doing with its pages.
    // Method: the end beside swapping out and evicting.
    model(|| {
        let scene = Scene::new(Arc::new(bytes()));
        let reclaimer = Arc::clone(&scene);
        let reclaimer = thread::spawn(move || {
            reclaimer.swap_out(0);
            reclaimer.evict(0);
        });
        scene.cache.discard_all(&scene.file);
        assert_eq!(scene.used(), 0);
        reclaimer.join().unwrap();
        assert_eq!(scene.used(), 0);
        scene.check();
    });
}

#[test]
fn the_last_slot_is_one_pages() {
    // Goal: of two pages that are swapped out concurrently one gets the only slot, and the other
    // stays. Method: both beside each other; the one with the slot is evicted and read back.
    model(|| {
        let scene = Scene::new(Arc::new(OneSlot(bytes())));
        assert!(scene.read_in(1, 1));
        scene.write(1, 9).unwrap();
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || other.swap_out(1));
        let both = [scene.swap_out(0), other.join().unwrap()];
        scene.check();
        assert_eq!(scene.used(), 1);
        let (page, byte) = match both {
            [WrittenBack::Written, WrittenBack::NoSlot] => (0, 7),
            [WrittenBack::NoSlot, WrittenBack::Written] => (1, 9),
            both => panic!("{both:?}"),
        };
        assert!(scene.evict(page) && !scene.evict(1 - page));
        assert!(scene.read_in(page.into(), 2));
        assert_eq!(scene.read(page.into()), Some(byte));
    });
}

#[test]
fn a_page_that_is_written_while_it_is_written_back_is_dirty_or_in_its_file() {
    // Goal: a mark is cleared only of bytes that the file has; counts follow the marks. Method: a
    // page of a file is written to beside write-back by two threads, one that waits for its latch
    // and one that does not.
    model(|| {
        let memory = Arc::new(FrameMemory::new(Pages(1)).unwrap());
        let regime = Regime::Atomic;
        let cache = PageCache::new(Arc::clone(&memory), &Topology::flat(1), regime);
        let storage = Arc::new(OneSlot(bytes()));
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let file = cache.open(backing, Access::ReadWrite).unwrap();
        let filling = cache.begin_fill(file.key(0), memory.claim(Pfn(0)), GroupId(0));
        cache.finish_fill(filling.unwrap());
        let mut page = cache.try_write(file.key(0)).unwrap();
        page.bytes_mut(&cache)[0] = 7;
        drop(page);
        let cache = Arc::new(cache);
        let other = Arc::clone(&cache);
        let key = file.key(0);
        let other = thread::spawn(move || other.write_back_pages(&[(key, Pfn(0))]).nr_written);
        let mut written = u64::from(
            cache.try_write_back(Pfn(0), &mut Woken::default()).unwrap() == WrittenBack::Written,
        );
        let mut page = cache.try_write(file.key(0)).unwrap();
        page.bytes_mut(&cache)[0] = 8;
        drop(page);
        written += other.join().unwrap();
        let is_dirty = cache.is_dirty(Pfn(0));
        assert_eq!(cache.nr_dirty(), Pages(u64::from(is_dirty)));
        assert_eq!(cache.dirty_events().nr_written, written);
        assert!(is_dirty || storage.0.0[0].load(Ordering::Relaxed) == 8);
        cache.check_invariants();
    });
}
