//! A lock-free back end (after LLFree): free frames as bits in words, found through trees, with no
//! per-frame state but the bit.
//!
//! A request clears bits of one word in one exchange, up to 64 frames at once; a free sets them in
//! one atomic operation, on any thread and CPU. So a frame returns to its place by its number, a
//! free never blocks, and no thread can hold a lock that another one would wait for.
//!
//! ```text
//! frame < word (64) < area (512: 2 MiB) < pair (1,024: the largest block) < tree (4,096)
//! ```
//!
//! Each CPU has a *seat*: the tree that it takes frames from, which other CPUs avoid, so that CPUs
//! write different lines. When that tree is used up, the seat moves on. Requests search for frames
//! in this order, so that large blocks stay whole: in areas that are already broken; in areas whose
//! pair is; in any; in the trees of other seats. A tree and its seat are hints: any thread may take
//! any frame, and a request that was promised frames finds them in any tree.
//!
//! Recently used frames are allocated before fresh ones, in any tree (`search`): an area is *fresh*
//! while none of its frames was ever allocated, or since its memory was given back to the system.
//! So the frames that were used are at most the peak of frames allocated at once, 1/64 more, and
//! the rest of an area for each request that opens one at the same time.
//!
//! Progress: every retry of an exchange means that another one succeeded. A request that was
//! promised frames searches everywhere a bounded number of times; frames that it misses were moved
//! meanwhile, by requests and frees that completed.
//!
//! Source: L. Wrenger, F. Rommel, A. Halbuer, C. Dietrich, D. Lohmann, LLFree, USENIX ATC 2023:
//! bits, trees that CPUs reserve, and the preference for broken ones. Deviation: no counters of
//! areas and trees, because frames are promised by one count for the whole pool; two hint bits per
//! word take their place, which are written when a word becomes empty or full and not for each
//! frame. A block of any order is the bits of its frames, so it may be freed in parts and by a
//! larger order. A CPU's reservation is a preference and withholds no frames. Bulks take many
//! frames of a word at once.

mod bitmap;
mod bits;
mod search;

#[cfg(all(test, loom))]
mod loom;

use std::ops::Range;

use super::{Backend, FreeCount, Wait, pages_of};
use crate::memmap::for_each_run;
use crate::sync::atomic::{AtomicU32, AtomicUsize};
use crate::sync::{CachePadded, LockTimes, TimeRecorder, thread};
use crate::units::{CpuId, Order, Pages, Pfn};
use bitmap::{Bitmap, TREE_WORDS, WORD_FRAMES};
use bits::{aligned_runs, ones, widen};
use search::Request;

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

/// Maximum rounds in which a request that was promised frames searches everywhere; it lets other
/// threads run before each further round. A request that must not wait makes only
/// [`ROUNDS_BRIEFLY`].
const ROUNDS_MAX: usize = if cfg!(loom) { 4 } else { 64 };
const ROUNDS_BRIEFLY: usize = 4;

/// Maximum retries of a request for single frames that is promised too little while other promises
/// are in doubt. Chosen: as the rounds.
const PROMISES_MAX: usize = ROUNDS_MAX;

/// The back end of bits.
#[derive(Debug)]
pub(super) struct Trees {
    nr_frames: u32,
    bitmap: Bitmap,
    /// By tree, the seat that is there plus one, or 0. Written and read by requests; publishes
    /// nothing: a preference.
    seated: Box<[AtomicU32]>,
    seats: Box<[CachePadded<CpuTree>]>,
    times: Box<[CachePadded<TimeRecorder>]>,
    free: CachePadded<FreeCount>,
}

/// The tree that a CPU takes frames from.
#[derive(Debug)]
struct CpuTree {
    /// Written and read by requests of the CPU; publishes nothing: where to begin.
    tree: AtomicUsize,
}

impl Trees {
    /// Returns a back end with frames 0 to `nr_frames`, all free, and a seat for each of `nr_cpus`
    /// CPUs, as far as there are trees for them.
    pub(super) fn new(nr_frames: u32, nr_cpus: usize) -> Self {
        assert!(nr_cpus > 0, "no CPUs");
        let bitmap = Bitmap::new(nr_frames);
        let nr_trees = bitmap.nr_trees();
        let nr_seats = nr_cpus.min(nr_trees);
        let seat = |seat: usize| {
            CachePadded::new(CpuTree {
                // Close together, so that searches for used frames are short.
                tree: AtomicUsize::new(seat),
            })
        };
        // One recorder (a kilobyte) for every six trees, and one seat per tree at most: two thirds
        // of a bit a frame.
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

    /// Takes blocks that are seen from a word on, after promising them; returns how many.
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

    /// Takes the free frames of a word that are in a mask, after promising them.
    fn take_all_within(&self, word: usize, mask: u64, floor: Pages, out: &mut Vec<Pfn>) {
        let seen = (self.bitmap.word(word) & mask).count_ones() as usize;
        if seen == 0 {
            return;
        }
        let promised = self.free.promise_in_doubt(seen, Order::ZERO, floor);
        let frames = match promised {
            0 => 0,
            _ => self.bitmap.take_within(word, mask, 0, promised),
        };
        let taken = frames.count_ones() as usize;
        self.free.settle(promised - taken, Order::ZERO);
        out.extend(ones(frames).map(|at| Pfn::from_index(word * WORD_FRAMES + at as usize)));
    }

    /// Takes promised blocks from a word on; returns how many were there.
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

    /// Allocates single frames: promised first, then searched for until they are found.
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

    /// Promises frames. Fewer than `count` are promised to a request that may wait only if there
    /// are no more above the floor, those whose promise is in doubt included.
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

    /// Frees blocks: each must be aligned and in range, and not free.
    fn free_blocks(&self, order: Order, blocks: &[Pfn]) {
        let mut rest = blocks;
        while let Some(&first) = rest.first() {
            let word = first.index() / WORD_FRAMES;
            // Frames of one word are freed together.
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

    /// Returns the largest free block that begins at a frame.
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
            let within = |at: &usize| (first..end).contains(&(word * WORD_FRAMES + at));
            let mask = (0..WORD_FRAMES).filter(within).map(|at| 1 << at).sum();
            self.take_all_within(word, mask, floor, out);
        }
    }

    fn free_fresh(&self, near: CpuId, order: Order, blocks: &mut [Pfn]) {
        let area_of = |block: &Pfn| block.index() >> Order::HUGE.get();
        if order >= Order::HUGE {
            let areas = 1 << (order.get() - Order::HUGE.get());
            for block in &*blocks {
                let first = area_of(block);
                (first..first + areas).for_each(|area| self.bitmap.make_fresh(area));
            }
        } else {
            let are_one = |one: &Pfn, next: &Pfn| area_of(one) == area_of(next);
            for run in blocks.chunk_by(are_one) {
                if pages_of(order, run.len()) == Order::HUGE.pages() {
                    self.bitmap.make_fresh(area_of(&run[0]));
                }
            }
        }
        self.free_bulk(near, order, Wait::Allowed, blocks);
    }

    fn nr_fresh(&self) -> Pages {
        self.bitmap.nr_fresh()
    }

    fn has_used(&self, frames: Pages) -> bool {
        self.nr_worthwhile(Pages::ZERO) >= frames
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
