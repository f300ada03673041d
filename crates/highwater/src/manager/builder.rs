//! Making a manager: settings, their ranges, and what was wrong with them.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::alarm::Timer;
use super::background::{Background, Reclaimer};
use super::capacity::CapacityRange;
use super::cgroup::Memcg;
use super::read::ReadaheadMax;
use super::writeback::{DirtyTunables, Writer};
use super::{Core, Manager, Parts, Shared, Throttling};
use crate::cache::{Accounting, Backing, MarkRule, READAHEAD_DEFAULT, SwapArea};
use crate::counter::ActiveCache;
use crate::frame::{BackendKind, DrainMode, PcpPolicy, PoolConfig, PoolError, Tunables, Zeroing};
use crate::group::GroupTree;
use crate::memmap::{MapError, Reservation};
use crate::percpu::{ChosenRegime, Gates, PercpuOwner, Regime, RegimeReason};
use crate::reclaim::policy::PolicyKind;
use crate::reclaim::{Pacer, RmapConfig, TwoListRules};
use crate::sync::Arc;
use crate::topology::Topology;
use crate::units::{Bytes, Pages};

/// The least frames of a page cache, and the least capacity where it has one: below it, a single
/// fault could need every frame.
const CAPACITY_MIN: Pages = Pages(16);

/// How long a group may give nothing back before the next one is told to stop. Chosen: an engine
/// that looks after each batch whether it was cancelled, every 1 to 10 ms, has looked ten times by
/// then; and a client does not notice.
const GRACE_DEFAULT: Duration = Duration::from_millis(100);

/// How a manager is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    capacity: Bytes,
    capacity_max: Option<Bytes>,
    frames: Option<Bytes>,
    follows_cgroup: bool,
    topology: Option<Topology>,
    background: Background,
    regime: Option<Regime>,
    pool: PoolConfig,
    accounting: Accounting,
    throttling: Throttling,
    rmap: RmapConfig,
    rules: TwoListRules,
    inactive_ratio: Option<u64>,
    pacer: Option<Arc<dyn Pacer>>,
    policy: PolicyKind,
    swap: Option<Swap>,
    readahead: Pages,
    marks: MarkRule,
    dirty_tunables: DirtyTunables,
    memcg: Memcg,
    grace: Duration,
    timer: Option<Timer>,
}

/// Where anonymous pages are swapped out to.
#[derive(Clone, Debug)]
enum Swap {
    /// A new file of some size in a directory.
    In(PathBuf, Bytes),
    /// Other storage.
    On(Arc<dyn Backing>),
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
    /// The page cache cannot have so many frames.
    #[error("a page cache of {frames} cannot be made: give 0 for none, or {min} to {max}")]
    FramesRange {
        /// What was asked for.
        frames: Bytes,
        /// The least beside none.
        min: Bytes,
        /// The most: no more can be used than the capacity.
        max: Bytes,
    },
    /// The frames do not fit the process's memory control group: using them would get it killed.
    #[error(
        "a capacity of {capacity} with frames of {frames} is above the control group's memory limit of {limit} (in {file}), and the process would be killed: give less, with room for the program's other memory, raise the limit, or have the capacity follow it (`Builder::follow_cgroup`)"
    )]
    AboveCgroup {
        /// The capacity that was asked for.
        capacity: Bytes,
        /// What pages could use of it.
        frames: Bytes,
        /// The least limit of the process's group and its ancestors.
        limit: Bytes,
        /// The file that says so.
        file: String,
    },
    /// The pool of frames cannot be made so.
    #[error(transparent)]
    Frames(#[from] PoolError),
    /// Restartable sequences were asked for, and cannot be had.
    #[error("no restartable sequences ({reason}): use the atomic regime")]
    Regime {
        /// What is in the way.
        reason: RegimeReason,
    },
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
    /// The swap file could not be made.
    #[error("cannot make a swap file of {size} in {dir}: {source}")]
    Swap {
        /// Where it was to be.
        dir: String,
        /// How large.
        size: Bytes,
        /// The system's reason.
        source: io::Error,
    },
    /// The background thread could not be started.
    #[error("the background reclaim thread could not be started: {0}")]
    Thread(#[source] io::Error),
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            capacity: Bytes::mib(64),
            capacity_max: None,
            frames: None,
            follows_cgroup: false,
            topology: None,
            background: Background::Off,
            regime: None,
            // The topology says how many CPUs it is for.
            pool: PoolConfig::new(1),
            accounting: Accounting::default(),
            throttling: Throttling::default(),
            rmap: RmapConfig::default(),
            rules: TwoListRules::default(),
            inactive_ratio: None,
            pacer: None,
            policy: PolicyKind::default(),
            swap: None,
            readahead: READAHEAD_DEFAULT,
            marks: MarkRule::default(),
            dirty_tunables: DirtyTunables::default(),
            memcg: Memcg::of_system(),
            grace: GRACE_DEFAULT,
            timer: None,
        }
    }

    /// The most that may be charged in all, pages of the cache included: the root's maximum,
    /// rounded down to whole pages where pages are cached. Default: 64 MiB.
    pub fn capacity(mut self, capacity: Bytes) -> Self {
        self.capacity = capacity;
        self
    }

    /// The most that the capacity can become ([`Manager::set_capacity`]): frames for as much are
    /// reserved, as address space. Default: the capacity; no limit where [`frames`](Self::frames)
    /// are given, because no more are needed then.
    ///
    /// # Cost
    ///
    /// Address space, and two bits for each frame; frames beyond the capacity are not used.
    pub fn capacity_max(mut self, max: Bytes) -> Self {
        self.capacity_max = Some(max);
        self
    }

    /// Keeps the capacity below the memory limit of the process's control group while that changes,
    /// as when a container is resized: it is what was asked for, or seven eighths of the limit if
    /// that is less. The eighth is for the books of frames and the program's other memory; where
    /// that is more, ask for less, or account for it by
    /// [`force_charge`](crate::Group::force_charge). The background thread looks once a second;
    /// without one, call [`Manager::cgroup_tick`]. Default: a capacity above the limit is an error.
    ///
    /// What is in use above a limit that was lowered is reclaimed, and nothing is charged until
    /// usage fits; charges of the program's are not given back by that. The system may kill the
    /// process first if the limit falls by more than the margin at once.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Background, Bytes, Manager};
    ///
    /// let hw = Manager::builder()
    ///     .capacity(Bytes::mib(64))
    ///     .follow_cgroup()
    ///     .background(Background::Thread)
    ///     .build()?;
    /// assert!(hw.capacity() <= Bytes::mib(64));
    /// # Ok::<(), highwater::BuildError>(())
    /// ```
    pub fn follow_cgroup(mut self) -> Self {
        self.follows_cgroup = true;
        self
    }

    /// The most that pages of the cache may use, rounded down to whole pages: so many frames of
    /// real memory are reserved. What the capacity has beyond them is for
    /// [charges](crate::Group::charge) only. Default: [`capacity_max`](Self::capacity_max).
    ///
    /// With 0 the manager only accounts: it has groups, limits, charges that wait, pressure and
    /// victims, and maps no memory, so that the capacity may exceed the machine's. Opening a file
    /// or mapping memory fails ([`NoFrames`](super::NoFrames)).
    ///
    /// # Cost
    ///
    /// Address space for the frames and their books; both are committed as frames are first used.
    /// Without frames a manager takes less than 1 MiB, whatever its capacity.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Limits, Manager};
    ///
    /// let hw = Manager::builder()
    ///     .capacity(Bytes::gib(4096))
    ///     .frames(Bytes(0))
    ///     .build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes::gib(64)))?;
    /// let work = tenant.charge(Bytes::gib(40))?;
    /// assert!(tenant.charge(Bytes::gib(40)).is_err());
    /// assert!(hw.open("/etc/hostname").is_err());
    /// # drop(work);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn frames(mut self, frames: Bytes) -> Self {
        self.frames = Some(frames);
        self
    }

    /// CPUs to manage memory for. Default: those of the system.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// Whether threads reclaim and write back ahead of need. Default: none; requests do it.
    pub fn background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// How per-CPU words are added to. Default: the best that the topology allows, and a `tracing`
    /// warning where the system lacks something for it ([`Manager::regime`]).
    pub fn regime(mut self, regime: Regime) -> Self {
        self.regime = Some(regime);
        self
    }

    /// What keeps the frames that are in no per-CPU list. Default: that of [`PoolConfig::new`].
    pub fn backend(mut self, backend: BackendKind) -> Self {
        self.pool.backend = backend;
        self
    }

    /// How per-CPU lists find their size. Default: [`PcpPolicy::Auto`].
    pub fn pcp_policy(mut self, policy: PcpPolicy) -> Self {
        self.pool.policy = policy;
        self
    }

    /// How a per-CPU list gives back more than a batch. Default: [`DrainMode::Pieces`].
    pub fn drain_mode(mut self, drain: DrainMode) -> Self {
        self.pool.drain = drain;
        self
    }

    /// When frames are zeroed. Default: [`Zeroing::OnRequest`].
    pub fn zeroing(mut self, zeroing: Zeroing) -> Self {
        self.pool.zeroing = zeroing;
        self
    }

    /// The knobs of the pool, which can be turned later, too ([`Manager::set_tunables`]).
    pub fn tunables(mut self, tunables: Tunables) -> Self {
        self.pool.tunables = tunables;
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

    /// What reclaim does while a thread that maps or unmaps a file holds its reverse-map lock.
    /// Default: [`RmapPolicy::Defer`](crate::reclaim::RmapPolicy::Defer).
    pub fn rmap(mut self, rmap: RmapConfig) -> Self {
        self.rmap = rmap;
        self
    }

    /// Which pages leave when memory is short. Default: [`PolicyKind::Balanced`].
    pub fn eviction_policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }

    /// Has pages leave by the two lists of Linux ([`PolicyKind::TwoList`]), and says by which rules
    /// they move between the inactive and the active one.
    pub fn two_list(mut self, rules: TwoListRules) -> Self {
        self.policy = PolicyKind::TwoList;
        self.rules = rules;
        self
    }

    /// How many active pages of a type the two lists keep for each inactive one: only beyond that
    /// are active pages looked at, unless pages of a new working set come in. The more, the more of
    /// a working set stays while others stream by, and the less time new pages have to be accessed
    /// again. Default: as in the kernel, 1 below 1 GiB of such pages, the square root of 10 times
    /// their GiB above.
    pub fn inactive_ratio(mut self, active: u64) -> Self {
        self.inactive_ratio = Some(active);
        self
    }

    /// Calls `pacer` between two clusters of pages, on the reclaiming thread. Default: none.
    pub fn pacer(mut self, pacer: Arc<dyn Pacer>) -> Self {
        self.pacer = Some(pacer);
        self
    }

    /// Swaps anonymous pages and shared memory out to a new file in the directory `dir`, of `size`
    /// rounded down to whole pages. Nobody else can open it, and it ends with the process. Its
    /// blocks are taken as they are first written. Default: no swap; such pages stay in memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Manager, Pages};
    ///
    /// let hw = Manager::builder()
    ///     .capacity(Bytes::mib(1))
    ///     .swap(std::env::temp_dir(), Bytes::mib(8))
    ///     .build()?;
    /// let space = hw.space(&hw.root());
    /// let scratch = space.map_anon(Pages(1024))?;
    /// for page in 0..1024 {
    ///     scratch.write(page)?[0] = 7;
    /// }
    /// assert_eq!(scratch.read_latched(3)?[..2], [7, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn swap(mut self, dir: impl Into<PathBuf>, size: Bytes) -> Self {
        self.swap = Some(Swap::In(dir.into(), size));
        self
    }

    /// The knobs of write-back, which can be turned later, too ([`Manager::set_dirty_tunables`]).
    pub fn dirty_tunables(mut self, tunables: DirtyTunables) -> Self {
        self.dirty_tunables = tunables;
        self
    }

    /// How long a charge that waits in line waits for a group that was told to stop, or that has
    /// promised to [give memory back](super::Group::on_reclaim), before it turns to the next: from
    /// when the group was told, or gave something back for the last time. Too short, and a second
    /// group is stopped while the first one is still ending; too long, and a group that ignores
    /// what it is told holds up all that wait. Default: 100 ms.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Says how charges that wait in line as futures are woken when a grace or a deadline is over:
    /// by a future that is ready at the moment given, which is polled by the task that waits. Where
    /// the manager has a [background thread](Background::Thread), that wakes them by default;
    /// without either, a grace is noticed when any such charge of the manager is polled.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use highwater::{Bytes, Manager};
    ///
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    /// let hw = Manager::builder()
    ///     .timer(|at| tokio::time::sleep_until(at.into()))
    ///     .build()?;
    /// let _all = hw.root().charge(hw.capacity())?;
    /// let soon = Instant::now() + Duration::from_millis(5);
    /// let late = hw.root().charge_async(Bytes::mib(1)).with_deadline(soon);
    /// assert!(runtime.block_on(late).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn timer<F, S>(mut self, sleep_until: F) -> Self
    where
        F: Fn(Instant) -> S + Send + Sync + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        self.timer = Some(Timer::new(sleep_until));
        self
    }

    /// Like [`swap`](Self::swap), on storage of the program: one slot for each whole page.
    pub fn swap_on(mut self, storage: Arc<dyn Backing>) -> Self {
        self.swap = Some(Swap::On(storage));
        self
    }

    /// Pages that are read together at most, when reads come in order; below 2, no page is read
    /// before it is asked for. The kernel's `read_ahead_kb`, in pages. A window is also at most a
    /// 64th of the capacity, and a 16th of the maximum of the group that pays. Default: 32 pages
    /// ([`READAHEAD_DEFAULT`]).
    pub fn readahead(mut self, max: Pages) -> Self {
        self.readahead = max;
        self
    }

    /// Says which page of a window of readahead is marked, so that its reader opens the next one.
    /// Default: one that the window reads ([`MarkRule::NextMissing`]).
    pub fn readahead_marks(mut self, marks: MarkRule) -> Self {
        self.marks = marks;
        self
    }

    /// Reserves the memory and starts what was asked for.
    ///
    /// # Cost
    ///
    /// Reserves address space for the frames and for their books (130 to 170 bytes a frame, 4 %;
    /// `docs/tuning.md`); both are committed as frames are first used.
    ///
    /// # Errors
    ///
    /// Settings outside their range, refused memory, or a thread that does not start.
    pub fn build(self) -> Result<Manager, BuildError> {
        let (capacity, frames) = self.sizes()?;
        let topology = self.topology.unwrap_or_else(Topology::detect);
        let chosen = ChosenRegime::choose(self.regime, &topology)
            .map_err(|reason| BuildError::Regime { reason })?;
        if chosen.is_fallback() {
            tracing::warn!(regime = %chosen, "per-CPU words cost several times as much as they could");
        }
        let regime = chosen.regime;
        let (cpus, max) = (topology.nr_cpus(), ActiveCache::CPUS_MAX);
        if self.accounting == Accounting::ActiveCache && cpus > max {
            return Err(BuildError::Accounting { cpus, max });
        }
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
                accounting: self.accounting,
                throttling: self.throttling,
                rmap: self.rmap,
                rules: self.rules,
                inactive_ratio: self.inactive_ratio,
                pacer: self.pacer,
                policy: self.policy,
                swap: self.swap.map(Swap::open).transpose()?,
                readahead: ReadaheadMax::new(self.readahead, self.marks),
                grace: self.grace,
                timer: self.timer,
            },
        )?);
        let fits = core.bring_to_capacity();
        debug_assert!(fits.is_ok(), "nothing is charged yet: {fits:?}");
        core.set_dirty_tunables(self.dirty_tunables);
        let reclaimer = Reclaimer::start(self.background, &core).map_err(BuildError::Thread)?;
        let writer = Writer::start(self.background, &core).map_err(BuildError::Thread)?;
        let memory = Arc::clone(&core.memory);
        let shared = Shared {
            _reclaimer: reclaimer,
            _writer: writer,
            core,
        };
        Ok(Manager {
            shared: Arc::new(PercpuOwner::new(Gates::new(regime, cpus), shared)),
            memory,
        })
    }
}

impl Builder {
    /// Where control groups are described, for tests.
    #[cfg(all(test, not(loom)))]
    pub(super) fn memcg(mut self, memcg: Memcg) -> Self {
        self.memcg = memcg;
        self
    }

    /// The capacity with its range, and frames, each within what is allowed.
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
                (frames.pages_floor(), max.unwrap_or(GroupTree::CHARGED_MAX))
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

    /// Refuses frames that the process's control group has no room for, if the capacity does not
    /// follow it.
    fn check_cgroup(&self, frames: Pages) -> Result<(), BuildError> {
        if frames == Pages::ZERO || self.follows_cgroup {
            return Ok(());
        }
        match self.memcg.limit() {
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
            Self::On(storage) => Ok(SwapArea::on(storage)),
        }
    }
}
