//! Promise: the dirty pages of a file, their recovery LSNs and the counters of write-back are exact
//! at rest, whatever is written, synced, checkpointed, cut off and evicted; and a log that lags
//! holds back the pages that wait for it, and no others.

#![expect(clippy::unwrap_used, reason = "a failure shows where it was")]

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use highwater::group::{StatItem, Tolerance};
use highwater::units::{FilePage, PAGE_SIZE};
use highwater::{
    Access, Background, Backing, Bytes, File, Manager, Mapping, Pages, Snapshot, SyncError,
    WriteBackError, WriteGate,
};
use support::assert_empty;

/// Most pages of the file.
const PAGES: u64 = 12;

/// A log of which only the LSNs are kept.
#[derive(Debug, Default)]
struct Log {
    last: AtomicU64,
    durable: AtomicU64,
    refuses: AtomicBool,
}

impl WriteGate for Log {
    fn durable_lsn(&self) -> u64 {
        self.durable.load(SeqCst)
    }

    fn flush(&self, lsn: u64) -> io::Result<()> {
        if self.refuses.load(SeqCst) {
            return Err(io::Error::other("as told"));
        }
        self.durable.fetch_max(lsn, SeqCst);
        Ok(())
    }
}

/// Storage in memory that refuses a page ahead of its log: a page begins with the LSN of its last
/// logged change.
#[derive(Debug)]
struct Stored {
    bytes: Mutex<Vec<u8>>,
    page_size: usize,
    log: Arc<Log>,
}

impl Stored {
    fn begin(&self, page: FilePage) -> usize {
        usize::try_from(page.0).unwrap() * self.page_size
    }
}

impl Backing for Stored {
    fn len(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let begin = self.begin(page);
        buf.copy_from_slice(&self.bytes.lock().unwrap()[begin..][..buf.len()]);
        Ok(buf.len())
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        if lsn_of(buf) > self.log.durable_lsn() {
            return Err(io::Error::other("ahead of its log"));
        }
        let begin = self.begin(page);
        self.bytes.lock().unwrap()[begin..][..buf.len()].copy_from_slice(buf);
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).unwrap();
        self.bytes.lock().unwrap().resize(len, 0);
        Ok(())
    }
}

fn lsn_of(page: &[u8]) -> u64 {
    u64::from_le_bytes(page[..8].try_into().unwrap())
}

/// Recovery LSN and that of the last change; 0 for none.
type Lsns = (u64, u64);

/// A file, and its expected state.
struct Model {
    hw: Manager,
    storage: Arc<Stored>,
    log: Arc<Log>,
    file: File,
    map: Mapping,
    bytes: Vec<u8>,
    dirty: BTreeMap<u64, Lsns>,
    nr_dirtied: u64,
    nr_written: u64,
    /// Dirty pages that the file has lost.
    nr_cut: u64,
}

impl Model {
    fn new(page_size: usize) -> Self {
        let log = Arc::new(Log::default());
        let bytes = vec![0; usize::try_from(PAGES).unwrap() * page_size];
        let storage = Arc::new(Stored {
            bytes: Mutex::new(bytes.clone()),
            page_size,
            log: Arc::clone(&log),
        });
        let hw = Manager::builder().capacity(Pages(2048).bytes());
        let hw = hw.background(Background::Off).build().unwrap();
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let file = hw.open_backing(backing, Access::ReadWrite).unwrap();
        file.set_write_gate(Arc::clone(&log) as Arc<dyn WriteGate>);
        let map = hw.space(&hw.root()).map_file(&file, 0..PAGES).unwrap();
        Self {
            hw,
            storage,
            log,
            file,
            map,
            bytes,
            dirty: BTreeMap::new(),
            nr_dirtied: 0,
            nr_written: 0,
            nr_cut: 0,
        }
    }

    fn pages(&self) -> u64 {
        self.bytes.len().div_ceil(self.storage.page_size) as u64
    }

    fn frames(&self) -> u64 {
        (self.storage.page_size / PAGE_SIZE) as u64
    }

    /// Returns the bytes of a page of the file.
    fn range(&self, page: u64) -> Range<usize> {
        let begin = self.storage.begin(FilePage(page));
        begin..self.bytes.len().min(begin + self.storage.page_size)
    }

    /// Changes a page, by up to two records; by none it is only dirty.
    fn change(&mut self, page: u64, rng: &mut Rng) {
        let range = self.range(page);
        let at = rng.usize(8..range.len());
        let mut latched = self.map.write(page).unwrap();
        assert_eq!(latched[..range.len()], self.bytes[range.clone()]);
        let frames = self.frames();
        let (recovery, last) = self.dirty.entry(page).or_insert_with(|| {
            self.nr_dirtied += frames;
            (0, 0)
        });
        for _ in 0..rng.u8(..3) {
            let lsn = self.log.last.fetch_add(1, SeqCst) + 1;
            latched.set_lsn(lsn);
            latched[..8].copy_from_slice(&lsn.to_le_bytes());
            *last = lsn;
            *recovery = if *recovery == 0 { lsn } else { *recovery };
        }
        match rng.u8(..3) {
            0 => latched.mark_dirty(),
            1 => latched.set_lsn(0),
            _ => latched[at] = rng.u8(..),
        }
        self.bytes[range.clone()].copy_from_slice(&latched[..range.len()]);
    }

    /// Latches a page in every way, and writes nothing.
    fn look(&self, page: u64) {
        let range = self.range(page);
        let write = self.map.write(page).unwrap();
        let read = write.downgrade();
        assert_eq!(read[..range.len()], self.bytes[range.clone()]);
        assert!(read[range.len()..].iter().all(|byte| *byte == 0));
        let write = read.try_upgrade().unwrap();
        drop(write);
        let optimistic = self.map.read_optimistic(page).unwrap();
        let mut copy = vec![0; range.len()];
        optimistic.copy_to(0, &mut copy);
        assert_eq!(copy, self.bytes[range]);
        drop(optimistic.try_write().unwrap());
        assert!(optimistic.validate());
    }

    /// Expects that `result` is that of a write-back of `pages`: all that do not wait for the log
    /// are clean, and the others, if it refuses, are counted in the error.
    fn wrote<T>(&mut self, pages: &[u64], result: Result<T, SyncError>) -> Option<T> {
        let durable = self.log.durable_lsn();
        let waits = |page: &&u64| self.dirty[*page].1 > durable;
        let mut held: Vec<u64> = pages.iter().filter(waits).copied().collect();
        held.sort_unstable();
        for page in pages.iter().filter(|page| !held.contains(page)) {
            self.dirty.remove(page);
            self.nr_written += self.frames();
        }
        match (result, held.first()) {
            (Ok(value), None) => return Some(value),
            (Err(SyncError::WriteBack { failed, first }), Some(at)) => {
                assert_eq!(failed, held.len() as u64);
                let WriteBackError::Log { page, lsn, .. } = first else {
                    panic!("{first}");
                };
                assert_eq!((page.0, lsn), (*at, self.dirty[at].1));
            }
            (result, held) => panic!("{:?}, and {held:?} is held back", result.map(drop)),
        }
        None
    }

    fn sync(&mut self, rng: &mut Rng) {
        let start = rng.u64(..=PAGES);
        let range = start..rng.u64(start..=PAGES + 3);
        let (range, result) = match rng.bool() {
            true => (0..PAGES, self.file.sync()),
            false => (range.clone(), self.file.sync_range(range)),
        };
        let within = self.dirty.range(range).map(|(page, _)| *page);
        let pages: Vec<u64> = within.collect();
        self.wrote(&pages, result);
    }

    fn checkpoint(&mut self, rng: &mut Rng) {
        let next = self.log.last.load(SeqCst) + 1;
        let lsn = rng.u64(next.saturating_sub(30)..=next);
        let at_most = rng.usize(..6);
        let old = self.dirty.iter().map(|(page, lsns)| (lsns.0, *page));
        let mut old: Vec<_> = old.filter(|(first, _)| (1..lsn).contains(first)).collect();
        old.sort_unstable();
        let (now, later) = old.split_at(at_most.min(old.len()));
        let now: Vec<u64> = now.iter().map(|(_, page)| *page).collect();
        let result = self.file.checkpoint(lsn, Pages(at_most as u64));
        let expected = later.first().map_or(lsn, |(first, _)| *first);
        if let Some(redo) = self.wrote(&now, result) {
            assert_eq!(redo, expected);
        }
    }

    fn resize(&mut self, rng: &mut Rng) {
        let size = self.storage.page_size;
        let whole = rng.usize(..=usize::try_from(PAGES).unwrap()) * size;
        let part = [0, 0, 16, size - 16][rng.usize(..4)];
        let len = (whole + part).min(usize::try_from(PAGES).unwrap() * size);
        let (end, cut) = ((len / size) as u64, len < self.bytes.len());
        let waits = self.dirty.range(end..).map(|(_, (_, last))| *last).max();
        let is_refused = cut && waits > Some(self.log.durable_lsn());
        let is_refused = is_refused && self.log.refuses.load(SeqCst);
        let resized = self.file.set_len(Bytes(len as u64));
        assert_eq!(resized.is_err(), is_refused, "{resized:?}");
        if !is_refused {
            self.bytes.resize(len, 0);
            let lost = self.dirty.split_off(&self.pages());
            self.nr_cut += lost.len() as u64 * self.frames();
        }
    }

    fn evict(&mut self) {
        // Reclaim asks a log that lags as late as it can.
        let last = self.log.last.load(SeqCst);
        self.log.durable.store(last, SeqCst);
        self.hw.drop_caches();
        self.nr_written += self.dirty.len() as u64 * self.frames();
        self.dirty.clear();
        assert_eq!(self.hw.root().usage_precise(), Bytes::ZERO);
    }

    fn step(&mut self, rng: &mut Rng) {
        match (rng.u8(..20), self.pages()) {
            (0..9, 1..) => self.change(rng.u64(..self.pages()), rng),
            (9..11, 1..) => self.look(rng.u64(..self.pages())),
            (11 | 12, _) => self.sync(rng),
            (13 | 14, _) => self.checkpoint(rng),
            (15, _) => self.resize(rng),
            (16, _) if rng.u8(..4) == 0 => self.evict(),
            (17, _) => self.log.refuses.store(rng.bool(), SeqCst),
            _ => {
                let durable = self.log.durable_lsn()..=self.log.last.load(SeqCst);
                self.log.durable.store(rng.u64(durable), SeqCst);
            }
        }
    }

    fn check(&self) {
        let listed = self.file.dirty_pages();
        let expected = self.dirty.iter();
        let expected = expected.map(|(page, (first, _))| (FilePage(*page), *first));
        assert_eq!(listed, Vec::from_iter(expected));
        let firsts = self.dirty.values().map(|lsns| lsns.0);
        let oldest = firsts.filter(|first| *first > 0).min();
        assert_eq!(self.file.oldest_dirty_lsn(), oldest);
        let nr_dirty = self.dirty.len() as u64 * self.frames();
        let snapshot = Snapshot::from(&self.hw);
        assert_eq!(snapshot.counter("nr_dirty"), nr_dirty);
        assert_eq!(snapshot.counter("nr_dirtied"), self.nr_dirtied);
        assert_eq!(snapshot.counter("nr_written"), self.nr_written);
        assert_eq!(nr_dirty, self.nr_dirtied - self.nr_written - self.nr_cut);
        let stats = self.hw.root().stats(Tolerance::EXACT);
        assert_eq!(stats.get(StatItem::FileDirty), nr_dirty.cast_signed());
        assert_eq!(stats.get(StatItem::FileWriteback), 0);
    }
}

#[test]
fn dirty_pages_and_their_counters_agree_with_a_model() {
    // Goal: what the module promises, after every step, for each size of pages. Method: random
    // changes of up to two records each, latches that write nothing, syncs of all and of a part,
    // checkpoints, resizes and evictions, with a log that lags, and that refuses to flush.
    let seed = seed::seed(0xd1);
    for (nth, page_size) in [4096, 8192, 16_384, 32_768, 65_536].into_iter().enumerate() {
        let mut rng = Rng::with_seed(seed + nth as u64);
        let mut model = Model::new(page_size);
        for _ in 0..1200 {
            model.step(&mut rng);
            model.check();
        }
        assert!(model.nr_cut > 0 && model.nr_written > 100);
        assert_eq!(model.hw.snapshot().counter("nr_write_failed"), 0);
        model.hw.check_invariants();
        model.log.refuses.store(false, SeqCst);
        model.file.sync().unwrap();
        assert_eq!(*model.storage.bytes.lock().unwrap(), model.bytes);
        let Model { hw, file, map, .. } = model;
        drop((file, map));
        assert_empty(&hw);
    }
}
