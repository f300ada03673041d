//! Isolation by key: only the requested pages are touched, and pages that are not taken keep their
//! place.

use super::tests::Scene;
use super::*;
use crate::cache::EvictedFor;
use crate::group::{StatItem, Tolerance};

#[test]
fn a_page_that_took_anothers_frame_stays_where_it_is() {
    // Goal: isolation by frame and key leaves another page alone that has replaced the requested
    // one in the frame. Method: evict pages, fill their frames with others and activate those;
    // evict the former by key, and settle a deferred list with their keys.
    let scene = Scene::new(16);
    let root = scene.groups.root();
    let key = |page| PageKey::new(scene.file, page);
    (0..8).for_each(|page| assert_eq!(scene.fault(&root, page), None));
    let gone: Vec<(Pfn, PageKey)> = (0..8).map(|page| (scene.pfn(page), key(page))).collect();
    for &(pfn, _) in &gone {
        let to = EvictedFor {
            short: root.id(),
            is_background: false,
        };
        assert!(scene.cache.defer(pfn, to, DEBT_MAX));
    }
    assert!(scene.reclaim.evict_pages(&gone), "none is held");
    for page in 100..108 {
        scene.fault(&root, page);
        (0..2).for_each(|_| scene.copy(page));
    }
    scene.reclaim.drain_batches();
    let taken: Vec<Pfn> = (100..108).map(|page| scene.pfn(page)).collect();
    assert!(gone.iter().any(|(pfn, _)| taken.contains(pfn)), "reused");
    let sizes = scene.reclaim.list_sizes(&root);
    assert_eq!(sizes.active_file, Pages(8));
    assert!(scene.reclaim.evict_pages(&gone), "they are gone");
    assert_eq!(scene.reclaim.settle_deferred(&scene.entry), 0);
    assert_eq!(scene.reclaim.list_sizes(&root), sizes);
    scene.assert_nothing_is_left();
}

#[test]
fn who_is_held_goes_back_where_it_was_and_is_counted_meanwhile() {
    // Goal: a failed eviction by key changes nothing, and isolated pages count as isolated, in the
    // group and above. Method: active and inactive pages, all borrowed; and one that is isolated by
    // hand.
    let scene = Scene::new(256);
    let (root, group) = (scene.groups.root(), scene.group("one"));
    let key = |page| PageKey::new(scene.file, page);
    for page in 0..8 {
        scene.fault(&group, page);
        (0..page % 2 * 2).for_each(|_| scene.copy(page));
    }
    scene.reclaim.drain_batches();
    let sizes = scene.reclaim.list_sizes(&group);
    assert_eq!(
        (sizes.active_file, sizes.inactive_file),
        (Pages(4), Pages(4))
    );
    let reader = scene.memory.reader(scene.memory.seat());
    let pages: Vec<(Pfn, PageKey)> = (0..8).map(|page| (scene.pfn(page), key(page))).collect();
    let held: Vec<_> = (0..8)
        .map(|page| scene.cache.try_read(&reader, key(page)).expect("resident"))
        .collect();
    assert!(!scene.reclaim.evict_pages(&pages), "all are held");
    assert_eq!(scene.reclaim.list_sizes(&group), sizes);
    drop(held);
    drop(reader);
    let (pfn, key) = pages[0];
    let page = scene.reclaim.lruvecs.isolate_named(&scene.cache, pfn, key);
    let page = page.expect("on a list");
    let isolated = |group| scene.reclaim.nr_isolated_of(group, PageType::File);
    assert_eq!((isolated(&group), isolated(&root)), (Pages(1), Pages(1)));
    assert!(!scene.reclaim.evict_pages(&pages[..1]), "in other hands");
    scene
        .reclaim
        .lruvecs
        .put_back(&scene.cache, &scene.groups, page);
    assert_eq!(isolated(&root), Pages::ZERO);
    assert!(scene.reclaim.evict_pages(&pages));
    scene.assert_nothing_is_left();
}

#[test]
fn settled_pages_count_for_whom_they_were_looked_at() {
    // Goal: a deferred page that its holder evicts counts as stolen by the actor that scanned it,
    // so that each actor's efficiency is its own; for a group's own shortage it counts only in the
    // group's statistics, and in those by type. The shadow keeps the clock of the group that was
    // short. Method: pages are put on the file's deferred list by either actor, for either target,
    // and settled.
    let scene = Scene::new(256);
    let (root, group) = (scene.groups.root(), scene.group("one"));
    (0..10).for_each(|page| assert_eq!(scene.fault(&group, page), None));
    scene.reclaim.drain_batches();
    let defer = |pages: std::ops::Range<u64>, short: &GroupNode, is_background| {
        for page in pages {
            let to = EvictedFor {
                short: short.id(),
                is_background,
            };
            assert!(scene.cache.defer(scene.pfn(page), to, DEBT_MAX));
        }
    };
    defer(0..1, &root, true);
    defer(1..3, &root, false);
    defer(3..6, &group, true);
    defer(6..10, &group, false);
    assert_eq!(scene.reclaim.settle_deferred(&scene.entry), 10);
    let stats = scene.reclaim.stats();
    assert_eq!(stats.pgsteal_kswapd.get(), 1);
    assert_eq!(stats.pgsteal_direct.get(), 2);
    assert_eq!(stats.pgsteal[PageType::File as usize].get(), 10);
    let of_group = group.read_stats(Tolerance::EXACT, Duration::ZERO);
    assert_eq!(of_group.get(StatItem::PgstealKswapd), 1 + 3);
    assert_eq!(of_group.get(StatItem::PgstealDirect), 2 + 4);
    for (page, short) in [(0, &root), (2, &root), (3, &group), (9, &group)] {
        let shadow = scene.reclaim.shadows.take(PageKey::new(scene.file, page));
        assert_eq!(
            shadow.map(|it| it.owner()),
            Some(Some(short.id().0)),
            "page {page}"
        );
    }
    scene.assert_nothing_is_left();
}

#[test]
fn deferred_pages_stay_that_are_protected_by_now() {
    // Goal: the holder of the lock takes nothing below `min` or `low`, however many pages were
    // deferred, unless its own group was short. Method: ten pages are deferred and then protected,
    // but for some of them; settle.
    let scene = Scene::new(256);
    let (root, group) = (scene.groups.root(), scene.group("one"));
    (0..10).for_each(|page| assert_eq!(scene.fault(&group, page), None));
    scene.reclaim.drain_batches();
    let settled_of = |short: &GroupNode| {
        let to = EvictedFor {
            short: short.id(),
            is_background: false,
        };
        for pfn in (0..256)
            .map(Pfn)
            .filter(|&pfn| scene.reclaim.is_listed(pfn))
        {
            assert!(scene.cache.defer(pfn, to, DEBT_MAX));
        }
        scene.reclaim.settle_deferred(&scene.entry)
    };
    group.set_min(group.usage_precise());
    assert_eq!(settled_of(&root), 0, "all are protected");
    group.set_min(Pages(7).bytes());
    assert_eq!(settled_of(&root), 3, "the pages beyond `min`");
    group.set_min(Bytes::ZERO);
    group.set_low(Pages(5).bytes());
    assert_eq!(settled_of(&root), 2, "the pages beyond `low`");
    assert_eq!(settled_of(&group), 5, "its own shortage");
    scene.assert_nothing_is_left();
}

#[test]
fn pages_evicted_for_a_block_count_as_scanned() {
    // Symptom: with pages of several sizes, more pages were freed than scanned. Method: pages are
    // evicted by name, as for a block, in the pool and in a group.
    let scene = Scene::new(64);
    let group = scene.group("one");
    (0..8).for_each(|page| assert_eq!(scene.fault(&group, page), None));
    let name = |page| (scene.pfn(page), PageKey::new(scene.file, page));
    let pages: Vec<(Pfn, PageKey)> = (0..8).map(name).collect();
    assert!(scene.reclaim.evict_unlocked(&pages), "none is held");
    let stats = scene.reclaim.stats();
    assert_eq!(stats.pgscan_direct.get(), 8);
    assert_eq!(stats.pgsteal_direct.get(), 8);
    let of_group = group.read_stats(Tolerance::EXACT, Duration::ZERO);
    assert_eq!(of_group.get(StatItem::PgscanDirect), 8);
    scene.assert_nothing_is_left();
}
