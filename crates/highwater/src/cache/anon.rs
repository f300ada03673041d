//! Anonymous memory objects: pages start as zeros and are swapped out under pressure.
//!
//! An object records the *place* of each page: none, or a slot of the swap area. It decides where
//! the page's bytes are:
//!
//! | the page is | its place | its bytes are |
//! |---|---|---|
//! | not resident | none | zeros |
//! | not resident | a slot | those in the slot |
//! | resident and clean | none | in the frame: zeros |
//! | resident and clean | a slot | in the frame, and the same in the slot |
//! | resident and dirty | none | in the frame |
//!
//! A place changes while a thread has the resident page for itself: to a slot when it has written
//! the page there completely (module `writeback`), under the exclusive latch to none when the page
//! is written to ([`Anon::forget`]) or holds only zeros. Discarding a page that is not resident
//! sets its place to none without a lock: a reader of the page checks the place again after the
//! read, and only a resident page gets a place, so a place that is the same before and after the
//! read did not change in between. Fences order the storage accesses; the storage itself need not.
//!
//! Pages that were swapped out one after the other are in neighbouring slots: such a *run* is read
//! by one request, and each of its pages is checked for itself.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::backing::Backing;
use super::readahead::swapped::WaitingPages;
use super::swap::{SwapArea, SwapSlot};
use crate::sync::atomic::{AtomicU32, Ordering, fence};
use crate::sync::{Arc, OnceLock};
use crate::units::{FilePage, PAGE_BYTES, PAGE_SIZE, Pages};

/// Places allocated together. Chosen: 2 KiB of places for 2 MiB of swapped memory. In models, as
/// few as the tests use.
const CHUNK: usize = if cfg!(loom) { 2 } else { 512 };
/// No place. Slots are stored as their number plus one.
const NONE: u32 = 0;

/// Places of neighbouring pages.
/// Written by: holders of a page's exclusive latch; its write-back; threads that discard pages (to
/// none). Read by: those, and threads that read the page in. Publishes: nothing; the page's own
/// state orders it.
type SwapPlaces = [AtomicU32; CHUNK];

/// An anonymous memory object.
#[derive(Debug)]
pub(super) struct Anon {
    pages: Pages,
    swap: Option<Arc<SwapArea>>,
    places: Box<[OnceLock<Box<SwapPlaces>>]>,
    /// Pages read ahead that wait for their first access.
    waiting: WaitingPages,
}

/// A run of pages in a swap file, as of some moment.
#[derive(Debug)]
pub(crate) struct RunInFile<'a> {
    pub(crate) file: &'a File,
    pub(crate) offset: u64,
    pub(crate) slot: SwapSlot,
}

/// Reason for a failed swap-out.
#[derive(Debug)]
pub(super) enum SwapOutError {
    /// There is no swap area, or it is full.
    NoSlot,
    /// The storage returned an error.
    Io(io::Error),
}

impl Anon {
    pub(super) fn new(pages: Pages, swap: Option<Arc<SwapArea>>) -> Self {
        let nr_chunks = index(FilePage(pages.0)).div_ceil(CHUNK);
        Self {
            pages,
            swap,
            places: (0..nr_chunks).map(|_| OnceLock::new()).collect(),
            waiting: WaitingPages::default(),
        }
    }

    /// Returns whether a page that is not resident is in swap.
    pub(super) fn is_swapped(&self, page: FilePage) -> bool {
        self.place(page).is_some()
    }

    /// Returns how many pages from `first` on, at most `most`, are in neighbouring slots.
    pub(super) fn run_len(&self, first: FilePage, most: usize) -> usize {
        let Some(slot) = self.place(first) else {
            return 0;
        };
        let most = most.min(index(FilePage(self.pages.0 - first.0)));
        let follows = |at: &usize| self.place(first + *at as u64) == slot.plus(*at);
        1 + (1..most).take_while(follows).count()
    }

    /// Returns where the slots of `pages` pages from `first` on are in a file of the library's own,
    /// if they are neighbours there.
    pub(super) fn run_in_file(&self, first: FilePage, pages: usize) -> Option<RunInFile<'_>> {
        let slot = self.place(first)?;
        let (file, offset) = self.area().place_in_file(slot)?;
        (self.run_len(first, pages) == pages).then_some(RunInFile { file, offset, slot })
    }

    /// Completes the read of a run that began at `slot`, of which `got` bytes came: what was
    /// discarded meanwhile is zeros, as the bytes may be another page's by now. Returns the bytes
    /// that count as read.
    pub(super) fn end_run(
        &self,
        first: FilePage,
        slot: SwapSlot,
        got: usize,
        bufs: &mut [&mut [u8]],
    ) -> usize {
        // Pairs with: the fence of `forget`.
        fence(Ordering::SeqCst);
        let mut is_first_gone = false;
        for (at, buf) in bufs.iter_mut().enumerate() {
            if self.place(first + at as u64) != slot.plus(at) {
                buf.fill(0);
                is_first_gone |= at == 0;
            }
        }
        match is_first_gone {
            true => got.max(PAGE_SIZE),
            false => got,
        }
    }

    /// Returns whether its pages are swapped out to a file of the library's own.
    pub(super) fn has_file(&self) -> bool {
        self.swap.as_ref().is_some_and(|area| area.has_file())
    }

    /// Returns the number of pages that were read ahead and wait for their first access.
    pub(super) fn waiting(&self) -> &WaitingPages {
        &self.waiting
    }

    /// As [`waiting`](Self::waiting), of all objects of the area, if there is one.
    pub(super) fn waiting_of_all(&self) -> Option<&WaitingPages> {
        self.swap.as_ref().map(|area| area.waiting())
    }

    /// Counts pages that wait, or no longer do if negative.
    pub(super) fn note_waiting(&self, pages: i64) {
        self.waiting.add(pages);
        if let Some(all) = self.waiting_of_all() {
            all.add(pages);
        }
    }

    /// Counts a run that io_uring has read.
    pub(super) fn note_read(&self, whole: usize, pages: usize) {
        self.area().note_read(whole, pages);
    }

    /// Returns the pages of a range that are in swap.
    pub(super) fn swapped_in(&self, pages: &Range<FilePage>) -> Vec<FilePage> {
        let chunks = (0..).zip(&self.places);
        let chunks = chunks.filter_map(|(at, chunk)| Some((at * CHUNK as u64, chunk.get()?)));
        let all = chunks.flat_map(|(first, chunk)| (first..).map(FilePage).zip(chunk.iter()));
        // Relaxed: the caller checks again before it acts on a page.
        let swapped = all
            .filter(|(page, place)| pages.contains(page) && place.load(Ordering::Relaxed) != NONE);
        swapped.map(|(page, _)| page).collect()
    }

    /// Returns the number of pages that have a slot.
    pub(super) fn nr_places(&self) -> Pages {
        let places = self
            .places
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|chunk| &**chunk);
        // Relaxed: exact when quiescent.
        let used = places.filter(|place| place.load(Ordering::Relaxed) != NONE);
        Pages(used.count() as u64)
    }

    /// Frees a page's slot, if it has one, because the slot no longer holds the page's contents.
    /// The page's exclusive latch is held, or the page is being discarded.
    pub(super) fn forget(&self, page: FilePage) {
        let Some(place) = self.entry(page) else {
            return;
        };
        // Relaxed, both: the fence orders them. The winner of the swap frees the slot.
        if place.load(Ordering::Relaxed) != NONE
            && let Some(slot) = slot_of(place.swap(NONE, Ordering::Relaxed))
        {
            // Pairs with: the fence of `end_run`. SeqCst: a reader that has read bytes of the
            // slot's next page must find the place changed, although only those bytes connect the
            // two.
            fence(Ordering::SeqCst);
            self.area().give_back(slot);
        }
    }

    /// Frees every slot. The object is unreachable, and no page of it is dirty.
    pub(super) fn forget_all(&self) {
        let chunks = self.places.iter().filter_map(OnceLock::get);
        for place in chunks.flat_map(|chunk| &**chunk) {
            // Relaxed: as in `forget`.
            if let Some(slot) = slot_of(place.swap(NONE, Ordering::Relaxed)) {
                self.area().give_back(slot);
            }
        }
    }

    /// Writes a page to swap; returns the number of bytes written. The page is held for
    /// write-back.
    pub(super) fn swap_out(&self, page: FilePage, bytes: &[u8]) -> Result<usize, SwapOutError> {
        if bytes.iter().all(|byte| *byte == 0) {
            self.forget(page);
            if let Some(swap) = &self.swap {
                swap.stats().swpout_zero.add(1);
            }
            return Ok(bytes.len());
        }
        let swap = self.swap.as_ref().ok_or(SwapOutError::NoSlot)?;
        let Some(mut fresh) = swap.take() else {
            swap.stats().swap_fail.add(1);
            return Err(SwapOutError::NoSlot);
        };
        let taken = fresh.write(bytes).map_err(SwapOutError::Io)?;
        if taken == bytes.len() {
            let place = self.entry_or_make(page);
            // Relaxed: the latch is held.
            let before = place.swap(fresh.keep().0 + 1, Ordering::Relaxed);
            if let Some(slot) = slot_of(before) {
                swap.give_back(slot);
            }
        }
        Ok(taken)
    }

    fn place(&self, page: FilePage) -> Option<SwapSlot> {
        // Relaxed: see the module's header.
        slot_of(self.entry(page)?.load(Ordering::Relaxed))
    }

    fn entry(&self, page: FilePage) -> Option<&AtomicU32> {
        let (chunk, at) = split(page);
        Some(&self.places[chunk].get()?[at])
    }

    fn entry_or_make(&self, page: FilePage) -> &AtomicU32 {
        let (chunk, at) = split(page);
        let make = || Box::new(std::array::from_fn(|_| AtomicU32::new(NONE)));
        &self.places[chunk].get_or_init(make)[at]
    }

    fn area(&self) -> &SwapArea {
        self.swap.as_deref().expect("only an area gives slots")
    }
}

fn split(page: FilePage) -> (usize, usize) {
    let page = index(page);
    (page / CHUNK, page % CHUNK)
}

fn index(page: FilePage) -> usize {
    usize::try_from(page.0).expect("places fit memory")
}

fn slot_of(place: u32) -> Option<SwapSlot> {
    place.checked_sub(1).map(SwapSlot)
}

impl Backing for Anon {
    fn len(&self) -> u64 {
        self.pages.0.saturating_mul(PAGE_BYTES)
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let Some(slot) = self.place(page) else {
            buf.fill(0);
            return Ok(buf.len());
        };
        let result = self.area().read(slot, buf);
        match self.end_run(page, slot, 0, &mut [buf]) {
            0 => result,
            zeroed => Ok(zeroed),
        }
    }

    fn read_pages(&self, first: FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let (mut page, mut rest, mut done) = (first, bufs, 0);
        // Terminates: `rest` gets shorter.
        while !rest.is_empty() {
            let (len, read) = match (self.place(page), self.run_len(page, rest.len())) {
                (Some(slot), len @ 2..) => {
                    let run = &mut rest[..len];
                    let read = self.area().read_run(slot, run);
                    let ended = self.end_run(page, slot, *read.as_ref().unwrap_or(&0), run);
                    (len, if ended > 0 { Ok(ended) } else { read })
                }
                _ => (1, self.read_page(page, rest[0])),
            };
            match read {
                Ok(got) if got == len * PAGE_SIZE => done += got,
                Ok(got) => return Ok(done + got),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            page = page + len as u64;
            rest = &mut rest[len..];
        }
        Ok(done)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.swap_out(page, buf).map_err(|error| match error {
            SwapOutError::NoSlot => io::ErrorKind::StorageFull.into(),
            SwapOutError::Io(error) => error,
        })
    }

    /// Does nothing: anonymous memory ends with the process.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Anon {
    fn drop(&mut self) {
        self.note_waiting(-self.waiting.get());
        self.forget_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicBool;
    use crate::sync::{LockClass, Mutex, Rank};

    static HURRIED: LockClass = LockClass::new("hurried", Rank::Leaf);

    /// Slots in memory: at the first read, page `gone` is discarded and the next one swapped out.
    #[derive(Debug)]
    struct Hurried {
        slots: Mutex<[Vec<u8>; 2]>,
        gone: FilePage,
        anon: OnceLock<Arc<Anon>>,
        is_over: AtomicBool,
    }

    /// Memory whose first pages are swapped out, up to `gone`, each full of its number plus one.
    fn hurried(gone: u64) -> (Arc<Hurried>, Arc<SwapArea>, Arc<Anon>) {
        let gone = FilePage(gone);
        let storage = Arc::new(Hurried {
            slots: Mutex::new(&HURRIED, Default::default()),
            gone,
            anon: OnceLock::new(),
            is_over: AtomicBool::new(false),
        });
        let area = Arc::new(SwapArea::on(Arc::clone(&storage) as Arc<dyn Backing>));
        let anon = Arc::new(Anon::new(Pages(gone.0 + 2), Some(Arc::clone(&area))));
        for page in 0..=gone.0 {
            let byte = u8::try_from(page + 1).expect("a few pages");
            anon.swap_out(FilePage(page), &[byte; PAGE_SIZE])
                .expect("there is a slot");
            assert!(anon.is_swapped(FilePage(page)));
        }
        storage.anon.set(Arc::clone(&anon)).expect("set once");
        (storage, area, anon)
    }

    impl Backing for Hurried {
        fn len(&self) -> u64 {
            2 * PAGE_BYTES
        }
        fn read_page(&self, slot: FilePage, buf: &mut [u8]) -> io::Result<usize> {
            if let Some(anon) = self.anon.get()
                && !self.is_over.swap(true, Ordering::Relaxed)
            {
                anon.forget(self.gone);
                anon.swap_out(self.gone + 1, &[9; PAGE_SIZE])
                    .expect("there is a slot");
            }
            buf.copy_from_slice(&self.slots.lock()[index(slot)]);
            Ok(buf.len())
        }
        fn write_page(&self, slot: FilePage, buf: &[u8]) -> io::Result<usize> {
            self.slots.lock()[index(slot)] = buf.to_vec();
            Ok(buf.len())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_page_that_is_discarded_while_it_is_read_is_zeros() {
        // Goal: a read never returns another page's bytes. Method: in the middle of the read, the
        // slot is freed, and another page takes and writes it.
        let (storage, area, anon) = hurried(0);
        let mut bytes = [8; PAGE_SIZE];
        assert_eq!(
            anon.read_page(FilePage(0), &mut bytes).expect("it can"),
            PAGE_SIZE
        );
        assert!(bytes == [0; PAGE_SIZE], "bytes of another page");
        let in_slot = storage.slots.lock()[0].clone();
        assert!(in_slot == [9; PAGE_SIZE], "the same slot");
        assert_eq!((area.used(), anon.nr_places()), (Pages(1), Pages(1)));
    }

    #[test]
    fn a_page_that_is_discarded_while_its_run_is_read_is_zeros() {
        // Goal: as above, and its neighbour is read. Method: as above, for the second page of two
        // that are read at once.
        let (storage, area, anon) = hurried(1);
        assert_eq!(anon.run_len(FilePage(0), 3), 2);
        let (mut first, mut second) = ([8; PAGE_SIZE], [8; PAGE_SIZE]);
        let read = anon.read_pages(FilePage(0), &mut [&mut first, &mut second]);
        assert_eq!(read.expect("it can"), 2 * PAGE_SIZE);
        let in_slot = storage.slots.lock()[1].clone();
        assert!(in_slot == [9; PAGE_SIZE], "the same slot");
        assert!(first == [1; PAGE_SIZE] && second == [0; PAGE_SIZE]);
        assert_eq!((area.used(), anon.nr_places()), (Pages(2), Pages(2)));
    }
}
