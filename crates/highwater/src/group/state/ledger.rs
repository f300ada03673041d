//! The ledger of one group (`page_counter`): the bytes reserved in its subtree, and its maximum.
//!
//! Invariant: a reservation is made by a compare-and-swap that succeeds only while
//! `reserved + bytes <= max`, **with the maximum of that very moment**: never above it, not even
//! for the time of one instruction. Only [`Ledger::force`] goes above. Reservations above the
//! maximum, by force or because the maximum was lowered, are the group's *debt*, which is not
//! stored and so cannot drift.
//!
//! That needs the maximum and the reservations in one atomic step, and they do not fit one word.
//! The word therefore holds the reservations (48 bits of bytes: 256 TiB, twice what four levels of
//! page tables map for a program), one bit that says whether charges wait for room (`waiters.rs`),
//! and the *version* of the maximum (15 bits); the low bit of the version selects which of two
//! slots holds it. While a charge waits, [`Ledger::reserve`] has no room for others, and
//! [`Ledger::release`] returns that a waiter has to be woken. Changing the maximum writes the slot
//! not in use and then steps the version, so that every compare-and-swap prepared with the old
//! maximum fails. A slot is written again only two versions later, so a value read between two
//! equal versions is the maximum of that version. (2^15 changes between the load and the swap of
//! one thread could defeat this; each is a call under the tree's lock, or the
//! creation of a group.)

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::Bytes;

const RESERVED_BITS: u32 = 48;
/// Maximum bytes that a ledger can hold, whatever its maximum says.
pub(in crate::group) const RESERVED_MAX: u64 = (1 << RESERVED_BITS) - 1;
const WAITERS: u64 = 1 << RESERVED_BITS;
const VERSION_SHIFT: u32 = RESERVED_BITS + 1;
const ONE_VERSION: u64 = 1 << VERSION_SHIFT;

/// The state of a ledger at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) struct Balance {
    pub(in crate::group) reserved: u64,
    pub(in crate::group) max: Bytes,
    /// Whether a charge waits for room.
    pub(in crate::group) has_waiters: bool,
}

impl Balance {
    fn new(word: u64, max: Bytes) -> Self {
        Self {
            reserved: reserved(word),
            max,
            has_waiters: word & WAITERS != 0,
        }
    }

    /// Returns the bytes that a charge which does not wait may reserve.
    pub(in crate::group) fn room(self) -> u64 {
        if self.has_waiters {
            return 0;
        }
        self.room_in_turn()
    }

    /// Returns the bytes that a waiting charge may reserve when its turn comes.
    pub(in crate::group) fn room_in_turn(self) -> u64 {
        self.max.0.min(RESERVED_MAX).saturating_sub(self.reserved)
    }

    /// Returns the part of that room left after the waiters before it have taken `ahead`.
    pub(in crate::group) fn room_behind(self, ahead: u64) -> u64 {
        self.room_in_turn().saturating_sub(ahead)
    }

    /// Returns the most that can ever be reserved under the current maximum.
    pub(in crate::group) fn ceiling(self) -> Bytes {
        self.max.min(Bytes(RESERVED_MAX))
    }

    /// Returns whether no word below may hold tokens: the group is in debt, or a charge waits.
    pub(in crate::group) fn is_closed(self) -> bool {
        self.has_waiters || self.debt() > 0
    }

    /// Returns the bytes reserved above the maximum.
    pub(in crate::group) fn debt(self) -> u64 {
        self.reserved.saturating_sub(self.max.0)
    }
}

#[derive(Debug)]
pub(in crate::group) struct Ledger {
    /// Written by: charges, uncharges, stealing (reservations), waiters (their mark), `set_max`
    /// (version). Read by: all of these, and readers of usage. Publishes: the slot of `max` that
    /// its version selects.
    word: AtomicU64,
    /// Written by: `set_max`, the slot not in use, one writer at a time: under the tree's lock, or
    /// with the group's slot claimed. Read by: any thread that has read the version.
    max: [AtomicU64; 2],
    /// Highest `reserved` that a successful charge has seen. Written by: charges before they
    /// succeed. Read by: readers of the peak. Publishes: that the words which have a part of it are
    /// counted.
    peak: AtomicU64,
}

impl Ledger {
    pub(in crate::group) fn new() -> Self {
        let unlimited = || AtomicU64::new(Bytes::MAX.0);
        Self {
            word: AtomicU64::new(0),
            max: [unlimited(), unlimited()],
            peak: AtomicU64::new(0),
        }
    }

    /// Returns the reservations and the maximum at one moment: that of the last load.
    ///
    /// Progress: repeats only after the maximum was changed in between.
    pub(in crate::group) fn balance(&self) -> Balance {
        let mut word = self.load();
        loop {
            let max = self.max_of(word);
            let again = self.load();
            if version(again) == version(word) {
                return Balance::new(again, max);
            }
            word = again;
        }
    }

    /// Reserves `bytes` if that stays within the maximum; returns the reservations after.
    ///
    /// Progress: a compare-and-swap fails only because another one succeeded, or spuriously.
    pub(in crate::group) fn reserve(&self, bytes: u64) -> Option<u64> {
        self.reserve_if(bytes, Balance::room)
    }

    /// Like [`Ledger::reserve`], but ignores waiters: for the charge whose turn it is.
    pub(in crate::group) fn reserve_in_turn(&self, bytes: u64) -> Option<u64> {
        self.reserve_if(bytes, Balance::room_in_turn)
    }

    /// Like [`Ledger::reserve_in_turn`], leaving `ahead` to the waiters before it.
    pub(in crate::group) fn reserve_behind(&self, bytes: u64, ahead: u64) -> Option<u64> {
        self.reserve_if(bytes, |balance| balance.room_behind(ahead))
    }

    fn reserve_if(&self, bytes: u64, room: impl Fn(Balance) -> u64) -> Option<u64> {
        let mut word = self.load();
        loop {
            let balance = Balance::new(word, self.max_of(word));
            if bytes > room(balance) {
                return None;
            }
            match self.swap(word, word + bytes) {
                Ok(()) => return Some(balance.reserved + bytes),
                Err(seen) => word = seen,
            }
        }
    }

    /// Reserves `bytes` regardless of the maximum if the group is [closed](Balance::is_closed);
    /// returns the reservations after.
    ///
    /// Progress: as [`Ledger::force`].
    pub(in crate::group) fn force_closed(&self, bytes: u64) -> Option<u64> {
        self.reserve_if(bytes, |balance| match balance.is_closed() {
            true => RESERVED_MAX - balance.reserved,
            false => 0,
        })
    }

    /// Reserves `bytes` regardless of the maximum; returns the balance after. `None` when that
    /// exceeds what any ledger can hold.
    ///
    /// Progress: a compare-and-swap fails only because another one succeeded, or spuriously.
    pub(in crate::group) fn force(&self, bytes: u64) -> Option<Balance> {
        let mut word = self.load();
        loop {
            let reserved = reserved(word).checked_add(bytes)?;
            if reserved > RESERVED_MAX {
                return None;
            }
            let max = self.max_of(word);
            match self.swap(word, word + bytes) {
                Ok(()) => return Some(Balance::new(word + bytes, max)),
                Err(seen) => word = seen,
            }
        }
    }

    /// Gives `bytes` of the reservations back; returns whether a charge waits for room.
    ///
    /// # Panics
    ///
    /// When fewer are reserved, and releases nothing: bytes were uncharged that were never charged.
    #[must_use = "if true, the waiters must be woken"]
    pub(in crate::group) fn release(&self, bytes: u64) -> bool {
        // Pairs with `load` and `swap`. SeqCst: returned tokens leave "in flight" only afterwards,
        // and a refusal that reads the two in that order must see one of them.
        let old = self.word.fetch_sub(bytes, Ordering::SeqCst);
        if reserved(old) < bytes {
            self.refuse_release(bytes, reserved(old));
        }
        old & WAITERS != 0
    }

    #[cold]
    #[inline(never)]
    fn refuse_release(&self, bytes: u64, reserved: u64) -> ! {
        // Pairs with `load` and `swap`; SeqCst as in `release`. Undoes its borrow from the mark and
        // the version; a charge between the two finds no room.
        self.word.fetch_add(bytes, Ordering::SeqCst);
        panic!("{bytes} bytes uncharged where {reserved} were charged");
    }

    /// Marks that a charge waits for room. The caller holds the lock of the wait queues.
    pub(in crate::group) fn mark_waiters(&self) {
        // Pairs with `load`, `swap` and `release`. SeqCst for uniformity: only the order of the
        // steps of this word counts.
        self.word.fetch_or(WAITERS, Ordering::SeqCst);
    }

    /// Clears the mark of waiters. The caller holds the lock of the wait queues.
    pub(in crate::group) fn clear_waiters(&self) {
        // Pairs with `load`, `swap` and `release`; SeqCst as above.
        self.word.fetch_and(!WAITERS, Ordering::SeqCst);
    }

    /// Installs `max` if at most that is reserved; otherwise returns the reservations. The caller
    /// holds the tree's lock for writing, or has claimed the group's slot.
    pub(in crate::group) fn set_max(&self, max: Bytes) -> Result<(), u64> {
        self.install(max, |reserved| reserved <= max.0)
    }

    /// Installs `max` regardless of the reservations. The caller holds the tree's lock for writing.
    pub(in crate::group) fn force_max(&self, max: Bytes) {
        let forced = self.install(max, |_| true);
        debug_assert!(forced.is_ok(), "nothing refuses a forced maximum");
    }

    fn install(&self, max: Bytes, allows: impl Fn(u64) -> bool) -> Result<(), u64> {
        let mut word = self.load();
        // Pairs with the load in `max_of`. SeqCst: as for the word, which publishes it; release
        // would do for this store alone.
        self.slot(version(word) + 1).store(max.0, Ordering::SeqCst);
        loop {
            if !allows(reserved(word)) {
                return Err(reserved(word));
            }
            match self.swap(word, word.wrapping_add(ONE_VERSION)) {
                Ok(()) => return Ok(()),
                Err(seen) => word = seen,
            }
        }
    }

    /// Returns the highest reservation that a successful charge has seen.
    pub(in crate::group) fn peak(&self) -> u64 {
        // Acquire. Pairs with: the release of `raise_peak`: the words that held a part of it are
        // counted.
        self.peak.load(Ordering::Acquire)
    }

    pub(in crate::group) fn raise_peak(&self, reserved: u64) {
        if self.peak() < reserved {
            // Release. Pairs with: the acquire of `peak`.
            self.peak.fetch_max(reserved, Ordering::Release);
        }
    }

    /// Sets the peak to what is reserved: for a group that begins, which uses nothing, so that all
    /// of it is in words that are live.
    pub(in crate::group) fn renew_peak(&self) {
        let reserved = self.balance().reserved;
        // Relaxed: published with the group.
        self.peak.store(reserved, Ordering::Relaxed);
    }

    fn load(&self) -> u64 {
        // Pairs with `swap` and `release`. SeqCst: the moment at which a refusal finds no room has
        // a place in the one order of all token words (`cell.rs`); acquire alone has no such place.
        self.word.load(Ordering::SeqCst)
    }

    fn swap(&self, old: u64, new: u64) -> Result<(), u64> {
        self.word
            .compare_exchange_weak(
                old,
                new,
                // Pairs with `load`; SeqCst as there.
                Ordering::SeqCst,
                // Pairs with `swap` of another thread; as above.
                Ordering::SeqCst,
            )
            .map(drop)
    }

    fn max_of(&self, word: u64) -> Bytes {
        // Pairs with the store in `install`; SeqCst as there.
        Bytes(self.slot(version(word)).load(Ordering::SeqCst))
    }

    fn slot(&self, version: u64) -> &AtomicU64 {
        &self.max[usize::from(version & 1 != 0)]
    }
}

const fn reserved(word: u64) -> u64 {
    word & RESERVED_MAX
}

const fn version(word: u64) -> u64 {
    word >> VERSION_SHIFT
}
