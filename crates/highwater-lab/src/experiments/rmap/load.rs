//! The loads of the tenants A, B and C.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use highwater::units::{PAGE_BYTES, PAGE_SIZE};
use highwater::{File, Group, Manager, Mapping, ReadError, Space};

use super::clock::{Clock, PAGE_IN, PAGE_OF_A, PAGE_OF_A_BESIDE_C, PAGE_OF_C};
use super::ground::Ground;
use super::turns::{Turns, Who};
use crate::control::Control;
use crate::report::text::to_f64;

/// Pages between two checks of the stop flag.
const STRIDE: u64 = 1024;

/// Bytes of one read by C: 128 KiB.
const READ: usize = 32 * PAGE_SIZE;

/// Polling interval of an idle reclaimer. Chosen: half of the lead that one thread may have over
/// another.
const LOOKS_AGAIN: Duration = Duration::from_micros(10);

/// Refusals after which a read is given up.
const TRIES: u32 = 10_000;

/// Load of B.
#[derive(Clone, Copy, Debug)]
pub(super) struct Churn {
    /// Duration of the first hold of the lock, before the others.
    pub(super) first: Duration,
    /// Range of the hold between mapping and unmapping, in microseconds.
    pub(super) hold_us: [u64; 2],
    /// Part of the time for which it holds the lock, after the first hold.
    pub(super) share: f64,
}

/// Results of B.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Churned {
    pub(super) maps: u64,
    held: Duration,
    took: Duration,
}

impl Churned {
    /// Returns the part of the time for which B held the lock by its own measurement: from
    /// acquiring to releasing it, without the moments of mapping and unmapping.
    pub(super) fn held_ratio(&self) -> f64 {
        self.held.as_secs_f64() / self.took.as_secs_f64()
    }

    pub(super) fn maps_per_s(&self) -> f64 {
        to_f64(self.maps) / self.took.as_secs_f64()
    }

    /// Maps a range, holds the lock for a time, and unmaps.
    fn maps_for(
        &mut self,
        hold: Duration,
        file: &File,
        space: &Space,
        rng: &mut fastrand::Rng,
        clock: &Clock,
    ) {
        let pages = file.pages();
        let start = rng.u64(..pages);
        let end = pages.min(start + 1 + rng.u64(..(pages / 16).max(1)));
        let mapping = space.map_file(file, start..end);
        let mapping = mapping.expect("a range within the file");
        self.held += file.hold_rmap(|| {
            let held = clock.now();
            clock.wait(hold);
            clock.now() - held
        });
        drop(mapping);
        self.maps += 1;
    }
}

/// Results of a tenant that reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Read {
    pub(super) pages: u64,
    /// Pages with the wrong bytes.
    pub(super) wrong: u64,
    /// Reads that failed for lack of memory, and were retried.
    pub(super) refused: u64,
}

/// Reads; if memory is exhausted, waits a little, retries, and counts it: a kernel would have
/// invoked the OOM killer.
fn again<T>(
    clock: &Clock,
    refused: &mut u64,
    mut read: impl FnMut() -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    for _ in 0..TRIES {
        match read() {
            Err(ReadError::NoMemory { .. }) => *refused += 1,
            result => return result,
        }
        clock.wait(Duration::from_micros(100));
    }
    read()
}

/// A: touches every page in order, `passes` times.
pub(super) fn touch(
    hw: &Manager,
    ground: &Ground,
    mapping: &Mapping,
    passes: u64,
    control: &Control,
    clock: &Clock,
) -> Result<Read, ReadError> {
    let page_takes = match ground.has_c() {
        true => PAGE_OF_A_BESIDE_C,
        false => PAGE_OF_A,
    };
    let mut read = Read::default();
    for _ in 0..passes {
        for page in 0..mapping.pages() {
            if page % STRIDE == 0 && control.is_stopped() {
                return Ok(read);
            }
            let is_right = again(clock, &mut read.refused, || {
                let guard = hw.enter();
                Ok(ground.is_of_a(page, mapping.read(&guard, page)?))
            })?;
            clock.takes(page_takes - PAGE_IN);
            read.wrong += u64::from(!is_right);
            read.pages += 1;
        }
    }
    Ok(read)
}

/// B: maps and unmaps until A has ended.
pub(super) fn churn(
    churn: Churn,
    file: &File,
    space: &Space,
    seed: u64,
    is_over: &AtomicBool,
    clock: &Clock,
) -> Churned {
    let _seat = clock.join(Who::B);
    let mut rng = fastrand::Rng::with_seed(seed);
    let (begun, mut churned) = (clock.now(), Churned::default());
    if !churn.first.is_zero() {
        churned.maps_for(churn.first, file, space, &mut rng, clock);
    }
    let (since, held_before) = (clock.now(), churned.held);
    // Relaxed: the flag publishes no other data.
    while !is_over.load(Ordering::Relaxed) {
        let hold = Duration::from_micros(rng.u64(churn.hold_us[0]..=churn.hold_us[1]));
        churned.maps_for(hold, file, space, &mut rng, clock);
        let owed = (churned.held - held_before).div_f64(churn.share);
        clock.wait(
            (owed + since)
                .saturating_sub(clock.now())
                .min(Duration::from_millis(20)),
        );
    }
    churned.took = clock.now() - begun;
    churned
}

/// The background reclaimer, if the library's own does not run.
pub(super) fn balance(hw: &Manager, is_over: &AtomicBool, turns: &Turns) {
    let _seat = turns.join(Who::Reclaimer);
    // Relaxed: see `churn`.
    while !is_over.load(Ordering::Relaxed) {
        if hw.is_short() {
            hw.reclaim_ahead();
        }
        turns.rests(LOOKS_AGAIN);
    }
}

/// C, before the others begin: reads its file twice, which makes it C's working set.
pub(super) fn warm_up(hw: &Manager, file: &File, group: &Group) -> Result<(), ReadError> {
    let mut buf = vec![0; READ];
    for _ in 0..2 {
        let mut at = 0;
        while at < file.pages() * PAGE_BYTES {
            at += file.read_at(group, at, &mut buf)? as u64;
        }
        // Moves pages to their lists from the add batches of CPUs that this thread has left.
        let _ = hw.snapshot();
    }
    Ok(())
}

/// C: reads its file repeatedly from start to end, until A ends.
pub(super) fn read(
    ground: &Ground,
    file: &File,
    group: &Group,
    is_over: &AtomicBool,
    clock: &Clock,
) -> Result<Read, ReadError> {
    let _seat = clock.join(Who::C);
    let (mut read, mut at) = (Read::default(), 0);
    let mut buf = vec![0; READ];
    // Relaxed: see `churn`.
    while !is_over.load(Ordering::Relaxed) {
        let got = again(clock, &mut read.refused, || {
            file.read_at(group, at, &mut buf)
        })?;
        for (page, bytes) in (at / PAGE_BYTES..).zip(buf[..got].chunks(PAGE_SIZE)) {
            read.wrong += u64::from(!ground.is_of_c(page, bytes));
            read.pages += 1;
            clock.takes(PAGE_OF_C);
        }
        at += got as u64;
        if at >= file.pages() * PAGE_BYTES {
            at = 0;
        }
    }
    Ok(read)
}
