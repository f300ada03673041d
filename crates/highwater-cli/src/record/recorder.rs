//! The recording loop.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use highwater::units::Bytes;
use highwater_host::accesses::{self, Decoder, is_removed, tasks_of_cgroup, tasks_of_processes};
use highwater_host::tracefs::{Event, Instance, Stream, Tracefs, TracefsError};
use highwater_host::{Machine, Root};
use highwater_lab::control::Control;
use highwater_lab::trace::{RecordingWriter, WriteError};

use super::child::{EndedBy, Recorded};
use super::files::Files;
use super::summary::{self, Summary};
use super::{RecordArguments, RecordError, create, default_buffer};

/// Interval at which the buffers are read.
const TICK: Duration = Duration::from_millis(20);

/// Interval at which new tasks are found, names resolved, and the trace is written.
const SECOND: Duration = Duration::from_secs(1);

/// The tasks to record.
enum Target {
    Command(Option<Recorded>),
    Processes(Vec<u32>),
    Cgroup(PathBuf),
}

/// A recording. Fields are dropped in this order: the kernel removes an instance only after its
/// buffers are closed.
pub(super) struct Recorder {
    stream: Stream,
    instance: Instance,
    _tracefs: Tracefs,
    target: Target,
    /// Of each CPU.
    buffer: Bytes,
    events: Events,
    seconds: Option<Duration>,
    output: PathBuf,
    roots: Vec<PathBuf>,
    begin: Instant,
    elapsed: Duration,
}

/// Destination of the events.
struct Events {
    decoder: Decoder,
    files: Files,
    writer: RecordingWriter<File>,
    nr_events: u64,
    lost: u64,
    failure: Option<WriteError>,
}

impl Events {
    fn take(&mut self, event: &Event<'_>) {
        self.nr_events += 1;
        let Self {
            decoder,
            files,
            writer,
            failure,
            ..
        } = self;
        decoder.decode(event, |access| {
            if failure.is_none() {
                *failure = files.push(writer, &access, event.time_ns).err();
            }
        });
    }

    /// Notes the events that the kernel lost so far.
    fn note_lost(&mut self, lost: u64) {
        self.writer.lost(lost.saturating_sub(self.lost));
        self.lost = self.lost.max(lost);
    }

    fn check(&mut self) -> Result<(), RecordError> {
        self.failure
            .take()
            .map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Recorder {
    /// Sets up tracing, the target and the trace's file, in this order: a failure leaves no file.
    pub(super) fn prepare(arguments: &RecordArguments) -> Result<Self, RecordError> {
        let tracefs = Tracefs::open().map_err(RecordError::of_tracefs)?;
        let instance = tracefs.instance().map_err(RecordError::of_tracefs)?;
        let buffer = match arguments.buffer {
            Some(buffer) => buffer,
            None => default_buffer(nr_buffers(&instance).map_err(RecordError::of_tracefs)?),
        };
        instance.set_buffer_kib(buffer.0 >> 10)?;
        let decoder = accesses::enable(&instance).map_err(RecordError::of_tracefs)?;
        if decoder.enabled().is_empty() {
            return Err(RecordError::NoEvents);
        }
        // Before the stream, which may raise a limit that the command inherits.
        let target = Target::new(arguments)?;
        let stream = instance.stream().map_err(RecordError::of_tracefs)?;
        instance.follow(&target.tasks()?)?;
        let roots = roots_of_command(&arguments.command);
        let mut files = Files::new();
        files.expect(&roots);
        let (file, packing) = create(&arguments.output)?;
        let writer = RecordingWriter::new(file, packing, &about(&decoder, arguments))?;
        Ok(Self {
            stream,
            instance,
            _tracefs: tracefs,
            target,
            buffer,
            events: Events {
                decoder,
                files,
                writer,
                nr_events: 0,
                lost: 0,
                failure: None,
            },
            seconds: arguments.seconds,
            output: arguments.output.clone(),
            roots: [roots, roots_of_system()].concat(),
            begin: Instant::now(),
            elapsed: Duration::ZERO,
        })
    }

    /// Records until the target or the time ends, or `control` stops it.
    pub(super) fn run(&mut self, control: &Control) -> Result<(), RecordError> {
        self.instance.start()?;
        self.begin = Instant::now();
        if let Target::Command(Some(command)) = &mut self.target {
            let of_command = |source| RecordError::Command {
                command: "the command".to_owned(),
                source,
            };
            command.release().map_err(of_command)?;
        }
        let mut turn = Instant::now();
        loop {
            thread::sleep(TICK);
            let before = self.events.nr_events;
            let events = &mut self.events;
            self.stream.poll(|event| events.take(&event))?;
            self.events.check()?;
            let is_stopped = control.advance(self.events.nr_events - before).is_err();
            let is_over = self
                .seconds
                .is_some_and(|limit| self.begin.elapsed() >= limit);
            if is_stopped || is_over || self.target.has_ended() {
                break;
            }
            if turn.elapsed() >= SECOND {
                turn = Instant::now();
                self.every_second()?;
            }
        }
        self.elapsed = self.begin.elapsed();
        self.instance.stop()?;
        Ok(())
    }

    fn every_second(&mut self) -> Result<(), RecordError> {
        let tasks = match self.target.tasks() {
            // `has_ended` sees it next.
            Err(RecordError::Cgroup { source, .. }) if is_removed(&source) => Vec::new(),
            tasks => tasks?,
        };
        match self.instance.follow_also(&tasks) {
            Ok(()) => {}
            // A task that has ended in between.
            Err(TracefsError::File { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.events.files.resolve(&mut self.events.writer);
        self.events.note_lost(self.instance.lost()?.events());
        self.events.writer.flush()?;
        Ok(())
    }

    /// Reads the rest of the buffers, searches for missing names, and completes the trace.
    pub(super) fn finish(mut self, by: EndedBy) -> Result<Summary, RecordError> {
        let events = &mut self.events;
        self.stream.drain(|event| events.take(&event))?;
        self.events.check()?;
        self.events.note_lost(self.instance.lost()?.events());
        self.events.writer.flush()?;
        let Events {
            decoder,
            mut files,
            mut writer,
            nr_events,
            ..
        } = self.events;
        files.scan(&mut writer, &self.roots);
        writer.flush()?;
        let mut trace_bytes = writer.bytes_written();
        let (file, totals) = writer.finish()?;
        if let Ok(metadata) = file.metadata() {
            trace_bytes = metadata.len().max(trace_bytes);
        }
        let command_failure = match self.target {
            Target::Command(Some(command)) => {
                let failed = |source| RecordError::Command {
                    command: "the command".to_owned(),
                    source,
                };
                command.end(by).map_err(failed)?
            }
            _ => None,
        };
        Ok(Summary {
            output: self.output,
            elapsed: self.elapsed,
            events: nr_events,
            unknown_events: decoder.unknown(),
            late_events: self.stream.late(),
            lost_events: totals.lost_events,
            buffer: self.buffer,
            records: totals.records,
            page_accesses: totals.accesses,
            trace_bytes,
            lacks: decoder.lacks().to_vec(),
            recorded: decoder.enabled().to_vec(),
            files: summary::of(&files),
            command_failure,
        })
    }
}

impl Target {
    fn new(arguments: &RecordArguments) -> Result<Self, RecordError> {
        if let Some(path) = &arguments.cgroup {
            return Ok(Self::Cgroup(path.clone()));
        }
        if arguments.command.is_empty() {
            return match arguments.pid.iter().find(|pid| is_over(**pid)) {
                Some(pid) => Err(RecordError::NoProcess(*pid)),
                None => Ok(Self::Processes(arguments.pid.clone())),
            };
        }
        let command = Recorded::start(&arguments.command)?;
        Ok(Self::Command(Some(command)))
    }

    /// Returns the tasks that exist now.
    fn tasks(&self) -> Result<Vec<u32>, RecordError> {
        match self {
            Self::Command(command) => {
                let root = command.as_ref().map(Recorded::process);
                Ok(tasks_of_processes(root.as_slice()))
            }
            Self::Processes(roots) => Ok(tasks_of_processes(roots)),
            Self::Cgroup(path) => tasks_of_cgroup(path).map_err(|source| RecordError::Cgroup {
                path: path.clone(),
                source,
            }),
        }
    }

    fn has_ended(&mut self) -> bool {
        match self {
            // A failure to wait means that there is no child to wait for.
            Self::Command(Some(command)) => command.has_ended().unwrap_or(true),
            Self::Command(None) => true,
            Self::Processes(roots) => roots.iter().copied().all(is_over),
            Self::Cgroup(path) => !path.exists(),
        }
    }
}

/// Returns the number of CPUs that have a buffer: those that are online, if that can be told.
fn nr_buffers(instance: &Instance) -> Result<u64, TracefsError> {
    let possible = instance.cpus()?;
    let machine = Root::at("/").and_then(Machine::open);
    let online = machine.ok().and_then(|machine| machine.cpus_online().ok());
    Ok(online.map_or(possible, |online| online.min(possible)))
}

/// Returns whether a process is gone, or has ended and waits for its parent (a zombie). A first
/// thread that has ended looks the same, but for other threads.
fn is_over(process: u32) -> bool {
    let stat = match fs::read(format!("/proc/{process}/stat")) {
        Ok(stat) => stat,
        Err(error) => {
            return error.kind() == std::io::ErrorKind::NotFound
                || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error());
        }
    };
    let mut behind_name = stat.rsplit(|byte| *byte == b')');
    let state = behind_name
        .next()
        .and_then(|it| it.trim_ascii_start().first());
    let tasks = || fs::read_dir(format!("/proc/{process}/task"));
    matches!(state, Some(b'Z' | b'X')) && tasks().map_or(0, Iterator::count) <= 1
}

/// Returns the first lines of the trace.
fn about(decoder: &Decoder, arguments: &RecordArguments) -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let target = match (&arguments.cgroup, arguments.command.as_slice()) {
        (Some(path), _) => format!("control group {}", path.display()),
        (None, []) => format!("processes {:?}", arguments.pid),
        (None, command) => format!("command {}", command.join(" ")),
    };
    let mut text = format!(
        "recorder: highwater {}\nkernel: {}\ntarget: {}\nevents: {}\n",
        env!("CARGO_PKG_VERSION"),
        kernel.trim(),
        target.replace('\n', " "),
        decoder.enabled().join(" ")
    );
    for lack in decoder.lacks() {
        text.push_str("lacks: ");
        text.push_str(lack);
        text.push('\n');
    }
    text
}

/// Returns the files and directories that a command names, and its working directory.
fn roots_of_command(command: &[String]) -> Vec<PathBuf> {
    let paths = command.iter().map(PathBuf::from);
    let mut roots: Vec<PathBuf> = paths.filter(|path| path.exists()).collect();
    if !command.is_empty() {
        roots.extend(std::env::current_dir());
    }
    roots
}

/// Returns the directories of programs and libraries.
fn roots_of_system() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut roots: Vec<PathBuf> = std::env::split_paths(&path).collect();
    roots.extend(["/etc", "/lib", "/lib64", "/usr/lib"].map(PathBuf::from));
    roots
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    // Symptom: a recording of a process that had ended, and whose parent did not wait for it, went
    // on for ever.
    #[test]
    fn a_zombie_is_over() {
        let mut cat = Command::new("cat");
        let mut child = cat.stdin(Stdio::piped()).spawn().unwrap();
        assert!(!is_over(child.id()) && !is_over(std::process::id()));
        drop(child.stdin.take());
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), ended).unwrap();
        assert!(is_over(child.id()));
        child.wait().unwrap();
        assert!(is_over(child.id()));
    }
}
