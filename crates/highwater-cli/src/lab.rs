//! `highwater lab`: the experiments by name, their tables, and their verdicts.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use highwater::topology::{CPUS_MAX, Topology};
use highwater_lab::control::{Control, Progress};
use highwater_lab::experiments::{
    EXPERIMENTS, Experiment, ExperimentError, Options, Request, Size, THREADS_MAX, find, machine_of,
};
use highwater_lab::report::{Judge, Outcome, Table, wrapped};
use indicatif::HumanCount;

use crate::Exit;
use crate::limits::{self, with_remedy};
use crate::number_arg::{seed, whole};
use crate::output::{complain, print, with_causes};
use crate::replay::RUNS_MAX;
use crate::report;
use crate::report::lab::Entry;
use crate::signals::Signals;
use crate::watch::watched;

/// Lists the experiments instead of running one.
const LIST: &str = "list";

/// Columns of the list after the names, of 80.
const LIST_COLUMNS: usize = 66;

/// Runs every experiment.
const ALL: &str = "all";

const EXAMPLES: &str = "\
Examples:
  highwater lab list
      the experiments, and the discussion that each one reproduces
  highwater lab rss-hop
      counters while a thread hops over 384 virtual CPUs: published figures, ours, checks
  highwater lab rss-hop --wide
      the same with every column, for a wide terminal or a file
  highwater lab rss-hop --cpus 64 --seed 7 --json
      on another machine, the outcome as JSON
  highwater lab rss-theft --real --threads 1000
      also with real threads that read real pages
  highwater lab flush-reads --kernel
      reads of group statistics, and also of the running kernel's memory.stat
  highwater lab pcp-exit --matrix
      every policy with every scale, drain and back end, with 1, 2 and 18 tenants
  highwater lab rss-hop --report rss-hop.html
      also one HTML file: published figures beside ours
  highwater lab rss-cost --runs 5 --report rss-cost.html
      medians of five runs, with error bars
  highwater lab all --quick
      a smaller run of each
  highwater lab rmap-read --judge counts
      a verdict that does not depend on the speed or load of this machine

Exit status: 0 when every judged check holds, 1 when one does not, 2 for bad input or when the
system refuses something, 130 after Ctrl-C.";

/// Arguments of `highwater lab`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LabArguments {
    /// The experiment, or `list`, or `all`
    #[arg(value_name = "NAME", value_parser = names())]
    name: String,

    /// CPUs of the machine: sockets of caches of 8 cores of 2 threads if the number allows it
    /// [default: the experiment's own machine]
    #[arg(long, value_name = "N", conflicts_with = "topology")]
    #[arg(value_parser = whole::<usize>(1..=CPUS_MAX as u64, " of CPUs"))]
    cpus: Option<usize>,

    /// The machine as `SOCKETSxLLCSxCORESxTHREADS`, as in 2x12x8x2 for 384 CPUs
    #[arg(long, value_name = "SPEC")]
    topology: Option<Topology>,

    /// Random seed
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = seed())]
    seed: u64,

    /// Do less of the same, for a first look
    #[arg(long)]
    quick: bool,

    /// Run each experiment N times: a report shows medians with error bars, and `highwater compare`
    /// knows what is noise
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = whole::<u32>(1..=RUNS_MAX, " of runs"))]
    runs: u32,

    /// Also run real threads that touch real pages, for the experiments that can
    #[arg(long)]
    real: bool,

    /// Number of threads, with --real [default: the experiment's own number]
    #[arg(long, value_name = "N", requires = "real")]
    #[arg(value_parser = whole::<u32>(1..=THREADS_MAX.into(), " of threads"))]
    threads: Option<u32>,

    /// Also replay a recorded trace: of RSS events, as in traces/README.md, or for `policies` of
    /// accesses; repeatable
    #[arg(long = "trace", value_name = "FILE")]
    traces: Vec<PathBuf>,

    /// Also run on control groups of the running kernel, for the experiments that can; needs the
    /// permission to create some, in a directory of their own, and removes them at the end
    #[arg(long)]
    kernel: bool,

    /// Run every combination of the parameters, for experiments that leave some out; takes minutes
    #[arg(long)]
    matrix: bool,

    /// Checks that decide the exit status: `all`, or `counts` for those that a busy machine does
    /// not affect; the others are shown, from fewer rounds
    /// [default: all in a full run of an optimised build, else counts]
    #[arg(long, value_name = "WHICH", value_parser = judges())]
    judge: Option<Judge>,

    /// Show every column of the tables, at any width, and checks as a table
    /// [default: the columns that fit 80]
    #[arg(long, conflicts_with = "json")]
    wide: bool,

    /// Print each outcome as one JSON object on a line of its own
    #[arg(long)]
    json: bool,

    /// Write the outcomes with figures as one HTML file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

fn names() -> PossibleValuesParser {
    let experiments = EXPERIMENTS
        .iter()
        .map(|experiment| PossibleValue::new(experiment.name).help(experiment.summary));
    let list = PossibleValue::new(LIST).help("show the experiments");
    let all = PossibleValue::new(ALL).help("run them all, one after the other");
    PossibleValuesParser::new(experiments.chain([list, all]))
}

fn judges() -> impl TypedValueParser<Value = Judge> {
    PossibleValuesParser::new(["all", "counts"]).map(|name| match name.as_str() {
        "counts" => Judge::Counts,
        _ => Judge::All,
    })
}

/// Runs the requested experiments, reports, and returns the exit status.
pub(crate) fn run(arguments: &LabArguments) -> Exit {
    if arguments.name == LIST {
        return arguments.list();
    }
    let signals = match Signals::install() {
        Ok(signals) => signals,
        Err(e) => return unusable(format_args!("cannot handle signals: {e}")),
    };
    let request = match arguments.request() {
        Ok(request) => request,
        Err(error) => return unusable(format_args!("{}", with_causes(&error))),
    };
    let chosen = match find(&arguments.name) {
        Some(experiment) => vec![experiment],
        None => EXPERIMENTS.to_vec(),
    };
    let destination = match report::destination(arguments.report.as_deref()) {
        Ok(destination) => destination,
        Err(exit) => return exit,
    };
    let mut exit = Exit::Fine;
    let mut entries = Vec::new();
    let runs = chosen
        .into_iter()
        .flat_map(|experiment| (0..arguments.runs).map(move |_| experiment));
    for (index, experiment) in runs.enumerate() {
        if index > 0 && !arguments.json {
            // If this fails, so does all further output.
            let _ = print(format_args!("\n"));
        }
        match arguments.run_one(experiment, &request, &signals, &mut entries) {
            Exit::Fine => {}
            Exit::Failed => exit = Exit::Failed,
            ended => return ended,
        }
    }
    match destination {
        Some(destination) => report::write(destination, report::lab::envelope(&entries), exit),
        None => exit,
    }
}

fn unusable(message: std::fmt::Arguments<'_>) -> Exit {
    complain(message);
    Exit::Unusable
}

impl LabArguments {
    fn request(&self) -> Result<Request, ExperimentError> {
        let topology = match self.cpus {
            Some(cpus) => Some(machine_of(cpus)?),
            None => self.topology.clone(),
        };
        Ok(Request {
            topology,
            judge: self.judge,
            options: Options {
                seed: self.seed,
                size: if self.quick { Size::Quick } else { Size::Full },
                is_real: self.real,
                threads: self.threads,
                traces: self.traces.clone(),
                is_kernel: self.kernel,
                is_matrix: self.matrix,
            },
        })
    }

    /// Runs an experiment, reports it, and adds it to the entries of `--report`.
    fn run_one(
        &self,
        experiment: &Experiment,
        request: &Request,
        signals: &Signals,
        entries: &mut Vec<Entry>,
    ) -> Exit {
        let needed = limits::of_an_experiment(self.threads.unwrap_or(0));
        let remedy = "ask for less with `--quick` or fewer `--threads`";
        if let Err(refused) = limits::check_address_space(needed, remedy) {
            return unusable(format_args!("{refused}"));
        }
        let control = Control::default();
        let result = watched(&control, steps, signals, || {
            experiment.run(request, &control)
        });
        match result {
            Err(error) => unusable(format_args!("{}", limits::no_thread(&error))),
            Ok(Ok(outcome)) => {
                if self.report.is_some() {
                    match serde_json::to_value(&outcome) {
                        Ok(json) => entries.push(Entry {
                            outcome: json,
                            conclusion: experiment.headline.conclusion(&outcome),
                        }),
                        Err(e) => return unusable(format_args!("cannot write the outcome: {e}")),
                    }
                }
                self.report(experiment, &outcome)
            }
            Ok(Err(error)) => {
                if let (ExperimentError::Interrupted, Some(signal)) = (&error, signals.received()) {
                    complain(format_args!("interrupted"));
                    return Exit::Signal(signal);
                }
                unusable(format_args!("{}", with_remedy(&error)))
            }
        }
    }

    fn report(&self, experiment: &Experiment, outcome: &Outcome) -> Exit {
        let printed = if self.json {
            match serde_json::to_string(outcome) {
                Ok(json) => print(format_args!("{json}\n")),
                Err(e) => Err(e.into()),
            }
        } else {
            let table = Table::new(outcome).concluding(experiment.headline.conclusion(outcome));
            let table = if self.wide { table.wide() } else { table };
            print(format_args!("{table}"))
        };
        if let Err(e) = printed {
            return unusable(format_args!("cannot write the outcome: {e}"));
        }
        if outcome.passes() {
            Exit::Fine
        } else {
            Exit::Failed
        }
    }

    fn list(&self) -> Exit {
        let line = |experiment: &&Experiment| {
            let Experiment {
                name,
                thread,
                summary,
                ..
            } = experiment;
            if self.json {
                let object = serde_json::json!({
                    "experiment": name, "thread": thread, "summary": summary
                });
                format!("{object}\n")
            } else {
                let mut text = String::new();
                let mut name = *name;
                for line in wrapped(summary, LIST_COLUMNS)
                    .iter()
                    .chain([&(*thread).to_owned()])
                {
                    text += &format!("{name:<12}  {line}\n");
                    name = "";
                }
                text
            }
        };
        let lines: String = EXPERIMENTS.iter().map(line).collect();
        match print(format_args!("{lines}")) {
            Ok(()) => Exit::Fine,
            Err(e) => unusable(format_args!("cannot write the list: {e}")),
        }
    }
}

fn steps(progress: &Progress) -> String {
    format!("{} steps", HumanCount(progress.done))
}
