//! Clustered write-back: neighbouring dirty pages of a file, written by one call to its storage.
//!
//! The pages to write are sorted by file and page. A *run* begins with the next of them that is
//! still dirty and grows by its successors in the file, up to [`RUN_MAX`]; larger pages count for
//! more. The first latch may be waited for, because no other is held then; those of the neighbours
//! are only tried, because a thread that holds one may wait for another one of the run. A page
//! whose latch is held ends the run, and begins the next; one whose log is not durable yet (module
//! `wal`) ends the run, too. Runs of a direct file make up a *batch*, which the device writes at
//! once: what is said of neighbours holds for all its pages.
//!
//! Invariant: as for one page, a mark is cleared only of a page that its file has taken completely,
//! under its hold. Pages of a run that storage did not take are written again one by one, because
//! only that shows which pages fail, and why. So an error is reported for exactly the pages that
//! failed by themselves, and all are tried.

use std::io::IoSlice;

use super::backing::guarded;
use super::seal::Image;
use super::{FileBacking, FileEntry, PageCache, PageKey, WriteBackOutcome, WrittenBack};
use crate::group::StatItem;
use crate::memmap::{FrameMemory, FrameRead, FrameWrite, PlacedWrite, TakenRing, WriteRing};
use crate::sync::{Arc, Untaken, Woken};
use crate::units::Pfn;

/// Most pages of 4 KiB written by one call. Chosen: 64 MiB in order took 162, 59, 48 and 45 ms by
/// 1, 8, 32 and 128 pages (median of 9, ext4 on two virtual CPUs, made durable; a file that the
/// system keeps in large pieces, `benches/sync_cost.rs`): more gain little, and a writer of one of
/// the pages waits for all of them.
const RUN_MAX: usize = if cfg!(loom) { 2 } else { 32 };

/// Most runs written at once. Chosen: as many as the ring has in flight.
const BATCH_MAX: usize = 32;
/// Pages of a batch that is not extended any more: with a run more, those whose writers wait for
/// the whole batch. Chosen: eight full runs.
const BATCH_PAGES_MAX: usize = 8 * RUN_MAX;

/// A dirty page whose latch this thread holds.
struct LatchedPage<'c> {
    key: PageKey,
    pfn: Pfn,
    latch: FrameWrite<&'c FrameMemory>,
}

/// A page of a run that is being written: readers may share it.
struct PageInRun<'c> {
    key: PageKey,
    pfn: Pfn,
    held: FrameRead<&'c FrameMemory>,
}

impl<'c> LatchedPage<'c> {
    fn share(self) -> PageInRun<'c> {
        let Self { key, pfn, latch } = self;
        let held = latch.downgrade();
        PageInRun { key, pfn, held }
    }
}

impl PageInRun<'_> {
    fn slice(&self) -> IoSlice<'_> {
        IoSlice::new(self.held.bytes())
    }
}

/// Runs of a file that are written at once; one, if they cannot be.
struct RunBatch<'c> {
    file: Arc<FileEntry>,
    runs: Vec<Vec<PageInRun<'c>>>,
    ring: Option<TakenRing<'c>>,
}

/// Treatment of a page whose latch is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfHeld {
    /// Wait for it.
    Wait,
    /// Skip it.
    Pass,
    /// Leave it and those that follow.
    Stop,
}

impl PageCache {
    /// Writes back those of `pages` that are still in their frame and dirty. They are sorted by
    /// file and page.
    pub(super) fn write_back_in_order(
        &self,
        pages: &[(PageKey, Pfn)],
        if_held: IfHeld,
        outcome: &mut WriteBackOutcome,
    ) {
        debug_assert!(pages.is_sorted(), "pages are sorted by file and page");
        let mut left = pages;
        // Terminates: each round advances by at least one page.
        while let Some(first) = self.next_dirty(&mut left, if_held, outcome) {
            // Tasks are woken when no latch of the batch is held, and before another is waited for.
            let mut woken = Woken::default();
            let (mut batch, passed) =
                Woken::held_by(|| self.gather_batch(first, &mut left, outcome));
            woken.append(passed);
            self.write_batch(&mut batch, outcome);
            let RunBatch { file, runs, .. } = batch;
            let ((), waiting) = Woken::held_by(|| drop(runs));
            woken.append(waiting);
            drop(woken);
            // It may be the last handle of its storage, whose end is the program's code.
            drop(file);
        }
    }

    /// Latches the next page that is dirty, with its file. Pages that cannot be written now are
    /// noted.
    fn next_dirty<'c>(
        &'c self,
        left: &mut &[(PageKey, Pfn)],
        if_held: IfHeld,
        outcome: &mut WriteBackOutcome,
    ) -> Option<(LatchedPage<'c>, Arc<FileEntry>)> {
        while let Some((&(key, pfn), rest)) = left.split_first() {
            let latch = match if_held {
                IfHeld::Wait => self.latch_exclusively(key, pfn),
                IfHeld::Pass | IfHeld::Stop => match self.memory.try_exclude(pfn, key.get()) {
                    Err(Untaken::Held) if if_held == IfHeld::Stop => return None,
                    latch => {
                        let is_held = latch.as_ref().err() == Some(&Untaken::Held);
                        outcome.nr_latched += u64::from(is_held);
                        latch.ok()
                    }
                },
            };
            *left = rest;
            let Some(page) = latch.and_then(|latch| self.dirty_page(key, pfn, latch)) else {
                continue;
            };
            // Not its last handle: the file cannot be closed while the page is held.
            let Some(file) = self.files.get(key.file()) else {
                continue;
            };
            if file.is_left_out(key.page()) {
                // Only without waiting: the storage may not take it now.
                outcome.nr_latched += 1;
            } else if !self.is_logged_noting(&file, pfn) {
                outcome.held_up.push((key, pfn));
            } else {
                return Some((page, file));
            }
        }
        None
    }

    /// Gathers the run that begins with a page, and further ones of its file as long as that does
    /// not wait and all can be written at once. No storage of the program's is called while pages
    /// of others are held. No page of another file is looked at: the search for the next dirty page
    /// goes past those that are clean.
    fn gather_batch<'c>(
        &'c self,
        (first, file): (LatchedPage<'c>, Arc<FileEntry>),
        left: &mut &[(PageKey, Pfn)],
        outcome: &mut WriteBackOutcome,
    ) -> RunBatch<'c> {
        let is_direct = file.system_file().is_some_and(FileBacking::is_direct);
        let nr_of_file = left.partition_point(|(key, _)| key.file() == file.id());
        let (mut of_file, others) = left.split_at(nr_of_file);
        let mut runs = vec![self.gather_run(first, &mut of_file, &file)];
        let is_more = is_direct && !of_file.is_empty();
        let ring = self.write_ring.as_ref().filter(|_| is_more);
        let ring = ring.and_then(WriteRing::take);
        let mut nr_pages = runs[0].len();
        while ring.is_some()
            && runs.len() < BATCH_MAX
            && nr_pages < BATCH_PAGES_MAX
            && let Some((first, _)) = self.next_dirty(&mut of_file, IfHeld::Stop, outcome)
        {
            let run = self.gather_run(first, &mut of_file, &file);
            nr_pages += run.len();
            runs.push(run);
        }
        *left = &left[left.len() - others.len() - of_file.len()..];
        RunBatch { file, runs, ring }
    }

    /// Latches the dirty pages that follow the first, if that does not wait, and marks all as under
    /// write-back.
    fn gather_run<'c>(
        &'c self,
        first: LatchedPage<'c>,
        left: &mut &[(PageKey, Pfn)],
        file: &FileEntry,
    ) -> Vec<PageInRun<'c>> {
        let run_max = match file.anon() {
            // Swapped out one by one: more would be held for nothing.
            Some(_) => 1,
            None => (RUN_MAX >> file.order().get()).max(1),
        };
        let mut run = vec![first];
        while let Some((&(key, pfn), rest)) = left.split_first()
            && run.len() < run_max
            && run.last().is_some_and(|last| last.key.is_followed_by(key))
            // Checked again under the latch; here it spares waiters of pages that are left out.
            && self.is_dirty(pfn)
            && self.is_logged(file, pfn)
            && !file.is_left_out(key.page())
            && let Ok(latch) = self.memory.try_exclude(pfn, key.get())
            && let Some(next) = self.dirty_page(key, pfn, latch)
            && self.is_logged(file, pfn)
            && !file.is_left_out(key.page())
        {
            run.push(next);
            *left = rest;
        }
        run.iter().for_each(|page| self.begin_writeback(page.pfn));
        run.into_iter().map(LatchedPage::share).collect()
    }

    /// Returns the page if it is still in its frame, and dirty.
    fn dirty_page<'c>(
        &self,
        key: PageKey,
        pfn: Pfn,
        latch: FrameWrite<&'c FrameMemory>,
    ) -> Option<LatchedPage<'c>> {
        self.is_dirty(pfn)
            .then_some(LatchedPage { key, pfn, latch })
    }

    /// Writes the runs of a batch, several at once if they can be.
    fn write_batch(&self, batch: &mut RunBatch<'_>, outcome: &mut WriteBackOutcome) {
        let mut pages = batch.runs.iter().flatten();
        assert!(
            pages.all(|page| page.key.file() == batch.file.id()),
            "a page of another file would be lost, and one of this file overwritten"
        );
        let ring = batch.ring.take().filter(|_| batch.runs.len() > 1);
        let taken = match (ring, batch.file.system_file()) {
            (Some(ring), Some(system)) => self.write_at_once(ring, batch, system),
            _ => vec![0; batch.runs.len()],
        };
        for (run, nr_whole) in batch.runs.iter().zip(taken) {
            self.write_run(run, &batch.file, nr_whole, outcome);
        }
    }

    /// Writes the whole pages of all runs of a direct file at once; returns how many of each run
    /// were completely written, from the first on.
    fn write_at_once(
        &self,
        mut ring: TakenRing<'_>,
        batch: &RunBatch<'_>,
        system: &FileBacking,
    ) -> Vec<usize> {
        let is_whole =
            |page: &PageInRun<'_>| batch.file.page_len(page.key.page()) == page.held.bytes().len();
        let bufs: Vec<Vec<IoSlice<'_>>> = batch
            .runs
            .iter()
            .map(|run| run.iter().map(PageInRun::slice).collect())
            .collect();
        let places = batch.runs.iter().zip(&bufs).map(|(run, bufs)| {
            let first = run[0].key.page();
            // The partial last page goes another way.
            let bufs = &bufs[..bufs.len() - usize::from(!run.last().is_some_and(is_whole))];
            PlacedWrite {
                file: system.file_of(first),
                offset: system.offset_of(first),
                bufs,
                taken: 0,
            }
        });
        let mut writes: Vec<_> = places.collect();
        let frames = batch.file.order().pages().0.cast_signed();
        let count = |delta| {
            let runs = batch.runs.iter();
            runs.for_each(|run| self.count_under_writeback(run, delta));
        };
        count(frames);
        ring.write_all(&mut writes);
        count(-frames);
        let whole = writes
            .iter()
            .map(|write| nr_whole(write.bufs.iter().map(|buf| buf.len()), write.taken));
        whole.collect()
    }

    /// Counts each page of a run as `delta` frames more under write-back.
    fn count_under_writeback(&self, run: &[PageInRun<'_>], delta: i64) {
        for page in run {
            self.count_for_group(page.pfn, StatItem::FileWriteback, delta);
        }
    }

    /// Writes a run whose first `nr_whole` pages its file has taken.
    fn write_run(
        &self,
        run: &[PageInRun<'_>],
        file: &FileEntry,
        nr_whole: usize,
        outcome: &mut WriteBackOutcome,
    ) {
        let nr_whole = match run.len() {
            // What was not written at once is written as if nothing else were.
            2.. if nr_whole == 0 => self.write_together(run, file),
            _ => nr_whole,
        };
        let (taken, rest) = run.split_at(nr_whole);
        for page in taken {
            outcome.note(self, page.pfn, || {
                self.note_in_file(page.pfn, page.key);
                self.finish_writeback(page.pfn, page.key, Ok(WrittenBack::Written))
            });
        }
        for page in rest {
            outcome.note(self, page.pfn, || {
                let result = self.write_out(page.pfn, page.key, page.held.bytes(), file);
                self.finish_writeback(page.pfn, page.key, result)
            });
        }
    }

    /// Writes a run; returns the number of pages that were completely written, from the first on.
    fn write_together(&self, run: &[PageInRun<'_>], file: &FileEntry) -> usize {
        let frames = file.order().pages().0.cast_signed();
        self.count_under_writeback(run, frames);
        let taken = guarded(|| {
            let pages = run.iter().map(|page| (page.key.page(), page.held.bytes()));
            let images = pages.map(|(page, bytes)| Image::of(page, bytes, file));
            let images: Vec<Image<'_>> = images.collect();
            let bufs: Vec<&[u8]> = images.iter().map(Image::bytes).collect();
            let taken = file.backing().write_pages(run[0].key.page(), &bufs)?;
            let given: usize = bufs.iter().map(|buf| buf.len()).sum();
            if taken > given {
                // The result is meaningless. Written page by page, each gets its own result.
                return Ok(0);
            }
            Ok(nr_whole(bufs.iter().map(|buf| buf.len()), taken))
        });
        self.count_under_writeback(run, -frames);
        taken.unwrap_or(0)
    }
}

/// Returns how many buffers of the given lengths are covered by the first `taken` bytes.
fn nr_whole(lens: impl Iterator<Item = usize>, taken: usize) -> usize {
    let ends = lens.scan(0, |end, len| {
        *end += len;
        Some(*end)
    });
    ends.take_while(|end| *end <= taken).count()
}
