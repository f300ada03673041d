//! What the tenants do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use highwater::manager::{File, Group, Manager, Mapping, ReadError, Space};
use highwater::units::{PAGE_BYTES, PAGE_SIZE};

use super::ground::Ground;
use crate::experiments::Control;
use crate::report::text::to_f64;

/// Pages between two looks at whether to stop.
const STRIDE: u64 = 1024;

/// Bytes that C reads by one call: 128 KiB.
const READ: usize = 32 * PAGE_SIZE;

/// Refusals of one read before it is given up.
const TRIES: u32 = 10_000;

/// What B does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Churn {
    /// How long it keeps the lock between mapping and unmapping.
    hold: Duration,
    /// The part of the time that it has the lock for.
    share: f64,
}

impl Churn {
    /// Long enough to be slept: a thread that kept the CPU while it holds the lock would lose it now and then, on a machine with
    /// less CPUs than tenants, and the lock would be held for as long as the others' time slices.
    pub(super) fn short(share: f64) -> Self {
        Self {
            hold: Duration::from_micros(200),
            share,
        }
    }

    pub(super) fn long(share: f64) -> Self {
        Self {
            hold: Duration::from_millis(24),
            share,
        }
    }
}

/// What B has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Churned {
    pub(super) maps: u64,
    held: Duration,
    took: Duration,
}

impl Churned {
    /// The part of the time that it had the lock for, as it saw it itself: from having it until it gave it back, without the
    /// moments of mapping and unmapping.
    pub(super) fn held_ratio(&self) -> f64 {
        self.held.as_secs_f64() / self.took.as_secs_f64()
    }

    pub(super) fn maps_per_s(&self) -> f64 {
        to_f64(self.maps) / self.took.as_secs_f64()
    }
}

/// What a tenant has read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Read {
    pub(super) pages: u64,
    /// Pages that were not what they should have been.
    pub(super) wrong: u64,
    /// Reads that were refused for want of memory, and tried again.
    pub(super) refused: u64,
}

/// Reads; where there is no memory, waits a little and tries again, and counts it: a kernel would have stopped somebody.
fn again<T>(
    refused: &mut u64,
    mut read: impl FnMut() -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    for _ in 0..TRIES {
        match read() {
            Err(ReadError::NoMemory { .. }) => *refused += 1,
            result => return result,
        }
        thread::sleep(Duration::from_micros(100));
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
) -> Result<Read, ReadError> {
    let mut read = Read::default();
    for _ in 0..passes {
        for page in 0..mapping.pages() {
            if page % STRIDE == 0 && control.is_stopped() {
                return Ok(read);
            }
            let is_right = again(&mut read.refused, || {
                let guard = hw.enter();
                Ok(ground.is_of_a(page, mapping.read(&guard, page)?))
            })?;
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
) -> Churned {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (begun, mut churned) = (Instant::now(), Churned::default());
    let pages = file.pages();
    // Relaxed: the flag alone is the message.
    while !is_over.load(Ordering::Relaxed) {
        let start = rng.u64(..pages);
        let end = pages.min(start + 1 + rng.u64(..(pages / 16).max(1)));
        let mapping = space.map_file(file, start..end);
        let mapping = mapping.expect("a range within the file");
        churned.held += file.hold_rmap(|| {
            let held = Instant::now();
            wait(churn.hold);
            held.elapsed()
        });
        drop(mapping);
        churned.maps += 1;
        let owed = churned.held.div_f64(churn.share);
        wait(
            owed.saturating_sub(begun.elapsed())
                .min(Duration::from_millis(20)),
        );
    }
    churned.took = begun.elapsed();
    churned
}

/// Waits, without the CPU unless it is for a moment only.
fn wait(time: Duration) {
    if time >= Duration::from_micros(200) {
        thread::sleep(time);
        return;
    }
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// C, before the others begin: reads its file twice, so that it has its working set.
pub(super) fn warm_up(file: &File, group: &Group) -> Result<(), ReadError> {
    let mut buf = vec![0; READ];
    for _ in 0..2 {
        let mut at = 0;
        while at < file.pages() * PAGE_BYTES {
            at += file.read_at(group, at, &mut buf)? as u64;
        }
    }
    Ok(())
}

/// C: reads its file from the start to the end, again and again, until A has ended.
pub(super) fn read(
    ground: &Ground,
    file: &File,
    group: &Group,
    is_over: &AtomicBool,
) -> Result<Read, ReadError> {
    let (mut read, mut at) = (Read::default(), 0);
    let mut buf = vec![0; READ];
    // Relaxed: as above.
    while !is_over.load(Ordering::Relaxed) {
        let got = again(&mut read.refused, || file.read_at(group, at, &mut buf))?;
        for (page, bytes) in (at / PAGE_BYTES..).zip(buf[..got].chunks(PAGE_SIZE)) {
            read.wrong += u64::from(!ground.is_of_c(page, bytes));
            read.pages += 1;
        }
        at += got as u64;
        if at >= file.pages() * PAGE_BYTES {
            at = 0;
        }
    }
    Ok(read)
}
