//! Asynchronous reads: begun and left alone, awaited, dropped in flight; and prefetches.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use highwater::{Access, PinnedPage, ReadError, ReadPattern, ReadWait};

use super::super::arena::Mapped;
use super::Worker;

/// Reads of a worker that are in flight at a time.
const READS_MAX: usize = 3;

/// A read of a read-only file that is in flight, or has landed unseen.
pub(super) struct InFlight {
    read: Pin<Box<ReadWait>>,
    of: Wanted,
}

/// The page that a read is for.
struct Wanted {
    mapped: Mapped,
    page: u64,
    /// It was unmapped before the read began.
    was_gone: bool,
}

impl Worker<'_> {
    /// Begins a read, and leaves it in flight.
    pub(super) fn read_async(&mut self) {
        let Some((mapped, page)) = self.any_page() else {
            return;
        };
        if mapped.of.access == Access::ReadWrite {
            return self.read_latched_async(&mapped, page);
        }
        self.begin("beginning a read", mapped.first + page);
        let was_gone = mapped.is_gone(page);
        let mut read = Box::pin(mapped.map.read_async(page));
        let of = Wanted {
            mapped,
            page,
            was_gone,
        };
        let mut context = Context::from_waker(Waker::noop());
        match read.as_mut().poll(&mut context) {
            Poll::Ready(read) => self.landed(&of, read),
            Poll::Pending => {
                self.count("asked");
                self.reads.push(InFlight { read, of });
            }
        }
        while self.reads.len() > READS_MAX {
            self.land();
        }
    }

    /// Waits for a read that was begun, or drops it.
    pub(super) fn land(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let nth = self.rng.usize(..self.reads.len());
        let InFlight { read, of } = self.reads.swap_remove(nth);
        let page = of.mapped.first + of.page;
        if self.rng.u8(..4) == 0 {
            self.begin("dropping a read", page);
            drop(read);
            return self.count("left");
        }
        self.begin("awaiting a read", page);
        let read = self.arena.hw.block_on(read);
        self.landed(&of, read);
    }

    fn landed(&mut self, of: &Wanted, read: Result<PinnedPage, ReadError>) {
        let Wanted { mapped, page, .. } = of;
        match read {
            Ok(bytes) => {
                assert!(!of.was_gone, "page {page} was read after it was unmapped");
                mapped.of.model.assert_page(&bytes, mapped.first + page);
                self.count("landed");
            }
            Err(error) => self.refused(mapped, *page, &error),
        }
    }

    /// Awaited at once: a latch that is handed to a task which nothing polls stops other threads.
    fn read_latched_async(&mut self, mapped: &Mapped, page: u64) {
        self.begin("awaiting a latched read", mapped.first + page);
        let was_gone = mapped.is_gone(page);
        match self.arena.hw.block_on(mapped.map.read_latched_async(page)) {
            Ok(bytes) => {
                assert!(!was_gone, "page {page} was read after it was unmapped");
                mapped.of.model.assert_page(&bytes, mapped.first + page);
                self.count("awaited");
            }
            Err(error) => self.refused(mapped, page, &error),
        }
    }

    /// Prefetches scattered pages.
    pub(super) fn prefetch(&mut self) {
        let Some((mapped, page)) = self.any_page() else {
            return;
        };
        self.begin("prefetching", mapped.first + page);
        let more = 0..self.rng.usize(..12);
        let pages = more.map(|_| self.rng.u64(..mapped.map.pages()));
        let pages: Vec<u64> = pages.chain([page]).collect();
        mapped.map.prefetch(pages).expect("within the mapping");
        self.count("fetched");
    }

    /// Prefetches pages of a file, as its handle does.
    pub(super) fn need(&mut self) {
        let (of, group) = (self.any_file(), self.group());
        let start = self.rng.u64(..of.file.pages());
        self.begin("needing", start);
        of.file.set_read_pattern(match self.rng.u8(..4) {
            0 => ReadPattern::Random,
            1 => ReadPattern::Normal,
            _ => ReadPattern::Sequential,
        });
        of.file.will_need(&group, start..start + self.rng.u64(..40));
        self.count("needed");
    }
}
