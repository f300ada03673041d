//! Promise: where a tenant is full, its largest query gives way and is told so; no query is a
//! victim of what it asks itself.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use datafusion_common::{DataFusionError, Result};
use datafusion_execution::memory_pool::{MemoryPool, MemoryReservation};
use futures::executor::block_on;
use highwater::group::Limits;
use highwater::{Bytes, Group, Manager};
use highwater_datafusion::{HighwaterPool, OnFull, Options, Retry, Stopped, Tenant};

use support::{MIB, holding, manager, query, spilling, tenant};

/// A tenant of all memory, whose queries give way.
fn giving_way(hw: &Manager) -> Tenant {
    let mut options = Options::default();
    options.on_full = OnFull::Victim;
    tenant(hw, "a", Bytes::mib(16), options)
}

// Symptom: a query stopped itself for memory that it could do without. Method: it is the only one,
// and asks for a consumer that can spill, which the refusal is for.
#[test]
fn a_query_is_no_victim_of_its_own() {
    let hw = manager(Bytes::mib(16));
    let tenant = giving_way(&hw);
    let pool = tenant.query().build().expect("no limits");
    let shared: Arc<dyn MemoryPool> = Arc::clone(&pool) as _;
    let join = holding("join", &shared);
    join.try_grow(12 * MIB).expect("there is room");
    let sort = spilling("sort", &shared);
    assert!(sort.try_grow(5 * MIB).is_err());
    assert!(!pool.is_stopped(), "a refusal is enough");
    assert!(sort.try_grow(MIB).is_ok());
}

#[test]
fn a_victim_is_told_and_gives_way() {
    let hw = manager(Bytes::mib(16));
    hw.root()
        .on_exhausted(|victim| unreachable!("the tenant has a handler: {victim:?}"));
    let tenant = giving_way(&hw);
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let hoards = scope.spawn(|| {
            let outcome = block_on(tenant.run(Retry::default(), |pool| async {
                let pool: Arc<dyn MemoryPool> = pool;
                let hoard = holding("hoard", &pool);
                hoard.try_grow(12 * MIB)?;
                std::future::pending::<Result<()>>().await
            }));
            stopped.store(true, Ordering::Relaxed);
            outcome
        });
        while tenant.group().usage_precise() < Bytes::mib(12) {
            thread::yield_now();
        }
        let pool = query(&tenant);
        let join = holding("join", &pool);
        join.try_grow(8 * MIB).expect("the victim gave way");
        let Err(DataFusionError::External(error)) = hoards.join().expect("no panic") else {
            panic!("the victim ends with the reason");
        };
        let stopped = error.downcast_ref::<Stopped>().expect("it was stopped");
        assert!(stopped.query.starts_with("/a/query-"), "{stopped}");
    });
    assert!(stopped.load(Ordering::Relaxed));
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
}

/// Returns queries of one tenant that hold so much.
fn hold<const N: usize>(
    tenant: &Tenant,
    mib: [usize; N],
) -> [(Arc<HighwaterPool>, MemoryReservation); N] {
    mib.map(|mib| {
        let pool = tenant.query().build().expect("no limits");
        let shared: Arc<dyn MemoryPool> = Arc::clone(&pool) as _;
        let join = holding("join", &shared);
        join.try_grow(mib * MIB).expect("there is room");
        (pool, join)
    })
}

/// Makes a request while another thread drops what a query has as soon as it is stopped.
fn gives_way<R>(pool: &HighwaterPool, held: MemoryReservation, request: impl Fn() -> R) -> R {
    thread::scope(|scope| {
        scope.spawn(move || {
            while !pool.is_stopped() {
                thread::yield_now();
            }
            drop(held);
        });
        let outcome = request();
        // Ends the thread also if another query was stopped.
        pool.stop();
        outcome
    })
}

// Symptom: a query that asked for more than it could ever have stopped its neighbours first.
#[test]
fn no_query_gives_way_to_one_that_is_refused_all_the_same() {
    let hw = manager(Bytes::mib(16));
    let tenant = giving_way(&hw);
    let [(_, large), (b, _b), (c, _c)] = hold(&tenant, [12, 1, 1]);
    assert!(large.try_grow(5 * MIB).is_err(), "17 of 16 MiB");
    assert!(!b.is_stopped() && !c.is_stopped());
    let limits = Limits::max(Bytes::mib(2));
    let limited = tenant.query().limits(limits).build().expect("limits");
    let shared: Arc<dyn MemoryPool> = Arc::clone(&limited) as _;
    let join = holding("join", &shared);
    join.try_grow(MIB).expect("there is room");
    assert!(join.try_grow(2 * MIB).is_err(), "its own maximum");
    assert!(!limited.is_stopped() && !b.is_stopped() && !c.is_stopped());
    let kills = |group: &Group| group.events().oom_kill;
    assert_eq!(kills(limited.group().expect("it has charged")), 0);
    assert_eq!(kills(tenant.group()), 0);
}

// Symptom: the neighbours of a query were stopped, although what the program itself had charged to
// their tenant left no room for its request. Method: a request that is too large beside that, and
// one that is not.
#[test]
fn no_query_gives_way_to_one_that_does_not_fit_beside_the_program() {
    let hw = manager(Bytes::mib(16));
    let tenant = giving_way(&hw);
    let of_program = tenant.group().try_charge(Bytes::mib(10));
    let of_program = of_program.expect("there is room");
    let [(neighbour, held), (_, asks)] = hold(&tenant, [4, 0]);
    assert!(asks.try_grow(8 * MIB).is_err(), "18 of 16 MiB");
    assert!(!neighbour.is_stopped());
    let granted = gives_way(&neighbour, held, || asks.try_grow(6 * MIB));
    granted.expect("the neighbour gave way");
    drop(of_program);
}

// Symptom: a query that ran below another one stopped that, and with it itself, although a
// neighbour had what it lacked. Method: the outer query is the larger one.
#[test]
fn a_query_within_a_query_does_not_stop_it() {
    let hw = manager(Bytes::mib(16));
    let tenant = giving_way(&hw);
    let [(outer, _outer), (neighbour, held)] = hold(&tenant, [6, 4]);
    let below = outer.group().expect("it has charged");
    let below = below.child("inner", Limits::default()).expect("it is free");
    let mut options = Options::default();
    options.on_full = OnFull::Victim;
    let inner = query(&Tenant::new(below, options));
    let join = holding("join", &inner);
    assert!(join.try_grow(11 * MIB).is_err(), "17 of 16 MiB");
    assert!(!outer.is_stopped() && !neighbour.is_stopped());
    let granted = gives_way(&neighbour, held, || join.try_grow(9 * MIB));
    assert!(!outer.is_stopped(), "the query runs within it");
    granted.expect("the neighbour gave way");
}

// Goal: of two adapters in one program, each stops its own. Method: the largest group belongs to no
// query; a tenant without a protection to speak of is asked before it, and has nothing to give.
#[test]
fn a_victim_outside_the_queries_is_for_the_handler_of_the_program() {
    let hw = manager(Bytes::mib(16));
    let tenant = giving_way(&hw);
    let cache = hw
        .root()
        .child("cache", Limits::default())
        .expect("the name is free");
    let cached = cache.try_charge(Bytes::mib(12)).expect("there is room");
    let cached = std::sync::Mutex::new(Some(cached));
    hw.root().on_exhausted(move |victim| {
        assert!(!HighwaterPool::stop_victim(victim));
        assert_eq!(victim.group().path(), "/cache");
        drop(cached.lock().expect("no panic").take());
    });
    let pool = query(&tenant);
    let join = holding("join", &pool);
    join.try_grow(8 * MIB).expect("the cache gave way");
}

// Symptom: a stopped query that did not end was counted on again and again, so that its tenant gave
// nothing, and the query of a tenant within its protection was stopped instead. Method: the one
// that does not end is the largest of its tenant; requests wait two seconds, in which the other
// ends on any machine.
#[test]
fn a_stopped_query_that_does_not_end_shields_no_other() {
    let built = Manager::builder()
        .capacity(Bytes::mib(64))
        .frames(Bytes::ZERO);
    let hw = built.grace(Duration::from_secs(2)).build();
    let hw = hw.expect("without frames");
    let tenant = |name, low| {
        let limits = Limits {
            low: Bytes::mib(low),
            ..Limits::max(Bytes::mib(60))
        };
        let group = hw.root().child(name, limits).expect("the name is free");
        let mut options = Options::default();
        options.on_full = OnFull::Victim;
        Tenant::new(group, options)
    };
    let (many, one, third) = (tenant("many", 0), tenant("one", 24), tenant("third", 24));
    let [(stuck, held), (protected, _large)] = [(&many, 20), (&one, 22)].map(|(tenant, mib)| {
        let [query] = hold(tenant, [mib]);
        query
    });
    stuck.stop();
    thread::sleep(Duration::from_millis(2_100));
    thread::scope(|scope| {
        let others = scope.spawn(|| {
            block_on(many.run(Retry::never(), |pool| async {
                let pool: Arc<dyn MemoryPool> = pool;
                let hoard = holding("hoard", &pool);
                hoard.try_grow(16 * MIB)?;
                std::future::pending::<Result<()>>().await
            }))
        });
        while many.group().usage_precise() < Bytes::mib(36) {
            thread::yield_now();
        }
        let pool = query(&third);
        let join = holding("join", &pool);
        join.try_grow(8 * MIB)
            .expect("another of the tenant gave way");
        assert!(others.join().expect("no panic").is_err());
    });
    assert!(!protected.is_stopped(), "it is within its protection");
    drop(held);
}
