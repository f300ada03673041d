//! `highwater host`: is this kernel hurting you? The checks of `highwater-host`, worst first.

mod explain;
mod page;
mod rss;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use highwater_host::{CHECKS, Check, Finding, Machine, Root, Verdict};
use highwater_lab::control::{Control, Progress};

use crate::Exit;
use crate::limits;
use crate::number_arg::whole;
use crate::output::{complain, is_reader_gone, print};
use crate::report::{self, Destination};
use crate::signals::Signals;
use crate::watch::watched;

const EXAMPLES: &str = "\
Examples:
  highwater host
      every check, worst first, and advice; counts events for 10 seconds
  highwater host --explain 2
      the mechanism of check 2, and its formula with this machine's numbers
  highwater host --json --seconds 60
      as JSON, with events of a minute
  highwater host --trace --explain 9
      which memory locks are waited for, from 5 seconds of the kernel's own events
  highwater host --watch 30
      again each 30 seconds, until Ctrl-C
  highwater host --report host.html
      every check with its explanation as one HTML file
  highwater host --root /mnt/recorded
      a recorded machine: a directory with its proc and sys
  highwater host rss --top 5
      the processes by the kernel's cheap counter and by the exact number

Exit status: 0 when nothing is bad, 1 when a check is bad, 2 when the program could not run, 130
after Ctrl-C.";

/// Interval at which a wait looks for a signal.
const STEP: Duration = Duration::from_millis(20);

/// Checks that need the kernel's events.
const TRACED: [u8; 3] = [8, 9, 14];

/// How long the kernel's events are recorded.
const TRACE_TIME: Duration = Duration::from_secs(5);

/// Arguments of `highwater host`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct HostArguments {
    #[command(subcommand)]
    table: Option<HostTable>,

    /// Explain one check with this machine's numbers
    #[arg(long, value_name = "N", value_parser = whole::<u8>(1..=18, ""))]
    explain: Option<u8>,

    /// Print JSON; with --watch an object in each line
    #[arg(long, conflicts_with = "explain")]
    json: bool,

    /// Count events for this long, for the checks of reclaim [default: 10, or that of --watch]
    #[arg(long, value_name = "SECONDS", value_parser = whole::<u32>(1..=3600, " of seconds"))]
    seconds: Option<u32>,

    /// Check again and again, each time with the events of this many seconds
    #[arg(
        long,
        value_name = "SECONDS",
        conflicts_with_all = ["explain", "seconds"],
        value_parser = whole::<u32>(1..=3600, " of seconds")
    )]
    watch: Option<u32>,

    /// Write the checks with their explanations as one HTML file
    #[arg(long, value_name = "FILE.html", conflicts_with_all = ["explain", "watch"])]
    report: Option<PathBuf>,

    /// Record events of the kernel for 5 seconds, for checks 8, 9 and 14; needs root
    #[arg(long, conflicts_with = "root")]
    trace: bool,

    /// Read proc and sys below this directory, for a recorded machine
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Debug, Subcommand)]
enum HostTable {
    /// Show the processes by the cheap counter and by the exact number of resident pages
    Rss(rss::RssArguments),
}

/// A check with its result.
type Checked = (&'static Check, Finding);

/// Runs the checks, or shows a table.
pub(crate) fn run(arguments: &HostArguments) -> Exit {
    if let Some(HostTable::Rss(arguments)) = &arguments.table {
        return rss::run(arguments);
    }
    let signals = match Signals::install() {
        Ok(signals) => signals,
        Err(e) => return unusable(format_args!("cannot handle signals: {e}")),
    };
    let mut destination = match report::destination(arguments.report.as_deref()) {
        Ok(destination) => destination,
        Err(exit) => return exit,
    };
    loop {
        let exit = arguments.once(&signals, destination.take());
        let is_over = matches!(exit, Exit::Unusable | Exit::Signal(_)) || is_reader_gone();
        if arguments.watch.is_none() || is_over {
            return exit;
        }
    }
}

impl HostArguments {
    /// Checks the machine once.
    fn once(&self, signals: &Signals, destination: Option<Destination>) -> Exit {
        let mut machine = match machine(&self.root) {
            Ok(machine) => machine,
            Err(exit) => return exit,
        };
        let wanted = |check: &&Check| self.explain.is_none_or(|nr| nr == check.nr);
        let checks: Vec<&'static Check> = CHECKS.into_iter().filter(wanted).collect();
        if checks.iter().any(|check| check.needs_interval) || self.watch.is_some() {
            machine.begin_interval();
            let wait = if machine.root().is_live() || self.watch.is_some() {
                self.watch.or(self.seconds).unwrap_or(10)
            } else {
                0
            };
            if let Err(exit) = waited(wait, signals) {
                return exit;
            }
            machine.end_interval();
        }
        if self.trace && checks.iter().any(|check| TRACED.contains(&check.nr)) {
            machine.trace(TRACE_TIME, &|| signals.received().is_some());
            if let Some(signal) = signals.received() {
                complain(format_args!("interrupted"));
                return Exit::Signal(signal);
            }
        }
        let mut checked: Vec<Checked> = checks
            .into_iter()
            .map(|check| (check, (check.run)(&machine)))
            .collect();
        checked.sort_by_key(|(check, finding)| (finding.verdict, check.nr));
        let exit = self.show(&machine, &checked);
        match destination.filter(|_| exit != Exit::Unusable) {
            None => exit,
            Some(destination) => {
                let envelope = report::host::envelope(&page::data(&machine, &checked));
                report::write(destination, envelope, exit)
            }
        }
    }

    /// Prints the result, and returns the exit status.
    fn show(&self, machine: &Machine, checked: &[Checked]) -> Exit {
        let shown = match (self.explain, self.json) {
            (Some(_), _) => checked.iter().map(explain::text).collect(),
            (None, true) => format!("{}\n", page::json(machine, checked)),
            (None, false) if self.watch.is_some() => {
                format!("{}{}", page::clear(), page::text(machine, checked))
            }
            (None, false) => page::text(machine, checked),
        };
        if let Err(e) = print(format_args!("{shown}")) {
            return unusable(format_args!("cannot write the result: {e}"));
        }
        let is_bad = |(_, finding): &Checked| finding.verdict == Verdict::Bad;
        if checked.iter().any(is_bad) {
            Exit::Failed
        } else {
            Exit::Fine
        }
    }
}

/// Opens the machine below a directory, or reports why it cannot be.
fn machine(root: &Path) -> Result<Machine, Exit> {
    let machine = Root::at(root).and_then(Machine::open);
    machine.map_err(|e| unusable(format_args!("{e}")))
}

/// Waits, with a progress bar, until the time is over or a signal arrives.
fn waited(seconds: u32, signals: &Signals) -> Result<(), Exit> {
    let control = Control::default();
    let total = Duration::from_secs(seconds.into());
    control.expect(u64::from(seconds) * 1000);
    let wait = || {
        let start = Instant::now();
        let mut done_ms = 0;
        while start.elapsed() < total {
            thread::sleep(STEP.min(total.saturating_sub(start.elapsed())));
            let elapsed_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            control.advance(elapsed_ms - done_ms)?;
            done_ms = elapsed_ms;
        }
        Ok::<(), highwater_lab::control::Interrupted>(())
    };
    let waited = watched(&control, counting, signals, wait);
    match (waited, signals.received()) {
        (Err(e), _) => Err(unusable(format_args!("{}", limits::no_thread(&e)))),
        (Ok(Err(_)), Some(signal)) => {
            complain(format_args!("interrupted"));
            Err(Exit::Signal(signal))
        }
        (Ok(_), _) => Ok(()),
    }
}

fn counting(_: &Progress) -> String {
    "counting events".to_owned()
}

fn unusable(message: std::fmt::Arguments<'_>) -> Exit {
    complain(message);
    Exit::Unusable
}
