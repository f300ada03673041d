//! Free frames as bits in words, found through trees: no lock, and nothing for each frame but its bit.
//!
//! A request clears bits of one word in one exchange, up to 64 frames at once; a free sets them in
//! one atomic operation, whoever frees and wherever. So a frame goes back where it came from by its
//! number, a free waits for nobody, and there is no hold that another thread could wait for.
//!
//! ```text
//! frame < word (64) < area (512: 2 MiB) < pair (1,024: the largest block) < tree (4,096)
//! ```
//!
//! Each CPU has a *seat*: the tree that it takes frames from, where others do not if they can help
//! it, so that CPUs write different lines. When that tree is used up, the seat moves on. Requests
//! look for frames in this order, so that large blocks stay whole: in areas that are broken already;
//! in areas whose pair is; in any; in the trees of other seats. A tree and its seat are hints:
//! any thread may take any frame, and one that was promised frames finds them wherever they are.
//!
//! Progress: every retry of an exchange means that another one succeeded. A request that was
//! promised frames looks everywhere a bounded number of times; what it misses was moved meanwhile,
//! by requests and frees that came through.
//!
//! Source: L. Wrenger, F. Rommel, A. Halbuer, C. Dietrich, D. Lohmann, LLFree, USENIX ATC 2023: bits,
//! trees that CPUs reserve, and the preference for broken ones. Deviation: no counters of areas and
//! trees, because frames are promised by one count for the whole pool; two hints a word take their
//! place, which are written when a word becomes empty or full and not for each frame. A block of any
//! order is the bits of its frames, so it may be freed in parts and by a larger order. A CPU's
//! reservation is a preference and holds no frames back. Bulks take many frames of a word at once.

mod bitmap;
mod bits;

#[cfg(all(test, loom))]
mod loom;

use std::ops::Range;

use crossbeam_utils::CachePadded;

use super::{Backend, FreeCount, Wait, pages_of};
use crate::memmap::for_each_run;
use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use crate::sync::{LockTimes, TimeRecorder, thread};
use crate::units::{CpuId, Order, Pages, Pfn};
use bitmap::{Bitmap, TREE_WORDS, WORD_FRAMES};
use bits::{aligned_runs, ones, widen};

/// Logarithms of the frames in a word and of the words in an area and a pair.
const WORD_LOG: u8 = 6;
const AREA_WORDS_LOG: u8 = 3;
const PAIR_WORDS_LOG: u8 = 4;

const _: () = assert!(1 << WORD_LOG == WORD_FRAMES);
const _: () = assert!(WORD_LOG + AREA_WORDS_LOG == Order::HUGE.get());
const _: () = assert!(WORD_LOG + PAIR_WORDS_LOG == Order::MAX.get());
const _: () = assert!(
    TREE_WORDS > 1 << PAIR_WORDS_LOG,
    "no block lies in two trees"
);

/// Trees that are looked at for broken areas and pairs before whole ones are broken. Chosen: 256 MiB of
/// frames; with 64 trees, taking a batch from a pool that is wholly free took 1 us longer.
const NEAR_TREES: usize = 16;

/// Trees that are looked into in vain, for runs in broken words, before a whole area is broken.
const VAIN_TREES_MAX: usize = 16;

/// As of zones: a request that was promised frames looks everywhere this often at most, and lets others
/// run before each further time; one that must not wait only [`ROUNDS_BRIEFLY`] times.
const ROUNDS_MAX: usize = if cfg!(loom) { 4 } else { 64 };
const ROUNDS_BRIEFLY: usize = 4;

/// A request for single frames that is promised too little while other promises are in doubt asks again
/// this often at most. Chosen: as the rounds.
const PROMISES_MAX: usize = ROUNDS_MAX;

/// A back end of bits.
#[derive(Debug)]
pub(super) struct Trees {
    nr_frames: u32,
    bitmap: Bitmap,
    /// By tree, the seat that is there plus one, or 0. Written and read by requests; publishes
    /// nothing: a preference.
    seated: Box<[AtomicU32]>,
    seats: Box<[CachePadded<Seat>]>,
    times: Box<[CachePadded<TimeRecorder>]>,
    free: CachePadded<FreeCount>,
}

/// Where a CPU takes frames from.
#[derive(Debug)]
struct Seat {
    /// Written and read by requests of the CPU; publishes nothing: where to begin.
    tree: AtomicUsize,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
struct Request {
    order: Order,
    /// Frames to leave, of a request that is promised blocks when it sees them: nothing is withheld
    /// from others that it may not find. None of one whose frames are promised.
    floor: Option<Pages>,
}

/// What a request may break, least first: areas that are broken already, then whole areas of broken
/// pairs, then pairs.
const NR_LEVELS: usize = 3;

/// Words of one tree that have free frames.
#[derive(Clone, Copy, Debug)]
struct Levels {
    full: u64,
    /// By what taking them would break.
    words: [u64; NR_LEVELS],
}

impl Trees {
    /// Frames 0 to `nr_frames`, all free, and a seat for each of `nr_cpus` CPUs, as far as there are
    /// trees for them.
    pub(super) fn new(nr_frames: u32, nr_cpus: usize) -> Self {
        assert!(nr_cpus > 0, "no CPUs");
        let bitmap = Bitmap::new(nr_frames);
        let nr_trees = bitmap.nr_trees();
        let nr_seats = nr_cpus.min(nr_trees);
        let seat = |seat: usize| {
            CachePadded::new(Seat {
                tree: AtomicUsize::new(seat * nr_trees / nr_seats),
            })
        };
        // Six trees make up for the kilobyte of a recorder, and one for a seat: two thirds of a bit a frame.
        let nr_recorders = nr_cpus.min(nr_trees.div_ceil(6));
        Self {
            nr_frames,
            seated: (0..nr_trees).map(|_| AtomicU32::new(0)).collect(),
            seats: (0..nr_seats).map(seat).collect(),
            times: (0..nr_recorders)
                .map(|_| CachePadded::new(TimeRecorder::new()))
                .collect(),
            free: CachePadded::new(FreeCount::new(Pages(u64::from(nr_frames)))),
            bitmap,
        }
    }

    /// Looks for blocks by the hints, once: how many it found. Level by level in the trees
    /// that are near, then anywhere, then where others sit.
    fn search(&self, near: CpuId, request: Request, out: &mut [Pfn]) -> usize {
        let seat = near.index() % self.seats.len();
        // Relaxed: where to begin.
        let start = self.seats[seat].tree.load(Ordering::Relaxed);
        let nr_trees = self.bitmap.nr_trees();
        let near_trees = nr_trees.min(NEAR_TREES);
        // By level, the first of the near trees that has such words: the first level looks at all.
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
                let levels = self.levels(tree);
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
        for others in [false, true] {
            for tree in (start..nr_trees).chain(0..start) {
                if self.is_anothers(tree, seat) && !others {
                    continue;
                }
                let found = self.take_from(
                    tree,
                    self.levels(tree),
                    NR_LEVELS - 1,
                    request,
                    &mut out[taken..],
                );
                taken += found.unwrap_or(0);
                if taken == out.len() {
                    self.sit_down(seat, start, tree, request.order);
                    return taken;
                }
            }
        }
        taken
    }

    fn levels(&self, tree: usize) -> Levels {
        let (nonempty, full) = self.bitmap.hints(tree);
        // The two most frequent trees need no arithmetic.
        if full == 0 || full == u64::MAX {
            return Levels {
                full,
                words: [nonempty & !full, 0, full],
            };
        }
        let areas = widen(aligned_runs(full, AREA_WORDS_LOG), AREA_WORDS_LOG);
        let pairs = widen(aligned_runs(areas, PAIR_WORDS_LOG), PAIR_WORDS_LOG);
        Levels {
            full,
            words: [nonempty & !areas, areas & !pairs, pairs],
        }
    }

    /// Takes blocks out of words of a tree up to a level: how many, or `None` if no word seemed to
    /// have one.
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

    /// Blocks that are seen from a word on, then promised, then taken: how many.
    fn take_seen(&self, word: usize, order: Order, floor: Pages, out: &mut [Pfn]) -> usize {
        let seen = match order.get().checked_sub(WORD_LOG) {
            None | Some(0) => self.bitmap.nr_runs(word, order.get()),
            Some(log) => usize::from(self.bitmap.are_full(word, 1 << log)),
        };
        let wanted = seen.min(out.len());
        if wanted == 0 {
            return 0;
        }
        let promised = self.free.promise_in_doubt(wanted, order, floor);
        let taken = match promised {
            0 => 0,
            _ => self.take_from_word(word, order, &mut out[..promised]),
        };
        self.free.settle(promised - taken, order);
        taken
    }

    /// Promised blocks from a word on: how many were there.
    fn take_from_word(&self, word: usize, order: Order, out: &mut [Pfn]) -> usize {
        let first = Pfn::from_index(word * WORD_FRAMES);
        if order.get() > WORD_LOG {
            let is_taken = self.bitmap.take_words(word, 1 << (order.get() - WORD_LOG));
            if is_taken {
                out[0] = first;
            }
            return usize::from(is_taken);
        }
        let heads = self.bitmap.take(word, order.get(), out.len());
        let mut taken = 0;
        for head in ones(heads) {
            out[taken] = Pfn(first.0 + head);
            taken += 1;
        }
        taken
    }

    /// Single frames: promised first, then looked for until they are found.
    fn alloc_frames(&self, near: CpuId, floor: Pages, wait: Wait, out: &mut [Pfn]) -> usize {
        let promised = self.promise_frames(out.len(), floor, wait);
        let rounds = match wait {
            Wait::Allowed => ROUNDS_MAX,
            Wait::Never => ROUNDS_BRIEFLY,
        };
        let (order, floor) = (Order::ZERO, None);
        let request = Request { order, floor };
        let mut taken = 0;
        for round in 0..rounds {
            if taken == promised {
                break;
            }
            if round > 0 {
                if wait == Wait::Allowed {
                    thread::yield_now();
                }
                self.bitmap.look_everywhere();
            }
            taken += self.search(near, request, &mut out[taken..promised]);
        }
        self.free.add(promised - taken, order);
        taken
    }

    /// Fewer than `count` frames are promised to a request that may wait only if there are no more above
    /// the floor, those whose promise is in doubt included.
    fn promise_frames(&self, count: usize, floor: Pages, wait: Wait) -> usize {
        let promise = |count| self.free.promise(count, Order::ZERO, floor);
        let mut promised = promise(count);
        for _ in 0..PROMISES_MAX {
            if promised == count || wait == Wait::Never {
                break;
            }
            let was_in_doubt = self.free.is_in_doubt();
            let more = promise(count - promised);
            promised += more;
            if !was_in_doubt && more == 0 && !self.free.is_in_doubt() {
                break;
            }
            if promised < count {
                thread::yield_now();
            }
        }
        promised
    }

    fn is_anothers(&self, tree: usize, seat: usize) -> bool {
        // Relaxed: a preference.
        let seated = self.seated[tree].load(Ordering::Relaxed);
        seated != 0 && seated as usize != seat + 1
    }

    /// The next request begins where this one ended: large blocks are not where frames are.
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

    fn recorder(&self, near: CpuId) -> &TimeRecorder {
        &self.times[near.index() % self.times.len()]
    }

    /// Frees frames, which must not be free, those of a word together.
    fn free_frames(&self, frames: &[Pfn]) {
        for_each_run(frames, |_, word, bits| {
            let last = Pfn::from_index(word * WORD_FRAMES + bits.ilog2() as usize);
            self.assert_is_block(last, Order::ZERO);
            Self::assert_was_taken(word, self.bitmap.put(word, bits));
        });
    }

    /// Frees blocks: each must be one, and not free.
    fn free_blocks(&self, order: Order, blocks: &[Pfn]) {
        let mut rest = blocks;
        while let Some(&first) = rest.first() {
            let word = first.index() / WORD_FRAMES;
            // Frames that lie together are freed together.
            let mut frames = 0;
            let mut already = 0;
            let mut of_word = 0;
            for &block in rest {
                if block.index() / WORD_FRAMES != word {
                    break;
                }
                self.assert_is_block(block, order);
                let of_block = widen(1 << (block.index() % WORD_FRAMES), order.get());
                already |= frames & of_block;
                frames |= of_block;
                of_word += 1;
            }
            already |= self.bitmap.put(word, frames);
            Self::assert_was_taken(word, already);
            rest = &rest[of_word..];
        }
    }

    fn assert_is_block(&self, block: Pfn, order: Order) {
        let end = u64::from(block.0) + order.pages().0;
        assert!(
            end <= u64::from(self.nr_frames) && block.0.is_multiple_of(1 << order.get()),
            "{block} freed as order {} to 0..{}",
            order.get(),
            self.nr_frames
        );
    }

    fn assert_was_taken(word: usize, already: u64) {
        assert!(
            already == 0,
            "{} freed twice",
            Pfn::from_index(word * WORD_FRAMES + already.trailing_zeros() as usize)
        );
    }

    /// The largest free block that begins at a frame.
    fn run_at(&self, frame: usize) -> Option<Order> {
        let is_free = |order: &Order| {
            let size = 1 << order.get();
            let (word, at) = (frame / WORD_FRAMES, frame % WORD_FRAMES);
            frame.is_multiple_of(size)
                && match order.get().checked_sub(WORD_LOG) {
                    None => aligned_runs(self.bitmap.word(word), order.get()) >> at & 1 == 1,
                    Some(log) => (word..word + (1 << log)).all(|word| {
                        word < self.bitmap.nr_words() && self.bitmap.word(word) == u64::MAX
                    }),
                }
        };
        Order::all().rev().find(is_free)
    }
}

impl Backend for Trees {
    fn alloc_bulk(
        &self,
        near: CpuId,
        order: Order,
        floor: Pages,
        wait: Wait,
        out: &mut [Pfn],
    ) -> usize {
        let visit = self
            .recorder(near)
            .visit_begins(pages_of(order, out.len()).0);
        let taken = if order == Order::ZERO {
            self.alloc_frames(near, floor, wait, out)
        } else if self.free.get() >= floor + order.pages() {
            let floor = Some(floor);
            self.search(near, Request { order, floor }, out)
        } else {
            0
        };
        let moved = pages_of(order, taken);
        self.recorder(near).visit_ends(&visit, moved.0);
        taken
    }

    fn alloc_within(&self, frames: Range<u32>, floor: Pages, out: &mut Vec<Pfn>) {
        let [first, end] = [frames.start, frames.end].map(|frame| frame as usize);
        for word in first / WORD_FRAMES..end.div_ceil(WORD_FRAMES) {
            let mut found = [Pfn(0); WORD_FRAMES];
            let taken = self.take_seen(word, Order::ZERO, floor, &mut found);
            out.extend_from_slice(&found[..taken]);
        }
    }

    fn free_bulk(&self, near: CpuId, order: Order, _: Wait, blocks: &mut [Pfn]) {
        let moved = pages_of(order, blocks.len());
        let visit = self.recorder(near).visit_begins(moved.0);
        if order.get() <= WORD_LOG {
            match order {
                Order::ZERO => self.free_frames(blocks),
                _ => self.free_blocks(order, blocks),
            }
        } else {
            for &block in &*blocks {
                self.assert_is_block(block, order);
                let word = block.index() / WORD_FRAMES;
                let already = self.bitmap.put_words(word, 1 << (order.get() - WORD_LOG));
                Self::assert_was_taken(word, already);
            }
        }
        self.free.add(blocks.len(), order);
        self.recorder(near).visit_ends(&visit, moved.0);
    }

    /// Nothing is ever deferred.
    fn splice(&self) {}

    fn nr_free(&self) -> Pages {
        self.free.get()
    }

    fn nr_deferred(&self) -> Pages {
        Pages::ZERO
    }

    fn nr_free_blocks(&self, order: Order) -> u64 {
        let words = (0..self.bitmap.nr_words()).map(|word| self.bitmap.word(word));
        match order.get().checked_sub(WORD_LOG) {
            None => words
                .map(|word| u64::from(aligned_runs(word, order.get()).count_ones()))
                .sum(),
            Some(log) => {
                let is_full: Vec<_> = words.map(|word| word == u64::MAX).collect();
                let blocks = is_full.chunks_exact(1 << log);
                blocks.map(|words| u64::from(!words.contains(&false))).sum()
            }
        }
    }

    fn free_runs(&self) -> Vec<(Pfn, Order)> {
        let mut runs = Vec::new();
        let mut frame = 0;
        while frame < self.nr_frames as usize {
            let run = self.run_at(frame);
            runs.extend(run.map(|order| (Pfn::from_index(frame), order)));
            frame += run.map_or(1, |order| 1 << order.get());
        }
        runs
    }

    fn times(&self) -> LockTimes {
        let times = self.times.iter().map(|times| times.read());
        times.fold(LockTimes::default(), |sum, times| sum + &times)
    }

    fn check_invariants(&self) {
        self.bitmap.check_invariants();
        let words = (0..self.bitmap.nr_words()).map(|word| self.bitmap.word(word));
        let free = words.map(|word| u64::from(word.count_ones())).sum();
        assert_eq!(self.free.get(), Pages(free), "free bits and the free total");
    }
}
