//! The file system that is read: the machine's own, or a recorded one below a directory.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::finding::printable;
use crate::parse::ParseError;

/// Bytes of a file that are read at most: far more than `/proc` of any machine shows.
const FILE_MAX_BYTES: u64 = 64 << 20;

/// Magic number of procfs in `statfs(2)`.
const PROC_MAGIC: i128 = 0x9fa0;

/// The root of a file system with `proc` and `sys` in it.
#[derive(Clone, Debug)]
pub struct Root {
    dir: PathBuf,
    is_live: bool,
}

/// Something that a measurement needs and this machine does not give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{need}")]
pub struct Missing {
    /// Continues the sentence "not measurable here: ...".
    pub need: String,
}

impl Missing {
    /// Creates the reason `need`, which continues "not measurable here: ...". It may hold paths and
    /// content with control characters, which are replaced.
    pub fn new(need: impl Into<String>) -> Self {
        Self {
            need: printable(&need.into()),
        }
    }

    fn file(path: &str, error: &io::Error) -> Self {
        Self::new(match error.kind() {
            io::ErrorKind::NotFound => format!("needs /{path}, which is not there"),
            io::ErrorKind::PermissionDenied => format!("needs the right to read /{path}"),
            _ => format!("needs /{path}, which cannot be read: {error}"),
        })
    }
}

/// A directory that is no root of a machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// The directory has no `proc` that can be listed.
    #[error("{dir}/proc cannot be listed: {source}; --root takes a directory with proc and sys")]
    NoProc {
        /// The directory.
        dir: PathBuf,
        /// What listing it returned.
        source: io::Error,
    },
    /// `meta.json` of a recorded machine is wrong.
    #[error("{path}: {message}")]
    Meta {
        /// The file.
        path: PathBuf,
        /// Says what is wrong.
        message: String,
    },
}

impl Root {
    /// Takes the file system below `dir`, which is `/` for the machine itself.
    ///
    /// It is live if procfs is mounted at its `proc`, and recorded otherwise.
    ///
    /// # Errors
    ///
    /// When `dir` has no directory `proc` that can be listed.
    pub fn at(dir: impl Into<PathBuf>) -> Result<Self, RootError> {
        let dir = dir.into();
        let proc = dir.join("proc");
        if let Err(source) = fs::read_dir(&proc) {
            return Err(RootError::NoProc { dir, source });
        }
        let kind = rustix::fs::statfs(&proc).map(|found| i128::from(found.f_type));
        let is_live = kind == Ok(PROC_MAGIC);
        Ok(Self { dir, is_live })
    }

    /// Returns whether the files change with the machine, so that times and rates can be measured.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// Returns where the file `path`, relative to the root, lies on this machine.
    #[must_use]
    pub fn path_of(&self, path: &str) -> PathBuf {
        self.dir.join(path.trim_start_matches('/'))
    }

    /// Reads the file `path`, relative to the root.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn read_bytes(&self, path: &str) -> Result<Vec<u8>, Missing> {
        let missing = |e: io::Error| Missing::file(path, &e);
        let mut bytes = Vec::with_capacity(4096);
        let file = self.open(path)?;
        let mut part = file.take(FILE_MAX_BYTES);
        part.read_to_end(&mut bytes).map_err(missing)?;
        Ok(bytes)
    }

    /// Reads a file as text; bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn read(&self, path: &str) -> Result<String, Missing> {
        let bytes = self.read_bytes(path)?;
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
        })
    }

    /// Reads and parses a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or the parser refuses it: the reason names file and line.
    pub fn parse<T>(
        &self,
        path: &str,
        parser: fn(&str) -> Result<T, ParseError>,
    ) -> Result<T, Missing> {
        let text = self.read(path)?;
        parser(&text).map_err(|e| Missing::new(format!("cannot parse /{path}, {e}")))
    }

    /// Opens a file for repeated reads.
    ///
    /// # Errors
    ///
    /// When it cannot be opened, or is no regular file, from which a read might never return.
    pub fn open(&self, path: &str) -> Result<File, Missing> {
        let missing = |e: io::Error| Missing::file(path, &e);
        let at = self.path_of(path);
        if !self.is_live && !fs::metadata(&at).map_err(missing)?.is_file() {
            return Err(Missing::new(format!(
                "needs /{path}, which is no regular file"
            )));
        }
        File::open(at).map_err(missing)
    }

    /// Returns the names of the entries of a directory, sorted.
    ///
    /// # Errors
    ///
    /// When it cannot be listed.
    pub fn entries(&self, path: &str) -> Result<Vec<String>, Missing> {
        let entries = fs::read_dir(self.path_of(path)).map_err(|e| Missing::file(path, &e))?;
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        let mut names: Vec<String> = entries.filter_map(name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the names of the directories in a directory, sorted. No symbolic link is followed.
    ///
    /// # Errors
    ///
    /// When it cannot be listed.
    pub fn directories(&self, path: &str) -> Result<Vec<String>, Missing> {
        let entries = fs::read_dir(self.path_of(path)).map_err(|e| Missing::file(path, &e))?;
        let name = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            entry.file_type().ok()?.is_dir().then_some(())?;
            entry.file_name().into_string().ok()
        };
        let mut names: Vec<String> = entries.filter_map(name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The directory itself.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn the_machine_is_live_and_a_directory_is_not() {
        let tree = tempfile::tempdir().unwrap();
        assert!(Root::at(tree.path()).is_err());
        fs::create_dir(tree.path().join("proc")).unwrap();
        assert!(!Root::at(tree.path()).unwrap().is_live());
        assert!(Root::at("/").unwrap().is_live());
    }

    #[test]
    fn reasons_name_file_and_line() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir(tree.path().join("proc")).unwrap();
        fs::write(tree.path().join("proc/vmstat"), "a 1\nb x\n").unwrap();
        let root = Root::at(tree.path()).unwrap();
        let error = root.parse("proc/vmstat", parse::counters).unwrap_err();
        assert!(error.need.contains("/proc/vmstat, line 2"), "{error}");
        let error = root.read("proc/zoneinfo").unwrap_err();
        assert_eq!(error.need, "needs /proc/zoneinfo, which is not there");
        assert!(root.read("proc").is_err());
    }
}
