//! The promise: errors, records and handles name a group by its path and amounts by bytes, and a
//! group can be found, compared and annotated.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Instant;

use highwater::{Background, Builder, Bytes, CounterKind, Group, Limits, Manager};

fn manager() -> Manager {
    let builder = Manager::builder().capacity(Bytes::mib(64));
    builder.background(Background::Off).build().unwrap()
}

fn query(hw: &Manager) -> Group {
    let tenant = hw.root().child("tenant-a", Limits::default()).unwrap();
    let limits = Limits::max(Bytes::mib(16));
    tenant.child("query-7", limits).unwrap()
}

// Goal: a refusal names the group, the requested amount, the free amount and the maximum.
#[test]
fn a_refusal_names_the_group_by_its_path_and_amounts_in_bytes() {
    let hw = manager();
    let query = query(&hw);
    let _held = query.charge(Bytes::mib(13)).unwrap();
    let refused = query.charge(Bytes::mib(12)).unwrap_err();
    let text = refused.to_string();
    let expected = "group /tenant-a/query-7: 12 MiB asked, 3 MiB free below its maximum of 16 MiB;";
    assert!(text.starts_with(expected), "{text}");
    let too_low = query.set_max(Bytes::mib(4)).unwrap_err();
    assert_eq!(
        too_low.to_string(),
        "group /tenant-a/query-7: 13 MiB used, 9 MiB above its new maximum of 4 MiB; reclaim from it"
    );
    let taken = query.parent().unwrap().child("query-7", Limits::default());
    assert_eq!(
        taken.unwrap_err().to_string(),
        "group /tenant-a already has a child of that name"
    );
}

// Goal: the path in an error stays right when the group is removed and its number is reused.
#[test]
fn a_removed_group_keeps_its_path_in_errors() {
    let hw = manager();
    let old = query(&hw);
    let mut charge = old.charge(Bytes::ZERO).unwrap();
    old.remove().unwrap();
    let refused = old.charge(Bytes(1)).unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("group /tenant-a/query-7 is removed")
    );
    let tenant = old.parent().unwrap();
    let new = tenant.child("query-8", Limits::default()).unwrap();
    assert_eq!(new.id(), old.id(), "numbers are reused");
    assert_ne!(new.path(), old.path());
    // An empty charge knows its group by number only.
    let refused = charge.grow(Bytes(1)).unwrap_err().to_string();
    assert!(!refused.contains("query-8"), "{refused}");
    assert_eq!(old.path(), "/tenant-a/query-7");
}

// Goal: the victim is a group like any other, with its path and the program's data, and a record
// that names groups by path and amounts in bytes.
#[test]
fn a_victim_is_told_by_its_group() {
    struct Number(u32);
    let hw = manager();
    let query = query(&hw);
    query.set_data(Number(7)).ok().unwrap();
    let held = Arc::new(Mutex::new(Some(query.charge(Bytes::mib(16)).unwrap())));
    let asks = hw.root().child("asks", Limits::default()).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (handler_told, handler_held) = (Arc::clone(&told), Arc::clone(&held));
    hw.root().on_exhausted(move |victim| {
        let number = victim.group().data::<Number>().map(|number| number.0);
        let record = victim.record().to_string();
        let told = (victim.group().path(), number, victim.usage(), record);
        handler_told.lock().unwrap().push(told);
        handler_held.lock().unwrap().take();
    });
    let _most = asks.charge(Bytes::mib(60)).unwrap();
    let told = told.lock().unwrap();
    let [(path, number, usage, record)] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((path, *number), (&query.path(), Some(7)));
    assert_eq!(*usage, Bytes::mib(16));
    assert!(
        record.starts_with("/tenant-a/query-7: 16 MiB (estimate "),
        "{record}"
    );
}

// Goal: handles of one group are equal and found by path; those of others are not.
#[test]
fn groups_are_found_by_path_and_compared_by_identity() {
    let hw = manager();
    let query = query(&hw);
    let tenant = query.parent().unwrap();
    assert_eq!(hw.group("/"), Some(hw.root()));
    assert_eq!(hw.group("/tenant-a/query-7"), Some(query.clone()));
    for absent in [
        "",
        "tenant-a",
        "/tenant-a/",
        "/tenant-b",
        "//tenant-a",
        "/tenant-a/query-7/x",
    ] {
        assert_eq!(hw.group(absent), None, "{absent:?}");
    }
    assert_eq!(tenant.children(), std::slice::from_ref(&query));
    assert_eq!(
        (tenant.parent(), hw.root().parent()),
        (Some(hw.root()), None)
    );
    let other = manager();
    assert_ne!(hw.root(), other.root());
    #[expect(
        clippy::mutable_key_type,
        reason = "a group is hashed by its key, which never changes"
    )]
    let all: HashSet<Group> = [hw.root(), tenant.clone(), query.clone(), tenant].into();
    assert_eq!(all.len(), 3);
    query.remove().unwrap();
    assert_eq!(hw.group("/tenant-a/query-7"), None);
}

// Goal: a group's data is set once, and dropped with the group.
#[test]
fn data_of_a_group_is_set_once_and_dropped_with_it() {
    let hw = manager();
    let query = query(&hw);
    let data = Arc::new(());
    assert!(query.set_data(Arc::clone(&data)).is_ok());
    assert_eq!(query.set_data(3_u8), Err(3));
    assert!(query.data::<u8>().is_none() && query.data::<Arc<()>>().is_some());
    query.remove().unwrap();
    assert_eq!(Arc::strong_count(&data), 2);
    drop(query);
    // The slot keeps the name until a later group takes it.
    drop(hw);
    assert_eq!(Arc::strong_count(&data), 1);
}

// Goal: each counter is labelled as a count or a gauge. Method: those that fell while pages came
// and went, and only those, are gauges.
#[test]
fn counters_say_whether_they_count_or_measure() {
    let hw = manager();
    let before = hw.snapshot();
    let scratch = hw.space(&hw.root()).map_anon(highwater::Pages(64)).unwrap();
    for page in 0..64 {
        scratch.write(page).unwrap()[0] = 1;
    }
    let during = hw.snapshot();
    drop(scratch);
    let after = hw.snapshot();
    let kind = |name| {
        before
            .vmstat
            .iter()
            .find(|it| it.name == name)
            .unwrap()
            .kind
    };
    assert_eq!(kind("nr_free_pages"), CounterKind::Gauge);
    assert_eq!(kind("pgfault"), CounterKind::Count);
    for ((a, b), c) in before.vmstat.iter().zip(&during.vmstat).zip(&after.vmstat) {
        let falls = b.value < a.value || c.value < b.value;
        assert!(!falls || a.kind == CounterKind::Gauge, "{} fell", a.name);
    }
    let fell = |name| after.counter(name) < during.counter(name);
    assert!(fell("nr_inactive_anon") || fell("nr_active_anon"));
}

/// Asserts that an operation was refused in these words.
#[track_caller]
fn says<T>(outcome: Result<T, impl Display>, text: &str) {
    let refused = outcome.err().expect("a refusal").to_string();
    assert_eq!(refused, text);
}

// Goal: each reason for which a charge is refused has its words and numbers, and so has the effort
// that was made. Method: no room, a charge that waits, a deadline, a group that was removed, a
// group that is being stopped, and victims in vain.
#[test]
fn each_refusal_of_a_charge_says_why() {
    let hw = Manager::builder().capacity(Bytes::mib(64)).frames(Bytes(0));
    let hw = hw.build().unwrap();
    let query = query(&hw);
    let work = query.child("work", Limits::default()).unwrap();
    let held = work.charge(Bytes::mib(13)).unwrap();
    let no_room = "group /tenant-a/query-7: 4 MiB asked, 3 MiB free below its maximum of 16 MiB; \
                   reclaim from it or raise its maximum";
    let effort = |attempts, victims, dying| {
        format!(
            " (after {attempts} attempts: 0 pages reclaimed, 0 in use, 0 not written back, {victims} \
             victims told to stop, {dying} others waited for)"
        )
    };
    let tried = format!("{no_room}{}", effort(1, 0, 0));
    says(work.try_charge(Bytes::mib(4)), &tried);
    says(work.try_charge_disowned(Bytes::mib(4)), &tried);
    let never = tried.replace("4 MiB asked", "16777217 B asked");
    says(work.charge(Bytes(16 << 20 | 1)), &never);
    query.on_exhausted(|_| ());
    for (nth, (victims, dying)) in [(1, 0), (0, 1)].into_iter().enumerate() {
        if nth == 1 {
            work.mark_oom_victim();
        }
        let failed = query.charge(Bytes::mib(4)).unwrap_err();
        let text = format!("{no_room}{}", effort(failed.attempts, victims, dying));
        says::<()>(Err(failed), &text);
    }
    let late = query.charge_async(Bytes::mib(4)).wait_until(Instant::now());
    let at_the_deadline =
        no_room.replace("16 MiB;", "16 MiB at the deadline, charges wait there (1);");
    says(late, &format!("{at_the_deadline}{}", effort(1, 0, 0)));
    let mut waits = Box::pin(query.charge_async(Bytes::mib(4)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    let behind = "group /tenant-a/query-7: 1 B asked, behind charges that wait there (1): wait in \
                  line with `charge_async`, or try later";
    says(
        work.try_charge(Bytes(1)),
        &format!("{behind}{}", effort(1, 0, 0)),
    );
    drop((waits, held));
    work.remove().unwrap();
    let gone = "group /tenant-a/query-7/work is removed: charge its parent instead";
    let gone = format!("{gone}{}", effort(1, 0, 0));
    says(work.charge(Bytes(1)), &gone);
    says(work.try_charge_disowned(Bytes(1)), &gone);
    says(work.charge_async(Bytes(1)).wait(), &gone);
    says(
        query.charge(Bytes(1)).unwrap().transfer(&work, Bytes(1)),
        &gone,
    );
}

// Goal: an operation on groups that is refused says why, and changes nothing. Method: each reason
// that a program can meet; the children and limits before and after.
#[test]
fn each_refusal_about_groups_says_why_and_changes_nothing() {
    let hw = manager();
    let query = query(&hw);
    let tenant = query.parent().unwrap();
    let state = || {
        let of = |group: &Group| (group.limits(), group.children(), group.is_removed());
        [&hw.root(), &tenant, &query].map(of)
    };
    let before = state();
    let free = Limits::default();
    let bad_name = "invalid name for a group: use 1 to 255 bytes without `/` and control \
                    characters, other than `.` and `..`";
    for name in [
        "",
        ".",
        "..",
        "/",
        "a/b",
        "\0",
        "\u{7f}",
        "\u{85}",
        &"\u{e9}".repeat(128),
    ] {
        says(tenant.child(name, free), bad_name);
    }
    let low = Limits {
        low: Bytes(11),
        ..Limits::max(Bytes(10))
    };
    let min = Limits {
        min: Bytes::mib(2),
        high: Bytes(3),
        ..Limits::max(Bytes::mib(1))
    };
    let above = "limit `low` is 11 B, above `max`, which is 10 B: lower it or raise `max`";
    says(tenant.child("low", low), above);
    says(query.set_limits(low), above);
    let above = "limit `min` is 2 MiB, above `max`, which is 1 MiB: lower it or raise `max`";
    says(tenant.child("min", min), above);
    says(query.set_limits(min), above);
    says(
        tenant.remove(),
        "group /tenant-a has children (1): remove them first",
    );
    hw.root().remove_when_unused();
    says(
        hw.root().remove(),
        "the root group stays for as long as its tree",
    );
    assert_eq!(state(), before);
    let longest = "\u{e9}".repeat(127) + "x";
    for name in [longest.as_str(), "...", " ", "a.b"] {
        tenant.child(name, free).unwrap().remove().unwrap();
    }
}

// Goal: a removed group, and one at the greatest depth, say why they take nothing more. Method: all
// operations that change a group, after its removal; a chain of groups.
#[test]
fn groups_that_are_removed_or_too_deep_say_so() {
    let hw = manager();
    let query = query(&hw);
    let tenant = query.parent().unwrap();
    let free = Limits::default();
    query.remove().unwrap();
    query.remove_when_unused();
    let gone = "group /tenant-a/query-7 is removed";
    says(query.remove(), &format!("{gone} already"));
    says(
        query.child("x", free),
        &format!("{gone}: it takes no children"),
    );
    says(
        query.set_max(Bytes(1)),
        &format!("{gone}: it has no maximum to set"),
    );
    says(
        query.set_limits(free),
        &format!("{gone}: it has no maximum to set"),
    );
    let mut deepest = tenant;
    for _ in 1..64 {
        deepest = deepest.child("d", free).unwrap();
    }
    let path = deepest.path();
    let text = format!("group {path} is at depth 64, the deepest allowed");
    says(deepest.child("d", free), &text);
}

// Goal: settings and capacities outside their range are refused with it, and those at its ends are
// not. Method: the amounts at both ends, and one byte beyond.
#[test]
fn refused_capacities_say_their_range() {
    let built = |capacity: Bytes, frames: Option<Bytes>| {
        let builder = Manager::builder().capacity(capacity);
        let built = frames.into_iter().fold(builder, Builder::frames);
        built.capacity_max(Bytes::mib(1)).build()
    };
    let cannot =
        |amount, least| format!("a capacity of {amount} cannot be managed: give {least} to 1 MiB");
    says(built(Bytes(65_535), None), &cannot("65535 B", "64 KiB"));
    says(
        built(Bytes(1 << 20 | 1), None),
        &cannot("1048577 B", "64 KiB"),
    );
    says(built(Bytes(0), Some(Bytes(0))), &cannot("0 B", "1 B"));
    says(
        built(Bytes::mib(1), Some(Bytes(65_535))),
        "a page cache of 65535 B cannot be made: give 0 for none, or 64 KiB to 1 MiB",
    );
    for (capacity, frames) in [
        (Bytes::kib(64), None),
        (Bytes::mib(1), Some(Bytes::kib(64))),
        (Bytes(1), Some(Bytes(0))),
    ] {
        assert_eq!(built(capacity, frames).unwrap().capacity(), capacity);
    }
    // Whole pages for pages, and bytes where there are none.
    let [cached, accounts] = [None, Some(Bytes(0))].map(|it| built(Bytes::mib(1), it).unwrap());
    cached.set_capacity(Bytes(69_631)).unwrap();
    accounts.set_capacity(Bytes(69_631)).unwrap();
    assert_eq!(cached.capacity(), Bytes::kib(64));
    assert_eq!(accounts.capacity(), Bytes(69_631));
    for (hw, least) in [(cached, "64 KiB"), (accounts, "1 B")] {
        let before = hw.capacity();
        for amount in [0, 1 << 20 | 1] {
            let amount = Bytes(amount);
            let text = format!(
                "a capacity of {amount} cannot be set: give {least} to 1 MiB, the range that \
                 `Builder::capacity_max` has reserved"
            );
            says(hw.set_capacity(amount), &text);
        }
        assert_eq!(hw.capacity(), before);
        let held = hw.root().charge(Bytes::kib(64)).unwrap();
        if hw.frames() == Bytes(0) {
            let over = "the capacity is 24 KiB, and 64 KiB are in use, 40 KiB more, which cannot \
                        be reclaimed now";
            says(hw.set_capacity(Bytes::kib(24)), over);
            assert_eq!(hw.capacity(), Bytes::kib(24));
        }
        drop(held);
    }
}
