//! The statistics against a plain model, and their parts.

use std::time::Duration;

use super::{StatItem, Tolerance};
use crate::group::{GroupNode, GroupTree, Limits};
use crate::percpu::Regime;
use crate::seed;
use crate::topology::Topology;
use crate::units::CpuId;

const T: Duration = Duration::ZERO;

/// The plain counts of a group and its descendants.
struct Model {
    group: GroupNode,
    parent: Option<usize>,
    truth: Vec<i64>,
}

fn add(models: &mut [Model], mut at: usize, item: StatItem, delta: i64) {
    loop {
        models[at].truth[item as usize] += delta;
        match models[at].parent {
            Some(parent) => at = parent,
            None => return,
        }
    }
}

#[test]
fn reads_agree_with_a_plain_sum() {
    // Goal: every read is within the staleness that it states, exact ones are exact, and nothing is
    // lost by flushes of subtrees in any order or by groups that end. Method: random updates, reads
    // and flushes of a random tree, one after another, against plain sums, in both regimes; one
    // update in ten is large.
    let mut random = seed::rng(11);
    for round in 0..60 {
        let nr_cpus = random.usize(1..200);
        let is_virtual = round % 2 == 0;
        let tree = if is_virtual {
            GroupTree::new(nr_cpus)
        } else {
            GroupTree::with_regime(Regime::Restartable, Topology::detect().nr_cpus())
        };
        let mut models = vec![Model {
            group: tree.root(),
            parent: None,
            truth: vec![0; StatItem::ALL.len()],
        }];
        for step in 0..2000_u64 {
            let at = random.usize(..models.len());
            let item = StatItem::ALL[random.usize(..StatItem::ALL.len())];
            match random.u32(..100) {
                0..4 if models[at].group.depth() < 8 => {
                    let name = format!("g{step}");
                    let group = models[at].group.child(&name, Limits::default());
                    let Ok(group) = group else { continue };
                    models.push(Model {
                        group,
                        parent: Some(at),
                        truth: vec![0; StatItem::ALL.len()],
                    });
                }
                4..6 => end_a_leaf(&mut models, &tree, at),
                6..11 => models[at].group.flush_subtree(T),
                11 => tree.flush_periodically(T),
                12..30 => {
                    let tolerance = Tolerance {
                        pages: random.u64(..500),
                        age: Duration::MAX,
                    };
                    let read = models[at].group.read_stat(item, tolerance, T);
                    let off = (read.value - models[at].truth[item as usize]).unsigned_abs();
                    assert!(off <= read.staleness && read.staleness <= tolerance.pages);
                }
                30..34 => {
                    let read = models[at].group.read_stats(Tolerance::EXACT, T);
                    for (item, value) in read.iter() {
                        assert_eq!(value, models[at].truth[item as usize], "{}", item.name());
                    }
                }
                _ => {
                    let cpu = CpuId::from_index(random.usize(..nr_cpus));
                    let most = if random.u32(..10) == 0 { 1 << 20 } else { 8 };
                    let delta = random.i64(-most..=most);
                    if is_virtual {
                        models[at].group.at(cpu).add_stat(item, delta);
                    } else {
                        models[at].group.add_stat(item, delta);
                    }
                    add(&mut models, at, item, delta);
                }
            }
        }
        let root = tree.root().read_stats(Tolerance::EXACT, T);
        for (item, value) in root.iter() {
            assert_eq!(value, models[0].truth[item as usize]);
        }
    }
}

/// Removes the group if it has no children, and drops its handle.
fn end_a_leaf(models: &mut Vec<Model>, tree: &GroupTree, at: usize) {
    let has_children = models.iter().any(|model| model.parent == Some(at));
    if has_children || at == 0 {
        return;
    }
    tree.remove(&models[at].group).expect("it has no children");
    let last = models.len() - 1;
    models.swap_remove(at);
    for model in models.iter_mut() {
        if model.parent == Some(last) {
            model.parent = Some(at);
        }
    }
}

#[test]
fn what_counts_up_and_down_walks_no_chain() {
    // Goal: an update that stays within its window touches its block only. Method: the bound moves
    // with every walk; a million updates up and down must leave it where the first one has put it.
    let tree = GroupTree::new(2);
    let group = tree.root().child("g", Limits::default()).unwrap();
    group.at(CpuId(0)).add_stat(StatItem::File, 1);
    let stat = &tree.root().meta().stat().clone();
    let bound = stat.bound();
    for _ in 0..1000 {
        group.at(CpuId(0)).add_stat(StatItem::File, -1);
        group.at(CpuId(0)).add_stat(StatItem::File, 1);
    }
    assert_eq!(stat.bound(), bound);
    for _ in 0..1_000_000 {
        group.at(CpuId(0)).add_stat(StatItem::Pgfault, 1);
    }
    assert_eq!(stat.bound(), 1 << 20, "what is hidden, rounded up");
}

#[test]
fn skipped_reads_flush_nothing_and_others_share() {
    // Goal: reads within their tolerance do no work. Method: counts.
    let tree = GroupTree::new(4);
    let group = tree.root().child("g", Limits::default()).unwrap();
    group.at(CpuId(3)).add_stat(StatItem::Anon, 5);
    let read = group.read_stat(StatItem::Anon, Tolerance::as_kernel(4), T);
    assert_eq!((read.value, read.staleness), (0, 16));
    let late = group.read_stat(
        StatItem::Anon,
        Tolerance::as_kernel(4),
        Duration::from_secs(3),
    );
    assert_eq!((late.value, late.staleness, late.age), (5, 0, T));
    let root = tree
        .root()
        .read_stat(StatItem::Anon, Tolerance::ANY, Duration::from_secs(4));
    assert_eq!(
        (root.value, root.staleness),
        (0, 16),
        "a flush of the child is not one of the root"
    );
    let counts = tree.flush_counts();
    assert_eq!((counts.read, counts.skipped), (1, 2));
    assert_eq!((counts.groups_visited, counts.cpus_visited), (1, 1));
}
