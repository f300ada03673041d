//! The page of the lab: each figure of the experiments, published ones beside ours.

use std::collections::BTreeMap;

use highwater_lab::report::{Measured, Unit};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Envelope;
use super::axis::{Axis, Scale};
use super::leaves::Range;
use super::machine::Machine;
use super::page::{Mood, Page, grid};
use super::rows::{self, Rows};
use super::table::{Cell, Line, table};

/// Figures that are drawn for an experiment; the tables hold all of them. Chosen: two screens.
const DRAWN_MAX: usize = 9;

/// The outcome of an experiment as the page needs it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    /// The outcome's own JSON object.
    pub(crate) outcome: Value,
    /// The conclusion in a line, if there is one.
    pub(crate) conclusion: Option<String>,
}

/// Wraps the outcomes of a run of the lab.
///
/// # Errors
///
/// When they cannot be represented.
pub(crate) fn envelope(entries: &[Entry]) -> Result<Envelope, String> {
    let data = serde_json::json!({
        "experiments": entries,
        "machine": highwater_lab::replay::Machine::detect(),
    });
    Envelope::new(super::Kind::Lab, &data)
}

#[derive(Deserialize)]
struct Data {
    experiments: Vec<Ran>,
    machine: Machine,
}

#[derive(Deserialize)]
struct Ran {
    outcome: Outcome,
    conclusion: Option<String>,
    /// Number of runs whose outcomes were merged into this one.
    #[serde(skip)]
    others: usize,
}

#[derive(Deserialize)]
struct Outcome {
    experiment: String,
    thread: String,
    config: Map<String, Value>,
    rows: Vec<Row>,
    published: Vec<Row>,
    checks: Vec<Check>,
    pass: bool,
}

#[derive(Deserialize)]
struct Row {
    variant: String,
    part: String,
    source: String,
    #[serde(flatten)]
    figures: Map<String, Value>,
    /// The least and the greatest value of a figure in repeated runs.
    #[serde(skip)]
    ranges: BTreeMap<String, [f64; 2]>,
}

#[derive(Deserialize)]
struct Check {
    name: String,
    want: String,
    got: String,
    pass: bool,
    judged: bool,
    #[serde(flatten)]
    measured: Option<Measured>,
}

/// Draws the page.
///
/// # Errors
///
/// When a part of the data is missing.
pub(super) fn page(envelope: &Envelope) -> serde_json::Result<Page> {
    let mut data = Data::deserialize(&envelope.data)?;
    data.experiments = merged(data.experiments);
    let outcomes = || data.experiments.iter().map(|ran| &ran.outcome);
    let passed = outcomes().filter(|outcome| outcome.pass).count();
    let judged = || {
        outcomes()
            .flat_map(|outcome| &outcome.checks)
            .filter(|c| c.judged)
    };
    let held = judged().filter(|check| check.pass).count();
    let (all, checks) = (data.experiments.len(), judged().count());
    let names: Vec<&str> = outcomes()
        .map(|outcome| outcome.experiment.as_str())
        .collect();
    let title = match names.as_slice() {
        [name] => format!("Experiment {name}"),
        _ => format!("{all} experiments"),
    };
    let failed: Vec<&str> = judged()
        .filter(|c| !c.pass)
        .map(|c| c.name.as_str())
        .collect();
    let verdict = verdict(&data, &failed, checks);
    let figures = outcomes()
        .flat_map(|o| &o.published)
        .map(|row| row.figures.len());
    Ok(Page {
        title,
        subtitle: if all == 1 {
            outcomes().map(|o| o.thread.clone()).collect()
        } else {
            names.join(", ")
        },
        verdict,
        tiles: vec![
            (
                format!("{held} / {checks}"),
                "judged checks hold".to_owned(),
            ),
            (format!("{passed} / {all}"), "experiments pass".to_owned()),
            (
                figures.sum::<usize>().to_string(),
                "published figures beside ours".to_owned(),
            ),
        ],
        sections: data.experiments.iter().map(section).collect(),
        foot: foot(envelope, &data),
    })
}

fn verdict(data: &Data, failed: &[&str], checks: usize) -> (String, Mood) {
    if let [first, ..] = failed {
        let text = format!(
            "{} of {checks} judged checks fail, first: {first}.",
            failed.len()
        );
        return (text, Mood::Bad);
    }
    let conclusion = match data.experiments.as_slice() {
        [ran] => ran.conclusion.as_deref(),
        _ => None,
    };
    let conclusion = conclusion.map_or_else(String::new, |said| format!(" {said}."));
    (
        format!("All {checks} judged checks hold.{conclusion}"),
        Mood::Good,
    )
}

fn foot(envelope: &Envelope, data: &Data) -> Vec<(String, String)> {
    let mut outcomes = data.experiments.iter().map(|ran| &ran.outcome);
    let seed = outcomes.find_map(|outcome| outcome.config.get("seed"));
    let mut foot = envelope.foot();
    foot.push(data.machine.line());
    foot.extend(seed.map(|seed| ("Seed".to_owned(), seed.to_string())));
    foot
}

fn section(ran: &Ran) -> (String, Markup) {
    let outcome = &ran.outcome;
    let mut parts: Vec<&str> = Vec::new();
    for row in outcome.published.iter().chain(&outcome.rows) {
        if !parts.contains(&row.part.as_str()) {
            parts.push(&row.part);
        }
    }
    let mut figures: Vec<Rows> = parts
        .iter()
        .flat_map(|part| beside(outcome, part))
        .collect();
    figures.truncate(DRAWN_MAX);
    let notes = outcome
        .config
        .iter()
        .filter(|(name, _)| name.starts_with("note_"));
    let content = html! {
        @if let Some(conclusion) = &ran.conclusion { p { (conclusion) "." } }
        @if ran.others > 0 {
            p {
                "Figures of this run are medians of " (ran.others + 1) " runs; bars reach from the "
                "least to the greatest. A check holds if it does in each run."
            }
        }
        @if !figures.is_empty() {
            (grid(figures.iter().map(Rows::markup)))
        }
        @for part in &parts { (rows(outcome, part)) }
        (checks(outcome))
        @for (_, note) in notes { @if let Some(note) = note.as_str() { p { (note) } } }
    };
    (outcome.experiment.clone(), content)
}

/// Merges repeated runs of an experiment: figures are medians with their ranges, and a check holds
/// if it does in each run. The runs of a report are of one command, so that the name tells them.
fn merged(experiments: Vec<Ran>) -> Vec<Ran> {
    let mut groups: Vec<Vec<Ran>> = Vec::new();
    for ran in experiments {
        let is_same = |group: &&mut Vec<Ran>| group[0].outcome.experiment == ran.outcome.experiment;
        match groups.iter_mut().find(is_same) {
            Some(group) => group.push(ran),
            None => groups.push(vec![ran]),
        }
    }
    groups.into_iter().filter_map(merge).collect()
}

fn merge(runs: Vec<Ran>) -> Option<Ran> {
    let mut runs = runs.into_iter();
    let mut first = runs.next()?;
    let others = runs.map(|ran| (ran.outcome, ran.conclusion));
    let (others, conclusions): (Vec<Outcome>, Vec<Option<String>>) = others.unzip();
    // One with the figures of a single run would contradict the medians beside it.
    if conclusions.iter().any(|other| *other != first.conclusion) {
        first.conclusion = None;
    }
    first.others = others.len();
    let outcome = &mut first.outcome;
    outcome.pass &= others.iter().all(|other| other.pass);
    for row in &mut outcome.rows {
        let is_same = |other: &&Row| (&other.part, &other.variant) == (&row.part, &row.variant);
        let others: Vec<&Row> = (others.iter())
            .filter_map(|outcome| outcome.rows.iter().find(is_same))
            .collect();
        for (name, value) in &mut row.figures {
            let numbers = (others.iter()).filter_map(|other| other.figures.get(name)?.as_f64());
            let values: Vec<f64> = value.as_f64().into_iter().chain(numbers).collect();
            if values.len() > 1
                && let Some(Range { low, median, high }) = Range::of(values)
            {
                row.ranges.insert(name.clone(), [low, high]);
                *value = median.into();
            }
        }
    }
    for check in &mut outcome.checks {
        let same = |other: &&Check| other.name == check.name;
        let others = others
            .iter()
            .filter_map(|outcome| outcome.checks.iter().find(same));
        if let Some(failed) = others.into_iter().find(|other| check.pass && !other.pass) {
            (check.pass, check.got) = (false, failed.got.clone());
            check.measured.clone_from(&failed.measured);
        }
    }
    Some(first)
}

/// Returns a figure for each name of a part that has published values: a row for each variant,
/// with a bar where the values of repeated runs are known, or the row says how far apart they lie.
fn beside(outcome: &Outcome, part: &str) -> Vec<Rows> {
    let of_part = |row: &&Row| row.part == part;
    let published: Vec<&Row> = outcome.published.iter().filter(of_part).collect();
    let ours: Vec<&Row> = outcome.rows.iter().filter(of_part).collect();
    let mut names: Vec<&String> = Vec::new();
    for row in &published {
        for (name, value) in &row.figures {
            let is_ours = ours
                .iter()
                .any(|row| row.figures.get(name).is_some_and(Value::is_number));
            if value.is_number() && is_ours && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
        .into_iter()
        .map(|name| one(part, name, &published, &ours))
        .collect()
}

fn one(part: &str, name: &str, published: &[&Row], ours: &[&Row]) -> Rows {
    let (unit, stem) = Unit::of(name);
    let mut drawn = Vec::new();
    for (colour, rows) in [(1, published), (0, ours)] {
        for row in rows {
            if let Some(value) = row.figures.get(name).and_then(Value::as_f64) {
                let range = row.ranges.get(name).copied();
                drawn.push(rows::Row {
                    name: row.variant.clone(),
                    source: row.source.clone(),
                    colour,
                    value,
                    shown: unit.shown(value),
                    range: range.or_else(|| interval(row, stem, unit, value)),
                });
            }
        }
    }
    let values = || drawn.iter().flat_map(rows::Row::values);
    let (low, high) = values().fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    let stem = stem.replace('_', " ");
    let axis = match low > 0.0 && high / low > 30.0 {
        true => Axis::log(&stem, unit, values()),
        false => Axis::linear(&stem, unit, values()),
    };
    let note = (axis.scale == Scale::Log).then(|| "The axis is logarithmic.".to_owned());
    Rows {
        title: format!("{stem}: {part}"),
        axis,
        rows: drawn,
        note,
    }
}

/// Returns the bounds of a figure that its row has beside it, under the usual names.
fn interval(row: &Row, stem: &str, unit: Unit, value: f64) -> Option<[f64; 2]> {
    let bound = |words: [&str; 3]| {
        let named = |name: &&String| {
            let (of, other) = Unit::of(name.as_str());
            of == unit && words.iter().any(|word| other == format!("{stem}_{word}"))
        };
        let name = row.figures.keys().find(named)?;
        row.figures.get(name).and_then(Value::as_f64)
    };
    let (low, high) = (
        bound(["low", "least", "min"]),
        bound(["high", "most", "max"]),
    );
    (low.is_some() || high.is_some()).then(|| [low.unwrap_or(value), high.unwrap_or(value)])
}

fn rows(outcome: &Outcome, part: &str) -> Markup {
    let rows = outcome.published.iter().chain(&outcome.rows);
    let rows: Vec<&Row> = rows.filter(|row| row.part == part).collect();
    let mut names: Vec<&String> = Vec::new();
    for row in &rows {
        names.extend(
            row.figures
                .keys()
                .filter(|name| !names.contains(name))
                .collect::<Vec<_>>(),
        );
    }
    let line = |row: &&Row| {
        let cell = |name: &&String| {
            row.figures
                .get(*name)
                .map_or_else(Cell::default, |v| cell(name, v))
        };
        let first = [Cell::text(&row.variant), Cell::text(&row.source)];
        Line::from(
            first
                .into_iter()
                .chain(names.iter().map(cell))
                .collect::<Vec<_>>(),
        )
    };
    let lines: Vec<Line> = rows.iter().map(line).collect();
    let headings: Vec<String> = names
        .iter()
        .map(|name| Unit::of(name).1.replace('_', " "))
        .collect();
    let headings = ["variant", "source"]
        .into_iter()
        .chain(headings.iter().map(String::as_str));
    table(part, &headings.collect::<Vec<_>>(), &lines)
}

fn cell(name: &str, value: &Value) -> Cell {
    match value {
        Value::String(text) => Cell::text(text),
        Value::Bool(flag) => Cell::text(if *flag { "yes" } else { "no" }),
        Value::Array(values) => {
            let shown = values
                .iter()
                .filter_map(Value::as_f64)
                .map(|v| Unit::of(name).0.shown(v));
            Cell::text(shown.collect::<Vec<_>>().join(" / "))
        }
        value => value.as_f64().map_or_else(
            || Cell::text("no number"),
            |number| Cell::number(Unit::of(name).0.shown(number), number),
        ),
    }
}

fn checks(outcome: &Outcome) -> Markup {
    let line = |check: &Check| Line {
        cells: vec![
            Cell::text(&check.name),
            Cell::text(&check.want),
            match &check.measured {
                Some(measured) => Cell::number(&check.got, measured.measured),
                None => Cell::text(&check.got),
            },
            Cell::text(match (check.judged, check.pass) {
                (false, _) => "not judged",
                (true, true) => "holds",
                (true, false) => "FAILS",
            }),
        ],
        is_grey: !check.judged,
    };
    let lines: Vec<Line> = outcome.checks.iter().map(line).collect();
    table("Checks", &["check", "want", "got", "verdict"], &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: repeated runs are one section, of medians, and say what every run says and nothing
    /// else. Method: three runs whose conclusions are alike or not, and one of another experiment.
    #[test]
    fn merged_runs_say_what_each_of_them_says() {
        let ran = |experiment: &str, conclusion: &str, time: u64| {
            let row =
                serde_json::json!({"variant": "v", "part": "p", "source": "s", "time_ns": time});
            let outcome = serde_json::json!({
                "experiment": experiment, "thread": "t", "config": {}, "rows": [row],
                "published": [], "checks": [], "pass": true,
            });
            let ran = serde_json::json!({"outcome": outcome, "conclusion": conclusion});
            Ran::deserialize(ran).expect("an outcome of a run")
        };
        for (last, said) in [("1 ns", Some("1 ns")), ("9 ns", None)] {
            let runs = [("1 ns", 3), ("1 ns", 1), (last, 2)];
            let mut runs = Vec::from(runs.map(|(said, time)| ran("one", said, time)));
            runs.insert(1, ran("other", "7 ns", 7));
            let merged = merged(runs);
            let shown = merged
                .iter()
                .map(|ran| (ran.conclusion.as_deref(), ran.others));
            assert_eq!(shown.collect::<Vec<_>>(), [(said, 2), (Some("7 ns"), 0)]);
            let row = &merged[0].outcome.rows[0];
            assert_eq!(row.figures["time_ns"], 2.0, "the median");
            assert_eq!(row.ranges["time_ns"], [1.0, 3.0]);
        }
        // Symptom: of two runs, the median here was the lower, where that of a comparison is the
        // upper.
        let two = [("1 ns", 3), ("1 ns", 1)].map(|(said, time)| ran("one", said, time));
        let row = &merged(two.into())[0].outcome.rows[0];
        let times = [3, 1].map(|time| serde_json::json!({"time_ns": time}));
        let range = super::super::leaves::spread(&times)["time_ns"];
        assert_eq!(row.figures["time_ns"], range.median);
    }
}
