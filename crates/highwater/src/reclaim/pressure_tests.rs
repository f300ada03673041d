//! The distribution of pressure among groups.

use super::control::{Actor, Outcome, ScanControl};
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

/// Groups of constant sizes.
struct Filled {
    scene: Scene,
    groups: Vec<(GroupNode, u64)>,
    /// Pages that each has lost.
    lost: Vec<u64>,
    next_page: u64,
}

impl Filled {
    fn new(frames: u64, sizes: impl IntoIterator<Item = u64>) -> Self {
        let scene = Scene::new(frames);
        let groups = sizes.into_iter().enumerate();
        let groups = groups.map(|(number, size)| (scene.group(&format!("g{number}")), size));
        let groups: Vec<_> = groups.collect();
        let mut filled = Self {
            lost: vec![0; groups.len()],
            scene,
            groups,
            next_page: 0,
        };
        filled.refill();
        filled.lost.fill(0);
        filled
    }

    /// Faults new pages in, up to the groups' sizes.
    fn refill(&mut self) {
        for ((group, size), lost) in self.groups.iter().zip(&mut self.lost) {
            for _ in group.usage_precise().pages_ceil().0..*size {
                self.scene.fault(group, self.next_page);
                self.next_page += 1;
                *lost += 1;
            }
        }
    }

    fn shrink(&self, target: &GroupNode, nr_to_reclaim: u64) -> Outcome {
        self.scene.shrink(target, nr_to_reclaim, None)
    }

    /// Checks that each group has lost `percent` of `total` by its part of all pages.
    fn assert_lost_by_size(&self, total: u64, percent: std::ops::RangeInclusive<u64>) {
        let all: u64 = self.groups.iter().map(|(_, size)| size).sum();
        for ((group, size), lost) in self.groups.iter().zip(&self.lost) {
            let due = total * size / all;
            let part = 100 * lost / due;
            assert!(percent.contains(&part), "{}: {lost} of {due}", group.id());
        }
    }
}

#[test]
fn small_groups_give_many_pages_at_a_time() {
    // Goal: of many groups whose shares are few pages, a step takes a dozen pages, a request takes
    // hardly more than it needs and visits few groups for it, and in time each group gives by its
    // size. Tolerance: two times what it gives at once, of 28 times.
    let sizes = (0..100).map(|number| [384, 768][number % 2]);
    let mut filled = Filled::new(1 << 16, sizes);
    let root = filled.scene.groups.root();
    let (mut nr_reclaimed, mut nr_steps) = (0, 0);
    while nr_reclaimed < 100_000 {
        let outcome = filled.shrink(&root, 32);
        assert!(outcome.nr_reclaimed < 2 * 32, "{outcome:?}");
        assert!(outcome.nr_visits <= 4 * 32, "{outcome:?}");
        nr_reclaimed += outcome.nr_reclaimed;
        nr_steps += outcome.nr_steps;
        filled.refill();
    }
    assert!(
        nr_steps * 16 < nr_reclaimed,
        "{nr_reclaimed} pages in {nr_steps} steps"
    );
    filled.assert_lost_by_size(nr_reclaimed, 85..=115);
    filled.scene.assert_nothing_is_left();
}

#[test]
fn groups_that_are_full_themselves_give_to_the_pool_too() {
    // Goal: a group that reclaims for its own limit gives its part of what the pool needs as well.
    // Method: half of the groups reclaim a cluster for themselves after each request of the pool.
    let sizes = [384; 40];
    let mut filled = Filled::new(1 << 16, sizes);
    let root = filled.scene.groups.root();
    let mut nr_reclaimed = 0;
    let mut by_themselves = [0; 40];
    while nr_reclaimed < 10_000 {
        nr_reclaimed += filled.shrink(&root, 32).nr_reclaimed;
        filled.refill();
        for number in (0..40).step_by(2) {
            let group = filled.groups[number].0.clone();
            by_themselves[number] += filled.shrink(&group, 24).nr_reclaimed;
        }
        filled.refill();
    }
    for (lost, own) in filled.lost.iter_mut().zip(by_themselves) {
        *lost -= own;
    }
    filled.assert_lost_by_size(nr_reclaimed, 85..=115);
    filled.scene.assert_nothing_is_left();
}

#[test]
fn requests_of_several_sizes_press_alike() {
    // Goal: groups give by their sizes also if the goals of requests alternate. Method: numbers of
    // groups at which turns fell together with large goals when these decided how much a group
    // gives at once.
    for nr_groups in [7, 14, 40, 67] {
        for goals in [[8, 32], [1, 32], [16, 32]] {
            let mut filled = Filled::new(1 << 16, (0..nr_groups).map(|_| 384));
            let root = filled.scene.groups.root();
            let mut nr_reclaimed = 0;
            for goal in goals.into_iter().cycle() {
                nr_reclaimed += filled.shrink(&root, goal).nr_reclaimed;
                filled.refill();
                if nr_reclaimed > 500 * nr_groups {
                    break;
                }
            }
            filled.assert_lost_by_size(nr_reclaimed, 80..=120);
            filled.scene.assert_nothing_is_left();
        }
    }
}

#[test]
fn a_small_goal_takes_little_of_a_small_group() {
    // Goal: a group that needs a page for its own limit loses its share of a visit, 3 pages, and
    // not a sixteenth of its pages.
    let filled = Filled::new(1 << 16, [400]);
    let group = &filled.groups[0].0;
    let outcome = filled.shrink(group, 1);
    assert!((1..=3).contains(&outcome.nr_reclaimed), "{outcome:?}");
    filled.scene.assert_nothing_is_left();
}

#[test]
fn shares_of_all_sizes_are_pressed_alike() {
    // Goal: groups with shares of less and more than a cluster give the same part of their pages.
    // Method: a pool of 2^16 pages, whose first priority divides by 2^7; shares of 3, 16 and 47
    // pages.
    let mut filled = Filled::new(1 << 16, [448, 448, 2_100, 2_100, 2_100, 6_100]);
    let root = filled.scene.groups.root();
    let mut nr_reclaimed = 0;
    while nr_reclaimed < 50_000 {
        nr_reclaimed += filled.shrink(&root, 32).nr_reclaimed;
        filled.refill();
    }
    filled.assert_lost_by_size(nr_reclaimed, 85..=115);
    filled.scene.assert_nothing_is_left();
}

#[test]
fn low_is_broken_only_for_groups_that_give_pages() {
    // Goal: a request that must take pages below `low` takes them from the first group that it
    // visits, and no other group has a `low` event.
    let Filled { scene, groups, .. } = Filled::new(1 << 15, [400; 50]);
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

/// Returns the pages that a request to reclaim may take from groups with these usages before it
/// takes any below its protection.
fn beyond(groups: &[(GroupNode, Bytes)], usages: &[Bytes]) -> Vec<u64> {
    let protections = groups.iter().map(|(_, protection)| *protection);
    let both = usages.iter().zip(protections);
    let pages = both.map(|(usage, protection)| usage.saturating_sub(protection).pages_floor().0);
    pages.collect()
}

#[test]
fn low_is_broken_only_once_nothing_else_is_left_and_min_never() {
    // Goal: no request takes a page below a group's `min`; one below its `low` is taken only once
    // no group had a whole page beyond its own, is an event of that group, and of no other; a
    // request that ignores protection empties all. Method: random groups with random protection,
    // `min` in parts of a page too, and requests up to more than there is.
    let mut rng = crate::seed::rng(24);
    for _ in 0..40 {
        let scene = Scene::new(2048);
        let (mut lows, mut mins) = (Vec::new(), Vec::new());
        for number in 0..rng.u64(2..8) {
            let group = scene.group(&format!("g{number}"));
            let size = rng.u64(1..200);
            (0..size).for_each(|page| _ = scene.fault(&group, 1_000 * number + page));
            let min = Bytes(rng.u64(..=size * 5_000) * rng.u64(..3) / 2);
            let low = Pages(rng.u64(..=size + 20) * rng.u64(..3) / 2).bytes();
            group.set_min(min);
            group.set_low(low);
            mins.push((group.clone(), min));
            lows.push((group, low.max(min)));
        }
        for _ in 0..12 {
            let usages = || -> Vec<Bytes> { lows.iter().map(|it| it.0.usage_precise()).collect() };
            let events = || -> Vec<u64> { lows.iter().map(|it| it.0.events().low).collect() };
            let (before, seen) = (usages(), events());
            let asked = rng.u64(1..300);
            let reclaimed = scene.shrink(&scene.groups.root(), asked, None).nr_reclaimed;
            let after = usages();
            let gone: u64 = before
                .iter()
                .zip(&after)
                .map(|(a, b)| (*a - *b).pages_floor().0)
                .sum();
            assert_eq!(gone, reclaimed);
            let unprotected: u64 = beyond(&lows, &before).iter().sum();
            assert!(
                reclaimed >= asked.min(unprotected),
                "{reclaimed} of {unprotected}"
            );
            for (at, (group, min)) in mins.iter().enumerate() {
                assert!(
                    after[at] >= before[at].min(*min),
                    "{group:?} below its `min`"
                );
                let is_broken = after[at] < before[at].min(lows[at].1);
                assert_eq!(events()[at] > seen[at], is_broken, "{group:?}");
                assert!(
                    !is_broken || unprotected == 0,
                    "{group:?} beside {unprotected} pages"
                );
            }
        }
        scene.reclaim.shrink(&ScanControl {
            nr_to_reclaim: Pages::MAX,
            target: &scene.groups.root(),
            actor: Actor::Direct,
            first_priority: Some(0),
            ignores_protection: true,
        });
        scene.assert_nothing_is_left();
    }
}
