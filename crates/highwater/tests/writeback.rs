//! Promise: dirty pages reach their file in time, never exceed the tunable limits while storage
//! takes them, and no error is lost.

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use highwater::frame::Tunables;
use highwater::group::{StatItem, Tolerance};
use highwater::{
    Access, Background, Backing, Bytes, FileBacking, Limits, Manager, Mapping, Pages, SyncError,
};
use support::{TestFile, assert_empty, mapped};

const FRAMES: u64 = 1000;
const PAGES: u64 = 700;

fn tunables() -> Tunables {
    Tunables::default()
}

fn build(tunables: Tunables, background: Background) -> Manager {
    Manager::builder()
        .capacity(Pages(FRAMES).bytes())
        .tunables(tunables)
        .background(background)
        .build()
        .expect("a small manager")
}

fn write(map: &Mapping, page: u64) {
    map.write(page).expect("there is memory")[8] = 1;
}

/// Returns the pages that storage has taken.
fn taken(storage: &TestFile) -> Vec<u64> {
    let pages = storage.pages.lock().expect("no panic under the lock");
    let is_taken = |(_, bytes): &(u64, &[u8; 4096])| bytes[8] == 1;
    (0..)
        .zip(pages.iter())
        .filter(is_taken)
        .map(|(page, _)| page)
        .collect()
}

fn counter(hw: &Manager, name: &str) -> u64 {
    hw.snapshot().counter(name)
}

#[test]
fn pages_that_are_old_are_written_back() {
    // Goal: no page is dirty for ever. Method: pages that may be dirty for an hour stay; those that
    // may not be dirty at all are in storage after the next run. The counts of the group follow.
    let hour = tunables()
        .with("dirty_expire_centisecs", 360_000)
        .expect("in range");
    let hw = build(hour, Background::Off);
    let storage = TestFile::new(PAGES);
    let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
    (0..50).for_each(|page| write(&map, page));
    assert_eq!(hw.writeback_tick(), Pages::ZERO);
    assert_eq!((counter(&hw, "nr_dirty"), taken(&storage)), (50, vec![]));
    let dirty = || hw.root().stat(StatItem::FileDirty, Tolerance::EXACT).value;
    assert_eq!(dirty(), 50);
    hw.set_tunables(
        tunables()
            .with("dirty_expire_centisecs", 0)
            .expect("in range"),
    );
    assert_eq!(hw.writeback_tick(), Pages(50));
    assert_eq!(taken(&storage), (0..50).collect::<Vec<_>>());
    assert_eq!((counter(&hw, "nr_dirty"), dirty()), (0, 0));
    assert_eq!(
        (counter(&hw, "nr_dirtied"), counter(&hw, "nr_written")),
        (50, 50)
    );
    hw.check_invariants();
}

#[test]
fn a_program_without_threads_writes_back_by_balancing() {
    // Goal: `balance` writes back what is due by the clock, and not before. Method: pages that may
    // not be dirty at all; an interval of an hour, and then of 10 ms.
    let rarely = tunables()
        .with("dirty_expire_centisecs", 0)
        .expect("in range");
    let rarely = rarely
        .with("dirty_writeback_centisecs", 360_000)
        .expect("in range");
    let hw = build(rarely, Background::Off);
    let storage = TestFile::new(PAGES);
    let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
    (0..50).for_each(|page| write(&map, page));
    hw.balance();
    assert_eq!((counter(&hw, "nr_dirty"), taken(&storage)), (50, vec![]));
    hw.set_tunables(
        rarely
            .with("dirty_writeback_centisecs", 1)
            .expect("in range"),
    );
    std::thread::sleep(Duration::from_millis(11));
    hw.balance();
    assert_eq!(counter(&hw, "nr_dirty"), 0);
    assert_eq!(taken(&storage), (0..50).collect::<Vec<_>>());
    hw.check_invariants();
}

// Symptom: sixteen latched pages of 64 KiB counted as 1,024, for which a run gives up.
#[test]
fn a_run_passes_over_as_many_large_pages_as_small_ones() {
    const LARGE: usize = 65_536;
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(200 * LARGE as u64).expect("a sparse file");
    let storage = FileBacking::new(file).and_then(|it| it.with_page_size(Bytes(LARGE as u64)));
    let hw = Manager::builder()
        .capacity(Bytes::mib(64))
        .background(Background::Off)
        .build()
        .expect("a small manager");
    let file = hw.open_file(storage.expect("a file"), Access::ReadWrite);
    let file = file.expect("one file more");
    let map = hw.space(&hw.root()).map_file(&file, 0..200).expect("200");
    let held = (0..180).map(|page| {
        let mut write = map.write(page).expect("there is room");
        write[0] = 1;
        write
    });
    let held: Vec<_> = held.collect();
    std::thread::sleep(Duration::from_millis(25));
    (180..200).for_each(|page| map.write(page).expect("there is room")[0] = 1);
    assert!(hw.writeback_tick() > Pages::ZERO, "others are not held");
    drop(held);
    hw.check_invariants();
}

#[test]
fn too_many_are_written_back_oldest_first() {
    // Goal: above `dirty_background_ratio`, 10 % of 1,000, the excess is written, oldest first.
    // Method: 100 dirty pages stay; 50 younger ones cause 50 of the older ones to be written.
    let hw = build(tunables(), Background::Off);
    let storage = TestFile::new(PAGES);
    let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
    (300..400).for_each(|page| write(&map, page));
    std::thread::sleep(Duration::from_millis(25));
    assert_eq!(hw.writeback_tick(), Pages::ZERO);
    (0..50).for_each(|page| write(&map, page));
    assert_eq!(hw.writeback_tick(), Pages(50));
    assert_eq!(taken(&storage), (300..350).collect::<Vec<_>>());
    hw.check_invariants();
}

// Symptom: with `dirty_writeback_centisecs` 0, a run for need wrote all pages for their age.
#[test]
fn a_run_for_need_writes_no_page_for_its_age() {
    let by_need = tunables()
        .with("dirty_writeback_centisecs", 0)
        .and_then(|tunables| tunables.with("dirty_expire_centisecs", 1));
    let hw = build(by_need.expect("in range"), Background::Thread);
    let storage = TestFile::new(PAGES);
    let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
    (300..350).for_each(|page| write(&map, page));
    std::thread::sleep(Duration::from_millis(25));
    (0..51).for_each(|page| write(&map, page));
    while counter(&hw, "nr_written") == 0 {
        std::thread::yield_now();
    }
    // Waits for the end of the run.
    hw.check_invariants();
    assert_eq!(counter(&hw, "nr_dirty"), 100);
    assert_eq!(taken(&storage).len(), 1, "the excess");
}

#[test]
fn writers_keep_to_the_limit() {
    // Goal: no more than `dirty_ratio`, 20 % of 1,000, is dirty while storage takes pages, also
    // without a thread. Method: one writer; check after each page. When storage refuses, the writer
    // continues, is not delayed, and nothing is lost.
    let hw = build(tunables(), Background::Off);
    let storage = TestFile::new(PAGES);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    for page in 0..500 {
        write(&map, page);
        assert!(counter(&hw, "nr_dirty") <= 201, "page {page}");
    }
    assert!(counter(&hw, "nr_dirty_throttled") > 0);
    storage.fails_writes.store(true, Ordering::Relaxed);
    (500..700).for_each(|page| write(&map, page));
    // Each tries to write a few clusters back, once, not for as long as a writer may be delayed.
    let failed = counter(&hw, "nr_write_failed");
    assert!((1..=200 * 128).contains(&failed), "{failed}");
    assert!(counter(&hw, "nr_dirty") > 201);
    hw.check_invariants();
    storage.fails_writes.store(false, Ordering::Relaxed);
    file.sync().expect("storage is well again");
    assert_eq!(taken(&storage), (0..PAGES).collect::<Vec<_>>());
    drop((file, map));
    assert_empty(&hw);
}

#[test]
fn the_thread_writes_while_others_do() {
    // Goal: with the thread, writers wait for it, and make progress; their remaining dirty pages
    // are written when they are old. Method: two threads write all of a file each, on slow storage,
    // and then do nothing.
    let quick = tunables()
        .with("dirty_writeback_centisecs", 1)
        .and_then(|tunables| tunables.with("dirty_expire_centisecs", 1));
    let hw = build(quick.expect("in range"), Background::Thread);
    let files: Vec<_> = (0..2)
        .map(|_| {
            let storage = TestFile::new(300);
            storage.write_pause_us.store(20, Ordering::Relaxed);
            (mapped(&hw, &storage, Access::ReadWrite), storage)
        })
        .collect();
    std::thread::scope(|scope| {
        for ((_, map), _) in &files {
            scope.spawn(|| (0..300).for_each(|page| write(map, page)));
        }
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while counter(&hw, "nr_dirty") > 0 {
        assert!(Instant::now() < deadline, "{}", hw.snapshot());
        std::thread::sleep(Duration::from_millis(5));
    }
    for (_, storage) in &files {
        assert_eq!(taken(storage), (0..300).collect::<Vec<_>>());
    }
    drop(files);
    assert_empty(&hw);
}

#[test]
fn a_page_that_is_refused_is_tried_again() {
    // Goal: an error in the background loses no byte, and is counted. Method: storage that refuses,
    // or takes only a part, during the thread's work; then one that does not.
    let hw = build(
        tunables()
            .with("dirty_expire_centisecs", 0)
            .expect("in range"),
        Background::Off,
    );
    let storage = TestFile::new(PAGES);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    (0..20).for_each(|page| write(&map, page));
    for flag in [&storage.fails_writes, &storage.falls_short] {
        let before = counter(&hw, "nr_write_failed");
        flag.store(true, Ordering::Relaxed);
        assert_eq!(hw.writeback_tick(), Pages::ZERO);
        let error = file.sync().expect_err("it cannot be written");
        assert!(
            matches!(error, SyncError::WriteBack { failed: 20, .. }),
            "{error}"
        );
        flag.store(false, Ordering::Relaxed);
        assert_eq!(counter(&hw, "nr_write_failed"), before + 40);
    }
    assert_eq!((taken(&storage).len(), counter(&hw, "nr_dirty")), (20, 20));
    file.sync().expect("every page was tried again");
    assert_eq!(counter(&hw, "nr_dirty"), 0);
    hw.check_invariants();
}

#[test]
fn storage_that_refuses_holds_up_nobody_elses_pages() {
    // Goal: writers to healthy storage stay below `dirty_ratio`, 200 pages, although the oldest
    // dirty pages are of a file whose storage is full; with and without the thread. Method: 150,
    // then 300 pages that are refused; another file's pages are checked after each. Then the
    // storage recovers, and the refused pages are written without a request.
    for background in [Background::Off, Background::Thread] {
        let hw = build(tunables(), background);
        let [full, well] = [(); 2].map(|()| TestFile::new(400));
        let (_full_file, full_map) = mapped(&hw, &full, Access::ReadWrite);
        let (_well_file, well_map) = mapped(&hw, &well, Access::ReadWrite);
        full.fails_writes.store(true, Ordering::Relaxed);
        for (refused, most) in [(0..150, 201), (150..300, 300 + 33)] {
            refused.for_each(|page| write(&full_map, page));
            // A page that the thread tries in vain is not counted meanwhile, and then again.
            let most = most + u64::from(matches!(background, Background::Thread));
            // In the next centisecond, if there is a periodic thread.
            std::thread::sleep(Duration::from_millis(20));
            for page in 0..400 {
                write(&well_map, page);
                let nr_dirty = counter(&hw, "nr_dirty");
                assert!(nr_dirty <= most, "{nr_dirty} dirty at page {page}");
            }
        }
        // Before it recovers: the thread may write at once.
        assert_eq!(taken(&full), vec![]);
        full.fails_writes.store(false, Ordering::Relaxed);
        for page in 0..400 {
            write(&well_map, page);
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while counter(&hw, "nr_dirty") > 200 {
            assert!(Instant::now() < deadline, "{}", hw.snapshot());
            write(&well_map, 0);
        }
        assert!(!taken(&full).is_empty());
        drop((_full_file, full_map, _well_file, well_map));
        assert_empty(&hw);
        assert_eq!(taken(&full), (0..300).collect::<Vec<_>>());
    }
}

#[test]
fn pages_that_are_held_hold_up_nobody_elses() {
    // Goal: as above, with the oldest dirty pages held. Method: a thread reads 60 of them for as
    // long as it writes others.
    let hw = build(tunables(), Background::Off);
    let storage = TestFile::new(PAGES);
    let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
    (0..60).for_each(|page| write(&map, page));
    let held: Vec<_> = (0..60)
        .map(|page| map.try_read_latched(page).expect("it is dirty"))
        .collect();
    for page in 60..600 {
        write(&map, page);
        let nr_dirty = counter(&hw, "nr_dirty");
        assert!(nr_dirty <= 201, "{nr_dirty} dirty at page {page}");
    }
    drop(held);
    hw.check_invariants();
}

#[test]
fn each_handle_hears_of_each_failed_sync_once() {
    // Goal: no failure to make pages durable is lost, whichever sync it occurred in. Method:
    // handles that come, sync and go at random on storage that fails at random, against a count of
    // the failures that each has not reported.
    let mut rng = seed::rng(71);
    let hw = support::manager(64);
    let storage = TestFile::new(8);
    let (file, _map) = mapped(&hw, &storage, Access::ReadWrite);
    let mut handles = vec![(file, 0_u64)];
    for _ in 0..3000 {
        let at = rng.usize(..handles.len());
        match rng.u8(..10) {
            0 if handles.len() < 6 => {
                let (file, untold) = &handles[at];
                handles.push((file.clone(), *untold));
            }
            1 if handles.len() > 1 => drop(handles.swap_remove(at)),
            2 => storage.fails_syncs.store(rng.bool(), Ordering::Relaxed),
            _ => {
                let fails = storage.fails_syncs.load(Ordering::Relaxed);
                let result = handles[at].0.sync();
                if fails {
                    assert!(
                        matches!(result, Err(SyncError::Durability(_))),
                        "{result:?}"
                    );
                    handles.iter_mut().for_each(|(_, untold)| *untold += 1);
                    handles[at].1 -= 1;
                    continue;
                }
                match (std::mem::take(&mut handles[at].1), result) {
                    (0, Ok(())) => {}
                    (untold, Err(SyncError::Earlier { failures, .. })) => {
                        assert_eq!(failures, untold);
                    }
                    (untold, result) => panic!("{untold} untold, but {result:?}"),
                }
            }
        }
    }
}

#[test]
fn threads_that_sync_one_handle_hear_of_each_failure() {
    // Goal, method: as above, but four threads on one handle, each of which is told of failures
    // beside its syncs, and another one that reports all in the end.
    let hw = support::manager(64);
    let storage = TestFile::new(8);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    let other = file.clone();
    let mut told = 0;
    std::thread::scope(|scope| {
        let syncs = |thread: u64| {
            let (file, storage) = (&file, Arc::clone(&storage));
            move || {
                let mut rng = fastrand::Rng::with_seed(thread);
                let mut told = 0;
                for _ in 0..300 {
                    storage
                        .fails_syncs
                        .store(rng.u8(..4) == 0, Ordering::Relaxed);
                    told += match file.sync() {
                        Ok(()) => 0,
                        Err(SyncError::Durability(_)) => 1,
                        Err(SyncError::Earlier { failures, .. }) => failures,
                        Err(error) => panic!("{error}"),
                    };
                }
                told
            }
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(syncs(thread))).collect();
        for thread in threads {
            told += thread.join().expect("it does not panic");
        }
    });
    storage.fails_syncs.store(false, Ordering::Relaxed);
    file.sync().expect("this handle has heard of all");
    match other.sync() {
        Err(SyncError::Earlier { failures, .. }) => {
            assert!((failures..=4 * failures).contains(&told))
        }
        result => panic!("{told} failures, but {result:?}"),
    }
    drop(map);
}

#[test]
fn what_was_closed_goes_by_the_clock_and_before_a_victim_is_told() {
    // Goal: a file that was closed while its storage refused pages is released as soon as that has
    // recovered: periodically, or when memory is short, even if reclaim may not take its pages.
    // Method: 90 of 200 frames that a group's `min` keeps, and memory of 150 pages for others.
    for by_the_clock in [true, false] {
        let hw = Manager::builder()
            .capacity(Pages(200).bytes())
            .build()
            .expect("a small manager");
        hw.root().on_exhausted(|victim| panic!("{victim:?}"));
        let limits = Limits {
            min: Pages(100).bytes(),
            ..Limits::default()
        };
        let group = hw.root().child("kept", limits).expect("a new name");
        let storage = TestFile::new(90);
        let file = hw.open_backing(Arc::clone(&storage) as Arc<dyn Backing>, Access::ReadWrite);
        let file = file.expect("one file more");
        let map = hw.space(&group).map_file(&file, 0..90);
        let map = map.expect("the whole file");
        storage.fails_writes.store(true, Ordering::Relaxed);
        (0..90).for_each(|page| write(&map, page));
        drop((map, file));
        assert_eq!(counter(&hw, "nr_dirty"), 90);
        storage.fails_writes.store(false, Ordering::Relaxed);
        if by_the_clock {
            hw.writeback_tick();
            assert_eq!(hw.snapshot().frames.allocated, Pages::ZERO);
        } else {
            let others = hw.space(&hw.root()).map_anon(Pages(150));
            let others = others.expect("a small mapping");
            (0..150).for_each(|page| write(&others, page));
        }
        assert_eq!(taken(&storage), (0..90).collect::<Vec<_>>());
        assert_empty(&hw);
    }
}

#[test]
fn the_thread_holds_nothing_while_caches_are_dropped() {
    // Goal: dropped pages are gone, and invariants can be checked, although the thread runs every
    // 10 ms. Method: write and drop over and over, on slow storage.
    let quick = tunables()
        .with("dirty_writeback_centisecs", 1)
        .and_then(|tunables| tunables.with("dirty_expire_centisecs", 0));
    let hw = build(quick.expect("in range"), Background::Thread);
    let storage = TestFile::new(PAGES);
    storage.write_pause_us.store(50, Ordering::Relaxed);
    let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
    for _ in 0..30 {
        (0..60).for_each(|page| write(&map, page));
        assert_empty(&hw);
    }
    // In the middle of a write.
    storage.write_pause_us.store(20_000, Ordering::Relaxed);
    let written_back = || hw.root().stat(StatItem::FileWriteback, Tolerance::EXACT);
    for _ in 0..5 {
        write(&map, 0);
        while counter(&hw, "nr_dirty") > 0 && written_back().value == 0 {
            std::thread::yield_now();
        }
        assert_empty(&hw);
    }
}

#[test]
fn a_write_latch_that_wrote_nothing_costs_no_write_back() {
    // Goal: a page becomes dirty by the first mutable access under a write latch or by
    // `mark_dirty`, once, and by nothing else. Method: latch pages and write to some; compare the
    // counts, and the pages that a sync writes, with the pages that were written to.
    let hw = build(tunables(), Background::Off);
    let storage = TestFile::new(PAGES);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    for page in 0..40 {
        let mut latched = map.write(page).expect("there is memory");
        assert_ne!(latched[8], 1);
        match page % 4 {
            0 => latched[8] = 1,
            1 => latched.mark_dirty(),
            _ => {}
        }
        if page % 8 == 0 {
            latched.mark_dirty();
            latched[8] = 1;
        }
    }
    assert_eq!(counter(&hw, "nr_dirty"), 20);
    assert_eq!(counter(&hw, "nr_dirtied"), 20);
    file.sync().expect("it works");
    assert_eq!(counter(&hw, "nr_written"), 20);
    assert_eq!(counter(&hw, "nr_dirty"), 0);
    assert_eq!(taken(&storage), (0..40).step_by(4).collect::<Vec<_>>());
    hw.check_invariants();
}
