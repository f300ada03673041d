//! Blocks that were freed while a zone's lock was held, by threads that must not wait for it.
//!
//! One list for each order, linked by head frame. Any thread puts blocks on; only the holder of the
//! zone's lock takes them off, all of an order at once, so a block cannot come back to a list while
//! another thread still has an old head in its hand.

use highwater::lab::memmap::zeroed;
use highwater::lab::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use highwater::units::{Order, Pages, Pfn};

const NR_ORDERS: usize = Order::MAX.get() as usize + 1;
/// End of a list.
const NIL: u32 = u32::MAX;

/// The deferred blocks of one zone.
#[derive(Debug)]
pub(super) struct Deferred {
    start: u32,
    /// Written by: threads that put blocks on (Release, `push_all`), and the zone's holder
    /// (Acquire, `take`, `take_some`). Publishes: the links from the head on.
    heads: [AtomicU32; NR_ORDERS],
    /// By frame, counted from `start`. Written by: the thread whose block it is, before it puts it
    /// on; published by the head.
    next: Box<[AtomicU32]>,
    /// Written by: threads that put on, and the zone's holder (Release, `are_free`). Read by:
    /// requests (Acquire, `nr_frames`). Publishes: that frames that are gone from here are counted
    /// as free.
    frames: AtomicU64,
}

impl Deferred {
    /// No blocks, of a zone that begins at `start`.
    pub(super) fn new(start: u32, nr_frames: usize) -> Self {
        Self {
            start,
            heads: std::array::from_fn(|_| AtomicU32::new(NIL)),
            next: zeroed(nr_frames),
            frames: AtomicU64::new(0),
        }
    }

    /// Frames on the lists, and those that were taken off and are not counted as free yet.
    pub(super) fn nr_frames(&self) -> Pages {
        // Acquire: a request that sees none here sees them among the free. Pairs with the release
        // in `are_free`.
        Pages(self.frames.load(Ordering::Acquire))
    }

    /// Frames that were taken off are counted as free: from now on they are not counted here.
    pub(super) fn are_free(&self, frames: Pages) {
        // Release: they were counted before. Pairs with the acquire in `nr_frames`.
        self.frames.fetch_sub(frames.0, Ordering::Release);
    }

    pub(super) fn push_all(&self, order: Order, blocks: &[Pfn]) {
        let [first, .., last] = *blocks else {
            return blocks
                .iter()
                .for_each(|&block| self.push(order, block, block));
        };
        for pair in blocks.windows(2) {
            // Relaxed: the head publishes it.
            self.link(pair[0]).store(pair[1].0, Ordering::Relaxed);
        }
        self.push(order, first, last);
    }

    /// Puts a chain of blocks in front of a list.
    fn push(&self, order: Order, first: Pfn, last: Pfn) {
        let mut count = 1;
        let mut at = first;
        while at != last {
            // Relaxed: this thread wrote it.
            at = Pfn(self.link(at).load(Ordering::Relaxed));
            count += 1;
        }
        // Relaxed: says that there is something, and publishes nothing. Before the blocks can be
        // taken off, so never below zero.
        self.frames
            .fetch_add(count << order.get(), Ordering::Relaxed);
        let head = &self.heads[usize::from(order.get())];
        // Relaxed: nothing behind the head is read here.
        let mut seen = head.load(Ordering::Relaxed);
        // Progress: an exchange fails only because another thread's succeeded.
        loop {
            self.link(last).store(seen, Ordering::Relaxed);
            // Release: the chain's links. Pairs with the acquires in `take` and `take_some`.
            match head.compare_exchange_weak(seen, first.0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Takes every block of `order` off; only the zone's holder calls this, and says
    /// [`are_free`](Self::are_free) then.
    pub(super) fn take(&self, order: Order, mut give: impl FnMut(Pfn)) {
        let head = &self.heads[usize::from(order.get())];
        // Relaxed: whether there is anything, and if not now, then for the next holder.
        if head.load(Ordering::Relaxed) == NIL {
            return;
        }
        // Acquire: the links of every chain put on. Pairs with the release in `push`.
        let mut at = head.swap(NIL, Ordering::Acquire);
        while at != NIL {
            // Relaxed: ordered by the exchange above. Read before the block is given away.
            let next = self.link(Pfn(at)).load(Ordering::Relaxed);
            give(Pfn(at));
            at = next;
        }
    }

    /// As [`take`](Self::take), but at most `count` blocks, the newest first: how many.
    pub(super) fn take_some(&self, order: Order, count: usize, mut give: impl FnMut(Pfn)) -> usize {
        let head = &self.heads[usize::from(order.get())];
        for taken in 0..count {
            // Acquire: the links of every chain put on. Pairs with the release in `push`.
            let mut at = head.load(Ordering::Acquire);
            // Progress: an exchange fails only because another thread put a chain on.
            loop {
                if at == NIL {
                    return taken;
                }
                // Relaxed: ordered by reading the head. Only the holder takes off, so while this
                // block is the head its link is as it was read.
                let next = self.link(Pfn(at)).load(Ordering::Relaxed);
                // Acquire: as above, of the head that was seen instead. Pairs with the release in
                // `push`.
                match head.compare_exchange_weak(at, next, Ordering::Relaxed, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(now) => at = now,
                }
            }
            give(Pfn(at));
        }
        count
    }

    fn link(&self, block: Pfn) -> &AtomicU32 {
        &self.next[(block.0 - self.start) as usize]
    }
}
