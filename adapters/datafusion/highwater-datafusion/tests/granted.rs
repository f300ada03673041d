//! Promise: a charge that is granted, and its return, allocate nothing.
#![expect(unsafe_code, reason = "counts the allocator's calls")]

#[expect(dead_code, reason = "other tests use more of it")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;

use datafusion_execution::memory_pool::MemoryPool;
use futures::executor::block_on;
use highwater::Bytes;
use highwater_datafusion::Options;

use support::{MIB, holding, manager, spilling, tenant};

thread_local! {
    /// Allocations of this thread.
    static NR: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    /// # Safety
    ///
    /// As for the trait.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NR.set(NR.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    ///
    /// As for the trait.
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// Goal: no call allocates that is granted: of consumers that can spill and cannot, below the floor
// of fairness and above it, of queries with a reserve and without, within it and beyond it. Method:
// one of many rounds of calls allocates nothing. Others may: a CPU's first charge to a group makes
// what it counts in, so there are as many such rounds as CPUs, at most.
#[test]
fn a_granted_charge_allocates_nothing() {
    const CALLS: u64 = 1_000;
    const ROUNDS: usize = 10_000;
    for tracks_all in [false, true] {
        let hw = manager(Bytes::gib(1));
        let mut options = Options::default();
        options.tracks_all = tracks_all;
        let tenant = tenant(&hw, "a", Bytes::mib(512), options);
        let without = tenant.query().build().expect("no limits");
        let with = block_on(tenant.admit(Bytes::mib(8))).expect("there is room");
        for (kind, pool) in [("without", without), ("with", with)] {
            let pool: Arc<dyn MemoryPool> = pool;
            for register in [holding, spilling] {
                for held in [1, 6 * MIB, 20 * MIB] {
                    let consumer = register("sort", &pool);
                    consumer.try_grow(held).expect("there is room");
                    let round = || {
                        let before = NR.get();
                        for _ in 0..CALLS {
                            consumer.try_grow(4096).expect("there is room");
                            consumer.grow(100);
                            consumer.shrink(4196);
                        }
                        NR.get() - before
                    };
                    let mut rounds = std::iter::repeat_with(round).take(ROUNDS);
                    let is_free = rounds.any(|allocations| allocations == 0);
                    assert!(is_free, "with {held} B, {kind} a reserve");
                }
            }
        }
    }
    let before = NR.get();
    drop(black_box(Box::new(0)));
    assert_eq!(NR.get(), before + 1, "allocations are counted");
}
