//! The distribution of pressure among groups.

use super::lruvec::Lruvec;
use super::tests::Scene;
use crate::group::GroupNode;
use crate::units::{Bytes, Pages};

#[test]
fn pressure_is_proportional_to_size() {
    // Goal: of two groups of 600 and 200 pages, root pressure takes about 3 to 1. Tolerance: 15
    // points, for the cursor's position in its last turn.
    let scene = Scene::new(1024);
    let (large, small) = (scene.group("large"), scene.group("small"));
    for page in 0..600 {
        scene.fault(&large, page);
    }
    for page in 600..800 {
        scene.fault(&small, page);
    }
    for _ in 0..100 {
        scene.shrink(&scene.groups.root(), 4, None);
    }
    let lost = (
        600 - large.usage_precise().pages_ceil().0,
        200 - small.usage_precise().pages_ceil().0,
    );
    let all = lost.0 + lost.1;
    assert!(
        (400..=600).contains(&all),
        "lost {lost:?}: a cluster at a time"
    );
    let share = 100 * lost.0 / all;
    assert!(
        (60..=90).contains(&share),
        "lost {lost:?}, {share} % of it by three quarters"
    );
    scene.assert_nothing_is_left();
}

#[test]
fn a_group_has_every_nth_turn() {
    // Goal: among `every` visits exactly one is a turn, wherever they begin, and neighbours have
    // theirs so far apart that of 3 * `every` consecutive groups one has.
    let scene = Scene::new(16);
    let lruvecs: Vec<Lruvec> = (0..300)
        .map(|number| Lruvec::new(scene.group(&format!("g{number}")), None, 0))
        .collect();
    for every in 1..=32 {
        let turns: Vec<Vec<bool>> = lruvecs
            .iter()
            .map(|lruvec| (0..10 * every).map(|_| lruvec.has_turn(every)).collect())
            .collect();
        let every = usize::try_from(every).unwrap();
        for visits in turns.iter().flat_map(|turns| turns.windows(every)) {
            assert_eq!(visits.iter().filter(|turn| **turn).count(), 1);
        }
        for groups in turns.windows(3 * every) {
            assert!(groups.iter().any(|turns| turns[0]), "one in {every}");
        }
    }
}

/// Fills groups with pages in turn, and returns them.
fn fill(scene: &Scene, sizes: impl Iterator<Item = u64>) -> Vec<(GroupNode, u64)> {
    let mut page = 0;
    let filled = sizes.enumerate().map(|(number, size)| {
        let group = scene.group(&format!("g{number}"));
        for _ in 0..size {
            scene.fault(&group, page);
            page += 1;
        }
        (group, size)
    });
    filled.collect()
}

#[test]
fn small_groups_give_many_pages_at_a_time() {
    // Goal: of many groups whose shares are single pages, a step takes a dozen pages, a request
    // takes hardly more than it needs and visits few groups for it, and in time each group gives by
    // its size. Method: groups of 200 and 400 pages, a tenth of which is reclaimed by small
    // requests. Tolerance: pages given at a time, which a group may have given or not.
    const AT_A_TIME: [u64; 2] = [200 / 16, 400 / 16];
    let scene = Scene::new(1 << 16);
    let groups = fill(&scene, (0..100).map(|number| [200, 400][number % 2]));
    let (mut nr_reclaimed, mut nr_steps) = (0, 0);
    while nr_reclaimed < 3_000 {
        let outcome = scene.shrink(&scene.groups.root(), 32, None);
        assert!(outcome.nr_reclaimed < 32 + AT_A_TIME[1], "{outcome:?}");
        assert!(outcome.nr_visits <= 4 * 32, "{outcome:?}");
        nr_reclaimed += outcome.nr_reclaimed;
        nr_steps += outcome.nr_steps;
    }
    assert!(
        nr_steps * 8 < nr_reclaimed,
        "{nr_reclaimed} pages in {nr_steps} steps"
    );
    for (number, (group, size)) in groups.iter().enumerate() {
        let lost = size - group.usage_precise().pages_ceil().0;
        let at_a_time = AT_A_TIME[number % 2];
        assert!(
            lost.abs_diff(size / 10) <= 2 * at_a_time,
            "group {number} gave {lost} of {size}"
        );
    }
    scene.assert_nothing_is_left();
}

#[test]
fn shares_of_all_sizes_are_pressed_alike() {
    // Goal: groups with shares of less and more than a cluster give the same part of their pages.
    // Method: in a pool of 2^16 pages, whose first priority divides by 2^7, groups of 400, 2,100
    // (shares of half a cluster) and 6,000 pages (of more than one); a quarter of all is reclaimed.
    let scene = Scene::new(1 << 16);
    let groups = fill(&scene, [400, 400, 2_100, 2_100, 2_100, 6_000].into_iter());
    let total: u64 = groups.iter().map(|(_, size)| size).sum();
    let mut nr_reclaimed = 0;
    while nr_reclaimed < total / 4 {
        nr_reclaimed += scene.shrink(&scene.groups.root(), 32, None).nr_reclaimed;
    }
    for (number, (group, size)) in groups.iter().enumerate() {
        let lost = size - group.usage_precise().pages_ceil().0;
        let percent = 100 * lost / size;
        assert!(
            (16..=32).contains(&percent),
            "group {number} of {size} gave {percent} %"
        );
    }
    scene.assert_nothing_is_left();
}

#[test]
fn low_is_broken_only_for_groups_that_give_pages() {
    // Goal: a request that must take pages below `low` takes them from the first group that it
    // visits, and no other group has a `low` event.
    let scene = Scene::new(1 << 15);
    let groups = fill(&scene, (0..50).map(|_| 400));
    for (group, size) in &groups {
        group.set_low(Pages(*size).bytes());
    }
    let outcome = scene.shrink(&scene.groups.root(), 4, None);
    assert!(outcome.nr_reclaimed > 0);
    for (number, (group, size)) in groups.iter().enumerate() {
        let gave = group.usage_precise() < Pages(*size).bytes();
        assert_eq!(group.events().low, u64::from(gave), "group {number}");
    }
    groups
        .iter()
        .for_each(|(group, _)| group.set_low(Bytes::ZERO));
    scene.assert_nothing_is_left();
}

#[test]
fn pressure_on_a_protected_group_is_on_what_is_above() {
    // Goal: scan pressure scaled by overage. Method: two groups of 400 pages, one with a `low` of
    // 300: of 100 pages reclaimed from both, the other gives about four times as many.
    let scene = Scene::new(1024);
    let (half, plain) = (scene.group("protected"), scene.group("plain"));
    half.set_low(Pages(300).bytes());
    for page in 0..400 {
        scene.fault(&half, page);
        scene.fault(&plain, 1_000 + page);
    }
    let root = scene.groups.root();
    let freed: u64 = (0..25)
        .map(|_| scene.shrink(&root, 4, None).nr_reclaimed)
        .sum();
    let lost = 400 - scene.reclaim.list_sizes(&half).total().0;
    assert!((10..=30).contains(&lost), "{lost} of {freed}");
    assert_eq!(half.events().low, 0);
    // Down to the last unprotected page, and no further while the other group has any.
    scene.shrink(&root, 500 - freed, None);
    assert_eq!(scene.reclaim.list_sizes(&half).total(), Pages(300));
    half.set_low(Bytes::ZERO);
    scene.assert_nothing_is_left();
}
