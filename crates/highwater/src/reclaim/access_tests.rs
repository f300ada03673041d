//! Access detection: the streaming oracle, second chances, activation, and refaults.

use super::policy::{Balanced, KernelLists, S3Fifo, Sieve};
use super::shadow::Shadow;
use super::tests::Scene;
use super::*;
use crate::cache::Presence;
use crate::group::{StatItem, Tolerance};

const KERNEL: KernelLists = KernelLists {
    inactive_ratio: None,
    loses_contended: false,
};

/// Reads a file of twice the pool three times, with `access` after each page has come in.
fn stream(
    frames: u64,
    policy: impl EvictionPolicy + 'static,
    access: impl Fn(&Scene, u64),
) -> Scene {
    let scene = Scene::with_policy(frames, policy);
    let root = scene.groups.root();
    let mut refaults = 0;
    for page in (0..3).flat_map(|_| 0..2 * frames) {
        if scene.pool.nr_free() < Pages(8) {
            assert!(scene.shrink(&root, 1, None).nr_reclaimed > 0);
        }
        refaults += u64::from(scene.fault(&root, page).is_some());
        access(&scene, page);
    }
    // No page is found resident, and every page of the later passes has a shadow.
    assert_eq!(refaults, 2 * 2 * frames);
    let stats = scene.reclaim.stats();
    let counted = stats.workingset_refault[PageType::File as usize].get();
    assert_eq!(counted, refaults);
    scene
}

/// Returns the pages freed for each hundred scanned.
fn efficiency(scene: &Scene) -> u64 {
    let (scanned, stolen) = (
        scene.reclaim.stats().scanned(),
        scene.reclaim.stats().stolen(),
    );
    assert!(scanned >= stolen);
    100 * stolen / scanned
}

#[test]
fn a_mapped_stream_takes_two_scans_a_page() {
    // Goal: the streaming oracle: three passes over a file of twice the pool through a mapping
    // refault exactly twice the file's pages, and half of the scanned pages are freed. Method: the
    // access that brings a page in leaves it young.
    let scene = stream(256, KERNEL, |scene, page| {
        assert!(scene.read(page));
    });
    let efficiency = efficiency(&scene);
    assert!((45..=50).contains(&efficiency), "{efficiency} %");
    scene.assert_nothing_is_left();
}

#[test]
fn a_copied_stream_takes_one_scan_a_page() {
    // Goal and method as above, by copying reads: every scanned page is freed.
    let copy = |scene: &Scene, page| scene.copy(page);
    for scene in [stream(256, KERNEL, copy), stream(256, TwoList, copy)] {
        assert_eq!(efficiency(&scene), 100);
        scene.assert_nothing_is_left();
    }
}

#[test]
fn a_mapped_stream_takes_one_scan_where_its_first_access_is_none() {
    // Goal: as above, for the other rules: a page without a further access is evicted at its first
    // scan.
    let scene = stream(256, TwoList, |scene, page| {
        scene.cache.forget_young(scene.pfn(page));
    });
    assert_eq!(efficiency(&scene), 100);
    scene.assert_nothing_is_left();
}

#[test]
fn copying_reads_mark_then_activate_then_mark() {
    // Goal: the three states of 9.2. Method: reads of one page on the inactive list, checked by
    // flags and sizes.
    let scene = Scene::new(256);
    let root = scene.groups.root();
    (0..8).for_each(|page| assert_eq!(scene.fault(&root, page), None));
    let pfn = scene.pfn(3);
    let state = || {
        scene.reclaim.drain_batches();
        let has = |flag| scene.cache.has_flag(pfn, flag);
        let active = scene.reclaim.list_sizes(&root).active_file.0;
        (has(PageFlag::Referenced), has(PageFlag::Active), active)
    };
    assert_eq!(state(), (false, false, 0));
    for after in [
        (true, false, 0),
        (false, true, 1),
        (true, true, 1),
        (true, true, 1),
    ] {
        scene.copy(3);
        assert_eq!(state(), after);
    }
    assert_eq!(scene.reclaim.stats().pgactivate.get(), 1);
    scene.assert_nothing_is_left();
}

#[test]
fn as_many_active_pages_are_kept_as_the_ratio_says() {
    // Goal: active pages are scanned only beyond the ratio to inactive ones, with the tunable and
    // without. Method: 100 active pages beside 20 that were read once; one round over them at each
    // ratio.
    for (ratio, are_looked_at) in [
        (None, true),
        (Some(4), true),
        (Some(5), false),
        (Some(0), true),
    ] {
        let policy = KernelLists {
            inactive_ratio: ratio,
            ..KERNEL
        };
        let scene = Scene::with_policy(256, policy);
        let root = scene.groups.root();
        for page in 0..120 {
            scene.fault(&root, page);
            (0..if page < 100 { 2 } else { 0 }).for_each(|_| scene.copy(page));
        }
        scene.reclaim.drain_batches();
        let sizes = scene.reclaim.list_sizes(&root);
        assert_eq!(
            (sizes.active_file, sizes.inactive_file),
            (Pages(100), Pages(20))
        );
        scene.shrink(&root, 1, None);
        let looked_at = scene.reclaim.stats().pgrefill.get();
        assert_eq!(looked_at > 0, are_looked_at, "{ratio:?}: {looked_at}");
        scene.assert_nothing_is_left();
    }
}

#[test]
fn active_pages_are_deactivated_whether_read_or_not() {
    // Goal: 9.4: every page except code in use leaves the active list at its tail, with the
    // workingset flag. Method: more active than inactive pages, all of them young; one round over
    // them.
    let scene = Scene::with_policy(256, KERNEL);
    let root = scene.groups.root();
    for page in 0..100 {
        scene.fault(&root, page);
        (0..2).for_each(|_| scene.copy(page));
        assert!(scene.read(page));
    }
    scene.reclaim.drain_batches();
    assert_eq!(scene.reclaim.list_sizes(&root).active_file, Pages(100));
    scene.shrink(&root, 1, None);
    let stats = scene.reclaim.stats();
    let (looked_at, left) = (stats.pgrefill.get(), stats.pgdeactivate.get());
    assert!(left > 0 && looked_at == left, "{left} of {looked_at}");
    scene.assert_nothing_is_left();
}

#[test]
fn a_working_set_that_comes_back_is_restored() {
    // Goal: a page that had been active and refaults soon is active at once, is counted as
    // restored, for its group too, and adds to the cost of its type; one that had not been active
    // is only activated. Method: deactivated pages are evicted along with others that never were
    // active, and some of both refault while as many active pages are left.
    let scene = Scene::new(1024);
    let root = scene.groups.root();
    for page in 0..400 {
        scene.fault(&root, page);
        (0..2).for_each(|_| scene.copy(page));
    }
    scene.reclaim.drain_batches();
    // A part of the longer list is deactivated; some of it is evicted.
    while scene.reclaim.stats().stolen() < 40 {
        scene.shrink(&root, 8, None);
    }
    let gone = (0..400).filter(|&page| !scene.read(page));
    let last = gone.max().expect("some went");
    assert_eq!(scene.fault(&root, last), Some(Refault::Restored));
    let stats = scene.reclaim.stats();
    assert_eq!(stats.workingset_restore[PageType::File as usize].get(), 1);
    assert_eq!(stats.workingset_activate[PageType::File as usize].get(), 1);
    let counted = root.read_stats(Tolerance::EXACT, Duration::ZERO);
    assert_eq!(counted.get(StatItem::WorkingsetRestoreFile), 1);
    assert!(scene.cache.has_flag(scene.pfn(last), PageFlag::Active));
    assert!(scene.cache.has_flag(scene.pfn(last), PageFlag::Workingset));
    scene.assert_nothing_is_left();
}

#[test]
fn want_in_the_pool_is_measured_against_all_of_it() {
    // Goal: a shadow keeps the clock of the group that was short, and its distance is compared with
    // the active pages in all of that group. Method: a group without active pages, beside one with
    // many: a page evicted for the pool competes with those, a page evicted for the group does not.
    let scene = Scene::new(1024);
    let (root, busy, plain) = (
        scene.groups.root(),
        scene.group("busy"),
        scene.group("plain"),
    );
    for page in 1000..1200 {
        scene.fault(&busy, page);
        (0..2).for_each(|_| scene.copy(page));
    }
    for page in 0..100 {
        scene.fault(&plain, page);
    }
    let gone = || {
        (0..100)
            .filter(|&page| scene.cache.lookup(PageKey::new(scene.file, page)) == Presence::Absent)
    };
    scene.shrink(&plain, 20, None);
    let (gone_for_plain, all_gone) = (gone().next_back().expect("some went"), gone().count());
    while gone().count() == all_gone {
        scene.shrink(&root, 4, None);
    }
    let gone_for_all = gone().next_back().expect("one more went");
    assert!(gone_for_all > gone_for_plain, "in order");
    let back = scene.fault(&plain, gone_for_plain);
    assert_eq!(back, Some(Refault::Beyond), "no active pages there");
    let back = scene.fault(&plain, gone_for_all);
    assert_eq!(
        back,
        Some(Refault::WithinWorkingset),
        "200 active pages in the pool"
    );
    scene.assert_nothing_is_left();
}

#[test]
fn refault_distances_agree_with_a_model() {
    // Goal: invariant 15: a shadow's age is the number of evictions and activations before it, each
    // counted once, and a refault is within the working set exactly when no more of those have
    // happened since than pages are active. Method: random reads of three pools' worth, a part of
    // them over a small set; the model counts the evictions, and gives each the age that its shadow
    // must have.
    let mut rng = crate::seed::rng(15);
    let scene = Scene::new(512);
    let root = scene.groups.root();
    let lruvec = scene.reclaim.lruvecs.get(root.id()).expect("the root's");
    let stats = scene.reclaim.stats();
    let mut ages = std::collections::HashMap::new();
    let mut resident: Vec<u64> = Vec::new();
    let (mut within, mut beyond) = (0, 0);
    for _ in 0..6000 {
        let page = if rng.u8(..3) == 0 {
            rng.u64(..200)
        } else {
            rng.u64(..1536)
        };
        let key = PageKey::new(scene.file, page);
        if scene.cache.lookup(key) != Presence::Absent {
            scene.copy(page);
            continue;
        }
        if scene.pool.nr_free() < Pages(16) {
            scene.reclaim.drain_batches();
            let (clock, activated) = (lruvec.clock(), stats.pgactivate.get());
            scene.shrink(&root, 16, None);
            let is_gone = |page: &u64| {
                scene.cache.lookup(PageKey::new(scene.file, *page)) == Presence::Absent
            };
            let gone: Vec<u64> = resident.extract_if(.., |page| is_gone(page)).collect();
            let ticks = gone.len() as u64 + stats.pgactivate.get() - activated;
            assert_eq!(lruvec.clock(), clock + ticks, "evictions and activations");
            for page in gone {
                let key = PageKey::new(scene.file, page);
                let recalled = scene.reclaim.shadows.take(key).expect("just evicted");
                let age = lruvec.clock() - recalled.age.distance(lruvec.clock());
                assert!((clock..clock + ticks).contains(&age));
                let shadow = Shadow {
                    owner: recalled.owner().expect("the root"),
                    stamp: None,
                    age,
                    was_active: recalled.was_active,
                };
                scene.reclaim.shadows.insert(key, shadow);
                assert_eq!(ages.insert(page, age), None, "page {page} left twice");
            }
            let mut all: Vec<u64> = ages.values().copied().collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), ages.len(), "each eviction has an age of its own");
        }
        scene.reclaim.drain_batches();
        let active = scene.reclaim.list_sizes(&root).active_file.0;
        let expected = ages.remove(&page).map(|age| lruvec.clock() - age <= active);
        let refault = scene.fault(&root, page);
        let found = refault.map(|refault| refault != Refault::Beyond);
        // An old shadow may be forgotten, which this test does not cover.
        if refault.is_some() {
            assert_eq!(found, expected, "page {page}: {refault:?}");
        }
        within += u32::from(found == Some(true));
        beyond += u32::from(found == Some(false));
        resident.push(page);
    }
    assert!(
        within > 100 && beyond > 100,
        "{within} within, {beyond} beyond"
    );
    scene.assert_nothing_is_left();
}

#[test]
fn pages_that_fill_a_list_are_no_refaults_of_the_working_set() {
    // Symptom: a new group that read pages of another counted most of them as refaults within its
    // working set: new pages fill both lists until the first eviction. Method: a group evicts its
    // pages, and another one, which has evicted none, reads them.
    fn workingset_of(policy: impl EvictionPolicy + 'static) -> [u64; 2] {
        let scene = Scene::with_policy(512, policy);
        let former = scene.group("former");
        (0..200).for_each(|page| assert_eq!(scene.fault(&former, page), None));
        scene.shrink(&former, u64::MAX, Some(0));
        let next = scene.group("next");
        (0..200).for_each(|page| _ = scene.fault(&next, page));
        let stats = scene.reclaim.stats();
        let counted = next.read_stats(Tolerance::EXACT, Duration::ZERO);
        assert_eq!(counted.get(StatItem::WorkingsetActivateFile), 0);
        scene.assert_nothing_is_left();
        [&stats.workingset_refault, &stats.workingset_activate]
            .map(|counts| counts[PageType::File as usize].get())
    }
    assert_eq!(workingset_of(Balanced), [200, 0]);
    assert_eq!(workingset_of(S3Fifo), [200, 0]);
    assert_eq!(workingset_of(Sieve), [200, 0]);
}

#[test]
fn the_way_back_of_sieves_hand_counts_as_deactivation() {
    // Goal: pages that leave an active list are counted under any policy. Method: pages come in
    // behind the hand, which turns before it finds the first to evict.
    let scene = Scene::with_policy(64, Sieve);
    let root = scene.groups.root();
    for page in 0..40 {
        scene.fault(&root, page);
        assert!(scene.read(page));
        scene.copy(page);
    }
    while scene.reclaim.stats().stolen() == 0 {
        scene.shrink(&root, 1, None);
    }
    let stats = scene.reclaim.stats();
    assert!(stats.pgdeactivate.get() > 0, "{stats:?}");
    assert_eq!(stats.pgrefill.get(), 0, "it ages no list");
    scene.assert_nothing_is_left();
}
