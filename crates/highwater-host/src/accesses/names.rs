//! Names of files by device and inode: from the open files and mappings of tasks, and by scanning
//! directories.
//!
//! Subvolumes of btrfs have device numbers of their own in `stat(2)`, where events have that of the
//! file system: those of mounted subvolumes are told apart by the mounts. A file of another
//! subvolume, and one of overlayfs, is not found.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use super::FileKey;

/// A named file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path; that of a removed file ends in ` (deleted)`.
    pub path: PathBuf,
    /// Its size in bytes when it was found; `None` from a mapping.
    pub bytes: Option<u64>,
}

/// Files found so far.
#[derive(Clone, Debug, Default)]
pub struct Names {
    found: HashMap<FileKey, Found>,
    /// Device numbers in `stat(2)` that are not those of events, with these.
    devices: HashMap<u64, (u32, u32)>,
}

impl Names {
    /// Returns no files, with the device numbers of the file systems that are mounted now.
    #[must_use]
    pub fn of_mounts() -> Self {
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = String::from_utf8_lossy(&mounts);
        let device = |path: &Path| fs::metadata(path).ok().map(|metadata| metadata.dev());
        Self {
            devices: of_subvolumes(&mounts, device),
            ..Self::default()
        }
    }

    /// Returns a file that was found.
    #[must_use]
    pub fn get(&self, file: &FileKey) -> Option<&Found> {
        self.found.get(file)
    }

    /// Finds the open files and the mapped files of a task; those of other users need the right to
    /// trace them (`CAP_SYS_PTRACE`).
    pub fn learn_task(&mut self, task: u32) {
        self.learn_open_files(Path::new(&format!("/proc/{task}/fd")));
        if let Ok(maps) = fs::read(format!("/proc/{task}/maps")) {
            // Names may be of any bytes.
            let maps = String::from_utf8_lossy(&maps);
            for (file, path) in maps.lines().filter_map(mapped_file) {
                self.found
                    .entry(file)
                    .or_insert(Found { path, bytes: None });
            }
        }
    }

    fn learn_open_files(&mut self, directory: &Path) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let link = entry.path();
            // The link leads to the open file, also if its path does not.
            let (Ok(path), Ok(metadata)) = (fs::read_link(&link), fs::metadata(&link)) else {
                continue;
            };
            self.learn(path, &metadata);
        }
    }

    fn learn(&mut self, path: PathBuf, metadata: &Metadata) {
        if metadata.is_file() {
            let device = metadata.dev();
            let own = || (major(device), minor(device));
            let (major, minor) = self.devices.get(&device).copied().unwrap_or_else(own);
            let file = FileKey {
                major,
                minor,
                inode: metadata.ino(),
            };
            let bytes = Some(metadata.len());
            self.found.insert(file, Found { path, bytes });
        }
    }

    /// Finds a file, or all files below a directory on its file system, in at most `budget` entries
    /// of directories, which are subtracted from it. Symbolic links are followed in `root` only.
    pub fn learn_tree(&mut self, root: &Path, budget: &mut usize) {
        let Ok(metadata) = fs::metadata(root) else {
            return;
        };
        let root = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        if !metadata.is_dir() {
            return self.learn(root, &metadata);
        }
        let device = metadata.dev();
        let mut directories = vec![root];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                if *budget == 0 {
                    return;
                }
                *budget -= 1;
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() && metadata.dev() == device => {
                        directories.push(entry.path());
                    }
                    Ok(metadata) => self.learn(entry.path(), &metadata),
                    Err(_) => {}
                }
            }
        }
    }
}

/// Returns the device numbers that `device` tells of mounted subvolumes, with those that
/// `/proc/PID/mountinfo` has for their file systems.
fn of_subvolumes(mounts: &str, device: impl Fn(&Path) -> Option<u64>) -> HashMap<u64, (u32, u32)> {
    let parsed: Vec<_> = mounts.lines().filter_map(mount).collect();
    let subvolumes = parsed.iter().filter(|mount| mount.type_of == "btrfs");
    let told = subvolumes.filter_map(|mount| Some((device(&mount.point)?, mount.device)));
    // A mount point below which another file system is mounted tells that one's number.
    let is_other = |told: u64| {
        let told = (major(told), minor(told));
        parsed.iter().any(|mount| mount.device == told)
    };
    told.filter(|(told, _)| !is_other(*told)).collect()
}

/// A line of `/proc/PID/mountinfo`.
struct Mount<'a> {
    device: (u32, u32),
    point: PathBuf,
    type_of: &'a str,
}

fn mount(line: &str) -> Option<Mount<'_>> {
    let (mount, system) = line.split_once(" - ")?;
    let mut words = mount.split(' ').skip(2);
    let (major, minor) = words.next()?.split_once(':')?;
    let point = words.nth(1)?;
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        // The kernel writes a space so.
        point: PathBuf::from(point.replace("\\040", " ")),
        type_of: system.split(' ').next()?,
    })
}

/// Parses a line of `/proc/PID/maps` that maps a file.
fn mapped_file(line: &str) -> Option<(FileKey, PathBuf)> {
    let mut rest = line;
    let mut next = || {
        let (word, more) = rest.split_once(' ')?;
        rest = more.trim_start();
        Some(word)
    };
    let (_range, _rights, _offset) = (next()?, next()?, next()?);
    let (major, minor) = next()?.split_once(':')?;
    let inode = next()?.parse().ok()?;
    let file = FileKey {
        major: u32::from_str_radix(major, 16).ok()?,
        minor: u32::from_str_radix(minor, 16).ok()?,
        inode,
    };
    (inode > 0 && rest.starts_with('/')).then(|| (file, PathBuf::from(rest)))
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;

    #[test]
    fn mapped_files_are_parsed() {
        let line = "7f1-7f2 r--p 00001000 fe:1f 12345                      /usr/lib/a b.so";
        let file = FileKey {
            major: 254,
            minor: 31,
            inode: 12_345,
        };
        assert_eq!(mapped_file(line), Some((file, "/usr/lib/a b.so".into())));
        for other in [
            "7f1-7f2 rw-p 00000000 00:00 0 ",
            "7f1-7f2 rw-p 00000000 00:00 0    [stack]",
            "7f1-7f2",
            "",
        ] {
            assert_eq!(mapped_file(other), None, "{other}");
        }
    }

    // Symptom: a task that maps a file whose name is no UTF-8 had no mapped files. Method: a
    // program of such a name, which has answered.
    #[test]
    fn mapped_files_are_found_beside_names_that_are_not_utf_8() {
        use std::io::{Read, Write};
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::process::CommandExt;
        use std::process::{Command, Stdio};

        let directory = tempfile::tempdir().unwrap();
        let program = directory
            .path()
            .join(std::ffi::OsStr::from_bytes(b"cat-\xff"));
        let mut copy = Command::new("cp");
        copy.arg("-L").arg("/bin/cat").arg(&program);
        assert!(copy.status().unwrap().success());
        let mut child = Command::new(&program);
        child.arg0("cat").stdin(Stdio::piped());
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let (mut asked, mut answer) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        asked.write_all(b"?").unwrap();
        answer.read_exact(&mut [0]).unwrap();
        let mut names = Names::default();
        names.learn_task(child.id());
        let found = names.found.values();
        let mut lossy = found.map(|found| found.path.to_string_lossy().into_owned());
        assert!(lossy.any(|path| path.contains("cat-\u{fffd}")));
        drop(asked);
        child.wait().unwrap();
    }

    /// Goal: files of a subvolume are found by the device of its file system. Method: a subvolume
    /// whose number `stat(2)` alone knows, a mount point that another file system hides, and one
    /// that is no btrfs.
    #[test]
    fn subvolumes_have_the_device_of_their_file_system() {
        let mounts = "29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      61 29 0:39 /a /mnt/my\\040data rw - btrfs /dev/loop0 rw\n\
                      62 29 0:39 / /hidden rw - btrfs /dev/loop0 rw\n\
                      63 29 0:50 / /tmp rw - tmpfs none rw\nbroken\n";
        let stat = |path: &Path| match path.to_str() {
            Some("/mnt/my data") => Some(makedev(0, 41)),
            Some("/hidden") => Some(makedev(254, 0)),
            _ => Some(makedev(0, 99)),
        };
        let found = of_subvolumes(mounts, stat);
        assert_eq!(found, HashMap::from([(makedev(0, 41), (0, 39))]));
    }

    /// Goal: files are found by device and inode, within the budget. Method: an open file of this
    /// process, and its directory.
    #[test]
    fn open_files_and_trees_are_found() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/accesses");
        let path = directory.join("names.rs");
        let _open = fs::File::open(&path).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        let file = FileKey {
            major: major(metadata.dev()),
            minor: minor(metadata.dev()),
            inode: metadata.ino(),
        };
        let mut names = Names::default();
        let mut budget = 0;
        names.learn_tree(&directory, &mut budget);
        assert_eq!(names.get(&file), None);
        budget = 100;
        names.learn_tree(&directory, &mut budget);
        assert_eq!(names.get(&file).unwrap().bytes, Some(metadata.len()));
        assert!((1..100).contains(&budget));
        let mut names = Names::default();
        names.learn_task(std::process::id());
        // Another mount of the same file system may have another path.
        assert!(names.get(&file).unwrap().path.ends_with("names.rs"));
    }
}
