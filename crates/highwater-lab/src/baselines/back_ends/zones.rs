//! Buddy allocators by address, each behind its own lock: one of them is the single-lock back end,
//! several are the sharded one.
//!
//! A zone is a range of whole blocks of the largest order, so that no block lies in two. A request
//! begins at the zone of its CPU's number and goes round; a free goes to the zone that the frame is
//! from, and blocks of one zone that are freed together cost one hold of its lock. Frames that were
//! used go out before fresh ones: another zone comes before fresh blocks of the CPU's own if at
//! least a largest block of frames is free there that were used.
//!
//! Deviation from the kernel: the free total is one word for all zones, so the floor is exact over
//! all of them and a probe reads one line. Single frames are taken from it before a lock is (see
//! the module above), by requests that may wait and hence get what they are promised; a request
//! that may not find what it wants takes it from there when it sees the blocks in the zone that it
//! holds.

use std::ops::Range;

use crossbeam_utils::CachePadded;

use highwater::frame::{Backend, FreeCount, Wait};
use highwater::lab::sync::{LockTimes, thread};
use highwater::units::{CpuId, Order, Pages, Pfn};

use super::zone::{LockedZone, Zone, pages_of};

/// A request for single frames goes round the zones this often at most, and lets others run before
/// each further round. Chosen: what it was promised is there, and a zone that is found empty was
/// emptied by another request, so more than one round is needed only when others free and allocate
/// as fast as this one looks; four without a pause were too few for more threads than CPUs.
const ROUNDS_MAX: usize = if cfg!(loom) { 4 } else { 64 };

/// A request that is promised too little while frames are deferred asks again this often at most.
/// Chosen: as the rounds.
const PROMISES_MAX: usize = ROUNDS_MAX;

/// Which frames a round is for.
#[derive(Clone, Copy, Debug)]
enum Reach {
    /// Those that were used.
    Used,
    /// Fresh ones as well.
    All,
}

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

    /// A zone's lock. A holder frees what was deferred first; one that must not wait, some of it,
    /// so that those that never wait find what they defer.
    fn enter<'a>(&self, zone: &'a Zone, wait: Wait, frames: Pages) -> Option<LockedZone<'a>> {
        let mut locked = zone.enter(wait, frames)?;
        locked.splice(wait, &self.free);
        Some(locked)
    }

    /// A zone's lock, for tests that need it to be held.
    #[cfg(all(test, not(loom)))]
    pub(super) fn hold(&self, zone: usize) -> LockedZone<'_> {
        self.zones[zone]
            .enter(Wait::Allowed, Pages::ZERO)
            .expect("an entry that may wait")
    }

    /// Frees every deferred block: whether there were any.
    fn splice_all(&self) -> bool {
        let mut any = false;
        for zone in &self.zones {
            let deferred = zone.nr_deferred();
            if deferred > Pages::ZERO {
                any = true;
                self.enter(zone, Wait::Allowed, deferred);
            }
        }
        any
    }

    /// Looks once into each zone, the CPU's own first, for frames that were used, and then once for
    /// any: how many blocks `take` took there.
    fn round(
        &self,
        near: CpuId,
        order: Order,
        wait: Wait,
        out: &mut [Pfn],
        take: impl Fn(&mut LockedZone<'_>, &mut [Pfn]) -> usize,
    ) -> usize {
        let home = near.index() % self.zones.len();
        // One buddy allocator keeps that order by itself.
        let reaches = match self.zones.len() {
            1 => &[Reach::All][..],
            _ => &[Reach::Used, Reach::All],
        };
        let mut taken = 0;
        for &reach in reaches {
            let zones = self.zones[home..].iter().chain(&self.zones[..home]);
            for (at, zone) in zones.enumerate() {
                let frames = match reach {
                    Reach::Used if at == 0 => zone.nr_used(),
                    Reach::Used if zone.nr_used() >= Order::MAX.pages() => zone.nr_used(),
                    Reach::Used => Pages::ZERO,
                    Reach::All => zone.nr_free() + zone.nr_deferred(),
                };
                let blocks = usize::try_from(frames.0 >> order.get()).unwrap_or(usize::MAX);
                let rest = &mut out[taken..];
                let most = match reach {
                    Reach::Used => blocks.min(rest.len()),
                    Reach::All => rest.len(),
                };
                if blocks == 0 || most == 0 {
                    continue;
                }
                if let Some(mut locked) = self.enter(zone, wait, pages_of(order, most)) {
                    taken += take(&mut locked, &mut rest[..most]);
                }
                if taken == out.len() {
                    return taken;
                }
            }
        }
        taken
    }

    /// Single frames for a request that may wait: promised first, so that it does not enter zones
    /// in vain, then looked for until they are found.
    fn alloc_frames(&self, near: CpuId, floor: Pages, out: &mut [Pfn]) -> usize {
        let promised = self.promise_frames(out.len(), floor);
        let mut taken = 0;
        for round in 0..ROUNDS_MAX {
            if taken == promised {
                break;
            }
            if round > 0 {
                thread::yield_now();
            }
            let rest = &mut out[taken..promised];
            let take = |zone: &mut LockedZone<'_>, out: &mut [Pfn]| zone.take(Order::ZERO, out);
            taken += self.round(near, Order::ZERO, Wait::Allowed, rest, take);
        }
        self.free.add(promised - taken, Order::ZERO);
        taken
    }

    /// Fewer than `count` frames are promised only if there are no more above the floor, deferred
    /// ones included.
    fn promise_frames(&self, count: usize, floor: Pages) -> usize {
        let promise = |count| self.free.promise(count, Order::ZERO, floor);
        let mut promised = promise(count);
        for _ in 0..PROMISES_MAX {
            if promised == count {
                break;
            }
            let spliced = self.splice_all();
            let more = promise(count - promised);
            promised += more;
            // What is deferred now may be what was counted at the first look.
            if !spliced && more == 0 && self.nr_deferred() == Pages::ZERO {
                break;
            }
            if promised < count {
                thread::yield_now();
            }
        }
        promised
    }

    /// Blocks of any order, or frames for a request that must not wait: seen first, in the zone
    /// that is held, and promised then. Nothing is withheld from others that this request may not
    /// get.
    fn alloc_seen(
        &self,
        near: CpuId,
        order: Order,
        floor: Pages,
        wait: Wait,
        out: &mut [Pfn],
    ) -> usize {
        let mut taken = 0;
        for _ in 0..2 {
            let is_enough = |free: Pages| free >= floor + order.pages();
            if is_enough(self.free.get()) || is_enough(self.free.get() + self.nr_deferred()) {
                taken += self.round(near, order, wait, &mut out[taken..], |zone, out| {
                    let seen = out.len().min(zone.nr_blocks(order));
                    let promised = self.free.promise(seen, order, floor);
                    let taken = zone.take(order, &mut out[..promised]);
                    debug_assert_eq!(taken, promised, "blocks of {order:?} were there");
                    taken
                });
            }
            if taken == out.len() || wait == Wait::Never || !self.splice_all() {
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
        if order == Order::ZERO && wait == Wait::Allowed {
            self.alloc_frames(near, floor, out)
        } else {
            self.alloc_seen(near, order, floor, wait, out)
        }
    }

    fn alloc_within(&self, frames: Range<u32>, floor: Pages, out: &mut Vec<Pfn>) {
        let zone = self.zone_of(Pfn(frames.start));
        let wanted = Pages(frames.len() as u64);
        if let Some(mut locked) = self.enter(zone, Wait::Allowed, wanted) {
            let is_promised = |order| self.free.promise(1, order, floor) == 1;
            locked.take_within(frames, is_promised, out);
        }
    }

    fn free_fresh(&self, _: CpuId, order: Order, blocks: &mut [Pfn]) {
        let Some(first) = blocks.iter().min() else {
            return;
        };
        let is_whole = pages_of(order, blocks.len()) == Order::MAX.pages();
        let zone = self.zone_of(*first);
        let moved = pages_of(order, blocks.len());
        if let Some(mut locked) = self.enter(zone, Wait::Allowed, moved) {
            locked.give(order, blocks);
            if is_whole {
                locked.make_fresh(*first);
            }
        }
        self.free.add(blocks.len(), order);
    }

    fn nr_fresh(&self) -> Pages {
        self.zones.iter().map(|zone| zone.nr_fresh()).sum()
    }

    fn has_used(&self, frames: Pages) -> bool {
        // What other zones have less than a largest block of is not looked for.
        let left = match self.zones.len() {
            1 => Pages::ZERO,
            _ => Order::MAX.pages(),
        };
        let used = self.zones.iter().map(|zone| zone.nr_used());
        used.map(|used| used.saturating_sub(left)).sum::<Pages>() >= frames
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

    fn splice(&self) {
        self.splice_all();
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
            assert_eq!(buddy.nr_fresh(), zone.nr_fresh(), "the probes' count");
            free += buddy.nr_free();
        }
        assert_eq!(
            free,
            self.free.get(),
            "the zones' frames and the free total"
        );
    }
}
