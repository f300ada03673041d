//! From traces to curves: one pass over each trace, then each policy over its sample.

use std::io;
use std::mem;
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Instant;

use highwater::units::{Bytes, PAGE_BYTES, Pages};

use super::config::{CurveConfig, Sizes, ladder, policy_name};
use super::crew;
use super::error::CurveError;
use super::meaning;
use super::pages::each_page;
use super::profile;
use super::report::{CurveReport, Mode, TenantCurves};
use super::sample::{SAMPLES_MAX, Sample, Sampler, Samples, rounded};
use super::split::{Claim, split};
use crate::control::Control;
use crate::models::{AccessTrace, Algorithm, Replacement, Work};
use crate::replay::{TenantConfig, TraceInput};
use crate::report::text::to_f64;
use crate::trace::{Target, TraceError, TraceReader};

/// Accesses between two looks at the control.
const STEP: u64 = 1 << 16;
const EXACT_STEP: usize = 1 << 20;

/// Requests that are handed over to the thread that samples at once. Chosen: with 256, the threads
/// wake each other so often that LRU's curves of P6 and P3 take 13 and 15 % longer.
const BLOCK: usize = 1024;

/// Steps of the progress of a pass over a trace, and of its curves.
const STEPS_OF_PASS: u64 = 1000;
const STEPS_OF_CURVES: u64 = 1000;

/// Policy whose curves decide a split, if they were asked for: the manager's default.
const OF_SPLITS: Algorithm = Algorithm::Balanced;

/// Draws the curves of each tenant.
///
/// # Cost
///
/// Memory: at most 1 MiB beside the trace reader's, for any trace
/// (`tests/curve_memory.rs::curves_take_at_most_a_mebibyte`), and disk of up to nine bytes for each
/// access to a sampled page, in unlinked files. In exact mode twelve bytes an access, and
/// about 70 a page for each of two threads.
///
/// # Errors
///
/// When the configuration is invalid, a trace cannot be read or has no request, a given size is too
/// small for a sample, the given sizes end below what a split may give, a temporary file cannot be
/// made, or `control` says to stop.
pub fn run(config: &CurveConfig, control: &Control) -> Result<CurveReport, CurveError> {
    config.check()?;
    let start = Instant::now();
    control.expect((STEPS_OF_PASS + STEPS_OF_CURVES) * config.tenants.len() as u64);
    let tenants = config.tenants.iter();
    let tenants = tenants.map(|tenant| Pass::new(config, tenant, control)?.curves());
    let tenants: Vec<TenantCurves> = tenants.collect::<Result<_, _>>()?;
    let policy = match config.policies.contains(&OF_SPLITS) {
        true => Some(OF_SPLITS),
        false => config.policies.first().copied(),
    };
    let claims: Option<Vec<Claim<'_>>> = policy.and_then(|policy| {
        let claims = tenants.iter().map(|tenant| claim(tenant, policy));
        claims.collect()
    });
    Ok(CurveReport {
        // One version is that of the whole workspace.
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mode: config.mode,
        seed: config.seed,
        samples_max: SAMPLES_MAX as u64,
        split: config
            .total
            .zip(claims)
            .map(|(total, claims)| split(&claims, total)),
        tenants,
        elapsed_s: start.elapsed().as_secs_f64(),
    })
}

fn claim(tenant: &TenantCurves, policy: Algorithm) -> Option<Claim<'_>> {
    let name = policy_name(policy);
    let curve = tenant.curves.iter().find(|curve| curve.policy == name)?;
    Some(Claim {
        tenant: &tenant.name,
        page_accesses: tenant.page_accesses,
        curve,
    })
}

/// One tenant's trace, while it is read.
struct Pass<'a> {
    config: &'a CurveConfig,
    tenant: &'a TenantConfig,
    control: &'a Control,
    reader: TraceReader,
    requests: u64,
    /// Steps of the progress that were told.
    told: u64,
}

impl<'a> Pass<'a> {
    fn new(
        config: &'a CurveConfig,
        tenant: &'a TenantConfig,
        control: &'a Control,
    ) -> Result<Self, CurveError> {
        let options = &tenant.options;
        let reader = match tenant.trace {
            TraceInput::File(ref path) => TraceReader::open(path, options),
            TraceInput::StandardInput => TraceReader::standard_input(options),
            TraceInput::Embedded { name, bytes } => TraceReader::from_reader(name, bytes, options),
        };
        Ok(Self {
            config,
            tenant,
            control,
            reader: reader.map_err(|source| trace_error(tenant, source))?,
            requests: 0,
            told: 0,
        })
    }

    /// Reads the trace and draws its curves.
    fn curves(mut self) -> Result<TenantCurves, CurveError> {
        match self.config.mode {
            Mode::Sampled => {
                let samples = self.sampled()?;
                self.of_samples(&samples)
            }
            Mode::Exact => {
                let mut pages = Vec::new();
                self.read(|pass, target| {
                    each_page(target, |page| {
                        pages.push(page);
                        pass.check_length(pages.len())
                    })
                })?;
                let trace: AccessTrace = pages.into_iter().collect();
                self.of_whole(&trace)
            }
        }
    }

    /// Reads the trace; another thread samples it.
    fn sampled(&mut self) -> Result<Samples, CurveError> {
        let (config, tenant) = (self.config, self.tenant);
        let mut sampler = Sampler::new(config.seed, &config.dir);
        let (read, sampled) = thread::scope(|scope| {
            let (to, blocks) = mpsc::sync_channel::<Vec<Target>>(1);
            let sampling = scope.spawn(move || {
                for target in blocks.into_iter().flatten() {
                    each_page(target, |page| sampler.access(page))?;
                }
                Ok(sampler)
            });
            let mut blocks = Blocks::new(to);
            let read = self.read(|_, target| blocks.push(target));
            let read = read.and_then(|()| blocks.hand_over());
            drop(blocks);
            (read, sampling.join())
        });
        let failed = |source| sample_error(config, tenant, source);
        match sampled {
            Ok(sampler) => {
                let sampler = sampler.map_err(failed)?;
                read?;
                sampler.finish().map_err(failed)
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Rejects a trace whose accesses cannot be numbered with 32 bits.
    fn check_length(&self, accesses: usize) -> Result<(), CurveError> {
        let limit = u32::MAX - 1;
        match accesses > limit as usize {
            true => Err(CurveError::TooLong {
                tenant: self.tenant.name.clone(),
                limit,
            }),
            false => Ok(()),
        }
    }

    /// Rejects sizes that end below the largest share of a split: a curve counts as flat beyond its
    /// last size, so that memory would seem to gain nothing there.
    fn check_sizes(&self, footprint: Bytes) -> Result<(), CurveError> {
        let (Sizes::Given(sizes), Some(total)) = (&self.config.sizes, self.config.total) else {
            return Ok(());
        };
        let largest = sizes.iter().copied().max().unwrap_or(Bytes(0));
        match largest.pages_floor() >= total.min(footprint).pages_floor() {
            true => Ok(()),
            false => Err(CurveError::SizesEndEarly {
                tenant: self.tenant.name.clone(),
                total,
                largest,
                footprint,
            }),
        }
    }

    /// Rejects sizes that have too few sampled pages.
    fn check_sampled(&self, sample: &Sample) -> Result<(), CurveError> {
        let Sizes::Given(sizes) = &self.config.sizes else {
            return Ok(());
        };
        let least = Pages(sample.least_pages()).bytes();
        match sizes.iter().copied().find(|size| *size < least) {
            Some(size) => Err(CurveError::SizeTooSmall {
                tenant: self.tenant.name.clone(),
                size,
                least,
            }),
            None => Ok(()),
        }
    }

    /// Calls `visit` with what each request of the trace accesses.
    fn read(
        &mut self,
        mut visit: impl FnMut(&Self, Target) -> Result<(), CurveError>,
    ) -> Result<(), CurveError> {
        let mut accesses = 0;
        let mut due = STEP;
        while let Some(request) = self.reader.next() {
            let request = request.map_err(|source| trace_error(self.tenant, source))?;
            self.requests += 1;
            visit(self, request.target)?;
            accesses += request.target.page_count();
            if accesses >= due {
                due = accesses + STEP;
                self.tell()?;
            }
        }
        self.control.advance(STEPS_OF_PASS - self.told)?;
        match self.requests {
            0 => Err(CurveError::NoRecord {
                tenant: self.tenant.name.clone(),
                trace: self.reader.name().to_owned(),
                format: self.reader.format(),
                bad: self.reader.skipped().records,
                empty: self.reader.empty_records(),
            }),
            _ => Ok(()),
        }
    }

    /// Tells the progress in the trace, as far as its length is known.
    fn tell(&mut self) -> Result<(), CurveError> {
        let progress = self.reader.progress();
        let total = progress.compressed_bytes_total.unwrap_or(0).max(1);
        let read = progress.compressed_bytes_read.min(total);
        let steps = match progress.compressed_bytes_total {
            Some(_) => (STEPS_OF_PASS * read / total).max(self.told),
            None => self.told,
        };
        self.control.advance(steps - self.told)?;
        self.told = steps;
        Ok(())
    }

    /// Draws the curves of the samples.
    fn of_samples(&self, samples: &Samples) -> Result<TenantCurves, CurveError> {
        let small = samples.small();
        self.check_sampled(small)?;
        let sizes = samples.sizes(&self.config.sizes);
        let mut drawn = self.tenant_curves(small.footprint(), small.accesses());
        drawn.sample_ratio = small.rate();
        drawn.sampled_pages = small.nr_pages() as u64;
        drawn.sampled_accesses = small.nr_accesses();
        let (config, tenant) = (self.config, self.tenant);
        let jobs = profile::jobs(&config.policies, samples, &sizes);
        self.draw(drawn, &sizes, jobs.len(), |number| {
            let ratios = jobs[number].ratios(samples);
            ratios.map_err(|source| sample_error(config, tenant, source))
        })
    }

    /// Draws the curves of a whole trace by the exact models.
    fn of_whole(&self, trace: &AccessTrace) -> Result<TenantCurves, CurveError> {
        let sizes = match &self.config.sizes {
            Sizes::Ladder(count) => ladder(trace.footprint(), *count),
            Sizes::Given(sizes) => {
                let pages = sizes.iter().map(|size| size.pages_floor().0);
                pages.map(|pages| rounded(to_f64(pages))).collect()
            }
        };
        let accesses = trace.pages().len() as u64;
        let drawn = self.tenant_curves(trace.footprint() as u64, accesses);
        let in_pages: Vec<u64> = sizes.iter().map(|pages| *pages as u64).collect();
        let (config, control) = (self.config, self.control);
        let nr_jobs = config.policies.len() * sizes.len();
        self.draw(drawn, &in_pages, nr_jobs, |number| {
            let policy = config.policies[number / sizes.len()];
            let capacity = sizes[number % sizes.len()];
            let ratio = policy.with(capacity, trace.footprint(), Whole { trace, control })?;
            Ok(vec![ratio])
        })
    }

    /// Returns the tenant without curves, every page sampled.
    fn tenant_curves(&self, footprint: u64, accesses: u64) -> TenantCurves {
        TenantCurves {
            name: self.tenant.name.clone(),
            trace: self.reader.name().to_string_lossy().into_owned(),
            format: self.reader.format().to_string(),
            requests: self.requests,
            page_accesses: accesses,
            bad_records: self.reader.skipped().records,
            cut_after_bytes: self.reader.skipped().cut_after,
            footprint_bytes: footprint * PAGE_BYTES,
            sample_ratio: 1.0,
            sampled_pages: footprint,
            sampled_accesses: accesses,
            curves: Vec::new(),
            winners: Vec::new(),
        }
    }

    /// Adds each policy's curve. Jobs, numbered by policy and then by size, return miss ratios for
    /// the next of `sizes`, in pages.
    fn draw(
        &self,
        mut drawn: TenantCurves,
        sizes: &[u64],
        nr_jobs: usize,
        job: impl Fn(usize) -> Result<Vec<f64>, CurveError> + Sync,
    ) -> Result<TenantCurves, CurveError> {
        self.check_sizes(Bytes(drawn.footprint_bytes))?;
        let control = self.control;
        let steps_before = |number: usize| STEPS_OF_CURVES * number as u64 / nr_jobs as u64;
        let ratios = crew::each(nr_jobs, |number| {
            control.advance(steps_before(number + 1) - steps_before(number))?;
            job(number)
        })?;
        drawn.curves = meaning::curves(&self.config.policies, sizes, &ratios.concat());
        drawn.winners = meaning::winners(&drawn.curves);
        Ok(drawn)
    }
}

/// Requests on their way to the thread that samples.
struct Blocks {
    to: SyncSender<Vec<Target>>,
    block: Vec<Target>,
    nr_pages: u64,
}

impl Blocks {
    fn new(to: SyncSender<Vec<Target>>) -> Self {
        Self {
            to,
            block: Vec::with_capacity(BLOCK),
            nr_pages: 0,
        }
    }

    fn push(&mut self, target: Target) -> Result<(), CurveError> {
        self.block.push(target);
        self.nr_pages += target.page_count();
        match self.block.len() == BLOCK || self.nr_pages >= STEP {
            true => self.hand_over(),
            false => Ok(()),
        }
    }

    /// Fails only if the thread that samples has ended, whose own error counts.
    fn hand_over(&mut self) -> Result<(), CurveError> {
        self.nr_pages = 0;
        let block = mem::replace(&mut self.block, Vec::with_capacity(BLOCK));
        self.to.send(block).map_err(|_| CurveError::Interrupted)
    }
}

/// Returns the miss ratio of a cache on the whole trace, unless `control` says to stop.
struct Whole<'a> {
    trace: &'a AccessTrace,
    control: &'a Control,
}

impl Work for Whole<'_> {
    type Output = Result<f64, CurveError>;

    fn run(self, mut cache: impl Replacement) -> Result<f64, CurveError> {
        let pages = self.trace.pages();
        let mut misses: u64 = 0;
        for pages in pages.chunks(EXACT_STEP) {
            self.control.advance(0)?;
            let missed = |page: &u32| u64::from(!cache.access(*page));
            misses += pages.iter().map(missed).sum::<u64>();
        }
        Ok(to_f64(misses) / to_f64(pages.len() as u64))
    }
}

fn sample_error(config: &CurveConfig, tenant: &TenantConfig, source: io::Error) -> CurveError {
    CurveError::Sample {
        tenant: tenant.name.clone(),
        dir: config.dir.clone(),
        source,
    }
}

fn trace_error(tenant: &TenantConfig, source: TraceError) -> CurveError {
    match tenant.options.stop.is_requested() {
        true => CurveError::Interrupted,
        false => CurveError::Trace {
            tenant: tenant.name.clone(),
            source,
        },
    }
}
