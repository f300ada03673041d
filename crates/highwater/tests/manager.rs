//! The manager end to end, over in-memory files that can fail: reads are right, nothing is lost,
//! nothing leaks, limits hold, and running out of memory is an error with numbers.

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use highwater::frame::Tunables;
use highwater::lab::percpu::Regime;
use highwater::units::{FilePage, MapPage};
use highwater::{
    Access, Background, BuildError, Bytes, Group, Limits, Manager, OutOfMemory, Pages, PolicyKind,
    ReadError, SyncError, Topology,
};
use support::{TestFile, assert_empty, first_word, manager, mapped};

#[test]
fn a_file_larger_than_the_pool_is_read_through_it() {
    // Goal: reclaim works and every byte is right. Method: three passes over a file of twice the
    // pool, verified; then everything is released.
    let hw = manager(256);
    let storage = TestFile::new(512);
    let (file, map) = mapped(&hw, &storage, Access::ReadOnly);
    for _ in 0..3 {
        for page in 0..512 {
            let guard = hw.enter();
            assert_eq!(first_word(map.read(&guard, page).unwrap()), page);
            assert!(
                map.try_read(&guard, page).is_some(),
                "resident while the guard is held"
            );
        }
    }
    let snapshot = hw.snapshot();
    assert_eq!(
        snapshot.counter("pgmajfault") + snapshot.counter("pgreadahead"),
        storage.reads.load(Ordering::Relaxed)
    );
    assert!(snapshot.counter("workingset_refault_file") > 0);
    assert!(file.resident().contains(file.resident_precise()));
    assert!(file.resident_precise() > 240, "{}", file.resident_precise());
    hw.check_invariants();
    assert_empty(&hw);
}

#[test]
fn a_group_at_its_maximum_reclaims_from_itself_only() {
    // Goal: isolation. Method: a tenant fills its part of the pool; another streams through its
    // own.
    let hw = manager(1024);
    let storage = TestFile::new(2048);
    let file = hw.open_backing(storage, Access::ReadOnly).unwrap();
    let quiet = hw
        .root()
        .child("quiet", Limits::max(Pages(400).bytes()))
        .unwrap();
    let noisy = hw
        .root()
        .child("noisy", Limits::max(Pages(100).bytes()))
        .unwrap();
    let read = |group: &Group, pages: Range<u64>| {
        let map = hw.space(group).map_file(&file, 0..2048).unwrap();
        for page in pages {
            let guard = hw.enter();
            assert_eq!(first_word(map.read(&guard, page).unwrap()), page);
        }
    };
    read(&quiet, 0..300);
    let before = quiet.usage_precise();
    assert!(before >= Pages(300).bytes());
    read(&noisy, 300..2048);
    assert_eq!(
        quiet.usage_precise(),
        before,
        "nothing was taken from the quiet tenant"
    );
    assert!(
        noisy.usage_precise() <= Pages(100).bytes() && noisy.usage_precise() > Pages(80).bytes()
    );
    assert!(noisy.usage().contains(noisy.usage_precise()));
    assert!(noisy.events().max > 0);
    assert_eq!(noisy.list_sizes().total().bytes(), noisy.usage_precise());
    hw.check_invariants();

    // Removing a group leaves its ancestors right, and its pages to its parent.
    let before = hw.root().usage_precise();
    noisy.remove().unwrap();
    assert_eq!(hw.root().usage_precise(), before);
    hw.check_invariants();
    assert_empty(&hw);
}

#[test]
fn a_failed_read_caches_nothing_and_leaks_nothing() {
    // Method: EIO, then a short read, then success, on the same page.
    let hw = manager(64);
    let storage = TestFile::new(8);
    let (_file, map) = mapped(&hw, &storage, Access::ReadOnly);
    storage.fails_reads.store(true, Ordering::Relaxed);
    let error = map.read(&hw.enter(), 3).unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::Io {
                page: FilePage(3),
                ..
            }
        ),
        "{error}"
    );
    storage.fails_reads.store(false, Ordering::Relaxed);
    storage.falls_short.store(true, Ordering::Relaxed);
    let error = map.read(&hw.enter(), 3).unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::Short {
                page: FilePage(3),
                got: 2048,
                want: 4096
            }
        ),
        "{error}"
    );
    assert!(map.try_read(&hw.enter(), 3).is_none());
    assert_eq!(hw.snapshot().frames.allocated, Pages::ZERO);
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
    storage.falls_short.store(false, Ordering::Relaxed);
    assert_eq!(first_word(map.read(&hw.enter(), 3).unwrap()), 3);
    let error = map.read(&hw.enter(), 8).unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::OutOfRange {
                page: MapPage(8),
                pages: 8
            }
        ),
        "{error}"
    );
    assert_empty(&hw);
}

#[test]
fn written_pages_reach_the_file_or_stay_dirty() {
    // Goal: nothing is lost. Method: write more pages than fit while the file refuses: the pool
    // must not lose a page to make room; then the file recovers and everything is there.
    let hw = manager(64);
    let any = Tunables::default().with("dirty_ratio", 100).unwrap();
    hw.set_tunables(any);
    let storage = TestFile::new(256);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    for page in 0..32 {
        map.write(page).unwrap()[8] = 77;
    }
    storage.fails_writes.store(true, Ordering::Relaxed);
    let error = file.sync().unwrap_err();
    assert!(
        matches!(error, SyncError::WriteBack { failed: 32, .. }),
        "{error}"
    );
    assert_eq!(hw.snapshot().counter("nr_dirty"), 32);
    storage.fails_writes.store(false, Ordering::Relaxed);
    storage.falls_short.store(true, Ordering::Relaxed);
    assert!(file.sync().is_err(), "a short write is no write");
    storage.falls_short.store(false, Ordering::Relaxed);
    for page in 32..256 {
        map.write(page).unwrap()[8] = 77;
    }
    file.sync().unwrap();
    assert_eq!(hw.snapshot().counter("nr_dirty"), 0);
    let on_storage = storage.pages.lock().unwrap();
    assert!(on_storage.iter().all(|page| page[8] == 77));
    drop(on_storage);
    hw.check_invariants();
    assert_empty(&hw);
}

#[test]
fn when_dirty_pages_cannot_be_written_memory_is_exhausted_with_numbers() {
    // Goal: an error, not a loss and not a hang. Method: every page dirty, the file refuses.
    let hw = manager(64);
    let storage = TestFile::new(256);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    storage.fails_writes.store(true, Ordering::Relaxed);
    let mut written = 0;
    let error = loop {
        match map.write(written) {
            Ok(mut page) => page[8] = 1,
            Err(error) => break error,
        }
        written += 1;
    };
    let exhausted = |source: &OutOfMemory| match source {
        OutOfMemory::Exhausted { write_failed, .. } => *write_failed > 0,
        OutOfMemory::Charge(failed) => failed.write_failed > 0 && failed.attempts <= 4096,
        _ => false,
    };
    assert!(
        matches!(&error, ReadError::NoMemory { source, .. } if exhausted(source)),
        "{error}"
    );
    assert!(written >= 60, "{written}");
    assert_eq!(hw.snapshot().counter("nr_dirty"), written);
    storage.fails_writes.store(false, Ordering::Relaxed);
    file.sync().unwrap();
    let on_storage = storage.pages.lock().unwrap().clone();
    assert_eq!(
        on_storage.iter().filter(|page| page[8] == 1).count() as u64,
        written
    );
    assert_empty(&hw);
}

#[test]
fn charges_make_the_cache_give_way_and_victims_are_told() {
    // Goal: one budget for pages and for the engine's other memory. Method: fill the cache, then
    // charge; then charge more than the capacity, with a victim that gives back.
    let hw = manager(512);
    let (_file, map) = mapped(&hw, &TestFile::new(1024), Access::ReadOnly);
    for page in 0..1024 {
        map.read(&hw.enter(), page).unwrap();
    }
    let (small, large) = (
        hw.root().child("small", Limits::default()).unwrap(),
        hw.root().child("large", Limits::default()).unwrap(),
    );
    let _kept = small.charge(Pages(100).bytes()).unwrap();
    let held = Arc::new(Mutex::new(vec![large.charge(Pages(350).bytes()).unwrap()]));
    assert!(hw.root().usage_precise() <= Pages(512).bytes());

    let refused = small.charge(Pages(200).bytes()).unwrap_err();
    assert!(
        refused.to_string().contains("group /: 800 KiB asked"),
        "{refused}"
    );
    let told = Arc::new(Mutex::new(Vec::new()));
    let (handler_held, handler_told) = (Arc::clone(&held), Arc::clone(&told));
    hw.root().on_exhausted(move |victim| {
        handler_told
            .lock()
            .unwrap()
            .push((victim.group().path(), victim.badness()));
        handler_held.lock().unwrap().clear();
    });
    let work = small.charge(Pages(200).bytes()).unwrap();
    assert_eq!(*told.lock().unwrap(), [(large.path(), Pages(350).bytes())]);
    assert_eq!(hw.snapshot().counter("oom_kill"), 1);
    assert_eq!((large.events().oom, large.events_local().oom_kill), (0, 1));
    assert_eq!(
        (hw.root().events().oom_kill, hw.root().events_local().oom),
        (1, 1)
    );
    drop(work);
    drop(_kept);
    assert_empty(&hw);
}

#[test]
fn a_request_ends_after_four_victims_that_free_nothing() {
    // Goal: an error with numbers, however many groups could be told. Method: six groups hold all
    // memory, and the handler only counts.
    let hw = manager(64);
    let child = |nr| hw.root().child(&format!("query-{nr}"), Limits::default());
    let groups: Vec<Group> = (0..6).map(child).collect::<Result<_, _>>().unwrap();
    let hold = |group: &Group| group.charge(Pages(10).bytes());
    let _held: Vec<_> = groups.iter().map(hold).collect::<Result<_, _>>().unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&told);
    hw.root().on_exhausted(move |_victim| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let failed = groups[0].charge(Pages(20).bytes()).unwrap_err();
    assert_eq!((failed.victims, told.load(Ordering::Relaxed)), (4, 4));
    assert!(failed.attempts <= 4096, "{failed}");
}

#[test]
fn threads_share_a_small_pool_with_the_reclaim_thread() {
    // Goal: no deadlock, no wrong byte, no leak. Method: 4 threads over a file of 8 times the pool,
    // half of it writable, with the background thread.
    let hw = Manager::builder()
        .capacity(Pages(128).bytes())
        .background(Background::Thread)
        .build()
        .unwrap();
    let fixed = hw
        .open_backing(TestFile::new(512), Access::ReadOnly)
        .unwrap();
    let changing = hw
        .open_backing(TestFile::new(512), Access::ReadWrite)
        .unwrap();
    let seed = seed::seed(5);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (hw, fixed, changing) = (&hw, &fixed, &changing);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed ^ thread);
                let space = hw.space(&hw.root());
                let fixed = space.map_file(fixed, 0..512).unwrap();
                let changing = space.map_file(changing, 0..512).unwrap();
                for _ in 0..20_000 {
                    let page = rng.u64(..512);
                    match rng.u8(..4) {
                        0 => {
                            let mut bytes = changing.write(page).unwrap();
                            assert_eq!(first_word(&bytes), page);
                            bytes[8] = bytes[8].wrapping_add(1);
                        }
                        1 => assert_eq!(first_word(&changing.read_latched(page).unwrap()), page),
                        _ => assert_eq!(first_word(fixed.read(&hw.enter(), page).unwrap()), page),
                    }
                }
            });
        }
    });
    changing.sync().unwrap();
    hw.check_invariants();
    assert_empty(&hw);
}

#[test]
fn pinned_pages_and_closed_files_do_not_lose_memory() {
    let hw = manager(64);
    let file = hw.open_backing(TestFile::new(8), Access::ReadOnly).unwrap();
    let map = hw.space(&hw.root()).map_file(&file, 2..6).unwrap();
    let pinned = map.pin(1).unwrap();
    assert_eq!(first_word(&pinned), 3);
    hw.drop_caches();
    assert_eq!(first_word(&pinned), 3, "pinned across reclaim");

    // A slice may outlive its file: the frame stays until the guard ends.
    let guard = hw.enter();
    let bytes = map.read(&guard, 0).unwrap();
    drop((pinned, map, file));
    assert_eq!(first_word(bytes), 2);
    assert_eq!(hw.snapshot().frames.allocated, Pages(1));
    drop(guard);
    assert_empty(&hw);
}

#[test]
fn settings_outside_their_range_are_refused_with_the_range() {
    let error = Manager::builder()
        .capacity(Bytes(0))
        .build()
        .unwrap_err()
        .to_string();
    assert!(error.contains("0 B") && error.contains("64 KiB"), "{error}");
    let error = Manager::builder().capacity(Bytes::gib(15 << 10)).build();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the machine has "), "{error}");
    let topology: Topology = "1x2x2x2".parse().unwrap();
    let builder = Manager::builder()
        .topology(topology)
        .regime(Regime::Restartable);
    assert!(matches!(builder.build(), Err(BuildError::Regime { .. })));
}

#[test]
fn pages_that_are_read_again_survive_a_scan() {
    // Goal: passes over much data do not displace a working set, after the first one at the
    // latest. Method: a hot set of a third of the pool, read four times before each of two passes
    // over five pools' worth, after which it is still remembered; then check the hot set.
    let hw = manager(1024);
    let file = hw
        .open_backing(TestFile::new(12_400), Access::ReadOnly)
        .unwrap();
    let map = hw.space(&hw.root()).map_file(&file, 0..12_400).unwrap();
    for pass in [400..4400, 4400..8400, 8400..12_400] {
        for page in (0..4).flat_map(|_| 0..340).chain(pass) {
            map.read(&hw.enter(), page).unwrap();
        }
    }
    let resident = (0..340)
        .filter(|&page| map.try_read(&hw.enter(), page).is_some())
        .count();
    assert!(resident >= 330, "{resident} of 340 hot pages are left");
    assert_empty(&hw);
}

#[test]
fn a_snapshot_shows_groups_by_the_kernels_names() {
    // Goal: memory.* by name and number of bytes, as the kernel shows them, without unset limits
    // and events that did not happen. Method: a tenant that is above its high and was refused by
    // its max, beside one without settings.
    let hw = manager(1024);
    let kib = |kib| Bytes::kib(kib);
    let limits = Limits {
        high: kib(80),
        low: kib(40),
        ..Limits::max(kib(400))
    };
    let tenant = hw.root().child("tenant", limits).unwrap();
    let plain = hw.root().child("plain", Limits::default()).unwrap();
    let (work, other) = (
        tenant.charge(kib(92)).unwrap(),
        plain.charge(kib(4)).unwrap(),
    );
    assert!(tenant.charge(kib(400)).is_err());
    let text = hw.snapshot().to_string();
    for line in [
        "/memory.current 98304",
        "/memory.max 4194304",
        "/tenant/memory.current 94208",
        "/tenant/memory.low 40960",
        "/tenant/memory.high 81920",
        "/tenant/memory.max 409600",
        "/tenant/memory.events high 1",
        "/plain/memory.current 4096",
    ] {
        assert!(
            text.lines().any(|shown| shown == line),
            "{line} in:\n{text}"
        );
    }
    for beginning in ["pressure full avg10=", "events.local max "] {
        let line = format!("\n/tenant/memory.{beginning}");
        assert!(text.contains(&line), "{line} in:\n{text}");
    }
    for absent in [
        "tenant/memory.min",
        "plain/memory.max",
        "plain/memory.events",
        "plain/memory.pressure",
    ] {
        assert!(!text.contains(absent), "{absent} in:\n{text}");
    }
    drop((work, other));
    assert_empty(&hw);
}

#[test]
fn a_pass_over_data_that_is_read_once_looks_at_each_page_once() {
    // Goal: efficiency. Method: stream four pools' worth; every page scanned is a page freed.
    let hw = manager(512);
    let (_file, map) = mapped(&hw, &TestFile::new(2048), Access::ReadOnly);
    for page in 0..2048 {
        map.read(&hw.enter(), page).unwrap();
    }
    let snapshot = hw.snapshot();
    assert_eq!(
        snapshot.counter("pgscan_direct"),
        snapshot.counter("pgsteal_direct")
    );
    assert_eq!(snapshot.counter("pgactivate"), 0);
    assert_empty(&hw);
}

#[test]
fn threads_that_fault_in_a_tiny_group_wait_for_each_other() {
    // Goal: no refusal while the group's pages are only in transit. Method: 4 threads fault in a
    // group of two pages; the storage is slow, so that both pages are mostly being read in.
    let hw = manager(256);
    let storage = TestFile::new(64);
    storage.read_pause_us.store(50, Ordering::Relaxed);
    let file = hw.open_backing(storage, Access::ReadOnly).unwrap();
    let tiny = hw
        .root()
        .child("tiny", Limits::max(Pages(2).bytes()))
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (hw, file, tiny) = (&hw, &file, &tiny);
            scope.spawn(move || {
                let map = hw.space(tiny).map_file(file, 0..64).unwrap();
                for page in (0..64).map(|page| (page + 16 * thread) % 64) {
                    assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
                }
            });
        }
    });
    assert!(tiny.usage_precise() <= Pages(2).bytes());
    assert_empty(&hw);
}

#[test]
fn one_victim_that_takes_its_time_is_enough() {
    // Goal: no other group is told while the first victim is stopping. Method: a handler that gives
    // back 2 ms later, on another thread.
    let hw = manager(512);
    let groups: Vec<Group> = (0..4)
        .map(|at| {
            hw.root()
                .child(&format!("g{at}"), Limits::default())
                .unwrap()
        })
        .collect();
    let charges = groups
        .iter()
        .map(|group| Some(group.charge(Pages(120).bytes()).unwrap()));
    let charges = Arc::new(Mutex::new(charges.collect::<Vec<_>>()));
    let told = Arc::new(AtomicU64::new(0));
    let (handler_charges, handler_told) = (Arc::clone(&charges), Arc::clone(&told));
    let first = groups[0].id();
    hw.root().on_exhausted(move |victim| {
        handler_told.fetch_add(1, Ordering::Relaxed);
        let charges = Arc::clone(&handler_charges);
        let at = usize::try_from(victim.group().id().0 - first.0).unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(2));
            charges.lock().unwrap()[at] = None;
        });
    });
    let asking = hw.root().child("asking", Limits::default()).unwrap();
    let work = asking.charge(Pages(100).bytes()).unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 1);
    drop(work);
    charges.lock().unwrap().clear();
    assert_empty(&hw);
}

#[test]
fn a_sync_beside_reclaim_returns_after_the_page_is_in_the_file() {
    // Goal: data that sync reports as durable is in the file, also if reclaim was writing it at
    // that moment. Method: a slow file; another thread makes reclaim write, this one syncs and
    // checks.
    let hw = manager(64);
    let storage = TestFile::new(128);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    for round in 1..=20_u8 {
        for page in 0..8 {
            map.write(page).unwrap()[8] = round;
        }
        storage.write_pause_us.store(300, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| hw.drop_caches());
            std::thread::sleep(std::time::Duration::from_micros(u64::from(round) * 40));
            file.sync().unwrap();
            let on_storage = storage.pages.lock().unwrap();
            assert!(
                on_storage[..8].iter().all(|page| page[8] == round),
                "round {round}"
            );
        });
        storage.write_pause_us.store(0, Ordering::Relaxed);
    }
    assert_empty(&hw);
}

#[test]
fn a_manager_ends_with_pages_that_no_file_takes() {
    // Goal: no panic and no leak of address space. Method: drop everything while writes fail.
    let hw = manager(64);
    let storage = TestFile::new(16);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    map.write(3).unwrap()[8] = 1;
    storage.fails_writes.store(true, Ordering::Relaxed);
    drop((map, file, hw));
}

#[test]
fn pages_that_are_held_do_not_hide_those_that_are_not() {
    // Goal: drop_caches evicts every page that is not held. Method: a working set that reclaim has
    // found active, and more pages on the inactive list, of which many are pinned.
    let hw = manager(256);
    let (file, map) = mapped(&hw, &TestFile::new(512), Access::ReadOnly);
    for page in (0..60).chain(0..60).chain(100..400) {
        map.read(&hw.enter(), page).unwrap();
    }
    assert!(hw.root().list_sizes().active_file >= Pages(50));
    let pins: Vec<_> = (300..400).map(|page| map.pin(page).unwrap()).collect();
    hw.drop_caches();
    assert_eq!(file.resident_precise(), 100);
    drop(pins);
    assert_empty(&hw);
}

#[test]
fn a_group_is_full_when_every_page_of_it_is_held() {
    // Goal: no refusal while the group has pages that are not held. Method: a group with a working
    // set pins one page after the other until it is refused. Under S3-FIFO, which keeps the set.
    let hw = Manager::builder()
        .capacity(Pages(512).bytes())
        .eviction_policy(PolicyKind::S3Fifo)
        .build()
        .unwrap();
    let file = hw
        .open_backing(TestFile::new(512), Access::ReadOnly)
        .unwrap();
    let small = hw
        .root()
        .child("small", Limits::max(Pages(40).bytes()))
        .unwrap();
    let map = hw.space(&small).map_file(&file, 0..512).unwrap();
    for page in (0..15).chain(0..15).chain(100..160) {
        map.read(&hw.enter(), page).unwrap();
    }
    assert!(small.list_sizes().active_file >= Pages(10));
    let pins: Vec<_> = (200..400).map_while(|page| map.pin(page).ok()).collect();
    assert_eq!(pins.len(), 40);
    drop(pins);
    assert_empty(&hw);
}
