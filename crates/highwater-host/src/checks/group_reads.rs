//! Check 13: the time of reading a group's statistics.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, Verdict, counted, rounded};
use crate::groups::{GroupVersion, Groups, cpu_time};
use crate::machine::Machine;
use crate::parse;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 13,
    id: "group_reads",
    title: "reading group statistics",
    run,
    needs_interval: false,
    mechanism: "A read of memory.stat first adds up what each CPU counted for each group below, \
        if that is much. Groups that were removed stay in that sum while pages are charged to \
        them (dying groups). With tens of thousands of them a read took seconds.",
    formula: "99th percentile of the CPU time of 200 reads of memory.stat, in turn of the own \
        group, the root and the 10 largest; and the number of dying groups",
    thresholds: "1 ms is a hundred times the usual read, 10 ms shows in a monitor's own latency; \
        above 1,000 dying groups a warning. CPU time, because a spinning reader spends it, and \
        a preempted one does not.",
    thread: threads::FLUSH,
    kernels: "all; from 6.8 only a group's own subtree is summed, and only if much changed",
    advice: "read fewer groups, or less often; dying groups go when their pages are reclaimed",
};

const THRESHOLDS: Thresholds = Thresholds::above(1.0, 10.0);

/// Dying groups above which there is a warning.
const DYING_MAX: u64 = 1_000;

/// Reads in all.
const READS: usize = 200;

/// Groups that are read besides the own one and the root.
const LARGEST: usize = 10;

/// CPU time after which no further read begins.
const TIME_MAX: Duration = Duration::from_millis(10);

/// The longest that any file of statistics is, in bytes; longer ones are read in part.
const FILE_BYTES: usize = 16 << 10;

/// Times of reads, each sorted.
struct Times {
    cpu_us: Vec<f64>,
    wall_us: Vec<f64>,
    groups: usize,
}

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let groups = machine.groups()?;
    let dying = dying(machine, groups);
    if !machine.root().is_live() {
        // Without times, the number of dying groups alone can be judged.
        return match dying {
            Some(dying) if dying > DYING_MAX => Ok(warned(dying, groups.version)),
            _ => Ok(
                Finding::not_measurable("needs a live machine, to measure times")
                    .with("dying_groups_count", dying),
            ),
        };
    }
    let times = times(machine, groups)?;
    let (p50, p99) = (percentile(&times.cpu_us, 50), percentile(&times.cpu_us, 99));
    let figure = Figure {
        name: "read_p99",
        value: p99 / 1000.0,
        // The next rank below: how far the percentile of so few reads is known.
        error: (p99 - percentile(&times.cpu_us, 98)) / 1000.0,
        unit: Unit::Ms,
        thresholds: THRESHOLDS,
    };
    let dying_text = dying.map_or("an unknown number of".to_owned(), counted);
    let says = format!(
        "p50 {} us; {dying_text} dying groups{}",
        rounded(p50),
        groups.caveat()
    );
    let formula = format!(
        "{} reads of {} groups: CPU p50 {} us, p99 {} us; elapsed p99 {} us",
        times.cpu_us.len(),
        times.groups,
        rounded(p50),
        rounded(p99),
        rounded(percentile(&times.wall_us, 99))
    );
    let mut finding = Finding::judged(figure, says, formula)
        .with("read_p50_us", p50)
        .with("elapsed_p99_us", percentile(&times.wall_us, 99))
        .with("reads_count", times.cpu_us.len())
        .with("dying_groups_count", dying);
    if let Some(dying) = dying.filter(|dying| *dying > DYING_MAX) {
        let warning = warned(dying, groups.version);
        finding.verdict = finding.verdict.min(Verdict::Warn);
        finding.advice = warning.advice;
    }
    Ok(finding)
}

/// The warning of too many dying groups.
fn warned(dying: u64, version: GroupVersion) -> Finding {
    let says = format!("{} dying groups", counted(dying));
    let reclaim = match version {
        GroupVersion::V1 => "memory.force_empty of their parent",
        GroupVersion::V2 => "memory.reclaim",
    };
    let mut finding = Finding::fine(says)
        .with("dying_groups_count", dying)
        .advise(format!(
            "reclaim the pages of removed groups: {reclaim}, or vm.drop_caches once"
        ));
    finding.verdict = Verdict::Warn;
    finding.formula = format!("{dying} dying groups; a warning above {DYING_MAX}");
    finding
}

/// The number of groups that were removed and still hold pages; `None` where it cannot be told.
///
/// On v1 it is the number of the whole machine less the groups that exist, so that each of these
/// has to be visible.
fn dying(machine: &Machine, groups: &Groups) -> Option<u64> {
    let root = machine.root();
    match groups.version {
        GroupVersion::V2 => {
            let path = groups.file_at("/", "cgroup.stat");
            root.parse(&path, parse::counters)
                .ok()?
                .get("nr_dying_descendants")
        }
        GroupVersion::V1 if groups.is_complete && groups.is_whole => {
            let all = root.parse("proc/cgroups", parse::memory_groups).ok()??;
            Some(all.saturating_sub(groups.groups.len() as u64))
        }
        GroupVersion::V1 => None,
    }
}

fn times(machine: &Machine, groups: &Groups) -> Result<Times, Missing> {
    let mut largest: Vec<_> = groups.groups.iter().skip(1).collect();
    largest.sort_by_key(|group| std::cmp::Reverse(group.current_bytes));
    let mut paths = vec![groups.own.clone(), "/".to_owned()];
    paths.extend(largest.iter().take(LARGEST).map(|group| group.path.clone()));
    paths.sort_unstable();
    paths.dedup();
    let open = |path: &String| {
        machine
            .root()
            .open(&groups.file_at(path, "memory.stat"))
            .ok()
    };
    let files: Vec<_> = paths.iter().filter_map(open).collect();
    if files.is_empty() {
        return Err(Missing::new("needs the right to read a memory.stat"));
    }
    let mut times = Times {
        cpu_us: Vec::new(),
        wall_us: Vec::new(),
        groups: files.len(),
    };
    let mut bytes = vec![0_u8; FILE_BYTES];
    let start = cpu_time();
    for file in files.iter().cycle().take(READS) {
        let (cpu, wall) = (cpu_time(), Instant::now());
        // A group may have been removed meanwhile.
        let is_read = file.read_at(&mut bytes, 0).is_ok();
        let cpu = cpu_time().saturating_sub(cpu);
        if is_read {
            times.cpu_us.push(cpu.as_secs_f64() * 1e6);
            times.wall_us.push(wall.elapsed().as_secs_f64() * 1e6);
        }
        if cpu_time().saturating_sub(start) > TIME_MAX {
            break;
        }
    }
    if times.cpu_us.is_empty() {
        return Err(Missing::new(
            "needs a memory.stat that stays while it is read",
        ));
    }
    times.cpu_us.sort_by(f64::total_cmp);
    times.wall_us.sort_by(f64::total_cmp);
    Ok(times)
}

/// Returns the value below which `percent` of the sorted values lie; 0 for none.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}
