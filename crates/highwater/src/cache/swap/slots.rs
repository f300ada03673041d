//! The bitmap of a swap area's slots.
//!
//! Slots are allocated in the order of the file, from a *cluster* of 256 until it has none left, so
//! that pages swapped out one after the other are adjacent. The next cluster is the next one that
//! is entirely free, otherwise the next one with a free slot.
//!
//! After a slot that storage refused comes the next one. A cluster where [`FAILED_MAX`] were
//! refused is used when no other has a free slot: behind the end of a full disk, or of storage that
//! is shorter than it says, no slot can be written, while earlier ones are free.
//!
//! Invariant: `nr_used` bits are clear, and `free_in[c]` bits of cluster `c` are set. The sets of
//! clusters have those that are trusted and entirely free, and that are trusted and have a free
//! slot.
//!
//! Source: swap clusters of Linux. Deviation: one cluster for all CPUs; each allocated slot costs a
//! write of 4 KiB to the file, beside which the lock is short.

/// Slots of a cluster. Chosen: as in Linux; 1 MiB of the file.
const CLUSTER: usize = 256;
const WORD: usize = 64;
const WORDS: usize = CLUSTER / WORD;
/// Free slots of an entirely free cluster.
const WHOLE: u32 = 256;
/// Refused slots of a cluster that is trusted no more. Chosen: a bad block of storage may have
/// several pages.
const FAILED_MAX: u8 = 4;

/// Clusters, in the order of the file.
#[derive(Debug)]
struct ClusterSet(Box<[u64]>);

impl ClusterSet {
    fn none_of(nr_clusters: usize) -> Self {
        Self(vec![0; nr_clusters.div_ceil(WORD)].into())
    }

    fn insert(&mut self, cluster: usize) {
        self.0[cluster / WORD] |= 1 << (cluster % WORD);
    }

    fn remove(&mut self, cluster: usize) {
        self.0[cluster / WORD] &= !(1 << (cluster % WORD));
    }

    /// Returns the next one after `here`, beginning again at the end.
    fn after(&self, here: usize) -> Option<usize> {
        let from = here + 1;
        let masked = |at: usize, mask: u64| {
            let word = self.0.get(at)? & mask;
            (word != 0).then(|| at * WORD + word.trailing_zeros() as usize)
        };
        let rest = (from / WORD + 1)..self.0.len();
        let around = rest.chain(0..=from / WORD);
        masked(from / WORD, u64::MAX << (from % WORD))
            .or_else(|| around.into_iter().find_map(|at| masked(at, u64::MAX)))
    }
}

/// The slots of one area.
#[derive(Debug)]
pub(super) struct SwapSlots {
    /// By slot, 64 a word: set when the slot is free.
    free: Box<[u64]>,
    /// By cluster: number of its free slots, and of slots that storage refused.
    free_in: Box<[u32]>,
    failed_in: Box<[u8]>,
    whole: ClusterSet,
    some: ClusterSet,
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
        let mut slots = Self {
            free_in: free.chunks(WORDS).map(count_free).collect(),
            free: free.into(),
            failed_in: vec![0; nr_clusters].into(),
            whole: ClusterSet::none_of(nr_clusters),
            some: ClusterSet::none_of(nr_clusters),
            nr_slots,
            nr_used: 0,
            next: 0,
        };
        (0..nr_clusters).for_each(|cluster| slots.update(cluster));
        slots
    }

    /// Brings the sets up to date with a cluster.
    fn update(&mut self, cluster: usize) {
        let is_trusted = self.failed_in[cluster] < FAILED_MAX;
        match self.free_in[cluster] {
            WHOLE if is_trusted => self.whole.insert(cluster),
            _ => self.whole.remove(cluster),
        }
        match self.free_in[cluster] {
            1.. if is_trusted => self.some.insert(cluster),
            _ => self.some.remove(cluster),
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
        let here = self.first_free(self.next);
        let slot = match here.filter(|_| self.may_stay()) {
            Some(slot) => slot,
            None => {
                let cluster = self.next_cluster();
                let slot = self.first_free(cluster * CLUSTER);
                slot.expect("a cluster that counts a free slot has one")
            }
        };
        self.free[slot / WORD] &= !(1 << (slot % WORD));
        self.free_in[slot / CLUSTER] -= 1;
        self.update(slot / CLUSTER);
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
        self.update(at / CLUSTER);
        self.nr_used -= 1;
    }

    /// Frees a slot that storage refused: the search goes on behind it, or in another cluster,
    /// unless it is in another one already.
    pub(super) fn give_back_failed(&mut self, slot: u32) {
        self.give_back(slot);
        let at = slot as usize;
        let cluster = at / CLUSTER;
        self.failed_in[cluster] = self.failed_in[cluster].saturating_add(1);
        self.update(cluster);
        if self.next / CLUSTER != cluster {
            return;
        }
        let is_last = at % CLUSTER == CLUSTER - 1;
        self.next = match is_last || !self.may_stay() {
            true => self.next_cluster() * CLUSTER,
            // Of several in flight, the last one counts.
            false => self.next.max(at + 1),
        };
    }

    /// Returns whether the search stays in its cluster: a trusted one, if there is any.
    fn may_stay(&self) -> bool {
        let here = self.next / CLUSTER;
        self.failed_in[here] < FAILED_MAX || self.some.after(here).is_none()
    }

    /// Notes that storage has taken a slot, after it refused others: trusts the cluster again.
    pub(super) fn note_taken(&mut self, slot: u32) {
        let cluster = slot as usize / CLUSTER;
        self.failed_in[cluster] = 0;
        self.update(cluster);
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
        let trusted = self.whole.after(here).or_else(|| self.some.after(here));
        // Of the others, that were refused, each in turn.
        let mut others = (here + 1..count).chain(0..=here);
        trusted
            .or_else(|| others.find(|&at| self.free_in[at] > 0))
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
            let is_trusted = self.failed_in[cluster] < FAILED_MAX;
            let has = |set: &ClusterSet| set.0[cluster / WORD] >> (cluster % WORD) & 1 == 1;
            assert_eq!(
                has(&self.whole),
                is_trusted && free == WHOLE,
                "cluster {cluster}"
            );
            assert_eq!(has(&self.some), is_trusted && free > 0, "cluster {cluster}");
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
    use std::collections::{HashSet, VecDeque};

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
    fn refused_slots_do_not_stop_the_others() {
        // Goal: a slot that storage refuses costs an attempt, and a range of them a few for each
        // cluster. Method: an area whose last three clusters are refused, and one slot of the
        // first; nine in ten of the first are in use.
        let mut slots = SwapSlots::new(1024);
        let is_refused = |slot: u32| slot == 7 || slot >= 256;
        let (mut taken, mut nr_failed) = (Vec::new(), 0);
        while taken.len() < 255 {
            let slot = slots.take().expect("some slot is free");
            if is_refused(slot) {
                slots.give_back_failed(slot);
                nr_failed += 1;
            } else {
                slots.note_taken(slot);
                taken.push(slot);
            }
            assert!(nr_failed <= 100, "{nr_failed} for {} slots", taken.len());
        }
        for round in 0..1000 {
            slots.give_back(taken.swap_remove(round % 200));
            let begun = nr_failed;
            taken.push(loop {
                let slot = slots.take().expect("some slot is free");
                if !is_refused(slot) {
                    slots.note_taken(slot);
                    break slot;
                }
                slots.give_back_failed(slot);
                nr_failed += 1;
                assert!(nr_failed - begun <= 16, "round {round}");
            });
            slots.check_invariants();
        }
    }

    /// An area whose clusters are refused from number `refused` on, and its slots in flight.
    struct PartlyRefused {
        slots: SwapSlots,
        refused: u32,
        in_flight: VecDeque<u32>,
        nr_failed: u32,
    }

    impl PartlyRefused {
        /// Takes a slot with `at_once` others in flight; returns the next that storage took.
        fn take(&mut self, at_once: usize) -> u32 {
            loop {
                while self.in_flight.len() < at_once
                    && let Some(slot) = self.slots.take()
                {
                    self.in_flight.push_back(slot);
                }
                let slot = self.in_flight.pop_front().expect("some slot is free");
                if slot / 256 < self.refused {
                    self.slots.note_taken(slot);
                    return slot;
                }
                self.slots.give_back_failed(slot);
                self.nr_failed += 1;
            }
        }
    }

    #[test]
    fn refused_slots_of_several_writers_do_not_stop_the_others() {
        // Goal: as above, with other writers' slots in flight, and once the good clusters were
        // full. Method: sixteen clusters, the last eight of which are refused, are filled; then
        // some slots become free.
        for at_once in [1, 2, 16] {
            let (slots, in_flight) = (SwapSlots::new(16 * 256), VecDeque::new());
            let mut area = PartlyRefused {
                slots,
                refused: 8,
                in_flight,
                nr_failed: 0,
            };
            let taken: Vec<_> = (0..8 * 256 - 16).map(|_| area.take(at_once)).collect();
            let most = 8 * (u32::from(FAILED_MAX) + u32::try_from(at_once).expect("few"));
            assert!(area.nr_failed <= most, "{} with {at_once}", area.nr_failed);
            // Attempts while the good ones are full.
            for slot in area.in_flight.drain(..) {
                if slot / 256 < 8 {
                    area.slots.note_taken(slot);
                } else {
                    area.slots.give_back_failed(slot);
                }
            }
            let rest: Vec<_> = (0..500).map_while(|_| area.slots.take()).collect();
            for slot in rest {
                area.slots.give_back_failed(slot);
            }
            taken[..100]
                .iter()
                .for_each(|slot| area.slots.give_back(*slot));
            area.nr_failed = 0;
            (0..50).for_each(|_| _ = area.take(at_once));
            assert!(area.nr_failed <= most, "{} with {at_once}", area.nr_failed);
            area.slots.check_invariants();
        }
    }

    #[test]
    fn a_good_slot_in_a_refused_cluster_is_found() {
        // Goal: where no cluster is trusted, the search goes on behind refused slots. Method: two
        // clusters whose first ten slots are refused.
        let mut slots = SwapSlots::new(512);
        let mut taken = 0;
        for _ in 0..600 {
            let slot = slots.take().expect("some slot is free");
            if slot % 256 < 10 {
                slots.give_back_failed(slot);
            } else {
                slots.note_taken(slot);
                taken += 1;
            }
            if taken == 2 * 246 {
                return;
            }
        }
        panic!("{taken} slots in 600 attempts");
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
