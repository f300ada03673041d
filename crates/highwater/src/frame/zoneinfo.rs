//! The state of a pool as `/proc/zoneinfo` shows it: watermarks, and each CPU's list (pcp).

use std::fmt;

use super::{PcpCounters, Tunables, Watermarks};
use crate::units::{CpuId, Pages};

/// A pool's watermarks, lists and tunables. Each list is read at its own moment.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Zoneinfo {
    /// Frames in the zones.
    pub free: Pages,
    /// All frames of the pool.
    pub managed: Pages,
    /// Thresholds at which reclaim begins and ends.
    pub watermarks: Watermarks,
    /// Whether lists keep few frames because pages are being reclaimed.
    pub reclaim_active: bool,
    /// Whether lists stopped growing because an allocation saw less than `high` free.
    pub below_high: bool,
    /// The current tunables.
    pub tunables: Tunables,
    /// Event counts of the lists.
    pub counters: PcpCounters,
    /// One list for each CPU and, last, where there is one, the list of threads that are on no
    /// known CPU.
    pub lists: Vec<ListInfo>,
}

/// One CPU's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ListInfo {
    /// The CPU; none for threads that are on no known one.
    pub cpu: Option<CpuId>,
    /// Frames in the list, those of blocks included.
    pub count: u32,
    /// Current capacity.
    pub high: u32,
    /// Lower bound of `high`.
    pub high_min: u32,
    /// Upper bound of `high`.
    pub high_max: u32,
    /// Minimum number of frames moved at once.
    pub batch: u32,
    /// Frees in a row; an allocation halves it.
    pub free_run: u32,
    /// How often the next refill doubles.
    pub grow: u32,
}

impl fmt::Display for Zoneinfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Watermarks { min, low, high } = self.watermarks;
        writeln!(f, "Node 0, zone   Normal")?;
        writeln!(f, "  pages free     {}", self.free.0)?;
        for (name, pages) in [
            ("min", min),
            ("low", low),
            ("high", high),
            ("managed", self.managed),
        ] {
            writeln!(f, "        {name:<8} {}", pages.0)?;
        }
        writeln!(f, "  reclaim_active: {}", u8::from(self.reclaim_active))?;
        writeln!(f, "  below_high:     {}", u8::from(self.below_high))?;
        writeln!(f, "  pagesets")?;
        for list in &self.lists {
            match list.cpu {
                Some(CpuId(cpu)) => writeln!(f, "    cpu: {cpu}")?,
                None => writeln!(f, "    cpu: none")?,
            }
            for (name, value) in list.named() {
                writeln!(f, "              {:<9} {value}", format!("{name}:"))?;
            }
        }
        for (name, value) in self.counters.named() {
            writeln!(f, "  pcp_{name} {value}")?;
        }
        write!(f, "{}", self.tunables)
    }
}

impl fmt::Display for ListInfo {
    /// Writes one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cpu {
            Some(CpuId(cpu)) => write!(f, "cpu {cpu}:")?,
            None => write!(f, "cpu none:")?,
        }
        let mut separator = "";
        for (name, value) in self.named() {
            write!(f, "{separator} {name} {value}")?;
            separator = ",";
        }
        Ok(())
    }
}

impl ListInfo {
    /// Returns each number with its name; the first five have the kernel's names.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u32); 7] {
        [
            ("count", self.count),
            ("high", self.high),
            ("batch", self.batch),
            ("high_min", self.high_min),
            ("high_max", self.high_max),
            ("free_run", self.free_run),
            ("grow", self.grow),
        ]
    }
}
