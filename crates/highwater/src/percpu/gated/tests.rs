//! Steps on the own CPU and from other CPUs, interrupted at the worst moments.

use super::*;
use crate::memmap::sandbox::{SETAFFINITY, refuse_membarrier};
use crate::percpu::PercpuOwner;
use crate::percpu::harness::{
    allowed_cpus, attempts, run_on, run_unregistered, skipped, while_moved_around,
};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Arc, OnceLock, thread};
use crate::topology::Topology;

/// Turns of the loops inside the sequence: most interruptions hit it then.
const DELAY: u32 = 3_000;

/// Words of this machine's CPUs, in the restartable regime.
fn this_machine() -> Option<(Gates, Vec<CachePadded<Gated>>)> {
    let gates = Gates::new(Regime::Restartable, Topology::detect().nr_cpus());
    if gates.regime() == Regime::Atomic {
        skipped("no sequences here that other CPUs can restart");
        return None;
    }
    Some((gates, words_of(gates)))
}

fn words_of(gates: Gates) -> Vec<CachePadded<Gated>> {
    (0..gates.nr_words())
        .map(|index| CachePadded::new(gates.word(index, 0)))
        .collect()
}

fn each(words: &[CachePadded<Gated>]) -> impl Iterator<Item = &Gated> + Clone {
    words.iter().map(|word| &**word)
}

/// Takes everything out of a word.
fn taken(word: u64) -> Option<u64> {
    (word > 0).then_some(0)
}

/// As [`put_among_by`], where each put is a step.
fn put_among(
    gates: Gates,
    words: &[CachePadded<Gated>],
    take: impl Fn() -> u64 + Sync,
) -> (u64, u64) {
    let step = || {
        let word = &words[gates.here()];
        let put = word.step_delayed::<DELAY>(|word| Some(word + 1));
        assert!(put.is_ok());
    };
    put_among_by(words, take, step)
}

/// Returns the sums that 6 threads have put into the words of their CPUs by `put`, one at a time,
/// and that `take` took, which emptied all words repeatedly.
fn put_among_by(
    words: &[CachePadded<Gated>],
    take: impl Fn() -> u64 + Sync,
    put: impl Fn() + Sync,
) -> (u64, u64) {
    const PUTS: u64 = 2_000;
    const THREADS: u64 = 6;
    let is_over = AtomicBool::new(false);
    let taken = thread::scope(|scope| {
        let thief = scope.spawn(|| {
            let mut sum = 0;
            // Relaxed: ends the loop, and publishes nothing.
            while !is_over.load(Ordering::Relaxed) {
                sum += take();
                thread::yield_now();
            }
            sum
        });
        while_moved_around(THREADS, |_| {
            (0..PUTS).for_each(|_| put());
        });
        // Relaxed: as above.
        is_over.store(true, Ordering::Relaxed);
        thief.join().expect("the thief panicked")
    });
    let left: u64 = words.iter().map(|word| word.load()).sum();
    (THREADS * PUTS, taken + left)
}

// Goal: steps from other CPUs, one by one and in batches, meet no sequence half-way. Method:
// threads that spend most of their time between checking gate and word and storing; the sum put
// into the words is the sum taken out, none lost and none twice.
#[test]
fn steps_from_afar_meet_no_sequence_half_way() {
    let Some((gates, words)) = this_machine() else {
        return;
    };
    let one_by_one = || words.iter().filter_map(|word| word.step(taken).ok()).sum();
    let batched = || {
        let raised = Raised::new(each(&words));
        raised
            .words()
            .filter_map(|open| open.step(&taken).ok())
            .sum()
    };
    let (put, found) = put_among(gates, &words, one_by_one);
    assert_eq!(found, put);
    words.iter().for_each(|word| _ = word.step(taken));
    let (put, found) = put_among(gates, &words, batched);
    assert_eq!(found, put);
    assert!(
        words
            .iter()
            .all(|word| word.at.station.load(Ordering::Relaxed) < ONE_GATE)
    );
}

// Goal: plain additions meet no step from afar half-way, and end where a gate is left up.
// Method: as above; each put is an addition, or a step where that is not possible. Then every gate
// stays up.
#[test]
fn additions_meet_no_step_from_afar_half_way() {
    let Some((gates, words)) = this_machine() else {
        return;
    };
    let batched = || {
        let raised = Raised::new(each(&words));
        raised
            .words()
            .filter_map(|open| open.step(&taken).ok())
            .sum()
    };
    let put = || {
        if !gates.try_add_delayed::<DELAY>(&words, 1) {
            let put = words[gates.here()].step(|word| Some(word + 1));
            assert!(put.is_ok());
        }
    };
    let (put, found) = put_among_by(&words, batched, put);
    assert_eq!(found, put);
    assert!((0..1000).any(|_| gates.try_add(&words, 1)));
    let sum = || words.iter().map(|word| word.load()).sum::<u64>();
    let before = sum();
    Raised::new(each(&words)).leave_up();
    assert!((0..1000).all(|_| !gates.try_add(&words, 1)));
    run_unregistered(|| assert!(!gates.try_add(&words, 1)));
    assert_eq!(sum(), before);
}

// Goal: the same where membarrier is refused once the words are in use, and the thief visits their
// CPUs instead.
#[test]
fn steps_from_afar_meet_no_sequence_half_way_without_membarrier() {
    let Some((gates, words)) = this_machine() else {
        return;
    };
    let refused = OnceLock::new();
    let visiting = || {
        refused.get_or_init(|| refuse_membarrier(&[], libc::EPERM));
        let one_by_one = words.iter().filter_map(|word| word.step(taken).ok());
        let one_by_one: u64 = one_by_one.sum();
        let raised = Raised::new(each(&words));
        let batched = raised.words().filter_map(|open| open.step(&taken).ok());
        one_by_one + batched.sum::<u64>()
    };
    let (put, found) = put_among(gates, &words, visiting);
    assert_eq!(found, put);
}

// Goal: where CPUs cannot be visited either, a step from another CPU fails and leaves word and gate
// as they were; a step on the own CPU still works, and references that can no longer be counted
// keep their value.
#[test]
fn a_step_that_cannot_be_made_changes_nothing() {
    let Some((gates, words)) = this_machine() else {
        return;
    };
    let cpus = allowed_cpus();
    let [here, there, ..] = cpus[..] else {
        skipped("one CPU has no afar");
        return;
    };
    let kept = Arc::new(());
    let owner = PercpuOwner::new(gates, Arc::clone(&kept));
    let reference = owner.reference();
    run_on(here, || {
        if !refuse_membarrier(&[SETAFFINITY], libc::EPERM) {
            return;
        }
        let afar = &words[there.index()];
        for _ in 0..3 {
            let step = || _ = afar.step(|word| Some(word + 1));
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(step)).unwrap_err();
            let said = panic.downcast_ref::<String>().expect("a text");
            assert!(said.contains("is now refused"), "{said}");
            assert!(Raised::try_new(each(&words)).is_err());
        }
        assert!(words[here.index()].step(|word| Some(word + 1)).is_ok());
        drop(owner);
        drop(reference);
        assert_eq!(Arc::strong_count(&kept), 2, "leaked, not freed");
    });
    assert!(
        words
            .iter()
            .all(|word| word.at.station.load(Ordering::Relaxed) < ONE_GATE)
    );
    let word = &words[there.index()];
    assert_eq!(word.load(), 0);
    let goes_on = || (0..1000).any(|_| word.try_step(|word| Some(word + 1)));
    assert!(run_on(there, goes_on), "as one whose gate is down");
}

/// In a word of a pair: how often its operation has begun and not ended.
const BEGUN: u64 = 1 << 20;
const END: i32 = -(1 << 20);

/// Adds 1 to each of two words; if `AGAIN` is [`END`], with an operation begun in the first
/// meanwhile. Returns how much of it one sequence did.
fn put_into_both<const AGAIN: i32>(first: &Gated, second: &Gated) -> u32 {
    let begun = u64::from(AGAIN.unsigned_abs());
    let made = Gated::step_both_delayed::<DELAY, AGAIN>(
        [first, second],
        |word| Some(word + begun + 1),
        |word| Some(word + 1),
    );
    let step = |word: &Gated, delta: u64| {
        let stepped = word.step(|word| Some(word.wrapping_add(delta)));
        assert!(stepped.is_ok());
    };
    if made < 1 {
        step(first, begun + 1);
    }
    if made < 2 {
        step(second, 1);
    }
    if made < 3 && begun > 0 {
        step(first, begun.wrapping_neg());
    }
    made
}

// Goal: a sequence of several additions says how far it came before it was interrupted, so that
// each is made once, also beside steps from other CPUs. Method: threads that spend most of their
// time between two of the additions, and complete what was begun; a thief empties the words. The
// sums are those put in, no operation is left begun, and each way to be interrupted was seen.
#[test]
fn a_sequence_says_how_far_it_came() {
    in_all_ways::<4, END>();
    in_all_ways::<3, 0>();
}

fn in_all_ways<const WAYS: usize, const AGAIN: i32>() {
    let made: [AtomicU64; WAYS] = std::array::from_fn(|_| AtomicU64::new(0));
    for () in attempts() {
        let Some((gates, words)) = this_machine() else {
            return;
        };
        let seconds = words_of(gates);
        let from_second = AtomicU64::new(0);
        let amount = |word: u64| word & (BEGUN - 1);
        let take_from = |words: &[CachePadded<Gated>]| -> u64 {
            let emptied = |word: u64| (amount(word) > 0).then_some(word - amount(word));
            let taken = words.iter().filter_map(|word| word.step(emptied).ok());
            taken.map(amount).sum()
        };
        let take = || {
            // Relaxed: read once all threads have ended.
            from_second.fetch_add(take_from(&seconds), Ordering::Relaxed);
            take_from(&words)
        };
        let put = || {
            let here = gates.here();
            let count = put_into_both::<AGAIN>(&words[here], &seconds[here]);
            // Relaxed: as above.
            made[count as usize].fetch_add(1, Ordering::Relaxed);
        };
        let (put, found) = put_among_by(&words, take, put);
        assert_eq!(found, put, "no operation is left begun either");
        from_second.fetch_add(take_from(&seconds), Ordering::Relaxed);
        assert_eq!(from_second.load(Ordering::Relaxed), put);
        if made.iter().all(|count| count.load(Ordering::Relaxed) > 0) {
            return;
        }
    }
    panic!("a sequence ended in none of its ways: {made:?}");
}

// Goal: of two words both are stepped or none, where either refuses, belongs to another CPU, has
// its gate up, or holds what is to be added.
#[test]
fn both_words_are_stepped_or_none() {
    let Some((gates, words)) = this_machine() else {
        return;
    };
    let seconds = words_of(gates);
    let plus = |word| Some(word + 1);
    let cpus = allowed_cpus();
    let here = cpus[0];
    let (first, second) = (&*words[here.index()], &*seconds[here.index()]);
    // From 1, adding 1 is not possible in this way.
    for word in [first, second] {
        assert_eq!(word.step(|_| Some(1000)), Ok(0));
    }
    let both = |first, second| {
        let step = || Gated::try_step_both::<0>([first, second], plus, plus);
        run_on(here, || (0..1000).map(|_| step()).max())
    };
    assert_eq!(both(first, second), Some(2));
    let before = [first.load(), second.load()];
    assert!(before[0] > 1900, "interrupted rarely: {before:?}");
    let refusing = Gated::try_step_both::<0>([first, second], plus, |_| None);
    let refused = Gated::try_step_both::<0>([first, second], |_| None, plus);
    let twice = |word| Some(2 * word);
    let double = || {
        let last = Gated::try_step_both::<1>([first, second], plus, twice);
        last + Gated::try_step_both::<0>([first, second], twice, plus)
    };
    let doubled = run_on(here, || (0..100).map(|_| double()).max());
    assert_eq!((refusing, refused, doubled), (0, 0, Some(0)));
    for gate in [first, second] {
        let raised = Raised::new(std::iter::once(gate));
        assert_eq!(both(first, second), Some(0));
        drop(raised);
    }
    if let Some(there) = cpus.get(1) {
        let afar = &*words[there.index()];
        assert_eq!(both(first, afar), Some(0));
        assert_eq!(both(afar, second), Some(0));
    }
    let extra = &*words[gates.nr_words() - 1];
    assert_eq!(both(first, extra), Some(0));
    assert_eq!(both(extra, second), Some(0));
    assert_eq!([first.load(), second.load()], before);
}

// Goal: that traffic detects a gate that stops no sequence. Method: the same, exchanging from any
// CPU, without gate or membarrier.
#[test]
fn the_same_traffic_finds_exchanges_without_a_gate() {
    for () in attempts() {
        let Some((gates, words)) = this_machine() else {
            return;
        };
        let ungated = || {
            words
                .iter()
                .filter_map(|word| word.exchange(&taken).ok())
                .sum()
        };
        let (put, found) = put_among(gates, &words, ungated);
        if found != put {
            return;
        }
    }
    panic!("no exchange ever met a sequence half-way");
}

// Goal: that traffic detects a gate that is raised without a membarrier. Method: as above, with the
// gate up during the exchange.
#[test]
fn the_same_traffic_finds_gates_without_a_membarrier() {
    for () in attempts() {
        let Some((gates, words)) = this_machine() else {
            return;
        };
        let unstopped = || {
            let take = |word: &Gated| {
                word.raise();
                let taken = word.exchange(&taken);
                word.lower();
                taken.ok()
            };
            each(&words).filter_map(take).sum()
        };
        let (put, found) = put_among(gates, &words, unstopped);
        if found != put {
            return;
        }
    }
    panic!("no exchange ever met a sequence half-way");
}

// Goal: while a gate is up its CPU still makes steps, also beside steps from other CPUs. Method:
// hold it up, and step from the own CPU, from others, and from a thread without rseq.
#[test]
fn a_raised_gate_stops_nobody() {
    let Some((gates, words)) = this_machine() else {
        return;
    };
    let add = |word: &Gated| word.step(|word| Some(word + 1)).is_ok();
    for cpu in allowed_cpus() {
        let word = &words[cpu.index()];
        let raised = Raised::new(std::iter::once(&**word));
        for stepper in allowed_cpus() {
            assert!(run_on(stepper, || add(word)));
        }
        let unregistered = run_unregistered(|| (add(word), gates.here()));
        if let Some((is_added, here)) = unregistered {
            assert!(is_added);
            assert_eq!(here, gates.nr_words() - 1, "the extra word");
        }
        drop(raised);
        assert!(run_on(cpu, || word.step_near(&|_| Some(0)).is_some()));
        for other in allowed_cpus().into_iter().filter(|other| *other != cpu) {
            let near = run_on(other, || word.step_near(&|_| Some(7)));
            assert_eq!(near, None);
        }
        assert_eq!(word.load(), 0);
    }
}

// Symptom: a pass over the words of all CPUs raised gates, and interrupted those CPUs, for words
// from which there was nothing to take.
#[test]
fn a_step_that_refuses_needs_no_gate_on_any_cpu() {
    let Some((_gates, words)) = this_machine() else {
        return;
    };
    for cpu in allowed_cpus() {
        let word = &words[cpu.index()];
        for other in allowed_cpus() {
            let refused = run_on(other, || word.step_near(&taken));
            assert_eq!(refused, Some(Err(0)), "of {cpu}, on {other}");
        }
    }
}

// Goal: a refused step changes nothing and returns the value it saw; a step returns the value
// before. Both regimes, own words and the extra one.
#[test]
fn a_step_tells_what_was_before() {
    for regime in [Regime::Restartable, Regime::Atomic] {
        let gates = Gates::new(regime, Topology::detect().nr_cpus());
        for word in words_of(gates) {
            assert_eq!(word.step(|word| word.checked_sub(1)), Err(0));
            assert_eq!(word.step(|word| Some(word + 5)), Ok(0));
            assert_eq!(word.step_fenced(|word| Some(word * 2)), Ok(5));
            assert_eq!(word.step(|_| None), Err(10));
            assert_eq!(word.load(), 10);
        }
    }
}
