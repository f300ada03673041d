//! Promise: where a tenant is full, its largest query gives way and is told so; no query is a
//! victim of what it asks itself.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use datafusion_common::{DataFusionError, Result};
use datafusion_execution::memory_pool::MemoryPool;
use futures::executor::block_on;
use highwater::Bytes;
use highwater::group::Limits;
use highwater_datafusion::{HighwaterPool, OnFull, Options, Retry, Stopped};

use support::{MIB, holding, manager, query, spilling, tenant};

// Symptom: a query stopped itself for memory that it could do without. Method: it is the only one,
// and asks for a consumer that can spill, which the refusal is for.
#[test]
fn a_query_is_no_victim_of_its_own() {
    let hw = manager(Bytes::mib(16));
    let mut options = Options::default();
    options.on_full = OnFull::Victim;
    let tenant = tenant(&hw, "a", Bytes::mib(16), options);
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
    hw.on_exhausted(|victim| unreachable!("the tenant has a handler: {victim:?}"));
    let mut options = Options::default();
    options.on_full = OnFull::Victim;
    let tenant = tenant(&hw, "a", Bytes::mib(16), options);
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

// Goal: of two adapters in one program, each stops its own. Method: the largest group belongs to no
// query; a tenant without a protection to speak of is asked before it, and has nothing to give.
#[test]
fn a_victim_outside_the_queries_is_for_the_handler_of_the_program() {
    let hw = manager(Bytes::mib(16));
    let mut options = Options::default();
    options.on_full = OnFull::Victim;
    let tenant = tenant(&hw, "a", Bytes::mib(16), options);
    let cache = hw
        .root()
        .child("cache", Limits::default())
        .expect("the name is free");
    let cached = cache.try_charge(Bytes::mib(12)).expect("there is room");
    let cached = std::sync::Mutex::new(Some(cached));
    hw.on_exhausted(move |victim| {
        assert!(!HighwaterPool::stop_victim(victim));
        assert_eq!(victim.group().path(), "/cache");
        drop(cached.lock().expect("no panic").take());
    });
    let pool = query(&tenant);
    let join = holding("join", &pool);
    join.try_grow(8 * MIB).expect("the cache gave way");
}
