//! The directory of a run's files, and the promise that none of them outlives the run.
//!
//! Invariant: inside the directory that the user names, a run creates and removes only entries
//! called `highwater-replay-<pid>[-<n>]`, and only a process that holds an exclusive lock (`flock`)
//! on an entry removes it.
//!
//! Protocol. A run creates a fresh directory and locks it. A sweep at the start of the next run
//! tries to lock every such directory and removes those it locks: their owners are dead, since the
//! kernel drops a lock with its process. Between creation and locking, a sweep can take the fresh
//! directory for a leftover; so after locking, the owner checks that the path still leads to the
//! locked directory, and starts over with the next name if not. The sweep makes the same check
//! before it removes.
//!
//! Files are unlinked as soon as they are open, and [`RunDir::detach`] removes the empty directory
//! once all of them are: from then on nothing is left on disk even after SIGKILL, and the kernel
//! frees the space. On file systems that keep unlinked files under another name, [`Drop`] and the
//! sweep remove the rest.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;

/// First part of the name of every directory that a run makes.
const PREFIX: &str = "highwater-replay-";

/// Names tried before giving up: one process does not have as many runs at a time.
const NAMES_MAX: u32 = 10_000;

/// A fresh directory, locked by this run, removed with everything in it when dropped.
#[derive(Debug)]
pub(super) struct RunDir {
    path: PathBuf,
    /// Open for its lock, which lasts as long as the file is open.
    lock: File,
}

impl RunDir {
    /// Removes leftovers of dead runs under `parent`, then creates a directory there.
    ///
    /// # Errors
    ///
    /// When `parent` is not a writable directory. Leftovers that cannot be removed, for example
    /// another user's, are not an error.
    pub(super) fn create(parent: &Path) -> io::Result<Self> {
        sweep(parent)?;
        let pid = process::id();
        for attempt in 0..NAMES_MAX {
            let name = match attempt {
                0 => format!("{PREFIX}{pid}"),
                n => format!("{PREFIX}{pid}-{n}"),
            };
            let path = parent.join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(e),
            }
            match try_own(&path) {
                Ok(Some(lock)) => return Ok(Self { path, lock }),
                // A sweep took it for a leftover and removes it; this run takes the next name.
                Ok(None) => {}
                Err(e) => {
                    // Best effort: the error that counts is `e`.
                    let _ = fs::remove_dir(&path);
                    return Err(e);
                }
            }
        }
        Err(io::Error::other(format!(
            "{NAMES_MAX} directories named {PREFIX}{pid}-* exist already"
        )))
    }

    /// Creates a file for reading and writing, and unlinks it at once if the file system allows it
    /// for open files.
    ///
    /// # Errors
    ///
    /// When the file cannot be created.
    pub(super) fn anonymous_file(&self, name: &str) -> io::Result<File> {
        let path = self.path.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        // If that fails, the file is removed with the directory.
        let _ = fs::remove_file(&path);
        Ok(file)
    }

    /// Removes the directory if it is empty, which it is when every file in it was unlinked.
    /// Returns whether anything is left to remove.
    pub(super) fn detach(&self) -> bool {
        fs::remove_dir(&self.path).is_err()
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if still_leads_to(&self.path, &self.lock).unwrap_or(false) {
            // A destructor cannot report an error; the next run's sweep tries again.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Opens and locks the directory; `None` if it is gone or another process has the lock.
fn try_own(path: &Path) -> io::Result<Option<File>> {
    let lock = match File::open(path) {
        Ok(lock) => lock,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Ok(None),
        Err(fs::TryLockError::Error(e)) => return Err(e),
    }
    Ok(still_leads_to(path, &lock)?.then_some(lock))
}

/// Returns whether `path` is the directory behind `lock`: neither removed nor recreated.
fn still_leads_to(path: &Path, lock: &File) -> io::Result<bool> {
    let locked = lock.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(now) => Ok(now.is_dir() && (now.dev(), now.ino()) == (locked.dev(), locked.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes the directories of dead runs.
fn sweep(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_directory || !entry.file_name().to_str().is_some_and(is_run_name) {
            continue;
        }
        if let Ok(Some(_lock)) = try_own(&entry.path()) {
            // Another user's leftover stays, and does not keep this run from starting.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Returns whether [`RunDir::create`] may give `name`: the prefix, a pid, and perhaps a number.
fn is_run_name(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix(PREFIX)
        .is_some_and(|rest| match rest.split_once('-') {
            Some((pid, number)) => is_number(pid) && is_number(number),
            None => is_number(rest),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::thread;

    fn entries(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn nothing_has_a_name_once_detached() {
        let parent = tempfile::tempdir().unwrap();
        let run = RunDir::create(parent.path()).unwrap();
        let mut file = run.anonymous_file("data").unwrap();
        file.write_all(b"x").unwrap();
        assert!(!run.detach());
        assert!(entries(parent.path()).is_empty());
        drop(run);
        assert!(entries(parent.path()).is_empty());
    }

    #[test]
    fn a_run_removes_its_directory_with_what_is_in_it() {
        let parent = tempfile::tempdir().unwrap();
        let run = RunDir::create(parent.path()).unwrap();
        fs::write(run.path.join("left"), b"x").unwrap();
        assert!(run.detach(), "a file with a name keeps the directory");
        drop(run);
        assert!(entries(parent.path()).is_empty());
    }

    /// Goal: a sweep removes leftovers of dead runs and nothing else. Method: put leftovers, a live
    /// run and unrelated entries side by side, then start a run.
    #[test]
    fn only_leftovers_of_dead_runs_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let live = RunDir::create(parent.path()).unwrap();
        let dead = parent.path().join("highwater-replay-4194304-2");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("data"), b"x").unwrap();
        let others = [
            "highwater-replay-",
            "highwater-replay-x",
            "notes",
            "highwater-replay-1-",
        ];
        for name in others {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        fs::write(parent.path().join("highwater-replay-12"), b"a file").unwrap();
        let next = RunDir::create(parent.path()).unwrap();
        assert!(live.path.is_dir() && next.path.is_dir() && !dead.exists());
        drop((live, next));
        let mut left = vec!["highwater-replay-12".to_owned()];
        left.extend(others.map(str::to_owned));
        left.sort();
        assert_eq!(entries(parent.path()), left);
    }

    /// Goal: a sweep never takes a directory from a run that is just starting. Method: many runs
    /// start and end at once in one parent; each must find its own directory in place.
    #[test]
    fn runs_that_start_together_keep_their_directories() {
        let parent = tempfile::tempdir().unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let run = RunDir::create(parent.path()).unwrap();
                        let file = run.path.join("mine");
                        fs::write(&file, b"x").unwrap();
                        thread::yield_now();
                        assert!(file.is_file());
                    }
                });
            }
        });
        assert!(entries(parent.path()).is_empty());
    }
}
