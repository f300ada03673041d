//! The same storm of readers on control groups of the running kernel.
//!
//! Timed is the read of an open `memory.stat`, not its opening. Meanwhile a shell moves from group
//! to group and runs a process of a few pages in each.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use fastrand::Rng;

use super::storm::{Served, Target, round_seed, storm};
use crate::baselines::flush::Shape;
use crate::control::Control;
use crate::experiments::crew::Crew;
use crate::experiments::memcg::{KernelGroups, NoGroups};
use crate::experiments::periodic::End;
use crate::experiments::{ExperimentError, Setup};

/// Largest `memory.stat`, in bytes; version 2 fills about half.
const STAT_BYTES: usize = 8192;

/// Time between two moves of the shell: a process takes about a millisecond, so a tenth of a CPU.
const MOVE: Duration = Duration::from_millis(10);

/// Moves to each directory that it reads, and runs a process there that writes 256 KiB of its
/// memory. Ignores failures: the storm does not depend on it.
const SCRIPT: &str = "while read -r group; do
    echo $$ >\"$group/cgroup.procs\" && dd if=/dev/zero of=/dev/null bs=256k count=1
done";

/// Result of reading the kernel's groups.
#[derive(Debug)]
pub(super) enum KernelRun {
    /// The request did not ask for it.
    NotAsked,
    /// The machine does not allow it, with the reason.
    Skipped(String),
    /// A description of the groups, and times.
    Read { description: String, served: Served },
}

/// Creates groups, reads them for `time` in each of `rounds` rounds, and removes them.
pub(super) fn run(
    setup: &Setup,
    shape: &Shape,
    time: Duration,
    rounds: u32,
    control: &Control,
) -> Result<KernelRun, ExperimentError> {
    let groups = match KernelGroups::make(shape, control) {
        Ok(groups) => groups,
        Err(NoGroups::Skipped(reason)) => return Ok(KernelRun::Skipped(reason)),
        Err(NoGroups::Interrupted) => return Err(ExperimentError::Interrupted),
    };
    control.advance(1)?;
    let leaves = shape.nr_groups() - shape.below(1).start;
    let description = groups.description();
    let mut served = Served::default();
    for round in 0..rounds {
        let seed = round_seed(setup, round);
        served.merge(&one_round(&groups, leaves, time, seed, control)?);
        control.advance(1)?;
    }
    groups.remove()?;
    Ok(KernelRun::Read {
        description,
        served,
    })
}

fn one_round(
    groups: &KernelGroups,
    leaves: usize,
    time: Duration,
    seed: u64,
    control: &Control,
) -> Result<Served, ExperimentError> {
    let end = End::default();
    let (mut shell, mut orders) = start_shell()?;
    let served = thread::scope(|scope| {
        let end = &end;
        let crew = Crew::new(scope);
        crew.start(move || {
            let mut random = Rng::with_seed(seed);
            while !end.wait(MOVE) {
                let group = groups.leaf(random.usize(..leaves)).display();
                // The write fails when the shell has died; the storm goes on without it.
                let _ = writeln!(orders, "{group}");
            }
            // Dropping the orders closes the shell's input, which ends the shell.
        })?;
        crew.go();
        let _ends = end.ends();
        storm(&Stats { groups }, leaves, time, seed, control)
    });
    let ended = shell.wait();
    ended.map_err(|source| no_shell("wait for", source))?;
    served
}

fn start_shell() -> Result<(Child, ChildStdin), ExperimentError> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut shell = shell.spawn().map_err(|source| no_shell("start", source))?;
    let orders = shell.stdin.take().expect("its input is piped");
    Ok((shell, orders))
}

fn no_shell(what: &str, source: io::Error) -> ExperimentError {
    ExperimentError::System {
        what: format!("{what} a shell that works in the kernel's groups"),
        source,
        remedy: "leave `--kernel` out",
    }
}

/// Reads of the kernel's statistics.
struct Stats<'a> {
    groups: &'a KernelGroups,
}

struct Visit {
    file: File,
    leaf: usize,
    text: Box<[u8; STAT_BYTES]>,
}

impl Stats<'_> {
    fn refused(&self, leaf: usize, source: io::Error) -> ExperimentError {
        ExperimentError::System {
            what: format!("read memory.stat of {}", self.groups.leaf(leaf).display()),
            source,
            remedy: "leave `--kernel` out",
        }
    }
}

impl Target for Stats<'_> {
    type Visit = Visit;

    fn prepare(&self, leaf: usize) -> Result<Visit, ExperimentError> {
        let file = File::open(self.groups.leaf(leaf).join("memory.stat"));
        Ok(Visit {
            file: file.map_err(|source| self.refused(leaf, source))?,
            leaf,
            text: Box::new([0; STAT_BYTES]),
        })
    }

    fn serve(&self, visit: &mut Visit) -> Result<(), ExperimentError> {
        let read = visit.file.read_at(&mut visit.text[..], 0);
        match read {
            Ok(0) => Err(self.refused(visit.leaf, io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(source) => Err(self.refused(visit.leaf, source)),
        }
    }

    fn settle(&self, _visit: Visit) {}
}
