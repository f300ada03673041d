//! Promise: `Tenant::execute` delivers every row once, also at a later attempt, and a plan on a
//! current-thread runtime is not blocked.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use datafusion::arrow::array::{Int32Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use highwater::group::Limits;
use highwater::{Bytes, Manager};
use highwater_datafusion::{Options, Retry, Stopped, Tenant, runtime_for};
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

/// A stream of these batches, with one number a row.
fn stream_of(batches: Vec<Result<usize>>) -> SendableRecordBatchStream {
    let field = Field::new("number", DataType::Int32, false);
    let schema = Arc::new(Schema::new(vec![field]));
    let of = Arc::clone(&schema);
    let batches = batches.into_iter().map(move |rows| {
        let numbers: Int32Array = (0..).take(rows?).collect();
        Ok(RecordBatch::try_new(
            Arc::clone(&of),
            vec![Arc::new(numbers)],
        )?)
    });
    let stream = futures::stream::iter(batches.collect::<Vec<_>>());
    Box::pin(RecordBatchStreamAdapter::new(schema, stream))
}

// Symptom: a batch without rows ended the time in which a refused query runs again.
#[tokio::test]
async fn a_query_runs_again_until_it_has_delivered_a_row() {
    let (_hw, tenant) = tenant(Bytes::mib(8));
    let mut attempts = 0;
    let refused = || DataFusionError::ResourcesExhausted("no room".into());
    let stream = tenant.execute(Retry::default(), |_pool| {
        attempts += 1;
        let batches = match attempts {
            1 => vec![Ok(0), Err(refused())],
            _ => vec![Ok(0), Ok(0), Ok(3), Ok(0), Ok(2), Err(refused())],
        };
        async { Ok(stream_of(batches)) }
    });
    let delivered: Vec<_> = stream.await.expect("the second").collect().await;
    let rows = delivered
        .iter()
        .map(|it| it.as_ref().ok().map(RecordBatch::num_rows));
    let expected = [0, 0, 3, 0, 2].map(Some).into_iter().chain([None]);
    assert_eq!(rows.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert_eq!(attempts, 2);
    let empty = tenant.execute(Retry::never(), |_pool| async { Ok(stream_of(vec![Ok(0)])) });
    assert_eq!(empty.await.expect("no error").count().await, 1);
}

// Symptom: an INSERT that was refused in the midst was run again, and wrote its first rows twice.
#[tokio::test]
async fn a_statement_that_writes_is_not_run_again_once_it_has_begun() {
    let (_hw, tenant) = tenant(Bytes::kib(64));
    let base = RuntimeEnvBuilder::new().build().expect("the default");
    let insert = "insert into copies select l_orderkey, l_comment from lineitem order by l_price";
    let explained = format!("explain analyze {insert}");
    for (sql, runs) in [(SQL, 3), (insert, 1), (explained.as_str(), 1)] {
        let mut attempts = 0;
        let stream = tenant.execute(Retry::default(), |pool| {
            attempts += 1;
            let runtime = runtime_for(&base, pool);
            async {
                let context = context(runtime?, ROWS, 1)?;
                let make = "create table copies (l_orderkey bigint, l_comment varchar)";
                context.sql(make).await?.collect().await?;
                context.sql(sql).await?.execute_stream().await
            }
        });
        let refused = stream.await.err().expect("64 KiB do not suffice");
        let root = refused.find_root();
        assert!(
            matches!(root, DataFusionError::ResourcesExhausted(_)),
            "{refused}"
        );
        assert_eq!(attempts, runs, "{sql}");
    }
}

#[tokio::test]
async fn a_stream_that_is_stopped_says_so() {
    let (hw, tenant) = tenant(Bytes::mib(8));
    let mut running = None;
    let stream = tenant.execute(Retry::default(), |pool| {
        running = Some(Arc::clone(&pool));
        let pool: Arc<dyn MemoryPool> = pool;
        let join = MemoryConsumer::new("join").register(&pool);
        let held = join.try_grow(1 << 20).map(|()| join);
        async {
            let held = held?;
            let rows = stream_of(vec![Ok(1), Ok(1)]);
            let schema = rows.schema();
            let rows = rows.inspect(move |_| assert_eq!(held.size(), 1 << 20));
            Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)) as SendableRecordBatchStream)
        }
    });
    let mut stream = stream.await.expect("there is room");
    assert!(stream.next().await.is_some_and(|first| first.is_ok()));
    let running = running.expect("it runs");
    running.stop();
    let Some(Err(DataFusionError::External(error))) = stream.next().await else {
        panic!("it ends with the reason");
    };
    let stopped: &Stopped = error.downcast_ref().expect("it was stopped");
    assert_eq!(stopped.query, "/a/query-0");
    assert_eq!(stopped.usage, Bytes::mib(1));
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO, "its memory is free");
    assert!(stream.next().await.is_none());
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

// Goal: a deadline is a timeout around a query: it ends one that waits to run again, which leaves
// no place, no group and no byte, and the next one passes. Method: the deadline comes when the
// query waits; tasks of its first attempt may end a moment later.
#[tokio::test]
async fn a_deadline_leaves_nothing_of_a_query_that_waits() {
    let (hw, tenant) = tenant(Bytes::mib(8));
    let base = RuntimeEnvBuilder::new().build().expect("the default");
    let neighbour: Arc<dyn MemoryPool> = tenant.query().build().expect("no limits");
    let hoard = MemoryConsumer::new("hoard").register(&neighbour);
    hoard.try_grow((8 << 20) - 100_000).expect("there is room");
    let query = || {
        Box::pin(tenant.execute(Retry::default(), |pool| {
            let runtime = runtime_for(&base, pool);
            async {
                context(runtime?, ROWS, 1)?
                    .sql(SQL)
                    .await?
                    .execute_stream()
                    .await
            }
        }))
    };
    let deadline = std::pin::pin!(async {
        while tenant.counts().waiting == 0 {
            tokio::task::yield_now().await;
        }
    });
    let first = futures::future::select(query(), deadline).await;
    let futures::future::Either::Right(((), dropped)) = first else {
        panic!("there is no room for its first row");
    };
    drop(dropped);
    assert_eq!(tenant.counts().waiting, 0);
    for _ in 0..500 {
        if tenant.group().children().len() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(tenant.group().children().len(), 1, "the neighbour's");
    assert_eq!(tenant.group().usage_precise().0, (8 << 20) - 100_000);
    drop((hoard, neighbour));
    let rows = query().await.expect("it passes alone");
    let rows = rows.fold(0, async |sum, batch| {
        sum + batch.expect("no refusal").num_rows() as u64
    });
    assert_eq!(rows.await, ROWS);
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
    assert!(tenant.group().children().is_empty());
}
