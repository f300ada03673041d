//! The load on a simulated clock: clients and background threads each have a time of their own, and
//! the one with the least time does its next operation, as a whole. One seed gives one outcome.
//!
//! A client's time grows by its transfers and by a microsecond for each operation. The background
//! threads work when there is something to do and their own last work has ended: what they free is
//! there at once, and the disk is busy until they have done. The manager's own clock is the
//! simulated one: which pages have been dirty for long does not depend on the machine.

use std::time::Duration;

use fastrand::Rng;
use highwater::{Background, Manager};

use super::disk::{Disk, Speed, Transfers, Work, as_client};
use super::load::{Data, count, percent, refaults_and_faults};
use super::variants::Variant;
use crate::control::Control;
use crate::experiments::service::Times;
use crate::experiments::{ExperimentError, Setup};

/// Clients.
pub(super) const CLIENTS: usize = 16;
/// The disk: chosen, a slow one.
pub(super) const SPEED: Speed = Speed {
    read: Duration::from_micros(500),
    write: Duration::from_millis(1),
};
/// Work of an operation apart from the disk's: chosen.
const OPERATION: Duration = Duration::from_micros(1);
/// Operations between looks whether the background threads have something to do.
const LOOKS: u64 = 32;

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Ran {
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) reads: Times,
    pub(super) refaults: u64,
    pub(super) faults: u64,
    /// Reads during which a page was written back.
    pub(super) reads_that_wrote: u64,
    pub(super) transfers: Transfers,
    pub(super) dirty_most_percent: f64,
    pub(super) wrong: u64,
}

/// The times of the background threads.
#[derive(Default)]
struct Threads {
    reclaimer: Duration,
    flusher: Duration,
}

impl Threads {
    /// Does their work if they are idle at `now` and there is any.
    fn work(&mut self, hw: &Manager, disk: &Disk, now: Duration) {
        if hw.is_short() && self.reclaimer <= now {
            disk.turn(now);
            hw.reclaim_ahead();
            self.reclaimer = disk.turn(now);
        }
        let background = count(hw, "nr_dirty_background_threshold");
        if count(hw, "nr_dirty") > background && self.flusher <= now {
            disk.turn(now);
            hw.writeback_tick();
            self.flusher = disk.turn(now);
        }
    }
}

pub(super) fn run(
    setup: &Setup,
    data: &Data,
    variant: &Variant,
    control: &Control,
) -> Result<Ran, ExperimentError> {
    let disk = Disk::simulated(SPEED);
    let (hw, file, mapping) = data.open(variant, &disk, Background::Off)?;
    let mut random = Rng::with_seed(setup.options.seed);
    let mut times = [Duration::ZERO; CLIENTS];
    let mut threads = Threads::default();
    let mut ran = Ran::default();
    // Fifteen for each page: with half as many, what the policies learn at first decides.
    let operations = setup.pick(600_000, 120_000);
    let mut before = (Duration::ZERO, Transfers::default(), [0; 2]);
    for operation in 0..operations * 3 / 2 {
        let least = times.iter().enumerate().min_by_key(|(_, time)| **time);
        let client = least.map_or(0, |it| it.0);
        let now = times[client];
        if operation == operations / 2 {
            // Warm: lists have their lengths, and shadows are there.
            before = (now, disk.counts(), refaults_and_faults(&hw));
            ran = Ran::default();
        }
        if operation % LOOKS == 0 {
            if variant.has_threads {
                threads.work(&hw, &disk, now);
            }
            let dirty = percent(count(&hw, "nr_dirty"), data.memory().0);
            ran.dirty_most_percent = ran.dirty_most_percent.max(dirty);
            control.advance(0)?;
        }
        let drawn = data.draw(&mut random);
        let in_reads = disk.counts().in_reads;
        disk.turn(now);
        let is_right = as_client(drawn.work, || data.does(drawn, &mapping))?;
        times[client] = disk.turn(now) + OPERATION;
        ran.operations += 1;
        ran.wrong += u64::from(!is_right);
        if drawn.work == Work::Read {
            ran.reads.add(times[client] - now);
            ran.reads_that_wrote += u64::from(disk.counts().in_reads > in_reads);
        }
    }
    let (begun, transfers, before) = before;
    let ended = times.iter().max().copied().unwrap_or_default();
    ran.seconds = (ended - begun).as_secs_f64();
    ran.transfers = disk.counts().since(&transfers);
    let after = refaults_and_faults(&hw);
    (ran.refaults, ran.faults) = (after[0] - before[0], after[1] - before[1]);
    data.close(&file, mapping)?;
    Ok(ran)
}

#[cfg(test)]
mod tests {
    use super::super::EXPERIMENT;
    use super::super::variants::{OURS, VARIANTS};
    use super::*;
    use crate::experiments::{Options, Size};
    use crate::report::Judge;

    /// Goal: one seed gives one outcome. Method: the variant that depends on the time for which
    /// pages were dirty, twice.
    #[test]
    fn one_seed_gives_one_outcome() {
        let setup = Setup {
            topology: EXPERIMENT.topology.parse().unwrap(),
            judge: Judge::Counts,
            options: Options {
                size: Size::Quick,
                ..Options::default()
            },
        };
        let ours = VARIANTS
            .iter()
            .find(|variant| variant.name == OURS)
            .unwrap();
        let outcome = |()| {
            let data = Data::new(4_000).unwrap();
            let ran = run(&setup, &data, ours, &Control::default()).unwrap();
            assert!(ran.transfers.writes > 0 && ran.wrong == 0);
            (
                ran.seconds.to_bits(),
                ran.refaults,
                ran.faults,
                ran.transfers,
            )
        };
        let [first, second] = [(), ()].map(outcome);
        assert_eq!(first, second);
    }
}
