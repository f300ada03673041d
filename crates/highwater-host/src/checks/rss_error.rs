//! Check 2: by how much the cheap counter of resident pages is off now.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, amount, counted, float, share};
use crate::machine::Machine;
use crate::process::{Exact, ExactBy, Process, ProcessTable};
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 2,
    id: "rss_error",
    title: "RSS error, live",
    run,
    needs_interval: false,
    mechanism: "What threads or CPUs hold back of a process's counters is missing from stat field \
        24, from VmHWM and ru_maxrss, and on older kernels from VmRSS and statm too. Ten thousand \
        threads with 32 pages each showed 43 of 1,323 MB on 6.1; a thread that visits many CPUs \
        leaves a part of its pages on each.",
    formula: "(stat field 24 - exact pages) / exact pages, the worst process of those with 16 MiB \
        or an error of 4 MiB; exact by statm where the kernel sums it, else by smaps_rollup",
    thresholds: "2 % is the error that a memory limit's usual headroom hides; 10 % misleads the \
        choice of a victim. Smaller processes are left out: a few pages are much of them.",
    thread: threads::TREE,
    kernels: "all",
    advice: "read smaps_rollup (or statm where it is exact) of the named processes",
};

const THRESHOLDS: Thresholds = Thresholds::above(2.0, 10.0);

/// Processes of fewer bytes are judged only if their error is large.
const LARGE_BYTES: u64 = 16 << 20;

/// An error of so many bytes counts in any process.
const LARGE_ERROR_BYTES: u64 = 4 << 20;

/// Processes that are named at most.
const NAMED_MAX: usize = 3;

/// A process whose error is known.
struct Measured<'a> {
    process: &'a Process,
    exact: Exact,
    error_pages: i64,
}

impl Measured<'_> {
    fn percent(&self) -> f64 {
        100.0 * float(self.error_pages.unsigned_abs()) / float(self.exact.pages.max(1))
    }

    fn named(&self) -> String {
        let pages = counted(self.error_pages.unsigned_abs());
        let side = if self.error_pages < 0 { "few" } else { "many" };
        format!("{}: {pages} pages too {side}", self.process.name())
    }
}

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let table = machine.processes()?;
    let of_process = |process| {
        let process: &Process = process;
        Some(Measured {
            process,
            exact: process.exact?,
            error_pages: process.error_pages()?,
        })
    };
    let all: Vec<Measured<'_>> = table.processes.iter().filter_map(of_process).collect();
    if all.is_empty() {
        return Err(Missing::new(
            "needs the right to read smaps_rollup of a process",
        ));
    }
    let bytes = |pages: u64| pages.saturating_mul(machine.page_bytes());
    let errors = all.iter().map(|one| one.error_pages);
    let sum = errors.fold(0, i64::saturating_add);
    let measured = all.len();
    let mut large: Vec<Measured<'_>> = all
        .into_iter()
        .filter(|one| {
            bytes(one.exact.pages) >= LARGE_BYTES
                || bytes(one.error_pages.unsigned_abs()) >= LARGE_ERROR_BYTES
        })
        .collect();
    large.sort_by(|a, b| b.percent().total_cmp(&a.percent()));
    let read = format!("{measured} of {} processes read", table.processes.len());
    let finding = match large.first() {
        None => Finding::fine(format!("no process of 16 MiB; {read}{}", table.caveat())),
        Some(_) => judged(table, &large, &read),
    };
    let off = amount(bytes(sum.unsigned_abs()));
    let text = if sum < 0 { format!("-{off}") } else { off };
    let is_summed = table.exact_by == ExactBy::Statm;
    Ok(finding
        .with("all_processes_error_pages", sum)
        .with("all_processes_error", text)
        .with("measured_count", measured)
        .with("statm_is_exact", is_summed))
}

/// The finding of processes that are large enough, the worst first.
fn judged(table: &ProcessTable, large: &[Measured<'_>], read: &str) -> Finding {
    let file = table.exact_by.file();
    let worst = &large[0];
    let figure = Figure {
        name: "rss_error",
        value: worst.percent(),
        error: 100.0 * share(worst.exact.error_pages, worst.exact.pages),
        unit: Unit::Percent,
        thresholds: THRESHOLDS,
    };
    let formula = format!(
        "|{} - {}| pages / {} pages of {}, exact by {file}; {read}",
        counted(worst.process.counter_pages),
        counted(worst.exact.pages),
        counted(worst.exact.pages),
        worst.process.name()
    );
    let beyond = |one: &&Measured<'_>| one.percent() > THRESHOLDS.warn;
    let named: Vec<String> = large.iter().filter(beyond).map(Measured::named).collect();
    let more = match named.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(", {more} more"),
    };
    let names = named.iter().take(NAMED_MAX).cloned();
    let list = names.collect::<Vec<_>>().join(", ") + &more;
    let says = format!("{}{}", worst.named(), table.caveat());
    let finding = Finding::judged(figure, says, formula)
        .with("pid", worst.process.pid)
        .with("rss_error_pages", worst.error_pages)
        .with("exact_pages", worst.exact.pages)
        .with("counter_pages", worst.process.counter_pages);
    if named.is_empty() {
        finding
    } else {
        finding.advise(format!("read {file} instead of stat field 24: {list}"))
    }
}
