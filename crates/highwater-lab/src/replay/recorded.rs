//! The files of a recording that was replayed: which were accessed most, and how often their pages
//! were resident.

use serde::Serialize;

use super::report::ratio;
use crate::trace::Recording;

/// Files that a report names: those with the most misses. Chosen: more than a person reads.
const FILES_SHOWN: usize = 100;

/// A trace of `highwater record`, as its replay reports it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordingReport {
    /// Lines `name: value` that the recorder wrote: its version, the kernel, the target, the
    /// events, and what the trace lacks.
    pub about: Vec<String>,
    /// Events that the kernel's buffers lost: accesses that the trace lacks.
    pub lost_events: u64,
    /// Whether the recording came to its end, rather than being killed.
    pub is_complete: bool,
    /// Files that were accessed.
    pub nr_files: usize,
    /// Those of them whose path the recorder found.
    pub nr_named: usize,
    /// The 100 files with the most misses, most first.
    pub files: Vec<FileReport>,
}

/// One file's part of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileReport {
    /// Its path; device and inode, such as `8:1:4711`, if the recorder did not find it.
    pub name: String,
    /// Page accesses.
    pub page_accesses: u64,
    /// Accesses whose page was resident.
    pub hits: u64,
    /// `hits / page_accesses`.
    pub hit_ratio: f64,
}

/// Counts of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileTally {
    pub(super) page_accesses: u64,
    pub(super) hits: u64,
}

/// Counts of a tenant's files, by number; empty unless its trace is a recording.
#[derive(Clone, Debug, Default)]
pub(super) struct FileTallies(Vec<FileTally>);

impl FileTallies {
    pub(super) fn add(&mut self, file: usize, more: FileTally) {
        if self.0.len() <= file {
            self.0.resize(file + 1, FileTally::default());
        }
        let sum = &mut self.0[file];
        sum.page_accesses += more.page_accesses;
        sum.hits += more.hits;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (file, more) in other.0.iter().enumerate() {
            self.add(file, *more);
        }
    }
}

impl FileTally {
    const fn misses(self) -> u64 {
        self.page_accesses - self.hits
    }
}

impl RecordingReport {
    /// Describes a recording that was read, and the accesses that were counted.
    pub(super) fn new(recording: &Recording, tallies: &FileTallies) -> Self {
        let files = recording.files().iter().zip(&tallies.0);
        let mut files: Vec<_> = files.filter(|(_, tally)| tally.page_accesses > 0).collect();
        files.sort_by_key(|(_, tally)| (std::cmp::Reverse(tally.misses()), tally.hits));
        let nr_named = files.iter().filter(|(file, _)| !file.name.is_empty());
        let nr_named = nr_named.count();
        let shown = files.iter().take(FILES_SHOWN);
        Self {
            about: recording.about().lines().map(str::to_owned).collect(),
            lost_events: recording.lost_events(),
            is_complete: recording.is_complete(),
            nr_files: files.len(),
            nr_named,
            files: shown
                .map(|(file, tally)| FileReport {
                    name: match file.name.as_str() {
                        "" => format!("{}:{}:{}", file.id.major, file.id.minor, file.id.inode),
                        name => name.to_owned(),
                    },
                    page_accesses: tally.page_accesses,
                    hits: tally.hits,
                    hit_ratio: ratio(tally.hits, tally.page_accesses),
                })
                .collect(),
        }
    }

    /// Returns the value of a line of [`about`](Self::about).
    #[must_use]
    pub fn said(&self, name: &str) -> Option<&str> {
        let value = |line: &'_ String| line.split_once(": ").is_some_and(|(key, _)| key == name);
        let line = self.about.iter().find(|line| value(line))?;
        line.split_once(": ").map(|(_, value)| value)
    }
}
