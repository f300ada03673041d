//! The accesses.

use std::io::Read;

use rand::distr::Distribution;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;

use super::columns::Kind;
use crate::Error;

/// PostgreSQL under pgbench; `traces/README.md` says how it was recorded.
const SHIPPED: &[u8] = include_bytes!("../../../../traces/pgbench.hwt.zst");
/// Skew of the popular pages.
const SKEW: f64 = 0.99;

/// A kind of accesses.
pub struct Workload {
    pub name: &'static str,
    /// Memory in units of `MEMORY_MIB`.
    pub memory_factor: u64,
    pattern: Pattern,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// Reads of popular pages, in no order.
    Zipf,
    /// The same, and every fifth access is an update, which becomes durable.
    Updates,
    /// Every fourth read is the next page of a scan, the others are of half as many pages as fit.
    Scan,
    /// The shipped trace, again and again: reads, and writes that need not be durable.
    Trace,
}

pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "Zipf 0.99, reads",
        memory_factor: 1,
        pattern: Pattern::Zipf,
    },
    Workload {
        name: "scan beside a hot set",
        memory_factor: 1,
        pattern: Pattern::Scan,
    },
    Workload {
        name: "pgbench trace",
        memory_factor: 1,
        pattern: Pattern::Trace,
    },
    Workload {
        name: "Zipf 0.99, 20 % durable updates",
        memory_factor: 4,
        pattern: Pattern::Updates,
    },
];

/// How a workload writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    Never,
    /// Some time later.
    Lazily,
    /// Durable in groups.
    Durably,
}

impl Workload {
    pub fn writes(&self) -> Writes {
        self.pattern.writes()
    }

    /// Returns whether columns of a kind take part: stores have no writes that are not durable.
    pub fn is_for(&self, kind: Kind) -> bool {
        kind == Kind::Pages || self.writes() != Writes::Lazily
    }
}

impl Pattern {
    fn writes(self) -> Writes {
        match self {
            Self::Zipf | Self::Scan => Writes::Never,
            Self::Trace => Writes::Lazily,
            Self::Updates => Writes::Durably,
        }
    }
}

pub fn by_name(name: &str) -> Result<&'static Workload, Error> {
    let found = WORKLOADS.iter().find(|workload| workload.name == name);
    found.ok_or_else(|| format!("no workload {name:?}").into())
}

/// One access of a page.
#[derive(Clone, Copy)]
pub struct PageAccess {
    pub page: u64,
    /// A cache line of it.
    pub line: usize,
    pub is_update: bool,
}

/// The accesses of a turn, without an end.
pub struct Accesses {
    pattern: Pattern,
    pages: u64,
    /// Pages that fit into memory.
    memory: u64,
    rng: SmallRng,
    zipf: Zipf<f64>,
    /// Accesses so far.
    count: u64,
    /// Small, because it counts as memory of each column.
    trace: Vec<TraceAccess>,
}

/// A page of the trace, times two, and one more if it is written.
#[derive(Clone, Copy)]
struct TraceAccess(u32);

impl Accesses {
    pub fn new(workload: &Workload, pages: u64, memory: u64, seed: u64) -> Result<Self, Error> {
        assert!(pages.is_power_of_two(), "FILE_MIB has to be a power of two");
        Ok(Self {
            pattern: workload.pattern,
            pages,
            memory,
            rng: SmallRng::seed_from_u64(seed),
            zipf: Zipf::new(pages as f64, SKEW)?,
            count: 0,
            trace: match workload.pattern {
                Pattern::Trace => shipped(pages)?,
                _ => Vec::new(),
            },
        })
    }

    /// Returns the page of a rank: neighbours in popularity are none in the file.
    fn scattered(&self, rank: u64) -> u64 {
        rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) & (self.pages - 1)
    }

    /// Returns how the workload writes.
    pub fn writes(&self) -> Writes {
        self.pattern.writes()
    }

    pub fn next(&mut self) -> PageAccess {
        let count = self.count;
        self.count += 1;
        let (page, is_update) = match self.pattern {
            Pattern::Trace => {
                let TraceAccess(word) = self.trace[(count % self.trace.len() as u64) as usize];
                (u64::from(word / 2), word % 2 == 1)
            }
            Pattern::Scan if count % 4 == 3 => (count / 4 % self.pages, false),
            Pattern::Scan => {
                let rank = self.rng.random_range(0..self.memory / 2);
                (self.scattered(rank), false)
            }
            Pattern::Zipf | Pattern::Updates => {
                let rank = self.zipf.sample(&mut self.rng) as u64 - 1;
                let is_update = self.pattern == Pattern::Updates && self.rng.random_ratio(1, 5);
                (self.scattered(rank), is_update)
            }
        };
        PageAccess {
            page,
            line: self.rng.random_range(0..super::columns::LINES),
            is_update,
        }
    }
}

/// Returns the shipped trace. The module `trace/compact.rs` of the lab describes its format; only
/// that checks foreign traces.
fn shipped(pages: u64) -> Result<Vec<TraceAccess>, Error> {
    let mut bytes = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(SHIPPED)?.read_to_end(&mut bytes)?;
    let (header, mut records) = bytes.split_at(24);
    assert_eq!(&header[..8], b"HWTRACE1", "the format of the shipped trace");
    let nr_accesses = u64::from_le_bytes(header[16..].try_into()?);
    let mut all = Vec::with_capacity(usize::try_from(nr_accesses)?);
    let mut end = 0;
    while !records.is_empty() {
        let (word, count) = (number(&mut records)?, number(&mut records)? + 1);
        let zigzag = word >> 1;
        let step = (zigzag >> 1).cast_signed() ^ -((zigzag & 1).cast_signed());
        let first = end + step;
        end = first + count.cast_signed();
        for page in first..end {
            let page = u32::try_from(page.cast_unsigned() % pages)?;
            all.push(TraceAccess(2 * page + u32::from(word & 1 == 1)));
        }
    }
    assert_eq!(all.len() as u64, nr_accesses, "the trace is whole");
    Ok(all)
}

/// Reads a LEB128 number.
fn number(bytes: &mut &[u8]) -> Result<u64, Error> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or("the trace ends in a number")?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err("a number of the trace is too long".into())
}
