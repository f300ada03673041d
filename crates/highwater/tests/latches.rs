//! Promise: latches of writable pages exclude writers, tried latches never wait, a page is dirty
//! only if it was written, and an optimistic read that is valid shows its own page at one moment.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::array;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use highwater::frame::Tunables;
use highwater::{
    Access, Background, Manager, Mapping, OptimisticRead, PAGE_SIZE, PageRead, PageWrite, Pages,
};
use support::{TestFile, assert_empty, manager, mapped};

fn build(frames: u64) -> Manager {
    Manager::builder()
        .capacity(Pages(frames).bytes())
        .background(Background::Off)
        .build()
        .unwrap()
}

/// The version in a page that was never written: what `TestFile` begins with.
const NEVER: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// The page's bytes for a version: its number, then words that follow from both, so that bytes of
/// two pages or versions never fit together.
fn fill(bytes: &mut [u8], page: u64, version: u64) {
    let (words, _) = bytes.as_chunks_mut::<8>();
    for (at, word) in (0..).zip(words) {
        *word = word_of(page, version, at).to_le_bytes();
    }
}

fn word_of(page: u64, version: u64, at: u64) -> u64 {
    match at {
        0 => page,
        1 => version,
        _ => (page << 40 | version << 10 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15),
    }
}

/// Returns the version of a page's bytes; panics if they are not those of one version of the page.
fn version_of(bytes: &[u8], page: u64) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let version = u64::from_le_bytes(array::from_fn(|at| bytes[8 + at]));
    if version == NEVER {
        assert!(bytes[8..].iter().all(|byte| *byte == 0x5a));
        return 0;
    }
    for (at, word) in (0..).zip(words) {
        assert_eq!(word, word_of(page, version, at), "page {page}, word {at}");
    }
    version
}

#[test]
fn tried_latches_do_not_wait() {
    // Goal: each row of the documentation. Method: one thread tries everything beside a latch of
    // its own; a wait would be for itself.
    let hw = build(64);
    let storage = TestFile::new(8);
    let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
    assert!(map.try_read_latched(0).is_none() && map.try_write(0).is_none());
    assert!(map.read_optimistic(0).is_none());
    assert!(map.try_read_latched(8).is_none() && map.try_write(8).is_none());
    assert!(map.read_optimistic(8).is_none() && map.read_optimistic(u64::MAX).is_none());
    drop(map.read_latched(0).unwrap());

    let one = map.try_read_latched(0).unwrap();
    let two = map.try_read_latched(0).unwrap();
    assert!(map.try_write(0).is_none());
    let glimpse = map.read_optimistic(0).unwrap();
    assert!(glimpse.try_write().is_none());
    let one = one.try_upgrade().unwrap_err();
    drop(two);
    let mut write = one.try_upgrade().unwrap();
    assert!(map.try_read_latched(0).is_none() && map.try_write(0).is_none());
    assert!(map.read_optimistic(0).is_none() && !glimpse.validate());
    drop(write);
    assert!(
        glimpse.validate(),
        "a latch that wrote nothing is no change"
    );
    write = glimpse.try_write().unwrap();
    write[9] = 1;
    let read = write.downgrade();
    assert!(!glimpse.validate() && glimpse.try_write().is_none());
    assert_eq!(map.read_optimistic(0).unwrap().array_at(8), [0x5a, 1]);
    assert_eq!((read[9], map.try_read_latched(0).unwrap()[9]), (1, 1));
    drop(read);
    assert_eq!(hw.snapshot().counter("nr_dirty"), 1);
    drop(map);
    hw.check_invariants();
}

#[test]
fn read_only_files_have_no_latches() {
    let hw = build(64);
    let storage = TestFile::new(8);
    let (_file, map) = mapped(&hw, &storage, Access::ReadOnly);
    map.read(&hw.enter(), 1).unwrap();
    assert!(map.read_optimistic(1).is_none() && map.try_read_latched(1).is_none());
    assert!(map.try_write(1).is_none() && map.read_latched(1).is_err());
}

#[test]
fn tries_do_not_exceed_the_limit_of_dirty_pages() {
    // Goal: a writer that only tries is held back as one that waits. Method: no dirty page is
    // allowed; a page that is dirty already may be written.
    let hw = build(64);
    hw.set_tunables(Tunables::default().with("dirty_ratio", 0).unwrap());
    let storage = TestFile::new(8);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    map.write(0).unwrap()[8] = 1;
    drop(map.read_latched(1).unwrap());
    assert!(map.try_write(0).is_some());
    assert!(map.try_write(1).is_none());
    assert!(map.read_latched(1).unwrap().try_upgrade().is_err());
    assert!(map.read_optimistic(1).unwrap().try_write().is_none());
    file.sync().unwrap();
    map.write(1).unwrap()[8] = 1;
}

// Symptom: once dirty pages had exceeded their limit, clean pages were refused after a sync, too.
#[test]
fn tries_succeed_once_a_sync_has_written_the_dirty_pages() {
    let hw = build(256);
    let storage = TestFile::new(64);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    let tries: [fn(&Mapping) -> bool; 3] = [
        |map| map.try_write(0).is_some(),
        |map| map.read_latched(0).unwrap().try_upgrade().is_ok(),
        |map| map.read_optimistic(0).unwrap().try_write().is_some(),
    ];
    drop(map.read_latched(63).unwrap());
    for is_taken in tries {
        // One more than a fifth of the frames.
        (0..52).for_each(|page| map.write(page).unwrap()[8] = 1);
        assert!(map.try_write(63).is_none());
        file.sync().unwrap();
        assert!(is_taken(&map));
    }
}

#[test]
#[cfg(debug_assertions)]
fn a_thread_that_would_wait_for_itself_panics() {
    // Goal: debug builds find each such wait, and name the page. Method: every way to wait, beside
    // every hold that it waits for; and no finding for other pages and other threads' latches.
    let hw = build(64);
    let storage = TestFile::new(8);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    let message = |wait: &(dyn Fn() + Sync)| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)).unwrap_err();
        panic
            .downcast::<String>()
            .map(|text| *text)
            .unwrap_or_default()
    };
    map.write(3).unwrap()[8] = 1;
    let write = map.write(3).unwrap();
    for text in [
        message(&|| drop(map.read_latched(3))),
        message(&|| drop(map.write(3))),
        message(&|| drop(file.sync())),
    ] {
        assert!(text.contains("would wait for itself"), "{text}");
        assert!(text.contains("page 3 of writable file"), "{text}");
    }
    let read = write.downgrade();
    assert!(message(&|| drop(map.write(3))).contains("would wait for itself"));
    drop(map.read_latched(3).unwrap());
    drop(map.write(4).unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| map.write(3).unwrap()[8]);
        drop(read);
        assert_eq!(waiting.join().unwrap(), 1);
    });
    file.sync().unwrap();
    hw.check_invariants();
}

/// Returns a page: most often one of the 20 hot ones.
fn mostly_hot(rng: &mut fastrand::Rng, pages: u64) -> u64 {
    let below = if rng.u8(..8) == 0 { pages } else { 20 };
    rng.u64(..below)
}

/// One page as the model knows it.
#[derive(Clone, Copy, Debug, Default)]
struct ModelPage {
    version: u64,
    /// Whether it may be dirty: eviction writes it back unseen.
    is_dirty: bool,
}

enum Held<'m> {
    Read(u64, PageRead<'m>),
    Write(u64, PageWrite<'m>),
    Optimistic(u64, u64, OptimisticRead<'m>),
}

#[test]
fn latches_agree_with_a_model() {
    // Goal: contents, dirty marks and the outcome of each try are those of a model of holders.
    // Method: one thread, random operations on few pages; latches are held across others. An
    // optimistic read that is valid shows the version at which it began; one whose page was neither
    // written nor could leave since is valid.
    const PAGES: u64 = 12;
    let mut rng = seed::rng(181);
    let hw = build(256);
    let storage = TestFile::new(PAGES);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    let mut pages = [ModelPage::default(); 12];
    let mut held: Vec<Held<'_>> = Vec::new();
    for _ in 0..20_000 {
        let page = rng.u64(..PAGES);
        let at = usize::try_from(page).unwrap();
        let readers = held
            .iter()
            .filter(|it| matches!(it, Held::Read(p, _) if *p == page));
        let readers = readers.count();
        let is_written = held
            .iter()
            .any(|it| matches!(it, Held::Write(p, _) if *p == page));
        match rng.u8(..12) {
            0 if !is_written => held.push(Held::Read(page, map.read_latched(page).unwrap())),
            1 if !is_written && readers == 0 => {
                held.push(Held::Write(page, map.write(page).unwrap()));
            }
            2 => match map.try_read_latched(page) {
                Some(read) => {
                    assert!(!is_written);
                    assert_eq!(version_of(&read, page), pages[at].version);
                    held.push(Held::Read(page, read));
                }
                None => assert!(is_written || readers == 0, "resident and free: {page}"),
            },
            3 => match map.try_write(page) {
                Some(write) => {
                    assert!(!is_written && readers == 0);
                    held.push(Held::Write(page, write));
                }
                None => assert!(is_written || readers > 0 || map.try_read_latched(page).is_none()),
            },
            4 => match map.read_optimistic(page) {
                Some(read) => {
                    assert!(!is_written);
                    held.push(Held::Optimistic(page, pages[at].version, read));
                }
                None => assert!(is_written || readers == 0),
            },
            5 if held.len() < 4 => file.sync_unless_held(&held, &mut pages),
            6 => _ = hw.drop_caches(),
            _ if !held.is_empty() => {
                let nth = rng.usize(..held.len());
                step(&mut rng, &mut held, nth, &mut pages);
            }
            _ => {}
        }
        if held.len() > 8 {
            held.remove(rng.usize(..held.len()));
        }
        // Eviction writes dirty pages back, so marks of pages that are not held may be gone.
        let most = pages.iter().filter(|page| page.is_dirty).count();
        assert!(hw.snapshot().counter("nr_dirty") <= most as u64);
    }
    drop(held);
    for (page, model) in (0..).zip(&pages) {
        assert_eq!(
            version_of(&map.read_latched(page).unwrap(), page),
            model.version
        );
    }
    drop((file, map));
    assert_empty(&hw);
}

/// Syncs, if no latch is held that it would wait for.
trait SyncUnlessHeld {
    fn sync_unless_held(&self, held: &[Held<'_>], pages: &mut [ModelPage]);
}

impl SyncUnlessHeld for highwater::File {
    fn sync_unless_held(&self, held: &[Held<'_>], pages: &mut [ModelPage]) {
        if held.iter().all(|it| matches!(it, Held::Optimistic(..))) {
            self.sync().unwrap();
            pages.iter_mut().for_each(|page| page.is_dirty = false);
        }
    }
}

/// Does something with a page that is held.
fn step(rng: &mut fastrand::Rng, held: &mut Vec<Held<'_>>, nth: usize, pages: &mut [ModelPage]) {
    let others = |held: &[Held<'_>], page: u64| {
        held.iter()
            .any(|it| matches!(it, Held::Read(p, _) | Held::Write(p, _) if *p == page))
    };
    match (held.swap_remove(nth), rng.u8(..4)) {
        (Held::Read(page, read), 0) => {
            let is_alone = !others(held, page);
            held.push(match read.try_upgrade() {
                Ok(write) => {
                    assert!(is_alone);
                    Held::Write(page, write)
                }
                Err(read) => {
                    assert!(!is_alone);
                    Held::Read(page, read)
                }
            });
        }
        (Held::Write(page, write), 0) => held.push(Held::Read(page, write.downgrade())),
        (Held::Write(page, mut write), 1) => {
            let model = &mut pages[usize::try_from(page).unwrap()];
            assert_eq!(version_of(&write, page), model.version);
            model.version += 1;
            model.is_dirty = true;
            fill(&mut write, page, model.version);
            held.push(Held::Write(page, write));
        }
        (Held::Write(page, mut write), 2) => {
            pages[usize::try_from(page).unwrap()].is_dirty = true;
            write.mark_dirty();
            held.push(Held::Write(page, write));
        }
        (Held::Optimistic(page, version, read), 0 | 1) => {
            let mut copy = [0; PAGE_SIZE];
            read.copy_to(0, &mut copy);
            if read.validate() {
                assert_eq!(version_of(&copy, page), version);
                assert_eq!(pages[usize::try_from(page).unwrap()].version, version);
            }
        }
        (Held::Optimistic(page, version, read), 2) => {
            if let Some(write) = read.try_write() {
                assert!(!others(held, page));
                assert_eq!(version_of(&write, page), version);
                held.push(Held::Write(page, write));
            }
        }
        (Held::Read(page, read), 1) => {
            let version = pages[usize::try_from(page).unwrap()].version;
            assert_eq!(version_of(&read, page), version);
        }
        _ => {}
    }
}

#[test]
fn optimistic_reads_count_as_other_reads_do() {
    // Goal: eviction keeps the pages that were read optimistically as it keeps those read under a
    // latch. Method: 40 pages are read again and again beside a stream of others, with room for
    // 128; count how often one of them has left. Reads that do not count lose each of them every
    // few hundred rounds. An interruption may cost a mark.
    let losses = |read: &dyn Fn(&Mapping, u64) -> bool| {
        let mut rng = seed::rng(77);
        let hw = build(128);
        let storage = TestFile::new(400);
        let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
        let mut missed = 0;
        for round in 0..4000_u64 {
            let hot = rng.u64(..40);
            if !read(&map, hot) {
                drop(map.read_latched(hot).unwrap());
                missed += 1;
            }
            if round % 2 == 0 {
                drop(map.read_latched(40 + round % 360).unwrap());
            }
        }
        missed - 40
    };
    let latched = losses(&|map, page| map.try_read_latched(page).is_some());
    let optimistic = losses(&|map, page| {
        let read = map.read_optimistic(page);
        read.is_some_and(|read| {
            let _ = read.array_at::<8>(0);
            read.validate()
        })
    });
    assert!(latched < 100 && optimistic < 100, "{latched}, {optimistic}");
}

/// Pages that say which page and version they are, and the threads that use them.
struct Arena {
    map: Mapping,
    /// By page: the last version that was written.
    versions: Vec<AtomicU64>,
    reads: AtomicU64,
    valid: AtomicU64,
    has_ended: AtomicBool,
}

impl Arena {
    const PAGES: u64 = 300;
    const READS: u64 = 1_000_000;

    fn version(&self, page: u64) -> &AtomicU64 {
        &self.versions[usize::try_from(page).unwrap()]
    }

    /// Reads whole pages, or a few words, until all reads are done.
    fn read(&self, seed: u64) {
        let mut rng = seed::rng(seed);
        while self.reads.fetch_add(1, Ordering::Relaxed) < Self::READS {
            let page = mostly_hot(&mut rng, Self::PAGES);
            let before = self.version(page).load(Ordering::Acquire);
            let Some(read) = self.map.read_optimistic(page) else {
                drop(self.map.read_latched(page).unwrap());
                continue;
            };
            let version = match rng.u8(..4) {
                0 => Self::whole_version(read, page),
                _ => Self::version_by_words(read, page, rng.u64(2..512)),
            };
            if let Some(version) = version {
                assert!(version >= before, "page {page}: {version}, was {before}");
                self.valid.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn whole_version(read: OptimisticRead<'_>, page: u64) -> Option<u64> {
        let mut copy = [0; PAGE_SIZE];
        read.copy_to(0, &mut copy);
        read.validate().then(|| version_of(&copy, page))
    }

    fn version_by_words(read: OptimisticRead<'_>, page: u64, at: u64) -> Option<u64> {
        let version = u64::from_le_bytes(read.array_at(8));
        let word = u64::from_le_bytes(read.array_at(usize::try_from(at).unwrap() * 8));
        if !read.validate() {
            return None;
        }
        if version == NEVER {
            assert_eq!(word, NEVER, "page {page}");
            return Some(0);
        }
        assert_eq!(word, word_of(page, version, at), "page {page}");
        Some(version)
    }

    /// Writes by every way, until the end.
    fn write(&self, seed: u64) {
        let mut rng = seed::rng(seed);
        let change = |mut write: PageWrite<'_>, page: u64| {
            let version = version_of(&write, page) + 1;
            fill(&mut write, page, version);
            self.version(page).store(version, Ordering::Release);
        };
        while !self.has_ended.load(Ordering::Relaxed) {
            let page = mostly_hot(&mut rng, Self::PAGES);
            match rng.u8(..4) {
                0 => change(self.map.write(page).unwrap(), page),
                1 => {
                    if let Ok(write) = self.map.read_latched(page).unwrap().try_upgrade() {
                        change(write, page);
                    }
                }
                2 => {
                    let read = self.map.read_optimistic(page);
                    if let Some(write) = read.and_then(OptimisticRead::try_write) {
                        change(write, page);
                    }
                }
                // Writes nothing.
                _ => drop(self.map.try_write(page)),
            }
            thread::yield_now();
        }
    }
}

#[test]
fn a_valid_optimistic_read_is_never_torn_nor_of_another_page() {
    // Goal: as the name says, under writes and eviction. Method: a third of the memory that the
    // pages need, two readers, two writers, and a thread that evicts.
    let hw = manager(100);
    let storage = TestFile::new(Arena::PAGES);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    let arena = Arena {
        map,
        versions: (0..Arena::PAGES).map(|_| AtomicU64::new(0)).collect(),
        reads: AtomicU64::new(0),
        valid: AtomicU64::new(0),
        has_ended: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let arena = &arena;
        let readers = [182, 183].map(|seed| scope.spawn(move || arena.read(seed)));
        for seed in [190, 191] {
            scope.spawn(move || arena.write(seed));
        }
        scope.spawn(|| {
            while !arena.has_ended.load(Ordering::Relaxed) {
                hw.drop_caches();
                thread::sleep(Duration::from_millis(2));
            }
        });
        let results = readers.map(thread::ScopedJoinHandle::join);
        arena.has_ended.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    let valid = arena.valid.load(Ordering::Relaxed);
    assert!(valid > Arena::READS / 100, "{valid} valid reads");
    for page in 0..Arena::PAGES {
        let read = arena.map.read_latched(page).unwrap();
        let known = arena.version(page).load(Ordering::Relaxed);
        assert_eq!(version_of(&read, page), known);
    }
    drop((file, arena));
    assert_empty(&hw);
}
