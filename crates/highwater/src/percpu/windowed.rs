//! Words of one CPU that stay near a base, as long as nobody moves it.
//!
//! Each *cell* only ever adds up what it is given. Beside it lies a *base*, and for all of them
//! together there is one *window*: an addition that leaves a cell further from its base than the
//! window is refused, or noticed. So somebody who knows the window and the bases knows how much the
//! cells can hold beyond them, without looking at each addition.
//!
//! ```text
//! window      32 bits: width, 0 to refuse everything | 32 bits for whoever sets it
//! cell, base  of word 0
//! cell, base  of word 1 ..
//! ```
//!
//! **Invariant (single writer).** In the atomic regime cells are added to atomically, by anybody: the
//! addition comes first and the look at the window after it. The window is changed by compare-and-swap
//! only, the bases by whoever the user of this type allows.

use std::fmt;

use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A cell and what it is compared with.
struct Pair {
    /// Written by: additions. Read by: anybody. Publishes: nothing but itself.
    cell: AtomicI64,
    /// Written by: who moves it, one at a time. Read by: additions. Publishes: nothing but itself.
    base: AtomicI64,
}

/// `N` words of one CPU.
#[repr(C)]
pub(crate) struct Windowed<const N: usize> {
    /// Written by: anybody (compare-and-swap). Read by: additions, and whoever moves it. Publishes:
    /// what its user has prepared for this width.
    window: AtomicU64,
    pairs: [Pair; N],
}

impl<const N: usize> Windowed<N> {
    /// Zeroes, and a window of which every bit is 0.
    pub(crate) fn new() -> Self {
        Self {
            window: AtomicU64::new(0),
            pairs: std::array::from_fn(|_| Pair {
                cell: AtomicI64::new(0),
                base: AtomicI64::new(0),
            }),
        }
    }

    /// Adds atomically, whatever the window is; returns the new value.
    #[inline]
    pub(crate) fn add(&self, word: usize, delta: i64) -> i64 {
        // Pairs with `cell`. SeqCst: who adds looks at the window and the base afterwards, and who
        // moves those looks at the cell afterwards; acquire and release would let both miss.
        let old = self.pairs[word].cell.fetch_add(delta, Ordering::SeqCst);
        in_one_order();
        old.wrapping_add(delta)
    }

    #[inline]
    pub(crate) fn cell(&self, word: usize) -> i64 {
        // Pairs with `add`; SeqCst as there.
        self.pairs[word].cell.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn base(&self, word: usize) -> i64 {
        // Pairs with `set_base`. SeqCst: in the order of `add`.
        self.pairs[word].base.load(Ordering::SeqCst)
    }

    /// Moves a base. A fence between this and a look at the cell is the caller's business.
    #[inline]
    pub(crate) fn set_base(&self, word: usize, base: i64) {
        // Release. Pairs with the load in `base`.
        self.pairs[word].base.store(base, Ordering::Release);
    }

    /// The window's word: its width in the low half, in the high half what its user put there.
    #[inline]
    pub(crate) fn window(&self) -> u64 {
        // Pairs with `exchange_window`. SeqCst: in the order of `add`.
        self.window.load(Ordering::SeqCst)
    }

    /// Sets the window's word if it still is `old`. Whether it was.
    pub(crate) fn exchange_window(&self, old: u64, new: u64) -> bool {
        // Pairs with the load in `window`, and with the compare-and-swap of another thread. SeqCst: in
        // the order of `add`.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let swap = self.window.compare_exchange(old, new, success, failure);
        swap.is_ok()
    }
}

/// The model checker takes `SeqCst` accesses for acquire and release; a fence stands for what they
/// are more.
#[inline]
fn in_one_order() {
    #[cfg(loom)]
    // Pairs with the fence of whoever moves a window or a base before looking at the cells.
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
