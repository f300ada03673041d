//! Groups as candidates, badness at its limits, and the text of a record. `tests/victim.rs` has the
//! search itself.

use super::{
    Candidates, Census, Choice, ChosenGroup, Decision, Policy, Proof, Selector, Standing, State,
    select,
};
use crate::group::{GroupKey, GroupNode, GroupTree, Limits, NodeCharge};
use crate::units::{Bytes, CpuId, Estimate, OomScoreAdj};

const PROVEN: Policy = Policy {
    reads_max: usize::MAX,
    indifferent_within: Bytes::ZERO,
    floor: Bytes(1),
    total: Bytes(1000),
    reads_victim: false,
};

fn tree_with(usages: &[u64]) -> (GroupTree, Vec<GroupNode>, Vec<NodeCharge>) {
    let tree = GroupTree::new(8);
    let mut charges = Vec::new();
    let mut groups = Vec::new();
    for (at, &pages) in usages.iter().enumerate() {
        let group = tree
            .root()
            .child(&format!("g{at}"), Limits::default())
            .expect("a name");
        let cpu = CpuId::from_index(at % 8);
        charges.push(group.at(cpu).try_charge(Bytes(pages)).expect("no limit"));
        groups.push(group);
    }
    (tree, groups, charges)
}

fn decide(target: &GroupNode, spared: &[GroupKey]) -> Decision<ChosenGroup, GroupNode> {
    let mut selector = Selector::with_capacity(4);
    let is_spared = |key| spared.contains(&key);
    select(&target.tree(), target, is_spared, &PROVEN, &mut selector)
}

fn badness(victim: &ChosenGroup) -> Bytes {
    Bytes(u64::try_from(victim.record.badness).unwrap_or(0))
}

fn runner_up(victim: &ChosenGroup) -> Bytes {
    let next = victim.record.runner_up.as_ref();
    next.map_or(Bytes::ZERO, |next| {
        Bytes(u64::try_from(next.badness).unwrap_or(0))
    })
}

fn choose(target: &GroupNode, spared: &[GroupKey]) -> Option<ChosenGroup> {
    decide(target, spared).chosen()
}

#[test]
fn the_group_with_most_memory_is_chosen_by_exact_numbers() {
    // Goal: with a proof, never off by a byte. Method: random usages that differ by single bytes,
    // well within the tokens that a group parks; an oracle sorts them.
    let mut rng = crate::seed::rng(3);
    for _ in 0..50 {
        let usages: Vec<u64> = (0..20).map(|_| 100 + rng.u64(..40)).collect();
        let (tree, groups, _charges) = tree_with(&usages);
        let mut oracle: Vec<_> = usages.iter().zip(&groups).collect();
        oracle.sort_by_key(|(pages, group)| (std::cmp::Reverse(**pages), group.id()));
        let mut spared = Vec::new();
        for (at, (pages, group)) in oracle.iter().enumerate() {
            let victim = choose(&tree.root(), &spared).unwrap();
            assert_eq!(
                (victim.group.id(), badness(&victim), victim.record.usage()),
                (group.id(), Bytes(**pages), Bytes(**pages))
            );
            let next = oracle.get(at + 1).map_or(0, |(pages, _)| **pages);
            assert!(runner_up(&victim) >= Bytes(next), "{}", victim.record);
            assert!(runner_up(&victim) <= Bytes(**pages), "{}", victim.record);
            assert_eq!(victim.record.census.eligible, usages.len() - at);
            spared.push(group.key());
        }
        assert!(choose(&tree.root(), &spared).is_none());
    }
}

#[test]
fn parents_and_the_innocent_elsewhere_are_not_chosen() {
    // Goal: pressure in one subtree selects no group outside it. Method: a larger group elsewhere.
    let (tree, groups, mut charges) = tree_with(&[10, 500]);
    let child = groups[0].child("child", Limits::default()).unwrap();
    charges.push(child.try_charge(Bytes(3)).unwrap());
    let victim = choose(&groups[0], &[]).unwrap();
    assert_eq!(
        (victim.group.path(), badness(&victim)),
        (child.path(), Bytes(3))
    );
    let victim = choose(&tree.root(), &[]).unwrap();
    assert_eq!(victim.group.id(), groups[1].id());
}

#[test]
fn nobody_is_chosen_where_nothing_is_used() {
    // Goal: no victim without memory. Method: an empty tree; then groups that hold only tokens,
    // which an estimate cannot distinguish from usage.
    let tree = GroupTree::new(2);
    assert!(choose(&tree.root(), &[]).is_none());
    let (tree, groups, charges) = tree_with(&[5; 20]);
    drop(charges);
    assert!(groups[0].usage().high > Bytes::ZERO, "tokens are parked");
    assert!(choose(&tree.root(), &[]).is_none());
    let _held = groups[7].try_charge(Bytes(1)).unwrap();
    let victim = choose(&tree.root(), &[]).unwrap();
    assert_eq!(
        (victim.group.id(), victim.record.usage()),
        (groups[7].id(), Bytes(1))
    );
}

#[test]
fn adjustments_count_and_pass_to_new_children() {
    // Goal: thousandths of all memory; unkillable never. Method: 1,000 bytes in all, so that a
    // thousandth is a byte; the order that each adjustment must give.
    let (tree, groups, mut charges) = tree_with(&[300, 200, 100]);
    let chosen = || choose(&tree.root(), &[]).map(|victim| (victim.group.id(), badness(&victim)));
    let adjust = |at: usize, adj| groups[at].set_oom_score_adj(OomScoreAdj::clamped(adj));
    adjust(2, 250);
    assert_eq!(chosen(), Some((groups[2].id(), Bytes(350))));
    adjust(2, -250);
    assert_eq!(chosen(), Some((groups[0].id(), Bytes(300))));
    adjust(0, -1000);
    assert_eq!(chosen(), Some((groups[1].id(), Bytes(200))));
    let child = groups[0].child("child", Limits::default()).unwrap();
    charges.push(child.try_charge(Bytes(900)).unwrap());
    assert_eq!(child.oom_score_adj(), OomScoreAdj::UNKILLABLE);
    assert_eq!(chosen(), Some((groups[1].id(), Bytes(200))));
    adjust(1, -1000);
    assert_eq!(chosen(), Some((groups[2].id(), Bytes::ZERO)), "100 - 250");
    adjust(2, -1000);
    assert_eq!(chosen(), None);
}

#[test]
fn who_is_being_stopped_is_waited_for() {
    // Goal: no other group is stopped while a dying one gives memory back, unless that is spared,
    // holds nothing, or is gone. Method: mark leaves and a parent; select from above, beside and
    // below.
    let (tree, groups, mut charges) = tree_with(&[10, 500, 20]);
    let waits_for = |target: &GroupNode, spared: &[GroupKey]| match decide(target, spared) {
        Decision::Wait { dying, .. } => Some(dying.id()),
        _ => None,
    };
    groups[0].mark_oom_victim();
    assert_eq!(waits_for(&tree.root(), &[]), Some(groups[0].id()));
    assert_eq!(waits_for(&groups[1], &[]), None);
    assert_eq!(waits_for(&tree.root(), &[groups[0].key()]), None);
    let child = groups[0].child("child", Limits::default()).unwrap();
    assert_eq!(waits_for(&tree.root(), &[]), None, "nothing to wait for");
    charges.push(child.try_charge(Bytes(200)).unwrap());
    assert!(child.is_oom_victim());
    assert_eq!(waits_for(&tree.root(), &[]), Some(child.id()));
    assert_eq!(waits_for(&child, &[]), Some(child.id()));
    groups[2].mark_oom_victim();
    assert_eq!(waits_for(&tree.root(), &[]), Some(child.id()), "uses more");
    groups[0].exit_oom_victim();
    assert_eq!(waits_for(&tree.root(), &[]), Some(groups[2].id()));
    tree.remove(&groups[2]).unwrap();
    let victim = choose(&tree.root(), &[]).unwrap();
    assert_eq!(victim.group.id(), groups[1].id());
}

#[test]
fn a_group_that_is_being_stopped_and_holds_only_tokens_is_not_waited_for() {
    // Goal: a marked group is waited for while it uses a byte, and not for the tokens that it
    // parks. Method: mark two groups, end their charges one after the other.
    let (tree, groups, mut charges) = tree_with(&[10, 20, 500]);
    let waits_for = || match decide(&tree.root(), &[]) {
        Decision::Wait { dying, .. } => Some(dying.id()),
        _ => None,
    };
    groups[0].mark_oom_victim();
    groups[1].mark_oom_victim();
    assert_eq!(waits_for(), Some(groups[1].id()), "uses more");
    drop(charges.remove(1));
    assert_eq!(waits_for(), Some(groups[0].id()));
    drop(charges.remove(0));
    assert_eq!(groups[0].usage_precise(), Bytes::ZERO);
    assert!(groups[0].usage().high > Bytes::ZERO, "tokens are parked");
    assert_eq!(waits_for(), None);
    let victim = choose(&tree.root(), &[]).unwrap();
    assert_eq!(victim.group.id(), groups[2].id());
}

#[test]
fn a_later_group_of_the_same_number_begins_anew() {
    // Goal: settings and sparing end with their group. Method: remove and create until the number
    // is reused.
    let tree = GroupTree::new(2);
    let first = tree.root().child("a", Limits::default()).unwrap();
    first.set_oom_score_adj(OomScoreAdj::MAX);
    first.mark_oom_victim();
    tree.remove(&first).unwrap();
    let later = tree.root().child("a", Limits::default()).unwrap();
    assert_eq!(later.id(), first.id(), "numbers are reused");
    assert_eq!(later.oom_score_adj(), OomScoreAdj::ZERO);
    assert!(!later.is_oom_victim());
    assert!(tree.find(first.key()).is_none());
    let _held = later.try_charge(Bytes(1)).unwrap();
    let victim = choose(&tree.root(), &[first.key()]).unwrap();
    assert_eq!(victim.group.id(), later.id());
}

#[test]
fn badness_saturates_and_keeps_order() {
    // Goal: no overflow, and more usage is never less bad. Method: the extremes of every input.
    let values = [0, 1, 1 << 40, i64::MAX as u64, u64::MAX - 1, u64::MAX];
    let unknown = Standing::from(Estimate::exact(Bytes::ZERO));
    for total in values {
        let policy = Policy {
            total: Bytes(total),
            ..PROVEN
        };
        for adj in [-5000, -1000, -999, -1, 0, 1, 999, 1000, 5000] {
            let standing = Standing {
                oom_score_adj: OomScoreAdj::clamped(adj),
                ..unknown
            };
            let badness = values.map(|usage| policy.badness(&standing, Bytes(usage)));
            assert!(badness.is_sorted(), "{badness:?}");
            assert!(badness[0] > i64::MIN && badness[5] < i64::MAX);
        }
        let first = Standing {
            state: State::First,
            ..unknown
        };
        assert_eq!(policy.badness(&first, Bytes::ZERO), i64::MAX);
    }
    let adjusted = Standing {
        oom_score_adj: OomScoreAdj::clamped(-250),
        ..unknown
    };
    let policy = Policy {
        total: Bytes(4000),
        ..PROVEN
    };
    assert_eq!(policy.badness(&adjusted, Bytes(1500)), 500);
    assert_eq!(policy.badness(&adjusted, Bytes(500)), -500);
}

#[test]
fn a_record_is_one_line_with_every_number() {
    // Goal: a log line has the victim, reason, certainty and cost. Method: the whole text.
    let (tree, groups, _charges) = tree_with(&[1200 << 10, 800 << 10, 400 << 10]);
    let victim = choose(&tree.root(), &[]).unwrap();
    assert_eq!(
        victim.record.to_string(),
        "/g0: 1200 KiB (estimate 1200 KiB (1088 KiB to 1312 KiB)); proven; next /g1 with at most \
         912 KiB; 3 scanned, 3 eligible, 1 in reach, 1 read, 1 pass"
    );
    groups[2].set_oom_score_adj(OomScoreAdj::MAX);
    let mut selector = Selector::with_capacity(1);
    let unread = Policy {
        reads_max: 0,
        total: Bytes::kib(4000),
        ..PROVEN
    };
    let decision = select(&tree, &tree.root(), |_| false, &unread, &mut selector);
    assert_eq!(
        decision.chosen().unwrap().record.to_string(),
        "/g2: estimate 400 KiB (288 KiB to 512 KiB), not read, badness 4288 KiB with oom_score_adj \
         1000; proven; next /g0 with at most 1312 KiB; 3 scanned, 3 eligible, 2 in reach, 0 read, 1 pass"
    );
}

/// Candidates with their standing, and the exact usage of those that are not gone.
struct Listed(Vec<(Standing, Option<u64>)>);

impl Candidates for Listed {
    type Id = usize;

    fn for_each(&self, mut visit: impl FnMut(usize, &Standing)) {
        for (id, (standing, _)) in self.0.iter().enumerate() {
            visit(id, standing);
        }
    }

    fn precise_usage(&self, id: usize) -> Option<Bytes> {
        self.0[id].1.map(Bytes)
    }
}

/// Returns an ordinary candidate known to use `low` to `high`.
fn between(low: u64, high: u64) -> Standing {
    Standing::from(Estimate {
        value: Bytes(low),
        low: Bytes(low),
        high: Bytes(high),
    })
}

fn search(candidates: &Listed, policy: &Policy) -> Decision<Choice<usize>, usize> {
    Selector::with_capacity(4).select(candidates, policy)
}

/// The victim, if one is found, and the cost of the search; nothing is being stopped.
fn found(candidates: &Listed, policy: &Policy) -> (Option<Choice<usize>>, Census) {
    match search(candidates, policy) {
        Decision::Chosen(choice) => (Some(choice), choice.census),
        Decision::Nobody(census) => (None, census),
        Decision::Wait { .. } => panic!("none is being stopped"),
    }
}

// Goal: a candidate that goes first is stopped before all others whatever they use, unless it is
// unkillable or holds nothing; of several, the lowest number is. Method: beside a candidate of all
// memory; each exception in turn, with and without exact reads.
#[test]
fn those_that_go_first_are_stopped_before_all_others_if_they_hold_anything() {
    let first = |usage: u64, adj: i32| Standing {
        state: State::First,
        oom_score_adj: OomScoreAdj::clamped(adj),
        ..between(usage, usage)
    };
    let giant = (between(u64::MAX - 1, u64::MAX), Some(u64::MAX));
    for (firsts, chosen) in [
        ([first(1, 0), first(1, 0)], 1),
        ([first(1, 0), first(u64::MAX, 1000)], 1),
        ([first(0, 0), first(1, -999)], 2),
        ([first(9, -1000), first(1, 0)], 2),
        ([first(9, -1000), first(0, 1000)], 0),
    ] {
        let exact = |standing: Standing| (standing, Some(standing.usage.value.0));
        let listed = Listed(vec![giant, exact(firsts[0]), exact(firsts[1])]);
        for reads_max in [0, 1, usize::MAX] {
            let policy = Policy {
                reads_max,
                ..PROVEN
            };
            let choice = search(&listed, &policy).chosen().unwrap();
            assert_eq!(choice.id, chosen, "{firsts:?}, {reads_max} reads");
            assert_eq!(choice.badness == i64::MAX, chosen > 0);
        }
    }
    // It seems to hold a page, and holds none: reading it does not select it.
    let empty = Standing {
        state: State::First,
        ..between(0, 4096)
    };
    let listed = Listed(vec![(empty, Some(0)), (between(5, 9), Some(7))]);
    let choice = search(&listed, &PROVEN).chosen().unwrap();
    assert_eq!((choice.id, choice.badness, choice.gap), (1, 5, Bytes::ZERO));
}

// Goal: the search ends once no other can be worse by more than the indifference, not a byte
// sooner, and the gap says how much that is. Method: a candidate known exactly beside one of an
// interval whose upper end lies from one below to one above that width, also at the end of 64 bits.
#[test]
fn indifference_ends_a_search_to_the_byte() {
    for (width, beyond) in [
        (1, 0),
        (1, 1),
        (100, 99),
        (100, 100),
        (100, 101),
        (u64::MAX, 1 << 62),
    ] {
        let listed = Listed(vec![
            (between(1000, 1000), Some(1000)),
            (between(900, 1000 + beyond), Some(1000 + beyond)),
        ]);
        let policy = Policy {
            indifferent_within: Bytes(width),
            ..PROVEN
        };
        let choice = search(&listed, &policy).chosen().unwrap();
        let is_settled = beyond <= width;
        assert_eq!(choice.census.reads == 0, is_settled, "{beyond} of {width}");
        let (id, gap) = if is_settled { (0, beyond) } else { (1, 0) };
        assert_eq!((choice.id, choice.gap), (id, Bytes(gap)));
        let proof = if gap == 0 {
            Proof::Proven
        } else {
            Proof::Indifferent
        };
        assert_eq!(choice.proof, proof);
    }
}

// Goal: without exact reads the highest lower bound is selected if it reaches the floor; while none
// does, reading goes on, because the limit never prevents a selection. Method: floors around the
// lower bounds of two candidates, one of which uses as much as it may.
#[test]
fn no_reads_are_allowed_but_those_that_find_any_victim() {
    let listed = Listed(vec![
        (between(10, 100), Some(100)),
        (between(20, 50), Some(20)),
    ]);
    for (floor, chosen, reads) in [
        (0, Some((1, None)), 0),
        (20, Some((1, None)), 0),
        (21, Some((0, Some(Bytes(100)))), 1),
        (100, Some((0, Some(Bytes(100)))), 1),
        (101, None, 0),
    ] {
        let policy = Policy {
            reads_max: 0,
            floor: Bytes(floor),
            ..PROVEN
        };
        let (choice, census) = found(&listed, &policy);
        let found = choice.map(|choice| (choice.id, choice.exact));
        assert_eq!((found, census.reads), (chosen, reads), "floor {floor}");
    }
}

// Goal: a candidate that is gone when it is read is not the victim, and costs one read. Method: the
// worst of three is gone, then two of them, then all.
#[test]
fn a_candidate_that_is_gone_is_passed_over() {
    let of = |exact: [Option<u64>; 3]| {
        let highs = [100, 90, 80];
        let members = highs.iter().zip(exact);
        Listed(
            members
                .map(|(&high, exact)| (between(0, high), exact))
                .collect(),
        )
    };
    for (exact, chosen, reads) in [
        ([None, Some(85), Some(80)], Some((1, 85)), 2),
        ([None, Some(79), Some(80)], Some((2, 80)), 3),
        ([None, None, Some(1)], Some((2, 1)), 3),
        ([None, None, None], None, 3),
    ] {
        let (choice, census) = found(&of(exact), &PROVEN);
        let found = choice.map(|choice| (choice.id, choice.badness));
        assert_eq!((found, census.reads), (chosen, reads), "{exact:?}");
    }
}

// Goal: a record says in words why a search ended, also for a negative badness and for a candidate
// that goes first. Method: the whole text of each kind.
#[test]
fn a_record_names_each_end_of_a_search() {
    let text =
        |listed: &Listed, policy: &Policy| search(listed, policy).chosen().unwrap().to_string();
    let wide = Listed(vec![
        (between(0, 100), Some(60)),
        (between(40, 90), Some(50)),
        (between(0, 80), Some(1)),
    ]);
    let one_read = Policy {
        reads_max: 1,
        ..PROVEN
    };
    assert_eq!(
        text(&wide, &one_read),
        "1: 50 B (estimate 40 B (40 B to 90 B)); another may have 50 B more, reads are spent; \
         next 0 with at most 100 B; 3 scanned, 3 eligible, 3 in reach, 1 read, 1 pass"
    );
    let easy = Policy {
        indifferent_within: Bytes(60),
        ..PROVEN
    };
    assert_eq!(
        text(&wide, &easy),
        "1: estimate 40 B (40 B to 90 B), not read; another may have 60 B more, which is \
         indifferent; next 0 with at most 100 B; 3 scanned, 3 eligible, 3 in reach, 0 read, 1 pass"
    );
    let adjusted = |adj, state| Standing {
        oom_score_adj: OomScoreAdj::clamped(adj),
        state,
        ..between(500, 500)
    };
    let [spared, first] = [State::Ordinary, State::First].map(|state| adjusted(-750, state));
    assert_eq!(
        text(&Listed(vec![(spared, None), (spared, None)]), &PROVEN),
        "0: estimate 500 B (500 B to 500 B), not read, badness -250 B with oom_score_adj -750; \
         proven; next 1 with at most -250 B; 2 scanned, 2 eligible, 2 in reach, 0 read, 1 pass"
    );
    assert_eq!(
        text(&Listed(vec![(first, None)]), &PROVEN),
        "0: estimate 500 B (500 B to 500 B), not read, goes first; proven; \
         1 scanned, 1 eligible, 1 in reach, 0 read, 1 pass"
    );
}
