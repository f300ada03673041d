//! The token word: what one CPU of one group holds in escrow, packed so that each step is one
//! compare-and-swap.
//!
//! ```text
//! bit 63 ........ 32 | 31   | 30 ......... 12 | 11 ...... 0
//!     sequence       | live | in flight       | tokens
//! ```
//!
//! - **tokens**: pages that are reserved on the group and on every ancestor, and used by nobody.
//! - **in flight**: operations that began here and hold pages in their hands: a refill that may
//!   still be undone, tokens on their way back. Whoever sees a zero here knows that every page is
//!   in a reservation, in a word, or used.
//! - **live**: only a live word may hold tokens. Group removal and the lowering of a maximum retire
//!   words; an operation that comes later finds that out in the compare-and-swap itself.
//! - **sequence**: grows whenever tokens appear or an operation begins, never when tokens are taken.
//!   Two equal readings therefore say that the tokens did not grow and nothing began in between,
//!   which is what the proof of a refusal needs (`judge.rs`). It wraps after 2^32 steps; two
//!   readings are microseconds apart, and that many steps take seconds.

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Most tokens that one refill leaves in a word, in pages.
///
/// Chosen: the kernel's batch is 64 pages and its stock never holds more than that. A refill to half
/// of [`CELL_MAX`] keeps that bound and leaves the other half for uncharges, so that neither a run
/// of charges nor a run of uncharges, nor any alternation of them, climbs more than once per 32 pages.
#[cfg(not(loom))]
pub(super) const GRANT_MAX: u64 = 32;
/// Most tokens that a word ever holds, in pages: 256 KiB for each CPU of a group.
#[cfg(not(loom))]
pub(super) const CELL_MAX: u64 = 64;

/// Small, so that the model checker reaches every branch.
#[cfg(loom)]
pub(super) const GRANT_MAX: u64 = 1;
/// Small, so that the model checker reaches every branch.
#[cfg(loom)]
pub(super) const CELL_MAX: u64 = 2;

const TOKENS: u64 = (1 << 12) - 1;
const FLIGHT_SHIFT: u32 = 12;
const FLIGHT_MAX: u64 = (1 << 19) - 1;
const ONE_IN_FLIGHT: u64 = 1 << FLIGHT_SHIFT;
const LIVE: u64 = 1 << 31;
const ONE_STEP: u64 = 1 << 32;

const _: () = assert!(CELL_MAX <= TOKENS && GRANT_MAX <= CELL_MAX);
const _: () = assert!(FLIGHT_MAX << FLIGHT_SHIFT | TOKENS == LIVE - 1);

/// One value of a token word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    pub(super) const fn tokens(self) -> u64 {
        self.0 & TOKENS
    }

    pub(super) const fn in_flight(self) -> u64 {
        self.0 >> FLIGHT_SHIFT & FLIGHT_MAX
    }

    pub(super) const fn is_live(self) -> bool {
        self.0 & LIVE != 0
    }

    pub(super) const fn sequence(self) -> u64 {
        self.0 >> 32
    }

    /// What of `pages` fits into the word.
    pub(super) fn fit(self, pages: u64) -> u64 {
        if self.is_live() {
            pages.min(CELL_MAX - self.tokens())
        } else {
            0
        }
    }

    /// `pages` tokens become usage.
    pub(super) const fn taken(self, pages: u64) -> Option<Self> {
        if self.is_live() && pages <= self.tokens() {
            Some(Self(self.0 - pages))
        } else {
            None
        }
    }

    /// `pages` of usage become tokens. When they do not fit, the word keeps [`GRANT_MAX`] tokens and
    /// the caller has the rest in its hands, [`Word::spilled`], with an operation begun.
    pub(super) fn parked(self, pages: u64) -> Option<Self> {
        if !self.is_live() {
            return None;
        }
        match self.spilled(pages) {
            0 => Some(self.stepped(self.tokens() + pages)),
            _ => self.stepped(GRANT_MAX).with_begun(),
        }
    }

    /// Pages that [`Word::parked`] leaves in the caller's hands.
    pub(super) const fn spilled(self, pages: u64) -> u64 {
        let total = self.tokens().saturating_add(pages);
        if total <= CELL_MAX {
            0
        } else {
            total - GRANT_MAX
        }
    }

    /// An operation begins; `None` when half a million of them are in flight already.
    pub(super) fn begun(self) -> Option<Self> {
        self.stepped(self.tokens()).with_begun()
    }

    /// An operation ends.
    pub(super) fn ended(self) -> Self {
        debug_assert!(self.in_flight() > 0, "an operation ended twice");
        Self(self.0 - ONE_IN_FLIGHT)
    }

    /// A refill ends and leaves `grant` tokens; when they do not all fit, it stays in flight with
    /// the rest in its hands.
    pub(super) fn granted(self, grant: u64) -> Self {
        match self.fit(grant) {
            0 if grant == 0 => self.ended(),
            fit if fit == grant => self.stepped(self.tokens() + fit).ended(),
            fit => self.stepped(self.tokens() + fit),
        }
    }

    /// All tokens go into the hands of an operation that begins; `None` when there are none.
    pub(super) fn stolen(self) -> Option<Self> {
        if self.tokens() == 0 {
            return None;
        }
        self.stepped(0).with_begun()
    }

    /// The word may hold tokens from now on; `None` when it could before.
    pub(super) fn enlisted(self) -> Option<Self> {
        if self.is_live() {
            None
        } else {
            Some(Self(self.stepped(0).0 | LIVE))
        }
    }

    /// The word holds no tokens from now on; those it had are in the caller's hands. `None` when it
    /// was not live. Nothing is marked in flight: whoever retires words holds the tree's lock for
    /// writing, and passes over a subtree hold it for reading.
    pub(super) fn retired(self) -> Option<Self> {
        self.is_live().then(|| Self(self.stepped(0).0 & !LIVE))
    }

    /// One step later, holding `tokens`.
    fn stepped(self, tokens: u64) -> Self {
        debug_assert!(tokens <= CELL_MAX, "{tokens} tokens in one word");
        Self((self.0 & !TOKENS | tokens).wrapping_add(ONE_STEP))
    }

    fn with_begun(self) -> Option<Self> {
        (self.in_flight() < FLIGHT_MAX).then(|| Self(self.0 + ONE_IN_FLIGHT))
    }
}

/// A token word on its own pair of cache lines.
#[derive(Debug)]
pub(super) struct Cell(
    /// Written by: any thread that acts as this CPU, thieves, removal (all by compare-and-swap).
    /// Read by: the same, and passes over a subtree. Publishes: nothing but itself.
    CachePadded<AtomicU64>,
);

impl Cell {
    /// A word that is not live.
    pub(super) fn new() -> Self {
        Self(CachePadded::new(AtomicU64::new(0)))
    }

    pub(super) fn load(&self) -> Word {
        // Pairs with the compare-and-swap in `update`. SeqCst: a refusal reads many words twice and
        // needs one order of all of them; acquire and release would let it miss an early deposit in
        // one word and yet see the later take that it paid for in another.
        Word(self.0.load(Ordering::SeqCst))
    }

    /// Moves the word by `step`; `Ok` holds the value before, `Err` the value that `step` refused.
    ///
    /// Progress: a compare-and-swap fails only because another one succeeded, or spuriously.
    pub(super) fn update(&self, step: impl Fn(Word) -> Option<Word>) -> Result<Word, Word> {
        let mut old = self.load();
        loop {
            let new = step(old).ok_or(old)?;
            // Pairs with `load` and with itself; why SeqCst is said there.
            let swap = self.0.compare_exchange_weak(
                old.0,
                new.0,
                // Pairs with `load`, as above.
                Ordering::SeqCst,
                // Pairs with the compare-and-swap of another thread, as above.
                Ordering::SeqCst,
            );
            match swap {
                Ok(_) => return Ok(old),
                Err(seen) => old = Word(seen),
            }
        }
    }

    /// Ends an operation that began here.
    pub(super) fn end(&self) {
        let ended = self.update(|word| Some(word.ended()));
        debug_assert!(ended.is_ok(), "ending an operation is never refused");
    }
}
