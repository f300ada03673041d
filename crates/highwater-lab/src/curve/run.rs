//! From traces to curves: one pass over each trace, then each policy over its sample.

use std::io;
use std::time::Instant;

use highwater::units::PAGE_BYTES;

use super::config::{CurveConfig, Sizes, ladder, policy_name};
use super::error::CurveError;
use super::meaning;
use super::pages::each_page;
use super::profile;
use super::report::{CurveReport, Mode, Point, TenantCurves};
use super::sample::{SAMPLES_MAX, Sample, Sampler, rounded};
use super::split::{Claim, split};
use crate::control::Control;
use crate::models::{AccessTrace, Algorithm};
use crate::replay::{TenantConfig, TraceInput};
use crate::report::text::to_f64;
use crate::trace::{TraceError, TraceReader};

/// Accesses between two looks at the control.
const STEP: u64 = 1 << 16;
const EXACT_STEP: usize = 1 << 20;

/// Steps of the progress of a pass over a trace, and of a curve of one policy.
const STEPS_OF_PASS: u64 = 1000;
const STEPS_OF_CURVE: u64 = 200;

/// Policy whose curves decide a split, if they were asked for: the manager's default.
const OF_SPLITS: Algorithm = Algorithm::Balanced;

/// Draws the curves of each tenant.
///
/// # Cost
///
/// Memory: at most 1 MiB beside the trace reader's, for any trace
/// (`tests/curve_memory.rs::curves_take_at_most_a_mebibyte`), and disk of up to six bytes for each
/// access to a sampled page, in unlinked files. In exact mode twelve bytes an access, and
/// about 70 a page.
///
/// # Errors
///
/// When the configuration is invalid, a trace cannot be read or has no request, a temporary file
/// cannot be made, or `control` says to stop.
pub fn run(config: &CurveConfig, control: &Control) -> Result<CurveReport, CurveError> {
    config.check()?;
    let start = Instant::now();
    let steps = STEPS_OF_PASS + STEPS_OF_CURVE * config.policies.len() as u64;
    control.expect(steps * config.tenants.len() as u64);
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
            TraceInput::StandardInput => {
                TraceReader::from_reader("standard input", io::stdin(), options)
            }
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
                let mut sampler = Sampler::new(self.config.seed, &self.config.dir);
                self.read(|pass, page| sampler.access(page).map_err(|e| pass.sample_error(e)))?;
                let sample = sampler.finish().map_err(|e| self.sample_error(e))?;
                self.of_sample(&sample)
            }
            Mode::Exact => {
                let mut pages = Vec::new();
                self.read(|pass, page| {
                    pages.push(page);
                    pass.check_length(pages.len())
                })?;
                let trace: AccessTrace = pages.into_iter().collect();
                self.of_whole(&trace)
            }
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

    fn sample_error(&self, source: io::Error) -> CurveError {
        CurveError::Sample {
            tenant: self.tenant.name.clone(),
            dir: self.config.dir.clone(),
            source,
        }
    }

    /// Calls `visit` with each page access of the trace.
    fn read(
        &mut self,
        mut visit: impl FnMut(&Self, u64) -> Result<(), CurveError>,
    ) -> Result<(), CurveError> {
        let mut accesses = 0;
        let mut due = STEP;
        while let Some(request) = self.reader.next() {
            let request = request.map_err(|source| trace_error(self.tenant, source))?;
            self.requests += 1;
            each_page(request.target, |page| visit(self, page))?;
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
                bad: self.reader.bad_records(),
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

    /// Draws the curves of a sample.
    fn of_sample(&self, sample: &Sample) -> Result<TenantCurves, CurveError> {
        let (capacities, sizes) = sample.sizes(&self.config.sizes);
        let footprint = sample.footprint();
        let mut drawn = self.tenant_curves(footprint, sample.accesses());
        drawn.sample_ratio = sample.rate();
        drawn.sampled_pages = sample.nr_pages() as u64;
        drawn.sampled_accesses = sample.nr_accesses();
        self.draw(drawn, &sizes, |policy| {
            if policy == Algorithm::Lru {
                return profile::lru(sample, &capacities).map_err(|e| self.sample_error(e));
            }
            let ratio = |capacity: &usize| {
                self.control.advance(0)?;
                let ratio = profile::simulated(sample, policy, *capacity);
                ratio.map_err(|e| self.sample_error(e))
            };
            capacities.iter().map(ratio).collect()
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
        self.draw(drawn, &in_pages, |policy| {
            let ratio = |capacity: &usize| self.exact(trace, policy, *capacity);
            sizes.iter().map(ratio).collect()
        })
    }

    fn exact(
        &self,
        trace: &AccessTrace,
        policy: Algorithm,
        capacity: usize,
    ) -> Result<f64, CurveError> {
        let mut cache = policy.online(capacity, trace.footprint());
        let mut misses: u64 = 0;
        for pages in trace.pages().chunks(EXACT_STEP) {
            self.control.advance(0)?;
            let missed = |page: &u32| u64::from(!cache.access(*page));
            misses += pages.iter().map(missed).sum::<u64>();
        }
        Ok(to_f64(misses) / to_f64(trace.pages().len() as u64))
    }

    /// Returns the tenant without curves, every page sampled.
    fn tenant_curves(&self, footprint: u64, accesses: u64) -> TenantCurves {
        TenantCurves {
            name: self.tenant.name.clone(),
            trace: self.reader.name().to_string_lossy().into_owned(),
            format: self.reader.format().to_string(),
            requests: self.requests,
            page_accesses: accesses,
            bad_records: self.reader.bad_records(),
            footprint_bytes: footprint * PAGE_BYTES,
            sample_ratio: 1.0,
            sampled_pages: footprint,
            sampled_accesses: accesses,
            curves: Vec::new(),
            winners: Vec::new(),
        }
    }

    /// Adds each policy's curve, with the miss ratios that `ratios` returns for `sizes` in pages.
    fn draw(
        &self,
        mut drawn: TenantCurves,
        sizes: &[u64],
        ratios: impl Fn(Algorithm) -> Result<Vec<f64>, CurveError>,
    ) -> Result<TenantCurves, CurveError> {
        for &policy in &self.config.policies {
            let ratios = ratios(policy)?;
            let points = sizes.iter().zip(ratios);
            let points = points.map(|(pages, miss_ratio)| Point {
                size_bytes: pages * PAGE_BYTES,
                miss_ratio,
            });
            let name = policy_name(policy).to_owned();
            drawn.curves.push(meaning::curve(name, points.collect()));
            self.control.advance(STEPS_OF_CURVE)?;
        }
        drawn.winners = meaning::winners(&drawn.curves);
        Ok(drawn)
    }
}

fn trace_error(tenant: &TenantConfig, source: TraceError) -> CurveError {
    CurveError::Trace {
        tenant: tenant.name.clone(),
        source,
    }
}
