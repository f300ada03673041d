//! The load: operations on pages by a Zipf law, 95 % reads and 5 % updates, verified.
//!
//! A page begins with its number and the count of its updates. A record is a page, as YCSB's of 1
//! KiB are less than one; ranks are scattered over the file.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fastrand::Rng;
use highwater::units::{PAGE_SIZE, Pages};
use highwater::{Access, Background, Backing, FileBacking, Limits, Manager, Mapping};

use super::disk::{Disk, OnDisk, Work};
use super::variants::Variant;
use crate::experiments::ExperimentError;
use crate::report::text::to_f64;

/// Exponent of the law, YCSB's.
const EXPONENT: f64 = 0.99;
/// Percentage of updates.
const UPDATES_PERCENT: u32 = 5;
/// Memory for so many tenths of a tenth of the data: 4.5 of 10.
pub(super) const MEMORY: (u64, u64) = (45, 100);

/// The data, and the law of its use.
#[derive(Debug)]
pub(super) struct Data {
    file: File,
    pages: u32,
    /// Sums of the probabilities of all ranks up to each, not normalised.
    cumulative: Vec<f64>,
    by_rank: Vec<u32>,
    /// Updates of each page. Written by: holders of its latch. Read by: the same. Publishes:
    /// nothing: the latch does.
    updates: Vec<AtomicU32>,
}

/// An operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) work: Work,
    pub(super) page: u32,
}

fn refused(source: io::Error) -> ExperimentError {
    ExperimentError::System {
        what: "write a file to read".to_owned(),
        source,
        remedy: "set TMPDIR to a directory with 200 MiB free",
    }
}

impl Data {
    pub(super) fn new(pages: u32) -> Result<Self, ExperimentError> {
        let mut file = tempfile::tempfile().map_err(refused)?;
        let mut bytes = [0; PAGE_SIZE];
        for page in 0..pages {
            bytes[..4].copy_from_slice(&page.to_le_bytes());
            file.write_all(&bytes).map_err(refused)?;
        }
        let mut by_rank: Vec<u32> = (0..pages).collect();
        Rng::with_seed(1).shuffle(&mut by_rank);
        let mut total = 0.0;
        let cumulative = (1..=pages).map(|rank| {
            total += f64::from(rank).powf(-EXPONENT);
            total
        });
        Ok(Self {
            file,
            pages,
            cumulative: cumulative.collect(),
            by_rank,
            updates: (0..pages).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    pub(super) fn memory(&self) -> Pages {
        Pages(u64::from(self.pages) * MEMORY.0 / MEMORY.1)
    }

    /// Returns the share of operations that miss if the pages with the highest probabilities are
    /// resident, as many as fit: on average no policy that does not know the future misses less.
    pub(super) fn misses_min(&self) -> f64 {
        let resident = usize::try_from(self.memory().0).unwrap_or(0);
        let hits = self.cumulative[resident.min(self.cumulative.len()) - 1];
        1.0 - hits / self.cumulative.last().copied().unwrap_or(1.0)
    }

    /// Draws an operation.
    pub(super) fn draw(&self, random: &mut Rng) -> Operation {
        let total = self.cumulative.last().copied().unwrap_or(0.0);
        let at = random.f64() * total;
        let rank = self.cumulative.partition_point(|&sum| sum < at);
        let work = match random.u32(..100) < UPDATES_PERCENT {
            true => Work::Update,
            false => Work::Read,
        };
        let page = self.by_rank[rank.min(self.by_rank.len() - 1)];
        Operation { work, page }
    }

    /// Does an operation; returns whether the page had the right bytes.
    pub(super) fn does(
        &self,
        operation: Operation,
        mapping: &Mapping,
    ) -> Result<bool, ExperimentError> {
        let page = u64::from(operation.page);
        let updates = &self.updates[operation.page as usize];
        let failed = |error: &dyn std::fmt::Display| refused(io::Error::other(error.to_string()));
        let is_right = |bytes: &[u8], updates: u32| {
            bytes[..4] == operation.page.to_le_bytes() && bytes[4..8] == updates.to_le_bytes()
        };
        // Relaxed: under the page's latch.
        match operation.work {
            Work::Update => {
                let mut bytes = mapping.write(page).map_err(|error| failed(&error))?;
                let before = updates.load(Ordering::Relaxed);
                let was_right = is_right(&bytes[..], before);
                let after = before.wrapping_add(1);
                bytes[4..8].copy_from_slice(&after.to_le_bytes());
                updates.store(after, Ordering::Relaxed);
                Ok(was_right)
            }
            _ => {
                let bytes = mapping.read_latched(page).map_err(|error| failed(&error))?;
                Ok(is_right(&bytes[..], updates.load(Ordering::Relaxed)))
            }
        }
    }

    /// Builds a manager of the variant over the data, and maps them.
    pub(super) fn open(
        &self,
        variant: &Variant,
        disk: &Arc<Disk>,
        background: Background,
    ) -> Result<(Manager, highwater::File, Mapping), ExperimentError> {
        let builder = Manager::builder()
            .capacity(self.memory().bytes())
            .decided_by(variant.policy())
            .readahead(Pages::ZERO)
            .background(background);
        let builder = match background {
            Background::Off => builder.topology(highwater::topology::Topology::flat(1)),
            Background::Thread => builder,
        };
        let builder = match disk.time() {
            Some(time) => builder.clock(time),
            None => builder,
        };
        let hw = builder.build()?;
        let file = self.file.try_clone().and_then(FileBacking::new);
        let backing: Arc<dyn Backing> = Arc::new(OnDisk {
            file: file.map_err(refused)?,
            disk: Arc::clone(disk),
        });
        let file = hw.open_backing(backing, Access::ReadWrite);
        let file = file.map_err(|error| refused(io::Error::other(error)))?;
        let group = hw.root().child("database", Limits::default());
        let space = hw.space(&group.expect("a new name"));
        let mapping = space.map_file(&file, 0..file.pages());
        Ok((hw, file, mapping.expect("the whole file")))
    }

    /// Writes everything back, for the next variant.
    pub(super) fn close(
        &self,
        file: &highwater::File,
        mapping: Mapping,
    ) -> Result<(), ExperimentError> {
        drop(mapping);
        let synced = file.sync();
        synced.map_err(|error| refused(io::Error::other(error.to_string())))
    }
}

/// Returns a counter of the manager.
pub(super) fn count(hw: &Manager, name: &str) -> u64 {
    hw.snapshot().counter(name)
}

/// Returns the pages that were read in again and those that were read in, so far.
pub(super) fn refaults_and_faults(hw: &Manager) -> [u64; 2] {
    ["workingset_refault_file", "pgmajfault"].map(|name| count(hw, name))
}

/// Returns the share of a part in percent.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    100.0 * to_f64(part) / to_f64(whole)
}
