//! The buddy allocator of one range of frames, without locks.
//!
//! A block of order `n` is 2^n frames aligned to 2^n; its *buddy* is the block whose number differs
//! in bit `n`. Allocation takes the smallest block that is large enough and splits it, keeping the
//! lower half, so that frames of one bulk come out in ascending order. Freeing merges a block with
//! its buddy for as long as that is free and of equal order.
//!
//! Lists are last in, first out, so that frames which were used lately go out first. Blocks of the
//! largest order that are *fresh* (never taken, or given back to the system since) have a list of
//! their own, which is taken from last.
//!
//! Invariants: a free block is on the list of its order, or on that of fresh ones, and marked at
//! its head frame only; no two free buddies of equal order below the largest exist; `nr_free` is
//! the sum of all free blocks.
//!
//! Links and marks are arrays indexed by frame, so there is nothing to be unsafe about.

use std::ops::Range;

use highwater::units::{Order, Pages, Pfn};

/// The list of fresh blocks, behind those of all orders.
const FRESH: u8 = Order::MAX.get() + 1;
const NR_LISTS: usize = FRESH as usize + 1;
/// End of a list.
const NIL: u32 = u32::MAX;

/// Free blocks of one range.
#[derive(Debug)]
pub(super) struct Buddy {
    frames: Range<u32>,
    free_area: [FreeArea; NR_LISTS],
    /// By frame, counted from the range's start: next, previous and mark of the free block whose
    /// head the frame is. The mark is one more than the number of the block's list, and
    /// [`NOT_HEAD`] where the frame is no head; numbers, all zero at first, so that the system
    /// commits them as they are written.
    links: Box<[[u32; 3]]>,
    nr_free: u64,
}

/// List of the free blocks of one order, or of fresh ones.
#[derive(Clone, Copy, Debug)]
struct FreeArea {
    head: u32,
    blocks: u32,
}

/// Mark of a frame that is not the head of a free block.
const NOT_HEAD: u32 = 0;
const NEXT: usize = 0;
const PREV: usize = 1;
const MARK: usize = 2;

const fn mark_of(list: u8) -> u32 {
    list as u32 + 1
}

/// The order of the blocks of a list.
const fn order_of(list: u8) -> u8 {
    if list == FRESH {
        Order::MAX.get()
    } else {
        list
    }
}

impl Buddy {
    /// All frames of the range free, in the largest blocks that alignment allows.
    pub(super) fn new(frames: Range<u32>) -> Self {
        let mut buddy = Self {
            free_area: [FreeArea {
                head: NIL,
                blocks: 0,
            }; NR_LISTS],
            links: vec![[0; 3]; frames.len()].into(),
            nr_free: 0,
            frames,
        };
        // From the top down: the lists end up with the lowest block first.
        let mut end = buddy.frames.end;
        while end > buddy.frames.start {
            let order = (0..=Order::MAX.get()).rev().find(|&order| {
                let size = 1 << order;
                end.is_multiple_of(size) && end - buddy.frames.start >= size
            });
            let order = order.expect("one frame always fits");
            end -= 1 << order;
            let is_largest = order == Order::MAX.get();
            buddy.insert(end, if is_largest { FRESH } else { order });
        }
        buddy
    }

    /// Takes a block.
    pub(super) fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let mut lists = order.get()..=FRESH;
        let list = lists.find(|&list| self.area(list).blocks > 0)?;
        let block = self.area(list).head;
        self.remove(block, list);
        let mut have = order_of(list);
        while have > order.get() {
            have -= 1;
            self.insert(block + (1 << have), have);
        }
        Some(Pfn(block))
    }

    /// The order of the free block whose head a frame is.
    pub(super) fn order_at(&self, pfn: Pfn) -> Option<Order> {
        let list = (0..=FRESH).find(|&list| mark_of(list) == self.link(pfn.0)[MARK])?;
        Order::new(order_of(list))
    }

    /// Takes the free block of `order` whose head a frame is.
    pub(super) fn take(&mut self, pfn: Pfn, order: Order) {
        let is_fresh = self.link(pfn.0)[MARK] == mark_of(FRESH);
        self.remove(pfn.0, if is_fresh { FRESH } else { order.get() });
    }

    /// Says that the memory of a range was given back to the system: if it is a free block of the
    /// largest order, that is fresh.
    pub(super) fn make_fresh(&mut self, first: Pfn) {
        if self.link(first.0)[MARK] == mark_of(Order::MAX.get()) {
            self.remove(first.0, Order::MAX.get());
            self.insert(first.0, FRESH);
        }
    }

    /// Frames of fresh blocks.
    pub(super) fn nr_fresh(&self) -> Pages {
        Pages(u64::from(self.area(FRESH).blocks) << Order::MAX.get())
    }

    /// Gives a block back.
    pub(super) fn free(&mut self, pfn: Pfn, order: Order) {
        let (mut block, mut order) = (pfn.0, order.get());
        assert!(
            self.frames.contains(&block) && block.is_multiple_of(1 << order),
            "{pfn} freed as order {order} to {:?}",
            self.frames
        );
        assert_eq!(self.link(block)[MARK], NOT_HEAD, "{pfn} freed twice");
        debug_assert!(!self.is_free(block), "{pfn} freed twice");
        while order < Order::MAX.get() {
            let buddy = block ^ (1 << order);
            if !self.frames.contains(&buddy) || self.link(buddy)[MARK] != mark_of(order) {
                break;
            }
            self.remove(buddy, order);
            block = block.min(buddy);
            order += 1;
        }
        self.insert(block, order);
    }

    pub(super) fn nr_free(&self) -> Pages {
        Pages(self.nr_free)
    }

    /// How many blocks of `order` all free blocks make.
    pub(super) fn nr_free_blocks(&self, order: Order) -> u64 {
        let lists = order.get()..=FRESH;
        lists
            .map(|list| u64::from(self.area(list).blocks) << (order_of(list) - order.get()))
            .sum()
    }

    /// Whether a frame lies in a free block.
    fn is_free(&self, frame: u32) -> bool {
        (0..=FRESH).any(|list| {
            let head = frame >> order_of(list) << order_of(list);
            head >= self.frames.start && self.link(head)[MARK] == mark_of(list)
        })
    }

    /// Puts a block at the head of a list.
    fn insert(&mut self, block: u32, list: u8) {
        let next = self.area(list).head;
        *self.link_mut(block) = [next, NIL, mark_of(list)];
        if next != NIL {
            self.link_mut(next)[PREV] = block;
        }
        let area = &mut self.free_area[usize::from(list)];
        *area = FreeArea {
            head: block,
            blocks: area.blocks + 1,
        };
        self.nr_free += 1 << order_of(list);
    }

    fn remove(&mut self, block: u32, list: u8) {
        let [next, prev, mark] = *self.link(block);
        debug_assert_eq!(
            mark,
            mark_of(list),
            "frame {block} is not a free block of that list"
        );
        if prev == NIL {
            self.free_area[usize::from(list)].head = next;
        } else {
            self.link_mut(prev)[NEXT] = next;
        }
        if next != NIL {
            self.link_mut(next)[PREV] = prev;
        }
        self.link_mut(block)[MARK] = NOT_HEAD;
        self.free_area[usize::from(list)].blocks -= 1;
        self.nr_free -= 1 << order_of(list);
    }

    fn area(&self, list: u8) -> FreeArea {
        self.free_area[usize::from(list)]
    }

    fn link(&self, block: u32) -> &[u32; 3] {
        &self.links[(block - self.frames.start) as usize]
    }

    fn link_mut(&mut self, block: u32) -> &mut [u32; 3] {
        &mut self.links[(block - self.frames.start) as usize]
    }

    /// The free blocks, found by walking the lists: `(head, order)` in ascending order.
    ///
    /// # Panics
    ///
    /// When a list and its marks, counts or alignment disagree.
    pub(super) fn free_blocks(&self) -> Vec<(Pfn, Order)> {
        let mut blocks = Vec::new();
        for list in 0..=FRESH {
            let order = order_of(list);
            let of = Order::new(order).expect("an order in range");
            let (mut at, mut prev) = (self.area(list).head, NIL);
            let before = blocks.len();
            while at != NIL {
                let [next, before, mark] = *self.link(at);
                assert_eq!((mark, before), (mark_of(list), prev), "links of frame {at}");
                assert!(
                    at.is_multiple_of(1 << order),
                    "frame {at} heads a block of order {order}"
                );
                blocks.push((Pfn(at), of));
                (prev, at) = (at, next);
            }
            assert_eq!(
                blocks.len() - before,
                self.area(list).blocks as usize,
                "list {list}"
            );
        }
        blocks.sort_unstable();
        blocks
    }

    /// # Panics
    ///
    /// When an invariant of the module does not hold.
    pub(super) fn check_invariants(&self) {
        let blocks = self.free_blocks();
        let frames: Pages = blocks.iter().map(|(_, order)| order.pages()).sum();
        assert_eq!(frames, self.nr_free(), "free blocks and the free total");
        for pair in blocks.windows(2) {
            let ((Pfn(a), a_order), (Pfn(b), b_order)) = (pair[0], pair[1]);
            let (a_order, b_order) = (a_order.get(), b_order.get());
            assert!(
                a + (1 << a_order) <= b,
                "free blocks at {a} and {b} overlap"
            );
            let are_buddies = a_order == b_order && a ^ b == 1 << a_order;
            assert!(
                !are_buddies || a_order == Order::MAX.get(),
                "free buddies {a} and {b} of order {a_order} were not merged"
            );
        }
        let heads = self
            .links
            .iter()
            .filter(|link| link[MARK] != NOT_HEAD)
            .count();
        assert_eq!(
            heads,
            blocks.len(),
            "marked frames are heads of listed blocks"
        );
    }
}
