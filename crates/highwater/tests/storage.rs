//! Promise: no byte is lost or another's, whatever storage does: here, storage that says that it
//! moved what it did not.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod support;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use highwater::units::{PAGE_BYTES, PAGE_SIZE};
use highwater::{Access, Backing, Manager, Pages, ReadError, SyncError};
use support::{assert_empty, manager};

/// What lies in every frame before storage is asked to read into one.
const SECRET: u8 = 0xa5;
/// What lies in storage.
const STORED: u8 = 1;
const PAGES: u64 = 8;

/// What storage says of the pages that it moves, from a page on; of those before, the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// The truth.
    Truth,
    /// That it moved all, of which it moved so many bytes.
    All { of: usize, from: u64 },
    /// That it moved twice what there is, of which it moved nothing.
    Twice { from: u64 },
}

/// Storage in memory that moves many pages as [`Backing`] provides: one by one.
#[derive(Debug)]
struct Liar {
    says: Mutex<Says>,
    pages: Mutex<Vec<[u8; PAGE_SIZE]>>,
    /// Whether it was ever given a buffer to read into that held something.
    was_shown: AtomicBool,
}

/// The same, which moves many pages by itself, and says how many bytes there were in all.
#[derive(Debug)]
struct ByMany(Arc<Liar>);

impl Liar {
    fn new(pages: u64, byte: u8) -> Arc<Self> {
        Arc::new(Self {
            says: Mutex::new(Says::Truth),
            pages: Mutex::new(vec![[byte; PAGE_SIZE]; index(pages)]),
            was_shown: AtomicBool::new(false),
        })
    }

    fn say(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }

    /// How many bytes of a page it moves, and how many it says.
    fn moves(&self, page: u64, len: usize) -> (usize, usize) {
        match *self.says.lock().unwrap() {
            Says::All { of, from } if page >= from => (of, len),
            Says::Twice { from } if page >= from => (0, 2 * len),
            _ => (len, len),
        }
    }
}

fn index(page: u64) -> usize {
    usize::try_from(page).unwrap()
}

impl Backing for Liar {
    fn len(&self) -> u64 {
        self.pages.lock().unwrap().len() as u64 * PAGE_BYTES
    }

    fn read_page(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        if buf.iter().any(|byte| *byte != 0) {
            self.was_shown.store(true, Ordering::Relaxed);
        }
        let (moved, says) = self.moves(page, buf.len());
        buf[..moved].copy_from_slice(&self.pages.lock().unwrap()[index(page)][..moved]);
        Ok(says)
    }

    fn write_page(&self, page: u64, buf: &[u8]) -> io::Result<usize> {
        let (moved, says) = self.moves(page, buf.len());
        self.pages.lock().unwrap()[index(page)][..moved].copy_from_slice(&buf[..moved]);
        Ok(says)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Backing for ByMany {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_page(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_page(page, buf)
    }

    fn read_pages(&self, first: u64, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let pages = (first..).zip(bufs);
        pages.map(|(page, buf)| self.0.read_page(page, buf)).sum()
    }

    fn write_page(&self, page: u64, buf: &[u8]) -> io::Result<usize> {
        self.0.write_page(page, buf)
    }

    fn write_pages(&self, first: u64, bufs: &[&[u8]]) -> io::Result<usize> {
        let pages = (first..).zip(bufs);
        pages.map(|(page, buf)| self.0.write_page(page, buf)).sum()
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Storage that moves many pages in both ways.
fn both(pages: u64) -> [(Arc<Liar>, Arc<dyn Backing>); 2] {
    let (one, many) = (Liar::new(pages, STORED), Liar::new(pages, STORED));
    let by_many = Arc::new(ByMany(Arc::clone(&many)));
    [(Arc::clone(&one), one as Arc<dyn Backing>), (many, by_many)]
}

/// A manager of which every frame holds what another tenant has left there.
fn manager_with_secrets() -> Manager {
    let hw = manager(64);
    let tenant = hw.space(&hw.root());
    let map = tenant.map_anon(Pages(60)).unwrap();
    for page in 0..60 {
        map.write(page).unwrap().fill(SECRET);
    }
    drop(map);
    assert_empty(&hw);
    hw
}

// Symptom: storage that said it had read 8 KiB of a page was believed, and the page shown was what
// its frame had held. Method: frames that hold a secret; reads of one page and of windows, whose
// first or third page says too much.
#[test]
fn a_read_that_says_too_much_shows_nothing_of_others() {
    for (from, (storage, backing)) in [0, 2]
        .into_iter()
        .flat_map(|from| both(PAGES).map(|both| (from, both)))
    {
        let hw = manager_with_secrets();
        let file = hw.open_backing(backing, Access::ReadOnly).unwrap();
        let (root, mut buf) = (hw.root(), vec![0; index(PAGES) * PAGE_SIZE]);
        storage.say(Says::Twice { from });
        let read = file.read_at(&root, 0, &mut buf);
        let whole = read.unwrap_or(0);
        assert!(whole <= index(from) * PAGE_SIZE, "{whole} from {from}");
        assert!(buf[..whole].iter().all(|byte| *byte == STORED));

        hw.set_readahead(Pages(1));
        let error = file.read_at(&root, 7 * PAGE_BYTES, &mut buf).unwrap_err();
        let is_refused = matches!(
            error,
            ReadError::Excess {
                page: 7,
                got: 8192,
                want: 4096
            }
        );
        assert!(is_refused, "{error}");
        let space = hw.space(&root);
        let map = space.map_file(&file, 0..PAGES).unwrap();
        assert!(map.read(&hw.enter(), 6).is_err());

        storage.say(Says::Truth);
        assert_eq!(file.read_at(&root, 0, &mut buf).unwrap(), buf.len());
        assert!(buf.iter().all(|byte| *byte == STORED));
        drop((map, file));
        assert_empty(&hw);
    }
}

// Symptom: as above, of storage that says it has read a page whole and has not touched it, or half
// of it. Method: as above; what it has not touched is zeros, and it is not shown what the frame
// held either.
#[test]
fn a_read_that_left_bytes_out_shows_zeros_there() {
    for (storage, backing) in both(PAGES) {
        for of in [0, 1, PAGE_SIZE / 2] {
            let hw = manager_with_secrets();
            let file = hw
                .open_backing(Arc::clone(&backing), Access::ReadOnly)
                .unwrap();
            storage.say(Says::All { of, from: 0 });
            let mut buf = vec![SECRET; index(PAGES) * PAGE_SIZE];
            assert_eq!(file.read_at(&hw.root(), 0, &mut buf).unwrap(), buf.len());
            for page in buf.chunks(PAGE_SIZE) {
                let (touched, rest) = page.split_at(of);
                assert!(touched.iter().all(|byte| *byte == STORED));
                assert!(rest.iter().all(|byte| *byte == 0), "bytes of others");
            }
            assert!(!storage.was_shown.load(Ordering::Relaxed));
            drop(file);
            assert_empty(&hw);
        }
    }
}

// Symptom: the same in swap. Method: pages of as many tenants, told apart by their bytes, go to
// swap and come back by reads that touch nothing, or half; each page holds its own bytes or zeros.
#[test]
fn swap_that_left_bytes_out_shows_zeros_there() {
    for of in [0, PAGE_SIZE / 2] {
        let storage = Liar::new(256, 0);
        let hw = Manager::builder()
            .capacity(Pages(64).bytes())
            .swap_on(Arc::clone(&storage) as Arc<dyn Backing>)
            .build()
            .unwrap();
        let space = hw.space(&hw.root());
        let maps = [(); 200].map(|()| space.map_anon(Pages(1)).unwrap());
        for (byte, map) in (1..).zip(&maps) {
            map.write(0).unwrap().fill(byte);
        }
        assert!(hw.snapshot().counter("pswpout") > 100);
        storage.say(Says::All { of, from: 0 });
        for (byte, map) in (1_u8..).zip(&maps) {
            let bytes = map.read_latched(0).unwrap();
            let is_own = |found: &u8| *found == byte || *found == 0;
            assert!(bytes.iter().all(is_own), "tenant {byte} sees others");
        }
        assert!(!storage.was_shown.load(Ordering::Relaxed));
        drop(maps);
        assert_empty(&hw);
    }
}

// Symptom: of neighbouring pages that were written by one call, one that said it took too much
// counted for its neighbours, which were not written and not dirty any more. Method: eight dirty
// pages, of which the second or the first says too much; a sync fails, and when storage is well
// again the next one has every page written.
#[test]
fn a_write_that_says_too_much_loses_no_neighbour() {
    for from in [0, 1] {
        for (storage, backing) in both(PAGES) {
            let hw = manager(64);
            let file = hw.open_backing(backing, Access::ReadWrite).unwrap();
            let space = hw.space(&hw.root());
            let map = space.map_file(&file, 0..PAGES).unwrap();
            for page in 0..PAGES {
                map.write(page).unwrap().fill(7);
            }
            storage.say(Says::Twice { from });
            let error = file.sync().unwrap_err();
            let nr_failed = PAGES - from;
            let is_all =
                matches!(error, SyncError::WriteBack { failed, .. } if failed == nr_failed);
            assert!(is_all, "{error}");
            storage.say(Says::Truth);
            file.sync().unwrap();
            assert!(
                storage
                    .pages
                    .lock()
                    .unwrap()
                    .iter()
                    .all(|page| *page == [7; PAGE_SIZE])
            );
            drop((map, file));
            assert_empty(&hw);
        }
    }
}
