//! A population of spaces: the same pages on the same CPUs, in three layouts.

use fastrand::Rng;
use highwater::counter::{Accuracy, CounterSet, Layout};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::{Bytes, CpuId, Estimate, Pages};
use highwater::victim::{Candidates, Standing};

use crate::baselines::{FlatSpaces, Member, Tasks, TreeCounter, TreeSpaces};
use crate::control::Control;
use crate::experiments::{ExperimentError, Setup};

/// Indifference in thousandths of the largest: a victim that holds at most that much less is right.
pub(super) const INDIFFERENCE: u32 = 10;

/// Pages of a space: 50 to 150 MiB.
const PAGES_MIN: i64 = 12_800;
const PAGES_MAX: i64 = 38_400;
/// Size of the hog, in spaces of mean size.
const HOG: i64 = 100;
/// Percentages of a space in file pages, anonymous pages, swap, and shared memory.
const SHARES: [i64; 4] = [20, 70, 5, 5];

/// CPUs on which the pages of a space are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// On every CPU.
    Everywhere,
    /// Mostly on one, some on a few, few on 64.
    AsProcesses,
    /// On one; every fiftieth space on 8.
    MostlyOne,
}

impl Spread {
    fn draw(self, rng: &mut Rng, space: usize, nr_cpus: usize) -> Vec<CpuId> {
        let count = match (self, rng.u32(0..100)) {
            (Self::Everywhere, _) => return (0..nr_cpus).map(CpuId::from_index).collect(),
            (Self::AsProcesses, 0..60) => 1,
            (Self::AsProcesses, 60..85) => rng.usize(2..=4),
            (Self::AsProcesses, 85..95) => rng.usize(5..=16),
            (Self::AsProcesses, _) => rng.usize(17..=64),
            (Self::MostlyOne, _) if space.is_multiple_of(50) => 8,
            (Self::MostlyOne, _) => 1,
        };
        // May draw one CPU twice, so that there is one less.
        let draw = |_| CpuId::from_index(rng.usize(..nr_cpus));
        (0..count).map(draw).collect()
    }
}

/// Distribution of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    /// One space holds a hundred times the memory of the others.
    OneHog,
    /// All are similar.
    Similar,
}

/// The library's counters of many spaces, one after the other, as an engine keeps them.
#[derive(Debug)]
pub(super) struct OurSpaces {
    sets: Vec<CounterSet<4>>,
}

impl OurSpaces {
    pub(super) fn new(topology: &Topology, nr_spaces: usize) -> Self {
        let layout = Layout::new(topology, Regime::Atomic);
        let sets = (0..nr_spaces).map(|_| CounterSet::new(&layout));
        Self {
            sets: sets.collect(),
        }
    }

    pub(super) fn sets(&self) -> &[CounterSet<4>] {
        &self.sets
    }

    /// Returns the number of cache lines that a look at a space reads, and an exact sum.
    pub(super) fn lines_read(&self, space: usize) -> [u64; 2] {
        self.sets[space]
            .lines_read(&MEMBERS)
            .map(|lines| lines as u64)
    }

    fn add_on(&self, cpu: CpuId, space: usize, member: Member, delta: i64) {
        self.sets[space].at(cpu).add(member.index(), delta);
    }
}

/// All four members: swap counts too.
const MEMBERS: [usize; 4] = [0, 1, 2, 3];

impl Candidates for OurSpaces {
    type Id = usize;

    fn for_each(&self, mut visit: impl FnMut(usize, &Standing)) {
        let mut ids = 0..;
        CounterSet::for_each_sum(&self.sets, &MEMBERS, |sum| {
            let id = ids.next().unwrap_or(usize::MAX);
            visit(id, &Estimate::<Pages>::from(sum).into());
        });
    }

    fn precise_usage(&self, id: usize) -> Option<Bytes> {
        let sum = self.sets[id].precise_sum_of(&MEMBERS);
        Some(Pages(u64::try_from(sum).unwrap_or(0)).bytes())
    }
}

/// One population in three layouts.
#[derive(Debug)]
pub(super) struct Spaces {
    /// Pages of the largest.
    most: i64,
    pub(super) flat: FlatSpaces,
    pub(super) trees: TreeSpaces,
    pub(super) ours: OurSpaces,
}

impl Spaces {
    pub(super) fn new(
        setup: &Setup,
        nr_spaces: usize,
        spread: Spread,
        sizes: Sizes,
        control: &Control,
    ) -> Result<Self, ExperimentError> {
        let topology = &setup.topology;
        let nr_cpus = topology.nr_cpus();
        let shape = TreeCounter::published(topology, Regime::Atomic).shape();
        let mut flat = FlatSpaces::new(nr_spaces, nr_cpus);
        let mut trees = TreeSpaces::new(nr_spaces, nr_cpus, shape);
        let ours = OurSpaces::new(topology, nr_spaces);
        let population = Population {
            setup,
            nr_spaces,
            spread,
            sizes,
        };
        population.draw(control, |part| {
            let Part {
                cpu,
                space,
                member,
                pages,
            } = part;
            flat.add_on(cpu, space, member, pages);
            trees.add_on(cpu, space, member, pages);
            ours.add_on(cpu, space, member, pages);
        })?;
        trees.settle();
        let held = (0..nr_spaces).map(|space| flat.exact(space));
        Ok(Self {
            most: held.max().unwrap_or(0),
            flat,
            trees,
            ours,
        })
    }

    /// Returns whether a space holds as much as the largest, within indifference.
    pub(super) fn is_right(&self, space: Option<usize>) -> bool {
        let held = space.map_or(0, |space| self.flat.exact(space));
        1000 * held >= (1000 - i64::from(INDIFFERENCE)) * self.most
    }

    /// Returns the number of spaces whose layouts disagree, or that are outside an interval.
    pub(super) fn faults(&self) -> u64 {
        let Accuracy { under, over } = self.trees.accuracy();
        let is_faulty = |(space, set): (usize, &CounterSet<4>)| {
            let exact = set.precise_sum_of(&MEMBERS);
            let shown = self.trees.approximate(space);
            exact != self.flat.exact(space)
                || exact != self.trees.exact(space)
                || !set.approximate_sum_of(&MEMBERS).contains(exact)
                || !(shown - over..=shown + under).contains(&exact)
        };
        let sets = self.ours.sets.iter().enumerate();
        sets.map(is_faulty).map(u64::from).sum()
    }
}

/// Returns the library's layout alone, and the hog.
pub(super) fn only_ours(
    setup: &Setup,
    nr_spaces: usize,
    spread: Spread,
    control: &Control,
) -> Result<(OurSpaces, usize), ExperimentError> {
    let ours = OurSpaces::new(&setup.topology, nr_spaces);
    let population = Population {
        setup,
        nr_spaces,
        spread,
        sizes: Sizes::OneHog,
    };
    let hog = population.draw(control, |part| {
        ours.add_on(part.cpu, part.space, part.member, part.pages);
    })?;
    Ok((ours, hog))
}

/// Parameters of a population.
struct Population<'a> {
    setup: &'a Setup,
    nr_spaces: usize,
    spread: Spread,
    sizes: Sizes,
}

/// Pages of one member of one space, counted on one CPU.
struct Part {
    cpu: CpuId,
    space: usize,
    member: Member,
    pages: i64,
}

/// Spaces drawn between checks of the stop flag.
const STRIDE: usize = 64;

impl Population<'_> {
    /// Draws the population and passes each part to `add`; returns the space that is or would be
    /// the hog.
    fn draw(&self, control: &Control, mut add: impl FnMut(Part)) -> Result<usize, ExperimentError> {
        let mut rng = Rng::with_seed(self.setup.options.seed);
        let nr_cpus = self.setup.topology.nr_cpus();
        let hog = rng.usize(..self.nr_spaces);
        for space in 0..self.nr_spaces {
            if space.is_multiple_of(STRIDE) {
                control.advance(0)?;
            }
            let pages = match rng.i64(PAGES_MIN..=PAGES_MAX) {
                _ if space == hog && self.sizes == Sizes::OneHog => {
                    HOG * i64::midpoint(PAGES_MIN, PAGES_MAX)
                }
                pages => pages,
            };
            let cpus = self.spread.draw(&mut rng, space, nr_cpus);
            for (member, share) in Member::ALL.into_iter().zip(SHARES) {
                let pages = pages * share / 100;
                scatter(&mut rng, pages, &cpus, |cpu, pages| {
                    add(Part {
                        cpu,
                        space,
                        member,
                        pages,
                    });
                });
            }
        }
        Ok(hog)
    }
}

/// Spreads pages over CPUs: each gets up to twice its even share of the rest, the last one the
/// remainder.
fn scatter(rng: &mut Rng, pages: i64, cpus: &[CpuId], mut add: impl FnMut(CpuId, i64)) {
    let mut left = pages;
    let mut to_come = i64::try_from(cpus.len()).unwrap_or(i64::MAX);
    for &cpu in cpus {
        let pages = match to_come {
            1 => left,
            _ => rng.i64(0..=2 * left / to_come),
        };
        left -= pages;
        to_come -= 1;
        add(cpu, pages);
    }
}
