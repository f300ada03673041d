//! What Linux says about its CPUs in `/sys/devices/system/cpu`.
//!
//! Every function takes the directory as an argument, so that tests lay out machines of their own.
//! Files are read by these rules:
//!
//! - `possible` lists the CPU numbers that can ever appear, `online` those that run now. Both are
//!   lists such as `0-3,8`.
//! - A CPU that is online has `cpuN/topology/physical_package_id` (a number, -1 for unknown),
//!   `cpuN/topology/thread_siblings_list` (the threads of its core) and
//!   `cpuN/cache/indexI/{level,shared_cpu_list}` for `I` from 0; the highest level is its
//!   last-level cache. One that is offline may have none of these, and needs none.
//! - Groups are named by the lowest CPU in their list, which every member sees alike.
//!
//! The first thing that does not follow the rules ends the reading with [`Unreadable`].

use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{CPUS_MAX, Place};

/// The file that could not be used, and why.
#[derive(Debug)]
pub(super) struct Unreadable {
    path: PathBuf,
    why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl Unreadable {
    fn new(path: &Path, why: impl fmt::Display) -> Self {
        Self {
            path: path.to_owned(),
            why: why.to_string(),
        }
    }
}

/// One more than the highest possible CPU number.
pub(super) fn nr_possible(root: &Path) -> Result<usize, Unreadable> {
    Ok(CpuList::read(&root.join("possible"))?.highest() + 1)
}

/// The place of every CPU below `nr_cpus`; `None` for those that are not online.
pub(super) fn places(root: &Path, nr_cpus: usize) -> Result<Vec<Option<Place>>, Unreadable> {
    let online = root.join("online");
    let list = CpuList::read(&online)?;
    if list.highest() >= nr_cpus {
        return Err(Unreadable::new(&online, "lists CPUs that are not possible"));
    }
    let mut places = vec![None; nr_cpus];
    for cpu in list.ranges.into_iter().flatten() {
        places[cpu] = Some(place(&root.join(format!("cpu{cpu}")), cpu)?);
    }
    Ok(places)
}

fn place(directory: &Path, cpu: usize) -> Result<Place, Unreadable> {
    let topology = directory.join("topology");
    Ok(Place {
        socket: read_number(&topology.join("physical_package_id"))?,
        llc: last_level_cache(&directory.join("cache"), cpu)?,
        core: group_of(&topology.join("thread_siblings_list"), cpu)?,
    })
}

/// The group of CPUs that share the cache of the highest level with `cpu`.
fn last_level_cache(caches: &Path, cpu: usize) -> Result<usize, Unreadable> {
    let mut last = caches.join("index0");
    let mut level_max: u32 = read_number(&last.join("level"))?;
    for index in 1..CACHES_MAX {
        let cache = caches.join(format!("index{index}"));
        if !cache.exists() {
            break;
        }
        let level = read_number(&cache.join("level"))?;
        if level > level_max {
            (last, level_max) = (cache, level);
        }
    }
    group_of(&last.join("shared_cpu_list"), cpu)
}

/// Caches looked at for each CPU: four levels, each split in two, is more than any machine has.
const CACHES_MAX: usize = 8;

/// The lowest CPU in the list at `path`, which has to hold `cpu` itself.
fn group_of(path: &Path, cpu: usize) -> Result<usize, Unreadable> {
    let list = CpuList::read(path)?;
    if !list.contains(cpu) {
        return Err(Unreadable::new(path, format!("does not list CPU {cpu}")));
    }
    Ok(list.lowest())
}

fn read_number<T: FromStr>(path: &Path) -> Result<T, Unreadable> {
    let text = read(path)?;
    text.trim()
        .parse()
        .map_err(|_| Unreadable::new(path, format!("`{}` is not a number", text.trim())))
}

fn read(path: &Path) -> Result<String, Unreadable> {
    fs::read_to_string(path).map_err(|error| Unreadable::new(path, error))
}

/// CPU numbers below [`CPUS_MAX`], at least one, as ascending ranges.
struct CpuList {
    ranges: Vec<RangeInclusive<usize>>,
}

impl CpuList {
    fn read(path: &Path) -> Result<Self, Unreadable> {
        let text = read(path)?;
        Self::parse(text.trim())
            .ok_or_else(|| Unreadable::new(path, format!("`{}` is no CPU list", text.trim())))
    }

    /// Reads `0-3,8`: numbers and ranges in ascending order. An empty list is refused.
    fn parse(text: &str) -> Option<Self> {
        let mut ranges: Vec<RangeInclusive<usize>> = Vec::new();
        for item in text.split(',') {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            let ascends = ranges.last().is_none_or(|range| *range.end() < first);
            if !ascends || first > last || last >= CPUS_MAX {
                return None;
            }
            ranges.push(first..=last);
        }
        Some(Self { ranges })
    }

    fn lowest(&self) -> usize {
        self.ranges.first().map_or(0, |range| *range.start())
    }

    fn highest(&self) -> usize {
        self.ranges.last().map_or(0, |range| *range.end())
    }

    fn contains(&self, cpu: usize) -> bool {
        self.ranges.iter().any(|range| range.contains(&cpu))
    }
}
