//! Cost of a pass over many groups that have nothing to give.

use super::tests::Scene;
use super::*;

#[test]
fn groups_that_give_nothing_cost_nothing() {
    // Goal: a round's budget is spent on groups that have pages to give. Method: without swap, 500
    // groups with an anonymous page each, or wholly protected, beside one with 100 file pages: a
    // pass goes to that one at once, from any cursor position.
    let scene = Scene::new(1024);
    let root = scene.groups.root();
    for nr in 0..500 {
        let group = scene.group(&format!("g{nr}"));
        scene.fault(&group, 10_000 + nr);
        match nr % 2 {
            0 => {
                _ = scene
                    .cache
                    .set_flag(scene.pfn(10_000 + nr), PageFlag::Swapbacked)
            }
            _ => group.set_min(Pages(1).bytes()),
        }
    }
    let giving = scene.group("giving");
    (0..100).for_each(|page| assert_eq!(scene.fault(&giving, page), None));
    scene.reclaim.drain_batches();
    for _ in 0..4 {
        let outcome = scene.shrink(&root, 1, None);
        assert!(outcome.nr_reclaimed > 0);
        assert_eq!(outcome.nr_steps, 1, "{outcome:?}");
    }
    let outcome = scene.shrink(&root, 60, None);
    assert_eq!(outcome.nr_reclaimed, outcome.nr_scanned);
    assert!(outcome.nr_steps <= 60, "{outcome:?}");
    for nr in 0..500 {
        let page = 10_000 + nr;
        assert!(scene.read(page), "page {page} stays");
        scene
            .cache
            .clear_flag(scene.pfn(page), PageFlag::Swapbacked);
    }
}
