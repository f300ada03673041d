//! The expected contents of each page.
//!
//! Every word of a page encodes its file, page, position in the page, and version of the page: a
//! byte that is old, torn, or of another page is detected anywhere. Writers raise the page's
//! version under its latch, so a thread that holds the latch, or fills or writes the page back,
//! knows the one version that it must have.

#![expect(
    clippy::cast_possible_truncation,
    reason = "halves of words are cut out"
)]

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) type Bytes = [u8];

/// Content of a page before the first write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    /// As every other version.
    Stamped,
    /// Zeros, and so is every fifth version.
    Empty,
}

/// One file, or memory object.
#[derive(Debug)]
pub(crate) struct Model {
    id: u32,
    len: u64,
    page_size: usize,
    begins: Begins,
    /// Raised by the holder of the page's latch for writing.
    versions: Vec<AtomicU32>,
    /// The versions whose latch was released.
    settled: Vec<AtomicU32>,
}

impl Model {
    /// Creates `words` words in as many pages as that takes, the last of them partial.
    pub(crate) fn new(id: u32, words: u64, page_size: usize, begins: Begins) -> Self {
        let len = words * 8;
        let none_written = || {
            let pages = 0..len.div_ceil(page_size as u64);
            pages.map(|_| AtomicU32::new(0)).collect()
        };
        Self {
            id,
            len,
            page_size,
            begins,
            versions: none_written(),
            settled: none_written(),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn pages(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Returns the number of bytes that the file has of a page.
    pub(crate) fn page_len(&self, page: u64) -> usize {
        let size = self.page_size as u64;
        (self.len - page * size).min(size) as usize
    }

    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Returns a word of a page, less its version.
    fn mark(&self, page: u64, word: usize) -> u32 {
        let place = u64::from(self.id) << 48 | page << 16 | word as u64;
        (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
    }

    fn is_empty(&self, version: u32) -> bool {
        self.begins == Begins::Empty && version.is_multiple_of(5)
    }

    /// Fills a page, as far as the file has it.
    fn stamp(&self, bytes: &mut Bytes, page: u64, version: u32) {
        let len = self.page_len(page);
        if self.is_empty(version) {
            return bytes[..len].fill(0);
        }
        for (nth, word) in bytes[..len].chunks_exact_mut(8).enumerate() {
            let mark = u64::from(self.mark(page, nth));
            word.copy_from_slice(&(u64::from(version) << 32 | mark).to_le_bytes());
        }
    }

    /// Returns a page before the first write.
    pub(crate) fn first(&self, page: u64) -> Box<Bytes> {
        let mut bytes = vec![0; self.page_size].into_boxed_slice();
        self.stamp(&mut bytes, page, 0);
        bytes
    }

    /// Returns the versions of a page's words, or a description of the corruption. Zero versions
    /// cannot be distinguished: they count as the first.
    fn versions_in(&self, bytes: &[u8], page: u64) -> Result<RangeInclusive<u32>, String> {
        self.versions_from(0, bytes, page)
    }

    /// As [`versions_in`](Self::versions_in), for a part of the page that begins with word `first`.
    fn versions_from(
        &self,
        first: usize,
        bytes: &[u8],
        page: u64,
    ) -> Result<RangeInclusive<u32>, String> {
        let (mut least, mut most) = (u32::MAX, 0);
        for (nth, word) in (first..).zip(bytes.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            let (version, mark) = ((word >> 32) as u32, word as u32);
            let is_empty = self.begins == Begins::Empty && word == 0;
            if !is_empty && mark != self.mark(page, nth) {
                return Err(format!(
                    "word {nth} is not of page {page} of file {}: {word:#x}",
                    self.id
                ));
            }
            (least, most) = (least.min(version), most.max(version));
        }
        Ok(least..=most)
    }

    /// Compares the file's bytes of a page with the last version. The caller prevents writes to the
    /// page.
    pub(crate) fn check_page(&self, bytes: &[u8], page: u64) -> Result<(), String> {
        let want = self.version(page);
        let found = self.versions_in(bytes, page)?;
        let want = if self.is_empty(want) { 0 } else { want };
        if found == (want..=want) {
            return Ok(());
        }
        Err(format!(
            "page {page} of file {} holds versions {found:?}, not {want}",
            self.id
        ))
    }

    fn version(&self, page: u64) -> u32 {
        self.versions[index(page)].load(Ordering::Relaxed)
    }

    /// Returns the last version of each page. No thread writes.
    pub(crate) fn versions(&self) -> Vec<u32> {
        (0..self.pages()).map(|page| self.version(page)).collect()
    }

    /// As [`check_page`](Self::check_page), for all of a page's bytes.
    pub(crate) fn assert_page(&self, bytes: &Bytes, page: u64) {
        let (within, beyond) = bytes.split_at(self.page_len(page));
        if let Err(wrong) = self.check_page(within, page) {
            panic!("{wrong}");
        }
        assert!(
            beyond.iter().all(|&byte| byte == 0),
            "page {page} is not zero beyond the file's end"
        );
    }

    /// Returns the oldest version of a word of a page on storage.
    pub(crate) fn least_version(&self, bytes: &[u8], page: u64) -> u32 {
        let found = self.versions_in(bytes, page);
        *found
            .unwrap_or_else(|wrong| panic!("on storage: {wrong}"))
            .start()
    }

    /// Asserts that every word is of the given version of a page, or of a later one.
    pub(crate) fn assert_version(&self, bytes: &[u8], page: u64, at_least: u32) {
        let least = self.least_version(bytes, page);
        assert!(
            least >= at_least,
            "page {page} of file {} was synced at version {at_least}; stored: {least}",
            self.id
        );
    }

    /// Compares bytes that were copied from word `first` of the file on with the versions `settled`
    /// before: of each page one version, which was the last one at some moment since.
    pub(crate) fn assert_copy(&self, mut bytes: &[u8], first: u64, settled: &[u32]) {
        let mut at = first * 8;
        while !bytes.is_empty() {
            let size = self.page_size as u64;
            let (page, begin) = (at / size, (at % size) as usize);
            let (piece, rest) = bytes.split_at(bytes.len().min(self.page_size - begin));
            let found = self.versions_from(begin / 8, piece, page);
            let found = found.unwrap_or_else(|wrong| panic!("copied: {wrong}"));
            let possible = settled[index(page)]..=self.version(page);
            let is_one =
                |version: u32| *found.start() == if self.is_empty(version) { 0 } else { version };
            assert!(
                found.start() == found.end() && possible.clone().any(is_one),
                "copied of page {page} of file {}: versions {found:?}, not one of {possible:?}",
                self.id
            );
            at += piece.len() as u64;
            bytes = rest;
        }
    }

    /// Writes the next version into a page whose latch the caller holds, and returns it.
    pub(crate) fn write_next(&self, bytes: &mut Bytes, page: u64) -> u32 {
        self.assert_page(bytes, page);
        let next = self.version(page) + 1;
        self.stamp(bytes, page, next);
        self.versions[index(page)].store(next, Ordering::Relaxed);
        next
    }

    /// Advances to the next zero version. No other thread uses the page.
    pub(crate) fn empty(&self, page: u64) {
        let next = self.version(page).next_multiple_of(5);
        assert!(self.is_empty(next), "a file's page is never empty");
        self.versions[index(page)].store(next, Ordering::Relaxed);
        self.settle(page, next);
    }

    /// Records that the page's latch was released: a sync that starts from here on brings this
    /// version, or a later one, to storage.
    pub(crate) fn settle(&self, page: u64, version: u32) {
        // Release. Pairs with: the acquire of `settled`.
        self.settled[index(page)].fetch_max(version, Ordering::Release);
    }

    /// Returns the versions that a sync that begins now has to bring to storage.
    pub(crate) fn settled(&self) -> Vec<u32> {
        let settled = self.settled.iter();
        // Acquire. Pairs with: the release of `settle`.
        settled
            .map(|version| version.load(Ordering::Acquire))
            .collect()
    }
}

pub(crate) fn index(page: u64) -> usize {
    usize::try_from(page).expect("a small file")
}
