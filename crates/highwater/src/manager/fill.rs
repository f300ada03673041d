//! Reading several pages in: a missing page and its readahead window.
//!
//! All memory is charged and allocated before the first page is marked as filling, so that a thread
//! that waits for one of the pages never waits for reclaim. Then each page that is still absent is
//! marked as filling, the storage is asked once for each run of neighbours, and all become
//! resident. The requested page comes first. Readahead is best effort: it selects no victim, pages
//! that memory or storage refuse are left out, and its errors are dropped.
//!
//! Invariant: the charge of [`Fills`] equals the pages being filled; on every exit path both are
//! released or become resident.

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use super::Core;
use super::error::{OutOfMemory, ReadError};
use super::flight::{Arrived, Cargo, Flight};
use super::slow::Patience;
use super::source::FillSource;
use crate::cache::{FileEntry, Filling, KeptForLatch, PageCache, PageFlag, PageKey, Window};
use crate::group::NodeCharge;
use crate::memmap::{Frame, FrameMemory};
use crate::reclaim::{OnItsWay, pages_item};
use crate::sync::{Arc, Woken};
use crate::units::{Bytes, FilePage, GroupId, MapPage, Pages, Pfn};

/// Pages of 4 KiB of a flight that is part of a run: that many, or up to twice as many. Chosen: a
/// disk that has several such requests is about as quick as with one for all, and the first pages
/// come sooner; with 16, a scan by tasks reads 0.9 times as many pages a second.
const FLIGHT_MIN: usize = 32;

/// Largest window as a share of the pool. Chosen: the pages that a stream reads ahead (two windows)
/// stay on the inactive list until they are read, also where that list is a small part of the pool.
const CAPACITY_SHARE: u64 = 64;
/// Largest window as a share of the least maximum of the payer and its ancestors. Chosen: likewise;
/// a group's pages are its own, a pool's belong to many groups.
const MAX_SHARE: u64 = 16;

/// Reads that fail while the file's length changes, until one counts; and the longest pause between
/// them. Chosen: a tenth of a second, in which most storage has changed a length.
pub(super) const MOVES_MAX: u32 = 100;
pub(super) const MOVE_PAUSE: Duration = Duration::from_millis(1);

/// Pages of one file that this thread is filling.
pub(super) struct Fills<'a> {
    core: &'a Core,
    source: FillSource<'a>,
    /// In order. Other threads wait for them.
    filling: Vec<Filling>,
    charge: Option<NodeCharge>,
    /// Dropped after the others: the pages are in transit until they are released.
    way: OnItsWay<'a>,
    /// Tasks that wait for the pages.
    woken: Woken,
}

/// Charged memory for pages.
pub(super) struct Supply<'a> {
    /// How it was, and more will be, obtained.
    patience: Patience,
    charge: Option<NodeCharge>,
    frames: Vec<Frame>,
    /// Dropped last, as in [`Fills`].
    way: OnItsWay<'a>,
}

impl<'a> Supply<'a> {
    /// No memory yet.
    fn nothing(patience: Patience, way: OnItsWay<'a>) -> Self {
        Self {
            patience,
            charge: None,
            frames: Vec::new(),
            way,
        }
    }

    /// Memory for one page.
    fn of(patience: Patience, charge: NodeCharge, frame: Frame, way: OnItsWay<'a>) -> Self {
        let mut supply = Self::nothing(patience, way);
        supply.charge = Some(charge);
        supply.frames.push(frame);
        supply
    }
}

impl Core {
    /// Returns the largest window for this source, in its pages.
    pub(super) fn window_max(&self, source: FillSource<'_>) -> Pages {
        let capacity = self.pool.managed().0 / CAPACITY_SHARE;
        let group = source.group.effective_max().pages_floor().0 / MAX_SHARE;
        let frames = self.readahead.get().min(Pages(capacity.min(group)));
        Pages(frames.0 >> source.file.order().get())
    }

    /// Takes memory for one page, by any means.
    pub(super) fn supply_one<'a>(
        &'a self,
        source: FillSource<'a>,
        page: FilePage,
    ) -> Result<Supply<'a>, ReadError> {
        let no_memory = |source| ReadError::NoMemory { page, source };
        let order = source.file.order();
        let (way, charge) = self
            .charge_on_its_way(source.group, order.pages().bytes(), Patience::Fault)
            .map_err(|failed| no_memory(OutOfMemory::from(failed)))?;
        let frame = self
            .alloc_frame(source.group, order, &way)
            .map_err(no_memory)?;
        let patience = Patience::Modest;
        Ok(Supply::of(patience, charge, frame, way))
    }

    /// Takes memory for one page without waiting for storage or other threads, if that is possible;
    /// otherwise returns the group that is full, the root if the pool is.
    pub(super) fn supply_now<'a>(&'a self, source: FillSource<'a>) -> Result<Supply<'a>, GroupId> {
        let (patience, order) = (Patience::Polled, source.file.order());
        let bytes = order.pages().bytes();
        let charged = self.charge_on_its_way(source.group, bytes, patience);
        let (way, charge) = charged.map_err(|failed| failed.refusal.group().id())?;
        let mut frames = Vec::new();
        self.alloc_frames_ahead((source.group, order), 1, patience, &mut frames);
        let frame = frames.pop().ok_or(self.groups.root().id())?;
        Ok(Supply::of(patience, charge, frame, way))
    }

    /// Takes memory for as many of the later pages of a window as is available, beside that for the
    /// first; marks them as filling. Returns `None` if another thread began to fill the first page
    /// before.
    pub(super) fn begin_wanted<'a>(
        &'a self,
        source: FillSource<'a>,
        window: &Window,
        mut supply: Supply<'a>,
    ) -> Option<Fills<'a>> {
        let page = window.pages.start;
        debug_assert_eq!(supply.frames.len(), 1, "a frame for the first page");
        let others = self.missing_of(source.file, page + 1..window.pages.end);
        self.supply_more(source, others.len(), &mut supply);
        let pages = std::iter::once(page).chain(others);
        let fills = self.begin_fills(source, window.mark, pages, supply);
        fills.flag_from(window.ahead);
        let is_first = |filling: &Filling| filling.page() == page;
        fills.filling.first().is_some_and(is_first).then_some(fills)
    }

    /// Takes memory for as many pages of a window as is available, and marks them as filling.
    pub(super) fn begin_ahead<'a>(
        &'a self,
        source: FillSource<'a>,
        window: &Window,
        patience: Patience,
    ) -> Fills<'a> {
        let pages = self.missing_of(source.file, window.pages.clone());
        let fills = self.begin_pages(source, pages, window.mark, patience);
        fills.flag_from(window.ahead);
        fills
    }

    /// As [`begin_ahead`](Self::begin_ahead), for given pages.
    pub(super) fn begin_pages<'a>(
        &'a self,
        source: FillSource<'a>,
        pages: Vec<FilePage>,
        mark: Option<FilePage>,
        patience: Patience,
    ) -> Fills<'a> {
        let mut supply = Supply::nothing(patience, self.reclaim.page_on_its_way(source.group));
        self.supply_more(source, pages.len(), &mut supply);
        self.begin_fills(source, mark, pages.into_iter(), supply)
    }

    /// Returns the pages that are not in the cache, by a lookup without locks.
    pub(super) fn missing_of(&self, file: &FileEntry, pages: Range<FilePage>) -> Vec<FilePage> {
        FilePage::numbers(&pages)
            .map(FilePage)
            .filter(|page| !self.cache.seems_cached(file.key(*page)))
            .collect()
    }

    /// Adds memory for up to `count` pages, without selecting a victim.
    fn supply_more(&self, source: FillSource<'_>, count: usize, supply: &mut Supply<'_>) {
        let (group, bytes) = (source.group, source.bytes_of(count));
        if count == 0 {
            return;
        }
        let patience = supply.patience;
        let Ok(mut charge) = self.charge_for(&supply.way, (group, bytes), patience) else {
            return;
        };
        supply.way.note_paid();
        let of = (group, source.file.order());
        let got = self.alloc_frames_ahead(of, count, patience, &mut supply.frames);
        charge.shrink(source.bytes_of(count - got));
        match &mut supply.charge {
            Some(paid) => paid.merge(charge).expect("both are the payer's"),
            None => supply.charge = Some(charge),
        }
        debug_assert_eq!(
            supply.charge.as_ref().map(NodeCharge::bytes),
            Some(source.bytes_of(supply.frames.len())),
            "each frame is paid for"
        );
    }

    /// Marks pages as filling, in order, while there are frames. Skips pages that were inserted
    /// meanwhile; if the first was, fills none.
    fn begin_fills<'a>(
        &'a self,
        source: FillSource<'a>,
        mark: Option<FilePage>,
        pages: impl Iterator<Item = FilePage>,
        supply: Supply<'a>,
    ) -> Fills<'a> {
        let group = source.group;
        let Supply {
            charge,
            mut frames,
            way,
            ..
        } = supply;
        let mut fills = Fills {
            core: self,
            source,
            filling: Vec::with_capacity(frames.len()),
            charge,
            way,
            woken: Woken::default(),
        };
        let mut unused = Vec::new();
        for (page, frame) in pages.zip(frames.drain(..)) {
            let key = source.file.key(page);
            match self.cache.begin_fill(key, frame, group.id()) {
                Ok(filling) => fills.filling.push(filling),
                Err(frame) => unused.push(frame),
            }
        }
        fills.uncharge(unused.len());
        unused.into_iter().for_each(|it| self.pool.free_of_page(it));
        let pages = source.file.pages_for_fill();
        let is_behind = |filling: &Filling| filling.page().0 >= pages;
        if let Some(behind) = fills.filling.iter().position(is_behind) {
            fills.give_up(behind);
        }
        let is_marked = |filling: &&Filling| {
            let page = filling.page();
            mark.is_some_and(|mark| self.readahead.marks(page, mark))
        };
        if let Some(marked) = fills.filling.iter().find(is_marked) {
            self.cache.flag_filling(marked, PageFlag::Readahead);
        }
        debug_assert!(fills.are_paid(), "as many pages are charged as are filled");
        fills
    }
}

impl<'a> Fills<'a> {
    /// Takes over the pages of a flight that storage has ended.
    pub(super) fn ashore(core: &'a Core, source: FillSource<'a>, cargo: Cargo) -> Self {
        let Cargo {
            filling,
            charge,
            way,
        } = cargo;
        let fills = Self {
            core,
            source,
            filling,
            charge: Some(charge),
            way: core.reclaim.attach(way),
            woken: Woken::default(),
        };
        debug_assert!(fills.are_paid(), "as many pages are charged as are filled");
        fills
    }

    /// Returns whether exactly the pages that are being filled are charged.
    fn are_paid(&self) -> bool {
        let paid = self.charge.as_ref().map_or(Bytes::ZERO, NodeCharge::bytes);
        paid == self.source.bytes_of(self.filling.len())
    }

    /// Flags the pages that no call has asked for, which are those from `ahead` on, and pays.
    fn flag_from(&self, ahead: FilePage) {
        let unasked = self.filling.iter().filter(|page| page.page() >= ahead);
        let flagged = unasked.inspect(|page| self.core.cache.flag_filling(page, PageFlag::Ahead));
        self.source.file.note_ahead(flagged.count());
    }

    /// Returns how many of the pages no call has asked for.
    fn nr_unasked(&self, filling: &[Filling]) -> usize {
        let is_unasked = |page: &&Filling| self.core.cache.is_filled_ahead(page);
        filling.iter().filter(is_unasked).count()
    }

    /// Returns whether there was memory for any of the pages.
    pub(super) fn has_memory(&self) -> bool {
        self.charge.is_some()
    }

    /// Reads the pages. Leaves out pages that the storage fails to read; returns an error if that
    /// is the first.
    pub(super) fn read(&mut self) -> Result<(), ReadError> {
        let mut begin = 0;
        while begin < self.filling.len() {
            let run = run_len(&self.filling[begin..]);
            let read = read_run(
                &self.core.cache,
                self.source.file,
                &mut self.filling[begin..begin + run],
            );
            let whole = *read.as_ref().unwrap_or(&0);
            begin += whole;
            if whole < run {
                self.give_up(begin);
                return match read {
                    Err(error) if begin == 0 => Err(error),
                    _ => Ok(()),
                };
            }
        }
        Ok(())
    }

    /// Parts with the runs of neighbouring pages, for storage to fill them while no thread waits. A
    /// long run is several flights, whose first pages come before the last.
    pub(super) fn set_afloat(mut self) -> Vec<Flight> {
        let mut flights = Vec::new();
        let least = (FLIGHT_MIN >> self.source.file.order().get()).max(1);
        while !self.filling.is_empty() {
            let run = self
                .source
                .file
                .run_of_one_file(&self.filling[..run_len(&self.filling)]);
            let part = run.div_ceil((run / least).max(1));
            let run: Vec<_> = self.filling.drain(..part).collect();
            let charge = self.charge.as_mut().expect("as many pages as are filled");
            let charge = charge.split(self.source.bytes_of(run.len()));
            let source = self.source.for_flight();
            let way = self.way.part().detach();
            flights.push(Flight::new(source, run, charge, way));
        }
        debug_assert!(self.are_paid(), "each flight takes the charge of its pages");
        flights
    }

    /// Makes the pages resident. Calls `take` with the first before it can be evicted.
    pub(super) fn finish<R>(mut self, take: impl FnOnce(Pfn) -> R) -> R {
        let (pfn, key) = self.finish_first();
        if key.file().is_writable() {
            let core = self.core;
            return self.finish_latched(pfn, key, |kept| {
                let taken = take(pfn);
                if !core.reclaim.counts_first_access() {
                    core.cache.forget_young(pfn);
                }
                drop(kept);
                taken
            });
        }
        // Taken before the page is on a list: until then it cannot be evicted.
        let taken = take(pfn);
        if !self.core.reclaim.counts_first_access() {
            self.core.cache.forget_young(pfn);
        }
        self.core.reclaim.add_page(pfn, key);
        taken
    }

    /// Makes the pages resident. Hands the first to a task, by `deliver`, before it can be evicted.
    pub(super) fn finish_for<R>(mut self, page: MapPage, deliver: impl FnOnce(Arrived) -> R) -> R {
        let core = self.core;
        let area = self.source.area.expect("tasks read pages of mappings");
        if !area.key(page).file().is_writable() {
            return self.finish(|pfn| {
                let pinned = core.cache.pin_at(area.key(page), pfn);
                core.cache.install(area, page, pfn);
                deliver(Arrived::Pinned(pinned.expect("a page on no list stays")))
            });
        }
        let (pfn, key) = self.finish_first();
        let memory = Arc::clone(&core.memory);
        self.finish_latched(pfn, key, |kept| {
            deliver(Arrived::Kept(kept.into_owned(memory)))
        })
    }

    /// Makes the pages resident; the first is on no list yet.
    fn finish_first(&mut self) -> (Pfn, PageKey) {
        // Finish the others first: the caller may wait for the first page's latch, and the latch's
        // holder may wait for one of the others.
        self.finish_from(1);
        let first = self.filling.remove(0);
        self.source.file.note_requested(1);
        debug_assert!(
            self.filling.is_empty(),
            "the caller may wait for the others"
        );
        let key = first.key();
        let pfn = self.core.cache.finish_fill_and(first, &mut self.woken);
        self.note_resident();
        (pfn, key)
    }

    /// Hands over the first page, kept in its frame. Another thread may already hold its latch,
    /// perhaps while it waits for memory: the page ends its transit before this thread waits.
    fn finish_latched<R>(
        &mut self,
        pfn: Pfn,
        key: PageKey,
        take: impl FnOnce(KeptForLatch<&FrameMemory>) -> R,
    ) -> R {
        let kept = self.core.cache.keep_filled(pfn);
        self.core.reclaim.add_page(pfn, key);
        self.way.arrive();
        // The holder of the latch may wait for one of these tasks.
        self.woken.wake();
        take(kept)
    }

    /// Makes pages resident that readahead filled.
    pub(super) fn finish_ahead(mut self) {
        self.finish_from(0);
    }

    /// As [`finish_ahead`](Self::finish_ahead), for the pages from index `from` on.
    fn finish_from(&mut self, from: usize) {
        let core = self.core;
        let ahead: Vec<_> = self.filling.drain(from..).collect();
        core.stats.readahead.add(ahead.len() as u64);
        let requested = ahead.len() - self.nr_unasked(&ahead);
        self.source.file.note_requested(requested);
        for filling in ahead {
            let key = filling.key();
            if !core.reclaim.counts_first_access() {
                core.cache.flag_filling(&filling, PageFlag::Unread);
            }
            let pfn = core.cache.finish_fill_and(filling, &mut self.woken);
            self.note_resident();
            core.reclaim.add_page(pfn, key);
        }
        debug_assert!(self.are_paid(), "pages that are resident have their charge");
    }

    /// Counts a page that has become resident: it holds its own charge until it is evicted.
    fn note_resident(&mut self) {
        self.source.file.note_filled();
        let FillSource { file, group, .. } = self.source;
        let frames = file.order().pages();
        group.add_stat(pages_item(file.id().kind()), frames.0.cast_signed());
        let charge = self.charge.as_mut().expect("as many pages as are filled");
        let _paid_by_the_page = charge.split(frames.bytes()).disown();
    }

    /// Drops the pages from index `from` on.
    pub(super) fn give_up(&mut self, from: usize) {
        let Some(first) = self.filling.get(from) else {
            return;
        };
        self.source.readahead.cut(first.page());
        let given_up = self.filling.len() - from;
        let unasked = self.nr_unasked(&self.filling[from..]);
        self.source.file.note_not_ahead(unasked);
        for filling in self.filling.drain(from..) {
            let frame = self.core.cache.abort_fill_and(filling, &mut self.woken);
            self.core.pool.free_of_page(frame);
        }
        self.uncharge(given_up);
    }

    fn uncharge(&mut self, pages: usize) {
        if let Some(charge) = &mut self.charge {
            charge.shrink(self.source.bytes_of(pages));
        }
    }
}

impl Drop for Fills<'_> {
    /// On an error, and on a panic of the storage.
    fn drop(&mut self) {
        self.give_up(0);
    }
}

/// Returns the length of the first run of neighbouring pages.
fn run_len(filling: &[Filling]) -> usize {
    let neighbours = filling
        .windows(2)
        .take_while(|pair| pair[0].page() + 1 == pair[1].page());
    neighbours.count() + 1
}

thread_local! {
    /// Reads of storage that this thread is in, of any manager.
    static NR_READS: Cell<u32> = const { Cell::new(0) };
}

/// This thread is in a read of storage while this lives. What follows for the reads that it waits
/// for: `io/threads.rs`.
pub(super) struct InRead(());

impl InRead {
    fn begin() -> Self {
        NR_READS.set(NR_READS.get() + 1);
        Self(())
    }

    /// Returns whether this thread is in a read, so that others may wait for what it brings in.
    pub(super) fn is_now() -> bool {
        NR_READS.get() > 0
    }
}

impl Drop for InRead {
    fn drop(&mut self) {
        NR_READS.set(NR_READS.get() - 1);
    }
}

/// Reads neighbouring pages; returns how many of them are complete, and sound as their storage
/// [verifies](crate::Backing::verify). The last page of a file is zero
/// beyond the end of the file, and so are the bytes that storage other than the library's own did
/// not write. An error is about the first page.
pub(super) fn read_run(
    cache: &PageCache,
    file: &FileEntry,
    filling: &mut [Filling],
) -> Result<usize, ReadError> {
    let _in_read = InRead::begin();
    let (backing, first) = (file.backing(), filling[0].page());
    let lens: Vec<usize> = filling
        .iter()
        .map(|filling| file.page_len(filling.page()))
        .collect();
    let mut pages: Vec<&mut [u8]> = filling
        .iter_mut()
        .map(|filling| cache.filling_bytes(filling))
        .collect();
    if !file.is_truthful() {
        // Always, also where the read would overwrite it all: the storage is shown the buffer,
        // which may hold another file's data.
        pages.iter_mut().for_each(|page| page.fill(0));
    }
    let mut bufs: Vec<&mut [u8]> = pages
        .iter_mut()
        .zip(&lens)
        .map(|(page, len)| &mut page[..*len])
        .collect();
    let read = match &mut bufs[..] {
        [only] => backing.read_page(first, only),
        many => backing.read_pages(first, many),
    };
    let mut got = read.map_err(|source| ReadError::Io {
        page: first,
        source,
    })?;
    let want = lens.iter().sum();
    if got > want {
        let page = first;
        return Err(ReadError::Excess { page, got, want });
    }
    let short = ReadError::Short {
        page: first,
        got,
        want: lens[0],
    };
    let mut whole = 0;
    while whole < lens.len() && got >= lens[whole] {
        let (page, len) = (first + whole as u64, lens[whole]);
        match backing.verify(page, &pages[whole][..len]) {
            Err(source) if whole == 0 => return Err(ReadError::Io { page, source }),
            // Told to the thread that needs it, if any ever does.
            Err(_) => break,
            Ok(()) => {}
        }
        got -= len;
        pages[whole][len..].fill(0);
        whole += 1;
    }
    if whole == 0 { Err(short) } else { Ok(whole) }
}
