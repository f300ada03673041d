//! Metrics of a manager for Prometheus. A scrape changes nothing: it flushes no statistics.
#![doc = ""]
#![doc = include_str!("../README.md")]

mod encode;
mod rest;
mod sample;
mod walk;

use std::fmt;
use std::time::Instant;

use highwater::Manager;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use rest::Rest;
use sample::Scrape;

/// A [`Collector`] that reads a manager when it is scraped.
///
/// Keeps the manager alive. Several servers may scrape one collector at the same time.
///
/// # Cost
///
/// A scrape flushes no statistics and waits for no reader or writer of memory. It reads the usage
/// of the named groups and of their children, and the statistics of each of these.
///
/// # Examples
///
/// ```
/// use highwater::{Bytes, Limits, Manager};
/// use highwater_prometheus::ManagerCollector;
/// use prometheus_client::registry::Registry;
///
/// let hw = Manager::builder().build()?;
/// let tenant = hw.root().child("tenant-a", Limits::max(Bytes::mib(4)))?;
/// let work = tenant.charge(Bytes(4096))?;
///
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(ManagerCollector::new(&hw)));
/// let mut text = String::new();
/// prometheus_client::encoding::text::encode(&mut text, &registry)?;
/// assert!(text.contains("highwater_memory_max_bytes{group=\"/tenant-a\"} 4194304\n"));
/// # drop(work);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ManagerCollector {
    manager: Manager,
    groups_max: usize,
    depth_max: u32,
    rest: Mutex<Rest>,
}

impl ManagerCollector {
    /// Returns a collector that names 100 groups, down to 4 levels below the root.
    #[must_use]
    pub fn new(manager: &Manager) -> Self {
        Self {
            manager: manager.clone(),
            groups_max: 100,
            depth_max: 4,
            rest: Mutex::default(),
        }
    }

    /// Sets how many groups have series of their own, beside the root, which always has. Those
    /// that use most memory are chosen in each scrape; a group only after its parent. The others
    /// are together in `group="other"`.
    #[must_use]
    pub const fn groups_max(mut self, groups: usize) -> Self {
        self.groups_max = groups;
        self
    }

    /// Sets the level of the deepest groups that are visited; the root's children have level 1.
    /// Deeper groups show in their ancestors' values alone.
    #[must_use]
    pub const fn depth_max(mut self, depth: u32) -> Self {
        self.depth_max = depth;
        self
    }
}

impl Collector for ManagerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let begin = Instant::now();
        let scrape = {
            // Under the lock, so that of concurrent scrapes the later one has the later counts.
            let mut rest = self.rest.lock();
            let tree = walk::walk(&self.manager.root(), self.groups_max, self.depth_max);
            Scrape::take(&self.manager, &tree, &mut rest)
        };
        encode::encode(&mut encoder, &scrape, begin)
    }
}

impl fmt::Debug for ManagerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerCollector")
            .field("groups_max", &self.groups_max)
            .field("depth_max", &self.depth_max)
            .finish_non_exhaustive()
    }
}
