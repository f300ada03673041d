//! The manager's builder: its settings. Checks and construction: `build.rs`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::alarm::Timer;
use super::background::Background;
use super::cgroup::Memcg;
use super::io::IoEngine;
use super::throttle::Throttling;
#[cfg(feature = "lab")]
use crate::cache::MarkRule;
use crate::cache::{Backing, READAHEAD_MAX};
use crate::frame::{MakeBackend, PoolConfig, Tunables, Zeroing};
use crate::percpu::Regime;
use crate::reclaim::policy::{EvictionPolicy, PolicyKind};
#[cfg(feature = "lab")]
use crate::reclaim::{Pacer, RmapConfig};
use crate::sync::Arc;
#[cfg(feature = "lab")]
use crate::sync::atomic::AtomicU64;
use crate::topology::Topology;
use crate::units::{Bytes, Pages};

/// Default of [`Builder::grace`]. Chosen: an engine that checks for cancellation after each batch,
/// every 1 to 10 ms, has checked ten times by then; and a client does not notice the delay.
const GRACE_DEFAULT: Duration = Duration::from_millis(100);
/// The longest grace period: as good as for ever, and never too long to add to a time.
const GRACE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Settings of a manager.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    pub(super) capacity: Bytes,
    pub(super) capacity_max: Option<Bytes>,
    pub(super) frames: Option<Bytes>,
    pub(super) follows_cgroup: bool,
    pub(super) topology: Option<Topology>,
    pub(super) background: Background,
    pub(super) regime: Option<Regime>,
    pub(super) pool: PoolConfig,
    pub(super) throttling: Throttling,
    pub(super) policy: Arc<dyn EvictionPolicy>,
    pub(super) swap: Option<Swap>,
    pub(super) readahead: Pages,
    pub(super) memcg: Memcg,
    pub(super) grace: Duration,
    pub(super) timer: Option<Timer>,
    pub(super) engine: IoEngine,
    pub(super) recorder: Option<(PathBuf, Bytes)>,
    #[cfg(feature = "lab")]
    pub(super) lab: LabSettings,
}

/// Settings that experiments compare with the library's own.
#[cfg(feature = "lab")]
#[derive(Clone, Debug, Default)]
pub(super) struct LabSettings {
    pub(super) rmap: RmapConfig,
    pub(super) pacer: Option<Arc<dyn Pacer>>,
    pub(super) marks: MarkRule,
    pub(super) clock: Option<Arc<AtomicU64>>,
}

/// The swap area for anonymous pages.
#[derive(Clone, Debug)]
pub(super) enum Swap {
    /// A new file of the given size in a directory.
    In(PathBuf, Bytes),
    /// Other storage.
    On(Arc<dyn Backing>),
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
            // The CPU count is set from the topology.
            pool: PoolConfig::new(1),
            throttling: Throttling::default(),
            policy: PolicyKind::default().policy(),
            swap: None,
            readahead: READAHEAD_MAX,
            memcg: Memcg::of_system(),
            grace: GRACE_DEFAULT,
            timer: None,
            engine: IoEngine::Ring,
            recorder: None,
            #[cfg(feature = "lab")]
            lab: LabSettings::default(),
        }
    }

    /// Maximum of all charges together, pages of the cache included: the root's maximum. Rounded
    /// down to whole pages if the manager has a page cache. Default: 64 MiB.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Manager};
    ///
    /// let hw = Manager::builder().capacity(Bytes::mib(32)).build()?;
    /// assert!(hw.root().charge(Bytes::mib(33)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn capacity(mut self, capacity: Bytes) -> Self {
        self.capacity = capacity;
        self
    }

    /// Does without io_uring: threads of the manager make asynchronous reads, up to 16 at once, as
    /// they do where the system has no io_uring or refuses it, and scattered pages of a direct file
    /// are written back one run after the other, not 32 at once. Default: io_uring.
    ///
    /// # Examples
    ///
    /// ```
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// let hw = highwater::Manager::builder().without_io_uring().build()?;
    /// let file = hw.open(source.path())?;
    /// let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// assert_eq!(*hw.block_on(map.read_async(0))?, [7; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn without_io_uring(mut self) -> Self {
        self.engine = IoEngine::Threads;
        self
    }

    /// Upper bound for later changes of the capacity
    /// ([`Manager::set_capacity`](super::Manager::set_capacity)): address space for that many
    /// frames is reserved. Default: the capacity; unlimited if [`frames`](Self::frames) is set,
    /// because then no further frames are needed.
    ///
    /// # Cost
    ///
    /// Address space, and two bits for each frame; frames beyond the capacity are not used.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Manager};
    ///
    /// let hw = Manager::builder().capacity(Bytes::mib(8)).capacity_max(Bytes::mib(32)).build()?;
    /// hw.set_capacity(Bytes::mib(32))?;
    /// assert!(hw.set_capacity(Bytes::mib(33)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn capacity_max(mut self, max: Bytes) -> Self {
        self.capacity_max = Some(max);
        self
    }

    /// Keeps the capacity below the memory limit of the process's cgroup, also when a container is
    /// resized: the capacity is the requested one, or seven eighths of the limit if that is less.
    /// The eighth is for frame metadata and the program's other memory; a program that needs more
    /// should request less, or account for it by [`force_charge`](crate::Group::force_charge). The
    /// background thread checks the limit once a second; without one, call
    /// [`Manager::balance`](super::Manager::balance). Default: frames above the limit
    /// are an error.
    ///
    /// When the limit is lowered, the excess is reclaimed, and nothing is charged until usage fits;
    /// the program's own charges are not revoked. The system may OOM-kill the process first if the
    /// limit falls by more than the margin at once.
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

    /// Maximum memory for pages of the cache, rounded down to whole pages: that many frames are
    /// reserved. Capacity beyond them is available to [charges](crate::Group::charge) only.
    /// Default: [`capacity_max`](Self::capacity_max).
    ///
    /// With 0 the manager only accounts: it has groups, limits, waiting charges, pressure and
    /// victims, but maps no memory, so the capacity may exceed the machine's. Opening a file or
    /// mapping memory fails ([`OpenError::NoFrames`](super::OpenError::NoFrames)).
    ///
    /// # Cost
    ///
    /// Address space for the frames and their metadata; both are committed as frames are first
    /// used. Without frames a manager takes less than 1 MiB, whatever its capacity.
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

    /// Sets the CPU topology. Default: the system's.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// Selects threads for reclaim, write-back and readahead. Default: none; requests do the work.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Background, Manager};
    ///
    /// let hw = Manager::builder().background(Background::Thread).build()?;
    /// # drop(hw);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// Selects the regime of per-CPU updates. Default: the fastest that the topology allows, with a
    /// `tracing` warning if the system lacks support for it
    /// ([`Manager::regime`](super::Manager::regime)).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn regime(mut self, regime: Regime) -> Self {
        self.regime = Some(regime);
        self
    }

    /// Selects the allocator behind the per-CPU lists. Default: that of [`PoolConfig::new`].
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn backend(mut self, backend: MakeBackend) -> Self {
        self.pool.backend = backend;
        self
    }

    /// Selects when frames are zeroed. Default: [`Zeroing::OnRequest`].
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn zeroing(mut self, zeroing: Zeroing) -> Self {
        self.pool.zeroing = zeroing;
        self
    }

    /// Sets the tunables, which [`Manager::set_tunables`](super::Manager::set_tunables) can change
    /// later.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn tunables(mut self, tunables: Tunables) -> Self {
        self.pool.tunables = tunables;
        self
    }

    /// Selects how the throttling delay of a charge above a group's `high` is served. Default:
    /// [`Throttling::Report`].
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Limits, Manager, Throttling};
    ///
    /// let hw = Manager::builder().throttling(Throttling::Report).build()?;
    /// let tenant = hw.root().child("tenant-a", Limits { high: Bytes::mib(1), ..Limits::default() })?;
    /// assert!(!tenant.charge(Bytes::mib(2))?.throttle_delay().is_zero());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn throttling(mut self, throttling: Throttling) -> Self {
        self.throttling = throttling;
        self
    }

    /// Takes the time from a word, in nanoseconds, instead of the system's clock: for experiments
    /// on a simulated one, in which no thread waits.
    #[cfg(feature = "lab")]
    #[visibility::make(pub)]
    pub(crate) fn clock(mut self, clock: Arc<AtomicU64>) -> Self {
        self.lab.clock = Some(clock);
        self
    }

    /// Selects how reclaim handles a contended rmap lock. Default:
    /// [`RmapPolicy::Defer`](crate::reclaim::RmapPolicy::Defer).
    #[cfg(feature = "lab")]
    #[visibility::make(pub)]
    pub(crate) fn rmap(mut self, rmap: RmapConfig) -> Self {
        self.lab.rmap = rmap;
        self
    }

    /// Selects the eviction policy. Default: [`PolicyKind::Balanced`].
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Manager, PolicyKind};
    ///
    /// let hw = Manager::builder().eviction_policy(PolicyKind::S3Fifo).build()?;
    /// # drop(hw);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn eviction_policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy.policy();
        self
    }

    /// Sets the eviction policy to one of the caller's.
    #[cfg(feature = "lab")]
    #[visibility::make(pub)]
    pub(crate) fn decided_by(mut self, policy: Arc<dyn EvictionPolicy>) -> Self {
        self.policy = policy;
        self
    }

    /// Calls `pacer` on the reclaiming thread between clusters of pages. Default: none.
    #[cfg(feature = "lab")]
    #[visibility::make(pub)]
    pub(crate) fn pacer(mut self, pacer: Arc<dyn Pacer>) -> Self {
        self.lab.pacer = Some(pacer);
        self
    }

    /// Swaps anonymous and shared pages out to a new unlinked file in the directory `dir`, of
    /// `size` rounded down to whole pages. No other process can open it, and it ends with this one.
    /// Its blocks are allocated as they are first written. It is buffered: the kernel gathers the
    /// pages that are swapped out one by one, in memory of its own; for a file that goes past its
    /// cache, see [`swap_on`](Self::swap_on). Default: no swap; such pages stay in memory.
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

    /// Sets the grace period: how long a waiting charge waits for a group that was told to stop, or
    /// promised to [give memory back](super::Group::on_reclaim), before it selects the next. It
    /// starts when the group is told; for one that is to stop, it restarts when that gives memory
    /// back. Too short, and a second group is stopped while the first is still ending; too long,
    /// and a group that ignores the request delays every waiting charge. Default: 100 ms; more than
    /// a year counts as a year.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use highwater::Manager;
    ///
    /// let hw = Manager::builder().grace(Duration::from_millis(20)).build()?; // queries end quickly
    /// # drop(hw);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace.min(GRACE_MAX);
        self
    }

    /// Sets the timer that wakes waiting charge futures when a grace period or deadline ends:
    /// `sleep_until` returns a future that is ready at the given moment, and the waiting task polls
    /// it. By default the [background thread](Background::Thread) wakes them; without a timer and a
    /// thread, the end of a grace period is noticed when any such charge of the manager is polled.
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

    /// Like [`swap`](Self::swap), on storage that the program provides, with pages of 4 KiB: one
    /// slot for each whole page. On [`FileBacking::open_direct`](crate::FileBacking::open_direct),
    /// a page that is swapped out leaves memory at once, and its write waits for the device.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::fs::OpenOptions;
    /// use std::sync::Arc;
    /// use highwater::{FileBacking, Manager, Pages};
    ///
    /// # let storage = tempfile::NamedTempFile::new()?;
    /// # storage.as_file().set_len(1 << 20)?;
    /// let file = OpenOptions::new().read(true).write(true).open(storage.path())?;
    /// let hw = Manager::builder().swap_on(Arc::new(FileBacking::new(file)?)).build()?;
    /// assert_eq!(hw.snapshot().counter("nr_swap_total"), 256);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn swap_on(mut self, storage: Arc<dyn Backing>) -> Self {
        self.swap = Some(Swap::On(storage));
        self
    }

    /// Maximum readahead window in pages of 4 KiB; below 2, readahead is off. A window has at most
    /// 32 pages, as with the kernel's `read_ahead_kb` of 128, while storage keeps up with its
    /// reader, and up to eight times as many where it does not. It stays at 32 where the reader
    /// reads its windows itself: without [background threads](Self::background), and from a
    /// buffered file. A window is also at most a 64th of the frames in use, and a 16th of the least
    /// maximum of the group that pays and its ancestors; with
    /// [`ReadPattern::Sequential`](crate::ReadPattern::Sequential), twice all that, as in Linux.
    /// Memory comes back from swap in windows of up to 32 pages that were swapped out one after the
    /// other. Default: 256 pages ([`READAHEAD_MAX`]).
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Manager, Pages};
    ///
    /// let hw = Manager::builder().readahead(Pages(0)).build()?; // reads requested pages only
    /// # drop(hw);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn readahead(mut self, max: Pages) -> Self {
        self.readahead = max;
        self
    }

    /// Selects the page of a readahead window that gets the mark (`PG_readahead`), which makes its
    /// reader read the next window. Default: a page read from storage ([`MarkRule::NextMissing`]).
    #[cfg(feature = "lab")]
    #[visibility::make(pub)]
    pub(crate) fn readahead_marks(mut self, marks: MarkRule) -> Self {
        self.lab.marks = marks;
        self
    }

    /// Records the manager's state in a ring file of fixed size at `path`, for `highwater top` and
    /// for the time after a crash: the groups, with usage as intervals, limits, events, pressure,
    /// refaults and waiting charges; frames, locks, files, counters and victims. Everything once a
    /// second, groups whose usage changed ten times. With [`Background::Thread`] a thread of its
    /// own does that, otherwise [`Manager::balance`](super::Manager::balance). Each record is
    /// readable as soon as it is written, also if the program is killed (SIGKILL) at the next
    /// instruction. A recording that is at `path` is kept as `PATH.old`. Default: none.
    ///
    /// `size` is that of the ring: 1 MiB to 1 GiB, rounded down to whole pages. A whole moment
    /// takes about 3 KiB and 50 bytes for each group, once a second; a change about 50 bytes. 32
    /// MiB last for about a minute of 1,000 groups that all change in each tick, and an hour of
    /// ten. The ring must hold two whole moments and the changes between them, or there are times
    /// without a readable moment; a `tracing` warning names the size that it needs.
    ///
    /// `docs/recorder.md` describes the format.
    ///
    /// # Cost
    ///
    /// The file is written in full at once, so that a disk without room is an error of
    /// [`build`](Self::build). Then 0.08 % of a CPU for 1,000 groups of which 100 are charged
    /// in each tick, 0.6 % for 10,000 (`cargo bench -p highwater --bench recorder`): one system
    /// call for each record and one more for each tick, and no flush of statistics. The size of the
    /// file in the kernel's page cache.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Background, Bytes, Manager};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("flight.rec");
    /// let hw = Manager::builder()
    ///     .background(Background::Thread)
    ///     .recorder(path, Bytes::mib(32))
    ///     .build()?;
    /// hw.mark("ready");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recorder(mut self, path: impl Into<PathBuf>, size: Bytes) -> Self {
        self.recorder = Some((path.into(), size));
        self
    }

    /// Overrides the location of the cgroup files, for tests.
    #[cfg(all(test, not(loom)))]
    pub(super) fn memcg(mut self, memcg: Memcg) -> Self {
        self.memcg = memcg;
        self
    }
}
