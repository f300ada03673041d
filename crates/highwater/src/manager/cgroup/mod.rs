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
//! cgroup alone. A cgroup that no mount shows (no cgroup namespace) is taken for the root of the
//! mounts, as a container mounts it. A limit file that is missing sets no limit; one that cannot be
//! read is reported.
//!
//! Source: cgroups(7), proc(5), Linux `Documentation/admin-guide/cgroup-v2.rst`.

use std::fs;
use std::io;
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

/// What could be read of the limits.
#[derive(Debug)]
pub(super) struct LimitsRead {
    /// The lowest limit; none if there is none.
    pub(super) lowest: Option<MemoryLimit>,
    /// A file that could not be read, so that a lower limit may be in force.
    pub(super) unreadable: Option<(PathBuf, io::Error)>,
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

    /// Reads the limits of the process's cgroup and its ancestors.
    ///
    /// # Cost
    ///
    /// Reads two files of `/proc`, and one for each ancestor.
    pub(super) fn read_limits(&self) -> LimitsRead {
        let mut read = LimitsRead {
            lowest: None,
            unreadable: None,
        };
        let (mut denied, mut nr_read) = (None, 0);
        for file in self.limit_files(&mut read.unreadable) {
            let text = match self.read(&file) {
                Ok(text) => text,
                // Not every cgroup has limits: the root has none.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // For good, as for a part of the hierarchy that the process may not see.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    denied = Some((file, error));
                    continue;
                }
                Err(error) => {
                    read.unreadable = Some((file, error));
                    continue;
                }
            };
            nr_read += 1;
            let limit = parse_limit(text.trim()).map(|bytes| MemoryLimit { bytes, file });
            let limits = read.lowest.into_iter().chain(limit);
            read.lowest = limits.min_by_key(|limit| limit.bytes);
        }
        if nr_read == 0 {
            // All of it: the program has locked itself in.
            read.unreadable = read.unreadable.or(denied);
        }
        read
    }

    /// Returns the limit files of the process's cgroup and its ancestors in each hierarchy; notes a
    /// file that does not tell which these are.
    fn limit_files(&self, unreadable: &mut Option<(PathBuf, io::Error)>) -> Vec<PathBuf> {
        let [groups, mounts] = ["/proc/self/cgroup", "/proc/self/mountinfo"].map(|path| {
            let text = self.read(path);
            text.unwrap_or_else(|error| {
                *unreadable = Some((path.into(), error));
                String::new()
            })
        });
        let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        let mut files = Vec::new();
        for version in [Version::V1, Version::V2] {
            let Some(group) = groups.lines().find_map(|line| version.group_in(line)) else {
                continue;
            };
            let mounts = || mounts.iter().filter(|mount| mount.version == version);
            let shown = mounts().filter_map(|mount| Some((mount, mount.shown_of(&group)?)));
            let before = files.len();
            files.extend(shown.flat_map(|(mount, below)| mount.limit_files(below)));
            if files.len() == before {
                files.extend(mounts().flat_map(|mount| mount.limit_files(Path::new(""))));
            }
        }
        files
    }

    /// Reads a file whose path is as the process sees it. What is no UTF-8 is replaced: a mount
    /// point of another file system may have any name.
    fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let path = path.as_ref();
        let path = path.strip_prefix("/").unwrap_or(path);
        let bytes = fs::read(self.root.join(path))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
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

    /// Returns where below the mount point a cgroup is, if it is shown there.
    fn shown_of<'g>(&self, group: &'g Path) -> Option<&'g Path> {
        let is_outside = group.components().any(|part| part == Component::ParentDir);
        group.strip_prefix(&self.root).ok().filter(|_| !is_outside)
    }

    /// Returns the limit files of a cgroup below the mount point and of its ancestors, its own
    /// first.
    fn limit_files(&self, below: &Path) -> Vec<PathBuf> {
        let name = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        let groups = below.ancestors();
        groups
            .map(|group| self.point.join(group).join(name))
            .collect()
    }
}

impl Version {
    /// Returns the process's cgroup in a hierarchy of this version, if a line of
    /// `/proc/self/cgroup` names it: `ID:CONTROLLERS:PATH`.
    fn group_in(self, line: &str) -> Option<PathBuf> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_it = match self {
            Self::V1 => lists(controllers, "memory"),
            Self::V2 => controllers.is_empty(),
        };
        is_it.then(|| path.into())
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
