//! The interfaces of baselines, and what they count.

use std::fmt;

use highwater::counter::Accuracy;
use highwater::units::{CpuId, Estimate};

use super::traffic::{Line, Traffic};

/// Direction of a cheap read's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The cheap read is too low.
    Under,
    /// The cheap read is too high.
    Over,
}

/// A number that the CPUs of a machine add to.
pub trait Counter: fmt::Debug + Send + Sync {
    /// Returns the number of shared lines on each level, the lowest level first. Empty if nothing
    /// is shared.
    fn lines(&self) -> Vec<usize>;

    /// Adds `delta` as if running on `cpu`.
    fn add_on(&self, cpu: CpuId, delta: i64, traffic: &mut dyn Traffic);

    /// Returns the design's cheap reading, and the interval that it promises to hold the precise
    /// value when no update is in flight.
    fn approximate_sum(&self) -> Estimate<i64>;

    /// Returns the sum of all additions. Exact when no update is in flight.
    fn precise_sum(&self) -> i64;

    /// Returns the true error bounds of the cheap read when no update is in flight: both ends are
    /// reached. The promise may be wider.
    fn reach(&self) -> Accuracy;

    /// Returns deltas that take the cheap read of a counter at zero to its largest error.
    fn worst_fill(&self, end: End) -> Vec<(CpuId, i64)>;

    /// Returns the memory of one counter in its authors' layout, including its share of what the
    /// four counters of a space have in common.
    fn bytes(&self) -> u64;
}

/// Index of a task, which the kernel calls a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(pub u32);

impl TaskId {
    /// Returns the identifier as an index into an array.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Index of an address space, which the tasks of a process share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceId(pub u32);

impl SpaceId {
    /// Returns the identifier as an index into an array.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Kind of a space's pages. All but `Swap` are resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Member {
    /// Pages of files.
    File,
    /// Anonymous pages.
    Anon,
    /// Swap entries of anonymous pages.
    Swap,
    /// Pages of shared memory.
    Shmem,
}

impl Member {
    /// All members, in the kernel's order.
    pub const ALL: [Self; 4] = [Self::File, Self::Anon, Self::Swap, Self::Shmem];

    /// The members whose pages are resident.
    pub const RESIDENT: [Self; 3] = [Self::File, Self::Anon, Self::Shmem];

    /// Index into [`ALL`](Self::ALL).
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The writer of an update: a task, the CPU that it runs on, and its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The CPU.
    pub cpu: CpuId,
    /// The task.
    pub task: TaskId,
    /// The space that the task runs in, which may differ from the one it adds to; a kernel thread,
    /// and a task that has left its space, have none.
    pub space: Option<SpaceId>,
}

/// The counter of an update: a member of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Count {
    /// The space.
    pub space: SpaceId,
    /// The member.
    pub member: Member,
}

/// A machine's accounting of the pages of its spaces.
///
/// A handled page fault is one or more [`add`](Self::add) and then one
/// [`fault_handled`](Self::fault_handled). An unmapping or a fork is
/// [`add_vector`](Self::add_vector).
pub trait Design: fmt::Debug + Send + Sync {
    /// Returns the number of shared lines on each level, for all spaces together.
    fn lines(&self) -> Vec<usize>;

    /// Adds `delta` pages to `to`.
    fn add(&self, by: Writer, to: Count, delta: i64, traffic: &mut dyn Traffic);

    /// Adds one delta for each member to a space: the sums of a page-table walk.
    fn add_vector(
        &self,
        by: Writer,
        space: SpaceId,
        deltas: [i64; Member::ALL.len()],
        traffic: &mut dyn Traffic,
    ) {
        for (member, delta) in Member::ALL.into_iter().zip(deltas) {
            if delta != 0 {
                self.add(by, Count { space, member }, delta, traffic);
            }
        }
    }

    /// Ends a page fault of `by`.
    fn fault_handled(&self, by: Writer, traffic: &mut dyn Traffic) {
        let _ = (by, traffic);
    }

    /// Switches `cpu` to a task of `next`, or to a task that borrows the previous space.
    fn switch(&self, cpu: CpuId, next: Option<SpaceId>, traffic: &mut dyn Traffic) {
        let _ = (cpu, next, traffic);
    }

    /// The task leaves its space, on its CPU: it exits, or continues in another one (exec).
    fn leave(&self, by: Writer, traffic: &mut dyn Traffic) {
        let _ = (by, traffic);
    }

    /// Returns the design's cheap reading.
    fn read(&self, of: Count) -> i64;

    /// Returns the interval that the design promises to hold the precise value when no update is in
    /// flight; `None` if it promises nothing.
    fn estimate(&self, of: Count) -> Option<Estimate<i64>>;

    /// Returns the sum of all additions. Exact when no update is in flight.
    fn precise(&self, of: Count) -> i64;

    /// As [`read`](Self::read), of all resident members together.
    fn read_resident(&self, space: SpaceId) -> i64 {
        let members = Member::RESIDENT.into_iter();
        members
            .map(|member| self.read(Count { space, member }))
            .sum()
    }

    /// As [`estimate`](Self::estimate), of all resident members together.
    fn estimate_resident(&self, space: SpaceId) -> Option<Estimate<i64>> {
        let mut total = Estimate::exact(0);
        for member in Member::RESIDENT {
            let Estimate { value, low, high } = self.estimate(Count { space, member })?;
            total.value += value;
            total.low += low;
            total.high += high;
        }
        Some(total)
    }

    /// As [`precise`](Self::precise), of all resident members together.
    fn precise_resident(&self, space: SpaceId) -> i64 {
        let members = Member::RESIDENT.into_iter();
        members
            .map(|member| self.precise(Count { space, member }))
            .sum()
    }

    /// Returns the memory of one space, of one task, and of the rest of the machine, in the
    /// authors' layout.
    fn footprint(&self) -> Footprint;
}

/// Memory of a design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// For each space: all four members.
    pub space_bytes: u64,
    /// For each task.
    pub task_bytes: u64,
    /// Once.
    pub machine_bytes: u64,
}

/// A design that has a counter for each member of each space, and ignores tasks.
#[derive(Debug)]
pub struct PerSpace<C> {
    /// By space, then by member.
    counters: Box<[C]>,
    /// Lines of one counter.
    lines: Vec<usize>,
}

impl<C: Counter> PerSpace<C> {
    /// Creates counters for `spaces` spaces.
    ///
    /// # Panics
    ///
    /// When `spaces` is 0.
    #[must_use]
    pub fn new(spaces: usize, counter: impl FnMut() -> C) -> Self {
        assert!(spaces > 0, "a machine has at least one space");
        let counters: Box<[C]> = std::iter::repeat_with(counter)
            .take(spaces * Member::ALL.len())
            .collect();
        let lines = counters[0].lines();
        Self { counters, lines }
    }

    /// Returns the counter of one member.
    #[must_use]
    pub fn counter(&self, of: Count) -> &C {
        &self.counters[index(of)]
    }
}

fn index(of: Count) -> usize {
    of.space.index() * Member::ALL.len() + of.member.index()
}

impl<C: Counter> Design for PerSpace<C> {
    fn lines(&self) -> Vec<usize> {
        let one = self.lines.iter();
        one.map(|lines| lines * self.counters.len()).collect()
    }

    fn add(&self, by: Writer, to: Count, delta: i64, traffic: &mut dyn Traffic) {
        let mut shifted = Shifted {
            lines: &self.lines,
            counter: index(to),
            traffic,
        };
        self.counter(to).add_on(by.cpu, delta, &mut shifted);
    }

    /// As the kernel does: values below zero read as zero.
    fn read(&self, of: Count) -> i64 {
        self.counter(of).approximate_sum().value.max(0)
    }

    fn estimate(&self, of: Count) -> Option<Estimate<i64>> {
        Some(self.counter(of).approximate_sum())
    }

    fn precise(&self, of: Count) -> i64 {
        self.counter(of).precise_sum()
    }

    fn footprint(&self) -> Footprint {
        Footprint {
            space_bytes: Member::ALL.iter().map(|_| self.counters[0].bytes()).sum(),
            ..Footprint::default()
        }
    }
}

/// Maps the lines of one counter into those of all.
struct Shifted<'a> {
    lines: &'a [usize],
    counter: usize,
    traffic: &'a mut dyn Traffic,
}

impl Traffic for Shifted<'_> {
    fn wrote(&mut self, line: Line, cpu: CpuId) {
        let index = self.counter * self.lines[line.level] + line.index;
        self.traffic.wrote(Line { index, ..line }, cpu);
    }
}
