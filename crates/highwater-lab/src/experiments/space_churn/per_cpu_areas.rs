//! The kernel's allocator of per-CPU memory: an area has the same offset in a unit of each CPU.
//!
//! One lock for all of them guards the free areas. An allocation zeroes its area in the unit of
//! every possible CPU: one cache line for each CPU, most of them far away.
//!
//! Source: `mm/percpu.c` of Linux 6.18, described, with one chunk. Deviation: areas have one size,
//! so that a stack of free offsets replaces the bitmap.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Words between the units of two CPUs beyond the areas themselves, so that units share no line.
const GAP: usize = 16;

/// The chunk: all CPUs' units.
#[derive(Debug)]
pub(super) struct PerCpuAreas {
    words: Box<[AtomicI64]>,
    nr_cpus: usize,
    words_of_area: usize,
    words_of_unit: usize,
    /// Offsets of the areas that are free.
    free: Mutex<Vec<usize>>,
    locked: AtomicU64,
}

/// An area. Dropping it frees it.
#[derive(Debug)]
pub(super) struct Area {
    of: Arc<PerCpuAreas>,
    offset: usize,
}

impl PerCpuAreas {
    /// Returns a chunk with room for `areas`, each of `words_of_area` words on each CPU.
    pub(super) fn new(nr_cpus: usize, words_of_area: usize, areas: usize) -> Arc<Self> {
        let words_of_unit = areas * words_of_area + GAP;
        Arc::new(Self {
            words: (0..nr_cpus * words_of_unit)
                .map(|_| AtomicI64::new(0))
                .collect(),
            nr_cpus,
            words_of_area,
            words_of_unit,
            free: Mutex::new((0..areas).rev().map(|nth| nth * words_of_area).collect()),
            locked: AtomicU64::new(0),
        })
    }

    /// Allocates an area and zeroes it for every CPU.
    ///
    /// # Panics
    ///
    /// When all are in use.
    pub(super) fn allocate(self: &Arc<Self>) -> Area {
        let offset = self.with_free(Vec::pop).expect("room for all spaces");
        let area = Area {
            of: Arc::clone(self),
            offset,
        };
        for cpu in 0..self.nr_cpus {
            for word in area.words(cpu) {
                // Relaxed: no other thread has the area yet.
                word.store(0, Ordering::Relaxed);
            }
        }
        area
    }

    fn with_free<T>(&self, change: impl FnOnce(&mut Vec<usize>) -> T) -> T {
        // Relaxed: a count.
        self.locked.fetch_add(1, Ordering::Relaxed);
        // No code under the lock panics half-way.
        change(&mut self.free.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns how often the lock was taken.
    pub(super) fn locked(&self) -> u64 {
        // Relaxed: a count.
        self.locked.load(Ordering::Relaxed)
    }

    /// Returns the memory of one area on all CPUs, in bytes.
    pub(super) fn bytes_of_area(&self) -> u64 {
        (self.nr_cpus * self.words_of_area * size_of::<AtomicI64>()) as u64
    }
}

impl Area {
    /// Returns the words of one CPU.
    pub(super) fn words(&self, cpu: usize) -> &[AtomicI64] {
        let begin = cpu * self.of.words_of_unit + self.offset;
        &self.of.words[begin..begin + self.of.words_of_area]
    }

    pub(super) fn nr_cpus(&self) -> usize {
        self.of.nr_cpus
    }

    pub(super) fn bytes(&self) -> u64 {
        self.of.bytes_of_area()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        self.of.with_free(|free| free.push(self.offset));
    }
}
