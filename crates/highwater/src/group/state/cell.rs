//! The token word: tokens of one CPU of one group, packed so that each step is one
//! compare-and-swap, or on its own CPU a compare and a store (`percpu::gated`). A CPU has two for
//! each group, on one line ([`Words`]), which differ in the ledgers that their tokens are reserved
//! in.
//!
//! ```text
//! bit 63 ........ 32 | 31 ......... 20 | 19      | 18 ... 0
//!     sequence       | in flight       | retired | tokens
//! ```
//!
//! - **tokens**: bytes that are reserved and not used: on the group and on every ancestor in the
//!   *chain word*, on the group alone in its *own word*.
//! - **in flight**: operations that began here and carry bytes: a refill that may still be undone,
//!   tokens on their way back. A thread that reads zero here knows that every byte is in a
//!   reservation, in a word, or used.
//! - **retired**: the opposite of *live*; only a live word may hold tokens. Removing a group and
//!   lowering a maximum retire words; a later operation notices in the step itself. The bit's
//!   position lets one comparison test both that bytes fit and that the word is live.
//! - **sequence**: grows whenever tokens appear or an operation begins, never when tokens are taken
//!   (a seqcount). Two equal readings therefore mean that the tokens did not grow and nothing began
//!   in between, which the proof of a refusal needs (`charge/proof.rs`). It wraps after 2^32 steps;
//!   two readings are microseconds apart, and that many steps take seconds.

use crate::percpu::{Gated, Gates, Open};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::GroupId;
#[cfg(not(loom))]
use crate::units::PAGE_BYTES;

/// Maximum tokens that one refill leaves in a word, in bytes: 112 KiB.
///
/// Chosen: a refill to half of [`CELL_MAX`] leaves the other half for uncharges, so a run of
/// charges, a run of uncharges, or any alternation of them climbs at most once per 112 KiB.
#[cfg(not(loom))]
pub(in crate::group) const GRANT_MAX: u64 = 28 * PAGE_BYTES;
/// Maximum tokens that a word ever holds, in bytes: 224 KiB.
///
/// Derived: what a CPU parks counts at a group in at most 8 words, the 7 chain words of its stock
/// and the group's own word. 8 times 56 pages are the 7 times 64 of the kernel's stock.
#[cfg(not(loom))]
pub(in crate::group) const CELL_MAX: u64 = 56 * PAGE_BYTES;

/// Small, so that the model checker reaches every branch.
#[cfg(loom)]
pub(in crate::group) const GRANT_MAX: u64 = 1;
/// Small, so that the model checker reaches every branch.
#[cfg(loom)]
pub(in crate::group) const CELL_MAX: u64 = 2;

const TOKENS: u64 = RETIRED - 1;
const RETIRED: u64 = 1 << 19;
const FLIGHT_SHIFT: u32 = 20;
const FLIGHT_MAX: u64 = (1 << 12) - 1;
const ONE_IN_FLIGHT: u64 = 1 << FLIGHT_SHIFT;
/// Set where half of the possible operations, or more, are in flight.
const MANY_IN_FLIGHT: u64 = FLIGHT_MAX.div_ceil(2) << FLIGHT_SHIFT;
const ONE_STEP: u64 = 1 << 32;

const _: () = assert!(CELL_MAX <= TOKENS && GRANT_MAX <= CELL_MAX);
const _: () = assert!(CELL_MAX < RETIRED && RETIRED < ONE_IN_FLIGHT);
const _: () = assert!(FLIGHT_MAX << FLIGHT_SHIFT < ONE_STEP);

/// One value of a token word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) struct Word(u64);

impl Word {
    pub(in crate::group) const fn tokens(self) -> u64 {
        self.0 & TOKENS
    }

    pub(in crate::group) const fn in_flight(self) -> u64 {
        self.0 >> FLIGHT_SHIFT & FLIGHT_MAX
    }

    pub(in crate::group) const fn raw(self) -> u64 {
        self.0
    }

    pub(in crate::group) const fn is_live(self) -> bool {
        self.0 & RETIRED == 0
    }

    /// Returns a live word without tokens, in the order of its steps.
    #[cfg(all(test, not(loom)))]
    pub(super) const fn at_sequence(sequence: u32) -> Self {
        Self((sequence as u64) << 32)
    }

    pub(in crate::group) const fn sequence(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns how many of `bytes` fit into the word.
    pub(in crate::group) fn fit(self, bytes: u64) -> u64 {
        if self.is_live() {
            bytes.min(CELL_MAX - self.tokens())
        } else {
            0
        }
    }

    /// Turns `bytes` tokens into usage.
    pub(in crate::group) const fn taken(self, bytes: u64) -> Option<Self> {
        if self.is_live() && bytes <= self.tokens() {
            Some(Self(self.0 - bytes))
        } else {
            None
        }
    }

    /// Like [`Word::taken`], for `bytes` that are not zero: a word that holds tokens is live.
    #[inline]
    const fn taken_some(self, bytes: u64) -> Option<Self> {
        if bytes.wrapping_sub(1) < self.tokens() {
            Some(Self(self.0 - bytes))
        } else {
            None
        }
    }

    /// Takes `bytes` tokens and begins an operation that carries them; `None` also when 4,095 are
    /// in flight.
    pub(in crate::group) fn lent(self, bytes: u64) -> Option<Self> {
        if !self.is_live() || bytes > self.tokens() {
            return None;
        }
        self.stepped(self.tokens() - bytes).with_begun()
    }

    /// Like [`Word::lent`], for `bytes` that are not zero, and only while few are in flight.
    #[inline]
    const fn lent_some(self, bytes: u64) -> Option<Self> {
        if self.0 & MANY_IN_FLIGHT == 0 && bytes.wrapping_sub(1) < self.tokens() {
            Some(Self(
                self.0
                    .wrapping_add(ONE_STEP + ONE_IN_FLIGHT)
                    .wrapping_sub(bytes),
            ))
        } else {
            None
        }
    }

    /// Ends an operation whose `bytes` become tokens again; `None` when they do not fit.
    pub(in crate::group) fn returned(self, bytes: u64) -> Option<Self> {
        self.parked_whole(bytes).map(Self::ended)
    }

    /// Turns `bytes` of usage into tokens. When they do not fit, the word keeps [`GRANT_MAX`]
    /// tokens, an operation begins, and the caller carries the rest, [`Word::spilled`].
    pub(in crate::group) fn parked(self, bytes: u64) -> Option<Self> {
        if !self.is_live() {
            return None;
        }
        match self.spilled(bytes) {
            0 => self.parked_whole(bytes),
            _ => self.stepped(GRANT_MAX).with_begun(),
        }
    }

    /// Like [`Word::parked`], but only if all of them fit.
    #[inline]
    pub(in crate::group) fn parked_whole(self, bytes: u64) -> Option<Self> {
        let room_for_these = CELL_MAX.checked_sub(bytes)?;
        // Includes the mark of a retired word, which exceeds any amount that fits.
        if self.0 & (TOKENS | RETIRED) > room_for_these {
            return None;
        }
        // The tokens stay within their bits: nothing carries into the in-flight bits.
        Some(Self(self.0.wrapping_add(ONE_STEP + bytes)))
    }

    /// Returns the bytes that [`Word::parked`] leaves to the caller.
    pub(in crate::group) const fn spilled(self, bytes: u64) -> u64 {
        let total = self.tokens().saturating_add(bytes);
        if total <= CELL_MAX {
            0
        } else {
            total - GRANT_MAX
        }
    }

    /// Begins an operation; `None` when 4,095 are already in flight.
    pub(in crate::group) fn begun(self) -> Option<Self> {
        self.stepped(self.tokens()).with_begun()
    }

    /// Ends an operation.
    pub(in crate::group) fn ended(self) -> Self {
        debug_assert!(self.in_flight() > 0, "an operation ended twice");
        Self(self.0 - ONE_IN_FLIGHT)
    }

    /// Ends a refill that leaves `grant` tokens; when they do not all fit, it stays in flight and
    /// carries the rest.
    pub(in crate::group) fn granted(self, grant: u64) -> Self {
        match self.fit(grant) {
            0 if grant == 0 => self.ended(),
            fit if fit == grant => self.stepped(self.tokens() + fit).ended(),
            fit => self.stepped(self.tokens() + fit),
        }
    }

    /// Begins an operation that carries all tokens away; `None` when there are none.
    pub(in crate::group) fn stolen(self) -> Option<Self> {
        if self.tokens() == 0 {
            return None;
        }
        self.stepped(0).with_begun()
    }

    /// Makes the word live; `None` when it already was.
    pub(in crate::group) fn enlisted(self) -> Option<Self> {
        if self.is_live() {
            None
        } else {
            Some(Self(self.stepped(0).0 & !RETIRED))
        }
    }

    /// Retires the word; the caller carries the tokens it had. `None` when it was not live. Nothing
    /// is marked in flight: the thread that retires words holds the tree's lock for writing, and
    /// passes over a subtree hold it for reading.
    pub(in crate::group) fn retired(self) -> Option<Self> {
        self.is_live().then(|| Self(self.stepped(0).0 | RETIRED))
    }

    /// Like [`Word::retired`] beside passes: begins an operation that carries the tokens; `None`
    /// also when 4,095 are in flight.
    pub(in crate::group) fn withdrawn(self) -> Option<Self> {
        self.retired()?.with_begun()
    }

    /// Passes the tokens on to the next group of the slot: an operation of the former one that has
    /// loaded the word fails. `None` when an operation is in flight.
    fn passed_on(self) -> Option<Self> {
        (self.in_flight() == 0).then(|| self.stepped(self.tokens()))
    }

    /// Returns the word one step later, holding `tokens`.
    fn stepped(self, tokens: u64) -> Self {
        debug_assert!(tokens <= CELL_MAX, "{tokens} tokens in one word");
        Self((self.0 & !TOKENS | tokens).wrapping_add(ONE_STEP))
    }

    fn with_begun(self) -> Option<Self> {
        (self.in_flight() < FLIGHT_MAX).then(|| Self(self.0 + ONE_IN_FLIGHT))
    }
}

/// Whether anything is in flight in any of several words.
#[derive(Clone, Copy, Default)]
pub(in crate::group) struct InFlight(u64);

impl InFlight {
    /// One instruction: the other bits are masked at the end.
    #[inline]
    pub(in crate::group) const fn saw(&mut self, word: Word) {
        self.0 |= word.0;
    }

    pub(in crate::group) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(in crate::group) const fn is_nothing(self) -> bool {
        Word(self.0).in_flight() == 0
    }
}

/// The token words of one CPU of one group, on two cache lines of their own.
// Not aligned to 128: the C library would place such blocks 256 bytes apart, and the words of a
// machine of many CPUs would meet in a quarter of a cache's sets.
#[derive(Debug)]
#[repr(C, align(64))]
pub(in crate::group) struct Words {
    /// Tokens that are reserved on the group and on every ancestor.
    pub(in crate::group) chain: Cell,
    /// Tokens that are reserved on the group alone.
    pub(in crate::group) own: Cell,
    /// The number of these words. Written by: threads that give them to a CPU. Read by: users of
    /// the words. Publishes: nothing; it is published with the words.
    index: AtomicU64,
    /// The latest incarnation of the slot that these words were told of, which only rises. Written
    /// by: creation, removal, and threads that make a word live. Read by: charges, beside the
    /// tokens that they take. Publishes: nothing.
    incarnation: AtomicU64,
    _apart: [u64; 8],
}

// A charge reads one line.
#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(Words, incarnation) + size_of::<u64>() <= 64);

/// The number of words that no CPU has yet.
const NOBODY: u64 = u64::MAX;

impl Words {
    /// Returns the words of CPU number `index` of a group, retired.
    pub(in crate::group) fn new(gates: Gates, index: usize) -> Self {
        Self::of(|| Cell::new(gates, index), index as u64)
    }

    /// Returns words, retired, that are yet to be given to a CPU.
    pub(in crate::group) fn to_give(gates: Gates) -> Self {
        Self::of(|| Cell(gates.word_to_give(RETIRED)), NOBODY)
    }

    fn of(cell: impl Fn() -> Cell, index: u64) -> Self {
        Self {
            chain: cell(),
            own: cell(),
            index: AtomicU64::new(index),
            incarnation: AtomicU64::new(0),
            _apart: [0; 8],
        }
    }

    /// Gives the words to CPU number `index`, before they are published. Several threads may, for
    /// the same CPU.
    pub(in crate::group) fn give(&self, index: usize) {
        self.chain.0.give(index);
        self.own.0.give(index);
        // Relaxed: the caller publishes the words.
        self.index.store(index as u64, Ordering::Relaxed);
    }

    /// Returns the number of these words.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it was made from a `usize`"
    )]
    pub(in crate::group) fn index(&self) -> usize {
        // Relaxed: it does not change once the words are published.
        self.index.load(Ordering::Relaxed) as usize
    }

    /// Whether a charge to the group of that incarnation may take tokens here. It asks between the
    /// load of a word and its step; see `slot.rs`.
    #[inline]
    pub(in crate::group) fn is_for(&self, incarnation: u64) -> bool {
        // Pairs with `tell`: one that reads the word as stepped afterwards reads this as told.
        self.incarnation.load(Ordering::SeqCst) == incarnation
    }

    /// Tells the words an incarnation of the slot, unless they know a later one.
    pub(in crate::group) fn tell(&self, incarnation: u64) {
        // Pairs with `is_for`. SeqCst for uniformity; acquire and release would do.
        if self.incarnation.load(Ordering::SeqCst) < incarnation {
            // SeqCst: as above.
            self.incarnation.fetch_max(incarnation, Ordering::SeqCst);
        }
    }

    /// Like [`tell`](Self::tell), by a plain store, for the thread that has the slot to itself: no
    /// other can know a later incarnation.
    pub(in crate::group) fn tell_next(&self, incarnation: u64) {
        // Release. Pairs with: the load in `is_for`; the caller steps the words that hold tokens,
        // or publishes the slot, afterwards.
        self.incarnation.store(incarnation, Ordering::Release);
    }

    /// Whether the words let no charge take tokens but those to the group of that incarnation, if
    /// it is one.
    pub(in crate::group) fn lets_none_but(&self, incarnation: u64) -> bool {
        // Relaxed: the caller is alone.
        let known = self.incarnation.load(Ordering::Relaxed);
        known == incarnation || known < incarnation && known.is_multiple_of(2)
    }

    /// Returns the word in which an operation that takes no tokens is marked: a live one if there
    /// is any, so that a removal steps it too.
    pub(in crate::group) fn marked(&self) -> &Cell {
        match self.own.load().is_live() {
            true => &self.own,
            false => &self.chain,
        }
    }

    /// Returns both words: every operation in flight is marked in one of them.
    pub(in crate::group) fn both(&self) -> [&Cell; 2] {
        [&self.chain, &self.own]
    }
}

/// Where a token word is: the ledgers that its tokens are reserved in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) struct Site {
    pub(in crate::group) id: GroupId,
    /// Whether it is the group's own word.
    pub(in crate::group) is_own: bool,
}

impl Site {
    pub(in crate::group) const fn chain(id: GroupId) -> Self {
        Self { id, is_own: false }
    }

    pub(in crate::group) const fn own(id: GroupId) -> Self {
        Self { id, is_own: true }
    }
}

/// How many steps of a pair were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) enum Made {
    None,
    First,
    Both,
}

/// A token word, as this layer sees it; its atomicity is implemented by [`Gated`].
///
/// Each step is atomic, in both regimes. In the restartable regime a step on the word's own CPU is
/// **not a fence**: other CPUs see it in program order, but after loads that follow it. An
/// operation that must make its step visible before it loads other words uses [`Cell::begin`].
#[derive(Debug)]
pub(in crate::group) struct Cell(Gated);

impl Cell {
    /// Returns word number `index` of a group, retired.
    pub(in crate::group) fn new(gates: Gates, index: usize) -> Self {
        Self(gates.word(index, RETIRED))
    }

    #[inline]
    pub(in crate::group) fn load(&self) -> Word {
        Word(self.0.load())
    }

    /// Applies `step` to the word; `Ok` holds the value before, `Err` the value that `step`
    /// refused.
    #[inline]
    pub(in crate::group) fn update(
        &self,
        step: impl Fn(Word) -> Option<Word>,
    ) -> Result<Word, Word> {
        words(self.0.step(|word| raw(step(Word(word)))))
    }

    /// Takes tokens by a plain store. Returns whether it did: otherwise the gate is raised, the
    /// tokens do not suffice, or the word belongs to another CPU.
    ///
    /// Does not check the incarnation: the caller has bytes charged here, so the word belongs to
    /// that group and no later one; and it holds tokens only while the group lives.
    #[inline(always)]
    pub(in crate::group) fn take_here(&self, bytes: u64) -> bool {
        self.0.try_step(|word| raw(Word(word).taken_some(bytes)))
    }

    /// Like [`take_here`](Self::take_here), if `is_alive` also returns true; it is called between
    /// the load of the word and the store, and checks the group's incarnation.
    #[inline(always)]
    pub(in crate::group) fn take_here_if(
        &self,
        bytes: u64,
        is_alive: impl FnOnce() -> bool,
    ) -> bool {
        let taken = |word| raw(Word(word).taken_some(bytes)).filter(|_| is_alive());
        self.0.try_step(taken)
    }

    /// Like [`take_here_if`](Self::take_here_if), and begins an operation ([`Word::lent`]).
    #[inline(always)]
    pub(in crate::group) fn lend_here_if(
        &self,
        bytes: u64,
        is_alive: impl FnOnce() -> bool,
    ) -> bool {
        let lent = |word| raw(Word(word).lent(bytes)).filter(|_| is_alive());
        self.0.try_step(lent)
    }

    /// Takes tokens of the own word of a group, and of the chain word of the group above, by plain
    /// stores of one sequence. The operation is in flight in the own word in between.
    #[inline(always)]
    pub(in crate::group) fn take_both_here_if(
        own: &Self,
        above: &Self,
        bytes: u64,
        is_alive: impl FnOnce() -> bool,
    ) -> Made {
        const ENDED: i32 = -(1 << FLIGHT_SHIFT);
        let lent = |word| match is_alive() {
            true => raw(Word(word).lent_some(bytes)),
            false => None,
        };
        let taken = |word| raw(Word(word).taken_some(bytes));
        match Gated::try_step_both::<ENDED>([&own.0, &above.0], lent, taken) {
            0 => Made::None,
            1 => Made::First,
            2 => {
                own.end();
                Made::Both
            }
            _ => Made::Both,
        }
    }

    /// Parks bytes in the own word of a group, and in the chain word of the group above, by plain
    /// stores of one sequence.
    #[inline(always)]
    pub(in crate::group) fn park_both_here(own: &Self, above: &Self, bytes: u64) -> Made {
        let parked = |word| raw(Word(word).parked_whole(bytes));
        match Gated::try_step_both::<0>([&own.0, &above.0], parked, parked) {
            0 => Made::None,
            1 => Made::First,
            _ => Made::Both,
        }
    }

    /// Parks bytes by a plain store. Returns whether it did.
    #[inline(always)]
    pub(in crate::group) fn park_here(&self, bytes: u64) -> bool {
        self.0.try_step(|word| raw(Word(word).parked_whole(bytes)))
    }

    /// Like [`update`](Self::update) if the word is near, that is, of the CPU that the thread runs
    /// on, or of none; otherwise `None`, unless `step` would have refused. [`Far`](super::far::Far)
    /// steps the words that are far.
    pub(in crate::group) fn update_near(
        &self,
        step: impl Fn(Word) -> Option<Word>,
    ) -> Option<Result<Word, Word>> {
        self.0.step_near(&|word| raw(step(Word(word)))).map(words)
    }

    /// Passes the tokens on if the word is near and nothing is in flight; returns the word as it
    /// then is.
    pub(in crate::group) fn pass_on_near(&self) -> Option<Word> {
        let before = self.update_near(Word::passed_on)?.ok()?;
        before.passed_on()
    }

    /// Marks an operation in flight; the thread's next loads happen after every CPU can see the
    /// mark.
    pub(in crate::group) fn begin(&self) -> Result<Word, Word> {
        words(self.0.step_fenced(|word| raw(Word(word).begun())))
    }

    /// Ends an operation that began here.
    #[inline]
    pub(in crate::group) fn end(&self) {
        if !self.0.try_step(|word| raw(Some(Word(word).ended()))) {
            self.end_slowly();
        }
    }

    #[cold]
    #[inline(never)]
    fn end_slowly(&self) {
        let ended = self.update(|word| Some(word.ended()));
        debug_assert!(ended.is_ok(), "ending an operation is never refused");
    }

    pub(in crate::group) fn gated(&self) -> &Gated {
        &self.0
    }
}

/// Ends an operation by this call when it is dropped: also where a release panics, because the
/// program has uncharged too much. Left in flight, it would make every refusal above unproven.
pub(in crate::group) struct Ending<F: Fn()>(pub(in crate::group) F);

impl<F: Fn()> Drop for Ending<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A token word of another CPU, whose gate is up.
pub(in crate::group) struct OpenCell<'a>(pub(in crate::group) Open<'a>);

impl OpenCell<'_> {
    /// See [`Cell::update`].
    pub(in crate::group) fn update(
        &self,
        step: impl Fn(Word) -> Option<Word>,
    ) -> Result<Word, Word> {
        words(self.0.step(&|word| raw(step(Word(word)))))
    }

    /// See [`Cell::end`].
    pub(in crate::group) fn end(&self) {
        let ended = self.update(|word| Some(word.ended()));
        debug_assert!(ended.is_ok(), "ending an operation is never refused");
    }
}

#[inline]
fn raw(word: Option<Word>) -> Option<u64> {
    word.map(|Word(raw)| raw)
}

#[inline]
fn words(stepped: Result<u64, u64>) -> Result<Word, Word> {
    stepped.map(Word).map_err(Word)
}
