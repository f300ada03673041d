//! The bitmap of a swap area's slots.
//!
//! Slots are allocated in the order of the file, from a *cluster* of 256 until it has none left, so
//! that pages swapped out one after the other are adjacent. The next cluster is the next one that
//! is entirely free, otherwise the next one with a free slot.
//!
//! Invariant: `nr_used` bits are clear, and `free_in[c]` bits of cluster `c` are set.
//!
//! Source: swap clusters of Linux. Deviation: one cluster for all CPUs; each allocated slot costs a
//! write of 4 KiB to the file, beside which the lock is short.

/// Slots of a cluster. Chosen: as in Linux; 1 MiB of the file.
const CLUSTER: usize = 256;
const WORD: usize = 64;
const WORDS: usize = CLUSTER / WORD;
/// Free slots of an entirely free cluster.
const WHOLE: u32 = 256;

/// The slots of one area.
#[derive(Debug)]
pub(super) struct SwapSlots {
    /// By slot, 64 a word: set when the slot is free.
    free: Box<[u64]>,
    /// By cluster: number of its free slots.
    free_in: Box<[u32]>,
    nr_slots: u32,
    nr_used: u32,
    /// Start of the next search, within its cluster.
    next: usize,
}

impl SwapSlots {
    /// Creates `nr_slots` free slots.
    pub(super) fn new(nr_slots: u32) -> Self {
        let slots = nr_slots as usize;
        let nr_clusters = slots.div_ceil(CLUSTER);
        let mut free = vec![0_u64; nr_clusters * WORDS];
        for (at, word) in free.iter_mut().enumerate() {
            *word = match slots.saturating_sub(at * WORD) {
                here @ 0..WORD => (1 << here) - 1,
                _ => u64::MAX,
            };
        }
        Self {
            free_in: free.chunks(WORDS).map(count_free).collect(),
            free: free.into(),
            nr_slots,
            nr_used: 0,
            next: 0,
        }
    }

    pub(super) fn nr_slots(&self) -> u32 {
        self.nr_slots
    }

    pub(super) fn nr_used(&self) -> u32 {
        self.nr_used
    }

    /// Allocates a free slot; `None` if there is none.
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.nr_used == self.nr_slots {
            return None;
        }
        let slot = match self.first_free(self.next) {
            Some(slot) => slot,
            None => {
                let cluster = self.next_cluster();
                let slot = self.first_free(cluster * CLUSTER);
                slot.expect("a cluster that counts a free slot has one")
            }
        };
        self.free[slot / WORD] &= !(1 << (slot % WORD));
        self.free_in[slot / CLUSTER] -= 1;
        self.nr_used += 1;
        // At the end of the cluster it stays there, and the search goes to the next one.
        self.next = slot;
        Some(u32::try_from(slot).expect("fewer than `nr_slots`"))
    }

    /// Frees a slot.
    ///
    /// # Panics
    ///
    /// When it is free already: another page would lose its slot.
    pub(super) fn give_back(&mut self, slot: u32) {
        let at = slot as usize;
        let bit = 1 << (at % WORD);
        assert_eq!(self.free[at / WORD] & bit, 0, "slot {slot} is free already");
        self.free[at / WORD] |= bit;
        self.free_in[at / CLUSTER] += 1;
        self.nr_used -= 1;
    }

    /// Returns the first free slot between `from` and the end of its cluster.
    fn first_free(&self, from: usize) -> Option<usize> {
        let end = (from / CLUSTER + 1) * WORDS;
        let mut mask = u64::MAX << (from % WORD);
        for at in from / WORD..end {
            let word = self.free.get(at)? & mask;
            if word != 0 {
                return Some(at * WORD + word.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    /// Returns the next cluster that is entirely free, otherwise the next with a free slot, of
    /// which there is one.
    fn next_cluster(&self) -> usize {
        let (here, count) = (self.next / CLUSTER, self.free_in.len());
        let around = |least: u32| {
            let from_here = (1..=count).map(move |step| (here + step) % count);
            from_here.into_iter().find(|&at| self.free_in[at] >= least)
        };
        around(WHOLE)
            .or_else(|| around(1))
            .expect("some slot is free")
    }

    /// Checks the counts.
    ///
    /// # Panics
    ///
    /// If they are wrong.
    pub(super) fn check_invariants(&self) {
        let mut nr_free = 0;
        for (cluster, words) in self.free.chunks(WORDS).enumerate() {
            let free = count_free(words);
            assert_eq!(free, self.free_in[cluster], "cluster {cluster}");
            nr_free += free;
        }
        assert_eq!(nr_free, self.nr_slots - self.nr_used, "free slots");
    }
}

fn count_free(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

const _: () = assert!(WHOLE as usize == CLUSTER);

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_slot_is_one_pages() {
        // Goal: no slot is handed out twice or lost. Method: random allocations and frees in areas
        // of odd sizes against a set; an area gives exactly as many slots as it has.
        let mut rng = crate::seed::rng(61);
        for nr_slots in [0, 1, 63, 64, 255, 256, 257, 1000] {
            let mut slots = SwapSlots::new(nr_slots);
            let mut taken: Vec<u32> = Vec::new();
            for _ in 0..4000 {
                if rng.u8(..5) < 3 {
                    match slots.take() {
                        Some(slot) => {
                            assert!(slot < nr_slots, "{slot} of {nr_slots}");
                            taken.push(slot);
                        }
                        None => assert_eq!(taken.len(), nr_slots as usize),
                    }
                } else if !taken.is_empty() {
                    slots.give_back(taken.swap_remove(rng.usize(..taken.len())));
                }
                let distinct: HashSet<_> = taken.iter().collect();
                assert_eq!(distinct.len(), slots.nr_used() as usize);
            }
            slots.check_invariants();
            while slots.take().is_some() {}
            assert_eq!(slots.nr_used(), nr_slots);
        }
    }

    #[test]
    fn neighbours_lie_side_by_side() {
        // Goal: pages swapped out together are adjacent in the file. Method: an area with every
        // other slot of its first cluster in use; the next allocations go to a free cluster, in
        // order.
        let mut slots = SwapSlots::new(1024);
        let first: Vec<u32> = (0..256).map_while(|_| slots.take()).collect();
        assert_eq!(first, (0..256).collect::<Vec<_>>());
        for slot in (0..256).step_by(2) {
            slots.give_back(slot);
        }
        let next: Vec<u32> = (0..768).map_while(|_| slots.take()).collect();
        assert_eq!(next, (256..1024).collect::<Vec<_>>());
        assert_eq!(slots.take(), Some(0), "where there is any left");
    }

    #[test]
    #[should_panic(expected = "slot 3 is free already")]
    fn a_slot_is_given_back_once() {
        // Goal: a double free is detected. Method: free a slot twice.
        let mut slots = SwapSlots::new(8);
        while slots.take().is_some() {}
        slots.give_back(3);
        slots.give_back(3);
    }
}
