//! Running a query: again, with more memory of its own, if it was refused before its first row.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef};
use datafusion_common::{DataFusionError, Result};
use datafusion_execution::{RecordBatchStream, SendableRecordBatchStream};
use futures::future::{Either, select};
use futures::stream::{Stream, StreamExt};
use highwater::Bytes;

use crate::admission::Reservation;
use crate::pool::HighwaterPool;
use crate::refusal::Stopped;
use crate::stop::Stop;
use crate::tenant::Tenant;

/// How often a query runs, and with what of its own.
///
/// The first attempt reserves [`first_reserve`](Self::first_reserve): nothing by default, which is
/// best where memory mostly suffices. Each further attempt reserves twice what the last one used at
/// most, or what it used and was refused, and the last attempt all that the tenant's queries may
/// have: it runs alone. Where maxima of tenants overlap, it waits for room in their ancestor, too,
/// for as long as other tenants leave none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Attempts in all, at least one.
    pub attempts: u32,
    /// What the first attempt reserves.
    pub first_reserve: Bytes,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 3,
            first_reserve: Bytes::ZERO,
        }
    }
}

impl Retry {
    /// Never runs a query again: for statements that write.
    #[must_use]
    pub const fn never() -> Self {
        Self {
            attempts: 1,
            first_reserve: Bytes::ZERO,
        }
    }

    /// Sets the attempts in all.
    #[must_use]
    pub const fn with_attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Sets what the first attempt reserves.
    #[must_use]
    pub const fn with_first_reserve(self, first_reserve: Bytes) -> Self {
        Self {
            first_reserve,
            ..self
        }
    }
}

/// Returns whether an operator was refused memory.
fn is_exhausted(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

impl Tenant {
    /// Runs a query, whose `attempt` plans it over a pool ([`runtime_for`](crate::runtime_for)) and
    /// returns its stream; returns the stream once it has delivered a row or ended. If an attempt
    /// is refused memory before that, everything of it is dropped, and the query waits for memory
    /// of its own ([`Tenant::admit`]) and runs again. So a query that passes alone within its
    /// tenant's maximum is not refused before its first row, whatever its neighbours do.
    ///
    /// A statement that writes is run again only if it was refused before its stream was polled: so
    /// what is written while the statement is planned (`CREATE TABLE AS`, the `DELETE` of some
    /// tables) is written again. It is known by its columns: one, `count`, an unsigned number that
    /// is never null, or those of `EXPLAIN`, which with `ANALYZE` runs what it explains. For writes
    /// that return others, use [`Retry::never`]; for queries that look like these,
    /// [`run`](Self::run).
    ///
    /// A query may wait for as long as others hold memory: put a timeout around it. One that has
    /// delivered a row holds memory until its stream is drained or dropped. So a task that keeps
    /// such a stream, and waits for another query of the tenant before it reads on, may wait for
    /// ever.
    ///
    /// # Errors
    ///
    /// Those of the attempt, the last if it was refused memory; [`Stopped`](crate::Stopped) in an
    /// `External` error if the query was a victim, also of the stream.
    ///
    /// # Examples
    ///
    /// With `datafusion`:
    ///
    /// ```ignore
    /// let stream = tenant
    ///     .execute(Retry::default(), |pool| async {
    ///         let runtime = runtime_for(&base, pool)?;
    ///         let context = SessionContext::new_with_config_rt(config.clone(), runtime);
    ///         context.register_table("orders", Arc::clone(&orders))?;
    ///         context.sql("select * from orders order by price").await?.execute_stream().await
    ///     })
    ///     .await?;
    /// ```
    pub async fn execute<A, F>(
        &self,
        retry: Retry,
        mut attempt: A,
    ) -> Result<SendableRecordBatchStream>
    where
        A: FnMut(Arc<HighwaterPool>) -> F,
        F: Future<Output = Result<SendableRecordBatchStream>>,
    {
        let begun = self.run(retry, |pool| {
            let query = Running::of(&pool);
            let begun = attempt(pool);
            async {
                let mut stream = begun.await?;
                let is_write = is_write(&stream.schema());
                match first_batches(&mut stream).await {
                    // Rows may have been written, and would be again.
                    Err(error) if is_write => Ok(Err(query.explain(error))),
                    first => Ok(Ok(Started::new(stream, first?, query))),
                }
            }
        });
        Ok(Box::pin(begun.await??))
    }

    /// As [`execute`](Self::execute), for an attempt with any result, which is run again if it
    /// returns that it was refused memory: for a query that is collected, and may then be refused
    /// at any row.
    ///
    /// # Errors
    ///
    /// As [`execute`](Self::execute).
    ///
    /// # Examples
    ///
    /// ```
    /// # use datafusion_execution::memory_pool::{MemoryConsumer, MemoryPool};
    /// # use highwater::{Bytes, Limits, Manager};
    /// # use highwater_datafusion::{Options, Retry, Tenant};
    /// # use std::sync::Arc;
    /// # let hw = Manager::builder().capacity(Bytes::mib(64)).frames(Bytes::ZERO).build()?;
    /// # let group = hw.root().child("tenant-a", Limits::max(Bytes::mib(16)))?;
    /// # let tenant = Tenant::new(group, Options::default());
    /// # futures::executor::block_on(async {
    /// let neighbour = tenant.admit(Bytes::mib(12)).await?;
    /// let mut neighbour = Some(neighbour);
    /// let rows = tenant.run(Retry::default(), |pool| {
    ///     let pool: Arc<dyn MemoryPool> = pool;
    ///     let result = MemoryConsumer::new("join").register(&pool).try_grow(8 << 20);
    ///     neighbour = None; // ends
    ///     async { result.map(|()| 42) }
    /// });
    /// assert_eq!(rows.await?, 42); // at the second attempt
    /// # Ok::<(), datafusion_common::DataFusionError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn run<A, F, T>(&self, retry: Retry, mut attempt: A) -> Result<T>
    where
        A: FnMut(Arc<HighwaterPool>) -> F,
        F: Future<Output = Result<T>>,
    {
        let attempts = retry.attempts.max(1);
        let mut reserve = Reservation::Exactly(retry.first_reserve);
        let stop = Arc::default();
        // The attempt before, and the pool of the next.
        let (mut former, mut next) = (None::<Running>, None);
        for nth in 1..=attempts {
            let admitted = self.admit_with(reserve, Arc::clone(&stop), next.take());
            let pool = match &former {
                Some(query) => query.unless_stopped(admitted).await?,
                // Nothing has a pool yet by which to stop it.
                None => admitted.await?,
            };
            let query = Running::of(&pool);
            let outcome = query.unless_stopped(attempt(Arc::clone(&pool))).await;
            let is_retried = |error: &DataFusionError| nth < attempts && is_exhausted(error);
            match outcome {
                Err(error) if is_retried(&error) => {
                    reserve = Self::next_reserve(&pool, nth + 1 == attempts);
                    next = Some(self.next_pool(&stop));
                    // The program may keep the pool, to stop the query.
                    pool.end_attempt();
                    former = Some(query);
                }
                outcome => return outcome,
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Returns the pool of the next attempt. It has a group already, so that a tenant that is to be
    /// removed with its last query stays.
    fn next_pool(&self, stop: &Arc<Stop>) -> HighwaterPool {
        let pool = HighwaterPool::that_waits(self.query(), stop);
        // An error shows at the admission.
        let _made = pool.group();
        pool
    }

    /// Returns what the next attempt reserves: what this one had and was refused, or twice what
    /// it had; the last attempt everything.
    fn next_reserve(pool: &HighwaterPool, is_last: bool) -> Reservation {
        if is_last {
            return Reservation::AtMost(Bytes::MAX);
        }
        let peak = pool.group().map_or(Bytes::ZERO, |group| group.peak().high);
        let needed = peak.0.saturating_add(pool.most_refused());
        Reservation::AtMost(Bytes(needed.max(peak.0.saturating_mul(2))))
    }
}

/// Returns whether a stream may be that of a statement that writes: `INSERT`, `COPY`, `UPDATE` and
/// `DELETE` return a count, and `EXPLAIN ANALYZE` of them a plan.
fn is_write(schema: &Schema) -> bool {
    match &schema.fields()[..] {
        [count] => {
            let is_number = *count.data_type() == DataType::UInt64 && !count.is_nullable();
            count.name() == "count" && is_number
        }
        [kind, plan] => kind.name() == "plan_type" && plan.name() == "plan",
        _ => false,
    }
}

/// Polls batches up to the first row.
async fn first_batches(stream: &mut SendableRecordBatchStream) -> Result<VecDeque<RecordBatch>> {
    let mut first = VecDeque::new();
    while let Some(batch) = stream.next().await.transpose()? {
        let has_rows = batch.num_rows() > 0;
        first.push_back(batch);
        if has_rows {
            break;
        }
    }
    Ok(first)
}

/// A stream whose first row was polled, of a query that may be stopped.
struct Started {
    schema: SchemaRef,
    first: VecDeque<RecordBatch>,
    /// Dropped when the query is stopped, so that its memory is free.
    rest: Option<SendableRecordBatchStream>,
    query: Running,
}

/// An attempt of a query, without its pool: what it was admitted with is free when its stream has
/// ended.
struct Running {
    stop: Arc<Stop>,
    pool: Weak<HighwaterPool>,
    path: String,
}

impl Running {
    fn of(pool: &Arc<HighwaterPool>) -> Self {
        Self {
            stop: Arc::clone(pool.stop_of()),
            pool: Arc::downgrade(pool),
            path: pool.path(),
        }
    }

    fn stopped(&self) -> DataFusionError {
        let ended = || Stopped {
            query: self.path.clone(),
            usage: Bytes::ZERO,
        };
        let pool = self.pool.upgrade();
        let stopped = pool.map_or_else(ended, |pool| pool.stopped());
        DataFusionError::External(Box::new(stopped))
    }

    /// Waits for a part of the query until it ends or the query is stopped.
    async fn unless_stopped<T>(&self, part: impl Future<Output = Result<T>>) -> Result<T> {
        let is_stopped = std::future::poll_fn(|context| {
            self.stop.waker.register(context.waker());
            match self.stop.is_stopped() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        match select(pin!(is_stopped), pin!(part)).await {
            Either::Left(((), _part)) => Err(self.stopped()),
            Either::Right((outcome, _)) => outcome.map_err(|error| self.explain(error)),
        }
    }

    /// Returns that the query was stopped, if it was refused memory for that.
    fn explain(&self, error: DataFusionError) -> DataFusionError {
        match self.stop.is_stopped() && is_exhausted(&error) {
            true => self.stopped(),
            false => error,
        }
    }
}

impl Started {
    fn new(
        stream: SendableRecordBatchStream,
        first: VecDeque<RecordBatch>,
        query: Running,
    ) -> Self {
        let has_rows = first.back().is_some_and(|batch| batch.num_rows() > 0);
        Self {
            schema: stream.schema(),
            first,
            rest: has_rows.then_some(stream),
            query,
        }
    }
}

impl Stream for Started {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(first) = this.first.pop_front() {
            return Poll::Ready(Some(Ok(first)));
        }
        let Some(rest) = &mut this.rest else {
            return Poll::Ready(None);
        };
        let stop = &this.query.stop;
        stop.waker.register(context.waker());
        let polled = match stop.is_stopped() {
            true => Poll::Ready(Some(Err(this.query.stopped()))),
            false => rest.poll_next_unpin(context),
        };
        let polled = polled.map_err(|error| this.query.explain(error));
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            // With it goes what the query was admitted with, also if this is kept.
            this.rest = None;
        }
        polled
    }
}

impl RecordBatchStream for Started {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
