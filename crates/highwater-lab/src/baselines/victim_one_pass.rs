//! OOM victim selection of Linux 7.0: one pass with the exact sum of every counter of every space.
//!
//! ```text
//! space s  [ sum 0 | sum 1 | sum 2 | sum 3 ]            written when a CPU's word passes the batch
//! CPU c    [ .. | words of space s | words of s+1 | .. ]   16 bytes a space, in that CPU's area
//! ```
//!
//! Per-CPU areas make an addition local, and the sum of one counter a walk through all areas: a
//! load for each CPU, each on a page of its own.
//!
//! Source: `oom_badness` and `select_bad_process` as of 7.0, `percpu_counter`.
//! Deviation: no task list and no locks around tasks and sums, which makes this faster than the
//! original. Among equals the later one is chosen, as there.

use highwater::units::CpuId;

use super::Member;

const MEMBERS: usize = Member::ALL.len();

/// Flat per-CPU counters of many spaces, CPU by CPU.
#[derive(Debug)]
pub struct FlatSpaces {
    nr_spaces: usize,
    batch: i64,
    sums: Vec<[i64; MEMBERS]>,
    /// The words of one space for each CPU: `cpu * nr_spaces + space`.
    words: Vec<[i32; MEMBERS]>,
}

impl FlatSpaces {
    /// Creates spaces that use nothing.
    #[must_use]
    pub fn new(nr_spaces: usize, nr_cpus: usize) -> Self {
        let batch = i64::try_from(2 * nr_cpus).map_or(i64::MAX, |batch| batch.max(32));
        Self {
            nr_spaces,
            batch,
            sums: vec![[0; MEMBERS]; nr_spaces],
            words: vec![[0; MEMBERS]; nr_spaces * nr_cpus],
        }
    }

    /// Adds as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// When there is no such space or CPU.
    pub fn add_on(&mut self, cpu: CpuId, space: usize, member: Member, delta: i64) {
        let word = &mut self.words[cpu.index() * self.nr_spaces + space][member.index()];
        let new = i64::from(*word) + delta;
        match i32::try_from(new) {
            Ok(kept) if new.abs() < self.batch => *word = kept,
            _ => {
                *word = 0;
                self.sums[space][member.index()] += new;
            }
        }
    }

    /// Returns the exact badness of a space: all members, one counter after the other.
    #[must_use]
    pub fn exact(&self, space: usize) -> i64 {
        let members = Member::ALL.into_iter();
        members.map(|member| self.sum(space, member)).sum()
    }

    /// A call, as in the kernel: the four walks are not merged into one.
    #[inline(never)]
    fn sum(&self, space: usize, member: Member) -> i64 {
        let words = self.words.iter().skip(space).step_by(self.nr_spaces);
        let parts = words.map(|words| i64::from(words[member.index()]));
        self.sums[space][member.index()] + parts.sum::<i64>()
    }

    /// Returns the space with the highest badness.
    #[must_use]
    pub fn select(&self) -> Option<usize> {
        let mut chosen = None;
        for space in 0..self.nr_spaces {
            let points = self.exact(space);
            if chosen.is_none_or(|(_, most)| points >= most) {
                chosen = Some((space, points));
            }
        }
        chosen.map(|(space, _)| space)
    }

    /// Returns the memory of the counters.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.sums[..]) + size_of_val(&self.words[..])) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the exact sum, and the later of equals. Method: random additions against plain sums.
    #[test]
    fn sums_are_exact_and_later_ones_win() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut spaces = FlatSpaces::new(20, 64);
        let mut truth = [0; 20];
        for _ in 0..20_000 {
            let (space, delta) = (rng.usize(..20), rng.i64(-300..400));
            let member = Member::ALL[rng.usize(..MEMBERS)];
            spaces.add_on(CpuId(rng.u32(..64)), space, member, delta);
            truth[space] += delta;
        }
        for (space, sum) in truth.into_iter().enumerate() {
            assert_eq!(spaces.exact(space), sum);
        }
        let most = *truth.iter().max().unwrap();
        let first = truth.iter().position(|sum| *sum == most).unwrap();
        let equal = (first + 1) % 20;
        spaces.add_on(CpuId(5), equal, Member::Swap, most - truth[equal]);
        assert_eq!(spaces.select(), Some(first.max(equal)));
    }
}
