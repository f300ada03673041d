//! A scenario: six queries of two tenants at once, with less memory than they like.
//!
//! The tables `orders` and `lineitem` are generated while they are read, so that they take no
//! memory of their own. Each query also returns a checksum: memory must never change a result.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{
    Array, Float64Array, Int64Array, RecordBatch, StringArray, StringViewArray,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, PeakRecordingPool, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::stream::{self, StreamExt};
use highwater::group::Limits;
use highwater::{Bytes, Manager};
use highwater_datafusion::{Options, Retry, Tenant, runtime_for};

/// Partitions of each table and of each plan.
const PARTITIONS: usize = 2;
/// Rows of a generated batch.
const BATCH: u64 = 2_048;
/// Lines for each order.
const LINES: u64 = 4;

/// A query of the scenario.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Number of its tenant.
    pub tenant: usize,
    /// Unique in the scenario.
    pub name: &'static str,
    /// The statement.
    pub sql: &'static str,
}

const SORT: &str = "select l_orderkey, l_price, l_comment from lineitem \
                    order by l_price, l_orderkey";
const JOIN: &str = "select o_priority, count(*), sum(l_price) from orders \
                    join lineitem on o_orderkey = l_orderkey group by o_priority";
const AGGREGATE: &str = "select l_orderkey, l_comment, count(*), sum(l_price) from lineitem \
                         group by l_orderkey, l_comment";

/// The queries: a sort and a join of one tenant; two sorts, an aggregate and a join of another.
pub const QUERIES: [Query; 6] = [
    Query {
        tenant: 0,
        name: "a.sort",
        sql: SORT,
    },
    Query {
        tenant: 0,
        name: "a.join",
        sql: JOIN,
    },
    Query {
        tenant: 1,
        name: "b.sort1",
        sql: SORT,
    },
    Query {
        tenant: 1,
        name: "b.sort2",
        sql: SORT,
    },
    Query {
        tenant: 1,
        name: "b.aggregate",
        sql: AGGREGATE,
    },
    Query {
        tenant: 1,
        name: "b.join",
        sql: JOIN,
    },
];

/// Numbers that look random and depend on their arguments alone.
fn mixed(seed: u64, row: u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ row.wrapping_add(1);
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

/// One partition of a generated table.
#[derive(Debug)]
struct Generated {
    schema: SchemaRef,
    rows: std::ops::Range<u64>,
    batch: fn(&SchemaRef, u64, std::ops::Range<u64>) -> RecordBatch,
    seed: u64,
}

impl PartitionStream for Generated {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (schema, batch, seed, end) = (
            Arc::clone(&self.schema),
            self.batch,
            self.seed,
            self.rows.end,
        );
        let starts = self
            .rows
            .clone()
            .step_by(usize::try_from(BATCH).expect("small"));
        let batches = stream::iter(starts)
            .map(move |start| Ok(batch(&schema, seed, start..end.min(start + BATCH))));
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            batches,
        ))
    }
}

fn orders(schema: &SchemaRef, seed: u64, rows: std::ops::Range<u64>) -> RecordBatch {
    let keys: Int64Array = rows
        .clone()
        .map(u64::cast_signed)
        .collect::<Vec<_>>()
        .into();
    let priorities = rows.map(|row| format!("{}-PRIORITY", mixed(seed, row) % 5));
    let priorities: StringArray = priorities.map(Some).collect();
    let columns: Vec<Arc<dyn Array>> = vec![Arc::new(keys), Arc::new(priorities)];
    RecordBatch::try_new(Arc::clone(schema), columns).expect("as the schema says")
}

fn lineitem(schema: &SchemaRef, seed: u64, rows: std::ops::Range<u64>) -> RecordBatch {
    let keys: Int64Array = rows
        .clone()
        .map(|row| (row / LINES).cast_signed())
        .collect::<Vec<_>>()
        .into();
    let cents = |row| (mixed(seed, row) % 10_000_000) as f64;
    let prices: Float64Array = rows.clone().map(cents).collect::<Vec<_>>().into();
    let comments = rows.map(|row| format!("comment {:016x} of a line", mixed(!seed, row)));
    let comments: StringArray = comments.map(Some).collect();
    let columns: Vec<Arc<dyn Array>> = vec![Arc::new(keys), Arc::new(prices), Arc::new(comments)];
    RecordBatch::try_new(Arc::clone(schema), columns).expect("as the schema says")
}

/// Returns a context whose tables have `rows` lines, over a runtime environment.
///
/// # Errors
///
/// Those of DataFusion.
pub fn context(runtime: Arc<RuntimeEnv>, rows: u64, seed: u64) -> Result<SessionContext> {
    let mut config = SessionConfig::new().with_target_partitions(PARTITIONS);
    config.options_mut().execution.sort_spill_reservation_bytes = 1 << 20;
    // The build side of the join is the left one, whatever the statistics of a stream.
    config.options_mut().optimizer.join_reordering = false;
    let context = SessionContext::new_with_config_rt(config, runtime);
    let text = |name| Field::new(name, DataType::Utf8, false);
    let number = |name| Field::new(name, DataType::Int64, false);
    let of_orders = Schema::new(vec![number("o_orderkey"), text("o_priority")]);
    let price = Field::new("l_price", DataType::Float64, false);
    let of_lineitem = Schema::new(vec![number("l_orderkey"), price, text("l_comment")]);
    type Make = fn(&SchemaRef, u64, std::ops::Range<u64>) -> RecordBatch;
    let tables: [(&str, Schema, u64, Make); 2] = [
        ("orders", of_orders, rows / LINES, orders),
        ("lineitem", of_lineitem, rows, lineitem),
    ];
    for (name, schema, rows, batch) in tables {
        let schema = Arc::new(schema);
        let part = rows.div_ceil(PARTITIONS as u64);
        let partition = |nth: u64| -> Arc<dyn PartitionStream> {
            let rows = (nth * part)..rows.min((nth + 1) * part);
            let schema = Arc::clone(&schema);
            Arc::new(Generated {
                schema,
                rows,
                batch,
                seed,
            })
        };
        let partitions = (0..PARTITIONS as u64).map(partition).collect();
        let table = StreamingTable::try_new(Arc::clone(&schema), partitions)?;
        context.register_table(name, Arc::new(table))?;
    }
    Ok(context)
}

/// A query's result, in short.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answer {
    /// Rows.
    pub rows: u64,
    /// A sum over all values that does not depend on the order of rows.
    pub checksum: u64,
}

impl Answer {
    fn add(&mut self, batch: &RecordBatch) {
        self.rows += batch.num_rows() as u64;
        for column in batch.columns() {
            let any = column.as_any();
            let sum = if let Some(numbers) = any.downcast_ref::<Int64Array>() {
                numbers
                    .values()
                    .iter()
                    .fold(0, |sum: u64, it| sum.wrapping_add(it.cast_unsigned()))
            } else if let Some(prices) = any.downcast_ref::<Float64Array>() {
                // Whole cents, whose sums are exact in any order.
                prices
                    .values()
                    .iter()
                    .fold(0, |sum: u64, it| sum.wrapping_add(*it as u64))
            } else if let Some(texts) = any.downcast_ref::<StringArray>() {
                texts
                    .iter()
                    .flatten()
                    .map(text_sum)
                    .fold(0, u64::wrapping_add)
            } else if let Some(texts) = any.downcast_ref::<StringViewArray>() {
                texts
                    .iter()
                    .flatten()
                    .map(text_sum)
                    .fold(0, u64::wrapping_add)
            } else {
                panic!("no column is of type {}", column.data_type())
            };
            self.checksum = self.checksum.wrapping_add(sum);
        }
    }
}

fn text_sum(text: &str) -> u64 {
    text.bytes()
        .fold(0, |sum, byte| mixed(sum, u64::from(byte)))
}

/// Bytes that a plan wrote to disk.
fn spilled(plan: &dyn ExecutionPlan) -> u64 {
    let own = plan.metrics().and_then(|metrics| metrics.spilled_bytes());
    let below = plan
        .children()
        .into_iter()
        .map(|child| spilled(child.as_ref()));
    own.unwrap_or(0) as u64 + below.sum::<u64>()
}

/// Runs a statement to its end; adds to `spills` what it wrote.
///
/// # Errors
///
/// Those of DataFusion.
pub async fn answer(
    context: &SessionContext,
    sql: &str,
    spills: &std::sync::atomic::AtomicU64,
) -> Result<Answer> {
    let plan = context.sql(sql).await?.create_physical_plan().await?;
    let mut stream = execute_stream(Arc::clone(&plan), context.task_ctx())?;
    let mut answer = Answer::default();
    let outcome = loop {
        match stream.next().await {
            Some(Ok(batch)) => answer.add(&batch),
            Some(Err(error)) => break Err(error),
            None => break Ok(answer),
        }
    };
    drop(stream);
    // Relaxed: a sum, read after all queries have ended.
    spills.fetch_add(spilled(plan.as_ref()), std::sync::atomic::Ordering::Relaxed);
    outcome
}

/// The pools to run under; limits in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pools {
    /// No limit.
    Unlimited,
    /// One `GreedyMemoryPool` for all.
    Greedy(u64),
    /// One `FairSpillPool` for all.
    FairSpill(u64),
    /// Highwater: a limit for all, and a maximum for each tenant; admission and retry.
    Highwater {
        /// Of all tenants.
        limit: u64,
        /// Of each tenant.
        max: u64,
    },
}

impl fmt::Display for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Greedy(limit) => write!(f, "GreedyMemoryPool of {:.1} MiB", mib(limit)),
            Self::FairSpill(limit) => write!(f, "FairSpillPool of {:.1} MiB", mib(limit)),
            Self::Highwater { limit, max } => {
                write!(
                    f,
                    "Highwater, {:.1} MiB, {:.1} a tenant",
                    mib(limit),
                    mib(max)
                )
            }
        }
    }
}

/// What happened.
#[derive(Debug)]
pub struct Outcome {
    /// Each query's answer or error, with the time until then.
    pub queries: Vec<(Query, Result<Answer>, Duration)>,
    /// The most that was reserved at once.
    pub peak: u64,
    /// Bytes written to disk.
    pub spilled: u64,
    /// Until the last query ended.
    pub elapsed: Duration,
    /// Queries that waited for admission.
    pub waited: u64,
}

impl Outcome {
    /// Describes it in a line.
    #[must_use]
    pub fn describe(&self, pools: Pools) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let failed = self.failed();
        let names: String = failed.iter().map(|(name, _)| format!(" {name}")).collect();
        format!(
            "{pools}: {} of {} failed, {:.1} s, peak {:.1} MiB, spilled {:.1} MiB, {} waited{names}",
            failed.len(),
            QUERIES.len(),
            self.elapsed.as_secs_f64(),
            mib(self.peak),
            mib(self.spilled),
            self.waited,
        )
    }

    /// Returns the queries that failed.
    #[must_use]
    pub fn failed(&self) -> Vec<(&'static str, &DataFusionError)> {
        let failed = |(query, answer, _): &'_ &(Query, Result<Answer>, _)| {
            answer.as_ref().err().map(|_| query.name)
        };
        let names = self.queries.iter().filter_map(|it| failed(&it));
        let errors = self
            .queries
            .iter()
            .filter_map(|(_, answer, _)| answer.as_ref().err());
        names.zip(errors).collect()
    }
}

/// Returns whether each query passes by itself in a tenant of this maximum, in one attempt.
///
/// # Errors
///
/// Those of setting up.
pub async fn passes_alone(max: u64, rows: u64, seed: u64) -> Result<bool> {
    let base = RuntimeEnvBuilder::new().build_arc()?;
    let spills = std::sync::atomic::AtomicU64::new(0);
    for query in QUERIES {
        let (hw, tenants) = tenants(Pools::Highwater { limit: max, max });
        let attempt = |pool| {
            let runtime = runtime_for(&base, pool);
            let spills = &spills;
            async move {
                let context = context(runtime?, rows, seed)?;
                answer(&context, query.sql, spills).await
            }
        };
        let tenant = &tenants[query.tenant];
        let alone = tenant.run(Retry::never(), attempt).await;
        if let Some(hw) = &hw {
            all_is_given_back(hw).await;
        }
        match alone.map_err(|error| error.find_root().to_string()) {
            Ok(_) => {}
            Err(text) if text.starts_with("Resources exhausted") => return Ok(false),
            Err(text) => return Err(DataFusionError::Execution(text)),
        }
    }
    Ok(true)
}

/// Runs all queries at once. Each begins up to a few milliseconds after the first, by the seed.
///
/// # Errors
///
/// Those of setting up; a query's own error is in the outcome.
pub async fn scenario(pools: Pools, rows: u64, seed: u64) -> Result<Outcome> {
    let base = RuntimeEnvBuilder::new().build_arc()?;
    let spills = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let begin = Instant::now();
    let mut tasks = Vec::new();
    let shared: Option<Arc<PeakRecordingPool>> = {
        let inner: Option<Arc<dyn MemoryPool>> = match pools {
            Pools::Unlimited => Some(Arc::new(UnboundedMemoryPool::default())),
            Pools::Greedy(limit) => Some(Arc::new(GreedyMemoryPool::new(size(limit)))),
            Pools::FairSpill(limit) => Some(Arc::new(FairSpillPool::new(size(limit)))),
            Pools::Highwater { .. } => None,
        };
        inner.map(|inner| Arc::new(PeakRecordingPool::new(inner)))
    };
    let (hw, tenants) = tenants(pools);
    for (nth, query) in QUERIES.into_iter().enumerate() {
        let (base, spills, shared) = (Arc::clone(&base), Arc::clone(&spills), shared.clone());
        let tenant = tenants.get(query.tenant).cloned();
        let late = Duration::from_micros(mixed(seed, nth as u64) % 5_000);
        tasks.push(tokio::spawn(async move {
            tokio::time::sleep(late).await;
            let outcome = match (shared, tenant) {
                (Some(pool), _) => {
                    let runtime = RuntimeEnvBuilder::from_runtime_env(&base).with_memory_pool(pool);
                    let context = context(runtime.build_arc()?, rows, seed)?;
                    answer(&context, query.sql, &spills).await
                }
                (None, Some(tenant)) => {
                    let attempt = |pool| {
                        let runtime = runtime_for(&base, pool);
                        let spills = &spills;
                        async move {
                            let context = context(runtime?, rows, seed)?;
                            answer(&context, query.sql, spills).await
                        }
                    };
                    tenant.run(Retry::default(), attempt).await
                }
                (None, None) => unreachable!("a scenario has pools or tenants"),
            };
            Ok::<_, DataFusionError>((query, outcome, begin.elapsed()))
        }));
    }
    let mut queries = Vec::new();
    for task in tasks {
        queries.push(task.await.expect("no query panics")?);
    }
    let elapsed = begin.elapsed();
    let peak = match (&shared, &hw) {
        (Some(pool), _) => pool.max_reserved() as u64,
        (None, Some(hw)) => hw.root().peak().high.0,
        (None, None) => unreachable!("a scenario has pools or tenants"),
    };
    if let Some(hw) = &hw {
        all_is_given_back(hw).await;
    }
    Ok(Outcome {
        queries,
        peak,
        spilled: spills.load(std::sync::atomic::Ordering::Relaxed),
        elapsed,
        waited: tenants.iter().map(|tenant| tenant.counts().waited).sum(),
    })
}

/// Returns a limit under which one `FairSpillPool` for all failed no query, half of what they like
/// or somewhat more, and what happened then.
///
/// # Errors
///
/// As [`scenario`].
///
/// # Panics
///
/// When it fails with any limit.
pub async fn limit_for_fair_spill(rows: u64, seed: u64) -> Result<(u64, Outcome)> {
    let unlimited = scenario(Pools::Unlimited, rows, seed).await?;
    let mut limit = unlimited.peak / 2;
    loop {
        let fair = scenario(Pools::FairSpill(limit), rows, seed).await?;
        if fair.failed().is_empty() {
            return Ok((limit, fair));
        }
        assert!(limit < unlimited.peak * 8, "it fails with any limit");
        limit += limit / 4;
    }
}

/// Waits until nothing is charged and no query has a group. A runtime drops the tasks of a query
/// that failed a moment after its stream.
async fn all_is_given_back(hw: &Manager) {
    let is_idle = || {
        let tenants = hw.root().children();
        let is_empty = tenants.iter().all(|tenant| tenant.children().is_empty());
        is_empty && hw.root().usage_precise() == Bytes::ZERO
    };
    for _ in 0..500 {
        if is_idle() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} are still charged", hw.root().usage_precise());
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64 bits")
}

fn tenants(pools: Pools) -> (Option<Manager>, Vec<Tenant>) {
    let Pools::Highwater { limit, max } = pools else {
        return (None, Vec::new());
    };
    let built = Manager::builder()
        .capacity(Bytes(limit))
        .frames(Bytes::ZERO)
        .build();
    let hw = built.expect("a manager without frames");
    let tenant = |name| {
        let group = hw.root().child(name, Limits::max(Bytes(max)));
        Tenant::new(group.expect("the name is free"), Options::default())
    };
    let tenants = ["tenant-a", "tenant-b"].map(tenant).into();
    (Some(hw), tenants)
}
