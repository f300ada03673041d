//! Page frame allocator: a back end (buddy) that keeps free frames, per-CPU lists (pcp) in front of
//! it, and watermarks.
//!
//! ```text
//! thread -> its CPU's list (pcp) -> a back end (trees of bits) -> FrameMemory (the right to the bytes)
//! ```
//!
//! Invariant (conservation): `managed = free + deferred + cached + allocated`, where *free* and
//! *deferred* frames are in the back end, *cached* frames in a per-CPU list, and *allocated* frames
//! are owned or published; `frames of the memory = managed + ballooned`, the frames taken out of a
//! shrunken pool. [`FramePool::check_invariants`] recounts every part of it.
//!
//! A frame that the list of its CPU has, or has room for, costs a push or a pop there: a
//! restartable sequence without a lock prefix, where the system supports them. The back end is
//! visited once for many frames. Nothing here waits for memory: a refused allocation returns
//! [`AllocError`], and an allocation that leaves few frames returns [`Pressure::BelowLow`]; the
//! manager above decides what to do about it.
//!
//! | file | contents |
//! |---|---|
//! | `tunables`, `config`, `flags`, `error` | settings, options of a request, and errors |
//! | `backend` | back ends, which keep free frames |
//! | `pcp` | per-CPU lists (pcp) |
//! | `stock` | the back end with its watermarks |
//! | `request`, `upkeep` | allocation and free; maintenance and statistics |
//! | `balloon` | shrinking and growing a pool, giving memory back to the system |
//! | `counters`, `zoneinfo` | event counts, and the state of a pool as `/proc/zoneinfo` |
//!
//! **Fork.** No memory is shared with a child: after `fork`, a child has copies of the frames and
//! of all bookkeeping as they were at that instant, with the locks that other threads held then
//! held for ever. A child may continue with its copy of a pool only if no other thread was in it.
//! For a manager that is not enough: it shares storage with the child, and the child lacks its
//! threads (`docs/limitations.md`).
//!
//! Source: the page allocator of Linux as described in the frames-and-reclaim specification,
//! sections 2 to 4. Deviation: the watermarks and the lists are capped at a share of the pool,
//! because no interrupt handler draws on the reserve here, and reserves must not consume a small
//! cache.

mod backend;
mod balloon;
mod config;
mod counters;
mod error;
mod flags;
mod pcp;
mod request;
mod stock;
mod tunables;
mod upkeep;
mod watermarks;
mod zoneinfo;

#[cfg(all(test, not(loom)))]
mod balloon_tests;
#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;

#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use backend::MakeBackend;
#[cfg(feature = "lab")]
pub use backend::{Backend, FreeCount, Wait};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use balloon::Leaving;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use config::{PoolConfig, PoolError, Zeroing};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use counters::PcpCounters;
pub use error::AllocError;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use flags::AllocFlags;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use pcp::{AutoTuned, PcpPolicy, PcpSizes, Rules};
#[cfg(feature = "lab")]
pub use pcp::{Freed, ListState, Refill, Shortage, Use};
pub use tunables::{TunableError, Tunables};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use watermarks::Watermarks;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use zoneinfo::{ListInfo, Zoneinfo};

use crate::memmap::FrameMemory;
pub use crate::memmap::{Frame, MapError};
use crate::percpu::Regime;
use crate::sync::{Arc, LockClass, Mutex, Rank};
use crate::topology::Topology;
use crate::units::{Bytes, PAGE_SIZE, Pages};
use balloon::Balloon;
use pcp::PcpLists;
use stock::Stock;

static KNOBS_LOCK: LockClass = LockClass::new("knobs", Rank::Knobs);

/// The frames of one [`FrameMemory`], allocated one by one or in blocks.
pub struct FramePool {
    lists: PcpLists,
    stock: Stock,
    balloon: Balloon,
    config: PoolConfig,
    knobs: Mutex<Knobs>,
}

/// The state that can be set while the pool runs.
struct Knobs {
    tunables: Tunables,
    /// Number of [`ListsDisabled`] guards.
    disabled: u32,
    /// Whether some lists have former rules, because the system let no thread reach them.
    is_unreached: bool,
}

/// Marks that pages are being reclaimed while this lives: lists keep few frames.
#[derive(Debug)]
#[must_use]
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) struct Reclaiming<'a>(&'a FramePool);

impl Drop for Reclaiming<'_> {
    fn drop(&mut self) {
        self.0.lists.end_reclaim();
    }
}

/// Keeps the per-CPU lists empty while this lives.
#[derive(Debug)]
#[must_use]
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) struct ListsDisabled<'a>(&'a FramePool);

impl Drop for ListsDisabled<'_> {
    fn drop(&mut self) {
        self.0.turn(|knobs| knobs.disabled -= 1);
    }
}

/// The pressure that an allocation observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) enum Pressure {
    /// Enough frames are free, or the allocation did not check (it was served by the CPU's list).
    None,
    /// At most [`Watermarks::low`] frames are free: background reclaim should run.
    BelowLow,
}

/// Counts of the frames in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FrameCounts {
    /// All frames but those that a shrunken pool does without.
    pub managed: Pages,
    /// Frames taken out of a shrunken pool; their memory was given back to the system.
    pub ballooned: Pages,
    /// Frames in the zones.
    pub free: Pages,
    /// Frames freed to the zones and not merged yet, because another thread held the lock.
    pub deferred: Pages,
    /// Frames in per-CPU lists.
    pub cached: Pages,
    /// Frames handed out.
    pub allocated: Pages,
    /// Highest number of frames outside the zones, as seen after each visit to them: those handed
    /// out, those in per-CPU lists, and those that [`trim`](crate::Manager::trim), or the search
    /// for a block in a shrunken pool, withholds for a moment. Misses what other threads give back
    /// between a visit and its look, and while the capacity is being lowered.
    pub peak: Pages,
}

impl FramePool {
    /// Reserves memory of its own for a pool: `capacity`, rounded down to whole frames, with a list
    /// for each CPU of `topology`.
    ///
    /// # Errors
    ///
    /// When the capacity is too small or too large, or the system refuses to reserve as much.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::frame::FramePool;
    /// use highwater::topology::Topology;
    /// use highwater::units::Bytes;
    ///
    /// let pool = FramePool::reserve(Bytes::mib(4), &Topology::detect())?;
    /// assert!(FramePool::reserve(Bytes(1), &Topology::detect()).is_err()); // not even a frame
    /// # drop(pool);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(
        clippy::missing_panics_doc,
        reason = "new memory and a topology make a pool"
    )]
    pub fn reserve(capacity: Bytes, topology: &Topology) -> Result<Self, MapError> {
        let memory = Arc::new(FrameMemory::new(capacity.pages_floor())?);
        let config = PoolConfig {
            regime: Regime::preferred(topology),
            ..PoolConfig::new(topology.nr_cpus())
        };
        let pool = Self::with_config(memory, config);
        Ok(pool.expect("the memory is new, and a topology has a CPU"))
    }

    /// Returns the bytes of a frame of this pool.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another pool.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::frame::FramePool;
    /// use highwater::{Bytes, Topology};
    ///
    /// let pool = FramePool::reserve(Bytes::mib(4), &Topology::detect())?;
    /// let frame = pool.alloc_zeroed()?;
    /// assert_eq!(pool.bytes(&frame), &[0; 4096]);
    /// pool.free(frame);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8; PAGE_SIZE] {
        let bytes = self.stock.memory.bytes(frame).first_chunk();
        bytes.expect("a frame has a page")
    }

    /// Returns the bytes of a frame of this pool for writing.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another pool.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::frame::FramePool;
    /// use highwater::{Bytes, Topology};
    ///
    /// let pool = FramePool::reserve(Bytes::mib(4), &Topology::detect())?;
    /// let mut frame = pool.alloc()?;
    /// pool.bytes_mut(&mut frame).fill(7);
    /// assert_eq!(pool.bytes(&frame)[4095], 7);
    /// pool.free(frame);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8; PAGE_SIZE] {
        let bytes = self.stock.memory.bytes_mut(frame).first_chunk_mut();
        bytes.expect("a frame has a page")
    }

    /// Returns a pool with [the defaults](PoolConfig::new).
    ///
    /// # Errors
    ///
    /// As [`with_config`](Self::with_config).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn new(memory: Arc<FrameMemory>, nr_cpus: usize) -> Result<Self, PoolError> {
        Self::with_config(memory, PoolConfig::new(nr_cpus))
    }

    /// Puts every frame of `memory`, which must all be free, into a pool.
    ///
    /// # Errors
    ///
    /// When there are no CPUs, or frames of the memory are in use.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn with_config(
        memory: Arc<FrameMemory>,
        config: PoolConfig,
    ) -> Result<Self, PoolError> {
        if config.nr_cpus == 0 {
            return Err(PoolError::NoCpus);
        }
        let (free, managed) = (memory.count_free(), memory.pages());
        if free != managed {
            return Err(PoolError::NotFree { free, managed });
        }
        let stock = Stock::new(memory, &config);
        let rules = rules(&stock, &config, &config.tunables);
        // The most that a list may hold under any setting, and the frames that two refills may
        // bring beyond it.
        let share = stock.managed().0 / 8 / config.nr_cpus as u64;
        let share = u32::try_from(share).map_or(pcp::FRAMES_MAX, |most| most.min(pcp::FRAMES_MAX));
        let capacity = share.max(rules.high_min) + 4 * rules.batch;
        let lists = PcpLists::new(
            &stock.memory,
            config.regime,
            config.nr_cpus,
            rules,
            capacity.next_power_of_two(),
        );
        let tunables = config.tunables;
        let knobs = Knobs {
            tunables,
            disabled: 0,
            is_unreached: false,
        };
        Ok(Self {
            lists,
            stock,
            balloon: Balloon::new(),
            config,
            knobs: Mutex::new(&KNOBS_LOCK, knobs),
        })
    }
}

/// Returns the rules for the lists of a pool.
fn rules(stock: &Stock, config: &PoolConfig, tunables: &Tunables) -> Rules {
    let sizes = PcpSizes::for_managed(
        stock.managed(),
        stock.watermarks().low,
        config.nr_cpus,
        tunables,
    );
    let cache_frames = config.cache_slice.0 / PAGE_SIZE as u64;
    let cache_frames = u32::try_from(cache_frames).unwrap_or(u32::MAX);
    Rules::new(config.policy, sizes, tunables, cache_frames)
}

impl Drop for FramePool {
    /// Frees every frame without an owner, so that the memory can be put into another pool.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.drain_all();
            self.empty_balloon();
        }
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramePool")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}
