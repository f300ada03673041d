//! Processes of one task each, which fault pages in on a few CPUs, take turns, exec and exit.
//!
//! Each CPU runs one process until its time slice or its life is over. Then it takes a new process,
//! or a waiting one: with the probability *affinity* one that ran here last, else the one that has
//! waited longest. A process that execs is started by its parent: the parent's space is active
//! while arguments are written into the new space, which is not. Then the new space becomes active.
//! Now and then a process touches another one's space, as a debugger does.
//!
//! Invariant: the steps of a space sum to zero at the end, and to the process's mapped pages before
//! that.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use fastrand::Rng;
use highwater::units::CpuId;

use super::step::Step;
use crate::baselines::{Count, Member, SpaceId, TaskId, Writer};

/// The space of the process that starts all others. It has no pages of its own.
const PARENT: SpaceId = SpaceId(0);

/// Pages of a process at which it unmaps some. Chosen: 16 MiB.
const MAPPED_MAX: i64 = 4096;

/// Limit of one member's pages in one unmapping: those of a page table.
const UNMAP_MAX: i64 = 512;

/// One fault in so many brings a page of a file; the others are anonymous.
const FILE_EVERY: u32 = 4;

/// Start of a process, and its lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// Starts by exec, with argument pages in this range, and a random number of faults for each of
    /// them.
    Exec {
        /// Argument pages.
        arguments: RangeInclusive<u32>,
        /// Faults for each of them on average.
        faults_for_each: u32,
    },
    /// Exists from the start, for this many faults.
    Resident {
        /// Faults.
        faults: u32,
    },
}

/// Parameters of the processes.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// CPUs.
    pub cpus: usize,
    /// Processes at once.
    pub spaces: usize,
    /// Processes in all.
    pub processes: usize,
    /// Probability that a CPU takes a process that it ran before.
    pub affinity: f64,
    /// Mean number of faults of a time slice, which varies from half to one and a half times as
    /// many.
    pub slice: u32,
    /// Start of a process, and its lifetime.
    pub life: Life,
    /// Mean number of faults for each page that a process adds to another one's space; 0 for never.
    pub foreign_every: u32,
}

impl Mix {
    /// Returns the number of spaces that the steps name.
    #[must_use]
    pub const fn nr_spaces(&self) -> usize {
        self.processes + 1
    }

    /// Returns the approximate number of faults of all processes.
    #[must_use]
    pub fn nr_faults(&self) -> u64 {
        let each = match &self.life {
            Life::Resident { faults } => *faults,
            Life::Exec {
                arguments,
                faults_for_each,
            } => u32::midpoint(*arguments.start(), *arguments.end()) * faults_for_each,
        };
        self.processes as u64 * u64::from(each)
    }

    /// Returns the number of tasks that the steps name.
    #[must_use]
    pub const fn nr_tasks(&self) -> usize {
        self.spaces
    }
}

#[derive(Debug)]
struct Process {
    space: SpaceId,
    last_cpu: CpuId,
    faults_left: u32,
    pages: [i64; Member::ALL.len()],
}

/// Time slice of a CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// The process, by its slot.
    running: Option<usize>,
    faults_left: u32,
}

/// Iterator over the steps of a [`Mix`].
#[derive(Debug)]
pub struct Processes {
    mix: Mix,
    rng: Rng,
    /// Live processes. A slot is also the number of the process's task.
    places: Vec<Option<Process>>,
    /// Slots without a process.
    vacant: Vec<usize>,
    /// Slots of processes that no CPU runs.
    waiting: VecDeque<usize>,
    turns: Vec<Turn>,
    /// The CPU that does the next step.
    next_cpu: usize,
    nr_begun: u32,
    /// Further steps of the last action.
    pending: VecDeque<Step>,
}

impl Processes {
    /// Returns the steps of `mix`, drawn from `seed`.
    ///
    /// # Panics
    ///
    /// When there is no CPU or no room for a process, or no slice.
    #[must_use]
    pub fn new(mix: Mix, seed: u64) -> Self {
        assert!(mix.cpus > 0 && mix.spaces > 0 && mix.slice > 0, "{mix:?}");
        Self {
            rng: Rng::with_seed(seed),
            places: (0..mix.spaces).map(|_| None).collect(),
            vacant: (0..mix.spaces).rev().collect(),
            waiting: VecDeque::new(),
            turns: vec![Turn::default(); mix.cpus],
            next_cpu: 0,
            nr_begun: 0,
            pending: VecDeque::new(),
            mix,
        }
    }

    /// Draws a number from half of `mean` to one and a half times as many.
    fn about(&mut self, mean: u32) -> u32 {
        let half = mean / 2;
        self.rng.u32(mean - half..=mean + half)
    }

    fn writer(&self, cpu: CpuId, place: usize) -> Writer {
        let task = TaskId(u32::try_from(place).expect("places are numbered with 32 bits"));
        let space = self.places[place].as_ref().map(|process| process.space);
        Writer { cpu, task, space }
    }

    /// Gives a CPU without a process a new one, or one that waits.
    fn take_turn(&mut self, cpu: CpuId) -> bool {
        let may_begin = self.may_begin();
        let place = match self.vacant.pop_if(|_| may_begin) {
            Some(place) => {
                self.begin(cpu, place);
                place
            }
            None => match self.waiting_for(cpu) {
                Some(place) => place,
                None => return false,
            },
        };
        let to = self.writer(cpu, place).space;
        self.pending.push_back(Step::Switch { cpu, to });
        let faults_left = self.about(self.mix.slice);
        self.turns[cpu.index()] = Turn {
            running: Some(place),
            faults_left,
        };
        true
    }

    fn may_begin(&self) -> bool {
        !self.vacant.is_empty() && (self.nr_begun as usize) < self.mix.processes
    }

    fn waiting_for(&mut self, cpu: CpuId) -> Option<usize> {
        let is_sticky = self.rng.f64() < self.mix.affinity;
        let ran_here = |place: &usize| {
            let process = self.places[*place].as_ref();
            process.is_some_and(|process| process.last_cpu == cpu)
        };
        let at = self.waiting.iter().position(ran_here);
        let at = at.filter(|_| is_sticky).unwrap_or(0);
        self.waiting.remove(at)
    }

    /// Starts a new process on `cpu`.
    fn begin(&mut self, cpu: CpuId, place: usize) {
        self.nr_begun += 1;
        let space = SpaceId(self.nr_begun);
        let (arguments, faults_left) = match self.mix.life.clone() {
            Life::Resident { faults } => (0, faults),
            Life::Exec {
                arguments,
                faults_for_each,
            } => {
                let arguments = self.rng.u32(arguments);
                (arguments, self.about(arguments * faults_for_each))
            }
        };
        let mut pages = [0; Member::ALL.len()];
        if arguments > 0 {
            let by = Writer {
                space: Some(PARENT),
                ..self.writer(cpu, place)
            };
            let to = Some(PARENT);
            self.pending.push_back(Step::Switch { cpu, to });
            let member = Member::Anon;
            let to = Count { space, member };
            for _ in 0..arguments {
                self.pending.push_back(Step::Fault { by, to, pages: 1 });
                pages[member.index()] += 1;
            }
            self.pending.push_back(Step::Leave { by });
        }
        self.places[place] = Some(Process {
            space,
            last_cpu: cpu,
            faults_left,
            pages,
        });
    }

    /// Adds the next steps of the process that runs on `cpu`.
    fn run(&mut self, cpu: CpuId, place: usize) {
        let by = self.writer(cpu, place);
        let others_want_it = !self.waiting.is_empty() || self.may_begin();
        let turn = &mut self.turns[cpu.index()];
        let process = self.places[place]
            .as_mut()
            .expect("a process that runs lives");
        if process.faults_left == 0 {
            self.end(cpu, place);
            return;
        }
        if turn.faults_left == 0 {
            if others_want_it {
                turn.running = None;
                process.last_cpu = cpu;
                self.waiting.push_back(place);
                return;
            }
            turn.faults_left = self.mix.slice;
        }
        turn.faults_left -= 1;
        process.faults_left -= 1;
        let space = process.space;
        let member = match self.rng.u32(..FILE_EVERY) {
            0 => Member::File,
            _ => Member::Anon,
        };
        process.pages[member.index()] += 1;
        let to = Count { space, member };
        self.pending.push_back(Step::Fault { by, to, pages: 1 });
        if process.pages.iter().sum::<i64>() >= MAPPED_MAX {
            self.pending.extend(unmap(by, process));
        }
        self.touch_another(by);
    }

    /// Now and then, adds a page to another process's space.
    fn touch_another(&mut self, by: Writer) {
        let every = self.mix.foreign_every;
        if every == 0 || self.rng.u32(..every) != 0 {
            return;
        }
        let place = self.rng.usize(..self.places.len());
        let other = self.places[place].as_mut();
        if let Some(other) = other.filter(|other| Some(other.space) != by.space) {
            let (space, member) = (other.space, Member::Anon);
            other.pages[member.index()] += 1;
            let to = Count { space, member };
            self.pending.push_back(Step::Add { by, to, pages: 1 });
        }
    }

    /// Ends the process: unmaps all its pages.
    fn end(&mut self, cpu: CpuId, place: usize) {
        let by = self.writer(cpu, place);
        let mut process = self.places[place]
            .take()
            .expect("a process that ends lives");
        while let Some(step) = unmap(by, &mut process) {
            self.pending.push_back(step);
        }
        self.pending.push_back(Step::Leave { by });
        self.vacant.push(place);
        self.turns[cpu.index()].running = None;
    }
}

/// Returns a step that unmaps as many pages as one unmapping can; `None` if nothing is mapped.
fn unmap(by: Writer, process: &mut Process) -> Option<Step> {
    let deltas = process.pages.map(|pages| -pages.min(UNMAP_MAX));
    if deltas.iter().all(|delta| *delta == 0) {
        return None;
    }
    for (pages, delta) in process.pages.iter_mut().zip(deltas) {
        *pages += delta;
    }
    let space = process.space;
    Some(Step::Unmap { by, space, deltas })
}

impl Iterator for Processes {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let mut idle = 0;
        loop {
            if let Some(step) = self.pending.pop_front() {
                return Some(step);
            }
            let cpu = CpuId::from_index(self.next_cpu);
            self.next_cpu = (self.next_cpu + 1) % self.mix.cpus;
            let running = self.turns[cpu.index()].running;
            if let Some(place) = running {
                self.run(cpu, place);
            } else if !self.take_turn(cpu) {
                idle += 1;
                if idle > self.mix.cpus {
                    return None;
                }
                continue;
            }
            idle = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix() -> Mix {
        Mix {
            cpus: 4,
            spaces: 7,
            processes: 40,
            affinity: 0.5,
            slice: 30,
            life: Life::Exec {
                arguments: 1..=3,
                faults_for_each: 100,
            },
            foreign_every: 50,
        }
    }

    /// Goal: every process maps, is switched to before it faults, and leaves nothing; argument
    /// pages go to a space that is active nowhere. Method: follow the steps of two mixes beside a
    /// plain sum.
    #[test]
    fn steps_are_those_of_processes() {
        let mut long = mix();
        long.life = Life::Resident { faults: 9000 };
        for mix in [mix(), long] {
            let mut active = vec![None; mix.cpus];
            let mut sums = vec![[0_i64; 4]; mix.nr_spaces()];
            let (mut faults, mut elsewhere, mut left) = (0_u32, 0, 0);
            let has_exec = matches!(mix.life, Life::Exec { .. });
            for step in Processes::new(mix.clone(), 3) {
                match step {
                    Step::Switch { cpu, to } => active[cpu.index()] = to,
                    Step::Fault { by, to, pages } | Step::Add { by, to, pages } => {
                        assert!(by.task.index() < mix.nr_tasks());
                        assert_eq!(by.space, active[by.cpu.index()]);
                        faults += 1;
                        let is_active = active.contains(&Some(to.space));
                        elsewhere += u32::from(by.space != Some(to.space));
                        assert!(
                            !is_active
                                || by.space == Some(to.space)
                                || matches!(step, Step::Add { .. })
                        );
                        sums[to.space.index()][to.member.index()] += pages;
                    }
                    Step::Unmap { by, space, deltas } => {
                        assert_eq!(
                            (by.space, active[by.cpu.index()]),
                            (Some(space), Some(space))
                        );
                        for (sum, delta) in sums[space.index()].iter_mut().zip(deltas) {
                            *sum += delta;
                            assert!(*sum >= 0);
                        }
                    }
                    Step::Leave { .. } => left += 1,
                }
            }
            assert!(sums.iter().flatten().all(|sum| *sum == 0));
            assert_eq!(left, if has_exec { 80 } else { 40 });
            let expected = mix.nr_faults();
            assert!((expected / 2..=expected * 2).contains(&u64::from(faults)));
            assert!(elsewhere > 40 && faults > 40 * 100, "{elsewhere} {faults}");
        }
    }

    /// Goal: one seed, one workload. Method: the same twice, and another seed.
    #[test]
    fn a_seed_decides_everything() {
        let steps = |seed| Processes::new(mix(), seed).collect::<Vec<_>>();
        assert_eq!(steps(1), steps(1));
        assert_ne!(steps(1), steps(2));
    }

    /// Goal: affinity is the part of the turns in which processes stay. Method: moves between CPUs,
    /// with full and no affinity.
    #[test]
    fn affinity_keeps_processes_where_they_were() {
        let moves = |affinity| {
            let mut mix = mix();
            mix.affinity = affinity;
            mix.life = Life::Resident { faults: 3000 };
            mix.foreign_every = 0;
            let mut last = vec![None; mix.nr_spaces()];
            let mut moves = 0;
            for step in Processes::new(mix, 1) {
                if let Step::Switch {
                    cpu,
                    to: Some(space),
                } = step
                {
                    let before = last[space.index()].replace(cpu);
                    moves += u32::from(before.is_some_and(|before| before != cpu));
                }
            }
            moves
        };
        assert!(moves(1.0) * 2 < moves(0.0), "{} {}", moves(1.0), moves(0.0));
    }
}
