//! Per-CPU blocks, allocated lazily for the CPUs that use them.
//!
//! Many objects are used on few of the CPUs: a group of a tenant on two of 384. The per-CPU state
//! of such an object is allocated when its CPU first uses it, and stays until the object goes. The
//! object holds the addresses of the first CPUs in itself (`NEAR`). Those of the others are in a
//! directory of two levels, which is allocated with the first of them: 8 bytes for each [`CHUNK`]
//! CPUs of the machine, and [`CHUNK`] addresses where there is a block.
//!
//! **Protocol.** As [`Published`], at each level: the first user allocates the directory, chunk or
//! block; of two concurrent ones one wins, and the other's is dropped.

use std::fmt;
use std::iter;

use super::Published;

/// CPUs that share a chunk of the directory: their addresses fill two cache lines.
const CHUNK: usize = 16;

/// The addresses of neighbouring CPUs' blocks.
type Chunk<T> = [Published<T>; CHUNK];

/// Blocks of `T`, by CPU. The addresses of the first `NEAR`, a multiple of [`CHUNK`], are stored
/// here.
// In this order: the addresses come first.
#[repr(C)]
pub(crate) struct Blocks<T, const NEAR: usize = 0> {
    near: [Published<T>; NEAR],
    others: Published<Box<[Published<Chunk<T>>]>>,
    nr_cpus: usize,
}

impl<T, const NEAR: usize> Blocks<T, NEAR> {
    /// Returns a directory without blocks, for CPUs below `nr_cpus`.
    pub(crate) fn none(nr_cpus: usize) -> Self {
        const { assert!(NEAR.is_multiple_of(CHUNK)) };
        Self {
            near: std::array::from_fn(|_| Published::empty()),
            others: Published::empty(),
            nr_cpus,
        }
    }

    /// Returns the block of CPU number `cpu`, if that CPU exists and has one.
    #[inline]
    pub(crate) fn get(&self, cpu: usize) -> Option<&T> {
        match self.near.get(cpu) {
            Some(block) => block.get(),
            None => self.others.get()?.get((cpu - NEAR) / CHUNK)?.get()?[cpu % CHUNK].get(),
        }
    }

    /// Returns the block of CPU number `cpu`, allocated on first use.
    ///
    /// # Panics
    ///
    /// When there is no such CPU.
    pub(crate) fn get_or_make(&self, cpu: usize, make: impl FnOnce() -> T) -> &T {
        assert!(cpu < self.nr_cpus, "there is no CPU {cpu}");
        let block = match self.near.get(cpu) {
            Some(block) => block,
            None => {
                let chunk = &self.others()[(cpu - NEAR) / CHUNK];
                let empty = || Box::new(std::array::from_fn(|_| Published::empty()));
                &chunk.get().unwrap_or_else(|| chunk.publish(empty()))[cpu % CHUNK]
            }
        };
        match block.get() {
            Some(block) => block,
            None => block.publish(Box::new(make())),
        }
    }

    /// Returns the directory of the CPUs that are not near, allocated on first use.
    fn others(&self) -> &[Published<Chunk<T>>] {
        match self.others.get() {
            Some(others) => others,
            None => {
                let chunks = self.nr_cpus.saturating_sub(NEAR).div_ceil(CHUNK);
                let empty = iter::repeat_with(Published::empty);
                self.others.publish(Box::new(empty.take(chunks).collect()))
            }
        }
    }

    /// Visits the existing blocks of CPUs in the runs that `bits` names, each of `1 << run_shift`
    /// CPUs, lowest first.
    #[inline]
    pub(crate) fn each_of<'a>(&'a self, bits: u64, run_shift: u32, visit: &mut impl FnMut(&'a T)) {
        if bits == 0 {
            return;
        }
        let chunk_of = |run: u32| ((run as usize) << run_shift) / CHUNK;
        let (first, last) = (bits.trailing_zeros(), 64 - bits.leading_zeros());
        let chunks = self.chunks().enumerate().take(chunk_of(last) + 1);
        for (nth, chunk) in chunks.skip(chunk_of(first)) {
            let mut cpus = cpus_of_chunk(bits, run_shift, nth);
            let Some(chunk) = chunk.filter(|_| cpus != 0) else {
                continue;
            };
            // Most often all; half as many instructions.
            if cpus == u16::MAX {
                chunk
                    .iter()
                    .filter_map(Published::get)
                    .for_each(&mut *visit);
                continue;
            }
            while cpus != 0 {
                if let Some(block) = chunk[cpus.trailing_zeros() as usize % CHUNK].get() {
                    visit(block);
                }
                cpus &= cpus - 1;
            }
        }
    }

    /// Returns the existing blocks, with the numbers of their CPUs, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let chunks = self.chunks().enumerate();
        chunks
            .filter_map(|(nth, chunk)| Some((nth, chunk?)))
            .flat_map(|(nth, chunk)| {
                let blocks = chunk.iter().enumerate();
                blocks.filter_map(move |(at, block)| Some((nth * CHUNK + at, block.get()?)))
            })
    }

    /// Returns all chunks, lowest first; `None` for those that are not allocated.
    #[inline]
    fn chunks(&self) -> impl Iterator<Item = Option<&Chunk<T>>> {
        let near = self.near.as_chunks().0.iter().map(Some);
        let others = self.others.get().map_or(&[][..], |others| others);
        near.chain(others.iter().map(Published::get))
    }
}

/// Returns the CPUs of chunk number `nth` that are in the runs of `1 << run_shift` that `bits`
/// names.
#[inline]
fn cpus_of_chunk(bits: u64, run_shift: u32, nth: usize) -> u16 {
    let run_of = |cpu: usize| u32::try_from(cpu >> run_shift).unwrap_or(u32::MAX);
    let is_in = |run| bits.checked_shr(run).is_some_and(|bits| bits & 1 != 0);
    let first = nth * CHUNK;
    if run_shift == 0 {
        #[expect(clippy::cast_possible_truncation, reason = "those of one chunk")]
        return bits.checked_shr(run_of(first)).unwrap_or(0) as u16;
    }
    let run_len = CHUNK.min(1 << run_shift);
    let of_run = u16::MAX >> (CHUNK - run_len);
    let runs = (0..CHUNK).step_by(run_len);
    let cpus = runs.map(|at| match is_in(run_of(first + at)) {
        true => of_run << at,
        false => 0,
    });
    cpus.fold(0, |cpus, run| cpus | run)
}

impl<T: fmt::Debug, const NEAR: usize> fmt::Debug for Blocks<T, NEAR> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_made_once_and_only_where_asked_for() {
        // Goal: a block for each CPU that requested one, the same each time, and no other. Method:
        // request some of 1,000, twice, with constructors that count.
        asked_for_one_by_one::<0>();
        asked_for_one_by_one::<16>();
    }

    fn asked_for_one_by_one<const NEAR: usize>() {
        let blocks = Blocks::<_, NEAR>::none(1000);
        let cpus = [0, 1, 15, 16, 383, 999];
        for round in 0..2 {
            for cpu in cpus {
                assert_eq!(*blocks.get_or_make(cpu, || (cpu, round)), (cpu, 0));
            }
        }
        let found: Vec<_> = blocks.iter().map(|(cpu, block)| (cpu, block.0)).collect();
        assert_eq!(found, cpus.map(|cpu| (cpu, cpu)));
        let others = [2, 500, 1000, usize::MAX];
        assert!(others.iter().all(|&cpu| blocks.get(cpu).is_none()));
        let mut named = Vec::new();
        let mut name = |block: &(usize, _)| named.push(block.0);
        blocks.each_of(1 << 1 | 1 << 2 | 1 << 16, 0, &mut name);
        // Runs of 16 CPUs: 0 to 15, 368 to 383, 992 to 1,007.
        blocks.each_of(1 << 23 | 1 << 62, 4, &mut name);
        blocks.each_of(1, 4, &mut name);
        // Runs of 2.
        blocks.each_of(1 << 7 | 1 << 8, 1, &mut name);
        assert_eq!(named, [1, 16, 383, 999, 0, 1, 15, 15, 16]);
    }
}
