//! 2Q: new pages pass a FIFO; a page enters the LRU list only if it is accessed again after it left
//! the FIFO.
//!
//! Source: Johnson and Shasha, VLDB 1994, "full version" with its defaults: a quarter of the
//! capacity for the FIFO of new pages, and ghosts of half as many pages as fit.

use super::Replacement;
use super::lists::Lists;

const IN: usize = 0;
const MAIN: usize = 1;
const OUT: usize = 2;

#[derive(Debug)]
pub(super) struct TwoQ {
    capacity: usize,
    in_max: usize,
    out_max: usize,
    lists: Lists<3>,
}

impl TwoQ {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            in_max: capacity / 4,
            out_max: capacity / 2,
            lists: Lists::new(footprint),
        }
    }

    fn evict(&mut self) {
        if self.lists.len(IN) <= self.in_max {
            self.lists.pop(MAIN);
            return;
        }
        let page = self.lists.pop(IN).expect("more than `in_max` pages");
        self.lists.push(OUT, page);
        if self.lists.len(OUT) > self.out_max {
            self.lists.pop(OUT);
        }
    }
}

impl Replacement for TwoQ {
    fn access(&mut self, page: u32) -> bool {
        match self.lists.list_of(page) {
            Some(IN) => return true,
            Some(MAIN) => {
                self.lists.move_to(MAIN, page);
                return true;
            }
            _ => {}
        }
        // Read before making room: the ghosts that this adds may push out the page's own.
        let is_known = self.lists.list_of(page) == Some(OUT);
        if is_known {
            self.lists.remove(page);
        }
        if self.resident() == self.capacity {
            self.evict();
        }
        self.lists.push(if is_known { MAIN } else { IN }, page);
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(IN) + self.lists.len(MAIN)
    }
}
