//! Promise: a pool keeps the same total as DataFusion's `GreedyMemoryPool`, to the byte, and grants
//! and refuses the same calls; but for calls that ask for nothing, which it refuses while it is
//! above its size.

use std::sync::Arc;

use datafusion_execution::memory_pool::{
    GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation,
};
use highwater_datafusion::HighwaterPool;

/// One of each pool, and pairs of reservations which were treated alike.
struct Pair {
    pools: [Arc<dyn MemoryPool>; 2],
    reservations: Vec<[MemoryReservation; 2]>,
    random: fastrand::Rng,
}

impl Pair {
    fn new(limit: usize, seed: u64) -> Self {
        Self {
            pools: [
                Arc::new(HighwaterPool::standalone(limit)),
                Arc::new(GreedyMemoryPool::new(limit)),
            ],
            reservations: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    fn register(&mut self) {
        let can_spill = self.random.bool();
        let register = |pool| {
            let consumer = MemoryConsumer::new("any").with_can_spill(can_spill);
            consumer.register(pool)
        };
        self.reservations.push(self.pools.each_ref().map(register));
    }

    /// Does the same to a reservation of each; returns what was done.
    fn step(&mut self, limit: usize) -> String {
        if self.reservations.is_empty() || self.random.u32(..12) == 0 {
            self.register();
            return "register".into();
        }
        let nth = self.random.usize(..self.reservations.len());
        let pair = &mut self.reservations[nth];
        let (size, bytes) = (pair[0].size(), self.random.usize(1..=limit / 4));
        match self.random.u32(..11) {
            0..4 => {
                let [ours, theirs] = pair.each_ref().map(|it| it.try_grow(bytes).is_ok());
                assert_eq!(ours, theirs, "try_grow({bytes}) at {}", self.pools[0]);
            }
            4 => pair.iter().for_each(|it| it.grow(bytes / 8)),
            5 => pair.iter().for_each(|it| it.shrink(bytes.min(size))),
            6 => {
                let split = pair.each_ref().map(|it| it.split(bytes.min(size)));
                self.reservations.push(split);
            }
            7 => {
                let taken = pair.each_mut().map(|it| it.take());
                self.reservations.push(taken);
            }
            8 => {
                let empty = pair.each_ref().map(|it| it.new_empty());
                self.reservations.push(empty);
            }
            9 => {
                let [ours, theirs] = pair.each_ref().map(|it| it.try_resize(bytes).is_ok());
                assert_eq!(ours, theirs, "try_resize({bytes})");
            }
            _ => drop(self.reservations.swap_remove(nth)),
        }
        format!("reservation {nth} of {size} with {bytes}")
    }

    fn run(&mut self, limit: usize, steps: u32) {
        for _ in 0..steps {
            let step = self.step(limit);
            let [ours, theirs] = self.pools.each_ref().map(|pool| pool.reserved());
            assert_eq!(ours, theirs, "{step}");
        }
        self.reservations.clear();
        assert_eq!(self.pools[0].reserved(), 0);
    }
}

#[test]
fn agrees_with_greedy_to_the_byte() {
    for (nth, limit) in [20, 100, 1_000, 2_000, 200_000, 500_000, 1 << 20, 12_345_678]
        .into_iter()
        .enumerate()
    {
        for seed in 0..20 {
            Pair::new(limit, 100 * nth as u64 + seed).run(limit, 2_000);
        }
    }
}
