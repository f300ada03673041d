//! One test suite for every kind of back end, against a bitmap. The lab includes this file for
//! kinds of its own: the module above lists the kinds.

use std::collections::BTreeSet;

use super::*;

const CPU: CpuId = CpuId(0);
const NR_CPUS: usize = 3;

pub(super) fn order(order: u8) -> Order {
    Order::new(order).expect("an order in range")
}

pub(super) fn any_wait(rng: &mut fastrand::Rng) -> Wait {
    if rng.u8(..) < 60 {
        Wait::Never
    } else {
        Wait::Allowed
    }
}

/// Takes single frames, up to `count`, down to the floor.
pub(super) fn take(backend: &dyn Backend, count: usize, floor: u64) -> Vec<Pfn> {
    let mut out = vec![Pfn(u32::MAX); count];
    let taken = backend.alloc_bulk(CPU, Order::ZERO, Pages(floor), Wait::Allowed, &mut out);
    out.truncate(taken);
    out
}

/// The oracle: whether each frame is allocated.
struct Oracle {
    is_taken: Vec<bool>,
    nr_free: u64,
}

impl Oracle {
    fn new(nr_frames: u32) -> Self {
        Self {
            is_taken: vec![false; nr_frames as usize],
            nr_free: u64::from(nr_frames),
        }
    }

    fn mark_taken(&mut self, block: Pfn, order: Order) {
        self.turn::<true>(block, order);
        self.nr_free -= order.pages().0;
    }

    fn mark_free(&mut self, block: Pfn, order: Order) {
        self.turn::<false>(block, order);
        self.nr_free += order.pages().0;
    }

    fn turn<const TAKEN: bool>(&mut self, block: Pfn, order: Order) {
        let size = 1 << order.get();
        assert!(block.index().is_multiple_of(size), "{block} of {order:?}");
        let frames = &mut self.is_taken[block.index()..][..size];
        assert!(!frames.contains(&TAKEN), "{block} of {order:?}: {TAKEN}");
        frames.fill(TAKEN);
    }

    fn nr_free_blocks(&self, order: Order) -> u64 {
        let blocks = self.is_taken.chunks_exact(1 << order.get());
        blocks.map(|block| u64::from(!block.contains(&true))).sum()
    }

    /// Returns the largest blocks of free frames, as alignment allows.
    fn free_runs(&self) -> Vec<(Pfn, Order)> {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < self.is_taken.len() {
            let is_free = |order: &Order| {
                let end = at + (1 << order.get());
                at.is_multiple_of(1 << order.get())
                    && self
                        .is_taken
                        .get(at..end)
                        .is_some_and(|frames| !frames.contains(&true))
            };
            let run = Order::all().rev().find(is_free);
            runs.extend(run.map(|order| (Pfn::from_index(at), order)));
            at += run.map_or(1, |order| 1 << order.get());
        }
        runs
    }

    fn assert_agrees(&self, backend: &dyn Backend) {
        backend.check_invariants();
        assert_eq!(backend.nr_free(), Pages(self.nr_free));
        assert_eq!(backend.nr_deferred(), Pages::ZERO);
        assert_eq!(backend.free_runs(), self.free_runs(), "{backend:?}");
        for order in Order::all() {
            assert_eq!(
                backend.nr_free_blocks(order),
                self.nr_free_blocks(order),
                "{order:?}"
            );
        }
    }
}

/// Random requests of every order, floor and length, and random frees, checked one by one.
fn drive(kind: Kind, nr_frames: u32, rng: &mut fastrand::Rng, steps: usize) {
    let backend = kind.build(nr_frames, NR_CPUS);
    let mut oracle = Oracle::new(nr_frames);
    oracle.assert_agrees(&*backend);
    let mut held: Vec<(Order, Vec<Pfn>)> = Vec::new();
    for step in 0..steps {
        let cpu = CpuId(rng.u32(..7));
        if rng.u8(..) < 140 {
            let of = order(rng.u8(0..=10) * rng.u8(0..=1));
            let mut out = vec![Pfn(u32::MAX); rng.usize(..=150) >> of.get().min(6)];
            let floor = if rng.bool() { 0 } else { rng.u64(..300) };
            let above_floor = oracle.nr_free.saturating_sub(floor) >> of.get();
            let possible = oracle.nr_free_blocks(of).min(above_floor);
            let taken = backend.alloc_bulk(cpu, of, Pages(floor), any_wait(rng), &mut out);
            assert_eq!(
                taken as u64,
                possible.min(out.len() as u64),
                "{kind}, step {step}: {of:?} with a floor of {floor}"
            );
            out.truncate(taken);
            out.iter().for_each(|&block| oracle.mark_taken(block, of));
            held.push((of, out));
        } else if !held.is_empty() {
            let (of, mut blocks) = held.swap_remove(rng.usize(..held.len()));
            rng.shuffle(&mut blocks);
            let kept = blocks.split_off(blocks.len() - rng.usize(..=blocks.len()));
            blocks.iter().for_each(|&block| oracle.mark_free(block, of));
            backend.free_bulk(cpu, of, any_wait(rng), &mut blocks);
            held.push((of, kept));
        }
        if step % 97 == 0 {
            oracle.assert_agrees(&*backend);
        }
    }
    for (of, mut blocks) in held {
        blocks.iter().for_each(|&block| oracle.mark_free(block, of));
        backend.free_bulk(CPU, of, Wait::Allowed, &mut blocks);
    }
    oracle.assert_agrees(&*backend);
    assert_eq!(
        backend.nr_free(),
        Pages(u64::from(nr_frames)),
        "everything came back"
    );
}

#[test]
fn every_kind_agrees_with_a_bitmap() {
    // Goal: no frame is handed out twice or lost, every frame that may be handed out is, the floor
    // is exact, and splitting and merging cancel. Method: random bulks on ranges of odd sizes, bit
    // by bit.
    let mut rng = seed::rng(1);
    for kind in KINDS {
        for nr_frames in [1, 2, 63, 64, 65, 511, 513, 1023, 1025, 5000, 9916] {
            drive(kind, nr_frames, &mut rng, 400);
        }
    }
}

#[test]
fn all_frames_can_be_had_and_come_out_in_ascending_order() {
    // Goal: a request finds all free frames, and a refill of an untouched range is sequential, so
    // that reading into its frames is sequential too.
    for kind in KINDS {
        let backend = kind.build(4096, NR_CPUS);
        let mut all = Vec::new();
        loop {
            let batch = take(&*backend, 63, 0);
            if batch.is_empty() {
                break;
            }
            assert!(batch.is_sorted(), "{kind}: {batch:?}");
            all.extend(batch);
        }
        let distinct: BTreeSet<_> = all.iter().copied().collect();
        assert_eq!(distinct.len(), 4096, "{kind}");
        assert_eq!(backend.nr_free(), Pages::ZERO);
        backend.free_bulk(CPU, Order::ZERO, Wait::Allowed, &mut all);
        Oracle::new(4096).assert_agrees(&*backend);
    }
}

#[test]
fn a_block_of_every_order_is_split_into_frames_and_merged_again() {
    // Goal: a block that was taken whole may come back in parts, and parts as a whole.
    for kind in KINDS {
        for of in Order::all() {
            let backend = kind.build(4096, NR_CPUS);
            let mut block = [Pfn(0)];
            assert_eq!(
                backend.alloc_bulk(CPU, of, Pages::ZERO, Wait::Allowed, &mut block),
                1
            );
            let mut frames: Vec<_> = (block[0].0..block[0].0 + (1 << of.get()))
                .map(Pfn)
                .collect();
            backend.free_bulk(CPU, Order::ZERO, Wait::Allowed, &mut frames);
            Oracle::new(4096).assert_agrees(&*backend);

            let mut all = take(&*backend, 4096, 0);
            let is_inside = |frame: &Pfn| frame.0 >> of.get() == block[0].0 >> of.get();
            all.retain(|frame| !is_inside(frame));
            backend.free_bulk(CPU, of, Wait::Allowed, &mut block);
            assert_eq!(backend.nr_free_blocks(of), 1, "{kind} {of:?}");
            backend.free_bulk(CPU, Order::ZERO, Wait::Allowed, &mut all);
            Oracle::new(4096).assert_agrees(&*backend);
        }
    }
}

/// Whether `work` panics with a message that contains `why`.
pub(super) fn panics(why: &str, work: impl FnOnce()) -> bool {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    let Err(message) = panic else {
        return false;
    };
    let text = message.downcast_ref::<String>().cloned();
    let text = text.or_else(|| message.downcast_ref::<&str>().map(ToString::to_string));
    text.is_some_and(|text| text.contains(why))
}

#[test]
fn a_broken_contract_panics() {
    // Goal: a frame that is free already, that is not of the pool, or that heads no such block is
    // noticed when it is freed. In release builds a buddy notices heads of free blocks only.
    for kind in KINDS {
        let fresh = || kind.build(2048, NR_CPUS);
        let free = |backend: &dyn Backend, pfn, of: u8| {
            backend.free_bulk(CPU, order(of), Wait::Allowed, &mut [Pfn(pfn)]);
        };
        assert!(panics("freed twice", || free(&*fresh(), 0, 10)), "{kind}");
        if cfg!(debug_assertions) {
            assert!(panics("freed twice", || free(&*fresh(), 77, 0)), "{kind}");
        }
        assert!(panics("F2048", || free(&*fresh(), 2048, 0)), "{kind}");
        assert!(panics("F90000", || free(&*fresh(), 90_000, 0)), "{kind}");
        let backend = fresh();
        let taken = take(&*backend, 2048, 0);
        assert!(taken.contains(&Pfn(4)));
        assert!(panics("F4 ", || free(&*backend, 4, 3)), "{kind}");
    }
}

#[test]
fn ordinary_requests_stop_at_the_floor_and_the_last_frames_go_to_others() {
    for kind in KINDS {
        let backend = kind.build(2500, NR_CPUS);
        assert_eq!(take(&*backend, 5000, 300).len(), 2200, "{kind}");
        assert_eq!(backend.nr_free(), Pages(300));
        assert!(take(&*backend, 1, 300).is_empty());
        assert_eq!(take(&*backend, 1, 299).len(), 1);
        assert_eq!(take(&*backend, 5000, 0).len(), 299);
    }
}
