//! Credit: readahead of a file pays for itself, or stops.
//!
//! Each page that is read without a request costs a page of credit, from before it is read, so that
//! pages in flight count. Its first access returns that, and a thirty-second more; a page that is
//! brought in by request, also a new one of memory, earns a thirty-second. A page that is evicted
//! unread returns nothing. Windows are cut to the credit, and to nothing when there is none. They
//! come back as they pay: 32 requests buy a page, and pages that are then accessed buy more.
//!
//! Bound: pages that were read ahead and not accessed, evicted or not, are at most [`START`] (of
//! memory, [`START_OF_MEMORY`]) + (requested + read ahead and accessed) / 32, and a window for each
//! thread that reads ahead meanwhile: one for 32 that are of use, beyond the start. It holds for
//! any order of accesses; no decision rests on their distribution. Adversaries:
//! `tests/readahead.rs::no_order_of_reads_makes_more_useless_than_stated`,
//! `tests/swap_ahead.rs::reads_at_random_bring_in_few_pages_for_nothing`.

use crate::cache::key::FileKind;
use crate::sync::StatCell;
use crate::sync::atomic::{AtomicI64, Ordering};

/// Units of credit in a page. Chosen: with 16 the shipped trace has 1.108 times as many reads of
/// storage as without readahead; the goal is at most 1.1.
const PAGE: i64 = 32;
/// Credit of a new file, in pages. Chosen: eight windows, 1 MiB.
const START: i64 = 256;
/// The same of memory, of which a program may have many objects. Chosen: a window. What is written
/// there first earns more.
const START_OF_MEMORY: i64 = 32;
/// Most credit, in pages. Chosen: 16 MiB, more than streams that share a file have outstanding.
const MOST: i64 = 4096;
/// The same of memory. Chosen: 256 MiB, an eighth of a pool of 2 GiB.
const MOST_OF_MEMORY: i64 = 1 << 16;

/// The credit of one file.
#[derive(Debug)]
pub(in crate::cache) struct Credit {
    /// In parts of a page; negative if threads have read ahead at the same time.
    /// Written and read by: readers that miss, or access a page first. Publishes: nothing; readers
    /// at the same time spend the same credit, a window each.
    balance: AtomicI64,
    most: i64,
    unread: StatCell,
}

// Relaxed throughout: see the field.
impl Credit {
    /// Returns the credit of a new file, or of memory.
    pub(in crate::cache) fn new(kind: FileKind) -> Self {
        let (start, most) = match kind.is_swap_backed() {
            true => (START_OF_MEMORY, MOST_OF_MEMORY),
            false => (START, MOST),
        };
        Self {
            balance: AtomicI64::new(start * PAGE),
            most: most * PAGE,
            unread: StatCell::new(),
        }
    }

    /// Returns how many pages may be read ahead.
    pub(in crate::cache) fn allowed(&self) -> u64 {
        let pages = self.balance.load(Ordering::Relaxed) / PAGE;
        u64::try_from(pages).unwrap_or(0)
    }

    /// Pays for pages that are going to be read without a request.
    pub(in crate::cache) fn pay(&self, pages: u64) {
        let pages = i64::try_from(pages).expect("a window");
        self.balance.fetch_sub(pages * PAGE, Ordering::Relaxed);
    }

    /// Returns the price of pages that were not read.
    pub(in crate::cache) fn refund(&self, pages: u64) {
        let pages = i64::try_from(pages).expect("a window");
        self.balance.fetch_add(pages * PAGE, Ordering::Relaxed);
    }

    /// Earns for pages that were read by request.
    pub(in crate::cache) fn note_requested(&self, pages: u64) {
        self.earn(i64::try_from(pages).expect("a window"));
    }

    /// Earns for the first access of a page that was read ahead.
    pub(in crate::cache) fn note_accessed(&self) {
        self.earn(PAGE + 1);
    }

    /// Counts pages that were evicted unread.
    pub(in crate::cache) fn note_unread(&self, pages: u64) {
        self.unread.add(pages);
    }

    /// Returns how many pages were evicted unread.
    pub(in crate::cache) fn unread(&self) -> u64 {
        self.unread.get()
    }

    fn earn(&self, units: i64) {
        if self.balance.load(Ordering::Relaxed) < self.most {
            self.balance.fetch_add(units, Ordering::Relaxed);
        }
    }
}
