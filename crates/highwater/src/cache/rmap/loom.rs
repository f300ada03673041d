//! Loom models of mapping, evicting and unmapping one page, with two to four threads: installing an
//! entry against eviction by a snapshot, both against unmapping, and reading by a stale entry.

use ::loom::{model, thread};

use super::super::loom::Nothing;
use super::super::*;
use crate::group::GroupTree;
use crate::units::{FilePage, MapPage};

/// A cache of two frames, the first two pages of one file mapped by one area; page 0 is resident in
/// frame 0.
struct Scene {
    memory: Arc<FrameMemory>,
    cache: PageCache,
    file: Arc<FileEntry>,
    groups: GroupTree,
    area: Arc<VmArea>,
}

impl Scene {
    fn new(access: Access) -> Arc<Self> {
        Self::counting(access, 1)
    }

    /// Creates a scene whose entries count up to `young_max` accesses.
    fn counting(access: Access, young_max: u32) -> Arc<Self> {
        let memory = Arc::new(FrameMemory::new(Pages(2)).unwrap());
        let cache = PageCache::new(Arc::clone(&memory), &Topology::flat(1), Regime::Atomic);
        let cache = cache.counting_accesses(young_max);
        let file = cache.open(Arc::new(Nothing), access).unwrap();
        let groups = GroupTree::with_regime(Regime::Atomic, 1);
        let area = map(&cache, &file, &groups);
        let scene = Self {
            memory,
            cache,
            file,
            groups,
            area,
        };
        scene.fill(0, 0, 1);
        Arc::new(scene)
    }

    /// Reads a page into a frame.
    fn fill(&self, page: u64, pfn: u32, byte: u8) {
        let frame = self.memory.claim(Pfn(pfn));
        let key = self.area.key(MapPage(page));
        let mut filling = self.cache.begin_fill(key, frame, GroupId(0)).unwrap();
        self.cache.filling_bytes(&mut filling)[0] = byte;
        self.cache.finish_fill(filling);
        self.file.note_filled();
    }

    /// Accesses page 0 through an area; returns the byte read.
    fn access(&self, area: &VmArea) -> Option<u8> {
        if self.file.id().is_writable() {
            let held = |key, pfn| self.cache.latch_at(key, pfn);
            return self
                .cache
                .hold_mapped(area, MapPage(0), held)
                .map(|page| page[0]);
        }
        let reader = self.memory.reader(self.memory.seat());
        let held = |key, pfn| self.cache.borrow_at(&reader, key, pfn);
        let read = area.borrow_young(&reader, MapPage(0));
        read.or_else(|| self.cache.hold_mapped(area, MapPage(0), held))
            .map(|page| page[0])
    }

    /// Unmaps and evicts the page in frame 0; returns why it was kept otherwise. The frame's next
    /// owner writes it.
    fn evict(&self) -> Result<(), Kept> {
        self.cache.unmap_page(Pfn(0), RmapAccess::Snapshot);
        let mut batch = EvictBatch::default();
        self.cache.evict(&[Pfn(0)], &mut batch);
        let Some(evicted) = batch.evicted.pop() else {
            return Err(batch.kept[0].1);
        };
        let mut frame = evicted.frame;
        self.memory.bytes_mut(&mut frame)[0] = 99;
        self.memory.surrender(frame);
        Ok(())
    }

    /// Returns the number of entries that name frame 0, which must agree with its mapcount and the
    /// resident set.
    fn check(&self, areas: &[&VmArea]) -> u32 {
        let named = areas.iter().filter(|area| {
            let entry = area.table.get(0).pfn();
            assert!(entry.is_none_or(|pfn| pfn == Pfn(0)));
            entry.is_some()
        });
        let named = u32::try_from(named.count()).unwrap();
        assert_eq!(self.cache.mapcount(Pfn(0)), named);
        let spaces = areas
            .iter()
            .map(|area| area.space().precise(RssMember::File).0);
        assert_eq!(spaces.sum::<u64>(), u64::from(named));
        named
    }
}

fn map(cache: &PageCache, file: &Arc<FileEntry>, groups: &GroupTree) -> Arc<VmArea> {
    cache.map(AreaSpec {
        file: Arc::clone(file),
        space: cache.open_space(),
        group: groups.root(),
        pages: FilePage(0)..FilePage(2),
        member: RssMember::File,
    })
}

fn evict_beside_an_access(access: Access) {
    let scene = Scene::new(access);
    let reclaimer = Arc::clone(&scene);
    let reclaimer = thread::spawn(move || reclaimer.evict());
    if let Some(byte) = scene.access(&scene.area) {
        assert_eq!(byte, 1);
    }
    let evicted = reclaimer.join().unwrap();
    let named = scene.check(&[&scene.area]);
    match evicted {
        Ok(()) => assert_eq!((named, scene.cache.key_of(Pfn(0))), (0, None)),
        Err(kept) => {
            assert!(matches!(kept, Kept::Borrowed | Kept::Mapped), "{kept:?}");
            assert_eq!(scene.access(&scene.area), Some(1));
        }
    }
}

#[test]
fn an_entry_installed_during_an_eviction_keeps_the_page() {
    // Goal: no entry names a frame that has lost its page (parts 1 to 3 of the argument). Method:
    // an access installs the page while it is unmapped and evicted.
    model(|| evict_beside_an_access(Access::ReadOnly));
}

#[test]
fn an_entry_installed_during_an_eviction_keeps_a_latched_page() {
    // Goal and method: as above, for a page held by a latch.
    model(|| evict_beside_an_access(Access::ReadWrite));
}

#[test]
fn an_area_that_is_mapped_during_an_eviction_is_not_missed() {
    // Goal: part 4 of the argument. Method: another space maps and accesses the page while it is
    // evicted by a snapshot that may be older.
    model(|| {
        let scene = Scene::new(Access::ReadOnly);
        assert_eq!(scene.access(&scene.area), Some(1));
        let reclaimer = Arc::clone(&scene);
        let reclaimer = thread::spawn(move || reclaimer.evict());
        let other = map(&scene.cache, &scene.file, &scene.groups);
        let byte = scene.access(&other);
        let evicted = reclaimer.join().unwrap();
        let named = scene.check(&[&scene.area, &other]);
        assert!(byte.is_none_or(|byte| byte == 1));
        if evicted.is_ok() {
            assert_eq!(named, 0);
        }
    });
}

#[test]
fn an_entry_is_taken_out_once() {
    // Goal: reclaim and unmapping count each entry once between them. Method: both clear the same
    // entry.
    model(|| {
        let scene = Scene::new(Access::ReadOnly);
        assert_eq!(scene.access(&scene.area), Some(1));
        let reclaimer = Arc::clone(&scene);
        let reclaimer = thread::spawn(move || reclaimer.evict());
        scene
            .cache
            .unmap(&scene.area, MapPage(0)..MapPage(2), |_, _| ());
        let _ = reclaimer.join().unwrap();
        assert_eq!(scene.check(&[&scene.area]), 0);
        assert!(scene.area.is_hole(MapPage(0)));
    });
}

#[test]
fn nothing_is_installed_in_what_was_unmapped() {
    // Goal: an access that races with unmapping leaves no entry behind. Method: both concurrently.
    model(|| {
        let scene = Scene::new(Access::ReadOnly);
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            other
                .cache
                .unmap(&other.area, MapPage(0)..MapPage(1), |_, _| ())
        });
        if let Some(byte) = scene.access(&scene.area) {
            assert_eq!(byte, 1);
        }
        other.join().unwrap();
        assert_eq!(scene.check(&[&scene.area]), 0);
        assert!(scene.area.is_hole(MapPage(0)));
    });
}

#[test]
fn a_look_misses_no_entry_that_was_accessed() {
    // Goal: a page whose entry has counted an access has its flag, so that no later look takes it
    // for idle. Method: two accesses beside a look; another look must leave nothing behind. A scan
    // has cleared the entry before, which leaves the flag, or a look, which clears it.
    let accesses_beside_a_look = |is_looked_at| {
        let scene = Scene::counting(Access::ReadOnly, 2);
        assert_eq!(scene.access(&scene.area), Some(1));
        if is_looked_at {
            assert_eq!(scene.cache.take_accesses(Pfn(0), None), 1);
            assert_eq!(scene.cache.take_accesses(Pfn(0), None), 0);
        } else {
            scene.cache.referenced(Pfn(0), RmapAccess::Snapshot, None);
        }
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            assert_eq!(other.access(&other.area), Some(1));
            assert_eq!(other.access(&other.area), Some(1));
        });
        let meanwhile = scene.cache.take_accesses(Pfn(0), None);
        other.join().unwrap();
        let taken = meanwhile + scene.cache.take_accesses(Pfn(0), None);
        assert!((1..=2).contains(&taken), "{taken}");
        assert_eq!(scene.area.table.get(0).young(), 0);
    };
    model(move || accesses_beside_a_look(true));
    model(move || accesses_beside_a_look(false));
}

#[test]
fn a_stale_entry_shows_no_other_page() {
    // Goal: an entry is a hint. Method: the frame is evicted and filled with another page between
    // an access's look at the entry and its hold.
    model(|| {
        let scene = Scene::new(Access::ReadOnly);
        assert_eq!(scene.access(&scene.area), Some(1));
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            if other.evict().is_ok() {
                other.fill(1, 0, 2);
            }
        });
        if let Some(byte) = scene.access(&scene.area) {
            assert_eq!(byte, 1);
        }
        other.join().unwrap();
    });
}

#[test]
fn a_leaf_that_is_punched_as_a_whole_keeps_no_page() {
    // Goal: what is installed while its leaf is punched, without a write to absent entries, is
    // taken out once or was never in, and no entry of a hole is present or swapped, at any time.
    // Method: a leaf that is there, or has just gone, punched beside a thread that installs a page,
    // and one that swaps it out.
    use super::super::table::{Entry, Installed, Left, PageTable};
    const PFN: Pfn = Pfn(1);
    let model_of = |is_swapped: bool, swaps_out: bool| {
        let left = match is_swapped {
            true => Left::Swapped,
            false => Left::Absent,
        };
        model(move || {
            let table = Arc::new(PageTable::new(8, 2));
            table.install(4, PFN);
            table.clear(4, PFN, left);
            let installer = {
                let table = Arc::clone(&table);
                thread::spawn(move || table.install(4, PFN))
            };
            let reclaimer = swaps_out.then(|| {
                let table = Arc::clone(&table);
                thread::spawn(move || table.clear(4, PFN, Left::Swapped))
            });
            let mut taken = Vec::new();
            table.punch(4..6, |_, was| taken.push(was));
            assert!(table.is_hole(4) && table.is_hole(5));
            let swapped_out = reclaimer.and_then(|reclaimer| reclaimer.join().unwrap());
            taken.extend(swapped_out);
            let formers: Vec<Entry> = match installer.join().unwrap() {
                Installed::Now(former) => vec![former],
                Installed::Before | Installed::Hole => Vec::new(),
            };
            // Each entry that was made present, or swapped, was taken once.
            let count = |entries: &[Entry], is: fn(&Entry) -> bool| {
                entries.iter().filter(|entry| is(entry)).count()
            };
            let is_swap: fn(&Entry) -> bool = |entry| entry.is_swapped();
            assert_eq!(count(&taken, |entry| entry.pfn().is_some()), formers.len());
            let made = usize::from(is_swapped) + usize::from(swapped_out.is_some());
            assert_eq!(count(&taken, is_swap) + count(&formers, is_swap), made);
            assert!(table.is_hole(4));
            assert_eq!(table.install(5, PFN), Installed::Hole);
            table.for_each(|page, entry| panic!("page {page}: {entry:?}"));
        });
    };
    for is_swapped in [false, true] {
        model_of(is_swapped, false);
        model_of(is_swapped, true);
    }
}
