//! `highwater host rss`: the processes by the cheap counter and by the exact number.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use highwater_host::{
    Effort, Machine, Process, ProcessTable, bound_pages, counted, printable, rounded,
};
use serde_json::{Value, json};

use super::{machine, unusable};
use crate::Exit;
use crate::number_arg::whole;
use crate::output::print;

const EXAMPLES: &str = "\
Examples:
  highwater host rss
      the 20 largest processes
  highwater host rss --sort error --top 5
      those whose counter is off most
  highwater host rss --json --top 0
      every process, as JSON

The counter is field 24 of /proc/PID/stat, which VmHWM and ru_maxrss follow. The exact number is
statm where the kernel sums it, else smaps_rollup, which needs the right to trace the process.";

/// Arguments of `highwater host rss`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RssArguments {
    /// Largest first by this number
    #[arg(long, value_enum, default_value_t = Sort::Exact)]
    sort: Sort,

    /// Show so many processes; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = whole::<usize>(0..=u32::MAX.into(), ""))]
    top: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Read proc below this directory, for a recorded machine
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// An order of the table.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sort {
    /// The exact number; the counter's where there is none
    Exact,
    /// The cheap counter
    Counter,
    /// The counter's error, either way
    Error,
    /// The counter's bound
    Bound,
}

/// A process with its ranks.
struct Row<'a> {
    process: &'a Process,
    bound_pages: Option<u64>,
    counter_rank: usize,
    /// Among the processes whose exact number is known.
    exact_rank: Option<usize>,
}

impl Row<'_> {
    /// Whether the order of the processes differs by the two numbers.
    fn is_moved(&self) -> bool {
        self.exact_rank
            .is_some_and(|rank| rank != self.counter_rank)
    }

    fn key(&self, sort: Sort) -> u64 {
        let process = self.process;
        let exact = process.exact.map(|exact| exact.pages);
        match sort {
            Sort::Exact => exact.unwrap_or(process.counter_pages),
            Sort::Counter => process.counter_pages,
            Sort::Error => process.error_pages().map_or(0, i64::unsigned_abs),
            Sort::Bound => self.bound_pages.unwrap_or(0),
        }
    }
}

/// Prints the table.
pub(crate) fn run(arguments: &RssArguments) -> Exit {
    let machine = match machine(&arguments.root) {
        Ok(machine) => machine,
        Err(exit) => return exit,
    };
    let table = match ProcessTable::read(&machine, Effort::Whole) {
        Ok(table) => table,
        Err(missing) => return unusable(format_args!("no table of processes: {missing}")),
    };
    let mut rows = rows(&machine, &table);
    rows.sort_by_key(|row| (Reverse(row.key(arguments.sort)), row.process.pid));
    let all = rows.len();
    let moved = rows.iter().filter(|row| row.is_moved()).count();
    if arguments.top > 0 {
        rows.truncate(arguments.top);
    }
    let shown = if arguments.json {
        format!("{}\n", json(&machine, &table, &rows, moved))
    } else {
        text(&table, &rows, all, moved)
    };
    match print(format_args!("{shown}")) {
        Ok(()) => Exit::Fine,
        Err(e) => unusable(format_args!("cannot write the table: {e}")),
    }
}

/// The rows of all processes. Ranks are among the processes whose exact number is known.
fn rows<'a>(machine: &Machine, table: &'a ProcessTable) -> Vec<Row<'a>> {
    let known = || {
        table
            .processes
            .iter()
            .filter(|process| process.exact.is_some())
    };
    let rank_of = |key: &dyn Fn(&Process) -> u64| {
        let mut order: Vec<&Process> = known().collect();
        // A tie is the same order by both numbers.
        order.sort_by_key(|process| (Reverse(key(process)), process.pid));
        order.iter().map(|process| process.pid).collect::<Vec<_>>()
    };
    let by_counter = rank_of(&|process| process.counter_pages);
    let by_exact = rank_of(&|process| process.exact.map_or(0, |exact| exact.pages));
    let place = |order: &[u32], pid| order.iter().position(|own| *own == pid).map(|at| at + 1);
    let bound = |process: &Process| {
        let (kernel, cpus) = (machine.kernel().ok()?, machine.cpus_online().ok()?);
        Some(bound_pages(kernel, cpus, process.threads))
    };
    let row = |process: &'a Process| Row {
        process,
        bound_pages: bound(process),
        counter_rank: place(&by_counter, process.pid).unwrap_or(0),
        exact_rank: place(&by_exact, process.pid),
    };
    table.processes.iter().map(row).collect()
}

fn text(table: &ProcessTable, rows: &[Row<'_>], all: usize, moved: usize) -> String {
    let mut text = format!(
        "{:>8} {:>15} {:>7} {:>12} {:>12} {:>11} {:>9} {:>11} {:>11} {:>9}\n",
        "pid",
        "program",
        "threads",
        "counter",
        "exact",
        "error",
        "error %",
        "bound",
        "rank",
        "cost us"
    );
    for row in rows {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", line(row));
    }
    let file = table.exact_by.file();
    let known = table
        .processes
        .iter()
        .filter(|process| process.exact.is_some());
    let _ = writeln!(
        text,
        "\n{} of {all} processes; counter, exact, error and bound in pages; exact by {file}, \
         read of {}.\nrank: by counter, then by exact number; {moved} processes differ.{}",
        rows.len(),
        known.count(),
        table.caveat()
    );
    text
}

fn line(row: &Row<'_>) -> String {
    let process = row.process;
    let dash = || "-".to_owned();
    let exact = process
        .exact
        .map_or_else(dash, |exact| counted(exact.pages));
    let error = process.error_pages().map_or_else(dash, |error| {
        let sign = if error < 0 { "-" } else { "" };
        format!("{sign}{}", counted(error.unsigned_abs()))
    });
    let percent = percent(process).map_or_else(dash, rounded);
    let cost = cost_us(process).map_or_else(dash, rounded);
    let ranks = match row.exact_rank {
        Some(exact) if row.is_moved() => format!("{} > {exact}", row.counter_rank),
        Some(exact) => exact.to_string(),
        None => dash(),
    };
    let bound = row.bound_pages.map_or_else(dash, counted);
    let program: String = printable(&process.comm).chars().take(15).collect();
    format!(
        "{:>8} {program:>15} {:>7} {:>12} {exact:>12} {error:>11} {percent:>9} {bound:>11} \
         {ranks:>11} {cost:>9}",
        process.pid,
        process.threads,
        counted(process.counter_pages)
    )
}

#[expect(clippy::cast_precision_loss, reason = "a percentage has three digits")]
fn percent(process: &Process) -> Option<f64> {
    let exact = process.exact?.pages;
    let error = process.error_pages()?;
    (exact > 0).then(|| 100.0 * error as f64 / exact as f64)
}

/// CPU time of the exact read, if it was measured.
fn cost_us(process: &Process) -> Option<f64> {
    let cost = process.exact?.cost;
    (!cost.is_zero()).then_some(cost.as_secs_f64() * 1e6)
}

fn json(machine: &Machine, table: &ProcessTable, rows: &[Row<'_>], moved: usize) -> Value {
    let of_row = |row: &Row<'_>| {
        let process = row.process;
        let exact = process.exact;
        json!({
            "pid": process.pid,
            "comm": process.comm,
            "threads_count": process.threads,
            "counter_pages": process.counter_pages,
            "statm_pages": process.statm_pages,
            "exact_pages": exact.map(|exact| exact.pages),
            "exact_error_pages": exact.map(|exact| exact.error_pages),
            "error_pages": process.error_pages(),
            "error_percent": percent(process),
            "bound_pages": row.bound_pages,
            "counter_rank": row.exact_rank.map(|_| row.counter_rank),
            "exact_rank": row.exact_rank,
            "cost_us": cost_us(process),
        })
    };
    json!({
        "kernel": machine.kernel().ok().map(|kernel| kernel.to_string()),
        "page_bytes": machine.page_bytes(),
        "exact_by": table.exact_by.file(),
        "is_hidden": table.is_hidden,
        "processes_count": table.processes.len(),
        "order_differs_count": moved,
        "processes": rows.iter().map(of_row).collect::<Vec<_>>(),
    })
}
