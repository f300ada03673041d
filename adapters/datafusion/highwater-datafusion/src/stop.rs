//! Stopping a query, so that others have its memory.

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::task::AtomicWaker;
use highwater::Group;

/// Whether a query is to stop.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    /// Written by: `stop`. Read by: calls of the query, `execute`. Publishes: nothing.
    is_stopped: AtomicBool,
    /// Calls of the query in which others are made to give way.
    /// Written by: these. Read by: `stop_query`. Publishes: nothing.
    nr_asking: AtomicUsize,
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
        self.waker.wake();
    }
}

/// Attached to a query's group, so that a victim finds its pool.
pub(crate) struct OfQuery(pub(crate) Arc<Stop>);

/// A query that makes others give way.
#[derive(Clone, Copy)]
struct Asker {
    stop: *const Stop,
    usage: u64,
}

thread_local! {
    /// The query for which this thread asks for memory; handlers run on the thread that asks.
    static ASKER: Cell<Option<Asker>> = const { Cell::new(None) };
}

/// A query asks for memory, until dropped.
pub(crate) struct Asking<'p> {
    stop: &'p Stop,
    former: Option<Asker>,
}

impl<'p> Asking<'p> {
    pub(crate) fn begin(stop: &'p Stop, usage: u64) -> Self {
        // Relaxed, here and below: see the field.
        stop.nr_asking.fetch_add(1, Ordering::Relaxed);
        let former = ASKER.replace(Some(Asker { stop, usage }));
        Self { stop, former }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        ASKER.set(self.former);
        self.stop.nr_asking.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Asker {
    /// Returns whether a query with this usage need not be stopped for the one that asks: the same,
    /// because a refusal is enough; or a smaller one that asks, too, because of two queries that
    /// ask only one is to give way.
    fn spares(self, stop: &Stop, usage: u64) -> bool {
        let it = ptr::from_ref(stop);
        // Relaxed: a query that begins to ask at this moment may be stopped.
        let is_asking = stop.nr_asking.load(Ordering::Relaxed) > 0;
        self.stop == it || is_asking && (usage, it) < (self.usage, self.stop)
    }
}

/// Returns whether the group is a query's.
pub(crate) fn is_query(group: &Group) -> bool {
    group.data::<OfQuery>().is_some()
}

/// Stops the query whose group this is, if it is one's, and the one that asks does not spare it.
pub(crate) fn stop_query(group: &Group) -> bool {
    let Some(OfQuery(stop)) = group.data() else {
        return false;
    };
    let usage = group.usage_precise().0;
    if ASKER.get().is_some_and(|asker| asker.spares(stop, usage)) {
        return false;
    }
    group.mark_oom_victim();
    stop.stop();
    true
}

#[cfg(test)]
mod tests {
    use highwater::group::Limits;
    use highwater::{Bytes, Manager};

    use super::*;
    use crate::pool::HighwaterPool;
    use crate::tenant::{Options, Tenant};

    // Symptom: of two queries that asked at once, each stopped the other. Goal: the larger one
    // gives way, and each may stop one that does not ask.
    // Method: the thread that looks asks for the query that began to ask last.
    #[test]
    fn of_two_queries_that_ask_at_once_the_larger_gives_way() {
        fn from(asks: &Arc<HighwaterPool>) -> Asking<'_> {
            Asking::begin(asks.stop_of(), asks.used())
        }
        let group = |pool: &Arc<HighwaterPool>| pool.group().expect("it has charged").clone();
        let hw = Manager::builder().frames(Bytes::ZERO).build();
        let root = hw.expect("no frames").root();
        let tenant = root.child("a", Limits::default()).expect("it is free");
        let tenant = Tenant::new(tenant, Options::default());
        let [small, large] = [1, 2].map(|bytes| {
            let pool = tenant.query().build().expect("no limits");
            pool.force(bytes);
            pool
        });
        {
            let (_first, _then) = (from(&small), from(&large));
            assert!(!stop_query(&group(&large)), "it asks itself");
            assert!(!stop_query(&group(&small)), "it asks, too, and is smaller");
        }
        {
            let (_first, _then) = (from(&large), from(&small));
            assert!(!stop_query(&group(&small)), "it asks itself");
            assert!(stop_query(&group(&large)));
        }
        let _one = from(&large);
        assert!(stop_query(&group(&small)), "it does not ask");
        assert!(small.is_stopped() && large.is_stopped());
        for (pool, bytes) in [(&small, 1), (&large, 2)] {
            pool.give_back(bytes);
        }
    }
}
