//! The load by real threads, on a real file whose transfers sleep.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use highwater::{Background, Mapping};

use super::disk::{Disk, Speed, Work, as_client};
use super::load::{Data, refaults_and_faults};
use super::simulated::Ran;
use super::variants::Variant;
use crate::control::Control;
use crate::experiments::crew::{Crew, Hand};
use crate::experiments::{ExperimentError, Setup};

/// Clients.
pub(super) const CLIENTS: usize = 8;
/// The disk: as slow as sleeps are exact.
pub(super) const SPEED: Speed = Speed {
    read: Duration::from_micros(200),
    write: Duration::from_micros(400),
};

pub(super) fn run(
    setup: &Setup,
    data: &Data,
    variant: &Variant,
    control: &Control,
) -> Result<Ran, ExperimentError> {
    let disk = Disk::real(SPEED);
    let background = match variant.has_threads {
        true => Background::Thread,
        false => Background::Off,
    };
    let (hw, file, mapping) = data.open(variant, &disk, background)?;
    let operations = setup.pick(30_000, 2_000);
    let phase = |operations, seed| clients(setup, data, &mapping, (operations, seed), control);
    phase(operations, 1)?;
    let (transfers, begun) = (disk.counts(), Instant::now());
    let before = refaults_and_faults(&hw);
    let mut ran = phase(operations, 2)?;
    ran.seconds = begun.elapsed().as_secs_f64();
    let after = refaults_and_faults(&hw);
    (ran.refaults, ran.faults) = (after[0] - before[0], after[1] - before[1]);
    ran.transfers = disk.counts().since(&transfers);
    data.close(&file, mapping)?;
    Ok(ran)
}

/// Runs all clients for so many operations each.
fn clients(
    setup: &Setup,
    data: &Data,
    mapping: &Mapping,
    (operations, seed): (u64, u64),
    control: &Control,
) -> Result<Ran, ExperimentError> {
    let failed = AtomicUsize::new(0);
    thread::scope(|scope| {
        let crew = Crew::new(scope);
        let failed = &failed;
        let hands: Result<Vec<_>, _> = (0..CLIENTS as u64)
            .map(|client| {
                let seed = setup.options.seed.wrapping_mul(1000) + seed * CLIENTS as u64 + client;
                crew.start(move || {
                    let ran = client_runs(data, mapping, (operations, seed), failed, control);
                    // Relaxed: others stop a little later.
                    failed.fetch_add(usize::from(ran.is_err()), Ordering::Relaxed);
                    ran
                })
            })
            .collect();
        let hands = hands?;
        crew.go();
        let results: Vec<_> = hands.into_iter().map(Hand::join).collect();
        let mut all = Ran::default();
        for result in results {
            let ran = result?;
            all.operations += ran.operations;
            all.wrong += ran.wrong;
            all.reads.merge(&ran.reads);
        }
        Ok(all)
    })
}

fn client_runs(
    data: &Data,
    mapping: &Mapping,
    (operations, seed): (u64, u64),
    failed: &AtomicUsize,
    control: &Control,
) -> Result<Ran, ExperimentError> {
    let mut random = Rng::with_seed(seed);
    let mut ran = Ran::default();
    for _ in 0..operations {
        // Relaxed: see above.
        if failed.load(Ordering::Relaxed) > 0 {
            break;
        }
        if control.is_stopped() {
            return Err(ExperimentError::Interrupted);
        }
        let drawn = data.draw(&mut random);
        let begun = Instant::now();
        let is_right = as_client(drawn.work, || data.does(drawn, mapping))?;
        ran.operations += 1;
        ran.wrong += u64::from(!is_right);
        if drawn.work == Work::Read {
            ran.reads.add(begun.elapsed());
        }
    }
    Ok(ran)
}
