//! Building a manager: checks the settings against each other, the machine and the cgroup, reserves
//! the memory, and starts the threads.

use std::io;

use super::background::Reclaimer;
use super::builder::{Builder, Swap};
use super::capacity::CapacityRange;
use super::error::BuildError;
use super::io::IoThreads;
use super::read::ReadaheadMax;
use super::recorder::{Recorder, RecorderThread, refused};
use super::writeback::WritebackThread;
use super::{Core, Manager, Parts, Shared};
use crate::cache::SwapArea;
use crate::frame::PoolConfig;
use crate::group::GroupTree;
use crate::memmap::Reservation;
use crate::percpu::{ChosenRegime, Gates, PercpuOwner};
use crate::sync::Arc;
use crate::topology::Topology;
use crate::units::{Bytes, PAGE_SIZE, Pages};

/// Minimum frames of a page cache, and minimum capacity with one: a fault could need them all.
const CAPACITY_MIN: Pages = Pages(16);

impl Builder {
    /// Reserves the memory and starts the background threads.
    ///
    /// # Cost
    ///
    /// Reserves address space for the frames and their metadata (130 to 170 bytes a frame, 4 %;
    /// `docs/tuning.md`); both are committed as frames are first used.
    ///
    /// # Errors
    ///
    /// For settings outside their range, frames above the control group's limit, memory that the
    /// system refuses, a swap file or recording that cannot be made, or a thread that does not
    /// start.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Manager};
    ///
    /// assert!(Manager::builder().capacity(Bytes::mib(16)).build().is_ok());
    /// let refused = Manager::builder().capacity(Bytes(1)).build().unwrap_err();
    /// println!("{refused}"); // names the value and the range
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build(self) -> Result<Manager, BuildError> {
        let (capacity, frames) = self.sizes()?;
        let topology = self.topology.unwrap_or_else(Topology::detect);
        let chosen = ChosenRegime::choose(self.regime, &topology);
        #[cfg(feature = "lab")]
        let chosen = chosen.map_err(|reason| BuildError::Regime { reason })?;
        #[cfg(not(feature = "lab"))]
        let chosen = chosen.unwrap_or_else(|reason| unreachable!("not requested: {reason}"));
        if chosen.is_fallback() {
            tracing::warn!(regime = %chosen, "per-CPU words cost several times as much as they could");
        }
        let (regime, cpus) = (chosen.regime, topology.nr_cpus());
        let readahead = ReadaheadMax::new(self.readahead);
        #[cfg(feature = "lab")]
        let readahead = readahead.with_marks(self.lab.marks);
        // Declared before the core, which ends first if a later step fails.
        let created = self.recorder.as_ref();
        let created = created.map(|(path, size)| Recorder::create(path, *size, cpus));
        let (recorder, unpublished) = created.transpose()?.unzip();
        let core = Arc::new(Core::new(
            topology,
            Parts {
                capacity,
                frames,
                regime: chosen,
                pool: PoolConfig {
                    nr_cpus: cpus,
                    regime,
                    ..self.pool
                },
                throttling: self.throttling,
                #[cfg(feature = "lab")]
                lab: self.lab,
                policy: self.policy,
                swap: self.swap.map(Swap::open).transpose()?,
                readahead,
                grace: self.grace,
                timer: self.timer,
                engine: self.engine,
                recorder,
            },
        )?);
        let fits = core.bring_to_capacity();
        debug_assert!(fits.is_ok(), "nothing is charged yet: {fits:?}");
        core.look_at_dirty_limits();
        let reclaimer = Reclaimer::start(self.background, &core).map_err(BuildError::Thread)?;
        let writer = WritebackThread::start(self.background, &core).map_err(BuildError::Thread)?;
        let records = RecorderThread::start(self.background, &core).map_err(BuildError::Thread)?;
        // After all that can fail: it takes the place of the recording before.
        if let (Some(new), Some((path, size))) = (unpublished, self.recorder) {
            let published = new.publish();
            published.map_err(|source| refused(&path, size, source))?;
        }
        let memory = Arc::clone(&core.memory);
        let shared = Shared {
            _reclaimer: reclaimer,
            _writer: writer,
            _io: IoThreads::of(&core),
            _recorder: records,
            core,
        };
        let gates = Gates::new(regime, cpus);
        let handles = PercpuOwner::new(gates, Arc::new(PercpuOwner::new(gates, shared)));
        Ok(Manager {
            shared: handles.reference(),
            memory,
            _handles: Arc::new(handles),
        })
    }

    /// Returns the capacity with its range, and the number of frames, both checked.
    fn sizes(&self) -> Result<(CapacityRange, Pages), BuildError> {
        let least = CAPACITY_MIN.bytes();
        let (frames, max) = match (self.frames, self.capacity_max) {
            (None, max) => {
                let max = max.unwrap_or(self.capacity);
                check_capacity(max, least, Reservation::MAX.bytes())?;
                (max.pages_floor(), max)
            }
            (Some(frames), max) => {
                let most = max.unwrap_or(self.capacity).pages_floor();
                check_frames(frames, most.min(Reservation::MAX))?;
                let max = max.unwrap_or(GroupTree::CHARGED_MAX);
                check_capacity(max, Bytes(1), GroupTree::CHARGED_MAX)?;
                (frames.pages_floor(), max)
            }
        };
        let min = match frames {
            Pages::ZERO => Bytes(1),
            _ => least,
        };
        check_capacity(self.capacity, min, max)?;
        let range = CapacityRange::new(
            min..=max,
            frames,
            self.follows_cgroup.then(|| self.memcg.clone()),
        );
        range.ask_for(self.capacity);
        self.check_cgroup(frames.min(self.capacity.pages_floor()))?;
        Ok((range, frames))
    }

    /// Refuses frames for which the process's cgroup has no room, unless the capacity follows its
    /// limit.
    fn check_cgroup(&self, frames: Pages) -> Result<(), BuildError> {
        if frames == Pages::ZERO || self.follows_cgroup {
            return Ok(());
        }
        match self.memcg.read_limits().lowest {
            Some(limit) if limit.bytes < frames.bytes() => Err(BuildError::AboveCgroup {
                capacity: self.capacity,
                frames: frames.bytes(),
                limit: limit.bytes,
                file: limit.file.display().to_string(),
            }),
            _ => Ok(()),
        }
    }
}

fn check_frames(frames: Bytes, max: Pages) -> Result<(), BuildError> {
    if frames == Bytes(0) || (CAPACITY_MIN..=max).contains(&frames.pages_floor()) {
        return Ok(());
    }
    let (min, max) = (CAPACITY_MIN.bytes(), max.bytes());
    Err(BuildError::FramesRange { frames, min, max })
}

fn check_capacity(capacity: Bytes, min: Bytes, max: Bytes) -> Result<(), BuildError> {
    if (min..=max).contains(&capacity) {
        return Ok(());
    }
    Err(BuildError::Capacity { capacity, min, max })
}

impl Swap {
    fn open(self) -> Result<SwapArea, BuildError> {
        match self {
            Self::In(dir, size) => {
                SwapArea::create(&dir, size).map_err(|source| BuildError::Swap {
                    dir: dir.display().to_string(),
                    size,
                    source,
                })
            }
            Self::On(storage) if storage.page_size() != PAGE_SIZE => {
                let text = format!(
                    "its pages have {} bytes, and slots {PAGE_SIZE}",
                    storage.page_size()
                );
                Err(BuildError::Swap {
                    dir: "the given storage".to_owned(),
                    size: Bytes(storage.len()),
                    source: io::Error::new(io::ErrorKind::InvalidInput, text),
                })
            }
            Self::On(storage) => Ok(SwapArea::on(storage)),
        }
    }
}
