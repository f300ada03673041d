//! Common caches, each in its fastest configuration that we found.
//!
//! All three have `ahash` for their keys, which is `quick_cache`'s default (the others default to
//! `SipHash`), and capacity for twice the pages, so that no shard evicts. A value must remain valid
//! while the cache evicts its page: `quick_cache` and moka return clones, so theirs are pages
//! behind an `Arc`; foyer counts references to its entries itself. Tried on the machine of the
//! README's numbers: a page as the value, which is copied, is four times slower in `quick_cache`;
//! the hashers `foldhash` and `rustc-hash` are not faster.

use std::sync::Arc;

use ahash::RandomState;

use crate::places::{COUNT, Page, Place, content};
use crate::readers::{Each, Reader};

const CAPACITY: usize = 2 * COUNT as usize;

/// `quick_cache` with more shards than by default (8 here): as fast on one thread, a fifth faster
/// on two.
pub(crate) fn quick_cache() -> impl Reader + 'static {
    use quick_cache::sync::{Cache, DefaultLifecycle};
    use quick_cache::{OptionsBuilder, UnitWeighter};

    let options = OptionsBuilder::new()
        .estimated_items_capacity(CAPACITY)
        .weight_capacity(CAPACITY as u64)
        .shards(256)
        .build();
    let cache: Cache<u32, Arc<Page>, _, _, _> = Cache::with_options(
        options.expect("both capacities are given"),
        UnitWeighter,
        RandomState::new(),
        DefaultLifecycle::default(),
    );
    for page in 0..COUNT {
        cache.insert(page, Arc::new(content(page)));
    }
    assert_eq!(cache.len(), COUNT as usize);
    Each(move |place: Place| place.word_of(&cache.get(&place.page).expect("a resident page")[..]))
}

/// moka, with the policy whose hits cost less; a bounded cache records its reads with either.
pub(crate) fn moka() -> impl Reader + 'static {
    use moka::policy::EvictionPolicy;
    use moka::sync::Cache;

    let cache: Cache<u32, Arc<Page>, _> = Cache::builder()
        .max_capacity(CAPACITY as u64)
        .initial_capacity(CAPACITY)
        .eviction_policy(EvictionPolicy::lru())
        .build_with_hasher(RandomState::new());
    for page in 0..COUNT {
        cache.insert(page, Arc::new(content(page)));
    }
    cache.run_pending_tasks();
    assert_eq!(cache.entry_count(), u64::from(COUNT));
    Each(move |place: Place| place.word_of(&cache.get(&place.page).expect("a resident page")[..]))
}

/// foyer's cache in memory, with the policy whose hits take a shard's lock shared, not exclusive,
/// and still mark hot pages.
pub(crate) fn foyer() -> impl Reader + 'static {
    use foyer_memory::{Cache, CacheBuilder, S3FifoConfig};

    let cache: Cache<u32, Page, _> = CacheBuilder::new(CAPACITY)
        .with_shards(64)
        .with_eviction_config(S3FifoConfig::default())
        .with_hash_builder(RandomState::new())
        .build();
    for page in 0..COUNT {
        cache.insert(page, content(page));
    }
    assert_eq!(cache.entries(), COUNT as usize);
    Each(move |place: Place| {
        let entry = cache.get(&place.page).expect("a resident page");
        place.word_of(entry.value())
    })
}
