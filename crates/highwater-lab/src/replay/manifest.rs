//! The manifest of a run: everything besides the program that a replay depends on, so that a report
//! can be identified and the run repeated.

use std::collections::BTreeMap;
use std::fs;

use highwater::frame::Tunables;
use highwater::topology::Topology;
use serde::Serialize;

use super::ReplayConfig;
use super::recorded::{FileTallies, RecordingReport};
use crate::trace::{Digest, TraceReader};

/// The configuration of a run, and the machine it ran on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Manifest {
    /// The program's version.
    pub version: &'static str,
    /// The eviction policy.
    pub policy: String,
    /// The back end of the frame pool.
    pub backend: String,
    /// The knobs of the per-CPU lists of frames, by name.
    pub knobs: BTreeMap<&'static str, i64>,
    /// The longest readahead window, in pages.
    pub readahead_pages: u64,
    /// The random seed.
    pub seed: u64,
    /// Threads that accessed pages.
    pub threads: usize,
    /// Reads in flight on each thread.
    pub in_flight: usize,
    /// The machine it ran on.
    pub machine: Machine,
}

/// A machine, as far as figures depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// CPUs that were online.
    pub cpus_online: usize,
    /// The model of the first CPU; null where the system does not name it.
    pub cpu_model: Option<String>,
    /// Memory of the machine; null where the system does not say.
    pub memory_bytes: Option<u64>,
    /// The kernel's release, as `uname -r` prints it; null where the system does not say.
    pub kernel_release: Option<String>,
    /// The instruction set that the program was built for.
    pub architecture: &'static str,
}

/// A trace that was replayed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceReport {
    /// Its path, as given.
    pub name: String,
    /// The format of its records.
    pub format: String,
    /// Bytes of a block of an `arc` trace; null for other formats.
    pub block_bytes: Option<u32>,
    /// Columns of a `csv` trace, as `--columns` takes them; null for other formats.
    pub columns: Option<String>,
    /// How it is stored: `plain`, `zstd`, `gzip` or `xz`.
    pub compression: String,
    /// Its length as stored; null where the reader gave up before the end.
    pub stored_bytes: Option<u64>,
    /// SHA-256 of the stored bytes; null where the reader gave up before the end.
    pub sha256: Option<Digest>,
    /// Records that were skipped because they are bad.
    pub bad_records: u64,
    /// Stored bytes after which the stream is cut short or corrupt, so that the rest was skipped;
    /// null where it was read to its end.
    pub cut_after_bytes: Option<u64>,
    /// Records that touch no page: a count or a length of zero.
    pub empty_records: u64,
    /// The files of a trace of `highwater record`; null for other traces.
    pub recording: Option<RecordingReport>,
}

impl Manifest {
    pub(super) fn new(config: &ReplayConfig) -> Self {
        let knob = |name| config.tunables.get(name).map(|value| (name, value));
        Self {
            // One version is that of the whole workspace.
            version: env!("CARGO_PKG_VERSION"),
            policy: config.policy.to_string(),
            backend: config.backend.unwrap_or_default().to_string(),
            knobs: Tunables::NAMES.into_iter().filter_map(knob).collect(),
            readahead_pages: config.readahead.0,
            seed: config.seed,
            threads: config.threads,
            in_flight: config.in_flight,
            machine: Machine::detect(),
        }
    }
}

impl Machine {
    /// Detects the machine that this program runs on.
    #[must_use]
    pub fn detect() -> Self {
        let read = |path| fs::read_to_string(path).ok();
        let cpus = read("/proc/cpuinfo").unwrap_or_default();
        let memory = read("/proc/meminfo").unwrap_or_default();
        let release = read("/proc/sys/kernel/osrelease");
        Self {
            cpus_online: Topology::detect().nr_online(),
            cpu_model: field_of(&cpus, "model name").map(str::to_owned),
            memory_bytes: bytes_of(&memory, "MemTotal"),
            kernel_release: release.map(|release| release.trim().to_owned()),
            architecture: std::env::consts::ARCH,
        }
    }
}

/// Returns the value of the first line `NAME: value`.
fn field_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(field, _)| field.trim() == name)?;
    Some(value.trim())
}

/// Returns an amount of memory in the text of `/proc/meminfo`.
pub(crate) fn bytes_of(meminfo: &str, name: &str) -> Option<u64> {
    let kib: u64 = field_of(meminfo, name)?.strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

impl TraceReport {
    /// Describes a trace that was read, and the accesses to the files that it names.
    pub(super) fn new(trace: &TraceReader, files: &FileTallies) -> Self {
        let (sha256, stored_bytes) = trace.digest().unzip();
        Self {
            name: trace.name().to_string_lossy().into_owned(),
            format: trace.format().to_string(),
            block_bytes: trace.block_size(),
            columns: trace.columns().map(|columns| columns.to_string()),
            compression: trace.compression().to_string(),
            stored_bytes,
            sha256,
            bad_records: trace.skipped().records,
            cut_after_bytes: trace.skipped().cut_after,
            empty_records: trace.empty_records(),
            recording: trace
                .recording()
                .map(|recording| RecordingReport::new(recording, files)),
        }
    }
}
