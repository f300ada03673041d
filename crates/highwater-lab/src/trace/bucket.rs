//! Hash buckets of the [`KeyDirectory`](super::KeyDirectory): 4 KiB of entries, in memory and in
//! two files.
//!
//! Invariants: a bucket in memory has at most 255 entries (checked when it is read); an overflow
//! bucket is in one chain or in the free list, never both.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::error::DirectoryError;
use super::request::PAGE_LIMIT;

/// Bytes of a bucket: the unit of reading and writing.
pub(super) const BUCKET: usize = 4096;

/// A bucket's header: u32 number of entries, u32 unused, u64 next bucket of the chain plus one.
const HEADER: usize = 16;

/// Bytes of an entry: u64 key, u64 packed [`Extent`].
const ENTRY: usize = 16;

/// Entries of a bucket.
pub(super) const ENTRIES: usize = (BUCKET - HEADER) / ENTRY;

const _: () = assert!(HEADER + ENTRIES * ENTRY == BUCKET && ENTRIES == 255);

/// Random-access storage of the buckets, such as a file.
pub trait BucketStore {
    /// Fills `target` with the bytes from `offset`.
    ///
    /// # Errors
    ///
    /// When not all of them can be read.
    fn read_at(&self, target: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` from `offset`; the store grows as needed.
    ///
    /// # Errors
    ///
    /// When not all of them can be written.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

impl BucketStore for File {
    fn read_at(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(target, offset)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }
}

/// First page and length of a key's pages in 64 bits: 44 bits of page number, 15 of mantissa, 5 of
/// exponent. A length that needs more than 15 bits is rounded up, by less than 1/16,384 of itself.
/// Zero is never an extent, because a length is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent(u64);

impl Extent {
    pub(super) const NONE: Self = Self(0);
    const PAGE_BITS: u32 = PAGE_LIMIT.trailing_zeros();
    const MANTISSA_BITS: u32 = 15;

    /// Returns the extent from `first` for at least `pages`, both within the limits.
    pub(super) const fn new(first: u64, pages: u64) -> Self {
        let bits = u64::BITS - pages.leading_zeros();
        let mut exponent = bits.saturating_sub(Self::MANTISSA_BITS);
        if pages.div_ceil(1 << exponent) >> Self::MANTISSA_BITS != 0 {
            exponent += 1;
        }
        let length = (exponent as u64) << Self::MANTISSA_BITS | pages.div_ceil(1 << exponent);
        Self(length << Self::PAGE_BITS | first)
    }

    pub(super) const fn first(self) -> u64 {
        self.0 & (PAGE_LIMIT - 1)
    }

    pub(super) const fn pages(self) -> u64 {
        let length = self.0 >> Self::PAGE_BITS;
        (length & ((1 << Self::MANTISSA_BITS) - 1)) << (length >> Self::MANTISSA_BITS)
    }
}

/// A bucket in memory.
pub(super) struct Bucket {
    bytes: Box<[u8; BUCKET]>,
}

impl Bucket {
    pub(super) fn new() -> Self {
        let bytes = Box::new([0; BUCKET]);
        Self { bytes }
    }

    pub(super) fn clear(&mut self) {
        self.bytes[..HEADER].fill(0);
    }

    fn word(&self, at: usize) -> u64 {
        let word = self.bytes[at..].first_chunk();
        u64::from_le_bytes(*word.expect("words lie inside the bucket"))
    }

    fn set_word(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns the number of entries as stored: checked when a bucket is read.
    fn claimed_len(&self) -> u32 {
        let [b0, b1, b2, b3, ..] = *self.bytes;
        u32::from_le_bytes([b0, b1, b2, b3])
    }

    pub(super) fn len(&self) -> usize {
        self.claimed_len() as usize
    }

    fn set_len(&mut self, len: usize) {
        self.set_word(0, len as u64);
    }

    /// Returns the overflow bucket that continues this one.
    pub(super) fn next(&self) -> Option<u64> {
        self.word(8).checked_sub(1)
    }

    pub(super) fn set_next(&mut self, next: Option<u64>) {
        self.set_word(8, next.map_or(0, |next| next + 1));
    }

    pub(super) fn entry(&self, index: usize) -> (u64, Extent) {
        let at = HEADER + index * ENTRY;
        (self.word(at), Extent(self.word(at + 8)))
    }

    pub(super) fn set_entry(&mut self, index: usize, key: u64, extent: Extent) {
        let at = HEADER + index * ENTRY;
        self.set_word(at, key);
        self.set_word(at + 8, extent.0);
    }

    /// Appends an entry; returns `false` if the bucket is full.
    pub(super) fn push(&mut self, key: u64, extent: Extent) -> bool {
        let len = self.len();
        if len == ENTRIES {
            return false;
        }
        self.set_entry(len, key, extent);
        self.set_len(len + 1);
        true
    }

    pub(super) fn find(&self, key: u64) -> Option<usize> {
        let (entries, _) = self.bytes[HEADER..].as_chunks::<ENTRY>();
        let wanted = key.to_le_bytes();
        let mut keys = entries[..self.len()].iter();
        keys.position(|entry| entry.first_chunk() == Some(&wanted))
    }
}

/// Location of a bucket: its number among the primary or the overflow buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Primary(u64),
    Overflow(u64),
}

/// The bucket files, and the free list of overflow buckets.
pub(super) struct Buckets<S> {
    primary: S,
    overflow: S,
    pub(super) nr_overflow: u64,
    /// First of the free overflow buckets, chained by their next field.
    free_overflow: Option<u64>,
}

impl<S> Buckets<S> {
    /// Wraps empty files: no bucket is written yet.
    pub(super) const fn new(primary: S, overflow: S) -> Self {
        Self {
            primary,
            overflow,
            nr_overflow: 0,
            free_overflow: None,
        }
    }
}

impl<S: BucketStore> Buckets<S> {
    pub(super) fn read(&self, place: Place, bucket: &mut Bucket) -> Result<(), DirectoryError> {
        let (store, number) = match place {
            Place::Primary(number) => (&self.primary, number),
            Place::Overflow(number) => (&self.overflow, number),
        };
        store.read_at(&mut bucket.bytes[..], number * BUCKET as u64)?;
        let entries = bucket.claimed_len();
        if entries as usize > ENTRIES {
            return Err(DirectoryError::Corrupt {
                bucket: number,
                entries,
                most: ENTRIES,
            });
        }
        Ok(())
    }

    pub(super) fn write(&mut self, place: Place, bucket: &Bucket) -> Result<(), DirectoryError> {
        let (store, number) = match place {
            Place::Primary(number) => (&mut self.primary, number),
            Place::Overflow(number) => (&mut self.overflow, number),
        };
        store.write_at(&bucket.bytes[..], number * BUCKET as u64)?;
        Ok(())
    }

    /// Allocates a free overflow bucket, or the next new one; overwrites `scratch`.
    pub(super) fn alloc_overflow(&mut self, scratch: &mut Bucket) -> Result<u64, DirectoryError> {
        let Some(number) = self.free_overflow else {
            self.nr_overflow += 1;
            return Ok(self.nr_overflow - 1);
        };
        self.read(Place::Overflow(number), scratch)?;
        self.free_overflow = scratch.next();
        Ok(number)
    }

    /// Frees an overflow bucket; overwrites `scratch`.
    pub(super) fn free_overflow(
        &mut self,
        number: u64,
        scratch: &mut Bucket,
    ) -> Result<(), DirectoryError> {
        scratch.clear();
        scratch.set_next(self.free_overflow);
        self.write(Place::Overflow(number), scratch)?;
        self.free_overflow = Some(number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::directory::EXTENT_PAGES_MAX;

    // Goal: an extent keeps its first page and never loses a page. Method: lengths around every
    // power of two, at the smallest and the largest page.
    #[test]
    fn extents_hold_what_they_promise() {
        for shift in 0..=32 {
            for pages in [(1_u64 << shift) - 1, 1 << shift, (1 << shift) + 1] {
                let pages = pages.clamp(1, EXTENT_PAGES_MAX);
                for first in [0, 1, PAGE_LIMIT - 1] {
                    let extent = Extent::new(first, pages);
                    assert_eq!(extent.first(), first);
                    let excess = extent.pages() - pages;
                    assert!(
                        excess * 16_384 <= pages,
                        "{excess} of {pages} pages too many"
                    );
                    assert_ne!(extent, Extent::NONE);
                }
            }
        }
    }
}
