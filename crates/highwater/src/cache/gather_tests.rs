//! Clustered write-back, and storage that takes only a part.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::tests::{cache, fill};
use super::*;
use crate::sync::{Mutex, thread};
use crate::units::{FilePage, PAGE_SIZE};

static CALLS_LOCK: LockClass = LockClass::new("calls", crate::sync::Rank::Leaf);

/// Storage that records its calls, limits the bytes it takes from neighbours, and fails for some
/// pages.
#[derive(Debug)]
struct Picky {
    pages: u64,
    /// First page and number of pages of each call; 0 for a call for a single page.
    calls: Mutex<Vec<(u64, usize)>>,
    taken: Mutex<Vec<u64>>,
    bytes_max: usize,
    refuses: Vec<u64>,
    panics: bool,
}

impl Picky {
    fn new(pages: u64) -> Self {
        Self {
            pages,
            calls: Mutex::new(&CALLS_LOCK, Vec::new()),
            taken: Mutex::new(&CALLS_LOCK, Vec::new()),
            bytes_max: usize::MAX,
            refuses: Vec::new(),
            panics: false,
        }
    }

    fn calls(&self) -> Vec<(u64, usize)> {
        std::mem::take(&mut *self.calls.lock())
    }
}

impl Backing for Picky {
    fn len(&self) -> u64 {
        self.pages * crate::units::PAGE_BYTES
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> std::io::Result<usize> {
        self.calls.lock().push((page, 0));
        if self.refuses.contains(&page) {
            return Err(std::io::Error::from_raw_os_error(5 /* EIO */));
        }
        self.taken.lock().push(page);
        Ok(buf.len())
    }
    fn write_pages(&self, FilePage(first): FilePage, bufs: &[&[u8]]) -> std::io::Result<usize> {
        self.calls.lock().push((first, bufs.len()));
        assert!(!self.panics, "it was told to");
        let mut taken = 0;
        for (page, buf) in (first..).zip(bufs) {
            let room = self.bytes_max - taken;
            if self.refuses.contains(&page) || room < buf.len() {
                return match taken + room.min(buf.len() - 1) {
                    0 => Err(std::io::Error::from_raw_os_error(5 /* EIO */)),
                    short => Ok(short),
                };
            }
            self.taken.lock().push(page);
            taken += buf.len();
        }
        Ok(taken)
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A cache with as many frames as the file has pages, filled in a different order; some pages are
/// dirty.
struct Scene {
    cache: PageCache,
    file: Arc<FileEntry>,
    storage: Arc<Picky>,
}

impl Scene {
    fn new(storage: Picky, dirty: impl IntoIterator<Item = u64>) -> Self {
        let (memory, cache) = cache(storage.pages);
        let storage = Arc::new(storage);
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let file = cache.open(backing, Access::ReadWrite).expect("one file");
        for page in 0..storage.pages {
            let pfn = u32::try_from(storage.pages - 1 - page).expect("few pages");
            fill(&memory, &cache, pfn, PageKey::new(file.id(), page));
        }
        for page in dirty {
            let write = cache.try_write(PageKey::new(file.id(), page));
            write.expect("resident").mark_dirty(&cache);
        }
        Self {
            cache,
            file,
            storage,
        }
    }

    fn write_back(&self) -> WriteBackOutcome {
        let dirty = self.cache.dirty_pages_of(self.file.id());
        self.cache.write_back_pages(&dirty)
    }

    fn dirty(&self) -> Vec<u64> {
        let dirty = self.cache.dirty_pages_of(self.file.id());
        dirty.iter().map(|(key, _)| key.page().0).collect()
    }
}

#[test]
fn neighbours_are_written_by_one_call() {
    // Goal: runs of dirty pages, wherever their frames are, in the file's order, 32 at most.
    // Method: runs of several lengths; then one with a latched page.
    let scene = Scene::new(Picky::new(80), (0..40).chain([50]).chain(52..55));
    let outcome = scene.write_back();
    assert_eq!((outcome.nr_written, outcome.nr_failed), (44, 0));
    let calls = vec![(0, 32), (32, 8), (50, 0), (52, 3)];
    assert_eq!(scene.storage.calls(), calls);
    assert!(scene.dirty().is_empty());
    for page in 0..20 {
        let key = PageKey::new(scene.file.id(), page);
        scene.cache.try_write(key).unwrap().mark_dirty(&scene.cache);
    }
    let held = scene
        .cache
        .try_read_latched(PageKey::new(scene.file.id(), 10));
    let outcome = scene.cache.write_back_oldest(Pages(20));
    assert_eq!((outcome.nr_written, outcome.nr_latched), (19, 1));
    assert_eq!(scene.storage.calls(), [(0, 10), (11, 9)]);
    assert_eq!(scene.dirty(), [10]);
    drop(held);
    scene.cache.check_invariants();
}

#[test]
fn what_storage_does_not_take_of_neighbours_is_written_page_by_page() {
    // Goal: pages that were completely written are clean, each that storage refuses is dirty and an
    // error, and all others are written; no mark is lost. Method: runs of 10, cut off after any
    // page and within pages, with any page refused, or two; and by a panic.
    const LEN: u64 = 10;
    let page_len = PAGE_SIZE;
    for cut in (0..=10).flat_map(|whole| [0, 1, page_len - 1].map(|more| whole * page_len + more)) {
        for refused in 0..=LEN {
            let refuses: Vec<u64> = [refused, refused + 3]
                .into_iter()
                .filter(|page| *page < LEN)
                .collect();
            let mut storage = Picky::new(LEN);
            (storage.bytes_max, storage.refuses) = (cut, refuses.clone());
            storage.panics = cut == 1;
            let scene = Scene::new(storage, 0..LEN);
            let outcome = scene.write_back();
            let failed = refuses.len() as u64;
            assert_eq!(
                (
                    outcome.nr_written,
                    outcome.nr_failed,
                    outcome.nr_failed_first
                ),
                (LEN - failed, failed, failed)
            );
            assert_eq!(scene.dirty(), refuses, "cut after {cut} bytes");
            let events = scene.cache.dirty_events();
            assert_eq!(
                (events.nr_written, events.nr_write_failed),
                (LEN - failed, failed)
            );
            let mut taken = scene.storage.taken.lock().clone();
            taken.sort_unstable();
            taken.dedup();
            let all = (0..LEN).filter(|page| !refuses.contains(page));
            assert_eq!(taken, all.collect::<Vec<_>>());
            match outcome.first_error {
                Some(WriteBackError::Io { page, .. }) => assert_eq!(Some(&page.0), refuses.first()),
                error => assert!(error.is_none() && refuses.is_empty(), "{error:?}"),
            }
            // At most one call for all, and one for each.
            assert!(scene.storage.calls().len() as u64 <= 1 + LEN);
            scene.cache.check_invariants();
        }
    }
}

#[test]
fn who_writes_neighbours_back_waits_with_no_latch_in_hand() {
    // Goal: no deadlock, for any lock order of other threads. Method: a thread latches page 1 until
    // page 0 has been written alone, by a sync that then waits for page 1; page 0 can be latched
    // meanwhile.
    let scene = Scene::new(Picky::new(3), 0..3);
    let key = |page| PageKey::new(scene.file.id(), page);
    thread::scope(|scope| {
        let later = scene.cache.try_write(key(1));
        let syncing = scope.spawn(|| scene.write_back());
        while !scene.storage.calls.lock().contains(&(0, 0)) {
            thread::yield_now();
        }
        scene
            .cache
            .try_write(key(0))
            .unwrap()
            .mark_dirty(&scene.cache);
        drop(later);
        assert_eq!(syncing.join().unwrap().nr_written, 3);
    });
    assert_eq!(scene.storage.calls(), [(0, 0), (1, 2)]);
    assert_eq!(scene.dirty(), [0]);
}

#[test]
fn files_hold_what_was_written_together() {
    // Goal: each page's bytes are at its place in the file, to the last byte and no further.
    // Method: random dirty pages of a file of odd length; the file against the written bytes.
    let mut rng = crate::seed::rng(5);
    let len = 100 * PAGE_SIZE + 77;
    let file: File = tempfile::tempfile().unwrap();
    let mut expected = vec![1; len];
    file.write_all_at(&expected, 0).unwrap();
    let (memory, cache) = cache(101);
    let backing = FileBacking::new(file.try_clone().unwrap()).unwrap();
    let entry = cache.open(Arc::new(backing), Access::ReadWrite).unwrap();
    let mut frames: Vec<u32> = (0..101).collect();
    rng.shuffle(&mut frames);
    let key = |page| PageKey::new(entry.id(), page);
    (0..101)
        .zip(&frames)
        .for_each(|(page, pfn)| fill(&memory, &cache, *pfn, key(page)));
    for round in 2..10 {
        for page in (0..101).filter(|page| *page == 100 || rng.u8(..) < 200) {
            cache
                .try_write(key(page))
                .unwrap()
                .bytes_mut(&cache)
                .fill(round);
            let from = usize::try_from(page).unwrap() * PAGE_SIZE;
            expected[from..len.min(from + PAGE_SIZE)].fill(round);
        }
        let outcome = cache.write_back_pages(&cache.dirty_pages_of(entry.id()));
        assert!(outcome.all_written().is_ok());
        assert_eq!(file.metadata().unwrap().len(), len as u64);
        let mut stored = vec![0; len];
        file.read_exact_at(&mut stored, 0).unwrap();
        assert!(stored == expected, "round {round}");
    }
}

// Symptom: a page was written to another file, over the page of the same number there, when both
// files were written back at once: pages of a direct file are gathered as long as more of it
// follow, and where those were clean by then, the search went on to the next file. Method: two
// direct files with one dirty page before clean ones, and one after them; also with files of which
// nothing is dirty in between.
#[test]
fn pages_of_several_direct_files_stay_apart() {
    const PAGES: u64 = 8;
    let files: Vec<_> = (0..4)
        .map(|_| tempfile::NamedTempFile::new().unwrap())
        .collect();
    let (memory, cache) = cache(4 * PAGES);
    let cache = cache.writing_by(Some(WriteRing::new()));
    let open = |file: &tempfile::NamedTempFile| {
        file.as_file().set_len(PAGES * PAGE_SIZE as u64).unwrap();
        let direct = FileBacking::open_direct(file.path(), Access::ReadWrite);
        let direct = direct.or_else(|error| {
            eprintln!("buffered, for lack of direct I/O: {error}");
            FileBacking::new(file.reopen()?)
        });
        let opened = cache.open_system_file(direct.unwrap(), Access::ReadWrite);
        opened.unwrap()
    };
    let entries: Vec<_> = files.iter().map(open).collect();
    let mut pages = Vec::new();
    for (nth, entry) in (0..).zip(&entries) {
        for page in 0..PAGES {
            let (pfn, key) = (nth * PAGES + page, PageKey::new(entry.id(), page));
            let pfn = u32::try_from(pfn).unwrap();
            fill(&memory, &cache, pfn, key);
            pages.push((key, Pfn(pfn)));
        }
    }
    for (nth, page) in [(0_u8, 0_u64), (1, 7), (3, 0), (3, 4)] {
        let key = PageKey::new(entries[usize::from(nth)].id(), page);
        let mut write = cache.try_write(key).unwrap();
        write.bytes_mut(&cache).fill(nth + 1);
    }
    pages.sort_unstable();
    assert!(cache.write_back_pages(&pages).all_written().is_ok());
    for (nth, file) in (0_u8..).zip(&files) {
        let bytes = std::fs::read(file.path()).unwrap();
        let of_pages = bytes.chunks(PAGE_SIZE).map(|page| page[0]);
        let dirty: Vec<u64> = (0..)
            .zip(of_pages)
            .filter(|(_, byte)| *byte > 0)
            .map(|it| it.0)
            .collect();
        let want: &[u64] = [&[0_u64][..], &[7], &[], &[0, 4]][usize::from(nth)];
        assert_eq!(dirty, want, "file {nth}");
        assert!(
            bytes.iter().all(|byte| [0, nth + 1].contains(byte)),
            "file {nth}"
        );
    }
}

// Goal: a page that became dirty after the clock was read, or before it was set back, is not taken
// for the oldest. Method: a clock before the time at which the pages became dirty.
#[test]
fn pages_of_the_future_are_young() {
    let scene = Scene::new(Picky::new(8), 0..4);
    let expired = |now| {
        scene.cache.set_dirty_clock(now);
        scene.cache.expired_pages(100).len()
    };
    assert_eq!(expired(0_u32.wrapping_sub(500)), 0);
    assert_eq!([99, 100].map(expired), [0, 4]);
}
