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
//! # Touched slots
//!
//! A sum visits only the slots that were ever added to. A cell of a slot that was not is zero; the
//! first addition marks the slot in the word's set ([`Touched`]), then gives the cell its starting
//! value, which is odd, and only then adds:
//!
//! ```text
//! cell = 0                                         not touched
//! cell = (value + centre) << 1 | 1                 touched; values are of 63 bits
//! ```
//!
//! So a thread that sees an odd cell is ordered after its mark, and a reader that is ordered after
//! an addition is ordered after the mark too. The test costs the add one instruction and no load.
//!
//! # Bands
//!
//! Cells can be given a *band*, a power of two: [`Cells::try_add`] refuses to move a value from the
//! neighbourhood of one multiple of the band to that of the next. With `centre` half a band, stored
//! values of one neighbourhood differ only in bits below the band, so that the test is a xor and a
//! mask, made before the sum is stored. The caller handles a refusal.
//!
//! The parent module states which threads write a word, and how (single writer).

use std::collections::TryReserveError;
use std::fmt;
use std::iter;
use std::num::NonZeroUsize;

use super::sequences::On;
use super::touched::{Touched, slots_of};
use super::{Area, Regime, Writer, current_cpu};
use crate::sync::StatCell;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::CpuId;

/// Words in a cache line of 64 bytes.
const LINE_WORDS: usize = 8;

/// One cache line of words.
///
/// Written by: the slot's CPU in a restartable sequence, or any thread atomically. Read by: any
/// thread. Publishes: that its slot is marked, by being odd; otherwise nothing but itself.
#[repr(C, align(64))]
struct Line([AtomicU64; LINE_WORDS]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64 && align_of::<Line>() == 64);

impl Line {
    fn zeroed() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Maximum CPUs of an object: far below every number by which the kernel marks a thread as not
/// registered, which the bounds check of the sequence relies on.
const CPUS_MAX: u32 = 1 << 20;

/// Retries of an add before it gives up on its CPU's word. Each abort takes a preemption, a
/// migration or a signal within a dozen instructions, so even the second attempt is almost never
/// needed; the limit is for single-stepping debuggers and storms of signals. Chosen, not measured.
pub(super) const RETRIES_MAX: usize = 15;

/// The slot and the result of an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// The slot that was added to.
    pub slot: usize,
    /// The word's value right after this addition.
    pub new: i64,
}

/// Per-CPU words of 63 bits, added to by their CPU and summed by any thread.
///
/// Values wrap around at 63 bits, and so do sums: a word that went over and came back is exact.
// The fields that an add needs come first, on one line.
#[repr(C, align(64))]
pub struct Cells {
    lines: Box<[Line]>,
    writer: Writer,
    nr_cpus: u32,
    /// Bytes from one slot to the next.
    stride: usize,
    /// The bits of a cell that change when its value leaves its band; none without a band.
    mask: u64,
    words: NonZeroUsize,
    lines_per_slot: usize,
    /// The cell of a touched word of value zero.
    zero: u64,
    /// For each word, the slots that were added to.
    touched: Box<[Touched]>,
    aborts: StatCell,
}

impl Cells {
    /// Returns zeroed cells of `words` words for each of `nr_cpus` CPUs, without a band.
    ///
    /// # Cost
    ///
    /// One allocation of [`slots`](Self::slots) times `words` rounded up to 64 bytes, and a bit for
    /// each slot and word. Nothing is allocated later.
    ///
    /// # Panics
    ///
    /// When there are no CPUs, more than 2^20 of them, no words, or more than memory can hold.
    #[must_use]
    pub fn new(regime: Regime, nr_cpus: usize, words: usize) -> Self {
        Self::try_new(regime, nr_cpus, words, None).expect("the cells fit the address space")
    }

    /// Like [`new`](Self::new), with a band of `1 << band_shift` for every word if one is given.
    ///
    /// # Errors
    ///
    /// When memory cannot be allocated.
    ///
    /// # Panics
    ///
    /// When there are no CPUs, more than 2^20 of them, or no words; and for a band of 1 or of more
    /// than 2^60.
    pub fn try_new(
        regime: Regime,
        nr_cpus: usize,
        words: usize,
        band_shift: Option<u32>,
    ) -> Result<Self, TryReserveError> {
        let Ok(cpus @ 1..=CPUS_MAX) = u32::try_from(nr_cpus) else {
            panic!("per-CPU cells are for 1 to {CPUS_MAX} CPUs, not {nr_cpus}");
        };
        let nr_words = NonZeroUsize::new(words).expect("per-CPU cells have at least one word");
        let slots = match regime {
            Regime::Restartable => nr_cpus + 1,
            Regime::Atomic => nr_cpus,
        };
        let lines_per_slot = words.div_ceil(LINE_WORDS);
        let mut lines = Vec::new();
        // A product that wrapped around would make an array shorter than the sequence assumes; one
        // that does not fit is refused as out of memory.
        let nr_lines = slots.saturating_mul(lines_per_slot);
        lines.try_reserve_exact(nr_lines)?;
        lines.extend(iter::repeat_with(Line::zeroed).take(nr_lines));
        let centre = band_shift.map_or(0, |shift| {
            assert!(
                (1..=60).contains(&shift),
                "a band of 2^{shift} is not possible"
            );
            1_u64 << (shift - 1)
        });
        Ok(Self {
            writer: Writer::new(regime),
            nr_cpus: cpus,
            words: nr_words,
            lines_per_slot,
            stride: lines_per_slot * size_of::<Line>(),
            lines: lines.into_boxed_slice(),
            zero: centre << 1 | 1,
            // Of a band of 2^s, values of one band share all bits from s on: s + 1 in the cell.
            mask: band_shift.map_or(0, |shift| u64::MAX << (shift + 1)),
            touched: iter::repeat_with(|| Touched::none_of(slots))
                .take(words)
                .collect(),
            aborts: StatCell::new(),
        })
    }

    /// Adds `delta` to `word` of the CPU that the calling thread runs on; wraps.
    ///
    /// # Cost
    ///
    /// A plain add to a line that only this CPU writes, or in the atomic regime an atomic add to
    /// one that few others do. The first add in a slot marks it. No locks, no system calls, no
    /// allocation.
    ///
    /// # Panics
    ///
    /// When there is no such word.
    #[inline]
    pub fn add(&self, word: usize, delta: i64) -> Added {
        self.add_delayed::<0>(word, delta)
    }

    /// Like [`add`](Self::add), with `DELAY` turns of a loop at each point where an interruption
    /// must restart the sequence.
    #[inline]
    pub(super) fn add_delayed<const DELAY: u32>(&self, word: usize, delta: i64) -> Added {
        self.add_covered::<DELAY>(word, delta, &|_| ())
    }

    /// Like [`add`](Self::add), and calls `cover` with each slot that the word is about to be added
    /// to for the first time, before that can be seen. May call it more than once for a slot, also
    /// from several threads at once, and for a slot that then is not added to.
    // Always: an addition that climbs does this three times, which as calls takes a fifth longer.
    #[inline(always)]
    pub(crate) fn add_covered<const DELAY: u32>(
        &self,
        word: usize,
        delta: i64,
        cover: &dyn Fn(usize),
    ) -> Added {
        self.check_word(word);
        let Some(area) = self.writer.area else {
            return self.add_atomically(self.hinted_slot(), word, delta, cover);
        };
        self.attempt::<DELAY, false>(area, word, delta)
            .unwrap_or_else(|| self.add_otherwise::<DELAY>(area, word, delta, cover))
    }

    /// Adds `delta` as [`add`](Self::add) does, unless this CPU's word was not added to before, or
    /// would leave its band, or the addition was interrupted: then returns false.
    ///
    /// # Panics
    ///
    /// When there is no such word.
    #[inline]
    pub fn try_add(&self, word: usize, delta: i64) -> bool {
        self.try_add_delayed::<0>(word, delta)
    }

    /// Like [`try_add`](Self::try_add), for one of the first eight words that the caller knows to
    /// exist: where the word is a constant, nothing is left to compare.
    #[inline]
    pub(crate) fn try_add_known(&self, word: usize, delta: i64) -> bool {
        match self.writer.area {
            Some(_) => self.try_add_here(word, delta),
            None => self.try_add_atomically(self.hinted_slot(), word, delta),
        }
    }

    /// Like [`try_add_known`](Self::try_add_known), but adds only if that takes only a plain store.
    // Always: the call would cost more than the addition.
    #[inline(always)]
    pub(crate) fn try_add_here(&self, word: usize, delta: i64) -> bool {
        debug_assert!(word < self.words(), "the caller knows better");
        // A slot has whole lines, so a word of the first one is always within the slot's memory.
        assert!(word < LINE_WORDS, "word {word} is not in the first line");
        let area = self.writer.area;
        area.is_some_and(|area| self.attempt::<0, true>(area, word, delta).is_some())
    }

    /// Like [`try_add`](Self::try_add), with delays as in [`add_delayed`](Self::add_delayed).
    #[inline]
    pub(super) fn try_add_delayed<const DELAY: u32>(&self, word: usize, delta: i64) -> bool {
        self.check_word(word);
        let Some(area) = self.writer.area else {
            return self.try_add_atomically(self.hinted_slot(), word, delta);
        };
        self.attempt::<DELAY, true>(area, word, delta).is_some()
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
        self.add_covered_on(cpu, word, delta, &|_| ())
    }

    /// Like [`add_on`](Self::add_on), and calls `cover` as [`add_covered`](Self::add_covered) does.
    pub(crate) fn add_covered_on(
        &self,
        cpu: CpuId,
        word: usize,
        delta: i64,
        cover: &dyn Fn(usize),
    ) -> Added {
        self.check_acting_as(cpu, word);
        self.add_atomically(cpu.index(), word, delta, cover)
    }

    /// Like [`try_add`](Self::try_add), as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// As [`add_on`](Self::add_on).
    #[inline]
    pub fn try_add_on(&self, cpu: CpuId, word: usize, delta: i64) -> bool {
        self.check_acting_as(cpu, word);
        self.try_add_atomically(cpu.index(), word, delta)
    }

    /// Returns the value of `word` in `slot`, as last seen by this thread.
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
        self.doubled(slot, word) >> 1
    }

    /// Returns the sum of `word` over every slot that was added to; wraps.
    ///
    /// # Accuracy
    ///
    /// Holds every addition that is ordered before the call, each whole and once. Of the additions
    /// that run meanwhile it holds some: it may equal no value that the sum had at any instant.
    ///
    /// # Cost
    ///
    /// Loads one line of each slot that was ever added to, and a word for each 64 slots.
    ///
    /// # Panics
    ///
    /// When there is no such word.
    #[must_use]
    pub fn precise_sum(&self, word: usize) -> i64 {
        self.check_word(word);
        let values = self.touched[word]
            .iter()
            .map(|slot| self.doubled(slot, word));
        values.fold(0, i64::wrapping_add) >> 1
    }

    /// Like [`precise_sum`](Self::precise_sum), for several words together; wraps where one does.
    ///
    /// # Cost
    ///
    /// Loads one line of each slot in which any of the words was ever added to (of words beyond the
    /// eighth, as many as they fill), and for each word another for each 64 slots.
    ///
    /// # Panics
    ///
    /// When there is no such word.
    #[must_use]
    pub fn precise_sum_of(&self, words: &[usize]) -> i64 {
        words.iter().for_each(|&word| self.check_word(word));
        let mut doubled = 0_i64;
        for nth in 0..self.slots().div_ceil(u64::BITS as usize) {
            let touched = words.iter().map(|&word| self.touched[word].bits(nth));
            for slot in slots_of(nth, touched.fold(0, |all, bits| all | bits)) {
                let values = words.iter().map(|&word| self.doubled(slot, word));
                doubled = values.fold(doubled, i64::wrapping_add);
            }
        }
        doubled >> 1
    }

    /// Returns the slots of `word` that were ever added to, lowest first.
    ///
    /// # Panics
    ///
    /// When there is no such word.
    pub fn touched(&self, word: usize) -> impl Iterator<Item = usize> {
        self.check_word(word);
        self.touched[word].iter()
    }

    /// Returns the number of slots that hold a part of each sum: one for each CPU, and in the
    /// restartable regime the extra one, which is the last.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.lines.len() / self.lines_per_slot
    }

    /// Returns the number of CPUs that have a slot of their own.
    #[must_use]
    pub fn nr_cpus(&self) -> usize {
        self.nr_cpus as usize
    }

    /// Returns the number of words in each slot.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words.get()
    }

    /// Returns how the words are written.
    #[must_use]
    pub fn regime(&self) -> Regime {
        self.writer.regime
    }

    /// Returns about how many restartable sequences were interrupted and retried. A statistic: that
    /// an addition was interrupted, and not refused, is inferred from the cell of the CPU that the
    /// thread is on afterwards.
    #[must_use]
    pub fn aborts(&self) -> u64 {
        self.aborts.get()
    }

    /// Continues after an attempt that did not add: marks the word or retries, then uses the extra
    /// slot.
    #[cold]
    #[inline(never)]
    fn add_otherwise<const DELAY: u32>(
        &self,
        area: Area,
        word: usize,
        delta: i64,
        cover: &dyn Fn(usize),
    ) -> Added {
        for _ in 0..RETRIES_MAX {
            // Without rseq, or on a CPU without a slot: the extra one.
            let Some(slot) = self.slot_here(area) else {
                break;
            };
            // Relaxed: the attempt acquires.
            if self.cell(slot, word).load(Ordering::Relaxed) & 1 == 0 {
                self.touch(area, slot, word, cover);
            } else {
                self.aborts.add(1);
            }
            if let Some(added) = self.attempt::<DELAY, false>(area, word, delta) {
                return added;
            }
        }
        self.add_atomically(self.nr_cpus(), word, delta, cover)
    }

    /// Returns the slot of the CPU that the thread runs on, if it can run sequences there.
    fn slot_here(&self, area: Area) -> Option<usize> {
        let cpu = area.cpu()?.index();
        (cpu < self.nr_cpus()).then_some(cpu)
    }

    /// Marks a word of a CPU's slot as touched, and makes its cell odd if the thread still runs
    /// there.
    fn touch(&self, area: Area, slot: usize, word: usize, cover: &dyn Fn(usize)) {
        cover(slot);
        self.touched[word].mark(slot);
        let (cpu, cell) = (CpuId::from_index(slot), self.cell(slot, word));
        area.exchange::<0, _>(On::cpu(cpu.0), cell, [0, self.zero]);
    }

    /// Adds once, as the CPU that the thread runs on, if it can run sequences there, the word was
    /// added to before, stays in its band if it must (`BANDED`), and nothing interrupts.
    #[inline(always)]
    fn attempt<const DELAY: u32, const BANDED: bool>(
        &self,
        area: Area,
        word: usize,
        delta: i64,
    ) -> Option<Added> {
        let cpu = area.cpu_number();
        if cpu >= self.nr_cpus {
            return None;
        }
        let cell = self.lines.as_ptr().cast::<AtomicU64>();
        let cell = cell.wrapping_byte_add(cpu as usize * self.stride);
        // SAFETY: of each CPU, `lines` has `stride` bytes, which are words. Callers have checked
        // that `word` is one of them.
        let cell = unsafe { &*cell.wrapping_add(word) };
        // In this regime only sequences of its CPU write the cell: `add_on` refuses, and
        // `add_atomically` is given the extra slot. The sequence acquires, which pairs with the
        // exchange in `touch`: an odd cell is a marked slot.
        let values = [step_of(delta), self.mask];
        area.add_within::<DELAY, BANDED, _>(On::cpu(cpu), cell, values)
            .map(|new| self.added(cpu as usize, new))
    }

    fn add_atomically(&self, slot: usize, word: usize, delta: i64, cover: &dyn Fn(usize)) -> Added {
        let cell = self.cell(slot, word);
        // Relaxed: the addition below acquires.
        if cell.load(Ordering::Relaxed) & 1 == 0 {
            cover(slot);
            self.touched[word].mark(slot);
            // Release. Pairs with the AcqRel below and the Acquire in `try_add_atomically`: an odd
            // cell is a marked slot. A thread that fails here has marked the slot itself.
            let _ = cell.compare_exchange(0, self.zero, Ordering::Release, Ordering::Relaxed);
        }
        // AcqRel. Pairs with the Release above, with the Acquire of readers, and with itself: the
        // stores of a thread before it moved the cell out of its band are seen by the thread that
        // moves it back.
        let old = cell.fetch_add(step_of(delta), Ordering::AcqRel);
        self.added(slot, old.wrapping_add(step_of(delta)))
    }

    fn try_add_atomically(&self, slot: usize, word: usize, delta: i64) -> bool {
        let cell = self.cell(slot, word);
        // Acquire. Pairs with the Release in `add_atomically`.
        let old = cell.load(Ordering::Acquire);
        let new = old.wrapping_add(step_of(delta));
        // Relaxed: an addition within the band concerns no other thread.
        old & 1 == 1
            && (old ^ new) & self.mask == 0
            && cell
                .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Returns the slot of the CPU that the thread seems to run on; any slot would be correct. The
    /// extra slot where sequences are expected and missing.
    fn hinted_slot(&self) -> usize {
        let cpu = current_cpu().index();
        match self.writer.regime {
            Regime::Restartable => self.nr_cpus(),
            Regime::Atomic if cpu < self.nr_cpus() => cpu,
            Regime::Atomic => cpu % self.nr_cpus(),
        }
    }

    #[inline]
    fn added(&self, slot: usize, cell: u64) -> Added {
        let new = cell.wrapping_sub(self.zero).cast_signed() >> 1;
        Added { slot, new }
    }

    /// Returns twice the value of a cell, in which values wrap where a cell's do.
    fn doubled(&self, slot: usize, word: usize) -> i64 {
        // Acquire. Pairs with the AcqRel in `add_atomically`: a reader that sees an addition sees
        // the earlier stores of its thread.
        match self.cell(slot, word).load(Ordering::Acquire) {
            0 => 0,
            cell => cell.wrapping_sub(self.zero).cast_signed(),
        }
    }

    #[inline]
    fn cell(&self, slot: usize, word: usize) -> &AtomicU64 {
        let line = slot * self.lines_per_slot + word / LINE_WORDS;
        &self.lines[line].0[word % LINE_WORDS]
    }

    #[inline]
    fn check_word(&self, word: usize) {
        if word >= self.words() {
            self.refuse_word(word);
        }
    }

    fn check_acting_as(&self, cpu: CpuId, word: usize) {
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
    }

    /// Keeps the message's formatting out of every add.
    #[cold]
    #[inline(never)]
    fn refuse_word(&self, word: usize) -> ! {
        panic!("there is no word {word}: each slot has {}", self.words());
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

/// Returns the change of a cell for a change of its value.
#[inline]
const fn step_of(delta: i64) -> u64 {
    (delta << 1).cast_unsigned()
}
