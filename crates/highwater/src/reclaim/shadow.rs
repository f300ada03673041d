//! Shadow entries: compact records of evicted pages, for refault detection (workingset).
//!
//! Each group has a clock (nonresident age) that ticks with every eviction for a shortage in it and
//! every activation on its lists, here and below. A shadow holds the clock reading of the group for
//! whose shortage the page was evicted. When the page is read again, the ticks since are its
//! *refault distance*: that many other pages went through the inactive lists meanwhile, so the page
//! would have stayed if those had been longer by the distance. If at least as many pages are kept
//! beside them (active pages, and those of the other type if they are evictable), the page competes
//! with those on equal terms, and is added as active. If it had been active before, that is not a
//! change of working set but thrashing, which counts as a cost of reclaiming pages of its type.
//!
//! **Bounds.** [`SET_LEN`] shadows for each frame of the pool, of 8 bytes, allocated once: a cache
//! line a frame, 1.6 % of the pool. A page's key selects a line, its *set*; an insertion replaces
//! the oldest shadow of a set. So a page is remembered until eight other pages of its set have been
//! evicted that are still absent: for 8 pools of such evictions on average. Of pages that refault
//! after as many evictions as there are frames, 1 of 100,000 was forgotten; after twice as many, 1
//! of 900; after four times as many, 1 of 20 (Poisson: 8 or more where that many are expected).
//!
//! | bits | contents | loss |
//! |---|---|---|
//! | [`NAME_BITS`] 23 | of the page's key, beyond the bits that select the set | a page that was never evicted, or is forgotten, is taken for another one of its set with a probability of at most 8 in 2^23, one in a million |
//! | 1 | whether it had been active | - |
//! | [`AGE_BITS`] 20 | the clock, in units of at most 1/2^13 of the pool, or of one tick below 16,384 frames | a distance is wrong by less than a unit; one of 64 pools at least, or of 2^20 ticks, looks like none |
//! | 20 | the owner: the group's number, if its clock is to be found by it; otherwise the serial number of its lists, modulo [`OWNERS_MAX`] | groups from number [`OWNERS_MAX`] on are not recognized: their refaults count as too distant |
//! | or: 1, 8, 11 | set; of that serial number; the [stamp](super::recency::Stamp) of the last known access, under a policy that is bounded by LRU | a page that another group paid for is taken for one of this with a probability of 1 in 256 |
//!
//! Source: the workingset detection of Linux (frames-and-reclaim specification, section 11).
//! Deviation: sets of fixed size instead of entries in the page index, which are exact and live as
//! long as the file.

use super::recency::{STAMP_BITS, Stamp};
use crate::cache::PageKey;
use crate::sync::{CachePadded, LockClass, Mutex, Rank};
use crate::units::Pages;

/// Class of the locks of shards of shadows.
pub(super) static SHADOW_LOCK: LockClass = LockClass::new("shadows", Rank::Shadows);

/// Shadows of a set: one cache line. There are as many sets as frames. Chosen: the kernel's bound,
/// 1.8 % of memory; two streams through files of twice the pool each are remembered.
const SET_LEN: usize = 8;
const LINE: usize = 64;
const SHARDS_MAX: u64 = 64;

const NAME_BITS: u32 = 23;
const AGE_BITS: u32 = 20;
const ACTIVE_SHIFT: u32 = NAME_BITS;
const AGE_SHIFT: u32 = ACTIVE_SHIFT + 1;
const OWNER_SHIFT: u32 = AGE_SHIFT + AGE_BITS;
const NAME_MASK: u64 = (1 << NAME_BITS) - 1;
const AGE_MASK: u64 = (1 << AGE_BITS) - 1;
/// Shadows record only smaller owners, stored plus one so that no shadow is 0.
pub(super) const OWNERS_MAX: u32 = (1 << (64 - OWNER_SHIFT)) - 2;
/// With a stamp: bits of the owner.
const TAG_BITS: u32 = 64 - OWNER_SHIFT - 1 - STAMP_BITS;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const STAMP_MASK: u64 = (1 << STAMP_BITS) - 1;

const _: () = assert!(SET_LEN * size_of::<u64>() == LINE, "a set is a line");

/// The unit, in ticks, of a recorded clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AgeUnit {
    shift: u32,
}

impl AgeUnit {
    pub(super) fn of(frames: Pages) -> Self {
        let pool_bits = frames.0.max(1).ilog2();
        Self {
            shift: (pool_bits + 7).saturating_sub(AGE_BITS),
        }
    }

    /// Returns a number of ticks above every distance that counts, two pools at least. So are up to
    /// 30 of it: ages return after 32.
    pub(super) const fn gap(self) -> u64 {
        1 << (AGE_BITS - 5 + self.shift)
    }
}

/// A recorded clock reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Age {
    units: u64,
    unit: AgeUnit,
}

impl Age {
    pub(super) const fn of(clock: u64, unit: AgeUnit) -> Self {
        Self {
            units: (clock >> unit.shift) & AGE_MASK,
            unit,
        }
    }

    /// Returns the ticks between the recorded reading and `now`.
    pub(super) const fn distance(self, now: u64) -> u64 {
        let now = Self::of(now, self.unit);
        (now.units.wrapping_sub(self.units) & AGE_MASK) << self.unit.shift
    }
}

/// The record of an evicted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shadow {
    /// The group for whose shortage it was evicted; or the lists that it was on, by their serial
    /// number: a group's number is used again.
    pub(super) owner: u32,
    /// The last known access, under a policy that is bounded by LRU.
    pub(super) stamp: Option<Stamp>,
    /// The owner's clock before the eviction.
    pub(super) age: u64,
    /// Whether the page had been active.
    pub(super) was_active: bool,
}

/// The record of a page that refaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recalled {
    /// The owner and the stamp, as the word has them.
    origin: u64,
    pub(super) age: Age,
    pub(super) was_active: bool,
}

impl Recalled {
    /// Returns the owner of a shadow without a stamp, if its number was small enough.
    pub(super) fn owner(self) -> Option<u32> {
        let owner = u32::try_from(self.origin - 1).expect("20 bits");
        (owner < OWNERS_MAX).then_some(owner)
    }

    /// Returns the stamp of a shadow that has one, if it is of an owner.
    pub(super) fn stamp_of(self, owner: u32) -> Option<Stamp> {
        let is_its = (self.origin >> STAMP_BITS) & TAG_MASK == u64::from(owner) & TAG_MASK;
        let stamp = u16::try_from(self.origin & STAMP_MASK).expect("11 bits");
        is_its.then_some(Stamp(stamp))
    }
}

/// Kind of a refault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refault {
    /// Within the working set, to which the page did not belong before.
    WithinWorkingset,
    /// Within the working set, to which the page had belonged: thrashing.
    Restored,
    /// Too distant: no list of this size would have kept it.
    Beyond,
}

/// The shadows of one pool.
#[derive(Debug)]
pub(super) struct Shadows {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    nr_sets: u64,
    unit: AgeUnit,
}

/// Sets, each in order: the youngest first, and empty entries, which are 0, last.
#[derive(Debug)]
struct Shard {
    words: Box<[u64]>,
    /// Index of the first word that is aligned to a cache line.
    first: usize,
}

/// A page's set, and its name there.
#[derive(Clone, Copy, Debug)]
struct Spot {
    set: u64,
    name: u64,
}

impl Shadows {
    pub(super) fn new(frames: Pages) -> Self {
        let nr_sets = frames.0.max(1);
        let nr_shards = SHARDS_MAX.min(nr_sets.div_ceil(16).next_power_of_two());
        let per_shard = usize::try_from(nr_sets.div_ceil(nr_shards)).expect("shadows fit memory");
        let shard = || CachePadded::new(Mutex::new(&SHADOW_LOCK, Shard::new(per_shard)));
        Self {
            shards: (0..nr_shards).map(|_| shard()).collect(),
            nr_sets,
            unit: AgeUnit::of(frames),
        }
    }

    /// Inserts an evicted page's shadow, replacing the oldest of its set.
    pub(super) fn insert(&self, key: PageKey, shadow: Shadow) {
        let Spot { set, name } = self.spot(key);
        let age = Age::of(shadow.age, self.unit);
        let owner = u64::from(shadow.owner);
        debug_assert!(
            shadow
                .stamp
                .is_none_or(|stamp| u64::from(stamp.0) <= STAMP_MASK),
            "{:?} has more bits than a shadow has for it",
            shadow.stamp
        );
        let origin = match shadow.stamp {
            Some(Stamp(stamp)) => {
                1 << (TAG_BITS + STAMP_BITS) | (owner & TAG_MASK) << STAMP_BITS | u64::from(stamp)
            }
            None => owner.min(u64::from(OWNERS_MAX)) + 1,
        };
        let word = name
            | u64::from(shadow.was_active) << ACTIVE_SHIFT
            | age.units << AGE_SHIFT
            | origin << OWNER_SHIFT;
        let (shard, at) = self.shard(set);
        insert(shard.lock().set(at), word);
    }

    /// Removes and returns the shadow of a page.
    pub(super) fn take(&self, key: PageKey) -> Option<Recalled> {
        let Spot { set, name } = self.spot(key);
        let (shard, at) = self.shard(set);
        let word = take(shard.lock().set(at), name)?;
        debug_assert_ne!(word >> OWNER_SHIFT, 0, "a shadow has no owner");
        Some(Recalled {
            origin: word >> OWNER_SHIFT,
            age: Age {
                units: (word >> AGE_SHIFT) & AGE_MASK,
                unit: self.unit,
            },
            was_active: (word >> ACTIVE_SHIFT) & 1 == 1,
        })
    }

    fn spot(&self, key: PageKey) -> Spot {
        let mixed = mix(key.get());
        let set = (u128::from(mixed) * u128::from(self.nr_sets)) >> 64;
        Spot {
            set: u64::try_from(set).expect("less than the sets"),
            name: mixed & NAME_MASK,
        }
    }

    fn shard(&self, set: u64) -> (&Mutex<Shard>, usize) {
        let nr_shards = self.shards.len() as u64;
        let index = |part| usize::try_from(part).expect("an index");
        (&self.shards[index(set % nr_shards)], index(set / nr_shards))
    }
}

impl Shard {
    fn new(nr_sets: usize) -> Self {
        let more = LINE / size_of::<u64>() - 1;
        // Zeroed, so that the system commits memory on first use.
        let words = vec![0; nr_sets * SET_LEN + more].into_boxed_slice();
        // The result may be "cannot tell".
        let first = words.as_ptr().align_offset(LINE).min(more);
        Self { words, first }
    }

    fn set(&mut self, at: usize) -> &mut [u64] {
        let begin = self.first + at * SET_LEN;
        &mut self.words[begin..begin + SET_LEN]
    }
}

/// Inserts a shadow at the front, replacing one of the same name (the page may have been read in
/// without a lookup), an empty entry, or the oldest.
fn insert(set: &mut [u64], word: u64) {
    let name = word & NAME_MASK;
    let is_free = |kept: &u64| *kept == 0 || *kept & NAME_MASK == name;
    let at = set.iter().position(is_free).unwrap_or(SET_LEN - 1);
    set.copy_within(..at, 1);
    set[0] = word;
    debug_assert!(
        word != 0
            && !set[1..]
                .iter()
                .any(|kept| *kept != 0 && *kept & NAME_MASK == name),
        "a page has two shadows, or an empty one"
    );
}

/// Removes and returns the shadow of a name.
fn take(set: &mut [u64], name: u64) -> Option<u64> {
    let is_its = |kept: &u64| *kept != 0 && *kept & NAME_MASK == name;
    let at = set.iter().position(is_its)?;
    let word = set[at];
    set.copy_within(at + 1.., at);
    set[SET_LEN - 1] = 0;
    debug_assert!(!set.iter().any(is_its), "a page has two shadows");
    Some(word)
}

/// Mixes the bits of a name; a bijection.
///
/// Source: the finalizer of `MurmurHash3` (public domain).
const fn mix(name: u64) -> u64 {
    let mixed = (name ^ (name >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    mixed ^ (mixed >> 33)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn key(page: u64) -> PageKey {
        PageKey::from_word(1 << 44 | page).expect("a name")
    }

    fn shadow(age: u64) -> Shadow {
        Shadow {
            owner: 3,
            stamp: None,
            age,
            was_active: false,
        }
    }

    #[test]
    fn words_keep_what_they_are_given() {
        // Goal: every field comes back, at the ends of its range. Method: one page at a time, in
        // pools below and above the size at which clocks are recorded by the tick.
        for frames in [1, 512, 16_384, 1 << 20, 1 << 30] {
            let unit = AgeUnit::of(Pages(frames));
            // Sets of the largest are not needed.
            let shadows = Shadows {
                unit,
                ..Shadows::new(Pages(frames.min(1 << 10)))
            };
            for (owner, is_known) in [
                (0, true),
                (OWNERS_MAX - 1, true),
                (OWNERS_MAX, false),
                (u32::MAX, false),
            ] {
                for (age, was_active) in [(0, true), (77, false), (u64::MAX / 3, true)] {
                    shadows.insert(
                        key(5),
                        Shadow {
                            owner,
                            stamp: None,
                            age,
                            was_active,
                        },
                    );
                    let back = shadows.take(key(5)).expect("just put there");
                    assert_eq!(back.owner(), is_known.then_some(owner));
                    assert_eq!(back.was_active, was_active);
                    for distance in [0, 1, frames / 2, frames, 8 * frames, 63 * frames] {
                        let found = back.age.distance(age + distance);
                        assert!(
                            found.abs_diff(distance) < 1 << unit.shift,
                            "{found} for {distance}"
                        );
                    }
                    assert_eq!(shadows.take(key(5)), None, "taken once");
                }
            }
            assert!(
                1 << unit.shift <= frames.div_ceil(1 << 13),
                "{unit:?} of {frames}"
            );
            for nr_gaps in 1..=30 {
                let behind = Age::of(7, unit).distance(7 + nr_gaps * unit.gap());
                assert!(behind >= 2 * frames, "{behind} after {nr_gaps}");
            }
        }
    }

    #[test]
    fn a_stamp_comes_back_to_its_owner() {
        // Goal: with a stamp, every field comes back, and another owner finds none. Method: the
        // ends of each range.
        let shadows = Shadows::new(Pages(512));
        for stamp in [0, 1, (1 << STAMP_BITS) - 1] {
            for owner in [0, 255, 256, u32::MAX] {
                let given = Shadow {
                    owner,
                    stamp: Some(Stamp(stamp)),
                    ..shadow(77)
                };
                shadows.insert(key(5), given);
                let back = shadows.take(key(5)).expect("just put there");
                assert_eq!(back.stamp_of(owner), Some(Stamp(stamp)));
                assert_eq!(back.stamp_of(owner ^ 1), None);
                assert_eq!((back.age.distance(77), back.was_active), (0, false));
            }
        }
    }

    #[test]
    fn pages_are_remembered_as_long_as_is_said() {
        // Goal: the forgotten shares stated in the module's header, and no page that was never
        // evicted is found. Method: a stream of pages, and for each distance the share of the pages
        // of that age that are found; then a million others.
        let frames = 4096;
        let shadows = Shadows::new(Pages(frames));
        let last = 40 * frames;
        (0..last).for_each(|page| shadows.insert(key(page), shadow(page)));
        let forgotten = |pools: u64| {
            let at = last - pools * frames;
            let is_gone = |page: &u64| shadows.take(key(*page)).is_none();
            (at..at + frames).filter(is_gone).count()
        };
        // Of 4,096; the page looked up last has been absent for the stated time, the page looked up
        // first for one pool longer.
        let counts = [2, 4, 12, 20].map(forgotten);
        assert!(counts[0] <= 20, "{counts:?}");
        assert!((50..=350).contains(&counts[1]), "{counts:?}");
        assert!((3200..=4000).contains(&counts[2]), "{counts:?}");
        assert!(counts[3] >= 4090, "{counts:?}");
        let known = (last..last + 1_000_000).filter(|&page| shadows.take(key(page)).is_some());
        let known = known.count();
        assert!(known <= 8, "{known} of pages that were never there");
    }

    #[test]
    fn of_a_set_the_oldest_is_forgotten() {
        // Goal: insertions and removals keep the order. Method: one set, against a queue.
        let mut rng = crate::seed::rng(22);
        let mut set = [0; SET_LEN];
        let mut queue = std::collections::VecDeque::new();
        for _ in 0..20_000 {
            let name = rng.u64(1..16);
            let known = queue.iter().position(|word| word & NAME_MASK == name);
            let known = known.and_then(|at| queue.remove(at));
            if rng.bool() {
                let word = name | rng.u64(1..1 << 20) << OWNER_SHIFT;
                insert(&mut set, word);
                queue.push_front(word);
                queue.truncate(SET_LEN);
            } else {
                assert_eq!(take(&mut set, name), known);
            }
            assert!(queue.iter().eq(set.iter().take_while(|word| **word != 0)));
        }
    }
}
