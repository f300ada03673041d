//! Events that a buffer lost, from `per_cpu/cpuN/stats`.

use std::iter::Sum;

/// Counts of one CPU's buffer, or their sum over CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Events that newer ones overwrote before they were read.
    pub overrun: u64,
    /// Events that found their page still being written by the tasks that they interrupted.
    pub commit_overrun: u64,
    /// New events that found the buffer full.
    pub dropped: u64,
}

impl Lost {
    /// Parses a `stats` file; lines that it lacks count as 0.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim_start_matches(':').trim().parse().ok())
                .unwrap_or(0)
        };
        Self {
            overrun: value("overrun"),
            commit_overrun: value("commit overrun"),
            dropped: value("dropped events"),
        }
    }

    /// Returns the number of lost events of all kinds.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.overrun
            .saturating_add(self.commit_overrun)
            .saturating_add(self.dropped)
    }
}

impl Sum for Lost {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            overrun: sum.overrun.saturating_add(one.overrun),
            commit_overrun: sum.commit_overrun.saturating_add(one.commit_overrun),
            dropped: sum.dropped.saturating_add(one.dropped),
        })
    }
}
