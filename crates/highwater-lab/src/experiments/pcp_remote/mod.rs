//! `pcp-remote`: 18 tenants allocate on CPUs of their own, and two threads free all of it.
//!
//! Purge threads of allocators (jemalloc, tcmalloc) free on few CPUs pages that were allocated on
//! all of them. The lists of the CPUs that allocate are always empty and those of the two are
//! always full, so that both sides visit the back end. A proposal routes each free to the list of
//! the CPU that owns the page's block instead.
//!
//! The first tables are counts on virtual CPUs, driven by one thread from a seed; the last one is
//! by real threads.

mod counted;
mod parts;
mod threads;
mod variants;

use self::counted::Counted;
use self::parts::{Flow, PURGERS, TENANTS, ratio};
use self::threads::Timed;
use self::variants::{NAMES, OURS, OWNED, TODAY};
use super::{Experiment, ExperimentError, Findings, Setup, Size, published};
use crate::control::Control;
use crate::report::text::to_f64;
use crate::report::{Check, Figures, Headline, Noun, Row, Side, Source, Unit};

const PUBLISHED_FIGURES: &str = include_str!("../../../published/pcp-remote.json");

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "pcp-remote",
    thread: "pcp-buddy-allocator-rfc-2026",
    summary: "18 tenants allocate, two threads free it all: visits to the back end, waits, hoards",
    headline: Headline {
        part: VISITS,
        noun: Noun::Count("visits to the back end for 512 pages freed"),
        ours: Side {
            name: "Highwater",
            variant: "remote: Highwater",
            figure: "free_visits",
        },
        theirs: Side {
            name: "today's lists",
            variant: "remote: Linux 7",
            figure: "free_visits",
        },
    },
    topology: "1x1x20x1",
    cpus: TENANTS + PURGERS..=256,
    extras: &[],
    run,
};

/// Pages for which visits are counted: a block of 2 MiB.
const BLOCK: f64 = 512.0;

const VISITS: &str = "visits to the back end for 512 pages, and frees to lists of other CPUs";
const IDLE: &str = "frames in lists: of idle CPUs, when the load ends, and 100 s later";
const THREADS: &str = "by real threads: throughput, and waits for locks";

const NOTE: &str = "In the remote flow 18 tenants allocate on CPUs 0 to 17, and two threads free \
    all of it on CPUs 18 and 19; in the local flow each tenant frees its own pages. Half of the \
    pool is in flight. A visit takes or gives frames at the back end: a hold of the zone's lock, \
    or a lock-free pass over the trees. Remote frees changed the list of another CPU: each purge's \
    first free is looked at. Refused: allocations of the tenant that was refused most often. The \
    least share is that of the tenant that got fewest pages, against the mean, while memory is \
    short: a purge happens only after a refusal. Gained: frames that came to the lists of nine \
    tenants while these were idle and the two threads freed their pages. Waits count locks of \
    lists and of the back end that were held, and lists that were found held. Threads are real in \
    the last table, CPUs virtual throughout.";

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let rounds = setup.repeats(7, 1, 1);
    control.expect((NAMES.len() * Flow::ALL.len()) as u64 * (1 + rounds));
    let mut all = Vec::new();
    for flow in Flow::ALL {
        for variant in NAMES {
            let counted = counted::run(setup, (variant, flow), control)?;
            control.advance(1)?;
            all.push(Cell {
                variant,
                flow,
                counted,
                timed: Timed::default(),
            });
        }
    }
    for _ in 0..rounds {
        for cell in &mut all {
            let timed = threads::run(setup, (cell.variant, cell.flow))?;
            cell.timed = cell.timed.plus(&timed);
            control.advance(1)?;
        }
    }
    let mut checks = Vec::new();
    count_checks(setup, &all, &mut checks);
    time_checks(&all, &mut checks);
    let rows = all.iter().map(Cell::visits);
    let rows = rows.chain(all.iter().map(Cell::idle));
    let rows = rows.chain(all.iter().map(Cell::threads));
    Ok(Findings {
        config: config(setup, rounds),
        rows: rows.collect(),
        published: published::rows(PUBLISHED_FIGURES, &[VISITS]),
        checks,
    })
}

fn config(setup: &Setup, rounds: u64) -> Figures {
    setup
        .config()
        .with("tenants", TENANTS)
        .with("purge_threads", PURGERS)
        .with("rounds_of_threads", rounds)
        .with("note_scope", NOTE)
}

/// One variant under one flow.
struct Cell {
    variant: &'static str,
    flow: Flow,
    counted: Counted,
    timed: Timed,
}

impl Cell {
    fn name(&self) -> String {
        format!("{}: {}", self.flow.name(), self.variant)
    }

    /// Returns the visits for 512 pages, of allocations and of frees.
    fn visits_of_block(&self) -> [f64; 2] {
        let Counted {
            allocs,
            frees,
            events,
            ..
        } = self.counted;
        [
            BLOCK * ratio(events.alloc_visits, allocs),
            BLOCK * ratio(events.free_visits, frees),
        ]
    }

    fn visits(&self) -> Row {
        let [alloc, free] = self.visits_of_block();
        Row::new(VISITS, Source::Run, self.name())
            .with("alloc_visits", alloc)
            .with("free_visits", free)
            .with("remote_frees", BLOCK * self.elsewhere())
            .with("refused_most", self.counted.refused_most)
            .with("least_share", self.counted.least_share)
    }

    /// Returns the share of frees that changed the list of another CPU.
    fn elsewhere(&self) -> f64 {
        ratio(self.counted.elsewhere, self.counted.looked_at)
    }

    fn idle(&self) -> Row {
        Row::new(IDLE, Source::Run, self.name())
            .with("gained_pages", self.counted.idle_gained)
            .with("at_end_pages", self.counted.cached)
            .with("later_pages", self.counted.cached_late)
    }

    fn threads(&self) -> Row {
        let pages = self.timed.pages;
        let events = self.timed.events;
        let visits = events.alloc_visits + events.free_visits;
        Row::new(THREADS, Source::Run, self.name())
            .with("allocated_per_s", to_f64(pages) / self.timed.seconds)
            .with("waits_per_1000_pages", 1e3 * ratio(events.waits, pages))
            .with("waited_ns", ratio(events.waited_ns, pages))
            .with("visits", BLOCK * ratio(visits, pages))
            .with("last_over_mean", self.timed.last_over_mean)
    }

    fn waits_of_page(&self) -> f64 {
        ratio(self.timed.events.waits, self.timed.pages)
    }
}

fn cell<'a>(cells: &'a [Cell], variant: &str, flow: Flow) -> &'a Cell {
    let is_it = |cell: &&Cell| cell.variant == variant && cell.flow == flow;
    cells
        .iter()
        .find(is_it)
        .expect("every variant has both flows")
}

/// Checks of counts, and those of conservation.
fn count_checks(setup: &Setup, cells: &[Cell], checks: &mut Vec<Check>) {
    let lost: u64 = cells
        .iter()
        .map(|cell| cell.counted.lost + cell.timed.lost)
        .sum();
    checks.push(Check::counted("frames lost, by any design").equal(&lost, &0));
    let [local, remote] = Flow::ALL.map(|flow| cell(cells, OURS, flow));
    for (cell, flow) in [(local, "local"), (remote, "remote")] {
        for (visits, kind) in cell.visits_of_block().into_iter().zip(["taken", "given"]) {
            checks.push(
                Check::counted(format!(
                    "{OURS}, {flow}: visits to the back end for 512 pages {kind}"
                ))
                .at_most(visits, 1.0, Unit::Plain),
            );
        }
    }
    let [today, owned] = [TODAY, OWNED].map(|variant| cell(cells, variant, Flow::Remote));
    checks.push(
        Check::counted(format!(
            "{TODAY}, remote: visits to the back end for 512 pages given"
        ))
        .at_least(today.visits_of_block()[1], 4.0, Unit::Plain),
    );
    checks.push(
        Check::counted(format!("{OWNED}, remote: frees to another CPU's list")).at_least(
            owned.elsewhere(),
            0.9,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::counted(format!("{OURS}, remote: frees to another CPU's list"))
            .equal(&remote.counted.elsewhere, &0),
    );
    hoard_checks(remote, checks);
    // Lists of a small pool drain whole blocks before they hoard.
    if setup.options.size == Size::Full {
        checks.push(
            Check::counted(format!("{OWNED}: frames that idle CPUs gain")).at_least(
                to_f64(owned.counted.idle_gained),
                1.0,
                Unit::Plain,
            ),
        );
    }
}

fn hoard_checks(remote: &Cell, checks: &mut Vec<Check>) {
    checks.extend([
        Check::counted(format!("{OURS}: frames that idle CPUs gain"))
            .equal(&remote.counted.idle_gained, &0),
        Check::counted(format!("{OURS}: frames in lists 100 s after the load"))
            .equal(&remote.counted.cached_late, &0),
        Check::counted(format!(
            "{OURS}: refused allocations of the tenant that is refused most often"
        ))
        .equal(&(remote.counted.refused_most + remote.timed.refused), &0),
        Check::counted(format!(
            "{OURS}, memory short: pages of the tenant that got fewest, against the mean"
        ))
        .at_least(remote.counted.least_share, 0.9, Unit::Ratio),
    ]);
}

/// Checks of real threads, by their own clock and scheduling: a thread that is off its CPU while it
/// takes over frames of another list holds that list.
fn time_checks(cells: &[Cell], checks: &mut Vec<Check>) {
    let [today, owned, ours] = [TODAY, OWNED, OURS].map(|name| cell(cells, name, Flow::Remote));
    let rate = |cell: &Cell| to_f64(cell.timed.pages) / cell.timed.seconds;
    for (other, name) in [(today, TODAY), (owned, OWNED)] {
        checks.push(
            Check::timed(format!("pages in a second, remote: {OURS} against {name}")).at_least(
                rate(ours) / rate(other),
                1.0,
                Unit::Ratio,
            ),
        );
    }
    checks.push(
        Check::timed(format!("{OURS}, remote: waits for 1,000,000 pages")).at_most(
            1e6 * ours.waits_of_page(),
            10.0,
            Unit::Plain,
        ),
    );
    let local = cell(cells, OURS, Flow::Local);
    checks.push(
        Check::timed(format!(
            "{OURS}: waits for 1,000,000 pages, remote beyond those of the local flow"
        ))
        .at_most(
            1e6 * (ours.waits_of_page() - local.waits_of_page()),
            10.0,
            Unit::Plain,
        ),
    );
    // The system may serve the tenants one after the other on few CPUs: then the last one ends
    // after twice the mean.
    checks.push(
        Check::timed(format!(
            "{OURS}, remote: end of the tenant that ends last, against the mean"
        ))
        .at_most(ours.timed.last_over_mean, 3.0, Unit::Ratio),
    );
    checks.push(
        Check::timed(format!(
            "waits for locks a page, remote: {OURS} against {TODAY}"
        ))
        .at_most(
            ours.waits_of_page() / today.waits_of_page(),
            0.1,
            Unit::Ratio,
        ),
    );
}
