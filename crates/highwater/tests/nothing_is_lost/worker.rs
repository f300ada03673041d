//! One thread's random operations, each with its expected result.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use highwater::units::GroupId;
use highwater::{Access, Charge, Group, Limits, Pages, PinnedPage, ReadError, ReadPattern, Space};

use super::arena::{Arena, Handle, Mapped, Opened};
use super::model::Model;
use super::storage::is_made_up;
use super::watchdog::Post;

#[path = "reads.rs"]
mod reads;

/// Event counts.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

/// The events of every run that is long enough.
pub(crate) const EVERYTHING: [&str; 30] = [
    "read", "hit", "pinned", "latched", "written", "mapped", "unmapped", "ended", "passed",
    "charged", "grouped", "removed", "limited", "synced", "dropped", "troubled", "reopened",
    "refused", "guarded", "drained", "copied", "needed", "advised", "emptied", "asked", "landed",
    "left", "awaited", "fetched", "flushed",
];

pub(crate) struct Worker<'a> {
    arena: &'a Arena,
    post: &'a Post,
    number: u32,
    rng: Rng,
    parent: Group,
    groups: Vec<Group>,
    /// Each with the group that pays for it.
    spaces: Vec<(Space, GroupId)>,
    maps: Vec<Mapped>,
    pins: Vec<(PinnedPage, Arc<Model>, u64)>,
    reads: Vec<reads::InFlight>,
    charges: Vec<Charge>,
    /// A private file.
    own: Opened,
    own_handle: Option<Handle>,
    /// Handles of shared files.
    handles: Vec<Handle>,
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
        let id = 100 + number;
        let storage = arena.page_max.storage(&mut rng, id, 20_000, &arena.wrongs);
        let own = Opened::new(&arena.hw, storage, Access::ReadWrite);
        let writable = |of: &&Opened| of.access == Access::ReadWrite;
        let shared = arena.files.iter().filter(writable);
        Self {
            own_handle: Handle::new(&own),
            handles: shared.filter_map(Handle::new).collect(),
            arena,
            post,
            number,
            rng,
            spaces: Vec::new(),
            parent,
            groups: Vec::new(),
            maps: Vec::new(),
            pins: Vec::new(),
            reads: Vec::new(),
            charges: Vec::new(),
            own,
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
            0..80 => self.access(),
            80..84 => self.read_async(),
            84..88 => self.land(),
            88..90 => self.prefetch(),
            90..98 => self.copy(),
            98..100 => self.need(),
            198 => self.advise(),
            100..106 => self.read_many(),
            106..108 => self.discard(),
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
            199 if self.rng.bool() => self.drain(),
            _ => self.access(),
        }
        self.arena.wrongs.assert_none();
    }

    /// Returns a mapping of this worker and a page of it.
    fn any_page(&mut self) -> Option<(Mapped, u64)> {
        let mapped = self.rng.choice(&self.maps)?.clone();
        let pages = mapped.map.pages();
        // The low ones more often, and few of the unmapped ones.
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
            (Access::ReadWrite, 7) => self.write_many(&mapped, page),
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
                mapped.of.model.assert_page(bytes, mapped.first + page);
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
            mapped.of.model.assert_page(bytes, mapped.first + page);
            self.count("hit");
        }
    }

    /// Bytes read under a guard stay unchanged until the guard ends.
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
            mapped.of.model.assert_page(bytes, mapped.first + page);
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

    /// Returns a shared file, or the private one.
    fn any_file(&mut self) -> Opened {
        let nth = self.rng.usize(..=self.arena.files.len());
        self.arena.files.get(nth).unwrap_or(&self.own).clone()
    }

    fn group(&mut self) -> Group {
        let group = self.rng.choice(&self.groups).unwrap_or(&self.parent);
        group.clone()
    }

    /// Reads as read(2) does: at random, or sequentially.
    fn copy(&mut self) {
        let (of, group) = (self.any_file(), self.group());
        let words = of.model.len() / 8;
        let mut first = self.rng.u64(..words);
        let mut buf = vec![0; self.rng.usize(1..1200) * 8];
        for _ in 0..self.rng.u8(1..6) {
            self.begin("copying", first * 8 / of.model.page_size() as u64);
            let settled = of.model.settled();
            match of.file.read_at(&group, first * 8, &mut buf) {
                Ok(got) => {
                    of.model.assert_copy(&buf[..got], first, &settled);
                    first += got as u64 / 8;
                    self.count("copied");
                }
                Err(error) => {
                    assert!(is_excused(&error), "{error}");
                    break;
                }
            }
        }
    }

    /// Gives advice for a mapping: none changes the pages' contents.
    fn advise(&mut self) {
        let Some((mapped, page)) = self.any_page() else {
            return;
        };
        self.begin("advising", mapped.first + page);
        let map = &mapped.map;
        let pages = page..map.pages().min(page + 20);
        match self.rng.u8(..8) {
            0 => map.set_executable(),
            1 => map.lock(),
            2..4 => map.unlock(),
            4 => map.will_need(pages).expect("within the mapping"),
            5 => map.set_read_pattern(ReadPattern::Random),
            _ => map.dont_need(pages).expect("within the mapping"),
        }
        self.count("advised");
    }

    /// Discards private memory: in memory and in swap, concurrently with reclaim.
    fn discard(&mut self) {
        let is_own = |mapped: &&Mapped| {
            mapped.of.storage.is_none() && Arc::strong_count(&mapped.of.model) == 1
        };
        let own: Vec<&Mapped> = self.maps.iter().filter(is_own).collect();
        let Some(mapped) = self.rng.choice(own) else {
            return;
        };
        let start = self.rng.u64(..mapped.map.pages());
        let pages = start..self.rng.u64(start..mapped.map.pages()) + 1;
        self.begin("discarding", start);
        mapped
            .map
            .discard(pages.clone())
            .expect("within the mapping");
        pages.for_each(|page| mapped.of.model.empty(page));
        self.count("emptied");
    }

    fn pin(&mut self, mapped: &Mapped, page: u64) {
        self.begin("pinning", mapped.first + page);
        let was_gone = mapped.is_gone(page);
        match mapped.map.pin(page) {
            Ok(pin) => {
                assert!(!was_gone, "page {page} was pinned after it was unmapped");
                let (model, page) = (Arc::clone(&mapped.of.model), mapped.first + page);
                model.assert_page(&pin, page);
                self.pins.push((pin, model, page));
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
        let (pin, model, page) = self.pins.swap_remove(self.rng.usize(..self.pins.len()));
        self.begin("unpinning", page);
        model.assert_page(&pin, page);
        Some(pin)
    }

    fn read_latched(&mut self, mapped: &Mapped, page: u64) {
        self.begin("reading latched", mapped.first + page);
        let was_gone = mapped.is_gone(page);
        match mapped.map.read_latched(page) {
            Ok(bytes) => {
                assert!(!was_gone, "page {page} was read after it was unmapped");
                mapped.of.model.assert_page(&bytes, mapped.first + page);
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
                let version = mapped.of.model.write_next(&mut bytes, in_file);
                if let Some(storage) = &mapped.of.storage {
                    bytes.set_lsn(storage.log_change(in_file));
                }
                drop(bytes);
                mapped.of.model.settle(in_file, version);
                self.count("written");
            }
            Err(error) => self.refused(mapped, page, &error),
        }
    }

    /// Writes neighbours, so that they may be written back together.
    fn write_many(&mut self, mapped: &Mapped, page: u64) {
        let until = mapped.map.pages().min(page + self.rng.u64(2..9));
        (page..until).for_each(|page| self.write(mapped, page));
    }

    /// Checks that an access failed for a valid reason.
    fn refused(&mut self, mapped: &Mapped, page: u64, error: &ReadError) {
        let is_excused = match error {
            ReadError::Unmapped { .. } => mapped.goes(page),
            other => is_excused(other),
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
            let group = self.group();
            self.spaces.push((self.arena.hw.space(&group), group.id()));
        }
        if self.spaces.len() > 3 {
            self.spaces.swap_remove(self.rng.usize(..3));
        }
        let nth = self.rng.usize(..=self.arena.files.len() + 1);
        let space = self.rng.choice(&self.spaces).expect("one at least");
        let mapped = if nth > self.arena.files.len() {
            self.made += 1;
            let id = 1000 * (self.number + 1) + self.made;
            Mapped::anonymous(space, id, self.rng.u64(1..60))
        } else {
            let of = self.arena.files.get(nth).unwrap_or(&self.own);
            let pages = of.file.pages();
            let start = self.rng.u64(..pages);
            Mapped::new(space, of, start..self.rng.u64(start + 1..=pages))
        };
        self.maps.push(mapped);
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

    /// Passes a mapping to other workers and takes one of theirs; may keep a clone.
    fn pass(&mut self) {
        self.begin("passing", 0);
        let Some((mapped, _)) = self.any_page() else {
            return;
        };
        if Arc::ptr_eq(&mapped.of.model, &self.own.model) {
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
        let group = self.group();
        // A refusal is valid; a granted charge stays within the group's maximum.
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
        let limits = Limits { low, ..max };
        let name = format!("g{}", self.made);
        let group = self.parent.child(&name, limits);
        self.groups.push(group.expect("a new name"));
        self.count("grouped");
    }

    fn remove_group(&mut self) {
        if !self.groups.is_empty() {
            self.begin("removing a group", 0);
            let group = self.groups.swap_remove(self.rng.usize(..self.groups.len()));
            // Sometimes there are spaces of a removed group: no page can be read in for them any
            // more.
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
            // Refused if usage cannot be reclaimed.
            if group.set_max(max).is_ok() {
                assert!(group.usage_precise() <= max);
            }
            self.count("limited");
        }
    }

    fn sync(&mut self) {
        self.begin("syncing", 0);
        // Rarer: a real disk is slow.
        if self.rng.u8(..8) == 0 {
            self.arena.files.iter().for_each(Opened::flush);
            return self.count("flushed");
        }
        let nth = self.rng.usize(..=self.handles.len());
        let handle = self.handles.get_mut(nth).or(self.own_handle.as_mut());
        if handle.expect("one at least").sync() {
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
        let of = self.any_file();
        let of_file = of.storage.as_ref().map(|storage| match self.rng.u8(..3) {
            0 => &storage.log.trouble,
            _ => &storage.disk.trouble,
        });
        let trouble = of_file.unwrap_or(&self.arena.swap.trouble);
        trouble.begin(&mut self.rng);
        self.count("troubled");
    }

    /// Closes the private file, and reopens its storage.
    fn reopen(&mut self) {
        self.begin("reopening", 0);
        let storage = self.own.storage.clone().expect("it is a file");
        storage.mend();
        self.maps
            .retain(|mapped| !Arc::ptr_eq(&mapped.of.model, storage.model()));
        // Its last handle is dropped: dirty pages are written back.
        self.own = self.arena.files[0].clone();
        self.own_handle = None;
        storage.assert_all_stored();
        self.own = Opened::new(&self.arena.hw, storage, Access::ReadWrite);
        self.own_handle = Handle::new(&self.own);
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

    /// Ends: storage recovers, the private file is written to it, everything is released.
    pub(crate) fn finish(&mut self) {
        while let Some(pin) = self.unpin() {
            drop(pin);
        }
        while !self.reads.is_empty() {
            self.land();
        }
        self.begin("finishing", 0);
        self.maps.clear();
        self.spaces.clear();
        self.charges.clear();
        self.handles.clear();
        self.own_handle = None;
        self.own.recover();
        for group in self.groups.drain(..) {
            group.remove().expect("childless");
        }
        self.arena.wrongs.assert_none();
        // Mappings of its spaces may still be in transit: removing does not wait.
        self.parent.remove().expect("childless");
        self.post.end();
    }

    /// Returns its event counts.
    pub(crate) fn tally(self) -> Tally {
        self.tally
    }

    /// Records that a moment of rest, perhaps a long one, is over.
    pub(crate) fn rested(&mut self) {
        self.begin("resting", 0);
    }
}

/// Returns whether an access to a mapped page may fail with this error.
fn is_excused(error: &ReadError) -> bool {
    match error {
        ReadError::Io { source, .. } => is_made_up(source),
        // Storage that reads only a part; groups that are full of held pages; dirty pages that
        // storage refuses.
        ReadError::Short { .. } | ReadError::NoMemory { .. } => true,
        _ => false,
    }
}
