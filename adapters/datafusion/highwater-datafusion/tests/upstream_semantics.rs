//! Promise: what DataFusion's own tests of its pools expect, by the names of the originals, in our
//! words.

use std::num::NonZeroUsize;
use std::sync::Arc;

use datafusion_common::DataFusionError;
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, TrackConsumersPool,
};
use highwater_datafusion::HighwaterPool;

fn pool_of(limit: usize) -> Arc<dyn MemoryPool> {
    Arc::new(HighwaterPool::standalone(limit))
}

#[test]
fn memory_pool_underflow() {
    let pool = pool_of(50);
    let first = MemoryConsumer::new("first").register(&pool);
    first.grow(100);
    assert_eq!(pool.reserved(), 100, "growing is never refused");
    assert_eq!(first.free(), 100);
    assert_eq!(pool.reserved(), 0);
    assert!(first.try_grow(100).is_err());
    assert_eq!(pool.reserved(), 0, "a refused call takes nothing");
    first.try_grow(30).expect("there is room");
    let second = MemoryConsumer::new("second").register(&pool);
    assert!(second.try_grow(25).is_err());
    drop(first);
    assert_eq!(pool.reserved(), 0);
    second.try_grow(25).expect("there is room again");
    assert_eq!(pool.reserved(), 25);
}

#[test]
fn split_new_empty_take_try_shrink_and_resize() {
    let pool = pool_of(100);
    let mut whole = MemoryConsumer::new("whole").register(&pool);
    whole.try_grow(20).expect("there is room");
    let part = whole.split(5);
    let empty = whole.new_empty();
    empty.try_grow(5).expect("there is room");
    assert_eq!((whole.size(), part.size(), pool.reserved()), (15, 5, 25));
    let taken = whole.take();
    assert_eq!((whole.size(), taken.size(), pool.reserved()), (0, 15, 25));
    whole.try_grow(3).expect("there is room");
    assert!(taken.try_shrink(16).is_err());
    assert_eq!(taken.try_shrink(5).expect("it holds as much"), 10);
    taken.resize(30);
    assert!(taken.try_resize(100).is_err());
    assert_eq!((taken.size(), pool.reserved()), (30, 43));
    drop((whole, part, empty, taken));
    assert_eq!(pool.reserved(), 0);
}

#[test]
fn a_refusal_is_resources_exhausted_with_the_usual_text() {
    let pool = pool_of(100);
    let sort = MemoryConsumer::new("sort")
        .with_can_spill(true)
        .register(&pool);
    sort.try_grow(60).expect("there is room");
    let error = sort.try_grow(50).expect_err("there is no room");
    assert!(matches!(error, DataFusionError::ResourcesExhausted(_)));
    let error = error.context("while sorting");
    assert!(matches!(
        error.find_root(),
        DataFusionError::ResourcesExhausted(_)
    ));
    let text = error.find_root().to_string();
    let usual = "Failed to allocate additional 50.0 B for sort with 60.0 B already allocated for \
                 this reservation - 40.0 B remain available for the total memory pool: \
                 highwater(/pool/query-0, used: 60.0 B, limit: 100.0 B); group /pool is full: \
                 60.0 B of 100.0 B used, 1 query of /pool; raise its maximum (Group::set_max) or \
                 run fewer queries; largest consumers of /pool: sort of query-0 60.0 B";
    assert!(text.contains(usual), "{text}");
}

#[test]
fn tracked_consumers_pool() {
    let top = NonZeroUsize::new(3).expect("not zero");
    let tracked = TrackConsumersPool::new(HighwaterPool::standalone(100), top);
    let pool: Arc<dyn MemoryPool> = Arc::new(tracked);
    assert!(!pool.is::<HighwaterPool>(), "the wrapper is another type");
    let join = MemoryConsumer::new("join").register(&pool);
    join.try_grow(90).expect("there is room");
    let text = join.try_grow(20).expect_err("there is no room").to_string();
    let top = "Additional allocation failed for join with top memory consumers (across \
               reservations) as:";
    assert!(text.contains(top), "{text}");
    assert!(text.contains("90.0 B"), "{text}");
}

#[test]
fn name_limit_and_type() {
    let pool = pool_of(100_000);
    assert_eq!(pool.name(), "highwater");
    assert!(matches!(pool.memory_limit(), MemoryLimit::Finite(100_000)));
    assert!(pool.is::<HighwaterPool>());
    let ours = pool.downcast_ref::<HighwaterPool>().expect("it is ours");
    ours.tenant()
        .group()
        .set_max(highwater::Bytes(50_000))
        .expect("nothing is used");
    assert!(
        matches!(pool.memory_limit(), MemoryLimit::Finite(50_000)),
        "limits change live"
    );
}

#[test]
fn a_pool_may_be_without_a_limit() {
    let pool = pool_of(usize::MAX);
    let consumer = MemoryConsumer::new("join").register(&pool);
    assert!(consumer.try_grow(1 << 40).is_ok());
}

#[test]
fn nothing_is_asked_for_nothing() {
    let pool = pool_of(0);
    let none = MemoryConsumer::new("none").register(&pool);
    none.try_grow(0).expect("nothing");
    none.shrink(0);
    assert!(none.try_grow(1).is_err());
}
