//! The manager: one pool of memory, the groups that share it, and the slow path that keeps it
//! alive.
//!
//! [`Manager`] puts the layers together. What they report (no frame, a maximum reached, few frames
//! free) is answered in one place, the slow path. Handles ([`Group`], [`File`], [`Mapping`],
//! [`Charge`]) keep the manager alive; [`Guard`] borrows it.
//!
//! | file | what |
//! |---|---|
//! | `slow` | when memory is short: reclaim, drain, victim, error |
//! | `fault`, `fill` | bringing pages in: one that is missing, and those to come |
//! | `read` | read(2)-like access, and what is known of the order of reads |
//! | `throttle` | above a group's `high` |
//! | `charge` | memory that is charged: at once, or by force |
//! | `wait`, `alarm` | charges that wait in line, and what wakes them when nothing is given back |
//! | `spill`, `victims` | groups that are asked for memory, and groups that are told to stop |
//! | `pressure`, `task` | threads and tasks that stall for want of memory |
//! | `background`, `writeback` | the reclaim thread, and the one that writes dirty pages back |
//! | `anon` | memory without a file |
//! | `capacity` | changing the capacity, giving memory back, following the control group |
//! | `cgroup` | the limit of the control group that the process is in |
//! | `builder`, `group`, `file`, `space`, `mapping`, `guard` | making a manager, and its handles |
//! | `snapshot`, `vmstat` | what is going on, by the field's names |

mod alarm;
mod anon;
mod background;
mod builder;
mod capacity;
mod cgroup;
mod charge;
mod fault;
mod file;
mod fill;
mod group;
mod grow;
mod guard;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod late_cpus;
mod mapping;
mod pressure;
mod read;
mod slow;
mod snapshot;
mod space;
mod spill;
mod stat;
mod task;
mod throttle;
mod victim;
mod victims;
mod vmstat;
mod wait;
mod writeback;

#[cfg(all(test, not(loom)))]
mod arrival_tests;
#[cfg(all(test, not(loom)))]
mod zeros;

pub use anon::MemoryError;
pub use background::Background;
pub use builder::{BuildError, Builder};
pub use capacity::CapacityError;
pub use charge::Charge;
pub use fault::ReadError;
pub use file::{File, NoFrames, OpenError, RangeError};
pub use group::Group;
pub use grow::GrowWait;
pub use guard::Guard;
pub use mapping::{Mapping, PinnedPage};
pub use pressure::Working;
pub use slow::{AllocError, ChargeFailed};
pub use snapshot::{GroupSnapshot, Snapshot};
pub use space::Space;
pub use spill::ReclaimRequest;
pub use task::WorkOn;
pub use throttle::Throttling;
pub use victim::Victim;
pub use vmstat::{Counter, CounterKind};
pub use wait::ChargeWait;
pub use writeback::DirtyTunables;

use std::fmt;
use std::time::{Duration, Instant};

use crate::cache::{Accounting, FileEntry, FileKind, PageCache, SwapArea};
use crate::frame::{FramePool, PoolConfig, Tunables, Zoneinfo};
use crate::group::{GroupTree, StatItem, Tolerance};
use crate::memmap::FrameMemory;
use crate::percpu::{self, ChosenRegime, PercpuOwner};
use crate::reclaim::policy::PolicyKind;
use crate::reclaim::{Actor, Pacer, Reclaim, RmapConfig, ScanControl, TwoListRules};
use crate::sync::{Arc, LockClass, LockTimes, Mutex, Rank, RwLock};
use crate::topology::Topology;
use crate::units::{Bytes, CpuId, Pages, Pfn};
use crate::victim::{ChosenGroup, Policy};
use alarm::{Alarms, Timer};
use background::{Reclaimer, Wakeup};
use capacity::CapacityRange;
use read::ReadaheadMax;
use spill::Spillers;
use victims::Victims;
use vmstat::ManagerStats;
use writeback::{Writeback, Writer};

static HANDLER_LOCK: LockClass = LockClass::new("on_exhausted", Rank::Victim);
static SELECTION_LOCK: LockClass = LockClass::new("victim_selection", Rank::Selection);
static CLOSING_LOCK: LockClass = LockClass::new("closing_files", Rank::Leaf);

/// A budget of memory and everything that is done with it. Cheap to clone; all clones are the same
/// manager, which ends with its last handle.
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
    /// The core's, here because every guard needs it.
    memory: Arc<FrameMemory>,
}

/// What handles share; charges refer to it by a count for each CPU.
type Handle = Arc<PercpuOwner<Shared>>;

/// What handles hold: the manager proper, and the thread that works for it. The thread itself holds
/// the core alone, so that the last handle's drop ends it.
pub(crate) struct Shared {
    // Declared first: the thread ends before what it works on.
    _reclaimer: Reclaimer,
    _writer: Writer,
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
    throttling: Throttling,
    readahead: ReadaheadMax,
    /// When the manager was made: its clock begins there.
    begun: Instant,
    capacity: CapacityRange,
    wakeup: Arc<Wakeup>,
    writeback: Writeback,
    on_exhausted: RwLock<Option<Arc<ExhaustedHandler>>>,
    victims: Mutex<Victims>,
    spillers: Spillers,
    /// How long a group that was asked for memory, or told to stop, is waited for.
    grace: Duration,
    alarms: Arc<Alarms>,
    /// Files that were closed while some of their pages could not leave the cache.
    closing: Mutex<Vec<Arc<FileEntry>>>,
}

/// What a manager is made from, beside the topology.
struct Parts {
    capacity: CapacityRange,
    frames: Pages,
    regime: ChosenRegime,
    pool: PoolConfig,
    accounting: Accounting,
    throttling: Throttling,
    rmap: RmapConfig,
    rules: TwoListRules,
    inactive_ratio: Option<u64>,
    pacer: Option<Arc<dyn Pacer>>,
    policy: PolicyKind,
    swap: Option<SwapArea>,
    readahead: ReadaheadMax,
    grace: Duration,
    timer: Option<Timer>,
}

type ExhaustedHandler = dyn Fn(ChosenGroup) + Send + Sync;

impl Manager {
    /// Begins to describe a manager.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The group that holds all others. Its maximum is the [capacity](Self::capacity).
    #[must_use]
    pub fn root(&self) -> Group {
        Group::new(&self.shared, self.core().groups.root())
    }

    /// The group of that path, such as `/tenant-a/query-42`, if there is one; `/` is the root.
    ///
    /// # Cost
    ///
    /// The tree's lock for reading; O(depth x log(children)). No allocation.
    ///
    /// # Examples
    ///
    /// ```
    /// let hw = highwater::Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Default::default())?;
    /// let query = tenant.child("query-42", Default::default())?;
    /// assert_eq!(hw.group("/tenant-a/query-42"), Some(query));
    /// assert_eq!(hw.group("/tenant-b"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn group(&self, path: &str) -> Option<Group> {
        let node = self.core().groups.lookup(path)?;
        Some(Group::new(&self.shared, node))
    }

    /// Begins to read resident pages.
    ///
    /// # Cost
    ///
    /// No store to shared memory. The first guard of a thread takes a seat (an atomic), as does
    /// each beyond 17 at once.
    #[inline(always)]
    #[must_use]
    pub fn enter(&self) -> Guard<'_> {
        Guard::new(&self.memory)
    }

    /// Says what to do with a victim when memory is exhausted. Called on the thread that needs
    /// memory, or polls the charge that does, with no lock held; it should make the victim give
    /// memory back, now or soon. Until that has given nothing back for a [grace](Builder::grace),
    /// no charge that waits in line has another group below the full one stopped. It may call
    /// anything; what it asks for itself tells no other victim, and fails if reclaim does not help.
    /// A handler that holds a [`Group`] keeps the manager alive.
    pub fn on_exhausted(&self, handler: impl Fn(&Victim) + Send + Sync + 'static) {
        let manager = Arc::downgrade(&self.shared);
        let tell = move |chosen: ChosenGroup| {
            // Where every handle of the manager is gone, charges may live on, and stop no group.
            if let Some(shared) = manager.upgrade() {
                let group = Group::new(&shared, chosen.group.clone());
                handler(&Victim::new(group, chosen));
            }
        };
        let former = self.core().on_exhausted.write().replace(Arc::new(tell));
        // Not under the lock: what the former handler holds may end with it, files for example.
        drop(former);
    }

    /// Says how victims are chosen from now on. What a [`OomScoreAdj`](crate::units::OomScoreAdj)
    /// is a share of is always the maximum of the group that is full, or the capacity if that is
    /// less.
    ///
    /// Default: [`Policy::default`].
    pub fn set_victim_policy(&self, policy: Policy) {
        self.core().victims.lock().set_policy(policy);
    }

    /// Evicts every page that nobody holds, writing dirty ones back first. Returns how many went.
    ///
    /// # Cost
    ///
    /// Looks at every page twice; the I/O of the dirty ones.
    pub fn drop_caches(&self) -> Pages {
        self.core().drop_caches()
    }

    /// What is going on, by the field's names.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(self.core())
    }

    /// Turns the knobs of the pool of frames. A change is in force when this returns.
    ///
    /// # Cost
    ///
    /// Locks every CPU's list, one after the other; those that hold too much give it back first.
    ///
    /// # Examples
    ///
    /// ```
    /// let hw = highwater::Manager::builder().build()?;
    /// hw.set_tunables(hw.tunables().pcp_batch_scale_max(0)?);
    /// assert_eq!(hw.zoneinfo().tunables.get("pcp_batch_scale_max"), Some(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_tunables(&self, tunables: Tunables) {
        self.core().pool.set_tunables(tunables);
        // The time of the next decay follows from it.
        self.core().wakeup.nudge();
    }

    /// Lets per-CPU lists that are larger than they need to be shrink a step; frames that went to
    /// the zones. For managers without a background thread, once in each
    /// [`decay interval`](Tunables::decay_interval); with one, it does that.
    pub fn decay_tick(&self) -> Pages {
        self.core().pool.decay_tick()
    }

    /// Says what I/O for swap costs beside that for files, from 0 (swapping is dear) to 200
    /// (reading files is); 100 is the same. Reclaim weighs anonymous pages and pages of files by
    /// it, as by `vm.swappiness`. Default: 60.
    pub fn set_swappiness(&self, swappiness: u64) {
        self.core().reclaim.set_swappiness(swappiness);
    }

    /// The knobs of the pool of frames as they are now.
    #[must_use]
    pub fn tunables(&self) -> Tunables {
        self.core().pool.tunables()
    }

    /// The per-CPU lists of free frames, watermarks and knobs, as `/proc/zoneinfo` shows them.
    #[must_use]
    pub fn zoneinfo(&self) -> Zoneinfo {
        self.core().pool.zoneinfo()
    }

    /// Moves every frame that per-CPU lists hold to the zones; how many.
    pub fn drain_all(&self) -> Pages {
        self.core().pool.drain_all()
    }

    /// How long reclaim waited for the reverse-map locks of files, and how long mapping and
    /// unmapping held them, for how many pages.
    #[must_use]
    pub fn rmap_times(&self) -> LockTimes {
        self.core().cache.rmap_times()
    }

    /// The most that may be charged in all, pages included: the root's maximum.
    /// [`set_capacity`](Self::set_capacity) changes it.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        self.core().groups.root().limits().max
    }

    /// The most that pages may use: what the page cache has frames for while the capacity is what
    /// it is.
    #[must_use]
    pub fn frames(&self) -> Bytes {
        self.core().pool.managed().bytes()
    }

    /// The CPUs that memory is managed for.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.core().topology
    }

    /// How per-CPU words are written, and why not in the cheapest way where they are not.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::percpu::{Regime, RegimeReason};
    ///
    /// let hw = highwater::Manager::builder().regime(Regime::Atomic).build()?;
    /// assert_eq!(hw.regime().regime, Regime::Atomic);
    /// assert_eq!(hw.regime().reason, Some(RegimeReason::Requested));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn regime(&self) -> ChosenRegime {
        self.core().regime
    }

    /// Checks the books of every layer, and that what groups pay for pages is what the pages are.
    /// For moments at which no other thread uses the manager; its own threads are waited for.
    ///
    /// # Panics
    ///
    /// When they disagree: a bug in this library.
    pub fn check_invariants(&self) {
        let core = self.core();
        core.wakeup.wait_idle();
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
        let of_files = keys
            .filter(|key| key.file().kind() == FileKind::File)
            .count();
        for (item, pages) in [
            (StatItem::File, Pages(of_files as u64)),
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
            accounting,
            throttling,
            rmap,
            rules,
            inactive_ratio,
            pacer,
            policy,
            swap,
            readahead,
            grace,
            timer,
        } = parts;
        let (nr_cpus, regime) = (config.nr_cpus, config.regime);
        let memory = Arc::new(match frames {
            Pages::ZERO => FrameMemory::without_frames(),
            frames => FrameMemory::new(frames)?,
        });
        let pool = Arc::new(FramePool::with_config(Arc::clone(&memory), config)?);
        let groups = GroupTree::with_regime(regime, nr_cpus);
        let cache = PageCache::new(Arc::clone(&memory), &topology, regime, accounting)
            .counting_dirty_for(groups.clone())
            .counting_accesses(policy.accesses_max());
        let cache = Arc::new(match swap {
            Some(area) => cache.swapping_to(Arc::new(area)),
            None => cache,
        });
        let root = groups.root();
        root.set_max(capacity.target())
            .expect("nothing is charged yet");
        let (of_cache, of_pool) = (Arc::clone(&cache), Arc::clone(&pool));
        let reclaim = Reclaim::new(of_cache, of_pool, groups.clone(), nr_cpus)
            .with_rmap(rmap)
            .with_rules(rules)
            .with_inactive_ratio(inactive_ratio)
            .with_pacer(pacer)
            .with_eviction_policy(policy);
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
            throttling,
            readahead,
            begun: Instant::now(),
            capacity,
            alarms: Arc::new(Alarms::new(Arc::clone(&wakeup), timer)),
            wakeup,
            writeback: Writeback::new(),
            on_exhausted: RwLock::new(&HANDLER_LOCK, None),
            victims: Mutex::new(&SELECTION_LOCK, Victims::new()),
            spillers: Spillers::none(),
            grace,
            closing: Mutex::new(&CLOSING_LOCK, Vec::new()),
        })
    }

    /// The CPU whose lists and tokens this thread uses: a hint.
    fn cpu(&self) -> CpuId {
        CpuId::from_index(percpu::current_cpu().index() % self.topology.nr_cpus())
    }

    fn drop_caches(&self) -> Pages {
        // Pages that the background thread has isolated are on no list, and those that are being
        // written back are held.
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
        let freed = Pages(self.reclaim.shrink(&control).nr_reclaimed);
        self.pool.drain_all();
        self.reap_closing();
        freed
    }
}

impl Drop for Core {
    /// Files that were closed while their storage refused pages get a last chance.
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
