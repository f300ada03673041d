//! The distribution of pressure among groups.

use super::balance::ScanCounts;
use super::lists::LruList;
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
fn shares_that_are_left_are_taken_once() {
    // Goal: whatever the shares and batches, pages that are taken and left are as many as the
    // shares, and no visit takes two batches of small ones.
    let scene = Scene::new(16);
    let lruvec = Lruvec::new(scene.groups.root(), None, 0);
    let mut rng = crate::seed::rng(23);
    let (mut due, mut taken) = (0, 0);
    for _ in 0..100_000 {
        let (share, batch) = (rng.u64(1..40), rng.u64(0..33));
        let mut counts = ScanCounts::default();
        counts.set(LruList::InactiveFile, share);
        due += share;
        let pages = lruvec
            .in_batches(counts, batch)
            .map_or(0, ScanCounts::total);
        taken += pages;
        let most = if share < batch { batch + 32 } else { share };
        assert!(
            pages <= most,
            "{pages} of a share of {share}, batches of {batch}"
        );
        assert!(due - taken < 33, "less than the largest batch is left");
    }
    assert!(taken > 0);
}

#[test]
fn small_groups_give_a_batch_of_pages_at_a_time() {
    // Goal: of many groups whose shares are single pages, a step takes a dozen pages, and in time
    // each group gives by its size. Method: groups of 200 and 400 pages, a tenth of which is
    // reclaimed by small requests. Tolerance: a batch, which a group may have given or not.
    const BATCHES: [u64; 2] = [200 / 16, 400 / 16];
    let scene = Scene::new(1 << 16);
    let groups: Vec<GroupNode> = (0..100)
        .map(|number| scene.group(&format!("g{number}")))
        .collect();
    let size = |number: usize| [200, 400][number % 2];
    let mut page = 0;
    for (number, group) in groups.iter().enumerate() {
        for _ in 0..size(number) {
            scene.fault(group, page);
            page += 1;
        }
    }
    let (mut nr_reclaimed, mut nr_steps) = (0, 0);
    while nr_reclaimed < page / 10 {
        let outcome = scene.shrink(&scene.groups.root(), 32, None);
        assert!(outcome.nr_reclaimed < 32 + BATCHES[1], "{outcome:?}");
        nr_reclaimed += outcome.nr_reclaimed;
        nr_steps += outcome.nr_steps;
    }
    assert!(
        nr_steps * 8 < nr_reclaimed,
        "{nr_reclaimed} pages in {nr_steps} steps"
    );
    for (number, group) in groups.iter().enumerate() {
        let lost = size(number) - group.usage_precise().pages_ceil().0;
        let about = size(number) / 10;
        let batch = BATCHES[number % 2];
        assert!(
            (about - batch.min(about)..=about + 2 * batch).contains(&lost),
            "group {number} gave {lost} of {}",
            size(number)
        );
    }
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
