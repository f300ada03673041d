//! Promise: no byte of an anonymous page is lost while it is mapped, whatever the swap area does;
//! and the slots in use are exactly those of pages that need them.

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use highwater::group::{StatItem, Tolerance};
use highwater::units::MapPage;
use highwater::{Backing, Bytes, Manager, Mapping, Pages, ReadError, RssMember};
use support::{TestFile, assert_empty, manager};

/// A manager of `frames` frames that swaps to `slots` slots of a file in memory.
fn swapping(frames: u64, slots: u64) -> (Manager, Arc<TestFile>) {
    let storage = TestFile::new(slots);
    let hw = Manager::builder()
        .capacity(Pages(frames).bytes())
        .swap_on(Arc::clone(&storage) as Arc<dyn Backing>)
        .build()
        .expect("a small manager");
    (hw, storage)
}

fn map(hw: &Manager, pages: u64) -> Mapping {
    let space = hw.space(&hw.root());
    space.map_anon(Pages(pages)).expect("a small mapping")
}

fn used(hw: &Manager) -> u64 {
    hw.snapshot().counter("nr_swap_used")
}

/// Fills a page with content that differs for every page and version.
fn write(map: &Mapping, page: u64, version: u64) -> Result<(), ReadError> {
    let mut bytes = map.write(page)?;
    let word = content(page, version).to_le_bytes();
    bytes.as_chunks_mut::<8>().0.fill(word);
    Ok(())
}

/// Version 0 is a page that was never written.
fn content(page: u64, version: u64) -> u64 {
    match version {
        0 => 0,
        _ => (page + 1) << 32 | version,
    }
}

fn check(map: &Mapping, page: u64, version: u64) -> Result<(), ReadError> {
    let bytes = map.read_latched(page)?;
    let word = content(page, version).to_le_bytes();
    let is_same = bytes.as_chunks::<8>().0.iter().all(|found| *found == word);
    assert!(is_same, "page {page} is not as version {version} of it was");
    Ok(())
}

#[test]
fn contents_survive_pressure() {
    // Goal: memory of eight times the pool keeps its contents. Method: write all pages, read them
    // in another order; then unmap everything.
    let (hw, _storage) = swapping(64, 600);
    let map = map(&hw, 512);
    for page in 0..512 {
        write(&map, page, 1).expect("there is swap");
    }
    for step in 0..512 {
        check(&map, step * 211 % 512, 1).expect("it was written");
    }
    hw.check_invariants();
    let snapshot = hw.snapshot();
    let (swapped_in, swapped_out) = (snapshot.counter("pswpin"), snapshot.counter("pswpout"));
    assert!(swapped_in >= 448 && swapped_out >= 448, "{snapshot}");
    assert_eq!(snapshot.counter("pgmajfault"), swapped_in, "{snapshot}");
    let anon = hw.root().stat(StatItem::Anon, Tolerance::EXACT).value;
    assert_eq!(Ok(anon), i64::try_from(snapshot.frames.allocated.0));
    let space = map.space().clone();
    let counted = |member| space.member_precise(member).0;
    assert_eq!(counted(RssMember::Anon) + counted(RssMember::Swap), 512);
    assert!(counted(RssMember::Anon) <= 64);
    drop(map);
    assert_eq!(counted(RssMember::Anon) + counted(RssMember::Swap), 0);
    assert_eq!(used(&hw), 0);
    assert_empty(&hw);
    drop(space);
    assert_eq!(hw.snapshot().counter("bad_rss_counter"), 0);
}

#[test]
fn a_page_read_in_leaves_again_without_io() {
    // Goal: read-only use writes swap once. Method: a mapping of twice the pool, written once and
    // read four times over: every page is written to swap at most once. Then one page is written
    // again: its slot is free at once.
    let (hw, _storage) = swapping(64, 128);
    let map = map(&hw, 128);
    for page in 0..128 {
        write(&map, page, 1).expect("there is swap");
    }
    for _ in 0..4 {
        for page in 0..128 {
            check(&map, page, 1).expect("it was written");
        }
    }
    assert!(hw.snapshot().counter("pswpin") >= 4 * 64);
    assert!(hw.snapshot().counter("pswpout") <= 128);
    check(&map, 0, 1).expect("it was written");
    let before = used(&hw);
    write(&map, 0, 2).expect("it is resident");
    assert_eq!(used(&hw), before - 1);
    hw.check_invariants();
}

#[test]
fn zeros_cost_no_swap() {
    // Goal: pages that were only read, or hold zeros, need no slot. Method: read all pages of a
    // large mapping, and write zeros to some, over a swap area of one slot that refuses every
    // write.
    let (hw, storage) = swapping(64, 1);
    storage.fails_writes.store(true, Ordering::Relaxed);
    let map = map(&hw, 1000);
    for page in 0..1000 {
        match page % 3 {
            0 => map.write(page).expect("zeros can go")[17] = 0,
            _ => check(&map, page, 0).expect("zeros can come"),
        }
    }
    for page in 0..1000 {
        check(&map, page, 0).expect("zeros can come");
    }
    hw.check_invariants();
    let snapshot = hw.snapshot();
    assert!(snapshot.counter("swpout_zero") > 250, "{snapshot}");
    let swapped = map.space().member_precise(RssMember::Swap);
    assert_eq!(swapped, Pages::ZERO, "they are nowhere");
    for untouched in ["pswpin", "pswpout", "swap_write_failed", "pgmajfault"] {
        assert_eq!(snapshot.counter(untouched), 0, "{untouched}");
    }
}

#[test]
fn without_room_in_swap_pages_stay() {
    // Goal: no swap, or a full one, is an error for a request, and loses no byte. Method: write
    // until it is refused, without an area and with a small one; everything written is there; new
    // room is found.
    for slots in [0, 40] {
        let (hw, _storage) = match slots {
            0 => (manager(64), TestFile::new(0)),
            slots => swapping(64, slots),
        };
        let (first, second, third) = (map(&hw, 20), map(&hw, 200), map(&hw, 10));
        for page in 0..30 {
            let (map, page) = if page < 20 {
                (&first, page)
            } else {
                (&third, page - 20)
            };
            write(map, page, 1).expect("fewer than frames");
        }
        let refused = (0..200).find(|&page| write(&second, page, 1).is_err());
        let refused = refused.expect("more pages than frames and slots");
        assert!(refused >= 20 + slots, "{refused} with {slots} slots");
        // A page in swap needs a frame, and the page in that frame a slot.
        drop(third);
        for _ in 0..2 {
            (0..20).for_each(|page| check(&first, page, 1).expect("resident, or in swap"));
            (0..refused).for_each(|page| check(&second, page, 1).expect("resident, or in swap"));
        }
        hw.check_invariants();
        drop(first);
        for page in refused..refused + 25 {
            write(&second, page, 1).expect("there is room again");
        }
        drop(second);
        assert_eq!(used(&hw), 0);
        assert_empty(&hw);
    }
}

#[test]
fn the_swap_file_is_nobody_elses() {
    // Goal: a swap file leaves nothing behind, not even while it is used. Method: one in a
    // directory of its own; a missing directory is an error that names it.
    let dir = tempfile::tempdir().expect("a directory");
    let build = |dir: std::path::PathBuf| {
        let builder = Manager::builder().capacity(Pages(64).bytes());
        builder.swap(dir, Bytes::kib(1026)).build()
    };
    let hw = build(dir.path().into()).expect("a swap file");
    assert_eq!(hw.snapshot().counter("nr_swap_total"), 256);
    let map = map(&hw, 256);
    (0..256).for_each(|page| write(&map, page, 1).expect("there is swap"));
    (0..256).for_each(|page| check(&map, page, 1).expect("it was written"));
    let names = std::fs::read_dir(dir.path()).expect("it is there");
    assert_eq!(names.count(), 0, "files in the directory");
    let error = build(dir.path().join("missing")).expect_err("there is no such directory");
    assert!(error.to_string().contains("missing"), "{error}");
}

#[test]
fn shared_memory_is_one_for_all() {
    // Goal: a space reads the other's writes, also through swap; the object ends with its last
    // mapping. Method: two spaces that take turns on one object of twice the pool.
    let (hw, _storage) = swapping(64, 200);
    let memory = hw.shared_memory(Pages(128)).expect("a small object");
    let [one, two] = [(); 2].map(|()| {
        let space = hw.space(&hw.root());
        space.map_file(&memory, 0..128).expect("the whole of it")
    });
    drop(memory);
    for round in 1..4 {
        for page in 0..128 {
            let (writer, reader) = if page % 2 == 0 {
                (&one, &two)
            } else {
                (&two, &one)
            };
            check(reader, page, round - 1).expect("there is swap");
            write(writer, page, round).expect("there is swap");
            check(reader, page, round).expect("there is swap");
        }
    }
    hw.check_invariants();
    one.file().sync().expect("there is nothing to make durable");
    let shmem = hw.root().stat(StatItem::Shmem, Tolerance::EXACT).value;
    assert_eq!(Ok(shmem), i64::try_from(hw.snapshot().frames.allocated.0));
    drop((one, two));
    assert_eq!(used(&hw), 0);
    assert_empty(&hw);
}

#[test]
fn what_is_discarded_is_zeros_and_free() {
    // Goal: discarded memory is free, in memory and in swap, and reads as zeros. Method: a mapping
    // of twice the pool; a part is discarded, then another unmapped: frames, slots and the space's
    // counts are those of the rest.
    let (hw, _storage) = swapping(64, 200);
    let map = map(&hw, 128);
    (0..128).for_each(|page| write(&map, page, 1).expect("there is swap"));
    map.discard(20..100).expect("within the mapping");
    let held = || hw.snapshot().frames.allocated.0 + used(&hw);
    let counted = || {
        let members = [RssMember::Anon, RssMember::Swap];
        members.map(|member| map.space().member_precise(member).0)
    };
    hw.check_invariants();
    assert!(
        held() <= 48 && counted().iter().sum::<u64>() <= 48,
        "{} {:?}",
        held(),
        counted()
    );
    (0..128).for_each(|page| {
        let version = u64::from(!(20..100).contains(&page));
        check(&map, page, version).expect("there is swap");
    });
    (0..128).for_each(|page| write(&map, page, 2).expect("there is swap"));
    map.unmap(64..128).expect("within the mapping");
    hw.check_invariants();
    assert!(
        held() <= 64 && counted().iter().sum::<u64>() == 64,
        "{} {:?}",
        held(),
        counted()
    );
    (0..64).for_each(|page| check(&map, page, 2).expect("it was written"));
    assert!(matches!(
        check(&map, 64, 0),
        Err(ReadError::Unmapped { page: MapPage(64) })
    ));
    let error = map.discard(100..129).expect_err("it has 128 pages");
    assert!(error.to_string().contains("129"), "{error}");
    drop(map);
    assert_empty(&hw);
}

#[test]
fn memory_that_ends_has_no_slots_whoever_holds_its_pages() {
    // Goal: slots in use are 0 as soon as the last mapping has gone, also while reclaim has
    // isolated pages of it or writes them; their frames are freed periodically. Method: one thread
    // swaps out everything, on slow storage; the other one writes memory and unmaps it, over and
    // over.
    let (hw, storage) = swapping(64, 200);
    storage.write_pause_us.store(20, Ordering::Relaxed);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = hw.root().reclaim(Pages(20).bytes());
            }
        });
        let _over = SetOnDrop(&is_over);
        for round in 0..300 {
            let map = map(&hw, 90);
            for page in 0..90 {
                write(&map, page, round + 1).expect("there is swap");
            }
            check(&map, 0, round + 1).expect("it was written");
            drop(map);
            assert_eq!(used(&hw), 0, "round {round}");
        }
    });
    assert!(hw.snapshot().counter("pswpout") > 1000);
    hw.writeback_tick();
    assert_eq!(hw.snapshot().frames.allocated, Pages::ZERO);
    assert_empty(&hw);
}

#[test]
fn each_space_counts_what_it_has_in_frames_and_in_swap() {
    // Goal: of memory that several spaces map, each counts the pages that it has accessed, as
    // anonymous or as swapped out, until it unmaps them or they are discarded. Method: random
    // accesses, discards and ends of mappings of 80 pages in 32 frames, against the set of pages
    // that each mapping has accessed; no page is zeros.
    let (hw, _storage) = swapping(32, 200);
    let first = map(&hw, 80);
    let mut rng = seed::rng(65);
    let mut maps = vec![(first.clone(), vec![true; 80])];
    (0..80).for_each(|page| write(&first, page, 1).expect("there is swap"));
    for step in 0..3000 {
        let at = rng.usize(..maps.len());
        let start = rng.usize(..80);
        let end = (start + rng.usize(1..20)).min(80);
        let pages = start as u64..end as u64;
        match rng.u8(..100) {
            0..90 => {
                let (map, accessed) = &mut maps[at];
                accessed[start] = true;
                if rng.bool() {
                    map.read_latched(pages.start).expect("there is swap");
                } else {
                    write(map, pages.start, step + 2).expect("there is swap");
                }
            }
            90..94 if maps.len() < 4 => {
                let map = hw.space(&hw.root()).map_file(first.file(), 0..80);
                maps.push((map.expect("the whole of it"), vec![false; 80]));
            }
            90..94 if at > 0 => drop(maps.swap_remove(at)),
            90..94 => {}
            _ => {
                maps[at].0.discard(pages.clone()).expect("within");
                for (_, accessed) in &mut maps {
                    accessed[start..end].fill(false);
                }
                let (map, accessed) = &mut maps[at];
                accessed[start..end].fill(true);
                pages.for_each(|page| write(map, page, 1).expect("there is swap"));
            }
        }
        for (map, accessed) in &maps {
            let counted = |member| map.space().member_precise(member).0;
            let counted = counted(RssMember::Anon) + counted(RssMember::Swap);
            let expected = accessed.iter().filter(|it| **it).count();
            assert_eq!(counted, expected as u64, "step {step}");
        }
        hw.check_invariants();
    }
    assert!(hw.snapshot().counter("pswpin") > 500);
    drop((first, maps));
    assert_eq!(hw.snapshot().counter("bad_rss_counter"), 0);
    assert_eq!(used(&hw), 0);
    assert_empty(&hw);
}

#[test]
fn discarding_and_reading_in_exclude_each_other() {
    // Goal: a page that is discarded while other threads read it in is zeros, or a later write.
    // Method: one thread writes each page of shared memory and discards it; another reads all the
    // time, in a pool so small that pages are on their way to and from swap.
    let (hw, storage) = swapping(32, 200);
    storage.read_pause_us.store(20, Ordering::Relaxed);
    let map = map(&hw, 96);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = seed::rng(63);
            while !is_over.load(Ordering::Relaxed) {
                // Any content has been in a frame.
                map.read_latched(rng.u64(..96)).expect("there is swap");
            }
        });
        // Also when it stops in the middle.
        let _over = SetOnDrop(&is_over);
        for round in 1..40 {
            (0..96).for_each(|page| write(&map, page, round).expect("there is swap"));
            map.discard(0..96).expect("within the mapping");
            (0..96).for_each(|page| check(&map, page, 0).expect("there is memory"));
        }
    });
    hw.check_invariants();
    drop(map);
    assert_eq!(used(&hw), 0);
    assert_empty(&hw);
}

/// Stops other threads, however this one ends.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Mappings of one thread, and the version of each page.
struct Model<'a> {
    hw: &'a Manager,
    storage: &'a TestFile,
    rng: Rng,
    maps: Vec<(Mapping, Vec<u64>)>,
    next_version: u64,
    slots_are_few: bool,
}

impl Model<'_> {
    const PAGES: usize = 60;

    fn step(&mut self) {
        if self.maps.len() < 3 {
            let map = map(self.hw, Self::PAGES as u64);
            self.maps.push((map, vec![0; Self::PAGES]));
        }
        let at = self.rng.usize(..self.maps.len());
        let at_page = self.rng.usize(..Self::PAGES);
        let (map, versions) = &mut self.maps[at];
        let version = &mut versions[at_page];
        let page = at_page as u64;
        match self.rng.u8(..100) {
            0..48 => excuse(check(map, page, *version)),
            48..90 => {
                let result = write(map, page, self.next_version);
                if result.is_ok() {
                    *version = self.next_version;
                    self.next_version += 1;
                }
                excuse(result);
            }
            90..94 => {
                let end = (at_page + self.rng.usize(..20)).min(Self::PAGES);
                map.discard(page..end as u64).expect("within the mapping");
                versions[at_page..end].fill(0);
            }
            94 => drop(self.maps.swap_remove(at)),
            _ => self.misbehave(),
        }
    }

    fn misbehave(&mut self) {
        let storage = self.storage;
        let flags = [
            &storage.fails_reads,
            &storage.fails_writes,
            &storage.falls_short,
        ];
        let one = self.rng.usize(..flags.len());
        flags[one].store(self.rng.u8(..8) == 0, Ordering::Relaxed);
    }

    /// Checks that everything is there, on storage that has recovered. With few slots, a page in
    /// swap can be out of reach until others have gone.
    fn verify(&self) {
        for (map, versions) in &self.maps {
            for (page, &version) in (0..).zip(versions) {
                match check(map, page, version) {
                    Err(ReadError::NoMemory { .. }) if self.slots_are_few => {}
                    result => result.expect("storage is well again"),
                }
            }
        }
    }
}

/// Swap that fails costs time and room, and loses no byte.
fn excuse(result: Result<(), ReadError>) {
    if let Err(error) = result {
        let is_excused = matches!(
            error,
            ReadError::Io { .. } | ReadError::Short { .. } | ReadError::NoMemory { .. }
        );
        assert!(is_excused, "{error}");
    }
}

fn behave(storage: &TestFile) {
    for flag in [
        &storage.fails_reads,
        &storage.fails_writes,
        &storage.falls_short,
    ] {
        flag.store(false, Ordering::Relaxed);
    }
}

/// Random operations of some threads on swap that fails; then everything is released.
fn random_operations(threads: u64, rounds: u32, steps: u32, slots: u64) {
    let seed = seed::rng(62).u64(..);
    let (hw, storage) = swapping(48 * threads, slots);
    let model = |thread| Model {
        hw: &hw,
        storage: &storage,
        rng: Rng::with_seed(seed ^ thread),
        maps: Vec::new(),
        next_version: 1,
        slots_are_few: slots < threads * 3 * Model::PAGES as u64,
    };
    let mut models: Vec<Model<'_>> = (0..threads).map(model).collect();
    for _ in 0..rounds {
        std::thread::scope(|scope| {
            for model in &mut models {
                scope.spawn(move || (0..steps).for_each(|_| model.step()));
            }
        });
        behave(&storage);
        hw.check_invariants();
        models.iter().for_each(Model::verify);
        hw.check_invariants();
    }
    let snapshot = hw.snapshot();
    assert!(snapshot.counter("swap_write_failed") > 0, "{snapshot}");
    assert!(snapshot.counter("swap_read_failed") > 0, "{snapshot}");
    for model in &mut models {
        model.maps.truncate(1);
        model.slots_are_few = false;
    }
    models.iter().for_each(Model::verify);
    drop(models);
    assert_eq!(used(&hw), 0);
    assert_empty(&hw);
}

#[test]
fn slots_are_conserved_whatever_swap_does() {
    // Goal: slots in use are exactly those of pages that need one, and no byte is lost. Method:
    // random writes, reads and unmaps in three mappings against a model; the area refuses and
    // writes only a part at random; invariants are checked each round.
    random_operations(1, 6, 300, 300);
}

#[test]
fn slots_run_out_and_nothing_is_lost() {
    // Goal, method: as above, in an area that has too few slots.
    random_operations(1, 4, 300, 100);
}

#[test]
fn threads_share_the_swap() {
    // Goal, method: as above, with four threads in one pool.
    random_operations(4, 3, 400, 1000);
}
