//! `highwater replay`: arguments, progress, and the report.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use highwater::frame::Tunables;
use highwater::lab::cache::READAHEAD_USUAL;
use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::{Bytes, Pages};
use highwater_lab::baselines::BackendKind;
use highwater_lab::control::Progress;
use highwater_lab::curve::{Beside, BesideCurves};
use highwater_lab::replay::{
    DataIo, Failure, IN_FLIGHT_MAX, Outcome, Replay, ReplayConfig, ReplayError, Report,
    THREADS_MAX, Table, TenantConfig, TraceInput,
};
use highwater_lab::trace::ReaderOptions;
use indicatif::HumanCount;
use serde::Serialize;

use crate::Exit;
use crate::knob_arg::Knob;
use crate::limits::{self, with_remedy};
use crate::number_arg::{seed, whole};
use crate::output::{complain, print};
use crate::report::leaves::{self, Spread};
use crate::report::{self, Destination};
use crate::signals::Signals;
use crate::tenant_arg::TenantArgument;
use crate::trace_arg::TraceArguments;
use crate::watch::watched;

/// The trace that ships with the program.
const PGBENCH: &[u8] = include_bytes!("../../../traces/pgbench.hwt.zst");

/// The name of standard input as a trace.
const STANDARD_INPUT: &str = "-";

/// Largest number of repeated runs. Chosen: more tell no more about noise.
pub(crate) const RUNS_MAX: u64 = 100;

/// Tenants whose curves a report shows: the first ones. Chosen: each takes a mebibyte.
const CURVES_MAX: usize = 8;

const EXAMPLES: &str = "\
Examples:
  highwater replay
      the trace that ships with the program: PostgreSQL under pgbench
  highwater replay P3.lis.zst --capacity 16MiB --json
      one trace, the report as JSON
  highwater replay --threads 4 --tenant web=web07.trace.xz,format=u32be,max=8MiB \\
                   --tenant db=OLTP.lis.zst
      two tenants on four threads, one of them limited
  highwater replay --report run.html
      also one HTML file with figures: usage, latency, reclaim over time
  highwater replay --runs 5 --json
      the median of five runs, and the spread of each figure, for `highwater compare`
  zstdcat cluster52.zst | head -n 1000000 | highwater replay --format twitter -
      the beginning of a trace, from standard input
  highwater replay --record flight.rec
      also records groups, frames and locks ten times a second, for `highwater top flight.rec`
  highwater replay requests.csv --columns time=1,key=2,size=3,op=4
      a table without a header; `highwater formats` shows every format

Exit status: 0 when every page verified and nothing leaked, 1 when not, 2 for bad input or an I/O
error, 130 after Ctrl-C.";

/// Arguments of `highwater replay`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayArguments {
    /// Traces to replay, each as a tenant named after its file [default: the shipped pgbench trace]
    ///
    /// Plain or compressed with zstd, gzip or xz; `-` is standard input.
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,

    #[command(flatten)]
    reading: TraceArguments,

    /// Memory for page frames, as in 64MiB or 2GiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_bytes)]
    capacity: Bytes,

    /// Threads that access pages; with 1, and 1 read in flight, a run can be repeated exactly
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_threads)]
    threads: usize,

    /// Reads in flight on each thread; with 1, each read blocks its thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_in_flight)]
    in_flight: usize,

    /// Back end of the frame pool: single-lock, sharded:N or trees [default: the library's]
    #[arg(long, value_name = "KIND")]
    backend: Option<BackendKind>,

    /// Eviction policy: two-list, clock, sieve, s3-fifo, car or balanced
    #[arg(long, value_name = "POLICY", default_value_t)]
    policy: PolicyKind,

    /// Set a knob of the per-CPU lists or of write-back, as in `dirty_ratio=5`; repeatable
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    knobs: Vec<Knob>,

    /// A tenant with a name, a trace and optionally a limit; repeatable
    #[arg(long = "tenant", value_name = "NAME=TRACE[,max=SIZE][,format=FORMAT]")]
    tenants: Vec<TenantArgument>,

    /// Directory of the sparse data files, which grow with the pages that are read
    /// [default: the system's directory for temporary files]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Longest readahead window in pages; 0 reads the pages that the trace names, and no others
    /// [default: 32]
    #[arg(long, value_name = "PAGES")]
    #[arg(value_parser = whole::<u64>(0..=u32::MAX.into(), " of pages"))]
    readahead: Option<u64>,

    /// Read and write the data files through the kernel's page cache [default: past it, where the
    /// file system has direct I/O]
    #[arg(long)]
    buffered: bool,

    /// Random seed of page contents and of the order of tenants
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = seed())]
    seed: u64,

    /// Record the run in a ring file of 32 MiB, also for watching it while it runs
    ///
    /// A recording that is there is kept as FILE.old; any other file is left alone, with an error.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Show every column of the tables, however wide [default: those that fit 80 columns]
    #[arg(long, conflicts_with = "json")]
    wide: bool,

    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,

    /// Write a report with figures as one HTML file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Repeat the run; the report is that of the run of median time, with the spread of all
    ///
    /// More than one run cannot be recorded: leave out `--record`.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = whole::<u32>(1..=RUNS_MAX, " of runs"))]
    runs: u32,
}

// Checked when it was parsed, and no knob's range depends on another.
fn parse_bytes(text: &str) -> Result<Bytes, String> {
    text.parse().map_err(|e| format!("{e}"))
}

fn parse_threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok();
    threads
        .filter(|threads| (1..=THREADS_MAX).contains(threads))
        .ok_or_else(|| format!("expected 1 to {THREADS_MAX} threads"))
}

fn parse_in_flight(text: &str) -> Result<usize, String> {
    let in_flight = text.parse().ok();
    in_flight
        .filter(|in_flight| (1..=IN_FLIGHT_MAX).contains(in_flight))
        .ok_or_else(|| format!("expected 1 to {IN_FLIGHT_MAX} reads in flight"))
}

/// Runs the replay, reports, and returns the exit status.
pub(crate) fn run(arguments: &ReplayArguments) -> Exit {
    let signals = match Signals::install() {
        Ok(signals) => signals,
        Err(e) => return unusable(format_args!("cannot handle signals: {e}")),
    };
    if let Err(refused) = arguments.reading.check() {
        return unusable(format_args!("{refused}"));
    }
    if let Some(path) = arguments.record.as_ref().filter(|_| arguments.runs > 1) {
        // The second run would keep the first as FILE.old, in the place of the user's recording.
        return unusable(format_args!(
            "`--record {}` keeps one run, and `--runs {}` makes more: leave out one of the two",
            path.display(),
            arguments.runs
        ));
    }
    let needed = limits::of_a_replay(arguments.capacity, arguments.threads);
    let remedy = "give less `--capacity` or fewer `--threads`";
    if let Err(refused) = limits::check_address_space(needed, remedy) {
        return unusable(format_args!("{refused}"));
    }
    if arguments.runs > 1 && arguments.reads_standard_input() {
        return unusable(format_args!(
            "`--runs {}` needs traces that can be read again: standard input cannot",
            arguments.runs
        ));
    }
    let destination = match report::destination(arguments.report.as_deref()) {
        Ok(destination) => destination,
        Err(exit) => return exit,
    };
    let mut outcomes = Vec::new();
    for number in 1..=arguments.runs {
        match arguments.run_once(number, &signals) {
            Ok(ran) => outcomes.push(ran),
            Err(exit) => return exit,
        }
    }
    arguments.conclude(outcomes, destination)
}

/// A run that has ended, and the curves of what it accessed, for a report.
struct Ran {
    /// Its place among the repeated runs, from 1.
    number: u32,
    outcome: Outcome,
    curves: Vec<BesideCurves>,
}

/// Samples the accesses of the first tenants.
fn sampled<'a>(replay: &Replay, config: &'a ReplayConfig) -> Vec<(&'a str, Beside)> {
    let tenants = config.tenants.iter().take(CURVES_MAX).enumerate();
    let sampled = tenants.map(|(index, tenant)| {
        let beside = Beside::new(config.seed, &config.dir);
        replay.observe_pages(index, Box::new(beside.clone()));
        (tenant.name.as_str(), beside)
    });
    sampled.collect()
}

fn unusable(message: std::fmt::Arguments<'_>) -> Exit {
    complain(message);
    Exit::Unusable
}

fn refuse(error: &ReplayError, signals: &Signals) -> Exit {
    if let (ReplayError::Interrupted, Some(signal)) = (error, signals.received()) {
        complain(format_args!("interrupted"));
        return Exit::Signal(signal);
    }
    unusable(format_args!("{}", with_remedy(error)))
}

fn explain(failure: &Failure, signals: &Signals) -> Exit {
    let Failure { error, leaks } = failure;
    let exit = refuse(error, signals);
    if matches!(exit, Exit::Signal(_)) {
        return exit;
    }
    if leaks.frames > 0 || leaks.bytes > 0 {
        complain(format_args!(
            "{} frames and {} of charges leaked; this is a bug, please report it",
            leaks.frames,
            Bytes(leaks.bytes)
        ));
    }
    exit
}

impl ReplayArguments {
    fn config(&self) -> ReplayConfig {
        let named = self.tenants.iter().map(|tenant| self.named_tenant(tenant));
        let positional = self.traces.iter().map(|path| TenantConfig {
            name: name_of(path),
            trace: input(path),
            options: self.reading.options(None),
            max: None,
        });
        let mut tenants: Vec<TenantConfig> = positional.chain(named).collect();
        if tenants.is_empty() {
            tenants.push(shipped());
        }
        ReplayConfig {
            tenants,
            capacity: self.capacity,
            threads: self.threads,
            in_flight: self.in_flight,
            backend: self.backend,
            policy: self.policy,
            tunables: self
                .knobs
                .iter()
                .fold(Tunables::default(), |tunables, knob| knob.turn(tunables)),
            readahead: self.readahead.map_or(READAHEAD_USUAL, Pages),
            io: if self.buffered {
                DataIo::Buffered
            } else {
                DataIo::Direct
            },
            seed: self.seed,
            dir: self.dir.clone().unwrap_or_else(std::env::temp_dir),
        }
    }

    fn named_tenant(&self, tenant: &TenantArgument) -> TenantConfig {
        TenantConfig {
            name: tenant.name.clone(),
            trace: input(&tenant.trace),
            options: self.reading.options(tenant.format),
            max: tenant.max,
        }
    }

    fn reads_standard_input(&self) -> bool {
        let named = self.tenants.iter().map(|tenant| &tenant.trace);
        let mut traces = self.traces.iter().chain(named);
        traces.any(|path| path == Path::new(STANDARD_INPUT))
    }

    fn run_once(&self, number: u32, signals: &Signals) -> Result<Ran, Exit> {
        let mut config = self.config();
        signals.end_reading(&mut config.tenants);
        let prepared = match &self.record {
            Some(path) => Replay::prepare_recorded(&config, path),
            None => Replay::prepare(&config),
        };
        let replay = prepared.map_err(|error| refuse(&error, signals))?;
        let (replay, samples) = match self.report {
            Some(_) => {
                let samples = sampled(&replay, &config);
                (replay.observed(), samples)
            }
            None => (replay, Vec::new()),
        };
        let control = signals.control();
        let result = watched(&control, accesses, signals, || replay.run(&control));
        match result {
            Ok(Ok(outcome)) => {
                let drawn = samples.iter().map(|(name, sample)| sample.draw(name));
                let curves = drawn.collect::<io::Result<_>>().map_err(|e| {
                    let dir = config.dir.display();
                    unusable(format_args!(
                        "cannot keep the sample for the curves in {dir}: {e}; name another \
                         directory with `--dir`"
                    ))
                })?;
                Ok(Ran {
                    number,
                    outcome,
                    curves,
                })
            }
            Ok(Err(failure)) => Err(explain(&failure, signals)),
            Err(error) => Err(unusable(format_args!("{}", limits::no_thread(&error)))),
        }
    }

    /// Reports the run of median time.
    fn conclude(&self, mut outcomes: Vec<Ran>, destination: Option<Destination>) -> Exit {
        let elapsed = |ran: &Ran| ran.outcome.report.elapsed_s;
        outcomes.sort_by(|a, b| elapsed(a).total_cmp(&elapsed(b)));
        let jsons: Result<Vec<_>, _> = outcomes
            .iter()
            .map(|ran| serde_json::to_value(&ran.outcome.report))
            .collect();
        let jsons = match jsons {
            Ok(jsons) => jsons,
            Err(e) => return unusable(format_args!("cannot write the report: {e}")),
        };
        let median = leaves::middle(outcomes.len());
        let spread = (outcomes.len() > 1).then(|| Repeated {
            runs: outcomes.len(),
            spread: leaves::spread(&jsons),
        });
        let is_clean = outcomes.iter().all(|ran| ran.outcome.report.is_clean());
        let Ran {
            number: shown,
            outcome,
            curves,
        } = &outcomes[median];
        let exit = match self.report(outcome, spread.as_ref()) {
            Exit::Fine if !is_clean => Exit::Failed,
            exit => exit,
        };
        for ran in outcomes.iter().filter(|ran| ran.number != *shown) {
            for fault in faults(&ran.outcome) {
                complain(format_args!(
                    "run {} of {}, which is not shown: {fault}",
                    ran.number, self.runs
                ));
            }
        }
        let Some(destination) = destination.filter(|_| exit != Exit::Unusable) else {
            return exit;
        };
        let whole = serde_json::to_value(Whole {
            report: &outcome.report,
            repeated: spread.as_ref(),
        });
        let envelope = whole.map_err(|e| e.to_string());
        let envelope = envelope.and_then(|whole| report::replay::envelope(outcome, &whole, curves));
        report::write(destination, envelope, exit)
    }

    fn report(&self, outcome: &Outcome, repeated: Option<&Repeated>) -> Exit {
        let printed = if self.json {
            let report = &outcome.report;
            match serde_json::to_string(&Whole { report, repeated }) {
                Ok(json) => print(format_args!("{json}\n")),
                Err(e) => Err(e.into()),
            }
        } else {
            let table = Table::new(outcome);
            let table = if self.wide { table.wide() } else { table };
            let repeated = repeated.map(Repeated::text).unwrap_or_default();
            print(format_args!("{table}{repeated}"))
        };
        if let Err(e) = printed {
            return unusable(format_args!("cannot write the report: {e}"));
        }
        for mismatch in &outcome.mismatches {
            complain(format_args!("verify failure: {mismatch}"));
        }
        if self.json {
            for (tenant, skipped) in &outcome.skipped {
                complain(format_args!("tenant `{tenant}`: {skipped}"));
            }
        }
        if outcome.report.is_clean() {
            Exit::Fine
        } else {
            Exit::Failed
        }
    }
}

/// Returns what makes a run fail, a text for each line; empty for a clean one.
fn faults(outcome: &Outcome) -> Vec<String> {
    let Report {
        verify_failures,
        leaked_frames,
        leaked_bytes,
        ..
    } = outcome.report;
    let mut faults = Vec::new();
    if verify_failures > 0 {
        faults.push(format!("{verify_failures} pages with wrong contents"));
    }
    let mismatches = outcome.mismatches.iter();
    faults.extend(mismatches.map(|mismatch| format!("verify failure: {mismatch}")));
    if leaked_frames > 0 || leaked_bytes > 0 {
        let leaked = Bytes(leaked_bytes);
        faults.push(format!(
            "{leaked_frames} frames and {leaked} of charges leaked"
        ));
    }
    faults
}

/// The report of a run, with the spread of several.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(flatten)]
    repeated: Option<&'a Repeated>,
}

/// Several runs.
#[derive(Serialize)]
struct Repeated {
    runs: usize,
    spread: Spread,
}

impl Repeated {
    /// Returns a line below the table of the run of median time.
    fn text(&self) -> String {
        let range = |path: &str| {
            let range = self.spread.get(path)?;
            let [low, high] = [range.low, range.high].map(|value| leaves::shown(path, value));
            Some(format!("; {path} {low} to {high}"))
        };
        let ranges: String = ["elapsed_s", "hit_ratio"]
            .into_iter()
            .filter_map(range)
            .collect();
        format!(
            "\nof {} runs, the one of median time{ranges} (all: --json)\n",
            self.runs
        )
    }
}

/// Returns the tenant of a run without arguments.
pub(crate) fn shipped() -> TenantConfig {
    TenantConfig {
        name: "pgbench".to_owned(),
        trace: TraceInput::Embedded {
            name: "pgbench.hwt.zst",
            bytes: PGBENCH,
        },
        options: ReaderOptions::default(),
        max: None,
    }
}

/// Returns the input for a trace on the command line.
pub(crate) fn input(path: &Path) -> TraceInput {
    if path == Path::new(STANDARD_INPUT) {
        TraceInput::StandardInput
    } else {
        TraceInput::File(path.to_owned())
    }
}

/// Returns the file's name up to its first dot: `P3` for `traces/P3.lis.zst`.
pub(crate) fn name_of(path: &Path) -> String {
    if path == Path::new(STANDARD_INPUT) {
        return "stdin".to_owned();
    }
    let file = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    match file.split_once('.') {
        Some((name, _)) if !name.is_empty() => name.to_owned(),
        _ => file.into_owned(),
    }
}

fn accesses(progress: &Progress) -> String {
    format!("{} accesses", HumanCount(progress.page_accesses))
}

#[cfg(test)]
mod tests {
    use highwater_lab::control::Control;
    use highwater_lab::trace::Format;

    use super::*;

    #[test]
    fn tenants_are_named_after_their_files() {
        for (path, name) in [
            ("traces/P3.lis.zst", "P3"),
            ("lirs-cpp.trace.gz", "lirs-cpp"),
            ("plain", "plain"),
            ("-", "stdin"),
            (".hidden", ".hidden"),
        ] {
            assert_eq!(name_of(Path::new(path)), name);
        }
    }

    // Symptom: `--runs` ended with status 1 and no word where a run beside the shown one failed.
    #[test]
    fn the_faults_of_a_run_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let trace = TraceInput::Embedded {
            name: "small",
            bytes: b"16 8 0 0\n",
        };
        let options = ReaderOptions {
            format: Some(Format::Arc),
            ..ReaderOptions::default()
        };
        let config = ReplayConfig {
            tenants: vec![TenantConfig {
                trace,
                options,
                ..shipped()
            }],
            capacity: Bytes::mib(4),
            threads: 1,
            in_flight: 1,
            backend: None,
            policy: PolicyKind::default(),
            tunables: Tunables::default(),
            readahead: READAHEAD_USUAL,
            io: DataIo::Buffered,
            seed: 1,
            dir: dir.path().to_owned(),
        };
        let replay = Replay::prepare(&config).unwrap();
        let mut outcome = replay.run(&Control::default()).unwrap();
        assert_eq!(faults(&outcome), Vec::<String>::new());
        outcome.report.verify_failures = 12;
        outcome.report.leaked_frames = 3;
        outcome.mismatches = vec!["page 7".to_owned()];
        let want = [
            "12 pages with wrong contents",
            "verify failure: page 7",
            "3 frames and 0 B of charges leaked",
        ];
        assert_eq!(faults(&outcome), want);
    }
}
