//! Models: every interleaving of pushes, pops and locks on one CPU and from another, on the model
//! checker's CPUs.

use ::loom::model;

use super::*;
use crate::percpu::model::run_on;
use crate::sync::{Arc, Rank};

static LOCK: LockClass = LockClass::new("a model's stacks", Rank::Pcp);

const C0: CpuId = CpuId(0);
const C1: CpuId = CpuId(1);

/// A token that is its number.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Coin(u32);

impl Token for Coin {
    type Home = ();

    fn into_raw(self, (): ()) -> u32 {
        self.0
    }

    /// # Safety
    ///
    /// As [`Token::from_raw`]; nothing unsound can be done with a coin.
    unsafe fn from_raw(raw: u32, (): ()) -> Self {
        Self(raw)
    }
}

impl Tally for u32 {
    fn pushed(_: u16, _: u16) -> u64 {
        1
    }

    fn popped(_: u16) -> u64 {
        0
    }
}

type Shared = Stacks<Coin, u32>;

/// A part of a test: a thread is given a coin, and returns the coins that it has in the end.
type Part = fn(&Shared, Coin) -> Vec<Coin>;

/// Runs the parts concurrently, with two coins on the stack of C0 that no part was given; in the
/// end each coin is in one place. Each part goes first once, which makes the search more complete.
fn at_once<const N: usize>(regime: Regime, parts: [Part; N]) {
    for first in 0..N {
        model(move || {
            let stacks = Stacks::new(regime, 2, (), 4, &LOCK, |_| 0);
            let shared: Arc<Shared> = Arc::new(stacks);
            let mut locked = shared.lock_on(C0);
            assert_eq!(locked.push_all(&mut vec![Coin(10), Coin(11)], u32::MAX), 2);
            drop(locked);
            let others = (1..N).map(|offset| {
                let part = (first + offset) % N;
                let shared = Arc::clone(&shared);
                thread::spawn(move || parts[part](&shared, Coin(u32::try_from(part).expect("few"))))
            });
            let others: Vec<_> = others.collect();
            let mut coins = parts[first](&shared, Coin(u32::try_from(first).expect("few")));
            for other in others {
                coins.extend(other.join().expect("the model's thread ends"));
            }
            for cpu in shared.cpus() {
                shared.lock_on(cpu).take_oldest(9, &mut coins);
            }
            coins.sort();
            let all = (0..u32::try_from(N).expect("few")).chain([10, 11]);
            assert!(coins.iter().map(|coin| coin.0).eq(all), "{coins:?}");
        });
    }
}

fn push(stacks: &Shared, coin: Coin) -> Vec<Coin> {
    run_on(C0);
    stacks.push(coin).err().into_iter().collect()
}

fn pop(stacks: &Shared, coin: Coin) -> Vec<Coin> {
    run_on(C0);
    stacks.pop().into_iter().chain([coin]).collect()
}

/// Like a thread that continues on another CPU with the lock, and then drains and fills.
fn lock_near(stacks: &Shared, coin: Coin) -> Vec<Coin> {
    run_on(C0);
    let Some(mut locked) = stacks.try_lock() else {
        return vec![coin];
    };
    run_on(C1);
    // The state in the lock is the holder's alone.
    *locked += 1;
    let mut coins = vec![coin];
    let header = locked.header();
    assert_eq!(locked.take_oldest(1, &mut coins), header.len().min(1));
    if let Some(coin) = coins.pop() {
        coins.extend(locked.push(coin).err());
    }
    coins
}

fn lock_from_afar(stacks: &Shared, coin: Coin) -> Vec<Coin> {
    run_on(C1);
    let mut locked = stacks.lock_on(C0);
    *locked += 1;
    let mut coins = vec![coin];
    locked.take_oldest(2, &mut coins);
    coins.rotate_left(1);
    if let Some(coin) = coins.pop() {
        coins.extend(locked.push(coin).err());
    }
    coins
}

fn try_lock_from_afar(stacks: &Shared, coin: Coin) -> Vec<Coin> {
    run_on(C1);
    let locked = stacks.try_lock_on(C0);
    let mut coins = vec![coin];
    locked.map(|mut locked| locked.push_all(&mut coins, u32::MAX));
    coins
}

// Goal: a push or a pop, and a lock from afar, take turns.
#[test]
fn sequences_and_a_lock_from_afar_take_turns() {
    at_once(Regime::Restartable, [push, lock_from_afar]);
    at_once(Regime::Restartable, [pop, lock_from_afar]);
}

// Goal: a push or a pop, and a lock of the same CPU whose holder moves away, take turns.
#[test]
fn sequences_and_a_near_lock_take_turns() {
    at_once(Regime::Restartable, [push, lock_near]);
    at_once(Regime::Restartable, [pop, lock_near]);
}

// Goal: two that push and pop on one CPU, one interrupting the other, and a lock from afar.
#[test]
fn two_of_one_cpu_and_one_from_afar_take_turns() {
    at_once(Regime::Restartable, [push, pop, lock_from_afar]);
}

// Goal: two locks exclude each other, near and far, waiting and not, beside a push.
#[test]
fn near_and_far_locks_take_turns() {
    at_once(Regime::Restartable, [push, lock_near, lock_from_afar]);
    at_once(Regime::Restartable, [lock_near, try_lock_from_afar]);
}

// Goal: the same in the atomic regime, and for threads that run on no known CPU.
#[test]
fn without_sequences_they_take_turns() {
    fn push_on(stacks: &Shared, coin: Coin) -> Vec<Coin> {
        stacks.push_on(C0, coin).err().into_iter().collect()
    }
    fn pop_on(stacks: &Shared, coin: Coin) -> Vec<Coin> {
        stacks.pop_on(C0).into_iter().chain([coin]).collect()
    }
    fn push_unregistered(stacks: &Shared, coin: Coin) -> Vec<Coin> {
        stacks.push(coin).err().into_iter().collect()
    }
    fn pop_unregistered(stacks: &Shared, coin: Coin) -> Vec<Coin> {
        stacks.pop().into_iter().chain([coin]).collect()
    }
    at_once(Regime::Atomic, [push_on, lock_from_afar]);
    at_once(Regime::Atomic, [pop_on, lock_from_afar]);
    at_once(Regime::Restartable, [push_unregistered, pop_unregistered]);
}
