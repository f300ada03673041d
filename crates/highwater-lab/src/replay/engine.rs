//! The access loop: threads take batches, access every page, verify every byte, count and time.
//!
//! Invariant: each page access, once counted, either verified or is a verify failure that the
//! report counts. Pages are verified while they are held (under the guard, or under the latch),
//! outside of the measured time.
//!
//! Hit or miss: an access first tries to get the page without faulting; only if that refuses does
//! it make the call that may read the file. A page that another thread faults in between the two
//! calls counts as a miss.
//!
//! A write first reads the page, as any partial write does, verifies the old contents, and fills
//! the page with the contents of the next version, under the page's exclusive latch.
//!
//! Failure: the first error stops all threads and is the one returned. A panicking worker stops the
//! others as well.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use highwater::units::{Bytes, PAGE_SIZE};

use super::content::{Mismatch, PageStamp};
use super::error::{ManagerError, ReplayError};
use super::latency::{LatencyBook, Pair, Recorder, Seen};
use super::layout::lay_out;
use super::manifest::TraceReport;
use super::recorded::{FileTallies, FileTally};
use super::report::{Outcome, Report, TenantReport, ratio};
use super::schedule::{self, Access};
use super::setup::{Replay, Tenant, boxed};
use super::timeline;
use super::versions::Versions;
use crate::control::Control;
use crate::report::text::to_f64;
use crate::trace::Op;

/// Mismatches that are described; all are counted. Chosen: they fit a terminal.
const MISMATCHES_SHOWN: usize = 8;

/// Counts of one thread for one tenant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) page_accesses: u64,
    pub(super) hits: u64,
}

/// Pages that did not verify.
#[derive(Debug, Default)]
struct Failures {
    count: u64,
    shown: Vec<String>,
}

impl Failures {
    #[cold]
    fn add(&mut self, tenant: &Tenant, mismatch: &Mismatch) {
        self.count += 1;
        if self.shown.len() < MISMATCHES_SHOWN {
            self.shown
                .push(format!("tenant `{}`: {mismatch}", tenant.name));
        }
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        let room = MISMATCHES_SHOWN - self.shown.len();
        self.shown.extend(other.shown.into_iter().take(room));
    }
}

/// Counts of all threads.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) tallies: Vec<Tally>,
    files: Vec<FileTallies>,
    failures: Failures,
}

impl Counts {
    fn new(tenants: usize) -> Self {
        Self {
            tallies: vec![Tally::default(); tenants],
            files: vec![FileTallies::default(); tenants],
            ..Self::default()
        }
    }

    fn merge(&mut self, other: Self) {
        for (sum, tally) in self.tallies.iter_mut().zip(other.tallies) {
            sum.requests += tally.requests;
            sum.page_accesses += tally.page_accesses;
            sum.hits += tally.hits;
        }
        for (sum, files) in self.files.iter_mut().zip(&other.files) {
            sum.merge(files);
        }
        self.failures.merge(other.failures);
    }

    /// Adds what a request has counted since `before` to its file, if the trace names one.
    pub(super) fn count_file(&mut self, tenant: usize, file: Option<usize>, before: Tally) {
        let tally = self.tallies[tenant];
        if let Some(file) = file {
            let counted = FileTally {
                page_accesses: tally.page_accesses - before.page_accesses,
                hits: tally.hits - before.hits,
            };
            self.files[tenant].add(file, counted);
        }
    }

    fn total(&self, count: impl Fn(&Tally) -> u64) -> u64 {
        self.tallies.iter().map(count).sum()
    }
}

/// Replays all traces, writes back and verifies. Does not check for leaks.
pub(super) fn replay(run: &Replay, control: &Control) -> Result<Outcome, ReplayError> {
    lay_out(run, control)?;
    let start = Instant::now();
    let latencies = LatencyBook::new(run.manifest.threads);
    run.victims.start();
    let work = || access_all(run, control, &latencies);
    let (mut counts, timeline) = if run.is_observed {
        let (counts, timeline) = timeline::beside(run, control, work)?;
        (counts?, Some(timeline))
    } else {
        (work()?, None)
    };
    let elapsed = start.elapsed();
    let cached = run.tenants.iter().map(|t| t.data.kernel_cached());
    let kernel_cached = cached.sum::<Option<Bytes>>();
    let traces = run.sources.iter().zip(&counts.files);
    let traces = traces.map(|(source, files)| source.trace_report(files));
    let tenants = run.tenants.iter().zip(&counts.tallies).zip(traces);
    let tenants = tenants.map(|((tenant, tally), trace)| tenant_report(run, tenant, *tally, trace));
    let tenants = tenants.collect();
    for tenant in &run.tenants {
        verify_written(tenant, control, &mut counts.failures)?;
    }
    let skipped = run.tenants.iter().zip(&run.sources);
    let skipped = skipped.map(|(tenant, source)| (tenant.name.clone(), source.skipped()));
    let latencies = latencies.total();
    let mut report = report(run, &counts, &latencies, elapsed, tenants);
    report.kernel_cached_bytes = kernel_cached.map(|cached| cached.0);
    Ok(Outcome {
        report,
        mismatches: counts.failures.shown,
        skipped: skipped.filter(|(_, skipped)| skipped.records > 0).collect(),
        laid_out_pages: run.tenants.iter().map(|t| t.data.laid_out()).sum(),
        hit_latencies: latencies.hits.curve(),
        miss_latencies: latencies.misses.curve(),
        victims: run.victims.records(),
        timeline,
    })
}

/// Runs the worker threads until the traces end or something fails.
fn access_all(
    run: &Replay,
    control: &Control,
    latencies: &LatencyBook,
) -> Result<Counts, ReplayError> {
    let first_error = Mutex::new(None);
    let fail = |error| {
        let mut first = first_error.lock().unwrap_or_else(PoisonError::into_inner);
        // The first error stops the other threads, which then report an interrupt: that is not the
        // cause.
        if matches!(*first, None | Some(ReplayError::Interrupted)) {
            *first = Some(error);
        }
        drop(first);
        control.stop();
    };
    let mut counts = Counts::new(run.tenants.len());
    thread::scope(|scope| {
        let mut workers: Vec<ScopedJoinHandle<'_, Counts>> = Vec::new();
        for index in 0..run.manifest.threads {
            let fail = &fail;
            let worker = Builder::new().name(format!("replay-{index}"));
            let worker = worker.spawn_scoped(scope, move || {
                let _stop = StopOnPanic(control);
                let mut worker = Worker::new(run, control, latencies.recorder(index));
                let in_flight = run.manifest.in_flight;
                let worked = match in_flight {
                    1 => worker.work(index),
                    _ => run
                        .manager
                        .block_on(worker.work_in_flight(index, in_flight)),
                };
                if let Err(error) = worked {
                    fail(error);
                }
                worker.counts
            });
            match worker {
                Ok(worker) => workers.push(worker),
                Err(source) => {
                    fail(ReplayError::Spawn { index, source });
                    break;
                }
            }
        }
        for worker in workers {
            match worker.join() {
                Ok(counted) => counts.merge(counted),
                Err(_) => fail(ReplayError::WorkerPanicked),
            }
        }
    });
    match first_error
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
    {
        None => Ok(counts),
        Some(error) => Err(error),
    }
}

/// Stops the run when its thread unwinds, so that no other thread waits for it.
struct StopOnPanic<'a>(&'a Control);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

/// One thread's view of the run.
pub(super) struct Worker<'a> {
    pub(super) run: &'a Replay,
    pub(super) control: &'a Control,
    pub(super) counts: Counts,
    pub(super) latencies: Recorder<'a>,
}

impl<'a> Worker<'a> {
    fn new(run: &'a Replay, control: &'a Control, latencies: Recorder<'a>) -> Self {
        let counts = Counts::new(run.tenants.len());
        Self {
            run,
            control,
            counts,
            latencies,
        }
    }

    fn work(&mut self, index: usize) -> Result<(), ReplayError> {
        let mut rng = Rng::with_seed(self.run.manifest.seed.wrapping_add(index as u64));
        let mut batch = Vec::new();
        let (sources, control) = (&self.run.sources, self.control);
        while let Some(tenant) = schedule::next_batch(sources, control, &mut rng, &mut batch)? {
            let before = self.counts.tallies[tenant].page_accesses;
            for access in &batch {
                self.access(tenant, *access)?;
            }
            let accesses = self.counts.tallies[tenant].page_accesses - before;
            control.count_accesses(accesses);
        }
        Ok(())
    }

    pub(super) fn access(&mut self, index: usize, access: Access) -> Result<(), ReplayError> {
        let run = self.run;
        let tenant = &run.tenants[index];
        let before = self.counts.tallies[index];
        self.counts.tallies[index].requests += 1;
        for page in access.first..access.first + access.count {
            if self.control.is_stopped() {
                return Err(ReplayError::Interrupted);
            }
            let seen = match (&tenant.versions, access.op) {
                (None, Op::Read) => self.read(tenant, page)?,
                (Some(versions), Op::Read) => self.read_latched(tenant, versions, page)?,
                (Some(versions), Op::Write) => self.write(tenant, versions, page)?,
                (None, Op::Write) => {
                    let read_only = "the file is open for reading only";
                    return Err(access_failed(tenant, Op::Write, page, read_only.into()));
                }
            };
            let tally = &mut self.counts.tallies[index];
            tally.page_accesses += 1;
            tally.hits += u64::from(seen == Seen::Hit);
        }
        self.counts.count_file(index, access.file, before);
        Ok(())
    }

    /// Reads a page of an immutable file under a guard.
    fn read(&mut self, tenant: &Tenant, page: u64) -> Result<Seen, ReplayError> {
        let mapping = &tenant.mapping;
        let start = Instant::now();
        let guard = self.run.manager.enter();
        let (bytes, seen) = hit_or_miss(mapping.try_read(&guard, page), || {
            mapping.read(&guard, page)
        })
        .map_err(|e| access_failed(tenant, Op::Read, page, boxed(e)))?;
        self.latencies.record(start.elapsed(), seen);
        self.verify(tenant, tenant.data.stamp(page, 0), bytes);
        Ok(seen)
    }

    /// Reads a page of an immutable file if it is resident; returns whether it is.
    pub(super) fn read_resident(&mut self, tenant: &Tenant, page: u64) -> bool {
        let start = Instant::now();
        let guard = self.run.manager.enter();
        let Some(bytes) = tenant.mapping.try_read(&guard, page) else {
            return false;
        };
        self.latencies.record(start.elapsed(), Seen::Hit);
        self.verify(tenant, tenant.data.stamp(page, 0), bytes);
        true
    }

    /// Reads a page of a writable file under its shared latch.
    fn read_latched(
        &mut self,
        tenant: &Tenant,
        versions: &Versions,
        page: u64,
    ) -> Result<Seen, ReplayError> {
        let mapping = &tenant.mapping;
        let start = Instant::now();
        let (bytes, seen) = hit_or_miss(mapping.read_latched_if_resident(page), || {
            mapping.read_latched(page)
        })
        .map_err(|e| access_failed(tenant, Op::Read, page, boxed(e)))?;
        self.latencies.record(start.elapsed(), seen);
        let version = versions.get(page).map_err(versions_failed(tenant))?;
        self.verify(tenant, tenant.data.stamp(page, version), &bytes[..]);
        Ok(seen)
    }

    /// Writes the next version of a page under its exclusive latch.
    fn write(
        &mut self,
        tenant: &Tenant,
        versions: &Versions,
        page: u64,
    ) -> Result<Seen, ReplayError> {
        let mapping = &tenant.mapping;
        let start = Instant::now();
        let (mut bytes, seen) =
            hit_or_miss(mapping.write_if_resident(page), || mapping.write(page))
                .map_err(|e| access_failed(tenant, Op::Write, page, boxed(e)))?;
        self.latencies.record(start.elapsed(), seen);
        let version = versions.get(page).map_err(versions_failed(tenant))?;
        self.verify(tenant, tenant.data.stamp(page, version), &bytes[..]);
        // 0 means "never written", also after 2^32 writes.
        let next = version.wrapping_add(1).max(1);
        tenant.data.stamp(page, next).fill(&mut bytes[..]);
        let set = versions.set(page, next);
        set.map_err(versions_failed(tenant))?;
        Ok(seen)
    }

    pub(super) fn verify(&mut self, tenant: &Tenant, stamp: PageStamp, bytes: &[u8]) {
        if let Err(mismatch) = stamp.verify(bytes) {
            self.counts.failures.add(tenant, &mismatch);
        }
    }
}

/// Returns a page that was resident, or brings it in.
fn hit_or_miss<B, E>(
    resident: Option<B>,
    bring_in: impl FnOnce() -> Result<B, E>,
) -> Result<(B, Seen), E> {
    match resident {
        Some(bytes) => Ok((bytes, Seen::Hit)),
        None => Ok((bring_in()?, Seen::Miss)),
    }
}

/// Writes the tenant's dirty pages back; then reads every page that was ever written straight from
/// the data file and verifies it.
fn verify_written(
    tenant: &Tenant,
    control: &Control,
    failures: &mut Failures,
) -> Result<(), ReplayError> {
    let Some(versions) = &tenant.versions else {
        return Ok(());
    };
    let synced = tenant.file.sync();
    synced.map_err(|e| ReplayError::WriteBack {
        tenant: tenant.name.clone(),
        source: boxed(e),
        fault: fault_of(tenant),
    })?;
    let mut page_bytes = vec![0; PAGE_SIZE];
    let mut interrupted = false;
    let walked = versions.walk(|page, version| {
        if control.is_stopped() {
            interrupted = true;
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let read = tenant.data.read_raw(page, &mut page_bytes)?;
        if let Err(mismatch) = tenant.data.stamp(page, version).verify(&page_bytes[..read]) {
            failures.add(tenant, &mismatch);
        }
        Ok(())
    });
    if interrupted {
        return Err(ReplayError::Interrupted);
    }
    walked.map_err(versions_failed(tenant))
}

fn tenant_report(run: &Replay, tenant: &Tenant, tally: Tally, trace: TraceReport) -> TenantReport {
    let usage = tenant.group.usage();
    TenantReport {
        name: tenant.name.clone(),
        trace,
        requests: tally.requests,
        page_accesses: tally.page_accesses,
        hits: tally.hits,
        hit_ratio: ratio(tally.hits, tally.page_accesses),
        usage_bytes: usage.value.0,
        usage_low_bytes: usage.low.0,
        usage_high_bytes: usage.high.0,
        usage_precise_bytes: tenant.group.usage_precise().0,
        peak_bytes: tenant.group.peak().value.0,
        max_bytes: tenant.max.map(|max| max.0),
        max_events: tenant.group.events().max,
        victims: run.victims.of(tenant.group.id()),
    }
}

fn report(
    run: &Replay,
    counts: &Counts,
    latencies: &Pair,
    elapsed: Duration,
    tenants: Vec<TenantReport>,
) -> Report {
    let snapshot = run.manager.snapshot();
    let stat = |name| snapshot.counter(name);
    let page_accesses = counts.total(|tally| tally.page_accesses);
    let hits = counts.total(|tally| tally.hits);
    let elapsed_s = elapsed.as_secs_f64();
    let files = || run.tenants.iter().map(|tenant| &tenant.data);
    Report {
        manifest: run.manifest.clone(),
        requests: counts.total(|tally| tally.requests),
        page_accesses,
        hits,
        misses: page_accesses - hits,
        hit_ratio: ratio(hits, page_accesses),
        pages_read: stat("pgmajfault") + stat("pgreadahead"),
        refaults: stat("workingset_refault_file"),
        pgscan: stat("pgscan_kswapd") + stat("pgscan_direct"),
        pgsteal: stat("pgsteal_kswapd") + stat("pgsteal_direct"),
        elapsed_s,
        accesses_per_s: to_f64(page_accesses) / elapsed_s.max(f64::MIN_POSITIVE),
        hit_latency_us: latencies.hits.summary(),
        miss_latency_us: latencies.misses.summary(),
        regime: snapshot.regime().regime.to_string(),
        regime_reason: snapshot.regime().reason.map(|reason| reason.to_string()),
        io: files().map(|file| file.io()).max().unwrap_or_default(),
        io_reason: files().find_map(|file| file.refusal().map(str::to_owned)),
        kernel_cached_bytes: None,
        capacity_bytes: run.config.capacity.0,
        frames_peak_bytes: snapshot.frames.peak.bytes().0,
        rss_peak_bytes: 0,
        verify_failures: counts.failures.count,
        leaked_frames: 0,
        leaked_bytes: 0,
        tenants,
    }
}

fn fault_of(tenant: &Tenant) -> Option<String> {
    tenant.data.first_fault().map(ToString::to_string)
}

#[cold]
pub(super) fn access_failed(
    tenant: &Tenant,
    op: Op,
    page: u64,
    source: ManagerError,
) -> ReplayError {
    ReplayError::Access {
        tenant: tenant.name.clone(),
        op,
        page,
        source,
        fault: fault_of(tenant),
    }
}

fn versions_failed(tenant: &Tenant) -> impl FnOnce(std::io::Error) -> ReplayError {
    let tenant = tenant.name.clone();
    move |source| ReplayError::Versions { tenant, source }
}
