//! Promise: a charge that is granted, and its return, allocate nothing.

#[expect(dead_code, reason = "other tests use more of it")]
mod support;

use std::hint::black_box;
use std::sync::Arc;

use allocation_counter::measure;
use datafusion_execution::memory_pool::MemoryPool;
use futures::executor::block_on;
use highwater::Bytes;
use highwater_datafusion::Options;

use support::{MIB, holding, manager, spilling, tenant};

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
                    let calls = || {
                        for _ in 0..CALLS {
                            consumer.try_grow(4096).expect("there is room");
                            consumer.grow(100);
                            consumer.shrink(4196);
                        }
                    };
                    let is_free = (0..ROUNDS).any(|_| measure(calls).count_total == 0);
                    assert!(is_free, "with {held} B, {kind} a reserve");
                }
            }
        }
    }
    let counted = measure(|| drop(black_box(Box::new(0))));
    assert_eq!(counted.count_total, 1, "allocations are counted");
}
