//! Promise: tenants stay within their maxima whatever their queries do, and nothing waits inside a
//! call.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use datafusion_execution::memory_pool::{MemoryPool, MemoryReservation};
use futures::executor::block_on;
use highwater::Bytes;
use highwater::group::Limits;
use highwater_datafusion::{Fairness, Options, Tenant};

use support::{MIB, holding, manager, query, spilling, tenant};

#[test]
fn one_tenant_cannot_starve_another() {
    let hw = manager(Bytes::mib(16));
    let [a, b] = ["a", "b"].map(|name| tenant(&hw, name, Bytes::mib(8), Options::default()));
    let greedy = query(&a);
    let hoard = holding("hoard", &greedy);
    while hoard.try_grow(MIB).is_ok() {}
    assert_eq!(hoard.size(), 8 * MIB);
    let modest = query(&b);
    holding("join", &modest)
        .try_grow(8 * MIB)
        .expect("the other tenant's part");
    assert_eq!((a.counts().refused_full, b.counts().refused_full), (1, 0));
}

#[test]
fn limits_change_while_queries_run_and_force_is_paid_back() {
    let hw = manager(Bytes::mib(64));
    let tenant = tenant(&hw, "a", Bytes::mib(8), Options::default());
    let pool = query(&tenant);
    let join = holding("join", &pool);
    join.try_grow(6 * MIB).expect("there is room");
    assert!(
        tenant.group().set_max(Bytes::mib(4)).is_err(),
        "more is used"
    );
    assert!(join.try_grow(1).is_err());
    join.grow(2 * MIB);
    assert_eq!(tenant.counts().forced, Bytes::mib(2));
    assert_eq!(tenant.group().debt(), Bytes::mib(4));
    let text = join.try_grow(1).expect_err("in debt").to_string();
    assert!(text.contains("/a is 4.0 MB in debt"), "{text}");
    join.shrink(5 * MIB);
    join.try_grow(MIB).expect("paid back");
    tenant.group().set_max(Bytes::mib(16)).expect("raised");
    join.try_grow(8 * MIB).expect("the new maximum");
}

// Symptom: what a query had reserved counted as forced, too. Method: a full tenant, of which half
// is the query's reserve; one forced call uses that up and 2 MiB more.
#[test]
fn forced_bytes_are_those_beyond_the_reserve() {
    let hw = manager(Bytes::mib(64));
    let tenant = tenant(&hw, "a", Bytes::mib(8), Options::default());
    let admitted = block_on(tenant.admit(Bytes::mib(4))).expect("there is room");
    let pool: Arc<dyn MemoryPool> = admitted;
    let neighbour = query(&tenant);
    let hoard = holding("hoard", &neighbour);
    hoard.try_grow(4 * MIB).expect("there is room");
    let join = holding("join", &pool);
    join.grow(6 * MIB);
    assert_eq!(tenant.group().debt(), Bytes::mib(2));
    assert_eq!(tenant.counts().forced, Bytes::mib(2));
}

#[test]
fn no_call_waits() {
    // A full tenant refuses at once, also on a thread that is all of a runtime.
    let hw = manager(Bytes::mib(4));
    let options = Options::default();
    let tenant = tenant(&hw, "a", Bytes::mib(4), options);
    let pool = query(&tenant);
    let join = holding("join", &pool);
    join.try_grow(4 * MIB).expect("there is room");
    // Nothing is ever given back: a wait in the queue of a group would have no end.
    assert!((0..100).all(|_| join.try_grow(1).is_err()));
}

#[test]
fn spilling_consumers_share_what_those_leave_that_cannot_spill() {
    let hw = manager(Bytes::mib(100));
    let tenant = tenant(&hw, "a", Bytes::mib(100), Options::default());
    let pool = query(&tenant);
    let [first, second, idle] = ["first", "second", "idle"].map(|name| spilling(name, &pool));
    first
        .try_grow(38 * MIB)
        .expect("less than half of what may be used");
    second.try_grow(30 * MIB).expect("less than its half");
    let text = first
        .try_grow(4 * MIB)
        .expect_err("more than its half")
        .to_string();
    assert!(
        text.contains("its fair share of /a is 40.0 MB while 2 consumers"),
        "{text}"
    );
    second.try_grow(10 * MIB).expect("its half");
    // A fifth is left to those that cannot spill.
    let join = holding("join", &pool);
    join.try_grow(20 * MIB).expect("the reserve");
    assert_eq!(tenant.counts().refused_share, 1);
    // One that holds little is refused for lack of room only.
    join.shrink(8 * MIB);
    idle.try_grow(8 * MIB).expect("it holds nothing");
    // What a consumer holds counts over all its reservations.
    let part = second.split(20 * MIB);
    assert!(
        part.try_grow(4 * MIB).is_err(),
        "20 MiB here and 20 MiB there"
    );
    drop((first, second, part, idle));
    // One that is left has all that may be used.
    let last = spilling("last", &pool);
    last.try_grow(60 * MIB).expect("alone");
    last.try_grow(7 * MIB).expect("alone");
    assert!(
        last.try_grow(2 * MIB).is_err(),
        "the part of those that cannot spill"
    );
}

#[test]
fn without_fairness_the_first_takes_all() {
    let hw = manager(Bytes::mib(100));
    let mut options = Options::default();
    options.fairness = Fairness::None;
    let tenant = tenant(&hw, "a", Bytes::mib(100), options);
    let pool = query(&tenant);
    let first = spilling("first", &pool);
    first.try_grow(50 * MIB).expect("room");
    first.try_grow(50 * MIB).expect("room");
}

#[test]
fn two_tenants_of_one_group_share_its_names() {
    let hw = manager(Bytes::mib(16));
    let first = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let second = Tenant::new(first.group().clone(), Options::default());
    let of_program = first.group().child("query-1", Limits::default());
    let of_program = of_program.expect("the name is free");
    let pools = [&first, &second, &first, &second].map(query);
    let held = pools.each_ref().map(|pool| holding("join", pool));
    for join in &held {
        join.try_grow(1).expect("there is room");
    }
    assert_eq!(first.group().children().len(), 5);
    assert_eq!(first.group().usage_precise(), Bytes(4));
    drop((held, of_program));
}

#[test]
fn limits_of_a_query_that_contradict_each_other_are_refused_when_it_is_built() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let limits = Limits {
        low: Bytes(2),
        ..Limits::max(Bytes(1))
    };
    assert!(tenant.query().limits(limits).build().is_err());
    assert_eq!(tenant.counts().running, 0);
    assert!(tenant.group().children().is_empty());
}

#[test]
fn queries_of_a_tenant_that_was_removed_are_refused_and_lose_nothing() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let pool = query(&tenant);
    tenant
        .group()
        .remove()
        .expect("it has no query with memory");
    let join = holding("join", &pool);
    let text = join.try_grow(MIB).expect_err("removed").to_string();
    assert!(text.contains("its group cannot be made"), "{text}");
    join.grow(3 * MIB);
    join.grow(MIB);
    assert_eq!(
        (pool.reserved(), hw.root().usage_precise()),
        (4 * MIB, Bytes::mib(4))
    );
    join.shrink(2 * MIB);
    assert_eq!(hw.root().usage_precise(), Bytes::mib(2));
    drop((join, pool));
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
}

// Symptom: what a query forced after its group was removed was charged to a group above it, and
// returned to the removed one: a panic, or another query's bytes. Method: the group of a query that
// holds memory is removed, then its tenant; without a reserve and with one.
#[test]
fn what_is_forced_after_a_removal_is_returned_where_it_was_charged() {
    for reserve in [0, 2 * MIB] {
        let hw = manager(Bytes::mib(16));
        let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
        let admitted = block_on(tenant.admit(Bytes(reserve as u64)));
        let admitted = admitted.expect("there is room");
        let pool: Arc<dyn MemoryPool> = admitted.clone();
        let join = holding("join", &pool);
        join.try_grow(3 * MIB).expect("there is room");
        let group = admitted.group().expect("it was charged");
        group.remove().expect("it has no children");
        tenant.group().remove().expect("it has no children");
        assert!(join.try_grow(MIB).is_err(), "removed");
        join.grow(4 * MIB);
        join.grow(MIB);
        let used = || hw.root().usage_precise();
        assert_eq!(used(), Bytes::mib(8));
        // The next in its place has bytes of its own.
        let next = hw.root().child("a", Limits::default());
        let next = next.expect("the name is free");
        let kept = next.charge(Bytes::mib(2)).expect("there is room");
        join.shrink(6 * MIB);
        assert_eq!(used(), Bytes::mib(4));
        drop((join, pool, admitted));
        assert_eq!((used(), next.usage_precise()), (kept.bytes(), kept.bytes()));
    }
}

// Symptom: where a query was admitted with a reserve, one consumer had all of that but a fifth, and
// another was refused what it had without a reserve.
#[test]
fn consumers_share_a_reserve_as_they_share_a_tenants_maximum() {
    let hw = manager(Bytes::mib(100));
    let tenant = tenant(&hw, "a", Bytes::mib(100), Options::default());
    let admitted = || -> Arc<dyn MemoryPool> {
        block_on(tenant.admit(Bytes::mib(100))).expect("there is room")
    };
    let pools: [&dyn Fn() -> Arc<dyn MemoryPool>; 2] = [&|| query(&tenant), &admitted];
    for pool in pools {
        let pool = pool();
        let [first, second] = ["first", "second"].map(|name| spilling(name, &pool));
        second.try_grow(MIB).expect("there is room");
        while first.try_grow(MIB).is_ok() {}
        assert_eq!(first.size(), 40 * MIB);
        second.try_grow(30 * MIB).expect("it has its share");
        drop(second);
        first.try_grow(30 * MIB).expect("it is alone");
        assert!(first.try_grow(11 * MIB).is_err(), "the rest is not for it");
        holding("join", &pool)
            .try_grow(30 * MIB)
            .expect("what is left");
    }
}

#[test]
fn many_threads_never_pass_the_maximum_and_lose_nothing() {
    const ROUNDS: u32 = 3_000;
    let hw = manager(Bytes::mib(64));
    let max = Bytes(40 * MIB as u64 + 123);
    let tenant = tenant(&hw, "a", max, Options::default());
    let mut pools: Vec<_> = (0..2).map(|_| query(&tenant)).collect();
    pools.push(block_on(tenant.admit(Bytes::mib(5))).expect("there is room"));
    let shared: Vec<_> = pools.iter().map(|pool| spilling("shared", pool)).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                let (pools, shared) = (&pools, &shared);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    let mut held: Vec<MemoryReservation> = Vec::new();
                    for _ in 0..ROUNDS {
                        let nth = random.usize(..pools.len());
                        match random.u32(..6) {
                            0 => held.push(holding("own", &pools[nth])),
                            1 => held.push(shared[nth].new_empty()),
                            2 if !held.is_empty() => {
                                drop(held.swap_remove(random.usize(..held.len())));
                            }
                            3 if !held.is_empty() => {
                                let one = &held[random.usize(..held.len())];
                                one.shrink(random.usize(..=one.size()));
                            }
                            _ if !held.is_empty() => {
                                let one = &held[random.usize(..held.len())];
                                _ = one.try_grow(random.usize(..2 * MIB));
                            }
                            _ => {}
                        }
                        held.truncate(24);
                    }
                })
            })
            .collect();
        let watches = scope.spawn(|| {
            let mut looks = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                let usage = tenant.group().usage_precise();
                assert!(usage <= max, "{usage} of {max}");
                looks += 1;
            }
            looks
        });
        workers
            .into_iter()
            .for_each(|it| it.join().expect("no panic"));
        is_over.store(true, Ordering::Relaxed);
        assert!(watches.join().expect("never above the maximum") > 0);
    });
    drop(shared);
    assert!(pools.iter().all(|pool| pool.reserved() == 0));
    drop(pools);
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
    assert!(tenant.group().children().is_empty(), "no group is left");
}
