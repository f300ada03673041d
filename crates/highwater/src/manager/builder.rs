//! Making a manager: settings, their ranges, and what was wrong with them.

use std::io;

use thiserror::Error;

use super::background::{Background, Reclaimer};
use super::{Core, Manager, Shared, Throttling};
use crate::cache::Accounting;
use crate::counter::ActiveCache;
use crate::memmap::{MapError, Reservation};
use crate::percpu::{Gates, PercpuOwner, Regime};
use crate::sync::Arc;
use crate::topology::Topology;
use crate::units::{Bytes, Pages};

/// The least capacity: below it, a single fault could need every frame.
const CAPACITY_MIN: Pages = Pages(16);
/// Frames that a zone has at least.
const ZONE_MIN: u64 = 16;

/// How a manager is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    capacity: Bytes,
    topology: Option<Topology>,
    background: Background,
    regime: Option<Regime>,
    nr_zones: u32,
    accounting: Accounting,
    throttling: Throttling,
}

/// A manager could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The capacity is outside the allowed range.
    #[error("a capacity of {capacity} cannot be managed: give {min} to {max}")]
    Capacity {
        /// What was asked for.
        capacity: Bytes,
        /// The least.
        min: Bytes,
        /// The most.
        max: Bytes,
    },
    /// The number of zones is outside the allowed range.
    #[error("{zones} zones cannot be managed: give 1 to {max}, one for every 16 frames at most")]
    Zones {
        /// What was asked for.
        zones: u32,
        /// The most for this capacity.
        max: u32,
    },
    /// Restartable sequences are for CPUs that exist.
    #[error("these CPUs have no restartable sequences: use the atomic regime")]
    Regime,
    /// The way of counting spaces is not for as many CPUs.
    #[error("an active-space cache is for 1 to {max} CPUs, not {cpus}: count by CPU words")]
    Accounting {
        /// CPUs of the topology.
        cpus: usize,
        /// The most.
        max: usize,
    },
    /// The memory could not be reserved.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The background thread could not be started.
    #[error("the background reclaim thread could not be started: {0}")]
    Thread(#[source] io::Error),
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            capacity: Bytes::mib(64),
            topology: None,
            background: Background::Off,
            regime: None,
            nr_zones: 1,
            accounting: Accounting::default(),
            throttling: Throttling::default(),
        }
    }

    /// Memory in all, rounded down to whole pages. Default: 64 MiB.
    pub fn capacity(mut self, capacity: Bytes) -> Self {
        self.capacity = capacity;
        self
    }

    /// CPUs to manage memory for. Default: those of the system.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// Whether a thread reclaims ahead of need. Default: none; requests reclaim for themselves.
    pub fn background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// How per-CPU words are added to. Default: the best that the topology allows.
    pub fn regime(mut self, regime: Regime) -> Self {
        self.regime = Some(regime);
        self
    }

    /// Zones that the frames are divided into, each with its own lock. Default: 1.
    pub fn zones(mut self, zones: u32) -> Self {
        self.nr_zones = zones;
        self
    }

    /// How the resident sets of spaces are counted. Default: [`Accounting::CpuWords`].
    pub fn accounting(mut self, accounting: Accounting) -> Self {
        self.accounting = accounting;
        self
    }

    /// What becomes of the delay that a charge above a group's `high` owes. Default:
    /// [`Throttling::Report`].
    pub fn throttling(mut self, throttling: Throttling) -> Self {
        self.throttling = throttling;
        self
    }

    /// Reserves the memory and starts what was asked for.
    ///
    /// # Cost
    ///
    /// Reserves address space; memory is committed as frames are first used. The
    /// books, measured at 166 bytes a frame (4 %; `docs/tuning.md`), are allocated at once.
    ///
    /// # Errors
    ///
    /// Settings outside their range, refused memory, or a thread that does not start.
    pub fn build(self) -> Result<Manager, BuildError> {
        let pages = self.capacity.pages_floor();
        if pages < CAPACITY_MIN || pages > Reservation::MAX {
            let (min, max) = (CAPACITY_MIN.bytes(), Reservation::MAX.bytes());
            return Err(BuildError::Capacity {
                capacity: self.capacity,
                min,
                max,
            });
        }
        let max = u32::try_from(pages.0 / ZONE_MIN).unwrap_or(u32::MAX);
        if self.nr_zones == 0 || self.nr_zones > max {
            return Err(BuildError::Zones {
                zones: self.nr_zones,
                max,
            });
        }
        let topology = self.topology.unwrap_or_else(Topology::detect);
        let preferred = Regime::preferred(&topology);
        let regime = self.regime.unwrap_or(preferred);
        if regime == Regime::Restartable && preferred != Regime::Restartable {
            return Err(BuildError::Regime);
        }
        let (cpus, max) = (topology.nr_cpus(), ActiveCache::CPUS_MAX);
        if self.accounting == Accounting::ActiveCache && cpus > max {
            return Err(BuildError::Accounting { cpus, max });
        }
        let core = Arc::new(Core::new(
            pages,
            topology,
            regime,
            self.nr_zones,
            self.accounting,
            self.throttling,
        )?);
        let reclaimer = Reclaimer::start(self.background, &core).map_err(BuildError::Thread)?;
        let shared = Shared {
            _reclaimer: reclaimer,
            core,
        };
        Ok(Manager {
            shared: Arc::new(PercpuOwner::new(Gates::new(regime, cpus), shared)),
        })
    }
}
