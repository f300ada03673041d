//! Promise: neither a byte nor a consumer is lost or counted twice, whatever threads do at the same
//! time. Models of `src/slot.rs` and `src/reserve.rs`: all interleavings of two threads' calls, and
//! all values that the orderings let them read, with at most two preemptions.

#![expect(dead_code, reason = "the models use a part of both")]

#[path = "../../src/reserve.rs"]
mod reserve;
#[path = "../../src/slot.rs"]
mod slot;

mod reserves;
mod slots;

/// The atomics of loom, and numbers of its threads.
mod sync {
    use std::cell::Cell;

    pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering, fence};

    loom::thread_local! {
        static NUMBER: Cell<u64> = Cell::new(u64::MAX);
    }

    pub(crate) fn own_number() -> u64 {
        NUMBER.with(Cell::get)
    }

    /// Sets the number that the model gives this thread.
    pub(crate) fn set_number(number: u64) {
        NUMBER.with(|own| own.set(number));
    }

    pub(crate) fn thread_number() -> u64 {
        assert_ne!(own_number(), u64::MAX, "the model sets it first");
        own_number()
    }
}

/// Explores what `run` and the threads that it makes can do.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        sync::set_number(1);
        run();
    });
}
