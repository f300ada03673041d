//! The same flows by real threads, one for each tenant and each thread that purges.
//!
//! A tenant hands its pages over in chunks, in a queue of its own, so that queues are hardly
//! contended and what is waited for is the lists' and the back end's.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use super::parts::{Flow, PURGERS, TENANTS, frames, purger_cpu, tenant_cpu};
use super::variants::{Events, Lists, Page};
use crate::experiments::crew::{Crew, Hand};
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;

/// Pages handed over at once.
const CHUNK: usize = 512;
/// Chunks that may wait in one tenant's queue.
const WAITING: usize = 8;

/// Results of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timed {
    pub(super) pages: u64,
    pub(super) seconds: f64,
    pub(super) events: Events,
    pub(super) refused: u64,
    pub(super) lost: u64,
    /// The time in which the tenant that ended last was served, for each second of the mean: the
    /// worst round.
    pub(super) last_over_mean: f64,
}

impl Timed {
    /// Adds another run.
    pub(super) fn plus(self, other: &Self) -> Self {
        let (one, two) = (self.events, other.events);
        Self {
            pages: self.pages + other.pages,
            seconds: self.seconds + other.seconds,
            events: Events {
                alloc_visits: one.alloc_visits + two.alloc_visits,
                free_visits: one.free_visits + two.free_visits,
                waits: one.waits + two.waits,
                waited_ns: one.waited_ns + two.waited_ns,
            },
            refused: self.refused + other.refused,
            lost: self.lost + other.lost,
            last_over_mean: self.last_over_mean.max(other.last_over_mean),
        }
    }
}

/// Chunks of one tenant on their way.
type Queue = Mutex<Vec<Vec<Page>>>;

/// What threads share.
struct Shared<'a> {
    lists: &'a Lists,
    queues: Vec<Queue>,
    /// Tenants that have not ended. Written by: tenants that end (Release). Read by: threads that
    /// purge (Acquire). Publishes: the tenant's last chunk.
    working: AtomicUsize,
}

impl Shared<'_> {
    /// Allocates `chunks` chunks; returns the number of refused allocations.
    fn work(&self, tenant: usize, flow: Flow, chunks: usize) -> u64 {
        let cpu = tenant_cpu(tenant);
        let mut refused = 0;
        for _ in 0..chunks {
            let mut chunk = Vec::with_capacity(CHUNK);
            for _ in 0..CHUNK {
                match self.lists.alloc(cpu) {
                    Some(page) => chunk.push(page),
                    None => refused += 1,
                }
            }
            match flow {
                Flow::Local => chunk
                    .into_iter()
                    .for_each(|page| self.lists.free(cpu, page)),
                Flow::Remote => self.hand_over(tenant, chunk),
            }
        }
        // Release. Pairs with: the Acquire of `purge`.
        self.working.fetch_sub(1, Ordering::Release);
        refused
    }

    fn hand_over(&self, tenant: usize, chunk: Vec<Page>) {
        loop {
            let queue = self.queues[tenant].lock();
            let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
            if queue.len() < WAITING {
                return queue.push(chunk);
            }
            drop(queue);
            // Progress: a thread that purges empties the queue.
            thread::yield_now();
        }
    }

    /// Frees the pages of its share of the tenants until all have ended.
    fn purge(&self, purger: usize) {
        loop {
            // Acquire. Pairs with: the Release of `work`. Read before the queues.
            let working = self.working.load(Ordering::Acquire);
            let mut freed = false;
            for queue in self.queues.iter().skip(purger).step_by(PURGERS) {
                let chunks =
                    std::mem::take(&mut *queue.lock().unwrap_or_else(PoisonError::into_inner));
                for page in chunks.into_iter().flatten() {
                    self.lists.free(purger_cpu(purger), page);
                    freed = true;
                }
            }
            if !freed && working == 0 {
                return;
            }
            if !freed {
                thread::yield_now();
            }
        }
    }
}

pub(super) fn run(setup: &Setup, (variant, flow): (&str, Flow)) -> Result<Timed, ExperimentError> {
    let frames = frames(setup);
    let chunks = setup.pick(64, 4);
    let lists = Lists::new(variant, frames, setup.topology.nr_cpus())?;
    let shared = Shared {
        lists: &lists,
        queues: (0..TENANTS).map(|_| Queue::default()).collect(),
        working: AtomicUsize::new(TENANTS),
    };
    let (seconds, tenants) = thread::scope(|scope| {
        let crew = Crew::new(scope);
        let shared = &shared;
        let tenants: Result<Vec<_>, _> = (0..TENANTS)
            .map(|tenant| {
                crew.start(move || {
                    let refused = shared.work(tenant, flow, chunks);
                    (refused, Instant::now())
                })
            })
            .collect();
        let purgers: Result<Vec<_>, _> = (0..PURGERS)
            .map(|purger| crew.start(move || shared.purge(purger)))
            .collect();
        let (tenants, purgers) = (tenants?, purgers?);
        let begun = Instant::now();
        crew.go();
        let tenants: Vec<_> = tenants.into_iter().map(Hand::join).collect();
        purgers.into_iter().for_each(Hand::join);
        let seconds = begun.elapsed().as_secs_f64();
        let since = |(refused, ended): (u64, Instant)| (refused, (ended - begun).as_secs_f64());
        let tenants: Vec<_> = tenants.into_iter().map(since).collect();
        Ok::<_, ExperimentError>((seconds, tenants))
    })?;
    let refused = tenants.iter().map(|(refused, _)| refused).sum();
    let served = || tenants.iter().map(|(_, seconds)| *seconds);
    let mean = served().sum::<f64>() / to_f64(TENANTS as u64);
    Ok(Timed {
        pages: (TENANTS * chunks * CHUNK) as u64 - refused,
        seconds,
        events: lists.events(),
        refused,
        lost: lists.lost(),
        last_over_mean: served().fold(0.0, f64::max) / mean,
    })
}
