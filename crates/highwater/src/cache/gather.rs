//! Clustered write-back: neighbouring dirty pages of a file, written by one call to its storage.
//!
//! The pages to write are sorted by file and page. A *run* begins with the next of them that is
//! still dirty and grows by its successors in the file, up to [`RUN_MAX`]; larger pages count for
//! more. The first latch may be waited for, because no other is held then; those of the neighbours
//! are only tried, because a thread that holds one may wait for another one of the run. A page
//! whose latch is held ends the run, and begins the next; one whose log is not durable yet (module
//! `wal`) ends the run, too. Runs of direct files make up a *batch*, which the device writes at
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
use crate::memmap::{FrameMemory, FrameRead, FrameWrite, PlacedWrite, WriteRing};
use crate::sync::{Arc, Untaken, Woken};
use crate::units::Pfn;

/// Most pages of 4 KiB written by one call. Chosen: 64 MiB in order took 162, 59, 48 and 45 ms by
/// 1, 8, 32 and 128 pages (median of 9, ext4 on two virtual CPUs, made durable; a file that the
/// system keeps in large pieces, `benches/sync_cost.rs`): more gain little, and an access to one of
/// the pages waits for all of them.
const RUN_MAX: usize = if cfg!(loom) { 2 } else { 32 };

/// Most runs written at once. Chosen: as many as the ring has in flight.
const BATCH_MAX: usize = 32;

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

/// Neighbouring pages of a file that are being written.
struct Run<'c> {
    file: Arc<FileEntry>,
    pages: Vec<PageInRun<'c>>,
}

impl Run<'_> {
    /// Returns the direct file that takes the run by one request: every page is whole.
    fn direct_file(&self) -> Option<&FileBacking> {
        let system = self.file.system_file().filter(|file| file.is_direct())?;
        let last = self.pages.last()?;
        let is_whole = self.file.page_len(last.key.page()) == last.held.bytes().len();
        is_whole.then_some(system)
    }
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
        let mut left = pages;
        // Terminates: each round advances by at least one page.
        while let Some(first) = self.next_dirty(&mut left, if_held, outcome) {
            // Tasks are woken when no latch of the batch is held, and before another is waited for.
            let mut woken = Woken::default();
            let (batch, passed) = Woken::held_by(|| self.gather_batch(first, &mut left, outcome));
            woken.append(passed);
            self.write_batch(&batch, outcome);
            let runs = batch.into_iter();
            let (files, waiting) = Woken::held_by(|| runs.map(|run| run.file).collect::<Vec<_>>());
            woken.append(waiting);
            drop(woken);
            // One may be the last handle of its storage, whose end is the program's code.
            drop(files);
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
            let (Some(page), Some(file)) = (
                latch.and_then(|latch| self.dirty_page(key, pfn, latch)),
                self.files.get(key.file()),
            ) else {
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

    /// Gathers the run that begins with a page, and further ones as long as that does not wait and
    /// all can be written at once.
    fn gather_batch<'c>(
        &'c self,
        (first, file): (LatchedPage<'c>, Arc<FileEntry>),
        left: &mut &[(PageKey, Pfn)],
        outcome: &mut WriteBackOutcome,
    ) -> Vec<Run<'c>> {
        let run_of = |first, file: Arc<FileEntry>, left: &mut &[_]| {
            let pages = self.gather_run(first, left, &file);
            Run { file, pages }
        };
        let mut batch = vec![run_of(first, file, left)];
        while batch.len() < BATCH_MAX
            && self.write_ring.is_some()
            && batch
                .last()
                .is_some_and(|last| last.direct_file().is_some())
            && let Some((first, file)) = self.next_dirty(left, IfHeld::Stop, outcome)
        {
            batch.push(run_of(first, file, left));
        }
        batch
    }

    /// Latches the dirty pages that follow the first, if that does not wait, and marks all as under
    /// write-back.
    fn gather_run<'c>(
        &'c self,
        first: LatchedPage<'c>,
        left: &mut &[(PageKey, Pfn)],
        file: &FileEntry,
    ) -> Vec<PageInRun<'c>> {
        let run_max = (RUN_MAX >> file.order().get()).max(1);
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
    fn write_batch(&self, batch: &[Run<'_>], outcome: &mut WriteBackOutcome) {
        let mut taken = vec![0; batch.len()];
        if let Some(ring) = self.write_ring.as_ref().filter(|_| batch.len() > 1) {
            self.write_at_once(ring, batch, &mut taken);
        }
        for (run, nr_whole) in batch.iter().zip(taken) {
            self.write_run(run, nr_whole, outcome);
        }
    }

    /// Writes those runs of a batch at once that can be; notes how many pages of each were
    /// completely written, from the first on.
    fn write_at_once(&self, ring: &WriteRing, batch: &[Run<'_>], taken: &mut [usize]) {
        let numbered = batch.iter().enumerate();
        let direct = numbered.filter_map(|(nth, run)| Some((nth, run, run.direct_file()?)));
        let direct: Vec<_> = direct.collect();
        let bufs: Vec<Vec<IoSlice<'_>>> = direct
            .iter()
            .map(|(_, run, _)| run.pages.iter().map(PageInRun::slice).collect())
            .collect();
        let places = direct.iter().zip(&bufs).map(|((_, run, file), bufs)| {
            let first = run.pages[0].key.page();
            PlacedWrite {
                file: file.file_of(first),
                offset: file.offset_of(first),
                bufs,
                taken: 0,
            }
        });
        let mut writes: Vec<_> = places.collect();
        let runs = || direct.iter().map(|(_, run, _)| *run);
        runs().for_each(|run| self.count_under_writeback(run, 1));
        ring.write_all(&mut writes);
        runs().for_each(|run| self.count_under_writeback(run, -1));
        for ((nth, ..), write) in direct.iter().zip(&writes) {
            taken[*nth] = nr_whole(write.bufs.iter().map(|buf| buf.len()), write.taken);
        }
    }

    /// Counts the pages of a run as under write-back, or no longer, by a sign.
    fn count_under_writeback(&self, run: &Run<'_>, sign: i64) {
        let frames = sign * run.file.order().pages().0.cast_signed();
        for page in &run.pages {
            self.count_for_group(page.pfn, StatItem::FileWriteback, frames);
        }
    }

    /// Writes a run whose first `nr_whole` pages its file has taken.
    fn write_run(&self, run: &Run<'_>, nr_whole: usize, outcome: &mut WriteBackOutcome) {
        let file = &*run.file;
        let nr_whole = match run.pages.len() {
            // What the ring has not taken is written as if there were none.
            2.. if nr_whole == 0 && file.anon().is_none() => self.write_together(run),
            _ => nr_whole,
        };
        let (taken, rest) = run.pages.split_at(nr_whole);
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
    fn write_together(&self, run: &Run<'_>) -> usize {
        let (pages, file) = (&run.pages, &*run.file);
        self.count_under_writeback(run, 1);
        let taken = guarded(|| {
            let pages = pages
                .iter()
                .map(|page| (page.key.page(), page.held.bytes()));
            let images: Vec<_> = pages
                .map(|(page, bytes)| Image::of(page, bytes, file))
                .collect();
            let bufs: Vec<&[u8]> = images.iter().map(Image::bytes).collect();
            let taken = file.backing().write_pages(run.pages[0].key.page(), &bufs)?;
            let given: usize = bufs.iter().map(|buf| buf.len()).sum();
            if taken > given {
                // The result is meaningless. Written page by page, each gets its own result.
                return Ok(0);
            }
            Ok(nr_whole(bufs.iter().map(|buf| buf.len()), taken))
        });
        self.count_under_writeback(run, -1);
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
