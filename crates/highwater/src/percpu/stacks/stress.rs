//! Stress test: pushes and pops that are interrupted at the worst moments, beside locks from the
//! same and other CPUs.

use super::tests::{Coin, stacks_of};
use super::*;
use crate::memmap::sandbox::{SETAFFINITY, refuse_membarrier};
use crate::percpu::harness::{
    allowed_cpus, attempts, run_on, run_unregistered, skipped, while_moved_around,
};
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::topology::Topology;

/// Turns of the loops inside the sequences: most interruptions hit them then.
const DELAY: u32 = 3_000;

type Tested = Stacks<Coin, u32>;

fn this_machine(regime: Regime) -> Option<Tested> {
    let stacks = stacks_of(regime, Topology::detect().nr_cpus(), 256);
    if stacks.regime() != regime {
        skipped("no sequences here that other CPUs can restart");
        return None;
    }
    Some(stacks)
}

/// The coins that are in no stack. A coin that is put in or comes out twice, or never was, is
/// recorded.
struct Ledger {
    is_outside: Vec<AtomicBool>,
    is_broken: AtomicBool,
}

impl Ledger {
    fn of(coins: u32) -> Self {
        Self {
            is_outside: (0..coins).map(|_| AtomicBool::new(true)).collect(),
            is_broken: AtomicBool::new(false),
        }
    }

    fn goes_in(&self, coin: &Coin) {
        // Relaxed: a coin is handed on by the stacks, which order it, or the failure is recorded.
        let is_outside = self.is_outside.get(coin.0 as usize);
        if !is_outside.is_some_and(|is_outside| is_outside.swap(false, Ordering::Relaxed)) {
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }

    fn comes_out(&self, coin: &Coin) {
        // Relaxed: as above.
        let is_outside = self.is_outside.get(coin.0 as usize);
        if is_outside.is_none_or(|is_outside| is_outside.swap(true, Ordering::Relaxed)) {
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }

    fn put(&self, stacks: &Tested, coin: Coin) -> Option<Coin> {
        self.goes_in(&coin);
        let coin = stacks.push_delayed::<DELAY>(coin).err();
        coin.iter().for_each(|coin| self.comes_out(coin));
        coin
    }

    fn get(&self, stacks: &Tested) -> Option<Coin> {
        let coin = stacks.pop_delayed::<DELAY>();
        coin.iter().for_each(|coin| self.comes_out(coin));
        coin
    }
}

const COINS: u32 = 600;

/// Six threads that are migrated at random push and pop, one locks where it runs now and then, and
/// another locks one stack after the other by `lock`. Returns whether each coin is in one place
/// afterwards, and was all the time.
fn traffic<'a>(
    stacks: &'a Tested,
    lock: impl Fn(CpuId) -> Option<Locked<'a, Coin, u32>> + Sync,
) -> bool {
    const THREADS: u64 = 6;
    let seed = crate::seed::seed(3);
    let (ledger, is_over) = (Ledger::of(COINS), AtomicBool::new(false));
    let work = |index: u64| {
        let mut random = fastrand::Rng::with_seed(seed + index);
        let mut coins: Vec<_> = (0..COINS)
            .filter(|coin| u64::from(*coin) % THREADS == index)
            .map(Coin)
            .collect();
        for _ in 0..2_000 {
            match random.u8(..32) {
                0 => _ = stacks.try_lock().map(|locked| rotate(locked, &ledger)),
                1..17 => {
                    let refused = coins.pop().and_then(|coin| ledger.put(stacks, coin));
                    coins.extend(refused);
                }
                _ => coins.extend(ledger.get(stacks)),
            }
        }
        coins
            .into_iter()
            .for_each(|coin| _ = ledger.put(stacks, coin));
    };
    let has_panicked = thread::scope(|scope| {
        let thief = scope.spawn(|| {
            // Relaxed: ends the loop, and publishes nothing.
            while !is_over.load(Ordering::Relaxed) {
                for cpu in stacks.cpus() {
                    lock(cpu)
                        .into_iter()
                        .for_each(|locked| rotate(locked, &ledger));
                }
                thread::yield_now();
            }
        });
        let over = Over(&is_over);
        while_moved_around(THREADS, work);
        drop(over);
        // A lock that is none lets the stack change under the thief, which may not like it.
        thief.join().is_err()
    });
    for cpu in stacks.cpus() {
        let mut coins = Vec::new();
        stacks.lock_on(cpu).take_oldest(COINS, &mut coins);
        coins.iter().for_each(|coin| ledger.comes_out(coin));
    }
    // Every coin is outside again, or was refused in the end and never noted as in.
    let is_lost = ledger
        .is_outside
        .iter()
        .any(|is_outside| !is_outside.load(Ordering::Relaxed));
    !is_lost && !has_panicked && !ledger.is_broken.load(Ordering::Relaxed)
}

/// Ends the traffic when it is dropped, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        // Relaxed: ends a loop, and publishes nothing.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Takes the oldest out and puts them back on top.
fn rotate(mut locked: Locked<'_, Coin, u32>, ledger: &Ledger) {
    let mut coins = Vec::new();
    locked.take_oldest(9, &mut coins);
    coins.iter().for_each(|coin| ledger.comes_out(coin));
    coins.iter().for_each(|coin| ledger.goes_in(coin));
    locked.push_all(&mut coins, u32::MAX);
    coins.iter().for_each(|coin| ledger.comes_out(coin));
}

// Goal: a token is in one place, whatever the threads do. Method: traffic that spends most of its
// time inside the sequences, with a thread that locks every stack from any CPU, waiting or not.
#[test]
fn tokens_are_in_one_place() {
    for regime in [Regime::Restartable, Regime::Atomic] {
        let Some(stacks) = this_machine(regime) else {
            continue;
        };
        assert!(traffic(&stacks, |cpu| Some(stacks.lock_on(cpu))));
        assert!(traffic(&stacks, |cpu| stacks.try_lock_on(cpu)));
    }
}

// Goal: the same where membarrier is refused once the stacks are in use, and the thread that locks
// them visits their CPUs instead; where it may not, a lock from afar is refused and the stack goes
// on.
#[test]
fn tokens_are_in_one_place_without_membarrier() {
    let Some(stacks) = this_machine(Regime::Restartable) else {
        return;
    };
    let refused = OnceLock::new();
    assert!(traffic(&stacks, |cpu| {
        refused.get_or_init(|| refuse_membarrier(&[], libc::ENOSYS));
        Some(stacks.lock_on(cpu))
    }));
    let [here, there, ..] = allowed_cpus()[..] else {
        skipped("one CPU has no afar");
        return;
    };
    run_on(here, || {
        if refuse_membarrier(&[SETAFFINITY], libc::EPERM) {
            assert!(stacks.try_lock_on(there).is_none());
            let lock = std::panic::AssertUnwindSafe(|| drop(stacks.lock_on(there)));
            assert!(std::panic::catch_unwind(lock).is_err());
            drop(stacks.lock_on(here));
        }
    });
    run_on(there, || {
        retried(|| stacks.push(Coin(7)).ok());
        assert_eq!(retried(|| stacks.pop()), Coin(7));
    });
    drop(stacks.lock_on(there));
}

/// Returns whether that traffic finds, within a minute, a lock that does not exclude.
fn finds(lock: impl Fn(&Tested, CpuId) -> Option<Locked<'_, Coin, u32>> + Sync) -> bool {
    for () in attempts() {
        let Some(stacks) = this_machine(Regime::Restartable) else {
            return true;
        };
        if !traffic(&stacks, |cpu| lock(&stacks, cpu)) {
            return true;
        }
    }
    false
}

// Goal: that traffic finds a lock that raises no gate.
#[test]
fn the_same_traffic_finds_locks_without_a_gate() {
    assert!(finds(|stacks, cpu| {
        let state = stacks.states[cpu.index()].try_lock()?;
        Some(stacks.locked(cpu, state))
    }));
}

// Goal: that traffic detects a lock that raises the gate without a membarrier.
#[test]
fn the_same_traffic_finds_gates_without_a_membarrier() {
    assert!(finds(|stacks, cpu| {
        let state = stacks.states[cpu.index()].try_lock()?;
        stacks.stack(cpu).raise();
        Some(stacks.locked(cpu, state))
    }));
}

// Goal: each CPU has a stack of its own, and threads without rseq and on unknown CPUs have one; a
// lock from any CPU finds it, and makes it refuse pushes and pops. Method: threads pinned to each
// CPU, also beside stacks for one CPU.
#[test]
fn each_cpu_has_its_stack() {
    let Some(stacks) = this_machine(Regime::Restartable) else {
        return;
    };
    let extra = stacks.extra();
    assert_eq!(stacks.cpus().len(), extra.index() + 1);
    let round = |stacks: &Tested, cpu: CpuId| {
        assert_eq!(stacks.here(), cpu);
        retried(|| stacks.push(Coin(cpu.0)).ok());
        assert_eq!(stacks.probe(cpu).len(), 1);
        let locked = retried(|| stacks.try_lock());
        assert_eq!((locked.cpu(), *locked), (cpu, cpu.0));
        assert_eq!(stacks.pop(), None, "locked");
        assert!(stacks.try_lock().is_none() && stacks.try_lock_on(cpu).is_none());
        drop(locked);
        assert_eq!(retried(|| stacks.pop()), Coin(cpu.0));
        assert_eq!(stacks.pop(), None, "empty");
    };
    for cpu in allowed_cpus() {
        run_on(cpu, || round(&stacks, cpu));
        for other in allowed_cpus() {
            run_on(other, || drop(stacks.lock_on(cpu)));
        }
        run_on(cpu, || round(&stacks, cpu));
    }
    run_unregistered(|| round(&stacks, extra));
    let of_one = stacks_of(Regime::Restartable, 1, 256);
    for unknown in allowed_cpus().into_iter().filter(|cpu| cpu.0 > 0) {
        run_on(unknown, || round(&of_one, of_one.extra()));
    }
}

/// Returns the result of `work` once it was not interrupted.
fn retried<T>(work: impl Fn() -> Option<T>) -> T {
    (0..1000)
        .find_map(|_| work())
        .expect("interrupted 1,000 times")
}

// Goal: a sequence steps the header as `Header` does, and keeps the order of tokens. Method: random
// headers and limits, with the ring's ends anywhere in it; a push and a pop each.
#[test]
fn sequences_step_the_header_as_it_says() {
    let mut random = crate::seed::rng(17);
    let Some(stacks) = this_machine(Regime::Restartable) else {
        return;
    };
    let cpu = allowed_cpus()[0];
    run_on(cpu, || {
        for round in 0..5_000 {
            let mut locked = retried(|| stacks.try_lock());
            // The ends move on by as many as go in and out.
            locked.push_all(&mut (0..random.u32(..300)).map(Coin).collect(), u32::MAX);
            locked.take_oldest(random.u32(..300), &mut Vec::new());
            locked.set_tally(random.u16(..));
            let (limit, bound) = (random.u32(..300), random.u16(..));
            locked.set_limits(limit, bound);
            let (before, limit) = (locked.header(), locked.stack.limit());
            drop(locked);
            if before.len() < limit {
                let coin = 1000 + round;
                retried(|| stacks.push(Coin(coin)).ok());
                let step = u32::pushed(before.tally(), bound);
                let pushed = before.pushed(step);
                assert_eq!(stacks.probe(cpu), pushed);
                assert_eq!(retried(|| stacks.pop()), Coin(coin));
                let step = u32::popped(pushed.tally());
                assert_eq!(stacks.probe(cpu), pushed.popped(step));
            } else {
                assert_eq!(stacks.push(Coin(0)), Err(Coin(0)));
                assert_eq!(stacks.probe(cpu), before);
            }
            if before.len() > 0 {
                let before = stacks.probe(cpu);
                retried(|| stacks.pop());
                let step = u32::popped(before.tally());
                assert_eq!(stacks.probe(cpu), before.popped(step));
            }
        }
    });
}
