//! Promise: a redo of the log from the LSN that a checkpoint returned finds every logged change
//! that storage lacks, and no page of storage is ahead of its log; whenever the machine stops, and
//! whatever storage and log do.
//!
//! Eight rounds of 5,000 steps, or of as many as `CHECKPOINT_STEPS` says, in all rounds together.

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use fastrand::Rng;
use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{Access, Background, Backing, File, Manager, Mapping, Pages, ReadError, WriteGate};
use support::assert_empty;

const THREADS: u64 = 3;
const ROUNDS: u64 = 8;
const PHASES: u64 = 5;

/// A disk writes this many bytes whole, or not at all.
const SECTOR: usize = 512;
const SECTORS: usize = PAGE_SIZE / SECTOR;

const EIO: i32 = 5;

/// Chance of an error, of 256, while there is trouble; and the state that draws it.
#[derive(Debug, Default)]
struct Trouble {
    of_256: AtomicU64,
    drawn: AtomicU64,
}

impl Trouble {
    /// Returns the random numbers of an operation, if it goes wrong.
    fn strike(&self) -> Option<Rng> {
        let nth = self.drawn.fetch_add(1, SeqCst);
        let mut rng = Rng::with_seed(nth.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        (rng.u64(..256) < self.of_256.load(SeqCst)).then_some(rng)
    }
}

/// The engine's log: numbers of records. Misbehaves.
#[derive(Debug, Default)]
struct Log {
    last: AtomicU64,
    durable: AtomicU64,
    trouble: Trouble,
}

impl Log {
    fn append(&self) -> u64 {
        self.last.fetch_add(1, SeqCst) + 1
    }
}

impl WriteGate for Log {
    fn durable_lsn(&self) -> u64 {
        self.durable.load(SeqCst)
    }

    /// Fails, flushes less than it should, or more.
    fn flush(&self, lsn: u64) -> io::Result<()> {
        let last = self.last.load(SeqCst);
        assert!(lsn <= last, "no record has LSN {lsn} yet");
        let Some(mut rng) = self.trouble.strike() else {
            self.durable.fetch_max(last, SeqCst);
            return Ok(());
        };
        if rng.bool() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let durable = self.durable_lsn();
        self.durable
            .fetch_max(durable + rng.u64(..=last - durable.min(last)), SeqCst);
        Ok(())
    }
}

/// The LSNs of a page's sectors.
type Sectors = [u64; SECTORS];

/// One page on disk: the sectors that survive in any case, and those that it returns.
#[derive(Debug, Default)]
struct Stored {
    durable: Sectors,
    cached: Sectors,
}

/// A disk with a cache of its own: without a sync, each sector of a page survives or not.
#[derive(Debug)]
struct Disk {
    pages: Vec<Mutex<Stored>>,
    /// By page: the LSNs of its changes. Pushed under its latch.
    history: Vec<Mutex<Vec<u64>>>,
    /// By page: the last change whose latch was released. A sync that begins now must store it.
    settled: Vec<AtomicU64>,
    log: Arc<Log>,
    trouble: Trouble,
    /// Pages that were written before their log.
    ahead: AtomicU64,
    /// Errors in the middle of several pages.
    torn: AtomicU64,
}

fn index(page: u64) -> usize {
    usize::try_from(page).expect("a small file")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic under the lock")
}

fn lsn_of(sector: &[u8]) -> u64 {
    u64::from_le_bytes(sector[..8].try_into().expect("eight bytes"))
}

impl Disk {
    fn new(pages: u64) -> Arc<Self> {
        Arc::new(Self {
            pages: (0..pages).map(|_| Mutex::default()).collect(),
            history: (0..pages).map(|_| Mutex::default()).collect(),
            settled: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            log: Arc::default(),
            trouble: Trouble::default(),
            ahead: AtomicU64::new(0),
            torn: AtomicU64::new(0),
        })
    }

    /// Writes those sectors of a page that `takes` names.
    fn put(&self, page: u64, buf: &[u8], mut takes: impl FnMut() -> bool) {
        let mut stored = locked(&self.pages[index(page)]);
        for (sector, bytes) in stored.cached.iter_mut().zip(buf.chunks_exact(SECTOR)) {
            let lsn = lsn_of(bytes);
            let is_ahead = lsn > self.log.durable_lsn();
            self.ahead.fetch_add(u64::from(is_ahead), SeqCst);
            if takes() {
                *sector = lsn;
            }
        }
    }

    /// Asserts that whatever the disk does with its cache, `least` of each page is in all sectors.
    fn assert_durable(&self, pages: impl Iterator<Item = u64>, least: impl Fn(u64) -> u64) {
        for page in pages {
            let (want, durable) = (least(page), locked(&self.pages[index(page)]).durable);
            assert!(
                durable.iter().all(|&lsn| lsn >= want),
                "page {page}: LSN {want} is not durable: {durable:?}"
            );
        }
    }

    /// Asserts that a redo from `redo` on misses nothing.
    fn assert_redo_from(&self, redo: u64) {
        self.assert_durable(0..self.pages.len() as u64, |page| {
            let changes = locked(&self.history[index(page)]);
            let before = changes.partition_point(|&lsn| lsn < redo);
            before.checked_sub(1).map_or(0, |last| changes[last])
        });
    }

    /// Stops the machine, and recovers from `redo` on: every page then has the last change whose
    /// record is durable. No thread writes pages.
    fn assert_recovers(&self, redo: u64, rng: &mut Rng) {
        // At one moment for all pages, as background threads go on; the log is at least as far.
        let pages: Vec<_> = self.pages.iter().map(locked).collect();
        let durable = self.log.durable_lsn();
        for (page, stored) in pages.iter().enumerate() {
            let changes = locked(&self.history[page]);
            let logged = changes.partition_point(|&lsn| lsn <= durable);
            let redone = changes.get(changes.partition_point(|&lsn| lsn < redo)..logged);
            let redone = redone.and_then(<[u64]>::last).copied().unwrap_or(0);
            let want = logged.checked_sub(1).map_or(0, |last| changes[last]);
            for (&old, &new) in stored.durable.iter().zip(&stored.cached) {
                // Any sector that was written since the last sync, or none.
                let written = changes.iter().filter(|lsn| (old..=new).contains(lsn));
                let found = rng.choice(written.copied().collect::<Vec<_>>());
                let found = found.filter(|_| rng.bool()).unwrap_or(old);
                assert!(
                    found <= durable,
                    "page {page} is ahead: {found} of {durable}"
                );
                assert_eq!(redone.max(found), want, "page {page} from {redo} on");
            }
        }
    }
}

impl Backing for Disk {
    fn len(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        if self.trouble.strike().is_some() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let stored = locked(&self.pages[index(page)]);
        for (lsn, sector) in stored.cached.iter().zip(buf.chunks_exact_mut(SECTOR)) {
            sector[..8].copy_from_slice(&lsn.to_le_bytes());
        }
        Ok(buf.len())
    }

    /// Fails, with some sectors written; or writes the first ones only.
    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> io::Result<usize> {
        let Some(mut rng) = self.trouble.strike() else {
            self.put(page, buf, || true);
            return Ok(buf.len());
        };
        if rng.bool() {
            self.put(page, buf, || rng.bool());
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let mut left = rng.usize(..SECTORS);
        let taken = left * SECTOR;
        self.put(page, buf, || {
            left = left.wrapping_sub(1);
            left < SECTORS
        });
        Ok(taken)
    }

    /// Writes the pages in any order, up to an error; the first ones in order count.
    fn write_pages(&self, FilePage(first): FilePage, bufs: &[&[u8]]) -> io::Result<usize> {
        let Some(mut rng) = self.trouble.strike() else {
            let pages = (first..).zip(bufs);
            pages.for_each(|(page, buf)| self.put(page, buf, || true));
            return Ok(bufs.len() * PAGE_SIZE);
        };
        let mut order: Vec<usize> = (0..bufs.len()).collect();
        rng.shuffle(&mut order);
        order.truncate(rng.usize(..bufs.len()));
        for &nth in &order {
            self.put(first + nth as u64, bufs[nth], || true);
        }
        self.torn.fetch_add(1, SeqCst);
        let in_order = (0..bufs.len()).take_while(|nth| order.contains(nth));
        Ok(in_order.count() * PAGE_SIZE)
    }

    fn sync(&self) -> io::Result<()> {
        if self.trouble.strike().is_some() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        for stored in &self.pages {
            let mut stored = locked(stored);
            stored.durable = stored.cached;
        }
        Ok(())
    }
}

/// An engine: its file, its log, and the LSN from which it would recover.
struct Engine {
    hw: Manager,
    disk: Arc<Disk>,
    file: File,
    map: Mapping,
    redo: AtomicU64,
}

impl Engine {
    fn new(seed: u64, rng: &mut Rng) -> Self {
        let background = match seed % 2 {
            0 => Background::Thread,
            _ => Background::Off,
        };
        let hw = Manager::builder().capacity(Pages(rng.u64(48..200)).bytes());
        let hw = hw.background(background).build().expect("a small manager");
        let disk = Disk::new(rng.u64(20..400));
        let backing = Arc::clone(&disk) as Arc<dyn Backing>;
        let file = hw
            .open_backing(backing, Access::ReadWrite)
            .expect("one file");
        file.set_write_gate(Arc::clone(&disk.log) as Arc<dyn WriteGate>);
        let map = hw.space(&hw.root()).map_file(&file, 0..file.pages());
        Self {
            map: map.expect("the whole file"),
            hw,
            disk,
            file,
            redo: AtomicU64::new(0),
        }
    }

    fn step(&self, rng: &mut Rng) {
        let pages = self.file.pages();
        match rng.u16(..1000) {
            0..700 => self.write(rng.u64(..pages).min(rng.u64(..pages))),
            700..960 => self.read(rng.u64(..pages)),
            960..975 => {
                // The engine commits.
                let last = self.disk.log.last.load(SeqCst);
                self.disk.log.durable.fetch_max(last, SeqCst);
            }
            975..990 => self.checkpoint(rng),
            990..996 => self.sync_some(rng),
            nth => {
                let of_256 = rng.choice([0, 0, 4, 60]).unwrap_or(0);
                let trouble = match nth % 2 {
                    0 => &self.disk.trouble,
                    _ => &self.disk.log.trouble,
                };
                trouble.of_256.store(of_256, SeqCst);
            }
        }
    }

    /// Logs a change of a page, and makes it.
    fn write(&self, page: u64) {
        let mut bytes = match self.map.write(page) {
            Ok(bytes) => bytes,
            Err(error) => return assert_excused(&error),
        };
        let mut changes = locked(&self.disk.history[index(page)]);
        assert_page(&bytes, page, &changes);
        let lsn = self.disk.log.append();
        changes.push(lsn);
        drop(changes);
        for sector in bytes.chunks_exact_mut(SECTOR) {
            sector[..8].copy_from_slice(&lsn.to_le_bytes());
        }
        bytes.set_lsn(lsn);
        drop(bytes);
        self.disk.settled[index(page)].fetch_max(lsn, SeqCst);
    }

    fn read(&self, page: u64) {
        match self.map.read_latched(page) {
            Ok(bytes) => assert_page(&bytes, page, &locked(&self.disk.history[index(page)])),
            Err(error) => assert_excused(&error),
        }
    }

    fn checkpoint(&self, rng: &mut Rng) {
        let next = self.disk.log.last.load(SeqCst) + 1;
        let lsn = match rng.u8(..4) {
            0 => rng.u64(1..=next),
            _ => next,
        };
        if let Ok(redo) = self.file.checkpoint(lsn, Pages(rng.u64(1..60))) {
            assert!((1..=lsn).contains(&redo), "from {redo} on, of {lsn}");
            self.disk.assert_redo_from(redo);
            let oldest = self.file.oldest_dirty_lsn();
            assert!(
                oldest.is_none_or(|oldest| oldest >= redo),
                "{oldest:?} is before {redo}"
            );
            self.redo.fetch_max(redo, SeqCst);
        }
    }

    /// Syncs the file, or a part of it: what was written before is durable.
    fn sync_some(&self, rng: &mut Rng) {
        let pages = self.file.pages();
        let begin = rng.u64(..pages);
        let range = match rng.bool() {
            true => begin..rng.u64(begin..=pages),
            false => 0..pages,
        };
        let settled = self.disk.settled.iter();
        let before: Vec<u64> = settled.map(|lsn| lsn.load(SeqCst)).collect();
        let synced = match range.end - range.start == pages {
            true => self.file.sync(),
            false => self.file.sync_range(range.clone()),
        };
        if synced.is_ok() {
            self.disk.assert_durable(range, |page| before[index(page)]);
        }
    }

    /// Ends all trouble: everything reaches the disk, and everything is released.
    fn end(self) {
        for trouble in [&self.disk.trouble, &self.disk.log.trouble] {
            trouble.of_256.store(0, SeqCst);
        }
        let next = self.disk.log.last.load(SeqCst) + 1;
        // Terminates: each step writes a page. The first one may tell of earlier syncs.
        while !matches!(self.file.checkpoint(next, Pages(7)), Ok(redo) if redo == next) {}
        assert_eq!(self.file.dirty_pages(), []);
        self.disk.assert_redo_from(next);
        assert_eq!(
            self.disk.ahead.load(SeqCst),
            0,
            "sectors ahead of their log"
        );
        let Self { hw, file, map, .. } = self;
        drop((map, file));
        assert_empty(&hw);
    }
}

fn assert_page(bytes: &[u8], page: u64, changes: &[u64]) {
    let last = changes.last().copied().unwrap_or(0);
    let found: Vec<u64> = bytes.chunks_exact(SECTOR).map(lsn_of).collect();
    assert_eq!(found, [last; SECTORS], "page {page}");
}

/// Asserts that an access failed because of storage that was in trouble.
fn assert_excused(error: &ReadError) {
    assert!(
        matches!(error, ReadError::Io { .. } | ReadError::NoMemory { .. }),
        "{error}"
    );
}

#[test]
fn recovery_from_a_checkpoint_misses_nothing() {
    // Goal: what the module promises. Method: threads that change and read pages of a file larger
    // than its pool, checkpoint and sync; storage that fails, is torn within a page, writes
    // neighbours out of order, and forgets what was not synced; a log that fails or flushes a part.
    // Between phases the machine stops ten times, each time with another part of the disk's cache.
    let steps = std::env::var("CHECKPOINT_STEPS").ok();
    let steps: u64 = steps.map_or(8 * 5000, |text| text.parse().expect("a number of steps"));
    let first = seed::seed(300);
    let (mut torn, mut blocked, mut redone) = (0, 0, 0);
    for seed in first..first + ROUNDS {
        seed::show(seed);
        let mut rng = Rng::with_seed(seed);
        let engine = Engine::new(seed, &mut rng);
        for phase in 0..PHASES {
            thread::scope(|scope| {
                for nth in 0..THREADS {
                    let mut rng = Rng::with_seed((seed * PHASES + phase) * THREADS + nth);
                    let engine = &engine;
                    scope.spawn(move || {
                        for _ in 0..steps / (ROUNDS * PHASES * THREADS) {
                            engine.step(&mut rng);
                        }
                    });
                }
            });
            let redo = engine.redo.load(SeqCst);
            (0..10).for_each(|_| engine.disk.assert_recovers(redo, &mut rng));
        }
        torn += engine.disk.torn.load(SeqCst);
        blocked += engine.hw.snapshot().counter("nr_wal_blocked");
        redone += engine.redo.load(SeqCst);
        engine.end();
    }
    println!("{torn} torn, {blocked} held up, {redone} not redone of {steps} steps");
    assert!(torn > 0 && blocked > 0 && redone > 0);
}

#[test]
fn a_checkpoint_takes_the_oldest_first_and_counts_no_page_twice() {
    // Method: pages whose LSNs run against their order; steps of two pages. A page that is written
    // to again keeps its recovery LSN until it is clean, and pages without LSN stay.
    let hw = Manager::builder()
        .background(Background::Off)
        .capacity(Pages(64).bytes());
    let hw = hw.build().expect("a manager");
    let backing = Disk::new(10) as Arc<dyn Backing>;
    let file = hw
        .open_backing(backing, Access::ReadWrite)
        .expect("one file");
    let map = hw
        .space(&hw.root())
        .map_file(&file, 0..10)
        .expect("the whole file");
    for (page, lsn) in [(4, 10), (3, 20), (2, 30), (1, 40), (4, 50)] {
        map.write(page).expect("memory").set_lsn(lsn);
    }
    map.write(9).expect("memory")[0] = 0;
    let pages = |dirty: &[(u64, u64)]| -> Vec<(FilePage, u64)> {
        dirty
            .iter()
            .map(|&(page, lsn)| (FilePage(page), lsn))
            .collect()
    };
    assert_eq!(
        file.dirty_pages(),
        pages(&[(1, 40), (2, 30), (3, 20), (4, 10), (9, 0)])
    );
    assert_eq!(file.oldest_dirty_lsn(), Some(10));
    assert_eq!(file.checkpoint(31, Pages(2)).expect("storage works"), 30);
    assert_eq!(file.dirty_pages(), pages(&[(1, 40), (2, 30), (9, 0)]));
    map.write(4).expect("memory").set_lsn(60);
    assert_eq!(file.checkpoint(31, Pages(2)).expect("storage works"), 31);
    assert_eq!(file.dirty_pages(), pages(&[(1, 40), (4, 60), (9, 0)]));
    assert_eq!(file.checkpoint(61, Pages(0)).expect("storage works"), 40);
    file.sync_range(9..10).expect("storage works");
    assert_eq!(file.dirty_pages(), pages(&[(1, 40), (4, 60)]));
    file.sync().expect("storage works");
    assert_eq!(
        (file.oldest_dirty_lsn(), file.dirty_pages()),
        (None, vec![])
    );
    hw.check_invariants();
}
