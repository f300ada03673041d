//! The loads on virtual CPUs, driven by one thread: counts that one seed determines.
//!
//! Tenants take turns. A step allocates [`STEP`] pages on the tenant's CPU and appends them to its
//! own queue.
//! *Local*: at a full queue the tenant frees the oldest half itself. *Remote*: the two threads that
//! purge take turns in freeing the oldest pages of the longest queue, each on its own CPU.
//!
//! Then memory is short: pages are freed only after an allocation was refused, so that a tenant is
//! served only if frames that were freed elsewhere reach it.
//!
//! In the end half of the tenants go idle with full queues, which are freed as before; then all
//! CPUs are idle, and lists decay.

use std::collections::VecDeque;

use fastrand::Rng;
use highwater::units::CpuId;

use super::parts::{Flow, PURGERS, TENANTS, frames, purger_cpu, ratio, tenant_cpu};
use super::variants::{Events, Lists, Page};
use crate::control::Control;
use crate::experiments::{ExperimentError, Setup};

/// Pages of a step.
const STEP: usize = 64;
/// Pages that a purge frees in a row: allocators purge whole arenas.
const PURGE: usize = 512;
/// Ticks of a second after the load: one list's decay to nothing takes 60 and a few.
const TICKS: u64 = 100;

/// Results of one variant under one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) allocs: u64,
    pub(super) frees: u64,
    pub(super) events: Events,
    /// Allocations of the tenant that was refused most often; each was repeated after a drain of
    /// all lists.
    pub(super) refused_most: u64,
    /// Frees that were looked at, and those of them that changed the list of another CPU.
    pub(super) looked_at: u64,
    pub(super) elsewhere: u64,
    /// Frames that the lists of idle tenants gained while they were idle.
    pub(super) idle_gained: u64,
    /// Frames in all lists when the load ended, and after the ticks.
    pub(super) cached: u64,
    pub(super) cached_late: u64,
    pub(super) lost: u64,
    /// While memory is short: pages of the tenant that got fewest, for each page of the mean.
    pub(super) least_share: f64,
}

/// The lists under load.
struct Driven<'a> {
    lists: &'a Lists,
    flow: Flow,
    nr_cpus: usize,
    queues: Vec<VecDeque<Page>>,
    /// Pages that a tenant's queue may hold.
    depth: usize,
    got: Vec<u64>,
    refused: Vec<u64>,
    frees: u64,
    looked_at: u64,
    elsewhere: u64,
}

impl Driven<'_> {
    fn allocates(&mut self, tenant: usize) {
        let cpu = tenant_cpu(tenant);
        for _ in 0..STEP {
            let page = self.lists.alloc(cpu).or_else(|| {
                self.refused[tenant] += 1;
                self.lists.drain_all();
                self.lists.alloc(cpu)
            });
            if let Some(page) = page {
                self.queues[tenant].push_back(page);
                self.got[tenant] += 1;
            }
        }
    }

    /// Frees the oldest pages of a tenant on `cpu`. Looks at the first of them, which is as any
    /// other: at the lists of all other CPUs before and after it.
    fn frees(&mut self, cpu: CpuId, tenant: usize, pages: usize) {
        for nth in 0..pages {
            let Some(page) = self.queues[tenant].pop_front() else {
                break;
            };
            let before = (nth == 0).then(|| self.cached_beside(cpu));
            self.lists.free(cpu, page);
            self.frees += 1;
            if let Some(before) = before {
                self.looked_at += 1;
                self.elsewhere += u64::from(self.cached_beside(cpu) != before);
            }
        }
    }

    /// Returns the frames in the lists of all CPUs but one.
    fn cached_beside(&self, cpu: CpuId) -> u64 {
        let all = (0..self.nr_cpus).map(CpuId::from_index);
        self.lists.cached_on(all.filter(|other| *other != cpu))
    }

    /// Frees on the CPU that the flow says: of the tenant itself, or of a thread that purges.
    fn purges(&mut self, step: u64, tenant: usize) {
        let purger = usize::try_from(step).unwrap_or(0) % PURGERS;
        match self.flow {
            Flow::Local => self.frees(tenant_cpu(tenant), tenant, PURGE),
            Flow::Remote => self.frees(purger_cpu(purger), tenant, PURGE),
        }
    }

    fn longest(&self) -> usize {
        let lengths = self.queues.iter().map(VecDeque::len).enumerate();
        lengths
            .max_by_key(|(_, length)| *length)
            .map_or(0, |it| it.0)
    }

    fn run(&mut self, steps: u64, control: &Control) -> Result<(), ExperimentError> {
        let full = TENANTS * self.depth / 2;
        for step in 0..steps {
            self.allocates(usize::try_from(step).unwrap_or(0) % TENANTS);
            while self.queues.iter().map(VecDeque::len).sum::<usize>() > full {
                self.purges(step, self.longest());
            }
            if step % 1024 == 0 {
                control.advance(0)?;
            }
        }
        Ok(())
    }

    /// Every tenant takes a step in each round, until memory is gone; from there on each refusal
    /// ends its step and lets one purge happen. Rounds have orders of their own: in a fixed one a
    /// tenant would always come right after the same purge. Returns the pages of the tenant that
    /// got fewest, for each of the mean.
    fn runs_short(&mut self, purges: u64, mut random: Rng) -> f64 {
        let mut order: [usize; TENANTS] = std::array::from_fn(|tenant| tenant);
        let mut got = [0_u64; TENANTS];
        let mut refusals = 0;
        while refusals < purges {
            random.shuffle(&mut order);
            for tenant in order {
                for _ in 0..STEP {
                    let Some(page) = self.lists.alloc(tenant_cpu(tenant)) else {
                        self.purges(refusals, self.longest());
                        refusals += 1;
                        break;
                    };
                    self.queues[tenant].push_back(page);
                    got[tenant] += u64::from(refusals > 0);
                }
            }
        }
        let least = got.iter().copied().min().unwrap_or(0);
        ratio(least * TENANTS as u64, got.iter().sum())
    }
}

pub(super) fn run(
    setup: &Setup,
    (variant, flow): (&str, Flow),
    control: &Control,
) -> Result<Counted, ExperimentError> {
    let frames = frames(setup);
    let lists = Lists::new(variant, frames, setup.topology.nr_cpus())?;
    let mut driven = Driven {
        lists: &lists,
        flow,
        nr_cpus: setup.topology.nr_cpus(),
        queues: (0..TENANTS).map(|_| VecDeque::new()).collect(),
        // Half of the pool is in queues.
        depth: usize::try_from(frames.0).unwrap_or(0) / TENANTS,
        got: vec![0; TENANTS],
        refused: vec![0; TENANTS],
        frees: 0,
        looked_at: 0,
        elsewhere: 0,
    };
    // Queues fill, and lists reach their size.
    let steps = setup.pick(40_000, 8_000);
    driven.run(steps / 2, control)?;
    let (before, frees) = (lists.events(), driven.frees);
    driven.got.fill(0);
    driven.run(steps, control)?;
    let events = lists.events().since(&before);
    let (frees, allocs) = (driven.frees - frees, driven.got.iter().sum());
    let refused_most = driven.refused.iter().copied().max().unwrap_or(0);
    let random = Rng::with_seed(setup.options.seed);
    let least_share = driven.runs_short(setup.pick(20_000, 8_000), random);
    let idle_gained = idle(&mut driven);
    let all = || (0..setup.topology.nr_cpus()).map(CpuId::from_index);
    for tenant in 0..TENANTS {
        while !driven.queues[tenant].is_empty() {
            driven.purges(tenant as u64, tenant);
        }
    }
    let cached = lists.cached_on(all());
    (0..TICKS).for_each(|_| lists.tick());
    Ok(Counted {
        allocs,
        frees,
        events,
        refused_most,
        looked_at: driven.looked_at,
        elsewhere: driven.elsewhere,
        idle_gained,
        cached,
        cached_late: lists.cached_on(all()),
        lost: lists.lost(),
        least_share,
    })
}

/// Half of the tenants go idle; the threads that purge free all of their pages. Returns how many of
/// those came to the lists of idle CPUs.
fn idle(driven: &mut Driven<'_>) -> u64 {
    let idle = || (0..TENANTS / 2).map(tenant_cpu);
    let before = driven.lists.cached_on(idle());
    if driven.flow == Flow::Local {
        return 0;
    }
    for tenant in 0..TENANTS / 2 {
        while !driven.queues[tenant].is_empty() {
            driven.purges(tenant as u64, tenant);
        }
    }
    driven.lists.cached_on(idle()).saturating_sub(before)
}
