//! The tenants of an executor, and its configuration.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ballista_core::RuntimeProducer;
use ballista_core::error::BallistaError;
use ballista_core::serde::BallistaPhysicalExtensionCodec;
use ballista_core::utils::default_config_producer;
use ballista_executor::executor_process::ExecutorProcessConfig;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::SessionConfig;
use datafusion_proto::physical_plan::PhysicalExtensionCodec;
use highwater::group::{ChildError, Limits};
use highwater::{Group, Manager};
use highwater_datafusion::{Options, Tenant};
use parking_lot::Mutex;

use crate::session::{config_producer, tenant_of};
use crate::spill::SpillDirs;
use crate::task_pool::TaskPool;
use crate::watch::{Watch, WatchedCodec};

/// The group of sessions without a known tenant.
const DEFAULT: &str = "default";

/// Unknown names that are logged, and the characters of each: a client may invent any number of
/// them, of any length.
const LOGGED_MAX: usize = 64;
const LOGGED_CHARS: usize = 64;

/// The tenants of an executor, and their limits.
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself"]
pub struct TenantPolicy {
    default: Limits,
    tenants: Vec<(String, Limits)>,
    options: Options,
}

impl TenantPolicy {
    /// Makes a policy with limits for all sessions together that name no known tenant. They should
    /// be small: a process that does not forward names turns every session into one of these.
    pub fn new(default: Limits) -> Self {
        Self {
            default,
            tenants: Vec::new(),
            options: Options::default(),
        }
    }

    /// Adds a tenant.
    pub fn tenant(mut self, name: impl Into<String>, limits: Limits) -> Self {
        self.tenants.push((name.into(), limits));
        self
    }

    /// Sets the rules that the tasks of each tenant share.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }
}

/// The tenants of one executor, or of several executors in one process. Cheap to clone.
///
/// # Examples
///
/// See the [crate](crate).
#[derive(Clone)]
pub struct Executors {
    shared: Arc<Shared>,
}

struct Shared {
    default: Tenant,
    tenants: HashMap<String, Tenant>,
    unknown: Mutex<HashSet<String>>,
    /// Runtimes made for sessions whose tenant is unknown.
    /// Written by: their tasks. Read by: `nr_unknown`. Publishes: nothing.
    nr_unknown: AtomicU64,
    watch: Watch,
}

impl Executors {
    /// Makes the groups of the tenants below the manager's root: `default`, and one for each name.
    ///
    /// # Errors
    ///
    /// When a group cannot be made: its name is invalid or in use, or limits contradict each other.
    /// None is left then.
    pub fn new(hw: &Manager, policy: TenantPolicy) -> Result<Self, ChildError> {
        let default = std::iter::once((DEFAULT.to_owned(), policy.default));
        let groups = make_groups(hw, default.chain(policy.tenants))?;
        let tenant = |(name, group)| (name, Tenant::new(group, policy.options.clone()));
        let mut tenants: HashMap<_, _> = groups.into_iter().map(tenant).collect();
        let default = tenants.remove(DEFAULT).expect("its group is the first");
        Ok(Self {
            shared: Arc::new(Shared {
                default,
                tenants,
                unknown: Mutex::default(),
                nr_unknown: AtomicU64::new(0),
                watch: Watch::default(),
            }),
        })
    }

    /// Returns a tenant: the default one, if the name is unknown.
    #[must_use]
    pub fn tenant(&self, name: &str) -> &Tenant {
        let shared = &*self.shared;
        match shared.tenants.get(name) {
            Some(tenant) => tenant,
            None => &shared.default,
        }
    }

    /// Returns how many runtimes Ballista made for a tenant that is not known here: one or two for
    /// each task, which counts as of the default one. The tenant is missing in this executor's
    /// policy, or a client's invention.
    #[must_use]
    pub fn nr_unknown(&self) -> u64 {
        // Relaxed: a statistic.
        self.shared.nr_unknown.load(Ordering::Relaxed)
    }

    /// Tells whether the pools in force are Highwater's, if the executor was
    /// [configured](Self::configure).
    #[must_use]
    pub fn watch(&self) -> &Watch {
        &self.shared.watch
    }

    /// Returns a producer of what `base` produces, with a pool of the session's tenant: for
    /// `new_standalone_executor_from_builder`.
    #[must_use]
    pub fn runtime_producer(&self, base: RuntimeProducer) -> RuntimeProducer {
        let this = self.clone();
        Arc::new(move |config| {
            let builder = RuntimeEnvBuilder::from_runtime_env(&*base(config)?);
            this.runtime(builder, config)
        })
    }

    /// Returns a producer of runtimes that share caches. Tasks of each tenant spill together.
    fn own_producer(&self, work_dir: Option<&str>) -> Result<RuntimeProducer> {
        let this = self.clone();
        let base = RuntimeEnvBuilder::new().build()?;
        let spills = SpillDirs::within(work_dir);
        // A directory that cannot be used is an error here, not of each task.
        spills.of(DEFAULT)?;
        Ok(Arc::new(move |config| {
            let mut builder = RuntimeEnvBuilder::from_runtime_env(&base);
            let tenant = this.known(tenant_of(config)).unwrap_or(DEFAULT);
            builder.disk_manager = Some(spills.of(tenant)?);
            this.runtime(builder, config)
        }))
    }

    /// Returns a name, if a tenant has it.
    fn known<'n>(&self, name: &'n str) -> Option<&'n str> {
        let is_known = name == DEFAULT || self.shared.tenants.contains_key(name);
        is_known.then_some(name)
    }

    /// Configures an executor: each task has a pool of its session's tenant. What the configuration
    /// has of runtimes, settings and codecs stays below that; so call this last.
    ///
    /// # Errors
    ///
    /// [`BallistaError::Configuration`] if the configuration has a `memory_pool_size`: Ballista
    /// would replace these pools by its own; DataFusion's error if its `work_dir` cannot be used to
    /// spill. The configuration is unchanged then.
    pub fn configure(&self, config: &mut ExecutorProcessConfig) -> Result<(), BallistaError> {
        if let Some(size @ 1..) = config.memory_pool_size {
            return Err(BallistaError::Configuration(format!(
                "memory_pool_size is {size}, by which Ballista puts a pool of its own over those \
                 of the tenants; leave it unset, and limit each tenant in TenantPolicy"
            )));
        }
        let runtimes = match config.override_runtime_producer.take() {
            Some(base) => self.runtime_producer(base),
            None => self.own_producer(config.work_dir.as_deref())?,
        };
        let settings = config.override_config_producer.take();
        let settings = settings.unwrap_or_else(|| Arc::new(default_config_producer));
        let inner = config.override_physical_codec.take();
        let inner = inner.unwrap_or_else(|| Arc::new(BallistaPhysicalExtensionCodec::default()));
        let watch = self.shared.watch.clone();
        let codec: Arc<dyn PhysicalExtensionCodec> = Arc::new(WatchedCodec { watch, inner });

        // No other value leaves the producer's pool in place; and a runtime that is kept for a
        // session would give all its tasks one pool.
        config.memory_pool_size = Some(0);
        config.session_runtime_cache_capacity = 0;
        config.override_runtime_producer = Some(runtimes);
        config.override_config_producer = Some(config_producer(settings));
        config.override_physical_codec = Some(codec);
        Ok(())
    }

    fn runtime(
        &self,
        builder: RuntimeEnvBuilder,
        config: &SessionConfig,
    ) -> Result<Arc<RuntimeEnv>> {
        let name = tenant_of(config);
        if !name.is_empty() && self.known(name).is_none() {
            self.note_unknown(name);
        }
        let pool = self.tenant(name).query().name("task").build();
        let pool = pool.map_err(|error| DataFusionError::External(Box::new(error)))?;
        builder
            .with_memory_pool(Arc::new(TaskPool::new(pool)))
            .build_arc()
    }

    fn note_unknown(&self, name: &str) {
        // Relaxed: a statistic.
        self.shared.nr_unknown.fetch_add(1, Ordering::Relaxed);
        let name: String = name.chars().take(LOGGED_CHARS).collect();
        let mut unknown = self.shared.unknown.lock();
        if unknown.len() < LOGGED_MAX && !unknown.contains(&name) {
            log::warn!("tenant {name:?} is not known here: its tasks count as of /{DEFAULT}");
            unknown.insert(name);
        }
    }
}

/// Makes groups below the manager's root, all or none.
fn make_groups(
    hw: &Manager,
    wanted: impl Iterator<Item = (String, Limits)>,
) -> Result<Vec<(String, Group)>, ChildError> {
    let mut made: Vec<(String, Group)> = Vec::new();
    for (name, limits) in wanted {
        match hw.root().child(&name, limits) {
            Ok(group) => made.push((name, group)),
            Err(error) => {
                for (_, group) in made {
                    let removed = group.remove();
                    debug_assert!(removed.is_ok(), "nothing uses it yet: {removed:?}");
                }
                return Err(error);
            }
        }
    }
    Ok(made)
}

impl fmt::Debug for Executors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executors")
            .field("default", &self.shared.default)
            .field("tenants", &self.shared.tenants)
            .field("watch", &self.shared.watch)
            .finish_non_exhaustive()
    }
}
