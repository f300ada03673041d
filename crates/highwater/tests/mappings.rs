//! Promise: a space's resident set is exactly the pages that its mappings have mapped, under any
//! mapping, unmapping, reads, writes and evictions; and reads return the written bytes.

#![expect(clippy::unwrap_used, reason = "a failure shows where it was")]

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use fastrand::Rng;
use highwater::lab::reclaim::{RmapConfig, RmapPolicy, RmapQuirks};
use highwater::units::{MapPage, PAGE_BYTES, PAGE_SIZE};
use highwater::{
    Access, Backing, File, Manager, Mapping, Pages, RangeError, ReadError, ReadPattern, Space,
};
use support::{TestFile, assert_empty, first_word};

const PAGES: u64 = 160;

/// A mapping, and its expected state.
struct Mapped {
    map: Mapping,
    space: usize,
    file: usize,
    range: Range<u64>,
    holes: HashSet<u64>,
    /// Pages of the mapping that its table has.
    present: HashSet<u64>,
}

/// Two files (the second writable), three spaces, and their expected state.
struct Model {
    hw: Manager,
    rng: Rng,
    files: Vec<File>,
    spaces: Vec<Space>,
    maps: Vec<Mapped>,
    versions: Vec<u8>,
}

impl Model {
    fn new(rng: Rng) -> Self {
        let hw = support::manager(1024);
        let files = [Access::ReadOnly, Access::ReadWrite]
            .map(|access| hw.open_backing(TestFile::new(PAGES), access).unwrap());
        let spaces = (0..3).map(|_| hw.space(&hw.root())).collect();
        Self {
            rng,
            files: files.into(),
            spaces,
            maps: Vec::new(),
            versions: vec![0x5a; usize::try_from(PAGES).unwrap()],
            hw,
        }
    }

    fn range(&mut self, within: u64) -> Range<u64> {
        let start = self.rng.u64(..=within);
        start..start + self.rng.u64(..=within - start)
    }

    fn map(&mut self) {
        let (space, file) = (self.rng.usize(..3), self.rng.usize(..2));
        let range = self.range(PAGES);
        let map = self.spaces[space]
            .map_file(&self.files[file], range.clone())
            .unwrap();
        self.maps.push(Mapped {
            map,
            space,
            file,
            range,
            holes: HashSet::new(),
            present: HashSet::new(),
        });
    }

    fn unmap(&mut self, which: usize) {
        let part = self.range(self.maps[which].map.pages());
        let mapped = &mut self.maps[which];
        mapped.map.unmap(part.clone()).unwrap();
        for page in part {
            mapped.holes.insert(page);
            mapped.present.remove(&page);
        }
    }

    fn dont_need(&mut self, which: usize) {
        let part = self.range(self.maps[which].map.pages());
        let mapped = &mut self.maps[which];
        mapped.map.dont_need(part.clone()).unwrap();
        mapped.present.retain(|page| !part.contains(page));
    }

    fn access(&mut self, which: usize) {
        let Self {
            hw,
            rng,
            maps,
            versions,
            ..
        } = self;
        let Mapped {
            map,
            file,
            range,
            holes,
            present,
            ..
        } = &mut maps[which];
        if map.pages() == 0 {
            return;
        }
        let page = rng.u64(..map.pages());
        let number = range.start + page;
        let version = &mut versions[usize::try_from(number).unwrap()];
        let guard = hw.enter();
        let seen = match (*file, rng.bool()) {
            (0, true) => map.read(&guard, page).map(first_word),
            (0, false) => map.pin(page).map(|pinned| first_word(&pinned)),
            (_, true) => map.read_latched(page).map(|read| {
                assert_eq!(read[100], *version);
                first_word(&read)
            }),
            (_, false) => map.write(page).map(|mut write| {
                assert_eq!(write[100], *version);
                *version = version.wrapping_add(1);
                write[100] = *version;
                first_word(&write)
            }),
        };
        if holes.contains(&page) {
            assert!(matches!(seen, Err(ReadError::Unmapped { page: at }) if at == MapPage(page)));
        } else {
            assert_eq!(seen.unwrap(), number);
            present.insert(page);
        }
    }

    fn step(&mut self) {
        let some = (!self.maps.is_empty()).then(|| self.rng.usize(..self.maps.len()));
        match (self.rng.u8(..100), some) {
            (0..4, _) if self.maps.len() < 12 => self.map(),
            (4..7, Some(which)) => drop(self.maps.swap_remove(which)),
            (7..10, Some(which)) => self.unmap(which),
            (10..12, Some(which)) => self.dont_need(which),
            (12, _) => {
                self.hw.drop_caches();
                for mapped in &mut self.maps {
                    mapped.present.clear();
                }
            }
            (13.., Some(which)) => self.access(which),
            _ => {}
        }
    }

    fn check(&self) {
        for (at, space) in self.spaces.iter().enumerate() {
            let of_space = self.maps.iter().filter(|mapped| mapped.space == at);
            let want: usize = of_space.map(|mapped| mapped.present.len()).sum();
            assert_eq!(space.rss_precise(), Pages(want as u64), "{}", space.id());
            assert!(space.rss().contains(Pages(want as u64)));
        }
    }
}

#[test]
fn resident_sets_are_what_is_mapped() {
    // Goal: exactness after every step. Method: random mapping, unmapping, reading, writing and
    // dropping, in a pool that is large enough for everything, beside sets of pages; invariants are
    // checked now and then.
    let seed = seed::seed(41);
    for turn in 0..6 {
        let mut model = Model::new(Rng::with_seed(seed + turn));
        for step in 0..1500 {
            model.step();
            model.check();
            if step % 250 == 0 {
                model.hw.check_invariants();
            }
        }
        let Model {
            hw,
            maps,
            spaces,
            files,
            ..
        } = model;
        drop(maps);
        for space in &spaces {
            assert_eq!(space.rss_precise(), Pages::ZERO);
        }
        drop((spaces, files));
        assert_empty(&hw);
    }
}

#[test]
fn advice_does_what_it_says() {
    // Goal: prefetched pages are there before they are read, and dropped ones are not counted.
    // Method: counts of faults, storage calls and resident pages around each; ranges outside the
    // mapping are refused.
    let hw = support::manager(512);
    let storage = TestFile::new(PAGES);
    let (file, map) = support::mapped(&hw, &storage, Access::ReadOnly);
    map.set_read_pattern(ReadPattern::Random);
    map.read(&hw.enter(), 50).unwrap();
    assert_eq!(file.resident_precise(), 1, "nothing is read ahead");
    map.will_need(10..40).unwrap();
    assert_eq!(file.resident_precise(), 31);
    let counter = |name| hw.snapshot().counter(name);
    let missed = counter("pgmajfault");
    for page in 10..40 {
        assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
    }
    assert_eq!(counter("pgmajfault"), missed, "all were there");
    assert_eq!(map.space().rss_precise(), Pages(31));
    map.dont_need(0..20).unwrap();
    assert_eq!(map.space().rss_precise(), Pages(21));
    assert_eq!(file.resident_precise(), 31, "they stay in the cache");
    map.read(&hw.enter(), 15).unwrap();
    assert_eq!(counter("pgmajfault"), missed);
    assert_eq!(map.space().rss_precise(), Pages(22));
    for refused in [
        map.dont_need(0..PAGES + 1),
        map.will_need(PAGES..PAGES + 1),
        map.unmap(3..PAGES + 9),
    ] {
        assert!(
            matches!(refused, Err(RangeError::Mapping { pages: PAGES, .. })),
            "{refused:?}"
        );
    }
    hw.check_invariants();
}

#[test]
fn hot_pages_stay_in_random_order_too() {
    // Goal: advice against readahead does not cost the pages that are read most, as the kernel's
    // does; advice of a sequential scan does. Method: 32 hot pages are read before each 32 of
    // others, through 128 frames.
    const HOT: u64 = 32;
    let misses_of_hot = |pattern| {
        let hw = support::manager(128);
        let storage = TestFile::new(16 * HOT);
        let (_file, map) = support::mapped(&hw, &storage, Access::ReadOnly);
        map.set_read_pattern(pattern);
        let mut missed = 0;
        for round in 0..150 {
            let before = hw.snapshot().counter("pgmajfault");
            for page in 0..HOT {
                map.read(&hw.enter(), page).unwrap();
            }
            missed += hw.snapshot().counter("pgmajfault") - before;
            let first = (1 + round % 15) * HOT;
            // Not in order, so that none is read ahead.
            for page in (first..first + HOT).rev() {
                map.read(&hw.enter(), page).unwrap();
            }
        }
        hw.check_invariants();
        missed
    };
    let [random, sequential] = [ReadPattern::Random, ReadPattern::Sequential].map(misses_of_hot);
    assert!(random < 4 * HOT, "{random}");
    assert!(sequential > 4 * random, "{sequential} and {random}");
}

#[test]
fn locked_pages_stay_until_they_are_unlocked_or_unmapped() {
    // Goal: a lock keeps pages under any pressure, and its end keeps none. Method: a locked mapping
    // in a pool through which another file is read; then it is unlocked, or dropped, and the same
    // again.
    for ends_by_unlocking in [true, false] {
        let hw = support::manager(256);
        let (file, map) = support::mapped(&hw, &TestFile::new(64), Access::ReadOnly);
        let (_other, stream) = support::mapped(&hw, &TestFile::new(1000), Access::ReadOnly);
        let read = |map: &Mapping| {
            for page in 0..map.pages() {
                assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
            }
        };
        map.lock();
        read(&map);
        read(&stream);
        read(&stream);
        assert_eq!(map.space().rss_precise(), Pages(64));
        assert_eq!(file.resident_precise(), 64);
        assert!(hw.snapshot().counter("nr_unevictable") > 0);
        hw.check_invariants();
        if ends_by_unlocking {
            map.unlock();
        } else {
            drop(map);
        }
        assert_eq!(hw.snapshot().counter("nr_unevictable"), 0);
        read(&stream);
        read(&stream);
        assert!(file.resident_precise() < 64, "they can go");
        hw.check_invariants();
    }
}

/// One thread's work: it maps, reads more than fits, unmaps parts, in a space of its own and a
/// shared one.
fn map_and_read(hw: &Manager, file: &File, shared: &Mapping, rng: &mut Rng) {
    for _ in 0..60 {
        let space = hw.space(&hw.root());
        let start = rng.u64(..PAGES);
        let map = space.map_file(file, start..PAGES).unwrap();
        for _ in 0..30 {
            let page = rng.u64(..map.pages());
            match map.read(&hw.enter(), page) {
                Ok(bytes) => assert_eq!(first_word(bytes), start + page),
                Err(error) => assert!(matches!(error, ReadError::Unmapped { .. }), "{error}"),
            }
            let page = rng.u64(..PAGES);
            assert_eq!(first_word(shared.read(&hw.enter(), page).unwrap()), page);
            if rng.u8(..) < 10 {
                map.dont_need(0..map.pages() / 2).unwrap();
            }
            if rng.u8(..) < 10 {
                let first = rng.u64(..map.pages());
                map.unmap(first..map.pages()).unwrap();
            }
        }
    }
}

#[test]
fn threads_that_map_fault_and_unmap_under_pressure_keep_the_books() {
    // Goal: no entry is counted twice or left behind, no deadlock, and no page is taken for
    // another, under every rmap policy. Method: four threads in a pool of a quarter of the file.
    let seed = seed::seed(42);
    for policy in [
        RmapPolicy::Blocking,
        RmapPolicy::Skip,
        RmapPolicy::Throttle,
        RmapPolicy::Snapshot,
        RmapPolicy::Defer,
    ] {
        let quirks = RmapQuirks::Mended;
        let builder = Manager::builder().capacity(Pages(64).bytes());
        let hw = builder.rmap(RmapConfig { policy, quirks }).build().unwrap();
        let storage = TestFile::new(PAGES);
        let (file, shared) = support::mapped(&hw, &storage, Access::ReadOnly);
        thread::scope(|scope| {
            for thread in 0..4 {
                let (hw, file, shared) = (&hw, &file, &shared);
                let mut rng = Rng::with_seed(seed ^ thread);
                scope.spawn(move || map_and_read(hw, file, shared, &mut rng));
            }
        });
        hw.check_invariants();
        assert!(shared.space().rss_precise() <= Pages(64));
        assert_eq!(hw.snapshot().counter("bad_rss_counter"), 0);
        let space = shared.space().clone();
        drop(shared);
        assert_eq!(space.rss_precise(), Pages::ZERO);
        drop((space, file));
        assert_eq!(Arc::strong_count(&storage), 1, "{policy:?}");
        assert_empty(&hw);
    }
}

/// Pages of a memory object that two mappings share a third of.
const SHARED: u64 = 96;

/// A memory object, the versions of its pages, and mappings of it with their holes.
struct Shared {
    hw: Manager,
    memory: File,
    maps: [(Mapping, u64, HashSet<u64>); 2],
    versions: Vec<u64>,
    next: u64,
}

impl Shared {
    fn new() -> Self {
        let builder = Manager::builder().capacity(Pages(48).bytes());
        let swap = TestFile::new(2 * SHARED) as Arc<dyn Backing>;
        let hw = builder.swap_on(swap).build().unwrap();
        let memory = hw.shared_memory(Pages(SHARED)).unwrap();
        let maps = [0..64, 32..SHARED].map(|range: Range<u64>| {
            let first = range.start;
            let map = hw.space(&hw.root()).map_file(&memory, range).unwrap();
            (map, first, HashSet::new())
        });
        Self {
            hw,
            memory,
            maps,
            versions: vec![0; usize::try_from(SHARED).unwrap()],
            next: 1,
        }
    }

    /// Asserts that both ends of a page have its version.
    fn assert_page(&self, bytes: &[u8], number: u64) {
        let version = self.versions[usize::try_from(number).unwrap()];
        let ends = [first_word(bytes), first_word(&bytes[PAGE_SIZE - 8..])];
        assert_eq!(ends, [version; 2], "page {number}");
    }

    /// Writes the next version of a page, or learns that it was unmapped.
    fn write(&mut self, which: usize, page: u64, rng: &mut Rng) {
        let (map, first, holes) = &self.maps[which];
        let number = first + page;
        let fill = |write: &mut [u8]| {
            self.assert_page(write, number);
            write[..8].copy_from_slice(&self.next.to_le_bytes());
            write[PAGE_SIZE - 8..].copy_from_slice(&self.next.to_le_bytes());
        };
        let written = match rng.u8(..3) {
            0 => self
                .hw
                .block_on(map.write_async(page))
                .map(|mut it| fill(&mut it)),
            1 => match map.try_write(page) {
                Some(mut write) => {
                    fill(&mut write);
                    Ok(())
                }
                None => return,
            },
            _ => map.write(page).map(|mut write| fill(&mut write)),
        };
        assert_eq!(written.is_err(), holes.contains(&page), "{written:?}");
        if written.is_ok() {
            self.versions[usize::try_from(number).unwrap()] = self.next;
            self.next += 1;
        }
    }

    /// Reads a page in one of the ways that there are.
    fn read(&self, which: usize, page: u64, rng: &mut Rng) {
        let (map, first, holes) = &self.maps[which];
        let (number, is_hole) = (first + page, holes.contains(&page));
        let mut copy = vec![0; PAGE_SIZE];
        let seen = match rng.u8(..5) {
            0 => map
                .read_latched(page)
                .map(|read| copy.copy_from_slice(&read)),
            1 => {
                let read = self.hw.block_on(map.read_latched_async(page));
                read.map(|read| copy.copy_from_slice(&read))
            }
            2 => {
                let at = number * PAGE_BYTES;
                let got = self.memory.read_at(&self.hw.root(), at, &mut copy);
                assert_eq!(got.unwrap(), PAGE_SIZE);
                return self.assert_page(&copy, number);
            }
            3 => match map.try_read_latched(page) {
                Some(read) => {
                    copy.copy_from_slice(&read);
                    Ok(())
                }
                None => return,
            },
            _ => match map.read_optimistic(page) {
                Some(read) => {
                    read.copy_to(0, &mut copy);
                    assert!(read.validate());
                    Ok(())
                }
                None => return,
            },
        };
        assert_eq!(seen.is_err(), is_hole, "{seen:?}");
        if !is_hole {
            self.assert_page(&copy, number);
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let which = rng.usize(..2);
        let page = rng.u64(..64);
        let part = page..rng.u64(page..=64.min(page + 6));
        match rng.u8(..100) {
            0..40 => self.write(which, page, rng),
            40..86 => self.read(which, page, rng),
            86..90 => {
                let (map, first, _) = &self.maps[which];
                map.discard(part.clone()).unwrap();
                for page in part {
                    self.versions[usize::try_from(first + page).unwrap()] = 0;
                }
            }
            90..93 => self.maps[which].0.dont_need(part).unwrap(),
            93..95 => self.maps[which].0.will_need(part).unwrap(),
            95..97 => self.maps[which].0.prefetch(part).unwrap(),
            97 if rng.u8(..12) == 0 => {
                let (map, _, holes) = &mut self.maps[which];
                map.unmap(part.clone()).unwrap();
                holes.extend(part);
            }
            97 => _ = self.hw.drop_caches(),
            _ => _ = self.hw.root().reclaim(Pages(16).bytes()),
        }
    }
}

#[test]
fn mappings_of_one_memory_see_its_bytes_at_their_own_numbers() {
    // Goal: a page of memory has its last bytes, or zeros once it was discarded, by every way to it
    // and through each mapping that has not unmapped it, while it comes from swap and goes there.
    // Method: random calls on two mappings that overlap, of which one begins in the middle, in a
    // pool of half the memory, against the versions of pages.
    let seed = seed::seed(43);
    for turn in 0..4 {
        let mut rng = Rng::with_seed(seed + turn);
        let mut model = Shared::new();
        for step in 0..3000 {
            model.step(&mut rng);
            if step % 500 == 0 {
                model.hw.check_invariants();
            }
        }
        let Shared {
            hw, memory, maps, ..
        } = model;
        assert!(hw.snapshot().counter("pswpin") > 300);
        drop((memory, maps));
        assert_eq!(hw.snapshot().counter("nr_swap_used"), 0);
        assert_eq!(hw.snapshot().counter("bad_rss_counter"), 0);
        assert_empty(&hw);
    }
}

// Symptom: pages that had been unmapped came back, and were charged, by a request to read the range
// in. Method: anonymous memory of which every other run of pages is unmapped.
#[test]
fn what_was_unmapped_is_not_read_in() {
    let hw = Manager::builder().capacity(Pages(64).bytes()).build();
    let hw = hw.unwrap();
    let map = hw.space(&hw.root()).map_anon(Pages(12)).unwrap();
    for page in 0..12 {
        map.write(page).unwrap()[0] = 1;
    }
    map.unmap(0..3).unwrap();
    map.unmap(5..8).unwrap();
    assert_eq!(hw.root().usage_precise(), Pages(6).bytes());
    map.will_need(0..12).unwrap();
    assert_eq!(hw.root().usage_precise(), Pages(6).bytes());
    assert_eq!(map.read_latched(8).unwrap()[0], 1);
    assert!(map.read_latched(5).is_err());
}
