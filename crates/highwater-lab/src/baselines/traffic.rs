//! Traffic of shared cache lines: write counts, and a modelled cost by the distance of each
//! transfer.

use highwater::topology::{Sharing, Topology};
use highwater::units::CpuId;

/// A cache line that several CPUs write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its level; level 0 has the lines that the fewest CPUs share.
    pub level: usize,
    /// Its index on the level.
    pub index: usize,
}

/// Receives each read-modify-write of a shared line.
pub trait Traffic {
    /// `cpu` has read, modified and written `line`.
    fn wrote(&mut self, line: Line, cpu: CpuId);
}

/// Ignores all traffic: for measuring time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Untracked;

impl Traffic for Untracked {
    #[inline]
    fn wrote(&mut self, _line: Line, _cpu: CpuId) {}
}

/// Cost of fetching a line that another CPU wrote last.
///
/// A model, in nanoseconds: for comparing patterns of sharing, not for prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferCosts {
    /// From another thread of the same core.
    pub core_ns: u64,
    /// From another core behind the same last-level cache.
    pub llc_ns: u64,
    /// From another last-level cache of the same socket.
    pub socket_ns: u64,
    /// From another socket.
    pub machine_ns: u64,
}

impl Default for TransferCosts {
    /// Chosen: the order of magnitude on two-socket servers of many small caches.
    fn default() -> Self {
        Self {
            core_ns: 0,
            llc_ns: 20,
            socket_ns: 60,
            machine_ns: 150,
        }
    }
}

impl TransferCosts {
    const fn of(self, sharing: Sharing) -> u64 {
        match sharing {
            Sharing::Cpu => 0,
            Sharing::Core => self.core_ns,
            Sharing::Llc => self.llc_ns,
            Sharing::Socket => self.socket_ns,
            Sharing::Machine => self.machine_ns,
        }
    }
}

/// No CPU has written the line yet.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Level {
    writes: u64,
    transfers: u64,
    transfer_ns: u64,
    /// The last writer of each line.
    writers: Box<[u32]>,
}

/// Counts shared writes by level, and adds up the modelled cost of transfers: each write pays for
/// fetching the line from the CPU that wrote it last.
#[derive(Clone, Debug)]
pub struct Ledger {
    topology: Topology,
    costs: TransferCosts,
    levels: Vec<Level>,
}

impl Ledger {
    /// Creates an empty ledger for the numbers of lines on each level in `lines`.
    #[must_use]
    pub fn new(topology: &Topology, costs: TransferCosts, lines: &[usize]) -> Self {
        let level = |&lines: &usize| Level {
            writes: 0,
            transfers: 0,
            transfer_ns: 0,
            writers: vec![NOBODY; lines].into_boxed_slice(),
        };
        Self {
            topology: topology.clone(),
            costs,
            levels: lines.iter().map(level).collect(),
        }
    }

    /// Returns the shared writes on each level.
    #[must_use]
    pub fn writes_by_level(&self) -> Vec<u64> {
        self.levels.iter().map(|level| level.writes).collect()
    }

    /// Returns the shared writes on all levels.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.levels.iter().map(|level| level.writes).sum()
    }

    /// Returns the writes of a line that another CPU had written last.
    #[must_use]
    pub fn transfers(&self) -> u64 {
        self.levels.iter().map(|level| level.transfers).sum()
    }

    /// Returns the modelled cost of all transfers, in nanoseconds.
    #[must_use]
    pub fn transfer_ns(&self) -> u64 {
        self.levels.iter().map(|level| level.transfer_ns).sum()
    }

    /// Resets the counts, but keeps the last writers.
    pub fn restart(&mut self) {
        for level in &mut self.levels {
            (level.writes, level.transfers, level.transfer_ns) = (0, 0, 0);
        }
    }
}

impl Traffic for Ledger {
    fn wrote(&mut self, line: Line, cpu: CpuId) {
        let level = &mut self.levels[line.level];
        level.writes += 1;
        let last = std::mem::replace(&mut level.writers[line.index], cpu.0);
        if last != cpu.0 && last != NOBODY {
            level.transfers += 1;
            level.transfer_ns += self.costs.of(self.topology.sharing(CpuId(last), cpu));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each write pays for the distance from the last writer. Method: a line that covers
    /// every distance once, computed by hand.
    #[test]
    fn lines_pay_for_their_journeys() {
        let machine: Topology = "2x2x2x2".parse().unwrap();
        let mut ledger = Ledger::new(&machine, TransferCosts::default(), &[2, 1]);
        let root = Line { level: 1, index: 0 };
        // No writer yet, same CPU, same core, same cache, same socket, another socket.
        for cpu in [0, 0, 1, 2, 4, 8] {
            ledger.wrote(root, CpuId(cpu));
        }
        ledger.wrote(Line { level: 0, index: 1 }, CpuId(3));
        assert_eq!(ledger.writes_by_level(), [1, 6]);
        assert_eq!((ledger.writes(), ledger.transfers()), (7, 4));
        assert_eq!(ledger.transfer_ns(), 20 + 60 + 150);
        ledger.restart();
        ledger.wrote(root, CpuId(8));
        ledger.wrote(root, CpuId(9));
        assert_eq!((ledger.writes(), ledger.transfers()), (2, 1));
        assert_eq!(
            ledger.transfer_ns(),
            0,
            "threads of a core share their caches"
        );
    }
}
