//! Hash table on disk from 64-bit keys to ranges of pages, which are laid out one after the other
//! in a backing file. Memory does not grow with the number of keys.
//!
//! Mechanism: linear hashing. Buckets of 4 KiB lie in a temporary file and hold 255 entries of 16
//! bytes; a full bucket continues in an overflow bucket, of a second file. When the buckets are
//! [`FILL_PERCENT`] full on average, *one* is split, in turn, so that growth never stops to rehash.
//! A direct-mapped table of 1 MiB caches the keys in use.
//!
//! Invariants, with `n` buckets and `2^l <= n < 2^(l+1)`:
//! - A key's bucket is `h mod 2^(l+1)` if that is below `n`, else `h mod 2^l`.
//! - A key is in its bucket's chain exactly once, and the front table never contradicts the chain.
//! - Extents do not overlap: each begins at the end of the previous one.
//!
//! Failure: a store that fails can leave a chain half written, so the directory refuses all work
//! after the first error rather than give a wrong answer.
//!
//! Source: W. Litwin, "Linear Hashing: A New Tool for File and Table Addressing", VLDB 1980.
//! Deviation: splits are triggered by the average fill, not by the first overflow, so that chains
//! stay short and buckets well used.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use super::bucket::{Bucket, BucketStore, Buckets, ENTRIES, Extent, Place};
use super::error::DirectoryError;
use super::request::PAGE_LIMIT;

/// Largest number of pages of one key: the capacity of an extent, far above what a request can ask
/// for.
pub(super) const EXTENT_PAGES_MAX: u64 = 1 << 32;

/// Average fill at which a bucket is split. Chosen: buckets that wait for their split hold up to
/// twice the average, so at 60 % they need an overflow bucket only late in a round.
const FILL_PERCENT: u64 = 60;

/// Entries of the front table, 16 bytes each. Chosen: 1 MiB, about a level-2 cache.
const FRONT: usize = 1 << 16;

/// Maps keys to ranges of pages, in bounded memory.
///
/// # Cost
///
/// Memory: 1 MiB and a few buckets, whatever the number of keys; disk: about 30 bytes a key. A key
/// of the front table costs one cache line. Another known key costs one read of 4 KiB (two in a
/// chain), which the system's page cache serves while it can; a new key a read and a write, and one
/// new key in 153 a split, of a few reads and writes.
///
/// # Examples
///
/// ```
/// use highwater_lab::trace::KeyDirectory;
///
/// let mut directory = KeyDirectory::new_in(&std::env::temp_dir())?;
/// assert_eq!(directory.locate(900, 2)?, 0..2);
/// assert_eq!(directory.locate(7, 1)?, 2..3);
/// assert_eq!(directory.locate(900, 1)?, 0..1, "fewer pages: the head of its extent");
/// assert_eq!(directory.locate(900, 3)?, 3..6, "more pages: a new extent");
/// assert_eq!(directory.pages_allocated(), 6);
/// # Ok::<(), highwater_lab::trace::DirectoryError>(())
/// ```
pub struct KeyDirectory<S = File> {
    buckets: Buckets<S>,
    front: Box<[(u64, Extent)]>,
    nr_buckets: u64,
    nr_keys: u64,
    pages_allocated: u64,
    is_broken: bool,
    bucket: Bucket,
    scratch: Bucket,
    /// Entries of the chain under a split.
    chain: Vec<(u64, Extent)>,
}

impl<S> fmt::Debug for KeyDirectory<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyDirectory")
            .field("nr_keys", &self.nr_keys)
            .field("nr_buckets", &self.nr_buckets)
            .field("nr_overflow", &self.buckets.nr_overflow)
            .field("pages_allocated", &self.pages_allocated)
            .field("is_broken", &self.is_broken)
            .finish_non_exhaustive()
    }
}

impl KeyDirectory<File> {
    /// Creates an empty directory in unlinked temporary files of `folder`, which vanish with it.
    ///
    /// # Errors
    ///
    /// When the files cannot be created or written.
    pub fn new_in(folder: &Path) -> Result<Self, DirectoryError> {
        Self::with_stores(
            tempfile::tempfile_in(folder)?,
            tempfile::tempfile_in(folder)?,
        )
    }
}

impl<S: BucketStore> KeyDirectory<S> {
    /// Creates an empty directory over two empty stores: for the buckets and for their overflow.
    ///
    /// # Errors
    ///
    /// When the first bucket cannot be written.
    pub fn with_stores(primary: S, overflow: S) -> Result<Self, DirectoryError> {
        let mut buckets = Buckets::new(primary, overflow);
        let bucket = Bucket::new();
        buckets.write(Place::Primary(0), &bucket)?;
        Ok(Self {
            buckets,
            front: vec![(0, Extent::NONE); FRONT].into_boxed_slice(),
            nr_buckets: 1,
            nr_keys: 0,
            pages_allocated: 0,
            is_broken: false,
            bucket,
            scratch: Bucket::new(),
            chain: Vec::new(),
        })
    }

    /// Returns the number of keys.
    #[must_use]
    pub const fn nr_keys(&self) -> u64 {
        self.nr_keys
    }

    /// Returns the number of pages allocated, including abandoned ones: all ranges lie below it.
    #[must_use]
    pub const fn pages_allocated(&self) -> u64 {
        self.pages_allocated
    }

    /// Returns the first `pages` pages of a key (0 counts as 1). A repeated key has the same pages,
    /// unless it asks for more than it has: then it moves to a new extent, and the old one is
    /// abandoned.
    ///
    /// # Errors
    ///
    /// When the pages are out of range, which changes nothing; or when a store fails, after which
    /// the directory refuses all work.
    pub fn locate(&mut self, key: u64, pages: u64) -> Result<Range<u64>, DirectoryError> {
        let pages = pages.max(1);
        let hash = hash(key);
        let slot = &self.front[front_index(hash)];
        if slot.0 == key && slot.1.pages() >= pages && !self.is_broken {
            let first = slot.1.first();
            return Ok(first..first + pages);
        }
        let first = self.locate_slowly(key, hash, pages)?.first();
        Ok(first..first + pages)
    }

    fn locate_slowly(&mut self, key: u64, hash: u64, pages: u64) -> Result<Extent, DirectoryError> {
        if self.is_broken {
            return Err(DirectoryError::Broken);
        }
        let (extent, allocated) = self.plan(key, pages)?;
        self.is_broken = true;
        let extent = self.find_or_insert(key, hash, pages, extent, allocated)?;
        self.is_broken = false;
        self.front[front_index(hash)] = (key, extent);
        Ok(extent)
    }

    /// Returns the extent that the key would get, and the number of pages allocated then.
    fn plan(&self, key: u64, pages: u64) -> Result<(Extent, u64), DirectoryError> {
        if pages > EXTENT_PAGES_MAX {
            return Err(DirectoryError::TooLarge { key, pages });
        }
        let extent = Extent::new(self.pages_allocated & (PAGE_LIMIT - 1), pages);
        let allocated = self.pages_allocated + extent.pages();
        if allocated > PAGE_LIMIT {
            let allocated = self.pages_allocated;
            return Err(DirectoryError::Full {
                key,
                pages,
                allocated,
            });
        }
        Ok((extent, allocated))
    }

    /// Walks the key's chain; returns its extent if that is long enough, else writes and returns
    /// `fresh`.
    fn find_or_insert(
        &mut self,
        key: u64,
        hash: u64,
        pages: u64,
        fresh: Extent,
        allocated: u64,
    ) -> Result<Extent, DirectoryError> {
        let mut place = Place::Primary(bucket_of(hash, self.nr_buckets));
        loop {
            self.buckets.read(place, &mut self.bucket)?;
            if let Some(index) = self.bucket.find(key) {
                let (_, known) = self.bucket.entry(index);
                if known.pages() >= pages {
                    return Ok(known);
                }
                self.bucket.set_entry(index, key, fresh);
                self.buckets.write(place, &self.bucket)?;
                self.pages_allocated = allocated;
                return Ok(fresh);
            }
            match self.bucket.next() {
                Some(next) => place = Place::Overflow(next),
                None => break,
            }
        }
        self.append(place, key, fresh)?;
        self.pages_allocated = allocated;
        self.nr_keys += 1;
        if self.nr_keys * 100 > self.nr_buckets * ENTRIES as u64 * FILL_PERCENT {
            self.split()?;
        }
        Ok(fresh)
    }

    /// Appends an entry to the last bucket of a chain, which is in `bucket`, or to a new one after
    /// it.
    fn append(&mut self, place: Place, key: u64, extent: Extent) -> Result<(), DirectoryError> {
        if self.bucket.push(key, extent) {
            return self.buckets.write(place, &self.bucket);
        }
        let added = self.buckets.alloc_overflow(&mut self.scratch)?;
        self.scratch.clear();
        assert!(self.scratch.push(key, extent), "an empty bucket has room");
        self.buckets.write(Place::Overflow(added), &self.scratch)?;
        self.bucket.set_next(Some(added));
        self.buckets.write(place, &self.bucket)
    }

    /// Splits the next bucket in turn: divides its keys between it and one new bucket.
    fn split(&mut self) -> Result<(), DirectoryError> {
        let new = self.nr_buckets;
        let old = new - (1 << new.ilog2());
        self.take_chain(old)?;
        let chain = std::mem::take(&mut self.chain);
        let moves = |entry: &(u64, Extent)| bucket_of(hash(entry.0), new + 1) == new;
        self.write_chain(new, chain.iter().copied().filter(moves))?;
        self.write_chain(old, chain.iter().copied().filter(|entry| !moves(entry)))?;
        self.chain = chain;
        self.nr_buckets += 1;
        Ok(())
    }

    /// Moves the entries of a whole chain to `chain` and frees its overflow buckets.
    fn take_chain(&mut self, number: u64) -> Result<(), DirectoryError> {
        self.chain.clear();
        let mut place = Place::Primary(number);
        loop {
            self.buckets.read(place, &mut self.bucket)?;
            let entries = (0..self.bucket.len()).map(|index| self.bucket.entry(index));
            self.chain.extend(entries);
            let next = self.bucket.next();
            if let Place::Overflow(number) = place {
                self.buckets.free_overflow(number, &mut self.scratch)?;
            }
            match next {
                Some(next) => place = Place::Overflow(next),
                None => return Ok(()),
            }
        }
    }

    /// Writes entries as the chain of a bucket, last overflow bucket first, so that each one's
    /// successor is known.
    fn write_chain(
        &mut self,
        number: u64,
        entries: impl Iterator<Item = (u64, Extent)>,
    ) -> Result<(), DirectoryError> {
        self.bucket.clear();
        for (key, extent) in entries {
            if self.bucket.push(key, extent) {
                continue;
            }
            let full = self.buckets.alloc_overflow(&mut self.scratch)?;
            self.buckets.write(Place::Overflow(full), &self.bucket)?;
            self.bucket.clear();
            self.bucket.set_next(Some(full));
            assert!(self.bucket.push(key, extent), "an empty bucket has room");
        }
        self.buckets.write(Place::Primary(number), &self.bucket)
    }
}

/// Returns the bucket of a hash among `nr_buckets`.
const fn bucket_of(hash: u64, nr_buckets: u64) -> u64 {
    let low = (1 << nr_buckets.ilog2()) - 1;
    let wide = hash & (low << 1 | 1);
    if wide < nr_buckets { wide } else { hash & low }
}

/// Returns the front table's slot of a hash: from its top bits, because buckets use the low ones.
const fn front_index(hash: u64) -> usize {
    const SHIFT: u32 = u64::BITS - FRONT.trailing_zeros();
    let [b0, b1, ..] = (hash >> SHIFT).to_le_bytes();
    u16::from_le_bytes([b0, b1]) as usize
}

/// Mixes a key so that every bit of the result depends on every bit of the key; one to one.
/// Source: the finalizer of `SplitMix64`: G. Steele, D. Lea and C. Flood, OOPSLA 2014.
const fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: splitting moves keys between exactly two buckets. Method: compare a hash's bucket
    // before and after each of the first splits.
    #[test]
    fn a_split_moves_keys_from_one_bucket_to_the_new_one() {
        for buckets in 1..200_u64 {
            let old = buckets - (1 << buckets.ilog2());
            for key in 0..1000 {
                let (before, after) = (
                    bucket_of(hash(key), buckets),
                    bucket_of(hash(key), buckets + 1),
                );
                assert!(before < buckets);
                assert!(before == after || (before == old && after == buckets));
            }
        }
    }
}
