//! Every test runs over both regimes. Interruptions are provoked, not awaited: delays inside the
//! sequence, more threads than CPUs, and a thread that keeps moving the others.

use std::process::Command;

use super::harness::{
    allowed_cpus, attempts, pin, run_on, run_unregistered, skipped, this_thread, while_moved_around,
};
use super::*;
use crate::sync::atomic::{AtomicI64, Ordering};
use crate::sync::thread;
use crate::topology::Topology;

const REGIMES: [Regime; 2] = [Regime::Restartable, Regime::Atomic];

/// Returns the seed of a test's traffic: `SEED` in the environment, or its own.
fn seed(own: u64) -> u64 {
    std::env::var("SEED").map_or(own, |text| text.parse().expect("SEED is a number"))
}

fn this_machine(regime: Regime, words: usize) -> Cells {
    Cells::new(regime, Topology::detect().nr_cpus(), words)
}

// Goal: one thread's additions are what a plain array would hold.
// Method: random words and deltas against a model; the returned value is the slot's own.
#[test]
fn additions_match_a_model() {
    let seed = seed(2);
    for regime in REGIMES {
        for words in [1, 2, 8, 9, 30] {
            let mut random = fastrand::Rng::with_seed(seed);
            let cells = this_machine(regime, words);
            let mut model = vec![0_i64; words];
            for _ in 0..10_000 {
                let (word, delta) = (random.usize(..words), random.i64(..));
                let added = cells.add(word, delta);
                model[word] = model[word].wrapping_add(delta);
                assert_eq!(cells.load(added.slot, word), added.new, "SEED={seed}");
            }
            for (word, sum) in model.into_iter().enumerate() {
                assert_eq!(
                    cells.precise_sum(word),
                    sum << 1 >> 1,
                    "SEED={seed} {regime:?} {word}"
                );
            }
        }
    }
}

// Goal: an addition lands in the slot of the CPU that the thread runs on.
// Method: pin a thread to each CPU in turn.
#[test]
fn additions_land_on_the_own_cpu() {
    let registered = has_restartable_sequences();
    for regime in REGIMES {
        let cells = this_machine(regime, 1);
        for (turn, cpu) in (1..).zip(allowed_cpus()) {
            let (hint, added) = run_on(cpu, || (current_cpu(), cells.add(0, turn)));
            assert_eq!(hint, cpu);
            if registered || regime == Regime::Atomic {
                assert_eq!((added.slot, added.new), (cpu.index(), turn));
            } else {
                assert_eq!(added.slot, cells.nr_cpus(), "the extra slot");
            }
        }
    }
}

// Goal: the regime and the number of CPUs fix the number of slots, and lines are whole.
// Method: count them, with words that fill a line exactly and that do not.
#[test]
fn the_restartable_regime_has_an_extra_slot() {
    for words in [1, 7, 8, 9, 16, 17] {
        assert_eq!(Cells::new(Regime::Restartable, 5, words).slots(), 6);
        assert_eq!(Cells::new(Regime::Atomic, 5, words).slots(), 5);
    }
}

// Goal: additions survive migration and preemption at the worst moments.
// Method: 12 threads on all CPUs, moved every 50 us, with delays inside the sequence long enough
// for most interruptions to hit it. Rounds go on until enough sequences have been interrupted.
#[test]
fn interrupted_additions_are_exact() {
    const DELAY: u32 = 3_000;
    const ADDS: i64 = 2_000;
    for regime in REGIMES {
        let mut aborts = 0;
        for _ in 0..20 {
            let cells = this_machine(regime, 3);
            while_moved_around(12, |_| {
                for _ in 0..ADDS {
                    cells.add_delayed::<DELAY>(0, 1);
                    cells.add(1, -3);
                    let mut attempts = 0;
                    while !cells.try_add_delayed::<DELAY>(2, 1) {
                        attempts += 1;
                        if attempts > 3 {
                            cells.add(2, 1);
                            break;
                        }
                    }
                }
            });
            assert_eq!(cells.precise_sum(0), 12 * ADDS, "{cells:?}");
            assert_eq!(cells.precise_sum(2), 12 * ADDS, "{cells:?}");
            assert_eq!(cells.precise_sum(1), 12 * ADDS * -3, "{cells:?}");
            aborts += cells.aborts();
            if regime == Regime::Atomic || aborts >= 100 {
                break;
            }
        }
        if regime == Regime::Restartable && has_restartable_sequences() {
            assert!(aborts >= 100, "only {aborts} sequences were interrupted");
        }
    }
}

// Goal: the traffic of `interrupted_additions_are_exact` finds a sequence that does not restart.
// Method: the same traffic over the sequence's steps without its protection must lose additions.
#[test]
fn the_same_traffic_finds_unprotected_additions() {
    const ADDS: i64 = 2_000;
    let nr_cpus = Topology::detect().nr_cpus();
    for () in attempts() {
        let words: Vec<_> = (0..nr_cpus).map(|_| AtomicI64::new(0)).collect();
        while_moved_around(12, |_| {
            for _ in 0..ADDS {
                let word = &words[current_cpu().index() % nr_cpus];
                // Relaxed: the missing atomicity is what is tested.
                let old = word.load(Ordering::Relaxed);
                for _ in 0..3_000 {
                    std::hint::spin_loop();
                }
                word.store(old + 1, Ordering::Relaxed);
            }
        });
        let sum: i64 = words.iter().map(|word| word.load(Ordering::Relaxed)).sum();
        if sum != 12 * ADDS {
            return;
        }
    }
    panic!("the traffic never interrupted an addition");
}

// Goal: an addition that is always interrupted still ends, and counts. Method: two threads share a
// CPU, and their sequences last longer than a time slice.
#[test]
fn an_addition_that_never_gets_through_takes_the_extra_slot() {
    const DELAY: u32 = 60_000_000;
    if !has_restartable_sequences() {
        skipped("no restartable sequences here");
        return;
    }
    let cpu = allowed_cpus()[0];
    let mut adds = 0;
    let cells = this_machine(Regime::Restartable, 1);
    for _ in 0..10 {
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    pin(this_thread(), cpu);
                    cells.add_delayed::<DELAY>(0, 1);
                });
            }
        });
        adds += 2;
        assert_eq!(cells.precise_sum(0), adds);
        if cells.load(cells.nr_cpus(), 0) > 0 {
            return;
        }
    }
    panic!("no addition was interrupted often enough: {cells:?}");
}

// Goal: a thread without rseq adds exactly, beside threads that have it.
// Method: unregister half of the threads; theirs must all be in the extra slot.
#[test]
fn threads_without_rseq_add_to_the_extra_slot() {
    const ADDS: i64 = 50_000;
    let seed = seed(3);
    for regime in REGIMES {
        let cells = this_machine(regime, 1);
        let unregistered: i64 = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|index| {
                    let cells = &cells;
                    let random = fastrand::Rng::with_seed(seed + index);
                    scope.spawn(move || {
                        let registered = random_adds(cells, random.clone(), ADDS);
                        let unregistered = run_unregistered(|| random_adds(cells, random, ADDS));
                        (registered, unregistered.unwrap_or(0))
                    })
                })
                .collect();
            let mut totals = (0, 0);
            for thread in threads {
                let (registered, unregistered) = thread.join().expect("a thread panicked");
                totals = (totals.0 + registered, totals.1 + unregistered);
            }
            assert_eq!(cells.precise_sum(0), totals.0 + totals.1, "SEED={seed}");
            totals.1
        });
        if regime == Regime::Restartable && has_restartable_sequences() {
            assert_eq!(cells.load(cells.nr_cpus(), 0), unregistered, "SEED={seed}");
        }
    }
}

/// Adds `count` random numbers and returns their sum.
fn random_adds(cells: &Cells, mut random: fastrand::Rng, count: i64) -> i64 {
    (0..count).fold(0, |sum, _| {
        let delta = random.i64(-100..=100);
        cells.add(0, delta);
        sum + delta
    })
}

// Goal: a CPU that was unknown when the machine was detected is harmless. Method: cells for one
// CPU, used from every CPU.
#[test]
fn cpus_beyond_the_known_ones_add_exactly() {
    const ADDS: i64 = 100_000;
    let Some(&beyond) = allowed_cpus().iter().find(|cpu| cpu.index() > 0) else {
        skipped("only CPU 0 may be used");
        return;
    };
    for regime in REGIMES {
        let cells = Cells::new(regime, 1, 1);
        let slot = run_on(beyond, || cells.add(0, 1)).slot;
        assert_eq!(slot, cells.slots() - 1);
        while_moved_around(4, |_| {
            for _ in 0..ADDS {
                cells.add(0, 1);
            }
        });
        assert_eq!(cells.precise_sum(0), 4 * ADDS + 1);
    }
}

// Goal: the library works where the C library does not register threads.
// Method: run other tests of this file in a process that was started that way.
#[test]
fn a_process_without_rseq_works() {
    let tests = [
        "percpu::tests::child_has_no_rseq",
        "percpu::tests::additions_match_a_model",
        "percpu::tests::additions_land_on_the_own_cpu",
        "percpu::tests::interrupted_additions_are_exact",
        "percpu::tests::cpus_beyond_the_known_ones_add_exactly",
        "percpu::tests::threads_without_rseq_add_to_the_extra_slot",
    ];
    let program = std::env::current_exe().expect("a test has a path");
    let output = Command::new(program)
        .args(["--exact", "--include-ignored"])
        .args(tests)
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .output()
        .expect("the test program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains(&format!("{} passed", tests.len())), "{text}");
}

#[test]
#[ignore = "run by a_process_without_rseq_works in a process of its own"]
fn child_has_no_rseq() {
    assert!(!has_restartable_sequences());
    assert_eq!(Regime::preferred(&Topology::detect()), Regime::Atomic);
}

// Goal: the regime follows the topology: virtual CPU numbers never meet restartable sequences.
// Method: a synthetic and the detected topology.
#[test]
fn synthetic_topologies_use_atomics() {
    assert_eq!(Regime::preferred(&Topology::flat(2)), Regime::Atomic);
    if has_restartable_sequences() {
        let preferred = Regime::preferred(&Topology::detect());
        assert_eq!(preferred, Regime::Restartable);
    } else {
        skipped("no restartable sequences here");
    }
}

// Goal: acting as a given CPU is exact from any number of threads.
// Method: four threads go round the same 384 CPUs.
#[test]
fn explicit_cpus_add_exactly() {
    const ADDS: i64 = 20_000;
    let cells = Cells::new(Regime::Atomic, 384, 1);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for cpu in (0..384).cycle().take(20_000) {
                    cells.add_on(CpuId(cpu), 0, 1);
                }
            });
        }
    });
    assert_eq!(cells.precise_sum(0), 4 * ADDS);
    let added = cells.add_on(CpuId(383), 0, 5);
    assert_eq!(added.slot, 383);
    assert_eq!(added.new, cells.load(383, 0));
}

#[test]
#[should_panic(expected = "acting as C0 needs the atomic regime")]
fn acting_as_a_cpu_is_refused_in_the_restartable_regime() {
    this_machine(Regime::Restartable, 1).add_on(CpuId(0), 0, 1);
}

#[test]
#[should_panic(expected = "C2 is not one of the 2 CPUs")]
fn acting_as_a_cpu_that_does_not_exist_is_refused() {
    Cells::new(Regime::Atomic, 2, 1).add_on(CpuId(2), 0, 1);
}

#[test]
#[should_panic(expected = "there is no word 3: each slot has 3")]
fn a_word_that_does_not_exist_is_refused() {
    this_machine(Regime::Restartable, 3).add(3, 1);
}

#[test]
#[should_panic(expected = "not 0")]
fn cells_for_no_cpus_are_refused() {
    let _ = Cells::new(Regime::Restartable, 0, 1);
}

#[test]
#[should_panic(expected = "the cells fit the address space")]
fn cells_whose_size_wraps_around_are_refused() {
    let _ = Cells::new(Regime::Restartable, 15, usize::MAX);
}

// Goal: a sum visits the slots that were added to, and no other.
// Method: add on few of 384 CPUs, and compare with what was touched.
#[test]
fn only_touched_slots_are_visited() {
    let cells = Cells::new(Regime::Atomic, 384, 2);
    assert_eq!(cells.touched(0).count(), 0);
    for cpu in [0, 63, 64, 383] {
        cells.add_on(CpuId(cpu), 1, 7);
        cells.add_on(CpuId(cpu), 1, -7);
    }
    assert_eq!(cells.touched(0).count(), 0);
    assert_eq!(cells.touched(1).collect::<Vec<_>>(), [0, 63, 64, 383]);
    assert_eq!((cells.precise_sum(0), cells.precise_sum(1)), (0, 0));
}

// Goal: an addition is refused exactly if it would leave its band, and then changes nothing.
// Method: every value around several multiples of the band, and every small delta, in both regimes,
// on one CPU. An interrupted addition is refused too, so a refusal is tried twice.
#[test]
fn additions_that_leave_their_band_are_refused() {
    let nearest = |value: i64| (value + 4) >> 3;
    for regime in REGIMES {
        let nr_cpus = Topology::detect().nr_cpus();
        let cells = Cells::try_new(regime, nr_cpus, 1, Some(3)).expect("memory for a few lines");
        run_on(allowed_cpus()[0], || {
            assert!(!cells.try_add(0, 1), "a slot is marked by an add");
            cells.add(0, -30);
            for value in -30..30 {
                for delta in -20..=20 {
                    let stays = nearest(value) == nearest(value + delta);
                    let added = cells.try_add(0, delta) || cells.try_add(0, delta);
                    assert_eq!(added, stays, "{value} + {delta}");
                    let expected = if stays { value + delta } else { value };
                    assert_eq!(cells.precise_sum(0), expected);
                    cells.add(0, value - expected);
                }
                cells.add(0, 1);
            }
        });
    }
}

// Goal: the words of a home belong to one CPU: every other one is refused, and nothing is lost.
// Method: four threads on all CPUs, migrated at random; the words hold exactly the accepted
// additions.
#[test]
fn a_home_accepts_its_owner_only() {
    for regime in REGIMES {
        let home = Home::<2>::new(regime);
        assert_eq!(home.owner(), None);
        let accepted = AtomicI64::new(0);
        while_moved_around(4, |_| {
            for _ in 0..2_000 {
                if home.try_add_delayed::<3_000>(1, 3) {
                    // Relaxed: read after the threads have ended.
                    accepted.fetch_add(3, Ordering::Relaxed);
                }
            }
        });
        assert_eq!(home.load(1), accepted.into_inner());
        assert_eq!(home.load(0), 0);
        if let Some(owner) = home.owner() {
            assert!(run_on(owner, || home.try_add(0, 1)));
            for other in allowed_cpus().into_iter().filter(|cpu| *cpu != owner) {
                assert!(!run_on(other, || home.try_add(0, 1)));
            }
            assert_eq!(home.load(0), 1);
        } else {
            assert!(!has_restartable_sequences());
        }
    }
}

// Goal: a thread without rseq owns no home, and does not write one.
// Method: let it try on a fresh one and on one that is owned.
#[test]
fn a_thread_without_rseq_has_no_home() {
    let home = Home::<1>::new(Regime::Restartable);
    run_unregistered(|| assert!(!home.try_add(0, 1)));
    assert_eq!((home.load(0), home.owner()), (0, None));
}

// Goal: several words in one walk sum to what they sum to one by one. Method: random additions, in
// words of one line and of two, on few CPUs of many; words that were never added to; wrapping.
#[test]
fn words_together_sum_to_their_sums() {
    let mut random = crate::seed::rng(11);
    for (cpus, words) in [(1, 1), (3, 4), (64, 6), (65, 8), (384, 11)] {
        let cells = Cells::new(Regime::Atomic, cpus, words);
        for _ in 0..200 {
            let cpu = CpuId::from_index(random.usize(..cpus) / 2);
            let delta = random.i64(..) >> random.u32(1..64);
            cells.add_on(cpu, random.usize(..words), delta);
        }
        for _ in 0..20 {
            let chosen: Vec<usize> = (0..words).filter(|_| random.bool()).collect();
            let sums = chosen.iter().map(|&word| cells.precise_sum(word));
            let sum = sums.fold(0, i64::wrapping_add) << 1 >> 1;
            assert_eq!(cells.precise_sum_of(&chosen), sum, "{chosen:?} of {words}");
        }
    }
}
