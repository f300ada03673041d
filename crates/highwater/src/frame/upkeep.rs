//! Maintenance and statistics of a pool: drain, decay, tunables, counts.

use super::pcp::At;
use super::{
    FrameCounts, FramePool, Knobs, ListsDisabled, PcpCounters, PoolConfig, Reclaiming, Tunables,
    Watermarks, Zoneinfo, pcp, rules,
};
use crate::memmap::FrameMemory;
use crate::sync::{Arc, LockEvents, LockTimes};
#[cfg(feature = "lab")]
use crate::units::CpuId;
use crate::units::{Order, Pages};

impl FramePool {
    /// Drains every per-CPU list to the zones, batch by batch; returns how many frames.
    ///
    /// # Cost
    ///
    /// A load for each list, and the lock of each that holds something. Frames freed meanwhile may
    /// stay in a list.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn drain_all(&self) -> Pages {
        let drained = self.lists.drain_filled(&self.stock);
        self.stock.backend.splice();
        drained
    }

    /// Drains the list that this thread frees to, batch by batch: a hint, possibly stale.
    pub(crate) fn drain_here(&self) -> Pages {
        self.lists.drain(&self.stock, self.lists.near(At::Here))
    }

    /// Drains one CPU's list to the zones, batch by batch: for a CPU that is no longer used.
    #[cfg(feature = "lab")]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn drain(&self, cpu: CpuId) -> Pages {
        self.lists.drain(&self.stock, self.list_of(cpu))
    }

    /// Shrinks lists that are larger than they need to be by one step; returns the frames that went
    /// to the zones. To be called once in each [`decay interval`](Tunables::decay_interval).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn decay_tick(&self) -> Pages {
        if self.knobs.lock().is_unreached {
            self.turn(|_| ());
        }
        let decayed = self.lists.decay(&self.stock);
        self.stock.backend.splice();
        decayed
    }

    /// Marks that pages are being reclaimed for as long as the result lives: lists keep few frames
    /// meanwhile.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn reclaiming(&self) -> Reclaiming<'_> {
        self.lists.begin_reclaim();
        Reclaiming(self)
    }

    /// Drains all lists and keeps them empty for as long as the result lives: every free frame is
    /// in the zones, for a caller that needs a contiguous range.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn disable_lists(&self) -> ListsDisabled<'_> {
        self.turn(|knobs| knobs.disabled += 1);
        self.lists.drain_all(&self.stock);
        ListsDisabled(self)
    }

    /// Sets the tunables. Lists above their new limit drain to the zones before this returns; those
    /// that the system lets no thread reach keep their limits until one can.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn set_tunables(&self, tunables: Tunables) {
        self.turn(|knobs| knobs.tunables = tunables);
    }

    pub(super) fn turn(&self, change: impl FnOnce(&mut Knobs)) {
        let mut knobs = self.knobs.lock();
        change(&mut knobs);
        self.stock.set_watermarks(&knobs.tunables);
        let rules = rules(&self.stock, &self.config, &knobs.tunables);
        let rules = match knobs.disabled {
            0 => rules,
            _ => rules.disabled(),
        };
        knobs.is_unreached = !self.lists.set_rules(&self.stock, rules);
    }

    /// Returns the current tunables.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn tunables(&self) -> Tunables {
        self.knobs.lock().tunables
    }

    /// Returns the pool's configuration, with the current tunables and the regime that the system
    /// allowed.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn config(&self) -> PoolConfig {
        PoolConfig {
            tunables: self.tunables(),
            regime: self.lists.regime(),
            ..self.config
        }
    }

    /// Returns the number of frames in the zones at this moment.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn nr_free(&self) -> Pages {
        self.stock.nr_free()
    }

    /// Whether a drain, a refill, a trim or an exchange withholds frames that will be free again
    /// soon.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn is_withholding(&self) -> bool {
        self.stock.is_withholding()
    }

    /// Returns how many blocks of `order` the zones could hand out now: frames in per-CPU lists
    /// keep theirs from merging.
    ///
    /// # Cost
    ///
    /// Every zone's lock, one after the other.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn nr_free_blocks(&self, order: Order) -> u64 {
        self.stock.backend.nr_free_blocks(order)
    }

    /// Returns the event counts of the lists so far.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn counters(&self) -> PcpCounters {
        self.lists.counters()
    }

    /// Returns watermarks, lists and tunables.
    ///
    /// # Cost
    ///
    /// Locks one list after the other, from another CPU.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn zoneinfo(&self) -> Zoneinfo {
        let shortage = self.lists.shortage();
        Zoneinfo {
            free: self.nr_free(),
            managed: self.managed(),
            watermarks: self.watermarks(),
            reclaim_active: shortage.reclaim_active,
            below_high: shortage.below_high,
            tunables: self.tunables(),
            counters: self.counters(),
            lists: self.lists.infos(self.config.nr_cpus),
        }
    }

    /// Returns the pool's watermarks.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn watermarks(&self) -> Watermarks {
        self.stock.watermarks()
    }

    /// Returns the number of all frames but those that are [out of the pool](Self::inflate).
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn managed(&self) -> Pages {
        self.stock.managed()
    }

    /// Returns the memory that the frames are cut from.
    #[must_use]
    #[inline]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn memory(&self) -> &Arc<FrameMemory> {
        &self.stock.memory
    }

    /// Returns the counts of frames by state. Exact when nothing runs; otherwise each part is read
    /// at its own moment.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn counts(&self) -> FrameCounts {
        let (managed, free) = (self.managed(), self.nr_free());
        let (deferred, cached) = (self.stock.backend.nr_deferred(), self.lists.nr_cached());
        FrameCounts {
            managed,
            ballooned: self.ballooned(),
            free,
            deferred,
            cached,
            allocated: managed.saturating_sub(free + deferred + cached),
            peak: self.stock.peak(),
        }
    }

    /// Returns the contention of the pool's lock class so far.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn lock_events() -> [LockEvents; 1] {
        [pcp::PCP_LOCK.events()]
    }

    /// Returns how long this pool's zone locks were waited for and held so far, and for how many
    /// frames.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn zone_times(&self) -> LockTimes {
        self.stock.backend.times()
    }

    /// Checks conservation by recounting every part. For quiescent moments: it locks one part after
    /// the other.
    ///
    /// # Panics
    ///
    /// When a frame is lost, is in two places, or a zone holds two buddies that it should have
    /// merged.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn check_invariants(&self) {
        let backend = &self.stock.backend;
        backend.check_invariants();
        let runs = backend.free_runs().into_iter();
        let in_runs: Pages = runs.map(|(_, order)| order.pages()).sum();
        assert_eq!(in_runs, self.nr_free(), "free blocks and the free total");
        let counts = self.counts();
        assert_eq!(
            counts.free + counts.deferred,
            self.stock.memory.count_free(),
            "frames in zones are those without an owner"
        );
        let parts = counts.free + counts.deferred + counts.cached + counts.allocated;
        assert_eq!(counts.managed, parts);
        self.check_balloon();
        for list in self.lists.infos(self.config.nr_cpus) {
            assert!(
                (list.high_min..=list.high_max).contains(&list.high),
                "{list:?}"
            );
        }
    }
}
