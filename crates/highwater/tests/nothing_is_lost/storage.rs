//! Storage that compares every page with the model, and misbehaves on demand.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{Backing, WriteGate};

use super::model::{Begins, Bytes, Model, index};

const EIO: i32 = 5;

/// Detected errors, recorded because a panic would be taken for an I/O error.
#[derive(Debug, Default)]
pub(crate) struct Wrongs {
    found: Mutex<Vec<String>>,
    /// Clustered writes that were only partly taken: not an error, but they must occur.
    pub(crate) cut_short: AtomicU64,
}

impl Wrongs {
    fn say(&self, what: String) {
        self.found
            .lock()
            .expect("no panic under the lock")
            .push(what);
    }

    pub(crate) fn assert_none(&self) {
        let wrongs = self.found.lock().expect("no panic under the lock");
        assert!(wrongs.is_empty(), "{wrongs:#?}");
    }
}

/// Error rates of operations, of 256.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    read_fails: AtomicU8,
    read_short: AtomicU8,
    write_fails: AtomicU8,
    write_short: AtomicU8,
    sync_fails: AtomicU8,
    slow: AtomicU8,
    /// Operations so far: their number determines the errors.
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

    /// Returns the random numbers of the next operation.
    fn draw(&self) -> fastrand::Rng {
        let nth = self.operations.fetch_add(1, Ordering::Relaxed);
        fastrand::Rng::with_seed(nth.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Returns how many of `len` bytes an operation moves.
    fn strike(&self, fails: &AtomicU8, short: &AtomicU8, len: usize) -> io::Result<usize> {
        let mut draw = self.draw();
        self.dawdle(&mut draw);
        if strikes(&mut draw, fails) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        if strikes(&mut draw, short) {
            return Ok(draw.usize(..len / 8) * 8);
        }
        Ok(len)
    }

    fn dawdle(&self, draw: &mut fastrand::Rng) {
        if strikes(draw, &self.slow) {
            std::thread::sleep(Duration::from_micros(draw.u64(1..300)));
        }
    }

    fn read(&self, len: usize) -> io::Result<usize> {
        self.strike(&self.read_fails, &self.read_short, len)
    }

    fn write(&self, len: usize) -> io::Result<usize> {
        self.strike(&self.write_fails, &self.write_short, len)
    }
}

fn strikes(draw: &mut fastrand::Rng, of_256: &AtomicU8) -> bool {
    draw.u8(..) < of_256.load(Ordering::Relaxed)
}

/// Returns whether an error is one of this storage's.
pub(crate) fn is_made_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EIO)
}

/// The log of one file: no page may be stored before it. Misbehaves as storage does.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The LSN of the last record.
    last: AtomicU64,
    durable: AtomicU64,
    pub(crate) trouble: Trouble,
}

impl Log {
    /// Appends a record, and returns its LSN. Now and then the engine commits.
    fn append(&self) -> u64 {
        let lsn = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        if self.trouble.draw().u8(..16) == 0 {
            self.durable.fetch_max(lsn, Ordering::SeqCst);
        }
        lsn
    }
}

impl WriteGate for Log {
    fn durable_lsn(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    /// Fails, or flushes only a part, or all that there is.
    fn flush(&self, lsn: u64) -> io::Result<()> {
        let last = self.last.load(Ordering::SeqCst);
        assert!(lsn <= last, "no record has LSN {lsn} yet");
        let durable = self.durable_lsn();
        let missing = usize::try_from(last.saturating_sub(durable)).expect("a short run");
        let flushed = self.trouble.write(8 * missing.max(1))? as u64 / 8;
        self.durable.fetch_max(durable + flushed, Ordering::SeqCst);
        Ok(())
    }
}

/// Pages in memory. By itself a swap area: only the cache knows the page of a slot.
#[derive(Debug)]
pub(crate) struct Disk {
    pages: Vec<Mutex<Box<Bytes>>>,
    pub(crate) trouble: Trouble,
}

impl Disk {
    fn of(pages: impl Iterator<Item = Box<Bytes>>) -> Self {
        Self {
            pages: pages.map(Mutex::new).collect(),
            trouble: Trouble::default(),
        }
    }

    pub(crate) fn swap(slots: u64) -> Arc<Self> {
        let rubbish = || vec![0xee; PAGE_SIZE].into_boxed_slice();
        Arc::new(Self::of((0..slots).map(|_| rubbish())))
    }

    fn page(&self, page: u64) -> MutexGuard<'_, Box<Bytes>> {
        self.pages[index(page)]
            .lock()
            .expect("no panic under the lock")
    }

    /// Reads a page; calls `check` with its full content.
    fn read(&self, page: u64, buf: &mut [u8], check: impl FnOnce(&Bytes)) -> io::Result<usize> {
        let len = self.trouble.read(buf.len())?;
        let stored = self.page(page);
        check(&stored);
        buf[..len].copy_from_slice(&stored[..len]);
        Ok(len)
    }
}

impl Backing for Disk {
    fn len(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.read(page, buf, |_| ())
    }

    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> io::Result<usize> {
        let len = self.trouble.write(buf.len())?;
        self.page(page)[..len].copy_from_slice(&buf[..len]);
        Ok(len)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file in memory.
#[derive(Debug)]
pub(crate) struct Storage {
    model: Arc<Model>,
    pub(crate) disk: Disk,
    pub(crate) log: Arc<Log>,
    /// By page: the LSN of its last change. Written under its latch.
    lsns: Vec<AtomicU64>,
    /// By page: the version that is known to survive a crash.
    durable: Vec<AtomicU32>,
    failed_syncs: AtomicU64,
    wrongs: Arc<Wrongs>,
}

impl Storage {
    pub(crate) fn new(id: u32, words: u64, page_size: usize, wrongs: &Arc<Wrongs>) -> Arc<Self> {
        let model = Model::new(id, words, page_size, Begins::Stamped);
        Arc::new(Self {
            disk: Disk::of((0..model.pages()).map(|page| model.first(page))),
            log: Arc::default(),
            lsns: (0..model.pages()).map(|_| AtomicU64::new(0)).collect(),
            durable: (0..model.pages()).map(|_| AtomicU32::new(0)).collect(),
            failed_syncs: AtomicU64::new(0),
            model: Arc::new(model),
            wrongs: Arc::clone(wrongs),
        })
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Logs a change of a page whose latch the caller holds; returns its LSN.
    pub(crate) fn log_change(&self, page: u64) -> u64 {
        let lsn = self.log.append();
        self.lsns[index(page)].store(lsn, Ordering::SeqCst);
        lsn
    }

    /// Checks a page that is about to be stored. No thread writes it meanwhile.
    fn check_write(&self, page: u64, bytes: &[u8]) {
        if let Err(wrong) = self.model.check_page(bytes, page) {
            self.wrongs.say(format!("to be written back: {wrong}"));
        }
        let lsn = self.lsns[index(page)].load(Ordering::SeqCst);
        let durable = self.log.durable_lsn();
        if durable < lsn {
            let wrong = format!("page {page} of LSN {lsn} is ahead of its log, at {durable}");
            self.wrongs.say(wrong);
        }
    }

    /// Ends all misbehaviour.
    pub(crate) fn mend(&self) {
        self.disk.trouble.end();
        self.log.trouble.end();
    }

    /// Returns the syncs that have failed; some of their callers may not know it yet.
    pub(crate) fn failed_syncs(&self) -> u64 {
        self.failed_syncs.load(Ordering::SeqCst)
    }

    /// Asserts that every word on storage is of the given version of its page, or of a later one.
    pub(crate) fn assert_stored(&self, at_least: &[u32]) {
        for (page, &least) in (0..).zip(at_least) {
            let stored = self.disk.page(page);
            let within = &stored[..self.model.page_len(page)];
            self.model.assert_version(within, page, least);
        }
    }

    /// Asserts the same for the state after a crash.
    pub(crate) fn assert_durable(&self, at_least: &[u32]) {
        for (page, (durable, &least)) in self.durable.iter().zip(at_least).enumerate() {
            let durable = durable.load(Ordering::SeqCst);
            assert!(
                durable >= least,
                "page {page}: version {durable} is durable, {least} was synced"
            );
        }
    }

    /// Asserts that storage has the last version of every page. No thread writes.
    pub(crate) fn assert_all_stored(&self) {
        self.assert_stored(&self.model.versions());
    }
}

impl Backing for Storage {
    fn len(&self) -> u64 {
        self.model.len()
    }

    fn page_size(&self) -> usize {
        self.model.page_size()
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        // No thread holds a page that is being read in, and it was evicted with its last version
        // written.
        self.disk.read(page, buf, |stored| {
            let within = &stored[..self.model.page_len(page)];
            if let Err(wrong) = self.model.check_page(within, page) {
                self.wrongs.say(format!("to be read in: {wrong}"));
            }
        })
    }

    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> io::Result<usize> {
        self.check_write(page, buf);
        self.disk.write_page(FilePage(page), buf)
    }

    /// Writes some of the neighbours, and perhaps a part of the next.
    fn write_pages(&self, FilePage(first): FilePage, bufs: &[&[u8]]) -> io::Result<usize> {
        for (page, buf) in (first..).zip(bufs) {
            self.check_write(page, buf);
        }
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let taken = self.disk.trouble.write(len)?;
        let mut left = taken;
        for (page, buf) in (first..).zip(bufs) {
            let some = left.min(buf.len());
            self.disk.page(page)[..some].copy_from_slice(&buf[..some]);
            left -= some;
        }
        if (1..len).contains(&taken) {
            self.wrongs.cut_short.fetch_add(1, Ordering::Relaxed);
        }
        Ok(taken)
    }

    /// Failure is decided first, and reported to no other sync: concurrent ones succeed.
    fn sync(&self) -> io::Result<()> {
        let trouble = &self.disk.trouble;
        let mut draw = trouble.draw();
        let fails = strikes(&mut draw, &trouble.sync_fails);
        if fails {
            self.failed_syncs.fetch_add(1, Ordering::SeqCst);
        }
        let least = |page: u64| {
            let stored = self.disk.page(page);
            let within = &stored[..self.model.page_len(page)];
            self.model.least_version(within, page)
        };
        let stored: Vec<u32> = (0..self.model.pages()).map(least).collect();
        trouble.dawdle(&mut draw);
        if fails {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        for (durable, stored) in self.durable.iter().zip(stored) {
            durable.fetch_max(stored, Ordering::SeqCst);
        }
        Ok(())
    }
}
