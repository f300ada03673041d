//! Tests of every counter's promises, which each counter calls for itself, and tests of the
//! adapters.

use std::thread;

use highwater::lab::percpu::Regime;
use highwater::topology::Topology;

use highwater::units::CpuId;

use super::*;

/// Returns a generator seeded from `SEED`, or `default`; a failing test shows the seed.
pub(super) fn rng(default: u64) -> fastrand::Rng {
    let seed = std::env::var("SEED").map_or(default, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Draws a page, a fault-around window, a huge page, or any amount, in either direction.
pub(super) fn delta(random: &mut fastrand::Rng) -> i64 {
    let sizes = [1, 1, 16, 512, random.i64(0..100_000)];
    let size = sizes[random.usize(..sizes.len())];
    if random.bool() { size } else { -size }
}

/// Goal: nothing is lost, the cheap read stays within the promise and within the stated reach, and
/// reaches both ends of the latter. Method: random traffic against a plain sum, in drifts that fill
/// and empty the counter; then the counter's own worst fill, in both directions.
pub(super) fn keeps_its_promises(cpus: usize, new: impl Fn() -> Box<dyn Counter>) {
    let mut random = rng(1);
    let (counter, mut sum) = (new(), 0_i64);
    let reach = counter.reach();
    for step in 0..20_000 {
        let cpu = CpuId::from_index(random.usize(..cpus));
        let mut delta = delta(&mut random);
        if step / 5000 % 2 == 0 && random.u8(..4) == 0 {
            delta = delta.abs();
        }
        counter.add_on(cpu, delta, &mut Untracked);
        sum += delta;
        let estimate = counter.approximate_sum();
        assert!(estimate.contains(sum), "{sum} is not in {estimate}");
        let error = sum - estimate.value;
        assert!(
            -reach.over <= error && error <= reach.under,
            "{error} is beyond {reach:?}"
        );
    }
    assert_eq!(counter.precise_sum(), sum);
    for (end, error) in [(End::Under, reach.under), (End::Over, -reach.over)] {
        let counter = new();
        for (cpu, delta) in counter.worst_fill(end) {
            counter.add_on(cpu, delta, &mut Untracked);
        }
        let estimate = counter.approximate_sum();
        let precise = counter.precise_sum();
        assert_eq!(precise - estimate.value, error, "{cpus} CPUs, {end:?}");
        assert!(estimate.contains(precise), "{precise} is not in {estimate}");
    }
}

const THREADS: i64 = 4;

/// Sum of the additions of [`adds_from_threads_are_exact`].
pub(super) const THREADS_SUM: i64 = THREADS * 10_000 * (16 - 1);

/// Adds from several threads at once; the caller compares with [`THREADS_SUM`].
pub(super) fn adds_from_threads_are_exact(add: impl Fn(i64) + Sync) {
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    add(16);
                    add(-1);
                }
            });
        }
    });
}

/// Goal: a design of counters keeps members and spaces separate, shows no negative pages, and
/// numbers the lines of each counter separately. Method: one add to each of two counters; then a
/// vector that empties them.
#[test]
fn counters_make_a_design() {
    let machine = Topology::flat(4);
    let design = PerSpace::new(2, || FlatCounter::new(4, Regime::Atomic));
    let mut ledger = Ledger::new(&machine, TransferCosts::default(), &design.lines());
    let (first, second) = (SpaceId(0), SpaceId(1));
    let by = Writer {
        cpu: CpuId(2),
        task: TaskId(9),
        space: Some(first),
    };
    let count = |space, member| Count { space, member };
    design.add(by, count(first, Member::Anon), 40, &mut ledger);
    design.add(by, count(second, Member::Shmem), 3, &mut ledger);
    assert_eq!(design.lines(), [8]);
    assert_eq!(ledger.writes_by_level(), [1]);
    assert_eq!(design.read(count(first, Member::Anon)), 40);
    assert_eq!(design.read(count(second, Member::Shmem)), 0);
    assert_eq!(design.precise(count(second, Member::Shmem)), 3);
    assert_eq!(design.precise(count(second, Member::Anon)), 0);
    let elsewhere = Writer {
        cpu: CpuId(3),
        ..by
    };
    design.add(elsewhere, count(second, Member::Anon), 32, &mut ledger);
    assert_eq!(ledger.transfers(), 0, "each counter has a line of its own");
    design.add_vector(elsewhere, first, [0, -40, -32, 0], &mut ledger);
    assert_eq!(design.precise(count(first, Member::Anon)), 0);
    assert_eq!(design.read(count(first, Member::Swap)), 0, "not below zero");
    assert_eq!(design.precise(count(first, Member::Swap)), -32);
    let estimate = design.estimate(count(first, Member::Swap)).unwrap();
    assert!(estimate.contains(-32));
    assert_eq!(
        design.read_resident(second),
        design.read(count(second, Member::Anon))
    );
    let resident = design.estimate_resident(second).unwrap();
    assert!(
        resident.contains(design.precise_resident(second)),
        "{resident}"
    );
    assert_eq!(design.footprint().space_bytes, 4 * (40 + 4 * 4));
    assert_eq!((ledger.writes(), ledger.transfers()), (4, 1));
}
