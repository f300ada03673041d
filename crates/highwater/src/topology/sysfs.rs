//! Reading the CPU topology from Linux's `/sys/devices/system/cpu`.
//!
//! Every function takes the files as an argument, so that tests can lay out machines, and machines
//! that change while they are read. The files follow these rules:
//!
//! - `possible` lists the CPU numbers that can ever appear, `online` those that run now. Both are
//!   lists such as `0-3,8`.
//! - An online CPU has `cpuN/topology/physical_package_id` (a number, -1 for unknown),
//!   `cpuN/topology/thread_siblings_list` (the threads of its core) and
//!   `cpuN/cache/indexI/{level,shared_cpu_list}` for `I` from 0; the highest level is its
//!   last-level cache. An offline CPU may have none of these, and needs none.
//! - Every member of a core or cache has the same list of members. One list is read for each, not
//!   one for each member, so that detection is linear in CPUs although a list is as long as the
//!   group is wide.
//!
//! CPU hotplug continues while the files are read. The kernel removes a CPU's `cache` directory
//! before the CPU leaves `online`, and adds it after the CPU has come; its `topology` directory
//! goes last. A reading during which that happened is repeated, once. A CPU that vanishes from the
//! second reading too is skipped: it has no place, like one that was offline all the time. One that
//! is online still, without a description of its caches, shares those of its core's other threads;
//! a core without any has a last-level cache of its own. Any other violation of the rules ends the
//! reading with [`Unreadable`], and so does a machine without any description of caches.

use std::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use super::{CPUS_MAX, CpuPlace};

/// A file that could not be used, with the reason.
#[derive(Debug)]
pub(super) struct Unreadable {
    name: String,
    why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.why)
    }
}

impl Unreadable {
    fn new(name: &str, why: impl fmt::Display) -> Self {
        Self {
            name: name.to_owned(),
            why: why.to_string(),
        }
    }
}

/// Reads files by name, such as `cpu3/topology/physical_package_id`.
pub(super) trait Files {
    fn read(&self, name: &str) -> io::Result<String>;

    /// Returns whether a file or directory of that name exists.
    fn has(&self, name: &str) -> bool;
}

impl Files for Path {
    fn read(&self, name: &str) -> io::Result<String> {
        fs::read_to_string(self.join(name))
    }

    fn has(&self, name: &str) -> bool {
        self.join(name).exists()
    }
}

/// Returns one more than the highest possible CPU number.
pub(super) fn nr_possible(files: &(impl Files + ?Sized)) -> Result<usize, Unreadable> {
    Ok(CpuList::read(files, "possible")?.highest() + 1)
}

/// Returns the numbers of the CPUs that are online, all below `nr_cpus`.
pub(super) fn online(
    files: &(impl Files + ?Sized),
    nr_cpus: usize,
) -> Result<Vec<usize>, Unreadable> {
    Ok(CpuList::online(files, nr_cpus)?.iter().collect())
}

/// Returns the place of every CPU below `nr_cpus`; `None` for those that are not online, or
/// vanished.
pub(super) fn places(
    files: &(impl Files + ?Sized),
    nr_cpus: usize,
) -> Result<Vec<Option<CpuPlace>>, Unreadable> {
    if let Ok(survey) = Survey::take(files, nr_cpus)
        && survey.is_settled
    {
        return Ok(survey.places);
    }
    // A CPU came or went, or a file is broken; a single reading cannot tell.
    Ok(Survey::take(files, nr_cpus)?.places)
}

/// The places of all CPUs in one reading.
struct Survey {
    places: Vec<Option<CpuPlace>>,
    /// Whether the same CPUs were online throughout.
    is_settled: bool,
}

impl Survey {
    fn take(files: &(impl Files + ?Sized), nr_cpus: usize) -> Result<Self, Unreadable> {
        let online = CpuList::online(files, nr_cpus)?;
        let mut groups = CpuGroups::new(files, nr_cpus);
        let mut places = vec![None; nr_cpus];
        let mut vanished = None;
        for cpu in online.iter() {
            match groups.place(cpu) {
                Ok(place) => places[cpu] = Some(place),
                Err(unreadable) if has_vanished(files, cpu) => {
                    tracing::debug!(cpu, %unreadable, "CPU vanished while its place was read");
                    vanished = Some(unreadable);
                }
                Err(unreadable) => return Err(unreadable),
            }
        }
        let Some(unreadable) = vanished else {
            let is_settled = CpuList::read(files, "online")? == online;
            return Ok(Self { places, is_settled });
        };
        if places.iter().all(Option::is_none) {
            // They did not vanish: they are not described.
            return Err(unreadable);
        }
        if let Ok(still) = CpuList::online(files, nr_cpus) {
            groups.place_by_core(&still, &mut places);
        }
        Ok(Self {
            places,
            is_settled: false,
        })
    }
}

/// Returns whether a CPU that was online is going or coming.
fn has_vanished(files: &(impl Files + ?Sized), cpu: usize) -> bool {
    !files.has(&format!("cpu{cpu}/topology"))
        || !files.has(&format!("cpu{cpu}/cache"))
        || CpuList::read(files, "online").is_ok_and(|online| !online.contains(cpu))
}

/// The cores and last-level caches seen so far, each read once.
struct CpuGroups<'a, F: ?Sized> {
    files: &'a F,
    cores: Members,
    llcs: Members,
    /// Indexed by core.
    sockets: Vec<Option<i64>>,
}

impl<'a, F: Files + ?Sized> CpuGroups<'a, F> {
    fn new(files: &'a F, nr_cpus: usize) -> Self {
        Self {
            files,
            cores: Members::none(nr_cpus),
            llcs: Members::none(nr_cpus),
            sockets: vec![None; nr_cpus],
        }
    }

    fn place(&mut self, cpu: usize) -> Result<CpuPlace, Unreadable> {
        let files = self.files;
        let topology = format!("cpu{cpu}/topology");
        let siblings = || Ok(format!("{topology}/thread_siblings_list"));
        let core = self.cores.group_of(files, cpu, siblings)?;
        let socket = match self.sockets[core] {
            Some(socket) => socket,
            None => read_number(files, &format!("{topology}/physical_package_id"))?,
        };
        self.sockets[core] = Some(socket);
        let sharers = || last_level_cache(files, &format!("cpu{cpu}/cache"));
        let llc = self.llcs.group_of(files, cpu, sharers)?;
        Ok(CpuPlace { socket, llc, core })
    }

    /// Places those of the CPUs that have none and whose core is known.
    fn place_by_core(&self, cpus: &CpuList, places: &mut [Option<CpuPlace>]) {
        let mut llcs = vec![None; places.len()];
        for (core, llc) in self.cores.groups.iter().zip(&self.llcs.groups) {
            if let (&Some(core), &Some(llc)) = (core, llc) {
                llcs[core] = Some(llc);
            }
        }
        for cpu in cpus.iter() {
            if places[cpu].is_none()
                && let Some(core) = self.cores.groups[cpu]
                && let Some(socket) = self.sockets[core]
            {
                // The core's number is that of a thread of it, and thus of no other core's cache.
                let llc = llcs[core].unwrap_or(core);
                places[cpu] = Some(CpuPlace { socket, llc, core });
            }
        }
    }
}

/// Returns the list of CPUs that share the highest-level cache in the directory `caches`.
fn last_level_cache(files: &(impl Files + ?Sized), caches: &str) -> Result<String, Unreadable> {
    let mut last = format!("{caches}/index0");
    let mut level_max: u32 = read_number(files, &format!("{last}/level"))?;
    for index in 1..CACHES_MAX {
        let cache = format!("{caches}/index{index}");
        if !files.has(&cache) {
            break;
        }
        let level = read_number(files, &format!("{cache}/level"))?;
        if level > level_max {
            (last, level_max) = (cache, level);
        }
    }
    Ok(format!("{last}/shared_cpu_list"))
}

/// Maximum number of caches read for each CPU: four levels, each split in two, is more than any
/// machine has.
const CACHES_MAX: usize = 8;

/// The group of each CPU, identified by the number of one of its members.
struct Members {
    /// Indexed by CPU; `None` if no list has named it.
    groups: Vec<Option<usize>>,
}

impl Members {
    fn none(nr_cpus: usize) -> Self {
        let groups = vec![None; nr_cpus];
        Self { groups }
    }

    /// Returns the group of `cpu`: known from the list of another member, or from its own, which
    /// `list` finds and which must contain `cpu`.
    fn group_of(
        &mut self,
        files: &(impl Files + ?Sized),
        cpu: usize,
        list: impl FnOnce() -> Result<String, Unreadable>,
    ) -> Result<usize, Unreadable> {
        if let Some(group) = self.groups[cpu] {
            return Ok(group);
        }
        let name = list()?;
        let list = CpuList::read(files, &name)?;
        list.check_below(self.groups.len(), &name)?;
        if !list.contains(cpu) {
            return Err(Unreadable::new(&name, format!("does not list CPU {cpu}")));
        }
        // A member that came after its neighbours' list was read belongs to their group. A new
        // group's number is free: no list has named the lowest member, and each number is a
        // member's.
        let known = list.iter().find_map(|member| self.groups[member]);
        let group = known.unwrap_or(list.lowest());
        for member in list.iter() {
            self.groups[member].get_or_insert(group);
        }
        Ok(group)
    }
}

fn read_number<T: FromStr>(files: &(impl Files + ?Sized), name: &str) -> Result<T, Unreadable> {
    let text = read(files, name)?;
    text.trim()
        .parse()
        .map_err(|_| Unreadable::new(name, format!("`{}` is not a number", text.trim())))
}

fn read(files: &(impl Files + ?Sized), name: &str) -> Result<String, Unreadable> {
    files
        .read(name)
        .map_err(|error| Unreadable::new(name, error))
}

/// CPU numbers below [`CPUS_MAX`], at least one, as ascending ranges.
#[derive(PartialEq, Eq)]
struct CpuList {
    ranges: Vec<RangeInclusive<usize>>,
}

impl CpuList {
    fn read(files: &(impl Files + ?Sized), name: &str) -> Result<Self, Unreadable> {
        let text = read(files, name)?;
        Self::parse(text.trim())
            .ok_or_else(|| Unreadable::new(name, format!("`{}` is no CPU list", text.trim())))
    }

    /// Reads which CPUs are online.
    fn online(files: &(impl Files + ?Sized), nr_cpus: usize) -> Result<Self, Unreadable> {
        let online = Self::read(files, "online")?;
        online.check_below(nr_cpus, "online")?;
        Ok(online)
    }

    /// Rejects a list with CPUs that can never appear.
    fn check_below(&self, nr_cpus: usize, name: &str) -> Result<(), Unreadable> {
        if self.highest() < nr_cpus {
            return Ok(());
        }
        Err(Unreadable::new(name, "lists CPUs that are not possible"))
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.ranges.iter().cloned().flatten()
    }

    /// Parses `0-3,8`: numbers and ranges in ascending order. Rejects an empty list.
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
