//! Reclaim of pages under write-back, and their rotation when that ends.

use super::policy::PolicyKind;
use super::tests::Scene;
use super::*;
use crate::cache::{Access, Backing, FileEntry};
use crate::sync::{LockClass, Mutex, Rank};
use crate::units::{FilePage, PAGE_BYTES};

static BUSY_LOCK: LockClass = LockClass::new("busy", Rank::Leaf);

type During = Box<dyn FnOnce() + Send>;

/// Storage that runs a closure during a write, once.
struct Busy {
    during: Mutex<Option<During>>,
    /// Its answer: a number of bytes, an error, or a panic.
    answer: Mutex<Option<Answer>>,
}

#[derive(Clone, Copy)]
enum Answer {
    Short,
    Refused,
    Panics,
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Busy")
    }
}

impl Backing for Busy {
    fn len(&self) -> u64 {
        64 * PAGE_BYTES
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn write_page(&self, _: FilePage, buf: &[u8]) -> std::io::Result<usize> {
        let during = self.during.lock().take();
        during.into_iter().for_each(|during| during());
        let answer = *self.answer.lock();
        match answer {
            None => Ok(buf.len()),
            Some(Answer::Short) => Ok(buf.len() - 1),
            Some(Answer::Refused) => Err(std::io::Error::from_raw_os_error(5 /* EIO */)),
            Some(Answer::Panics) => panic!("it was told to"),
        }
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A pool with pages 0 to 7 of a writable file, read in in that order; page 0 is dirty.
struct Written {
    scene: Arc<Scene>,
    storage: Arc<Busy>,
    entry: Arc<FileEntry>,
}

impl Written {
    /// Pages are scanned one by one.
    fn new(policy: PolicyKind) -> Self {
        Self::in_pool(64, policy)
    }

    /// A pool that is large enough for all pages to be scanned at once.
    fn in_one_cluster(policy: PolicyKind) -> Self {
        Self::in_pool(8 * 256, policy)
    }

    fn in_pool(frames: u64, policy: PolicyKind) -> Self {
        let scene = Scene::new(frames);
        let storage = Arc::new(Busy {
            during: Mutex::new(&BUSY_LOCK, None),
            answer: Mutex::new(&BUSY_LOCK, None),
        });
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let entry = scene
            .cache
            .open(backing, Access::ReadWrite)
            .expect("a file more");
        let reclaim = scene.reclaim.with_eviction_policy(policy.policy());
        let file = entry.id();
        let scene = Scene {
            reclaim,
            file,
            ..scene
        };
        let root = scene.groups.root();
        (0..8).for_each(|page| _ = scene.fault(&root, page));
        scene.reclaim.drain_batches();
        let write = scene.cache.try_write(PageKey::new(file, 0));
        write.expect("resident").mark_dirty(&scene.cache);
        // Only its position decides when it is evicted.
        scene.cache.forget_young(scene.pfn(0));
        let scene = Arc::new(scene);
        Self {
            scene,
            storage,
            entry,
        }
    }

    /// Has the next write run `during`.
    fn when_written(&self, during: impl FnOnce(&Scene) + Send + 'static) {
        let scene = Arc::clone(&self.scene);
        *self.storage.during.lock() = Some(Box::new(move || during(&scene)));
    }

    /// Writes page 0 back, with `during` meanwhile, and rotates it if reclaim awaits it; returns
    /// whether it was written.
    fn write_back(&self, during: impl FnOnce(&Scene) + Send + 'static) -> bool {
        self.when_written(during);
        let (cache, entry) = (&self.scene.cache, &self.entry);
        let outcome = cache.write_back_pages(&cache.dirty_pages_of(entry.id()));
        assert!(self.storage.during.lock().is_none(), "it was dirty");
        self.scene.reclaim.rotate(&outcome.awaited);
        outcome.all_written().is_ok()
    }

    /// Returns the resident pages.
    fn left(&self) -> Vec<u64> {
        let cache = &self.scene.cache;
        let mut left: Vec<u64> = cache
            .pages_of(self.entry.id())
            .map(|pfn| cache.key_of(pfn).expect("no eviction runs").page().0)
            .collect();
        left.sort_unstable();
        left
    }

    /// Returns the pages that the background thread found again under write-back, and the rotated
    /// pages.
    fn counts(&self) -> [u64; 2] {
        let stats = self.scene.reclaim.stats();
        [stats.nr_vmscan_immediate.get(), stats.pgrotated.get()]
    }

    fn check(&self) {
        self.scene.reclaim.check_invariants();
        self.scene.cache.check_invariants();
    }
}

/// Frees a page; returns the result of the pass.
fn shrink(scene: &Scene, actor: Actor) -> Outcome {
    scene.reclaim.shrink(&ScanControl {
        nr_to_reclaim: Pages(1),
        target: &scene.groups.root(),
        actor,
        first_priority: None,
        ignores_protection: false,
    })
}

/// Moves page 0 to where reclaim finds it next, as if it had aged there.
fn age(scene: &Scene) {
    let (cache, lruvecs) = (&scene.cache, &scene.reclaim.lruvecs);
    let (pfn, root) = (scene.pfn(0), scene.groups.root());
    let isolated = lruvecs
        .isolate_page(cache, pfn, || true)
        .expect("on a list");
    cache.clear_flag(pfn, PageFlag::Active);
    // All others go behind it.
    let lists = lruvecs.of(&root).expect("the root has lists");
    let mut others = Vec::new();
    lruvecs.isolate_tail(&lists, LruList::InactiveFile, (64, u64::MAX), &mut others);
    lruvecs.put_back(cache, &scene.groups, isolated);
    let placed = others.into_iter().map(|pfn| (pfn, Placement::Inactive));
    lruvecs.add_all(cache, &lists, placed);
}

#[test]
fn immediate_is_counted_when_the_background_thread_meets_an_awaited_page() {
    // Goal: `nr_vmscan_immediate` counts exactly that: not the reclaimer that finds the page first,
    // not direct reclaim, not a page whose latch is held without write-back. Method: all of them,
    // while page 0 is written.
    let written = Written::new(PolicyKind::TwoList);
    assert!(written.write_back(|scene| {
        let immediate = || scene.reclaim.stats().nr_vmscan_immediate.get();
        let is_awaited = || scene.cache.has_flag(scene.pfn(0), PageFlag::Reclaim);
        assert!(scene.cache.has_flag(scene.pfn(0), PageFlag::Writeback) && !is_awaited());
        for (nth, (actor, counts)) in [
            (Actor::Background, 0),
            (Actor::Direct, 0),
            (Actor::Background, 1),
            (Actor::Requested, 1),
            (Actor::Background, 2),
        ]
        .into_iter()
        .enumerate()
        {
            let outcome = shrink(scene, actor);
            assert_eq!((outcome.nr_borrowed, outcome.nr_reclaimed), (1, 1));
            assert_eq!(immediate(), counts, "time {nth}");
            assert!(is_awaited() && scene.cache.has_flag(scene.pfn(0), PageFlag::Active));
            age(scene);
        }
    }));
    assert_eq!((written.counts(), written.left()), ([2, 1], vec![0, 6, 7]));
    // Held, but not under write-back.
    let latch = written
        .scene
        .cache
        .try_read_latched(PageKey::new(written.entry.id(), 0));
    written.scene.cache.forget_young(written.scene.pfn(0));
    assert_eq!(shrink(&written.scene, Actor::Background).nr_borrowed, 1);
    drop(latch);
    assert_eq!((written.counts(), written.left()), ([2, 1], vec![0, 7]));
    written.check();
}

#[test]
fn a_page_that_reclaim_awaits_is_the_next_to_go() {
    // Goal: when its write-back ends, the page is evicted before older pages. Method: under every
    // policy, reclaim frees a page while page 0 is written, and one afterwards; without the first,
    // or if it has been written to again, page 0 keeps its place.
    for policy in PolicyKind::ALL {
        let written = Written::new(policy);
        assert!(written.write_back(|scene| {
            shrink(scene, Actor::Direct);
            assert!(scene.cache.has_flag(scene.pfn(0), PageFlag::Active));
        }));
        assert!(
            !written
                .scene
                .cache
                .has_flag(written.scene.pfn(0), PageFlag::Active)
        );
        assert_eq!(written.counts(), [0, 1], "{policy:?}");
        written.check();
        let before = written.left();
        let freed = shrink(&written.scene, Actor::Direct).nr_reclaimed;
        // A step may free one page of each list, if it scans both.
        assert!((1..=2).contains(&freed), "{policy:?}");
        let after = written.left();
        assert_eq!(before.len() - after.len(), usize::try_from(freed).unwrap());
        assert!(
            before.contains(&0) && !after.contains(&0),
            "{policy:?}: {after:?}"
        );
    }
    let written = Written::new(PolicyKind::TwoList);
    assert!(written.write_back(|_| ()));
    assert_eq!(written.counts(), [0, 0]);
    let (cache, key) = (&written.scene.cache, PageKey::new(written.entry.id(), 0));
    cache.try_write(key).unwrap().mark_dirty(cache);
    let pfn = written.scene.pfn(0);
    written.scene.reclaim.rotate(&[(pfn, key)]);
    assert_eq!(written.counts(), [0, 0], "dirty again");
}

#[test]
fn pages_in_others_hands_and_other_pages_are_not_rotated() {
    // Goal: rotation touches only the requested page, on a list that reclaim scans. Method:
    // isolated; with another page in the frame; on the unevictable list.
    let written = Written::new(PolicyKind::TwoList);
    let (scene, file) = (&written.scene, written.entry.id());
    let [pfn, other] = [1, 2].map(|page| scene.pfn(page));
    let (cache, lruvecs) = (&scene.cache, &scene.reclaim.lruvecs);
    let key = PageKey::new(file, 1);
    let isolated = lruvecs.isolate_page(cache, pfn, || true).unwrap();
    scene.reclaim.rotate(&[(pfn, key)]);
    lruvecs.put_back(cache, &scene.groups, isolated);
    scene.reclaim.rotate(&[(other, key)]);
    assert_eq!(written.counts(), [0, 0]);
    let isolated = lruvecs.isolate_page(cache, pfn, || true).unwrap();
    cache.set_flag(pfn, PageFlag::Unevictable);
    let lists = lruvecs.of(&scene.groups.root()).unwrap();
    lruvecs.add_all(cache, &lists, [(pfn, Placement::Unevictable)]);
    drop(isolated);
    scene.reclaim.rotate(&[(pfn, key)]);
    assert_eq!(
        (written.counts(), lists.sizes().unevictable),
        ([0, 0], Pages(1))
    );
    scene.reclaim.rescue_unlocked(pfn);
    scene.reclaim.rotate(&[(pfn, key)]);
    assert_eq!(written.counts(), [0, 1]);
    written.check();
}

#[test]
fn storage_that_does_not_take_a_page_leaves_no_flag_behind() {
    // Goal: a page whose write fails, is partial, or whose storage panics is dirty, not under
    // write-back, not awaited and not rotated: reclaim would only find it dirty again. Method:
    // each, with and without reclaim meanwhile; then the page is written.
    for answer in [Answer::Short, Answer::Refused, Answer::Panics] {
        for is_awaited in [false, true] {
            let written = Written::new(PolicyKind::TwoList);
            *written.storage.answer.lock() = Some(answer);
            assert!(!written.write_back(move |scene| {
                if is_awaited {
                    shrink(scene, Actor::Background);
                }
            }));
            let scene = &written.scene;
            assert!(scene.cache.is_dirty(scene.pfn(0)));
            written.check();
            *written.storage.answer.lock() = None;
            assert!(written.write_back(|_| ()));
            assert_eq!(written.counts(), [0, 0]);
            written.check();
        }
    }
}

#[test]
fn a_request_writes_a_dirty_page_back_only_when_no_clean_one_is_left() {
    // Goal: beside a thread that writes back, no request waits for write-back of another's page
    // while clean pages of files are left, and none fails because all are dirty. Method: under
    // every policy, the oldest of 8 pages is dirty; direct reclaim frees page after page.
    for policy in PolicyKind::ALL {
        let written = Written::new(policy);
        let scene = &written.scene;
        scene.reclaim.note_writer();
        let nr_written = || scene.reclaim.stats().nr_vmscan_write.get();
        while written.left().len() > 1 {
            let freed = shrink(scene, Actor::Direct).nr_reclaimed;
            assert!(freed > 0 && nr_written() == 0, "{policy:?}: {freed}");
        }
        assert_eq!(written.left(), [0], "{policy:?}");
        assert_eq!(shrink(scene, Actor::Direct).nr_reclaimed, 1, "{policy:?}");
        assert_eq!((nr_written(), written.left()), (1, Vec::new()));
        written.check();
    }
}

#[test]
fn readers_do_not_wait_for_write_back() {
    // Goal: a page can be read, by its latch and optimistically, while it is written back, and not
    // be written. Method: a look from inside its write, by a sync and by reclaim.
    for by_reclaim in [false, true] {
        let written = Written::new(PolicyKind::TwoList);
        let seen = Arc::new(Mutex::new(&BUSY_LOCK, None));
        let sees = Arc::clone(&seen);
        let look = move |scene: &Scene| {
            let (key, pfn) = (PageKey::new(scene.file, 0), scene.pfn(0));
            let is_readable = scene.cache.try_latch_at(key, pfn).is_some();
            let is_seen = scene.cache.glimpse_at(key, pfn).is_some();
            let is_writable = scene.cache.try_latch_to_write_at(key, pfn).is_some();
            *sees.lock() = Some([is_readable, is_seen, is_writable]);
        };
        match by_reclaim {
            true => {
                written.when_written(look);
                assert_eq!(shrink(&written.scene, Actor::Background).nr_reclaimed, 1);
            }
            false => assert!(written.write_back(look)),
        }
        assert_eq!(*seen.lock(), Some([true, true, false]));
        written.check();
    }
}

/// Frees all pages that it can, in one look at each list.
fn shrink_all(scene: &Scene, actor: Actor) -> Outcome {
    scene.reclaim.shrink(&ScanControl {
        nr_to_reclaim: Pages(8),
        target: &scene.groups.root(),
        actor,
        first_priority: Some(0),
        ignores_protection: false,
    })
}

#[test]
fn clean_pages_of_a_cluster_are_free_while_dirty_ones_are_written() {
    // Goal: no frame of a clean page waits for the storage of a dirty one. Method: under every
    // policy, a look from inside the write of the oldest of 8 pages, which are all evicted: the
    // frames of the other seven are free, and the reclaimer has one page in hand.
    for policy in PolicyKind::ALL {
        let written = Written::in_one_cluster(policy);
        let nr_free = |scene: &Scene| {
            scene.pool.drain_all();
            scene.pool.nr_free()
        };
        let before = nr_free(&written.scene);
        let seen = Arc::new(Mutex::new(&BUSY_LOCK, None));
        let sees = Arc::clone(&seen);
        written.when_written(move |scene| {
            let root = scene.groups.root();
            let in_hand = scene.reclaim.nr_isolated_of(&root, PageType::File);
            *sees.lock() = Some((nr_free(scene) - before, in_hand));
        });
        let freed = shrink_all(&written.scene, Actor::Requested).nr_reclaimed;
        assert_eq!((freed, written.left()), (8, Vec::new()), "{policy:?}");
        assert_eq!(*seen.lock(), Some((Pages(7), Pages(1))), "{policy:?}");
        written.check();
    }
}
