//! Tenants that fill their memory and exit.
//!
//! A tenant has a page table of its own, and a group to which its pages are charged. Tenants fill
//! their tables at once, each in an order of its own, so that their frames are interleaved. *Exit*
//! is what the kernel does for an exiting process: slot after slot, clear the slot and the frame's
//! entry in the reverse map; for each [`GATHERED`] slots, uncharge the frames, then free them one
//! by one to the list of the tenant's CPU.
//!
//! Each frame's entry in the reverse map names its owner, and so do the first bytes of some frames:
//! a frame that was handed out twice, or lost, is detected.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use highwater::frame::{AllocFlags, FramePool};
use highwater::group::{GroupNode, GroupTree, Limits};
use highwater::lab::memmap::{Frame, FrameMemory};
use highwater::units::{CpuId, Pages, Pfn};

/// Pages that are unmapped before their frames are freed: the kernel gathers as many in one page of
/// pointers.
const GATHERED: usize = 510;

/// One slot in so many: the bytes of its frame are written, and verified at exit.
const VERIFIED: usize = 64;

/// Pages of a charge: the kernel's per-CPU charge batch.
const CHARGED: usize = 64;

/// The machine's reverse map: the owner of each frame, or 0.
#[derive(Debug)]
pub(super) struct ReverseMap {
    /// Written by: the thread that maps or unmaps the frame. Read by: the same. Publishes: nothing.
    entries: Box<[AtomicU64]>,
}

impl ReverseMap {
    pub(super) fn new(frames: Pages) -> Self {
        let nobody = iter::repeat_with(|| AtomicU64::new(0));
        let frames = usize::try_from(frames.0).expect("frames that are in memory");
        Self {
            entries: nobody.take(frames).collect(),
        }
    }

    /// Replaces the owner of a frame; returns whether the old one was `was`.
    fn replace(&self, frame: &Frame, was: u64, is: u64) -> bool {
        // Relaxed: handing over the frame's token orders the accesses of its owners.
        self.entries[frame.pfn().index()].swap(is, Ordering::Relaxed) == was
    }

    /// Returns the number of frames that have an owner.
    pub(super) fn mapped(&self) -> u64 {
        // Relaxed: called when no tenant runs.
        let mapped = self
            .entries
            .iter()
            .filter(|entry| entry.load(Ordering::Relaxed) != 0);
        mapped.count() as u64
    }
}

/// Shared state of the tenants.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    pub(super) pool: &'a FramePool,
    pub(super) memory: &'a FrameMemory,
    pub(super) rmap: &'a ReverseMap,
}

/// A tenant: a process's worth of pages.
#[derive(Debug)]
pub(super) struct Tenant {
    /// Number from 1, for the reverse map.
    number: u64,
    cpu: CpuId,
    group: GroupNode,
    /// Order in which slots are filled.
    order: Box<[u32]>,
    table: Box<[Option<Frame>]>,
    gathered: Vec<Frame>,
    /// Frames that had the wrong owner or the wrong bytes.
    pub(super) wrong: u64,
    /// Allocations that failed until all lists were drained.
    pub(super) refused: u64,
}

/// Creates tenants; each acts as a CPU of its own, as far as there are enough.
pub(super) fn tenants(count: usize, frames: usize, nr_cpus: usize, seed: u64) -> Vec<Tenant> {
    let groups = GroupTree::new(nr_cpus);
    let tenant = |index: usize| {
        let mut order: Box<[u32]> = (0..u32::try_from(frames).expect("a few thousand")).collect();
        Rng::with_seed(seed.wrapping_mul(1000) + index as u64).shuffle(&mut order);
        let name = format!("tenant-{index}");
        let group = groups.root().child(&name, Limits::default());
        Tenant {
            number: index as u64 + 1,
            cpu: CpuId::from_index(index % bystander_cpu(nr_cpus).index()),
            group: group.expect("names differ"),
            order,
            table: iter::repeat_with(|| None).take(frames).collect(),
            gathered: Vec::with_capacity(GATHERED),
            wrong: 0,
            refused: 0,
        }
    };
    (0..count).map(tenant).collect()
}

/// Returns the CPU that no tenant acts as.
pub(super) fn bystander_cpu(nr_cpus: usize) -> CpuId {
    CpuId::from_index(nr_cpus - 1)
}

impl Tenant {
    /// Returns the owner of the frame in `slot`.
    fn owner(&self, slot: usize) -> u64 {
        self.number << 32 | slot as u64
    }

    /// Fills every slot.
    pub(super) fn fill(&mut self, machine: &Machine<'_>) {
        for at in 0..self.order.len() {
            if at % CHARGED == 0 {
                let pages = CHARGED.min(self.order.len() - at);
                let charge = self
                    .group
                    .at(self.cpu)
                    .try_charge(Pages(pages as u64).bytes());
                let charged = charge.expect("groups without a maximum").disown();
                debug_assert_eq!(charged, Pages(pages as u64).bytes());
            }
            let slot = self.order[at] as usize;
            let mut frame = self.alloc(machine);
            let owner = self.owner(slot);
            if slot.is_multiple_of(VERIFIED) {
                let bytes = machine.memory.bytes_mut(&mut frame);
                bytes[..8].copy_from_slice(&owner.to_ne_bytes());
            }
            self.wrong += u64::from(!machine.rmap.replace(&frame, 0, owner));
            self.table[slot] = Some(frame);
        }
    }

    fn alloc(&mut self, machine: &Machine<'_>) -> Frame {
        loop {
            match machine.pool.at(self.cpu).alloc_with(AllocFlags::new()) {
                Ok(frame) => return frame,
                Err(refused) => {
                    // Draining returns the frames in other CPUs' lists; all lists together hold
                    // less than the pool's slack.
                    self.refused += 1;
                    assert!(self.refused < 1000, "the pool is too small: {refused}");
                    machine.pool.drain_all();
                }
            }
        }
    }

    /// Empties every slot; returns the number of slots.
    pub(super) fn exit(&mut self, machine: &Machine<'_>) -> u64 {
        let mut freed = 0;
        for begin in (0..self.table.len()).step_by(GATHERED) {
            let end = (begin + GATHERED).min(self.table.len());
            for slot in begin..end {
                let Some(frame) = self.table[slot].take() else {
                    continue;
                };
                let owner = self.owner(slot);
                self.wrong += u64::from(!machine.rmap.replace(&frame, owner, 0));
                if slot.is_multiple_of(VERIFIED) {
                    let bytes = &machine.memory.bytes(&frame)[..8];
                    self.wrong += u64::from(bytes != owner.to_ne_bytes());
                }
                self.gathered.push(frame);
            }
            let pages = self.gathered.len() as u64;
            self.group.at(self.cpu).uncharge(Pages(pages).bytes());
            freed += pages;
            for frame in self.gathered.drain(..) {
                machine.pool.at(self.cpu).free(frame);
            }
        }
        freed
    }

    /// Returns the bytes charged to it.
    pub(super) fn charged(&self) -> u64 {
        self.group.usage_precise().0
    }
}

/// Touches every frame of `memory`, so that no measurement includes a first touch.
pub(super) fn touched(memory: FrameMemory) -> Arc<FrameMemory> {
    for pfn in (0..memory.pages().0).map(|pfn| Pfn(u32::try_from(pfn).expect("frames of a memory")))
    {
        let mut frame = memory.claim(pfn);
        memory.bytes_mut(&mut frame)[0] = 1;
        memory.surrender(frame);
    }
    Arc::new(memory)
}

#[cfg(test)]
mod tests {
    use highwater::frame::PoolConfig;

    use super::*;

    const FRAMES: usize = 3000;

    /// Goal: exit finds the filled frames, and leaves nothing. Method: three tenants on two CPUs,
    /// twice.
    #[test]
    fn tenants_leave_nothing_behind() {
        let memory = Arc::new(FrameMemory::new(Pages(16_384)).unwrap());
        let pool = FramePool::with_config(Arc::clone(&memory), PoolConfig::new(3)).unwrap();
        let rmap = ReverseMap::new(memory.pages());
        let machine = Machine {
            pool: &pool,
            memory: &memory,
            rmap: &rmap,
        };
        let mut tenants = tenants(3, FRAMES, 3, 1);
        for _ in 0..2 {
            for tenant in &mut tenants {
                tenant.fill(&machine);
                assert_eq!(tenant.charged(), Pages(FRAMES as u64).bytes().0);
            }
            assert_eq!(rmap.mapped(), 3 * FRAMES as u64);
            for tenant in &mut tenants {
                assert_eq!(tenant.exit(&machine), FRAMES as u64);
                assert_eq!((tenant.charged(), tenant.wrong), (0, 0));
            }
        }
        assert_eq!(rmap.mapped(), 0);
        assert_eq!(pool.counts().allocated, Pages(0));
        pool.check_invariants();
    }

    /// Goal: a frame handed out twice is detected. Method: an entry in the reverse map with another
    /// owner.
    #[test]
    fn a_frame_of_two_tenants_is_noticed() {
        let memory = Arc::new(FrameMemory::new(Pages(4096)).unwrap());
        let pool = FramePool::new(Arc::clone(&memory), 2).unwrap();
        let rmap = ReverseMap::new(memory.pages());
        let machine = Machine {
            pool: &pool,
            memory: &memory,
            rmap: &rmap,
        };
        let mut tenant = tenants(1, 100, 2, 1).remove(0);
        tenant.fill(&machine);
        let pfn = tenant.table[7].as_ref().unwrap().pfn();
        rmap.entries[pfn.index()].store(1, Ordering::Relaxed);
        tenant.exit(&machine);
        assert_eq!(tenant.wrong, 1);
    }
}
