//! The tracefs file system: where it is mounted, or a mount of its own that has no path.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::mount::{fsconfig_create, fsmount, fsopen};

use super::error::TracefsError;
use super::format::EventFormat;
use super::instance::Instance;

/// A mounted tracefs.
#[derive(Debug)]
pub struct Tracefs {
    root: PathBuf,
    /// Keeps a detached mount alive; `root` leads to it.
    _mount: Option<OwnedFd>,
}

impl Tracefs {
    /// Finds the mounted tracefs, or mounts one detached from any path: it vanishes with this
    /// process, however that ends.
    ///
    /// # Errors
    ///
    /// When none is mounted and the system refuses to mount one: the process is not root (it lacks
    /// `CAP_SYS_ADMIN`), or the kernel has no tracing. [`TracefsError::Oops`].
    pub fn open() -> Result<Self, TracefsError> {
        if has_had_oops() {
            return Err(TracefsError::Oops);
        }
        if let Some(root) = mounted() {
            return Ok(Self { root, _mount: None });
        }
        let mount = detached().map_err(|source| TracefsError::Mount { source })?;
        Ok(Self {
            root: format!("/proc/self/fd/{}", mount.as_raw_fd()).into(),
            _mount: Some(mount),
        })
    }

    /// Uses a directory as tracefs: a mount elsewhere, or a recorded tree.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            _mount: None,
        }
    }

    /// Returns the directory. The path of a detached mount is valid in this process only.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Creates an instance with buffers and events of its own, and removes instances of processes
    /// of this program that were killed.
    ///
    /// # Errors
    ///
    /// When the system refuses: mostly because the process may not write to tracefs.
    pub fn instance(&self) -> Result<Instance, TracefsError> {
        Instance::create(&self.root)
    }

    /// Reads the format of an event.
    ///
    /// # Errors
    ///
    /// [`TracefsError::NoEvent`] when the kernel has none of this name; others when its format
    /// file cannot be read or parsed.
    pub fn format(&self, system: &str, event: &str) -> Result<EventFormat, TracefsError> {
        format_in(&self.root, system, event)
    }
}

/// Reads the format of an event below `root`, the file system's root or an instance.
pub(super) fn format_in(
    root: &Path,
    system: &str,
    event: &str,
) -> Result<EventFormat, TracefsError> {
    let path = root.join("events").join(system).join(event).join("format");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(EventFormat::parse(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(TracefsError::NoEvent {
            system: system.to_owned(),
            event: event.to_owned(),
        }),
        Err(error) => Err(TracefsError::file("read", &path, error)),
    }
}

/// Returns whether a task of the kernel has died since the start (`TAINT_DIE`).
fn has_had_oops() -> bool {
    let tainted = fs::read_to_string("/proc/sys/kernel/tainted");
    tainted.is_ok_and(|text| is_tainted_by_oops(&text))
}

fn is_tainted_by_oops(text: &str) -> bool {
    let bits = text.trim().parse::<u64>();
    bits.is_ok_and(|bits| bits >> 7 & 1 == 1)
}

/// Returns the first mount of tracefs that has events.
fn mounted() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts
        .lines()
        .filter_map(tracefs_of_mount)
        .find(|root| root.join("events").is_dir())
}

/// Returns the directory of a line of `/proc/self/mounts`, if it is a tracefs.
fn tracefs_of_mount(line: &str) -> Option<PathBuf> {
    let mut words = line.split(' ');
    let (_source, directory, kind) = (words.next()?, words.next()?, words.next()?);
    // Blanks in the path are escaped.
    (kind == "tracefs").then(|| directory.replace("\\040", " ").into())
}

fn detached() -> io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oops_is_one_bit_of_the_taint() {
        assert!(is_tainted_by_oops("128\n") && is_tainted_by_oops("4737\n"));
        assert!(
            !["0\n", "512\n", "127", "", "x"]
                .into_iter()
                .any(is_tainted_by_oops)
        );
    }

    #[test]
    fn mounts_are_found_by_their_type() {
        let line = "none /a\\040dir/t tracefs rw,relatime 0 0";
        assert_eq!(tracefs_of_mount(line), Some("/a dir/t".into()));
        assert_eq!(tracefs_of_mount("tracefs /t tmpfs rw 0 0"), None);
        assert_eq!(tracefs_of_mount(""), None);
    }
}
