//! Lists against a model, and shadows against a ring.

use std::collections::VecDeque;

use super::lists::Side;
use super::policy::{Balanced, Departure, Lens, PolicyState, S3Fifo};
use super::shadow::{Age, AgeUnit, Shadow};
use super::*;
use crate::cache::{Access, Backing, FileEntry, FileId, Presence};
use crate::group::Limits;
use crate::memmap::FrameMemory;
use crate::percpu::Regime;
use crate::topology::Topology;
use crate::units::{FilePage, PAGE_BYTES};

#[derive(Debug)]
pub(super) struct Nothing(pub(super) u64);

impl Backing for Nothing {
    fn len(&self) -> u64 {
        self.0 * PAGE_BYTES
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn write_page(&self, _: FilePage, buf: &[u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The layers below the manager, and one file.
pub(super) struct Scene {
    pub(super) memory: Arc<FrameMemory>,
    pub(super) cache: Arc<PageCache>,
    pub(super) pool: Arc<FramePool>,
    pub(super) groups: GroupTree,
    pub(super) reclaim: Reclaim,
    pub(super) file: FileId,
    pub(super) entry: Arc<FileEntry>,
}

impl Scene {
    pub(super) fn with_policy(frames: u64, policy: impl EvictionPolicy + 'static) -> Self {
        let scene = Self::new(frames);
        let reclaim = scene.reclaim.with_eviction_policy(Arc::new(policy));
        Self { reclaim, ..scene }
    }

    pub(super) fn new(frames: u64) -> Self {
        let memory = Arc::new(FrameMemory::new(Pages(frames)).expect("a small range"));
        let cache = Arc::new(PageCache::new(
            Arc::clone(&memory),
            &Topology::flat(1),
            Regime::Atomic,
        ));
        let pool = Arc::new(FramePool::new(Arc::clone(&memory), 1).expect("a pool"));
        let groups = GroupTree::new(1);
        let reclaim = Reclaim::new(Arc::clone(&cache), Arc::clone(&pool), groups.clone(), 1);
        reclaim.add_group(&groups.root());
        let entry = cache
            .open(Arc::new(Nothing(1 << 20)), Access::ReadOnly)
            .expect("one file");
        Self {
            memory,
            cache,
            pool,
            groups,
            reclaim,
            file: entry.id(),
            entry,
        }
    }

    pub(super) fn group(&self, name: &str) -> GroupNode {
        let group = self
            .groups
            .root()
            .child(name, Limits::default())
            .expect("a new name");
        self.reclaim.add_group(&group);
        group
    }

    /// Reads a page in for a group, as the manager does, but without the access that caused it.
    pub(super) fn fault(&self, group: &GroupNode, page: u64) -> Option<Refault> {
        let key = PageKey::new(self.file, page);
        let frame = self
            .pool
            .alloc_with(crate::frame::AllocFlags::new().use_reserve())
            .expect("a frame");
        let _paid_by_the_page = group
            .try_charge(Pages(1).bytes())
            .expect("no limit")
            .disown();
        let filling = self
            .cache
            .begin_fill(key, frame, group.id())
            .expect("absent");
        let pfn = self.cache.finish_fill(filling);
        self.reclaim.add_page(pfn, key)
    }

    pub(super) fn read(&self, page: u64) -> bool {
        let reader = self.memory.reader(self.memory.seat());
        self.cache
            .try_read(&reader, PageKey::new(self.file, page))
            .is_some()
    }

    /// Returns the frame of a resident page.
    pub(super) fn pfn(&self, page: u64) -> Pfn {
        match self.cache.lookup(PageKey::new(self.file, page)) {
            Presence::Resident(pfn) => pfn,
            Presence::Absent => panic!("page {page} is not resident"),
        }
    }

    /// Records an access to a resident page by a copying read.
    pub(super) fn copy(&self, page: u64) {
        let key = PageKey::new(self.file, page);
        self.reclaim.mark_accessed(self.pfn(page), key);
    }

    pub(super) fn shrink(
        &self,
        target: &GroupNode,
        pages: u64,
        first_priority: Option<u32>,
    ) -> Outcome {
        self.reclaim.shrink(&ScanControl {
            nr_to_reclaim: Pages(pages),
            target,
            actor: Actor::Direct,
            first_priority,
            ignores_protection: false,
        })
    }

    pub(super) fn assert_nothing_is_left(&self) {
        let root = self.groups.root();
        self.shrink(&root, u64::MAX, Some(0));
        self.reclaim.check_invariants();
        self.pool.check_invariants();
        assert_eq!(self.reclaim.total_sizes().total(), Pages::ZERO);
        assert_eq!(root.usage_precise(), Bytes::ZERO);
    }
}

/// The five lists as queues, heads first.
#[derive(Default)]
struct Queues([VecDeque<Pfn>; LruList::COUNT]);

impl Queues {
    fn len(&self) -> usize {
        self.0.iter().map(VecDeque::len).sum()
    }
}

#[test]
fn lists_agree_with_queues() {
    // Goal: order, lengths and membership, under any additions, isolations and removals. Method:
    // random operations on one group's five lists; queues are the model.
    let mut rng = crate::seed::rng(21);
    let scene = Scene::new(256);
    let cache = &scene.cache;
    let root = scene.groups.root();
    let lruvecs = Lruvecs::new(Pages(256));
    let _lists = lruvecs.of_or_new(&root);
    let lruvec = lruvecs.get(root.id()).expect("inserted");
    let mut queues = Queues::default();
    let mut off: Vec<Pfn> = (0..256).map(Pfn).collect();
    for _ in 0..20_000 {
        match rng.u8(..3) {
            0 if !off.is_empty() => {
                let pfn = off.swap_remove(rng.usize(..off.len()));
                let list = LruList::ALL[rng.usize(..LruList::COUNT)];
                match list == LruList::InactiveAnon || list == LruList::ActiveAnon {
                    true => cache.set_flag(pfn, PageFlag::Swapbacked),
                    false => cache.clear_flag(pfn, PageFlag::Swapbacked),
                };
                lruvecs.add_all(cache, &lruvec, [(pfn, list.into())]);
                queues.0[list as usize].push_front(pfn);
            }
            1 => {
                let (count, mut out) = (rng.u64(..5), Vec::new());
                let list = LruList::ALL[rng.usize(..LruList::COUNT)];
                lruvecs.isolate_tail(&lruvec, list, (count, u64::MAX), &mut out);
                let queue = &mut queues.0[list as usize];
                let want: Vec<Pfn> = (0..count).map_while(|_| queue.pop_back()).collect();
                assert_eq!(out, want);
                off.extend(out);
            }
            _ => {
                let pfn = Pfn(rng.u32(..256));
                let is_listed = lruvecs.isolate_page(cache, pfn, || true).is_some();
                let before = queues.len();
                let others = |queue: &mut VecDeque<Pfn>| queue.retain(|&other| other != pfn);
                queues.0.iter_mut().for_each(others);
                assert_eq!(is_listed, queues.len() < before);
                if is_listed {
                    off.push(pfn);
                }
            }
        }
        let lens = queues.0.each_ref().map(|queue| queue.len() as u64);
        assert_eq!(lruvec.sizes(), ListSizes::from_lists(lens));
    }
    let listed = lruvecs.check_invariants(cache, &lruvec);
    assert_eq!(listed.0, queues.len() as u64);
}

#[test]
fn pages_in_batches_are_seen_by_who_looks_for_them() {
    // Goal: a page in an add batch is on no list, and on its list once batches are drained, with
    // decisions made meanwhile. Method: a pool that is large enough for batches; pages up to one
    // less than a full batch, one of which is activated before it is on a list, then one more.
    let scene = Scene::new(8192);
    let root = scene.groups.root();
    (0..30).for_each(|page| assert_eq!(scene.fault(&root, page), None));
    assert_eq!(scene.reclaim.list_sizes(&root).total(), Pages::ZERO);
    scene.cache.set_flag(scene.pfn(3), PageFlag::Active);
    scene.fault(&root, 30);
    let sizes = scene.reclaim.list_sizes(&root);
    assert_eq!(
        (sizes.inactive_file, sizes.active_file),
        (Pages(30), Pages(1))
    );
    assert_eq!(scene.reclaim.drain_batches(), 0);
    (31..40).for_each(|page| assert_eq!(scene.fault(&root, page), None));
    assert!(scene.reclaim.evict_file(scene.file), "none is held");
    assert_eq!(scene.reclaim.total_sizes().total(), Pages::ZERO);
    scene.assert_nothing_is_left();
}

#[test]
fn shadows_are_remembered_until_the_oldest_must_go() {
    // Goal: shadows are correct, the stated number of pages is remembered, memory is bounded.
    let file = Scene::new(16).file;
    let shadows = Shadows::new(Pages(1000));
    for page in 0..10_000 {
        shadows.insert(
            PageKey::new(file, page),
            Shadow {
                owner: 3,
                stamp: None,
                age: page,
                was_active: false,
            },
        );
    }
    let remembered: Vec<u64> = (0..10_000)
        .filter(|&page| shadows.take(PageKey::new(file, page)).is_some())
        .collect();
    let recent = remembered.iter().filter(|&&page| page >= 8000).count();
    assert!(recent >= 1990, "{recent} of the 2,000 most recent");
    assert!(remembered.len() <= 8000, "{} remembered", remembered.len());
    shadows.insert(
        PageKey::new(file, 5),
        Shadow {
            owner: 1,
            stamp: None,
            age: 1,
            was_active: false,
        },
    );
    shadows.insert(
        PageKey::new(file, 5),
        Shadow {
            owner: 2,
            stamp: None,
            age: 9,
            was_active: true,
        },
    );
    let back = shadows.take(PageKey::new(file, 5)).expect("the later one");
    assert_eq!((back.owner(), back.was_active), (Some(2), true));
    assert_eq!(back.age.distance(12), 3);
    assert_eq!(shadows.take(PageKey::new(file, 5)), None, "taken once");
}

#[test]
fn refault_distances_agree_with_the_order_of_evictions() {
    // Goal: the clock counts evictions. Method: evict pages in a known order; those that refault
    // within the active list's length belong to the working set, the next one does not.
    let lens = Lens {
        capacity: 10,
        ..Lens::default()
    };
    let admitted = |age| {
        let departure = Departure {
            from: Side::Inactive,
            distance: Age::of(age, AgeUnit::of(Pages(512))).distance(100),
        };
        TwoList.admit(&PolicyState::default(), lens, Some(departure))
    };
    assert_eq!([90, 89].map(admitted), [Side::Active, Side::Inactive]);

    let scene = Scene::new(512);
    let root = scene.groups.root();
    for page in 0..20 {
        scene.fault(&root, page);
        scene.copy(page);
        scene.copy(page);
    }
    // 20 pages become active by being read again; then 100 pages that are not read again come and
    // go.
    for page in 100..200 {
        scene.fault(&root, page);
    }
    scene.shrink(&root, 100, None);
    let active = scene.reclaim.list_sizes(&root).active_file.0;
    assert!((1..50).contains(&active), "{active} active pages");
    assert_eq!((100..200).filter(|&page| !scene.read(page)).count(), 100);
    assert_eq!(
        scene.fault(&root, 199),
        Some(Refault::WithinWorkingset),
        "evicted last"
    );
    assert_eq!(
        scene.fault(&root, 100),
        Some(Refault::Beyond),
        "evicted first"
    );
    assert_eq!(scene.fault(&root, 5000), None, "never evicted");
    scene.assert_nothing_is_left();
}

#[test]
fn a_target_pays_alone_and_its_children_with_it() {
    let scene = Scene::new(512);
    let (target, bystander) = (scene.group("target"), scene.group("bystander"));
    let child = target.child("child", Limits::default()).unwrap();
    scene.reclaim.add_group(&child);
    for page in 0..50 {
        scene.fault(&target, page);
        scene.fault(&child, 100 + page);
        scene.fault(&bystander, 200 + page);
    }
    assert_eq!(scene.shrink(&target, 1000, None).nr_reclaimed, 100);
    assert_eq!(bystander.usage_precise(), Pages(50).bytes());
    assert_eq!(target.usage_precise(), Bytes::ZERO);
    scene.assert_nothing_is_left();
}

#[test]
fn lists_come_with_the_first_page() {
    // Goal: groups have no lists before they have pages, and lose nothing by it: settings are
    // inherited, and pages of a removed group go to its parent, though that never had one. Method:
    // groups as the manager makes them.
    let scene = Scene::new(512);
    let child = |parent: &GroupNode| parent.child("child", Limits::default()).unwrap();
    let upper = child(&scene.groups.root());
    let middle = child(&upper);
    let lower = child(&middle);
    let has_lists = |group: &GroupNode| scene.reclaim.lruvecs.of(group).is_some();
    scene.reclaim.set_group_swappiness(&upper, Some(7)).unwrap();
    assert!(has_lists(&upper) && !has_lists(&middle) && !middle.is_tracked());
    assert_eq!(scene.reclaim.swappiness_of(&lower), 7);
    scene.fault(&lower, 1);
    scene.reclaim.drain_batches();
    assert!(has_lists(&middle) && has_lists(&lower) && lower.is_tracked());
    assert_eq!(scene.reclaim.swappiness_of(&lower), 7);
    scene.groups.remove(&lower).unwrap();
    scene.reclaim.reparent_group(&lower);
    assert!(!has_lists(&lower));
    assert_eq!(middle.usage_precise(), Pages(1).bytes());
    assert_eq!(scene.reclaim.list_sizes(&middle).total(), Pages(1));
    assert!(scene.reclaim.lruvecs.of_or_new(&lower).is_none());
    scene.reclaim.check_invariants();
    assert_eq!(scene.shrink(&upper, 10, None).nr_reclaimed, 1);
    scene.assert_nothing_is_left();
}

#[test]
fn a_removed_groups_pages_and_charges_become_its_parents() {
    // Method: remove the middle group of three after the lowest; pages and counts move up.
    let scene = Scene::new(512);
    let upper = scene.group("upper");
    let lower = upper.child("lower", Limits::default()).unwrap();
    scene.reclaim.add_group(&lower);
    for page in 0..40 {
        scene.fault(&lower, page);
    }
    for group in [&lower, &upper] {
        scene.groups.remove(group).unwrap();
        scene.reclaim.reparent_group(group);
        scene.reclaim.check_invariants();
        assert_eq!(scene.groups.root().usage_precise(), Pages(40).bytes());
    }
    assert_eq!(
        scene.reclaim.list_sizes(&scene.groups.root()).total(),
        Pages(40)
    );
    scene.assert_nothing_is_left();
}

#[test]
fn a_page_that_comes_back_at_once_is_known() {
    // Goal: no thread finds an evicted page absent before its shadow is there. Method: one thread
    // reads a page in whenever it is absent, another evicts it all the time; every read but the
    // first is a refault.
    let scene = Scene::new(64);
    let root = scene.groups.root();
    let key = PageKey::new(scene.file, 7);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: a flag that ends a loop.
            while !is_done.load(Ordering::Relaxed) {
                if scene.shrink(&root, 1, Some(0)).nr_reclaimed == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut known = 0;
        let mut reads = 0;
        while reads < 10_000 {
            if scene.cache.lookup(key) == Presence::Absent {
                known += u32::from(scene.fault(&root, 7).is_some());
                reads += 1;
            } else {
                std::thread::yield_now();
            }
        }
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(known, reads - 1, "of {reads} reads");
    });
    scene.assert_nothing_is_left();
}

#[test]
fn a_closed_file_leaves_nothing_to_the_next_one() {
    // Goal: the shadows of a file are not taken for the next file's. Method: evict every page of a
    // file and close it; open and read another file.
    let scene = Scene::new(64);
    let root = scene.groups.root();
    let first = scene.cache.open(Arc::new(Nothing(32)), Access::ReadOnly);
    let first = Scene {
        file: first.expect("one more").id(),
        ..scene
    };
    (0..32).for_each(|page| assert_eq!(first.fault(&root, page), None));
    first.shrink(&root, u64::MAX, Some(0));
    first.cache.close(first.file);
    let second = first.cache.open(Arc::new(Nothing(32)), Access::ReadOnly);
    let second = Scene {
        file: second.expect("one more").id(),
        ..first
    };
    (0..32).for_each(|page| assert_eq!(second.fault(&root, page), None, "page {page}"));
    second.assert_nothing_is_left();
}

#[test]
fn a_group_of_a_used_number_inherits_no_working_set() {
    // Goal: distances are measured by one group's clock, not by that of the next group with its
    // number. Method: evict a group's pages and remove the group.
    let scene = Scene::new(64);
    let former = scene.group("former");
    (0..32).for_each(|page| assert_eq!(scene.fault(&former, page), None));
    scene.shrink(&former, u64::MAX, Some(0));
    scene.groups.remove(&former).unwrap();
    scene.reclaim.reparent_group(&former);
    let number = former.id();
    drop(former);
    let next = scene.group("next");
    assert_eq!(next.id(), number, "the number is used again");
    for page in 0..32 {
        assert_eq!(
            scene.fault(&next, page),
            Some(Refault::Beyond),
            "page {page}"
        );
    }
    scene.assert_nothing_is_left();
}

#[test]
fn reclaim_for_a_removed_group_spares_the_next_of_its_number() {
    // Goal: a pass may outlive its target; no other group pays for that. Method: a group is removed
    // while its handle is kept, another gets its number, and a pass works for the former.
    let scene = Scene::new(64);
    let former = scene.group("former");
    scene.groups.remove(&former).unwrap();
    scene.reclaim.reparent_group(&former);
    let next = scene.group("next");
    assert_eq!(next.id(), former.id(), "the number is used again");
    (0..20).for_each(|page| assert_eq!(scene.fault(&next, page), None));
    assert_eq!(scene.shrink(&former, u64::MAX, Some(0)).nr_reclaimed, 0);
    assert_eq!(next.usage_precise(), Pages(20).bytes());
    assert_eq!(scene.reclaim.evictions_of(&former), 0);
    scene.assert_nothing_is_left();
}

#[test]
fn no_clock_judges_what_another_of_its_number_counted() {
    // Goal: as above, when the later clock is ahead of the former: the distance between readings of
    // two clocks is meaningless. Method: the next group ages to just past the former's readings;
    // other groups may have had the number between them.
    for nr_between in [0, 1, 2, 15] {
        no_clock_judges_another(&Scene::new(256), nr_between);
        no_clock_judges_another(&Scene::with_policy(256, Balanced), nr_between);
        no_clock_judges_another(&Scene::with_policy(256, S3Fifo), nr_between);
    }
}

fn no_clock_judges_another(scene: &Scene, nr_between: u32) {
    let former = scene.group("former");
    (0..8).for_each(|page| assert_eq!(scene.fault(&former, page), None));
    scene.shrink(&former, u64::MAX, Some(0));
    let number = former.id();
    let remove = |group: GroupNode| {
        scene
            .groups
            .remove(&group)
            .expect("nothing is charged to it");
        scene.reclaim.reparent_group(&group);
    };
    remove(former);
    (0..nr_between).for_each(|_| remove(scene.group("between")));
    let next = scene.group("next");
    assert_eq!(next.id(), number, "the number is used again");
    // An active list of some length, and clocks a little ahead.
    (200..220).for_each(|page| _ = scene.fault(&next, page));
    scene.shrink(&next, 20, Some(0));
    for page in 100..140 {
        scene.fault(&next, page);
        scene.copy(page);
        scene.copy(page);
    }
    let nr_active = scene.reclaim.list_sizes(&next).active_file;
    assert!(!scene.reclaim.ages() || nr_active > Pages(8));
    for page in 0..8 {
        let back = scene.fault(&next, page);
        assert_eq!(
            back,
            Some(Refault::Beyond),
            "page {page}, after {nr_between} more"
        );
    }
    scene.assert_nothing_is_left();
}

#[test]
fn a_group_has_the_swappiness_of_the_nearest_setting() {
    // Goal: a group's swappiness is its own, else that of the nearest ancestor with one, else the
    // pool's, which is at most 200; a larger one is refused for a group and changes nothing.
    // Method: random settings of a tree that grows, also of groups that have no lists yet, set and
    // removed, against a search upwards.
    let mut rng = crate::seed::rng(23);
    let scene = Scene::new(64);
    let reclaim = &scene.reclaim;
    // With the parent's place and the own setting.
    let mut groups = vec![(scene.groups.root(), None, None)];
    let mut pools = reclaim.swappiness_of(&scene.groups.root());
    for step in 0..600 {
        let at = rng.usize(..groups.len());
        let asked = rng.u64(..250);
        let group = groups[at].0.clone();
        match rng.u8(..5) {
            0 if groups.len() < 30 && group.depth() < 5 => {
                let child = group.child(&format!("g{step}"), Limits::default()).unwrap();
                if rng.bool() {
                    reclaim.add_group(&child);
                }
                groups.push((child, Some(at), None));
            }
            1 => {
                reclaim.set_swappiness(asked);
                pools = asked.min(200);
            }
            2 => {
                assert_eq!(reclaim.set_group_swappiness(&group, None), Ok(()));
                groups[at].2 = None;
            }
            _ => {
                let outcome = reclaim.set_group_swappiness(&group, Some(asked));
                assert_eq!(outcome.is_ok(), asked <= 200, "{asked}: {outcome:?}");
                if asked <= 200 {
                    groups[at].2 = Some(asked);
                }
            }
        }
        for (at, (group, ..)) in groups.iter().enumerate() {
            let mut chain = std::iter::successors(Some(at), |&at| groups[at].1);
            let nearest = chain.find_map(|at| groups[at].2);
            let found = reclaim.swappiness_of(group);
            assert_eq!(found, nearest.unwrap_or(pools), "{group:?} at step {step}");
        }
    }
}
