//! A list of a pool against a list of numbers: the two agree at every step.

use super::policy_tests::{Fixed, Machine};
use super::tests::{CPU, ORDINARY, assert_conserved, list, pool_of, tunables};
use crate::frame::{AutoTuned, FramePool, PcpPolicy, PoolConfig};
use crate::memmap::{Block, Frame};
use crate::units::Order;

/// Frames in the parts of one list: singles, orders 1 to 3, huge blocks.
#[derive(Debug, Default)]
struct Parts([u32; 5]);

impl Parts {
    fn at(order: Order) -> usize {
        match order {
            Order::HUGE => 4,
            _ => usize::from(order.get()),
        }
    }

    /// Takes at least `count` frames as a drain does; returns how many.
    fn drain(&mut self, count: u32, first: Order) -> u32 {
        let sizes = [1, 2, 4, 8, 512];
        let mut taken = 0;
        for step in 0..5 {
            let at = (Self::at(first) + step) % 5;
            while taken < count && self.0[at] > 0 {
                self.0[at] -= sizes[at];
                taken += sizes[at];
            }
        }
        taken
    }
}

/// Holds frames and blocks allocated from a pool of one CPU, and repeats each step on the machine.
struct Twins<'a> {
    pool: &'a FramePool,
    machine: Machine,
    parts: Parts,
    frames: Vec<Frame>,
    blocks: Vec<Block>,
}

impl Twins<'_> {
    fn alloc(&mut self, order: Order) {
        let at = Parts::at(order);
        let moved = self.machine.alloc(order, self.parts.0[at]);
        self.parts.0[at] += moved.refilled;
        self.parts.0[at] -= 1 << order.get();
        match order {
            Order::ZERO => self
                .frames
                .push(self.pool.at(CPU).alloc_with(ORDINARY).expect("frames")),
            _ => {
                let block = self.pool.at(CPU).alloc_block(order, ORDINARY);
                self.blocks.push(block.expect("blocks"));
            }
        }
    }

    fn free_frame(&mut self) {
        if let Some(frame) = self.frames.pop() {
            self.pool.at(CPU).free(frame);
            self.freed(Order::ZERO);
        }
    }

    fn free_block(&mut self, random: &mut fastrand::Rng) {
        let block = self.blocks.swap_remove(random.usize(..self.blocks.len()));
        let order = block.order();
        self.pool.at(CPU).free_block(block);
        self.freed(order);
    }

    fn freed(&mut self, order: Order) {
        self.parts.0[Parts::at(order)] += 1 << order.get();
        let moved = self.machine.free(order);
        let taken = self.parts.drain(moved.drained, order);
        // A drain takes whole blocks.
        self.machine.used.count -= taken - moved.drained;
    }

    fn decay(&mut self) {
        let drained = self.machine.decay();
        let taken = self.parts.drain(drained, Order::ZERO);
        self.machine.used.count -= taken - drained;
        self.pool.decay_tick();
    }

    fn assert_equal(&self, step: usize) {
        let (info, machine) = (list(self.pool), &self.machine);
        let seen = (info.count, info.high, info.free_run, info.grow);
        let used = machine.used;
        let expected = (
            used.count,
            machine.list.high,
            used.free_run,
            used.grow.into(),
        );
        assert_eq!(
            seen, expected,
            "step {step}: {:?} {:?}",
            self.parts, machine.rules
        );
    }
}

#[test]
fn a_list_does_what_the_rules_say_to_the_frame() {
    // Goal: no rule is lost between the arithmetic and a stack that counts in one word: marks,
    // halvings and limits that pushes do not check. Method: random bursts on a pool of one CPU and
    // on a machine of numbers beside it; after each step both have the same count, high, run and
    // growth, however frames drain.
    let mut random = crate::seed::rng(41);
    let lives: [(&dyn PcpPolicy, i64); 3] = [(&AutoTuned, 5), (&AutoTuned, 0), (&Fixed, 3)];
    for (policy, scale) in lives {
        let config = PoolConfig {
            policy,
            tunables: tunables(scale, 0),
            ..PoolConfig::new(1)
        };
        let pool = pool_of(100_000, config);
        let mut twins = Twins {
            machine: Machine::new(pool.lists.lock(CPU).rules()),
            pool: &pool,
            parts: Parts::default(),
            frames: Vec::new(),
            blocks: Vec::new(),
        };
        let mut reclaiming = None;
        for burst in 0..600 {
            match random.u8(..12) {
                0 => twins.decay(),
                1 => {
                    reclaiming = match reclaiming.take() {
                        None => Some(pool.reclaiming()),
                        Some(_) => None,
                    };
                    twins.machine.shortage.reclaim_active = reclaiming.is_some();
                }
                _ => (),
            }
            let (frees, blocks) = (random.bool(), random.u8(..4));
            let most = 1 << random.u8(..9);
            for _ in 0..random.u32(..most) {
                let is_block = random.u8(..8) < blocks;
                if frees && is_block && !twins.blocks.is_empty() {
                    twins.free_block(&mut random);
                } else if frees {
                    twins.free_frame();
                } else if twins.frames.len() + 8 * twins.blocks.len() < 60_000 {
                    let small = Order::new(random.u8(1..=3)).expect("in range");
                    let order = if random.u8(..50) == 0 {
                        Order::HUGE
                    } else {
                        small
                    };
                    twins.alloc(if is_block { order } else { Order::ZERO });
                }
                twins.assert_equal(burst);
            }
        }
        drop(reclaiming);
        twins
            .frames
            .drain(..)
            .for_each(|frame| pool.at(CPU).free(frame));
        twins
            .blocks
            .drain(..)
            .for_each(|block| pool.at(CPU).free_block(block));
        assert_conserved(&pool);
    }
}
