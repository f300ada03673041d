//! The numbers of a JSON object by their paths, and their spread over several runs.

use std::collections::BTreeMap;

use highwater_lab::report::Unit;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::table::{Cell, Line};

/// Lowest, median and highest value of each figure.
pub(crate) type Spread = BTreeMap<String, Range>;

/// Values of one figure in several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Range {
    /// Returns the range of some values, in any order; `None` without one.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        Some(Self {
            low: *values.first()?,
            median: *values.get(middle(values.len()))?,
            high: *values.last()?,
        })
    }
}

/// Returns the place of the median of so many sorted values: of two, that of the upper one.
pub(crate) const fn middle(count: usize) -> usize {
    count / 2
}

/// Fields that describe the set-up or an element, rather than a result.
const NO_FIGURES: [&str; 8] = [
    "spread",
    "runs",
    "knobs",
    "machine",
    "trace",
    "seed",
    "config",
    "published",
];

/// Returns the numbers of a run by their paths, in the order of these. Elements of lists are named
/// by their `name`, their `part` and `variant`, their `policy` or their `id`.
pub(crate) fn of(run: &Value) -> BTreeMap<String, f64> {
    let mut leaves = BTreeMap::new();
    collect(run, String::new(), &mut leaves);
    leaves
}

fn collect(value: &Value, path: String, leaves: &mut BTreeMap<String, f64>) {
    let below = |name: &str| match path.as_str() {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match value {
        Value::Number(number) => {
            leaves.extend(number.as_f64().map(|number| (path, number)));
        }
        Value::Object(fields) => {
            // The number of a process is a name: its value says nothing about the run.
            let is_pid = |name: &str| name == "pid" || name.ends_with("_pid");
            let is_figure = |name: &&String| !NO_FIGURES.contains(&name.as_str()) && !is_pid(name);
            for (name, value) in fields.iter().filter(|(name, _)| is_figure(name)) {
                collect(value, below(name), leaves);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                let text = |field: &str| element.get(field).and_then(Value::as_str);
                let pair = text("part").zip(text("variant"));
                let pair = pair.map(|(part, variant)| format!("{part}.{variant}"));
                let one = |field| text(field).map(str::to_owned);
                let name = one("name").or(pair).or(one("policy")).or(one("id"));
                let name = name.unwrap_or_else(|| index.to_string());
                collect(element, below(&name), leaves);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Returns the spread of the figures that all runs have.
pub(crate) fn spread(runs: &[Value]) -> Spread {
    spread_of_at_least(runs.len(), runs)
}

/// Returns the spread of the figures that at least `least` runs have, over the runs that have each.
pub(super) fn spread_of_at_least(least: usize, runs: &[Value]) -> Spread {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (path, value) in runs.iter().flat_map(of) {
        values.entry(path).or_default().push(value);
    }
    let often = values
        .into_iter()
        .filter(|(_, values)| values.len() >= least);
    often
        .filter_map(|(path, values)| Some((path, Range::of(values)?)))
        .collect()
}

/// Returns a figure's value with the unit that its path tells.
pub(crate) fn shown(path: &str, value: f64) -> String {
    // `hit_latency_us.p50`: the unit is in the last part of the path that has one.
    let units = path.rsplit('.').map(|part| Unit::of(part).0);
    let unit = units.into_iter().find(|unit| *unit != Unit::Plain);
    unit.unwrap_or(Unit::Plain).shown(value)
}

/// Returns a row for each figure that differs between the runs.
pub(super) fn lines(spread: &Spread) -> Vec<Line> {
    let differs = |range: &Range| range.low < range.high;
    let figures = spread.iter().filter(|(_, range)| differs(range));
    let line = |(path, range): (&String, &Range)| {
        let cell = |value| Cell::number(shown(path, value), value);
        let cells = [range.low, range.median, range.high].map(cell);
        Line::from([vec![Cell::text(path)], cells.to_vec()].concat())
    };
    figures.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal: numbers are found under stable names, also in lists, and the set-up is left out.
    #[test]
    fn numbers_have_paths() {
        let run = json!({
            "seed": 7, "hits": 3, "knobs": {"batch": 63}, "is_clean": true,
            "miss_latency_us": {"p50": 1.5},
            "tenants": [{"name": "web", "hits": 2, "trace": {"bad_records": 0}}],
            "rows": [{"part": "cost", "variant": "ours", "read_ns": 4.0}]
        });
        let found: Vec<_> = of(&run).into_iter().collect();
        let want = [
            ("hits", 3.0),
            ("miss_latency_us.p50", 1.5),
            ("rows.cost.ours.read_ns", 4.0),
            ("tenants.web.hits", 2.0),
        ];
        assert_eq!(found, want.map(|(path, value)| (path.to_owned(), value)));
        assert_eq!(shown("miss_latency_us.p50", 1500.0), "1.5 ms");
        assert_eq!(shown("tenants.web.hits", 2.0), "2");
    }

    #[test]
    fn the_spread_is_of_figures_that_all_runs_have() {
        let runs = [3, 9, 4].map(|hits| json!({"hits": hits, "pages": 5}));
        let found = spread(&runs);
        let range = Range {
            low: 3.0,
            median: 4.0,
            high: 9.0,
        };
        assert_eq!(found.get("hits"), Some(&range));
        assert_eq!(lines(&found).len(), 1, "`pages` does not differ");
        assert!(spread(&[json!({"a": 1}), json!({"b": 1})]).is_empty());
    }
}
