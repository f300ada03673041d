//! Stopping a query, so that others have its memory.

use std::cell::RefCell;
use std::iter;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use highwater::{Bytes, Group};

use crate::consumers::Consumers;
use crate::tenant::{Shared, Tenant};

/// Whether a query is to stop.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    /// Written by: `stop`. Read by: calls of the query, `execute`. Publishes: nothing.
    is_stopped: AtomicBool,
    /// Calls of the query in which others are made to give way.
    /// Written by: these. Read by: `stop_query`. Publishes: nothing.
    nr_asking: AtomicUsize,
    /// Written by: `stop`. Read by: `is_overdue`. Publishes: nothing.
    since: OnceLock<Instant>,
    pub(crate) waker: AtomicWaker,
}

impl Stop {
    pub(crate) fn is_stopped(&self) -> bool {
        // Relaxed: what it causes need not be seen with it.
        self.is_stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        // Relaxed: as in `is_stopped`.
        self.is_stopped.store(true, Ordering::Relaxed);
        self.since.get_or_init(Instant::now);
        self.waker.wake();
    }
}

/// Attached to a query's group, so that a victim finds its pool.
pub(crate) struct OfQuery {
    stop: Arc<Stop>,
    /// When the attempt ended whose group this is, if the query runs again: since then the group
    /// gives back what it has, and stopping the query would give no more.
    /// Written by: `end`. Read by: `stop_query`, `is_overdue`. Publishes: nothing.
    ended: OnceLock<Instant>,
    /// Neither is kept by the group, which may outlive both.
    consumers: Weak<Consumers>,
    tenant: Weak<Shared>,
}

impl OfQuery {
    pub(crate) fn new(stop: &Arc<Stop>, consumers: &Arc<Consumers>, tenant: &Tenant) -> Self {
        Self {
            stop: Arc::clone(stop),
            ended: OnceLock::new(),
            consumers: Arc::downgrade(consumers),
            tenant: Arc::downgrade(&tenant.shared),
        }
    }

    /// Ends the attempt whose group this is, before another.
    pub(crate) fn end(&self) {
        self.ended.get_or_init(Instant::now);
    }
}

/// A query that makes others give way.
struct Asker {
    stop: Arc<Stop>,
    group: Group,
    usage: Bytes,
}

thread_local! {
    /// The query for which this thread asks for memory; handlers run on the thread that asks.
    static ASKER: RefCell<Option<Asker>> = const { RefCell::new(None) };
}

/// A query asks for memory, until dropped.
pub(crate) struct Asking<'p> {
    stop: &'p Stop,
    former: Option<Asker>,
}

impl<'p> Asking<'p> {
    pub(crate) fn begin(stop: &'p Arc<Stop>, group: &Group) -> Self {
        // Relaxed, here and below: see the field.
        stop.nr_asking.fetch_add(1, Ordering::Relaxed);
        let former = ASKER.replace(Some(Asker {
            stop: Arc::clone(stop),
            group: group.clone(),
            usage: group.usage_precise(),
        }));
        Self { stop, former }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        ASKER.set(self.former.take());
        self.stop.nr_asking.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Asker {
    /// Returns whether a query with this group is not stopped for the one that asks: the same, or
    /// one that it runs in, because a refusal is enough; a smaller one that asks, too, because of
    /// two queries that ask only one is to give way; any, if the one that asks gives way itself.
    fn spares(&self, stop: &Stop, group: &Group) -> bool {
        let (own, it) = (Arc::as_ptr(&self.stop), ptr::from_ref(stop));
        let mut path = iter::successors(Some(self.group.clone()), Group::parent);
        let runs_in = path.any(|above| above == *group);
        // Relaxed: a query that begins to ask at this moment may be stopped.
        let is_asking = stop.nr_asking.load(Ordering::Relaxed) > 0;
        let is_smaller = || (group.usage_precise(), it) < (self.usage, own);
        runs_in || self.stop.is_stopped() || is_asking && is_smaller()
    }
}

/// Returns the groups of a tenant's queries, with the consumers of those whose pool is there.
pub(crate) fn queries_of(tenant: &Shared) -> impl Iterator<Item = (Group, Option<Arc<Consumers>>)> {
    let groups = tenant.group.children().into_iter();
    groups.filter_map(|group| {
        let query = of_query(&group)?;
        let is_of_tenant = ptr::eq(query.tenant.as_ptr(), tenant);
        let consumers = query.consumers.upgrade();
        is_of_tenant.then_some((group, consumers))
    })
}

/// Counts the consumers that can spill and hold memory, one by one, in each query of a tenant.
pub(crate) fn count_active(tenant: &Shared) -> u64 {
    let consumers = queries_of(tenant).filter_map(|(_, consumers)| consumers);
    consumers.map(|consumers| consumers.count_active()).sum()
}

/// Returns whether the group is a query's.
pub(crate) fn is_query(group: &Group) -> bool {
    of_query(group).is_some()
}

fn of_query(group: &Group) -> Option<&OfQuery> {
    group.data()
}

/// Returns whether the query whose group this is was stopped longer ago than that, or its attempt
/// ended, so that nothing can count on its end.
pub(crate) fn is_overdue(group: &Group, grace: Duration) -> bool {
    let query = of_query(group);
    let since = query.and_then(|query| query.ended.get().or(query.stop.since.get()));
    since.is_some_and(|since| since.elapsed() > grace)
}

/// Result of [`stop_query`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopOutcome {
    /// It gives its memory back, or did so before.
    Stopped,
    /// It goes on.
    Spared,
    /// The group is no query's.
    Other,
}

/// Stops the query whose group this is, unless the one that asks spares it.
pub(crate) fn stop_query(group: &Group) -> StopOutcome {
    let Some(OfQuery { stop, ended, .. }) = of_query(group) else {
        return StopOutcome::Other;
    };
    let goes_on = ended.get().is_none();
    if goes_on && !stop.is_stopped() {
        let is_spared = ASKER.with_borrow(|asker| {
            let asker = asker.as_ref();
            asker.is_some_and(|asker| asker.spares(stop, group))
        });
        if is_spared {
            return StopOutcome::Spared;
        }
    }
    group.mark_oom_victim();
    if goes_on {
        stop.stop();
    }
    StopOutcome::Stopped
}

#[cfg(test)]
mod tests {
    use highwater::group::Limits;
    use highwater::{Bytes, Manager};

    use super::*;
    use crate::pool::HighwaterPool;
    use crate::tenant::{Options, Tenant};

    fn two(tenant: &Tenant) -> [Arc<HighwaterPool>; 2] {
        [1, 2].map(|bytes| {
            let pool = tenant.query().build().expect("no limits");
            pool.force(bytes);
            pool
        })
    }

    fn asks(pool: &Arc<HighwaterPool>) -> Asking<'_> {
        Asking::begin(pool.stop_of(), group(pool))
    }

    fn group(pool: &Arc<HighwaterPool>) -> &Group {
        pool.group().expect("it has charged")
    }

    // Symptom: of two queries that asked at once, each stopped the other; one that was stopped
    // already was not counted, and one that gave way itself stopped a third. Method: the thread
    // that looks asks for the query that began to ask last.
    #[test]
    fn of_two_queries_that_ask_at_once_the_larger_gives_way() {
        use StopOutcome::{Spared, Stopped};
        let hw = Manager::builder().frames(Bytes::ZERO).build();
        let root = hw.expect("no frames").root();
        let tenant = root.child("a", Limits::default()).expect("it is free");
        let tenant = Tenant::new(tenant, Options::default());
        let [small, large] = two(&tenant);
        let [third, _fourth] = two(&tenant);
        {
            let (_first, _then) = (asks(&small), asks(&large));
            assert_eq!(stop_query(group(&large)), Spared, "it asks itself");
            assert_eq!(
                stop_query(group(&small)),
                Spared,
                "it asks, too, and is smaller"
            );
        }
        {
            let (_first, _then) = (asks(&large), asks(&small));
            assert_eq!(stop_query(group(&small)), Spared, "it asks itself");
            assert_eq!(stop_query(group(&large)), Stopped);
            assert_eq!(stop_query(group(&large)), Stopped, "already");
        }
        {
            let _one = asks(&large);
            assert_eq!(
                stop_query(group(&third)),
                Spared,
                "the one that asks gives way"
            );
        }
        let _one = asks(&third);
        assert_eq!(stop_query(group(&small)), Stopped, "it does not ask");
        for (pool, bytes) in [(&small, 1), (&large, 2), (&third, 1), (&_fourth, 2)] {
            pool.give_back(bytes);
        }
    }

    // Goal: a query that runs again is no victim for what its former attempt has not returned yet;
    // that counts as on its way, and no longer than what a stopped query has.
    #[test]
    fn an_attempt_that_has_ended_stops_no_query() {
        let hw = Manager::builder().frames(Bytes::ZERO).build();
        let root = hw.expect("no frames").root();
        let tenant = root.child("a", Limits::default()).expect("it is free");
        let tenant = Tenant::new(tenant, Options::default());
        let [former, other] = two(&tenant);
        former.end_attempt();
        assert!(!is_overdue(group(&former), Duration::from_secs(3600)));
        assert_eq!(stop_query(group(&former)), StopOutcome::Stopped);
        assert!(!former.is_stopped());
        std::thread::sleep(Duration::from_millis(2));
        assert!(is_overdue(group(&former), Duration::from_millis(1)));
        former.give_back(1);
        other.give_back(2);
    }
}
