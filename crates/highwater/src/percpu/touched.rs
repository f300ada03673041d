//! Bitmap of the slots of a word that were added to.
//!
//! A bit is set before the slot's first addition can be seen, and never cleared: readers that visit
//! only marked slots miss nothing. Each CPU sets each of its bits once, so that the shared words
//! are written as often as there are CPUs, however many additions there are.

use std::iter;

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// A set of slots that only grows.
///
/// Written by: the first addition in a slot (relaxed). Read by: any thread. Publishes: nothing; the
/// ordering of a reader after an addition also orders it after the mark, see the module `cells`.
pub(crate) struct Touched(Box<[AtomicU64]>);

impl Touched {
    pub(crate) fn none_of(slots: usize) -> Self {
        let words = slots.div_ceil(64);
        Self(
            iter::repeat_with(|| AtomicU64::new(0))
                .take(words)
                .collect(),
        )
    }

    pub(crate) fn mark(&self, slot: usize) {
        // Relaxed: see the type.
        self.0[slot / 64].fetch_or(1 << (slot % 64), Ordering::Relaxed);
    }

    /// Marks a slot so that of two threads which do so and then look at the marks, one at least
    /// sees both.
    pub(crate) fn mark_visibly(&self, slot: usize) {
        self.mark(slot);
        // Pairs with itself in another thread. SeqCst: each marks and then looks; release and
        // acquire let both miss the other's mark, where it is in another word.
        fence(Ordering::SeqCst);
    }

    /// Returns the marked slots, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.words().enumerate();
        words.flat_map(|(nth, bits)| slots_of(nth, bits))
    }

    /// Returns the marks of the `nth` 64 slots.
    pub(super) fn bits(&self, nth: usize) -> u64 {
        // Relaxed: see the type.
        self.0[nth].load(Ordering::Relaxed)
    }

    /// Returns how many runs of `1 << span_shift` neighbours, aligned to their size, hold a marked
    /// slot below `end`.
    pub(crate) fn runs(&self, span_shift: u32, end: usize) -> usize {
        let words = self.words().enumerate();
        let mut words = words.map(|(nth, bits)| bits & bits_below(end, nth));
        if span_shift < 6 {
            let runs = words.map(|bits| first_of_runs(bits, span_shift).count_ones() as usize);
            return runs.sum();
        }
        let run = 1 << (span_shift - 6);
        let runs = 0..self.0.len().div_ceil(run);
        runs.filter(|_| {
            words
                .by_ref()
                .take(run)
                .fold(false, |any, bits| any | (bits != 0))
        })
        .count()
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        // Relaxed: see the type.
        self.0.iter().map(|word| word.load(Ordering::Relaxed))
    }
}

/// Returns the slots that `bits` marks of the `nth` 64, lowest first.
pub(super) fn slots_of(nth: usize, bits: u64) -> impl Iterator<Item = usize> {
    iter::successors((bits != 0).then_some(bits), |bits| {
        let rest = bits & (bits - 1);
        (rest != 0).then_some(rest)
    })
    .map(move |bits| nth * 64 + bits.trailing_zeros() as usize)
}

/// Returns the bits of the `nth` 64 slots that stand for slots below `end`.
fn bits_below(end: usize, nth: usize) -> u64 {
    match end.saturating_sub(nth * 64) {
        below @ 0..64 => (1 << below) - 1,
        64.. => u64::MAX,
    }
}

/// Returns the first bit of each aligned run of `1 << span_shift` bits in which `bits` has any.
fn first_of_runs(mut bits: u64, span_shift: u32) -> u64 {
    for shift in 0..span_shift {
        bits |= bits >> (1 << shift);
    }
    let firsts = (0..64).step_by(1 << span_shift);
    bits & firsts.fold(0, |firsts, at| firsts | 1 << at)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_as_a_plain_array_would() {
        // Goal: no run missed or counted twice. Method: random sets against a plain array.
        let mut random = crate::seed::rng(5);
        for _ in 0..300 {
            let slots = random.usize(1..700);
            let touched = Touched::none_of(slots);
            let mut plain = vec![false; slots];
            for _ in 0..random.usize(0..40) {
                let slot = random.usize(..slots);
                touched.mark(slot);
                plain[slot] = true;
            }
            let marked: Vec<_> = touched.iter().collect();
            let expected: Vec<_> = (0..slots).filter(|&slot| plain[slot]).collect();
            assert_eq!(marked, expected);
            let end = random.usize(..=slots + 100);
            for shift in 0..10 {
                let plain = &plain[..end.min(slots)];
                let runs = plain.chunks(1 << shift).filter(|run| run.contains(&true));
                let (expected, runs) = (runs.count(), touched.runs(shift, end));
                assert_eq!(runs, expected, "{slots} slots, {shift}, below {end}");
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom {
    use super::*;
    use crate::sync::{Arc, thread};

    // Goal: of two threads that mark slots of different words and then count, one counts both.
    #[test]
    fn one_of_two_threads_sees_both_marks() {
        ::loom::model(|| {
            let touched = Arc::new(Touched::none_of(65));
            let mark_and_count = |touched: &Touched, slot| {
                touched.mark_visibly(slot);
                touched.iter().count()
            };
            let of_other = Arc::clone(&touched);
            let other = thread::spawn(move || mark_and_count(&of_other, 64));
            let counted = mark_and_count(&touched, 0);
            let by_other = other.join().expect("the model's thread ends");
            assert_eq!(counted.max(by_other), 2);
        });
    }
}
