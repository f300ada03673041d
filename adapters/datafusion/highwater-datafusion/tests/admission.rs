//! Promise: a query that waits for memory waits in order and holds nothing, a query that was
//! refused passes when it can have its reserve, and none waits for memory that no query returns.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use datafusion_common::{DataFusionError, Result};
use datafusion_execution::memory_pool::MemoryPool;
use futures::executor::block_on;
use highwater::group::Limits;
use highwater::{Bytes, Manager};
use highwater_datafusion::{HighwaterPool, OnFull, Options, Retry, Stopped, Tenant};

use support::{MIB, holding, manager, query, spilling, tenant};

#[test]
fn what_a_query_was_admitted_with_is_its_own() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let admitted = block_on(tenant.admit(Bytes::mib(10))).expect("there is room");
    let pool: Arc<dyn MemoryPool> = admitted;
    assert_eq!(pool.reserved(), 0);
    let other = query(&tenant);
    let hoard = holding("hoard", &other);
    assert!(hoard.try_grow(7 * MIB).is_err());
    hoard.try_grow(6 * MIB).expect("what is left");
    let join = holding("join", &pool);
    join.try_grow(10 * MIB).expect("its own");
    assert!(join.try_grow(1).is_err());
    join.shrink(10 * MIB);
    assert!(hoard.try_grow(1).is_err(), "what it returns stays its own");
    assert_eq!(tenant.group().usage_precise(), Bytes::mib(16));
    drop((join, pool));
    hoard.try_grow(10 * MIB).expect("its end");
    drop((hoard, other));
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
    assert!(tenant.group().children().is_empty());
}

/// Counts its wake-ups.
#[derive(Default)]
struct Bell(AtomicU32);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn admission_is_in_order_and_dropping_gives_up_the_place() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let running = block_on(tenant.admit(Bytes::mib(12))).expect("there is room");
    let bells: [Arc<Bell>; 3] = Default::default();
    let wakers = bells.each_ref().map(|bell| Waker::from(Arc::clone(bell)));
    let mut large = Box::pin(tenant.admit(Bytes::mib(8)));
    let mut small = Box::pin(tenant.admit(Bytes::mib(1)));
    let mut optimistic = Box::pin(tenant.admit(Bytes::ZERO));
    let poll = |future: &mut std::pin::Pin<Box<_>>, nth: usize| {
        fn polled<F: Future>(
            future: &mut std::pin::Pin<Box<F>>,
            context: &mut Context<'_>,
        ) -> Poll<F::Output> {
            future.as_mut().poll(context)
        }
        polled(future, &mut Context::from_waker(&wakers[nth]))
    };
    assert!(poll(&mut large, 0).is_pending(), "there is no room");
    let mut contexts = [1, 2].map(|nth| Context::from_waker(&wakers[nth]));
    assert!(
        small.as_mut().poll(&mut contexts[0]).is_pending(),
        "there is room, but not its turn"
    );
    assert!(
        optimistic.as_mut().poll(&mut contexts[1]).is_pending(),
        "not its turn"
    );
    assert_eq!(tenant.counts().waiting, 3);
    // Memory of queries that run is not withheld from them.
    let pool = query(&tenant);
    holding("join", &pool)
        .try_grow(3 * MIB)
        .expect("queries that run go first");
    drop(large);
    assert_eq!(bells[1].0.load(Ordering::Relaxed), 1, "the next is woken");
    let Poll::Ready(Ok(second)) = small.as_mut().poll(&mut contexts[0]) else {
        panic!("it is the first, and there is room");
    };
    assert_eq!(bells[2].0.load(Ordering::Relaxed), 1);
    assert!(optimistic.as_mut().poll(&mut contexts[1]).is_ready());
    drop((running, second));
    let refused = block_on(tenant.admit(Bytes::mib(17))).expect_err("never");
    assert!(refused.to_string().contains("never admitted"), "{refused}");
    assert_eq!((tenant.counts().waiting, tenant.counts().waited), (0, 3));
}

#[test]
fn room_in_an_ancestor_wakes_the_queues_of_other_tenants() {
    let hw = manager(Bytes::mib(16));
    let [a, b] = ["a", "b"].map(|name| tenant(&hw, name, Bytes::mib(12), Options::default()));
    let running = query(&a);
    let join = holding("join", &running);
    join.try_grow(10 * MIB).expect("there is room");
    let admitted = AtomicBool::new(false);
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let pool = block_on(b.admit(Bytes::mib(10))).expect("room at last");
            admitted.store(true, Ordering::Relaxed);
            drop(pool);
        });
        while b.counts().waiting == 0 {
            thread::yield_now();
        }
        assert!(!admitted.load(Ordering::Relaxed));
        drop((join, running));
        waits.join().expect("it was admitted");
    });
}

/// Asks for memory as a query that needs all of it before its first row.
async fn needs(pool: Arc<HighwaterPool>, bytes: usize) -> Result<usize> {
    let pool: Arc<dyn MemoryPool> = pool;
    let join = holding("join", &pool);
    for _ in 0..bytes / MIB {
        join.try_grow(MIB)?;
        Yield(false).await;
    }
    Ok(join.size())
}

/// Lets other tasks run once.
struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[test]
fn a_refused_query_passes_when_it_runs_alone() {
    // Eight queries, each of which needs three quarters of the tenant's maximum.
    for nr_tenants in [1, 2] {
        let hw = manager(Bytes::mib(16));
        let tenants: Vec<_> = (0..nr_tenants)
            .map(|nth| tenant(&hw, &format!("t{nth}"), Bytes::mib(16), Options::default()))
            .collect();
        let queries = (0..8).map(|nth| {
            let tenant: &Tenant = &tenants[nth % nr_tenants];
            tenant.run(Retry::default(), |pool| needs(pool, 12 * MIB))
        });
        for outcome in block_on(futures::future::join_all(queries)) {
            assert_eq!(outcome.expect("it passes alone"), 12 * MIB);
        }
        assert!(
            tenants[0].counts().waited > 0,
            "they were in each other's way"
        );
        assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
    }
}

#[test]
fn what_is_not_for_lack_of_memory_is_not_run_again() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let mut runs = 0;
    let outcome = block_on(tenant.run(Retry::default(), |_| {
        runs += 1;
        async { Err::<(), _>(DataFusionError::Plan("no such table".into())) }
    }));
    assert!(matches!(outcome, Err(DataFusionError::Plan(_))));
    assert_eq!(runs, 1);
    let mut runs = 0;
    let retry = Retry::never();
    let outcome = block_on(tenant.run(retry, |pool| {
        runs += 1;
        needs(pool, 17 * MIB)
    }));
    assert!(matches!(
        outcome,
        Err(DataFusionError::ResourcesExhausted(_))
    ));
    assert_eq!(runs, 1);
}

// Symptom: a query that waited for all of its tenant's memory waited for ever, and the queries
// behind it, because the program had charged a little to the tenant meanwhile. Method: also a
// maximum that is lowered meanwhile.
#[test]
fn a_query_that_waits_for_all_takes_what_there_is_by_then() {
    for lowered in [false, true] {
        let hw = manager(Bytes::mib(16));
        let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
        let mut neighbour = Some(block_on(tenant.admit(Bytes::mib(8))).expect("there is room"));
        let mut lasting = None;
        let query = tenant.run(Retry::default(), |pool| needs(pool, 10 * MIB));
        let meanwhile = async {
            while tenant.counts().waiting == 0 {
                Yield(false).await;
            }
            match lowered {
                true => tenant.group().set_max(Bytes::mib(12)).expect("8 are used"),
                false => lasting = tenant.group().try_charge(Bytes::mib(1)).ok(),
            }
            neighbour = None;
        };
        let (outcome, ()) = block_on(futures::future::join(query, meanwhile));
        assert_eq!(outcome.expect("there is enough"), 10 * MIB);
        assert_eq!(lasting.is_some(), !lowered);
    }
}

/// Runs a future to its end, in at most so many polls that a query takes which waits for nothing.
fn within_reason<F: Future>(future: F) -> F::Output {
    let mut future = Box::pin(future);
    let mut nr_polls = 0;
    block_on(std::future::poll_fn(move |context| {
        nr_polls += 1;
        assert!(nr_polls < 100_000, "it waits for ever");
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            context.waker().wake_by_ref();
        }
        polled
    }))
}

/// Runs a query that needs so much beside one with 8 MiB, which ends when the other waits.
fn after_a_neighbour(tenant: &Tenant, bytes: usize) -> Result<usize> {
    let mut neighbour = Some(block_on(tenant.admit(Bytes::mib(8))).expect("there is room"));
    let query = tenant.run(Retry::default(), |pool| needs(pool, bytes));
    let meanwhile = async {
        while tenant.counts().waiting == 0 {
            Yield(false).await;
        }
        neighbour = None;
    };
    within_reason(futures::future::join(query, meanwhile)).0
}

// Symptom: the last attempt of a query waited for ever, and the queries behind it, for the reserve
// of the one before, whose pool the program kept. Method: the second attempt reserves everything;
// then a pool that was kept charges as before, without a reserve.
#[test]
fn a_pool_that_is_kept_from_a_former_attempt_is_not_waited_for() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let mut kept = Vec::new();
    let outcome = within_reason(tenant.run(Retry::default(), |pool| {
        kept.push(Arc::clone(&pool));
        needs(pool, if kept.len() < 3 { 17 * MIB } else { MIB })
    }));
    assert_eq!(outcome.expect("the last attempt passes"), MIB);
    assert_eq!(tenant.group().usage_precise(), Bytes::mib(16));
    drop(kept.pop());
    assert_eq!(tenant.group().usage_precise(), Bytes::ZERO);
    let former: Arc<dyn MemoryPool> = kept.pop().expect("the second");
    let join = holding("join", &former);
    join.try_grow(3 * MIB + 1).expect("there is room");
    join.shrink(MIB);
    assert_eq!(former.reserved(), 2 * MIB + 1);
    assert_eq!(tenant.group().usage_precise(), Bytes::mib(2) + Bytes(1));
    drop((join, former));
    assert_eq!(tenant.group().usage_precise(), Bytes::ZERO);
}

// Symptom: a query that waited to run alone waited for memory that the program keeps in another
// group, above the tenant or below it, as if a query would return it.
#[test]
fn memory_that_the_program_keeps_elsewhere_is_not_waited_for() {
    for path in ["/cache", "/a/cache"] {
        let hw = manager(Bytes::mib(16));
        let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
        let parent = match path {
            "/cache" => hw.root(),
            _ => tenant.group().clone(),
        };
        let cache = parent
            .child("cache", Limits::default())
            .expect("it is free");
        let kept = cache.try_charge(Bytes::mib(1)).expect("there is room");
        let outcome = after_a_neighbour(&tenant, 12 * MIB);
        assert_eq!(outcome.expect("there is enough"), 12 * MIB, "{path}");
        drop(kept);
    }
}

// Goal: a query may run queries of a tenant of its own below its group: these do not wait for it.
#[test]
fn a_query_within_a_query_does_not_wait_for_it() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let outer = tenant.query().build().expect("no limits");
    let shared: Arc<dyn MemoryPool> = Arc::clone(&outer) as _;
    let held = holding("join", &shared);
    held.try_grow(6 * MIB).expect("there is room");
    let below = outer.group().expect("it has charged");
    let below = below.child("inner", Limits::default()).expect("it is free");
    let inner = Tenant::new(below, Options::default());
    let outcome = after_a_neighbour(&inner, 9 * MIB);
    assert_eq!(outcome.expect("there is enough"), 9 * MIB);
}

#[test]
fn a_maximum_that_changes_is_no_reason_to_refuse_admission() {
    // Method: one thread raises and lowers the maximum while queries ask for all there is.
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for mib in [12, 16] {
                    // Refused while a query has all.
                    _ = tenant.group().set_max(Bytes::mib(mib));
                    tenant.admission().wake();
                }
            }
        });
        for _ in 0..2_000 {
            let mut runs = 0;
            let outcome = block_on(tenant.run(Retry::default().with_attempts(2), |pool| {
                runs += 1;
                // The first attempt is refused, so that the second reserves all.
                needs(pool, if runs == 1 { 17 * MIB } else { MIB })
            }));
            assert_eq!(outcome.expect("it is admitted"), MIB);
        }
        is_over.store(true, Ordering::Relaxed);
        changes.join().expect("no panic");
    });
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
}

// Symptom: a query was refused, for fairness, what it was admitted with.
#[test]
fn fairness_leaves_a_query_what_it_was_admitted_with() {
    let hw = manager(Bytes::mib(100));
    let tenant = tenant(&hw, "a", Bytes::mib(100), Options::default());
    let admitted = block_on(tenant.admit(Bytes::mib(60))).expect("there is room");
    let pool: Arc<dyn MemoryPool> = admitted;
    let other = query(&tenant);
    let others = [0, 1, 2].map(|nth| spilling(&format!("other {nth}"), &other));
    for other in &others {
        other.try_grow(5 * MIB).expect("there is room");
    }
    let sort = spilling("sort", &pool);
    while sort.try_grow(MIB).is_ok() {}
    assert_eq!(
        sort.size(),
        48 * MIB,
        "all but the part for others of the query"
    );
    drop((others, sort));
}

/// A query that takes its memory by steps, and ends some steps later.
async fn steps(pool: Arc<HighwaterPool>, step: usize, count: usize) -> Result<()> {
    let pool: Arc<dyn MemoryPool> = pool;
    let join = holding("join", &pool);
    for _ in 0..count {
        join.try_grow(step)?;
        Yield(false).await;
    }
    for _ in 0..3 {
        Yield(false).await;
    }
    Ok(())
}

/// Runs 1,000 small queries of one tenant, a hundred at a time, beside one large of another.
fn many_beside_one(many: &Tenant, one: &Tenant) -> (Vec<Result<()>>, Result<()>) {
    thread::scope(|scope| {
        let small = scope.spawn(|| {
            let mut outcomes = Vec::new();
            for _ in 0..10 {
                let wave =
                    (0..100).map(|_| many.run(Retry::default(), |pool| steps(pool, MIB / 4, 2)));
                outcomes.extend(block_on(futures::future::join_all(wave)));
            }
            outcomes
        });
        while many.group().usage_precise() < Bytes::mib(16) {
            thread::yield_now();
        }
        let large = block_on(one.run(Retry::never(), |pool| steps(pool, MIB, 40)));
        (small.join().expect("no panic"), large)
    })
}

// Goal: where maxima add up to no more than the memory, a thousand small queries of a tenant wait
// for each other, and a large query of another tenant never waits for them, nor is it refused.
#[test]
fn a_thousand_small_queries_do_not_starve_a_large_one_of_another_tenant() {
    let hw = manager(Bytes::mib(64));
    let [many, one] = [("many", 24), ("one", 40)]
        .map(|(name, max)| tenant(&hw, name, Bytes::mib(max), Options::default()));
    let (small, large) = many_beside_one(&many, &one);
    large.expect("its tenant has room");
    let failed = small.iter().filter(|outcome| outcome.is_err()).count();
    assert_eq!(failed, 0, "each passes alone");
    let (many, one) = (many.counts(), one.counts());
    assert!(many.refused_full > 0 && many.waited > 0, "{many:?}");
    assert_eq!((one.refused_full, one.waited), (0, 0));
    assert!(hw.root().peak().high <= Bytes::mib(64));
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
}

// Goal: where maxima add up to more, the tenant that is above its protection gives way, although
// the largest query is the other's. Method: the small queries hold what they have until the large
// one has ended; the grace period is longer than any pause of a thread.
#[test]
fn the_tenant_above_its_protection_gives_way_though_its_queries_are_small() {
    const EACH: usize = 56 << 10;
    let built = Manager::builder()
        .capacity(Bytes::mib(64))
        .frames(Bytes::ZERO);
    let hw = built
        .grace(Duration::from_secs(60))
        .build()
        .expect("without frames");
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
    let (many, one) = (tenant("many", 8), tenant("one", 44));
    let (ends, ended) = futures::channel::oneshot::channel::<()>();
    let ended = futures::FutureExt::shared(ended);
    let small = thread::scope(|scope| {
        let small = scope.spawn(|| {
            let queries = (0..1_000).map(|_| {
                let ended = ended.clone();
                many.run(Retry::default(), move |pool| {
                    let ended = ended.clone();
                    async move {
                        let pool: Arc<dyn MemoryPool> = pool;
                        let join = holding("join", &pool);
                        join.try_grow(EACH)?;
                        _ = ended.await;
                        Ok(())
                    }
                })
            });
            block_on(futures::future::join_all(queries))
        });
        while many.group().usage_precise() < Bytes(1_000 * EACH as u64) {
            thread::yield_now();
        }
        let large = block_on(one.run(Retry::never(), |pool| steps(pool, MIB, 40)));
        ends.send(()).expect("they wait");
        large.expect("it is within its protection");
        small.join().expect("no panic")
    });
    let mut stopped = 0;
    for outcome in small.into_iter().filter_map(Result::err) {
        match outcome {
            DataFusionError::External(error) if error.is::<Stopped>() => stopped += 1,
            other => panic!("{other}"),
        }
    }
    // What the large one lacked, and at most one query too many at each of its requests.
    let lacked = (1_000 * EACH + 40 * MIB - 64 * MIB).div_ceil(EACH);
    assert!(
        (lacked..=lacked + 40).contains(&stopped),
        "{stopped}, {lacked} lacked"
    );
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
}

// Symptom: the first that waits counted as running, waits were in the counts only once they had
// ended, and pools that charge nothing counted as queries.
#[test]
fn counts_tell_running_from_waiting() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let counts = || {
        let counts = tenant.counts();
        (counts.queries, counts.running, counts.waiting)
    };
    let unused = query(&tenant);
    assert_eq!(counts(), (0, 0, 0));
    let first = block_on(tenant.admit(Bytes::mib(16))).expect("there is room");
    assert_eq!(counts(), (1, 1, 0));
    let mut second = Box::pin(tenant.admit(Bytes::mib(8)));
    assert!(block_on(futures::future::poll_immediate(&mut second)).is_none());
    assert_eq!(counts(), (1, 1, 1));
    thread::sleep(Duration::from_millis(30));
    assert!(tenant.counts().wait_time >= Duration::from_millis(30));
    assert_eq!(tenant.counts().waited, 0);
    drop(first);
    let second = block_on(second).expect("there is room");
    assert_eq!(counts(), (2, 1, 0));
    let join = holding("join", &unused);
    join.try_grow(MIB).expect("there is room");
    assert_eq!(counts(), (3, 2, 0));
    drop((second, join, unused));
    assert_eq!(counts(), (3, 0, 0));
    assert_eq!(tenant.counts().waited, 1);
}
