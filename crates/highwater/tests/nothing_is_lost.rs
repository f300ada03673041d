//! Promise: nothing is lost. Random operations over files, groups and charges, on storage that
//! refuses and falls short, against a model of every page's contents; the books are checked as it
//! goes, and at the end everything is where it was.

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use highwater::cache::Access;
use highwater::{Background, Charge, File, Group, Limits, Manager, Mapping, Pages, ReadError};
use support::{TestFile, assert_empty, first_word};

const PAGES: u64 = 200;
const FRAMES: u64 = 96;

/// One writable file, its storage, and what each page must hold.
struct Model {
    storage: Arc<TestFile>,
    file: File,
    /// Version of each page: the byte behind its number.
    versions: Vec<u8>,
}

impl Model {
    fn new(hw: &Manager) -> Self {
        let storage = TestFile::new(PAGES);
        let backing = Arc::clone(&storage) as Arc<dyn highwater::Backing>;
        let file = hw
            .open_backing(backing, Access::ReadWrite)
            .expect("one file more");
        let versions = vec![0x5a; usize::try_from(PAGES).expect("small")];
        Self {
            storage,
            file,
            versions,
        }
    }

    fn version(&mut self, page: u64) -> &mut u8 {
        &mut self.versions[usize::try_from(page).expect("small")]
    }
}

/// What may fail while storage misbehaves, and only then.
fn is_excused(storage: &TestFile, error: &ReadError) -> bool {
    let misbehaves = storage.fails_reads.load(Ordering::Relaxed)
        || storage.fails_writes.load(Ordering::Relaxed)
        || storage.falls_short.load(Ordering::Relaxed);
    misbehaves
        && matches!(
            error,
            ReadError::Io { .. } | ReadError::Short { .. } | ReadError::NoMemory { .. }
        )
}

/// One thread's random operations on a file of its own, in groups of its own.
struct Actor<'a> {
    hw: &'a Manager,
    rng: Rng,
    parent: Group,
    groups: Vec<Group>,
    charges: Vec<Charge>,
    model: Model,
    made: u32,
}

impl<'a> Actor<'a> {
    fn new(hw: &'a Manager, seed: u64, name: &str) -> Self {
        let parent = hw
            .root()
            .child(name, Limits::default())
            .expect("a new name");
        let model = Model::new(hw);
        let (groups, charges) = (Vec::new(), Vec::new());
        Self {
            hw,
            rng: Rng::with_seed(seed),
            parent,
            groups,
            charges,
            model,
            made: 0,
        }
    }

    fn map(&mut self) -> Mapping {
        let group = self.rng.choice(&self.groups).unwrap_or(&self.parent);
        self.hw
            .space(group)
            .map_file(&self.model.file, 0..PAGES)
            .expect("the whole file")
    }

    fn step(&mut self) {
        let page = self.rng.u64(..PAGES);
        match self.rng.u8(..100) {
            0..35 => self.read(page),
            35..65 => self.write(page),
            65..72 => self.charge(),
            72..79 => drop(self.charges.pop()),
            79..84 => self.add_group(),
            84..88 => self.remove_group(),
            88..91 => drop(self.hw.drop_caches()),
            91..95 => self.sync(),
            _ => self.misbehave(),
        }
    }

    fn read(&mut self, page: u64) {
        let map = self.map();
        match map.read_latched(page) {
            Ok(bytes) => {
                assert_eq!(
                    (first_word(&bytes), bytes[8]),
                    (page, *self.model.version(page))
                );
            }
            Err(error) => assert!(is_excused(&self.model.storage, &error), "{error}"),
        };
    }

    fn write(&mut self, page: u64) {
        let map = self.map();
        match map.write(page) {
            Ok(mut bytes) => {
                let version = self.model.version(page);
                assert_eq!((first_word(&bytes), bytes[8]), (page, *version));
                *version = version.wrapping_add(1);
                bytes[8] = *version;
            }
            Err(error) => assert!(is_excused(&self.model.storage, &error), "{error}"),
        };
    }

    fn charge(&mut self) {
        let group = self.rng.choice(&self.groups).unwrap_or(&self.parent);
        // A refusal is an answer; what is granted stays within the group's maximum.
        if let Ok(charge) = group.charge(Pages(self.rng.u64(1..8)).bytes()) {
            self.charges.push(charge);
        }
        self.charges.truncate(4);
    }

    fn add_group(&mut self) {
        self.made += 1;
        let max = Pages(self.rng.u64(20..60)).bytes();
        let name = format!("g{}", self.made);
        self.groups.push(
            self.parent
                .child(&name, Limits::max(max))
                .expect("a new name"),
        );
    }

    fn remove_group(&mut self) {
        if !self.groups.is_empty() {
            let group = self.groups.swap_remove(self.rng.usize(..self.groups.len()));
            group.remove().expect("childless");
        }
    }

    fn sync(&mut self) {
        let storage = &self.model.storage;
        let well = !storage.fails_writes.load(Ordering::Relaxed)
            && !storage.falls_short.load(Ordering::Relaxed);
        match self.model.file.sync() {
            Ok(()) => self.assert_stored(),
            Err(error) => assert!(!well, "{error}"),
        }
    }

    fn assert_stored(&self) {
        let stored = self
            .model
            .storage
            .pages
            .lock()
            .expect("no panic under the lock");
        for (page, version) in stored.iter().zip(&self.model.versions) {
            assert_eq!(page[8], *version, "page {}", first_word(page));
        }
    }

    fn misbehave(&mut self) {
        let storage = &self.model.storage;
        for trouble in [
            &storage.fails_reads,
            &storage.fails_writes,
            &storage.falls_short,
        ] {
            trouble.store(self.rng.u8(..) < 40, Ordering::Relaxed);
        }
    }

    /// Ends well: storage recovers, everything reaches it, everything is given back.
    fn finish(mut self) {
        let storage = &self.model.storage;
        for trouble in [
            &storage.fails_reads,
            &storage.fails_writes,
            &storage.falls_short,
        ] {
            trouble.store(false, Ordering::Relaxed);
        }
        self.model.file.sync().expect("storage works again");
        self.assert_stored();
        self.charges.clear();
        for group in self.groups.drain(..) {
            group.remove().expect("childless");
        }
        self.parent.remove().expect("childless");
    }
}

fn manager(background: Background) -> Manager {
    let builder = Manager::builder()
        .capacity(Pages(FRAMES).bytes())
        .background(background);
    builder.build().expect("a small manager")
}

#[test]
fn one_thread_against_the_model() {
    // Method: 400 steps for each of 50 seeds, the books checked every 20 steps.
    let first = seed::seed(100);
    for seed in first..first + 50 {
        let hw = manager(Background::Off);
        let mut actor = Actor::new(&hw, seed, "actor");
        for step in 0..400 {
            actor.step();
            if step % 20 == 0 {
                hw.check_invariants();
            }
        }
        actor.finish();
        assert_empty(&hw);
    }
}

#[test]
fn threads_with_files_of_their_own_share_one_pool() {
    // Method: 4 threads, each with a file, groups and a model of its own; the pool, its lists, the
    // tree and the background thread are shared.
    let first = seed::seed(200);
    for seed in first..first + 12 {
        let hw = manager(Background::Thread);
        let steps = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (hw, steps) = (&hw, &steps);
                scope.spawn(move || {
                    let name = format!("actor{thread}");
                    let mut actor = Actor::new(hw, seed * 4 + thread, &name);
                    for _ in 0..1500 {
                        match actor.rng.u8(..10) {
                            0 => actor.add_group(),
                            1 => actor.remove_group(),
                            2..6 => {
                                let page = actor.rng.u64(..PAGES);
                                actor.write(page);
                            }
                            _ => {
                                let page = actor.rng.u64(..PAGES);
                                actor.read(page);
                            }
                        }
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                    actor.finish();
                });
            }
        });
        assert_eq!(steps.load(Ordering::Relaxed), 6000);
        assert_empty(&hw);
    }
}
