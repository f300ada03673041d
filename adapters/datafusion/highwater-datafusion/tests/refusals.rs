//! Promise: a refusal names the group that is full, its use and maximum, the largest consumers of
//! the tenant and the setting to change; and options mean what they say, to the byte.

mod support;

use std::sync::Arc;
use std::thread;

use datafusion_common::DataFusionError;
use datafusion_execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use datafusion_execution::runtime_env::RuntimeEnvBuilder;
use futures::executor::block_on;
use futures::future::poll_immediate;
use highwater::Bytes;
use highwater::group::Limits;
use highwater_datafusion::{HighwaterPool, Options, Tenant, runtime_for};

use support::{MIB, holding, manager, query, spilling, tenant};

/// Returns the text of a refused call.
fn refusal(reservation: &MemoryReservation, bytes: usize) -> String {
    match reservation.try_grow(bytes) {
        Err(DataFusionError::ResourcesExhausted(text)) => text,
        other => panic!("{other:?}"),
    }
}

// Goal: of a query, its tenant and an ancestor, the text names the one that is full, with what is
// left there. Method: each in turn has the least room.
#[test]
fn the_group_that_is_full_is_named_with_its_use_and_maximum() {
    let hw = manager(Bytes::mib(64));
    let org = hw.root().child("org", Limits::max(Bytes::mib(12)));
    let org = org.expect("the name is free");
    let [a, b] = ["a", "b"].map(|name| {
        let group = org.child(name, Limits::max(Bytes::mib(8)));
        Tenant::new(group.expect("the name is free"), Options::default())
    });
    let limits = Limits::max(Bytes::mib(5));
    let limited = a.query().name("etl").limits(limits).build();
    let limited: Arc<dyn MemoryPool> = limited.expect("5 of 8 MiB");
    let join = holding("join", &limited);
    join.try_grow(3 * MIB).expect("there is room");
    let expected = "for join with 3.0 MB already allocated for this reservation - 2.0 MB remain \
                    available for the total memory pool: highwater(/org/a/etl-0, used: 3.0 MB, \
                    limit: 5.0 MB); group /org/a/etl-0 is full: 3.0 MB of 5.0 MB used, 1 query of \
                    /org/a; raise its maximum (Group::set_max) or run fewer queries; largest \
                    consumers of /org/a: other memory of etl-0 3.0 MB";
    let text = refusal(&join, 3 * MIB);
    assert!(text.ends_with(expected), "{text}");
    let second = query(&a);
    let other = holding("other", &second);
    other.try_grow(3 * MIB).expect("there is room");
    let expected = "group /org/a is full: 6.0 MB of 8.0 MB used, 2 queries of /org/a; raise";
    let text = refusal(&other, 3 * MIB);
    assert!(text.contains(expected), "{text}");
    let third = query(&b);
    let sort = holding("sort", &third);
    sort.try_grow(4 * MIB).expect("there is room");
    let text = refusal(&sort, 3 * MIB);
    let expected = "group /org is full: 10.0 MB of 12.0 MB used, 1 query of /org/b; raise";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains(" - 2.0 MB remain available"), "{text}");
    assert_eq!((a.counts().refused_full, b.counts().refused_full), (2, 1));
}

// Goal: the three largest consumers of the tenant are named, with their queries, the largest first,
// without those that hold nothing; and what a query has beside consumers that are counted, which
// those that cannot spill are only if all are tracked. None of another tenant.
#[test]
fn the_three_largest_consumers_are_named() {
    for (tracks_all, expected) in [
        (
            true,
            "; largest consumers of /a: e of query-0 5.0 MB, d of query-0 4.0 MB, c of query-1 \
             3.0 MB",
        ),
        (
            false,
            "; largest consumers of /a: other memory of query-0 6.0 MB, d of query-0 4.0 MB, other \
             memory of query-1 3.0 MB",
        ),
    ] {
        let hw = manager(Bytes::mib(32));
        let mut options = Options::default();
        options.tracks_all = tracks_all;
        let [a, b] = ["a", "b"].map(|name| tenant(&hw, name, Bytes::mib(16), options.clone()));
        let other = query(&b);
        let other = spilling("other", &other);
        other.try_grow(8 * MIB).expect("there is room");
        let pools = [(); 2].map(|()| a.query().build().expect("no limits"));
        let all: Vec<_> = ["z", "y", "b", "c", "d", "e"]
            .into_iter()
            .enumerate()
            .map(|(mib, name)| {
                let pool: Arc<dyn MemoryPool> = Arc::clone(&pools[mib / 2 % 2]) as _;
                let register = if mib % 2 == 0 { spilling } else { holding };
                let consumer = register(name, &pool);
                consumer.try_grow(mib * MIB).expect("there is room");
                consumer
            })
            .collect();
        let text = refusal(&all[1], 2 * MIB);
        assert!(text.ends_with(expected), "{text}");
        all[4].shrink(4 * MIB);
        let uses = pools[0].consumers().into_iter();
        let uses: Vec<_> = uses
            .map(|it| (it.name, it.can_spill, it.bytes, it.peak))
            .collect();
        let d = ("d".to_owned(), true, Bytes::ZERO, Bytes::mib(4));
        assert!(uses.contains(&d), "{uses:?}");
        assert_eq!(uses.len(), if tracks_all { 4 } else { 2 });
        drop(all);
        assert_eq!(pools[0].consumers(), []);
    }
}

// Goal: each other reason has its text and its count. Method: a charge of the program waits in line
// at the tenant; then the query is stopped.
#[test]
fn a_query_behind_others_and_one_that_was_stopped_are_told_so() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(4), Options::default());
    let pool = tenant.query().build().expect("no limits");
    let shared: Arc<dyn MemoryPool> = Arc::clone(&pool) as _;
    let join = holding("join", &shared);
    join.try_grow(3 * MIB).expect("there is room");
    let mut in_line = tenant.group().charge_async(Bytes::mib(2));
    assert!(
        block_on(poll_immediate(&mut in_line)).is_none(),
        "there is no room"
    );
    let text = refusal(&join, MIB);
    assert!(
        text.contains("; charges wait in line at /a: 1; largest"),
        "{text}"
    );
    drop(in_line);
    let counts = tenant.counts();
    assert_eq!((counts.refused_behind, counts.refused_full), (1, 0));
    pool.stop();
    let text = refusal(&join, 1);
    let expected = "; query /a/query-0 was stopped so that others have memory: it used 3.0 MB";
    assert!(text.ends_with(expected), "{text}");
    assert!(text.contains(" - 0.0 B remain available"), "{text}");
    join.grow(MIB);
    assert_eq!(pool.reserved(), 4 * MIB, "growing is never refused");
    assert_eq!(tenant.counts(), counts, "a stop is no lack of room");
    drop((join, shared, pool));
    assert!(tenant.group().children().is_empty());
}

// Goal: a query whose group would be too deep in the tree is refused by that reason, and loses
// nothing that it takes without asking. Method: a tenant as deep as a group can be.
#[test]
fn a_query_of_a_tenant_that_is_too_deep_is_refused_and_loses_nothing() {
    let hw = manager(Bytes::mib(16));
    let mut deepest = hw.root();
    while let Ok(child) = deepest.child("d", Limits::default()) {
        deepest = child;
    }
    let tenant = Tenant::new(deepest, Options::default());
    let pool = query(&tenant);
    let join = holding("join", &pool);
    let text = refusal(&join, 1);
    assert!(
        text.contains("; its group cannot be made: group /d/d/"),
        "{text}"
    );
    assert!(text.ends_with(", the deepest allowed"), "{text}");
    for bytes in [3, 5] {
        join.grow(bytes);
    }
    join.shrink(6);
    assert_eq!(
        (pool.reserved(), tenant.group().usage_precise()),
        (2, Bytes(2))
    );
    join.free();
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
    let limited = tenant.query().limits(Limits::max(Bytes(1))).build();
    assert!(limited.is_err(), "its group is made when it is built");
}

// Goal: a query is called by its name and a number, and `query` where no group can have the name;
// one with limits has its group when it is built, and its limit is the least on its path.
#[test]
fn a_query_is_called_by_its_name_and_a_number() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(4), Options::default());
    let long = "x".repeat(254);
    for (name, path) in [
        ("etl", "/a/etl-0"),
        ("etl", "/a/etl-1"),
        ("a/b", "/a/query-2"),
        (&long, "/a/query-3"),
        ("tab\t-", "/a/query-4"),
    ] {
        let limits = Limits::max(Bytes::mib(8));
        let pool = tenant
            .query()
            .name(name)
            .limits(limits)
            .build()
            .expect("limits");
        let group = &tenant.group().children()[0];
        assert_eq!(
            (group.path().to_string().as_str(), group.limits()),
            (path, limits)
        );
        assert!(matches!(pool.memory_limit(), MemoryLimit::Finite(size) if size == 4 * MIB));
        assert_eq!(tenant.counts().running, 1, "it was given limits");
        drop(pool);
        assert!(tenant.group().children().is_empty());
    }
    assert_eq!((tenant.counts().queries, tenant.counts().running), (5, 0));
}

// Goal: a reservation that holds no more than the floor is never refused for fairness, and with a
// byte more it is. Method: another consumer has all that consumers which can spill may have, and
// goes on having it.
#[test]
fn the_floor_of_fairness_is_exact() {
    let ceiling_of_100_mib = 80 * MIB;
    for (max, floor, least) in [
        (100, None, ceiling_of_100_mib / 64),
        (16, None, MIB),
        (100, Some(Bytes::ZERO), 0),
        (100, Some(Bytes::mib(3)), 3 * MIB),
    ] {
        let hw = manager(Bytes::mib(max));
        let mut options = Options::default();
        options.floor = floor;
        let tenant = tenant(&hw, "a", Bytes::mib(max), options);
        let pool = query(&tenant);
        let [hoard, sort] = ["hoard", "sort"].map(|name| spilling(name, &pool));
        let ceiling = (Bytes::mib(max).0 * 4 / 5) as usize;
        hoard.try_grow(ceiling).expect("it holds nothing");
        sort.try_grow(least).expect("it holds nothing");
        sort.try_grow(1).expect("it holds no more than the floor");
        let text = refusal(&sort, 1);
        assert!(text.contains("/a would have more than"), "{text}");
        let text = refusal(&hoard, 1);
        assert!(
            text.contains("while 2 consumers that can spill are active"),
            "{text}"
        );
        // A consumer is active while any of its reservations holds a byte, also a forced one.
        sort.free();
        sort.grow(5);
        let part = sort.split(3);
        sort.free();
        assert!(
            refusal(&hoard, 1).contains("while 2 consumers"),
            "{floor:?}"
        );
        part.free();
        let text = refusal(&hoard, 1);
        assert!(
            text.contains("while 1 consumer that can spill is active"),
            "{text}"
        );
        assert_eq!(
            (tenant.counts().refused_share, tenant.counts().refused_full),
            (4, 0)
        );
    }
}

// Goal: a consumer whose memory was taken on one thread and returned on another has no part of what
// the others share, though its query counts it until it ends. Method: one is of the query that is
// refused, and one of another.
#[test]
fn what_another_thread_returned_is_not_shared() {
    let hw = manager(Bytes::mib(100));
    let tenant = tenant(&hw, "a", Bytes::mib(100), Options::default());
    let (pool, other) = (query(&tenant), query(&tenant));
    let hoard = spilling("hoard", &pool);
    let sorts = [&pool, &other].map(|pool| spilling("sort", pool));
    thread::scope(|scope| {
        for sort in &sorts {
            scope.spawn(|| sort.try_grow(MIB).expect("there is room"));
        }
    });
    hoard.try_grow(30 * MIB).expect("it holds nothing");
    let join = holding("join", &pool);
    join.try_grow(35 * MIB).expect("there is room");
    let text = refusal(&hoard, MIB);
    assert!(text.contains("26.7 MB while 3 consumers"), "{text}");
    sorts.iter().for_each(|sort| _ = sort.free());
    hoard.try_grow(MIB).expect("all may be its share");
    join.free();
    hoard.try_grow(45 * MIB).expect("it is alone");
    drop(sorts);
    let text = refusal(&hoard, 5 * MIB);
    assert!(text.contains("80.0 MB while 1 consumer that"), "{text}");
}

// Goal: consumers that can spill leave the stated part to those that cannot: nothing, a quarter,
// all but the floor. Method: one grows by a mebibyte until it is refused; a share may be missed by
// a 64th of itself.
#[test]
fn the_part_for_consumers_that_cannot_spill_is_as_stated() {
    for (reserve, most) in [(0.0, 64), (0.25, 48), (1.0, 2)] {
        let hw = manager(Bytes::mib(64));
        let mut options = Options::default();
        options.unspillable_reserve = reserve;
        let tenant = tenant(&hw, "a", Bytes::mib(64), options);
        let pool = query(&tenant);
        let sort = spilling("sort", &pool);
        while sort.try_grow(MIB).is_ok() {}
        let mib = sort.size() / MIB;
        assert!((most - 1..=most).contains(&mib), "{reserve}: {mib} MiB");
        assert_eq!(tenant.counts().refused_share, u64::from(mib < 64));
        let join = holding("join", &pool);
        join.try_grow((64 - mib) * MIB).expect("what is left");
    }
}

// Symptom: a consumer far below its share was told that it had exceeded it, where operators that
// cannot spill used what it might have had.
#[test]
fn a_refusal_for_the_part_of_others_says_so() {
    let hw = manager(Bytes::mib(100));
    let tenant = tenant(&hw, "a", Bytes::mib(100), Options::default());
    let pool = query(&tenant);
    let (join, sort) = (holding("join", &pool), spilling("sort", &pool));
    join.try_grow(78 * MIB).expect("there is room");
    sort.try_grow(2 * MIB).expect("there is room");
    let expected = "/a would have more than 80.0 MB in use, and the rest is for operators that \
                    cannot spill (Options::unspillable_reserve)";
    let text = refusal(&sort, MIB);
    assert!(text.contains(expected), "{text}");
    assert_eq!(tenant.counts().refused_share, 1);
}

// Goal: a query's runtime has its pool and shares everything else with the one it is made of.
#[test]
fn a_runtime_differs_in_its_pool_alone() {
    let base = RuntimeEnvBuilder::new().build().expect("the default");
    let pool = Arc::new(HighwaterPool::standalone(MIB));
    let runtime = runtime_for(&base, Arc::clone(&pool)).expect("a runtime");
    let in_force = runtime.memory_pool.downcast_ref::<HighwaterPool>();
    assert!(std::ptr::eq(
        in_force.expect("it is ours"),
        &raw const *pool
    ));
    assert!(
        !base.memory_pool.is::<HighwaterPool>(),
        "the base keeps its own"
    );
    assert!(Arc::ptr_eq(&runtime.disk_manager, &base.disk_manager));

    let (ours, theirs) = (&runtime.object_store_registry, &base.object_store_registry);
    assert!(Arc::ptr_eq(ours, theirs));
    let [ours, theirs] = [&runtime.cache_manager, &base.cache_manager];
    assert!(Arc::ptr_eq(
        &ours.get_file_metadata_cache(),
        &theirs.get_file_metadata_cache()
    ));
    drop(runtime);
    assert_eq!(
        Arc::strong_count(&pool),
        1,
        "a runtime keeps its pool no longer than itself"
    );
}
