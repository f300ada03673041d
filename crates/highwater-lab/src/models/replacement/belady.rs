//! Belady's MIN: evicts the page whose next access is furthest away. No algorithm that must admit
//! the requested page misses less; it needs the future.

use std::collections::BinaryHeap;

use super::{AccessTrace, Replacement};

/// Next access of a page that is not accessed again.
const NEVER: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Belady {
    capacity: usize,
    /// By access: the next access of its page.
    next_access: Vec<u32>,
    now: usize,
    /// By resident page: its next access.
    due: Vec<Option<u32>>,
    resident: usize,
    /// Resident pages by their next access; entries that `due` does not confirm are stale.
    furthest: BinaryHeap<(u32, u32)>,
}

impl Belady {
    pub(super) fn new(capacity: usize, trace: &AccessTrace) -> Self {
        let mut next_of_page = vec![NEVER; trace.footprint()];
        let mut next_access = vec![NEVER; trace.pages().len()];
        for (time, &page) in trace.pages().iter().enumerate().rev() {
            next_access[time] = next_of_page[page as usize];
            next_of_page[page as usize] = u32::try_from(time).expect("a trace is shorter");
        }
        Self {
            capacity,
            next_access,
            now: 0,
            due: vec![None; trace.footprint()],
            resident: 0,
            furthest: BinaryHeap::new(),
        }
    }

    fn evict(&mut self) {
        while let Some((next, page)) = self.furthest.pop() {
            if self.due[page as usize] == Some(next) {
                self.due[page as usize] = None;
                self.resident -= 1;
                return;
            }
        }
    }
}

impl Replacement for Belady {
    /// Expects the accesses of the trace, in its order.
    fn access(&mut self, page: u32) -> bool {
        let next = self.next_access[self.now];
        self.now += 1;
        let is_hit = self.due[page as usize].is_some();
        if !is_hit {
            if self.resident == self.capacity {
                self.evict();
            }
            self.resident += 1;
        }
        self.due[page as usize] = Some(next);
        self.furthest.push((next, page));
        is_hit
    }

    fn resident(&self) -> usize {
        self.resident
    }
}
