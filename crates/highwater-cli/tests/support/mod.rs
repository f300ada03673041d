//! Helpers of the tests of the built program: running it, and traces for it.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fmt::Display;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

use fastrand::Rng;
use signal_hook::consts::{SIGHUP, SIGINT};

/// Smaller than the traces here, so that reclaim has work.
pub(crate) const CAPACITY: &str = "8MiB";

/// The seed of a test: `SEED` from the environment, or a fixed one.
pub(crate) fn seed() -> u64 {
    std::env::var("SEED").map_or(20, |seed| seed.parse().unwrap())
}

/// Returns a mask of signals in `/proc/PROCESS/status`, signal 1 in the lowest bit.
pub(crate) fn signals_of(process: impl Display, mask: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix(mask));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap()
}

/// Has programs that are started from now on not ignore the signals that end a run, also where the
/// tests do, as under `nohup`: a signal that has a handler is not ignored after `exec`.
pub(crate) fn heed_signals() {
    static HEEDED: Once = Once::new();
    HEEDED.call_once(|| {
        let ignored = signals_of("self", "SigIgn:");
        for signal in [SIGHUP, SIGINT] {
            if ignored >> (signal - 1) & 1 == 1 {
                signal_hook::flag::register(signal, Arc::<AtomicBool>::default()).unwrap();
            }
        }
    });
}

pub(crate) fn highwater(arguments: &[&str]) -> Command {
    heed_signals();
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(arguments);
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    highwater(arguments).stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A directory with traces in it and an empty one for data files.
pub(crate) struct Bench {
    root: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("data")).unwrap();
        Self { root }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.root
            .path()
            .join(name)
            .into_os_string()
            .into_string()
            .unwrap()
    }

    pub(crate) fn dir(&self) -> String {
        self.path("data")
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// A `csv` trace of reads and writes of keys, larger than the smallest capacity.
    pub(crate) fn mixed_trace(&self, name: &str, seed: u64, requests: usize) -> String {
        let mut rng = Rng::with_seed(seed);
        let mut trace = String::from(CSV_HEADER);
        for _ in 0..requests {
            trace += &csv_line(&mut rng);
        }
        self.write(name, trace)
    }

    /// Returns the entries of the data directory.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

pub(crate) const CSV_HEADER: &str = "time,key,size,op\n";

/// A request for one of 6,000 keys of one page or two, the low ones more often; a third are writes.
pub(crate) fn csv_line(rng: &mut Rng) -> String {
    let key = rng.u32(..6_000).min(rng.u32(..6_000));
    let size = if key.is_multiple_of(5) { 8_000 } else { 100 };
    let op = if rng.u32(..3) == 0 { "write" } else { "read" };
    format!("0,{key},{size},{op}\n")
}
