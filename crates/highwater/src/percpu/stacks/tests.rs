//! Stacks against a model.

use std::collections::VecDeque;

use super::*;
use crate::memmap::FrameMemory;
use crate::sync::Rank;
use crate::units::{Pages, Pfn};

static LOCK: LockClass = LockClass::new("tested stacks", Rank::Pcp);

/// A token that cannot be made by others: its number, which its home disguises.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Coin(pub(super) u32);

impl Token for Coin {
    type Home = u32;

    fn into_raw(self, home: u32) -> u32 {
        self.0 ^ home
    }

    /// # Safety
    ///
    /// As [`Token::from_raw`]; nothing unsound can be done with a coin.
    unsafe fn from_raw(raw: u32, home: u32) -> Self {
        Self(raw ^ home)
    }
}

/// A tally that differs after each push and pop.
impl Tally for u32 {
    fn pushed(tally: u16, bound: u16) -> u64 {
        let pushed = tally.wrapping_mul(3) ^ bound;
        u64::from(pushed).wrapping_sub(tally.into())
    }

    fn popped(tally: u16) -> u64 {
        u64::from(tally / 2).wrapping_sub(tally.into())
    }
}

const HOME: u32 = 1 << 30;

pub(super) fn stacks_of(regime: Regime, nr_cpus: usize, capacity: u32) -> Stacks<Coin, u32> {
    Stacks::new(regime, nr_cpus, HOME, capacity, &LOCK, |cpu| cpu.0)
}

/// The expected content of one stack.
#[derive(Default)]
struct Model {
    coins: VecDeque<u32>,
    tally: u16,
    limit: usize,
    bound: u16,
}

impl Model {
    fn pop(&mut self) -> Option<Coin> {
        let coin = self.coins.pop_back().map(Coin)?;
        self.step(u32::popped(self.tally));
        Some(coin)
    }

    fn push(&mut self, coin: u32, limit: usize) -> bool {
        let is_pushed = self.coins.len() < limit;
        if is_pushed {
            self.coins.push_back(coin);
            self.step(u32::pushed(self.tally, self.bound));
        }
        is_pushed
    }

    fn step(&mut self, step: u64) {
        let stepped = u64::from(self.tally).wrapping_add(step);
        self.tally = u16::try_from(stepped).expect("a step stays in the tally");
    }

    fn check(&self, header: Header) {
        assert_eq!(header.len() as usize, self.coins.len());
        assert_eq!(header.tally(), self.tally);
    }
}

const CAPACITY: u32 = 16;

/// One step on the stack of `cpu`, which is the model `model`.
fn step(random: &mut fastrand::Rng, stacks: &Stacks<Coin, u32>, cpu: CpuId, model: &mut Model) {
    let coin = random.u32(..1000);
    match random.u8(..10) {
        0..3 => assert_eq!(stacks.pop_on(cpu), model.pop()),
        3..6 => {
            let pushed = stacks.push_on(cpu, Coin(coin));
            let is_pushed = model.push(coin, model.limit);
            assert_eq!(pushed, if is_pushed { Ok(()) } else { Err(Coin(coin)) });
        }
        6 => {
            let mut locked = stacks.try_lock_on(cpu).expect("the lock is free");
            assert_eq!((*locked, locked.cpu()), (cpu.0, cpu));
            assert!(stacks.try_lock_on(cpu).is_none(), "it is held");
            assert_eq!(stacks.pop_on(cpu), None);
            assert_eq!(stacks.push_on(cpu, Coin(coin)), Err(Coin(coin)));
            model.tally = random.u16(..);
            locked.set_tally(model.tally);
            (model.limit, model.bound) = (random.usize(..20), random.u16(..));
            let limit = u32::try_from(model.limit).expect("a small number");
            locked.set_limits(limit, model.bound);
            model.limit = model.limit.min(CAPACITY as usize);
            assert_eq!(locked.stack.limit() as usize, model.limit);
        }
        7 => {
            let mut locked = stacks.lock_on(cpu);
            let is_pushed = model.push(coin, CAPACITY as usize);
            assert_eq!(locked.push(Coin(coin)).is_ok(), is_pushed);
            assert_eq!(locked.pop(), model.pop());
        }
        8 => {
            let more: Vec<u32> = (0..random.u32(..10)).collect();
            let mut coins: Vec<Coin> = more.iter().copied().map(Coin).collect();
            let count = stacks.lock_on(cpu).push_all(&mut coins, u32::MAX) as usize;
            assert_eq!(count, more.len().min(CAPACITY as usize - model.coins.len()));
            assert_eq!(coins.len(), more.len() - count);
            model.coins.extend(&more[..count]);
        }
        _ => {
            let (count, mut out) = (random.u32(..6), vec![Coin(7)]);
            let taken = stacks.lock_on(cpu).take_oldest(count, &mut out) as usize;
            assert_eq!(taken, model.coins.len().min(count as usize));
            let oldest: Vec<Coin> = model.coins.drain(..taken).map(Coin).collect();
            assert_eq!(out[1..], oldest);
        }
    }
    model.check(stacks.probe(cpu));
}

// Goal: each operation has its documented effect, and none on other stacks. Method: random
// operations on small stacks, which run full and empty, against queues.
#[test]
fn stacks_do_as_the_model() {
    let mut random = crate::seed::rng(11);
    let stacks = stacks_of(Regime::Atomic, 3, CAPACITY);
    assert_eq!(stacks.regime(), Regime::Atomic);
    assert_eq!(
        stacks.try_lock().map(|locked| locked.cpu()),
        Some(stacks.here())
    );
    let mut models: Vec<Model> = stacks.cpus().map(|_| Model::default()).collect();
    for model in &mut models {
        model.limit = CAPACITY as usize;
    }
    for _ in 0..30_000 {
        let cpu = random.usize(..models.len());
        step(
            &mut random,
            &stacks,
            CpuId::from_index(cpu),
            &mut models[cpu],
        );
        if random.u16(..) < 50 {
            stacks.refuse_pushes();
            models.iter_mut().for_each(|model| model.limit = 0);
        }
    }
}

// Goal: frames are tokens, of one memory. Method: the same frame in and out, and one of another
// memory.
#[test]
fn frames_keep_their_right_in_a_stack() {
    let memories = [(); 2].map(|()| FrameMemory::new(Pages(4)).unwrap());
    let home = memories[0].id();
    let stacks = Stacks::new(Regime::Atomic, 1, home, 4, &LOCK, |_| 0_u32);
    stacks.push(memories[0].claim(Pfn(3))).unwrap();
    assert_eq!(memories[0].count_free(), Pages(3), "owned by the stack");
    let mut frame = stacks.pop().unwrap();
    memories[0].bytes_mut(&mut frame)[0] = 1;
    memories[0].surrender(frame);
    let foreign = memories[1].claim(Pfn(3));
    let push = std::panic::AssertUnwindSafe(|| stacks.push(foreign).is_ok());
    assert!(std::panic::catch_unwind(push).is_err());
    assert_eq!(stacks.probe(CpuId(0)).len(), 0);
}
