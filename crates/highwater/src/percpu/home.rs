//! Words of one CPU: the first CPU that adds to them owns them.
//!
//! An object used by one CPU only needs no word for any other. A [`Home`] is one cache line inside
//! the object that it belongs to; additions by other CPUs are refused, and the owner of the object
//! counts those elsewhere. Its words are plain values, which start at zero.
//!
//! **Invariant.** The owner is set once, from "none", and the words are added to as that CPU only:
//! in restartable sequences that check the CPU number, or atomically.

use std::fmt;

use super::cells::RETRIES_MAX;
use super::sequences::On;
use super::{Area, Regime, Writer, current_cpu};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::CpuId;

/// No CPU has this number, and no unregistered thread reports it: those have negative numbers.
const NOBODY: u32 = i32::MAX.cast_unsigned();

/// `N` words that belong to the first CPU that adds to them.
#[repr(align(64))]
pub struct Home<const N: usize> {
    /// Written by: the owner's CPU in a restartable sequence, or any thread that acts as it. Read
    /// by: any thread (relaxed). Publishes: nothing but itself.
    words: [AtomicU64; N],
    writer: Writer,
    /// Written by: the first thread that adds, once. Read by: any thread that adds (relaxed).
    /// Publishes: nothing, because the words are zero from the start.
    owner: AtomicU32,
}

impl<const N: usize> Home<N> {
    /// Returns words without an owner.
    #[must_use]
    pub fn new(regime: Regime) -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            writer: Writer::new(regime),
            owner: AtomicU32::new(NOBODY),
        }
    }

    /// Adds `delta` to `word` if the calling thread runs on the CPU that owns the words; makes its
    /// CPU the owner if there is none. Returns whether it was added.
    ///
    /// # Cost
    ///
    /// As [`Cells::add`](super::Cells::add).
    ///
    /// # Panics
    ///
    /// When there is no such word.
    #[inline]
    pub fn try_add(&self, word: usize, delta: i64) -> bool {
        self.try_add_delayed::<0>(word, delta)
    }

    /// Like [`try_add`](Self::try_add), but adds only if that takes only a plain store, also on the
    /// owner. Returns whether it did.
    // Always: the call would cost more than the addition.
    #[inline(always)]
    pub(crate) fn try_add_here(&self, word: usize, delta: i64) -> bool {
        // Relaxed: see the field.
        let owner = CpuId(self.owner.load(Ordering::Relaxed));
        let area = self.writer.area;
        area.is_some_and(|area| self.attempt::<0>(area, word, delta, owner))
    }

    /// Like [`try_add`](Self::try_add), with `DELAY` turns of a loop at each point where an
    /// interruption must restart the sequence.
    #[inline]
    pub(super) fn try_add_delayed<const DELAY: u32>(&self, word: usize, delta: i64) -> bool {
        let Some(area) = self.writer.area else {
            return self.writer.regime == Regime::Atomic
                && self.try_add_as(current_cpu(), word, delta);
        };
        // Relaxed: see the field.
        let owner = CpuId(self.owner.load(Ordering::Relaxed));
        self.attempt::<DELAY>(area, word, delta, owner)
            || self.try_add_again::<DELAY>(area, word, delta)
    }

    /// Like [`try_add`](Self::try_add), as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime, where only the CPU itself may write its words; and when there is
    /// no such word.
    #[inline]
    pub fn try_add_on(&self, cpu: CpuId, word: usize, delta: i64) -> bool {
        assert!(
            self.writer.regime == Regime::Atomic,
            "acting as {cpu} needs the atomic regime: these words are written by their own CPU"
        );
        self.try_add_as(cpu, word, delta)
    }

    /// Returns the value of `word`, as last seen by this thread.
    ///
    /// # Panics
    ///
    /// When there is no such word.
    #[inline]
    #[must_use]
    pub fn load(&self, word: usize) -> i64 {
        // Relaxed: see the field.
        self.words[word].load(Ordering::Relaxed).cast_signed()
    }

    /// Returns the CPU that owns the words, if any has added to them.
    #[must_use]
    pub fn owner(&self) -> Option<CpuId> {
        // Relaxed: see the field.
        let owner = self.owner.load(Ordering::Relaxed);
        (owner != NOBODY).then_some(CpuId(owner))
    }

    /// Retries after an attempt that did not add, as long as the thread is on the owner's CPU.
    #[cold]
    #[inline(never)]
    fn try_add_again<const DELAY: u32>(&self, area: Area, word: usize, delta: i64) -> bool {
        for _ in 0..RETRIES_MAX {
            let Some(cpu) = area.cpu() else {
                return false;
            };
            if self.owner_or(cpu) != cpu {
                return false;
            }
            if self.attempt::<DELAY>(area, word, delta, cpu) {
                return true;
            }
        }
        false
    }

    #[inline]
    fn attempt<const DELAY: u32>(&self, area: Area, word: usize, delta: i64, owner: CpuId) -> bool {
        // In this regime only this writes the word, and always as the owner: the number is set
        // once, and no thread runs on the CPU that it names before that.
        let (on, delta) = (On::cpu(owner.0), delta.cast_unsigned());
        area.add::<DELAY, _, _>(on, &self.words[word], delta, [])
    }

    #[inline]
    fn try_add_as(&self, cpu: CpuId, word: usize, delta: i64) -> bool {
        let is_owner = self.owner_or(cpu) == cpu;
        if is_owner {
            // Relaxed: see the field.
            self.words[word].fetch_add(delta.cast_unsigned(), Ordering::Relaxed);
        }
        is_owner
    }

    /// Returns the owner, which becomes `cpu` if there was none.
    fn owner_or(&self, cpu: CpuId) -> CpuId {
        // Relaxed: see the field.
        let (old, relaxed) = (self.owner.load(Ordering::Relaxed), Ordering::Relaxed);
        if old != NOBODY {
            return CpuId(old);
        }
        match self.owner.compare_exchange(NOBODY, cpu.0, relaxed, relaxed) {
            Ok(_) => cpu,
            Err(owner) => CpuId(owner),
        }
    }
}

impl<const N: usize> fmt::Debug for Home<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home")
            .field("regime", &self.writer.regime)
            .field("owner", &self.owner())
            .field("words", &self.words)
            .finish()
    }
}
