//! The per-task RSS cache: each task counts for itself, and folds into its space's totals every
//! 66th fault.
//!
//! ```text
//! task: delta of each member, faults since the last fold   --- 66th fault --->   totals of the space
//! ```
//!
//! A read is one load of a total, without the tasks' deltas. Tasks that fault a few pages each and
//! then sleep never fold: 10,000 of them hide 1.4 GB. The number of tasks has no bound, so neither
//! has the error, and [`Design::estimate`] returns `None`. Only its own task may touch a delta, so
//! the kernel has no exact read; [`Design::precise`] is this model's own.
//!
//! An addition to a space that is not the task's own goes straight to the totals. An unmap folds
//! the caller's cache and adds its vector to the totals; leaving a space (exit, exec) folds.
//!
//! Source: Linux 2.6.34 to 6.1, `mm/memory.c` (`SPLIT_RSS_COUNTING`).
//! Deviation: with a threshold of 0 tasks keep nothing, as in kernels built without the cache; read
//! literally, they would fold on every second fault.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use highwater::units::{CpuId, Estimate};

use super::{Count, Design, Footprint, Line, Member, SpaceId, Traffic, Writer};

/// The kernel's threshold: a fault folds after more than this many others.
const THRESHOLD: u32 = 64;

/// A task without deltas.
const NO_SPACE: u32 = u32::MAX;

/// Deltas of a task. Plain words in the kernel.
///
/// Written by: the task's thread. Read by: that thread; others once it has come to rest. Publishes:
/// nothing.
#[derive(Debug)]
#[repr(align(64))]
struct Task {
    /// The space of the deltas.
    space: AtomicU32,
    /// Faults since the last fold.
    events: AtomicU32,
    deltas: [AtomicI64; Member::ALL.len()],
}

/// The counts of a space.
///
/// Written and read by any thread. Publishes only itself.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Totals([AtomicI64; Member::ALL.len()]);

/// Counts kept by tasks, and totals.
#[derive(Debug)]
pub struct TaskCache {
    threshold: u32,
    tasks: Box<[Task]>,
    spaces: Box<[Totals]>,
}

impl TaskCache {
    /// Creates a cache with the kernel's threshold of 64.
    #[must_use]
    pub fn new(spaces: usize, tasks: usize) -> Self {
        Self::with_threshold(spaces, tasks, THRESHOLD)
    }

    /// Creates a cache in which a fault folds after more than `threshold` others; with 0, tasks
    /// keep nothing.
    #[must_use]
    pub fn with_threshold(spaces: usize, tasks: usize, threshold: u32) -> Self {
        let task = |_| Task {
            space: AtomicU32::new(NO_SPACE),
            events: AtomicU32::new(0),
            deltas: Default::default(),
        };
        Self {
            threshold,
            tasks: (0..tasks).map(task).collect(),
            spaces: (0..spaces).map(|_| Totals::default()).collect(),
        }
    }

    /// Adds to a total, beside concurrent additions.
    fn add_total(&self, cpu: CpuId, to: Count, delta: i64, traffic: &mut dyn Traffic) {
        let index = to.space.index();
        traffic.wrote(Line { level: 0, index }, cpu);
        // Relaxed: see `Totals`.
        self.spaces[index].0[to.member.index()].fetch_add(delta, Ordering::Relaxed);
    }

    /// Adds the task's deltas to the totals of its space.
    fn fold(&self, by: Writer, traffic: &mut dyn Traffic) {
        let task = &self.tasks[by.task.index()];
        // Relaxed, here and below: see `Task`.
        let space = SpaceId(task.space.swap(NO_SPACE, Ordering::Relaxed));
        for (member, delta) in Member::ALL.into_iter().zip(&task.deltas) {
            let held = delta.swap(0, Ordering::Relaxed);
            if held != 0 {
                self.add_total(by.cpu, Count { space, member }, held, traffic);
            }
        }
        task.events.store(0, Ordering::Relaxed);
    }
}

impl Design for TaskCache {
    fn lines(&self) -> Vec<usize> {
        vec![self.spaces.len()]
    }

    /// # Panics
    ///
    /// When the task has deltas of another space, which it has not left.
    fn add(&self, by: Writer, to: Count, delta: i64, traffic: &mut dyn Traffic) {
        if self.threshold == 0 || by.space != Some(to.space) {
            self.add_total(by.cpu, to, delta, traffic);
            return;
        }
        let task = &self.tasks[by.task.index()];
        // Relaxed, here and below: see `Task`.
        let before = task.space.swap(to.space.0, Ordering::Relaxed);
        assert!(
            before == NO_SPACE || before == to.space.0,
            "task {} holds counts of space {before}, which it has not left",
            by.task.0
        );
        let held = &task.deltas[to.member.index()];
        held.store(held.load(Ordering::Relaxed) + delta, Ordering::Relaxed);
    }

    fn add_vector(
        &self,
        by: Writer,
        space: SpaceId,
        deltas: [i64; Member::ALL.len()],
        traffic: &mut dyn Traffic,
    ) {
        if by.space == Some(space) {
            self.fold(by, traffic);
        }
        for (member, delta) in Member::ALL.into_iter().zip(deltas) {
            if delta != 0 {
                self.add_total(by.cpu, Count { space, member }, delta, traffic);
            }
        }
    }

    fn fault_handled(&self, by: Writer, traffic: &mut dyn Traffic) {
        if self.threshold == 0 {
            return;
        }
        let events = &self.tasks[by.task.index()].events;
        // Relaxed: see `Task`.
        let before = events.load(Ordering::Relaxed);
        events.store(before + 1, Ordering::Relaxed);
        if before > self.threshold {
            self.fold(by, traffic);
        }
    }

    fn leave(&self, by: Writer, traffic: &mut dyn Traffic) {
        self.fold(by, traffic);
    }

    /// As the kernel does: values below zero read as zero.
    fn read(&self, of: Count) -> i64 {
        // Relaxed: see `Totals`.
        let total = self.spaces[of.space.index()].0[of.member.index()].load(Ordering::Relaxed);
        total.max(0)
    }

    fn estimate(&self, _of: Count) -> Option<Estimate<i64>> {
        None
    }

    fn precise(&self, of: Count) -> i64 {
        let member = of.member.index();
        // Relaxed: see `Task` and `Totals`.
        let total = self.spaces[of.space.index()].0[member].load(Ordering::Relaxed);
        let own = |task: &&Task| task.space.load(Ordering::Relaxed) == of.space.0;
        let tasks = self.tasks.iter().filter(own);
        let held = tasks.map(|task| task.deltas[member].load(Ordering::Relaxed));
        total + held.sum::<i64>()
    }

    fn footprint(&self) -> Footprint {
        /// A word for each member.
        const SPACE: u64 = 32;
        /// The faults and the members, 32 bits each.
        const TASK: u64 = 20;
        Footprint {
            space_bytes: SPACE,
            task_bytes: if self.threshold == 0 { 0 } else { TASK },
            machine_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::baselines::{TaskId, Untracked, tests as shared};

    const HOME: SpaceId = SpaceId(0);
    const OTHER: SpaceId = SpaceId(1);

    fn writer(task: u32) -> Writer {
        Writer {
            cpu: CpuId(task),
            task: TaskId(task),
            space: Some(HOME),
        }
    }

    fn anon(space: SpaceId) -> Count {
        Count {
            space,
            member: Member::Anon,
        }
    }

    /// Adds one page to the task's own space, and ends the fault.
    fn fault(cache: &TaskCache, by: Writer) {
        cache.add(by, anon(HOME), 1, &mut Untracked);
        cache.fault_handled(by, &mut Untracked);
    }

    /// Goal: the fold comes with the 66th fault after the last one, not the 64th, and takes all.
    /// Method: faults one by one, twice around.
    #[test]
    fn the_66th_fault_folds() {
        let cache = TaskCache::new(1, 1);
        for round in 0..2 {
            for _ in 1..66 {
                fault(&cache, writer(0));
                assert_eq!(cache.read(anon(HOME)), 66 * round);
            }
            fault(&cache, writer(0));
            assert_eq!(cache.read(anon(HOME)), 66 * (round + 1));
        }
        assert_eq!(cache.precise(anon(HOME)), 132);
    }

    /// Goal: the cache counts faults, not pages: a task can hide any number. Method: 65 faults of
    /// 16 pages.
    #[test]
    fn what_is_hidden_has_no_bound_in_pages() {
        let cache = TaskCache::new(1, 1);
        for _ in 0..65 {
            cache.add(writer(0), anon(HOME), 16, &mut Untracked);
            cache.fault_handled(writer(0), &mut Untracked);
        }
        assert_eq!(
            (cache.read(anon(HOME)), cache.precise(anon(HOME))),
            (0, 1040)
        );
        assert_eq!(cache.estimate(anon(HOME)), None);
    }

    /// Goal: without the cache every read is exact, and tasks cost nothing.
    #[test]
    fn a_threshold_of_zero_is_exact() {
        let cache = TaskCache::with_threshold(1, 2, 0);
        for pages in 1..=100 {
            fault(&cache, writer(pages % 2));
            assert_eq!(cache.read(anon(HOME)), i64::from(pages));
        }
        assert_eq!(cache.footprint().task_bytes, 0);
    }

    /// Goal: an unmap folds its caller's cache first, and one of another space does not. Method: a
    /// total that would be below zero tells the two apart.
    #[test]
    fn unmapping_folds_the_caller() {
        let cache = TaskCache::new(2, 2);
        fault(&cache, writer(0));
        fault(&cache, writer(1));
        cache.add_vector(writer(0), HOME, [0, -1, 0, 4], &mut Untracked);
        assert_eq!(
            cache.read(anon(HOME)),
            0,
            "its own page, and not the other task's"
        );
        assert_eq!(cache.precise(anon(HOME)), 1);
        assert_eq!(cache.read_resident(HOME), 4);
        cache.add_vector(writer(1), OTHER, [7, 0, 0, 0], &mut Untracked);
        assert_eq!((cache.read_resident(OTHER), cache.read(anon(HOME))), (7, 0));
        // A fold restarts the count of faults.
        (0..65).for_each(|_| fault(&cache, writer(0)));
        assert_eq!(cache.read(anon(HOME)), 0);
    }

    /// Goal: an update of another task's space goes straight to the totals, and a total that is
    /// below zero reads as zero.
    #[test]
    fn foreign_writers_do_not_cache() {
        let cache = TaskCache::new(2, 2);
        cache.add(writer(0), anon(OTHER), 3, &mut Untracked);
        assert_eq!(cache.read(anon(OTHER)), 3);
        fault(&cache, writer(0));
        let reclaim = Writer {
            space: None,
            ..writer(1)
        };
        cache.add(reclaim, anon(HOME), -1, &mut Untracked);
        assert_eq!((cache.read(anon(HOME)), cache.precise(anon(HOME))), (0, 0));
        cache.leave(writer(0), &mut Untracked);
        assert_eq!(cache.precise(anon(HOME)), 0);
    }

    /// Goal: a task that exits, or continues in another space, leaves nothing behind.
    #[test]
    fn leaving_folds() {
        let cache = TaskCache::new(2, 1);
        fault(&cache, writer(0));
        cache.leave(writer(0), &mut Untracked);
        assert_eq!(cache.read(anon(HOME)), 1);
        let moved = Writer {
            space: Some(OTHER),
            ..writer(0)
        };
        cache.add(moved, anon(OTHER), 2, &mut Untracked);
        cache.leave(moved, &mut Untracked);
        assert_eq!((cache.read(anon(HOME)), cache.read(anon(OTHER))), (1, 2));
    }

    #[test]
    #[should_panic(expected = "holds counts of space 0, which it has not left")]
    fn a_task_cannot_hold_counts_of_two_spaces() {
        let cache = TaskCache::new(2, 1);
        fault(&cache, writer(0));
        let moved = Writer {
            space: Some(OTHER),
            ..writer(0)
        };
        cache.add(moved, anon(OTHER), 1, &mut Untracked);
    }

    /// Goal: nothing is lost and only folds write shared lines. Method: tasks on threads, faults,
    /// unmaps and exits, against a plain sum.
    #[test]
    fn nothing_is_lost() {
        let cache = TaskCache::new(1, 4);
        let sum = thread::scope(|scope| {
            let cache = &cache;
            let run = |task| {
                let mut random = shared::rng(u64::from(task));
                let mut sum = 0;
                for _ in 0..20_000 {
                    fault(cache, writer(task));
                    sum += 1;
                    if random.u8(..50) == 0 {
                        let pages = random.i64(1..20);
                        let vector = [0, -pages, 0, 0];
                        cache.add_vector(writer(task), HOME, vector, &mut Untracked);
                        sum -= pages;
                    }
                }
                cache.leave(writer(task), &mut Untracked);
                sum
            };
            let tasks: Vec<_> = (0..4).map(|task| scope.spawn(move || run(task))).collect();
            let sums = tasks.into_iter().map(|task| task.join().unwrap());
            sums.sum::<i64>()
        });
        assert_eq!(cache.precise(anon(HOME)), sum);
        assert_eq!(cache.read(anon(HOME)), sum, "all tasks have left");
    }
}
