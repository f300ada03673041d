//! Bitmap of free frames, with two hint bits per word: whether any frame of it is free, and whether
//! all are.
//!
//! ```text
//! words      1 bit a frame: set when free
//! nonempty   1 bit a word: set when the word has a set bit         } one word of each for 64 words:
//! full       1 bit a word: set when all bits of the word are set   } a tree of 4,096 frames
//! fresh      1 bit a word: set when no frame of its area was used  }
//! ```
//!
//! The words are authoritative: a thread that clears a set bit, by an exchange of the whole word,
//! owns the frame. The other two are only hints for the search, and are written when a word becomes
//! empty or full, or stops being so.
//!
//! Invariant, when nothing is in flight: the bit of a word that has a set bit is set in `nonempty`,
//! and that of a full word in `full`. A bit may be set wrongly; a request that follows it sees the
//! word, and clears the bit.
//!
//! Areas of 512 frames are *fresh* until a frame of one is taken, and again once all of an area was
//! given back to the system. Invariant, exact at every moment that the taker of a frame can see: an
//! area is fresh only while all of its frames are free, or its owner declares it fresh. The taker
//! of a full word reads its fresh bits afterwards; the owner of all frames of an area sets them
//! before it frees the first one, and the exchange that takes a frame acquires that. An area
//! without an owned frame is left as it is, so that of two takers one clears the bits and counts.
//! The last area is never fresh if it is not whole.
//!
//! Protocol: a thread that turns a word from 0 sets its bit afterwards. A thread that turns a word
//! to 0 clears its bit, then reads the word again, and sets the bit if the word is no longer 0.
//! Take the last time that the word was turned from 0. A clearing that comes before the setting
//! that follows that turn does no harm. One that comes after it acquires that setting, hence sees
//! the turned word, and sets the bit again. The same holds for full words.

use super::AREA_WORDS_LOG;
use super::bits::{aligned_runs, lowest, ones, widen};
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::units::Pages;

/// Frames in a word.
pub(super) const WORD_FRAMES: usize = 64;
/// Words in a tree.
pub(super) const TREE_WORDS: usize = 64;
/// A word with all frames free.
const FULL: u64 = u64::MAX;

/// The bits of all frames.
#[derive(Debug)]
pub(super) struct Bitmap {
    /// Written by: requests (Acquire, take) and frees (Release, put). Publishes: the stores of the
    /// frames' owner to them.
    words: Box<[AtomicU64]>,
    trees: Box<[HintTree]>,
    fresh: CachePadded<Fresh>,
}

/// Counts of fresh memory.
#[derive(Debug)]
struct Fresh {
    /// Words of fresh areas. Written by: requests that open an area, and frees that make it fresh.
    /// Read by: requests. Publishes: nothing: a hint whether used frames are worth a search.
    words: AtomicU64,
    /// Trees up to the last that was ever used. Written and read as above.
    trees_used: AtomicUsize,
}

/// Hints for 64 words.
#[derive(Debug)]
struct HintTree {
    /// Written by: threads that turn words from 0 (Release) or to 0 (Acquire). Read by: requests.
    /// Publishes: the turned word.
    nonempty: AtomicU64,
    /// As `nonempty`, for words that are full.
    full: AtomicU64,
    /// Words of fresh areas. Written by: requests that take from one, and the owner of one. Read
    /// by: requests. Publishes: nothing: the words themselves order takers and owners.
    fresh: AtomicU64,
}

/// Returns the words of the area that contains the word at this place in its tree.
fn area_of_word(at: u32) -> u64 {
    let words = 1 << AREA_WORDS_LOG;
    (FULL >> (64 - words)) << (at & !(words - 1))
}

impl Bitmap {
    /// Returns a bitmap with all of `nr_frames` free. For no frames, one tree of one word without a
    /// free frame.
    pub(super) fn new(nr_frames: u32) -> Self {
        let nr_frames = nr_frames as usize;
        let words: Box<[u64]> = (0..nr_frames.div_ceil(WORD_FRAMES).max(1))
            .map(|word| match nr_frames - word * WORD_FRAMES {
                0 => 0,
                frames @ 0..WORD_FRAMES => FULL >> (WORD_FRAMES - frames),
                _ => FULL,
            })
            .collect();
        let tree = |words: &[u64]| {
            let bits = |is_set: fn(u64) -> bool| {
                let set = words.iter().enumerate().filter(|&(_, &word)| is_set(word));
                AtomicU64::new(set.fold(0, |bits, (at, _)| bits | 1 << at))
            };
            let full = bits(|word| word == FULL);
            // Relaxed: not shared yet.
            let whole = aligned_runs(full.load(Ordering::Relaxed), AREA_WORDS_LOG);
            HintTree {
                nonempty: bits(|word| word != 0),
                full,
                fresh: AtomicU64::new(widen(whole, AREA_WORDS_LOG)),
            }
        };
        let nr_areas = words.iter().take_while(|&&word| word == FULL).count() >> AREA_WORDS_LOG;
        let fresh = Fresh {
            words: AtomicU64::new((nr_areas as u64) << AREA_WORDS_LOG),
            trees_used: AtomicUsize::new(0),
        };
        Self {
            trees: words.chunks(TREE_WORDS).map(tree).collect(),
            words: words.into_iter().map(AtomicU64::new).collect(),
            fresh: CachePadded::new(fresh),
        }
    }

    pub(super) fn nr_trees(&self) -> usize {
        self.trees.len()
    }

    /// Returns the words of a tree that have a free frame, and those that are full, as hints.
    pub(super) fn hints(&self, tree: usize) -> (u64, u64) {
        let tree = &self.trees[tree];
        // Relaxed: a request that was promised frames acquired the hints to them with the promise,
        // and the words decide.
        let nonempty = tree.nonempty.load(Ordering::Relaxed);
        (nonempty, tree.full.load(Ordering::Relaxed))
    }

    /// Returns the words of a tree whose areas are fresh.
    pub(super) fn fresh(&self, tree: usize) -> u64 {
        // Relaxed: a preference.
        self.trees[tree].fresh.load(Ordering::Relaxed)
    }

    /// Returns the number of frames of fresh areas.
    pub(super) fn nr_fresh(&self) -> Pages {
        // Relaxed: a preference.
        Pages(self.fresh.words.load(Ordering::Relaxed) * WORD_FRAMES as u64)
    }

    /// Returns the number of trees that may have used frames: all others are fresh.
    pub(super) fn nr_trees_used(&self) -> usize {
        // Relaxed: a preference.
        self.fresh.trees_used.load(Ordering::Relaxed)
    }

    /// Takes up to `count` blocks of 2^`log` frames out of one word; returns their heads.
    pub(super) fn take(&self, word: usize, log: u8, count: usize) -> u64 {
        self.take_within(word, FULL, log, count)
    }

    /// As [`take`](Self::take), of the frames of a mask.
    pub(super) fn take_within(&self, word: usize, mask: u64, log: u8, count: usize) -> u64 {
        // Relaxed: the exchange below orders what it takes.
        let mut seen = self.words[word].load(Ordering::Relaxed);
        // Progress: an exchange fails only because another one, or a free, succeeded.
        loop {
            let heads = lowest(aligned_runs(seen & mask, log), count);
            if heads == 0 {
                self.correct(word, seen);
                return 0;
            }
            let left = seen & !widen(heads, log);
            // Acquire: the stores of the frames' last owners. Pairs with the release in `put`.
            match self.words[word].compare_exchange_weak(
                seen,
                left,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    if seen == FULL {
                        self.clear_full(word, 1);
                        self.open(word, 1);
                    }
                    if left == 0 {
                        self.clear_nonempty(word, 1);
                    }
                    return heads;
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Returns how many blocks of 2^`log` frames one word seems to have.
    pub(super) fn nr_runs(&self, word: usize, log: u8) -> usize {
        let seen = self.word(word);
        let runs = aligned_runs(seen, log).count_ones() as usize;
        if runs == 0 {
            self.correct(word, seen);
        }
        runs
    }

    /// Whether `count` words seem to be full.
    pub(super) fn are_full(&self, first: usize, count: usize) -> bool {
        let seen = (first..first + count).map(|word| (word, self.word(word)));
        let broken = seen.into_iter().find(|&(_, bits)| bits != FULL);
        broken
            .inspect(|&(word, bits)| self.correct(word, bits))
            .is_none()
    }

    /// Takes `count` full words of one tree, all or none; returns whether it did.
    pub(super) fn take_words(&self, first: usize, count: usize) -> bool {
        for word in first..first + count {
            // Acquire: the stores of the frames' last owners. Pairs with the release in `put`.
            let taken =
                self.words[word].compare_exchange(FULL, 0, Ordering::Acquire, Ordering::Relaxed);
            if let Err(seen) = taken {
                self.put_words(first, word - first);
                self.correct(word, seen);
                return false;
            }
        }
        self.clear_full(first, count);
        self.clear_nonempty(first, count);
        self.open(first, count);
        true
    }

    /// Frees the frames of one word that are set in `frames`; returns those that were free already.
    #[must_use]
    pub(super) fn put(&self, word: usize, frames: u64) -> u64 {
        // Release: the owner's stores to the frames. Pairs with the acquire in `take` and
        // `take_words`.
        let before = self.words[word].fetch_or(frames, Ordering::Release);
        if before == 0 {
            self.set_nonempty(word, 1);
        }
        if before | frames == FULL {
            self.set_full(word, 1);
        }
        before & frames
    }

    /// Frees whole words of one tree; returns the bits that were set already.
    pub(super) fn put_words(&self, first: usize, count: usize) -> u64 {
        if count == 0 {
            return 0;
        }
        let mut already = 0;
        for word in &self.words[first..first + count] {
            // Release: the owner's stores to the frames. Pairs with the acquire in `take` and
            // `take_words`.
            already |= word.fetch_or(FULL, Ordering::Release);
        }
        self.set_nonempty(first, count);
        self.set_full(first, count);
        already
    }

    /// Returns the bits of one word, at this moment.
    pub(super) fn word(&self, word: usize) -> u64 {
        // Relaxed: for reports, for checks before a take, and for the second read, which the
        // clearing before it orders.
        self.words[word].load(Ordering::Relaxed)
    }

    pub(super) fn nr_words(&self) -> usize {
        self.words.len()
    }

    /// Sets the missing hints of every word: for a request that was promised frames and did not
    /// find them by the hints, because another thread is between a clearing and its second read.
    pub(super) fn look_everywhere(&self) {
        for word in 0..self.words.len() {
            // A hint that is set is left alone: a thread that clears it meanwhile reads the word
            // again, too.
            let (nonempty, full) = self.hints(word / TREE_WORDS);
            let (bits, at) = (self.word(word), word % TREE_WORDS);
            if bits != 0 && nonempty >> at & 1 == 0 {
                self.set_nonempty(word, 1);
            }
            if bits == FULL && full >> at & 1 == 0 {
                self.set_full(word, 1);
            }
        }
    }

    /// Clears a hint that the word was seen to contradict.
    fn correct(&self, word: usize, seen: u64) {
        let (nonempty, full) = self.hints(word / TREE_WORDS);
        let bit = 1 << (word % TREE_WORDS);
        if seen == 0 && nonempty & bit != 0 {
            self.clear_nonempty(word, 1);
        }
        if seen != FULL && full & bit != 0 {
            self.clear_full(word, 1);
        }
    }

    fn set_nonempty(&self, first: usize, count: usize) {
        let (tree, bits) = self.hint(first, count);
        // Release: the word was turned before. Pairs with the acquire in `clear_nonempty`.
        tree.nonempty.fetch_or(bits, Ordering::Release);
    }

    fn set_full(&self, first: usize, count: usize) {
        let (tree, bits) = self.hint(first, count);
        // Release: the word was turned before. Pairs with the acquire in `clear_full`.
        tree.full.fetch_or(bits, Ordering::Release);
    }

    fn clear_nonempty(&self, first: usize, count: usize) {
        let (tree, bits) = self.hint(first, count);
        // Acquire: the second read sees the word of the thread that set the bit before. Pairs with
        // the release in `set_nonempty`.
        tree.nonempty.fetch_and(!bits, Ordering::Acquire);
        for word in first..first + count {
            if self.word(word) != 0 {
                self.set_nonempty(word, 1);
            }
        }
    }

    fn clear_full(&self, first: usize, count: usize) {
        let (tree, bits) = self.hint(first, count);
        // Acquire: the second read sees the word of the thread that set the bit before. Pairs with
        // the release in `set_full`.
        tree.full.fetch_and(!bits, Ordering::Acquire);
        for word in first..first + count {
            if self.word(word) == FULL {
                self.set_full(word, 1);
            }
        }
    }

    /// Marks the areas of full words, of which frames were taken, as no longer fresh.
    fn open(&self, first: usize, count: usize) {
        let (tree, bits) = self.hint(first, count);
        // Relaxed throughout: the exchange that took the frames acquired their last owner's stores
        // to these words, and the next owner of the frames acquires the stores made here. Loaded
        // first: most are open.
        if tree.fresh.load(Ordering::Relaxed) & bits == 0 {
            return;
        }
        let areas = ones(bits).fold(0, |areas, at| areas | area_of_word(at));
        let opened = tree.fresh.fetch_and(!areas, Ordering::Relaxed) & areas;
        self.fresh
            .words
            .fetch_sub(opened.count_ones().into(), Ordering::Relaxed);
        let trees = first / TREE_WORDS + 1;
        if self.nr_trees_used() < trees {
            self.fresh.trees_used.fetch_max(trees, Ordering::Relaxed);
        }
    }

    /// Marks a whole area as fresh after its memory was given back. The caller owns all its frames.
    pub(super) fn make_fresh(&self, area: usize) {
        let first = area << AREA_WORDS_LOG;
        let (tree, bits) = self.hint(first, 1 << AREA_WORDS_LOG);
        // Relaxed throughout: as above.
        let already = tree.fresh.fetch_or(bits, Ordering::Relaxed) & bits;
        let words = (bits & !already).count_ones();
        self.fresh.words.fetch_add(words.into(), Ordering::Relaxed);
    }

    /// Returns the tree of some words, and their bits in its hints.
    fn hint(&self, first: usize, count: usize) -> (&HintTree, u64) {
        let bits = (FULL >> (TREE_WORDS - count)) << (first % TREE_WORDS);
        (&self.trees[first / TREE_WORDS], bits)
    }

    /// # Panics
    ///
    /// When a word that has free frames, or is full, could not be found, or one is fresh that is
    /// not full.
    pub(super) fn check_invariants(&self) {
        let fresh = (0..self.nr_trees()).map(|tree| u64::from(self.fresh(tree).count_ones()));
        assert_eq!(
            self.nr_fresh(),
            Pages(fresh.sum::<u64>() * WORD_FRAMES as u64),
            "fresh frames and their count"
        );
        for tree in 0..self.nr_trees() {
            let (nonempty, full) = self.hints(tree);
            let words = &self.words[tree * TREE_WORDS..];
            for at in 0..words.len().min(TREE_WORDS) {
                let word = tree * TREE_WORDS + at;
                let bits = self.word(word);
                assert!(
                    bits == 0 || nonempty >> at & 1 == 1,
                    "word {word}: {bits:#x}"
                );
                assert!(bits != FULL || full >> at & 1 == 1, "word {word} is full");
                assert!(
                    bits == FULL || self.fresh(tree) >> at & 1 == 0,
                    "word {word} is fresh: {bits:#x}"
                );
            }
            let outside = FULL.checked_shl(u32::try_from(words.len()).unwrap_or(u32::MAX));
            assert_eq!(
                (nonempty | full | self.fresh(tree)) & outside.unwrap_or(0),
                0,
                "hints to no word"
            );
        }
    }

    /// Returns the words of the set hints, lowest first.
    pub(super) fn words_of(tree: usize, hints: u64) -> impl Iterator<Item = usize> {
        ones(hints).map(move |at| tree * TREE_WORDS + at as usize)
    }
}
