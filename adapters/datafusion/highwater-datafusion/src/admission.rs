//! Admission: queries that wait for memory before they begin, in order of arrival.
//!
//! A query that waits holds nothing, so none waits for another in a circle. The first in the queue
//! charges its reserve to a group of its own as soon as there is room; those behind it, and queries
//! that would begin without a reserve, wait for it, so that it is not passed for ever. Queries that
//! run are not held up: what they need goes first.
//!
//! Room may appear wherever a query of any tenant returns memory, because tenants share their
//! ancestors. So while a query waits, every return wakes the first of each queue; otherwise a
//! return reads one number that no thread writes. Memory that the program charges to these groups
//! by itself wakes no queue when it is returned: call [`Admission::wake`] then.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use datafusion_common::{DataFusionError, Result};
use highwater::Bytes;
use parking_lot::Mutex;

use crate::pool::HighwaterPool;
use crate::refusal::{Reason, size};
use crate::stop::Stop;
use crate::tenant::{Shared, Tenant};

/// Queries that wait in any queue. While it is 0, returned memory wakes nothing.
/// Written by: queries that begin or end waiting. Read by: every return of memory. Publishes: that
/// the waiting query is in its queue, with its waker.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The tenants whose queues are not empty.
static QUEUES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Wakes the first of each queue if any query waits. Called after memory was returned by a query
/// that goes on. May miss a query that begins to wait at this moment, which the end of the calling
/// query does not miss ([`note_end`]): a fence here would cost as much as the call.
#[inline]
pub(crate) fn note_room() {
    // Relaxed: see above.
    if WAITING.load(Ordering::Relaxed) > 0 {
        wake_all();
    }
}

/// As [`note_room`], at the end of a query: misses none.
pub(crate) fn note_end() {
    // Pairs with: the fence of `Admit::poll`. SeqCst: either this sees the query that waits, or its
    // attempt sees what was returned before.
    fence(Ordering::SeqCst);
    note_room();
}

#[cold]
fn wake_all() {
    let queues: Vec<_> = QUEUES.lock().iter().filter_map(Weak::upgrade).collect();
    queues.iter().for_each(|tenant| tenant.admission.wake());
}

/// The queue of a tenant's queries that wait for memory.
#[derive(Debug, Default)]
pub struct Admission {
    queue: Mutex<Queue>,
    /// Written by: queries that end waiting. Read by: `counts`. Publishes: nothing.
    waited: AtomicU64,
    wait_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiting: VecDeque<Place>,
}

#[derive(Debug)]
struct Place {
    ticket: u64,
    since: Instant,
    waker: Option<Waker>,
}

pub(crate) struct WaitCounts {
    pub(crate) waited: u64,
    pub(crate) waiting: u64,
    pub(crate) time: Duration,
}

impl Admission {
    /// Returns the number of queries that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Returns whether no query waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the first that waits look for room again: for a program that has returned memory of
    /// the tenant, or of a group above it, other than through the pools of this crate, that has
    /// raised a maximum, or whose charges no longer wait in line there.
    pub fn wake(&self) {
        let waker = self
            .queue
            .lock()
            .waiting
            .front_mut()
            .and_then(|first| first.waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn counts(&self) -> WaitCounts {
        let queue = self.queue.lock();
        let present: Duration = queue.waiting.iter().map(|it| it.since.elapsed()).sum();
        // Relaxed: statistics. Under the lock, so that each wait is in one of the times.
        let past = Duration::from_nanos(self.wait_ns.load(Ordering::Relaxed));
        WaitCounts {
            waited: self.waited.load(Ordering::Relaxed),
            waiting: queue.waiting.len() as u64,
            time: past + present,
        }
    }

    fn is_first(&self, ticket: u64) -> bool {
        let queue = self.queue.lock();
        queue
            .waiting
            .front()
            .is_some_and(|first| first.ticket == ticket)
    }

    fn set_waker(&self, ticket: u64, waker: &Waker) {
        let mut queue = self.queue.lock();
        let place = queue.waiting.iter_mut().find(|it| it.ticket == ticket);
        let former = place.and_then(|place| place.waker.replace(waker.clone()));
        drop(queue);
        drop(former); // may run any code
    }
}

/// A query's place in the queue of its tenant.
struct Waiting {
    tenant: Tenant,
    ticket: u64,
}

impl Waiting {
    fn begin(tenant: &Tenant) -> Self {
        let shared = &tenant.shared;
        let mut queue = shared.admission.queue.lock();
        let ticket = queue.next;
        queue.next += 1;
        queue.waiting.push_back(Place {
            ticket,
            since: Instant::now(),
            waker: None,
        });
        if queue.waiting.len() == 1 {
            QUEUES.lock().push(Arc::downgrade(shared));
        }
        // Relaxed: the fence of `Admit::poll` follows.
        WAITING.fetch_add(1, Ordering::Relaxed);
        Self {
            tenant: tenant.clone(),
            ticket,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let shared = &self.tenant.shared;
        let admission = &shared.admission;
        let mut queue = admission.queue.lock();
        let place = queue.waiting.iter().position(|it| it.ticket == self.ticket);
        let place = place.and_then(|nth| queue.waiting.remove(nth));
        let waited = place
            .as_ref()
            .map_or(Duration::ZERO, |it| it.since.elapsed());
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: statistics.
        admission.waited.fetch_add(1, Ordering::Relaxed);
        admission.wait_ns.fetch_add(waited, Ordering::Relaxed);
        if queue.waiting.is_empty() {
            let is_other = |it: &Weak<Shared>| !std::ptr::eq(it.as_ptr(), Arc::as_ptr(shared));
            QUEUES.lock().retain(is_other);
        }
        drop(queue);
        drop(place); // its waker may run any code
        WAITING.fetch_sub(1, Ordering::Relaxed);
        admission.wake();
    }
}

/// What a query reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reservation {
    Exactly(Bytes),
    /// So much, or as much as a query can have that runs alone, if that is less by the time that it
    /// is admitted.
    AtMost(Bytes),
}

/// A query that is being admitted.
struct Admit {
    tenant: Tenant,
    reserve: Reservation,
    /// Of all attempts of the query.
    stop: Arc<Stop>,
    pool: Option<HighwaterPool>,
    waiting: Option<Waiting>,
}

impl Admit {
    /// Tries to charge the reserve.
    fn attempt(&mut self, waker: &Waker) -> Result<Option<Arc<HighwaterPool>>> {
        let max = self.tenant.group().effective_max();
        let reserve = match self.reserve {
            Reservation::Exactly(reserve) if reserve > max => {
                return Err(never_admitted(&self.tenant, reserve, max));
            }
            Reservation::Exactly(reserve) => reserve,
            Reservation::AtMost(most) => most.min(max),
        };
        let new = || HighwaterPool::that_waits(self.tenant.query(), &self.stop);
        let mut pool = self.pool.take().unwrap_or_else(new);
        let mut reserve = reserve;
        // Terminates: it falls with each attempt, which another group refuses.
        let admitted = loop {
            let admitted = pool.admit(reserve);
            let full = match (&admitted, self.reserve) {
                (Err(reason), Reservation::AtMost(_)) => reason.full(),
                _ => None,
            };
            match full.map(|full| self.tenant.most_for_one(full)) {
                Some(most) if most < reserve => reserve = most,
                _ => break admitted,
            }
        };
        match admitted {
            Ok(()) => return Ok(Some(Arc::new(pool))),
            Err(Reason::NoGroup(error)) => return Err(DataFusionError::ResourcesExhausted(error)),
            Err(reason) if reason.is_of_a_moment() => waker.wake_by_ref(),
            // The program removed the group that waits: the next attempt makes another.
            Err(reason) if reason.is_removal() => {
                waker.wake_by_ref();
                return Ok(None);
            }
            Err(_) => {}
        }
        self.pool = Some(pool);
        Ok(None)
    }
}

fn never_admitted(tenant: &Tenant, reserve: Bytes, max: Bytes) -> DataFusionError {
    let (path, reserve) = (tenant.group().path(), size(reserve));
    DataFusionError::ResourcesExhausted(match max {
        Bytes::ZERO => format!(
            "a query that reserves {reserve} is never admitted: {path} was removed, or has a \
             maximum of 0"
        ),
        max => format!(
            "a query that reserves {reserve} is never admitted: {path} has {} at most; reserve \
             less, or raise the maximum (Group::set_max)",
            size(max)
        ),
    })
}

impl Future for Admit {
    type Output = Result<Arc<HighwaterPool>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let tenant = this.tenant.clone();
        let admission = tenant.admission();
        if this.waiting.is_none() && admission.is_empty() {
            match this.attempt(context.waker()) {
                Ok(None) => {}
                Ok(Some(pool)) => return Poll::Ready(Ok(pool)),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let waiting = this.waiting.get_or_insert_with(|| Waiting::begin(&tenant));
        let ticket = waiting.ticket;
        // Before it looks: memory that is returned from now on wakes it.
        admission.set_waker(ticket, context.waker());
        // Pairs with: the fence of `note_end`.
        fence(Ordering::SeqCst);
        if !admission.is_first(ticket) {
            return Poll::Pending;
        }
        match this.attempt(context.waker()) {
            Ok(None) => Poll::Pending,
            Ok(Some(pool)) => {
                this.waiting = None;
                Poll::Ready(Ok(pool))
            }
            Err(error) => {
                this.waiting = None;
                Poll::Ready(Err(error))
            }
        }
    }
}

impl Tenant {
    /// Waits until a query may begin with `reserve` bytes of its own, in order of arrival; returns
    /// its pool. The reserve is charged to the query until its pool is dropped, also if a maximum
    /// falls below it. Dropping the future gives up the place, so a deadline is a timeout around
    /// it.
    ///
    /// # Errors
    ///
    /// `ResourcesExhausted` if the reserve exceeds the maximum of the tenant or of an ancestor, or
    /// is not 0 and the tenant was removed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # use highwater_datafusion::{Options, Tenant};
    /// # let hw = Manager::builder().capacity(Bytes::mib(64)).frames(Bytes::ZERO).build()?;
    /// # let group = hw.root().child("tenant-a", Limits::max(Bytes::mib(16)))?;
    /// # let tenant = Tenant::new(group, Options::default());
    /// # futures::executor::block_on(async {
    /// let first = tenant.admit(Bytes::mib(12)).await?;
    /// assert_eq!(tenant.group().usage_precise(), Bytes::mib(12));
    /// let second = tenant.admit(Bytes::mib(12));
    /// drop(first);
    /// second.await?;
    /// # Ok::<(), datafusion_common::DataFusionError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn admit(&self, reserve: Bytes) -> Result<Arc<HighwaterPool>> {
        let reserve = Reservation::Exactly(reserve);
        self.admit_with(reserve, Arc::default(), None).await
    }

    /// Admits an attempt of a query, with a pool that waits if there is one.
    pub(crate) async fn admit_with(
        &self,
        reserve: Reservation,
        stop: Arc<Stop>,
        pool: Option<HighwaterPool>,
    ) -> Result<Arc<HighwaterPool>> {
        let admit = Admit {
            tenant: self.clone(),
            reserve,
            stop,
            pool,
            waiting: None,
        };
        admit.await
    }
}
