//! Conservation of a pool's frames under random use.

use super::*;
use crate::units::CpuId;

const ORDINARY: AllocFlags = AllocFlags::new();
const RESERVE: AllocFlags = AllocFlags::new().use_reserve();

fn pool(pages: u64, nr_cpus: usize) -> FramePool {
    let memory = Arc::new(FrameMemory::new(Pages(pages)).expect("a small range"));
    FramePool::new(memory, nr_cpus).expect("a pool")
}

#[test]
fn a_pool_takes_whole_memory_only() {
    let memory = Arc::new(FrameMemory::new(Pages(100)).expect("a small range"));
    let frame = memory.claim(crate::units::Pfn(17));
    let refused = FramePool::new(Arc::clone(&memory), 1).expect_err("one is taken");
    assert_eq!(
        refused.to_string(),
        "only 99 pages of 100 pages are free: a pool needs the whole memory"
    );
    memory.surrender(frame);
    let pool = FramePool::new(Arc::clone(&memory), 1).expect("all are free");
    let frame = pool.alloc().expect("one is free");
    assert!(FramePool::new(Arc::clone(&memory), 1).is_err(), "{frame:?}");
    pool.free(frame);
}

#[test]
fn frames_are_conserved_under_random_use() {
    // Goal: managed = free + cached + allocated, always. Method: random allocations and frees on
    // random CPUs of pools of odd shapes, recounted as it goes.
    let mut rng = crate::seed::rng(2);
    for (pages, nr_cpus) in [(1, 1), (7, 2), (1000, 2), (4096, 8), (30_000, 384)] {
        let pool = pool(pages, nr_cpus);
        let mut held = Vec::new();
        for step in 0..10_000 {
            let cpu = CpuId::from_index(rng.usize(..nr_cpus));
            let reserve = if rng.u8(..) < 20 { RESERVE } else { ORDINARY };
            if rng.u8(..) < 150 {
                match pool.at(cpu).alloc_noting(reserve) {
                    Ok((frame, _)) => held.push(frame),
                    Err(AllocError::Exhausted { free, min, .. }) => assert!(
                        reserve == RESERVE || free <= min + Pages(3),
                        "{free} free of {min}"
                    ),
                    Err(error) => panic!("{error}"),
                }
            } else if !held.is_empty() {
                pool.at(cpu).free(held.swap_remove(rng.usize(..held.len())));
            }
            if step % 2500 == 0 {
                assert_eq!(pool.counts().allocated, Pages(held.len() as u64));
                pool.check_invariants();
            }
        }
        for frame in held {
            pool.at(CpuId(0)).free(frame);
        }
        pool.drain_all();
        assert_eq!(pool.nr_free(), Pages(pages));
        pool.check_invariants();
    }
}

#[test]
fn ordinary_requests_leave_the_reserve_and_say_when_it_is_near() {
    let pool = pool(1024, 1);
    let mut frames = Vec::new();
    let mut first_below_low = None;
    let error = loop {
        match pool.at(CpuId(0)).alloc_noting(ORDINARY) {
            Ok((frame, pressure)) => {
                frames.push(frame);
                if pressure == Pressure::BelowLow {
                    first_below_low.get_or_insert(pool.nr_free());
                }
            }
            Err(error) => break error,
        }
    };
    let Watermarks { min, low, .. } = pool.watermarks();
    assert_eq!(
        error,
        AllocError::Exhausted {
            free: min,
            min,
            managed: Pages(1024)
        }
    );
    assert!(min > Pages(0) && first_below_low.is_some_and(|free| free <= low && free >= min));
    for _ in 0..min.0 {
        frames.push(pool.at(CpuId(0)).alloc_noting(RESERVE).unwrap().0);
    }
    assert!(pool.at(CpuId(0)).alloc_noting(RESERVE).is_err());
    assert_eq!(pool.counts().peak, Pages(1024));
    frames
        .into_iter()
        .for_each(|frame| pool.at(CpuId(0)).free(frame));
    pool.check_invariants();
}

#[test]
fn frames_cached_by_one_cpu_are_found_by_draining() {
    let pool = pool(6400, 2);
    let frame = pool.at(CpuId(1)).alloc_noting(ORDINARY).unwrap().0;
    pool.at(CpuId(1)).free(frame);
    let cached = pool.counts().cached;
    assert!(cached > Pages::ZERO);
    assert_eq!(pool.drain_all(), cached);
    assert_eq!(pool.counts().cached, Pages::ZERO);
}

#[test]
fn threads_share_a_pool_without_losing_frames() {
    // Method: 4 threads on the same two lists and two zones, with a drain running beside them.
    let pool = pool(2000, 2);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let pool = &pool;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(u64::from(thread));
                let mut held = Vec::new();
                for _ in 0..20_000 {
                    let cpu = CpuId(rng.u32(..2));
                    if held.len() < 400 && rng.bool() {
                        held.extend(
                            pool.at(cpu)
                                .alloc_noting(ORDINARY)
                                .ok()
                                .map(|(frame, _)| frame),
                        );
                    } else if !held.is_empty() {
                        pool.at(cpu).free(held.swap_remove(rng.usize(..held.len())));
                    }
                }
                held.into_iter()
                    .for_each(|frame| pool.at(CpuId(0)).free(frame));
            });
        }
        for _ in 0..200 {
            pool.drain_all();
            std::thread::yield_now();
        }
    });
    assert_eq!(pool.counts().allocated, Pages::ZERO);
    pool.check_invariants();
}

#[test]
fn the_documented_sizes_are_computed() {
    // Goal: the table of sizes in `docs/tuning.md` matches the code. Method: compute every row.
    let document = include_str!("../../docs/tuning.md");
    let rows = [
        ("64 KiB", Bytes::kib(64)),
        ("4 MiB", Bytes::mib(4)),
        ("16 MiB", Bytes::mib(16)),
        ("64 MiB", Bytes::mib(64)),
        ("256 MiB", Bytes::mib(256)),
        ("1 GiB", Bytes::gib(1)),
        ("16 GiB", Bytes::gib(16)),
    ];
    let tunables = Tunables::default();
    for (name, capacity) in rows {
        let pages = capacity.pages_floor();
        let Watermarks { min, low, high } = Watermarks::for_managed(pages, &tunables);
        let mut row = format!(
            "| {name} | {} | {} | {} | {} |",
            pages.0, min.0, low.0, high.0
        );
        for cpus in [2, 16, 64] {
            let PcpSizes {
                batch,
                high_min,
                high_max,
            } = PcpSizes::for_managed(pages, low, cpus, &tunables);
            row += &format!(" {high_min}..{high_max} ({batch}) |");
        }
        assert!(document.contains(&row), "docs/tuning.md lacks: {row}");
    }
}
