//! Set-up and teardown of a run: manager, tenants, files; and the check for leaks.
//!
//! Order of construction: run directory, traces (so that a wrong path costs nothing), manager, then
//! for each tenant its data file, group and mapping. Once all files are open and unlinked, the
//! directory is removed. Keys of a key trace lie in unlinked files of the parent directory.
//! Teardown is in reverse order; anything that is then still allocated or charged has leaked.

use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use highwater::group::Limits;
use highwater::topology::Topology;
use highwater::units::{Bytes, PAGE_BYTES};
use highwater::{Access, Background, Backing, File, Group, Manager, Mapping};

use super::backing::TenantFile;
use super::error::{ManagerError, ReplayError};
use super::manifest::Manifest;
use super::recording::Ticker;
use super::run_dir::RunDir;
use super::schedule::{PageObserver, Source};
use super::versions::Versions;
use super::victims::Victims;
use super::{IN_FLIGHT_MAX, ReplayConfig, TENANTS_MAX, THREADS_MAX, TenantConfig, TraceInput};
use crate::trace::{Digesting, ReaderOptions, TraceReader};

/// A run that is ready to start.
#[derive(Debug)]
pub struct Replay {
    pub(super) manager: Manager,
    pub(super) tenants: Vec<Tenant>,
    pub(super) sources: Vec<Source>,
    pub(super) config: ReplayConfig,
    pub(super) manifest: Manifest,
    pub(super) victims: Victims,
    /// Whether the run is observed over time.
    pub(super) is_observed: bool,
    /// Records the run, if it has no background threads that do.
    _ticker: Option<Ticker>,
    /// Declared last, so that it is dropped last, and removes the remaining files.
    _run_dir: RunDir,
}

/// State for a tenant's accesses.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) name: String,
    pub(super) group: Group,
    pub(super) max: Option<Bytes>,
    pub(super) mapping: Mapping,
    pub(super) file: File,
    pub(super) data: Arc<TenantFile>,
    /// `None` for a tenant that only reads: its file is immutable.
    pub(super) versions: Option<Versions>,
}

impl Replay {
    /// Builds the run.
    ///
    /// # Errors
    ///
    /// When the configuration is out of range, a trace cannot be opened, the files cannot be
    /// created or the manager refuses.
    pub fn prepare(config: &ReplayConfig) -> Result<Self, ReplayError> {
        Self::prepare_with(config, |_, data| data)
    }

    /// Builds the run, and records it at `record` for `highwater top`.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare), and when the recording cannot be created.
    pub fn prepare_recorded(config: &ReplayConfig, record: &Path) -> Result<Self, ReplayError> {
        Self::prepare_both(config, Some(record), |_, data| data)
    }

    /// Builds the run with the caller's layer between the cache and each tenant's data file, for
    /// example one that injects faults.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    pub fn prepare_with(
        config: &ReplayConfig,
        layer: impl FnMut(&str, Arc<dyn Backing>) -> Arc<dyn Backing>,
    ) -> Result<Self, ReplayError> {
        Self::prepare_both(config, None, layer)
    }

    fn prepare_both(
        config: &ReplayConfig,
        record: Option<&Path>,
        mut layer: impl FnMut(&str, Arc<dyn Backing>) -> Arc<dyn Backing>,
    ) -> Result<Self, ReplayError> {
        check(config)?;
        let in_dir = |source| ReplayError::Directory {
            dir: config.dir.clone(),
            source,
        };
        let run_dir = RunDir::create(&config.dir).map_err(in_dir)?;
        let manager = build_manager(config, record)?;
        let victims = Victims::watch(&manager);
        let (mut tenants, mut sources) = (Vec::new(), Vec::new());
        for (index, tenant) in config.tenants.iter().enumerate() {
            let reader = open_trace(tenant)?;
            let files = Files::create(index, config, access_of(&reader), &run_dir);
            let files = files.map_err(in_dir)?;
            let backing = layer(&tenant.name, files.data.clone());
            let pages = backing.len() / PAGE_BYTES;
            sources.push(Source::new(
                tenant.name.clone(),
                pages,
                reader,
                config.dir.clone(),
            ));
            tenants.push(Tenant::build(
                &manager,
                tenant,
                backing,
                files.data,
                files.versions,
            )?);
        }
        victims.count(tenants.iter().map(|tenant: &Tenant| tenant.group.id()));
        run_dir.detach();
        let ticker = record.filter(|_| config.threads == 1).map(|_| &manager);
        let ticker = ticker.map(Ticker::start).transpose();
        Ok(Self {
            _ticker: ticker.map_err(|e| ReplayError::Build(boxed(e)))?,
            manager,
            tenants,
            sources,
            config: config.clone(),
            manifest: Manifest::new(config),
            victims,
            is_observed: false,
            _run_dir: run_dir,
        })
    }

    /// Makes the run observe itself over time: its outcome has a
    /// [`Timeline`](super::Timeline). Takes a thread and changes no count of the report.
    #[must_use]
    pub fn observed(mut self) -> Self {
        self.is_observed = true;
        self
    }

    /// Makes the run tell `observer` which pages the tenant accesses, the one with this number in
    /// the configuration.
    ///
    /// # Panics
    ///
    /// When there are not as many tenants.
    pub fn observe_pages(&self, tenant: usize, observer: Box<dyn PageObserver>) {
        self.sources[tenant].observe(observer);
    }
}

impl Tenant {
    fn build(
        manager: &Manager,
        config: &TenantConfig,
        backing: Arc<dyn Backing>,
        data: Arc<TenantFile>,
        versions: Option<Versions>,
    ) -> Result<Self, ReplayError> {
        let name = config.name.clone();
        let limits = config.max.map_or_else(Limits::default, Limits::max);
        let group = manager.root().child(&name, limits);
        let group = group.map_err(refused(&name, "group"))?;
        let access = match versions {
            Some(_) => Access::ReadWrite,
            None => Access::ReadOnly,
        };
        let file = manager.open_backing(backing, access);
        let file = file.map_err(refused(&name, "data file"))?;
        let mapping = manager.space(&group).map_file(&file, 0..file.pages());
        let mapping = mapping.map_err(refused(&name, "mapping"))?;
        Ok(Self {
            max: config.max,
            name,
            group,
            mapping,
            file,
            data,
            versions,
        })
    }
}

/// The files of one tenant, all unlinked.
struct Files {
    data: Arc<TenantFile>,
    versions: Option<Versions>,
}

impl Files {
    fn create(
        index: usize,
        config: &ReplayConfig,
        access: Access,
        run_dir: &RunDir,
    ) -> io::Result<Self> {
        let open = |kind: &str| run_dir.anonymous_file(&format!("{kind}-{index}"));
        let tenant = u32::try_from(index).map_err(io::Error::other)?;
        let versions = match access {
            Access::ReadWrite => Some(Versions::new(open("versions")?)),
            Access::ReadOnly => None,
        };
        Ok(Self {
            data: Arc::new(TenantFile::new(
                open("data")?,
                config.io,
                config.seed,
                tenant,
            )?),
            versions,
        })
    }
}

/// Rejects invalid configurations.
fn check(config: &ReplayConfig) -> Result<(), ReplayError> {
    let threads = config.threads;
    if !(1..=THREADS_MAX).contains(&threads) {
        return Err(ReplayError::Threads { threads });
    }
    let in_flight = config.in_flight;
    if !(1..=IN_FLIGHT_MAX).contains(&in_flight) {
        return Err(ReplayError::InFlight { in_flight });
    }
    match config.tenants.len() {
        0 => return Err(ReplayError::NoTenants),
        tenants if tenants > TENANTS_MAX => return Err(ReplayError::TooManyTenants { tenants }),
        _ => {}
    }
    let of_stdin = |tenant: &&TenantConfig| matches!(tenant.trace, TraceInput::StandardInput);
    if config.tenants.iter().filter(of_stdin).count() > 1 {
        return Err(ReplayError::StandardInputTwice);
    }
    let mut names = HashSet::new();
    for tenant in &config.tenants {
        if !names.insert(&tenant.name) {
            let name = tenant.name.clone();
            return Err(ReplayError::DuplicateTenant { name });
        }
        if let Some(max) = tenant.max.filter(|max| max.0 < PAGE_BYTES) {
            let tenant = tenant.name.clone();
            return Err(ReplayError::MaxTooSmall { tenant, max });
        }
    }
    Ok(())
}

/// Creates a manager of the configured capacity.
///
/// With several threads it has the machine's CPUs and a background thread. A single thread reclaims
/// for itself and has one CPU, on any real CPU: otherwise the frames and charges that it leaves
/// behind with each migration would make every run slightly different.
fn build_manager(config: &ReplayConfig, record: Option<&Path>) -> Result<Manager, ReplayError> {
    let builder = Manager::builder()
        .capacity(config.capacity)
        .eviction_policy(config.policy)
        .readahead(config.readahead)
        .tunables(config.tunables);
    let builder = match config.backend {
        Some(backend) => builder.backend(backend.make()),
        None => builder,
    };
    let builder = match config.threads {
        1 => builder.topology(Topology::flat(1)),
        _ => builder.background(Background::Thread),
    };
    let builder = match record {
        Some(path) => builder.recorder(path, Bytes::mib(32)),
        None => builder,
    };
    builder.build().map_err(|e| ReplayError::Build(boxed(e)))
}

pub(super) fn open_trace(tenant: &TenantConfig) -> Result<TraceReader, ReplayError> {
    let options = ReaderOptions {
        digesting: Digesting::Sha256,
        ..tenant.options.clone()
    };
    let reader = match tenant.trace {
        TraceInput::File(ref path) => TraceReader::open(path, &options),
        TraceInput::StandardInput => TraceReader::standard_input(&options),
        TraceInput::Embedded { name, bytes } => TraceReader::from_reader(name, bytes, &options),
    };
    reader.map_err(|source| ReplayError::of_trace(&tenant.name, &tenant.options.stop, source))
}

/// A file whose trace cannot write is immutable, and its resident reads need no latch.
fn access_of(trace: &TraceReader) -> Access {
    if trace.may_write() {
        Access::ReadWrite
    } else {
        Access::ReadOnly
    }
}

fn refused<E>(tenant: &str, what: &'static str) -> impl FnOnce(E) -> ReplayError
where
    E: Error + Send + Sync + 'static,
{
    let tenant = tenant.to_owned();
    move |e| ReplayError::SetUp {
        tenant,
        what,
        source: boxed(e),
    }
}

pub(super) fn boxed<E: Error + Send + Sync + 'static>(error: E) -> ManagerError {
    Box::new(error)
}
