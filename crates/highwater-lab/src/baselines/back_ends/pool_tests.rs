//! Pools over every kind of back end: conservation, what a shrunken pool does without, and used
//! frames before fresh ones.

use std::sync::Arc;

use highwater::frame::{AllocFlags, FramePool, Leaving, PoolConfig};
use highwater::lab::memmap::{Frame, FrameMemory};

use super::*;

const RESERVE: AllocFlags = AllocFlags::new().use_reserve();

fn pool(kind: Kind, pages: u64, nr_cpus: usize) -> FramePool {
    let memory = Arc::new(FrameMemory::new(Pages(pages)).expect("a small range"));
    let config = PoolConfig {
        backend: kind.make(),
        ..PoolConfig::new(nr_cpus)
    };
    FramePool::with_config(memory, config).expect("a pool")
}

// Goal: no frame is lost by any kind. Method: random allocations, frees, shrinking, growing and
// trimming beside a count of what is where; in the end everything is back.
#[test]
fn a_pool_that_shrinks_and_grows_loses_no_frame() {
    let mut rng = seed::rng(14);
    for kind in KINDS {
        let pool = pool(kind, 5000, 2);
        let (mut held, mut out): (Vec<Frame>, _) = (Vec::new(), Pages::ZERO);
        for step in 0..400 {
            let (cpu, count) = (CpuId(rng.u32(..2)), rng.usize(..1500));
            let pages = Pages(count as u64);
            match rng.u8(..6) {
                0 => out += pool.inflate(pages, Leaving::Reserve),
                1 => out -= pool.deflate(pages),
                2 => _ = pool.trim(),
                3 | 4 => _ = pool.at(cpu).alloc_bulk(count, RESERVE, &mut held),
                _ => {
                    rng.shuffle(&mut held);
                    let mut some = held.split_off(held.len() - count.min(held.len()));
                    pool.at(cpu).free_bulk(&mut some);
                }
            }
            let counts = pool.counts();
            let allocated = Pages(held.len() as u64);
            assert_eq!(
                (counts.ballooned, counts.allocated),
                (out, allocated),
                "{kind}"
            );
            if step % 50 == 0 {
                pool.check_invariants();
            }
        }
        pool.at(CpuId(0)).free_bulk(&mut held);
        assert_eq!(pool.deflate(Pages::MAX), out);
        pool.drain_all();
        assert_eq!(pool.counts().free, Pages(5000), "{kind}");
        pool.check_invariants();
    }
}

// Goal: a pool touches as much memory as is in use at once. Method: 65,536 frames of 524,288 are
// taken out and given back by CPUs in turn; a tenth more may be touched in all.
#[test]
fn used_frames_go_out_before_fresh_ones() {
    const IN_USE: usize = 1 << 16;
    for kind in KINDS {
        let pool = pool(kind, 1 << 19, 4);
        let (mut touched, mut rng) = (vec![false; 1 << 19], seed::rng(15));
        let mut held = Vec::new();
        for round in 0..7 {
            let [out, back] = [round, round + 1].map(|cpu| CpuId(cpu % 4));
            let taken = pool
                .at(out)
                .alloc_bulk(IN_USE, AllocFlags::new(), &mut held);
            assert_eq!(taken, IN_USE, "{kind}");
            held.iter()
                .for_each(|frame| touched[frame.pfn().index()] = true);
            rng.shuffle(&mut held);
            pool.at(back).free_bulk(&mut held);
        }
        let touched = touched.into_iter().filter(|&is_touched| is_touched).count();
        assert!(touched <= IN_USE * 11 / 10, "{kind}: {touched}");
    }
}
