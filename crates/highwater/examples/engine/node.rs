//! Pages as nodes of the tree. All numbers are little-endian; keys and children are aligned words,
//! so that a node can be searched while it is written to, and the search be thrown away.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | checksum of the rest, on storage only |
//! | 4..6, 6..8 | level of the node: 1 of leaves, more above them; number of entries |
//! | 8..16 | LSN of the last record that changed it |
//! | 16..24 | in page 0: the first page that was never used |
//! | 32.. | leaf: records of 128 bytes (key, length, value); inner node: pairs of key and child |
//!
//! An entry of an inner node leads to the keys from its own up to the next entry's.

use std::cmp::Ordering;

use highwater::PAGE_SIZE;

/// The bytes of a page.
pub(crate) type Page = [u8];

/// The longest value.
pub(crate) const VALUE_MAX: usize = RECORD - 9;
/// The most keys of a transaction: half a leaf, so that one split makes room for them.
pub(crate) const KEYS_MAX: usize = (PAGE_SIZE - BEGIN) / RECORD / 2;
/// The page that is the root from the first key to the last.
pub(crate) const ROOT: u64 = 1;
/// The page that says which pages are used.
pub(crate) const META: u64 = 0;

const BEGIN: usize = 32;
const RECORD: usize = 128;
const PAIR: usize = 16;

/// The level of leaves.
pub(crate) const LEAF: u16 = 1;

/// A page that is read by aligned words, whose values may be torn.
pub(crate) trait Words {
    fn word(&self, offset: usize) -> u64;
}

impl Words for Page {
    fn word(&self, offset: usize) -> u64 {
        let bytes = &self[offset..offset + 8];
        u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
    }
}

impl Words for &Page {
    fn word(&self, offset: usize) -> u64 {
        (**self).word(offset)
    }
}

/// Reading. Of a page that is being written to, all answers are within bounds, and wrong.
pub(crate) trait Node: Words {
    fn level(&self) -> u16 {
        let bytes = self.word(0).to_le_bytes();
        u16::from_le_bytes([bytes[4], bytes[5]])
    }

    fn is_leaf(&self) -> bool {
        self.level() == LEAF
    }

    fn lsn(&self) -> u64 {
        self.word(8)
    }

    /// Returns the number of the first page that was never used, of page 0.
    fn first_unused(&self) -> u64 {
        self.word(16)
    }

    fn count(&self) -> usize {
        usize::from((self.word(0) >> 48) as u16).min(self.capacity())
    }

    /// Returns how many entries a node of this level has room for.
    fn capacity(&self) -> usize {
        (PAGE_SIZE - BEGIN) / if self.is_leaf() { RECORD } else { PAIR }
    }

    fn key(&self, nth: usize) -> u64 {
        self.word(BEGIN + nth * if self.is_leaf() { RECORD } else { PAIR })
    }

    /// Returns the place of a key in a leaf, or the place where it belongs.
    fn find(&self, key: u64) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = (low + high) / 2;
            match self.key(middle).cmp(&key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Returns the child of an inner node that a key is in, and the first key of the next child.
    fn child_of(&self, key: u64) -> (u64, Option<u64>) {
        let at = self
            .find(key)
            .unwrap_or_else(|after| after.saturating_sub(1));
        let end = (at + 1 < self.count()).then(|| self.key(at + 1));
        (self.word(BEGIN + at * PAIR + 8), end)
    }

    fn value(&self, nth: usize) -> Vec<u8> {
        let at = BEGIN + nth * RECORD + 8;
        let words = (0..RECORD - 8).step_by(8);
        let bytes: Vec<u8> = words
            .flat_map(|word| self.word(at + word).to_le_bytes())
            .collect();
        let len = usize::from(bytes[0]).min(VALUE_MAX);
        bytes[1..=len].to_vec()
    }
}

impl<T: Words + ?Sized> Node for T {}

/// Makes an empty node.
pub(crate) fn format(page: &mut Page, level: u16) {
    page.fill(0);
    page[4..6].copy_from_slice(&level.to_le_bytes());
}

pub(crate) fn set_lsn(page: &mut Page, lsn: u64) {
    page[8..16].copy_from_slice(&lsn.to_le_bytes());
}

pub(crate) fn set_first_unused(page: &mut Page, first: u64) {
    page[16..24].copy_from_slice(&first.to_le_bytes());
}

fn set_len(page: &mut Page, len: usize) {
    let len = u16::try_from(len).expect("a node has few entries");
    page[6..8].copy_from_slice(&len.to_le_bytes());
}

/// Puts a record into a leaf that is not full, or has its key.
pub(crate) fn put(page: &mut Page, key: u64, value: &[u8]) {
    let mut record = [0; RECORD];
    record[..8].copy_from_slice(&key.to_le_bytes());
    record[8] = u8::try_from(value.len()).expect("at most VALUE_MAX bytes");
    record[9..9 + value.len()].copy_from_slice(value);
    match page.find(key) {
        Ok(at) => page[BEGIN + at * RECORD..][..RECORD].copy_from_slice(&record),
        Err(at) => insert(page, at, &record),
    }
}

/// Removes a key's record from a leaf.
pub(crate) fn remove(page: &mut Page, key: u64) {
    if let Ok(at) = page.find(key) {
        let end = BEGIN + page.count() * RECORD;
        page.copy_within(BEGIN + (at + 1) * RECORD..end, BEGIN + at * RECORD);
        set_len(page, page.count() - 1);
    }
}

/// Puts an entry into an inner node that is not full.
pub(crate) fn put_child(page: &mut Page, key: u64, child: u64) {
    let pair = [key, child].map(u64::to_le_bytes);
    let at = page.find(key).expect_err("children have different keys");
    insert(page, at, pair.as_flattened());
}

fn insert(page: &mut Page, at: usize, entry: &[u8]) {
    let size = entry.len();
    let (from, end) = (BEGIN + at * size, BEGIN + page.count() * size);
    page.copy_within(from..end, from + size);
    page[from..from + size].copy_from_slice(entry);
    set_len(page, page.count() + 1);
}

/// Moves the upper half of a node to an empty page; returns the first key there.
pub(crate) fn split(page: &mut Page, upper: &mut Page) -> u64 {
    format(upper, page.level());
    let size = if page.is_leaf() { RECORD } else { PAIR };
    let (half, len) = (page.count() / 2, page.count());
    let moved = (len - half) * size;
    upper[BEGIN..BEGIN + moved].copy_from_slice(&page[BEGIN + half * size..][..moved]);
    set_len(upper, len - half);
    set_len(page, half);
    upper.key(0)
}
