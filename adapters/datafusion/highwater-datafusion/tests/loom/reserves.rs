//! The model of `src/reserve.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use loom::thread;

use crate::model;
use crate::reserve::Reserve;

const RESERVE: i64 = 4;

/// A pool's count beside what is charged for it. Loom runs one thread at a time, and changes
/// threads at its own atomics alone: these are exact.
struct Books {
    reserve: Reserve,
    charged: AtomicI64,
    /// What calls have granted and none has begun to return.
    held: AtomicI64,
    /// The most that may be charged.
    room: i64,
    /// What is charged at least, also while nothing is held.
    least: i64,
}

impl Books {
    fn get(word: &AtomicI64) -> i64 {
        word.load(Ordering::Relaxed)
    }

    fn change(&self, word: &AtomicI64, change: i64) {
        word.fetch_add(change, Ordering::Relaxed);
        let (charged, held) = (Self::get(&self.charged), Self::get(&self.held));
        assert!(charged >= held.max(self.least), "{charged} for {held}");
    }

    fn uncharge(&self, less: u64) {
        assert_ne!(less, 0, "nothing is not returned");
        self.change(&self.charged, -less.cast_signed());
    }

    /// Grows; returns whether there was room.
    fn grow(&self, bytes: i64) -> bool {
        let charge = |more: u64| {
            let more = more.cast_signed();
            assert_ne!(more, 0, "nothing is not charged");
            if Self::get(&self.charged) + more > self.room {
                return Err(());
            }
            self.change(&self.charged, more);
            Ok(())
        };
        let grown = self
            .reserve
            .grow(bytes.unsigned_abs(), charge, |less| self.uncharge(less));
        if grown.is_ok() {
            self.change(&self.held, bytes);
        }
        grown.is_ok()
    }

    fn shrink(&self, bytes: i64) {
        self.change(&self.held, -bytes);
        self.reserve
            .shrink(bytes.unsigned_abs(), |less| self.uncharge(less));
    }

    fn end(&self) {
        self.reserve.end(|less| self.uncharge(less));
    }

    /// Grows and shrinks by these, as far as the thread, which has `own` bytes, has them to return.
    fn run(&self, mut own: i64, calls: &[i64]) {
        for change in calls {
            match change {
                0.. => own += if self.grow(*change) { *change } else { 0 },
                _ => {
                    let bytes = own.min(-change);
                    self.shrink(bytes);
                    own -= bytes;
                }
            }
        }
    }
}

/// One thread of a model.
#[derive(Clone, Copy)]
enum Does {
    Calls(&'static [i64]),
    End,
}

/// Grows by `first`, then runs `mine` in this thread, and `theirs` in another, which has the first
/// bytes, at the same time.
fn check(room: i64, first: i64, mine: Does, theirs: &'static [i64]) {
    model(move || {
        let ends = matches!(mine, Does::End);
        let books = Arc::new(Books {
            reserve: Reserve::new(RESERVE.unsigned_abs()),
            charged: AtomicI64::new(RESERVE),
            held: AtomicI64::new(0),
            room,
            least: if ends { 0 } else { RESERVE },
        });
        assert!(first == 0 || books.grow(first), "there is room");
        let other = {
            let books = Arc::clone(&books);
            thread::spawn(move || books.run(first, theirs))
        };
        match mine {
            Does::Calls(calls) => books.run(0, calls),
            Does::End => books.end(),
        }
        other.join().expect("it panicked");
        let held = Books::get(&books.held);
        assert_eq!(
            books.reserve.used(),
            held.unsigned_abs(),
            "the sum is exact"
        );
        let left = if ends { 0 } else { RESERVE };
        assert_eq!(books.reserve.bytes(), left.unsigned_abs());
        assert_eq!(Books::get(&books.charged), held.max(left), "and no more");
    });
}

// Goal: two threads take what the reserve has, and more, and return it.
#[test]
fn two_threads_exceed_the_reserve() {
    use Does::Calls;
    check(100, 0, Calls(&[3, -3]), &[3, -3]);
    check(100, 0, Calls(&[5, -2]), &[2, -1]);
    check(100, 3, Calls(&[3, -3]), &[-3, 2]);
    check(100, 6, Calls(&[1, 3]), &[-6]);
}

// Goal: a call that is refused returns what it had charged in an earlier round, and no more.
#[test]
fn a_call_is_refused_in_a_later_round() {
    use Does::Calls;
    check(6, 0, Calls(&[6, -6]), &[3, -3]);
    check(6, 3, Calls(&[2, -1]), &[3, -6]);
    check(5, 4, Calls(&[1, 1]), &[1, 1]);
}

// Goal: the reserve ends beside calls within it, across its end and beyond it.
#[test]
fn the_reserve_ends_beside_calls() {
    use Does::End;
    check(100, 0, End, &[3, -3]);
    check(100, 2, End, &[3, -5]);
    check(100, 6, End, &[-6, 1]);
    check(6, 4, End, &[3, -2, 1]);
}
