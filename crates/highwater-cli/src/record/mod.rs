//! `highwater record`: page-cache accesses of running programs, from the kernel's tracepoints into
//! a trace that `replay` takes.

mod child;
mod files;
mod recorder;
mod summary;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args};
use highwater::units::Bytes;
use highwater_host::tracefs::TracefsError;
use highwater_lab::control::{Control, Progress};
use highwater_lab::trace::{Packing, WriteError};
use indicatif::HumanCount;
use thiserror::Error;

use crate::Exit;
use crate::limits::{self, with_remedy};
use crate::output::{Product, complain, print};
use crate::signals::{Origins, Signals};
use crate::watch::watched;

use child::EndedBy;
pub(crate) use child::{WAITER, WaiterArguments, wait_and_exec};
use recorder::Recorder;
use summary::Summary;

const EXAMPLES: &str = "\
Examples:
  sudo highwater record -o app.hwt.zst -- ./app --serve
      records a command and the processes that it starts, until it ends
  sudo highwater record -o db.hwt.zst --pid 1234 --seconds 60
      a running process, its threads and its children, for a minute
  sudo highwater record -o jobs.hwt.zst --cgroup /sys/fs/cgroup/jobs.slice --strict
      a control group until Ctrl-C; an error if the kernel's buffers lost an event
  highwater replay app.hwt.zst
      replays the recording

Recorded are reads and writes through the page cache, and faults of file mappings. Not recorded are
direct I/O, tmpfs, and repeated accesses through a mapping: the kernel does not see them. Before
Linux 6.12 the kernel reports neither reads nor faults; the summary says what a trace lacks.

Ctrl-C ends a recording, and leaves a whole trace. A recording that was killed can be replayed with
`replay --lenient`, up to about its last second. A signal to the recorder alone is passed on to the
command, which is killed if it goes on for ten seconds.

Needs write access to tracefs: root, or a group that `sudo mount -o remount,gid=GROUP,mode=770
/sys/kernel/tracing` names. Names of other users' files also need root.

Exit status: 0 after a recording, 1 if the command failed or, with --strict, events were lost, 2 if
nothing could be recorded.";

/// Memory of the buffers of all CPUs, unless another size is asked for. Chosen: 16 MiB each of 128
/// CPUs.
const BUFFERS: Bytes = Bytes::gib(2);

/// Arguments of `highwater record`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group(ArgGroup::new("target").required(true).args(["pid", "cgroup", "command"])))]
pub(crate) struct RecordArguments {
    /// File for the trace; one that ends in .zst is compressed
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Record a process, its threads and descendants; repeatable
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Vec<u32>,

    /// Record the control group in this directory and those below it; tasks that move into it are
    /// found within a second
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,

    /// End the recording after so many seconds; a command gets SIGTERM then, and SIGKILL ten
    /// seconds later
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<Duration>,

    /// End with status 1 if an event was lost
    #[arg(long)]
    strict: bool,

    /// Kernel buffer of each CPU, 64KiB to 1GiB [default: 16MiB; above 128 CPUs less, 2GiB in all]
    #[arg(long, value_name = "SIZE", value_parser = parse_buffer)]
    buffer: Option<Bytes>,

    /// Print the summary as JSON
    #[arg(long)]
    json: bool,

    /// The command and its arguments, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Why nothing was recorded, or the recording broke off.
#[derive(Debug, Error)]
pub(crate) enum RecordError {
    #[error("{0}; {NEEDS}", NEEDS = needs())]
    Right(TracefsError),
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    #[error("this kernel has none of the events of page-cache accesses")]
    NoEvents,
    #[error("cannot create `{}`: {source}", .path.display())]
    Output { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Kept(String),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("cannot run `{command}`: {source}")]
    Command { command: String, source: io::Error },
    #[error("there is no process {0}")]
    NoProcess(u32),
    #[error("`{}` is no control group: {source}", .path.display())]
    Cgroup { path: PathBuf, source: io::Error },
}

/// Says which right a recording needs, and how to give it.
fn needs() -> String {
    "recording needs write access to tracefs: run it as root (`sudo highwater record ...`), or let \
     your group write there (`sudo mount -o remount,gid=$(id -g),mode=770 /sys/kernel/tracing`)"
        .to_owned()
}

impl RecordError {
    fn of_tracefs(error: TracefsError) -> Self {
        if error.is_permission() {
            return Self::Right(error);
        }
        Self::Tracefs(error)
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let expected = || format!("`{text}` is no time: expected 0.1 to 1000000 seconds");
    let seconds: f64 = text.parse().map_err(|_| expected())?;
    if !(0.1..=1e6).contains(&seconds) {
        return Err(expected());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn parse_buffer(text: &str) -> Result<Bytes, String> {
    let bytes: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if !(Bytes::kib(64)..=Bytes::gib(1)).contains(&bytes) {
        return Err(format!("a buffer of {bytes}: expected 64KiB to 1GiB"));
    }
    Ok(bytes)
}

/// Returns the buffer of each CPU, unless another is asked for.
fn default_buffer(cpus: u64) -> Bytes {
    let share = BUFFERS.0 / cpus.max(1);
    Bytes(share).clamp(Bytes::kib(64), Bytes::mib(16))
}

/// Records, and prints the summary.
pub(crate) fn run(arguments: &RecordArguments) -> Exit {
    let signals = match Signals::install() {
        Ok(signals) => signals,
        Err(e) => return unusable(format_args!("cannot handle signals: {e}")),
    };
    let mut origins = match Origins::install() {
        Ok(origins) => origins,
        Err(e) => return unusable(format_args!("cannot handle signals: {e}")),
    };
    let control = Control::default();
    let mut recorder = match Recorder::prepare(arguments) {
        Ok(recorder) => recorder,
        Err(error) => return unusable(format_args!("{}", with_remedy(&error))),
    };
    let recorded = watched(&control, message, &signals, || recorder.run(&control));
    let result = match recorded {
        Ok(Ok(())) => recorder.finish(match signals.received() {
            None => EndedBy::Nothing,
            Some(_) if origins.is_from_terminal() => EndedBy::Terminal,
            Some(signal) => EndedBy::Signal(signal),
        }),
        Ok(Err(error)) => Err(error),
        Err(error) => return unusable(format_args!("{}", limits::no_thread(&error))),
    };
    match result {
        Ok(summary) => report(arguments, &summary),
        Err(error) => unusable(format_args!("{}", with_remedy(&error))),
    }
}

fn unusable(text: std::fmt::Arguments<'_>) -> Exit {
    complain(text);
    Exit::Unusable
}

/// The progress bar's text.
fn message(progress: &Progress) -> String {
    format!(
        "recording, {} events, Ctrl-C ends it",
        HumanCount(progress.done)
    )
}

fn report(arguments: &RecordArguments, summary: &Summary) -> Exit {
    let printed = if arguments.json {
        print(format_args!("{}\n", summary.json()))
    } else {
        print(format_args!("{summary}"))
    };
    if let Err(e) = printed {
        return unusable(format_args!("cannot write the summary: {e}"));
    }
    for lack in &summary.lacks {
        complain(format_args!("the trace lacks {lack}"));
    }
    if summary.lost_events > 0 {
        complain(format_args!(
            "{} events were lost: the trace lacks their accesses; raise --buffer above {}",
            summary.lost_events, summary.buffer
        ));
    }
    if let Some(failure) = &summary.command_failure {
        complain(format_args!("the command {failure}"));
    }
    let is_lost = arguments.strict && summary.lost_events > 0;
    if is_lost || summary.command_failure.is_some() {
        return Exit::Failed;
    }
    Exit::Fine
}

/// Creates the trace's file; compressed if its name says so.
fn create(path: &Path) -> Result<(File, Packing), RecordError> {
    Product::Trace
        .check_replaceable(path)
        .map_err(RecordError::Kept)?;
    let file = File::create(path).map_err(|source| RecordError::Output {
        path: path.to_owned(),
        source,
    })?;
    let is_packed = path.extension().is_some_and(|extension| extension == "zst");
    let packing = if is_packed {
        Packing::Zstd
    } else {
        Packing::Plain
    };
    Ok((file, packing))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Symptom: on 1,024 CPUs the buffers took 16 GiB.
    #[test]
    fn buffers_of_all_cpus_have_a_bound() {
        let sizes = [1, 128, 1024, 8192].map(default_buffer);
        assert_eq!(
            sizes,
            [
                Bytes::mib(16),
                Bytes::mib(16),
                Bytes::mib(2),
                Bytes::kib(256)
            ]
        );
    }
}
