//! A dense array of per-CPU words, `[slot][word]`, each slot on cache lines of its own.
//!
//! ```text
//!            word 0   word 1  ..  word 7 | word 8 ..         lines of 64 bytes
//! slot 0    [.......................... ][ ....              CPU 0
//! slot 1    [.......................... ][ ....              CPU 1
//!   :
//! slot n    [.......................... ][ ....              the extra slot, if any
//! ```
//!
//! The counters of one object lie side by side in a slot: a thread that adds to several of them
//! touches one line, and no two CPUs ever write the same line.
//!
//! Who writes a word, and how, is the invariant of the parent module.

use std::fmt;
use std::iter;

use super::{Area, Regime, area, current_cpu, fallback};
use crate::sync::StatCell;
use crate::sync::atomic::{AtomicI64, Ordering};
use crate::units::CpuId;

/// Words in a cache line of 64 bytes.
const LINE_WORDS: usize = 8;

/// One cache line of words.
///
/// Words are written by the slot's CPU in a restartable sequence, or by anybody atomically, and
/// read by anybody; relaxed, for a word publishes nothing but itself.
#[repr(C, align(64))]
struct Line([AtomicI64; LINE_WORDS]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64 && align_of::<Line>() == 64);

impl Line {
    fn zeroed() -> Self {
        Self(std::array::from_fn(|_| AtomicI64::new(0)))
    }
}

/// Most CPUs that an object can have: far below every number by which the kernel says that a
/// thread is not registered, which the bounds check of the sequence relies on.
const CPUS_MAX: u32 = 1 << 20;

/// Times that an aborted add is tried again before it gives up on its CPU's word. Each abort takes a preemption, a migration or
/// a signal within a dozen instructions, so even the second attempt is almost never needed; the
/// limit is for single-stepping debuggers and storms of signals. Chosen, not measured.
const RETRIES_MAX: usize = 15;

/// The cells of one word: one for each CPU, `stride` bytes apart.
#[derive(Clone, Copy)]
#[cfg_attr(
    any(not(target_arch = "x86_64"), not(target_os = "linux"), loom, miri),
    expect(dead_code, reason = "read by the sequence, which this system lacks")
)]
pub(super) struct Column {
    pub(super) first: *const AtomicI64,
    pub(super) stride: usize,
    pub(super) nr_cpus: u32,
}

/// What came of one run through the sequence.
#[cfg_attr(
    any(not(target_arch = "x86_64"), not(target_os = "linux"), loom, miri),
    expect(dead_code, reason = "made by the sequence, which this system lacks")
)]
pub(super) enum Attempt {
    /// Added on `cpu`, whose word is now `new`.
    Committed { cpu: u32, new: i64 },
    /// Interrupted before the store: nothing was added, trying again is right.
    Aborted,
    /// The thread has no rseq, or runs on a CPU that has no slot: nothing was added.
    Elsewhere,
}

/// Where an addition happened, and what it made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// The slot that was added to.
    pub slot: usize,
    /// The word's value right after this addition.
    pub new: i64,
}

/// How the words are written: the [`Regime`], with what it needs.
#[derive(Clone, Copy)]
enum Writer {
    /// `None` where the system has no rseq: every add takes the extra slot.
    Restartable(Option<Area>),
    Atomic,
}

/// Per-CPU 64-bit words, added to by their CPU and summed by anybody.
///
/// Values wrap around at 64 bits, and so do sums: a word that went over and came back is exact.
///
/// # Examples
///
/// ```
/// use highwater::percpu::{Cells, Regime};
/// use highwater::topology::Topology;
///
/// let machine = Topology::detect();
/// let cells = Cells::new(Regime::preferred(&machine), machine.nr_cpus(), 2);
/// cells.add(0, 3);
/// cells.add(1, -3);
/// assert_eq!((cells.precise_sum(0), cells.precise_sum(1)), (3, -3));
/// ```
pub struct Cells {
    writer: Writer,
    nr_cpus: u32,
    words: usize,
    lines_per_slot: usize,
    lines: Box<[Line]>,
    aborts: StatCell,
}

impl Cells {
    /// Zeroed cells of `words` words for each of `nr_cpus` CPUs.
    ///
    /// # Cost
    ///
    /// One allocation of [`slots`](Self::slots) times `words` rounded up to 64 bytes. Nothing is
    /// allocated later.
    ///
    /// # Panics
    ///
    /// When there are no CPUs, more than 2^20 of them, no words, or more than memory can hold.
    #[must_use]
    pub fn new(regime: Regime, nr_cpus: usize, words: usize) -> Self {
        let Ok(cpus @ 1..=CPUS_MAX) = u32::try_from(nr_cpus) else {
            panic!("per-CPU cells are for 1 to {CPUS_MAX} CPUs, not {nr_cpus}");
        };
        assert!(words > 0, "per-CPU cells have at least one word");
        let (writer, slots) = match regime {
            Regime::Restartable => (Writer::Restartable(area()), nr_cpus + 1),
            Regime::Atomic => (Writer::Atomic, nr_cpus),
        };
        let lines_per_slot = words.div_ceil(LINE_WORDS);
        // A product that wrapped around would be an array shorter than the sequence believes.
        let lines = slots
            .checked_mul(lines_per_slot)
            .expect("the cells fit the address space");
        Self {
            writer,
            nr_cpus: cpus,
            words,
            lines_per_slot,
            lines: iter::repeat_with(Line::zeroed).take(lines).collect(),
            aborts: StatCell::new(),
        }
    }

    /// Adds `delta` to `word` of the CPU that the calling thread runs on; wraps.
    ///
    /// # Cost
    ///
    /// A plain add to a line that only this CPU writes, or in the atomic regime an atomic add to
    /// one that few others do. No locks, no system calls, no allocation.
    ///
    /// # Panics
    ///
    /// When there is no such word.
    #[inline]
    pub fn add(&self, word: usize, delta: i64) -> Added {
        self.add_delayed::<0>(word, delta)
    }

    /// As [`add`](Self::add), with `DELAY` turns of a loop at each point where being interrupted
    /// must restart the sequence.
    #[inline]
    pub(super) fn add_delayed<const DELAY: u32>(&self, word: usize, delta: i64) -> Added {
        self.check_word(word);
        match self.writer {
            Writer::Restartable(Some(area)) => self.add_restartable::<DELAY>(area, word, delta),
            Writer::Restartable(None) => self.add_atomically(self.nr_cpus(), word, delta),
            Writer::Atomic => self.add_hinted(word, delta),
        }
    }

    /// Adds `delta` to `word` as if running on `cpu`; wraps. Any thread may act as any CPU.
    ///
    /// # Cost
    ///
    /// One atomic add.
    ///
    /// # Panics
    ///
    /// In the restartable regime, where only the CPU itself may write its words; and when there is
    /// no such CPU or word.
    #[inline]
    pub fn add_on(&self, cpu: CpuId, word: usize, delta: i64) -> Added {
        self.check_word(word);
        assert!(
            self.regime() == Regime::Atomic,
            "acting as {cpu} needs the atomic regime: these words are written by their own CPU"
        );
        assert!(
            cpu.index() < self.nr_cpus(),
            "{cpu} is not one of the {} CPUs of these cells",
            self.nr_cpus
        );
        self.add_atomically(cpu.index(), word, delta)
    }

    /// Value of `word` in `slot`, as last seen by this thread.
    ///
    /// # Cost
    ///
    /// One load of a line that its CPU may be writing.
    ///
    /// # Panics
    ///
    /// When there is no such slot or word.
    #[must_use]
    pub fn load(&self, slot: usize, word: usize) -> i64 {
        self.check_word(word);
        // Relaxed: see `Line`.
        self.cell(slot, word).load(Ordering::Relaxed)
    }

    /// Sum of `word` over every slot; wraps.
    ///
    /// # Accuracy
    ///
    /// Holds every addition that is ordered before the call, each whole and once. Of the additions
    /// that run meanwhile it holds some: it may equal no value that the sum had at any instant.
    ///
    /// # Cost
    ///
    /// Loads one line of each slot: O(CPUs).
    ///
    /// # Panics
    ///
    /// When there is no such word.
    #[must_use]
    pub fn precise_sum(&self, word: usize) -> i64 {
        (0..self.slots()).fold(0, |sum: i64, slot| sum.wrapping_add(self.load(slot, word)))
    }

    /// Slots that hold a part of each sum: one for each CPU, and in the restartable regime the
    /// extra one, which is the last.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.lines.len() / self.lines_per_slot
    }

    /// CPUs that have a slot of their own.
    #[must_use]
    pub fn nr_cpus(&self) -> usize {
        self.nr_cpus as usize
    }

    /// Words in each slot.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words
    }

    /// How the words are written.
    #[must_use]
    pub fn regime(&self) -> Regime {
        match self.writer {
            Writer::Restartable(_) => Regime::Restartable,
            Writer::Atomic => Regime::Atomic,
        }
    }

    /// Restartable sequences that were interrupted and tried again. A statistic.
    #[must_use]
    pub fn aborts(&self) -> u64 {
        self.aborts.get()
    }

    #[inline]
    fn add_restartable<const DELAY: u32>(&self, area: Area, word: usize, delta: i64) -> Added {
        match self.attempt::<DELAY>(area, word, delta) {
            Attempt::Committed { cpu, new } => Added {
                slot: cpu as usize,
                new,
            },
            Attempt::Aborted => self.add_after_abort::<DELAY>(area, word, delta),
            Attempt::Elsewhere => self.add_atomically(self.nr_cpus(), word, delta),
        }
    }

    /// What follows an aborted attempt: others, then the extra slot.
    #[cold]
    #[inline(never)]
    fn add_after_abort<const DELAY: u32>(&self, area: Area, word: usize, delta: i64) -> Added {
        for _ in 0..RETRIES_MAX {
            self.aborts.add(1);
            match self.attempt::<DELAY>(area, word, delta) {
                Attempt::Committed { cpu, new } => {
                    return Added {
                        slot: cpu as usize,
                        new,
                    };
                }
                Attempt::Aborted => {}
                Attempt::Elsewhere => break,
            }
        }
        self.add_atomically(self.nr_cpus(), word, delta)
    }

    /// Runs the sequence once over the cells of `word`.
    #[inline]
    fn attempt<const DELAY: u32>(&self, area: Area, word: usize, delta: i64) -> Attempt {
        debug_assert!(word < self.words && self.slots() > self.nr_cpus());
        let column = Column {
            first: self.lines.as_ptr().cast::<AtomicI64>().wrapping_add(word),
            stride: self.lines_per_slot * size_of::<Line>(),
            nr_cpus: self.nr_cpus,
        };
        // SAFETY: `lines` has `slots() > nr_cpus` runs of `lines_per_slot` lines, each an array of
        // words, and callers have checked `word < words <= lines_per_slot * LINE_WORDS`: every cell
        // of the column is one of them, and `&self` keeps it alive. Callers are in the restartable
        // regime, in which nothing else writes the slots below `nr_cpus`: `add_on` refuses, and
        // `add_atomically` is given the extra slot.
        unsafe { area.attempt_add::<DELAY>(column, delta) }
    }

    #[inline(never)]
    fn add_atomically(&self, slot: usize, word: usize, delta: i64) -> Added {
        let new = fallback::add(self.cell(slot, word), delta);
        Added { slot, new }
    }

    /// Adds in the slot of the CPU that the thread seems to run on; any slot would be right. Not
    /// inlined: the atomic add outweighs the call, and the other regime's path stays small.
    #[inline(never)]
    fn add_hinted(&self, word: usize, delta: i64) -> Added {
        let cpu = current_cpu().index();
        let slot = if cpu < self.nr_cpus() {
            cpu
        } else {
            cpu % self.nr_cpus()
        };
        self.add_atomically(slot, word, delta)
    }

    #[inline]
    fn cell(&self, slot: usize, word: usize) -> &AtomicI64 {
        let line = slot * self.lines_per_slot + word / LINE_WORDS;
        &self.lines[line].0[word % LINE_WORDS]
    }

    #[inline]
    fn check_word(&self, word: usize) {
        if word >= self.words {
            self.refuse_word(word);
        }
    }

    /// Keeps the message's formatting out of every add.
    #[cold]
    #[inline(never)]
    fn refuse_word(&self, word: usize) -> ! {
        panic!("there is no word {word}: each slot has {}", self.words);
    }
}

impl fmt::Debug for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cells")
            .field("regime", &self.regime())
            .field("nr_cpus", &self.nr_cpus)
            .field("words", &self.words)
            .field("aborts", &self.aborts)
            .finish_non_exhaustive()
    }
}
