//! Promise: the capacity can be changed at run time; that loses no frame and no byte, and the
//! excess is reclaimed or reported in numbers.

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use highwater::frame::{AllocFlags, FramePool, Leaving};
use highwater::lab::memmap::{Frame, FrameMemory};
use highwater::{Access, BuildError, Bytes, CapacityError, Limits, Manager, Pages};
use support::{TestFile, assert_empty, first_word, manager, mapped};

fn pool(frames: Pages) -> FramePool {
    let memory = Arc::new(FrameMemory::new(frames).expect("a small range"));
    FramePool::new(memory, 2).expect("a pool")
}

/// Writes a frame's own number into it.
fn sign(pool: &FramePool, mut frame: Frame) -> Frame {
    let number = frame.pfn().0.to_le_bytes();
    pool.memory().bytes_mut(&mut frame)[..4].copy_from_slice(&number);
    frame
}

fn is_signed(pool: &FramePool, frame: &Frame) -> bool {
    pool.memory().bytes(frame)[..4] == frame.pfn().0.to_le_bytes()
}

#[test]
fn a_pool_that_shrinks_and_grows_loses_no_frame_and_no_byte() {
    // Goal: conservation. Method: random allocations, frees, shrinking,
    // growing and trimming beside a model of every frame; frames that are held keep their bytes.
    let (mut rng, all) = (seed::rng(14), Pages(5000));
    let pool = pool(all);
    let mut held: Vec<Frame> = Vec::new();
    let mut out = Pages::ZERO;
    for step in 0..400 {
        let count = rng.usize(0..1500);
        let pages = Pages(count as u64);
        match rng.u32(0..6) {
            0 => out += pool.inflate(pages, Leaving::Reserve),
            1 => out += pool.inflate(pages, Leaving::Nothing),
            2 => out -= pool.deflate(pages),
            3 => _ = pool.trim(),
            4 => {
                let before = held.len();
                pool.alloc_bulk(count, AllocFlags::new(), &mut held);
                let new = held.drain(before..).collect::<Vec<_>>();
                held.extend(new.into_iter().map(|frame| sign(&pool, frame)));
            }
            _ => {
                rng.shuffle(&mut held);
                let keep = held.len().saturating_sub(count);
                held.drain(keep..).for_each(|frame| pool.free(frame));
            }
        }
        let counts = pool.counts();
        assert_eq!(counts.ballooned, out, "step {step}");
        assert_eq!(counts.managed + out, all, "step {step}");
        assert_eq!(counts.allocated, Pages(held.len() as u64), "step {step}");
        assert!(
            held.iter().all(|frame| is_signed(&pool, frame)),
            "step {step}"
        );
        pool.check_invariants();
    }
    held.drain(..).for_each(|frame| pool.free(frame));
    assert_eq!(
        pool.inflate(Pages::MAX, Leaving::Nothing),
        all - out,
        "all are free"
    );
    assert_eq!(pool.counts().managed, Pages::ZERO);
    assert!(pool.alloc().is_err());
    assert_eq!(pool.deflate(Pages::MAX), all);
    pool.check_invariants();
    let memory = Arc::clone(pool.memory());
    pool.inflate(Pages(77), Leaving::Nothing);
    drop(pool);
    assert_eq!(memory.count_free(), all, "a pool that ends has no balloon");
}

#[test]
fn a_pool_is_trimmed_and_resized_beside_threads_that_use_it() {
    // Goal: no bytes in use are decommitted, and no frame is lost, under concurrency. Method: two
    // threads hold frames that they have signed, while a third shrinks, grows and trims.
    let pool = pool(Pages(4096));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..2 {
            let (pool, stop) = (&pool, &stop);
            scope.spawn(move || {
                let mut rng = seed::rng(20 + number);
                let mut held = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match pool.alloc() {
                        Ok(frame) if held.len() < 1000 => held.push(sign(pool, frame)),
                        other => drop(other.map(|frame| pool.free(frame))),
                    }
                    if rng.u32(0..3) == 0 && !held.is_empty() {
                        let frame = held.swap_remove(rng.usize(..held.len()));
                        assert!(is_signed(pool, &frame), "{frame:?} lost its bytes");
                        pool.free(frame);
                    }
                }
                for frame in held {
                    assert!(is_signed(pool, &frame), "{frame:?} lost its bytes");
                    pool.free(frame);
                }
            });
        }
        let mut rng = seed::rng(19);
        for _ in 0..150 {
            match rng.u32(0..3) {
                0 => _ = pool.inflate(Pages(rng.u64(..3000)), Leaving::Reserve),
                1 => _ = pool.deflate(Pages(rng.u64(..3000))),
                _ => _ = pool.trim(),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    pool.deflate(Pages::MAX);
    pool.drain_all();
    assert_eq!(pool.counts().free, Pages(4096));
    pool.check_invariants();
}

#[test]
fn a_smaller_capacity_reclaims_pages_and_a_larger_one_has_frames_for_them() {
    let hw = Manager::builder()
        .capacity(Pages(512).bytes())
        .capacity_max(Pages(2048).bytes())
        .build()
        .unwrap();
    let storage = TestFile::new(4096);
    let (file, map) = mapped(&hw, &storage, Access::ReadOnly);
    let stream = || {
        for page in 0..4096 {
            assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
        }
        file.resident_precise()
    };
    for (pages, least) in [(512, 480), (2048, 2000), (128, 100), (16, 8), (1024, 980)] {
        hw.set_capacity(Pages(pages).bytes()).unwrap();
        assert_eq!(hw.capacity(), Pages(pages).bytes());
        assert_eq!(hw.frames(), Pages(pages).bytes());
        assert!(hw.root().usage_precise() <= hw.capacity());
        let resident = stream();
        // A thread that changes its CPU leaves free frames in the list of the former one.
        let listed = hw.snapshot().frames.cached.0;
        let (listed, most) = (listed.cast_signed(), i64::try_from(pages).unwrap());
        assert!(
            resident <= most && resident + listed >= least,
            "{resident} and {listed} in lists of {pages}"
        );
        hw.check_invariants();
    }
    drop((map, file));
    assert_empty(&hw);
}

#[test]
fn a_capacity_outside_what_was_reserved_is_refused_with_the_range() {
    let hw = manager(512);
    assert_eq!(hw.capacity_max(), Bytes::mib(2));
    for capacity in [Bytes(0), Bytes::kib(60), Bytes::mib(3), Bytes(u64::MAX)] {
        let refused = hw.set_capacity(capacity).unwrap_err();
        let (min, max) = (Bytes::kib(64), Bytes::mib(2));
        assert_eq!(refused, CapacityError::Range { capacity, min, max });
        assert!(refused.to_string().contains("capacity_max"), "{refused}");
        assert_eq!((hw.capacity(), hw.frames()), (Bytes::mib(2), Bytes::mib(2)));
    }
    // Nothing is reserved if no frames are needed.
    let builder = || Manager::builder().capacity(Bytes::mib(2)).frames(Bytes(0));
    let accounts = builder().build().unwrap();
    accounts.set_capacity(accounts.capacity_max()).unwrap();
    assert!(accounts.capacity_max() > Bytes::gib(1 << 10));
    accounts.set_capacity(Bytes::kib(4)).unwrap();
    assert!(accounts.set_capacity(Bytes(0)).is_err());
    let bounded = builder().capacity_max(Bytes::mib(4)).build().unwrap();
    bounded.set_capacity(Bytes::mib(4)).unwrap();
    assert!(bounded.set_capacity(Bytes::mib(5)).is_err());
    for beyond in [Bytes::mib(1), Bytes::gib(1 << 18), Bytes(u64::MAX)] {
        let refused = builder().capacity_max(beyond).build();
        assert!(matches!(refused, Err(BuildError::Capacity { .. })));
    }
}

#[test]
fn charges_above_a_smaller_capacity_are_said_in_numbers_and_stay() {
    let hw = manager(1024);
    let tenant = hw.root().child("tenant", Limits::default()).unwrap();
    let charge = tenant.charge(Pages(600).bytes()).unwrap();
    let storage = TestFile::new(300);
    let (_file, map) = mapped(&hw, &storage, Access::ReadOnly);
    for page in 0..300 {
        map.read(&hw.enter(), page).unwrap();
    }
    let refused = hw.set_capacity(Pages(400).bytes()).unwrap_err();
    let [capacity, usage, over] = [400, 600, 200].map(|pages| Pages(pages).bytes());
    let expected = CapacityError::BelowUsage {
        capacity,
        usage,
        over,
    };
    assert_eq!(refused, expected);
    assert_eq!(
        (hw.capacity(), hw.frames()),
        (capacity, capacity),
        "it is set all the same"
    );
    assert!(tenant.charge(Bytes::kib(4)).is_err());
    drop(charge);
    hw.set_capacity(capacity).unwrap();
    assert_eq!(first_word(map.read(&hw.enter(), 7).unwrap()), 7);
    hw.check_invariants();
}

#[test]
fn a_borrowed_page_stays_where_it_is_while_the_capacity_shrinks() {
    let hw = manager(256);
    let storage = TestFile::new(256);
    let (_file, map) = mapped(&hw, &storage, Access::ReadOnly);
    let guard = hw.enter();
    let borrowed: Vec<_> = (0..40)
        .map(|page| map.read(&guard, page).unwrap())
        .collect();
    let refused = hw.set_capacity(Pages(16).bytes()).unwrap_err();
    assert!(
        matches!(refused, CapacityError::BelowUsage { .. }),
        "{refused}"
    );
    for (page, bytes) in (0..).zip(&borrowed) {
        assert_eq!(first_word(bytes), page);
    }
    drop(borrowed);
    drop(guard);
    hw.set_capacity(Pages(16).bytes()).unwrap();
    assert_eq!(hw.frames(), Pages(16).bytes());
    hw.check_invariants();
}

#[test]
fn reads_go_on_while_the_capacity_changes() {
    // Method: two threads read and write, verified, while another one sets capacities and trims.
    let hw = Manager::builder()
        .capacity(Pages(1024).bytes())
        .build()
        .unwrap();
    let storage = TestFile::new(1500);
    let (file, map) = mapped(&hw, &storage, Access::ReadWrite);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..2 {
            let (map, stop) = (&map, &stop);
            scope.spawn(move || {
                let mut rng = seed::rng(30 + number);
                while !stop.load(Ordering::Relaxed) {
                    let page = rng.u64(..1500);
                    assert_eq!(first_word(&map.read_latched(page).unwrap()), page);
                    map.write(page).unwrap()[8..16].copy_from_slice(&page.to_le_bytes());
                }
            });
        }
        let mut rng = seed::rng(29);
        for _ in 0..60 {
            // Pages that are pinned at the moment may exceed it.
            let set = hw.set_capacity(Pages(rng.u64(64..=1024)).bytes());
            assert!(!matches!(set, Err(CapacityError::Range { .. })), "{set:?}");
            hw.trim();
        }
        stop.store(true, Ordering::Relaxed);
    });
    hw.check_invariants();
    file.sync().unwrap();
    for page in 0..1500 {
        let bytes = map.read_latched(page).unwrap();
        assert_eq!(first_word(&bytes), page);
        assert!([0x5a; 8] == bytes[8..16] || page.to_le_bytes() == bytes[8..16]);
    }
}

#[test]
fn threads_that_set_the_same_capacity_at_once_leave_it_and_its_frames() {
    // Goal: two resizes move frames once. Method: both shrink an idle pool, and then grow it, from
    // the same moment on, which they spin for, again and again.
    let hw = manager(1024);
    let arrived = AtomicUsize::new(0);
    let meet = |nth: usize| {
        arrived.fetch_add(1, Ordering::SeqCst);
        while arrived.load(Ordering::SeqCst) < 2 * nth {
            std::hint::spin_loop();
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let resize = || {
            for round in 0..4_000 {
                let pages = if round % 2 == 0 { 512 } else { 1024 };
                meet(2 * round + 1);
                hw.set_capacity(Pages(pages).bytes()).expect("idle");
                meet(2 * round + 2);
                assert_eq!(hw.frames(), Pages(pages).bytes(), "round {round}");
            }
        };
        scope.spawn(resize);
        resize();
    });
    assert_empty(&hw);
}

/// Returns the flags of the mapping that an address lies in (`VmFlags` of smaps).
#[cfg(target_os = "linux")]
fn flags_of(address: usize) -> Vec<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut is_in = false;
    for line in smaps.lines() {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let range = range.map(|(start, end)| [start, end].map(|it| usize::from_str_radix(it, 16)));
        if let Some([Ok(start), Ok(end)]) = range {
            is_in = (start..end).contains(&address);
        }
        if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_in) {
            return flags.split_whitespace().map(Into::into).collect();
        }
    }
    panic!("{address:#x} is in no mapping");
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn what_a_smaller_capacity_gave_back_is_not_made_a_huge_page_again() {
    // Goal: the system makes no huge pages (`khugepaged`) of areas of which a part was given back,
    // and of all again once the pool is whole. Method: a full pool of 8 MiB shrinks by a part that
    // is no multiple of 2 MiB; what the system was told is in smaps.
    let hw = manager(2048);
    let (file, map) = mapped(&hw, &TestFile::new(2048), Access::ReadOnly);
    let flags = || {
        let pages = (0..2048).filter_map(|page| {
            let guard = hw.enter();
            map.try_read(&guard, page)
                .map(|bytes| bytes.as_ptr().addr())
        });
        let areas: std::collections::BTreeSet<usize> = pages.map(|at| at >> 21 << 21).collect();
        areas.into_iter().map(flags_of).collect::<Vec<_>>()
    };
    (0..2048).for_each(|page| _ = map.read(&hw.enter(), page).expect("it fits"));
    let has = |flags: &[String], wanted: &str| flags.iter().any(|flag| flag == wanted);
    if !flags().iter().all(|flags| has(flags, "hg")) {
        return println!("skipped: the system has no huge pages");
    }
    for pages in [1000, 900] {
        hw.set_capacity(Pages(pages).bytes())
            .expect("clean pages are evicted");
        let shrunk = flags();
        assert!(shrunk.iter().any(|flags| has(flags, "nh")), "{shrunk:?}");
    }
    hw.set_capacity(Pages(2048).bytes()).expect("as before");
    let grown = flags();
    assert!(grown.iter().all(|flags| has(flags, "hg")), "{grown:?}");
    drop((map, file));
    assert_empty(&hw);
}
