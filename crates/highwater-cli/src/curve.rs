//! `highwater curve`: arguments, progress, and the curves.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use highwater::units::Bytes;
use highwater_lab::control::Progress;
use highwater_lab::curve::{
    self, CurveConfig, CurveError, CurveReport, Mode, NR_OF_MANAGER, NR_SIZES, NR_SIZES_MAX,
    POLICIES, Sizes, Table,
};
use highwater_lab::models::Algorithm;
use highwater_lab::replay::TenantConfig;

use crate::Exit;
use crate::limits;
use crate::number_arg::seed;
use crate::output::{complain, print};
use crate::replay::{input, name_of, shipped};
use crate::report;
use crate::signals::Signals;
use crate::tenant_arg::TenantArgument;
use crate::trace_arg::TraceArguments;
use crate::watch::watched;

const EXAMPLES: &str = "\
Examples:
  highwater curve
      the trace that ships with the program: how much memory does it need, and which policy?
  highwater curve P3.lis.zst --policy lru,balanced --json
      two policies of one trace, as JSON
  highwater curve --tenant web=web07.trace.xz,format=u32be --tenant db=OLTP.lis.zst \\
                  --total 256MiB
      two tenants, and the best split of 256 MiB between them
  highwater curve OLTP.lis.zst --exact --size 8MiB,64MiB
      two sizes in full
  highwater curve --report curves.html
      the same with figures, as one HTML file
  zstdcat cluster52.zst | highwater curve --format twitter -
      a trace from standard input

The curves are those of exact models, which know each access; `lru` stands for the manager's policy
two-list, which approximates it. Without `--exact`, they are drawn from a sample of 8,192 pages
(SIEVE's of up to 24,576), in 1 MiB of memory; a trace of no more pages is drawn in full. The cache is
empty at first.

Exit status: 0, or 2 for bad input or an I/O error, 130 after Ctrl-C.";

/// Arguments of `highwater curve`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CurveArguments {
    /// Traces, each of a tenant named after its file [default: the shipped pgbench trace]
    ///
    /// Plain or compressed with zstd, gzip or xz; `-` is standard input.
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,

    #[command(flatten)]
    reading: TraceArguments,

    /// A tenant with a name and a trace; repeatable
    #[arg(long = "tenant", value_name = "NAME=TRACE[,format=FORMAT]")]
    tenants: Vec<TenantArgument>,

    /// Policies, separated by commas [default: lru and those of the manager]
    #[arg(long = "policy", value_name = "POLICY,...", value_delimiter = ',')]
    #[arg(value_parser = policy_parser())]
    policies: Vec<Algorithm>,

    /// Number of sizes, from 1 % of the footprint to all of it
    #[arg(long, value_name = "N", default_value_t = NR_SIZES, value_parser = parse_sizes)]
    sizes: usize,

    /// Sizes instead of those, separated by commas, as in 64MiB,2GiB; without `--exact`, those of
    /// fewer than 64 sampled pages are refused
    #[arg(long = "size", value_name = "SIZE,...", value_delimiter = ',')]
    #[arg(value_parser = parse_size, conflicts_with = "sizes")]
    given: Vec<Bytes>,

    /// Replay each size in full, by the exact models, instead of a sample
    #[arg(long)]
    exact: bool,

    /// Memory to split among the tenants, as in 256MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    total: Option<Bytes>,

    /// Directory of the temporary file for the accesses to sampled pages
    /// [default: the system's directory for temporary files]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Random seed: it selects the sampled pages
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = seed())]
    seed: u64,

    /// Print the curves as one JSON object
    #[arg(long)]
    json: bool,

    /// Write a report with figures as one HTML file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

fn policy_parser() -> impl TypedValueParser<Value = Algorithm> {
    let names = POLICIES.map(|(_, name)| name);
    PossibleValuesParser::new(names).try_map(|name| {
        let known = POLICIES.iter().find(|(_, known)| *known == name);
        known.map(|(policy, _)| *policy).ok_or("no such policy")
    })
}

fn parse_sizes(text: &str) -> Result<usize, String> {
    let sizes = text.parse().ok();
    sizes
        .filter(|sizes| (1..=NR_SIZES_MAX).contains(sizes))
        .ok_or_else(|| format!("expected 1 to {NR_SIZES_MAX} sizes"))
}

fn parse_size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|e| format!("{e}"))?;
    if size.pages_floor().0 == 0 {
        return Err("it holds no page: expected at least 4KiB".to_owned());
    }
    Ok(size)
}

/// Draws the curves, reports, and returns the exit status.
pub(crate) fn run(arguments: &CurveArguments) -> Exit {
    match arguments.draw() {
        Ok(exit) => exit,
        Err(message) => {
            complain(format_args!("{message}"));
            Exit::Unusable
        }
    }
}

impl CurveArguments {
    fn draw(&self) -> Result<Exit, String> {
        let signals = Signals::install().map_err(|e| format!("cannot handle signals: {e}"))?;
        let mut config = self.config()?;
        signals.end_reading(&mut config.tenants);
        let destination = match report::destination(self.report.as_deref()) {
            Ok(destination) => destination,
            Err(exit) => return Ok(exit),
        };
        let control = signals.control();
        let result = watched(&control, curves, &signals, || curve::run(&config, &control));
        match result {
            Ok(Ok(curves)) => {
                let exit = self.print(&curves)?;
                Ok(match destination {
                    Some(to) => report::write(to, report::curve::envelope(&curves), exit),
                    None => exit,
                })
            }
            Ok(Err(error)) => match (&error, signals.received()) {
                (CurveError::Interrupted, Some(signal)) => {
                    complain(format_args!("interrupted"));
                    Ok(Exit::Signal(signal))
                }
                _ => Err(limits::with_remedy(&error)),
            },
            Err(error) => Err(limits::no_thread(&error)),
        }
    }

    fn config(&self) -> Result<CurveConfig, String> {
        self.reading.check()?;
        if let Some(tenant) = self.tenants.iter().find(|tenant| tenant.max.is_some()) {
            return Err(format!(
                "tenant `{}`: max is for replays: a curve has every size; leave it out",
                tenant.name
            ));
        }
        let tenants = self.tenants();
        if self.total.is_some() && tenants.len() < 2 {
            return Err(
                "`--total` is split among tenants, and there is one: name others with `--tenant`"
                    .to_owned(),
            );
        }
        Ok(CurveConfig {
            tenants,
            policies: self.policies(),
            sizes: self.sizes(),
            mode: match self.exact {
                true => Mode::Exact,
                false => Mode::Sampled,
            },
            total: self.total,
            seed: self.seed,
            dir: self.dir.clone().unwrap_or_else(std::env::temp_dir),
        })
    }

    fn tenants(&self) -> Vec<TenantConfig> {
        let tenant = |name, path, format| TenantConfig {
            name,
            trace: input(path),
            options: self.reading.options(format),
            max: None,
        };
        let positional = self.traces.iter();
        let positional = positional.map(|path| tenant(name_of(path), path, None));
        let named = self.tenants.iter();
        let named = named.map(|it| tenant(it.name.clone(), &it.trace, it.format));
        let mut tenants: Vec<TenantConfig> = positional.chain(named).collect();
        if tenants.is_empty() {
            tenants.push(shipped());
        }
        tenants
    }

    /// Returns the policies that were asked for, each once.
    fn policies(&self) -> Vec<Algorithm> {
        let of_manager = POLICIES.iter().take(NR_OF_MANAGER);
        let mut policies = Vec::new();
        for &policy in &self.policies {
            if !policies.contains(&policy) {
                policies.push(policy);
            }
        }
        match policies.is_empty() {
            true => of_manager.map(|(policy, _)| *policy).collect(),
            false => policies,
        }
    }

    fn sizes(&self) -> Sizes {
        let mut given = self.given.clone();
        given.sort_unstable();
        given.dedup();
        match given.is_empty() {
            true => Sizes::Ladder(self.sizes),
            false => Sizes::Given(given),
        }
    }

    fn print(&self, report: &CurveReport) -> Result<Exit, String> {
        let printed = if self.json {
            match serde_json::to_string(report) {
                Ok(json) => print(format_args!("{json}\n")),
                Err(e) => Err(e.into()),
            }
        } else {
            print(format_args!("{}", Table::new(report)))
        };
        printed.map_err(|e| format!("cannot write the curves: {e}"))?;
        Ok(Exit::Fine)
    }
}

fn curves(_: &Progress) -> String {
    "curves".to_owned()
}
