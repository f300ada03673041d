//! A tracing instance: `instances/highwater-PID-N`, removed when it is dropped, also by a panic.
//!
//! A process that is killed leaves its instance behind. The next one that creates an instance
//! removes those whose process is gone; the kernel refuses to remove one whose buffers are open.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

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
        if !is_initial_pid_namespace() {
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
/// number, in another PID namespace or before the numbers began again: it is removed, unless its
/// buffers are open.
fn create_directory(instances: &Path) -> Result<PathBuf, TracefsError> {
    loop {
        // Relaxed: the number publishes no other data.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = instances.join(format!("{PREFIX}{}-{number}", process::id()));
        // There is mostly none.
        let _ = fs::remove_dir(&directory);
        match fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < NUMBERS => {}
            Err(error) => return Err(TracefsError::file("create", &directory, error)),
        }
    }
}

/// Returns whether the numbers of processes that this process sees are the machine's.
fn is_initial_pid_namespace() -> bool {
    let namespace = fs::metadata("/proc/self/ns/pid");
    // A kernel without such namespaces has no such file.
    namespace.map_or(true, |found| found.ino() == INITIAL_PID_NAMESPACE)
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
    let Ok(entries) = fs::read_dir(instances) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().and_then(owner).is_some_and(is_gone) {
            // Another process may be faster, or still have the buffers open.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns the process that created an instance of this name.
fn owner(name: &str) -> Option<u32> {
    let (process, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u32>().ok()?;
    process.parse().ok()
}

fn is_gone(process: u32) -> bool {
    File::open(format!("/proc/{process}/stat"))
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_instances_have_an_owner() {
        assert_eq!(owner("highwater-12-0"), Some(12));
        for other in [
            "highwater-12",
            "highwater-x-0",
            "highwater-",
            "perf-12-0",
            "foo",
        ] {
            assert_eq!(owner(other), None, "{other}");
        }
        assert!(!is_gone(process::id()));
    }

    // Symptom: a process killed as number 1 of a container left an instance that every later one
    // of that number failed at.
    #[test]
    fn a_leftover_of_the_same_name_is_no_obstacle() {
        let instances = tempfile::tempdir().unwrap();
        let next = || NEXT.load(Ordering::Relaxed);
        for number in next()..next() + 3 {
            let name = format!("{PREFIX}{}-{number}", process::id());
            fs::create_dir(instances.path().join(name)).unwrap();
        }
        // One whose buffers are open.
        let busy = format!("{PREFIX}{}-{}/open", process::id(), next());
        fs::create_dir(instances.path().join(busy)).unwrap();
        let before = next();
        let first = create_directory(instances.path()).unwrap();
        let second = create_directory(instances.path()).unwrap();
        assert!(first != second && next() >= before + 3);
    }
}
