//! Promise: the capacity is the maximum of all charges, the frames are the maximum for pages, and
//! accounting needs no frames.

mod support;

use std::sync::{Arc, Mutex};

use highwater::{Access, BuildError, Bytes, Limits, Manager, MemoryError, OpenError, Pages};
use support::TestFile;

#[test]
fn without_frames_pages_are_refused_and_charges_are_not() {
    let hw = Manager::builder()
        .capacity(Bytes::mib(1))
        .frames(Bytes(0))
        .build()
        .unwrap();
    assert_eq!((hw.capacity(), hw.frames()), (Bytes::mib(1), Bytes(0)));
    let storage = TestFile::new(1);
    let refused = hw.open_backing(storage, Access::ReadOnly).unwrap_err();
    assert!(matches!(refused, OpenError::NoFrames), "{refused}");
    let refused = hw.open("/proc/self/status").unwrap_err();
    assert!(matches!(refused, OpenError::NoFrames), "{refused}");
    let refused = hw.space(&hw.root()).map_anon(Pages(1)).unwrap_err();
    assert!(matches!(refused, MemoryError::NoFrames), "{refused}");
    let refused = hw.shared_memory(Pages(1)).unwrap_err();
    assert!(matches!(refused, MemoryError::NoFrames), "{refused}");

    // Operations on a pool work on one without frames, too.
    assert!(!hw.is_short(), "short of frames that it never has");
    hw.reclaim_ahead();
    assert_eq!(
        hw.drop_caches() + hw.drain_all() + hw.decay_tick(),
        Pages(0)
    );
    println!("{}", hw.snapshot());

    let tenant = hw.root().child("tenant", Limits::default()).unwrap();
    let most = tenant.charge(Bytes::mib(1)).unwrap();
    assert!(tenant.charge(Bytes::kib(4)).is_err(), "above the capacity");
    drop(most);
    hw.check_invariants();
}

#[test]
fn a_victim_is_told_where_there_are_no_frames() {
    // Goal: exhaustion works by charges alone. Method: the handler drops the charges of the larger
    // of two groups.
    let hw = Manager::builder()
        .capacity(Bytes::mib(1))
        .frames(Bytes(0))
        .build()
        .unwrap();
    let [small, large] = ["small", "large"].map(|name| hw.root().child(name, Limits::default()));
    let (small, large) = (small.unwrap(), large.unwrap());
    let held = Arc::new(Mutex::new(Some(large.charge(Bytes::kib(800)).unwrap())));
    let (gives, largest) = (Arc::clone(&held), large.key());
    hw.root().on_exhausted(move |victim| {
        assert_eq!(victim.group().key(), largest);
        drop(gives.lock().unwrap().take());
    });
    let charge = small.charge(Bytes::kib(700)).unwrap();
    assert!(held.lock().unwrap().is_none());
    drop(charge);
    hw.check_invariants();
}

#[test]
fn pages_use_no_more_than_the_frames_and_charges_the_rest() {
    // Goal: the capacity is for both, the frames for pages only. Method: a stream of pages through
    // a quarter of the capacity, beside a charge that takes the rest; then a charge that takes some
    // of the pages' memory.
    let hw = Manager::builder()
        .capacity(Bytes::mib(4))
        .frames(Bytes::mib(1))
        .build()
        .unwrap();
    assert_eq!(hw.frames(), Bytes::mib(1));
    let storage = TestFile::new(1024);
    let (file, map) = support::mapped(&hw, &storage, Access::ReadOnly);
    let stream = || {
        for page in 0..1024 {
            let guard = hw.enter();
            assert_eq!(support::first_word(map.read(&guard, page).unwrap()), page);
        }
    };
    let tenant = hw.root().child("tenant", Limits::default()).unwrap();
    let rest = tenant.charge(Bytes::mib(3)).unwrap();
    stream();
    let resident = file.resident_precise();
    assert!((200..=256).contains(&resident), "{resident} pages of 256");
    let more = tenant.charge(Bytes::kib(512)).unwrap();
    stream();
    let resident = file.resident_precise();
    assert!((64..=128).contains(&resident), "{resident} pages of 128");
    hw.check_invariants();
    drop((rest, more, map, file));
    support::assert_empty(&hw);
}

#[test]
fn impossible_numbers_of_frames_are_refused_with_the_range() {
    let built = |frames: Bytes| {
        let builder = Manager::builder().capacity(Bytes::mib(1));
        builder.frames(frames).build().map(|_| ())
    };
    for frames in [Bytes(1), Bytes::kib(60), Bytes::mib(2), Bytes(u64::MAX)] {
        let refused = built(frames).unwrap_err();
        assert!(
            matches!(refused, BuildError::FramesRange { .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains("64 KiB to 1 MiB"), "{refused}");
    }
    built(Bytes::kib(64)).unwrap();
    built(Bytes::mib(1)).unwrap();
    let refused = Manager::builder()
        .capacity(Bytes(0))
        .frames(Bytes(0))
        .build();
    assert!(matches!(refused, Err(BuildError::Capacity { .. })));
}
