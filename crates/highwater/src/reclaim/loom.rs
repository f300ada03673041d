//! Loom models of pages that move beside reclaim, with two threads each. To the unevictable list
//! and back: reclaim that finds the page locked, or evicts it; a thread that unlocks it; a group
//! that is reparented; and another mapping that is locked meanwhile. To the tail of the inactive
//! list: reclaim that finds the page under write-back; the thread that writes it. And lists that
//! are made while their group is removed.

use std::time::Duration;

use ::loom::model::Builder;
use ::loom::thread;

use super::lists::{LruList, PageType};
use super::lruvec::Lruvec;
use super::order::ScanNotes;
use super::policy::Balanced;
use super::table::Lruvecs;
use super::throttle::Sleepers;
use super::transit::Stage;
use super::{ListSizes, LruvecRef, Placement};
use crate::cache::loom::Nothing;
use crate::cache::{
    Access, AreaFlag, AreaSpec, EvictBatch, Evicted, FileEntry, PageCache, PageFlag, PageKey,
    Referenced, RmapAccess, RssMember, VmArea, WrittenBack,
};
use crate::group::{GroupNode, GroupTree, Limits};
use crate::memmap::FrameMemory;
use crate::percpu::Regime;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, StatCell, Woken};
use crate::topology::Topology;
use crate::units::{Bytes, FilePage, MapPage, Pages, Pfn};

const PFN: Pfn = Pfn(0);
/// Runs `test` in every interleaving. Looking up a group's place is a step of the model too, so
/// that one run has more than the default number of them.
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.max_branches = 10_000;
    builder.check(test);
}

/// Longer than any model: a thread that waits that long was not woken.
const NEVER: Duration = Duration::from_secs(3600);

/// A page in frame 0, mapped by a locked area and charged to a group; on no list yet.
struct Scene {
    memory: Arc<FrameMemory>,
    cache: PageCache,
    groups: GroupTree,
    lruvecs: Lruvecs,
    file: Arc<FileEntry>,
    payer: GroupNode,
    area: Arc<VmArea>,
}

impl Scene {
    fn new(payer: impl FnOnce(&GroupTree) -> GroupNode) -> Self {
        let memory = Arc::new(FrameMemory::new(Pages(1)).unwrap());
        let cache = PageCache::new(Arc::clone(&memory), &Topology::flat(1), Regime::Atomic);
        let file = cache.open(Arc::new(Nothing), Access::ReadOnly).unwrap();
        let groups = GroupTree::with_regime(Regime::Atomic, 1);
        let lruvecs = Lruvecs::new(Pages(1));
        let _lists = lruvecs.of_or_new(&groups.root());
        let payer = payer(&groups);
        if payer != groups.root() {
            let _lists = lruvecs.of_or_new(&payer);
        }
        let area = map(&cache, &file, &payer);
        let key = area.key(MapPage(0));
        let _paid_by_the_page = payer.try_charge(Pages(1).bytes()).unwrap().disown();
        let filling = cache.begin_fill(key, memory.claim(PFN), payer.id());
        cache.finish_fill(filling.unwrap());
        file.note_filled();
        let scene = Self {
            memory,
            cache,
            groups,
            lruvecs,
            file,
            payer,
            area,
        };
        scene.access(&scene.area);
        scene.area.set(AreaFlag::Locked);
        scene
    }

    fn access(&self, area: &VmArea) {
        let reader = self.memory.reader(self.memory.seat());
        let held = |key: PageKey, pfn| self.cache.borrow_at(&reader, key, pfn).map(|_| ());
        assert!(self.cache.hold_mapped(area, MapPage(0), held).is_some());
    }

    fn lists(&self, group: &GroupNode) -> LruvecRef {
        self.lruvecs.of(group).unwrap()
    }

    fn put(&self, place: Placement) {
        let lruvec = self.lists(&self.payer);
        self.lruvecs.add_all(&self.cache, &lruvec, [(PFN, place)]);
    }

    /// Acts as reclaim at the tail of the inactive list: culls the page if it is locked, and
    /// otherwise evicts it.
    fn reclaim(&self) {
        let lruvec = self.lists(&self.payer);
        let mut isolated = Vec::new();
        self.lruvecs
            .isolate_tail(&lruvec, LruList::InactiveFile, (1, u64::MAX), &mut isolated);
        if isolated.is_empty() {
            return;
        }
        let seen = self.cache.referenced(PFN, RmapAccess::Snapshot, None);
        let place = match seen {
            Referenced::Seen { locked: true, .. } => Placement::Unevictable,
            _ => {
                self.cache.unmap_page(PFN, RmapAccess::Snapshot);
                let mut batch = EvictBatch::default();
                self.cache.evict(&isolated, &mut batch);
                if let Some(evicted) = batch.evicted.pop() {
                    self.memory.surrender(evicted.frame);
                    return;
                }
                Placement::Inactive
            }
        };
        self.put(place);
        self.lruvecs.rescue_unlocked(&self.cache, &self.groups, PFN);
    }

    fn unlock(&self) {
        self.area.clear(AreaFlag::Locked);
        self.lruvecs.rescue_unlocked(&self.cache, &self.groups, PFN);
    }

    /// Returns the sizes of all groups' lists.
    fn sizes(&self) -> ListSizes {
        let live = self.lruvecs.live();
        for lruvec in &live {
            self.lruvecs.check_invariants(&self.cache, lruvec);
        }
        live.iter().map(|lruvec| lruvec.sizes()).sum()
    }
}

fn map(cache: &PageCache, file: &Arc<FileEntry>, group: &GroupNode) -> Arc<VmArea> {
    cache.map(AreaSpec {
        file: Arc::clone(file),
        space: cache.open_space(),
        group: group.clone(),
        pages: FilePage(0)..FilePage(1),
        member: RssMember::File,
    })
}

#[test]
fn a_page_that_is_unlocked_while_reclaim_culls_it_can_go() {
    // Goal: parts 1 and 2 of the argument. Method: reclaim finds the page locked, or evicts it,
    // while its only area is unlocked: in the end it is on the inactive list, or evicted.
    model(|| {
        let scene = Arc::new(Scene::new(GroupTree::root));
        scene.put(Placement::Inactive);
        let reclaimer = Arc::clone(&scene);
        let reclaimer = thread::spawn(move || reclaimer.reclaim());
        scene.unlock();
        reclaimer.join().unwrap();
        let left = u64::from(scene.cache.key_of(PFN).is_some());
        let sizes = scene.sizes();
        assert_eq!(
            (sizes.total(), sizes.unevictable),
            (Pages(left), Pages::ZERO)
        );
    });
}

#[test]
fn a_page_that_is_unlocked_while_its_group_goes_can_go() {
    // Goal: part 2, with reparenting. Method: a removed group's page on its unevictable list; its
    // parent takes it over while its area is unlocked.
    model(|| {
        let child = |groups: &GroupTree| groups.root().child("c", Limits::default()).unwrap();
        let scene = Arc::new(Scene::new(child));
        scene.put(Placement::Unevictable);
        scene.groups.remove(&scene.payer).unwrap();
        let heir = Arc::clone(&scene);
        let heir = thread::spawn(move || {
            let child = heir.lruvecs.remove(&heir.payer).unwrap();
            heir.lruvecs.reparent(&heir.cache, &heir.groups, &child);
        });
        scene.unlock();
        heir.join().unwrap();
        let sizes = scene.sizes();
        assert_eq!(sizes.inactive_file, Pages(1), "{sizes:?}");
        assert_eq!(scene.lists(&scene.groups.root()).sizes(), sizes);
    });
}

#[test]
fn two_that_unlock_the_same_page_free_it() {
    // Goal: a thread that finds the page isolated by another rescuer may leave it to that one.
    // Method: two areas have the page, both locked, and are unlocked at once.
    model(|| {
        let scene = Scene::new(GroupTree::root);
        let other = map(&scene.cache, &scene.file, &scene.payer);
        scene.access(&other);
        other.set(AreaFlag::Locked);
        scene.put(Placement::Unevictable);
        let scene = Arc::new(scene);
        let unlocker = Arc::clone(&scene);
        let unlocker = thread::spawn(move || {
            other.clear(AreaFlag::Locked);
            let (cache, groups) = (&unlocker.cache, &unlocker.groups);
            unlocker.lruvecs.rescue_unlocked(cache, groups, PFN);
        });
        scene.unlock();
        unlocker.join().unwrap();
        let sizes = scene.sizes();
        assert_eq!(sizes.inactive_file, Pages(1), "{sizes:?}");
    });
}

/// A page in frame 0 that is in the order of accesses of a group below the root.
fn ordered() -> Scene {
    let mut scene = Scene::new(|groups| groups.root().child("c", Limits::default()).unwrap());
    scene.lruvecs.keep_order_for(&Balanced);
    scene.area.clear(AreaFlag::Locked);
    scene.put(Placement::Inactive);
    scene
}

impl Scene {
    /// Acts as reclaim that evicts LRU's victims: looks at the page without isolating it, and
    /// evicts it if it was not accessed.
    fn evict_oldest(&self, lruvec: &Lruvec) {
        let (lruvecs, page_type) = (&self.lruvecs, PageType::File);
        for pfn in lruvecs.oldest(lruvec, page_type, 1) {
            let look = self.cache.referenced(pfn, RmapAccess::Snapshot, None);
            let mut isolated = Vec::new();
            if matches!(look, Referenced::Seen { young: 1.., .. }) {
                let seen = ScanNotes {
                    touched: vec![pfn],
                    held: Vec::new(),
                };
                lruvecs.note_seen(&self.cache, lruvec, page_type, &seen);
            } else {
                lruvecs.isolate_listed(
                    &self.cache,
                    (lruvec, page_type),
                    &[pfn],
                    u64::MAX,
                    &mut isolated,
                );
            }
            self.evict_isolated(lruvec, &isolated);
        }
    }

    /// Evicts isolated pages that are not accessed now, and puts the others back.
    fn evict_isolated(&self, lruvec: &Lruvec, isolated: &[Pfn]) {
        let mut batch = EvictBatch::default();
        for &pfn in isolated {
            self.cache.unmap_page(pfn, RmapAccess::Snapshot);
        }
        let leave = |evicted: &[Evicted]| {
            self.lruvecs.leave_order(&self.cache, lruvec, evicted);
        };
        self.cache.evict_leaving(isolated, &mut batch, leave);
        for evicted in batch.evicted.drain(..) {
            self.memory.surrender(evicted.frame);
        }
        for (pfn, _) in batch.kept.drain(..) {
            let heir = self.lruvecs.of_isolated(&self.cache, &self.groups, pfn);
            self.lruvecs
                .add_all(&self.cache, &heir, [(pfn, Placement::Active)]);
        }
    }
}

#[test]
fn a_page_that_two_reclaimers_look_at_leaves_the_order_once() {
    // Goal: a look without isolation changes nothing but marks: the page is in the order if it is
    // on a list, and in neither if it is evicted. Method: one reclaimer looks at the oldest page
    // while another isolates it from its list and evicts it, or finds it accessed again.
    model(|| {
        let scene = Arc::new(ordered());
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            let lruvec = other.lists(&other.payer);
            let mut isolated = Vec::new();
            other.lruvecs.isolate_tail(
                &lruvec,
                LruList::InactiveFile,
                (1, u64::MAX),
                &mut isolated,
            );
            other.evict_isolated(&lruvec, &isolated);
        });
        let lruvec = scene.lists(&scene.payer);
        scene.evict_oldest(&lruvec);
        scene.evict_oldest(&lruvec);
        other.join().unwrap();
        let left = u64::from(scene.cache.key_of(PFN).is_some());
        assert_eq!(scene.sizes().total(), Pages(left));
    });
}

#[test]
fn a_page_whose_group_goes_while_it_is_looked_at_is_in_one_order() {
    // Goal: what was found before a page changed lists does not change those it is on now. Method:
    // reclaim of a removed group looks at its page while its parent takes the page over.
    model(|| {
        let scene = Arc::new(ordered());
        scene.groups.remove(&scene.payer).unwrap();
        let lruvec = scene.lists(&scene.payer);
        let heir = Arc::clone(&scene);
        let heir = thread::spawn(move || {
            let child = heir.lruvecs.remove(&heir.payer).unwrap();
            heir.lruvecs.reparent(&heir.cache, &heir.groups, &child);
        });
        scene.evict_oldest(&lruvec);
        scene.evict_oldest(&lruvec);
        heir.join().unwrap();
        let left = u64::from(scene.cache.key_of(PFN).is_some());
        assert_eq!(scene.sizes().total(), Pages(left));
    });
}

#[test]
fn a_page_is_found_on_the_lists_of_its_own_group_alone() {
    // Goal: a thread that has one group's lists locked finds no page of another there, whose frame
    // was the group's before. Method: a frame changes its group and goes to the other's list,
    // beside a lookup under the former's lock.
    model(|| {
        let child = |groups: &GroupTree| groups.root().child("c", Limits::default()).unwrap();
        let scene = Arc::new(Scene::new(child));
        let other = Arc::clone(&scene);
        let other = thread::spawn(move || {
            let root = other.groups.root();
            other.cache.set_group(PFN, root.id());
            let place = [(PFN, Placement::Inactive)];
            other
                .lruvecs
                .add_all(&other.cache, &other.lists(&root), place);
        });
        let lruvec = scene.lists(&scene.payer);
        let lists = lruvec.lock();
        let found = scene
            .lruvecs
            .list_within(&scene.cache, &lruvec, &lists, PFN);
        assert_eq!(found, None);
        drop(lists);
        other.join().unwrap();
    });
}

/// A dirty page of a writable file in frame 0, on the inactive list.
struct Dirty {
    memory: Arc<FrameMemory>,
    cache: PageCache,
    groups: GroupTree,
    lruvecs: Lruvecs,
    _file: Arc<FileEntry>,
}

impl Dirty {
    fn new() -> Self {
        let memory = Arc::new(FrameMemory::new(Pages(1)).unwrap());
        let regime = Regime::Atomic;
        let cache = PageCache::new(Arc::clone(&memory), &Topology::flat(1), regime);
        let file = cache.open(Arc::new(Nothing), Access::ReadWrite).unwrap();
        let groups = GroupTree::with_regime(regime, 1);
        let lruvecs = Lruvecs::new(Pages(1));
        let _lists = lruvecs.of_or_new(&groups.root());
        let root = groups.root();
        let _paid_by_the_page = root.try_charge(Pages(1).bytes()).unwrap().disown();
        let key = PageKey::new(file.id(), 0);
        let filling = cache.begin_fill(key, memory.claim(PFN), root.id());
        cache.finish_fill(filling.unwrap());
        file.note_filled();
        cache.try_write(key).unwrap().mark_dirty(&cache);
        let scene = Self {
            memory,
            cache,
            groups,
            lruvecs,
            _file: file,
        };
        scene.put(Placement::Inactive);
        scene
    }

    fn lists(&self) -> LruvecRef {
        self.lruvecs.of(&self.groups.root()).unwrap()
    }

    fn put(&self, place: Placement) {
        self.lruvecs
            .add_all(&self.cache, &self.lists(), [(PFN, place)]);
    }

    /// Acts as write-back; returns whether reclaim awaited the page, and whether it was rotated.
    fn write_back(&self) -> (bool, bool) {
        match self
            .cache
            .try_write_back(PFN, &mut Woken::default())
            .unwrap()
        {
            WrittenBack::Awaited(key) => (true, self.lruvecs.rotate(&self.cache, PFN, key)),
            _ => (false, false),
        }
    }

    /// Acts as reclaim at the tail of the inactive list; returns whether it awaits the page, which
    /// it then activates.
    fn reclaim(&self) -> bool {
        let mut isolated = Vec::new();
        self.lruvecs.isolate_tail(
            &self.lists(),
            LruList::InactiveFile,
            (1, u64::MAX),
            &mut isolated,
        );
        assert_eq!(isolated.len(), 1, "only reclaim takes it off");
        if let Some(was_awaited) = self.cache.await_writeback(PFN) {
            assert!(!was_awaited, "by no other reclaimer before");
            self.put(Placement::Active);
            return true;
        }
        let mut batch = EvictBatch::default();
        if !self.cache.is_dirty(PFN) {
            self.cache.evict(&isolated, &mut batch);
        }
        match batch.evicted.pop() {
            Some(evicted) => _ = self.memory.surrender(evicted.frame),
            // Dirty, or its latch is held.
            None => self.put(Placement::Active),
        }
        false
    }
}

#[test]
fn a_page_that_reclaim_finds_under_write_back_is_rotated_when_that_ends() {
    // Goal: the second of the two handles the page: the writer learns of every page that reclaim
    // awaits, and of no other, and no flag is left behind. A page that reclaim has released again
    // is rotated. Method: reclaim beside write-back; each of the four possible outcomes occurs in
    // some order.
    static ENDS: [StatCell; 4] = [const { StatCell::new() }; 4];
    model(|| {
        let scene = Arc::new(Dirty::new());
        let reclaimer = Arc::clone(&scene);
        let reclaimer = thread::spawn(move || reclaimer.reclaim());
        let (was_told, was_rotated) = scene.write_back();
        let is_awaited = reclaimer.join().unwrap();
        assert_eq!(is_awaited, was_told);
        for flag in [PageFlag::Writeback, PageFlag::Reclaim] {
            assert!(!scene.cache.has_flag(PFN, flag), "{flag:?}");
        }
        let is_there = scene.cache.key_of(PFN).is_some();
        assert!(is_there || !is_awaited);
        let lists = scene.lists();
        scene.lruvecs.check_invariants(&scene.cache, &lists);
        let sizes = lists.sizes();
        let inactive = Pages(u64::from(was_rotated));
        let active = Pages(u64::from(is_there)) - inactive;
        assert_eq!((sizes.inactive_file, sizes.active_file), (inactive, active));
        let end = match (is_there, is_awaited) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) if was_rotated => 2,
            (true, true) => 3,
        };
        ENDS[end].add(1);
    });
    let ends = ENDS.each_ref().map(StatCell::get);
    assert!(ends.iter().all(|end| *end > 0), "{ends:?}");
}

/// A group of one page, and the state of a fault's page.
struct Tiny {
    group: GroupNode,
    lruvec: LruvecRef,
    sleepers: Sleepers,
    /// Whether the page is on a list.
    /// Written by: the thread that brings it. Read by: requests for room. Publishes: nothing.
    is_listed: AtomicBool,
}

impl Tiny {
    fn new() -> Self {
        let groups = GroupTree::with_regime(Regime::Atomic, 1);
        let group = groups.root().child("c", Limits::max(Bytes::PAGE));
        let group = group.unwrap();
        Self {
            lruvec: Arc::new(Lruvec::new((group.clone(), 0), None, 0)),
            group,
            sleepers: Sleepers::default(),
            is_listed: AtomicBool::new(false),
        }
    }

    fn step(&self, from: Stage, to: Stage) {
        self.lruvec.transit.step(from, to);
        if self.sleepers.is_anybody_waiting() && self.lruvec.is_awaited() {
            self.sleepers.wake();
        }
    }

    /// Acts as a fault that brings its page to a list, or gives its charge back. Does nothing if
    /// there is no room.
    fn fault(&self, fails: bool) {
        self.step(Stage::Nowhere, Stage::Framed);
        let Ok(charge) = self.group.try_charge(Bytes::PAGE) else {
            return self.step(Stage::Framed, Stage::Nowhere);
        };
        if fails {
            drop(charge);
        } else {
            let _paid_by_the_page = charge.disown();
            // Relaxed: the arrival publishes it.
            self.is_listed.store(true, Ordering::Relaxed);
        }
        self.step(Stage::Framed, Stage::Arrived);
    }

    /// Acts as a request for room: until it has some, or finds an evictable page. Never refused.
    fn request(&self) {
        let mut seen = None;
        loop {
            if let Ok(charge) = self.group.try_charge(Bytes::PAGE) {
                return drop(charge);
            }
            // Relaxed: as above.
            if self.is_listed.load(Ordering::Relaxed) {
                self.group.uncharge(Bytes::PAGE);
                return;
            }
            let load = || self.lruvec.transit.load();
            let first = load();
            let has_come = seen.is_none_or(|seen| seen != first.nr_arrived());
            seen = Some(first.nr_arrived());
            if has_come {
                continue;
            }
            assert!(first.nr_charged() > 0, "refused beside a page in transit");
            self.lruvec.note_awaited();
            self.sleepers.wait(NEVER, || {
                let now = load();
                now.nr_arrived() == first.nr_arrived() && now.nr_charged() > 0
            });
            self.lruvec.note_not_awaited();
            seen = Some(load().nr_arrived());
        }
    }
}

#[test]
fn a_request_waits_for_a_page_in_transit_and_is_woken_when_it_arrives() {
    // Goal: no spurious refusal and no lost wake-up (`arrival`). Method: a fault that charges the
    // only page of a group, and brings it to a list or gives it back, beside a request for room.
    // Only a wake-up ends the wait.
    for fails in [false, true] {
        model(move || {
            let tiny = Arc::new(Tiny::new());
            let faulting = Arc::clone(&tiny);
            let faulting = thread::spawn(move || faulting.fault(fails));
            tiny.request();
            faulting.join().unwrap();
        });
    }
}

// Goal: lists that are made while their group is removed do not stay: the removal sees them, or
// they are not made.
#[test]
fn no_lists_of_a_removed_group_are_left() {
    model(|| {
        let groups = GroupTree::with_regime(Regime::Atomic, 1);
        let lruvecs = Arc::new(Lruvecs::new(Pages(1)));
        let _lists = lruvecs.of_or_new(&groups.root());
        let group = groups.root().child("group", Limits::default()).unwrap();
        let other = thread::spawn({
            let (lruvecs, group) = (Arc::clone(&lruvecs), group.clone());
            move || lruvecs.of_or_new(&group).is_some()
        });
        groups.remove(&group).unwrap();
        if group.is_tracked() {
            let _lists = lruvecs.remove(&group);
        }
        let _is_made = other.join().unwrap();
        assert!(lruvecs.of(&group).is_none());
    });
}
