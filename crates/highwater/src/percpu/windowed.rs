//! Per-CPU words bounded by a window: each stays near its base until the base is moved.
//!
//! Each *cell* only accumulates additions. Beside it is a *base*, and all of them share one
//! *window*: an addition that leaves a cell further from its base than the window is refused, or
//! noticed. So a thread that knows the window and the bases knows how much the cells can hold
//! beyond them, without looking at each addition.
//!
//! ```text
//! window      32 bits: width, 0 to refuse everything | 32 bits for the setter
//! cell, base  of word 0
//! cell, base  of word 1 ..
//! ```
//!
//! **Invariant (single writer).** Cells are written in one of two ways, fixed by the regime:
//!
//! * *Restartable*: by threads that run on the CPU, in a sequence that checks that the window still
//!   is as it was when the base was read, and the sum in it ([`try_add`](Windowed::try_add)). A
//!   cell is within the width of its base, the base included below and excluded above, after every
//!   addition that checked both.
//! * *Atomic*: by any thread, atomically. The addition comes first and the check after it
//!   ([`add`](Windowed::add)).
//!
//! The window is changed only by compare-and-swap, the bases by threads that the user of this type
//! allows: in the restartable regime only while the window is closed and additions have stopped.
//! The setter's half makes each window's word one that it was not before, so that an unchanged
//! window shows unchanged bases.
//!
//! **Closing a window** (width 0) refuses additions from then on, but a thread may have checked
//! before and store after: [`stop_additions`](Windowed::stop_additions) returns when no such thread
//! is left.

use std::fmt;

use super::Sequences;
use super::sequences::On;
use crate::memmap::Unreached;
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::units::CpuId;

/// A cell and the base that it is compared with.
#[repr(C, align(16))]
pub(super) struct Pair {
    /// Written by: additions. Read by: any thread. Publishes: nothing but itself.
    cell: AtomicU64,
    /// Written by: threads that move it, one at a time. Read by: additions. Publishes: nothing but
    /// itself. Negated, because an addition then reaches the least value by one instruction less.
    minus_base: AtomicI64,
}

/// `N` words of one CPU.
#[repr(C)]
pub(crate) struct Windowed<const N: usize> {
    /// Written by: any thread (compare-and-swap). Read by: additions, and threads that move it.
    /// Publishes: its user's preparations for this width.
    window: AtomicU64,
    /// The CPU of these cells, or a number of no CPU in the atomic regime.
    cpu: CpuId,
    pairs: [Pair; N],
}

/// No CPU has this number, and no unregistered thread reports it: those have negative numbers.
const NOBODY: CpuId = CpuId(i32::MAX.cast_unsigned());

impl<const N: usize> Windowed<N> {
    /// Returns zeroed cells of `cpu`, and a window of which every bit is 0.
    pub(crate) fn new(sequences: Sequences, cpu: CpuId) -> Self {
        Self {
            window: AtomicU64::new(0),
            cpu: sequences.area().map_or(NOBODY, |_| cpu),
            pairs: std::array::from_fn(|_| Pair {
                cell: AtomicU64::new(0),
                minus_base: AtomicI64::new(0),
            }),
        }
    }

    /// Adds if the calling thread runs on `cpu`, which must be that of these cells, is not
    /// interrupted, and the cell stays within the window; returns whether it was added. Never in
    /// the atomic regime.
    #[inline]
    pub(crate) fn try_add(
        &self,
        sequences: Sequences,
        cpu: CpuId,
        word: usize,
        delta: i64,
    ) -> bool {
        self.try_add_delayed::<0>(sequences, cpu, word, delta)
    }

    /// Like [`try_add`](Self::try_add), with `DELAY` turns of a loop at each point where an
    /// interruption must restart the sequence.
    #[inline]
    pub(super) fn try_add_delayed<const DELAY: u32>(
        &self,
        sequences: Sequences,
        cpu: CpuId,
        word: usize,
        delta: i64,
    ) -> bool {
        let Some(area) = sequences.area() else {
            return false;
        };
        // The caller has found the cells by their CPU, and has it in a register.
        debug_assert_eq!(cpu, self.cpu, "cells of another CPU");
        let (window, cell) = (self.window(), &self.pairs[word].cell);
        let width = window & u64::from(u32::MAX);
        let minus_least = width.wrapping_add(self.minus_base(word).cast_unsigned());
        // In the restartable regime only this sequence writes the cell, and always on this CPU.
        let on = On::guarded(cpu.0, &self.window, window);
        area.add::<DELAY, _, _>(on, cell, delta.cast_unsigned(), [[minus_least, 2 * width]])
    }

    /// Returns when no thread is in an addition that has read the window before the call, other
    /// than to read it again. Earlier additions are visible.
    ///
    /// # Errors
    ///
    /// When the system refuses the membarrier that it granted before, and its substitute: additions
    /// may go on.
    pub(crate) fn stop_additions(&self, sequences: Sequences) -> Result<(), Unreached> {
        match sequences.area() {
            Some(area) => area.restart_others(Some(self.cpu)),
            None => Ok(()),
        }
    }

    /// Adds atomically, regardless of the window; returns the new value.
    #[inline]
    pub(crate) fn add(&self, word: usize, delta: i64) -> i64 {
        debug_assert!(self.cpu == NOBODY, "{} adds in sequences", self.cpu);
        let (cell, delta) = (&self.pairs[word].cell, delta.cast_unsigned());
        // Pairs with `cell`. SeqCst: an addition reads the window and the base afterwards, and a
        // thread that moves those reads the cell afterwards; acquire and release would let both
        // miss.
        let old = cell.fetch_add(delta, Ordering::SeqCst);
        in_one_order();
        old.wrapping_add(delta).cast_signed()
    }

    #[inline]
    pub(crate) fn cell(&self, word: usize) -> i64 {
        // Pairs with `add`; SeqCst as there.
        self.pairs[word].cell.load(Ordering::SeqCst).cast_signed()
    }

    #[inline]
    pub(crate) fn base(&self, word: usize) -> i64 {
        self.minus_base(word).wrapping_neg()
    }

    #[inline]
    fn minus_base(&self, word: usize) -> i64 {
        // Pairs with `set_base`. SeqCst: in the order of `add`.
        self.pairs[word].minus_base.load(Ordering::SeqCst)
    }

    /// Moves a base. The caller puts a fence between this and a read of the cell.
    #[inline]
    pub(crate) fn set_base(&self, word: usize, base: i64) {
        // Release. Pairs with the load in `minus_base`.
        let minus_base = base.wrapping_neg();
        self.pairs[word]
            .minus_base
            .store(minus_base, Ordering::Release);
    }

    /// Returns the window's word: its width in the low half, its user's bits in the high half.
    #[inline]
    pub(crate) fn window(&self) -> u64 {
        // Pairs with `exchange_window`. SeqCst: in the order of `add`.
        self.window.load(Ordering::SeqCst)
    }

    /// Sets the window's word if it still is `old`. Returns whether it was.
    pub(crate) fn exchange_window(&self, old: u64, new: u64) -> bool {
        // Pairs with the load in `window`, and with the compare-and-swap of another thread. SeqCst:
        // in the order of `add`.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let swap = self.window.compare_exchange(old, new, success, failure);
        swap.is_ok()
    }
}

/// The model checker takes `SeqCst` accesses for acquire and release; a fence stands for the
/// difference.
#[inline]
fn in_one_order() {
    #[cfg(loom)]
    // Pairs with the fence of the thread that moves a window or a base before it reads the cells.
    crate::sync::atomic::fence(Ordering::SeqCst);
}

impl<const N: usize> fmt::Debug for Windowed<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = (0..N).map(|word| (self.cell(word), self.base(word)));
        f.debug_struct("Windowed")
            .field("window", &self.window())
            .field("pairs", &pairs.collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::memmap::sandbox::{SETAFFINITY, refuse_membarrier};
    use crate::percpu::harness::{allowed_cpus, attempts, run_on, skipped, while_moved_around};
    use crate::percpu::{Regime, current_cpu};
    use crate::sync::atomic::AtomicBool;
    use crate::sync::{OnceLock, thread};
    use crate::topology::Topology;

    /// Turns of the loops inside the sequence: most interruptions hit it then.
    const DELAY: u32 = 3_000;

    fn sequences() -> Sequences {
        Sequences::of(Regime::Restartable)
    }

    fn this_machine() -> Option<Vec<Windowed<2>>> {
        if sequences().regime() == Regime::Atomic {
            skipped("no sequences here that other CPUs can restart");
            return None;
        }
        let cpus = (0..Topology::detect().nr_cpus()).map(CpuId::from_index);
        let words = cpus.map(|cpu| Windowed::new(sequences(), cpu));
        Some(words.collect())
    }

    /// Six threads add 1 to word 1 of their CPU and count successful additions, while `close`
    /// closes each CPU's window repeatedly. Returns whether some cell changed after that.
    fn add_among(words: &[Windowed<2>], close: impl Fn(&Windowed<2>) + Sync) -> bool {
        let sequences = sequences();
        let (is_over, added) = (AtomicBool::new(false), AtomicI64::new(0));
        let closings = AtomicU64::new(0);
        // Relaxed, here and below: counts that decide when it is enough.
        let is_enough =
            || added.load(Ordering::Relaxed) >= 900 && closings.load(Ordering::Relaxed) >= 50;
        let has_changed = thread::scope(|scope| {
            let closer = scope.spawn(|| {
                let mut has_changed = false;
                // Relaxed: ends the loop, and publishes nothing.
                while !is_over.load(Ordering::Relaxed) {
                    for words in words {
                        let open = words.window();
                        let closed = (open + (1 << 32)) & !u64::from(u32::MAX);
                        assert!(words.exchange_window(open, closed));
                        close(words);
                        let cell = words.cell(1);
                        thread::yield_now();
                        has_changed |= words.cell(1) != cell;
                        words.set_base(1, words.cell(1));
                        assert!(words.exchange_window(closed, closed | 1 << 20));
                        // Relaxed: as above.
                        closings.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                    }
                }
                has_changed
            });
            while_moved_around(6, |_| {
                for _ in 0..100_000 {
                    if is_enough() {
                        break;
                    }
                    let here = &words[current_cpu().index() % words.len()];
                    if here.try_add_delayed::<DELAY>(sequences, here.cpu, 1, 1) {
                        // Relaxed: as above.
                        added.fetch_add(1, Ordering::Relaxed);
                    } else {
                        thread::yield_now();
                    }
                }
            });
            is_over.store(true, Ordering::Relaxed);
            closer.join().expect("the closer ends")
        });
        let sum: i64 = words.iter().map(|words| words.cell(1)).sum();
        assert_eq!(sum, added.into_inner(), "additions were lost");
        has_changed
    }

    // Goal: nothing is added to a closed window once additions were stopped, and none is lost.
    // Method: additions that spend most of their time between checking the window and storing.
    #[test]
    fn nobody_adds_to_a_window_that_was_closed() {
        let Some(words) = this_machine() else { return };
        let stop = |words: &Windowed<2>| words.stop_additions(sequences()).expect("granted");
        assert!(!add_among(&words, stop));
        assert!(words.iter().any(|words| words.cell(1) > 0));
    }

    // Goal: the same where membarrier is refused once the words are in use; where CPUs cannot be
    // visited either, an error.
    #[test]
    fn nobody_adds_to_a_window_that_was_closed_without_membarrier() {
        let Some(words) = this_machine() else { return };
        let refused = OnceLock::new();
        assert!(!add_among(&words, |words| {
            refused.get_or_init(|| refuse_membarrier(&[], libc::EPERM));
            words.stop_additions(sequences()).expect("by visits");
        }));
        let stop = || {
            let is_refused = refuse_membarrier(&[SETAFFINITY], libc::EPERM);
            assert!(!is_refused || words[0].stop_additions(sequences()).is_err());
        };
        thread::scope(|scope| scope.spawn(stop).join().expect("as above"));
    }

    // Goal: that traffic detects closings that stop no addition.
    #[test]
    fn the_same_traffic_finds_windows_that_were_only_closed() {
        for () in attempts() {
            let Some(words) = this_machine() else { return };
            if add_among(&words, |_| ()) {
                return;
            }
        }
        panic!("no thread was between checking and storing");
    }

    // Goal: a cell stays in the window of its base, whatever is added; nothing wraps into it;
    // another CPU's thread adds nothing. Method: the edges.
    #[test]
    fn cells_stay_within_their_window() {
        let Some(words) = this_machine() else { return };
        let cpu = allowed_cpus()[0];
        run_on(cpu, || {
            let here = &words[cpu.index()];
            assert!(
                !here.try_add(sequences(), cpu, 0, 1),
                "the window is closed"
            );
            here.set_base(0, 1000);
            assert!(here.exchange_window(0, 7 << 32 | 1024));
            for (delta, fits) in [
                (i64::MAX, false),
                (i64::MIN, false),
                (-24, true),
                (-1, false),
                (2048, false),
                (2047, true),
                (1, false),
                (i64::MIN, false),
                (0, true),
                (-2047, true),
            ] {
                let is_added = here.try_add(sequences(), cpu, 0, delta);
                assert_eq!(is_added, fits, "{delta}");
            }
            assert_eq!((here.cell(0), here.cell(1)), (-24, 0));
            for other in words.iter().filter(|other| other.cpu != cpu) {
                assert!(other.exchange_window(0, 1024));
                assert!(!other.try_add(sequences(), other.cpu, 0, 1));
            }
        });
    }
}
