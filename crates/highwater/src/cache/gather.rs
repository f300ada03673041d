//! Clustered write-back: neighbouring dirty pages of a file, written by one call to its storage.
//!
//! The pages to write are sorted by file and page. A *run* begins with the next of them that is
//! still dirty and grows by its successors in the file, up to [`RUN_MAX`]; larger pages count for
//! more. The first latch may be waited for, because no other is held then; those of the neighbours
//! are only tried, because a thread that holds one may wait for another one of the run. A page
//! whose latch is held ends the run, and begins the next; one whose log is not durable yet (module
//! `wal`) ends the run, too.
//!
//! Invariant: as for one page, a mark is cleared only of a page that its file has taken completely,
//! under its latch. Pages of a run that storage did not take are written again one by one, because
//! only that shows which pages fail, and why. So an error is reported for exactly the pages that
//! failed by themselves, and all are tried.

use super::backing::guarded;
use super::seal::Image;
use super::{FileEntry, PageCache, PageKey, WriteBackOutcome, WrittenBack};
use crate::group::StatItem;
use crate::memmap::{Frame, FrameMemory, FrameWrite};
use crate::sync::{Untaken, Woken};
use crate::units::Pfn;

/// Most pages of 4 KiB written by one call. Chosen: 64 MiB in order took 162, 59, 48 and 45 ms by
/// 1, 8, 32 and 128 pages (median of 9, ext4 on two virtual CPUs, made durable; a file that the
/// system keeps in large pieces, `benches/sync_cost.rs`): more gain little, and an access to one of
/// the pages waits for all of them.
const RUN_MAX: usize = if cfg!(loom) { 2 } else { 32 };

/// A dirty page whose latch this thread holds.
struct LatchedPage<'c> {
    key: PageKey,
    pfn: Pfn,
    latch: FrameWrite<&'c FrameMemory>,
}

impl LatchedPage<'_> {
    fn frame(&self) -> &Frame {
        self.latch.frame()
    }
}

/// Treatment of a page whose latch is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfHeld {
    /// Wait for it.
    Wait,
    /// Skip it.
    Pass,
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
        while let Some((&(key, pfn), rest)) = left.split_first() {
            left = rest;
            let latch = match if_held {
                IfHeld::Wait => self.latch_exclusively(key, pfn),
                IfHeld::Pass => {
                    let latch = self.memory.try_exclude(pfn, key.get());
                    outcome.nr_latched += u64::from(latch.as_ref().err() == Some(&Untaken::Held));
                    latch.ok()
                }
            };
            let (Some(first), Some(file)) = (
                latch.and_then(|latch| self.dirty_page(key, pfn, latch)),
                self.files.get(key.file()),
            ) else {
                continue;
            };
            if file.is_left_out(key.page()) {
                // Only without waiting: the storage may not take it now.
                outcome.nr_latched += 1;
                continue;
            }
            if !self.is_logged_noting(&file, pfn) {
                outcome.held_up.push((key, pfn));
                continue;
            }
            // Tasks are woken when no latch of the run is held, and before another is waited for.
            let mut woken = Woken::default();
            let (run, passed) = Woken::held_by(|| self.gather_run(first, &mut left, &file));
            woken.append(passed);
            self.write_run(&run, &file, outcome);
            let ((), waiting) = Woken::held_by(|| drop(run));
            woken.append(waiting);
        }
    }

    /// Latches the dirty pages that follow the first, if that does not wait.
    fn gather_run<'c>(
        &'c self,
        first: LatchedPage<'c>,
        left: &mut &[(PageKey, Pfn)],
        file: &FileEntry,
    ) -> Vec<LatchedPage<'c>> {
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
        run
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

    fn write_run(&self, run: &[LatchedPage<'_>], file: &FileEntry, outcome: &mut WriteBackOutcome) {
        run.iter().for_each(|page| self.begin_writeback(page.pfn));
        let nr_whole = match run.len() > 1 && file.anon().is_none() {
            true => self.write_together(run, file),
            false => 0,
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
                let result = self.write_out(page.pfn, page.key, page.frame(), file);
                self.finish_writeback(page.pfn, page.key, result)
            });
        }
    }

    fn image_of<'f>(&'f self, page: &'f LatchedPage<'_>, file: &FileEntry) -> Image<'f> {
        self.image(page.key.page(), page.frame(), file)
    }

    /// Writes a run; returns the number of pages that were completely written, from the first on.
    fn write_together(&self, run: &[LatchedPage<'_>], file: &FileEntry) -> usize {
        let frames = file.order().pages().0.cast_signed();
        let count = |delta| {
            for page in run {
                self.count_for_group(page.pfn, StatItem::FileWriteback, delta);
            }
        };
        count(frames);
        let taken = guarded(|| {
            let image = |page| self.image_of(page, file);
            let images: Vec<Image<'_>> = run.iter().map(image).collect();
            let bufs: Vec<&[u8]> = images.iter().map(Image::bytes).collect();
            let taken = file.backing().write_pages(run[0].key.page(), &bufs)?;
            let given: usize = bufs.iter().map(|buf| buf.len()).sum();
            if taken > given {
                // The result is meaningless. Written page by page, each gets its own result.
                return Ok(0);
            }
            let ends = bufs.iter().scan(0, |end, buf| {
                *end += buf.len();
                Some(*end)
            });
            Ok(ends.take_while(|end| *end <= taken).count())
        });
        count(-frames);
        taken.unwrap_or(0)
    }
}
