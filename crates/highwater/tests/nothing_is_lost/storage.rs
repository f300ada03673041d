//! Storage that holds every page against the model, and misbehaves when it is told to.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::cache::Backing;
use highwater::units::{PAGE_BYTES, PAGE_SIZE};

use super::model::{Begins, Bytes, Model, index};

const EIO: i32 = 5;

/// What was found wrong where a panic would be taken for an I/O error.
#[derive(Debug, Default)]
pub(crate) struct Wrongs(Mutex<Vec<String>>);

impl Wrongs {
    fn say(&self, what: String) {
        self.0.lock().expect("no panic under the lock").push(what);
    }

    pub(crate) fn assert_none(&self) {
        let wrongs = self.0.lock().expect("no panic under the lock");
        assert!(wrongs.is_empty(), "{wrongs:#?}");
    }
}

/// How often which operation goes wrong, of 256 times.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    read_fails: AtomicU8,
    read_short: AtomicU8,
    write_fails: AtomicU8,
    write_short: AtomicU8,
    sync_fails: AtomicU8,
    slow: AtomicU8,
    /// Operations so far: what goes wrong follows from their number.
    operations: AtomicU64,
}

impl Trouble {
    fn chances(&self) -> [&AtomicU8; 6] {
        let Self {
            read_fails,
            read_short,
            write_fails,
            write_short,
            sync_fails,
            slow,
            operations: _,
        } = self;
        [
            read_fails,
            read_short,
            write_fails,
            write_short,
            sync_fails,
            slow,
        ]
    }

    pub(crate) fn begin(&self, rng: &mut fastrand::Rng) {
        for chance in self.chances() {
            let of_256 = match rng.u8(..8) {
                0 => rng.u8(..),
                1 => 10,
                _ => 0,
            };
            chance.store(of_256, Ordering::Relaxed);
        }
    }

    pub(crate) fn end(&self) {
        for chance in self.chances() {
            chance.store(0, Ordering::Relaxed);
        }
    }

    /// How many of `len` bytes an operation manages.
    fn strike(&self, fails: &AtomicU8, short: &AtomicU8, len: usize) -> io::Result<usize> {
        let nth = self.operations.fetch_add(1, Ordering::Relaxed);
        let mut draw = fastrand::Rng::with_seed(nth);
        let drawn = [draw.u8(..), draw.u8(..), draw.u8(..)];
        let strikes = |nth: usize, chance: &AtomicU8| drawn[nth] < chance.load(Ordering::Relaxed);
        if strikes(0, &self.slow) {
            std::thread::sleep(Duration::from_micros(draw.u64(1..300)));
        }
        if strikes(1, fails) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        if strikes(2, short) {
            return Ok(draw.usize(..len / 8) * 8);
        }
        Ok(len)
    }

    fn read(&self, len: usize) -> io::Result<usize> {
        self.strike(&self.read_fails, &self.read_short, len)
    }

    fn write(&self, len: usize) -> io::Result<usize> {
        self.strike(&self.write_fails, &self.write_short, len)
    }

    fn sync(&self) -> io::Result<()> {
        let never = AtomicU8::new(0);
        self.strike(&self.sync_fails, &never, 8).map(|_| ())
    }
}

/// Whether an error is one that storage makes up.
pub(crate) fn is_made_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EIO)
}

/// A file in memory.
#[derive(Debug)]
pub(crate) struct Storage {
    model: Arc<Model>,
    pages: Vec<Mutex<Box<Bytes>>>,
    pub(crate) trouble: Trouble,
    wrongs: Arc<Wrongs>,
}

impl Storage {
    pub(crate) fn new(id: u32, words: u64, wrongs: &Arc<Wrongs>) -> Arc<Self> {
        let model = Model::new(id, words, Begins::Stamped);
        let pages = (0..model.pages()).map(|page| Mutex::new(model.first(page)));
        Arc::new(Self {
            pages: pages.collect(),
            model: Arc::new(model),
            trouble: Trouble::default(),
            wrongs: Arc::clone(wrongs),
        })
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Every word on storage is of the given version of its page, or of a later one.
    pub(crate) fn assert_stored(&self, at_least: &[u32]) {
        for (page, &least) in (0..).zip(at_least) {
            let stored = self.pages[index(page)]
                .lock()
                .expect("no panic under the lock");
            let within = &stored[..self.model.page_len(page)];
            self.model.assert_version(within, page, least);
        }
    }

    /// Storage has the last version of every page. Nobody writes.
    pub(crate) fn assert_all_stored(&self) {
        self.assert_stored(&self.model.versions());
    }
}

impl Backing for Storage {
    fn len(&self) -> u64 {
        self.model.len()
    }

    fn read_page(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.trouble.read(buf.len())?;
        let stored = self.pages[index(page)]
            .lock()
            .expect("no panic under the lock");
        // Nobody holds a page that is being read in, and it left the cache with its last version written.
        let within = &stored[..self.model.page_len(page)];
        if let Err(wrong) = self.model.check_page(within, page) {
            self.wrongs.say(format!("to be read in: {wrong}"));
        }
        buf[..len].copy_from_slice(&stored[..len]);
        Ok(len)
    }

    fn write_page(&self, page: u64, buf: &[u8]) -> io::Result<usize> {
        // Nobody writes a page while it is being written back.
        if let Err(wrong) = self.model.check_page(buf, page) {
            self.wrongs.say(format!("to be written back: {wrong}"));
        }
        let len = self.trouble.write(buf.len())?;
        let mut stored = self.pages[index(page)]
            .lock()
            .expect("no panic under the lock");
        stored[..len].copy_from_slice(&buf[..len]);
        Ok(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.trouble.sync()
    }
}

/// A swap area in memory: whose page is in a slot only the cache knows.
#[derive(Debug)]
pub(crate) struct Swap {
    slots: Vec<Mutex<Box<Bytes>>>,
    pub(crate) trouble: Trouble,
}

impl Swap {
    pub(crate) fn new(slots: u64) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..slots)
                .map(|_| Mutex::new(Box::new([0xee; PAGE_SIZE])))
                .collect(),
            trouble: Trouble::default(),
        })
    }
}

impl Backing for Swap {
    fn len(&self) -> u64 {
        self.slots.len() as u64 * PAGE_BYTES
    }

    fn read_page(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.trouble.read(buf.len())?;
        let slot = self.slots[index(page)]
            .lock()
            .expect("no panic under the lock");
        buf[..len].copy_from_slice(&slot[..len]);
        Ok(len)
    }

    fn write_page(&self, page: u64, buf: &[u8]) -> io::Result<usize> {
        let len = self.trouble.write(buf.len())?;
        let mut slot = self.slots[index(page)]
            .lock()
            .expect("no panic under the lock");
        slot[..len].copy_from_slice(&buf[..len]);
        Ok(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.trouble.sync()
    }
}
