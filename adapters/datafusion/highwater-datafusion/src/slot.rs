//! The slot of one consumer: a count of its bytes that its home thread changes without an atomic
//! read-modify-write, and its name behind a sequence lock.
//!
//! **Count.** `bytes = own + others`, exact whenever no call is in progress. The *home* thread of a
//! consumer changes `own` by a load and a store; all other threads add to `others`. Either word may
//! be negative: a reservation may be returned on another thread than it was made on.
//!
//! A thread becomes home by its first growing call while there is no home, and stays home until it
//! brings `own` to 0. So a task that a runtime moves to another thread pays for an atomic addition
//! until it has returned what it took on the former one, and not for ever. Numbers of threads are
//! never used again, so that none is home in place of one that has ended.
//!
//! **Activity.** `state` holds the home, and a bit that says `others != 0`; both are changed by
//! read-modify-writes, and only where a word leaves or reaches 0. A consumer is *active* while
//! `state != 0`: while it holds bytes, and also while `own = -others != 0`. The home thread ends
//! the latter when it sees it. Another thread cannot, because it does not see a store of the home
//! thread that is still on its way. So the number of active consumers is an upper bound, and
//! fairness counts them one by one before it refuses ([`Slot::holds`]).
//!
//! - `own != 0` exactly while there is a home: the home thread alone changes either.
//! - The bit is right when no call is in progress. The thread that changed it last looked at
//!   `others` afterwards, and found that it agreed. A thread that takes `others` from or to 0 later
//!   changes the bit later.
//! - Each change of `state` from or to 0 is returned to one caller, which adds it to [`Active`].
//!
//! **Name.** `owner` is the version of a sequence lock: it is [`CLAIMED`] while the slot is
//! written, and numbers of consumers are never used again. A reader that finds the same owner
//! before and after has read words of that consumer only.
//!
//! `tests/loom/slots.rs` is a model of all that.

use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{AtomicI64, AtomicU64, AtomicUsize, fence, own_number, thread_number};

/// Bytes of a name that are kept: a cache line less the word beside it.
pub(crate) const NAME_MAX: usize = 56;

/// Owner of a slot that is being written: no consumer has this number.
const CLAIMED: usize = usize::MAX;

/// The bit of `Slot::state` that says `others != 0`.
const AWAY: u64 = 1;

/// One consumer's bytes, on a line of their own, and its name on the next.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Slot {
    /// The consumer's number plus one; 0 while the slot is free.
    /// Written by: `claim`, `unregister`. Read by: every call, lists. Publishes: the slot.
    owner: AtomicUsize,
    /// Twice the number of the home thread, or 0, and [`AWAY`].
    /// Written by: calls that take a word of the count from or to 0. Read by: every call.
    /// Publishes: `own` and `peak_own`, to the next home.
    state: AtomicU64,
    /// Written by: the home thread. Read by: all. Publishes: nothing.
    own: AtomicI64,
    /// Written by: other threads; the home thread if it moves all to `own`. Read by: all.
    /// Publishes: nothing.
    others: AtomicI64,
    /// The largest sum that a home thread saw. Written and read as `own`.
    peak_own: AtomicI64,
    /// The largest sum that other threads saw. Written by: these. Read by: all. Publishes: nothing.
    peak_others: AtomicI64,
    label: Label,
}

/// What a consumer was registered with, on a line that its calls do not read.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Label {
    /// Twice the bytes of the name, and whether the consumer can spill.
    /// Written by: `claim`. Read by: lists, which check the owner around it. Publishes: nothing.
    packed: AtomicU64,
    /// The name. Written and read as `packed`.
    text: [AtomicU64; NAME_MAX / 8],
}

/// A consumer as it is registered.
#[derive(Debug)]
pub(crate) struct Registration<'c> {
    pub(crate) id: usize,
    pub(crate) name: &'c str,
    pub(crate) can_spill: bool,
}

/// What a slot says of its consumer at one moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) id: usize,
    pub(crate) name: Vec<u8>,
    pub(crate) can_spill: bool,
    pub(crate) bytes: u64,
    pub(crate) peak: u64,
}

/// The number of active consumers: an upper bound of those that hold bytes (see the module).
#[derive(Debug, Default)]
pub(crate) struct Active(
    /// Written by: calls that begin or end a consumer's activity. Read by: fairness. Publishes:
    /// nothing.
    AtomicI64,
);

impl Active {
    /// Adds what calls for a consumer returned.
    pub(crate) fn add(&self, change: i64) {
        // Relaxed: a number by itself.
        self.0.fetch_add(change, Relaxed);
    }

    pub(crate) fn nr(&self) -> u64 {
        // Relaxed: a number by itself. Negative while an end is added before its beginning.
        clamped(self.0.load(Relaxed))
    }
}

fn clamped(number: i64) -> u64 {
    number.max(0).cast_unsigned()
}

// Relaxed, where nothing is said: numbers by themselves, read by the thread that wrote them, or by
// threads that need no more than some recent value.
impl Slot {
    /// Returns whether the slot is that of the consumer with this number.
    #[inline]
    pub(crate) fn is_of(&self, id: usize) -> bool {
        // Acquire. Pairs with: the release of `claim`.
        self.owner.load(Acquire) == id + 1
    }

    /// Takes a free slot for a consumer; returns whether it was free.
    #[inline]
    pub(crate) fn claim(&self, consumer: &Registration<'_>) -> bool {
        debug_assert!(consumer.id < CLAIMED - 1, "a number that is no mark");
        // Acquire. Pairs with: the release of `unregister`: calls for the former consumer are over.
        let is_mine = self.owner.load(Relaxed) == 0
            && self
                .owner
                .compare_exchange(0, CLAIMED, Acquire, Relaxed)
                .is_ok();
        if !is_mine {
            return false;
        }
        // Release. Pairs with: the fence of `read`: a reader of a word below sees the mark.
        fence(Release);
        self.state.store(0, Relaxed);
        let counts = [&self.own, &self.others, &self.peak_own, &self.peak_others];
        counts.iter().for_each(|count| count.store(0, Relaxed));
        self.label.write(consumer);
        // Release. Pairs with: the acquires of `is_of` and `read`.
        self.owner.store(consumer.id + 1, Release);
        true
    }

    /// Frees the slot of a consumer whose last reservation has ended; returns the change of the
    /// number of active consumers.
    pub(crate) fn unregister(&self) -> i64 {
        debug_assert_eq!(self.bytes(), 0, "a consumer ended with bytes");
        // Relaxed: its last reservation let go of the consumer after all calls.
        let was_active = self.state.load(Relaxed) != 0;
        // Release. Pairs with: the acquire of `claim`.
        self.owner.store(0, Release);
        -i64::from(was_active)
    }

    /// Returns the bytes of the consumer, as far as calls of other threads are seen.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        clamped(self.own.load(Relaxed) + self.others.load(Relaxed))
    }

    /// Counts bytes more; returns the change of the number of active consumers.
    #[inline]
    #[must_use]
    pub(crate) fn add(&self, bytes: u64) -> i64 {
        let bytes = bytes.cast_signed();
        debug_assert!(bytes >= 0, "more bytes than any machine has");
        if !self.is_home() {
            return self.add_away(bytes);
        }
        let (after, sum) = self.change_own(bytes);
        if sum > self.peak_own.load(Relaxed) {
            self.peak_own.store(sum, Relaxed);
        }
        if after == 0 || sum == 0 {
            return self.settle_home();
        }
        0
    }

    /// Counts bytes less; returns the change of the number of active consumers.
    #[inline]
    #[must_use]
    pub(crate) fn sub(&self, bytes: u64) -> i64 {
        let bytes = bytes.cast_signed();
        debug_assert!(bytes >= 0, "more bytes than any machine has");
        if !self.is_home() {
            return self.change_others(-bytes);
        }
        let (after, sum) = self.change_own(-bytes);
        if after == 0 || sum == 0 {
            return self.settle_home();
        }
        0
    }

    /// Returns whether this is the home thread.
    #[inline]
    fn is_home(&self) -> bool {
        // Relaxed: a thread's number is there only if the thread wrote it and did not take it back.
        self.state.load(Relaxed) >> 1 == own_number()
    }

    /// Changes the home thread's count; returns it, and the sum.
    #[inline]
    fn change_own(&self, change: i64) -> (i64, i64) {
        let after = self.own.load(Relaxed) + change;
        self.own.store(after, Relaxed);
        (after, after + self.others.load(Relaxed))
    }

    /// As [`add`](Self::add), by a thread that is not home: it becomes so if there is none.
    #[cold]
    #[inline(never)]
    fn add_away(&self, bytes: i64) -> i64 {
        let state = self.state.load(Relaxed);
        let at_home = state | thread_number() << 1;
        // Acquire. Pairs with: the release of `leave_home`: `own` is 0, and no store of the former
        // home thread to it is still to come.
        let becomes_home = state <= AWAY
            && bytes != 0
            && (self.state)
                .compare_exchange(state, at_home, Acquire, Relaxed)
                .is_ok();
        if !becomes_home {
            return self.change_others(bytes);
        }
        let (_, sum) = self.change_own(bytes);
        self.peak_own
            .store(sum.max(self.peak_own.load(Relaxed)), Relaxed);
        i64::from(state == 0) + if sum == 0 { self.settle_home() } else { 0 }
    }

    /// Changes the count of the threads that are not home.
    #[cold]
    #[inline(never)]
    fn change_others(&self, change: i64) -> i64 {
        let before = self.others.fetch_add(change, Relaxed);
        let after = before + change;
        let sum = after + self.own.load(Relaxed);
        let is_peak = |peak: &AtomicI64| sum > peak.load(Relaxed);
        if change > 0 && is_peak(&self.peak_own) && is_peak(&self.peak_others) {
            self.peak_others.fetch_max(sum, Relaxed);
        }
        if before == 0 || after == 0 {
            return self.settle_others();
        }
        0
    }

    /// Makes the bit agree with the other threads' count.
    fn settle_others(&self) -> i64 {
        let mut change = 0;
        // Bound: another round only if a call took the count from or to 0 since the last one.
        loop {
            let is_away = self.others.load(Relaxed) != 0;
            // Acquire and release. Pairs with: itself. Of two threads the later one sees the count
            // of the earlier one when it looks again.
            change += match is_away {
                true => i64::from(self.state.fetch_or(AWAY, AcqRel) == 0),
                false => -i64::from(self.state.fetch_and(!AWAY, AcqRel) == AWAY),
            };
            if is_away == (self.others.load(Relaxed) != 0) {
                return change;
            }
        }
    }

    /// Ends the home thread's part where it has nothing, or nothing together with the others.
    #[cold]
    #[inline(never)]
    fn settle_home(&self) -> i64 {
        let mut change = 0;
        if self.own.load(Relaxed) != 0 {
            let moved = self.others.swap(0, Relaxed);
            self.change_own(moved);
            if moved != 0 {
                change = self.settle_others();
            }
        }
        if self.own.load(Relaxed) == 0 {
            change += self.leave_home();
        }
        change
    }

    fn leave_home(&self) -> i64 {
        // Release. Pairs with: the acquire of `add_away`.
        let before = self.state.fetch_and(AWAY, Release);
        debug_assert_eq!(before >> 1, own_number(), "only the home thread leaves");
        -i64::from(before & AWAY == 0)
    }

    /// Reads words of the slot that belong to one consumer; returns its number with them.
    fn read<T>(&self, words: impl FnOnce(&Self) -> T) -> Option<(usize, T)> {
        // Acquire. Pairs with: the release of `claim`.
        let owner = self.owner.load(Acquire);
        if owner == 0 || owner == CLAIMED {
            return None;
        }
        let words = words(self);
        // Acquire. Pairs with: the fence of `claim`.
        fence(Acquire);
        // Relaxed: see the fence.
        (self.owner.load(Relaxed) == owner).then_some((owner - 1, words))
    }

    /// Returns whether a consumer that can spill has the slot and holds bytes.
    pub(crate) fn holds(&self) -> bool {
        let holds = |slot: &Self| slot.bytes() > 0 && slot.label.can_spill();
        self.read(holds).is_some_and(|(_, holds)| holds)
    }

    /// Returns what the consumer of the slot uses; none if the slot is free, or changed hands
    /// meanwhile.
    pub(crate) fn reading(&self) -> Option<Reading> {
        let peak = |slot: &Self| {
            slot.peak_own
                .load(Relaxed)
                .max(slot.peak_others.load(Relaxed))
        };
        let words = |slot: &Self| (slot.bytes(), peak(slot), slot.label.read());
        let (id, (bytes, peak, (name, can_spill))) = self.read(words)?;
        Some(Reading {
            id,
            name,
            can_spill,
            bytes,
            peak: clamped(peak),
        })
    }

    /// Returns `state`, `own` and `others`.
    #[cfg(test)]
    pub(crate) fn words(&self) -> (u64, i64, i64) {
        let count = |word: &AtomicI64| word.load(Relaxed);
        (
            self.state.load(Relaxed),
            count(&self.own),
            count(&self.others),
        )
    }
}

// Relaxed throughout: the owner of the slot is the version, see `claim` and `read`.
impl Label {
    #[inline]
    fn write(&self, consumer: &Registration<'_>) {
        let name = consumer.name;
        let name = &name.as_bytes()[..name.floor_char_boundary(NAME_MAX)];
        let (words, rest) = name.as_chunks();
        let mut last = [0; 8];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        for (text, word) in self.text.iter().zip(words.iter().chain([&last])) {
            text.store(u64::from_le_bytes(*word), Relaxed);
        }
        let packed = (name.len() as u64) << 1 | u64::from(consumer.can_spill);
        self.packed.store(packed, Relaxed);
    }

    fn can_spill(&self) -> bool {
        self.packed.load(Relaxed) & 1 == 1
    }

    fn read(&self) -> (Vec<u8>, bool) {
        let packed = self.packed.load(Relaxed);
        let len = usize::try_from(packed >> 1).unwrap_or(NAME_MAX);
        let words = self.text.iter().take(len.div_ceil(8));
        let bytes = words.flat_map(|word| word.load(Relaxed).to_le_bytes());
        (bytes.take(len).collect(), packed & 1 == 1)
    }
}
