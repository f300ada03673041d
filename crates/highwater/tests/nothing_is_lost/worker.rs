//! One thread's random operations, each of which knows what it must find.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use highwater::cache::Access;
use highwater::manager::PinnedPage;
use highwater::units::GroupId;
use highwater::{Backing, Charge, File, Group, Limits, Manager, Mapping, Pages, ReadError, Space};

use super::storage::{Storage, Wrongs, is_made_up};
use super::watchdog::Post;

/// A file and what it must hold.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) storage: Arc<Storage>,
    pub(crate) file: File,
    access: Access,
}

impl Opened {
    pub(crate) fn new(hw: &Manager, storage: Arc<Storage>, access: Access) -> Self {
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let file = hw.open_backing(backing, access).expect("one file more");
        Self {
            storage,
            file,
            access,
        }
    }
}

/// A mapping, and which of its pages are unmapped. Clones share both.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    map: Mapping,
    /// Who pays.
    group: GroupId,
    of: Opened,
    first: u64,
    /// Set before a page is unmapped.
    goes: Arc<[AtomicBool]>,
    /// Set after it was.
    is_gone: Arc<[AtomicBool]>,
}

impl Mapped {
    fn new((space, group): &(Space, GroupId), of: &Opened, pages: Range<u64>) -> Self {
        let map = space
            .map_file(&of.file, pages.clone())
            .expect("within the file");
        let flags = || pages.clone().map(|_| AtomicBool::new(false)).collect();
        Self {
            map,
            group: *group,
            of: of.clone(),
            first: pages.start,
            goes: flags(),
            is_gone: flags(),
        }
    }

    fn unmap(&self, pages: Range<u64>) {
        let set = |flags: &[AtomicBool]| {
            for page in pages.clone() {
                flags[usize::try_from(page).expect("a small mapping")]
                    .store(true, Ordering::SeqCst);
            }
        };
        set(&self.goes);
        self.map.unmap(pages.clone()).expect("within the mapping");
        set(&self.is_gone);
    }

    fn is_gone(&self, page: u64) -> bool {
        self.is_gone[usize::try_from(page).expect("a small mapping")].load(Ordering::SeqCst)
    }

    fn goes(&self, page: u64) -> bool {
        self.goes[usize::try_from(page).expect("a small mapping")].load(Ordering::SeqCst)
    }
}

/// What workers share.
pub(crate) struct Arena {
    pub(crate) hw: Manager,
    pub(crate) files: Vec<Opened>,
    /// Mappings on their way from one worker to another.
    pub(crate) passing: Mutex<Vec<Mapped>>,
    pub(crate) wrongs: Arc<Wrongs>,
}

/// How often what happened.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

/// What happens in every run that is long enough.
pub(crate) const EVERYTHING: [&str; 20] = [
    "read", "hit", "pinned", "latched", "written", "mapped", "unmapped", "ended", "passed",
    "charged", "grouped", "removed", "limited", "synced", "dropped", "troubled", "reopened",
    "refused", "guarded", "drained",
];

pub(crate) struct Worker<'a> {
    arena: &'a Arena,
    post: &'a Post,
    rng: Rng,
    parent: Group,
    groups: Vec<Group>,
    /// Each with the group that pays for it.
    spaces: Vec<(Space, GroupId)>,
    maps: Vec<Mapped>,
    pins: Vec<(PinnedPage, Arc<Storage>, u64)>,
    charges: Vec<Charge>,
    /// A file that nobody else knows.
    own: Opened,
    made: u32,
    tally: Tally,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(arena: &'a Arena, post: &'a Post, number: u32, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let parent = arena
            .hw
            .root()
            .child(&format!("worker{number}"), Limits::default())
            .expect("a new name");
        let storage = Storage::new(100 + number, rng.u64(512..20_000), &arena.wrongs);
        Self {
            arena,
            post,
            rng,
            spaces: Vec::new(),
            parent,
            groups: Vec::new(),
            maps: Vec::new(),
            pins: Vec::new(),
            charges: Vec::new(),
            own: Opened::new(&arena.hw, storage, Access::ReadWrite),
            made: 0,
            tally: Tally::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn begin(&self, what: &'static str, page: u64) {
        self.post.begin(what, page);
    }

    pub(crate) fn step(&mut self) {
        match self.rng.u8(..200) {
            0..100 => self.access(),
            100..108 => self.read_many(),
            108..116 => drop(self.unpin()),
            116..130 => self.map(),
            130..138 => self.unmap(),
            138..146 => self.end_mapping(),
            146..154 => self.pass(),
            154..162 => self.charge(),
            162..170 => drop(self.charges.pop()),
            170..175 => self.add_group(),
            175..179 => self.remove_group(),
            179..182 => self.limit(),
            182..187 => self.sync(),
            187..189 if self.rng.u8(..60) == 0 => self.drop_caches(),
            189..196 => self.trouble(),
            196..198 => self.reopen(),
            198 => self.drain(),
            _ => self.access(),
        }
        self.arena.wrongs.assert_none();
    }

    /// A mapping of this worker and a page of it.
    fn any_page(&mut self) -> Option<(Mapped, u64)> {
        let mapped = self.rng.choice(&self.maps)?.clone();
        let pages = mapped.map.pages();
        // The low ones more often, and of those that were unmapped few.
        let mut page = 0;
        for _ in 0..3 {
            page = self.rng.u64(..pages).min(self.rng.u64(..pages));
            if !mapped.is_gone(page) {
                break;
            }
        }
        Some((mapped, page))
    }

    fn access(&mut self) {
        let Some((mapped, page)) = self.any_page() else {
            return self.map();
        };
        match (mapped.of.access, self.rng.u8(..8)) {
            (Access::ReadOnly, 0) => self.pin(&mapped, page),
            (Access::ReadOnly, 1) => self.try_read(&mapped, page),
            (Access::ReadOnly, _) => self.read(&mapped, page),
            (Access::ReadWrite, 0..4) => self.read_latched(&mapped, page),
            (Access::ReadWrite, _) => self.write(&mapped, page),
        }
    }

    fn read(&mut self, mapped: &Mapped, page: u64) {
        self.begin("reading", mapped.first + page);
        let was_gone = mapped.is_gone(page);
        let guard = self.arena.hw.enter();
        match mapped.map.read(&guard, page) {
            Ok(bytes) => {
                assert!(!was_gone, "page {page} was read after it was unmapped");
                mapped.of.storage.assert_page(bytes, mapped.first + page);
                self.count("read");
            }
            Err(error) => self.refused(mapped, page, &error),
        }
    }

    fn try_read(&mut self, mapped: &Mapped, page: u64) {
        self.begin("reading if resident", mapped.first + page);
        let was_gone = mapped.is_gone(page);
        let guard = self.arena.hw.enter();
        if let Some(bytes) = mapped.map.try_read(&guard, page) {
            assert!(!was_gone, "page {page} was read after it was unmapped");
            mapped.of.storage.assert_page(bytes, mapped.first + page);
            self.count("hit");
        }
    }

    /// What is read under a guard stays, whatever happens until the guard ends.
    fn read_many(&mut self) {
        let guards = [self.arena.hw.enter(), self.arena.hw.enter()];
        let wanted: Vec<_> = (0..self.rng.usize(..20))
            .filter_map(|_| self.any_page())
            .filter(|(mapped, _)| mapped.of.access == Access::ReadOnly)
            .collect();
        let mut held = Vec::new();
        for (mapped, page) in &wanted {
            self.begin("reading many", mapped.first + page);
            let guard = &guards[self.rng.usize(..2)];
            match mapped.map.read(guard, *page) {
                Ok(bytes) => held.push((mapped, bytes, *page)),
                Err(error) => self.refused(mapped, *page, &error),
            }
        }
        match self.rng.u16(..400) {
            0 => self.drop_caches(),
            1..160 => self.unmap(),
            160..240 => self.end_mapping(),
            _ => self.access(),
        }
        for (mapped, bytes, page) in held {
            mapped.of.storage.assert_page(bytes, mapped.first + page);
            self.count("guarded");
        }
        let [one, other] = guards;
        if self.rng.bool() {
            drop(one);
            drop(other);
        } else {
            drop(other);
            drop(one);
        }
    }

    fn pin(&mut self, mapped: &Mapped, page: u64) {
        self.begin("pinning", mapped.first + page);
        let was_gone = mapped.is_gone(page);
        match mapped.map.pin(page) {
            Ok(pin) => {
                assert!(!was_gone, "page {page} was pinned after it was unmapped");
                let (storage, page) = (Arc::clone(&mapped.of.storage), mapped.first + page);
                storage.assert_page(pin.bytes(), page);
                self.pins.push((pin, storage, page));
                self.count("pinned");
            }
            Err(error) => self.refused(mapped, page, &error),
        }
        while self.pins.len() > 5 {
            drop(self.unpin());
        }
    }

    fn unpin(&mut self) -> Option<PinnedPage> {
        if self.pins.is_empty() {
            return None;
        }
        let (pin, storage, page) = self.pins.swap_remove(self.rng.usize(..self.pins.len()));
        self.begin("unpinning", page);
        storage.assert_page(pin.bytes(), page);
        Some(pin)
    }

    fn read_latched(&mut self, mapped: &Mapped, page: u64) {
        self.begin("reading latched", mapped.first + page);
        let was_gone = mapped.is_gone(page);
        match mapped.map.read_latched(page) {
            Ok(bytes) => {
                assert!(!was_gone, "page {page} was read after it was unmapped");
                mapped.of.storage.assert_page(&bytes, mapped.first + page);
                self.count("latched");
            }
            Err(error) => self.refused(mapped, page, &error),
        }
    }

    fn write(&mut self, mapped: &Mapped, page: u64) {
        self.begin("writing", mapped.first + page);
        let was_gone = mapped.is_gone(page);
        let in_file = mapped.first + page;
        match mapped.map.write(page) {
            Ok(mut bytes) => {
                assert!(!was_gone, "page {page} was written after it was unmapped");
                let version = mapped.of.storage.write_next(&mut bytes, in_file);
                drop(bytes);
                mapped.of.storage.settle(in_file, version);
                self.count("written");
            }
            Err(error) => self.refused(mapped, page, &error),
        }
    }

    /// An access may fail for a reason only.
    fn refused(&mut self, mapped: &Mapped, page: u64, error: &ReadError) {
        let is_excused = match error {
            ReadError::Unmapped { .. } => mapped.goes(page),
            ReadError::Io { source, .. } => is_made_up(source),
            // Storage that falls short; groups that are full of what is held; dirty pages that storage refuses.
            ReadError::Short { .. } | ReadError::NoMemory { .. } => true,
            _ => false,
        };
        assert!(is_excused, "page {page} of {mapped:?}: {error}");
        self.count(match error {
            ReadError::Unmapped { .. } => "gone",
            ReadError::NoMemory { source, .. } if source.to_string().contains("is removed") => {
                "without group"
            }
            ReadError::NoMemory { .. } => "without memory",
            _ => "refused",
        });
    }

    fn map(&mut self) {
        self.begin("mapping", 0);
        if self.spaces.is_empty() || self.rng.u8(..4) == 0 {
            let group = self.rng.choice(&self.groups).unwrap_or(&self.parent);
            self.spaces.push((self.arena.hw.space(group), group.id()));
        }
        if self.spaces.len() > 3 {
            self.spaces.swap_remove(self.rng.usize(..3));
        }
        let nth = self.rng.usize(..=self.arena.files.len());
        let of = self.arena.files.get(nth).unwrap_or(&self.own);
        let pages = of.file.pages();
        let start = self.rng.u64(..pages);
        let end = self.rng.u64(start + 1..=pages);
        let space = self.rng.choice(&self.spaces).expect("one at least");
        self.maps.push(Mapped::new(space, of, start..end));
        self.count("mapped");
        if self.maps.len() > 6 {
            self.end_mapping();
        }
    }

    fn unmap(&mut self) {
        let Some((mapped, start)) = self.any_page() else {
            return;
        };
        self.begin("unmapping", mapped.first + start);
        let end = self.rng.u64(start..mapped.map.pages().min(start + 8));
        mapped.unmap(start..end + 1);
        self.count("unmapped");
    }

    fn end_mapping(&mut self) {
        if !self.maps.is_empty() {
            let nth = self.rng.usize(..self.maps.len());
            self.begin("ending a mapping", self.maps[nth].first);
            self.maps.swap_remove(nth);
            self.count("ended");
        }
    }

    /// Gives a mapping to others and takes one of theirs; a clone of it may stay here.
    fn pass(&mut self) {
        self.begin("passing", 0);
        let Some((mapped, _)) = self.any_page() else {
            return;
        };
        if Arc::ptr_eq(&mapped.of.storage, &self.own.storage) {
            return;
        }
        let mut passing = self.arena.passing.lock().expect("no panic under the lock");
        passing.push(mapped);
        let taken = if passing.len() > 4 {
            let nth = self.rng.usize(..passing.len());
            Some(passing.swap_remove(nth))
        } else {
            None
        };
        drop(passing);
        self.maps.extend(taken);
        self.count("passed");
    }

    fn charge(&mut self) {
        self.begin("charging", 0);
        let group = self.rng.choice(&self.groups).unwrap_or(&self.parent);
        // A refusal is an answer; what is granted stays within the group's maximum.
        if let Ok(charge) = group.charge(Pages(self.rng.u64(1..8)).bytes()) {
            self.charges.push(charge);
            self.count("charged");
        }
        self.charges.truncate(3);
    }

    fn add_group(&mut self) {
        self.begin("adding a group", 0);
        self.made += 1;
        let max = Limits::max(Pages(self.rng.u64(20..150)).bytes());
        let low = Pages(self.rng.u64(..20)).bytes();
        let name = format!("g{}", self.made);
        let group = self.parent.child(&name, max.with_low(low));
        self.groups.push(group.expect("a new name"));
        self.count("grouped");
    }

    fn remove_group(&mut self) {
        if !self.groups.is_empty() {
            self.begin("removing a group", 0);
            let group = self.groups.swap_remove(self.rng.usize(..self.groups.len()));
            // Sometimes there are spaces of a group that is removed: nothing more can be read in for them.
            if self.rng.u8(..4) > 0 {
                self.spaces.retain(|(_, of)| *of != group.id());
                self.maps.retain(|mapped| mapped.group != group.id());
            }
            group.remove().expect("childless");
            self.count("removed");
        }
    }

    fn limit(&mut self) {
        if let Some(group) = self.rng.choice(&self.groups) {
            self.begin("limiting", 0);
            let max = Pages(self.rng.u64(2..60)).bytes();
            // Refused when what is used cannot be taken back.
            if group.set_max(max).is_ok() {
                assert!(group.usage_precise().bytes() <= max);
            }
            self.count("limited");
        }
    }

    fn sync(&mut self) {
        let nth = self.rng.usize(..=self.arena.files.len());
        let of = self.arena.files.get(nth).unwrap_or(&self.own).clone();
        if of.access == Access::ReadOnly {
            return;
        }
        self.begin("syncing", 0);
        let settled = of.storage.settled();
        if of.file.sync().is_ok() {
            of.storage.assert_stored(&settled);
            self.count("synced");
        }
    }

    fn drop_caches(&mut self) {
        self.begin("dropping caches", 0);
        self.arena.hw.drop_caches();
        self.count("dropped");
    }

    fn trouble(&mut self) {
        self.begin("troubling", 0);
        let nth = self.rng.usize(..=self.arena.files.len());
        let of = self.arena.files.get(nth).unwrap_or(&self.own);
        for chance in of.storage.trouble.all() {
            let of_256 = match self.rng.u8(..8) {
                0 => self.rng.u8(..),
                1 => 10,
                _ => 0,
            };
            chance.store(of_256, Ordering::Relaxed);
        }
        self.count("troubled");
    }

    /// Closes the file that nobody else knows, and opens what is on its storage.
    fn reopen(&mut self) {
        self.begin("reopening", 0);
        self.own.storage.trouble.end();
        let storage = Arc::clone(&self.own.storage);
        self.maps
            .retain(|mapped| !Arc::ptr_eq(&mapped.of.storage, &storage));
        // In place of a file that stays for a moment: dirty pages are written back when it is closed.
        self.own = self.arena.files[0].clone();
        storage.assert_all_stored();
        self.own = Opened::new(&self.arena.hw, storage, Access::ReadWrite);
        self.count("reopened");
    }

    fn drain(&mut self) {
        self.begin("draining", 0);
        self.arena.hw.drain_all();
        self.arena.hw.decay_tick();
        let text = self.arena.hw.snapshot().to_string();
        assert!(text.contains("pgscan"), "{text}");
        self.count("drained");
    }

    /// Ends well: storage recovers, what is its own reaches it, everything is given back.
    pub(crate) fn finish(mut self) -> Tally {
        while let Some(pin) = self.unpin() {
            drop(pin);
        }
        self.begin("finishing", 0);
        self.maps.clear();
        self.spaces.clear();
        self.charges.clear();
        self.own.storage.trouble.end();
        crate::sync(&self.own.file);
        self.own.storage.assert_all_stored();
        for group in self.groups.drain(..) {
            group.remove().expect("childless");
        }
        self.arena.wrongs.assert_none();
        // Mappings of its spaces may still be on their way: removing waits for nobody.
        self.parent.remove().expect("childless");
        self.post.end();
        self.tally
    }
}
