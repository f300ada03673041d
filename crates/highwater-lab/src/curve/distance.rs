//! Stack distances: for each access, the number of other pages accessed since the last access to
//! the same page. An LRU cache of `c` pages hits exactly if the distance is below `c`.
//!
//! Each page has a mark at the time of its last access, in a Fenwick tree over time; the distance
//! is the number of marks after the page's own. Times are renumbered when they run out, once in as
//! many accesses as there are pages.
//!
//! Invariant: as many marks as pages that were accessed; `at[page]` is the time of its mark.
//!
//! Source: Mattson and others, IBM Systems Journal 1970; Olken 1981 (a tree).

/// No access so far.
const NEVER: u32 = u32::MAX;

/// Stack distances of the accesses to pages that are numbered from 0.
#[derive(Debug)]
pub(super) struct StackDistances {
    /// Times of the last accesses, by page.
    at: Vec<u32>,
    /// Pages by the times of their marks, as far as they are current.
    page_at: Vec<u32>,
    /// Fenwick tree: sums of marks.
    sums: Vec<u32>,
    now: usize,
    marks: u32,
}

impl StackDistances {
    /// Creates the structure for the pages `0 .. footprint`, none accessed so far.
    ///
    /// # Panics
    ///
    /// When `footprint` is 2^31 or more.
    pub(super) fn new(footprint: usize) -> Self {
        assert!(footprint < 1 << 31, "times have 32 bits");
        let times = 2 * footprint.max(1);
        Self {
            at: vec![NEVER; footprint],
            page_at: vec![NEVER; times],
            sums: vec![0; times + 1],
            now: 0,
            marks: 0,
        }
    }

    /// Accesses a page; returns its stack distance, `None` at its first access.
    ///
    /// # Cost
    ///
    /// O(log pages).
    ///
    /// # Panics
    ///
    /// When the page is not below the footprint.
    pub(super) fn access(&mut self, page: usize) -> Option<u32> {
        if self.now == self.page_at.len() {
            self.renumber();
        }
        let before = self.at[page];
        let distance = (before != NEVER).then(|| {
            let time = before as usize;
            let distance = self.marks - self.marks_to(time);
            self.add(time, u32::MAX);
            self.page_at[time] = NEVER;
            self.marks -= 1;
            distance
        });
        let number = u32::try_from(page).expect("below 2^31");
        self.page_at[self.now] = number;
        self.at[page] = u32::try_from(self.now).expect("below 2^32");
        self.add(self.now, 1);
        self.marks += 1;
        self.now += 1;
        distance
    }

    /// Counts the marks up to a time.
    fn marks_to(&self, time: usize) -> u32 {
        let mut sum = 0_u32;
        let mut node = time + 1;
        while node > 0 {
            sum = sum.wrapping_add(self.sums[node]);
            node &= node - 1;
        }
        sum
    }

    /// Adds to the marks at a time, modulo 2^32: `u32::MAX` takes one away.
    fn add(&mut self, time: usize, marks: u32) {
        let mut node = time + 1;
        while node < self.sums.len() {
            self.sums[node] = self.sums[node].wrapping_add(marks);
            node += node & node.wrapping_neg();
        }
    }

    /// Gives the marks the earliest times, in their order.
    fn renumber(&mut self) {
        let times = std::mem::take(&mut self.page_at);
        self.page_at = times
            .iter()
            .copied()
            .filter(|page| *page != NEVER)
            .collect();
        self.now = self.page_at.len();
        self.page_at.resize(times.len(), NEVER);
        self.sums.fill(0);
        for time in 0..self.now {
            self.at[self.page_at[time] as usize] = u32::try_from(time).expect("below 2^32");
            self.add(time, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: distances are those of the definition. Method: random traces, skewed and not, beside a
    // plain list in order of last access; long enough for several renumberings.
    #[test]
    fn distances_are_ranks_in_the_order_of_last_accesses() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let footprint = random.usize(1..80);
            let mut distances = StackDistances::new(footprint);
            let mut latest: Vec<usize> = Vec::new();
            for _ in 0..2000 {
                let page = random.usize(..footprint).min(random.usize(..footprint));
                let rank = latest.iter().position(|other| *other == page);
                let expected = rank.map(|rank| u32::try_from(rank).expect("small"));
                assert_eq!(distances.access(page), expected, "seed {seed}");
                if let Some(rank) = rank {
                    latest.remove(rank);
                }
                latest.insert(0, page);
            }
        }
    }
}
