//! Reuse times: for each access, the number of accesses since the last one to the same page, in
//! classes of a quarter of an octave.
//!
//! A direct-mapped table remembers the last access of a page until another page takes its slot; an
//! access that it does not remember is in a class of its own, with the first accesses. So a class
//! is exact for short times, and for long ones no more than a property of the accesses before. Its
//! users need no more: they classify every access in this one way.
//!
//! An entry is a tag of 8 bits and a time modulo 2^24; a page with the tag of the one before, one
//! in 256, is taken for it.

use crate::report::text::to_f64;

/// Slots: half a mebibyte of entries. Chosen: the memory that a sample leaves of 1 MiB.
const SLOTS_LOG: u32 = 17;

const TIME_BITS: u32 = 24;

/// No access so far: a time before the first.
const EMPTY: u32 = 0;

/// Classes in an octave, as a power of two.
const PARTS_LOG: u32 = 2;

/// Number of classes; the last one is of accesses that the table does not remember.
pub(super) const NR_CLASSES: usize = (TIME_BITS as usize + 1) << PARTS_LOG;

/// The class of an access.
pub(super) type Class = u8;

#[expect(clippy::cast_possible_truncation, reason = "there are 100 classes")]
const UNKNOWN: Class = (NR_CLASSES - 1) as Class;

/// Classifies the accesses of a trace, and counts each class.
#[derive(Debug)]
pub(super) struct ReuseTimes {
    entries: Box<[u32]>,
    now: u32,
    counts: Counts,
}

impl ReuseTimes {
    pub(super) fn new() -> Self {
        Self {
            entries: vec![EMPTY; 1 << SLOTS_LOG].into(),
            now: 0,
            counts: Counts::default(),
        }
    }

    /// Counts an access to the page that hashes to `value`; returns its class.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the slot and the tag are the highest bits, one after the other"
    )]
    pub(super) fn access(&mut self, value: u64) -> Class {
        // Time 0 with tag 0 is an empty entry.
        self.now = (self.now + 1) & ((1 << TIME_BITS) - 1);
        let tag = (value >> (64 - SLOTS_LOG - 8)) as u8;
        let entry = &mut self.entries[(value >> (64 - SLOTS_LOG)) as usize];
        let before = std::mem::replace(entry, u32::from(tag) << TIME_BITS | self.now);
        let is_known = before != EMPTY && before >> TIME_BITS == u32::from(tag);
        let class = match is_known {
            true => class_of(self.now.wrapping_sub(before) & ((1 << TIME_BITS) - 1)),
            false => UNKNOWN,
        };
        self.counts.add(class);
        class
    }

    /// Returns the number of accesses in each class so far.
    pub(super) const fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// Returns the class of a time in accesses that was estimated.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and casts saturate"
)]
pub(super) fn class_near(time: f64) -> Class {
    class_of((time as u32).clamp(1, (1 << TIME_BITS) - 1))
}

/// Returns the class of a time: its octave, and the quarter of it.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "times below 2^24 have classes below 100"
)]
fn class_of(time: u32) -> Class {
    let octave = time.checked_ilog2().unwrap_or(0);
    let part = (time << PARTS_LOG >> octave) & ((1 << PARTS_LOG) - 1);
    ((octave << PARTS_LOG) + part) as Class
}

/// Accesses by class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts([u64; NR_CLASSES]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; NR_CLASSES])
    }
}

impl Counts {
    #[inline]
    pub(super) fn add(&mut self, class: Class) {
        self.0[usize::from(class)] += 1;
    }

    /// Returns, for each class, the part of all accesses for which each of `sampled` stands.
    pub(super) fn weights(&self, sampled: &Self) -> Weights {
        let accesses = to_f64(self.0.iter().sum());
        let mut weights = Weights([0.0; NR_CLASSES]);
        let mut nr_all = 0;
        let mut class = 0;
        // A class without a sampled access goes with its neighbour.
        for (next, (all, nr_sampled)) in self.0.iter().zip(sampled.0).enumerate() {
            nr_all += all;
            if nr_sampled > 0 {
                let weight = to_f64(nr_all) / to_f64(nr_sampled) / accesses;
                weights.0[class..=next].fill(weight);
                (nr_all, class) = (0, next + 1);
            }
        }
        weights
    }
}

/// Parts of the accesses of a trace, by class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights([f64; NR_CLASSES]);

impl Weights {
    #[inline]
    pub(super) fn of(&self, class: Class) -> f64 {
        self.0[usize::from(class)]
    }

    /// Returns the part of all accesses for which some sampled ones stand.
    pub(super) fn share(&self, sampled: &Counts) -> f64 {
        let parts = (self.0.iter().zip(sampled.0)).map(|(weight, count)| weight * to_f64(count));
        parts.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the shortest time of a class.
    fn time_of(class: Class) -> f64 {
        let (octave, part) = (class >> PARTS_LOG, class & ((1 << PARTS_LOG) - 1));
        let parts = 1 << PARTS_LOG;
        f64::from(parts + u32::from(part)) / f64::from(parts) * 2.0_f64.powi(octave.into())
    }

    // Goal: classes increase with time, four to an octave.
    #[test]
    fn classes_are_quarters_of_octaves() {
        let classes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1 << 23, (1 << 24) - 1].map(class_of);
        assert_eq!(classes, [0, 4, 6, 8, 9, 10, 11, 12, 12, 13, 92, 95]);
        assert!(class_of((1 << TIME_BITS) - 1) < UNKNOWN);
        for time in [1, 2, 3, 4, 9, 17, 1000, 1 << 23, (1 << TIME_BITS) - 1] {
            let least = time_of(class_of(time));
            assert!(
                least <= time.into() && class_near(least) == class_of(time),
                "{time}"
            );
        }
        assert_eq!([0.3, f64::INFINITY].map(class_near), [0, 95]);
    }

    // Goal: the class of an access is that of its reuse time, as long as the table remembers it;
    // every access is in one. Method: a loop over few pages beside new ones, and one over more
    // pages than there are slots.
    #[test]
    fn accesses_are_in_the_class_of_their_reuse_time() {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut reuse = ReuseTimes::new();
        let value = |page: u64| page.wrapping_mul(ODD);
        for round in 0..10_u64 {
            for page in 0..50 {
                let class = reuse.access(value(page));
                let expected = if round == 0 { UNKNOWN } else { class_of(100) };
                assert_eq!(class, expected, "round {round}, page {page}");
                assert_eq!(reuse.access(value(1000 + 50 * round + page)), UNKNOWN);
            }
        }
        let slots = 1 << SLOTS_LOG;
        let unknown = (0..3 * slots).filter(|page| {
            let class = reuse.access(value(1_000_000 + page % (2 * slots)));
            class == UNKNOWN
        });
        assert!(unknown.count() as u64 > 3 * slots * 9 / 10);
        assert_eq!(reuse.counts().0.iter().sum::<u64>(), 1000 + 3 * slots);
    }

    // Goal: weights of the sampled accesses sum to one, whether or not each class was sampled.
    #[test]
    fn weights_are_shares() {
        let mut all = Counts::default();
        let mut sampled = Counts::default();
        all.0[..5].copy_from_slice(&[10, 20, 30, 40, 50]);
        all.0[NR_CLASSES - 1] = 850;
        sampled.0[..5].copy_from_slice(&[1, 0, 0, 4, 5]);
        sampled.0[NR_CLASSES - 1] = 5;
        let weights = all.weights(&sampled);
        let expected = [0.01, 0.0225, 0.0225, 0.0225, 0.01];
        for (weight, expected) in weights.0.iter().zip(expected) {
            assert!((weight - expected).abs() < 1e-12, "{weight} {expected}");
        }
        assert!((weights.share(&sampled) - 1.0).abs() < 1e-12);
        let whole = all.weights(&all);
        assert!(
            (whole.of(0) - 0.001).abs() < 1e-12,
            "a sample of every page"
        );
    }
}
