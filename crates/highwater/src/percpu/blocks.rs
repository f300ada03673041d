//! Per-CPU blocks, allocated lazily for the CPUs that use them.
//!
//! Many objects are used on few of the CPUs: a group of a tenant on two of 384. The per-CPU state
//! of such an object is allocated when its CPU first uses it, and stays until the object goes. The
//! directory has two levels, so that it is small too: 8 bytes for each [`CHUNK`] CPUs of the
//! machine, and [`CHUNK`] addresses where there is a block. A frequently used object holds the
//! addresses of the first CPUs in itself (`NEAR`): their blocks are one cache line nearer for each
//! level.
//!
//! **Protocol.** As [`Published`], at both levels: the first user allocates the chunk or block; of
//! two concurrent ones one wins, and the other's is dropped.

use std::fmt;
use std::iter;

use super::Published;

/// CPUs that share a chunk of the directory: their addresses fill two cache lines.
const CHUNK: usize = 16;

const CHUNKS_OF_64: usize = 64 / CHUNK;
const BITS_OF_CHUNK: u64 = (1 << CHUNK) - 1;

/// The addresses of neighbouring CPUs' blocks.
type Chunk<T> = [Published<T>; CHUNK];

/// Blocks of `T`, by CPU. The addresses of the first `NEAR`, a multiple of [`CHUNK`], are stored
/// here.
// In this order: the addresses come first.
#[repr(C)]
pub(crate) struct Blocks<T, const NEAR: usize = 0> {
    near: [Published<T>; NEAR],
    others: Box<[Published<Chunk<T>>]>,
    nr_cpus: usize,
}

impl<T, const NEAR: usize> Blocks<T, NEAR> {
    /// Returns a directory without blocks, for CPUs below `nr_cpus`.
    pub(crate) fn none(nr_cpus: usize) -> Self {
        const { assert!(NEAR.is_multiple_of(CHUNK)) };
        let others = nr_cpus.saturating_sub(NEAR).div_ceil(CHUNK);
        let empty = iter::repeat_with(Published::empty);
        Self {
            near: std::array::from_fn(|_| Published::empty()),
            others: empty.take(others).collect(),
            nr_cpus,
        }
    }

    /// Returns the block of CPU number `cpu`, if that CPU exists and has one.
    #[inline]
    pub(crate) fn get(&self, cpu: usize) -> Option<&T> {
        match self.near.get(cpu) {
            Some(block) => block.get(),
            None => self.others.get((cpu - NEAR) / CHUNK)?.get()?[cpu % CHUNK].get(),
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
                let chunk = &self.others[(cpu - NEAR) / CHUNK];
                let empty = || Box::new(std::array::from_fn(|_| Published::empty()));
                &chunk.get().unwrap_or_else(|| chunk.publish(empty()))[cpu % CHUNK]
            }
        };
        match block.get() {
            Some(block) => block,
            None => block.publish(Box::new(make())),
        }
    }

    /// Visits the existing blocks among those of the `nth` 64 CPUs that `bits` names, lowest first.
    #[inline]
    pub(crate) fn each_of<'a>(&'a self, nth: usize, bits: u64, visit: &mut impl FnMut(&'a T)) {
        let chunks = self.chunks().skip(nth * CHUNKS_OF_64).take(CHUNKS_OF_64);
        for (nth, chunk) in chunks.enumerate() {
            let mut bits = bits >> (nth * CHUNK) & BITS_OF_CHUNK;
            let Some(chunk) = chunk.filter(|_| bits != 0) else {
                continue;
            };
            while bits != 0 {
                if let Some(block) = chunk[bits.trailing_zeros() as usize % CHUNK].get() {
                    visit(block);
                }
                bits &= bits - 1;
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
        near.chain(self.others.iter().map(Published::get))
    }
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
        blocks.each_of(0, 1 << 1 | 1 << 2 | 1 << 16, &mut |block| {
            named.push(block.0)
        });
        blocks.each_of(5, 1 << 63, &mut |block| named.push(block.0));
        assert_eq!(named, [1, 16, 383]);
    }
}
