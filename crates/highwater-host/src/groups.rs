//! Memory groups: cgroup v2, v1, both at once (hybrid), or none.
//!
//! A container may see its own group as the root, or the whole tree with its own path, or no
//! file system of groups at all. The mount table says where it is; a recorded machine without one
//! has the usual directories.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::parse::{self, Mount};
use crate::root::{Missing, Root};

/// Groups that are read at most; a machine may have tens of thousands.
const GROUPS_MAX: usize = 2_000;

/// CPU time that walking the groups may take. A walk that ends early says so.
const WALK_MAX: Duration = Duration::from_millis(15);

/// Levels of groups below the root that are walked.
const DEPTH_MAX: usize = 32;

/// Target of `/proc/self/ns/cgroup` in the initial cgroup namespace: inode 0xEFFFFFFB.
const INITIAL_NAMESPACE: &str = "cgroup:[4026531835]";

/// A version of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupVersion {
    /// cgroup v1: a hierarchy for each controller.
    V1,
    /// cgroup v2: one hierarchy.
    V2,
}

/// A memory group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// From the root of the hierarchy that is visible, `/` for that itself.
    pub path: String,
    /// Its hard maximum in bytes: `memory.max`, or `memory.limit_in_bytes`; `None` without one.
    pub max_bytes: Option<u64>,
    /// Its usage in bytes: `memory.current`, or `memory.usage_in_bytes`.
    pub current_bytes: u64,
    /// Groups below it that were read.
    pub descendants: u64,
}

/// The memory groups of a machine.
#[derive(Clone, Debug)]
pub struct Groups {
    /// The version that has the memory controller.
    pub version: GroupVersion,
    /// Where the hierarchy is mounted, relative to the root of the file system.
    pub mount: String,
    /// The group of this process, from the root of the hierarchy.
    pub own: String,
    /// Every group that was read; parents before children, the root first.
    pub groups: Vec<Group>,
    /// False if the walk ended early.
    pub is_complete: bool,
    /// False if the mount shows a part of the hierarchy, as in a container or a cgroup namespace.
    pub is_whole: bool,
}

impl Groups {
    /// Finds and walks the hierarchy with the memory controller.
    ///
    /// # Errors
    ///
    /// When none is mounted.
    pub fn read(root: &Root) -> Result<Self, Missing> {
        let (version, mount, mount_root) = place(root)?;
        let own = own_group(root, version);
        let is_whole = is_whole(root, &own, &mount_root);
        let mut found = Self {
            version,
            mount,
            own: as_mounted(&own, &mount_root),
            groups: Vec::new(),
            is_complete: true,
            is_whole,
        };
        let start = cpu_time();
        found.walk(root, "/", 0, &|| {
            root.is_live() && cpu_time().saturating_sub(start) > WALK_MAX
        });
        Ok(found)
    }

    /// The path of a file of `group`, relative to the root of the file system.
    #[must_use]
    pub fn file_of(&self, group: &Group, file: &str) -> String {
        self.file_at(&group.path, file)
    }

    /// The path of a file of the group at `path`.
    #[must_use]
    pub fn file_at(&self, path: &str, file: &str) -> String {
        let path = path.trim_matches('/');
        if path.is_empty() {
            format!("{}/{file}", self.mount)
        } else {
            format!("{}/{path}/{file}", self.mount)
        }
    }

    /// Says how much of the hierarchy was read, if not all.
    #[must_use]
    pub fn caveat(&self) -> &'static str {
        if self.is_complete {
            ""
        } else {
            "; not every group was read"
        }
    }

    /// Reads the group at `path` and those below it. Returns the number read.
    fn walk(&mut self, root: &Root, path: &str, depth: usize, is_late: &dyn Fn() -> bool) -> u64 {
        if self.groups.len() >= GROUPS_MAX || depth > DEPTH_MAX || is_late() {
            self.is_complete = false;
            return 0;
        }
        let index = self.groups.len();
        self.groups.push(self.group(root, path));
        let below = root.directories(&self.file_at(path, ""));
        let mut descendants = 0;
        for name in below.unwrap_or_default() {
            let path = format!("{}/{name}", path.trim_end_matches('/'));
            descendants += self.walk(root, &path, depth + 1, is_late);
        }
        self.groups[index].descendants = descendants;
        descendants + 1
    }

    fn group(&self, root: &Root, path: &str) -> Group {
        let (max, current) = match self.version {
            GroupVersion::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            GroupVersion::V2 => ("memory.max", "memory.current"),
        };
        // The root of v2 has neither file.
        let read = |file| root.parse(&self.file_at(path, file), parse::limit_bytes);
        Group {
            path: path.to_owned(),
            max_bytes: read(max).ok().flatten(),
            current_bytes: read(current).ok().flatten().unwrap_or(0),
            descendants: 0,
        }
    }
}

/// CPU time of this thread.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the version, the mount point, and the directory of the hierarchy that is mounted there.
fn place(root: &Root) -> Result<(GroupVersion, String, String), Missing> {
    let mounts = root
        .parse("proc/self/mountinfo", parse::mounts)
        .unwrap_or_default();
    let relative = |mount: &Mount| mount.point.trim_matches('/').to_owned();
    for mount in &mounts {
        let version = match &*mount.kind {
            "cgroup" if mount.has_option("memory") => GroupVersion::V1,
            "cgroup2" if has_memory(root, &relative(mount)) => GroupVersion::V2,
            _ => continue,
        };
        if root
            .entries(&relative(mount))
            .is_ok_and(|names| !names.is_empty())
        {
            return Ok((version, relative(mount), mount.root.clone()));
        }
    }
    let usual = [
        (
            GroupVersion::V1,
            "sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
        ),
        (GroupVersion::V2, "sys/fs/cgroup", "cgroup.controllers"),
        (
            GroupVersion::V2,
            "sys/fs/cgroup/unified",
            "cgroup.controllers",
        ),
    ];
    for (version, mount, file) in usual {
        let exists = root.read(&format!("{mount}/{file}")).is_ok();
        if exists && (version == GroupVersion::V1 || has_memory(root, mount)) {
            return Ok((version, mount.to_owned(), "/".to_owned()));
        }
    }
    Err(Missing::new(
        "needs a mounted cgroup hierarchy with the memory controller",
    ))
}

fn has_memory(root: &Root, mount: &str) -> bool {
    let controllers = root.read(&format!("{mount}/cgroup.controllers"));
    controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == "memory"))
}

/// Returns the group of this process as its cgroup namespace shows it; the root if it has none.
fn own_group(root: &Root, version: GroupVersion) -> String {
    let memberships = root.parse("proc/self/cgroup", parse::memberships);
    let is_own = |found: &parse::Membership| match version {
        GroupVersion::V1 => found.has_controller("memory"),
        GroupVersion::V2 => found.controllers.is_empty(),
    };
    let own = memberships.unwrap_or_default().into_iter().find(is_own);
    own.map_or_else(|| "/".to_owned(), |own| own.path)
}

/// Returns the group `own` as the mount shows it; the root if that does not hold it.
fn as_mounted(own: &str, mount_root: &str) -> String {
    match own.strip_prefix(mount_root.trim_end_matches('/')) {
        Some(below) if !below.is_empty() && !below.contains("/..") => below.to_owned(),
        _ => "/".to_owned(),
    }
}

/// Returns whether the mount shows the whole hierarchy: its root, to a process of the initial
/// cgroup namespace. In another namespace the root that is shown may be any group.
///
/// Kernels before 4.6 have no such namespaces, and most recorded machines no link to theirs: both
/// count as initial if the group of this process is not above the root that is shown.
fn is_whole(root: &Root, own: &str, mount_root: &str) -> bool {
    let namespace = fs::read_link(root.path_of("proc/self/ns/cgroup"));
    let is_initial = namespace.map_or(true, |link| link.to_str() == Some(INITIAL_NAMESPACE));
    let is_above = own == "/.." || own.starts_with("/../");
    mount_root == "/" && is_initial && !is_above
}
