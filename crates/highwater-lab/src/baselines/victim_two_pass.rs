//! OOM victim selection as proposed with the counter tree: two passes over approximate sums, with
//! up to 16 exact ones.
//!
//! Pass 1 keeps the highest approximate score and its uncertainty. Pass 2 visits every task again:
//!
//! ```text
//! approximate + over + chosen's under < chosen's score    discarded
//! fewer than 16 exact sums so far                         summed; discarded if exact + chosen's
//!                                                         under is below the chosen's score, else
//!                                                         chosen, and from now on certain
//! else                                                    chosen, with its approximate score
//! ```
//!
//! Flaws are kept. After the 16th sum, any task within the window replaces the choice, even if it
//! is smaller, and opens the window again, so that the choice walks down the list. A task's own
//! range enters the filter by its `over`, where `under` says how much more it may have.
//!
//! Source: accounting spec 6.3 and 6.4; the series of January 2026 (v16).
//! Deviation: no task list and no locks; all tasks have the same range, that of four members.

use highwater::counter::Accuracy;
use highwater::units::CpuId;

use super::Member;

const MEMBERS: usize = Member::ALL.len();

/// Limit of exact sums in one selection.
pub const EXACT_SUMS_MAX: usize = 16;

/// Candidates of the two passes, in the order of the task list.
pub trait Tasks {
    /// Returns the number of tasks.
    fn len(&self) -> usize;

    /// Returns a task's approximate score, without visiting any CPU.
    fn approximate(&self, task: usize) -> i64;

    /// Returns the error bounds of the approximate score: all members together.
    fn accuracy(&self) -> Accuracy;

    /// Returns a task's exact score, by visiting every CPU.
    fn exact(&self, task: usize) -> i64;

    /// Returns whether there are no tasks.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Result of the two passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoPassChoice {
    /// The task.
    pub task: usize,
    /// Number of exact sums.
    pub exact_sums: usize,
}

/// Chooses a task in two passes.
pub fn select_two_pass(tasks: &impl Tasks) -> Option<TwoPassChoice> {
    let Accuracy { under, over } = tasks.accuracy();
    let mut chosen: Option<(usize, i64)> = None;
    for task in 0..tasks.len() {
        let points = tasks.approximate(task);
        if chosen.is_none_or(|(_, most)| points >= most) {
            chosen = Some((task, points));
        }
    }
    let (mut task, mut points) = chosen?;
    let mut chosen_under = under;
    let mut exact_sums = 0;
    for other in 0..tasks.len() {
        let approximate = tasks.approximate(other);
        if approximate + over + chosen_under < points {
            continue;
        }
        if exact_sums < EXACT_SUMS_MAX {
            exact_sums += 1;
            let exact = tasks.exact(other);
            if exact + chosen_under < points {
                continue;
            }
            (task, points, chosen_under) = (other, exact, 0);
        } else {
            (task, points, chosen_under) = (other, approximate, under);
        }
    }
    Some(TwoPassChoice { task, exact_sums })
}

/// A node on a line of its own.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Node(i64);

/// The published counter trees of many spaces, laid out as proposed: the nodes of a space's four
/// counters at the end of the space, the words of all spaces CPU by CPU.
///
/// Filled once, then read. The values of nodes depend on the sums below them only, not on the order
/// of additions, so they are computed from the words.
#[derive(Debug)]
pub struct TreeSpaces {
    nr_spaces: usize,
    shape: TreeShape,
    /// The nodes of each space: for each member level 1 first, the root last.
    nodes: Vec<Node>,
    /// The words of one space for each CPU: `cpu * nr_spaces + space`.
    words: Vec<[i64; MEMBERS]>,
}

/// Levels and promise of a tree, taken from one counter of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeShape {
    /// Nodes of each level between the words and the root, the lowest level first.
    pub widths: Vec<usize>,
    /// Modulus of the words, then of each level.
    pub moduli: Vec<i64>,
    /// Error bounds of one counter.
    pub accuracy: Accuracy,
}

impl TreeShape {
    fn items(&self) -> usize {
        self.widths.iter().sum::<usize>() + 1
    }
}

impl TreeSpaces {
    /// Creates spaces that use nothing.
    #[must_use]
    pub fn new(nr_spaces: usize, nr_cpus: usize, shape: TreeShape) -> Self {
        Self {
            nr_spaces,
            nodes: vec![Node::default(); nr_spaces * MEMBERS * shape.items()],
            words: vec![[0; MEMBERS]; nr_spaces * nr_cpus],
            shape,
        }
    }

    /// Adds as if running on `cpu`; [`settle`](Self::settle) completes the additions.
    ///
    /// # Panics
    ///
    /// When there is no such space or CPU.
    pub fn add_on(&mut self, cpu: CpuId, space: usize, member: Member, delta: i64) {
        self.words[cpu.index() * self.nr_spaces + space][member.index()] += delta;
    }

    /// Carries all additions up to the roots.
    pub fn settle(&mut self) {
        for space in 0..self.nr_spaces {
            for member in Member::ALL {
                self.settle_one(space, member);
            }
        }
    }

    fn settle_one(&mut self, space: usize, member: Member) {
        let first = self.first_node(space, member);
        let words = self.words.iter().skip(space).step_by(self.nr_spaces);
        let mut below: Vec<i64> = words.map(|words| words[member.index()]).collect();
        let mut at = first;
        for (width, modulus) in self.shape.widths.iter().zip(&self.shape.moduli) {
            let mut level = vec![0; *width];
            for (index, value) in below.iter().enumerate() {
                level[index % width] += value.div_euclid(*modulus) * modulus;
            }
            for (node, value) in self.nodes[at..].iter_mut().zip(&level) {
                node.0 = *value;
            }
            at += width;
            below = level;
        }
        let modulus = self.shape.moduli[self.shape.widths.len()];
        let carried = below
            .iter()
            .map(|value| value.div_euclid(modulus) * modulus);
        self.nodes[at].0 = carried.sum();
    }

    fn first_node(&self, space: usize, member: Member) -> usize {
        (space * MEMBERS + member.index()) * self.shape.items()
    }

    /// Returns the root's value of one counter.
    #[must_use]
    pub fn root(&self, space: usize, member: Member) -> i64 {
        let items = self.shape.items();
        self.nodes[self.first_node(space, member) + items - 1].0
    }

    /// A call, as in the kernel: the four walks are not merged into one.
    #[inline(never)]
    fn sum(&self, space: usize, member: Member) -> i64 {
        let words = self.words.iter().skip(space).step_by(self.nr_spaces);
        words.map(|words| words[member.index()]).sum()
    }

    /// Returns the number of cache lines that an approximate sum reads, and of those that an exact
    /// one reads.
    #[must_use]
    pub fn lines_read(&self) -> [u64; 2] {
        let nr_cpus = self.words.len() / self.nr_spaces.max(1);
        [MEMBERS as u64, nr_cpus as u64]
    }

    /// Returns the memory of the counters.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.nodes[..]) + size_of_val(&self.words[..])) as u64
    }
}

impl Tasks for TreeSpaces {
    fn len(&self) -> usize {
        self.nr_spaces
    }

    fn approximate(&self, task: usize) -> i64 {
        let members = Member::ALL.into_iter();
        members.map(|member| self.root(task, member).max(0)).sum()
    }

    fn accuracy(&self) -> Accuracy {
        let one = self.shape.accuracy;
        let all = |each: i64| Member::ALL.iter().map(|_| each).sum();
        Accuracy {
            under: all(one.under),
            over: all(one.over),
        }
    }

    fn exact(&self, task: usize) -> i64 {
        let members = Member::ALL.into_iter();
        members.map(|member| self.sum(task, member)).sum()
    }
}

#[cfg(test)]
mod tests {
    use highwater::lab::percpu::Regime;
    use highwater::topology::Topology;

    use super::*;
    use crate::baselines::{Counter, TreeCounter, Untracked};

    /// Scores and approximations by task.
    struct Listed {
        exact: Vec<i64>,
        approximate: Vec<i64>,
        accuracy: Accuracy,
    }

    impl Tasks for Listed {
        fn len(&self) -> usize {
            self.exact.len()
        }

        fn approximate(&self, task: usize) -> i64 {
            self.approximate[task]
        }

        fn accuracy(&self) -> Accuracy {
            self.accuracy
        }

        fn exact(&self, task: usize) -> i64 {
            self.exact[task]
        }
    }

    /// Goal: roots equal those of the counter. Method: the same additions to counters of the
    /// published tree, which carry one by one.
    #[test]
    fn roots_are_those_of_the_counter() {
        for cpus in [8, 64, 250, 256, 384] {
            let topology = Topology::flat(cpus);
            let counter = TreeCounter::published(&topology, Regime::Atomic);
            let mut spaces = TreeSpaces::new(3, cpus, counter.shape());
            let mut rng = fastrand::Rng::with_seed(7);
            for _ in 0..30_000 {
                let cpu = CpuId::from_index(rng.usize(..cpus));
                let delta = rng.i64(-500..600);
                counter.add_on(cpu, delta, &mut Untracked);
                spaces.add_on(cpu, 1, Member::Anon, delta);
            }
            spaces.settle();
            assert_eq!(
                spaces.root(1, Member::Anon),
                counter.approximate_sum().value
            );
            assert_eq!(spaces.exact(1), counter.precise_sum());
            assert_eq!((spaces.exact(0), spaces.approximate(2)), (0, 0));
            assert_eq!(spaces.accuracy().under, 4 * counter.accuracy().under);
        }
    }

    /// Goal: the published walk-down. Method: equals in falling order, all within the window; the
    /// last one is chosen, after 16 sums.
    #[test]
    fn the_choice_walks_down_the_list() {
        let exact: Vec<i64> = (0..100).map(|at| 10_000 - at).collect();
        let tasks = Listed {
            approximate: exact.clone(),
            exact,
            accuracy: Accuracy {
                under: 50,
                over: 50,
            },
        };
        let choice = select_two_pass(&tasks);
        let last = TwoPassChoice {
            task: 99,
            exact_sums: EXACT_SUMS_MAX,
        };
        assert_eq!(choice, Some(last));
    }

    /// Goal: a single hog is found, with few sums. Method: it is summed, after the tasks that its
    /// uncertainty admits.
    #[test]
    fn a_hog_is_found() {
        let mut exact = vec![100; 1000];
        exact[400] = 10_000;
        let tasks = Listed {
            approximate: exact.clone(),
            exact,
            accuracy: Accuracy {
                under: 500,
                over: 500,
            },
        };
        let choice = select_two_pass(&tasks).unwrap();
        assert_eq!((choice.task, choice.exact_sums), (400, 1));
    }
}
