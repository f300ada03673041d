//! The manager's handle: groups, guards, handlers, knobs and reports.

use super::Manager;
use super::builder::Builder;
use super::group::Group;
use super::guard::Guard;
use super::snapshot::Snapshot;
use crate::frame::{Tunables, Zoneinfo};
use crate::percpu::ChosenRegime;
use crate::sync::LockTimes;
use crate::topology::Topology;
use crate::units::{Bytes, Pages};
use crate::victim::Policy;

impl Manager {
    /// Returns a builder with default settings.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Manager};
    ///
    /// let hw = Manager::builder().capacity(Bytes::mib(32)).build()?;
    /// assert_eq!(hw.capacity(), Bytes::mib(32));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Returns the root group. Its maximum is the [capacity](Self::capacity).
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let work = hw.root().charge(Bytes::mib(1))?;
    /// assert_eq!(hw.root().usage_precise(), Bytes::mib(1));
    /// # drop(work);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn root(&self) -> Group {
        Group::new(&self.shared, self.core().groups.root())
    }

    /// Returns the group at `path`, such as `/tenant-a/query-42`, if it exists; `/` is the root.
    ///
    /// # Cost
    ///
    /// For each name, a lock of one of 64 parts of all names and one of the group; O(depth). Names
    /// of more than 23 bytes are copied. Never waits for the tree's lock.
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

    /// Returns a guard for reading resident pages.
    ///
    /// # Cost
    ///
    /// No store to shared memory. The first guard of a thread acquires a hazard-pointer record (an
    /// atomic), and so does each guard beyond 17 at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let guard = hw.enter();
    /// let page = map.read(&guard, 0)?; // stays in memory as long as the guard
    /// assert_eq!(page[0], 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    #[must_use]
    pub fn enter(&self) -> Guard<'_> {
        Guard::new(&self.memory)
    }

    /// Sets the victim selection policy. An [`OomScoreAdj`](crate::units::OomScoreAdj) is always
    /// relative to the maximum of the full group, or to the capacity if that is smaller.
    ///
    /// Default: [`Policy::default`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::victim::Policy;
    /// # use highwater::{Bytes, Manager};
    /// # let hw = Manager::builder().build()?;
    /// hw.set_victim_policy(Policy { floor: Bytes::mib(1), ..Policy::default() }); // spares smaller groups
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_victim_policy(&self, policy: Policy) {
        self.core().victims.lock().set_policy(policy);
    }

    /// Evicts every page that can be, after writing dirty ones back: not those that are borrowed,
    /// pinned, latched or locked, that cannot be written back, or that are anonymous and have no
    /// swap. Returns the number of evicted pages, in frames of 4 KiB.
    ///
    /// # Cost
    ///
    /// Scans every page twice; I/O for the dirty ones.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Manager};
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// let file = hw.open(source.path())?;
    /// file.will_need(&hw.root(), 0..file.pages());
    /// assert_eq!(hw.drop_caches().bytes(), Bytes(3 * 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drop_caches(&self) -> Pages {
        self.core().drop_caches()
    }

    /// Returns a snapshot of all counters and groups, under the kernel's names.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let hw = Manager::builder().build()?;
    /// let snapshot = hw.snapshot();
    /// assert_eq!(snapshot.counter("pgfault"), 0);
    /// println!("{snapshot}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(self.core())
    }

    /// Sets the tunables. The change is in force on return.
    ///
    /// # Cost
    ///
    /// Locks each CPU's list in turn; lists above their new size drain first.
    ///
    /// # Examples
    ///
    /// ```
    /// let hw = highwater::Manager::builder().build()?;
    /// let tunables = hw.tunables().with("pcp_batch_scale_max", 0)?;
    /// hw.set_tunables(tunables);
    /// assert_eq!(hw.tunables(), tunables);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_tunables(&self, tunables: Tunables) {
        let core = self.core();
        core.pool.set_tunables(tunables);
        core.look_at_dirty_limits();
        // The times of the next decay and of the next write-back depend on them.
        core.wakeup.nudge();
        core.writeback.notify();
    }

    /// Shrinks oversized per-CPU lists by one step and returns the number of frames that moved to
    /// the zones. Part of [`balance`](Self::balance).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn decay_tick(&self) -> Pages {
        self.core().pool.decay_tick()
    }

    /// Sets the cost of swap I/O relative to file I/O, as `vm.swappiness` does: from 0 (swap is the
    /// more expensive) to 200 (file reads are), 100 for equal. Reclaim balances anonymous and file
    /// pages by it. Default: 60.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn set_swappiness(&self, swappiness: u64) {
        self.core().reclaim.set_swappiness(swappiness);
    }

    /// Returns the current tunables.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let hw = Manager::builder().build()?;
    /// let tunables = hw.tunables().with("watermark_scale_factor", 20)?;
    /// hw.set_tunables(tunables);
    /// assert_eq!(hw.tunables(), tunables);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn tunables(&self) -> Tunables {
        self.core().pool.tunables()
    }

    /// Returns the per-CPU free lists, watermarks and tunables, as `/proc/zoneinfo` shows them.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn zoneinfo(&self) -> Zoneinfo {
        self.core().pool.zoneinfo()
    }

    /// Drains every per-CPU free list to the zones. Returns the number of frames.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn drain_all(&self) -> Pages {
        self.core().pool.drain_all()
    }

    /// Returns how long reclaim waited for rmap locks, how long map and unmap held them, and for
    /// how many pages.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn rmap_times(&self) -> LockTimes {
        self.core().cache.rmap_times()
    }

    /// Returns the maximum of all charges together, pages included: the root's maximum.
    /// [`set_capacity`](Self::set_capacity) changes it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Manager};
    /// # let hw = Manager::builder().build()?;
    /// hw.set_capacity(Bytes::mib(32))?;
    /// assert_eq!(hw.capacity(), Bytes::mib(32));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        self.core().groups.root().limits().max
    }

    /// Returns the memory that pages may use: the frames managed at the current capacity.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn frames(&self) -> Bytes {
        self.core().pool.managed().bytes()
    }

    /// Returns the CPU topology that the manager was built for.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn topology(&self) -> &Topology {
        &self.core().topology
    }

    /// Returns how per-CPU words are updated, and the reason if that is not the cheapest regime.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn regime(&self) -> ChosenRegime {
        self.core().regime
    }
}
