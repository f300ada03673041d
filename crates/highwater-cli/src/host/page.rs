//! The page of all checks, for a person and as JSON.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};

use highwater_host::{Figure, GroupVersion, Machine, Scale, Verdict, amount, rounded};
use highwater_lab::report::wrapped;
use serde_json::{Map, Value, json};

use super::{Checked, explain};
use crate::report::host::{Data, Explained, Gauge};

/// Columns of a line; longer ones are cut.
const COLUMNS: usize = 120;

/// Clears the terminal and moves to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Returns what clears standard output, if it is a terminal.
pub(super) fn clear() -> &'static str {
    if io::stdout().is_terminal() {
        CLEAR
    } else {
        ""
    }
}

/// Every check in a line, worst first, and below them the advice for those that are not fine.
pub(super) fn text(machine: &Machine, checked: &[Checked]) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(page, "{}\n", heading(machine));
    for one in checked {
        let _ = writeln!(page, "{}", cut(&line(one)));
    }
    let advice: Vec<String> = checked.iter().filter_map(advice).collect();
    if !advice.is_empty() {
        let _ = writeln!(page, "\nAdvice");
        for line in advice {
            let _ = writeln!(page, "{line}");
        }
    }
    let _ = writeln!(page, "\nhighwater host --explain N says how and why");
    page
}

/// The machine in a line.
fn heading(machine: &Machine) -> String {
    let mut parts = Vec::new();
    parts.push(match machine.kernel() {
        Ok(kernel) => format!("Linux {kernel}"),
        Err(_) => "a kernel of unknown version".to_owned(),
    });
    if let Ok(cpus) = machine.cpus_online() {
        parts.push(format!("{cpus} CPUs"));
    }
    let memory = machine.memory_kib().ok();
    if let Some(kib) = memory.and_then(|memory| memory.get("MemTotal")) {
        parts.push(amount(kib.saturating_mul(1024)));
    }
    if let Ok(table) = machine.processes() {
        let hidden = if table.is_hidden { " visible" } else { "" };
        parts.push(format!("{} processes{hidden}", table.processes.len()));
    }
    parts.push(match machine.groups() {
        Ok(groups) => match groups.version {
            GroupVersion::V1 => "memory groups by cgroup v1".to_owned(),
            GroupVersion::V2 => "memory groups by cgroup v2".to_owned(),
        },
        Err(_) => "no memory groups".to_owned(),
    });
    if let Ok(interval) = machine.interval() {
        parts.push(format!("events of {} s", rounded(interval.seconds)));
    }
    if !machine.root().is_live() {
        parts.push("recorded".to_owned());
    }
    parts.join(", ")
}

/// A check in a line.
fn line((check, finding): &Checked) -> String {
    let (nr, title) = (check.nr, check.title);
    if finding.verdict == Verdict::NotMeasurable {
        return format!(
            "-    {nr:>2}  {title:<27}  not measurable here: {}",
            finding.says
        );
    }
    let verdict = finding.verdict;
    match &finding.figure {
        Some(figure) => format!(
            "{verdict:<4} {nr:>2}  {title:<27}  {:<16}  {:<20}  {}",
            figure.shown(),
            figure.limits(),
            finding.says
        ),
        None => format!("{verdict:<4} {nr:>2}  {title:<27}  {}", finding.says),
    }
}

/// Cuts a line at the page's width.
fn cut(line: &str) -> String {
    if line.chars().count() <= COLUMNS {
        return line.trim_end().to_owned();
    }
    let kept: String = line.chars().take(COLUMNS - 3).collect();
    format!("{}...", kept.trim_end())
}

/// The advice for a check that is not fine.
fn advice((check, finding): &Checked) -> Option<String> {
    if !matches!(finding.verdict, Verdict::Bad | Verdict::Warn) {
        return None;
    }
    // That for this machine, if there is one; `--explain` shows both.
    let advice = finding.advice.as_deref().unwrap_or(check.advice);
    let indented = wrapped(advice, COLUMNS - 4);
    Some(format!("{:>2}  {}", check.nr, indented.join("\n    ")))
}

/// The page as the data of a report.
pub(super) fn data(machine: &Machine, checked: &[Checked]) -> Data {
    Data {
        machine: heading(machine),
        result: json(machine, checked),
        checks: checked.iter().map(explained).collect(),
    }
}

fn explained(checked: &Checked) -> Explained {
    let (check, finding) = checked;
    // JSON has no infinite numbers: such a figure is shown by its text alone.
    let is_drawn = |figure: &&Figure| figure.value.is_finite() && figure.error.is_finite();
    let gauge = finding.figure.as_ref().filter(is_drawn).map(|figure| {
        let of = |value, error| {
            let figure = Figure {
                value,
                error,
                ..figure.clone()
            };
            figure.shown()
        };
        Gauge {
            value: figure.value,
            shown: of(figure.value, 0.0),
            error: figure.error,
            error_shown: of(figure.error, 0.0),
            warn: figure.thresholds.warn,
            bad: figure.thresholds.bad,
            is_falling: figure.thresholds.scale == Scale::Falling,
            limits: figure.limits(),
        }
    });
    let paragraphs = explain::paragraphs(checked).into_iter();
    Explained {
        nr: check.nr,
        title: check.title.to_owned(),
        verdict: finding.verdict.key().to_owned(),
        says: finding.says.clone(),
        gauge,
        paragraphs: paragraphs
            .map(|(name, text)| (name.to_owned(), text))
            .collect(),
    }
}

/// The page as JSON. Names are stable and end in their unit.
pub(super) fn json(machine: &Machine, checked: &[Checked]) -> Value {
    let count = |verdict: Verdict| {
        let of_verdict = checked
            .iter()
            .filter(|(_, finding)| finding.verdict == verdict);
        of_verdict.count()
    };
    let all: Vec<Value> = checked.iter().map(check_json).collect();
    json!({
        "kernel": machine.kernel().ok().map(|kernel| kernel.to_string()),
        "cpus_online_count": machine.cpus_online().ok(),
        "cpus_possible_count": machine.cpus_possible().ok(),
        "page_bytes": machine.page_bytes(),
        "processes_count": machine.processes().ok().map(|table| table.processes.len()),
        "is_live": machine.root().is_live(),
        "interval_s": machine.interval().ok().map(|interval| interval.seconds),
        "bad_count": count(Verdict::Bad),
        "warn_count": count(Verdict::Warn),
        "ok_count": count(Verdict::Ok),
        "not_measurable_count": count(Verdict::NotMeasurable),
        "checks": all,
    })
}

fn check_json((check, finding): &Checked) -> Value {
    let mut json = Map::new();
    json.insert("nr".to_owned(), check.nr.into());
    json.insert("id".to_owned(), check.id.into());
    json.insert("title".to_owned(), check.title.into());
    json.extend(finding.to_json());
    Value::Object(json)
}
