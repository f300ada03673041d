//! The faults of the published program, one after the other, on virtual CPUs.

use fastrand::Rng;
use highwater::units::CpuId;

use super::seen::Seen;
use crate::baselines::{Member, SpaceId, TaskId, Writer};
use crate::control::Control;
use crate::experiments::contenders::{Contender, contenders};
use crate::experiments::{ExperimentError, Setup};

/// Pages that a thread faults in: 32 of data, and 4 of its stack and tables.
pub(super) const FAULTS: u32 = 36;

/// Threads between checks of the stop flag: about a millisecond.
const STRIDE: u32 = 200;

/// The only space.
const SPACE: SpaceId = SpaceId(0);

/// Readings of the designs.
#[derive(Debug)]
pub(super) struct Simulated {
    /// While all threads sleep.
    pub(super) alive: Vec<Seen>,
    /// After all have ended.
    pub(super) ended: Vec<Seen>,
}

/// Starts `threads` threads, lets them touch their pages and sleep, and ends them.
pub(super) fn simulate(
    setup: &Setup,
    threads: u32,
    control: &Control,
) -> Result<Simulated, ExperimentError> {
    control.expect(2 * u64::from(threads));
    let tasks = threads as usize + 1;
    let contenders = contenders(&setup.topology, 1, tasks);
    let mut rng = Rng::with_seed(setup.options.seed);
    let mut draw = || CpuId::from_index(rng.usize(..setup.topology.nr_cpus()));
    let on = |cpu, task| Writer {
        cpu,
        task: TaskId(task),
        space: Some(SPACE),
    };
    // The thread that starts and joins the others stays on its CPU.
    let first = on(CpuId(0), threads);
    for thread in 0..threads {
        run_on(&contenders, first, |contender| {
            contender.fault(first, Member::Anon);
        });
        let by = on(draw(), thread);
        run_on(&contenders, by, |contender| {
            (0..FAULTS).for_each(|_| contender.fault(by, Member::Anon));
        });
        if thread % STRIDE == STRIDE - 1 {
            control.advance(STRIDE.into())?;
        }
    }
    let truth = i64::from(threads) * i64::from(FAULTS + 1);
    let alive = Seen::all(&contenders, SPACE, truth);
    for thread in 0..threads {
        let by = on(draw(), thread);
        run_on(&contenders, by, |contender| {
            contender.unmap(by, Member::Anon, FAULTS.into());
            contender.leave(by);
        });
        run_on(&contenders, first, |contender| {
            contender.unmap(first, Member::Anon, 1);
        });
        if thread % STRIDE == STRIDE - 1 {
            control.advance(STRIDE.into())?;
        }
    }
    control.advance(u64::from(threads % STRIDE) * 2)?;
    Ok(Simulated {
        alive,
        ended: Seen::all(&contenders, SPACE, 0),
    })
}

/// Lets every design count what `work` does while `by` runs on its CPU.
fn run_on(contenders: &[Contender], by: Writer, work: impl Fn(&Contender)) {
    for contender in contenders {
        contender.switch(by.cpu, SPACE);
        work(contender);
    }
}
