//! The model of `src/slot.rs`.

use std::sync::Arc;

use loom::thread;

use crate::slot::{Registration, Slot};
use crate::{model, sync};

const SORT: Registration<'_> = Registration {
    id: 7,
    name: "sort",
    can_spill: true,
};
const JOIN: Registration<'_> = Registration {
    id: 8,
    name: "join",
    can_spill: false,
};

/// A call: bytes more, or less.
fn call(slot: &Slot, change: i64) -> i64 {
    match change {
        0.. => slot.add(change.unsigned_abs()),
        _ => slot.sub(change.unsigned_abs()),
    }
}

/// Runs `first` in this thread, then `mine` in this one and `theirs` in another at the same time.
/// Checks the count and the activity afterwards.
fn check(first: &'static [i64], mine: &'static [i64], theirs: &'static [i64]) {
    model(move || {
        let slot = Arc::new(Slot::default());
        assert!(slot.claim(&SORT));
        let run = |slot: &Slot, calls: &[i64]| -> i64 {
            calls.iter().map(|change| call(slot, *change)).sum()
        };
        let mut active = run(&slot, first);
        let other = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                sync::set_number(2);
                run(&slot, theirs)
            })
        };
        active += run(&slot, mine);
        active += other.join().expect("it panicked");
        let bytes: i64 = [first, mine, theirs].into_iter().flatten().sum();
        let (state, own, others) = slot.words();
        assert_eq!(own + others, bytes, "the sum is exact");
        assert_eq!(state & 1 != 0, others != 0, "the bit is right");
        assert_eq!(state > 1, own != 0, "there is a home");
        assert_eq!(active, i64::from(state != 0), "each change is counted");
        assert_eq!(slot.holds(), bytes > 0);
        // One that was never returned by another thread than that it was taken by is idle.
        let is_mixed = first.iter().sum::<i64>() > 0;
        assert!(bytes > 0 || state == 0 || is_mixed, "it is idle");
    });
}

// Goal: both threads become home, or count with others, and stop.
#[test]
fn two_threads_take_their_first_bytes() {
    check(&[], &[2, -2], &[3, -3]);
    check(&[], &[2, -2, 1], &[3, -3]);
    check(&[], &[2], &[3, -3, 3]);
}

// Goal: a thread returns what the home thread took, while that takes and returns.
#[test]
fn another_thread_returns_what_the_home_thread_took() {
    check(&[2], &[1], &[-2]);
    check(&[2], &[1, -1], &[-2]);
    check(&[2, 2], &[-2], &[-2]);
    check(&[2, 2], &[-2, 1], &[-2, 1]);
}

// Goal: two threads cross 0 of the count that is not the home thread's.
#[test]
fn two_other_threads_cross_zero() {
    model(|| {
        let slot = Arc::new(Slot::default());
        assert!(slot.claim(&SORT));
        let mut active = slot.add(1);
        let others = [2, 3].map(|number| {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                sync::set_number(number);
                slot.add(1) + slot.sub(1)
            })
        });
        let others = others.map(|it| it.join().expect("it panicked"));
        active += others.iter().sum::<i64>();
        assert_eq!((slot.words(), active), ((2, 1, 0), 1));
    });
}

// Goal: a reading is of one consumer, while the slot goes from one to the next; and the next one
// finds no bytes of the former.
#[test]
fn a_reading_is_of_one_consumer() {
    model(|| {
        let slot = Arc::new(Slot::default());
        assert!(slot.claim(&SORT));
        let next = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                sync::set_number(2);
                assert_eq!(slot.add(5) + slot.sub(5) + slot.unregister(), 0);
                assert!(slot.claim(&JOIN));
                slot.add(3)
            })
        };
        if let Some(read) = slot.reading() {
            let (expected, most) = if read.id == SORT.id {
                (SORT, 5)
            } else {
                (JOIN, 3)
            };
            let named = (read.name.as_slice(), read.can_spill);
            assert_eq!(named, (expected.name.as_bytes(), expected.can_spill));
            assert!([0, most].contains(&read.bytes) && [0, most].contains(&read.peak));
        }
        assert_eq!(next.join().expect("it panicked"), 1);
        assert_eq!(slot.words().2 + slot.words().1, 3);
    });
}
