//! CPU mask of a space: a bit for each CPU on which the space may have something parked.
//!
//! Only the holder of a CPU's slot writes the CPU's bit: it sets it before the space becomes the
//! slot's owner, and clears it after adding the parked amounts to the space's totals. So the CPUs
//! whose slots a space owns are always marked, and a cleared mark implies that the totals contain
//! what was parked.

use std::iter;

use highwater::lab::sync::atomic::{AtomicU64, Ordering};
use highwater::units::CpuId;

/// Words on the same line as the totals.
const NEAR_WORDS: usize = 4;

/// Upper bound of the CPUs in a set: the size of a reader's copy on its stack.
pub(super) const CPUS_MAX: usize = 8192;

/// A set of CPUs.
///
/// Written by: holders of the slots of these CPUs. Read by: all threads (Acquire). A clear bit
/// publishes: totals with what was parked there.
#[repr(C)]
pub(super) struct Marks {
    near: [AtomicU64; NEAR_WORDS],
    far: Box<[AtomicU64]>,
}

impl Marks {
    pub(super) fn none_of(nr_cpus: usize) -> Self {
        debug_assert!(nr_cpus <= CPUS_MAX);
        let far = nr_cpus.div_ceil(64).saturating_sub(NEAR_WORDS);
        Self {
            near: std::array::from_fn(|_| AtomicU64::new(0)),
            far: iter::repeat_with(|| AtomicU64::new(0)).take(far).collect(),
        }
    }

    /// Marks `cpu`, whose slot the caller holds. Returns whether the word had to be written.
    pub(super) fn mark(&self, cpu: CpuId) -> bool {
        let (word, bit) = self.place(cpu);
        // Relaxed: no other thread writes this bit, and the tenure of the slot publishes it.
        let is_news = word.load(Ordering::Relaxed) & bit == 0;
        if is_news {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        is_news
    }

    /// Clears the mark of `cpu`, whose slot the caller holds for the marked space.
    pub(super) fn unmark(&self, cpu: CpuId) {
        let (word, bit) = self.place(cpu);
        // Release. Pairs with the Acquire in `seen` and `count`: a reader that misses the mark sees
        // the totals.
        let before = word.fetch_and(!bit, Ordering::Release);
        debug_assert!(
            before & bit != 0,
            "{cpu} is not marked in the space that owns it"
        );
    }

    /// Returns the CPUs that are marked now.
    pub(super) fn seen(&self) -> Seen {
        let mut seen = Seen {
            words: [0; CPUS_MAX / 64],
            len: NEAR_WORDS + self.far.len(),
        };
        for (seen, word) in seen.words.iter_mut().zip(self.words()) {
            // Acquire. Pairs with the Release in `unmark`.
            *seen = word.load(Ordering::Acquire);
        }
        seen
    }

    /// Returns the number of CPUs that are marked now.
    pub(super) fn count(&self) -> u32 {
        // Acquire. Pairs with the Release in `unmark`.
        let bits = self.words().map(|word| word.load(Ordering::Acquire));
        bits.map(u64::count_ones).sum()
    }

    /// Clears all marks, in a set that no other thread uses.
    pub(super) fn clear(&self) {
        // Relaxed: no other thread uses the set.
        self.words()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.near.iter().chain(&self.far)
    }

    fn place(&self, cpu: CpuId) -> (&AtomicU64, u64) {
        let (at, bit) = (cpu.index() / 64, 1 << (cpu.index() % 64));
        match at.checked_sub(NEAR_WORDS) {
            None => (&self.near[at], bit),
            Some(at) => (&self.far[at], bit),
        }
    }
}

/// A copy of the marks, read once.
pub(super) struct Seen {
    words: [u64; CPUS_MAX / 64],
    len: usize,
}

impl Seen {
    pub(super) fn cpus(&self) -> impl Iterator<Item = usize> + Clone {
        let words = self.words[..self.len].iter();
        words.enumerate().flat_map(|(at, bits)| {
            iter::successors((*bits != 0).then_some(*bits), |bits| {
                let rest = bits & (bits - 1);
                (rest != 0).then_some(rest)
            })
            .map(move |bits| at * 64 + bits.trailing_zeros() as usize)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn marks_are_those_of_a_plain_set() {
        // Goal: no CPU is missed or invented, near or far. Method: random marks against a plain
        // array.
        let mut random = crate::seed::rng(41);
        for nr_cpus in [1, 63, 64, 65, 256, 257, 384, CPUS_MAX] {
            let marks = Marks::none_of(nr_cpus);
            let mut plain = vec![false; nr_cpus];
            for _ in 0..500 {
                let at = random.usize(..nr_cpus);
                let cpu = CpuId::from_index(at);
                if plain[at] && random.bool() {
                    marks.unmark(cpu);
                    plain[at] = false;
                } else {
                    assert_eq!(marks.mark(cpu), !plain[at]);
                    plain[at] = true;
                }
            }
            let marked: Vec<_> = marks.seen().cpus().collect();
            let expected: Vec<_> = (0..nr_cpus).filter(|&at| plain[at]).collect();
            assert_eq!(marked, expected);
            assert_eq!(marks.count() as usize, expected.len());
            marks.clear();
            assert_eq!(marks.count(), 0);
        }
    }
}

#[cfg(all(test, loom))]
mod loom {
    use super::*;
    use highwater::lab::sync::Arc;
    use highwater::lab::sync::atomic::AtomicI64;
    use highwater::lab::sync::thread;

    /// Reads the mark while another thread adds 5 to a total and then clears the mark: a reader
    /// that sees no mark sees the total. Each of the two threads runs first in one of the models.
    fn against_an_unmark(is_marked: fn(&Marks) -> bool) {
        let flush = |(marks, total): &(Marks, AtomicI64)| {
            // Relaxed: as the totals of spaces.
            total.fetch_add(5, Ordering::Relaxed);
            marks.unmark(CpuId(0));
        };
        let look = move |(marks, total): &(Marks, AtomicI64)| {
            assert!(is_marked(marks) || total.load(Ordering::Relaxed) == 5);
        };
        for looks_first in [false, true] {
            ::loom::model(move || {
                let space = Arc::new((Marks::none_of(1), AtomicI64::new(0)));
                space.0.mark(CpuId(0));
                let other = Arc::clone(&space);
                let thread = if looks_first {
                    let thread = thread::spawn(move || flush(&other));
                    look(&space);
                    thread
                } else {
                    let thread = thread::spawn(move || look(&other));
                    flush(&space);
                    thread
                };
                thread.join().expect("the model's thread ends");
            });
        }
    }

    #[test]
    fn a_walk_that_misses_a_mark_sees_the_totals() {
        against_an_unmark(|marks| marks.seen().cpus().next().is_some());
    }

    #[test]
    fn a_count_that_misses_a_mark_sees_the_totals() {
        against_an_unmark(|marks| marks.count() == 1);
    }
}
