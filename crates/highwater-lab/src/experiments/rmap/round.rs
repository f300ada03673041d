//! One run of one variant: a manager of its own, the tenants, and the counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use highwater::frame::Tunables;
use highwater::group::{Limits, StatItem, Tolerance};
use highwater::lab::cache::MarkRule;
use highwater::lab::reclaim::policy::KernelLists;
use highwater::lab::reclaim::{RmapConfig, RmapQuirks};
use highwater::topology::Topology;
use highwater::units::{PAGE_BYTES, Pages};
use highwater::{Background, Group, Manager};

use super::clock::{Clock, ClockKind};
use super::counters::COUNTED;
use super::ground::Ground;
use super::load::{self, Churn, Churned, Read};
use super::turns::Who;
use crate::control::Control;
use crate::experiments::ExperimentError;
use crate::experiments::buckets::Buckets;
use crate::experiments::crew::{Crew, Hand};
use crate::report::text::to_f64;

/// Distance between watermarks, in ten-thousandths of the pool: 4.6 times the pages that reclaim
/// scans in a round at the first priority, as on the published machine (12 GiB: 3,146 pages apart,
/// 690 of 2.82 million at priority 12). It decides how much of its work the background thread does
/// at the first three priorities, where *priority* does not wait.
pub(super) const WATERMARK_SCALE_FACTOR: i64 = 340;

/// Active pages that the kernel keeps for each inactive one on the published machine. By its rule a
/// pool of 256 MiB would keep one.
pub(super) const INACTIVE_RATIO: u64 = 10;

/// Results of a run.
#[derive(Debug)]
pub(crate) struct Round {
    /// A's elapsed time.
    pub(super) elapsed_s: f64,
    pub(super) a: Tenant,
    pub(super) b: Churned,
    pub(super) c: Option<Tenant>,
    /// Pages with the wrong bytes.
    pub(super) wrong: u64,
    /// Reads that failed for lack of memory, and were retried.
    pub(super) refused: u64,
    /// Counters, in the order of [`COUNTED`].
    counts: Vec<u64>,
    /// Times for which reclaim waited for the lock.
    pub(super) blocked: Buckets,
    pub(super) blocked_s: f64,
}

/// A tenant that reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant {
    pub(crate) pages: f64,
    pub(crate) refaults: f64,
    pub(crate) majfaults: f64,
}

impl Tenant {
    fn of(group: &Group, read: Read) -> Self {
        let stat = |item| to_f64(group.stat(item, Tolerance::EXACT).value.unsigned_abs());
        Self {
            pages: to_f64(read.pages),
            refaults: stat(StatItem::WorkingsetRefaultFile),
            majfaults: stat(StatItem::Pgmajfault),
        }
    }
}

impl Round {
    /// Returns a counter, by the kernel's name or the library's.
    pub(crate) fn count(&self, name: &str) -> f64 {
        let at = COUNTED.iter().position(|counted| *counted == name);
        to_f64(self.counts[at.expect("it is counted")])
    }

    /// Returns the pages that reclaim scanned; `steal` is those that it freed.
    pub(crate) fn scanned(&self) -> f64 {
        self.count("pgscan_kswapd") + self.count("pgscan_direct")
    }

    pub(super) fn freed(&self) -> f64 {
        self.count("pgsteal_kswapd") + self.count("pgsteal_direct")
    }

    pub(super) fn freed_per_s(&self) -> f64 {
        self.freed() / self.elapsed_s
    }

    /// Returns the part of the looks at pages' young bits that found the lock held.
    pub(super) fn contended_ratio(&self) -> f64 {
        self.count("rmap_checks_contended") / self.count("rmap_checks")
    }

    /// Returns A's refaults relative to the pages of its passes after the first.
    pub(super) fn a_refaults_of_later_passes(&self) -> f64 {
        self.a.refaults / (self.a.pages * 2.0 / 3.0)
    }

    /// Returns the part of C's reads that found their page still resident.
    pub(crate) fn c_kept(&self) -> f64 {
        self.c.map_or(f64::NAN, |c| 1.0 - c.refaults / c.pages)
    }

    /// Returns a tenant's read rate in bytes per second.
    pub(super) fn bytes_per_s(&self, tenant: Tenant) -> f64 {
        tenant.pages * to_f64(PAGE_BYTES) / self.elapsed_s
    }
}

/// Signals the end of A's load when it is dropped, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        // Relaxed: the flag publishes no other data.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) rmap: RmapConfig,
    pub(super) churn: Option<Churn>,
    pub(super) clock: ClockKind,
    pub(super) passes: u64,
    pub(super) seed: u64,
}

/// Runs A, with B and C if the plan and the ground have them.
pub(super) fn run(
    ground: &Ground,
    plan: Plan,
    control: &Control,
) -> Result<Round, ExperimentError> {
    let mut clock = Clock::start(plan.clock, |who| match who {
        Who::A | Who::Reclaimer => true,
        Who::B => plan.churn.is_some(),
        Who::C => ground.has_c(),
    });
    let hw = manager(plan.rmap, ground.capacity, &clock)?;
    let tenant = |name| hw.root().child(name, Limits::default());
    let [a, b, c] = ["a", "b", "c"].map(|name| tenant(name).expect("a new name"));
    let (file, c_file) = (ground.open_a(&hw, &clock)?, ground.open_c(&hw, &clock)?);
    let mapping = hw.space(&a).map_file(&file, 0..file.pages());
    let mapping = mapping.expect("the whole file");
    if let Some(file) = &c_file {
        load::warm_up(&hw, file, &c)?;
    }
    let is_over = AtomicBool::new(false);
    clock.begin();
    let clock = &clock;
    let (read, elapsed, churned, c_read) = thread::scope(|scope| {
        let (hw, is_over) = (&hw, &is_over);
        let crew = Crew::new(scope);
        let churning = plan.churn.map(|churn| {
            let (file, space) = (&file, hw.space(&b));
            crew.start(move || load::churn(churn, file, &space, plan.seed, is_over, clock))
        });
        let reading = c_file.as_ref().map(|file| {
            let c = &c;
            crew.start(move || load::read(ground, file, c, is_over, clock))
        });
        if let Some(turns) = clock.turns() {
            crew.start(move || load::balance(hw, is_over, turns))?;
        }
        let (churning, reading) = (churning.transpose()?, reading.transpose()?);
        crew.go();
        let seat = clock.join(Who::A);
        let over = Over(is_over);
        let read = load::touch(hw, ground, &mapping, plan.passes, control, clock);
        let elapsed = clock.now();
        drop(over);
        drop(seat);
        let (churned, c_read) = (churning.map(Hand::join), reading.map(Hand::join));
        Ok::<_, ExperimentError>((read, elapsed, churned, c_read))
    })?;
    let (read, c_read) = (read?, c_read.transpose()?);
    if control.is_stopped() {
        return Err(ExperimentError::Interrupted);
    }
    let snapshot = hw.snapshot();
    let (blocked, blocked_for) = clock.blocked().unwrap_or_else(|| {
        let waits = hw.rmap_times().wait_ns;
        let all = Duration::from_nanos(waits.sum());
        (Buckets::of(waits.buckets()), all)
    });
    Ok(Round {
        elapsed_s: elapsed.as_secs_f64(),
        a: Tenant::of(&a, read),
        b: churned.unwrap_or_default(),
        c: c_read.map(|read| Tenant::of(&c, read)),
        wrong: read.wrong + c_read.map_or(0, |read| read.wrong),
        refused: read.refused + c_read.map_or(0, |read| read.refused),
        counts: COUNTED.iter().map(|name| snapshot.counter(name)).collect(),
        blocked,
        blocked_s: blocked_for.as_secs_f64(),
    })
}

/// Creates a manager that follows the kernel's rules for moving pages, and goes by the clock. On
/// the simulated clock it has one CPU, on which all threads take turns: with more, the frames and
/// batches that a thread leaves behind when the system migrates it would make each run different.
fn manager(rmap: RmapConfig, capacity: u64, clock: &Clock) -> Result<Manager, ExperimentError> {
    let hw = Manager::builder()
        .capacity(Pages(capacity).bytes())
        .tunables(Tunables::default().with("watermark_scale_factor", WATERMARK_SCALE_FACTOR)?)
        .decided_by(Arc::new(KernelLists {
            inactive_ratio: Some(INACTIVE_RATIO),
            loses_contended: rmap.quirks == RmapQuirks::KernelFaithful,
        }))
        .readahead_marks(MarkRule::Exact)
        .rmap(rmap);
    let hw = match clock.turns() {
        None => hw.background(Background::Thread),
        Some(turns) => hw
            .background(Background::Off)
            .topology(Topology::flat(1))
            .pacer(Arc::clone(turns) as _),
    };
    Ok(hw.build()?)
}
