//! The order of accesses, and what an LRU list of the same length would have: for policies that
//! [bound](super::policy::EvictionPolicy::is_bounded) their misses by those of LRU.
//!
//! A mark tells that a page was accessed, but not when. So policies that go by marks alone take the
//! pages of a former working set for pages in use, and can miss far more often than LRU. Here a
//! *walk* goes through the pages of a type that a group pays for, from the one with the oldest
//! known access on, and collects their marks: [`LOOKS`] for each page that comes in, so that a walk
//! takes a sixteenth of the time in which as many pages come in as there are. The cache records
//! when an access was marked, by the group's access clock (`cache::times`): while nothing is
//! evicted, no walk collects marks, and only these times tell in which order a set was read. A page
//! whose mark is found goes to its place in the *order*, a second list of all these pages. That
//! tells two things.
//!
//! - **An order.** The page at the tail is LRU's victim.
//! - **An account.** Time is divided into *epochs*: by arrivals, and by marked accesses where
//!   these are many. Pages are counted by the epoch of their last known access, those that were
//!   evicted as well, so the latest epochs that fill the memory have LRU's pages ([`Epochs`]). A
//!   refault of such a page is a miss more than LRU's; an access to a page after more than fill the
//!   memory were accessed is a miss less. The sum is the *debt*. A page that LRU has and the cache
//!   has not is *absent*: it becomes a debt if it is accessed before LRU evicts it too.
//!
//! Each scan evicts the learnt lists' victims while debt and absent pages are within a *credit*,
//! and otherwise LRU's, which never adds to either. Two ideas make the credit small where it would
//! be wasted and large where it pays ([`MissAccount::affords`]):
//!
//! - It grows with LRU's misses of pages that were known before, by a hundredth of them, and at
//!   first by a half, up to a twelfth of the capacity. Where LRU misses nothing but new pages, no
//!   order of eviction can gain anything, and LRU is followed. Those are the loads on which learnt
//!   lists are worst: a working set that is replaced. So the first scan over much new data evicts a
//!   working set as under LRU; its return is what earns the credit that later scans use.
//! - An absent page costs 0.15 of a miss, because most are never accessed in time: they are the
//!   pages that were read once.
//!
//! A refault is judged by an LRU of as many pages as the cache. By one of 1 % more pages, LRU's own
//! victims become debts where misses fall steeply with the size, faster than the credit grows: LRU
//! is then followed for good (P6, 12 % of the footprint: 47.3 % misses instead of 31.6 %).
//!
//! At most three accesses to a page are marked between two looks at it. Where a set is read more
//! often than that without a miss, the order of the last reads is not known.
//!
//! Figures at constants (*Chosen*) were measured with a model of this, most of them before accesses
//! had times. They compare a constant with others; what the library does is checked by the lab's
//! `tests/lru_bound.rs`.
//!
//! **Invariant.** A page is in the order of the lists that it was added to, from then until it
//! leaves its frame or those lists, isolated or not. A frame's place in the order is used only
//! under the lock of these lists, or before it is added to any; a walk may load others, and makes
//! nothing of them.
//!
//! Source: the potential of competitive analysis, as an account at run time; walks that collect
//! marks, from MGLRU.

mod account;
#[cfg(all(test, not(loom)))]
mod tests;

use self::account::{Epochs, KEPT, KEPT_EPOCHS, MissAccount, ONE, index};
use crate::memmap::zeroed;
use crate::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use crate::units::{Pages, Pfn};

const NIL: u32 = u32::MAX;

/// Epochs in which as many pages come in as there are. Chosen: with 32, a set that is replaced in
/// order has up to 4.0 % more misses than LRU (1.2 %).
const EPOCHS: u64 = 64;
/// Epochs into which as many marked accesses are divided as there are pages, and at most as many
/// begin at once. Chosen: with 32, a loop that goes forward and back through 1.1 times a cache of
/// 2,048 pages has 10 % more misses than LRU (3.3 %).
const TOUCH_EPOCHS: u64 = 64;
/// A page of the cache whose known access is older than this many epochs is taken to be as old.
/// A walk takes at most 4 + 3 * 64 epochs, so the next finds it before its epoch is forgotten.
const AGE_MAX: u16 = KEPT_EPOCHS - 12;

/// Looks for each page that comes in. Chosen: with eight, new pages that are reused after a long
/// pause have up to 4.8 % more misses than LRU (1.2 %).
pub const LOOKS: u64 = 16;

/// Steps from the page that was placed last to the place of the next in the same epoch. Chosen:
/// with none, that loop has 7 % more misses than LRU.
const STEPS: usize = 32;

/// Pages that a walk looks ahead. Chosen: loads that a core has outstanding. With none, accesses
/// to a pool of 1 GiB, half of which miss, take 1.2 times as long.
const AHEAD: usize = 8;

/// A frame's place in the order: its neighbours, valid while it is there; the frame that the last
/// walk came to [`AHEAD`] pages later, wherever that is now; its word; and the lower bits of the
/// time of its last known access.
/// Written by and read under: the lruvec lock of the page's group; loaded ahead of a walk without
/// it. Publishes: nothing.
type OrderPlace = ((AtomicU32, AtomicU32), (AtomicU32, (AtomicU16, AtomicU16)));

/// In the order, with the page's stamp in the lower bits. A word of 0 says that a page is not in
/// it, and was not known before.
const IN_ORDER: u16 = 1 << STAMP_BITS;
/// Not in the order, but known: with the stamp of the last access, or from so long ago that LRU
/// has not the page.
const KNOWN: u16 = 2 << STAMP_BITS;
const KNOWN_OLD: u16 = 3 << STAMP_BITS;
const STAMP_MASK: u16 = (1 << STAMP_BITS) - 1;
const KIND_MASK: u16 = !STAMP_MASK;

/// Bits of a stamp: the number of an epoch returns after 2,048, which is when 32 times as many
/// pages have come in as there are, or sooner where more epochs begin by accesses.
pub(super) const STAMP_BITS: u32 = 11;

/// The epoch of a page's last known access, modulo 2^11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(pub u16);

impl Stamp {
    /// Returns the epochs from `earlier` to this one.
    const fn since(self, earlier: Self) -> u16 {
        self.0.wrapping_sub(earlier.0) & STAMP_MASK
    }

    /// Returns the stamp of the next epoch.
    const fn next(self) -> Self {
        Self((self.0 + 1) & STAMP_MASK)
    }

    /// Returns the stamp of so many epochs earlier.
    const fn before(self, epochs: u16) -> Self {
        Self(self.0.wrapping_sub(epochs) & STAMP_MASK)
    }
}

/// The places of all frames.
#[derive(Debug)]
pub struct Places(Box<[OrderPlace]>);

// Relaxed throughout: places are used only under their lists' lock.
impl Places {
    /// Creates places for frames that are in no order.
    ///
    /// # Panics
    ///
    /// If they do not fit into an address space.
    #[must_use]
    pub fn new(frames: Pages) -> Self {
        let nr_frames = usize::try_from(frames.0).expect("frames fit memory");
        Self(zeroed(nr_frames))
    }

    fn newer(&self, frame: u32) -> u32 {
        self.0[frame as usize].0.0.load(Ordering::Relaxed)
    }

    fn older(&self, frame: u32) -> u32 {
        self.0[frame as usize].0.1.load(Ordering::Relaxed)
    }

    fn set_newer(&self, frame: u32, newer: u32) {
        debug_assert_ne!(newer, frame, "F{frame} is its own neighbour");
        self.0[frame as usize].0.0.store(newer, Ordering::Relaxed);
    }

    /// Loads the place that a walk will probably come to: it goes along a list, and would wait for
    /// the memory of one place after the other. The frame may be in another order by now, under
    /// another lock; so nothing is made of what was loaded.
    fn load_ahead(&self, frame: u32) {
        let ahead = self.0[frame as usize].1.0.load(Ordering::Relaxed);
        std::hint::black_box(self.newer(ahead));
    }

    fn set_ahead(&self, frame: u32, ahead: u32) {
        self.0[frame as usize].1.0.store(ahead, Ordering::Relaxed);
    }

    fn replace_older(&self, frame: u32, older: u32) -> u32 {
        debug_assert_ne!(older, frame, "F{frame} is its own neighbour");
        let word = &self.0[frame as usize].0.1;
        let was = word.load(Ordering::Relaxed);
        word.store(older, Ordering::Relaxed);
        was
    }

    fn word(&self, pfn: Pfn) -> u16 {
        self.0[pfn.index()].1.1.0.load(Ordering::Relaxed)
    }

    fn set_word(&self, pfn: Pfn, word: u16) {
        self.0[pfn.index()].1.1.0.store(word, Ordering::Relaxed);
    }

    /// Returns whether the last known access to a page was later than `time`, as far as the lower
    /// bits tell.
    fn is_later(&self, frame: u32, time: u32) -> bool {
        let own = self.0[frame as usize].1.1.1.load(Ordering::Relaxed);
        own.wrapping_sub(low(time)).cast_signed() > 0
    }

    fn set_time(&self, frame: u32, time: u32) {
        let own = &self.0[frame as usize].1.1.1;
        own.store(low(time), Ordering::Relaxed);
    }

    /// Returns whether a page is in an order.
    #[must_use]
    pub fn has(&self, pfn: Pfn) -> bool {
        self.word(pfn) & KIND_MASK == IN_ORDER
    }

    /// Returns the stamp of a page that is in an order.
    fn stamp(&self, pfn: Pfn) -> Stamp {
        debug_assert!(self.has(pfn), "{pfn} is in no order");
        Stamp(self.word(pfn) & STAMP_MASK)
    }

    /// Records the last known access to a page that is about to be added, and was evicted before;
    /// and how many pages have left its list since, of `capacity`.
    pub fn note_known(&self, pfn: Pfn, stamp: Stamp, distance: u64, capacity: u64) {
        debug_assert!(!self.has(pfn), "{pfn} is in an order");
        // By then its epoch is not counted any more, and its number may have returned.
        let word = match distance >= 2 * capacity {
            true => KNOWN_OLD,
            false => KNOWN | stamp.0,
        };
        self.set_word(pfn, word);
    }
}

/// Returns the lower half of a time.
fn low(time: u32) -> u16 {
    let [a, b, ..] = time.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// Whose victims are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictedBy {
    /// The policy's.
    Policy,
    /// LRU's: the pages with the oldest known accesses.
    Lru,
}

/// The order and the account of one group's pages of one type.
#[derive(Debug)]
pub struct Recency {
    head: u32,
    tail: u32,
    len: u64,
    /// The page that was placed last after an access.
    placed: u32,
    /// By the index of an epoch: its newest page, and the time at which it began.
    ends: [u32; KEPT],
    begun: [u32; KEPT],
    /// The page that the walk comes to next, the pages that it has not come to, and all its pages.
    next: u32,
    nr_left: u64,
    nr_pages: u64,
    /// Looks that are due.
    nr_due: u64,
    epochs: Epochs,
    /// The pages that come in until the present epoch ends.
    until_next: u64,
    account: MissAccount,
}

impl Default for Recency {
    fn default() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            len: 0,
            placed: NIL,
            ends: [NIL; KEPT],
            begun: [0; KEPT],
            next: NIL,
            nr_left: 0,
            nr_pages: 0,
            nr_due: 0,
            epochs: Epochs::default(),
            until_next: 0,
            account: MissAccount::default(),
        }
    }
}

impl Recency {
    fn capacity(&self) -> i64 {
        self.len.cast_signed()
    }

    /// Adds a page that has come in at `now`, at the head.
    ///
    /// # Panics
    ///
    /// If it is in an order already.
    pub fn enter(&mut self, places: &Places, pfn: Pfn, now: u32) {
        let word = places.word(pfn);
        assert_ne!(word & KIND_MASK, IN_ORDER, "{pfn} is in an order already");
        self.catch_up(now);
        if word & KIND_MASK == KNOWN {
            let stamp = Stamp(word & STAMP_MASK);
            self.account.refault(self.epochs.share(stamp));
            self.epochs.forget_absent(stamp);
        } else if word == KNOWN_OLD {
            self.account.refault(0);
        }
        if self.until_next == 0 {
            self.advance(now);
        }
        self.until_next -= 1;
        self.nr_due += LOOKS;
        let stamp = self.epochs.now();
        self.count(places, pfn, stamp);
        self.link(places, pfn, stamp, now);
        self.len += 1;
    }

    /// Begins the epochs of the accesses that were marked until `now`.
    fn catch_up(&mut self, now: u32) {
        let begun = self.begun[index(self.epochs.now())];
        let since = u64::from(now.wrapping_sub(begun));
        let count = (since / (self.len / TOUCH_EPOCHS).max(1)).min(TOUCH_EPOCHS);
        for nth in 1..=count {
            let part = u32::try_from(since * nth / count).expect("no more than all");
            self.advance(begun.wrapping_add(part));
        }
    }

    /// Begins an epoch, at a time.
    fn advance(&mut self, time: u32) {
        self.until_next = (self.len / EPOCHS).max(1);
        self.epochs.begin();
        let nth = index(self.epochs.now());
        (self.ends[nth], self.begun[nth]) = (NIL, time);
        self.set_bounds();
    }

    /// Returns the epoch of an access, of those that are counted long enough.
    fn epoch_of(&self, time: u32) -> Stamp {
        let now = self.epochs.now();
        let is_begun = |age: &u16| {
            let begun = self.begun[index(now.before(*age))];
            time.wrapping_sub(begun).cast_signed() >= 0
        };
        now.before((0..AGE_MAX).find(is_begun).unwrap_or(AGE_MAX))
    }

    /// Counts a page in the epoch of its stamp.
    fn count(&mut self, places: &Places, pfn: Pfn, stamp: Stamp) {
        debug_assert!(
            self.epochs.age(stamp) <= AGE_MAX,
            "{pfn} is counted too late"
        );
        places.set_word(pfn, IN_ORDER | stamp.0);
        self.epochs.enter(stamp);
    }

    /// Returns whether a page of that epoch is there.
    fn is_of(&self, places: &Places, frame: u32, stamp: Stamp) -> bool {
        frame != NIL && places.has(Pfn(frame)) && places.stamp(Pfn(frame)) == stamp
    }

    /// Returns the page that a page of an epoch and time is to be next newer to: near the page that
    /// was placed last, because a walk finds neighbours in the order or the reverse order in which
    /// they are to be; otherwise the newest of the epoch, or of those before.
    fn older_for(&self, places: &Places, stamp: Stamp, time: u32) -> u32 {
        let mut at = self.placed;
        if self.is_of(places, at, stamp) {
            let goes_down = places.is_later(at, time);
            for _ in 0..STEPS {
                let next = match goes_down {
                    true => places.older(at),
                    false => places.newer(at),
                };
                let is_passed =
                    self.is_of(places, next, stamp) && goes_down == places.is_later(next, time);
                match (goes_down, is_passed) {
                    (_, true) => at = next,
                    (true, false) => return next,
                    (false, false) => return at,
                }
            }
        }
        let now = self.epochs.now();
        let mut ages = self.epochs.age(stamp)..KEPT_EPOCHS;
        let end = ages.find_map(|age| {
            let end = self.ends[index(now.before(age))];
            (end != NIL).then_some(end)
        });
        end.unwrap_or(NIL)
    }

    /// Puts a page of an epoch and time in its place.
    fn link(&mut self, places: &Places, pfn: Pfn, stamp: Stamp, time: u32) {
        let older = self.older_for(places, stamp, time);
        debug_assert_ne!(older, pfn.0, "{pfn} is put before itself");
        let newer = match older {
            NIL => std::mem::replace(&mut self.tail, pfn.0),
            older => places.newer(older),
        };
        if !self.is_of(places, newer, stamp) {
            self.ends[index(stamp)] = pfn.0;
        }
        places.set_time(pfn.0, time);
        places.set_newer(pfn.0, newer);
        places.replace_older(pfn.0, older);
        match newer {
            NIL => self.head = pfn.0,
            newer => _ = places.replace_older(newer, pfn.0),
        }
        if older != NIL {
            places.set_newer(older, pfn.0);
        }
    }

    fn unlink(&mut self, places: &Places, pfn: Pfn) {
        let (newer, older) = (places.newer(pfn.0), places.older(pfn.0));
        debug_assert!(
            (newer == NIL) == (self.head == pfn.0) && (older == NIL) == (self.tail == pfn.0),
            "{pfn} and the ends of the order disagree"
        );
        match newer {
            NIL => self.head = older,
            newer => _ = places.replace_older(newer, older),
        }
        match older {
            NIL => self.tail = newer,
            older => places.set_newer(older, newer),
        }
        for passing in [&mut self.next, &mut self.placed] {
            if *passing == pfn.0 {
                *passing = newer;
            }
        }
        let stamp = places.stamp(pfn);
        if self.ends[index(stamp)] == pfn.0 {
            let is_left = self.is_of(places, older, stamp);
            self.ends[index(stamp)] = if is_left { older } else { NIL };
        }
    }

    /// Records an access that was found now, and was marked at `time`.
    pub fn touch(&mut self, places: &Places, pfn: Pfn, time: u32) {
        let capacity = self.capacity();
        debug_assert!(capacity > 0, "{pfn} was accessed in an empty order");
        let (known, stamp) = (places.stamp(pfn), self.epoch_of(time));
        let had = self.epochs.pages_between(known, stamp) < self.len;
        self.account.hit(if had { ONE } else { 0 }, capacity);
        self.renew(places, pfn, time);
    }

    /// Takes a page for one that was accessed at `time`, without a change of the account: one that
    /// is in use, or cannot be evicted now.
    pub fn renew(&mut self, places: &Places, pfn: Pfn, time: u32) {
        debug_assert!(self.len > 0, "{pfn} is renewed in an empty order");
        let (known, stamp) = (places.stamp(pfn), self.epoch_of(time));
        if self.epochs.age(known) <= self.epochs.age(stamp) {
            return;
        }
        self.unlink(places, pfn);
        self.epochs.forget(known);
        self.count(places, pfn, stamp);
        self.link(places, pfn, stamp, time);
        self.placed = pfn.0;
    }

    /// Removes a page that is being evicted, and counts it as absent; returns its stamp.
    pub fn leave(&mut self, places: &Places, pfn: Pfn) -> Stamp {
        debug_assert!(self.len > 0, "{pfn} leaves an empty order");
        let stamp = places.stamp(pfn);
        self.epochs.evict(stamp);
        self.remove(places, pfn);
        stamp
    }

    /// Removes a page that leaves these lists without a trace.
    pub fn forget(&mut self, places: &Places, pfn: Pfn) {
        self.epochs.forget(places.stamp(pfn));
        self.remove(places, pfn);
    }

    /// Removes every page.
    pub fn forget_all(&mut self, places: &Places) {
        while self.tail != NIL {
            self.forget(places, Pfn(self.tail));
        }
        debug_assert!(
            self.len == 0 && [self.head, self.placed, self.next] == [NIL; 3],
            "an empty order has a page left"
        );
    }

    fn remove(&mut self, places: &Places, pfn: Pfn) {
        self.unlink(places, pfn);
        places.set_word(pfn, 0);
        self.len -= 1;
        debug_assert_eq!(
            self.len == 0,
            self.tail == NIL,
            "the length of the order and its tail disagree"
        );
    }

    /// Returns the pages, that with the oldest known access first.
    pub fn oldest_first<'a>(&self, places: &'a Places) -> impl Iterator<Item = Pfn> + use<'a> {
        let newer = |frame: &u32| Some(places.newer(*frame)).filter(|newer| *newer != NIL);
        std::iter::successors(Some(self.tail).filter(|tail| *tail != NIL), newer).map(Pfn)
    }

    /// Returns whether reclaimers do not take the looks that are due, because nothing is evicted:
    /// the threads that add pages take them then.
    ///
    /// Chosen: without, the walk that begins with the first eviction takes old accesses for late
    /// ones, and one of the recorded traces has 2.7 % more misses than LRU.
    #[must_use]
    pub const fn is_overdue(&self) -> bool {
        self.nr_due > self.len / 4
    }

    /// Takes up to `most` of the looks that are due at `now`: adds the pages that the walk comes
    /// to. Their accesses are recorded before the next call; so a call takes a sixteenth of a walk
    /// at most.
    pub fn walk(&mut self, places: &Places, now: u32, most: u64, pages: &mut Vec<Pfn>) {
        self.catch_up(now);
        self.nr_due = self.nr_due.min(self.len);
        let count = self.nr_due.min(most).min(self.len / 16 + 1);
        self.nr_due -= count;
        for _ in 0..count {
            if self.nr_left == 0 || self.next == NIL {
                (self.next, self.nr_left, self.nr_pages) = (self.tail, self.len, self.len);
            }
            let pfn = Pfn(self.next);
            places.load_ahead(pfn.0);
            if let Some(earlier) = pages.len().checked_sub(AHEAD) {
                places.set_ahead(pages[earlier].0, pfn.0);
            }
            self.next = places.newer(pfn.0);
            self.nr_left -= 1;
            self.keep_counted(places, pfn);
            pages.push(pfn);
        }
        debug_assert!(
            self.nr_left <= self.nr_pages,
            "more pages are left of a walk than it has"
        );
    }

    /// Makes a page whose epoch is about to be forgotten a little younger.
    fn keep_counted(&mut self, places: &Places, pfn: Pfn) {
        let stamp = places.stamp(pfn);
        if self.epochs.age(stamp) > AGE_MAX {
            self.epochs.forget(stamp);
            let oldest = self.epochs.now().before(AGE_MAX);
            self.count(places, pfn, oldest);
            let [was, is] = [stamp, oldest].map(index);
            if self.ends[was] == pfn.0 {
                self.ends[was] = NIL;
            }
            if self.ends[is] == NIL {
                self.ends[is] = pfn.0;
            }
        }
        debug_assert!(
            self.epochs.age(places.stamp(pfn)) <= AGE_MAX,
            "the epoch of {pfn} is forgotten before the next walk"
        );
    }

    /// Checks the links and the account; returns the number of pages.
    pub(super) fn check(&self, places: &Places) -> u64 {
        let mut older = NIL;
        for pfn in self.oldest_first(places) {
            assert!(places.has(pfn), "{pfn} is in no order");
            assert_eq!(places.older(pfn.0), older, "{pfn}");
            older = pfn.0;
        }
        assert_eq!(self.head, older);
        self.epochs.check();
        self.len
    }

    /// Returns whose victims are to be evicted.
    pub fn victims(&mut self) -> EvictedBy {
        self.set_bounds();
        let absent = self.epochs.absent();
        debug_assert!(absent >= 0, "absent pages are a credit");
        match self.account.affords(absent, self.capacity()) {
            true => EvictedBy::Policy,
            false => EvictedBy::Lru,
        }
    }

    /// Finds where LRU's pages end.
    fn set_bounds(&mut self) {
        self.epochs.set_bound(self.len);
    }
}
