//! Promise: `Tenant::execute` delivers every row once, also at a later attempt, and a plan on a
//! current-thread runtime is not blocked.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use futures::StreamExt;
use highwater::group::Limits;
use highwater::{Bytes, Manager};
use highwater_datafusion::{Options, Retry, Tenant, runtime_for};
use highwater_datafusion_tests::{answer, context};

const ROWS: u64 = 20_000;
const SQL: &str = "select l_orderkey, l_price, l_comment from lineitem order by l_price";

fn tenant(max: Bytes) -> (Manager, Tenant) {
    let built = Manager::builder()
        .capacity(Bytes::mib(64))
        .frames(Bytes::ZERO)
        .build();
    let hw = built.expect("a manager without frames");
    let group = hw
        .root()
        .child("a", Limits::max(max))
        .expect("the name is free");
    (hw, Tenant::new(group, Options::default()))
}

#[tokio::test]
async fn a_query_whose_first_attempt_is_refused_delivers_every_row() {
    let (hw, tenant) = tenant(Bytes::mib(8));
    let base = RuntimeEnvBuilder::new().build().expect("the default");
    let neighbour: Arc<dyn MemoryPool> = tenant.query().build().expect("no limits");
    let hoard = MemoryConsumer::new("hoard").register(&neighbour);
    hoard.try_grow((8 << 20) - 100_000).expect("there is room");
    let mut attempts = 0;
    let mut stream = Box::pin(tenant.execute(Retry::default(), |pool| {
        attempts += 1;
        let runtime = runtime_for(&base, pool);
        async {
            let context = context(runtime?, ROWS, 1)?;
            let stream = context.sql(SQL).await?.execute_stream().await;
            stream.inspect_err(|error| println!("attempt: {error}"))
        }
    }));
    while tenant.counts().waiting == 0 {
        let early = futures::future::poll_immediate(&mut stream).await;
        assert!(early.is_none(), "there is no room for its first row");
        tokio::task::yield_now().await;
    }
    drop((hoard, neighbour));
    let stream = stream.await;
    assert!(attempts >= 2, "the first attempt was refused");
    let mut stream = stream.expect("it passes at last");
    let mut rows = 0;
    while let Some(batch) = stream.next().await {
        rows += batch.expect("no batch is refused").num_rows() as u64;
    }
    assert_eq!(rows, ROWS);
    drop(stream);
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
}

#[tokio::test(flavor = "current_thread")]
async fn each_query_passes_alone_on_one_thread() {
    let (hw, tenant) = tenant(Bytes::mib(6));
    let base = RuntimeEnvBuilder::new().build().expect("the default");
    for query in highwater_datafusion_tests::QUERIES {
        let spills = AtomicU64::new(0);
        let outcome = tenant.run(Retry::default(), |pool| {
            let runtime = runtime_for(&base, pool);
            let spills = &spills;
            async move {
                let context = context(runtime?, ROWS, 1)?;
                answer(&context, query.sql, spills).await
            }
        });
        let outcome = outcome
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", query.name));
        assert!(outcome.rows > 0);
        assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
    }
}

// Goal: on a runtime of one thread a query that waits blocks nothing. Method: all queries at once,
// of which one is admitted at a time; the thread has to go on while others wait.
#[tokio::test(flavor = "current_thread")]
async fn queries_that_wait_do_not_block_the_one_thread() {
    let (hw, tenant) = tenant(Bytes::mib(6));
    let base = RuntimeEnvBuilder::new().build().expect("the default");
    let spills = AtomicU64::new(0);
    let (base, spills) = (&base, &spills);
    let queries = highwater_datafusion_tests::QUERIES.map(|query| {
        // One at a time has so much of its own.
        let retry = Retry::default().with_first_reserve(Bytes::mib(4));
        tenant.run(retry, move |pool| {
            let runtime = runtime_for(base, pool);
            async move {
                let context = context(runtime?, ROWS, 1)?;
                answer(&context, query.sql, spills).await
            }
        })
    });
    let mut queries = std::pin::pin!(futures::future::join_all(queries));
    let mut ticks_while_waiting = 0;
    let outcomes = loop {
        if let Some(outcomes) = futures::future::poll_immediate(&mut queries).await {
            break outcomes;
        }
        ticks_while_waiting += u32::from(tenant.counts().waiting > 0);
        tokio::task::yield_now().await;
    };
    for outcome in outcomes {
        assert!(outcome.expect("it passes alone").rows > 0);
    }
    assert!(ticks_while_waiting > 0, "no query had to wait");
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
}
