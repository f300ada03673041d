//! One round of one variant: a pool of its own, filled and emptied a few times by all tenants at
//! once.
//!
//! The first turn is a warm-up: after it, the layout of free blocks is stationary, and lists have
//! tuned their size. Tenants meet before they fill and before they exit, so that all exit at once
//! and the phases do not overlap; or they exit one after the other, so that their holds are
//! uncontended. In the last turn of some rounds every third tenant stays, and the free memory
//! between them is counted in blocks of 2 MiB.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use highwater::frame::{FramePool, PcpCounters};
use highwater::lab::memmap::FrameMemory;
use highwater::units::{Order, Pages};

use super::bystander::{Phase, Stood, stand_by};
use super::tenants::{Machine, ReverseMap, Tenant, bystander_cpu, tenants};
use super::variants::{Exits, TENANTS, Variant};
use super::zone::ZoneTimes;
use crate::experiments::clock::thread_ns;
use crate::experiments::crew::{Crew, Hand};
use crate::experiments::meeting::{Meeting, Member};
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;

/// Measured turns of a round.
pub(super) const TURNS: u64 = 3;

/// One tenant in so many stays while blocks are counted.
const STAYS: usize = 3;

/// Memory that all rounds use, one after the other.
#[derive(Debug)]
pub(super) struct Ground {
    memory: Arc<FrameMemory>,
    rmap: ReverseMap,
    /// Frames of each of [`TENANTS`] tenants.
    frames: usize,
    nr_cpus: usize,
}

impl Ground {
    /// Allows for lists, which may hold an eighth of the memory, for the bystander, and for
    /// watermarks.
    pub(super) fn new(setup: &Setup, frames: usize) -> Result<Self, ExperimentError> {
        let needed = (frames * TENANTS) as u64;
        let pages = Pages(needed + needed / 4 + 4096);
        let memory = FrameMemory::new(pages).map_err(ExperimentError::Memory)?;
        Ok(Self {
            rmap: ReverseMap::new(pages),
            memory: super::tenants::touched(memory),
            frames,
            nr_cpus: setup.topology.nr_cpus(),
        })
    }

    pub(super) fn pages(&self) -> Pages {
        self.memory.pages()
    }
}

/// Results of a round's measured turns.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    /// Time from the start of the exits to the end of the last one.
    pub(super) exit_s: f64,
    /// Sum of the tenants' exit times.
    pub(super) exits_s: f64,
    pub(super) exits: u64,
    /// CPU time of all tenants while they exited.
    pub(super) cpu_s: f64,
    pub(super) freed: u64,
    pub(super) fill_s: f64,
    /// Zone visits while tenants filled, and while they exited.
    pub(super) filling: ZoneTimes,
    pub(super) exiting: ZoneTimes,
    pub(super) nr_refills: u64,
    pub(super) nr_drains: u64,
    pub(super) stood: Stood,
    /// Frames in lists after all tenants have filled, and after they have exited.
    pub(super) cached_when_full: u64,
    pub(super) cached_when_empty: u64,
    /// Free blocks, in rounds that count them.
    pub(super) blocks: Option<FreeBlocks>,
    /// Frames that were lost, are still charged, or had the wrong owner.
    pub(super) wrong: u64,
    pub(super) refused: u64,
}

/// Free memory while one tenant in [`STAYS`] is resident.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeBlocks {
    /// Blocks of 2 MiB.
    pub(super) whole: u64,
    /// Blocks of 2 MiB that the free frames would make if they were contiguous.
    pub(super) possible: u64,
}

/// Times of one tenant's exit.
#[derive(Clone, Copy, Debug)]
struct Exit {
    ended: Instant,
    took: Duration,
    cpu_ns: u64,
    freed: u64,
}

/// Runs round `number` of `variant`.
pub(super) fn run(
    setup: &Setup,
    ground: &Ground,
    variant: &Variant,
    number: u64,
    blocks: Blocks,
) -> Result<Round, ExperimentError> {
    let config = variant.config(ground.nr_cpus);
    let pool = FramePool::with_config(Arc::clone(&ground.memory), config)?;
    let machine = Machine {
        pool: &pool,
        memory: &ground.memory,
        rmap: &ground.rmap,
    };
    let seed = setup
        .options
        .seed
        .wrapping_mul(1_000_003)
        .wrapping_add(number);
    let mut tenants = tenants(variant.tenants, ground.frames, ground.nr_cpus, seed);
    let phase = Phase::default();
    let bystander = bystander_cpu(ground.nr_cpus);
    let mut round = thread::scope(|scope| {
        let crew = Crew::new(scope);
        let bystander = crew.start(|| stand_by(&pool, bystander, &phase, seed))?;
        crew.go();
        let mut round = {
            let _ends = phase.ends();
            turns(&machine, &mut tenants, &phase, variant.exits)?
        };
        round.stood = bystander.join();
        Ok::<_, ExperimentError>(round)
    })?;
    if blocks == Blocks::Counted {
        round.blocks = Some(count_blocks(&machine, &mut tenants)?);
    }
    pool.drain_all();
    if number == 0 {
        pool.check_invariants();
    }
    let lost = pool.managed().0 - pool.nr_free().0;
    let wrong = tenants.iter().map(|tenant| tenant.wrong + tenant.charged());
    round.wrong = wrong.sum::<u64>() + lost + ground.rmap.mapped();
    round.refused = tenants.iter().map(|tenant| tenant.refused).sum();
    Ok(round)
}

/// Whether a round counts free blocks at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    Counted,
    Left,
}

/// Counts of the pool at one moment.
#[derive(Clone, Debug)]
struct Snapshot {
    taken: Instant,
    times: ZoneTimes,
    counters: PcpCounters,
    cached: u64,
}

impl Snapshot {
    fn of(pool: &FramePool) -> Self {
        Self {
            times: ZoneTimes::of(pool),
            counters: pool.counters(),
            cached: pool.counts().cached.0,
            taken: Instant::now(),
        }
    }
}

/// Snapshots of one turn.
#[derive(Clone, Debug)]
struct Turn {
    begun: Snapshot,
    filled: Duration,
    full: Snapshot,
    empty: Snapshot,
}

/// Lets all tenants fill and exit, once unmeasured and then [`TURNS`] times.
///
/// # Errors
///
/// When the system refuses a thread.
fn turns(
    machine: &Machine<'_>,
    tenants: &mut [Tenant],
    phase: &Phase,
    exits: Exits,
) -> Result<Round, ExperimentError> {
    let meeting = &Meeting::new(tenants.len() + 1);
    let gate = &Gate {
        exits,
        turn: Mutex::new(()),
    };
    let (turns, exits) = thread::scope(|scope| {
        let crew = Crew::new(scope);
        let workers: Result<Vec<_>, _> = tenants
            .iter_mut()
            .map(|tenant| crew.start(move || work(machine, tenant, &meeting.member(), gate)))
            .collect();
        let workers = workers?;
        crew.go();
        let (idle, member) = (Phase::default(), meeting.member());
        let turns: Vec<_> = (0..=TURNS)
            .map(|turn| {
                let is_seen = turn > 0 && exits == Exits::AtOnce;
                let seen = if is_seen { phase } else { &idle };
                lead(machine.pool, &member, seen)
            })
            .collect();
        let exits: Vec<_> = workers.into_iter().map(Hand::join).collect();
        Ok::<_, ExperimentError>((turns, exits))
    })?;
    let mut round = Round::default();
    for (number, turn) in turns.iter().enumerate().skip(1) {
        round.add(turn, exits.iter().map(|exits| exits[number]));
    }
    Ok(round)
}

/// Leads the tenants through a turn, and takes snapshots of the pool between its phases.
fn lead(pool: &FramePool, member: &Member<'_>, phase: &Phase) -> Turn {
    let begun = Snapshot::of(pool);
    member.wait();
    member.wait();
    let filled = begun.taken.elapsed();
    phase.turn();
    let full = Snapshot::of(pool);
    member.wait();
    member.wait();
    phase.turn();
    Turn {
        begun,
        filled,
        full,
        empty: Snapshot::of(pool),
    }
}

/// Admits tenants to their exits: all at once, or one at a time.
#[derive(Debug)]
struct Gate {
    exits: Exits,
    turn: Mutex<()>,
}

impl Gate {
    /// Waits until the tenant may exit; returns the lock if it must be the only one.
    fn pass(&self) -> Option<MutexGuard<'_, ()>> {
        match self.exits {
            Exits::AtOnce => None,
            Exits::InTurn => Some(self.turn.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

/// A tenant's part of all turns.
fn work(machine: &Machine<'_>, tenant: &mut Tenant, member: &Member<'_>, gate: &Gate) -> Vec<Exit> {
    let turn = |_| {
        member.wait();
        tenant.fill(machine);
        member.wait();
        member.wait();
        let turn = gate.pass();
        let (begun, cpu_begun) = (Instant::now(), thread_ns());
        let freed = tenant.exit(machine);
        let cpu_ns = thread_ns().saturating_sub(cpu_begun);
        let ended = Instant::now();
        drop(turn);
        member.wait();
        Exit {
            ended,
            took: ended - begun,
            cpu_ns,
            freed,
        }
    };
    (0..=TURNS).map(turn).collect()
}

impl Round {
    fn add(&mut self, turn: &Turn, exits: impl Iterator<Item = Exit>) {
        let mut last = turn.full.taken;
        for exit in exits {
            last = last.max(exit.ended);
            self.exits += 1;
            self.exits_s += exit.took.as_secs_f64();
            self.cpu_s += to_f64(exit.cpu_ns) / 1e9;
            self.freed += exit.freed;
        }
        self.exit_s += (last - turn.full.taken).as_secs_f64();
        self.fill_s += turn.filled.as_secs_f64();
        self.filling
            .merge(&turn.full.times.since(&turn.begun.times));
        self.exiting
            .merge(&turn.empty.times.since(&turn.full.times));
        self.nr_refills += turn.full.counters.since(&turn.begun.counters).refills;
        self.nr_drains += turn.empty.counters.since(&turn.full.counters).drains;
        self.cached_when_full = turn.full.cached;
        self.cached_when_empty = turn.empty.cached;
    }
}

/// Fills once more, lets all but one in [`STAYS`] exit, counts blocks, and lets the rest exit.
///
/// # Errors
///
/// When the system refuses a thread.
fn count_blocks(
    machine: &Machine<'_>,
    tenants: &mut [Tenant],
) -> Result<FreeBlocks, ExperimentError> {
    thread::scope(|scope| {
        let crew = Crew::new(scope);
        for tenant in &mut *tenants {
            crew.start(|| tenant.fill(machine))?;
        }
        crew.go();
        Ok::<_, ExperimentError>(())
    })?;
    thread::scope(|scope| {
        let crew = Crew::new(scope);
        for (index, tenant) in tenants.iter_mut().enumerate() {
            if index % STAYS != 0 {
                crew.start(|| tenant.exit(machine))?;
            }
        }
        crew.go();
        Ok::<_, ExperimentError>(())
    })?;
    machine.pool.drain_all();
    let blocks = FreeBlocks {
        whole: machine.pool.nr_free_blocks(Order::HUGE),
        possible: machine.pool.nr_free().0 / Order::HUGE.pages().0,
    };
    for tenant in tenants {
        tenant.exit(machine);
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    /// Goal: a panic of one tenant ends the round, and no thread waits for it. Method: more tenants
    /// than the pool has frames for.
    #[test]
    fn a_pool_that_is_too_small_ends_the_round() {
        let round = catch_unwind(|| {
            let memory = Arc::new(FrameMemory::new(Pages(4096)).unwrap());
            let pool = FramePool::new(Arc::clone(&memory), 4).unwrap();
            let rmap = ReverseMap::new(memory.pages());
            let machine = Machine {
                pool: &pool,
                memory: &memory,
                rmap: &rmap,
            };
            let mut tenants = tenants(3, 3000, 4, 1);
            let phase = Phase::default();
            thread::scope(|scope| {
                scope.spawn(|| stand_by(&pool, bystander_cpu(4), &phase, 1));
                let _ends = phase.ends();
                turns(&machine, &mut tenants, &phase, Exits::AtOnce)
            })
        });
        assert!(round.is_err());
    }
}
