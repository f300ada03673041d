//! Nanoseconds a frame of every kind, in the shapes that per-CPU lists give their visits.
//!
//! Question: what does a batch of 63 frames cost, out and back, with one thread and with two; which
//! kind should be the default? The one that is fastest in most rows and loses none by half.
//! Command:
//! `cargo test --release -p highwater-lab --lib back_ends::measure -- --ignored --nocapture`.

use std::time::Instant;

use highwater::lab::sync::thread;

use super::*;

const KINDS: [BackendKind; 4] = [
    BackendKind::SingleLock,
    BackendKind::Sharded { shards: 2 },
    BackendKind::Sharded { shards: 8 },
    BackendKind::Trees,
];

/// 2 GiB.
const FRAMES: u32 = 1 << 19;
const BATCH: usize = 63;
const REPEATS: usize = 7;

/// Nanoseconds of each batch that one thread took out and gave back.
#[derive(Debug, Default)]
struct Batches {
    out: Vec<u64>,
    back: Vec<u64>,
}

type Work = fn(&dyn Backend, CpuId, &mut fastrand::Rng, &mut Batches);

fn timed(batches: &mut Vec<u64>, work: impl FnOnce()) {
    let since = Instant::now();
    work();
    batches.push(u64::try_from(since.elapsed().as_nanos()).expect("less than centuries"));
}

fn alloc(backend: &dyn Backend, cpu: CpuId, out: &mut [Pfn], times: &mut Batches) {
    for batch in out.chunks_exact_mut(BATCH) {
        timed(&mut times.out, || {
            let taken = backend.alloc_bulk(cpu, Order::ZERO, Pages::ZERO, Wait::Allowed, batch);
            assert_eq!(taken, BATCH);
        });
    }
}

fn free(backend: &dyn Backend, cpu: CpuId, frames: &mut [Pfn], times: &mut Batches) {
    for batch in frames.chunks_exact_mut(BATCH) {
        timed(&mut times.back, || {
            backend.free_bulk(cpu, Order::ZERO, Wait::Allowed, batch);
        });
    }
}

/// One batch out and back, again and again.
fn hot_batch(backend: &dyn Backend, cpu: CpuId, _: &mut fastrand::Rng, times: &mut Batches) {
    let mut frames = [Pfn(0); BATCH];
    for _ in 0..4000 {
        alloc(backend, cpu, &mut frames, times);
        free(backend, cpu, &mut frames, times);
    }
}

/// 64 Ki frames out and back in order.
fn sequential(backend: &dyn Backend, cpu: CpuId, _: &mut fastrand::Rng, times: &mut Batches) {
    let mut frames = vec![Pfn(0); BATCH << 10];
    alloc(backend, cpu, &mut frames, times);
    free(backend, cpu, &mut frames, times);
}

/// 64 Ki frames out, and back in random order.
fn shuffled(backend: &dyn Backend, cpu: CpuId, rng: &mut fastrand::Rng, times: &mut Batches) {
    let mut frames = vec![Pfn(0); BATCH << 10];
    alloc(backend, cpu, &mut frames, times);
    rng.shuffle(&mut frames);
    free(backend, cpu, &mut frames, times);
}

/// A quarter of the pool is held; random batches of it go back and others come.
fn churn(backend: &dyn Backend, cpu: CpuId, rng: &mut fastrand::Rng, times: &mut Batches) {
    let mut frames = vec![Pfn(0); BATCH << 11];
    alloc(backend, cpu, &mut frames, &mut Batches::default());
    rng.shuffle(&mut frames);
    for _ in 0..4000 {
        for at in 0..BATCH {
            let other = rng.usize(at..frames.len());
            frames.swap(at, other);
        }
        free(backend, cpu, &mut frames[..BATCH], times);
        alloc(backend, cpu, &mut frames[..BATCH], times);
    }
    free(backend, cpu, &mut frames, &mut Batches::default());
}

/// What `part` of the batches took at most, in nanoseconds a frame.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a batch")]
fn quantile(batches: &mut [u64], part: f64) -> f64 {
    batches.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let at = (part * (batches.len() - 1) as f64) as usize;
    batches[at] as f64 / BATCH as f64
}

/// All threads at once, each as another CPU.
fn run(backend: &dyn Backend, work: Work, threads: u32, times: &mut Batches) {
    let one = |cpu| {
        move || {
            let mut times = Batches::default();
            let mut rng = fastrand::Rng::with_seed(u64::from(cpu));
            work(backend, CpuId(cpu), &mut rng, &mut times);
            times
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|cpu| scope.spawn(one(cpu))).collect();
        for worker in workers {
            let of_one = worker.join().expect("a worker");
            times.out.extend(of_one.out);
            times.back.extend(of_one.back);
        }
    });
}

#[test]
#[ignore = "a measurement; run with --release --ignored --nocapture"]
fn kinds_beside_each_other() {
    let works: [(&str, Work); 4] = [
        ("hot batch", hot_batch),
        ("64 Ki in order", sequential),
        ("64 Ki shuffled", shuffled),
        ("churn", churn),
    ];
    println!("ns a frame (two readings of the clock a batch are in it): p50 and p99 of batches");
    for (name, work) in works {
        for threads in [1, 2] {
            let pools = KINDS.map(|kind| kind.build(FRAMES, 2));
            let mut times = KINDS.map(|_| Batches::default());
            for _ in 0..REPEATS {
                for (pool, times) in pools.iter().zip(&mut times) {
                    run(&**pool, work, threads, times);
                }
            }
            for (kind, Batches { out, back }) in KINDS.iter().zip(&mut times) {
                println!(
                    "{name:14} {threads} threads {kind:12} out {:6.1} {:6.1}   back {:6.1} {:6.1}",
                    quantile(out, 0.5),
                    quantile(out, 0.99),
                    quantile(back, 0.5),
                    quantile(back, 0.99),
                );
            }
            pools.iter().for_each(|pool| pool.check_invariants());
        }
    }
}
