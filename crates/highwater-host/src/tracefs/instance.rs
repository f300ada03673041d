//! A tracing instance: `instances/highwater-PID-N`, removed when it is dropped, also by a panic.
//!
//! A process that is killed leaves its instance behind. The next one that creates an instance
//! removes those whose process is gone; the kernel refuses to remove one whose buffers are open.
//! In a PID namespace other than the machine's, `PID` is `nsINODE-PID`: a process knows of those of
//! its own namespace whether they are gone, and one of the machine's of all. An instance that is
//! removed while its owner still sets it up can be more than its loss: Linux 6.18 had an oops then,
//! in `ring_buffer_change_overwrite`, and the machine's tracing hung.

use std::fmt::{self, Write as _};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::error::TracefsError;
use super::format::EventFormat;
use super::lost::Lost;
use super::mount::format_in;
use super::stream::Stream;

const PREFIX: &str = "highwater-";

/// Task numbers in one write to `set_event_pid`: the kernel parses at most a page of text at once.
const TASKS_A_WRITE: usize = 256;

/// Instances that a process makes at most while others of the same names exist.
const NUMBERS: u32 = 10_000;

/// The inode of the machine's own PID namespace, fixed in the kernel's interface
/// (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Distinguishes instances of this process. Publishes: only itself.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// An instance of the kernel's tracing. It records after [`start`](Self::start).
#[derive(Debug)]
pub struct Instance {
    directory: PathBuf,
    root: PathBuf,
}

impl Instance {
    pub(super) fn create(root: &Path) -> Result<Self, TracefsError> {
        let instances = root.join("instances");
        remove_leftovers(&instances);
        let directory = create_directory(&instances)?;
        let instance = Self {
            directory,
            root: root.to_owned(),
        };
        instance.write("tracing_on", "0")?;
        // CLOCK_MONOTONIC: the same on all CPUs, so that their events can be merged.
        instance.write("trace_clock", "mono")?;
        // A full buffer keeps its old events, drops new ones and counts them.
        instance.write("options/overwrite", "0")?;
        Ok(instance)
    }

    /// Returns the instance's directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a control file of the instance.
    ///
    /// # Errors
    ///
    /// When the file does not exist, or the kernel refuses the value.
    pub fn write(&self, file: &str, value: &str) -> Result<(), TracefsError> {
        let path = self.directory.join(file);
        fs::write(&path, value).map_err(|error| TracefsError::file("write", &path, error))
    }

    /// Sets the buffer of each CPU, in KiB. The kernel takes the memory at once.
    ///
    /// # Errors
    ///
    /// When there is not so much memory.
    pub fn set_buffer_kib(&self, kib_of_each_cpu: u64) -> Result<(), TracefsError> {
        self.write("buffer_size_kb", &kib_of_each_cpu.to_string())
    }

    /// Returns the number of buffers: the CPUs that the kernel may use.
    ///
    /// # Errors
    ///
    /// When their directories cannot be listed.
    pub fn cpus(&self) -> Result<u64, TracefsError> {
        Ok(cpus_of(&self.directory)?.len() as u64)
    }

    /// Enables an event, for those records only that satisfy `filter`, in the syntax of
    /// the kernel's filters; returns its format.
    ///
    /// # Errors
    ///
    /// [`TracefsError::NoEvent`] when the kernel has none of this name; others when it refuses the
    /// filter.
    pub fn enable(
        &self,
        system: &str,
        event: &str,
        filter: Option<&str>,
    ) -> Result<EventFormat, TracefsError> {
        let format = format_in(&self.directory, system, event)?;
        if let Some(filter) = filter {
            self.write(&format!("events/{system}/{event}/filter"), filter)?;
        }
        self.write(&format!("events/{system}/{event}/enable"), "1")?;
        Ok(format)
    }

    /// Limits all events to these tasks (thread numbers) and, from now on, to those that they
    /// create.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a number, and in a PID namespace other than the machine's: tracing
    /// compares the machine's numbers.
    pub fn follow(&self, tasks: &[u32]) -> Result<(), TracefsError> {
        if Namespace::own() != Namespace::Machine {
            return Err(TracefsError::Namespace);
        }
        self.write("options/event-fork", "1")?;
        // A list that is empty would trace every task.
        let first = tasks.first().copied().unwrap_or(0).to_string();
        self.write("set_event_pid", &first)?;
        self.follow_also(tasks)
    }

    /// Adds tasks to those of [`follow`](Self::follow).
    ///
    /// # Errors
    ///
    /// When the kernel refuses a number.
    pub fn follow_also(&self, tasks: &[u32]) -> Result<(), TracefsError> {
        let path = self.directory.join("set_event_pid");
        let refuse = |error| TracefsError::file("write", &path, error);
        let mut file = OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(refuse)?;
        for some in tasks.chunks(TASKS_A_WRITE) {
            let mut text = String::new();
            for task in some {
                // Writing to a string does not fail.
                let _ = write!(text, "{task} ");
            }
            file.write_all(text.as_bytes()).map_err(refuse)?;
        }
        Ok(())
    }

    /// Begins to record.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn start(&self) -> Result<(), TracefsError> {
        self.write("tracing_on", "1")
    }

    /// Ends recording; the buffers keep their events.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn stop(&self) -> Result<(), TracefsError> {
        self.write("tracing_on", "0")
    }

    /// Opens the buffers of all CPUs. Drop the stream before the instance.
    ///
    /// # Errors
    ///
    /// When a buffer cannot be opened.
    pub fn stream(&self) -> Result<Stream, TracefsError> {
        Stream::open(&self.root, &self.directory)
    }

    /// Returns the events that the buffers lost so far, over all CPUs.
    ///
    /// # Errors
    ///
    /// When the counts cannot be read.
    pub fn lost(&self) -> Result<Lost, TracefsError> {
        let cpus = cpus_of(&self.directory)?;
        cpus.iter()
            .map(|(_, directory)| {
                let path = directory.join("stats");
                let text = fs::read_to_string(&path);
                let text = text.map_err(|error| TracefsError::file("read", &path, error))?;
                Ok(Lost::parse(&text))
            })
            .sum()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A failure leaves the instance to the next one's clean-up.
        let _ = self.stop();
        let _ = fs::write(self.directory.join("events/enable"), "0");
        for _ in 0..50 {
            match fs::remove_dir(&self.directory) {
                // A reader of the buffers is closing its file.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    thread::sleep(Duration::from_millis(2));
                }
                _ => return,
            }
        }
    }
}

/// Creates the directory of an instance. One of the same name was left by a process that had this
/// number, before the numbers began again: it is removed, unless its buffers are open.
fn create_directory(instances: &Path) -> Result<PathBuf, TracefsError> {
    let owner = Owner::own();
    loop {
        // Relaxed: the number publishes no other data.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = instances.join(format!("{PREFIX}{owner}-{number}"));
        // There is mostly none.
        let _ = fs::remove_dir(&directory);
        match fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < NUMBERS => {}
            Err(error) => return Err(TracefsError::file("create", &directory, error)),
        }
    }
}

/// A PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    /// The first one, whose numbers are those of the kernel.
    Machine,
    /// Another one, by the inode of `/proc/PID/ns/pid`.
    Other(u64),
}

impl Namespace {
    fn own() -> Self {
        // A kernel without such namespaces has no such file.
        Self::of("self").unwrap_or(Self::Machine)
    }

    fn of(process: &str) -> io::Result<Self> {
        let found = fs::metadata(format!("/proc/{process}/ns/pid"))?.ino();
        Ok(match found {
            INITIAL_PID_NAMESPACE => Self::Machine,
            other => Self::Other(other),
        })
    }

    /// Returns whether no process is in it, as seen from the machine's. False if that cannot be
    /// told of a process.
    fn is_gone(self) -> bool {
        let Ok(entries) = fs::read_dir("/proc") else {
            return false;
        };
        let names = entries
            .flatten()
            .filter_map(|it| it.file_name().into_string().ok());
        let mut processes = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        processes.all(|process| match Self::of(&process) {
            Ok(its) => its != self,
            // One that has ended is in none.
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        })
    }
}

/// The process that made an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    namespace: Namespace,
    process: u32,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            Namespace::Machine => write!(f, "{}", self.process),
            Namespace::Other(inode) => write!(f, "ns{inode}-{}", self.process),
        }
    }
}

impl Owner {
    /// This process.
    fn own() -> Self {
        Self {
            namespace: Namespace::own(),
            process: process::id(),
        }
    }

    /// Returns the owner of an instance of this name.
    fn of(name: &str) -> Option<Self> {
        let (owner, number) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
        number.parse::<u32>().ok()?;
        let (namespace, process) = match owner.strip_prefix("ns") {
            None => (Namespace::Machine, owner),
            Some(other) => {
                let (inode, process) = other.split_once('-')?;
                (Namespace::Other(inode.parse().ok()?), process)
            }
        };
        Some(Self {
            namespace,
            process: process.parse().ok()?,
        })
    }

    /// Returns whether it is gone, as far as a process of a namespace can know.
    fn is_gone(self, seen_from: Namespace) -> bool {
        match self.namespace {
            its if its == seen_from => is_gone(self.process),
            its => seen_from == Namespace::Machine && its.is_gone(),
        }
    }
}

/// Returns the directories of the CPUs' buffers, by number.
pub(super) fn cpus_of(instance: &Path) -> Result<Vec<(u32, PathBuf)>, TracefsError> {
    let directory = instance.join("per_cpu");
    let refuse = |error| TracefsError::file("read", &directory, error);
    let mut cpus = Vec::new();
    for entry in fs::read_dir(&directory).map_err(refuse)? {
        let entry = entry.map_err(refuse)?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
        if let Some(cpu) = number.and_then(|number| number.parse().ok()) {
            cpus.push((cpu, entry.path()));
        }
    }
    cpus.sort_unstable();
    Ok(cpus)
}

/// Removes instances of killed processes.
fn remove_leftovers(instances: &Path) {
    let here = Namespace::own();
    let Ok(entries) = fs::read_dir(instances) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(Owner::of);
        if owner.is_some_and(|owner| owner.is_gone(here)) {
            // Another process may be faster, or still have the buffers open.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns whether there is no process of this number, also where `/proc` hides those of others.
fn is_gone(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    process.is_none_or(|process| test_kill_process(process) == Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_instances_have_an_owner() {
        let here = Namespace::own();
        for (name, namespace, process) in [
            ("highwater-12-0", Namespace::Machine, 12),
            ("highwater-ns4026531-1-7", Namespace::Other(4_026_531), 1),
        ] {
            let owner = Owner { namespace, process };
            assert_eq!(Owner::of(name), Some(owner));
            assert_eq!(format!("highwater-{owner}"), name[..name.len() - 2]);
        }
        for other in [
            "highwater-12",
            "highwater-x-0",
            "highwater-",
            "perf-12-0",
            "highwater-ns12-0",
            "highwater-nsx-1-0",
            "foo",
        ] {
            assert_eq!(Owner::of(other), None, "{other}");
        }
        assert!(!is_gone(process::id()) && !here.is_gone());
    }

    // Symptom: a process in a PID namespace of its own took all processes of the machine for gone,
    // and removed their instances, also one that was being made.
    #[test]
    fn a_process_judges_only_those_that_it_can_see() {
        let other = Namespace::Other(1);
        let of = |namespace, process| Owner { namespace, process };
        // Above all numbers that Linux gives.
        const NEVER: u32 = 1 << 30;
        assert!(of(Namespace::Machine, NEVER).is_gone(Namespace::Machine));
        assert!(!of(Namespace::Machine, process::id()).is_gone(Namespace::Machine));
        for gone in [Namespace::Machine, Namespace::Other(2)] {
            assert!(!of(gone, NEVER).is_gone(other));
        }
        assert!(of(other, NEVER).is_gone(other));
        let here = Namespace::own();
        assert!(!of(here, process::id()).is_gone(here));
    }

    // Symptom: a process killed as number 1 of a container left an instance that every later one
    // of that number failed at.
    #[test]
    fn a_leftover_of_the_same_name_is_no_obstacle() {
        let instances = tempfile::tempdir().unwrap();
        let own = Owner::own();
        let next = || NEXT.load(Ordering::Relaxed);
        for number in next()..next() + 3 {
            let name = format!("{PREFIX}{own}-{number}");
            fs::create_dir(instances.path().join(name)).unwrap();
        }
        // One whose buffers are open.
        let busy = format!("{PREFIX}{own}-{}/open", next());
        fs::create_dir(instances.path().join(busy)).unwrap();
        let before = next();
        let first = create_directory(instances.path()).unwrap();
        let second = create_directory(instances.path()).unwrap();
        assert!(first != second && next() >= before + 3);
    }
}
