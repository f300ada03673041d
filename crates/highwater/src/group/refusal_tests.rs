//! Refusals of operations on groups, each with its whole text and without an effect; and the shape
//! of a tree as its handles show it, against a plain model.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{
    ChargeError, ChildError, DEPTH_MAX, GroupKey, GroupNode, GroupTree, Limits, MaxError,
    NodeChargeWait, RemoveError,
};
use crate::units::Bytes;

fn child(parent: &GroupNode, name: &str, max: Bytes) -> GroupNode {
    parent.child(name, Limits::max(max)).expect("a new name")
}

fn poll(wait: &mut NodeChargeWait) -> Poll<Result<super::NodeCharge, ChargeError>> {
    Pin::new(wait).poll(&mut Context::from_waker(Waker::noop()))
}

// Goal: a refused charge says which group refused, the bytes asked and free, and the remedy; and it
// charges nothing, on any level. Method: each refusal by a real charge; a group above its maximum
// has nothing free.
#[test]
fn a_refused_charge_names_the_group_and_its_numbers() {
    let tree = GroupTree::new(1);
    let team = child(&tree.root(), "team", Bytes::kib(64));
    let query = child(&team, "query", Bytes::MAX);
    let held = query.try_charge(Bytes::kib(60)).unwrap();
    let text = |asked: Bytes| query.try_charge(asked).unwrap_err().to_string();
    assert_eq!(
        text(Bytes(4097)),
        "group /team: 4097 B asked, 4 KiB free below its maximum of 64 KiB; reclaim from it or \
         raise its maximum"
    );
    let forced = query.force_charge(Bytes::kib(8));
    assert_eq!(
        text(Bytes(1)),
        "group /team: 1 B asked, 0 B free below its maximum of 64 KiB; reclaim from it or raise \
         its maximum"
    );
    drop(forced);
    let mut first = query.charge_wait(Bytes::kib(8));
    assert!(poll(&mut first).is_pending());
    assert_eq!(
        text(Bytes(512)),
        "group /team: 512 B asked, behind charges that wait there (1): wait in line with \
         `charge_async`, or try later"
    );
    let mut second = query.charge_wait(Bytes::kib(2));
    assert!(poll(&mut second).is_pending());
    assert_eq!((team.nr_waiting(), query.nr_waiting()), (2, 0));
    assert!(first.is_first() && !second.is_first());
    assert_eq!(
        second.give_up().to_string(),
        "group /team: 2 KiB asked, 4 KiB free below its maximum of 64 KiB at the deadline, charges \
         wait there (2); reclaim from it or raise its maximum"
    );
    drop(first);
    for group in [&query, &team, &tree.root()] {
        assert_eq!(group.usage_precise(), Bytes::kib(60), "{group:?}");
    }
    tree.remove(&query).unwrap();
    let removed = query.try_charge(Bytes(1)).unwrap_err();
    assert_eq!(
        removed.to_string(),
        "group /team/query is removed: charge its parent instead"
    );
    assert_eq!(removed.group(), &query.path());
    drop(held);
    assert_eq!(tree.root().usage_precise(), Bytes::ZERO);
    tree.check_invariants();
}

// Goal: a group that is not created leaves its parent as it was, and the error says why. Method:
// each refusal; names at both ends of the allowed length, in characters of several bytes too.
#[test]
fn a_group_that_is_not_created_is_refused_with_the_reason() {
    let tree = GroupTree::new(1);
    let root = tree.root();
    let a = child(&root, "a", Bytes::MAX);
    let refusal = |parent: &GroupNode, name: &str, limits| {
        let before = parent.children().len();
        let error = parent.child(name, limits).unwrap_err();
        assert_eq!(parent.children().len(), before, "{error}");
        error.to_string()
    };
    let none = Limits::default();
    assert_eq!(
        refusal(&root, "a", none),
        "group / already has a child of that name"
    );
    let invalid = ChildError::InvalidName.to_string();
    assert!(invalid.contains("1 to 255 bytes without `/`"), "{invalid}");
    let [long, longer] = [127, 128].map(|count| "\u{e4}".repeat(count));
    for name in [
        &longer, "", ".", "..", "/", "a\0", "a\u{7f}", "a\u{85}", "\t",
    ] {
        assert_eq!(refusal(&root, name, none), invalid, "{name:?}");
    }
    for name in [&long, "...", " ", "a ", "A", "\u{1f980}"] {
        let created = child(&root, name, Bytes::MAX);
        assert_eq!(tree.lookup(&format!("/{name}")), Some(created), "{name:?}");
    }
    let low = Limits {
        low: Bytes(4097),
        ..Limits::max(Bytes::kib(4))
    };
    assert_eq!(
        refusal(&root, "b", low),
        "limit `low` is 4097 B, above `max`, which is 4 KiB: lower it or raise `max`"
    );
    let mut deepest = a.clone();
    while deepest.depth() < DEPTH_MAX {
        deepest = child(&deepest, "d", Bytes::MAX);
    }
    let text = refusal(&deepest, "d", none);
    let expected = format!(
        "group {} is at depth {DEPTH_MAX}, the deepest allowed",
        deepest.path()
    );
    assert_eq!(text, expected);
    tree.remove(&deepest).unwrap();
    let above = deepest.parent().expect("one above");
    tree.remove(&above).unwrap();
    let expected = format!("group {} is removed: it takes no children", above.path());
    assert_eq!(refusal(&above, "d", none), expected);
    tree.check_invariants();
}

// Goal: a group that is not removed stays as it was, and the error says why. Method: each refusal,
// with bytes charged to the group, which are uncharged afterwards.
#[test]
fn a_group_that_is_not_removed_is_refused_with_the_reason() {
    let (tree, other) = (GroupTree::new(1), GroupTree::new(1));
    let root = tree.root();
    let parent = child(&root, "parent", Bytes::MAX);
    let children = ["a", "b"].map(|name| child(&parent, name, Bytes::MAX));
    let charge = parent.try_charge(Bytes(10)).unwrap();
    let refusal = |tree: &GroupTree, group: &GroupNode| {
        let error: RemoveError = tree.remove(group).unwrap_err();
        assert!(
            parent.is_removed() || parent.usage_precise() == Bytes(10),
            "{error}"
        );
        error.to_string()
    };
    let text = "group /parent has children (2): remove them first";
    assert_eq!(refusal(&tree, &parent), text);
    assert_eq!(
        refusal(&tree, &root),
        "the root group stays for as long as its tree"
    );
    let foreign = "group /parent/a belongs to another tree";
    assert_eq!(refusal(&other, &children[0]), foreign);
    assert!(!children[0].is_removed());
    for group in children.iter().chain([&parent]) {
        tree.remove(group).unwrap();
    }
    assert_eq!(refusal(&tree, &parent), "group /parent is removed already");
    // Of a group without charges the tree keeps no name.
    let text = "group /parent/a is removed already";
    assert_eq!(refusal(&tree, &children[0]), text);
    assert_eq!(
        root.usage_precise(),
        Bytes(10),
        "an ancestor keeps the bytes"
    );
    drop(charge);
    assert_eq!(root.usage_precise(), Bytes::ZERO);
    tree.check_invariants();
}

// Goal: a maximum below the usage is in force and reported with the excess; contradicting limits
// and those of a removed group are not set. Method: each, and the limits read back.
#[test]
fn a_maximum_that_is_not_met_is_in_force_and_told() {
    let tree = GroupTree::new(1);
    let group = child(&tree.root(), "g", Bytes::MAX);
    let held = group.try_charge(Bytes::kib(40)).unwrap();
    let below = group.set_max(Bytes::kib(30)).unwrap_err();
    assert_eq!(
        below.to_string(),
        "group /g: 40 KiB used, 10 KiB above its new maximum of 30 KiB; reclaim from it"
    );
    assert_eq!(
        (group.limits().max, group.debt()),
        (Bytes::kib(30), Bytes::kib(10))
    );
    let all = Limits {
        min: Bytes(5),
        low: Bytes(6),
        high: Bytes(7),
        max: Bytes(8),
    };
    assert!(matches!(
        group.set_limits(all),
        Err(MaxError::BelowUsage { .. })
    ));
    assert_eq!(group.limits(), all, "the others are set even then");
    let contradiction = Limits {
        min: Bytes(9),
        ..all
    };
    let text = group.set_limits(contradiction).unwrap_err().to_string();
    assert_eq!(
        text,
        "limit `min` is 9 B, above `max`, which is 8 B: lower it or raise `max`"
    );
    assert_eq!(group.limits(), all, "nothing was set");
    drop(held);
    assert_eq!(group.set_max(Bytes(8)), Ok(()));
    tree.remove(&group).unwrap();
    let text = group.set_max(Bytes(1)).unwrap_err().to_string();
    assert_eq!(text, "group /g is removed: it has no maximum to set");
    assert_eq!(group.effective_max(), Bytes::ZERO);
}

/// A group of the model: its handle, parent, name and maximum.
struct Known {
    node: GroupNode,
    parent: Option<GroupKey>,
    name: String,
    max: Bytes,
}

/// The living groups by key.
struct Model {
    tree: GroupTree,
    groups: BTreeMap<GroupKey, Known>,
}

impl Model {
    /// Returns the keys of a group and its ancestors, the lowest first.
    fn chain(&self, of: GroupKey) -> Vec<GroupKey> {
        let parent = |key: &GroupKey| self.groups[key].parent;
        std::iter::successors(Some(of), parent).collect()
    }

    fn path(&self, of: GroupKey) -> String {
        let chain = self.chain(of);
        let names = chain[..chain.len() - 1].iter().rev();
        let names: Vec<&str> = names.map(|key| self.groups[key].name.as_str()).collect();
        format!("/{}", names.join("/"))
    }

    /// Returns a group and its descendants, parents before children and children by name.
    fn subtree(&self, top: GroupKey) -> Vec<GroupKey> {
        let is_below = |key: &GroupKey| self.chain(*key).contains(&top);
        let mut found: Vec<GroupKey> = self.groups.keys().copied().filter(is_below).collect();
        let names = |key: GroupKey| -> Vec<String> {
            let names = self.chain(key).into_iter().rev();
            names.map(|key| self.groups[&key].name.clone()).collect()
        };
        found.sort_by_key(|key| names(*key));
        found
    }

    fn check(&self, at: GroupKey, other: GroupKey) {
        let (node, beside) = (&self.groups[&at].node, &self.groups[&other].node);
        let (chain, path) = (self.chain(at), self.path(at));
        assert_eq!(node.path().to_string(), path);
        assert_eq!(self.tree.lookup(&path).as_ref(), Some(node));
        assert_eq!(self.tree.find(at).as_ref(), Some(node));
        assert_eq!(self.tree.path_of(at).to_string(), path);
        assert_eq!(node.depth() as usize, chain.len() - 1);
        assert_eq!(
            node.parent().map(|parent| parent.key()),
            self.groups[&at].parent
        );
        let keys = |nodes: Vec<GroupNode>| nodes.iter().map(GroupNode::key).collect::<Vec<_>>();
        let subtree = self.subtree(at);
        assert_eq!(keys(self.tree.subtree(node)), subtree);
        let is_child = |key: &GroupKey| self.groups[key].parent == Some(at);
        let children: Vec<GroupKey> = subtree.into_iter().filter(is_child).collect();
        assert_eq!(keys(node.children()), children);
        let least = chain.iter().map(|key| self.groups[key].max).min();
        assert_eq!(Some(node.effective_max()), least, "{path}");
        assert_eq!(node.is_descendant_of(beside), chain.contains(&other));
        let others = self.chain(other);
        let shared = chain.iter().find(|key| others.contains(key)).copied();
        let depth = shared.map(|key| self.groups[&key].node.depth());
        assert_eq!(node.depth_shared_with(beside), depth);
    }
}

// Goal: paths, subtrees, ancestors and the least maximum of every handle are those of the tree as
// it is now, and a removed group is found by none of them. Method: random groups that come and go,
// with names in few letters, against a map of parents.
#[test]
fn handles_show_the_tree_as_it_is() {
    let mut random = crate::seed::rng(41);
    let tree = GroupTree::new(1);
    let (node, name) = (tree.root(), String::new());
    let (root, max) = (node.key(), Bytes::MAX);
    let known = Known {
        node,
        parent: None,
        name,
        max,
    };
    let groups = BTreeMap::from([(root, known)]);
    let mut model = Model {
        tree: tree.clone(),
        groups,
    };
    for _ in 0..1_500 {
        let keys: Vec<GroupKey> = model.groups.keys().copied().collect();
        let [at, other] = [(); 2].map(|()| keys[random.usize(..keys.len())]);
        let node = model.groups[&at].node.clone();
        match random.u8(..4) {
            0 | 1 if keys.len() < 40 => {
                let name = ["a", "aa", "b", "B"][random.usize(..4)].to_owned();
                let max = Bytes(random.u64(1..1 << 40));
                if let Ok(node) = node.child(&name, Limits::max(max)) {
                    let (key, parent) = (node.key(), Some(at));
                    model.groups.insert(
                        key,
                        Known {
                            node,
                            parent,
                            name,
                            max,
                        },
                    );
                }
            }
            2 if node.children().is_empty() && at != root => {
                tree.remove(&node).unwrap();
                let path = model.path(at);
                model.groups.remove(&at);
                assert!(node.is_removed() && tree.subtree(&node).is_empty());
                assert_eq!(
                    (tree.lookup(&path), node.effective_max()),
                    (None, Bytes::ZERO)
                );
                continue;
            }
            _ => {
                let max = Bytes(random.u64(1..1 << 40));
                assert_eq!(node.set_max(max), Ok(()));
                model.groups.get_mut(&at).expect("it lives").max = max;
            }
        }
        model.check(at, other);
    }
    let foreign = GroupTree::new(1).root();
    let node = &model.groups[&root].node;
    assert!(!node.is_descendant_of(&foreign) && node != &foreign);
    assert_eq!(node.depth_shared_with(&foreign), None);
    for path in ["", "a", "//", "/a/", "/./a", "/a//a"] {
        assert_eq!(tree.lookup(path), None, "{path:?}");
    }
}

// Goal: a charge owes the delay of the group that is furthest above its `high` as a part of it, of
// itself and its ancestors; those at their `high` or without one owe nothing, and all that exceed
// it are told, the lowest first. Method: random settings and charges of a chain of five, against
// the documented formula in 128 bits.
#[test]
fn the_group_furthest_above_its_high_decides_the_delay() {
    let mut random = crate::seed::rng(42);
    for _ in 0..300 {
        let tree = GroupTree::new(1);
        let mut chain = vec![tree.root()];
        let mut held = Vec::new();
        for _ in 0..5 {
            let parent = chain.last().expect("the root");
            let group = child(parent, "g", Bytes::MAX);
            held.push(group.try_charge(Bytes(random.u64(..100_000))).unwrap());
            chain.push(group);
        }
        for group in &chain {
            let usage = group.usage_precise().0;
            let near = [
                usage,
                usage + 1,
                usage.saturating_sub(1),
                random.u64(..=usage),
                u64::MAX,
            ];
            group.set_high(Bytes(near[random.usize(..5)]));
        }
        let lowest = &chain[random.usize(..chain.len())];
        let above = std::iter::successors(Some(lowest.clone()), GroupNode::parent);
        let amounts = above.map(|group| (group.usage_precise(), group.limits().high, group.key()));
        let expected: Vec<_> = amounts.filter(|(usage, high, _)| usage > high).collect();
        let told = lowest.over_high();
        let told_of = told
            .iter()
            .map(|over| (over.usage, over.limit_high, over.group.key()));
        assert_eq!(told_of.collect::<Vec<_>>(), expected);
        for over in &told {
            assert_eq!(over.limit_high + over.over(), over.usage);
        }
        let ratio = |&(usage, high, _): &(Bytes, Bytes, GroupKey)| {
            (u128::from((usage - high).0) << 20) / u128::from(high.0.max(4096))
        };
        let worst = expected.iter().map(ratio).max();
        let furthest = lowest.furthest_over_high();
        let found = furthest.map(|over| ratio(&(over.usage, over.limit_high, over.group.key())));
        assert_eq!(found, worst);
        let bytes = Bytes(random.u64(1..1 << 20));
        let ratio = worst.unwrap_or(0);
        let nanos = ((ratio * ratio * u128::from(bytes.0) * 1_000_000_000) >> 40) / 4096;
        let delay = match Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)) {
            short if short <= Duration::from_millis(10) => Duration::ZERO,
            long => long.min(Duration::from_secs(2)),
        };
        assert_eq!(lowest.throttle_delay(bytes), delay);
    }
}

/// Returns a full group, and the word of an operation below it that is in flight: as that of a
/// thread which was stopped in the middle of a charge.
fn full_with_one_in_flight(tree: &GroupTree) -> (GroupNode, super::NodeCharge) {
    let group = child(&tree.root(), "full", Bytes::kib(4));
    let held = group.try_charge(Bytes::kib(4)).expect("there is room");
    let word = &group.slot().words(0).chain;
    word.begin().expect("nothing else is in flight");
    (group, held)
}

// Goal: while another thread stands still in mid-charge, a charge with room is granted, and one
// without is refused as contended; once that thread has run, it is refused by proof. Method: an
// operation in flight at a full group; charges before and after its end.
#[test]
fn a_refusal_is_contended_only_while_another_thread_stands_in_mid_charge() {
    let tree = GroupTree::new(1);
    let (group, mut held) = full_with_one_in_flight(&tree);
    let one = || group.try_charge(Bytes(1));
    let contended = one().unwrap_err();
    assert_eq!(
        contended.to_string(),
        "group /full: 1 B asked, overtaken in each of 300 attempts: try again"
    );
    held.shrink(Bytes(1));
    let granted = one().unwrap();
    group.slot().words(0).chain.end();
    let proven = one().unwrap_err();
    assert!(matches!(proven, ChargeError::OverMax { .. }), "{proven}");
    drop(granted);
    drop(one().unwrap());
    tree.check_invariants();
}

/// Returns how often this thread has slept.
#[cfg(target_os = "linux")]
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok())
        .expect("it is counted")
}

// Goal: a charge that is polled while another thread stands in mid-charge queues without a sleep.
// Method: an operation in flight at a full group; count the times that the polling thread gives up
// its CPU, which patient attempts do 260 times. (Page faults and the system's locks do it too.)
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn a_polled_charge_beside_one_in_flight_queues_without_a_sleep() {
    let tree = GroupTree::new(1);
    let (group, held) = full_with_one_in_flight(&tree);
    let before = sleeps();
    let mut waits = group.charge_wait(Bytes(1));
    assert!(poll(&mut waits).is_pending());
    assert!(sleeps() - before < 100, "{} sleeps", sleeps() - before);
    assert_eq!(group.nr_waiting(), 1);
    let refused = group.try_charge_polled(Bytes(1)).unwrap_err();
    assert!(matches!(refused, ChargeError::Behind { .. }), "{refused}");
    drop(held);
    assert!(matches!(poll(&mut waits), Poll::Ready(Ok(_))));
    group.slot().words(0).chain.end();
    tree.check_invariants();
}

// Goal: threads that stand still in mid-charge leave every group's usage known to within the stock
// of their CPU. Method: operations in flight at 3 of 7 groups that have a chain word and at 3 that
// have none, by turns; 40 groups charge, uncharge, force and move beside them.
#[test]
fn threads_in_mid_charge_do_not_widen_what_a_cpu_parks() {
    let (tree, mut random) = (GroupTree::new(1), fastrand::Rng::with_seed(19));
    let top = child(&tree.root(), "top", Bytes::MAX);
    let names: Vec<_> = (0..40).map(|nth| format!("g{nth}")).collect();
    let groups = names.iter().map(|name| child(&top, name, Bytes::MAX));
    let groups: Vec<_> = groups.collect();
    let _used: Vec<_> = groups
        .iter()
        .map(|group| group.try_charge(Bytes::mib(4)).unwrap())
        .collect();
    let used = Bytes::mib(4 * 40);
    for _ in 0..50 {
        let stopped: Vec<_> = [0..7, 7..40]
            .into_iter()
            .flat_map(|from| random.choose_multiple(from, 3))
            .map(|nth| groups[nth].clone())
            .collect();
        for group in &stopped {
            let word = &group.slot().words(0).chain;
            word.begin().expect("nothing else is in flight");
        }
        for _ in 0..2_000 {
            let [from, to] = [(); 2].map(|()| &groups[random.usize(..40)]);
            let bytes = Bytes(random.u64(..300 << 10));
            let mut charge = match random.u8(..8) {
                0 => from.force_charge(bytes),
                _ => from.try_charge(bytes).unwrap(),
            };
            drop(charge.transfer(to, Bytes(bytes.0 / 2)).unwrap());
            drop(charge);
            for group in groups.iter().chain([&top, &tree.root()]) {
                let usage = group.usage_bounds();
                let own = if group.depth() > 1 {
                    Bytes::mib(4)
                } else {
                    used
                };
                assert!(usage.contains(own), "{}: {usage:?}", group.path());
                assert!(usage.high - usage.low <= Bytes::kib(448 * 4), "{usage:?}");
            }
        }
        for group in &stopped {
            group.slot().words(0).chain.end();
        }
        tree.check_invariants();
    }
}
