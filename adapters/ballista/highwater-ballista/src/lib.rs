//! Memory limits for the tenants of a Ballista cluster, over the pools of [`highwater_datafusion`].
//!
//! A Ballista executor gives each task a pool of its own: `memory_pool_size / vcores`, whatever the
//! other tasks use, and whichever tenant they are of. Here the tasks of an executor share one tree
//! of groups:
//!
//! ```text
//! executor (a manager)
//!   default       sessions that name no tenant, or one that is not known
//!   tenant-a      hard maximum, changed while tasks run
//!     task 1      a pool for each task, exact to the byte
//!     task 2
//! ```
//!
//! - [`tenant`] names the tenant of a session, on the client.
//! - [`config_producer`] lets the name through, on schedulers and executors.
//! - [`Executors`] configures an executor: [`Executors::configure`].
//! - [`Watch`] tells whether the pools in force are Highwater's.
//!
//! A task that is refused memory ends with `ResourcesExhausted`, which ends its job: Ballista does
//! not run it again. The requests of a task that is stopped as a victim fail with an I/O error of
//! kind [`OutOfMemory`](std::io::ErrorKind::OutOfMemory). If its operator passes that on, the task
//! ends, and Ballista runs it again, up to `task_max_failures` times. A task that asks for no more,
//! or whose operator spills at any error (the sort-based shuffle writer and the repartition do),
//! runs to its end and holds its memory until then.
//!
//! # Example
//!
//! ```
//! use ballista_executor::executor_process::ExecutorProcessConfig;
//! use datafusion::prelude::SessionConfig;
//! use highwater::{Bytes, Limits, Manager};
//! use highwater_ballista::{Executors, TenantPolicy, tenant};
//!
//! // In the process of an executor:
//! let hw = Manager::builder().capacity(Bytes::gib(8)).frames(Bytes::ZERO).build()?;
//! let policy = TenantPolicy::new(Limits::max(Bytes::mib(256)))
//!     .tenant("reports", Limits::max(Bytes::gib(2)))
//!     .tenant("ingest", Limits::max(Bytes::gib(4)));
//! let executors = Executors::new(&hw, policy)?;
//! let mut config = ExecutorProcessConfig::default();
//! executors.configure(&mut config)?;
//! // start_executor_process(Arc::new(config)).await?;
//!
//! // In a client:
//! let session = tenant(SessionConfig::new(), "reports");
//! # let _ = session;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod executors;
mod session;
mod spill;
mod task_pool;
mod watch;

pub use executors::{Executors, TenantPolicy};
pub use session::{HighwaterOptions, config_producer, tenant, tenant_of};
pub use task_pool::TaskPool;
pub use watch::{InForce, Watch};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
