//! Contents of each page of a replayed file: a function of seed, tenant, page number and version.
//!
//! Invariant: two pages that differ in any of the four differ in their header, and in almost every
//! word behind it, so that a page read from the wrong place, at the wrong time or in part is
//! detected. All 4,096 bytes are determined and checked.
//!
//! Layout, in little-endian words of 64 bits: [`MAGIC`], page number, tenant and version, seed,
//! then `base ^ PATTERN[i]`. `base` is a hash of the header and `PATTERN` a fixed table, so that
//! filling and checking are one xor a word, without a dependency between words, which the compiler
//! vectorises. The first word is never zero: a page that begins with zero is a hole of the sparse
//! file.

use std::fmt;

use highwater::units::PAGE_SIZE;

/// Words of 64 bits in a page.
const WORDS: usize = PAGE_SIZE / 8;

/// Words in front of the pattern.
const HEADER_WORDS: usize = 4;

/// First word of every page: `hw-page` and a format number, never zero.
const MAGIC: u64 = u64::from_le_bytes(*b"hw-page1");

/// The part of the pattern that differs between the words of one page.
static PATTERN: [u64; WORDS] = {
    let mut table = [0; WORDS];
    let mut i = 0;
    while i < WORDS {
        table[i] = mix(i as u64 + 1);
        i += 1;
    }
    table
};

/// A bijection of 64-bit words that spreads every input bit over the whole word.
///
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014),
/// the finaliser of `SplitMix64`.
const fn mix(word: u64) -> u64 {
    let mut x = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The four numbers that determine a page's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageStamp {
    /// The run's seed.
    pub(super) seed: u64,
    /// Index of the tenant whose file it is.
    pub(super) tenant: u32,
    /// Page number in that file.
    pub(super) page: u64,
    /// 0 as laid out, then one more with each write.
    pub(super) version: u32,
}

impl PageStamp {
    fn header(self) -> [u64; HEADER_WORDS] {
        let owner = u64::from(self.tenant) << 32 | u64::from(self.version);
        [MAGIC, self.page, owner, self.seed]
    }

    fn base(self) -> u64 {
        let [magic, page, owner, seed] = self.header();
        mix(mix(mix(seed ^ magic) ^ page) ^ owner)
    }

    /// Writes the page's contents over `buf`.
    ///
    /// # Panics
    ///
    /// When `buf` is not one page long.
    pub(super) fn fill(self, buf: &mut [u8]) {
        let (words, rest) = buf.as_chunks_mut::<8>();
        assert!(words.len() == WORDS && rest.is_empty(), "not one page");
        let base = self.base();
        for (word, pattern) in words.iter_mut().zip(&PATTERN) {
            *word = (base ^ pattern).to_le_bytes();
        }
        for (word, value) in words.iter_mut().zip(self.header()) {
            *word = value.to_le_bytes();
        }
    }

    /// Compares all of `buf` with the page's contents.
    ///
    /// # Cost
    ///
    /// One pass over the page: 105 ns in cache (2-core x86-64 virtual machine, SSE2,
    /// `cargo test --release -p highwater-lab content -- --ignored --nocapture`, November 2026).
    ///
    /// # Errors
    ///
    /// States the first difference and, when the header can be read, which page was found.
    pub(super) fn verify(self, buf: &[u8]) -> Result<(), Mismatch> {
        let (words, rest) = buf.as_chunks::<8>();
        if words.len() != WORDS || !rest.is_empty() {
            return Err(self.describe(buf));
        }
        let (header, body) = words.split_at(HEADER_WORDS);
        let mut difference = 0;
        for (word, expected) in header.iter().zip(self.header()) {
            difference |= u64::from_le_bytes(*word) ^ expected;
        }
        difference |= difference_of(body, self.base());
        if difference == 0 {
            Ok(())
        } else {
            Err(self.describe(buf))
        }
    }

    #[cold]
    fn describe(self, buf: &[u8]) -> Mismatch {
        let mut expected = [0; PAGE_SIZE];
        self.fill(&mut expected);
        let differs = |(found, wanted): (&u8, &u8)| found != wanted;
        let bytes_of_both = buf.iter().zip(&expected);
        let shorter = expected.len().saturating_sub(buf.len());
        Mismatch {
            expected: self,
            found: Self::read_header(buf),
            offset: bytes_of_both
                .clone()
                .position(differs)
                .unwrap_or_else(|| buf.len().min(PAGE_SIZE)),
            bytes: bytes_of_both.filter(|pair| differs(*pair)).count() + shorter,
            is_zero: buf.iter().all(|byte| *byte == 0),
        }
    }

    fn read_header(buf: &[u8]) -> Option<Self> {
        let (words, _) = buf.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let (magic, page, owner, seed) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        let half = |word: u64| u32::try_from(word & u64::from(u32::MAX)).ok();
        (magic == MAGIC).then_some(Self {
            seed,
            tenant: half(owner >> 32)?,
            page,
            version: half(owner)?,
        })
    }
}

/// Returns zero if the words behind the header are `base ^ PATTERN[i]`.
fn difference_of(body: &[[u8; 8]], base: u64) -> u64 {
    let pairs = body.iter().zip(&PATTERN[HEADER_WORDS..]);
    let differences = pairs.map(|(word, pattern)| u64::from_le_bytes(*word) ^ pattern ^ base);
    differences.fold(0, |all, difference| all | difference)
}

/// Returns whether a page read from a sparse file was never laid out.
pub(super) fn is_hole(page: &[u8]) -> bool {
    page.first_chunk() == Some(&[0; 8])
}

/// A page with the wrong contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// The expected page.
    pub(super) expected: PageStamp,
    /// The page that the header names, if there is a header.
    pub(super) found: Option<PageStamp>,
    /// Offset of the first byte that differs.
    pub(super) offset: usize,
    /// Number of bytes that differ.
    pub(super) bytes: usize,
    /// The page holds nothing but zeros: it was never laid out, or its data was lost.
    pub(super) is_zero: bool,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PageStamp { page, version, .. } = self.expected;
        write!(
            f,
            "page {page} must be at version {version}, but {} of its bytes differ, the first at offset {}: ",
            self.bytes, self.offset
        )?;
        match self.found {
            Some(found) if found == self.expected => {
                write!(f, "its header is right, its contents are not")
            }
            Some(found) => write!(
                f,
                "its header says tenant {}, page {}, version {}",
                found.tenant, found.page, found.version
            ),
            None if self.is_zero => write!(f, "it holds only zeros"),
            None => write!(f, "it has no header"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::time::Instant;

    const STAMP: PageStamp = PageStamp {
        seed: 7,
        tenant: 3,
        page: 1 << 33,
        version: 9,
    };

    fn page(stamp: PageStamp) -> Vec<u8> {
        let mut page = vec![0; PAGE_SIZE];
        stamp.fill(&mut page);
        page
    }

    /// Goal: every byte is checked. Method: flip each byte of a page in turn.
    #[test]
    fn a_flip_of_any_byte_is_found() {
        let mut page = page(STAMP);
        assert_eq!(STAMP.verify(&page), Ok(()));
        for offset in 0..PAGE_SIZE {
            page[offset] ^= 0x10;
            let mismatch = STAMP.verify(&page).unwrap_err();
            assert_eq!((mismatch.offset, mismatch.bytes), (offset, 1));
            page[offset] ^= 0x10;
        }
    }

    /// Goal: no other page passes for the expected one. Method: change one of the four numbers.
    #[test]
    fn a_page_of_another_stamp_is_found_and_named() {
        let others = [
            PageStamp { seed: 8, ..STAMP },
            PageStamp { tenant: 2, ..STAMP },
            PageStamp { page: 1, ..STAMP },
            PageStamp {
                version: 8,
                ..STAMP
            },
        ];
        for other in others {
            let mismatch = STAMP.verify(&page(other)).unwrap_err();
            assert_eq!(mismatch.found, Some(other));
            assert!(mismatch.bytes > PAGE_SIZE / 2, "{mismatch}");
        }
    }

    #[test]
    fn holes_and_short_pages_are_found() {
        let zeros = vec![0; PAGE_SIZE];
        assert!(is_hole(&zeros) && !is_hole(&page(STAMP)));
        assert!(STAMP.verify(&zeros).unwrap_err().is_zero);
        let mismatch = STAMP.verify(&page(STAMP)[..100]).unwrap_err();
        assert_eq!((mismatch.offset, mismatch.bytes), (100, PAGE_SIZE - 100));
    }

    #[test]
    #[ignore = "a measurement; run with --release --ignored --nocapture"]
    fn cost_of_verify() {
        let page = page(STAMP);
        let rounds = 100_000;
        let batch = || {
            let start = Instant::now();
            for _ in 0..rounds {
                assert!(black_box(STAMP).verify(black_box(&page)).is_ok());
            }
            start.elapsed() / rounds
        };
        let least = (0..20).map(|_| batch()).min().unwrap();
        eprintln!("verify: {least:?} a page, least of 20 batches");
    }
}
