//! Exact counts, kept beside statistics whose reads may be stale.
//!
//! Each thread has words of its own for each group: what it has begun to add, what it has added,
//! and the sizes of both. A reader sums the done words before its read, and the begun words after
//! it. At each moment that the read may describe, the true value differs from the sum by at most
//! the size of the updates *in flight*: begun by the end, and not done at the beginning. Any error
//! beyond that is the statistics' own.
//!
//! Orderings: an update lies between the release fence after `begun` and the release stores of
//! `sum` and `done`. So a reader that finds the update in `sum` finds it in the statistics; and a
//! reader that finds it in the statistics, and then executes an acquire fence, finds it in `begun`.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};

use crate::baselines::flush::{Item, Shape, Stats};

/// Items that are followed.
pub(super) const FOLLOWED: [Item; 2] = [Item::Anon, Item::Pgfault];

/// One thread's words for one item of one group. Only that thread writes them.
#[derive(Debug, Default)]
struct Word {
    /// Total size of the updates that were begun. Publishes nothing; ordered by fences.
    begun: AtomicU64,
    /// Sum of the updates. Publishes the updates in it.
    sum: AtomicI64,
    /// Total size of the updates in `sum`. Publishes the same.
    done: AtomicU64,
}

/// Exact counts by thread, group and followed item.
#[derive(Debug)]
pub(super) struct Truth {
    shape: Shape,
    threads: usize,
    /// By thread, then by group.
    words: Box<[[Word; FOLLOWED.len()]]>,
}

/// Counts of a group and all groups below it, taken before a read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before([Known; FOLLOWED.len()]);

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    sum: i64,
    done: u64,
}

/// Error of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Off {
    /// The largest error of any item beyond the updates in flight, in pages or events.
    pub(super) own: u64,
    /// The largest size in flight.
    pub(super) in_flight: u64,
}

impl Truth {
    pub(super) fn new(shape: &Shape, threads: usize) -> Self {
        let words = (0..threads * shape.nr_groups()).map(|_| <[Word; FOLLOWED.len()]>::default());
        Self {
            shape: shape.clone(),
            threads,
            words: words.collect(),
        }
    }

    /// Lets `update` add `delta` to an item of a group, and counts it. At most one thread at a time
    /// uses a thread number.
    pub(super) fn follow(
        &self,
        thread: usize,
        group: usize,
        item: Item,
        delta: i64,
        update: impl FnOnce(),
    ) {
        let followed = FOLLOWED.iter().position(|&followed| followed == item);
        let Some(index) = followed else {
            return update();
        };
        let word = &self.words[thread * self.shape.nr_groups() + group][index];
        let size = delta.unsigned_abs();
        // Relaxed loads: this thread alone writes the words. Relaxed store: ordered by the fence.
        let begun = word.begun.load(Ordering::Relaxed) + size;
        word.begun.store(begun, Ordering::Relaxed);
        // Pairs with the fence in `off`.
        fence(Ordering::Release);
        update();
        // Pairs with the loads in `before`.
        let sum = word.sum.load(Ordering::Relaxed) + delta;
        word.sum.store(sum, Ordering::Release);
        word.done.store(begun, Ordering::Release);
    }

    /// Returns the counts that [`off`](Self::off) needs; the reader calls it before its read.
    pub(super) fn before(&self, top: usize) -> Before {
        let mut before = Before::default();
        self.for_each_below(top, |words| {
            for (known, word) in before.0.iter_mut().zip(words) {
                // `done` first: an update in the sum and not in `done` is in flight. Pairs with the
                // stores in `follow`.
                known.done += word.done.load(Ordering::Acquire);
                known.sum += word.sum.load(Ordering::Acquire);
            }
        });
        before
    }

    /// Returns the error of `read`; `before` was taken before it.
    pub(super) fn off(&self, top: usize, before: &Before, read: &Stats) -> Off {
        // Pairs with the fence in `follow`.
        fence(Ordering::Acquire);
        let mut begun = [0; FOLLOWED.len()];
        self.for_each_below(top, |words| {
            for (begun, word) in begun.iter_mut().zip(words) {
                // Relaxed: ordered by the fence.
                *begun += word.begun.load(Ordering::Relaxed);
            }
        });
        let mut off = Off::default();
        for ((item, known), begun) in FOLLOWED.iter().zip(before.0).zip(begun) {
            let in_flight = begun - known.done;
            let error = read[item.index()].abs_diff(known.sum);
            off.own = off.own.max(error.saturating_sub(in_flight));
            off.in_flight = off.in_flight.max(in_flight);
        }
        off
    }

    /// Groups number children after parents, and the children of one parent consecutively.
    fn for_each_below(&self, top: usize, mut visit: impl FnMut(&[Word; FOLLOWED.len()])) {
        let groups = self.shape.nr_groups();
        let below = self.shape.below(top);
        for thread in 0..self.threads {
            let words = &self.words[thread * groups..][..groups];
            visit(&words[top]);
            words[below.clone()].iter().for_each(&mut visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use highwater::units::CpuId;

    use super::*;
    use crate::baselines::flush::{FlushRule, Flushing, ITEMS, Rstat};

    /// Goal: errors are reported by their size, and updates in flight are not errors. Method: reads
    /// that saw more or less than was done, with and without an update under way.
    #[test]
    fn errors_are_known_up_to_what_is_in_flight() {
        let truth = Truth::new(&Shape::of(2, 2), 2);
        let mut read = [0; ITEMS];
        let anon = Item::Anon.index();
        truth.follow(0, 3, Item::Anon, 10, || {});
        truth.follow(1, 4, Item::Anon, -3, || {});
        for (top, sum) in [(0, 7), (1, 7), (2, 0), (3, 10), (4, -3)] {
            read[anon] = sum;
            let off = truth.off(top, &truth.before(top), &read);
            assert_eq!(off, Off::default(), "group {top}");
            read[anon] = sum - 5;
            assert_eq!(truth.off(top, &truth.before(top), &read).own, 5);
        }
        truth.follow(0, 3, Item::Anon, 100, || {
            let before = truth.before(3);
            for (seen, own) in [(10, 0), (110, 0), (60, 0), (111, 1), (-91, 1)] {
                read[anon] = seen;
                let off = truth.off(3, &before, &read);
                assert_eq!((off.own, off.in_flight), (own, 100), "{seen}");
            }
        });
        truth.follow(0, 3, Item::Pgscan, 100, || {});
        read[anon] = 110;
        assert_eq!(truth.off(3, &truth.before(3), &read), Off::default());
    }

    /// Goal: statistics that are flushed on every read are never stale, also while threads update.
    /// Method: two threads add, and one reads groups of all levels.
    #[test]
    fn what_is_flushed_is_never_stale() {
        let shape = Shape::of(2, 2);
        let truth = Truth::new(&shape, 2);
        let rstat = Rstat::new(&shape, 4, FlushRule::Subtree);
        thread::scope(|scope| {
            for thread in 0..2 {
                let (truth, rstat) = (&truth, &rstat);
                scope.spawn(move || {
                    for step in 0..20_000 {
                        let group = 3 + step % 4;
                        let cpu = CpuId::from_index(step % 4);
                        let delta = if step % 3 == 0 { -9 } else { 7 };
                        truth.follow(thread, group, Item::Anon, delta, || {
                            rstat.add(group, cpu, Item::Anon, delta);
                        });
                    }
                });
            }
            for group in (0..7).cycle().take(2000) {
                let before = truth.before(group);
                let read = rstat.read(group, Duration::ZERO);
                let off = truth.off(group, &before, &read.values);
                assert_eq!(off.own, 0, "group {group}: {off:?}");
            }
        });
    }
}
