//! The promise: errors, records and handles name a group by its path and amounts by bytes, and a
//! group can be found, compared and annotated.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use highwater::{Background, Bytes, CounterKind, Group, Limits, Manager};

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
