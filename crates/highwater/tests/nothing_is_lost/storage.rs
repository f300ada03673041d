//! Storage that knows what each page has to hold, and misbehaves when it is told to.
//!
//! Every word of a page says of which file and page it is, where in the page it lies, and in which version of the
//! page: a byte that is old, torn, or of another page is seen wherever it turns up. Writers raise the page's
//! version under its latch, so whoever holds the latch, or fills or writes the page back, knows the one version
//! that it must have.

#![expect(
    clippy::cast_possible_truncation,
    reason = "halves of words are cut out"
)]

use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::cache::Backing;
use highwater::units::{PAGE_BYTES, PAGE_SIZE};

pub(crate) type Bytes = [u8; PAGE_SIZE];

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
    pub(crate) read_fails: AtomicU8,
    pub(crate) read_short: AtomicU8,
    pub(crate) write_fails: AtomicU8,
    pub(crate) write_short: AtomicU8,
    pub(crate) sync_fails: AtomicU8,
    pub(crate) slow: AtomicU8,
}

impl Trouble {
    pub(crate) fn all(&self) -> [&AtomicU8; 6] {
        let Self {
            read_fails,
            read_short,
            write_fails,
            write_short,
            sync_fails,
            slow,
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

    pub(crate) fn end(&self) {
        for chance in self.all() {
            chance.store(0, Ordering::Relaxed);
        }
    }
}

/// A file in memory, and the version of each page that was written last.
#[derive(Debug)]
pub(crate) struct Storage {
    id: u32,
    len: u64,
    pages: Vec<Mutex<Box<Bytes>>>,
    /// Raised by the holder of the page's latch for writing.
    versions: Vec<AtomicU32>,
    /// The versions of which the latch was let go.
    settled: Vec<AtomicU32>,
    pub(crate) trouble: Trouble,
    /// Operations so far: what goes wrong follows from their number.
    operations: AtomicU64,
    wrongs: Arc<Wrongs>,
}

impl Storage {
    /// `words` words in as many pages as that takes, the last of them partly.
    pub(crate) fn new(id: u32, words: u64, wrongs: &Arc<Wrongs>) -> Arc<Self> {
        let len = words * 8;
        let nr_pages = len.div_ceil(PAGE_BYTES);
        let mut storage = Self {
            id,
            len,
            pages: Vec::new(),
            versions: (0..nr_pages).map(|_| AtomicU32::new(0)).collect(),
            settled: (0..nr_pages).map(|_| AtomicU32::new(0)).collect(),
            trouble: Trouble::default(),
            operations: AtomicU64::new(u64::from(id)),
            wrongs: Arc::clone(wrongs),
        };
        for page in 0..nr_pages {
            let mut bytes = Box::new([0; PAGE_SIZE]);
            storage.stamp(&mut bytes, page, 0);
            storage.pages.push(Mutex::new(bytes));
        }
        Arc::new(storage)
    }

    /// What a word of a page holds, less its version.
    fn mark(&self, page: u64, word: usize) -> u32 {
        let place = u64::from(self.id) << 48 | page << 16 | word as u64;
        (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
    }

    /// Fills a page, as far as the file has it.
    fn stamp(&self, bytes: &mut Bytes, page: u64, version: u32) {
        let len = self.page_len(page);
        for (nth, word) in bytes[..len].chunks_exact_mut(8).enumerate() {
            let mark = u64::from(self.mark(page, nth));
            word.copy_from_slice(&(u64::from(version) << 32 | mark).to_le_bytes());
        }
    }

    /// The versions that the words of a page are of, or what is wrong with them.
    fn versions_in(&self, bytes: &[u8], page: u64) -> Result<RangeInclusive<u32>, String> {
        let (mut least, mut most) = (u32::MAX, 0);
        for (nth, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            let (version, mark) = ((word >> 32) as u32, word as u32);
            if mark != self.mark(page, nth) {
                return Err(format!(
                    "word {nth} of {} is not of page {page} of file {}: {word:#x}",
                    bytes.len() / 8,
                    self.id
                ));
            }
            (least, most) = (least.min(version), most.max(version));
        }
        Ok(least..=most)
    }

    /// The caller keeps the page from being written.
    fn check_page(&self, bytes: &[u8], page: u64) -> Result<(), String> {
        let want = self.version(page);
        let found = self.versions_in(bytes, page)?;
        if found == (want..=want) {
            return Ok(());
        }
        Err(format!(
            "page {page} of file {} holds versions {found:?}, not {want}",
            self.id
        ))
    }

    fn version(&self, page: u64) -> u32 {
        self.versions[index(page)].load(Ordering::Relaxed)
    }

    /// Holds a page that was read against what was written last; the caller keeps it from being written.
    pub(crate) fn assert_page(&self, bytes: &Bytes, page: u64) {
        let (within, beyond) = bytes.split_at(self.page_len(page));
        if let Err(wrong) = self.check_page(within, page) {
            panic!("{wrong}");
        }
        assert!(
            beyond.iter().all(|&byte| byte == 0),
            "page {page} is not zero beyond the file's end"
        );
    }

    /// Writes the next version, which is returned, into a page whose latch the caller holds.
    pub(crate) fn write_next(&self, bytes: &mut Bytes, page: u64) -> u32 {
        self.assert_page(bytes, page);
        let next = self.version(page) + 1;
        self.stamp(bytes, page, next);
        self.versions[index(page)].store(next, Ordering::Relaxed);
        next
    }

    /// The caller has let go of the page's latch: who syncs from here on gets this version, or a later one, on
    /// storage.
    pub(crate) fn settle(&self, page: u64, version: u32) {
        // Release. Pairs with: the acquire of `settled`.
        self.settled[index(page)].fetch_max(version, Ordering::Release);
    }

    /// What a sync that begins now has to bring to storage.
    pub(crate) fn settled(&self) -> Vec<u32> {
        let settled = self.settled.iter();
        // Acquire. Pairs with: the release of `settle`.
        settled
            .map(|version| version.load(Ordering::Acquire))
            .collect()
    }

    /// Every word on storage is of the given version of its page, or of a later one.
    pub(crate) fn assert_stored(&self, at_least: &[u32]) {
        for (page, &least) in (0..).zip(at_least) {
            let stored = self.pages[index(page)]
                .lock()
                .expect("no panic under the lock");
            let found = self.versions_in(&stored[..self.page_len(page)], page);
            let found = found.unwrap_or_else(|wrong| panic!("on storage: {wrong}"));
            assert!(
                *found.start() >= least,
                "page {page} of file {} was synced at version {least}; stored: {found:?}",
                self.id
            );
        }
    }

    /// Storage has the last version of every page. Nobody writes.
    pub(crate) fn assert_all_stored(&self) {
        let versions = 0..self.pages();
        let versions: Vec<u32> = versions.map(|page| self.version(page)).collect();
        self.assert_stored(&versions);
    }

    /// A draw that depends on the operation's number only.
    fn draw(&self) -> fastrand::Rng {
        let nth = self.operations.fetch_add(1, Ordering::Relaxed);
        fastrand::Rng::with_seed(u64::from(self.id) << 32 ^ nth)
    }

    /// How many of `len` bytes an operation manages.
    fn misbehave(&self, fails: &AtomicU8, short: &AtomicU8, len: usize) -> io::Result<usize> {
        let mut draw = self.draw();
        let mut strikes = |chance: &AtomicU8| draw.u8(..) < chance.load(Ordering::Relaxed);
        if strikes(&self.trouble.slow) {
            std::thread::sleep(Duration::from_micros(draw.u64(1..300)));
        }
        let mut strikes = |chance: &AtomicU8| draw.u8(..) < chance.load(Ordering::Relaxed);
        if strikes(fails) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        if strikes(short) {
            return Ok(draw.usize(..len / 8) * 8);
        }
        Ok(len)
    }
}

/// Whether an error is one that this storage makes up.
pub(crate) fn is_made_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EIO)
}

fn index(page: u64) -> usize {
    usize::try_from(page).expect("a small file")
}

impl Backing for Storage {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_page(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        let Trouble {
            read_fails,
            read_short,
            ..
        } = &self.trouble;
        let len = self.misbehave(read_fails, read_short, buf.len())?;
        let stored = self.pages[index(page)]
            .lock()
            .expect("no panic under the lock");
        // Nobody holds a page that is being read in, and it left the cache with its last version written.
        if let Err(wrong) = self.check_page(&stored[..self.page_len(page)], page) {
            self.wrongs.say(format!("to be read in: {wrong}"));
        }
        buf[..len].copy_from_slice(&stored[..len]);
        Ok(len)
    }

    fn write_page(&self, page: u64, buf: &[u8]) -> io::Result<usize> {
        let Trouble {
            write_fails,
            write_short,
            ..
        } = &self.trouble;
        // Nobody writes a page while it is being written back.
        if let Err(wrong) = self.check_page(buf, page) {
            self.wrongs.say(format!("to be written back: {wrong}"));
        }
        let len = self.misbehave(write_fails, write_short, buf.len())?;
        let mut stored = self.pages[index(page)]
            .lock()
            .expect("no panic under the lock");
        stored[..len].copy_from_slice(&buf[..len]);
        Ok(len)
    }

    fn sync(&self) -> io::Result<()> {
        let never = AtomicU8::new(0);
        self.misbehave(&self.trouble.sync_fails, &never, 8)
            .map(|_| ())
    }
}
