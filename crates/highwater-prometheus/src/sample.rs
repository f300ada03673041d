//! The numbers of one scrape, as they are encoded.

use std::time::Duration;

use highwater::group::{GroupEvents, Limits, StatItem, Stats};
use highwater::{Bytes, Estimate, Group, Manager, Snapshot};

use crate::rest::Rest;
use crate::walk::{NEVER_FLUSH, Node, Tree};

/// Names of the limit events, as in `memory.events`.
pub(crate) const EVENTS: [&str; 6] = ["low", "high", "max", "debt", "oom", "oom_kill"];

/// Everything that a scrape shows.
pub(crate) struct Scrape {
    /// Counters, frames and stalls of the manager; no groups.
    pub(crate) snapshot: Snapshot,
    pub(crate) capacity: Bytes,
    /// The named groups, the root first, then the rest if there is one.
    pub(crate) rows: Vec<Row>,
    pub(crate) nr_named: usize,
    pub(crate) nr_rest: usize,
}

/// One value of the label `group`.
pub(crate) struct Row {
    /// The group's path; `other` for the rest: every path begins with a slash.
    pub(crate) group: String,
    pub(crate) usage: Estimate<Bytes>,
    /// `None` for the rest.
    pub(crate) own: Option<Own>,
    /// Amounts of `memory.stat` in pages, in the order of [`amounts`].
    pub(crate) amounts: Vec<i64>,
    /// Counters of `memory.stat` in the order of [`counters`], then events, then microseconds of
    /// pressure: some, full.
    pub(crate) counts: Vec<u64>,
    pub(crate) staleness: u64,
    pub(crate) age: Duration,
}

/// Numbers that have no sum over several groups.
pub(crate) struct Own {
    pub(crate) peak: Estimate<Bytes>,
    pub(crate) limits: Limits,
    pub(crate) debt: Bytes,
}

/// Returns the statistics that count events, by number in [`Row::counts`].
pub(crate) fn counters() -> impl Iterator<Item = StatItem> {
    StatItem::ALL.iter().copied().filter(|item| counts(*item))
}

/// Returns the statistics that are amounts of pages, by number in [`Row::amounts`].
pub(crate) fn amounts() -> impl Iterator<Item = StatItem> {
    StatItem::ALL.iter().copied().filter(|item| !counts(*item))
}

/// Whether an item counts events, as its kernel name says.
fn counts(item: StatItem) -> bool {
    let name = item.to_string();
    name.starts_with("pg") || name.starts_with("workingset_")
}

impl Scrape {
    pub(crate) fn take(manager: &Manager, tree: &Tree, rest: &mut Rest) -> Self {
        let mut rows: Vec<Row> = tree.named.iter().map(Row::named).collect();
        let before = rest.begin(tree, &rows);
        // The rest may be thousands of groups: one row is read again and again.
        let (mut read, mut sum) = (Row::empty("other"), Row::empty("other"));
        for node in &tree.rest {
            read.read(node);
            sum.absorb(&read);
            rest.add(node, &read.counts, &before);
        }
        let total = rest.end();
        let (nr_named, nr_rest) = (rows.len(), tree.rest.len());
        // Once there, the series stays: a counter that vanishes would be lost.
        if !total.is_empty() {
            sum.counts = total.to_vec();
            sum.amounts.resize(amounts().count(), 0);
            rows.push(sum);
        }
        Self {
            snapshot: Snapshot::from(manager),
            capacity: manager.capacity(),
            rows,
            nr_named,
            nr_rest,
        }
    }
}

impl Row {
    fn empty(group: &str) -> Self {
        Self {
            group: group.to_owned(),
            usage: Estimate::exact(Bytes::ZERO),
            own: None,
            amounts: Vec::new(),
            counts: Vec::new(),
            staleness: 0,
            age: Duration::ZERO,
        }
    }

    fn named(node: &Node) -> Self {
        let group = &node.group;
        let mut row = Self::empty(&group.path().to_string());
        row.read(node);
        row.own = Some(Own {
            peak: group.peak(),
            limits: group.limits(),
            debt: group.debt(),
        });
        row
    }

    /// Reads the numbers that have a sum.
    fn read(&mut self, node: &Node) {
        let stats = node.group.stats(NEVER_FLUSH);
        self.usage = node.usage;
        self.amounts.clear();
        self.amounts.extend(amounts().map(|item| stats.get(item)));
        self.counts.clear();
        extend_by_counts(&mut self.counts, &node.group, &stats);
        self.staleness = stats.staleness;
        self.age = stats.age;
    }

    /// Adds the numbers of another group; the sum of its counts is for [`Rest`].
    fn absorb(&mut self, row: &Self) {
        self.usage.value += row.usage.value;
        self.usage.low += row.usage.low;
        self.usage.high += row.usage.high;
        self.amounts.resize(row.amounts.len(), 0);
        for (sum, amount) in self.amounts.iter_mut().zip(&row.amounts) {
            *sum += amount;
        }
        self.staleness = self.staleness.saturating_add(row.staleness);
        self.age = self.age.max(row.age);
    }
}

fn extend_by_counts(counts: &mut Vec<u64>, group: &Group, stats: &Stats) {
    let GroupEvents {
        low,
        high,
        max,
        debt,
        oom,
        oom_kill,
        ..
    } = group.events();
    let pressure = group.pressure();
    // A count is never below zero for long: a page that moves to another CPU's count may be.
    let counters = counters().map(|item| u64::try_from(stats.get(item)).unwrap_or(0));
    counts.extend(counters);
    counts.extend([low, high, max, debt, oom, oom_kill]);
    counts.extend([pressure.some.total_us, pressure.full.total_us]);
}
