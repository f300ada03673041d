//! Memory pools for DataFusion, over the groups of [`highwater`]: hard limits for each tenant,
//! admission, and retry before the first row.
//!
//! DataFusion asks a [`MemoryPool`] before an operator buffers rows. Its own pools keep one total
//! for all queries: one tenant can use all of it, and a query that comes too late fails although
//! it would pass a moment later. Here each query has a small pool of its own, over one tree of
//! groups which every query shares:
//!
//! ```text
//! manager (all queries)
//!   tenant-a      hard maximum, changed while queries run
//!     query 1     HighwaterPool: exact to the byte
//!     query 2
//!   tenant-b
//! ```
//!
//! - A [`Tenant`] is a group, and the rules that its queries share ([`Options`]): what operators
//!   that can spill leave to those that cannot, and their [fair share](Fairness).
//! - [`Tenant::query`] makes the pool of one query, and [`runtime_for`] the runtime environment
//!   over it.
//! - [`Tenant::execute`] runs a query. If it is refused memory before its first row, it waits
//!   until it can have more, holding nothing, and runs again ([`Retry`]). So a query that passes
//!   alone within its tenant's maximum does not fail because of its neighbours.
//! - [`guard_sql`] refuses the statement by which a tenant would replace the pool.
//!
//! Nothing waits inside [`MemoryPool::try_grow`], except with [`OnFull::Victim`]: operators hold
//! memory while they ask for more, and those that wait for each other never end. A manager with
//! [`Throttling::Sleep`] makes a call sleep all the same, above [`Limits::high`]: see [`Tenant`].
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use datafusion_execution::memory_pool::{MemoryConsumer, MemoryPool};
//! use highwater::{Bytes, Limits, Manager};
//! use highwater_datafusion::{Options, Tenant};
//!
//! // A manager that only accounts: DataFusion allocates the memory.
//! let hw = Manager::builder().capacity(Bytes::mib(64)).frames(Bytes::ZERO).build()?;
//! let group = hw.root().child("tenant-a", Limits::max(Bytes::mib(16)))?;
//! let tenant = Tenant::new(group, Options::default());
//!
//! let pool: Arc<dyn MemoryPool> = tenant.query().build()?;
//! let sort = MemoryConsumer::new("sort").with_can_spill(true).register(&pool);
//! sort.try_grow(10 << 20)?;
//! assert_eq!(hw.root().usage_precise(), Bytes::mib(10));
//! let refused = sort.try_grow(10 << 20).unwrap_err().to_string();
//! assert!(refused.contains("its fair share of /tenant-a is 12.8 MB"), "{refused}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Limits::high`]: highwater::Limits::high
//! [`Throttling::Sleep`]: highwater::Throttling::Sleep
//! [`MemoryPool`]: datafusion_execution::memory_pool::MemoryPool
//! [`MemoryPool::try_grow`]: datafusion_execution::memory_pool::MemoryPool::try_grow

mod admission;
mod alone;
#[cfg(feature = "arrow")]
mod arrow_pool;
mod consumers;
mod execute;
mod fairness;
mod guard;
mod largest;
mod pool;
mod refusal;
mod reserve;
#[cfg(test)]
mod reserve_tests;
mod slot;
#[cfg(test)]
mod slot_tests;
mod stop;
mod strays;
mod sync;
mod tenant;

pub use admission::Admission;
#[cfg(feature = "arrow")]
pub use arrow_pool::ArrowPool;
pub use consumers::ConsumerUse;
pub use execute::Retry;
pub use fairness::Fairness;
pub use guard::guard_sql;
pub use pool::{HighwaterPool, runtime_for};
pub use refusal::Stopped;
pub use tenant::{OnFull, Options, QueryBuilder, Tenant, TenantCounts};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
