//! Verdicts of the checks of memory groups: 13, 15 and 16.

use highwater_host::Finding;
use highwater_host::Verdict::{Bad, NotMeasurable, Ok, Warn};

use super::support::Tree;
use super::{check, value, verdict};

#[test]
fn dying_groups_warn_without_times() {
    let of = |dying| {
        let stat = format!("nr_descendants 1\nnr_dying_descendants {dying}\n");
        Tree::of("6.12.1", 2).group_v2("", &[("cgroup.stat", &stat)])
    };
    assert_eq!(verdict(&of(1_000), 13), NotMeasurable);
    assert_eq!(verdict(&of(1_001), 13), Warn);
    let v1 = Tree::of("6.12.1", 2)
        .file(
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        )
        .file(
            "proc/cgroups",
            "#subsys_name hierarchy num_cgroups enabled\nmemory 4 1003 1\n",
        );
    assert_eq!(verdict(&v1, 13), Warn);
    // cgroup v1 has no `memory.reclaim`.
    let advice = check(&v1, 13).advice.unwrap();
    assert!(advice.contains("memory.force_empty"), "{advice}");
    assert!(!advice.contains("memory.reclaim"), "{advice}");
    assert!(
        check(&of(1_001), 13)
            .advice
            .unwrap()
            .contains("memory.reclaim")
    );
}

/// Goal: `/proc/cgroups` counts the groups of the whole machine, which are not dying because a
/// container does not see them. Method: a container by its mount, by its own group, and by its
/// namespace; and the machine itself.
#[test]
fn a_container_does_not_count_the_live_groups_of_its_host() {
    let of = |root: &str, own: &str| {
        let mounts = format!(
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
             35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        );
        Tree::of("5.15.1", 2)
            .file("proc/self/mountinfo", &mounts)
            .file("proc/self/cgroup", &format!("4:memory:{own}\n"))
            .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "1\n")
            .file(
                "proc/cgroups",
                "#subsys_name hierarchy num_cgroups enabled\nmemory 4 5001 1\n",
            )
    };
    let namespace = |inode: &str| {
        let target = format!("cgroup:[{inode}]");
        of("/", "/").link("proc/self/ns/cgroup", &target)
    };
    let dying = |tree: &Tree| {
        let finding = check(tree, 13);
        let found = finding
            .facts
            .iter()
            .find(|(name, _)| *name == "dying_groups_count");
        (finding.verdict, found.unwrap().1.as_u64())
    };
    let unknown = (NotMeasurable, None);
    assert_eq!(dying(&of("/docker/1f", "/docker/1f")), unknown);
    assert_eq!(dying(&of("/", "/../../user.slice")), unknown);
    assert_eq!(dying(&of("/", "/..")), unknown);
    assert_eq!(dying(&namespace("4026532500")), unknown);
    let counted = (Warn, Some(5_000));
    assert_eq!(dying(&of("/", "/user.slice")), counted);
    assert_eq!(dying(&namespace("4026531835")), counted);
}

#[test]
fn stranded_charge_is_judged_by_the_worst_group() {
    const MIB: u64 = 1 << 20;
    let of = |kernel, max: u64| {
        Tree::of(kernel, 64)
            .group_v2("", &[])
            .group_v2("a", &[("memory.max", &max.to_string())])
    };
    // 64 CPUs x 64 pages are 16 MiB.
    assert_eq!(verdict(&of("6.12.1", 320 * MIB), 15), Ok);
    assert_eq!(verdict(&of("6.12.1", 319 * MIB), 15), Warn);
    assert_eq!(verdict(&of("6.12.1", 63 * MIB), 15), Bad);
    let parent = |kernel| {
        of(kernel, 400 * MIB)
            .group_v2("a/b", &[])
            .group_v2("a/c", &[])
    };
    assert_eq!(verdict(&parent("6.15.1"), 15), Ok);
    // Three groups: 48 MiB.
    let newer = parent("6.16.1");
    assert_eq!((verdict(&newer, 15), value(&newer, 15)), (Warn, 12.0));
    let unlimited = Tree::of("6.12.1", 64)
        .group_v2("", &[])
        .group_v2("a", &[("memory.max", "max")]);
    assert_eq!(check(&unlimited, 15).says, "no group has a limit");
}

/// Goal: a stock had 32 pages before 6.1. Method: one limit on both sides of that version.
#[test]
fn a_stock_has_32_pages_before_6_1() {
    let of = |kernel| {
        Tree::of(kernel, 64)
            .group_v2("", &[])
            .group_v2("a", &[("memory.max", "268435456")])
    };
    for (kernel, batch, verdict, percent) in [
        ("5.15.1", 32, Ok, 3.125),
        ("6.0.19", 32, Ok, 3.125),
        ("6.1.0", 64, Warn, 6.25),
    ] {
        let finding = check(&of(kernel), 15);
        assert_eq!(finding.verdict, verdict, "{kernel}");
        assert!((finding.figure.unwrap().value - percent).abs() < 1e-9);
        let shown = format!("64 CPUs x {batch} pages x 1");
        assert!(finding.formula.starts_with(&shown), "{}", finding.formula);
    }
}

#[test]
fn throttling_is_bad_if_the_group_also_stands_still() {
    let of = |events: u64, full: &str| {
        let after = format!("low 0\nhigh {events}\nmax 0\n");
        let pressure = format!("some avg10=50.00 avg60=1.00\nfull avg10={full} avg60=1.00\n");
        let files = [
            ("memory.events", "low 0\nhigh 0\nmax 0\n"),
            ("memory.events.after", &*after),
            ("memory.pressure", &*pressure),
        ];
        Tree::of("6.12.1", 2)
            .sampled("x 0\n", "x 0\n")
            .group_v2("", &[])
            .group_v2("a", &files)
    };
    assert_eq!(verdict(&of(100, "20.00"), 16), Ok);
    // A few threads that sleep 2 s each time make few events.
    assert_eq!(verdict(&of(5, "90.00"), 16), Bad);
    assert_eq!(verdict(&of(4, "90.00"), 16), Ok);
    assert_eq!(verdict(&of(101, "20.00"), 16), Warn);
    let dead = check(&of(101, "20.01"), 16);
    assert_eq!(dead.verdict, Bad);
    // Both sides are printed.
    assert_eq!(dead.figure.unwrap().limits(), "> 10/s, stall > 20 %");
    let v1 = Tree::of("6.12.1", 2).file("sys/fs/cgroup/memory/memory.limit_in_bytes", "1\n");
    assert!(check(&v1, 16).says.contains("this is v1"));
}

/// Files of a group with this limit and so many events in ten seconds: of the group and those
/// below it, and of the group itself where the kernel counts them.
fn throttled(high: &str, subtree: u64, own: Option<u64>) -> Vec<(&'static str, String)> {
    let events = |count: u64| format!("low 0\nhigh {count}\nmax 0\n");
    let mut files = vec![
        ("memory.high", format!("{high}\n")),
        ("memory.events", events(1_000)),
        ("memory.events.after", events(1_000 + subtree)),
        // The first sample alone is no growth.
        ("memory.events.local", events(1_000)),
    ];
    if let Some(own) = own {
        files.push(("memory.events.local.after", events(1_000 + own)));
    }
    files
}

/// A machine with the groups of these paths.
fn with_groups(kernel: &str, groups: &[(&str, Vec<(&'static str, String)>)]) -> Tree {
    let mut tree = Tree::of(kernel, 2)
        .sampled("x 0\n", "x 0\n")
        .group_v2("", &[]);
    for (path, files) in groups {
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, &**text)).collect();
        tree = tree.group_v2(path, &files);
    }
    tree
}

fn group_of(finding: &Finding) -> Option<&str> {
    let found = finding.facts.iter().find(|(name, _)| *name == "group");
    found.unwrap().1.as_str()
}

/// Goal: a group is judged by its own events, not by those below it. Method: a parent without
/// throttling of its own, with and without a limit, whose children make 7 events a second each;
/// both by `memory.events.local` and without it.
#[test]
fn a_parent_is_not_blamed_for_the_throttling_of_its_children() {
    for high in ["max", "1073741824"] {
        for has_local in [true, false] {
            let own = |events| has_local.then_some(events);
            let tree = with_groups(
                "6.12.1",
                &[
                    ("kubepods", throttled(high, 140, own(0))),
                    ("kubepods/a", throttled("4194304", 70, own(70))),
                    ("kubepods/b", throttled("4194304", 70, own(70))),
                ],
            );
            let finding = check(&tree, 16);
            assert_eq!(finding.verdict, Ok, "{high}: {}", finding.says);
            assert_eq!(group_of(&finding), Some("/kubepods/a"));
            assert!((finding.figure.unwrap().value - 7.0).abs() < 1e-9);
        }
    }
    // Nothing can be raised where there is no limit, such as above a group that was not seen.
    let unseen = with_groups("6.12.1", &[("a", throttled("max", 200, Some(200)))]);
    let finding = check(&unseen, 16);
    assert_eq!((finding.verdict, group_of(&finding)), (Ok, None));
}

/// Goal: nothing is subtracted where `memory.events` counts the group alone. Method: a parent and
/// a child, before 5.2 and with the mount option that keeps this; and the same machine without.
#[test]
fn events_that_are_local_are_not_subtracted() {
    let of = |kernel, option: &str| {
        let mounts = format!("41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw{option}\n");
        let groups = [
            ("a", throttled("4194304", 200, None)),
            ("a/b", throttled("4194304", 150, None)),
        ];
        with_groups(kernel, &groups).file("proc/self/mountinfo", &mounts)
    };
    let rate = |tree: &Tree| value(tree, 16);
    assert!((rate(&of("5.1.0", "")) - 20.0).abs() < 1e-9);
    assert!((rate(&of("6.12.1", ",memory_localevents")) - 20.0).abs() < 1e-9);
    assert!((rate(&of("6.12.1", "")) - 15.0).abs() < 1e-9);
}

/// Goal: a group that stalls but is not judged hides no other. Method: one that stalls for 15 % and
/// one that is throttled 100 times a second.
#[test]
fn a_short_stall_hides_no_throttled_group() {
    let mut stalled = throttled("4194304", 5, Some(5));
    stalled.push((
        "memory.pressure",
        "some avg10=15.00\nfull avg10=15.00\n".to_owned(),
    ));
    let groups = [
        ("a", stalled),
        ("b", throttled("4194304", 1_000, Some(1_000))),
    ];
    let finding = check(&with_groups("6.12.1", &groups), 16);
    assert_eq!((finding.verdict, group_of(&finding)), (Warn, Some("/b")));
}

/// Goal: the same machine always has the same finding. Method: twenty runs with many groups, of
/// which a parent and its child tie.
#[test]
fn the_throttled_group_is_the_same_in_each_run() {
    for has_local in [true, false] {
        let own = |events| has_local.then_some(events);
        let mut groups = vec![
            ("kubepods", throttled("max", 200, own(0))),
            ("kubepods/a", throttled("4194304", 200, own(200))),
        ];
        for path in ["kubepods/b", "kubepods/c", "kubepods/d"] {
            groups.push((path, throttled("4194304", 0, own(0))));
        }
        let tree = with_groups("6.12.1", &groups);
        for _ in 0..20 {
            let finding = check(&tree, 16);
            assert_eq!(finding.verdict, Warn);
            assert_eq!(group_of(&finding), Some("/kubepods/a"));
            assert!(!finding.advice.unwrap().contains("/kubepods,"));
        }
    }
}

/// Goal: the stall of a group counts in its parent too, so that of equal stalls the one with more
/// events is the cause. Method: a parent and a child that are both throttled.
#[test]
fn of_equal_stalls_the_more_throttled_group_is_named() {
    let stalled = |events, own| {
        let mut files = throttled("4194304", events, Some(own));
        let pressure = "some avg10=90.00\nfull avg10=90.00\n";
        files.push(("memory.pressure", pressure.to_owned()));
        files
    };
    let of = |parent, child| {
        let groups = [
            ("a", stalled(parent + child, parent)),
            ("a/b", stalled(child, child)),
        ];
        let finding = check(&with_groups("6.12.1", &groups), 16);
        assert_eq!(finding.verdict, Bad);
        group_of(&finding).unwrap().to_owned()
    };
    for _ in 0..20 {
        assert_eq!(of(5, 300), "/a/b");
        assert_eq!(of(300, 5), "/a");
        assert_eq!(of(50, 50), "/a");
    }
    // A parent that is not throttled itself stalls with its child, and has no part in it.
    assert_eq!(of(0, 300), "/a/b");
}

// Symptom: a group that another user named with escape sequences moved the cursor of the user that
// ran the checks, or cleared the screen.
#[test]
fn names_of_groups_have_no_control_characters() {
    let mut files = throttled("4194304", 2_000, Some(2_000));
    files.push(("memory.max", "8388608\n".to_owned()));
    let tree = with_groups("6.12.1", &[("a\x1b[2J", files)]);
    for nr in [15, 16] {
        let finding = check(&tree, nr);
        assert_eq!(finding.verdict, Warn, "check {nr}");
        assert!(finding.says.contains("/a?[2J"), "{nr}: {}", finding.says);
        let advice = finding.advice.clone().unwrap();
        for shown in [&finding.says, &finding.formula, &advice] {
            assert!(!shown.contains(char::is_control), "{nr}: {shown:?}");
        }
        // JSON escapes them, and programs need the name.
        assert_eq!(group_of(&finding), Some("/a\x1b[2J"));
    }
    let needs = highwater_host::Missing::new("needs /a\x1b[2J").need;
    assert_eq!(needs, "needs /a?[2J");
}
