//! Uniform random reads of pages of a file that is larger than memory, past the kernel's cache, by
//! a bare io_uring loop and by Highwater: reads in a second, and ratios within one run.
//!
//! The columns take turns in each round, so that a disturbance hits all of them.

mod bare;
mod highwater_reads;

use std::fs;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Error, median, number};

const PAGE: usize = 4096;
/// Reads in flight.
const DEPTH: usize = 64;

/// A way to read pages.
pub trait Column {
    /// Its name in the table.
    fn name(&self) -> &'static str;
    /// Reads random pages until the deadline; returns how many.
    fn read_until(&mut self, deadline: Instant, rng: &mut fastrand::Rng) -> Result<u64, Error>;
}

/// Measures the columns on a file in `dir`.
pub fn run(dir: &Path) -> Result<(), Error> {
    let pages = number("FILE_MIB", 4096)? * 256;
    let memory = number("MEMORY_MIB", 256)?;
    let turn = Duration::from_secs(number("SECONDS", 3)?);
    let rounds = number("ROUNDS", 5)?;

    let file = tempfile::Builder::new()
        .prefix("larger-than-memory")
        .tempfile_in(dir)?;
    write_pages(file.path(), pages)?;
    let mut columns: Vec<Box<dyn Column>> = vec![
        Box::new(bare::Bare::new(direct(file.path())?, pages)?),
        Box::new(highwater_reads::Blocking::new(file.path(), memory)?),
        Box::new(highwater_reads::InFlight::new(file.path(), memory)?),
    ];
    let mut rates = vec![Vec::new(); columns.len()];
    for round in 0..=rounds {
        for (column, rates) in columns.iter_mut().zip(&mut rates) {
            let mut rng = fastrand::Rng::with_seed(round);
            let begun = Instant::now();
            let reads = column.read_until(begun + turn, &mut rng)?;
            let rate = reads as f64 / begun.elapsed().as_secs_f64();
            // The first round fills the memory.
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    let names = columns.iter().map(|column| column.name());
    let medians: Vec<f64> = rates.iter_mut().map(|rates| median(rates)).collect();
    println!(
        "{} MiB through {memory} MiB, uniform random reads, median of {rounds}:",
        pages / 256
    );
    for ((name, rates), rate) in names.zip(&rates).zip(&medians) {
        let (least, most) = (rates[0], rates[rates.len() - 1]);
        println!("{name:32} {rate:9.0} reads/s ({least:.0} to {most:.0})");
    }
    println!(
        "in flight / bare io_uring: {:.2} (goal: 0.90)",
        medians[2] / medians[0]
    );
    println!(
        "in flight / blocking:      {:.2} (goal: 3.50)",
        medians[2] / medians[1]
    );
    Ok(())
}

/// Opens a file for reads past the kernel's cache.
fn direct(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    Ok(options.read(true).custom_flags(libc::O_DIRECT).open(path)?)
}

/// Writes pages that begin with their number.
fn write_pages(path: &Path, pages: u64) -> Result<(), Error> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    let mut chunk = vec![0; 256 * PAGE];
    for first in (0..pages).step_by(256) {
        for (number, page) in (first..).zip(chunk.chunks_exact_mut(PAGE)) {
            page[..8].copy_from_slice(&number.to_ne_bytes());
        }
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Checks the number at the beginning of a page.
pub fn check(page: u64, bytes: &[u8]) {
    assert_eq!(bytes[..8], page.to_ne_bytes(), "page {page}");
}
