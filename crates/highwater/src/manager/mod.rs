//! The manager: one pool of memory, the groups that share it, and the slow path that keeps it
//! alive.
//!
//! [`Manager`] puts the layers together. Each condition that a layer reports (no free frame, a
//! maximum reached, free frames low) is handled in one place, the slow path. Handles ([`Group`],
//! [`File`], [`Mapping`], [`Charge`]) keep the manager alive; [`Guard`] borrows it.
//!
//! | file | contents |
//! |---|---|
//! | `alloc`, `charging` | allocating frames, charging: the first attempt |
//! | `slow` | the slow path of both: reclaim, drain, victim, error |
//! | `error` | the errors |
//! | `fault`, `fill` | the page fault, and reading a window of pages in |
//! | `source` | what pages are read from, and the group that pays |
//! | `read` | read(2)-like access and readahead state |
//! | `flight` | pages that storage fills while no thread waits |
//! | `read_async` | reads and prefetching as futures |
//! | `io` | asynchronous reads: io_uring or threads, and the threads that take their results |
//! | `throttle` | throttling above a group's `high` |
//! | `charge` | charging memory, with `try` and `force` variants |
//! | `wait`, `head`, `alarm` | charges that wait in a FIFO wait queue, how its head makes room, and the timers that poll them again |
//! | `spill`, `victims` | reclaim callbacks of groups that can spill, and groups selected as victims |
//! | `pressure`, `task` | stall accounting (PSI) for threads and tasks |
//! | `background`, `writeback` | the background reclaim thread and the write-back thread |
//! | `paths` | system files that are open: each once |
//! | `resize` | growing and shrinking a file |
//! | `sync` | writing a file's dirty pages back and making it durable |
//! | `anon` | anonymous and shared memory |
//! | `capacity` | resizing, ballooning, following the cgroup limit |
//! | `cgroup` | the memory limit of the process's control group |
//! | `builder`, `group`, `file`, `space`, `mapping`, `guard` | the builder and the public handles |
//! | `limits`, `usage` | limits and usage of a group |
//! | `build` | checks of the settings, and construction |
//! | `handle` | the manager's own methods |
//! | `access` | reads, pins and latches of a mapping's pages |
//! | `latched` | guards of latched pages |
//! | `recorder` | the flight recorder: its file, its writer and its reader |
//! | `snapshot`, `vmstat` | counters and state, under the kernel's names |

mod access;
mod alloc;
mod alarm;
mod anon;
mod background;
mod build;
mod builder;
mod capacity;
mod cgroup;
mod charge;
mod charging;
mod disowned;
mod error;
mod events;
mod exhausted;
mod fault;
mod fault_polled;
mod file;
mod fill;
mod flight;
mod group;
mod guard;
mod handle;
mod handler;
mod head;
mod io;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod late_cpus;
mod latched;
mod latched_async;
mod limits;
mod lumpy;
mod mapping;
mod paths;
mod pressure;
mod read;
mod read_async;
pub(crate) mod recorder;
mod resize;
mod slow;
mod source;
mod snapshot;
mod space;
mod spill;
mod stat;
mod sync;
mod task;
mod throttle;
mod usage;
mod victim;
mod victims;
mod vmstat;
mod wait;
mod writeback;

#[cfg(all(test, not(loom)))]
mod arrival_tests;
#[cfg(all(test, not(loom)))]
mod expired_tests;
#[cfg(all(test, not(loom)))]
mod zeros;

pub use access::PinnedPage;
pub use background::Background;
pub use builder::Builder;
pub use charge::Charge;
pub use error::{
    BuildError, CapacityError, ChargeFailed, MemoryError, OpenError, OutOfMemory, RangeError,
    ReadError,
};
pub use file::File;
pub use group::Group;
pub use guard::Guard;
pub use latched::{OptimisticRead, Owned, PageRead, PageWrite};
pub use mapping::Mapping;
pub use pressure::Working;
pub use read_async::ReadWait;
pub use snapshot::{GroupSnapshot, Snapshot};
pub use space::Space;
pub use spill::ReclaimRequest;
pub use throttle::Throttling;
pub use victim::Victim;
pub use vmstat::{Counter, CounterKind};
pub use wait::ChargeWait;

use std::fmt;
use std::time::{Duration, Instant};

use crate::cache::{AccessTimes, FileEntry, FileKind, PageCache, SwapArea};
use crate::frame::{FramePool, PoolConfig};
use crate::group::{GroupTree, StatItem, Tolerance};
use crate::memmap::{FrameMemory, WriteRing};
use crate::percpu::{ChosenRegime, PercpuOwner, PercpuRef};
use crate::reclaim::policy::EvictionPolicy;
use crate::reclaim::{Actor, Reclaim, ScanControl};
use crate::sync::{Arc, LockClass, Mutex, Rank};
use crate::topology::Topology;
use crate::units::{Pages, Pfn};
use alarm::{Alarms, Timer};
use background::{Polled, Reclaimer, Wakeup};
use capacity::CapacityRange;
use exhausted::Handlers;
use file::OpenFile;
use io::{Io, IoEngine, IoThreads};
use paths::OpenPaths;
use read::ReadaheadMax;
use recorder::{Recorder, RecorderThread};
use spill::Spillers;
use victims::Victims;
use vmstat::ManagerStats;
use writeback::{Writeback, WritebackThread};

static SELECTION_LOCK: LockClass = LockClass::new("victim_selection", Rank::Selection);
static CLOSING_LOCK: LockClass = LockClass::new("closing_files", Rank::Leaf);

/// A memory budget, its groups and its page cache. Cheap to clone: all clones share one manager,
/// which ends when its last handle is dropped. While a `Manager` is kept, handles of groups, files
/// and spaces count as its handles on the CPU that makes or drops them, afterwards in one place.
///
/// # Examples
///
/// ```
/// use highwater::{Bytes, Limits, Manager, Pages};
///
/// let hw = Manager::builder().capacity(Bytes::mib(16)).build()?;
/// let tenant = hw.root().child("tenant-a", Limits::max(Bytes::mib(4)))?;
/// let work = tenant.charge(Bytes::mib(3))?;
/// assert_eq!(tenant.usage_precise(), Bytes::mib(3));
/// assert!(tenant.charge(Bytes::mib(2)).is_err());
/// drop(work);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Manager {
    shared: Handle,
    /// Copy of the core's: every guard needs it.
    memory: Arc<FrameMemory>,
    _handles: Arc<PercpuOwner<SharedOwner>>,
}

/// The shared part of all handles. Charges refer to it too, by a count for each CPU.
type SharedOwner = Arc<PercpuOwner<Shared>>;

/// A handle's reference to it. These are counted for each CPU as well: in a program, many threads
/// make and drop handles of groups. Once the last [`Manager`] is dropped, they are counted in one
/// place.
type Handle = PercpuRef<SharedOwner>;

/// The manager proper and its background threads. The threads hold only the core, so dropping the
/// last handle stops them.
pub(crate) struct Shared {
    // Declared first: the threads end before the core they work on.
    _reclaimer: Reclaimer,
    _writer: WritebackThread,
    _io: IoThreads,
    _recorder: RecorderThread,
    core: Arc<Core>,
}

/// The layers of one manager.
pub(crate) struct Core {
    topology: Topology,
    regime: ChosenRegime,
    memory: Arc<FrameMemory>,
    pool: Arc<FramePool>,
    cache: Arc<PageCache>,
    groups: GroupTree,
    reclaim: Reclaim,
    stats: ManagerStats,
    lumpy: lumpy::LumpyCursor,
    throttling: Throttling,
    readahead: ReadaheadMax,
    /// Creation time: zero of the manager's clock.
    begun: Instant,
    #[cfg(feature = "lab")]
    clock: Option<Arc<crate::sync::atomic::AtomicU64>>,
    capacity: CapacityRange,
    wakeup: Arc<Wakeup>,
    /// Periodic work of a manager without threads.
    polled: Mutex<Polled>,
    writeback: Writeback,
    on_exhausted: Handlers,
    victims: Mutex<Victims>,
    spillers: Spillers,
    /// Grace period for a group that was asked to spill or told to stop.
    grace: Duration,
    alarms: Arc<Alarms>,
    /// Files closed while some of their pages could not be evicted.
    closing: Mutex<Vec<Arc<FileEntry>>>,
    io: Io,
    paths: OpenPaths<OpenFile>,
    recorder: Option<Recorder>,
}

/// The layers a manager is built from, except the topology.
struct Parts {
    capacity: CapacityRange,
    frames: Pages,
    regime: ChosenRegime,
    pool: PoolConfig,
    throttling: Throttling,
    #[cfg(feature = "lab")]
    lab: builder::LabSettings,
    policy: Arc<dyn EvictionPolicy>,
    swap: Option<SwapArea>,
    readahead: ReadaheadMax,
    grace: Duration,
    timer: Option<Timer>,
    engine: IoEngine,
    recorder: Option<Recorder>,
}

impl Manager {
    /// Checks the invariants of every layer, and that page charges agree with resident pages.
    /// Requires that no other thread uses the manager; waits for its own threads to go idle.
    ///
    /// # Panics
    ///
    /// If they disagree, which is a bug in this library.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn check_invariants(&self) {
        let core = self.core();
        core.wakeup.wait_idle();
        core.wait_for_all_flights();
        let _paused = core.writeback.pause();
        core.pool.check_invariants();
        core.cache.check_invariants();
        core.reclaim.check_invariants();
        core.groups.check_invariants();
        let (on_lists, allocated) = (
            core.reclaim.total_sizes().total(),
            core.pool.counts().allocated,
        );
        assert_eq!(on_lists, allocated, "pages on lists and frames handed out");
        let charged = core.groups.root().usage_precise();
        assert!(
            charged >= on_lists.bytes(),
            "{on_lists} on lists, {charged} charged"
        );
        let stats = core.groups.root().read_stats(Tolerance::EXACT, core.now());
        let sizes = core.reclaim.total_sizes();
        let frames = (0..)
            .map(Pfn)
            .take_while(|pfn| u64::from(pfn.0) < core.memory.pages().0);
        let keys = frames.filter_map(|pfn| core.cache.key_of(pfn));
        let of_files = keys.filter(|key| key.file().kind() == FileKind::File);
        let of_files = of_files.map(|key| key.order().pages()).sum();
        for (item, pages) in [
            (StatItem::File, of_files),
            (StatItem::InactiveAnon, sizes.inactive_anon),
            (StatItem::ActiveAnon, sizes.active_anon),
            (StatItem::InactiveFile, sizes.inactive_file),
            (StatItem::ActiveFile, sizes.active_file),
            (StatItem::Unevictable, sizes.unevictable),
            (StatItem::FileDirty, core.cache.nr_dirty()),
            (StatItem::FileWriteback, Pages::ZERO),
        ] {
            let (counted, name) = (stats.get(item), item.name());
            assert_eq!(u64::try_from(counted), Ok(pages.0), "{name} of the root");
        }
    }

    fn core(&self) -> &Core {
        &self.shared.core
    }
}

impl Core {
    fn new(topology: Topology, parts: Parts) -> Result<Self, BuildError> {
        let Parts {
            capacity,
            frames,
            regime: chosen,
            pool: config,
            throttling,
            #[cfg(feature = "lab")]
            lab,
            policy,
            swap,
            readahead,
            grace,
            timer,
            engine,
            recorder,
        } = parts;
        let (nr_cpus, regime) = (config.nr_cpus, config.regime);
        let memory = Arc::new(match frames {
            Pages::ZERO => FrameMemory::without_frames(),
            frames => FrameMemory::new(frames)?,
        });
        let pool = FramePool::with_config(Arc::clone(&memory), config);
        let pool = Arc::new(pool.expect("a machine has a CPU, and the memory is new"));
        let groups = GroupTree::with_regime(regime, nr_cpus);
        let cache = PageCache::new(Arc::clone(&memory), &topology, regime)
            .counting_dirty_for(groups.clone())
            .counting_accesses(policy.accesses_max())
            .timing_by(policy.is_bounded().then(|| AccessTimes::of(&memory)))
            .writing_by((engine == IoEngine::Ring).then(WriteRing::new))
            .swapping_to(swap);
        let cache = Arc::new(cache);
        let root = groups.root();
        root.set_max(capacity.target())
            .expect("nothing is charged yet");
        let (of_cache, of_pool) = (Arc::clone(&cache), Arc::clone(&pool));
        let reclaim =
            Reclaim::new(of_cache, of_pool, groups.clone(), nr_cpus).with_eviction_policy(policy);
        #[cfg(feature = "lab")]
        let reclaim = reclaim.with_rmap(lab.rmap).with_pacer(lab.pacer);
        reclaim.add_group(&root);
        let wakeup = Arc::new(Wakeup::new());
        Ok(Self {
            topology,
            regime: chosen,
            memory,
            pool,
            cache,
            groups,
            reclaim,
            stats: ManagerStats::default(),
            lumpy: lumpy::LumpyCursor::default(),
            throttling,
            readahead,
            begun: Instant::now(),
            #[cfg(feature = "lab")]
            clock: lab.clock,
            capacity,
            alarms: Arc::new(Alarms::new(Arc::clone(&wakeup), timer)),
            wakeup,
            polled: Polled::from_start(),
            writeback: Writeback::new(),
            on_exhausted: Handlers::none(),
            victims: Mutex::new(&SELECTION_LOCK, Victims::new()),
            spillers: Spillers::none(),
            grace,
            closing: Mutex::new(&CLOSING_LOCK, Vec::new()),
            io: Io::new(engine),
            paths: OpenPaths::new(),
            recorder,
        })
    }

    fn drop_caches(&self) -> Pages {
        // The background thread may hold isolated pages, which are on no list, and the write-back
        // thread holds the pages that it writes.
        self.wakeup.wait_idle();
        let _paused = self.writeback.pause();
        self.reclaim.drain_batches();
        let root = self.groups.root();
        let control = ScanControl {
            nr_to_reclaim: Pages::MAX,
            target: &root,
            actor: Actor::Requested,
            first_priority: Some(0),
            ignores_protection: true,
        };
        let freed = Pages(self.shrink(&control).nr_reclaimed);
        self.pool.drain_all();
        self.reap_closing();
        freed
    }
}

impl Drop for Core {
    /// Tries once more to close files whose storage refused pages earlier.
    fn drop(&mut self) {
        self.reap_closing();
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("pool", &self.core().pool)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}
