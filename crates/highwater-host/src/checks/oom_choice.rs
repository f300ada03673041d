//! Check 3: whether the OOM killer would choose wrongly.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, counted, float};
use crate::machine::Machine;
use crate::parse;
use crate::process::{Process, ProcessTable, bound_pages, by_rollup};
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 3,
    id: "oom_choice",
    title: "OOM killer's choice",
    run,
    needs_interval: false,
    mechanism: "The OOM killer stops the process with the largest badness: resident pages, swap \
        entries and page tables, plus oom_score_adj thousandths of memory. Before 7.0 it reads \
        the cheap counters, whose error can rank a smaller process first; from 7.0 it sums \
        every counter of every process over all CPUs while the system waits for memory.",
    formula: "badness = pages + swap + page tables + oom_score_adj x (memory + swap) / 1,000; \
        the largest by the cheap counter against the largest by the exact number, and by how \
        much the first is smaller, in percent of what the second holds. The machine's own process \
        1 is spared, a container's is not",
    thresholds: "a different process is a warning; bad if its badness is smaller by over 5 % of \
        what the largest holds: with equal oom_score_adj, stopping it frees that much less.",
    thread: threads::TREE,
    kernels: "all; from 7.0, and older ones with the change, the kernel sums exactly",
    advice: "set oom_score_adj of the process to stop, or memory.max of its group",
};

/// A warning for any difference, because a choice that differs has a gap above 0.
const THRESHOLDS: Thresholds = Thresholds::above(0.0, 5.0);

/// Candidates of which swap and page tables are read.
const CANDIDATES_MAX: usize = 32;

/// Candidates that are read if swap is in use, where a process may be large without resident
/// pages.
const CANDIDATES_WITH_SWAP_MAX: usize = 400;

/// A process that may be stopped, and its badness in pages.
struct Candidate<'a> {
    process: &'a Process,
    /// By the cheap counter.
    cheap: i64,
    /// By the exact number, if it is known.
    exact: Option<i64>,
    /// The part of either number that comes from `oom_score_adj`.
    adjusted: i64,
}

impl Candidate<'_> {
    /// Returns the pages that stopping it frees: `exact` without the adjustment.
    fn held_pages(&self, exact: i64) -> u64 {
        u64::try_from(exact.saturating_sub(self.adjusted)).unwrap_or(0)
    }

    /// Returns the badness by the exact number. The table lacks it where reading those of all
    /// processes would take too long: then it is read, and kept.
    fn read_exact(&mut self, machine: &Machine) -> Result<i64, Missing> {
        if self.exact.is_none() {
            let exact = by_rollup(machine, self.process.pid)?;
            let other = self
                .cheap
                .saturating_sub(signed(self.process.counter_pages));
            self.exact = Some(other.saturating_add(signed(exact.pages)));
        }
        Ok(self.exact.unwrap_or(self.cheap))
    }
}

fn signed(pages: u64) -> i64 {
    i64::try_from(pages).unwrap_or(i64::MAX)
}

/// Returns `gap` in percent of the pages that the right choice holds.
///
/// A badness has no zero: an adjustment moves it by any part of memory, and percent of it would
/// tell the adjustment. Adjustments that differ can make the gap larger than what is held.
fn percent_of_held(gap: u64, held: u64) -> f64 {
    let held = held.max(1);
    100.0 * float(gap.min(held)) / float(held)
}

/// The choice by either number.
struct Choice<'a> {
    cheap: &'a Process,
    exact: &'a Process,
    /// By how many pages the first is smaller.
    gap: u64,
    /// The gap in percent of what the second holds.
    percent: f64,
    /// Says that some processes have no exact number, if so.
    of: &'static str,
    formula: String,
}

impl Choice<'_> {
    /// On a kernel that sums exactly: the cost of a choice.
    fn summed(&self, table: &ProcessTable, cpus: u64) -> Finding {
        let processes = table.processes.len();
        let loads = counted(loads(table, cpus));
        let name = self.exact.name();
        let mut finding = Finding::fine(format!("exact here: {loads} loads a choice; {name}"));
        finding.formula = format!(
            "{processes} processes x 4 counters x {cpus} CPUs = {loads} loads; {}",
            self.formula
        );
        finding
    }

    /// On a kernel that reads the cheap counters, which may be off by `bound` pages.
    fn by_counter(&self, table: &ProcessTable, bound: u64) -> Finding {
        let figure = Figure {
            name: "gap",
            value: self.percent,
            error: 0.0,
            unit: Unit::Percent,
            thresholds: THRESHOLDS,
        };
        let chosen = self.cheap.name();
        let says = if self.gap == 0 {
            let (of, bound) = (self.of, counted(bound));
            format!("{chosen} by both numbers{of}; bound {bound} pages")
        } else {
            format!("{chosen} instead of {}", self.exact.name())
        };
        Finding::judged(figure, says + table.caveat(), self.formula.as_str())
    }
}

/// Loads of counters that an exact choice takes.
fn loads(table: &ProcessTable, cpus: u64) -> u64 {
    (table.processes.len() as u64)
        .saturating_mul(cpus)
        .saturating_mul(4)
}

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    judge(machine, machine.processes()?)
}

fn judge(machine: &Machine, table: &ProcessTable) -> Result<Finding, Missing> {
    let kernel = machine.kernel()?;
    let mut candidates = candidates(machine, table)?;
    let by_counter = (0..candidates.len()).max_by_key(|&at| candidates[at].cheap);
    let Some(by_counter) = by_counter else {
        return Ok(Finding::fine("no process may be stopped"));
    };
    let of_cheap = candidates[by_counter].read_exact(machine)?;
    let cheap = &candidates[by_counter];
    let known = candidates.iter().filter_map(|one| Some((one, one.exact?)));
    let largest = known.max_by_key(|(_, exact)| *exact);
    let (exact, largest) = largest.unwrap_or((cheap, of_cheap));
    let gap = u64::try_from(largest.saturating_sub(of_cheap)).unwrap_or(0);
    let percent = percent_of_held(gap, exact.held_pages(largest));
    let formula = format!(
        "by counter {} ({} points, {} exact); exactly {} ({} points)",
        cheap.process.name(),
        shown(cheap.cheap),
        shown(of_cheap),
        exact.process.name(),
        shown(largest)
    );
    let is_unread = |one: &Process| one.exact.is_none() && one.pid != cheap.process.pid;
    let is_partial = table.processes.iter().any(is_unread);
    let sums = kernel.is_from(7, 0);
    let cpus = machine.cpus_online()?;
    let choice = Choice {
        cheap: cheap.process,
        exact: exact.process,
        gap,
        percent,
        of: if is_partial { " of those read" } else { "" },
        formula,
    };
    let finding = if sums {
        choice.summed(table, cpus)
    } else {
        let bound = bound_pages(kernel, cpus, cheap.process.threads);
        choice.by_counter(table, bound)
    };
    let finding = finding
        .with("chosen_by_counter_pid", cheap.process.pid)
        .with("chosen_exactly_pid", exact.process.pid)
        .with("loads_count", loads(table, cpus));
    if gap > 0 && !sums {
        let name = exact.process.name();
        return Ok(finding.advise(format!(
            "raise oom_score_adj of {name}, or set memory.max of its group"
        )));
    }
    Ok(finding)
}

/// Returns whether `/proc` shows the initial PID namespace, whose process 1 the OOM killer spares.
///
/// Process 2 is the kernel's `kthreadd` there and nowhere else. This also holds for a recorded
/// machine, and for a procfs of another namespace than this process's, where the inode of
/// `/proc/self/ns/pid` says nothing.
fn is_initial_pid_namespace(machine: &Machine) -> bool {
    let second = machine.root().parse("proc/2/stat", parse::stat);
    second.is_ok_and(|stat| stat.comm == "kthreadd" && stat.vsize_bytes == 0)
}

/// The processes with the largest badness by either number.
fn candidates<'a>(
    machine: &Machine,
    table: &'a ProcessTable,
) -> Result<Vec<Candidate<'a>>, Missing> {
    let memory = machine.memory_kib()?;
    let pages = |kib: u64| i64::try_from(kib.saturating_mul(1024) / machine.page_bytes());
    let in_pages = |kib: u64| pages(kib).unwrap_or(i64::MAX);
    let of_memory = |name| memory.get(name).unwrap_or(0);
    let total = in_pages(of_memory("MemTotal").saturating_add(of_memory("SwapTotal")));
    let swapped = of_memory("SwapTotal").saturating_sub(of_memory("SwapFree"));
    let spares_first = is_initial_pid_namespace(machine);
    let mut candidates = Vec::new();
    for process in &table.processes {
        let path = format!("proc/{}/oom_score_adj", process.pid);
        let adjustment = machine
            .root()
            .parse(&path, parse::oom_score_adj)
            .unwrap_or(0);
        if (process.pid == 1 && spares_first) || adjustment == -1000 {
            continue;
        }
        let adjusted = (total / 1000).saturating_mul(i64::from(adjustment));
        let score = |pages: u64| signed(pages).saturating_add(adjusted);
        candidates.push(Candidate {
            process,
            cheap: score(process.counter_pages),
            exact: process.exact.map(|exact| score(exact.pages)),
            adjusted,
        });
    }
    let largest = |one: &Candidate<'_>| one.exact.unwrap_or(i64::MIN).max(one.cheap);
    candidates.sort_by_key(|one| std::cmp::Reverse(largest(one)));
    candidates.truncate(if swapped == 0 {
        CANDIDATES_MAX
    } else {
        CANDIDATES_WITH_SWAP_MAX
    });
    for one in &mut candidates {
        let path = format!("proc/{}/status", one.process.pid);
        if let Ok(status) = machine.root().parse(&path, parse::status) {
            let more = in_pages(status.vm_swap_kib.saturating_add(status.vm_pte_kib));
            one.cheap = one.cheap.saturating_add(more);
            one.exact = one.exact.map(|exact| exact.saturating_add(more));
        }
    }
    Ok(candidates)
}

/// Formats a badness.
fn shown(points: i64) -> String {
    let sign = if points < 0 { "-" } else { "" };
    format!("{sign}{}", counted(points.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::finding::Verdict;
    use crate::root::Root;

    /// Goal: the process that the counter names is read although others took all the time there
    /// was, a verdict on a part of the processes says so, and a right is named only where one is
    /// missing. Method: a table without exact numbers; then a machine without the rollup.
    #[test]
    fn the_process_that_the_counter_names_is_read() {
        let tree = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("proc/sys/kernel/osrelease", "6.1.0\n");
        file("sys/devices/system/cpu/online", "0-1\n");
        file("proc/meminfo", "MemTotal: 4000000 kB\n");
        for (pid, pages) in [(8, 5_000), (9, 6_000)] {
            let stat = format!("{pid} (p) S {}0 1 0 7 4096 {pages} 0 0\n", "0 ".repeat(15));
            file(&format!("proc/{pid}/stat"), &stat);
            file(
                &format!("proc/{pid}/statm"),
                &format!("9000 {pages} 0 0 0 0 0\n"),
            );
            file(&format!("proc/{pid}/smaps_rollup"), "Rss: 28000 kB\n");
        }
        let machine = Machine::open(Root::at(tree.path()).unwrap()).unwrap();
        let mut table = machine.processes().unwrap().clone();
        let of_all = judge(&machine, &table).unwrap();
        assert!(
            of_all.says.starts_with("p (9) by both numbers;"),
            "{}",
            of_all.says
        );
        for process in &mut table.processes {
            process.exact = None;
        }
        let found = judge(&machine, &table).unwrap();
        assert_eq!(found.verdict, Verdict::Ok);
        let says = &found.says;
        assert!(
            says.starts_with("p (9) by both numbers of those read;"),
            "{says}"
        );
        assert!(found.formula.contains("7,000 exact"), "{}", found.formula);
        fs::remove_file(tree.path().join("proc/9/smaps_rollup")).unwrap();
        let missing = judge(&machine, &table).unwrap_err();
        assert_eq!(
            missing.need,
            "needs /proc/9/smaps_rollup, which is not there"
        );
    }
}
