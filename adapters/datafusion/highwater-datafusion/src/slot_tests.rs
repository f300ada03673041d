//! Tests of [`slot`](crate::slot) with real threads.

use std::sync::Barrier;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::thread;

use parking_lot::Mutex;

use crate::slot::{NAME_MAX, Registration, Slot};

/// The bit of a slot's state that says that other threads count.
const AWAY: u64 = 1;

const fn registration(name: &str) -> Registration<'_> {
    Registration {
        id: 7,
        name,
        can_spill: true,
    }
}

fn claimed(name: &str) -> Slot {
    let slot = Slot::default();
    assert!(slot.claim(&registration(name)));
    assert!(!slot.claim(&registration(name)), "it is not free");
    slot
}

/// Returns what does not hold of a slot without calls in progress, of what the module says.
fn faults(slot: &Slot, bytes: u64, active: i64) -> Vec<&'static str> {
    let (state, own, others) = slot.words();
    let claims = [
        (own + others == bytes.cast_signed(), "the sum is exact"),
        ((state & AWAY != 0) == (others != 0), "the bit is right"),
        ((state > AWAY) == (own != 0), "there is a home"),
        (active == i64::from(state != 0), "each change is counted"),
        (bytes == 0 || state != 0, "one that holds bytes is active"),
        (slot.holds() == (bytes > 0), "bytes are seen"),
    ];
    let false_ones = claims.into_iter().filter(|(is_true, _)| !is_true);
    false_ones.map(|(_, claim)| claim).collect()
}

fn check(slot: &Slot, bytes: u64, active: i64) {
    assert_eq!(faults(slot, bytes, active), [""; 0]);
}

/// Runs on another thread, which then ends.
fn away<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(run).join().expect("it panicked"))
}

// Goal: a name is kept up to 56 bytes, and never with a part of a character. Method: names of
// all lengths, of characters of one byte to four.
#[test]
fn a_long_name_is_cut_before_a_character() {
    for character in ["s", "\u{e4}", "\u{4e2d}", "\u{1f4a7}"] {
        for nth in 0..70 {
            let name = character.repeat(nth);
            let whole = NAME_MAX / character.len() * character.len();
            let kept = claimed(&name).reading().expect("it was claimed").name;
            assert_eq!(kept, &name.as_bytes()[..whole.min(name.len())]);
        }
    }
}

// Goal: a consumer counts as active until its home thread sees that it holds nothing; and it
// holds bytes, and has the peak, that all threads together gave it. Method: each path in turn,
// by this thread and by others.
#[test]
fn a_home_thread_takes_over_what_others_returned() {
    let slot = claimed("sort");
    assert_eq!(slot.add(5), 1);
    check(&slot, 5, 1);
    assert_eq!(away(|| slot.sub(5)), 0, "this thread may have added some");
    check(&slot, 0, 1);
    assert_eq!(slot.add(3), 0);
    check(&slot, 3, 1);
    assert_eq!(slot.sub(3), -1);
    check(&slot, 0, 0);
    assert_eq!(away(|| slot.add(7) + slot.sub(3)), 1);
    check(&slot, 4, 1);
    assert_eq!(slot.add(4), 0);
    assert_eq!(slot.sub(8), 0, "the home thread has ended");
    check(&slot, 0, 1);
    assert_eq!(slot.reading().map(|it| it.peak), Some(8));
    assert_eq!(slot.unregister(), -1);
    assert_eq!(slot.reading(), None);
    assert!(slot.claim(&registration("join")));
    check(&slot, 0, 0);
}

/// Adds and returns at random, from what all threads together have; returns the change of the
/// number of active consumers.
fn churn(slot: &Slot, pot: &AtomicI64, seed: u64) -> i64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut change = 0;
    for _ in 0..random.u32(1..40) {
        let bytes = random.u64(1..3);
        if random.bool() {
            change += slot.add(bytes);
            pot.fetch_add(bytes.cast_signed(), AcqRel);
            continue;
        }
        let less = |pot: i64| (pot > 0).then(|| pot - pot.min(bytes.cast_signed()));
        if let Ok(before) = pot.fetch_update(AcqRel, Acquire, less) {
            change += slot.sub(before.min(bytes.cast_signed()).cast_unsigned());
        }
    }
    change
}

// Goal: neither a byte nor a change of activity is lost or counted twice while threads add and
// return, each also what others added, about 0 where the words are settled. Method: four
// threads in rounds of a few calls, with few bytes; after each round the slot is compared with
// what the threads have. A thread takes part in half of the rounds, so that homes are left.
#[test]
fn a_count_is_exact_once_calls_are_over() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 3_000;
    let (slot, pot, active) = (claimed("sort"), AtomicI64::new(0), AtomicI64::new(0));
    let (barrier, faulty) = (Barrier::new(THREADS as usize), Mutex::new(Vec::new()));
    let run = |thread: u64| {
        for round in 0..ROUNDS {
            barrier.wait();
            if (round >> thread) & 1 == 0 {
                active.fetch_add(churn(&slot, &pot, round * THREADS + thread), AcqRel);
            }
            if barrier.wait().is_leader() {
                let bytes = pot.load(Acquire).cast_unsigned();
                let found = faults(&slot, bytes, active.load(Acquire));
                faulty.lock().extend(found);
                if round.is_multiple_of(3) {
                    active.fetch_add(slot.sub(bytes), AcqRel);
                    pot.store(0, Release);
                }
            }
        }
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let run = &run;
            scope.spawn(move || run(thread));
        }
    });
    assert_eq!(faulty.into_inner(), [""; 0]);
    let rest = pot.into_inner().cast_unsigned();
    let active = active.into_inner() + away(|| slot.sub(rest));
    check(&slot, 0, active);
    assert_eq!(active + slot.unregister(), 0);
}
