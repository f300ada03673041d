//! Promise: a storage engine on the public API loses nothing that it acknowledged, however it ends.
//!
//! The engine is `examples/engine`. A child runs transactions over storage that writes in any order
//! and tears pages, and is killed (SIGKILL) at random. Then no page of the data file may be ahead
//! of the log, and a store that recovers has every acknowledged transaction and no part of another.
//!
//! 20 kills; `HIGHWATER_TEST_KILLS` asks for more.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::{Background, Backing, Bytes, FileBacking, FilePage, Manager, PAGE_SIZE, Pages};

#[path = "../examples/engine/data_file.rs"]
mod data_file;
#[path = "engine/errors.rs"]
mod errors;
#[path = "../examples/engine/log.rs"]
mod log;
#[path = "../examples/engine/node.rs"]
mod node;
#[path = "../src/seed.rs"]
mod seed;
#[path = "../examples/engine/store.rs"]
mod store;
#[path = "../examples/engine/tree.rs"]
mod tree;

use data_file::DataFile;
use node::Node;
use store::{Media, Store, StoreError};

const DATA: Bytes = Bytes::mib(8);
/// A quarter of what the keys need.
const MEMORY: Bytes = Bytes::kib(512);
const WORKERS: u64 = 4;
/// Keys of a worker that its transactions write, besides one that counts them.
const SLOTS: u64 = 2_000;
/// Accounts that all workers move money between, after the workers' keys.
const ACCOUNTS: u64 = 50;
const OPENING: u64 = 1_000;
const CHILD: &str = "HIGHWATER_TEST_ENGINE_DIR";

fn hash(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

fn slot_key(worker: u64, slot: u64) -> u64 {
    // Spread, so that workers share leaves.
    hash(slot << 8 | worker) >> 1
}

fn account_key(account: u64) -> u64 {
    u64::MAX - account
}

/// The slots that a worker's transaction writes.
fn slots(worker: u64, nth: u64) -> [u64; 3] {
    [0, 1, 2].map(|it| hash(nth << 16 | worker << 8 | it) % SLOTS)
}

/// The slot that a worker's transaction removes, after it has written its own.
fn removed(worker: u64, nth: u64) -> u64 {
    hash(nth << 16 | worker << 8 | 3) % SLOTS
}

/// Storage that keeps written pages in memory until they are synced, writes them in any order and
/// at any time before, and each in two halves: what a crash leaves of them may be old, new or torn.
#[derive(Debug)]
struct Forgetful {
    file: FileBacking,
    raw: File,
    volatile: Mutex<BTreeMap<u64, Vec<u8>>>,
    random: Mutex<fastrand::Rng>,
}

impl Forgetful {
    fn new(file: File, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            raw: file.try_clone().unwrap(),
            file: FileBacking::new(file).unwrap(),
            volatile: Mutex::default(),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
        })
    }

    /// Writes some pages to the file, each in halves of any order.
    fn settle(&self, pages: BTreeMap<u64, Vec<u8>>) -> io::Result<()> {
        let mut random = self.random.lock().unwrap().fork();
        let mut halves: Vec<_> = pages
            .iter()
            .flat_map(|(page, bytes)| [(page, bytes, 0), (page, bytes, PAGE_SIZE / 2)])
            .collect();
        random.shuffle(&mut halves);
        for (page, bytes, half) in halves {
            let end = half + PAGE_SIZE / 2;
            self.raw
                .write_all_at(&bytes[half..end], page * PAGE_SIZE as u64 + half as u64)?;
            if random.u8(..) < 8 {
                std::thread::sleep(Duration::from_micros(random.u64(..500)));
            }
        }
        Ok(())
    }

    /// Writes a few pages before any sync asks for it, for ever.
    fn leak(&self) {
        loop {
            std::thread::sleep(Duration::from_millis(2));
            let volatile = self.volatile.lock().unwrap();
            let some = |_: &(&u64, &Vec<u8>)| self.random.lock().unwrap().u8(..) < 64;
            let pages = volatile
                .iter()
                .filter(some)
                .map(|(&page, bytes)| (page, bytes.clone()));
            let pages = pages.collect();
            // Under the lock: a page that is written again must not be overtaken.
            self.settle(pages).unwrap();
        }
    }
}

impl Backing for Forgetful {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        match self.volatile.lock().unwrap().get(&page.0) {
            Some(bytes) => buf.copy_from_slice(bytes),
            None => return self.file.read_page(page, buf),
        }
        Ok(buf.len())
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.volatile.lock().unwrap().insert(page.0, buf.to_vec());
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        let mut volatile = self.volatile.lock().unwrap();
        self.settle(std::mem::take(&mut *volatile))
    }
}

/// Appends to the log with the end before the beginning.
fn append_backwards(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let at = file.seek(SeekFrom::End(0))?;
    let half = bytes.len() / 2;
    file.write_all_at(&bytes[half..], at + half as u64)?;
    std::thread::sleep(Duration::from_micros(hash(at) % 300));
    file.write_all_at(&bytes[..half], at)
}

fn manager() -> Manager {
    Manager::builder()
        .capacity(MEMORY)
        .background(Background::Thread)
        .build()
        .unwrap()
}

fn data_file(dir: &Path) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(dir.join("data")).unwrap();
    file.set_len(DATA.0).unwrap();
    file
}

fn number(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |bytes| {
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    })
}

/// Runs a worker's transactions from its next one on; reports each when it is durable.
fn work(store: &Store, worker: u64) -> Result<(), StoreError> {
    let counter = slot_key(worker, SLOTS);
    let mut nth = number(store.get(counter)?);
    let mut random = fastrand::Rng::with_seed(nth << 8 | worker);
    loop {
        nth += 1;
        let (from, to) = (random.u64(..ACCOUNTS), random.u64(..ACCOUNTS));
        let long = vec![0; random.usize(..=node::VALUE_MAX - 8)];
        loop {
            let mut transaction = store.begin();
            let value = [&nth.to_le_bytes()[..], &long].concat();
            transaction.put(counter, &value)?;
            for slot in slots(worker, nth) {
                transaction.put(slot_key(worker, slot), &value)?;
            }
            transaction.remove(slot_key(worker, removed(worker, nth)));
            let [less, more] = [from, to].map(account_key);
            let (has, gets) = (
                number(transaction.get(less)?),
                number(transaction.get(more)?),
            );
            if from != to && has > 0 {
                transaction.put(less, &(has - 1).to_le_bytes())?;
                transaction.put(more, &(gets + 1).to_le_bytes())?;
            }
            match transaction.commit() {
                Ok(()) => break,
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        // Fails if the parent has gone.
        if writeln!(io::stdout(), "\ncommitted {worker} {nth}").is_err() {
            std::process::exit(0);
        }
    }
}

fn entries(store: &Store) -> Vec<store::Entry> {
    let (mut entries, mut from) = (Vec::new(), Some(0));
    while let Some(key) = from {
        let (some, next) = store.scan(key).unwrap();
        entries.extend(some);
        from = next;
    }
    entries
}

/// Appends to the log; nothing is durable.
fn append_only(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::End(0))?;
    file.write_all(bytes)
}

// Goal: a writer that waited for a leaf while it was split does not write to the wrong half.
// Method: neighbouring keys from many threads, in rising order, so that all wait for the last leaf.
#[test]
fn writers_of_one_leaf_survive_its_splits() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Arc::new(FileBacking::new(data_file(dir.path())).unwrap());
    let media = Media {
        data: Arc::new(DataFile(storage)),
        append: append_only,
    };
    let hw = manager();
    let store = Store::open(&hw, &hw.root(), dir.path(), media).unwrap();
    let (threads, each) = (8, 1_500);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let store = &store;
            scope.spawn(move || {
                for nth in 0..each {
                    let key = nth * threads + thread;
                    let mut transaction = store.begin();
                    transaction.put(key, &key.to_le_bytes()).unwrap();
                    transaction.commit().unwrap();
                    assert_eq!(number(store.get(key).unwrap()), key, "key {key}");
                }
            });
        }
    });
    let keys = entries(&store).into_iter().map(|(key, _)| key);
    assert!(keys.eq(0..threads * each));
}

fn open<B: Backing + 'static>(
    hw: &Manager,
    dir: &Path,
    storage: Arc<B>,
    append: log::Append,
) -> Store {
    let data = Arc::new(DataFile(storage));
    Store::open(hw, &hw.root(), dir, Media { data, append }).unwrap()
}

fn storage(dir: &Path) -> Arc<FileBacking> {
    Arc::new(FileBacking::new(data_file(dir)).unwrap())
}

fn put(store: &Store, key: u64) -> Result<(), StoreError> {
    let mut transaction = store.begin();
    transaction.put(key, &key.to_le_bytes())?;
    transaction.commit()
}

// Symptom: after a crash between the first segment and its first record, each read went round in
// circles; and a segment that a failed checkpoint had left ended recovery, without an error.
#[test]
fn segments_without_records_are_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let segment = |first: u64| dir.path().join(format!("log.{first:020}"));
    File::create(segment(1)).unwrap();
    let hw = manager();
    let store = open(&hw, dir.path(), storage(dir.path()), append_only);
    (0..4).for_each(|key| put(&store, key).unwrap());
    drop(store);
    File::create(segment(3)).unwrap();
    let store = open(&hw, dir.path(), storage(dir.path()), append_only);
    for key in 0..4 {
        assert_eq!(number(store.get(key).unwrap()), key);
    }
    drop(store);
    // A segment that goes on after records which are nowhere.
    std::fs::write(segment(99), [1]).unwrap();
    assert!(log::replay(dir.path(), |_, _| ()).is_err());
}

// Symptom: a checkpoint began only when no transaction had come during a whole write of the log.
#[test]
fn a_checkpoint_begins_under_load() {
    fn append_slowly(file: &mut File, bytes: &[u8]) -> io::Result<()> {
        std::thread::sleep(Duration::from_millis(2));
        append_only(file, bytes)
    }
    let dir = tempfile::tempdir().unwrap();
    let hw = manager();
    let store = open(&hw, dir.path(), storage(dir.path()), append_slowly);
    let (is_over, nr_commits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (store, is_over, nr_commits) = (&store, &is_over, &nr_commits);
            scope.spawn(move || {
                for nth in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    put(store, nth << 8 | thread).unwrap();
                    nr_commits.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..10 {
            let before = nr_commits.load(Ordering::Relaxed);
            store.checkpoint(Pages(1_000), || ()).unwrap();
            // One write of the log before it, and one beside it.
            let meanwhile = nr_commits.load(Ordering::Relaxed) - before;
            assert!(meanwhile < 1_000, "{meanwhile} commits");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn the_example_is_short_enough_to_read() {
    const LINES_MAX: usize = 1_200;
    let files = std::fs::read_dir("examples/engine").unwrap();
    let lines = |path| std::fs::read_to_string(path).unwrap().lines().count();
    let lines: usize = files.map(|entry| lines(entry.unwrap().path())).sum();
    assert!(lines <= LINES_MAX, "{lines} lines");
}

#[test]
fn a_page_in_anothers_place_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataFile(storage(dir.path()));
    let mut page = vec![7; PAGE_SIZE];
    data.seal(FilePage(2), &mut page);
    data.verify(FilePage(2), &page).unwrap();
    assert!(data.verify(FilePage(3), &page).is_err());
}

#[test]
fn child_works_until_it_is_killed() {
    // Goal: to be killed. Method: workers and checkpoints over forgetful storage.
    let Ok(dir) = std::env::var(CHILD) else {
        return;
    };
    let (dir, seed) = (Path::new(&dir), u64::from(std::process::id()));
    let storage = Forgetful::new(data_file(dir), seed);
    let media = Media {
        data: Arc::new(DataFile(Arc::clone(&storage))),
        append: append_backwards,
    };
    std::thread::spawn(move || storage.leak());
    let hw = manager();
    let store = Store::open(&hw, &hw.root(), dir, media).unwrap();
    if store.get(account_key(0)).unwrap().is_none() {
        for first in (0..ACCOUNTS).step_by(10) {
            let mut transaction = store.begin();
            for account in first..first + 10 {
                transaction
                    .put(account_key(account), &OPENING.to_le_bytes())
                    .unwrap();
            }
            transaction.commit().unwrap();
        }
    }
    writeln!(io::stdout(), "\nopened").unwrap();
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let store = &store;
            scope.spawn(move || work(store, worker).unwrap());
        }
        loop {
            std::thread::sleep(Duration::from_millis(seed % 20));
            store.checkpoint(Pages(16), || ()).unwrap();
        }
    });
}

/// Runs the child for some time after it has opened the store; returns the last transaction of each
/// worker that it reported.
fn run_and_kill(dir: &Path, time: Duration, reported: &mut [u64]) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_works_until_it_is_killed", "--nocapture"])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let opened = lines.by_ref().any(|line| line.unwrap() == "opened");
    assert!(opened, "the child ended: {:?}", child.wait());
    let killer = std::thread::spawn(move || {
        std::thread::sleep(time);
        child.kill().unwrap();
        child.wait().unwrap()
    });
    for line in lines.map_while(Result::ok) {
        let Some(pair) = line.strip_prefix("committed ") else {
            continue;
        };
        // A line that the child's death cut short says nothing.
        let numbers = pair
            .split_once(' ')
            .map(|(a, b)| (a.parse::<usize>(), b.parse()));
        if let Some((Ok(worker), Ok(nth))) = numbers {
            reported[worker] = reported[worker].max(nth);
        }
    }
    let status = killer.join().unwrap();
    assert_eq!(status.code(), None, "it was killed");
}

/// Checks that no whole page has a change whose record is not in the log; returns the number of
/// pages that are torn.
fn no_page_is_ahead(dir: &Path) -> usize {
    let next = log::replay(dir, |_, _| {}).unwrap();
    let file = data_file(dir);
    let checks = DataFile(Arc::new(
        FileBacking::new(file.try_clone().unwrap()).unwrap(),
    ));
    let (mut page, mut torn) = ([0; PAGE_SIZE], 0);
    for number in 0..DATA.0 / PAGE_SIZE as u64 {
        file.read_exact_at(&mut page, number * PAGE_SIZE as u64)
            .unwrap();
        if checks.verify(FilePage(number), &page).is_err() {
            torn += 1;
        } else {
            assert!(page.lsn() < next, "page {number}: {} of {next}", page.lsn());
        }
    }
    torn
}

/// Checks the store's contents; returns the last transaction of each worker.
fn check(dir: &Path, reported: &[u64]) -> Vec<u64> {
    let hw = manager();
    let storage = Arc::new(FileBacking::new(data_file(dir)).unwrap());
    let media = Media {
        data: Arc::new(DataFile(storage)),
        append: log::append_and_sync,
    };
    let store = Store::open(&hw, &hw.root(), dir, media).unwrap();
    let mut found = BTreeMap::new();
    for (key, value) in entries(&store) {
        let twice = found.insert(key, number(Some(value)));
        assert_eq!(twice, None, "key {key} twice");
    }
    let mut expected = BTreeMap::new();
    let mut last = Vec::new();
    for worker in 0..WORKERS {
        let reported = reported[usize::try_from(worker).unwrap()];
        let counter = slot_key(worker, SLOTS);
        let nth = found.get(&counter).copied().unwrap_or(0);
        assert!(
            nth == reported || nth == reported + 1,
            "worker {worker} reported {reported} and has {nth}"
        );
        for nth in 1..=nth {
            expected.insert(counter, nth);
            for slot in slots(worker, nth) {
                expected.insert(slot_key(worker, slot), nth);
            }
            expected.remove(&slot_key(worker, removed(worker, nth)));
        }
        last.push(nth);
    }
    let money: u64 = (0..ACCOUNTS)
        .filter_map(|it| found.remove(&account_key(it)))
        .sum();
    assert_eq!(money, ACCOUNTS * OPENING);
    assert!(
        found == expected,
        "some slot is not as its last transaction left it"
    );
    last
}

// Goal: the promise. Method: kill after random times, always the same store, whose contents follow
// from the number of each worker's transactions.
#[test]
fn nothing_acknowledged_is_lost() {
    let mut random = fastrand::Rng::with_seed(seed::seed(18));
    let kills = std::env::var("HIGHWATER_TEST_KILLS").map_or(20, |it| it.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut last = vec![0; usize::try_from(WORKERS).unwrap()];
    for kill in 0..kills {
        run_and_kill(
            dir.path(),
            Duration::from_millis(random.u64(1..150)),
            &mut last,
        );
        let torn = no_page_is_ahead(dir.path());
        last = check(dir.path(), &last);
        println!("kill {kill}: {torn} torn pages, {last:?}");
    }
    assert!(
        last.iter().all(|nth| *nth > 0),
        "every worker has committed"
    );
}
