//! Promise: what a query keeps as its reserve wakes none that waits. A test of its own process:
//! queries of any tenant that return memory wake the first of each queue.

#[expect(dead_code, reason = "other tests use more of it")]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use datafusion_execution::memory_pool::MemoryPool;
use futures::executor::block_on;
use highwater::Bytes;
use highwater_datafusion::Options;

use support::{MIB, holding, manager, tenant};

/// Remembers whether it was woken.
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// Symptom: every return of memory that a query kept as its reserve woke those that waited, for
// nothing.
#[test]
fn what_a_query_keeps_as_its_reserve_wakes_nobody() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let first = block_on(tenant.admit(Bytes::mib(12)));
    let pool: Arc<dyn MemoryPool> = first.expect("there is room");
    let join = holding("join", &pool);
    join.try_grow(12 * MIB).expect("it is reserved");
    let bell = Arc::new(Bell(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&bell));
    let mut second = Box::pin(tenant.admit(Bytes::mib(8)));
    let polled = second.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending(), "4 MiB are left");
    join.shrink(6 * MIB);
    join.try_grow(7 * MIB).expect("there is room");
    assert!(!bell.0.load(Ordering::Relaxed), "nothing was returned");
    join.shrink(2 * MIB);
    assert!(bell.0.load(Ordering::Relaxed), "1 MiB was returned");
}
