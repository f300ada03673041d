//! A tenant: a group, and what its queries share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use highwater::group::{ChildError, Limits};
use highwater::{Bytes, Group, ReclaimRequest};

use crate::admission::Admission;
use crate::fairness::Fairness;
use crate::pool::HighwaterPool;
use crate::slot::Active;
use crate::stop::{StopOutcome, is_overdue, stop_query};

/// Rules that the queries of a tenant share.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Part of the tenant's maximum that consumers which can spill leave to those that cannot: 0 to
    /// 1. Default 0.2, as Apache Sedona's.
    pub unspillable_reserve: f64,
    /// How consumers that can spill share the rest.
    pub fairness: Fairness,
    /// A reservation that holds no more is never refused for fairness. By default a 64th of what
    /// consumers that can spill may use, and at least 1 MiB.
    pub floor: Option<Bytes>,
    /// What a call does that finds no room.
    pub on_full: OnFull,
    /// Whether uses are counted also for consumers that cannot spill, so that texts and
    /// [`HighwaterPool::consumers`] name them, and not only their query. They then cost as much as
    /// those that can spill.
    pub tracks_all: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            unspillable_reserve: 0.2,
            fairness: Fairness::default(),
            floor: None,
            on_full: OnFull::default(),
            tracks_all: false,
        }
    }
}

/// What [`try_grow`] does when there is no room.
///
/// [`try_grow`]: datafusion_execution::memory_pool::MemoryPool::try_grow
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// Refuses.
    #[default]
    Refuse,
    /// For a consumer that cannot spill or holds nothing, whose request would fit if its query ran
    /// alone, beside what the program charged to the tenant's own group: makes queries give way, as
    /// [`Group::charge`] does, but none in which this one runs. That takes the calling thread some
    /// milliseconds while other threads drop what the victims have, and at most the manager's grace
    /// for each tenant that is asked (`Builder::grace`, 100 ms). On a runtime with one thread no
    /// victim gives way meanwhile: use [`Refuse`](Self::Refuse) there.
    ///
    /// Of two queries that ask at once, the larger one gives way.
    ///
    /// [`Tenant::new`] sets two handlers of the tenant's group for that. The tenant that uses most
    /// above its protection ([`Limits::low`]) is asked first and stops its largest queries
    /// ([`Group::on_reclaim`]): so a tenant within its protection keeps its queries, however large
    /// one is. If no tenant is above its protection, the largest query is stopped
    /// ([`Group::on_exhausted`]).
    ///
    /// What a tenant gives back is not kept for the query that needs it: others of that tenant,
    /// while they grow, may take it first, and the query may be refused.
    Victim,
}

/// A tenant of an engine: what all its queries together are granted stays within the maxima of its
/// group and of those above it. Cheap to clone.
///
/// What cannot be refused ([`grow`], `ArrowPool`) may exceed these maxima. It is charged to each
/// group up to the root, and so takes room of other tenants, too. A group that is above its maximum
/// grants nothing.
///
/// Above [`Limits::high`] of its group or of one above it, no query is refused; a call reclaims
/// cached pages of such a group. With [`Throttling::Sleep`] it sleeps for up to 2 s besides, and so
/// does the thread that polls [`admit`](Self::admit). With [`Throttling::Report`], the default, an
/// engine may ask [`Group::throttle`] and sleep between two batches.
///
/// [`grow`]: datafusion_execution::memory_pool::MemoryPool::grow
/// [`Throttling::Report`]: highwater::Throttling::Report
/// [`Throttling::Sleep`]: highwater::Throttling::Sleep
///
/// # Examples
///
/// See the [crate](crate).
#[derive(Clone)]
pub struct Tenant {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) group: Group,
    pub(crate) options: Options,
    pub(crate) admission: Admission,
    pub(crate) refused: Refused,
    /// Consumers that can spill and hold memory.
    pub(crate) active: Active,
    /// Numbers given to queries, whether they have begun or not.
    /// Written by: new pools. Read by: the same. Publishes: nothing. So do the counts below.
    numbers: AtomicU64,
    queries: AtomicU64,
    nr_queries: AtomicU64,
    pub(crate) forced: AtomicU64,
}

/// Refusals by reason.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    pub(crate) full: AtomicU64,
    pub(crate) share: AtomicU64,
    pub(crate) behind: AtomicU64,
}

/// What happened to a tenant's queries, for an operator or an autoscaler; the stalls are in
/// [`Group::pressure`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantCounts {
    /// Pools of queries that were admitted, have charged memory or were given limits, and those of
    /// them that exist now. Each attempt of [`Tenant::run`] and [`Tenant::execute`] has its own.
    pub queries: u64,
    /// See `queries`.
    pub running: u64,
    /// Calls refused for lack of room, for fairness, and because others waited in line.
    pub refused_full: u64,
    /// See `refused_full`.
    pub refused_share: u64,
    /// See `refused_full`.
    pub refused_behind: u64,
    /// Bytes charged by calls that cannot be refused, where a request would have been; without what
    /// the query's reserve covered. May exceed what is charged above a maximum: a call counts as a
    /// whole, also if part of it had room or if only others waited in line.
    pub forced: Bytes,
    /// Waits for admission that have ended, also by giving up, queries that wait now, and the time
    /// of both. An attempt of [`Tenant::run`] that waits is one wait.
    pub waited: u64,
    /// See `waited`.
    pub waiting: u64,
    /// See `waited`.
    pub wait_time: Duration,
}

impl Tenant {
    /// Makes a tenant of a group. The group should have a maximum; its ancestors may have lower
    /// ones. With [`OnFull::Victim`], sets the group's handlers.
    ///
    /// Make one for each group, and clone it: queries of another one are limited with these, but
    /// wait in a queue of their own, and fairness does not count them.
    #[must_use]
    pub fn new(group: Group, options: Options) -> Self {
        let shared = Arc::new(Shared {
            group,
            options,
            admission: Admission::default(),
            refused: Refused::default(),
            active: Active::default(),
            numbers: AtomicU64::new(0),
            queries: AtomicU64::new(0),
            nr_queries: AtomicU64::new(0),
            forced: AtomicU64::new(0),
        });
        if shared.options.on_full == OnFull::Victim {
            shared.group.on_exhausted(|victim| {
                HighwaterPool::stop_victim(victim);
            });
            let tenant = Arc::downgrade(&shared);
            shared.group.on_reclaim(move |request| {
                let tenant = tenant.upgrade();
                tenant.map_or(Bytes::ZERO, |tenant| tenant.stop_largest(request))
            });
        }
        Self { shared }
    }

    /// Begins the pool of a query.
    pub fn query(&self) -> QueryBuilder<'_> {
        QueryBuilder {
            tenant: self,
            name: "query".into(),
            limits: Limits::default(),
        }
    }

    /// Returns the group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.shared.group
    }

    /// Returns the queue of queries that wait for memory.
    #[must_use]
    pub fn admission(&self) -> &Admission {
        &self.shared.admission
    }

    /// Returns what happened to the tenant's queries until now.
    #[must_use]
    pub fn counts(&self) -> TenantCounts {
        // Relaxed: statistics.
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let shared = &*self.shared;
        let waits = shared.admission.counts();
        TenantCounts {
            queries: read(&shared.queries),
            running: read(&shared.nr_queries),
            refused_full: read(&shared.refused.full),
            refused_share: read(&shared.refused.share),
            refused_behind: read(&shared.refused.behind),
            forced: Bytes(read(&shared.forced)),
            waited: waits.waited,
            waiting: waits.waiting,
            wait_time: waits.time,
        }
    }
}

// Relaxed throughout: numbers by themselves.
impl Shared {
    /// Returns the number of a query, by which its group is named.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a query that begins.
    pub(crate) fn begin_query(&self) {
        self.nr_queries.fetch_add(1, Ordering::Relaxed);
        self.queries.fetch_add(1, Ordering::Relaxed);
    }

    /// Stops queries, the largest first, until they give back as much as is wanted; returns what
    /// they use. Passes over those that were stopped and have not ended in the time that a request
    /// waits: others would be asked in vain after the tenant, and this one not again. So where a
    /// query ends late, more of its tenant are stopped, and none of a protected one.
    fn stop_largest(&self, request: &ReclaimRequest) -> Bytes {
        let (want, waits_until) = (request.want, request.deadline);
        let grace = waits_until.saturating_duration_since(Instant::now());
        let queries = self.group.children().into_iter();
        let mut queries: Vec<_> = queries.map(|it| (it.usage_precise(), it)).collect();
        queries.sort_by_key(|(usage, group)| std::cmp::Reverse((*usage, group.id())));
        let mut given = Bytes::ZERO;
        for (usage, group) in queries {
            if given >= want || usage == Bytes::ZERO {
                break;
            }
            if is_overdue(&group, grace) {
                continue;
            }
            if stop_query(&group) == StopOutcome::Stopped {
                given += usage;
            }
        }
        given
    }

    pub(crate) fn end_query(&self) {
        self.nr_queries.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn nr_queries(&self) -> u64 {
        self.nr_queries.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant")
            .field("group", &self.shared.group)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// The pool of one query, to be [built](Self::build).
#[derive(Debug)]
#[must_use = "it is not built yet"]
pub struct QueryBuilder<'t> {
    pub(crate) tenant: &'t Tenant,
    pub(crate) name: String,
    pub(crate) limits: Limits,
}

impl QueryBuilder<'_> {
    /// Names the query in errors and statistics: its group is called so, and has a number behind
    /// that, because two queries may have one name. A name that no group can have counts as
    /// `query`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Limits the query within its tenant.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Builds the pool. The query's group is made at its first charge, because engines also build
    /// runtimes that run nothing.
    ///
    /// # Errors
    ///
    /// When the query has [limits](Self::limits) of its own, so that its group is made here, and it
    /// cannot be made: the limits contradict each other, or the tenant's group was removed.
    pub fn build(self) -> Result<Arc<HighwaterPool>, ChildError> {
        let is_limited = self.limits != Limits::default();
        let pool = HighwaterPool::of_query(self);
        if is_limited {
            pool.group().map_err(ChildError::clone)?;
        }
        Ok(Arc::new(pool))
    }
}
