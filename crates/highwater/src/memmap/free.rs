//! The bitmap of free frames.
//!
//! The bit of a free frame is the right to it: the thread that clears the bit has the right, and of
//! two concurrent threads only one does. Neighbouring frames share a word, so that one instruction
//! takes or puts back up to 64 frames of a block or a sorted list.

use std::ops::Range;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Order, Pages, Pfn};

/// Bits in a word.
const BITS: u32 = u64::BITS;

/// The free frames of one memory.
pub(super) struct FreeMap {
    /// Written by: threads that take frames or put them back (by adding and removing bits). Read
    /// by: the same. Publishes: that the last owner no longer uses the frame.
    words: Box<[AtomicU64]>,
}

impl FreeMap {
    /// Creates a map of the frames below `count`, all free.
    pub(super) fn all(count: u32) -> Self {
        let word = |first: u32| {
            let bits = (count - first).min(BITS);
            AtomicU64::new(u64::MAX >> (BITS - bits))
        };
        let firsts = (0..count).step_by(BITS as usize);
        Self {
            words: firsts.map(word).collect(),
        }
    }

    /// Takes frames that all must be free, in runs that share a word. Calls `taken` with each run
    /// once it is taken.
    ///
    /// # Panics
    ///
    /// When one is not free: its allocator handed it out twice. Its run is unchanged then.
    #[inline]
    pub(super) fn take_all(&self, pfns: &[Pfn], mut taken: impl FnMut(&[Pfn])) {
        for_each_run(pfns, |run, word, bits| {
            self.take(word, bits);
            taken(run);
        });
    }

    /// Puts frames back; the caller must have the right to them.
    #[inline]
    pub(super) fn put_all(&self, pfns: &[Pfn]) {
        for_each_run(pfns, |_, word, bits| self.put(word, bits));
    }

    /// Takes the frames of a block.
    ///
    /// # Panics
    ///
    /// As [`take_all`](Self::take_all). All of the block is unchanged then.
    pub(super) fn take_block(&self, first: Pfn, order: Order) {
        // Put back on unwinding in the middle: there is no token for a part of a block.
        let mut taken = PutBack {
            map: self,
            words: 0..0,
            bits: 0,
        };
        for_each_word(first, order, |word, bits| {
            self.take(word, bits);
            if taken.words.is_empty() {
                taken.words = word..word;
            }
            (taken.words.end, taken.bits) = (word + 1, bits);
        });
        std::mem::forget(taken);
    }

    /// Puts a block back; the caller must have the right to it.
    pub(super) fn put_block(&self, first: Pfn, order: Order) {
        for_each_word(first, order, |word, bits| self.put(word, bits));
    }

    /// Returns whether a frame is free at this moment.
    pub(super) fn has(&self, pfn: Pfn) -> bool {
        // Relaxed: a thread that takes it looks again.
        let word = self.words[pfn.index() / BITS as usize].load(Ordering::Relaxed);
        word >> (pfn.0 % BITS) & 1 == 1
    }

    /// Returns the number of free frames; exact when quiescent.
    pub(super) fn count(&self) -> Pages {
        // Relaxed: a count for checks in quiescence.
        let ones = |word: &AtomicU64| u64::from(word.load(Ordering::Relaxed).count_ones());
        Pages(self.words.iter().map(ones).sum())
    }

    #[inline]
    fn take(&self, word: usize, bits: u64) {
        // Acquire. Pairs with: the release of `put`, so that the last owners' writes are over.
        let before = self.words[word].fetch_and(!bits, Ordering::Acquire);
        if before & bits != bits {
            self.refuse(word, bits, before & bits);
        }
    }

    #[inline]
    fn put(&self, word: usize, bits: u64) {
        // Release. Pairs with: the acquire of `take`.
        let before = self.words[word].fetch_or(bits, Ordering::Release);
        debug_assert_eq!(before & bits, 0, "a frame was put back twice");
    }

    #[cold]
    fn refuse(&self, word: usize, bits: u64, were_free: u64) -> ! {
        self.put(word, were_free);
        let first =
            Pfn::from_index(word * BITS as usize + (bits & !were_free).trailing_zeros() as usize);
        panic!("{first} claimed while it is not free");
    }
}

/// Words whose bits are put back on drop: the same bits in each.
struct PutBack<'a> {
    map: &'a FreeMap,
    words: Range<usize>,
    bits: u64,
}

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        self.words
            .clone()
            .for_each(|word| self.map.put(word, self.bits));
    }
}

/// Cuts `pfns` into runs of distinct frames that share a word of 64; calls `visit` with each run,
/// the word's number and the bits.
#[inline]
pub(crate) fn for_each_run(pfns: &[Pfn], mut visit: impl FnMut(&[Pfn], usize, u64)) {
    let mut rest = pfns;
    while let Some(first) = rest.first() {
        let (count, bits) = neighbours(rest).unwrap_or_else(|| of_one_word(rest));
        let (run, others) = rest.split_at(count);
        visit(run, (first.0 / BITS) as usize, bits);
        rest = others;
    }
}

/// Returns the length of the first run of `pfns` (up to a frame of another word, or a repetition),
/// and its bits.
fn of_one_word(pfns: &[Pfn]) -> (usize, u64) {
    let (word, mut bits, mut count) = (pfns[0].0 / BITS, 0, 0);
    for pfn in pfns {
        let bit = 1 << (pfn.0 % BITS);
        if pfn.0 / BITS != word || bits & bit != 0 {
            break;
        }
        bits |= bit;
        count += 1;
    }
    (count, bits)
}

/// As [`of_one_word`], without a branch for each frame, if frames follow each other up or down to
/// the end of their word or of `pfns`.
fn neighbours(pfns: &[Pfn]) -> Option<(usize, u64)> {
    let [first, second, ..] = *pfns else {
        return None;
    };
    let step = second.0.wrapping_sub(first.0);
    let at = first.0 % BITS;
    let left = match step {
        1 => BITS - at,
        u32::MAX => at + 1,
        _ => return None,
    };
    let count = pfns.len().min(left as usize);
    let mut expected = first.0;
    let mut differences = 0;
    for pfn in &pfns[..count] {
        differences |= pfn.0 ^ expected;
        expected = expected.wrapping_add(step);
    }
    let ones = u64::MAX >> (BITS as usize - count);
    let lowest = match step {
        1 => at as usize,
        _ => at as usize + 1 - count,
    };
    (differences == 0).then_some((count, ones << lowest))
}

/// Calls `visit` with each word of an aligned block and the block's bits in it.
fn for_each_word(first: Pfn, order: Order, mut visit: impl FnMut(usize, u64)) {
    let size = 1_u32 << order.get();
    let bits = u64::MAX >> (BITS - size.min(BITS)) << (first.0 % BITS);
    for word in first.0 / BITS..(first.0 + size).div_ceil(BITS) {
        visit(word as usize, bits);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_alike_in_order_and_out_of_it() {
        // Goal: ordered frames are cut as those that are checked one by one. Method: random runs up
        // and down, each perhaps with a frame out of its place, or one twice; every frame is
        // visited once, in a word with its bit, and no run repeats one.
        let mut rng = crate::seed::rng(11);
        for _ in 0..2000 {
            let (from, count) = (rng.u32(..300), rng.u32(1..150));
            let mut pfns: Vec<Pfn> = (from..from + count).map(Pfn).collect();
            if rng.bool() {
                pfns.reverse();
            }
            if rng.bool() {
                let (one, other) = (rng.usize(..pfns.len()), rng.usize(..pfns.len()));
                pfns[one] = pfns[other];
            }
            if let Some((count, bits)) = neighbours(&pfns) {
                assert_eq!((count, bits), of_one_word(&pfns[..count]), "{pfns:?}");
            }
            let mut visited = Vec::new();
            for_each_run(&pfns, |run, word, bits| {
                assert_eq!(bits.count_ones() as usize, run.len(), "{pfns:?}");
                let is_in = |pfn: &Pfn| pfn.index() / 64 == word && bits >> (pfn.0 % BITS) & 1 == 1;
                assert!(run.iter().all(is_in), "{pfns:?}");
                visited.extend_from_slice(run);
            });
            assert_eq!(visited, pfns);
        }
    }
}
