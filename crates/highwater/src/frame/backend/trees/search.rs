//! Search for free frames: which trees, and in which order their words.
//!
//! Used frames are allocated before fresh ones (`bitmap`): the first round through the trees skips
//! fresh areas, and only if it falls short does a second round include them. Fresh frames are
//! subtracted from the count of free ones to see whether the first round is worth it. A round goes
//! level by level through trees that are near, then anywhere, then to the seats of other CPUs.

use super::bitmap::Bitmap;
use super::bits::{aligned_runs, widen};
use super::{AREA_WORDS_LOG, PAIR_WORDS_LOG, Trees, WORD_LOG};
use crate::sync::atomic::Ordering;
use crate::units::{CpuId, Order, Pages, Pfn};

/// Trees searched for broken areas and pairs before whole ones are broken. Chosen: 256 MiB of
/// frames; with 64 trees, taking a batch from a pool that is wholly free took 1 us longer.
const NEAR_TREES: usize = 16;

/// Trees searched in vain, for runs in broken words, before a whole area is broken.
const VAIN_TREES_MAX: usize = 16;

/// Free used frames are not searched for when they are a smaller part of all used frames than this:
/// one in 64, which is one word of each tree. Chosen: that many are found without a walk through
/// many trees, and cost a pool 1.6 % of the frames in use.
const WORTHWHILE: u64 = 64;

/// A search request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) order: Order,
    /// Frames to leave, for a request that is promised blocks when it sees them: nothing is
    /// withheld from others that it may not find. `None` if its frames are already promised.
    pub(super) floor: Option<Pages>,
}

/// The frames that a round may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Used frames.
    Used,
    /// Fresh ones as well.
    All,
}

/// The levels of fragmentation that a request may cause, least first: areas that are already
/// broken, then whole areas of broken pairs, then pairs.
const NR_LEVELS: usize = 3;

/// Words of one tree that have free frames.
#[derive(Clone, Copy, Debug)]
struct Levels {
    full: u64,
    /// By the level that taking them would break.
    words: [u64; NR_LEVELS],
}

impl Trees {
    /// Searches for blocks by the hints, once; returns how many it found.
    pub(super) fn search(&self, near: CpuId, request: Request, out: &mut [Pfn]) -> usize {
        let seat = near.index() % self.seats.len();
        let promised = match request.floor {
            None => out.len() as u64,
            Some(_) => 0,
        };
        let mut taken = 0;
        if self.bitmap.nr_fresh() > Pages::ZERO && self.nr_worthwhile(Pages(promised)) > Pages::ZERO
        {
            taken = self.round(seat, request, Reach::Used, out);
        }
        if taken < out.len() {
            taken += self.round(seat, request, Reach::All, &mut out[taken..]);
        }
        taken
    }

    /// Returns the free used frames, plus `promised` ones, above the threshold below which they are
    /// not searched for.
    pub(super) fn nr_worthwhile(&self, promised: Pages) -> Pages {
        let fresh = self.bitmap.nr_fresh();
        let used = Pages(u64::from(self.nr_frames)).saturating_sub(fresh);
        let free_and_used = (self.free.get() + promised).saturating_sub(fresh);
        free_and_used.saturating_sub(Pages(used.0 / WORTHWHILE))
    }

    /// Searches once each tree that is worth it; returns how many blocks it took.
    fn round(&self, seat: usize, request: Request, reach: Reach, out: &mut [Pfn]) -> usize {
        // Relaxed: where to begin.
        let start = self.seats[seat].tree.load(Ordering::Relaxed);
        let mut taken = self.take_near(seat, start, request, reach, out);
        // There may be no small blocks far away, and only a read of every word would tell.
        let is_small = (1..WORD_LOG).contains(&request.order.get());
        if taken == out.len() || (reach == Reach::Used && is_small) {
            return taken;
        }
        let end = match reach {
            Reach::Used => self.bitmap.nr_trees_used(),
            Reach::All => self.bitmap.nr_trees(),
        };
        for others in [false, true] {
            for tree in (start..end).chain(0..start.min(end)) {
                if self.is_anothers(tree, seat) && !others {
                    continue;
                }
                let levels = self.levels(tree, reach);
                let rest = &mut out[taken..];
                taken += self
                    .take_from(tree, levels, NR_LEVELS - 1, request, rest)
                    .unwrap_or(0);
                if taken == out.len() {
                    self.sit_down(seat, start, tree, request.order);
                    return taken;
                }
            }
        }
        taken
    }

    /// Searches level by level the trees from `start` on without another CPU's seat; returns how
    /// many blocks it took.
    fn take_near(
        &self,
        seat: usize,
        start: usize,
        request: Request,
        reach: Reach,
        out: &mut [Pfn],
    ) -> usize {
        let nr_trees = self.bitmap.nr_trees();
        let near_trees = nr_trees.min(NEAR_TREES);
        // By level, the first of the near trees that has such words: the first level visits all.
        let mut first = [0, near_trees, near_trees];
        let mut taken = 0;
        for level in 0..NR_LEVELS {
            let mut in_vain = 0;
            for at in first[level]..near_trees {
                let beyond = (start + at).checked_sub(nr_trees);
                let tree = beyond.unwrap_or(start + at);
                if self.is_anothers(tree, seat) {
                    continue;
                }
                let levels = self.levels(tree, reach);
                if level == 0 {
                    for (first, words) in first.iter_mut().zip(levels.words).skip(1) {
                        *first = if words != 0 { at.min(*first) } else { *first };
                    }
                }
                let found = self.take_from(tree, levels, level, request, &mut out[taken..]);
                taken += found.unwrap_or(0);
                if taken == out.len() {
                    self.sit_down(seat, start, tree, request.order);
                    return taken;
                }
                in_vain += usize::from(found == Some(0));
                if in_vain == VAIN_TREES_MAX {
                    break;
                }
            }
        }
        taken
    }

    fn levels(&self, tree: usize, reach: Reach) -> Levels {
        let (nonempty, full) = self.bitmap.hints(tree);
        // Fresh areas are whole: no part of a broken one is skipped.
        let open = match reach {
            Reach::Used => !self.bitmap.fresh(tree),
            Reach::All => u64::MAX,
        };
        // The two most frequent trees need no arithmetic.
        if full == 0 || full == u64::MAX {
            return Levels {
                full: full & open,
                words: [nonempty & !full, 0, full & open],
            };
        }
        let areas = widen(aligned_runs(full, AREA_WORDS_LOG), AREA_WORDS_LOG);
        let pairs = widen(aligned_runs(areas, PAIR_WORDS_LOG), PAIR_WORDS_LOG);
        Levels {
            full: full & open,
            words: [nonempty & !areas, areas & !pairs & open, pairs & open],
        }
    }

    /// Takes blocks out of words of a tree up to a level; returns how many, or `None` if no word
    /// seemed to have one.
    fn take_from(
        &self,
        tree: usize,
        levels: Levels,
        level: usize,
        request: Request,
        out: &mut [Pfn],
    ) -> Option<usize> {
        let words = levels.words[..=level]
            .iter()
            .fold(0, |all, words| all | words);
        let words = match request.order.get().checked_sub(WORD_LOG) {
            None => words,
            Some(log) => aligned_runs(words & levels.full, log),
        };
        (words != 0).then(|| self.take_from_words(tree, words, request, out))
    }

    fn take_from_words(&self, tree: usize, words: u64, request: Request, out: &mut [Pfn]) -> usize {
        let mut taken = 0;
        for word in Bitmap::words_of(tree, words) {
            if taken == out.len() {
                break;
            }
            let rest = &mut out[taken..];
            taken += match request.floor {
                None => self.take_from_word(word, request.order, rest),
                Some(floor) => self.take_seen(word, request.order, floor, rest),
            };
        }
        taken
    }

    fn is_anothers(&self, tree: usize, seat: usize) -> bool {
        // Relaxed: a preference.
        let seated = self.seated[tree].load(Ordering::Relaxed);
        seated != 0 && seated as usize != seat + 1
    }

    /// Moves the seat: the next request begins where this one ended. Large blocks do not move it,
    /// because they are not where frames are.
    fn sit_down(&self, seat: usize, from: usize, to: usize, order: Order) {
        if order > Order::ZERO {
            return;
        }
        let mine = CpuId::from_index(seat + 1).0;
        // Relaxed throughout: a preference. Nothing is written while a seat stays where it is.
        if self.seated[to].load(Ordering::Relaxed) == 0 {
            self.seated[to].store(mine, Ordering::Relaxed);
        }
        if from != to {
            if self.seated[from].load(Ordering::Relaxed) == mine {
                self.seated[from].store(0, Ordering::Relaxed);
            }
            self.seats[seat].tree.store(to, Ordering::Relaxed);
        }
    }
}
