//! Tasks (threads) of process trees and of control groups.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Returns all tasks of these processes and of their descendants, ascending.
#[must_use]
pub fn tasks_of_processes(roots: &[u32]) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for process in numbers_in(Path::new("/proc")) {
        let stat = fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
        if let Some(parent) = parent_of(&String::from_utf8_lossy(&stat)) {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut left = roots.to_vec();
    let mut seen: HashSet<u32> = HashSet::new();
    let mut tasks = Vec::new();
    while let Some(process) = left.pop() {
        if seen.insert(process) {
            tasks.extend(numbers_in(Path::new(&format!("/proc/{process}/task"))));
            left.extend(children.remove(&process).into_iter().flatten());
        }
    }
    tasks.sort_unstable();
    tasks.dedup();
    tasks
}

/// Returns the parent's number from `/proc/PID/stat`. The name before it may hold any character.
fn parent_of(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(1)?.parse().ok()
}

/// Returns all tasks of a control group and of the groups below it, ascending. Groups below it that
/// are removed meanwhile have none.
///
/// # Errors
///
/// When the directory is no control group, or cannot be read.
pub fn tasks_of_cgroup(group: &Path) -> io::Result<Vec<u32>> {
    let mut tasks = Vec::new();
    let mut groups = vec![group.to_owned()];
    while let Some(directory) = groups.pop() {
        let is_below = directory != group;
        // Version 2 with threads, version 1, version 2 without the right to see threads.
        let of_group = ["cgroup.threads", "tasks"]
            .iter()
            .find_map(|file| fs::read_to_string(directory.join(file)).ok());
        match of_group {
            Some(text) => tasks.extend(text.lines().filter_map(|line| line.parse::<u32>().ok())),
            None => {
                let processes = match fs::read_to_string(directory.join("cgroup.procs")) {
                    Err(error) if is_below && is_removed(&error) => continue,
                    processes => processes?,
                };
                let processes = processes
                    .lines()
                    .filter_map(|line| line.parse::<u32>().ok());
                for process in processes {
                    tasks.extend(numbers_in(Path::new(&format!("/proc/{process}/task"))));
                }
            }
        }
        groups.extend(directories_in(&directory));
    }
    tasks.sort_unstable();
    tasks.dedup();
    Ok(tasks)
}

/// Returns whether a file could not be read because its control group was removed.
#[must_use]
pub fn is_removed(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NODEV)
    )
}

fn directories_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries
        .filter(is_directory)
        .map(|entry| entry.path())
        .collect()
}

/// Returns the entries of a directory whose names are numbers.
fn numbers_in(directory: &Path) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn parents_are_found_behind_any_name() {
        assert_eq!(parent_of("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of("12 (a"), None);
    }

    /// Goal: threads and children belong to a process. Method: this process with a thread.
    #[test]
    fn threads_and_children_are_found() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || receiver.recv());
        let tasks = tasks_of_processes(&[own]);
        child.kill().unwrap();
        child.wait().unwrap();
        drop(sender);
        assert!(thread.join().unwrap().is_err());
        assert!(tasks.contains(&own) && tasks.contains(&child.id()));
        assert!(tasks.len() >= 3 && tasks.is_sorted(), "{tasks:?}");
        assert!(tasks_of_cgroup(Path::new("/proc/self")).is_err());
    }

    // Symptom: a child whose name was cut within a character was not recorded with its parent.
    #[test]
    fn children_with_names_that_are_not_utf_8_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(OsStr::from_bytes(b"cut-at-15-b-\xc3"));
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let mut child = std::process::Command::new(program)
            .arg0("sh")
            .args(["-c", "read line"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let tasks = tasks_of_processes(&[std::process::id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tasks.contains(&child.id()), "{tasks:?}");
    }

    // Symptom: a recording of a group ended when one below it was removed during a look.
    #[test]
    fn groups_that_are_removed_meanwhile_have_no_tasks() {
        let group = tempfile::tempdir().unwrap();
        let file = |directory: &Path| directory.join("cgroup.threads");
        fs::write(file(group.path()), "12\n7\n").unwrap();
        let [removed, below] = ["removed", "below"].map(|name| group.path().join(name));
        for directory in [&removed, &below] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(file(&below), "9\n").unwrap();
        assert_eq!(tasks_of_cgroup(group.path()).unwrap(), [7, 9, 12]);
        let gone = tasks_of_cgroup(&removed).unwrap_err();
        assert!(is_removed(&gone), "{gone}");
    }
}
