//! Control groups (memcg) of the running kernel, created in a directory of their own and removed
//! however the run ends.
//!
//! Both versions of control groups work, if their memory controller can be used without changing
//! any existing group: version 1 where the controller is mounted, version 2 where the root enables
//! the controller for its children.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use highwater::topology::Topology;

use super::ExperimentError;
use crate::baselines::flush::Shape;
use crate::control::Control;
use crate::replay::bytes_of;
use crate::report::text::size;

/// Kernel memory of a group, and of a group for each possible CPU. Measured on Linux 6.18 with 2
/// CPUs: 19.8 KB and 4.1 KB a group.
const GROUP_BYTES: u64 = 20 << 10;
const GROUP_CPU_BYTES: u64 = 2 << 10;

/// Groups may take one part in so many of the available memory.
const MEMORY_PART: u64 = 4;

/// Groups created between checks of the stop flag.
const UNWATCHED: usize = 64;

/// Attempts to remove a group while a process is in it, and the time between them.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// A mounted hierarchy in which groups can be created.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    top: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Groups of the kernel, on three levels; dropping them removes them.
#[derive(Debug)]
pub(super) struct KernelGroups {
    version: Version,
    /// By number; the first is the directory of our own. A prefix while they are being created.
    paths: Vec<PathBuf>,
    leaves: usize,
}

/// Why there are no groups.
#[derive(Debug)]
pub(super) enum NoGroups {
    /// The machine does not allow it, with the reason.
    Skipped(String),
    /// The run was told to stop.
    Interrupted,
}

impl KernelGroups {
    /// Creates the groups of `shape`.
    pub(super) fn make(shape: &Shape, control: &Control) -> Result<Self, NoGroups> {
        let mounts = fs::read_to_string("/proc/self/mountinfo");
        let mounts = mounts.map_err(|e| skipped(format!("cannot read the mounts: {e}")))?;
        let hierarchies = hierarchies(&mounts);
        let found = hierarchies.iter().find(|found| found.is_usable());
        let Some(Hierarchy { top, version }) = found else {
            return Err(skipped(match hierarchies.first() {
                None => "no control groups are mounted".to_owned(),
                Some(other) => format!(
                    "the memory controller is not available under {}",
                    other.top.display()
                ),
            }));
        };
        check_memory(shape)?;
        let own = top.join(format!("highwater-lab-{}", std::process::id()));
        let mut groups = Self {
            version: *version,
            paths: Vec::with_capacity(shape.nr_groups()),
            leaves: shape.nr_groups() - shape.below(1).start,
        };
        for number in 0..shape.nr_groups() {
            let path = match shape.parent(number) {
                None => own.clone(),
                Some(parent) => groups.paths[parent].join(format!("g{number}")),
            };
            groups.make_one(path, &shape.below(number))?;
            if number % UNWATCHED == 0 && control.is_stopped() {
                return Err(NoGroups::Interrupted);
            }
        }
        Ok(groups)
    }

    /// Creates a group, and enables the memory controller for its children if `below` is not empty.
    fn make_one(&mut self, path: PathBuf, below: &Range<usize>) -> Result<(), NoGroups> {
        let refused = |what: &Path, e| skipped(format!("cannot make {}: {e}", what.display()));
        fs::create_dir(&path).map_err(|e| refused(&path, e))?;
        let control = path.join("cgroup.subtree_control");
        self.paths.push(path);
        if self.version == Version::Two && !below.is_empty() {
            fs::write(&control, "+memory").map_err(|e| refused(&control, e))?;
        }
        Ok(())
    }

    /// Describes the groups, for reports.
    pub(super) fn description(&self) -> String {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease");
        let release = release.unwrap_or_else(|_| "an unknown release".to_owned());
        let version = match self.version {
            Version::One => 1,
            Version::Two => 2,
        };
        format!("this kernel, {}, cgroup v{version}", release.trim())
    }

    /// Returns the directory of a leaf group.
    pub(super) fn leaf(&self, leaf: usize) -> &Path {
        &self.paths[self.paths.len() - self.leaves + leaf]
    }

    /// Removes the groups.
    pub(super) fn remove(mut self) -> Result<(), ExperimentError> {
        self.remove_all()
            .map_err(|(path, source)| ExperimentError::System {
                what: format!("remove the group {}", path.display()),
                source,
                remedy: "remove it and its children with `rmdir`",
            })
    }

    /// Removes children first. Tries all, and returns the first failure.
    fn remove_all(&mut self) -> Result<(), (PathBuf, io::Error)> {
        let mut failed = None;
        for path in self.paths.drain(..).rev() {
            if let Err(e) = remove_one(&path) {
                failed.get_or_insert((path, e));
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for KernelGroups {
    fn drop(&mut self) {
        // The report names the error that ended the run early, not this one.
        let _ = self.remove_all();
    }
}

/// Retries, because a process that was killed may take a moment to leave its group.
fn remove_one(path: &Path) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        match fs::remove_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => thread::sleep(PAUSE),
            removed => return removed,
        }
    }
    fs::remove_dir(path)
}

fn skipped(reason: String) -> NoGroups {
    NoGroups::Skipped(reason)
}

impl Hierarchy {
    fn is_usable(&self) -> bool {
        match self.version {
            Version::One => true,
            Version::Two => {
                let file = fs::read_to_string(self.top.join("cgroup.subtree_control"));
                file.is_ok_and(|file| file.split_whitespace().any(|word| word == "memory"))
            }
        }
    }
}

/// Returns the mounted hierarchies that have or may enable the memory controller, version 1 first:
/// where both are mounted, version 2 does not have it.
fn hierarchies(mounts: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        // Fields: ... ... ... root top options [tags] - kind source options
        let Some((before, after)) = line.split_once(" - ") else {
            continue;
        };
        let (Some(top), mut after) = (before.split(' ').nth(4), after.split(' ')) else {
            continue;
        };
        let (kind, options) = (after.next(), after.nth(1).unwrap_or_default());
        let version = match kind {
            Some("cgroup") if options.split(',').any(|option| option == "memory") => Version::One,
            Some("cgroup2") => Version::Two,
            _ => continue,
        };
        // Mount points do not hold the other characters that are escaped.
        let top = PathBuf::from(top.replace("\\040", " "));
        found.push(Hierarchy { top, version });
    }
    found.sort_by_key(|found| found.version == Version::Two);
    found
}

/// Fails when the groups would take too much kernel memory, which grows with the number of CPUs.
fn check_memory(shape: &Shape) -> Result<(), NoGroups> {
    let cpus = Topology::detect().nr_cpus() as u64;
    let wanted = shape.nr_groups() as u64 * (GROUP_BYTES + GROUP_CPU_BYTES * cpus);
    let file = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = bytes_of(&file, "MemAvailable").unwrap_or(0);
    if wanted > available / MEMORY_PART {
        return Err(skipped(format!(
            "{} groups take about {} of kernel memory, and {} are available",
            shape.nr_groups(),
            size(wanted),
            size(available)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the memory controller is found wherever it is mounted, and other mounts are not taken
    /// for it. Method: lines of machines with both versions, and with either.
    #[test]
    fn the_controller_is_found_where_it_is_mounted() {
        let cpu = "33 25 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n";
        let one =
            "34 25 0:30 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";
        let two =
            "42 25 0:38 / /sys/fs/my\\040groups rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let tmpfs = "25 1 0:22 / /memory rw - tmpfs memory rw,memory\n";
        let hierarchy = |top: &str, version| Hierarchy {
            top: top.into(),
            version,
        };
        let first = hierarchy("/sys/fs/cgroup/memory", Version::One);
        let second = hierarchy("/sys/fs/my groups", Version::Two);
        let all = [tmpfs, two, cpu, one].concat();
        assert_eq!(hierarchies(&all), [first.clone(), second.clone()]);
        assert_eq!(hierarchies(one), [first]);
        assert_eq!(hierarchies(two), [second]);
        assert_eq!(hierarchies(cpu), []);
        assert_eq!(
            bytes_of("MemFree: 1 kB\nMemAvailable:  8 kB\n", "MemAvailable"),
            Some(8192)
        );
    }

    /// Goal: groups are removed after a complete run, and after a run that is stopped while it
    /// creates them; a machine that allows none is reported. Method: twice, the second time with a
    /// stopped run.
    #[test]
    fn groups_are_removed_whatever_happens() {
        let (shape, control) = (Shape::of(2, 3), Control::default());
        let own = match KernelGroups::make(&shape, &control) {
            Ok(groups) => {
                assert!(groups.leaf(5).join("memory.stat").exists());
                let own = groups.paths[0].clone();
                groups.remove().unwrap();
                own
            }
            Err(NoGroups::Skipped(reason)) => return println!("skipped: {reason}"),
            Err(NoGroups::Interrupted) => panic!("the run was not stopped"),
        };
        assert!(!own.exists());
        control.stop();
        let stopped = KernelGroups::make(&shape, &control);
        assert!(matches!(stopped, Err(NoGroups::Interrupted)));
        assert!(!own.exists());
    }
}
