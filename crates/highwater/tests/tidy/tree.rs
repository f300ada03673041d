//! The input of the rules: the text files of the workspace, or of a planted one held in memory.

use std::fmt;
use std::fs;
use std::path::Path;

use super::lexer::{self, Lexed};

/// The core crate, which has the layers.
pub(crate) const CORE: &str = "crates/highwater/";

/// A text file. Its path is relative to the workspace, with slashes.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
    /// For Rust files.
    pub(crate) lexed: Option<Lexed>,
}

/// The text files of a workspace, in the order of their paths.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Counted from 1; 0 for a file as a whole.
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

impl File {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            lexed: path.ends_with(".rs").then(|| lexer::lex(text)),
        }
    }

    pub(crate) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding {
            path: self.path.clone(),
            line,
            message: message.into(),
        }
    }

    /// Returns the prose of the file: the comments of a Rust file, everything of another one.
    pub(crate) fn prose(&self) -> &str {
        self.lexed
            .as_ref()
            .map_or(self.text.as_str(), |lexed| lexed.comments.as_str())
    }

    /// Returns the path below the core's `src/`, for the core's library.
    pub(crate) fn in_core_src(&self) -> Option<&str> {
        self.path.strip_prefix(CORE)?.strip_prefix("src/")
    }

    /// Returns the part of the core's `src/` that the file belongs to: `frame` for
    /// `frame/buddy.rs`.
    pub(crate) fn core_module(&self) -> Option<&str> {
        let below = self.in_core_src()?;
        let end = below.find('/').or_else(|| below.find(".rs"))?;
        Some(&below[..end])
    }

    /// Returns whether the file holds only tests: unit tests and models in `src/`, or `tests/`.
    pub(crate) fn is_test_file(&self) -> bool {
        let name = self.path.rsplit('/').next();
        let has_test_name =
            |name: &str| matches!(name, "tests.rs" | "loom.rs") || name.ends_with("_tests.rs");
        name.is_some_and(has_test_name) || self.path.contains("/tests/")
    }
}

impl Tree {
    /// Creates a tree held in memory.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Self {
            files: files
                .iter()
                .map(|(path, text)| File::new(path, text))
                .collect(),
        }
    }

    /// Loads every text file under `root`. Skips version control and build directories, the latter
    /// by the tag that cargo puts into them.
    pub(crate) fn load(root: &Path) -> Self {
        let mut files = Vec::new();
        load_into(root, "", &mut files);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files }
    }

    /// Returns the Rust files with their lexed text.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&File, &Lexed)> {
        self.files
            .iter()
            .filter_map(|file| file.lexed.as_ref().map(|lexed| (file, lexed)))
    }

    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns whether `path` is a file of the tree or a directory that holds one.
    pub(crate) fn exists(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.iter().any(|file| {
            file.path
                .strip_prefix(path)
                .is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with('/'))
        })
    }
}

fn load_into(directory: &Path, prefix: &str, files: &mut Vec<File>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            let skipped =
                name == ".git" || name == "target" || entry.path().join("CACHEDIR.TAG").exists();
            if !skipped {
                load_into(&entry.path(), &format!("{path}/"), files);
            }
        } else if kind.is_file() {
            // A file that is not UTF-8 is no text: it keeps its name, so that links to it resolve.
            let text = String::from_utf8(fs::read(entry.path()).unwrap()).unwrap_or_default();
            files.push(File::new(&path, &text));
        }
    }
}
