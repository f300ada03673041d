//! Models: every interleaving of steps on the own CPU and from other CPUs, on the model checker's
//! CPUs.

use ::loom::model;

use super::*;
use crate::percpu::model::run_on;
use crate::sync::{Arc, StatCell, thread};

const C0: CpuId = CpuId(0);
const C1: CpuId = CpuId(1);

/// A part of a test, which returns how much it has put into the word, net.
type Part = fn(&Gated) -> i64;

/// Runs the parts concurrently; in the end the word holds the sum that they put there. Each goes
/// first once, which makes the search more complete.
fn at_once<const N: usize>(parts: [Part; N]) {
    for first in 0..N {
        model(move || {
            let shared = Arc::new(Gates::new(Regime::Restartable, 2).word(0, 5));
            let others = (1..N).map(|offset| {
                let (shared, part) = (Arc::clone(&shared), parts[(first + offset) % N]);
                thread::spawn(move || part(&shared))
            });
            let others: Vec<_> = others.collect();
            let mut sum = 5 + parts[first](&shared);
            for other in others {
                sum += other.join().expect("the model's thread ends");
            }
            let word = shared.load();
            assert_eq!(i64::try_from(word).expect("a small number"), sum);
        });
    }
}

fn put(word: &Gated, cpu: CpuId) -> i64 {
    run_on(cpu);
    let stepped = word.step(|word| Some(word + 1));
    i64::from(stepped.is_ok())
}

fn take(word: &Gated, cpu: CpuId) -> i64 {
    run_on(cpu);
    let taken = word.step(|word| (word > 0).then_some(0));
    -i64::try_from(taken.unwrap_or(0)).expect("a small number")
}

fn take_in_a_batch(word: &Gated) -> i64 {
    run_on(C1);
    let raised = Raised::new(std::iter::once(word));
    let taken = raised.words().map(|open| open.step(&|_| Some(0)));
    -taken
        .map(|taken| i64::try_from(taken.unwrap_or(0)).expect("a small number"))
        .sum::<i64>()
}

// Goal: a step from afar and one on the own CPU take turns.
#[test]
fn own_and_far_steps_take_turns() {
    at_once([|word| put(word, C0), |word| take(word, C1)]);
    at_once([|word| put(word, C0) + put(word, C0), take_in_a_batch]);
}

// Goal: two of one CPU, and a third from afar, take turns.
#[test]
fn two_of_one_cpu_and_one_from_afar_take_turns() {
    at_once([
        |word| put(word, C0),
        |word| take(word, C0),
        |word| take(word, C1),
    ]);
}

// Goal: two from afar, whose gates overlap, and one on the own CPU take turns.
#[test]
fn two_from_afar_take_turns() {
    at_once([|word| put(word, C0), |word| take(word, C1), take_in_a_batch]);
}

/// How often one sequence made none to three of its additions, in all runs of a model.
type Made = [StatCell; 4];

static MADE_WITH_END: Made = [const { StatCell::new() }; 4];
static MADE: Made = [const { StatCell::new() }; 4];

const END: i32 = -(1 << 20);

/// As of one operation: 1 put into each word; if `AGAIN` is [`END`], begun in the first meanwhile.
fn put_into_both<const AGAIN: i32>(words: &[Gated; 2], made: &Made) {
    let begun = u64::from(AGAIN.unsigned_abs());
    run_on(C0);
    let plus = |delta: u64| move |word: u64| Some(word.wrapping_add(delta));
    let both = [&words[0], &words[1]];
    let count = Gated::try_step_both::<AGAIN>(both, plus(begun + 1), plus(1)) as usize;
    made[count].add(1);
    let steps = [(0, begun + 1), (1, 1), (0, begun.wrapping_neg())];
    for (word, delta) in steps.into_iter().skip(count) {
        assert!(words[word].step(plus(delta)).is_ok());
    }
}

/// Models it beside another of its CPU, and beside steps from afar; all `ways` to end are seen.
fn in_all_ways<const AGAIN: i32>(made: &'static Made, ways: usize) {
    for is_own in [true, false] {
        model(move || {
            let gates = Gates::new(Regime::Restartable, 2);
            let words = Arc::new([gates.word(0, 5), gates.word(0, 5)]);
            let others = Arc::clone(&words);
            let other = thread::spawn(move || match is_own {
                true => {
                    put_into_both::<AGAIN>(&others, made);
                    (1, 1)
                }
                false => (take(&others[0], C1), take(&others[1], C1)),
            });
            put_into_both::<AGAIN>(&words, made);
            let (first, second) = other.join().expect("the model's thread ends");
            let now = [&words[0], &words[1]].map(|word| word.load().cast_signed());
            assert_eq!(now, [6 + first, 6 + second]);
        });
    }
    let made = made.each_ref().map(StatCell::get);
    assert!(made[..ways].iter().all(|count| *count > 0), "{made:?}");
}

// Goal: a sequence of several additions takes turns with others of its CPU and with steps from
// afar, and says how far it came. Method: the sums in both words, and that each way to end was seen
// in some run.
#[test]
fn a_sequence_says_how_far_it_came() {
    in_all_ways::<END>(&MADE_WITH_END, 4);
    in_all_ways::<0>(&MADE, 3);
}

// Goal: plain additions and a step from afar take turns, and nothing is added behind the back of
// the thread that leaves the gate up. Method: the value at which a word is closed under its gate is
// the sum of all additions that were made, whenever the adder tried.
#[test]
fn nothing_is_added_once_a_gate_is_left_up() {
    model(|| {
        let gates = Gates::new(Regime::Restartable, 2);
        let word = |index| CachePadded::new(gates.word(index, 0));
        let words = Arc::new([word(0), word(1)]);
        let others = Arc::clone(&words);
        let adder = thread::spawn(move || {
            run_on(C0);
            let added = (0..2).filter(|_| gates.try_add(&others[..], 2));
            2 * added.count() as u64
        });
        run_on(C1);
        let raised = Raised::new(words.iter().map(|word| &**word));
        let closed = raised.words().map(|open| open.step(&|word| Some(word | 1)));
        let closed: Vec<_> = closed.collect();
        raised.leave_up();
        let added = adder.join().expect("the model's thread ends");
        assert_eq!(closed, [Ok(added), Ok(0)]);
        assert_eq!(words[0].load(), added | 1);
    });
}

// Goal: a thread that steps with a fence and then loads, and one that stores, makes a membarrier
// and then reads the word, do not both miss.
#[test]
fn a_fenced_step_is_not_missed() {
    model(|| {
        let gates = Gates::new(Regime::Restartable, 2);
        let shared = Arc::new((gates.word(0, 0), AtomicU64::new(0)));
        let other = Arc::clone(&shared);
        let other = thread::spawn(move || {
            run_on(C0);
            let stepped = other.0.step_fenced(|_| Some(1));
            assert_eq!(stepped, Ok(0));
            // Pairs with the addition below; SeqCst, as it decides which of the two misses.
            other.1.load(Ordering::SeqCst)
        });
        // Pairs with the load above.
        shared.1.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence of the step.
        fence(Ordering::SeqCst);
        let seen = shared.0.load();
        let told = other.join().expect("the model's thread ends");
        assert!(seen == 1 || told == 1, "both missed");
    });
}

// Goal: a word that two threads of one CPU give to that CPU takes turns like any other. Method:
// each gives it and steps it; a third thread, from afar, takes from it once it was published.
#[test]
fn a_word_is_given_once() {
    for first in [C0, C1] {
        model(move || {
            let word = Gates::new(Regime::Restartable, 2).word_to_give(0);
            let shared = Arc::new((word, AtomicU64::new(0)));
            let give = |shared: &(Gated, AtomicU64)| {
                run_on(C0);
                shared.0.give(0);
                // Pairs with the load below; publishes the word.
                shared.1.store(1, Ordering::SeqCst);
                put(&shared.0, C0)
            };
            let take = |shared: &(Gated, AtomicU64)| match shared.1.load(Ordering::SeqCst) {
                0 => 0,
                _ => take(&shared.0, C1),
            };
            let (one, two) = (Arc::clone(&shared), Arc::clone(&shared));
            let one = thread::spawn(move || give(&one));
            let two = thread::spawn(move || match first {
                C0 => take(&two),
                _ => give(&two),
            });
            let mine = if first == C0 {
                give(&shared)
            } else {
                take(&shared)
            };
            let others = [one, two].map(|other| other.join().expect("the model's thread ends"));
            let word = i64::try_from(shared.0.load()).expect("a small number");
            assert_eq!(word, mine + others.iter().sum::<i64>());
        });
    }
}
