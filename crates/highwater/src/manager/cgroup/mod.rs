//! The process's memory cgroup (memcg): the limit above which the kernel OOM-kills it.
//!
//! `/proc/self/cgroup` names the process's cgroup in each hierarchy, `/proc/self/mountinfo` the
//! mount points of the hierarchies. The limit is the lowest of the cgroup and its visible
//! ancestors:
//!
//! | hierarchy | named by | limit in | no limit |
//! |---|---|---|---|
//! | v2 | the line `0::` | `memory.max` | `max` |
//! | v1 | the line whose controllers include `memory` | `memory.limit_in_bytes` | about 2^63 |
//!
//! A mount shows the part of its hierarchy below its *root*: in a container often the container's
//! cgroup alone. A cgroup that is named from outside that part (no cgroup namespace) is taken for
//! the root of the mount, as a container mounts it. Files that cannot be read set no limit.
//!
//! Source: cgroups(7), proc(5), Linux `Documentation/admin-guide/cgroup-v2.rst`.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::units::Bytes;

/// Limits from here on mean none: v1 writes "no limit" as the most pages that it can count.
const NO_LIMIT: u64 = 1 << 62;

/// Location of the system's cgroup files.
#[derive(Clone, Debug)]
pub(super) struct Memcg {
    /// The directory that holds `proc`, and below which hierarchies are mounted.
    root: PathBuf,
}

/// The lowest limit on the memory of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryLimit {
    pub(super) bytes: Bytes,
    /// The file that sets it.
    pub(super) file: PathBuf,
}

/// A version of the cgroup interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// Mount point of a hierarchy with memory limits.
#[derive(Debug)]
struct Mount {
    version: Version,
    /// The cgroup that the mount point shows.
    root: PathBuf,
    point: PathBuf,
}

impl Memcg {
    /// Returns the location of this system.
    pub(super) fn of_system() -> Self {
        Self { root: "/".into() }
    }

    /// Returns the location of a system laid out below a directory, for tests.
    #[cfg(all(test, not(loom)))]
    pub(super) fn below(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// Returns the lowest limit of the process's cgroup and its ancestors; `None` if there is none,
    /// or none can be read.
    ///
    /// # Cost
    ///
    /// Reads two files of `/proc`, and one for each ancestor.
    pub(super) fn limit(&self) -> Option<MemoryLimit> {
        let groups = self.read("proc/self/cgroup")?;
        let mounts = self.read("proc/self/mountinfo")?;
        let limits = mounts.lines().filter_map(Mount::parse).flat_map(|mount| {
            let group = groups.lines().find_map(|line| mount.group_in(line));
            let files = group.map(|group| mount.limit_files(&group));
            files.unwrap_or_default()
        });
        let limits = limits.filter_map(|file| {
            let bytes = parse_limit(self.read(&file)?.trim())?;
            Some(MemoryLimit { bytes, file })
        });
        limits.min_by_key(|limit| limit.bytes)
    }

    /// Reads a file whose path is as the process sees it.
    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        let path = path.strip_prefix("/").unwrap_or(path);
        fs::read_to_string(self.root.join(path)).ok()
    }
}

impl Mount {
    /// Parses a line of `mountinfo`, if it is of a hierarchy that may limit memory:
    /// `ID PARENT DEV ROOT POINT OPTIONS [TAGS] - TYPE SOURCE SUPER-OPTIONS`.
    fn parse(line: &str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let version = match system.next()? {
            "cgroup2" => Version::V2,
            "cgroup" if lists(system.nth(1)?, "memory") => Version::V1,
            _ => return None,
        };
        let mut mount = mount.split(' ').skip(3).map(unescaped);
        Some(Self {
            version,
            root: mount.next()?,
            point: mount.next()?,
        })
    }

    /// Returns the process's cgroup in this hierarchy, if a line of `/proc/self/cgroup` names it:
    /// `ID:CONTROLLERS:PATH`.
    fn group_in(&self, line: &str) -> Option<PathBuf> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_it = match self.version {
            Version::V1 => lists(controllers, "memory"),
            Version::V2 => controllers.is_empty(),
        };
        is_it.then(|| path.into())
    }

    /// Returns the limit files of a cgroup and its ancestors, its own first.
    fn limit_files(&self, group: &Path) -> Vec<PathBuf> {
        let is_outside = group.components().any(|part| part == Component::ParentDir);
        let below = group.strip_prefix(&self.root).ok().filter(|_| !is_outside);
        let name = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        let groups = below.unwrap_or(Path::new("")).ancestors();
        groups
            .map(|group| self.point.join(group).join(name))
            .collect()
    }
}

/// Returns whether a comma-separated list contains a word.
fn lists(list: &str, word: &str) -> bool {
    list.split(',').any(|item| item == word)
}

/// Decodes the octal escapes of a path in `mountinfo`.
fn unescaped(field: &str) -> PathBuf {
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let path = escapes
        .iter()
        .fold(field.to_owned(), |path, (code, plain)| {
            path.replace(code, plain)
        });
    path.into()
}

/// Parses a limit of either version; `None` for no limit.
fn parse_limit(text: &str) -> Option<Bytes> {
    let bytes = text.parse().ok()?;
    (bytes < NO_LIMIT).then_some(Bytes(bytes))
}

#[cfg(all(test, not(loom)))]
mod tests;
