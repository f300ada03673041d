//! The processes by the kernel's cheap counter of resident pages, and by an exact number.
//!
//! The cheap counter is field 24 of `/proc/PID/stat`. The exact number is `statm` where the kernel
//! sums the counter over all CPUs for it, else `smaps_rollup`, for which the kernel walks the page
//! tables. Whether `statm` is exact is seen by comparing, because distributions backport.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::finding::printable;
use crate::groups::cpu_time;
use crate::machine::Machine;
use crate::parse::{self, KernelVersion};
use crate::root::{Missing, Root};

/// CPU time that exact numbers by `smaps_rollup` may take in a check, in all.
const ROLLUPS_MAX: Duration = Duration::from_millis(12);

/// Pages from which on the error of a process is also bounded by reading it twice.
const TWICE_FROM_PAGES: u64 = 4096;

/// Processes that decide by `smaps_rollup` which of the other two files is exact, and as many that
/// may overrule it.
const JUDGES_MAX: usize = 8;

/// Error above which `statm` is not exact. Chosen: that above which check 2 warns.
const WRONG_FROM_PERCENT: u64 = 2;

/// How much reading exact numbers may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Some milliseconds: where it takes page-table walks, a part of the processes.
    Bounded,
    /// Every process whose files this user may read.
    Whole,
}

/// How exact numbers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExactBy {
    /// `statm`, which this kernel sums over all CPUs.
    Statm,
    /// `smaps_rollup`.
    Rollup,
}

impl ExactBy {
    /// Name of the file.
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::Statm => "statm",
            Self::Rollup => "smaps_rollup",
        }
    }
}

/// An exact number of resident pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exact {
    /// Resident pages.
    pub pages: u64,
    /// By how much the process changed while it was read, in pages.
    pub error_pages: u64,
    /// CPU time of the read.
    pub cost: Duration,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Name of its program.
    pub comm: String,
    /// Number of its threads.
    pub threads: u64,
    /// Resident pages by the cheap counter.
    pub counter_pages: u64,
    /// Resident pages by `statm`.
    pub statm_pages: u64,
    /// Resident pages, exactly; `None` if this user may not read them, or it would cost too much.
    pub exact: Option<Exact>,
}

impl Process {
    /// Returns counter minus exact number, in pages.
    #[must_use]
    pub fn error_pages(&self) -> Option<i64> {
        let exact = self.exact?;
        let signed = |pages: u64| i64::try_from(pages).unwrap_or(i64::MAX);
        Some(signed(self.counter_pages) - signed(exact.pages))
    }

    /// The process as a text names it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} ({})", printable(&self.comm), self.pid)
    }
}

/// The processes that this user sees, without threads of the kernel.
#[derive(Clone, Debug)]
pub struct ProcessTable {
    /// By number.
    pub processes: Vec<Process>,
    /// How exact numbers are read.
    pub exact_by: ExactBy,
    /// True if processes of other users are hidden (`hidepid`).
    pub is_hidden: bool,
}

impl ProcessTable {
    /// Reads every process.
    ///
    /// # Errors
    ///
    /// When `/proc` cannot be listed, or no process can be read.
    pub fn read(machine: &Machine, effort: Effort) -> Result<Self, Missing> {
        let root = machine.root();
        let entries = root.entries("proc")?;
        let pids = entries.iter().filter_map(|name| name.parse::<u32>().ok());
        let mut processes: Vec<Process> = pids.filter_map(|pid| process(root, pid)).collect();
        if processes.is_empty() {
            return Err(Missing::new(
                "needs a process in /proc that this user may read",
            ));
        }
        processes.sort_unstable_by_key(|process| process.pid);
        let exact_by = exact_by(machine, &processes);
        match exact_by {
            ExactBy::Statm => {
                for process in &mut processes {
                    process.exact = by_statm(root, effort, process);
                }
            }
            ExactBy::Rollup => rollups(machine, effort, &mut processes),
        }
        let is_hidden = is_hidden(root, &processes);
        Ok(Self {
            processes,
            exact_by,
            is_hidden,
        })
    }

    /// Says that processes are hidden, if they are.
    #[must_use]
    pub fn caveat(&self) -> &'static str {
        if self.is_hidden {
            "; processes of other users are hidden"
        } else {
            ""
        }
    }
}

/// Most pages by which the cheap counter of a process may be off: all three resident counters
/// (file, anonymous, shared).
///
/// Before 6.2 each thread holds up to 64 pages of each back; from 6.2 each CPU up to a batch of
/// max(32, 2 CPUs).
#[must_use]
pub fn bound_pages(kernel: KernelVersion, cpus: u64, threads: u64) -> u64 {
    const COUNTERS: u64 = 3;
    let of_counter = if kernel.is_from(6, 2) {
        cpus.saturating_mul(cpus.saturating_mul(2).max(32))
    } else {
        threads.saturating_mul(64)
    };
    of_counter.saturating_mul(COUNTERS)
}

/// Reads a process; `None` for a thread of the kernel, and for a process that ended meanwhile.
fn process(root: &Root, pid: u32) -> Option<Process> {
    let stat = root.parse(&format!("proc/{pid}/stat"), parse::stat).ok()?;
    if stat.vsize_bytes == 0 {
        return None;
    }
    let statm = root
        .parse(&format!("proc/{pid}/statm"), parse::statm)
        .ok()?;
    Some(Process {
        pid,
        comm: stat.comm,
        threads: stat.threads,
        counter_pages: stat.rss_pages,
        statm_pages: statm.resident_pages,
        exact: None,
    })
}

/// Finds out which file is exact. Each process whose two numbers differ can tell: its page tables
/// are walked, and the number that is closer wins. Without any, the version decides, and a process
/// that is wrong in both files overrules it.
///
/// Before 6.12 both files show the same counter, unless a change was backported. From 6.12 on they
/// do on kernels without that change (6.12.0, 6.14), where no process differs. A process that grows
/// or shrinks between the reads is closer by `statm`, which is read later: before 6.12 one that is
/// wrong in both files overrules it too.
fn exact_by(machine: &Machine, processes: &[Process]) -> ExactBy {
    let mut judges: Vec<&Process> = processes
        .iter()
        .filter(|process| !is_same_in_both(process))
        .collect();
    // A walk of a small process is cheap.
    judges.sort_unstable_by_key(|process| process.statm_pages);
    let mut votes = 0_i32;
    let read = judges.iter().filter_map(|judge| unchanged(machine, judge));
    let differing = read.filter(|(again, _)| !is_same_in_both(again));
    for (again, exact) in differing.take(JUDGES_MAX) {
        let is_statm = again.statm_pages.abs_diff(exact.pages);
        let is_counter = again.counter_pages.abs_diff(exact.pages);
        votes += i32::from(is_statm < is_counter) - i32::from(is_counter < is_statm);
    }
    let by_version = machine.kernel().is_ok_and(|kernel| kernel.is_from(6, 12));
    let is_statm = match votes {
        0 => by_version && !is_wrong_in_both(machine, processes),
        1.. => by_version || !is_wrong_in_both(machine, processes),
        _ => false,
    };
    if is_statm {
        ExactBy::Statm
    } else {
        ExactBy::Rollup
    }
}

/// Returns whether a process is off by as much in `statm` as in `stat`, so that neither is exact.
fn is_wrong_in_both(machine: &Machine, processes: &[Process]) -> bool {
    let start = cpu_time();
    let judges = processes.iter().filter(|process| is_same_in_both(process));
    let mut judges: Vec<&Process> = judges.collect();
    judges.sort_unstable_by_key(|process| by_likely_error(process));
    let in_time = judges.into_iter().take_while(|_| {
        !machine.root().is_live() || cpu_time().saturating_sub(start) <= ROLLUPS_MAX
    });
    let read = in_time.filter_map(|judge| unchanged(machine, judge));
    let large = read.filter(|(_, exact)| exact.pages >= TWICE_FROM_PAGES);
    large.take(JUDGES_MAX).any(|(again, exact)| {
        let error = again.statm_pages.abs_diff(exact.pages);
        is_same_in_both(&again)
            && error.saturating_mul(100) > exact.pages.saturating_mul(WRONG_FROM_PERCENT)
    })
}

fn is_same_in_both(process: &Process) -> bool {
    process.counter_pages == process.statm_pages
}

/// Reads a process again and walks its page tables; `None` if its counter changed meanwhile, which
/// is no difference of the files.
fn unchanged(machine: &Machine, before: &Process) -> Option<(Process, Exact)> {
    let again = process(machine.root(), before.pid)?;
    let exact = by_rollup(machine, before.pid).ok()?;
    let after = process(machine.root(), before.pid)?;
    (again.counter_pages == after.counter_pages).then_some((again, exact))
}

/// Sorts those first whose counters may be off most: with most threads, then the largest.
fn by_likely_error(process: &Process) -> std::cmp::Reverse<(u64, u64)> {
    std::cmp::Reverse((process.threads, process.counter_pages))
}

/// The exact number by `statm`. A large process is read around the counter, so that its growth
/// meanwhile is known; with [`Effort::Whole`] every process is.
fn by_statm(root: &Root, effort: Effort, process: &mut Process) -> Option<Exact> {
    let read = || {
        let path = format!("proc/{}/statm", process.pid);
        Some(root.parse(&path, parse::statm).ok()?.resident_pages)
    };
    let is_small = process.statm_pages.max(process.counter_pages) < TWICE_FROM_PAGES;
    if (is_small && effort == Effort::Bounded) || !root.is_live() {
        return Some(Exact {
            pages: process.statm_pages,
            error_pages: 0,
            cost: Duration::ZERO,
        });
    }
    let start = cpu_time();
    let before = read()?;
    let cost = cpu_time().saturating_sub(start);
    let stat = root.parse(&format!("proc/{}/stat", process.pid), parse::stat);
    let after = read()?;
    process.counter_pages = stat.ok()?.rss_pages;
    process.statm_pages = after;
    Some(Exact {
        pages: after,
        error_pages: after.abs_diff(before),
        cost,
    })
}

/// The exact numbers by `smaps_rollup`, of the processes first that may be off most.
fn rollups(machine: &Machine, effort: Effort, processes: &mut [Process]) {
    let mut order: Vec<usize> = (0..processes.len()).collect();
    order.sort_unstable_by_key(|&index| by_likely_error(&processes[index]));
    let start = cpu_time();
    let is_bounded = effort == Effort::Bounded && machine.root().is_live();
    for index in order {
        if is_bounded && cpu_time().saturating_sub(start) > ROLLUPS_MAX {
            break;
        }
        let process = &mut processes[index];
        process.exact = by_rollup(machine, process.pid).ok().map(|mut exact| {
            let path = format!("proc/{}/stat", process.pid);
            if let Ok(stat) = machine.root().parse(&path, parse::stat) {
                exact.error_pages = stat.rss_pages.abs_diff(process.counter_pages);
                process.counter_pages = stat.rss_pages;
            }
            exact
        });
    }
}

/// The exact number of one process by `smaps_rollup`.
///
/// # Errors
///
/// When this user may not read it, or the process has ended.
pub(crate) fn by_rollup(machine: &Machine, pid: u32) -> Result<Exact, Missing> {
    let start = cpu_time();
    let path = format!("proc/{pid}/smaps_rollup");
    let kib = machine.root().parse(&path, parse::rollup)?;
    Ok(Exact {
        pages: kib.saturating_mul(1024) / machine.page_bytes(),
        error_pages: 0,
        cost: cpu_time().saturating_sub(start),
    })
}

/// Returns whether `/proc` is mounted with `hidepid`, for this user: without the right to trace
/// others, and with no process of another user in the table.
fn is_hidden(root: &Root, processes: &[Process]) -> bool {
    let mounts = root.parse("proc/self/mountinfo", parse::mounts);
    let hides = |mount: &parse::Mount| {
        let value = mount.option_value("hidepid");
        mount.kind == "proc" && value.is_some_and(|value| !matches!(value, "0" | "off"))
    };
    let has_hiding_mount = mounts.is_ok_and(|mounts| mounts.iter().any(hides));
    has_hiding_mount && !(root.is_live() && sees_others(root, processes))
}

/// Returns whether the files of another user's process can be seen.
fn sees_others(root: &Root, processes: &[Process]) -> bool {
    let owner = |name: &str| {
        let metadata = std::fs::metadata(root.path_of(&format!("proc/{name}")));
        metadata.ok().map(|metadata| metadata.uid())
    };
    let own = owner("self");
    let is_other = |process: &Process| {
        let uid = owner(&process.pid.to_string());
        uid.is_some() && uid != own
    };
    may_trace(root) || processes.iter().any(is_other)
}

/// Returns whether this process has `CAP_SYS_PTRACE`.
fn may_trace(root: &Root) -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = root.read("proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_SYS_PTRACE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_the_published_machines() {
        let old = parse::kernel_version("6.1.176").unwrap();
        let new = parse::kernel_version("6.12.107").unwrap();
        // 10,000 threads hold up to 64 pages of each counter back.
        assert_eq!(bound_pages(old, 64, 10_000), 1_920_000);
        assert_eq!(bound_pages(new, 2, 10_000), 3 * 2 * 32);
        assert_eq!(bound_pages(new, 64, 1), 3 * 64 * 128);
        assert_eq!(bound_pages(new, 384, 1), 3 * 384 * 768);
        assert_eq!(bound_pages(new, u64::MAX, 1), u64::MAX);
    }
}
