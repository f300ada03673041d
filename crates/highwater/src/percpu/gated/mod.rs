//! Gated per-CPU words: stepped by their CPU without a lock prefix (rseq), and by other CPUs under
//! a gate (membarrier).
//!
//! A [`Gated`] word belongs to one CPU. Threads that run there *step* it by a restartable sequence:
//! compare, and store. That is several times cheaper than a compare-and-exchange, and atomic
//! against every other thread of that CPU, but not against other CPUs. So each word has a *gate*
//! beside it, which the sequence checks; a thread that steps the word from another CPU raises the
//! gate first, and makes the sequences that have found it down restart.
//!
//! | by | gate | how |
//! |---|---|---|
//! | a thread on the word's CPU | down | compare and plain store, in a sequence |
//! | | up | compare-and-exchange, in a sequence |
//! | any other thread | up, raised by itself | compare-and-exchange |
//! | any thread, if the word belongs to no CPU | | compare-and-exchange |
//!
//! In the atomic regime all words belong to no CPU. In the restartable one the *extra* word does,
//! for threads without rseq and for unknown CPUs.
//!
//! **Invariant (one step at a time).** Each step replaces the value that it was computed from, with
//! no other step in between. Two compare-and-exchanges exclude each other. Two sequences of one CPU
//! do: one of the two was preempted, and restarts, or makes no further store. A plain store and a
//! compare-and-exchange from another CPU do because of the gate: a sequence that found it down has
//! either stored before the membarrier returned, and then its value is the one compared with, or
//! restarts and finds the gate up. A plain store and a compare-and-exchange in a sequence are both
//! made on the word's CPU.
//!
//! **Protocol.** Gates count: each thread that raises one lowers it, and several may have it up. A
//! batch of words is raised together, for the price of one membarrier ([`Raised`]). A gate that is
//! left up ([`Raised::leave_up`]) ends plain steps of its word for good.
//!
//! **Orderings.** A step from another CPU, or on an extra word, is a locked instruction and a full
//! fence. A plain step releases and acquires, and no more: on x86-64, the one system that has it,
//! stores become visible in one order for all, which is program order for those of one thread, but
//! a thread's later *loads* may come before its store is visible. A thread that must store before
//! it loads uses a fence ([`Gated::step_fenced`]). A word that belongs to no CPU needs none: its
//! steps and the loads that decide are in the one order of `SeqCst`.
//!
//! **Failure modes.** Without membarrier(2) for sequences (before Linux 5.10, sandboxes), words
//! belong to no CPU, whatever regime was requested. Where the system refuses it later, for words
//! that rely on it, a step from another CPU visits the word's CPU instead (module `memmap::visit`),
//! and where that is refused too, it panics with word and gate as they were. A thread that is
//! interrupted too often steps as from another CPU, so that every step ends.
//!
//! Source: the asymmetric fences of membarrier(2), and librseq's use of them to write a CPU's data
//! from another; accounting spec 11.10, for stealing by compare-and-exchange.

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests;

use std::fmt;

use super::cells::RETRIES_MAX;
use super::sequences::{Addition, On, Stationed};
use super::{Area, Regime, Sequences, current_cpu};
use crate::memmap::Unreached;
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::units::CpuId;

/// The station of a word that belongs to no CPU: no thread's CPU has this number, which is above
/// all real ones and below those of unregistered threads.
const NO_CPU: u32 = i32::MAX.cast_unsigned();
/// The gate, raised once more.
const ONE_GATE: u64 = 1 << 32;

/// How the words of one object are stepped, and the CPU of each word.
#[derive(Clone, Copy)]
pub(crate) struct Gates {
    sequences: Sequences,
    nr_cpus: u32,
}

/// A word of 64 bits that belongs to one CPU, or to none. Its user keeps words of different CPUs on
/// different lines.
#[repr(C)]
pub(crate) struct Gated {
    /// The word. Written by: threads on its CPU, by plain stores in sequences while the gate is
    /// down; any thread, by compare-and-exchange. Read by: any thread. Publishes: as its user
    /// states.
    ///
    /// The station. Written by: threads that give the word to its CPU, and that raise and lower the
    /// gate. Read by: sequences. Publishes: the steps made while it was up.
    at: Stationed,
    /// Some if the word belongs to a CPU.
    area: Option<Area>,
}

impl Gates {
    /// Returns gates for words of `nr_cpus` CPUs; in the atomic regime if the restartable one is
    /// not possible.
    ///
    /// # Panics
    ///
    /// When `nr_cpus` does not fit 31 bits.
    pub(crate) fn new(regime: Regime, nr_cpus: usize) -> Self {
        let nr_cpus = i32::try_from(nr_cpus).expect("a machine has less than 2^31 CPUs");
        Self {
            sequences: Sequences::of(regime),
            nr_cpus: nr_cpus.cast_unsigned(),
        }
    }

    #[inline]
    pub(crate) fn regime(self) -> Regime {
        self.sequences.regime()
    }

    /// Returns the number of words of an object: one for each CPU, and in the restartable regime
    /// the extra one.
    pub(crate) fn nr_words(self) -> usize {
        self.nr_cpus as usize + usize::from(self.sequences.area().is_some())
    }

    /// Returns the number of the extra word.
    pub(crate) fn extra(self) -> Option<usize> {
        let area = self.sequences.area();
        area.map(|_| self.nr_cpus as usize)
    }

    /// Returns the number of the word of the CPU that the thread seems to run on, in the
    /// restartable regime. There may be no such word: for a thread without rseq, or an unknown CPU.
    #[inline]
    pub(crate) fn own(self) -> Option<usize> {
        let area = self.sequences.area();
        area.map(|area| area.cpu_number() as usize)
    }

    /// Returns the number of the word to step: of the CPU that the thread seems to run on, or the
    /// extra one.
    #[inline]
    pub(crate) fn here(self) -> usize {
        match self.sequences.area() {
            Some(area) => area.cpu_number().min(self.nr_cpus) as usize,
            None => current_cpu().index() % self.nr_cpus as usize,
        }
    }

    /// Returns word number `index` of an object, holding `value`.
    ///
    /// # Panics
    ///
    /// When there is no such word.
    pub(crate) fn word(self, index: usize, value: u64) -> Gated {
        assert!(index < self.nr_words(), "there is no word {index}");
        let is_extra = index == self.nr_cpus as usize;
        let area = self.sequences.area().filter(|_| !is_extra);
        let cpu = area.map_or(u64::from(NO_CPU), |_| index as u64);
        Gated::new(value, cpu, area)
    }

    /// Returns a word of an object that holds `value` and is yet to be given to a CPU by
    /// [`Gated::give`]; nothing steps it before.
    pub(crate) fn word_to_give(self, value: u64) -> Gated {
        Gated::new(value, NO_CPU.into(), self.sequences.area())
    }

    /// Adds `delta` to the word of the CPU that the thread runs on, if that is among `words`, its
    /// gate is down and nothing interrupts: one plain instruction. Returns whether it was added.
    /// The words are numbered from 0.
    // Always: the call would cost more than the step.
    #[inline(always)]
    pub(crate) fn try_add(self, words: &[CachePadded<Gated>], delta: u64) -> bool {
        self.try_add_delayed::<0>(words, delta)
    }

    /// Like [`try_add`](Self::try_add), with `DELAY` as in `Gated::step_delayed`.
    #[inline(always)]
    fn try_add_delayed<const DELAY: u32>(self, words: &[CachePadded<Gated>], delta: u64) -> bool {
        let Some(area) = self.sequences.area() else {
            return false;
        };
        let cpu = area.cpu_number();
        let word = words.get(cpu as usize);
        word.is_some_and(|gated| {
            let on = On::gate(cpu, &gated.at.station);
            area.add::<DELAY, _, _>(on, &gated.at.word, delta, [])
        })
    }
}

impl Gated {
    fn new(value: u64, station: u64, area: Option<Area>) -> Self {
        let at = Stationed {
            word: AtomicU64::new(value),
            station: AtomicU64::new(station),
        };
        Self { at, area }
    }

    /// Gives a word to CPU number `index`, which is not the extra one. Its user steps it only after
    /// that, and gives it to one CPU alone: again has no effect.
    pub(crate) fn give(&self, index: usize) {
        // Relaxed: published by the user, before the first step.
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let given = self
            .at
            .station
            .compare_exchange(NO_CPU.into(), index as u64, success, failure);
        let is_its = |station| lower_half(station) as usize == index;
        debug_assert!(
            given.is_ok() || given.is_err_and(is_its),
            "a word was given to two CPUs"
        );
    }

    /// Returns the value. Loads of several words by one thread are in program order.
    #[inline]
    pub(crate) fn load(&self) -> u64 {
        // Pairs with the compare-and-exchanges and the sequences. SeqCst: users read many words and
        // need one order of them all; on x86-64 it is a plain load.
        self.at.word.load(Ordering::SeqCst)
    }

    /// Applies `step` to the word; `Ok` holds the value before, `Err` the value that `step`
    /// refused.
    ///
    /// # Cost
    ///
    /// On the word's CPU, a plain store. From another one, a membarrier and three locked
    /// instructions. Where the word belongs to no CPU, one locked instruction.
    ///
    /// Progress: a compare-and-exchange fails only because another one succeeded, or spuriously;
    /// sequences are tried a fixed number of times.
    ///
    /// # Panics
    ///
    /// As [`Raised::new`], where it takes a membarrier. The word is as it was.
    #[inline]
    pub(crate) fn step(&self, step: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.step_delayed::<0>(step)
    }

    /// Applies `step` to the word if `step` does not refuse, the thread runs on the word's CPU, the
    /// gate is down and nothing interrupts: the plain store alone. Returns whether it was applied.
    // Always: the call would cost more than the step.
    #[inline(always)]
    pub(crate) fn try_step(&self, step: impl FnOnce(u64) -> Option<u64>) -> bool {
        let old = self.load();
        step(old).is_some_and(|new| self.try_store::<0>([old, new]))
    }

    /// Applies a step to each of two words of one CPU, first to the one and then to the other, then
    /// adds `AGAIN` to the first unless it is 0: as [`try_step`](Self::try_step), in one sequence.
    /// Returns how many of these two or three were made: an interruption ends it after any of them.
    /// None also where a step before the last doubles its word: the sequence could not tell how far
    /// it came.
    #[inline(always)]
    pub(crate) fn try_step_both<const AGAIN: i32>(
        both: [&Self; 2],
        first: impl FnOnce(u64) -> Option<u64>,
        second: impl FnOnce(u64) -> Option<u64>,
    ) -> u32 {
        Self::step_both_delayed::<0, AGAIN>(both, first, second)
    }

    /// Like [`try_step_both`](Self::try_step_both), with `DELAY` as in `step_delayed`.
    #[inline(always)]
    fn step_both_delayed<const DELAY: u32, const AGAIN: i32>(
        [one, other]: [&Self; 2],
        first: impl FnOnce(u64) -> Option<u64>,
        second: impl FnOnce(u64) -> Option<u64>,
    ) -> u32 {
        debug_assert!(!std::ptr::eq(one, other), "two steps of one word");
        let Some((area, owner)) = one.owner() else {
            return 0;
        };
        let Some(first) = one.addition(first).filter(Addition::is_told_apart) else {
            return 0;
        };
        let is_last = AGAIN == 0;
        let second = other.addition(second);
        let Some(second) = second.filter(|second| is_last || second.is_told_apart()) else {
            return 0;
        };
        area.add_both::<DELAY, AGAIN>(owner.0, [first, second])
    }

    /// Returns the addition that makes a step, unless the step refuses.
    #[inline(always)]
    fn addition(&self, step: impl FnOnce(u64) -> Option<u64>) -> Option<Addition<'_>> {
        let old = self.load();
        let delta = step(old)?.wrapping_sub(old);
        let to = &self.at;
        Some(Addition { to, old, delta })
    }

    /// Like [`step`](Self::step), with `DELAY` turns of a loop at each point where an interruption
    /// must restart the sequence.
    #[inline]
    fn step_delayed<const DELAY: u32>(
        &self,
        step: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        let old = self.load();
        let new = step(old).ok_or(old)?;
        match self.try_store::<DELAY>([old, new]) {
            true => Ok(old),
            false => self.step_slowly(&step),
        }
    }

    /// Replaces the first value by the second one in a sequence. Other writers exchange the word
    /// atomically: in sequences of its CPU, or with the gate up and after the membarrier of
    /// [`Raised`].
    #[inline(always)]
    fn try_store<const DELAY: u32>(&self, values: [u64; 2]) -> bool {
        self.owner().is_some_and(|(area, owner)| {
            let on = On::gate(owner.0, &self.at.station);
            area.store::<DELAY, _, _>(on, &self.at.word, values, [])
        })
    }

    /// Like [`step`](Self::step), and the thread's later `SeqCst` loads come after the step is
    /// visible to all.
    pub(crate) fn step_fenced(&self, step: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let stepped = self.step(step);
        if self.area.is_some() {
            // Pairs with the locked instruction or fence of a thread that stores first and then
            // reads the word. SeqCst: acquire and release order no store before a load.
            fence(Ordering::SeqCst);
        }
        stepped
    }

    /// Like [`step`](Self::step) if that needs no membarrier, otherwise `None`. A step that refuses
    /// needs none, on any CPU.
    pub(crate) fn step_near(&self, step: &dyn Fn(u64) -> Option<u64>) -> Option<Result<u64, u64>> {
        let Some((area, owner)) = self.owner() else {
            return Some(self.exchange(step));
        };
        for _ in 0..RETRIES_MAX {
            let old = self.load();
            let Some(new) = step(old) else {
                return Some(Err(old));
            };
            if area.cpu() != Some(owner) {
                return None;
            }
            let seen = area.exchange::<0, _>(On::cpu(owner.0), &self.at.word, [old, new]);
            if seen == Some(old) {
                return Some(Ok(old));
            }
        }
        None
    }

    /// Continues when the plain store could not be made.
    #[cold]
    #[inline(never)]
    fn step_slowly(&self, step: &dyn Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        if let Some(stepped) = self.step_near(step) {
            return stepped;
        }
        let raised = Raised::new(std::iter::once(self));
        let mut open = raised.words();
        open.next().expect("one word was raised").step(step)
    }

    fn exchange(&self, step: &dyn Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let mut old = self.load();
        loop {
            let new = step(old).ok_or(old)?;
            // Pairs with `load` and with itself. SeqCst as there, and it is a full fence.
            let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
            match self
                .at
                .word
                .compare_exchange_weak(old, new, success, failure)
            {
                Ok(_) => return Ok(old),
                Err(seen) => old = seen,
            }
        }
    }

    /// Returns the CPU that the word belongs to, and its sequences.
    #[inline(always)]
    fn owner(&self) -> Option<(Area, CpuId)> {
        // Relaxed: this half of the station does not change once the word is stepped.
        let station = self.at.station.load(Ordering::Relaxed);
        self.area.map(|area| (area, CpuId(lower_half(station))))
    }

    fn raise(&self) {
        // Pairs with the sequence's load of the station. SeqCst: it is visible before the
        // membarrier that follows; a release would not be ordered with it.
        self.at.station.fetch_add(ONE_GATE, Ordering::SeqCst);
    }

    fn lower(&self) {
        // Pairs with the sequence's load of the station: a thread that finds the gate down sees the
        // steps made while it was up. SeqCst for uniformity; a release would do.
        let before = self.at.station.fetch_sub(ONE_GATE, Ordering::SeqCst);
        debug_assert!(before >= ONE_GATE, "a gate was lowered twice");
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
const fn lower_half(station: u64) -> u32 {
    station as u32
}

/// Words whose gates are up, until this is dropped.
#[must_use]
pub(crate) struct Raised<'a, I: Iterator<Item = &'a Gated> + Clone> {
    words: I,
}

impl<'a, I: Iterator<Item = &'a Gated> + Clone> Raised<'a, I> {
    /// Raises the gates of `words`, which must yield the same words at each iteration.
    ///
    /// # Cost
    ///
    /// A locked instruction for each, and if any belongs to a CPU, one membarrier: it interrupts
    /// the CPU if there is only one, otherwise every CPU that runs a thread of this process.
    ///
    /// # Panics
    ///
    /// When the system refuses the membarrier that it granted when the words were created, and its
    /// substitute. The gates are as they were.
    pub(crate) fn new(words: I) -> Self {
        Self::try_new(words).unwrap_or_else(|unreached| panic!("{unreached}"))
    }

    /// As [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// Where `new` panics.
    pub(crate) fn try_new(words: I) -> Result<Self, Unreached> {
        words.clone().for_each(Gated::raise);
        // From here on they are lowered on any way out.
        let raised = Self { words };
        let mut owners = raised.words.clone().filter_map(Gated::owner);
        if let Some((area, cpu)) = owners.next() {
            let is_one = owners.all(|(_, other)| other == cpu);
            area.restart_others(is_one.then_some(cpu))?;
        }
        Ok(raised)
    }

    /// Leaves the gates up: from now on no plain store steps these words.
    pub(crate) fn leave_up(self) {
        std::mem::forget(self);
    }

    /// Returns the words, in order, to be stepped.
    pub(crate) fn words<'s>(&'s self) -> impl Iterator<Item = Open<'s>> {
        // Not `'a`: open no longer than the gate is up.
        let open = |word: &'a Gated| -> Open<'s> { Open(word) };
        self.words.clone().map(open)
    }
}

impl<'a, I: Iterator<Item = &'a Gated> + Clone> Drop for Raised<'a, I> {
    fn drop(&mut self) {
        for word in self.words.clone() {
            word.lower();
        }
    }
}

/// A word whose gate is up.
pub(crate) struct Open<'a>(&'a Gated);

impl Open<'_> {
    /// As [`Gated::step`].
    pub(crate) fn step(&self, step: &dyn Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0.exchange(step)
    }
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gates")
            .field("regime", &self.regime())
            .field("nr_cpus", &self.nr_cpus)
            .finish()
    }
}

impl fmt::Debug for Gated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gated")
            .field("word", &self.load())
            .field("owner", &self.owner().map(|(_, cpu)| cpu))
            .finish()
    }
}
