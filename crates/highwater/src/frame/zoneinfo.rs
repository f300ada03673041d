//! A pool as `/proc/zoneinfo` shows one: watermarks, and each CPU's list.

use std::fmt;

use super::{PcpCounters, Tunables, Watermarks};
use crate::units::{CpuId, Pages};

/// A pool's watermarks, lists and knobs. Each list is of its own moment.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Zoneinfo {
    /// Frames in the zones.
    pub free: Pages,
    /// Frames in all.
    pub managed: Pages,
    /// When reclaim begins and ends.
    pub watermarks: Watermarks,
    /// Whether lists keep little because pages are being reclaimed.
    pub reclaim_active: bool,
    /// Whether lists stopped to grow because an allocation saw less than `high` free.
    pub below_high: bool,
    /// What is set.
    pub tunables: Tunables,
    /// What lists did.
    pub counters: PcpCounters,
    /// One for each CPU, and at last, where there is one, the list of threads that are on no known
    /// CPU.
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
    /// How many it may hold now.
    pub high: u32,
    /// The least that `high` can be.
    pub high_min: u32,
    /// The most that `high` can be.
    pub high_max: u32,
    /// Frames moved at once, at least.
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
    /// A line.
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
    /// Each number by its name; the first five as the kernel has them.
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
