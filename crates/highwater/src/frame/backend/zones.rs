//! Buddy allocators by address, each behind its own lock: one of them is the single-lock back end,
//! several are the sharded one.
//!
//! A zone is a range of whole blocks of the largest order, so that no block lies in two. A request
//! begins at the zone of its CPU's number and goes round; a free goes to the zone that the frame is
//! from, and blocks of one zone that are freed together cost one hold of its lock.
//!
//! Deviation from the kernel: the free total is one word for all zones, taken from before a lock is
//! (see the module above), so the floor is exact over all of them and a probe reads one line.

use crossbeam_utils::CachePadded;

use super::zone::{LockedZone, Zone};
use super::{Backend, FreeCount, Wait, pages_of};
use crate::sync::LockTimes;
use crate::units::{CpuId, Order, Pages, Pfn};

/// A request for single frames goes round the zones this often at most. Chosen: what it was promised
/// is there, and a zone that is found empty was emptied by another request, so more than one round
/// is needed only when others free and allocate as fast as this one looks.
const ROUNDS_MAX: usize = 4;

/// Zones of equal size, the last one perhaps smaller.
#[derive(Debug)]
pub(super) struct Zones {
    zones: Box<[CachePadded<Zone>]>,
    /// Frames in a zone, a multiple of the largest block.
    zone_frames: u32,
    free: CachePadded<FreeCount>,
}

impl Zones {
    /// Frames 0 to `nr_frames` in at most `shards` zones, all free.
    pub(super) fn new(nr_frames: u32, shards: u32) -> Self {
        assert!(nr_frames > 0 && shards > 0, "no frames or no zones");
        let largest = 1_u32 << Order::MAX.get();
        let zone_frames = nr_frames.div_ceil(largest).div_ceil(shards) * largest;
        let zone = |start: u32| {
            let end = start.saturating_add(zone_frames).min(nr_frames);
            CachePadded::new(Zone::new(start..end))
        };
        Self {
            zones: (0..nr_frames)
                .step_by(zone_frames as usize)
                .map(zone)
                .collect(),
            zone_frames,
            free: CachePadded::new(FreeCount::new(Pages(u64::from(nr_frames)))),
        }
    }

    /// A zone's lock. A holder that may wait frees what was deferred first.
    fn enter<'a>(&self, zone: &'a Zone, wait: Wait, frames: Pages) -> Option<LockedZone<'a>> {
        let mut locked = zone.enter(wait, frames)?;
        if wait == Wait::Allowed {
            self.free.add_frames(locked.splice());
        }
        Some(locked)
    }

    /// A zone's lock, for tests that need it to be held.
    #[cfg(all(test, not(loom)))]
    pub(super) fn hold(&self, zone: usize) -> LockedZone<'_> {
        self.zones[zone]
            .enter(Wait::Allowed, Pages::ZERO)
            .expect("an entry that may wait")
    }

    /// Frees every deferred block.
    fn splice_all(&self) {
        for zone in &self.zones {
            let deferred = zone.nr_deferred();
            if deferred > Pages::ZERO {
                self.enter(zone, Wait::Allowed, deferred);
            }
        }
    }

    /// Looks once into each zone for promised blocks: how many it found.
    fn take_round(&self, near: CpuId, order: Order, wait: Wait, out: &mut [Pfn]) -> usize {
        let nr_zones = self.zones.len();
        let home = near.index() % nr_zones;
        let mut taken = 0;
        for zone in self.zones[home..].iter().chain(&self.zones[..home]) {
            if zone.nr_free() + zone.nr_deferred() < order.pages() {
                continue;
            }
            let wanted = pages_of(order, out.len() - taken);
            if let Some(mut locked) = self.enter(zone, wait, wanted) {
                taken += locked.take(order, &mut out[taken..]);
            }
            if taken == out.len() {
                break;
            }
        }
        taken
    }

    fn zone_of(&self, pfn: Pfn) -> &Zone {
        self.zones
            .get((pfn.0 / self.zone_frames) as usize)
            .unwrap_or_else(|| panic!("{pfn} is not a frame of this pool"))
    }

    /// Gives back blocks of one zone.
    fn free_in(&self, zone: &Zone, order: Order, wait: Wait, blocks: &[Pfn]) {
        match self.enter(zone, wait, pages_of(order, blocks.len())) {
            Some(mut locked) => locked.give(order, blocks),
            None => return zone.defer(order, blocks),
        }
        self.free.add(blocks.len(), order);
    }
}

impl Backend for Zones {
    fn alloc_bulk(
        &self,
        near: CpuId,
        order: Order,
        floor: Pages,
        wait: Wait,
        out: &mut [Pfn],
    ) -> usize {
        let mut promised = self.free.promise(out.len(), order, floor);
        if promised < out.len() && wait == Wait::Allowed && self.nr_deferred() > Pages::ZERO {
            self.splice_all();
            promised += self.free.promise(out.len() - promised, order, floor);
        }
        let mut taken = 0;
        for _ in 0..ROUNDS_MAX {
            taken += self.take_round(near, order, wait, &mut out[taken..promised]);
            // Frames that were promised are somewhere; blocks of a higher order need not be.
            if taken == promised || order > Order::ZERO || wait == Wait::Never {
                break;
            }
        }
        self.free.add(promised - taken, order);
        taken
    }

    fn free_bulk(&self, _: CpuId, order: Order, wait: Wait, blocks: &mut [Pfn]) {
        if self.zones.len() == 1 {
            return self.free_in(&self.zones[0], order, wait, blocks);
        }
        let mut rest = blocks;
        while let Some(&first) = rest.first() {
            let zone = self.zone_of(first);
            let mut of_zone = 1;
            for at in 1..rest.len() {
                if zone.contains(rest[at]) {
                    rest.swap(at, of_zone);
                    of_zone += 1;
                }
            }
            let (here, elsewhere) = rest.split_at_mut(of_zone);
            self.free_in(zone, order, wait, here);
            rest = elsewhere;
        }
    }

    fn nr_free(&self) -> Pages {
        self.free.get()
    }

    fn nr_deferred(&self) -> Pages {
        self.zones.iter().map(|zone| zone.nr_deferred()).sum()
    }

    fn nr_free_blocks(&self, order: Order) -> u64 {
        let blocks = |zone: &Zone| zone.inspect().nr_free_blocks(order);
        self.zones.iter().map(|zone| blocks(zone)).sum()
    }

    fn free_runs(&self) -> Vec<(Pfn, Order)> {
        let zones = self.zones.iter();
        zones
            .flat_map(|zone| zone.inspect().free_blocks())
            .collect()
    }

    fn times(&self) -> LockTimes {
        let times = self.zones.iter().map(|zone| zone.times());
        times.fold(LockTimes::default(), |sum, times| sum + &times)
    }

    fn check_invariants(&self) {
        let mut free = Pages::ZERO;
        for zone in &self.zones {
            let buddy = zone.inspect();
            buddy.check_invariants();
            assert_eq!(buddy.nr_free(), zone.nr_free(), "the probes' count");
            free += buddy.nr_free();
        }
        assert_eq!(
            free,
            self.free.get(),
            "the zones' frames and the free total"
        );
    }
}
