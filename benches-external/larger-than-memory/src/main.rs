//! Data larger than memory.
//!
//! | command | measures |
//! |---|---|
//! | `cargo run --release -- ring [DIR]` | reads in flight on one thread, beside a bare io_uring loop and blocking faults |
//! | `cargo run --release -- peers [DIR]` | Highwater beside `pread`, `mmap`, LMDB, redb and vmcache (see `vmcache/build`), each in a memory cgroup of the same size; needs root |
//!
//! `DIR` is on the file system to measure, the directory for temporary files by default. Files are
//! deleted at the end. Sizes and times are environment variables: `FILE_MIB`, `MEMORY_MIB`,
//! `SECONDS`, `ROUNDS`; for `peers` also `IN_FLIGHT`, `WORKLOADS` and `COLUMNS` (parts of names,
//! with commas). Use an idle machine.

mod peers;
mod ring;

use std::env;
use std::path::PathBuf;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let dir = || arguments.get(1).map_or_else(env::temp_dir, PathBuf::from);
    match arguments.first().map(String::as_str) {
        Some("ring") => ring::run(&dir()),
        Some("peers") => peers::run(&dir()),
        Some("turn") => peers::turn(&arguments[1..]),
        _ => Err("usage: ring [DIR] | peers [DIR]".into()),
    }
}

/// Returns a number from the environment.
fn number(name: &str, default: u64) -> Result<u64, Error> {
    env::var(name).map_or(Ok(default), |it| {
        it.parse()
            .map_err(|error| format!("{name}={it}: {error}").into())
    })
}

/// Sorts the numbers and returns the one in the middle.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
