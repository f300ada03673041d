//! A block for each CPU that has asked for one.
//!
//! Many objects are used on few of the CPUs: a group of a tenant on two of 384. What such an object
//! keeps for each CPU is allocated when that CPU comes for the first time, and stays until the
//! object goes. The directory has two levels, so that it is small too: 8 bytes for each [`CHUNK`]
//! CPUs of the machine, and [`CHUNK`] addresses where there is a block.
//!
//! **Protocol.** As [`Published`], at both levels: whoever comes first makes the chunk or block, of
//! two that come at once one wins, and the other's is dropped.

use std::fmt;
use std::iter;

use super::Published;

/// CPUs that share a chunk of the directory: their addresses fill two cache lines.
const CHUNK: usize = 16;

const CHUNKS_OF_64: usize = 64 / CHUNK;
const BITS_OF_CHUNK: u64 = (1 << CHUNK) - 1;

/// The addresses of neighbouring CPUs' blocks.
type Chunk<T> = [Published<T>; CHUNK];

/// Blocks of `T`, by CPU.
pub(crate) struct Blocks<T> {
    chunks: Box<[Published<Chunk<T>>]>,
}

impl<T> Blocks<T> {
    /// No blocks, for CPUs below `nr_cpus`.
    pub(crate) fn none(nr_cpus: usize) -> Self {
        let chunks = iter::repeat_with(Published::empty);
        Self {
            chunks: chunks.take(nr_cpus.div_ceil(CHUNK)).collect(),
        }
    }

    /// The block of CPU number `cpu`, if it has asked for one.
    ///
    /// # Panics
    ///
    /// When there is no such CPU.
    #[inline]
    pub(crate) fn get(&self, cpu: usize) -> Option<&T> {
        self.chunks[cpu / CHUNK].get()?[cpu % CHUNK].get()
    }

    /// As [`get`](Self::get); none where there is no such CPU.
    #[inline]
    pub(crate) fn find(&self, cpu: usize) -> Option<&T> {
        self.chunks.get(cpu / CHUNK)?.get()?[cpu % CHUNK].get()
    }

    /// The block of CPU number `cpu`, made if this is the first time.
    ///
    /// # Panics
    ///
    /// When there is no such CPU.
    pub(crate) fn get_or_make(&self, cpu: usize, make: impl FnOnce() -> T) -> &T {
        let chunk = &self.chunks[cpu / CHUNK];
        let chunk = match chunk.get() {
            Some(chunk) => chunk,
            None => chunk.publish(Box::new(std::array::from_fn(|_| Published::empty()))),
        };
        let block = &chunk[cpu % CHUNK];
        match block.get() {
            Some(block) => block,
            None => block.publish(Box::new(make())),
        }
    }

    /// Visits those blocks of the `nth` 64 CPUs that there are and that `bits` names, lowest first.
    #[inline]
    pub(crate) fn each_of<'a>(&'a self, nth: usize, bits: u64, visit: &mut impl FnMut(&'a T)) {
        let first = nth * CHUNKS_OF_64;
        let end = self.chunks.len().min(first + CHUNKS_OF_64);
        for (nth, chunk) in self.chunks[first..end].iter().enumerate() {
            let mut bits = bits >> (nth * CHUNK) & BITS_OF_CHUNK;
            let Some(chunk) = chunk.get().filter(|_| bits != 0) else {
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

    /// The blocks that there are, with the numbers of their CPUs, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let chunks = self.chunks.iter().enumerate();
        chunks
            .filter_map(|(nth, chunk)| Some((nth, chunk.get()?)))
            .flat_map(|(nth, chunk)| {
                let blocks = chunk.iter().enumerate();
                blocks.filter_map(move |(at, block)| Some((nth * CHUNK + at, block.get()?)))
            })
    }
}

impl<T: fmt::Debug> fmt::Debug for Blocks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_made_once_and_only_where_asked_for() {
        // Goal: a block for each CPU that asked, the same each time, and no other. Method: ask for
        // some of 1,000, twice, with makers that count.
        let blocks = Blocks::none(1000);
        let cpus = [0, 1, 15, 16, 383, 999];
        for round in 0..2 {
            for cpu in cpus {
                assert_eq!(*blocks.get_or_make(cpu, || (cpu, round)), (cpu, 0));
            }
        }
        let found: Vec<_> = blocks.iter().map(|(cpu, block)| (cpu, block.0)).collect();
        assert_eq!(found, cpus.map(|cpu| (cpu, cpu)));
        assert!(blocks.get(2).is_none() && blocks.get(500).is_none());
    }
}
