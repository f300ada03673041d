//! Shadows: what remains of an evicted page, until it comes back or is forgotten.
//!
//! Each group has a clock that ticks with every eviction for want of memory in it and every activation on its
//! lists, here and below. A shadow keeps the reading of the clock of the group for whose want the page
//! was evicted. When the page is read again, the ticks since are its *refault distance*: that many other
//! pages went through the inactive lists meanwhile, so the page would have stayed if those had been
//! longer by the distance. If what is kept beside them (active pages, and those of the other type where they could go) is
//! at least as much, the page competes with that on equal terms, and is taken in as active. If it had been active
//! before, that is no change of working set but thrashing, which counts as a cost of reclaiming pages of its type.
//!
//! Shadows are bounded: [`PER_FRAME`] of them for each frame of the pool, in rings that forget the
//! oldest; about 28 bytes each, allocated once.
//!
//! Source: the workingset detection of Linux (frames-and-reclaim specification, section 11).
//! Deviation: a ring of fixed size instead of entries in the page index; whole clocks instead of
//! truncated ones.

use crossbeam_utils::CachePadded;

use crate::cache::PageKey;
use crate::sync::{LockClass, Mutex, Rank};
use crate::units::{GroupId, Pages};

/// Class of the locks of shadow rings.
pub(super) static SHADOW_LOCK: LockClass = LockClass::new("shadows", Rank::Shadows);

/// Chosen: a loop over a file of up to three times the pool is recognised.
const PER_FRAME: u64 = 2;
const SHARDS_MAX: u64 = 64;
/// End of a chain, empty bucket, empty entry.
const NIL: u32 = u32::MAX;

/// What is remembered of an evicted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shadow {
    /// The group for whose want of memory it was evicted.
    pub(super) group: GroupId,
    /// That group's clock before the eviction.
    pub(super) age: u64,
    /// Whether the page had been active.
    pub(super) was_workingset: bool,
}

/// How a page that was evicted before came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refault {
    /// Soon enough that it belongs to the working set, which it did not before.
    WithinWorkingset,
    /// Soon enough, and it had been part of the working set: there is too little memory for that.
    Restored,
    /// Too late: no list of this size would have kept it.
    Beyond,
}

/// A group's clock and how many pages a page of some type competes with.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkingsetClock {
    pub(super) now: u64,
    pub(super) workingset: u64,
}

impl WorkingsetClock {
    pub(super) fn judge(self, shadow: Shadow) -> Refault {
        let refault_distance = self.now.saturating_sub(shadow.age);
        match refault_distance <= self.workingset {
            true if shadow.was_workingset => Refault::Restored,
            true => Refault::WithinWorkingset,
            false => Refault::Beyond,
        }
    }
}

/// The shadows of one pool.
#[derive(Debug)]
pub(super) struct Shadows {
    shards: Box<[CachePadded<Mutex<Ring>>]>,
}

/// Entries in order of eviction, found by hash.
#[derive(Debug)]
struct Ring {
    buckets: Box<[u32]>,
    entries: Box<[Entry]>,
    /// The entry that is overwritten next: the oldest.
    oldest: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The page's name, 0 when the entry is empty.
    key: u64,
    age: u64,
    /// The group's number, and [`WORKINGSET`].
    group: u32,
    next: u32,
}

/// Bit of an entry's group that says that the page had been active. There are fewer groups.
const WORKINGSET: u32 = 1 << 31;

impl Shadows {
    pub(super) fn new(frames: Pages) -> Self {
        let wanted = (frames.0 * PER_FRAME).max(8);
        let nr_shards = SHARDS_MAX.min(wanted.div_ceil(64).next_power_of_two());
        // An eighth more than a shard's share, for the luck of the hash.
        let share = wanted.div_ceil(nr_shards);
        let per_shard = usize::try_from(share + share / 8 + 8).expect("shadows fit memory");
        let ring = || CachePadded::new(Mutex::new(&SHADOW_LOCK, Ring::new(per_shard)));
        Self {
            shards: (0..nr_shards).map(|_| ring()).collect(),
        }
    }

    /// Remembers an evicted page, in the place of the oldest.
    pub(super) fn insert(&self, key: PageKey, shadow: Shadow) {
        let hash = hash(key);
        self.shard(hash).lock().insert(hash, key.get(), shadow);
    }

    /// What is remembered of a page that comes back; it is forgotten then.
    pub(super) fn take(&self, key: PageKey) -> Option<Shadow> {
        let hash = hash(key);
        self.shard(hash).lock().take(hash, key.get())
    }

    fn shard(&self, hash: u64) -> &Mutex<Ring> {
        &self.shards[upper(hash) & (self.shards.len() - 1)]
    }
}

fn hash(key: PageKey) -> u64 {
    let mixed = key.get().wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

fn upper(hash: u64) -> usize {
    (hash >> 48) as usize
}

impl Ring {
    fn new(capacity: usize) -> Self {
        assert!(capacity < NIL as usize, "entries are numbered by 32 bits");
        let empty = Entry {
            key: 0,
            age: 0,
            group: 0,
            next: NIL,
        };
        Self {
            buckets: vec![NIL; capacity.next_power_of_two()].into(),
            entries: vec![empty; capacity].into(),
            oldest: 0,
        }
    }

    fn insert(&mut self, hash: u64, key: u64, shadow: Shadow) {
        assert!(shadow.group.0 < WORKINGSET, "{} is too large", shadow.group);
        // The page may have left a shadow before and come back without being looked up.
        self.take(hash, key);
        let at = self.oldest;
        self.oldest = (at + 1) % self.entries.len();
        let forgotten = self.entries[at].key;
        if let Some(forgotten) = PageKey::from_word(forgotten) {
            self.unlink(self::hash(forgotten), at);
        }
        let bucket = self.bucket(hash);
        let next = self.buckets[bucket];
        self.entries[at] = Entry {
            key,
            age: shadow.age,
            group: shadow.group.0 | if shadow.was_workingset { WORKINGSET } else { 0 },
            next,
        };
        self.buckets[bucket] = u32::try_from(at).expect("checked by `new`");
    }

    fn take(&mut self, hash: u64, key: u64) -> Option<Shadow> {
        let mut at = self.buckets[self.bucket(hash)];
        while at != NIL {
            let entry = self.entries[at as usize];
            if entry.key == key {
                self.unlink(hash, at as usize);
                return Some(Shadow {
                    group: GroupId(entry.group & !WORKINGSET),
                    age: entry.age,
                    was_workingset: entry.group & WORKINGSET != 0,
                });
            }
            at = entry.next;
        }
        None
    }

    /// Takes an entry off its chain and empties it.
    fn unlink(&mut self, hash: u64, entry: usize) {
        let next = self.entries[entry].next;
        let bucket = self.bucket(hash);
        let mut at = self.buckets[bucket];
        if at as usize == entry {
            self.buckets[bucket] = next;
        } else {
            while self.entries[at as usize].next as usize != entry {
                at = self.entries[at as usize].next;
            }
            self.entries[at as usize].next = next;
        }
        self.entries[entry].key = 0;
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "some bits of a hash are wanted"
    )]
    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}
