//! The summary of a recording, for a person and as JSON.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use highwater::units::Bytes;
use highwater_host::printable;
use indicatif::HumanCount;
use serde_json::{Value, json};

use super::files::{Files, Traced};

/// Files that the summary for a person names.
const SHOWN: usize = 10;

/// Result of a recording.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) output: PathBuf,
    pub(super) elapsed: Duration,
    pub(super) events: u64,
    pub(super) unknown_events: u64,
    pub(super) late_events: u64,
    pub(super) lost_events: u64,
    /// Of each CPU.
    pub(super) buffer: Bytes,
    pub(super) records: u64,
    pub(super) page_accesses: u64,
    pub(super) trace_bytes: u64,
    pub(super) lacks: Vec<&'static str>,
    pub(super) recorded: Vec<String>,
    /// Most accesses first.
    pub(super) files: Vec<FileSummary>,
    pub(super) command_failure: Option<String>,
}

/// Accesses of one file.
#[derive(Debug)]
pub(super) struct FileSummary {
    /// Path, or device and inode.
    name: String,
    is_named: bool,
    read_pages: u64,
    written_pages: u64,
}

/// Sums up the files of a recording.
pub(super) fn of(files: &Files) -> Vec<FileSummary> {
    let mut all: Vec<FileSummary> = files.all().iter().map(of_file).collect();
    all.sort_by_key(|file| std::cmp::Reverse(file.read_pages + file.written_pages));
    all
}

fn of_file(file: &Traced) -> FileSummary {
    let key = file.key;
    let unnamed = || format!("{}:{}:{}", key.major, key.minor, key.inode);
    let path = file.path.as_deref().map(|path| path.display().to_string());
    FileSummary {
        is_named: path.is_some(),
        name: path.unwrap_or_else(unnamed),
        read_pages: file.read_pages,
        written_pages: file.written_pages,
    }
}

impl Summary {
    fn pages(&self) -> (u64, u64) {
        let reads = self.files.iter().map(|file| file.read_pages).sum();
        let writes = self.files.iter().map(|file| file.written_pages).sum();
        (reads, writes)
    }

    /// Returns the summary as JSON, in one line.
    pub(super) fn json(&self) -> Value {
        let (read_pages, written_pages) = self.pages();
        let files = self.files.iter().map(|file| {
            json!({
                "name": file.name,
                "is_named": file.is_named,
                "read_pages": file.read_pages,
                "written_pages": file.written_pages,
            })
        });
        json!({
            "output": self.output.display().to_string(),
            "elapsed_s": self.elapsed.as_secs_f64(),
            "events": self.events,
            "unknown_events": self.unknown_events,
            "late_events": self.late_events,
            "lost_events": self.lost_events,
            "records": self.records,
            "page_accesses": self.page_accesses,
            "read_pages": read_pages,
            "written_pages": written_pages,
            "trace_bytes": self.trace_bytes,
            "recorded_events": self.recorded,
            "lacks": self.lacks,
            "files": files.collect::<Vec<Value>>(),
            "command_failure": self.command_failure,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (read_pages, written_pages) = self.pages();
        let named = self.files.iter().filter(|file| file.is_named).count();
        let seconds = self.elapsed.as_secs_f64();
        writeln!(
            f,
            "{}: {} in {seconds:.1} s",
            self.output.display(),
            Bytes(self.trace_bytes)
        )?;
        writeln!(
            f,
            "events         {}, {} lost",
            HumanCount(self.events),
            HumanCount(self.lost_events)
        )?;
        writeln!(
            f,
            "page accesses  {}: {} reads, {} writes",
            HumanCount(self.page_accesses),
            HumanCount(read_pages),
            HumanCount(written_pages)
        )?;
        writeln!(f, "files          {}, {named} named", self.files.len())?;
        if !self.files.is_empty() {
            writeln!(f, "\n{:>12} {:>12}  file", "reads", "writes")?;
        }
        for file in self.files.iter().take(SHOWN) {
            let counts = [file.read_pages, file.written_pages].map(HumanCount);
            let [reads, writes] = counts.map(|count| count.to_string());
            let name = printable(&file.name);
            writeln!(f, "{reads:>12} {writes:>12}  {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Symptom: a file that another user named with escape sequences moved the cursor.
    #[test]
    fn names_of_files_have_no_control_characters() {
        let file = FileSummary {
            name: "/tmp/a\x1b[2J".to_owned(),
            is_named: true,
            read_pages: 1,
            written_pages: 0,
        };
        let summary = Summary {
            output: PathBuf::from("out.hwt"),
            elapsed: Duration::ZERO,
            events: 1,
            unknown_events: 0,
            late_events: 0,
            lost_events: 0,
            buffer: Bytes::mib(16),
            records: 1,
            page_accesses: 1,
            trace_bytes: 1,
            lacks: Vec::new(),
            recorded: Vec::new(),
            files: vec![file],
            command_failure: None,
        };
        let shown = summary.to_string();
        assert!(shown.contains("/tmp/a?[2J"), "{shown}");
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'));
        assert_eq!(summary.json()["files"][0]["name"], "/tmp/a\x1b[2J");
    }
}
