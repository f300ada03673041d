//! Promise: a thread that maps and unmaps a file without end neither stalls reclaim nor protects
//! its own pages. (Invariants 14 and 16 of the frames-and-reclaim specification, for each policy.)

#![expect(clippy::unwrap_used, reason = "a failure shows where it was")]

mod support;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use highwater::lab::reclaim::policy::PolicyKind;
use highwater::lab::reclaim::{DEBT_MAX, RmapConfig, RmapPolicy, RmapQuirks};
use highwater::{Access, File, Group, Limits, Manager, Mapping, Pages, ReadError};
use support::TestFile;

/// A full pool: every page of it mapped by one space, read once.
struct Scene {
    hw: Manager,
    file: File,
    map: Mapping,
}

const POOL: u64 = 512;

impl Scene {
    fn new(policy: RmapPolicy, quirks: RmapQuirks) -> Self {
        Self::of(POOL, policy, quirks)
    }

    fn of(pool: u64, policy: RmapPolicy, quirks: RmapQuirks) -> Self {
        let config = RmapConfig { policy, quirks };
        let builder = Manager::builder().capacity(Pages(pool).bytes());
        let builder = builder.eviction_policy(PolicyKind::TwoList);
        let hw = builder.rmap(config).build().unwrap();
        let root = hw.root();
        Self::filled_by(&root, hw, pool)
    }

    fn filled_by(group: &Group, hw: Manager, pool: u64) -> Self {
        let file = hw
            .open_backing(TestFile::new(2 * pool), Access::ReadOnly)
            .unwrap();
        let map = hw.space(group).map_file(&file, 0..2 * pool).unwrap();
        for page in 0..2 * pool {
            map.read(&hw.enter(), page).unwrap();
        }
        Self { hw, file, map }
    }

    fn rss(&self) -> u64 {
        self.map.space().rss_precise().0
    }

    /// Maps another file.
    fn another(&self, pages: u64) -> Mapping {
        let storage = TestFile::new(pages);
        let file = self.hw.open_backing(storage, Access::ReadOnly).unwrap();
        let space = self.hw.space(&self.hw.root());
        space.map_file(&file, 0..pages).unwrap()
    }

    /// Reads pages of another file.
    fn read_another(&self, pages: u64) -> Result<(), ReadError> {
        let map = self.another(pages);
        for page in 0..pages {
            map.read(&self.hw.enter(), page)?;
        }
        Ok(())
    }

    /// Runs `work` while another thread holds the file's rmap lock.
    fn while_held<R>(&self, work: impl FnOnce() -> R) -> R {
        let (held, is_held) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                self.file.hold_rmap(|| {
                    held.send(()).unwrap();
                    // Ends when the other end is dropped, also by a panic.
                    is_done.recv().unwrap_err();
                });
            });
            is_held.recv().unwrap();
            let result = work();
            drop(done);
            result
        })
    }

    /// Pins pages of another file, all at once.
    fn pin_another(&self, pages: u64) -> Result<(), ReadError> {
        let map = self.another(pages);
        let pins: Result<Vec<_>, _> = (0..pages).map(|page| map.pin(page)).collect();
        pins.map(drop)
    }

    fn counter(&self, name: &str) -> u64 {
        self.hw.snapshot().counter(name)
    }
}

#[test]
fn a_contended_page_is_never_freed_where_reclaim_skips() {
    // Goal: invariant 14. Method: drop all caches while the lock is held; then again when it is
    // not.
    let scene = Scene::new(RmapPolicy::Skip, RmapQuirks::Mended);
    let before = scene.rss();
    scene.while_held(|| scene.hw.drop_caches());
    assert_eq!(scene.rss(), before);
    assert!(scene.counter("rmap_checks_contended") >= before);
    scene.hw.check_invariants();
    scene.hw.drop_caches();
    assert_eq!(scene.rss(), 0);
}

#[test]
fn reclaim_that_skips_gives_up_though_memory_could_be_had() {
    // Goal: the harm that the default fixes is observable. Method: the lock of the only file with
    // pages is held while pages of another are pinned, so that reclaim cannot take those instead.
    let scene = Scene::new(RmapPolicy::Skip, RmapQuirks::KernelFaithful);
    let free = POOL - scene.rss();
    let pins = scene.while_held(|| scene.pin_another(POOL));
    assert!(
        matches!(pins, Err(ReadError::NoMemory { page, .. }) if page.0 <= free),
        "{pins:?}"
    );
    scene.pin_another(POOL / 2).unwrap();
}

#[test]
fn reclaim_goes_on_while_the_lock_is_held() {
    // Goal: invariant 16, with no wait at all. Method: as above, with the policies that use the
    // snapshot.
    for policy in [RmapPolicy::Snapshot, RmapPolicy::Defer] {
        let scene = Scene::new(policy, RmapQuirks::Mended);
        assert_eq!(RmapConfig::default().policy, RmapPolicy::Defer);
        scene
            .while_held(|| scene.read_another(POOL))
            .unwrap_or_else(|error| panic!("{policy:?}: {error}"));
        assert_eq!(scene.hw.rmap_times().contended(), 0, "no reclaimer waited");
        assert_eq!(scene.counter("rmap_checks_contended"), 0);
        let (deferred, over) = (
            scene.counter("rmap_deferred"),
            scene.counter("rmap_over_debt"),
        );
        assert_eq!(deferred + over, scene.counter("rmap_unmaps_contended"));
        match policy {
            RmapPolicy::Snapshot => assert_eq!(deferred + over, 0),
            _ => assert!(deferred <= DEBT_MAX as u64 && over > 0, "{deferred} {over}"),
        }
        scene.hw.check_invariants();
    }
}

#[test]
fn the_holder_evicts_what_was_left_for_it() {
    // Goal: the work is done by the thread that causes it. Method: slightly more pages than the
    // pool has are requested while the lock is held; the pages deferred for that are gone when the
    // holder has released the lock.
    let scene = Scene::new(RmapPolicy::Defer, RmapQuirks::Mended);
    let (before, stolen) = (scene.rss(), scene.counter("pgsteal_direct"));
    let deferred = scene.while_held(|| {
        scene.read_another(32).unwrap();
        scene.counter("rmap_deferred")
    });
    assert!(deferred > 0);
    let settled = scene.counter("rmap_settled");
    assert!(
        settled > 0 && settled <= deferred,
        "{settled} of {deferred}"
    );
    assert!(scene.rss() <= before - settled);
    assert!(scene.counter("pgsteal_direct") >= stolen + settled);
    scene.hw.check_invariants();
}

#[test]
fn the_holder_takes_nothing_below_min() {
    // Goal: pages that are deferred count against their group's `min`. Method: the lock of a tenant
    // that has one page beyond its `min` is held while another group reads.
    let hw = Manager::builder().capacity(Pages(POOL).bytes());
    let hw = hw.eviction_policy(PolicyKind::TwoList).build().unwrap();
    let tenant = hw.root().child("tenant", Limits::default()).unwrap();
    let scene = Scene::filled_by(&tenant, hw, POOL);
    let min = tenant.usage_precise() - Pages(1).bytes();
    tenant
        .set_limits(Limits {
            min,
            ..Limits::default()
        })
        .unwrap();
    let deferred = scene.while_held(|| {
        scene.read_another(64).unwrap();
        scene.counter("rmap_deferred")
    });
    assert!(deferred > 0);
    assert!(tenant.usage_precise() >= min, "{deferred} were deferred");
    scene.hw.check_invariants();
}

#[test]
fn blocking_and_late_throttling_wait_for_the_holder() {
    // Goal: the kernel's two policies that wait do so. Method: pages of another file are requested
    // while a thread holds the lock of the file that all pages belong to; it releases it some time
    // after reclaim has begun to scan, and no page was freed until then. The pool is large enough
    // for a pass of more than three priorities.
    for (policy, pool) in [(RmapPolicy::Blocking, POOL), (RmapPolicy::Throttle, 4096)] {
        let scene = Scene::of(pool, policy, RmapQuirks::Mended);
        let stolen = scene.counter("pgsteal_direct");
        let looks = scene.counter("rmap_checks");
        thread::scope(|scope| {
            let reader = scene.while_held(|| {
                let reader = scope.spawn(|| scene.read_another(POOL).unwrap());
                while scene.counter("rmap_checks") == looks {
                    thread::yield_now();
                }
                // Enough for reclaim that does not wait to free something.
                thread::sleep(Duration::from_millis(30));
                assert_eq!(scene.counter("pgsteal_direct"), stolen, "{policy:?}");
                reader
            });
            reader.join().unwrap();
        });
        assert!(scene.hw.rmap_times().contended() > 0);
        let given_up = scene.counter("rmap_checks_contended");
        assert_eq!(given_up > 0, policy == RmapPolicy::Throttle, "{given_up}");
        scene.hw.check_invariants();
    }
}
