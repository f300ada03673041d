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

use std::io;
use std::ops::Range;

use super::backing::Backing;
use super::swap::{SwapArea, SwapSlot};
use crate::sync::atomic::{AtomicU32, Ordering, fence};
use crate::sync::{Arc, OnceLock};
use crate::units::{FilePage, PAGE_BYTES, Pages};

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
        }
    }

    /// Returns whether a page that is not resident is in swap.
    pub(super) fn is_swapped(&self, page: FilePage) -> bool {
        self.place(page).is_some()
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
            // Pairs with: the fence of `read_page`. SeqCst: a reader that has read bytes of the
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
        let place = self.place(page);
        let result = match place {
            Some(slot) => self.area().read(slot, buf),
            None => Ok(0),
        };
        // Pairs with: the fence of `forget`.
        fence(Ordering::SeqCst);
        // Discarded before or during the read: the bytes may belong to another page by now.
        if place.is_none() || self.place(page) != place {
            buf.fill(0);
            return Ok(buf.len());
        }
        result
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
        self.forget_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::{LockClass, Mutex, Rank};
    use crate::units::PAGE_SIZE;

    static HURRIED: LockClass = LockClass::new("hurried", Rank::Leaf);

    /// Slots in memory: while page 0 is read, it is discarded and page 1 is swapped out.
    #[derive(Debug)]
    struct Hurried {
        slots: Mutex<[Vec<u8>; 2]>,
        anon: OnceLock<Arc<Anon>>,
    }

    impl Backing for Hurried {
        fn len(&self) -> u64 {
            2 * PAGE_BYTES
        }
        fn read_page(&self, slot: FilePage, buf: &mut [u8]) -> io::Result<usize> {
            if let Some(anon) = self.anon.get() {
                anon.forget(FilePage(0));
                anon.swap_out(FilePage(1), &[1; PAGE_SIZE])
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
        let storage = Arc::new(Hurried {
            slots: Mutex::new(&HURRIED, Default::default()),
            anon: OnceLock::new(),
        });
        let area = Arc::new(SwapArea::on(Arc::clone(&storage) as Arc<dyn Backing>));
        let anon = Arc::new(Anon::new(Pages(2), Some(Arc::clone(&area))));
        anon.swap_out(FilePage(0), &[7; PAGE_SIZE])
            .expect("there is a slot");
        assert!(anon.is_swapped(FilePage(0)));
        storage.anon.set(Arc::clone(&anon)).expect("set once");
        let mut bytes = [9; PAGE_SIZE];
        assert_eq!(
            anon.read_page(FilePage(0), &mut bytes).expect("it can"),
            PAGE_SIZE
        );
        let in_slot = storage.slots.lock()[0].clone();
        assert!(in_slot == [1; PAGE_SIZE], "the same slot");
        assert!(bytes == [0; PAGE_SIZE], "bytes of another page");
        assert_eq!((area.used(), anon.nr_places()), (Pages(1), Pages(1)));
    }
}
