//! How many blocks of 2 MiB stay whole when groups come and go.
//!
//! Goal: a kind that needs no lock keeps no fewer of them than one buddy allocator does. Method:
//! the same random requests and frees in batches, from two CPUs in turn, and the blocks that are
//! whole, on average over the last part of the run. Random numbers decide which group goes, never
//! what is given, so that every kind sees the same load.

use super::*;

const FRAMES: u32 = 1 << 16;
const BATCH: usize = 63;
const GROUPS: usize = 18;

/// A pool and what its groups hold.
#[derive(Debug)]
struct Load {
    backend: Box<dyn Backend>,
    groups: Vec<Vec<Pfn>>,
    rng: fastrand::Rng,
}

impl Load {
    fn new(kind: BackendKind, seed: u64) -> Self {
        Self {
            backend: kind.build(FRAMES, 2),
            groups: vec![Vec::new(); GROUPS],
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    fn grow(&mut self, group: usize, batches: usize) {
        for batch in 0..batches {
            let mut out = [Pfn(0); BATCH];
            let near = CpuId::from_index((group + batch) % 2);
            let taken =
                self.backend
                    .alloc_bulk(near, Order::ZERO, Pages::ZERO, Wait::Allowed, &mut out);
            self.groups[group].extend(&out[..taken]);
        }
    }

    fn shrink(&mut self, group: usize, frames: usize) {
        let held = &mut self.groups[group];
        self.rng.shuffle(held);
        let mut going = held.split_off(held.len().saturating_sub(frames));
        for batch in going.chunks_mut(BATCH) {
            let near = CpuId::from_index(group % 2);
            self.backend
                .free_bulk(near, Order::ZERO, Wait::Allowed, batch);
        }
    }

    fn whole(&self) -> u64 {
        self.backend.nr_free_blocks(Order::HUGE)
    }
}

/// Puts a load on: how many blocks were whole, on average.
type Drive = fn(&mut Load) -> u64;

/// Groups grow beside each other until the pool is nearly full; then some exit, all at once each,
/// until three quarters of it are free.
fn exits(load: &mut Load) -> u64 {
    let mut whole = 0;
    for round in 0..130 {
        while load.backend.nr_free() > Pages(u64::from(FRAMES / 64)) {
            let (group, batches) = (load.rng.usize(..GROUPS), load.rng.usize(1..=4));
            load.grow(group, batches);
        }
        while load.backend.nr_free() < Pages(u64::from(FRAMES / 4 * 3)) {
            let leaver = load.rng.usize(..GROUPS);
            load.shrink(leaver, usize::MAX);
        }
        if round >= 30 {
            whole += load.whole();
        }
    }
    whole / 100
}

/// A pool that was nearly full, of which a quarter stays and is replaced frame by frame.
fn replacement(load: &mut Load) -> u64 {
    for turn in 0..15 * GROUPS {
        load.grow(turn % GROUPS, 3);
    }
    for group in 0..GROUPS {
        let held = load.groups[group].len();
        load.shrink(group, held - held / 4);
    }
    let mut whole = 0;
    for round in 0..12_000 {
        let group = load.rng.usize(..GROUPS);
        load.shrink(group, BATCH);
        load.grow(group, 1);
        if round >= 9000 && round % 10 == 0 {
            whole += load.whole();
        }
    }
    whole / 300
}

#[test]
fn no_kind_breaks_more_large_blocks_than_one_buddy_allocator() {
    let seed = seed::seed(7);
    let loads: [(&str, Drive); 2] = [("exits", exits), ("replacement", replacement)];
    for (name, drive) in loads {
        let whole = KINDS.map(|kind| {
            let mut load = Load::new(kind, seed);
            let whole = drive(&mut load);
            load.backend.check_invariants();
            whole
        });
        println!(
            "{name}: {KINDS:?} {whole:?} of {}",
            FRAMES >> Order::HUGE.get()
        );
        assert!(whole[3] >= whole[0], "{name}: {KINDS:?} {whole:?}");
    }
}
