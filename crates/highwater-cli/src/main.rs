//! The `highwater` program.
//!
//! One file per subcommand. Results go to standard output, everything else to standard error.
//!
//! | exit status | meaning |
//! |---|---|
//! | 0 | everything succeeded, and all checks hold |
//! | 1 | it ran, and something did not verify, leaked, or failed a check |
//! | 2 | bad input, an I/O error, or memory that a limit refused: no result |
//! | 128 + n | ended by signal n: 130 for Ctrl-C, 134 for an abort, which is a bug |

mod curve;
mod compare;
mod formats;
mod host;
mod knob_arg;
mod lab;
mod limits;
mod number_arg;
mod output;
mod record;
mod replay;
mod report;
mod signals;
mod tenant_arg;
mod top;
mod trace_arg;
mod watch;

use std::io;
use std::panic;
use std::process::{self, ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use limits::RefusedMemory;
use output::complain;

/// Exit status of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// Everything succeeded, and all checks hold.
    Fine,
    /// It ran, and something did not verify, leaked, or failed a check.
    Failed,
    /// Bad input or an I/O error.
    Unusable,
    /// Ended by this signal.
    Signal(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Fine => 0,
            Exit::Failed => 1,
            Exit::Unusable => 2,
            Exit::Signal(signal) => 128 + signal,
        })
    }
}

/// Highwater: a memory manager for many-core, multi-tenant programs, driven by real traces.
#[derive(Debug, Parser)]
#[command(name = "highwater", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replay access traces through the whole manager, under limits, and verify every page.
    Replay(replay::ReplayArguments),
    /// Run the experiments of mailing-list discussions: published designs beside ours, and checks.
    Lab(lab::LabArguments),
    /// Check this machine for the kernel's memory problems: is this kernel hurting you?
    Host(host::HostArguments),
    /// Record the page-cache accesses of a command, processes or a control group into a trace.
    Record(record::RecordArguments),
    /// Wait to be traced, then run a command: started by `record` itself.
    #[command(name = record::WAITER, hide = true)]
    RecordWaiter(record::WaiterArguments),
    /// Draw miss-ratio curves: how much memory a trace needs, and which policy.
    Curve(curve::CurveArguments),
    /// Show a recording of a running or ended program: groups, reclaim, pressure, victims.
    Top(top::TopArguments),
    /// Compare two runs: the figures that differ, and those that differ by noise.
    Compare(compare::CompareArguments),
    /// Draw a report again from the data inside it.
    Report(report::ReportArguments),
    /// Show the trace formats, each with an example to paste.
    Formats(formats::FormatsArguments),
}

/// Returns the arguments; prints help or an error in them, and exits with 0 or 2. A negative number
/// is a value, and is refused as one.
fn parsed() -> Arguments {
    let command = Arguments::command();
    let command = command.mut_subcommands(|command| command.allow_negative_numbers(true));
    let matches = command.try_get_matches();
    let parsed = matches.and_then(|mut it| Arguments::from_arg_matches_mut(&mut it));
    parsed.unwrap_or_else(|error| {
        let status = match error.print() {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                complain(format_args!("cannot write the help: {e}"));
                2
            }
            _ => error.exit_code(),
        };
        process::exit(status)
    })
}

fn main() -> ExitCode {
    let refused_memory = match RefusedMemory::ends_with_status_2() {
        Ok(refused_memory) => refused_memory,
        Err(e) => {
            complain(format_args!("cannot handle signals: {e}"));
            return Exit::Unusable.into();
        }
    };
    report_panics_briefly(refused_memory);
    let arguments = parsed();
    let run = || match &arguments.command {
        Command::Replay(arguments) => replay::run(arguments),
        Command::Lab(arguments) => lab::run(arguments),
        Command::Host(arguments) => host::run(arguments),
        Command::Record(arguments) => record::run(arguments),
        Command::RecordWaiter(arguments) => record::wait_and_exec(arguments),
        Command::Curve(arguments) => curve::run(arguments),
        Command::Top(arguments) => top::run(arguments),
        Command::Compare(arguments) => compare::run(arguments),
        Command::Report(arguments) => report::run(arguments),
        Command::Formats(arguments) => formats::run(arguments),
    };
    // The hook has printed the message.
    panic::catch_unwind(run).unwrap_or(Exit::Unusable).into()
}

/// Reports a panic, which is a bug in Highwater, in one line with its place instead of a stack
/// trace. The standard library also panics when the system refuses a thread to an experiment, which
/// is no bug.
fn report_panics_briefly(refused_memory: RefusedMemory) {
    panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let message = match (
            payload.downcast_ref::<&str>(),
            payload.downcast_ref::<String>(),
        ) {
            (Some(text), _) => text,
            (_, Some(text)) => text.as_str(),
            _ => "no message",
        };
        if let Some(refused) = limits::of_panic(message) {
            complain(format_args!("{refused}"));
            return;
        }
        refused_memory.rule_out();
        let place = panic
            .location()
            .map_or_else(String::new, |place| format!(" at {place}"));
        complain(format_args!(
            "internal error{place}: {message}; this is a bug, please report it"
        ));
    }));
}
