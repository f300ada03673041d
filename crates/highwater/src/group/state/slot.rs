//! Slots of groups: one for each id, in memory that stays for as long as the tree does.
//!
//! A slot is used by one group after another (an *incarnation*), so that creating a short-lived
//! group allocates no token words and a charge needs no reference count that other CPUs write. The
//! table of them is in `slots.rs`.
//!
//! The words of the CPU that charges first are in the slot itself: most groups are short-lived and
//! used on one CPU, and with many of them in turn each address to follow is a cache miss. They are
//! given to that CPU once (*claimed*): a compare-and-exchange decides which CPU gets them, then any
//! thread of that CPU prepares and publishes them, so that none waits for another. Later groups of
//! the slot find them given.
//!
//! Why reuse is safe:
//! - `incarnation` is odd while a group lives, even otherwise, and never repeats. A handle carries
//!   the number it was made for.
//! - The words of each CPU are told of it, so that a charge that finds tokens reads it beside them,
//!   on one line: by creation, before the slot's own changes, and by removal, after it has, if the
//!   words are touched; when a word becomes live, from the slot's own, after they were touched; and
//!   by refills. So words that hold tokens know of a removal before its next step, and of a group
//!   that begins at the latest when it refills. What they know only rises.
//! - An operation that takes tokens checks what the words know between loading a word and stepping
//!   it; a word that belongs to a later group differs in its sequence, and the step compares. An
//!   operation that reserves marks itself in flight first and checks the slot's own afterwards; a
//!   slot is reused only when nothing is in flight, and nothing is reserved but tokens that are
//!   passed on (`parked.rs`). One of the two notices the other.
//! - An operation that gives bytes back is protected by those bytes: they are reserved until it has
//!   released them, on this group first and on its parent after that.

use crate::percpu::{Blocks, Gates};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Arc, CachePadded, LockClass, Rank, RwLock, order_of_seqcst};
use crate::units::{CpuId, GroupId};

use super::cell::{Cell, Site, Words};
use super::ledger::Ledger;
use super::meta::{GroupKey, Meta};
use super::standing::{SlotStanding, StandingWord};

static META: LockClass = LockClass::new("group slot", Rank::Leaf);

/// Stands for "no parent" in [`Slot::parent`]; the table never grows to that id.
pub(super) const NO_PARENT: u32 = u32::MAX;

/// Selects the words that an operation steps.
#[derive(Clone, Copy, Debug)]
pub(in crate::group) enum ActingCpu {
    /// Those of the CPU on which the thread runs at that moment.
    Here,
    /// Those of this CPU. In the atomic regime only.
    As(CpuId),
}

/// A slot: one group, or room for one.
// Field order: no charge writes the first lines. A charge that finds tokens reads the first words
// alone, if they are its CPU's, and otherwise the first line besides. The ledger has lines of its
// own.
#[derive(Debug)]
#[repr(C)]
pub(in crate::group) struct Slot {
    /// Written by: creation and removal, with the slot claimed or the tree's lock held. Read by:
    /// charges that find no tokens. Publishes: the slot as initialized for this incarnation.
    incarnation: AtomicU64,
    /// Written by: creation, while nothing is reserved or in flight here. Read by: operations that
    /// have something reserved or in flight here, so it cannot change under them.
    parent: AtomicU32,
    /// Its own. Never changes.
    id: GroupId,
    /// The number of `first_words`; [`CLAIMED`] besides while they are prepared; or [`NO_WORDS`].
    /// Written by: threads that claim and publish them. Read by: users of words. Publishes: that
    /// they are given to that CPU.
    first: AtomicU64,
    /// Token words by number, that is by CPU, and the extra ones, other than the first. Allocated
    /// when their CPU first charges, and kept for later groups.
    cells: Blocks<Words, 16>,
    /// How the words are stepped, and how many there are.
    gates: Gates,
    /// Bitmap of the runs of `1 << run_shift` words of which one may be other than idle: with up to
    /// 64 words, a bit for each. Written by: the first operation of a CPU; cleared before reuse.
    /// Read by: passes over the subtree. A set bit says nothing; a clear bit says that no operation
    /// has begun there.
    touched: AtomicU64,
    run_shift: u32,
    /// Whether any own word may be other than idle; otherwise passes look at chain words alone.
    /// Written, read and cleared as `touched`.
    has_own: AtomicBool,
    /// Metadata of the group that lives here or whose charges are still here.
    pub(in crate::group) meta: RwLock<Option<Arc<Meta>>>,
    /// Live words whose tokens count here: chain words of the subtree and own words of the group.
    /// Written by: enlisting and retiring, under the tree's lock. Read by: refills and reads of
    /// usage. Never below the number of words that hold tokens.
    holders: AtomicU64,
    /// Highest number that `holders` had. Written and read as `holders`.
    holders_peak: AtomicU64,
    /// Highest lower bound of the peak that a read had: more words later do not lower it.
    /// Written and read by: reads of the peak. Publishes: nothing.
    peak_low: AtomicU64,
    standing: StandingWord,
    pub(in crate::group) ledger: CachePadded<Ledger>,
    /// The words of the CPU that charged here first.
    first_words: Words,
}

/// The number of a slot's first words, as far as a handle knows: it does not change once the words
/// are given.
#[derive(Debug)]
pub(in crate::group) struct FirstNote(AtomicU64);

impl FirstNote {
    pub(in crate::group) fn nothing() -> Self {
        Self(AtomicU64::new(NO_WORDS))
    }
}

/// Stands for "of no CPU" in [`Slot::first`]. No number of words has more than 32 bits, also not
/// that of a thread which is not registered.
const NO_WORDS: u64 = u64::MAX;
/// Set in [`Slot::first`] until the words are published.
const CLAIMED: u64 = 1 << 32;

// The addresses of the words of the first CPUs share a line with the incarnation.
#[cfg(not(loom))]
const _: () = assert!(align_of::<Slot>() >= 128 && std::mem::offset_of!(Slot, cells) <= 24);

impl Slot {
    pub(super) fn new(id: GroupId, gates: Gates) -> Self {
        let words_of_bit = gates.nr_words().div_ceil(64).next_power_of_two();
        Self {
            incarnation: AtomicU64::new(0),
            parent: AtomicU32::new(NO_PARENT),
            id,
            ledger: CachePadded::new(Ledger::new()),
            holders: AtomicU64::new(0),
            holders_peak: AtomicU64::new(0),
            peak_low: AtomicU64::new(0),
            standing: StandingWord::new(),
            gates,
            touched: AtomicU64::new(0),
            has_own: AtomicBool::new(false),
            run_shift: words_of_bit.ilog2(),
            first: AtomicU64::new(NO_WORDS),
            first_words: Words::to_give(gates),
            cells: Blocks::none(gates.nr_words()),
            meta: RwLock::new(&META, None),
        }
    }

    #[inline]
    pub(in crate::group) fn incarnation(&self) -> u64 {
        // Pairs with `step_incarnation`. SeqCst: a charge marks itself in flight and then reads
        // this, reuse writes this and then reads the marks; acquire and release let both miss.
        self.incarnation.load(Ordering::SeqCst)
    }

    /// Steps from free to alive. The caller is alone with the slot.
    pub(in crate::group) fn begin_incarnation(&self, incarnation: u64) {
        debug_assert_eq!(
            (self.incarnation() + 1, incarnation % 2),
            (incarnation, 1),
            "one group for each life"
        );
        self.each_touched(|words| words.tell_next(incarnation));
        // Release. Pairs with: the load in `incarnation`; the slot as prepared.
        self.incarnation.store(incarnation, Ordering::Release);
    }

    /// Steps from alive to removed. The slot is claimed by the caller, which removes the group, or
    /// that holds the tree's lock for writing.
    pub(in crate::group) fn end_incarnation(&self, lived: u64) {
        self.step_incarnation(lived);
        self.each_touched(|words| words.tell_next(lived + 1));
    }

    /// Makes the step of the thread that ends the incarnation, if it was not made.
    fn step_incarnation(&self, lived: u64) {
        // Pairs with the load in `incarnation`; SeqCst as there.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let stepped = self
            .incarnation
            .compare_exchange(lived, lived + 1, success, failure);
        debug_assert!(
            stepped.unwrap_or_else(|seen| seen - 1) >= lived,
            "{stepped:?}: a group is removed before it lives"
        );
        order_of_seqcst();
    }

    /// Returns what is known of the group that lives here.
    pub(in crate::group) fn living_meta(&self) -> Option<Arc<Meta>> {
        self.read_living(Arc::clone)
    }

    /// Calls `of` with what is known of the group that lives here; not for one that is about to
    /// begin, or has ended.
    pub(in crate::group) fn read_living<R>(&self, of: impl FnOnce(&Arc<Meta>) -> R) -> Option<R> {
        let meta = self.meta.read();
        let living = meta.as_ref();
        let living = living.filter(|meta| self.incarnation() == meta.key.incarnation);
        living.map(of)
    }

    /// Takes what is known of the group that was here. The caller drops it when it holds no lock:
    /// it may hold data of the embedder.
    #[must_use = "dropped when no lock is held"]
    pub(in crate::group) fn take_meta(&self) -> Option<Arc<Meta>> {
        self.meta.write().take()
    }

    /// Like [`take_meta`](Self::take_meta), if the slot is kept for the next group and the group
    /// that was here has that key.
    #[must_use = "dropped when no lock is held"]
    pub(in crate::group) fn take_parked_meta(&self, of: GroupKey) -> Option<Arc<Meta>> {
        let mut held = self.meta.write();
        held.take_if(|meta| meta.key == of && !self.is_of(of.incarnation))
    }

    #[inline]
    pub(in crate::group) fn id(&self) -> GroupId {
        self.id
    }

    /// Whether the group of that incarnation lives. Where it does not, no words let it take tokens
    /// any more, also if its removal has told none yet.
    pub(in crate::group) fn lives(&self, incarnation: u64) -> bool {
        let lives = self.incarnation() == incarnation;
        if !lives {
            self.each_touched(|words| words.tell(incarnation + 1));
        }
        lives
    }

    pub(in crate::group) fn is_alive(&self) -> bool {
        self.incarnation() % 2 == 1
    }

    /// Settles the group of that incarnation: returns whether it lives, and then it stays until it
    /// is removed under the tree's lock for writing. The caller holds that lock, for reading or for
    /// writing.
    pub(in crate::group) fn settle(&self, incarnation: u64) -> bool {
        let standing = &self.standing;
        let is_settled = standing.is(incarnation, SlotStanding::Settled)
            || standing.swap(incarnation, SlotStanding::Light, SlotStanding::Settled)
            || standing.is(incarnation, SlotStanding::Settled);
        if standing.is(incarnation, SlotStanding::Claimed) {
            // Made for the thread that removes the group, which callers are about to call removed.
            self.step_incarnation(incarnation);
        }
        let lives = self.lives(incarnation);
        is_settled && lives
    }

    /// Whether the slot is that of the group of that incarnation, or of its residual charges.
    pub(in crate::group) fn is_of(&self, lived: u64) -> bool {
        let incarnation = self.incarnation();
        (incarnation == lived || incarnation == lived + 1) && self.standing.is_of(lived)
    }

    /// Claims the slot, if it stands so; the caller is then alone with it.
    pub(in crate::group) fn claim(&self, incarnation: u64, from: SlotStanding) -> bool {
        self.standing.swap(incarnation, from, SlotStanding::Claimed)
    }

    /// Whether the slot stands so, at this moment.
    pub(in crate::group) fn stands(&self, incarnation: u64, standing: SlotStanding) -> bool {
        self.standing.is(incarnation, standing)
    }

    /// Ends a claim, or the preparation of a slot that was free.
    pub(in crate::group) fn stand(&self, incarnation: u64, standing: SlotStanding) {
        self.standing.set(incarnation, standing);
    }

    #[inline]
    pub(in crate::group) fn parent(&self) -> Option<GroupId> {
        // Relaxed: it was written before the incarnation that the caller has checked, and cannot
        // change while the caller has anything reserved or in flight here.
        match self.parent.load(Ordering::Relaxed) {
            NO_PARENT => None,
            id => Some(GroupId(id)),
        }
    }

    /// Prepares a free slot for a group under `parent`. The caller holds the tree's lock for
    /// writing.
    pub(in crate::group) fn prepare(&self, parent: Option<GroupId>) {
        // An operation that began for the former group after the slot was found idle may be in
        // flight still: it finds the incarnation changed, and ends without having taken anything.
        let balance = self.ledger.balance();
        debug_assert!(
            balance.reserved == 0 && !balance.has_waiters,
            "a slot in use was given away"
        );
        // Relaxed: published by the step of the incarnation that follows.
        self.parent
            .store(parent.map_or(NO_PARENT, |id| id.0), Ordering::Relaxed);
        self.ledger.renew_peak();
        // Relaxed, both: statistics; published as above.
        self.holders_peak.store(0, Ordering::Relaxed);
        self.peak_low.store(0, Ordering::Relaxed);
        if self.touched() != 0 {
            // Pairs with `touch`; SeqCst as there.
            self.touched.store(0, Ordering::SeqCst);
            self.has_own.store(false, Ordering::SeqCst);
        }
    }

    /// Whether nothing is reserved and no operation is in flight, for a removed group.
    ///
    /// Reads the words first: an operation that found the group alive makes its reservation before
    /// it is no longer in flight, so one of the two is seen. In the other order both could be
    /// missed.
    pub(in crate::group) fn is_idle(&self) -> bool {
        let has_own = self.has_own();
        let is_still = |cell: &Cell| cell.load().in_flight() == 0;
        let mut touched = self.touched_words();
        touched.all(|words| is_still(&words.chain) && (!has_own || is_still(&words.own)))
            && self.ledger.balance().reserved == 0
    }

    /// Returns the words of number `index`, made on first use. Passes look only at words reported
    /// to [`touch`](Self::touch).
    #[inline]
    pub(in crate::group) fn words(&self, index: usize) -> &Words {
        match self.find_words(index) {
            Some(words) => words,
            None => self.make_words(index),
        }
    }

    /// Returns the words of number `index`, if they were made.
    #[inline]
    pub(in crate::group) fn find_words(&self, index: usize) -> Option<&Words> {
        if self.first() == index as u64 {
            return Some(&self.first_words);
        }
        self.cells.get(index)
    }

    /// Like [`find_words`](Self::find_words), for a handle that notes the number of the first
    /// words: their CPU reads nothing else of the slot.
    #[inline(always)]
    pub(in crate::group) fn find_noted(&self, note: &FirstNote, index: usize) -> Option<&Words> {
        // Acquire. Pairs with: the release in `find_and_note`.
        if note.0.load(Ordering::Acquire) == index as u64 {
            return Some(&self.first_words);
        }
        let words = self.cells.get(index);
        words.or_else(|| self.find_and_note(note, index))
    }

    #[cold]
    fn find_and_note(&self, note: &FirstNote, index: usize) -> Option<&Words> {
        if self.first() == index as u64 {
            // Release. Pairs with: the acquire in `find_noted`; the words are given to their CPU.
            note.0.store(index as u64, Ordering::Release);
        }
        self.find_words(index)
    }

    /// Makes the words of number `index`: the first of all are in the slot.
    #[cold]
    fn make_words(&self, index: usize) -> &Words {
        if self.claim_first(index) {
            self.first_words.give(index);
            // Pairs with `first`. Threads of one CPU may come here together, and do the same.
            self.first.store(index as u64, Ordering::SeqCst);
            return &self.first_words;
        }
        let make = || Words::new(self.gates, index);
        self.cells.get_or_make(index, make)
    }

    /// Claims the first words for words number `index`; returns whether they are claimed for it.
    /// Once they are not free, they are claimed for the same for ever; so of a number there are
    /// words in one place alone.
    fn claim_first(&self, index: usize) -> bool {
        if self.gates.extra() == Some(index) {
            return false;
        }
        assert!(index < self.gates.nr_words(), "there is no CPU {index}");
        let claimed = CLAIMED | index as u64;
        // Pairs with itself, and with the store that publishes. SeqCst for uniformity.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let before = self
            .first
            .compare_exchange(NO_WORDS, claimed, success, failure);
        match before {
            Ok(_) => true,
            Err(seen) => seen & !CLAIMED == index as u64,
        }
    }

    #[inline]
    fn first(&self) -> u64 {
        // Pairs with the store in `make_words`: the words are given to their CPU. SeqCst: it comes
        // after `touched` in the order of the token words; acquire would do.
        self.first.load(Ordering::SeqCst)
    }

    /// Returns the first words with their number, if they were published.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it was made from a `usize`"
    )]
    fn first_words(&self) -> Option<(usize, &Words)> {
        let first = self.first();
        (first & CLAIMED == 0).then_some((first as usize, &self.first_words))
    }

    /// Returns the number of the words that `actor` steps.
    #[inline]
    pub(in crate::group) fn index(&self, actor: ActingCpu) -> usize {
        match actor {
            ActingCpu::Here => self.gates.here(),
            ActingCpu::As(cpu) => cpu.index(),
        }
    }

    /// Makes passes over the subtree include word number `index`.
    pub(in crate::group) fn touch(&self, index: usize) {
        let bit = 1 << (index >> self.run_shift);
        if self.touched() & bit == 0 {
            // Pairs with `touched`. SeqCst: the bit is set before anything begins in the word, and
            // a pass that misses the bit must come before that in the one order of all words.
            self.touched.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Like [`touch`](Self::touch), before something begins in the own word of that number.
    pub(in crate::group) fn touch_own(&self, index: usize) {
        self.touch(index);
        if !self.has_own() {
            // Pairs with `has_own`; SeqCst as in `touch`.
            self.has_own.store(true, Ordering::SeqCst);
        }
    }

    /// Returns whether anything may have begun in own words of the group.
    #[inline]
    pub(in crate::group) fn has_own(&self) -> bool {
        // Pairs with `touch_own`; SeqCst as there.
        self.has_own.load(Ordering::SeqCst)
    }

    /// Readies words number `index` for a word that becomes live: they know the incarnation, and
    /// removals tell them the next.
    pub(in crate::group) fn ready(&self, index: usize) -> &Words {
        let words = self.words(index);
        self.touch(index);
        order_of_seqcst();
        words.tell(self.incarnation());
        words
    }

    /// Visits the words in which an operation may have begun; returns how many there are. An inner
    /// loop: a read of usage spends its time here.
    #[inline]
    pub(in crate::group) fn each_touched<'a>(&'a self, mut visit: impl FnMut(&'a Words)) -> usize {
        let mut count = 0;
        // In a word that was not allocated yet, nothing has begun.
        let counted = &mut |words| {
            count += 1;
            visit(words);
        };
        let touched = self.touched();
        if let Some((index, words)) = self.first_words()
            && touched & 1 << (index >> self.run_shift) != 0
        {
            counted(words);
        }
        self.cells.each_of(touched, self.run_shift, counted);
        count
    }

    /// Returns the words in which an operation may have begun.
    pub(in crate::group) fn touched_words(&self) -> impl Iterator<Item = &Words> {
        let mut bits = self.touched();
        let runs = std::iter::from_fn(move || {
            let bit = bits.trailing_zeros() as usize;
            bits &= bits.wrapping_sub(1);
            let begin = bit << self.run_shift;
            (bit < 64).then(|| begin..begin + (1 << self.run_shift))
        });
        runs.flatten().filter_map(|index| self.find_words(index))
    }

    /// Returns the words of this group, number `id`, whose tokens are reserved on the ledger of
    /// `top`, which is above it or itself, and in which an operation may have begun.
    pub(in crate::group) fn words_of(
        &self,
        top: GroupId,
        id: GroupId,
    ) -> impl Iterator<Item = (Site, &Cell)> {
        let has_own = top == id && self.has_own();
        self.touched_words().flat_map(move |words| {
            let own = has_own.then_some((Site::own(id), &words.own));
            [Some((Site::chain(id), &words.chain)), own]
                .into_iter()
                .flatten()
        })
    }

    /// Returns the number of runs of words in which an operation may have begun.
    pub(in crate::group) fn nr_touched_runs(&self) -> u32 {
        self.touched().count_ones()
    }

    fn touched(&self) -> u64 {
        // Pairs with `touch`; SeqCst as there.
        self.touched.load(Ordering::SeqCst)
    }

    /// Returns all words that were made, with their numbers.
    pub(in crate::group) fn all_words(&self) -> impl Iterator<Item = (usize, &Words)> {
        self.first_words().into_iter().chain(self.cells.iter())
    }

    pub(in crate::group) fn holders(&self) -> u64 {
        // Pairs with `add_holder`: a thread that sees tokens in a word sees the word counted.
        // SeqCst: a read of usage takes this after the reservations, in the order of the token
        // words.
        self.holders.load(Ordering::SeqCst)
    }

    pub(in crate::group) fn holders_peak(&self) -> u64 {
        // Relaxed: a statistic.
        self.holders_peak.load(Ordering::Relaxed)
    }

    /// Raises the lower bound of the peak to `low`; returns the highest so far.
    pub(in crate::group) fn raise_peak_low(&self, low: u64) -> u64 {
        // Relaxed, both: see the field. A read alone keeps the line clean.
        match self.peak_low.load(Ordering::Relaxed) {
            before if before >= low => before,
            _ => self.peak_low.fetch_max(low, Ordering::Relaxed).max(low),
        }
    }

    /// Counts a word before it becomes live.
    pub(in crate::group) fn add_holder(&self) {
        // Pairs with `holders`; SeqCst as there.
        let holders = self.holders.fetch_add(1, Ordering::SeqCst) + 1;
        // Relaxed: a statistic.
        self.holders_peak.fetch_max(holders, Ordering::Relaxed);
    }

    /// Uncounts words that no longer hold tokens.
    pub(in crate::group) fn remove_holders(&self, count: u64) {
        // Pairs with `holders`; SeqCst as there.
        let before = self.holders.fetch_sub(count, Ordering::SeqCst);
        assert!(before >= count, "{count} of {before} live words retired");
    }
}

#[cfg(all(test, loom))]
mod loom {
    use super::super::cell::Word;
    use super::*;
    use crate::percpu::Regime;
    use crate::sync::thread;

    // Goal: of each number there are words in one place alone, in any order of threads, and a pass
    // sees what was parked there. Method: two threads of one CPU and one of another make their
    // words, live, and park a byte each.
    #[test]
    fn words_of_a_cpu_are_in_one_place() {
        ::loom::model(|| {
            let slot = Arc::new(Slot::new(GroupId(0), Gates::new(Regime::Atomic, 2)));
            let park = |slot: &Slot, index| {
                let words = slot.words(index);
                slot.touch_own(index);
                slot.ready(index);
                let _is_first = words.own.update(Word::enlisted).is_ok();
                let parked = words.own.update(|word| word.parked_whole(1));
                assert!(parked.is_ok(), "there is room");
                std::ptr::from_ref(words).addr()
            };
            let others = [0, 1].map(|index| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || park(&slot, index))
            });
            let mine = park(&slot, 0);
            let [same, other] = others.map(|other| other.join().expect("the model's thread ends"));
            assert_eq!(mine, same);
            assert_ne!(mine, other);
            let mut tokens = 0;
            let seen = slot.each_touched(|words| tokens += words.own.load().tokens());
            assert_eq!((seen, tokens, slot.all_words().count()), (2, 3, 2));
        });
    }
}
