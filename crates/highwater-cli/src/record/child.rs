//! The recorded command. It must not run before it is traced, and a process can only be traced once
//! it exists: so the program starts itself, stops itself, and becomes the command when the recorder
//! lets it continue.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use super::RecordError;
use crate::Exit;
use crate::output::complain;

/// Name of the hidden subcommand that waits.
pub(crate) const WAITER: &str = "record-waiter";

/// Arguments of the hidden subcommand.
#[derive(Args, Debug)]
pub(crate) struct WaiterArguments {
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Stops until the recorder continues this process, then becomes the command.
pub(crate) fn wait_and_exec(arguments: &WaiterArguments) -> Exit {
    if let Err(e) = kill_process(getpid(), Signal::STOP) {
        complain(format_args!("cannot wait for the recorder: {e}"));
        return Exit::Unusable;
    }
    let [program, rest @ ..] = arguments.command.as_slice() else {
        return Exit::Unusable;
    };
    let error = Command::new(program).args(rest).exec();
    complain(format_args!("cannot run `{program}`: {error}"));
    Exit::Unusable
}

/// How long a command that runs has to end after a signal, where the time is over, the recorder was
/// told to end, or it fails. Chosen: as long as container engines give it.
const TIME_TO_END: Duration = Duration::from_secs(10);

/// A command that waits, or runs. Dropped before its end, it is told to end, and then killed.
#[derive(Debug)]
pub(super) struct Recorded {
    child: Child,
    pid: Pid,
    is_released: bool,
    status: Option<ExitStatus>,
}

/// The signal that ended a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    /// None: the time was over, for example.
    Nothing,
    /// One that only the recorder has received.
    Signal(u8),
    /// One that the terminal sent to the command, too.
    Terminal,
}

impl Recorded {
    /// Starts a command up to the point where it waits.
    pub(super) fn start(command: &[String]) -> Result<Self, RecordError> {
        let name = command.first().cloned().unwrap_or_default();
        let refuse = |source| RecordError::Command {
            command: name.clone(),
            source,
        };
        if !is_executable(&name) {
            return Err(refuse(rustix::io::Errno::NOENT.into()));
        }
        let child = Command::new("/proc/self/exe")
            .arg(WAITER)
            .arg("--")
            .args(command)
            .spawn()
            .map_err(refuse)?;
        let pid = Pid::from_child(&child);
        let mut recorded = Self {
            child,
            pid,
            is_released: false,
            status: None,
        };
        recorded.wait_until_stopped().map_err(refuse)?;
        Ok(recorded)
    }

    fn wait_until_stopped(&mut self) -> io::Result<()> {
        loop {
            match waitpid(Some(self.pid), WaitOptions::UNTRACED) {
                Ok(Some((_, status))) if status.stopped() => return Ok(()),
                Ok(_) => return Err(io::Error::other("it ended before it could be traced")),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the process.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Lets the command run.
    pub(super) fn release(&mut self) -> io::Result<()> {
        kill_process(self.pid, Signal::CONT)?;
        self.is_released = true;
        Ok(())
    }

    /// Returns whether the command has ended.
    pub(super) fn has_ended(&mut self) -> io::Result<bool> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status.is_some())
    }

    /// Ends a command that still runs and waits; returns the failure of a command that ended by
    /// itself. It gets the recorder's signal, or else SIGTERM, and SIGKILL if it goes on; but none
    /// if it has one from the terminal: programs take a second SIGINT for the wish to end at once.
    pub(super) fn end(self, by: EndedBy) -> io::Result<Option<String>> {
        self.end_within(TIME_TO_END, by)
    }

    fn end_within(mut self, time: Duration, by: EndedBy) -> io::Result<Option<String>> {
        if self.has_ended()? {
            // Ctrl-C at a terminal reaches the command too.
            let is_ours = by != EndedBy::Nothing;
            return Ok(self.status.filter(|_| !is_ours).and_then(failure));
        }
        match by {
            // The command has it already, and may be cleaning up.
            EndedBy::Terminal => {}
            EndedBy::Signal(number) => {
                let signal = Signal::from_named_raw(number.into());
                self.make_end(signal.unwrap_or(Signal::TERM), time);
            }
            EndedBy::Nothing => self.make_end(Signal::TERM, time),
        }
        self.status = Some(self.child.wait()?);
        Ok(None)
    }

    /// Sends a command that runs a signal to end, and kills one that goes on. One that may not be
    /// signalled, as with `sudo`, is left to end by itself.
    fn make_end(&mut self, signal: Signal, time: Duration) {
        if let Err(error) = kill_process(self.pid, signal) {
            complain(format_args!(
                "the command cannot be told to end ({error}): waiting for it"
            ));
            return;
        }
        let begin = Instant::now();
        while begin.elapsed() < time {
            if self.has_ended().unwrap_or(true) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        complain(format_args!(
            "the command goes on after {}: it is killed",
            name(signal)
        ));
        let _ = self.child.kill();
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if self.status.is_some() {
            return;
        }
        if self.is_released {
            complain(format_args!("the command is told to end, by SIGTERM"));
            self.make_end(Signal::TERM, TIME_TO_END);
        } else {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Returns the name of a signal that ends a recording.
fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::INT => "SIGINT",
        Signal::HUP => "SIGHUP",
        _ => "SIGTERM",
    }
}

/// Returns how a command failed.
fn failure(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("ended with status {code}")),
        (None, Some(signal)) => Some(format!("was ended by signal {signal}")),
        (None, None) => Some("failed".to_owned()),
    }
}

/// Returns whether a command is likely to start: a file, or a name in PATH.
fn is_executable(name: &str) -> bool {
    if name.contains('/') {
        return Path::new(name).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Stdio;

    use super::*;

    // Symptom: a recording of so many seconds, or one that a signal ended, waited for ever for a
    // command that ignores the signal. Method: one that has said so; no time to end. The test would
    // hang.
    #[test]
    fn a_command_that_ignores_the_signal_is_killed() {
        let signal = |signal: Signal| u8::try_from(signal.as_raw()).unwrap();
        for (name, by) in [
            ("TERM", EndedBy::Nothing),
            ("TERM", EndedBy::Signal(signal(Signal::TERM))),
            ("HUP", EndedBy::Signal(signal(Signal::HUP))),
        ] {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("trap '' {name}; echo; exec cat")]);
            let shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = shell.spawn().unwrap();
            let (_open, mut said) = (child.stdin.take(), child.stdout.take().unwrap());
            said.read_exact(&mut [0]).unwrap();
            let recorded = Recorded {
                pid: Pid::from_child(&child),
                child,
                is_released: true,
                status: None,
            };
            let ended = recorded.end_within(Duration::ZERO, by);
            assert_eq!(ended.unwrap(), None);
        }
    }
}
