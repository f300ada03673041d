//! The comparison of two runs: each figure that differs, and whether the difference is noise.
//!
//! Noise is known only for figures of runs that were repeated (`replay --runs N`): if the values
//! of the runs overlap, the difference is noise. A time of a run that was not repeated tells
//! nothing by itself, and is marked so; counts that differ do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::leaves::{self, Range, Spread};
use super::page::{Mood, Page};
use super::table::{Cell, Line, table};
use super::{Envelope, Kind};

/// The meaning of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Meaning {
    /// The runs' values do not overlap, or the figure is a count of a run that is not repeated.
    Differs,
    /// The runs' values overlap.
    Noise,
    /// A time that was measured once on a side.
    Once,
}

/// A figure that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Difference {
    pub(crate) figure: String,
    pub(crate) a: Option<f64>,
    pub(crate) b: Option<f64>,
    /// `b / a - 1`, in percent; none where a side is missing or `a` is zero.
    pub(crate) change_percent: Option<f64>,
    pub(crate) meaning: Meaning,
}

/// Two runs compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) a: String,
    pub(crate) b: String,
    /// Settings that differ, with their values.
    pub(crate) settings: Vec<(String, String, String)>,
    /// Figures that are equal.
    pub(crate) equal: usize,
    pub(crate) differences: Vec<Difference>,
}

impl Comparison {
    /// Compares two runs under their names.
    pub(crate) fn new((a, of_a): (&str, &Value), (b, of_b): (&str, &Value)) -> Self {
        let (spread_a, spread_b) = (spread(of_a), spread(of_b));
        let (leaves_a, leaves_b) = (leaves::of(of_a), leaves::of(of_b));
        let mut figures: Vec<&String> = leaves_a.keys().chain(leaves_b.keys()).collect();
        figures.sort_unstable();
        figures.dedup();
        let mut this = Self {
            a: a.to_owned(),
            b: b.to_owned(),
            settings: settings(of_a, of_b),
            equal: 0,
            differences: Vec::new(),
        };
        for figure in figures {
            let (a, b) = (leaves_a.get(figure).copied(), leaves_b.get(figure).copied());
            if a == b {
                this.equal += 1;
                continue;
            }
            let sides = [(a, spread_a.get(figure)), (b, spread_b.get(figure))];
            let change = a.filter(|a| *a != 0.0).zip(b);
            this.differences.push(Difference {
                figure: figure.clone(),
                a,
                b,
                change_percent: change.map(|(a, b)| (b / a - 1.0) * 100.0),
                meaning: meaning(figure, sides),
            });
        }
        this
    }

    fn count(&self, meaning: Meaning) -> usize {
        let of = self.differences.iter();
        of.filter(|difference| difference.meaning == meaning)
            .count()
    }

    /// Returns the comparison in a sentence.
    pub(crate) fn verdict(&self) -> String {
        let [differ, noise, once] =
            [Meaning::Differs, Meaning::Noise, Meaning::Once].map(|meaning| self.count(meaning));
        let once = match once {
            0 => String::new(),
            _ => format!(", {once} measured once (repeat the runs with `replay --runs 5`)"),
        };
        format!(
            "{differ} figures differ, {noise} within noise{once}, {} equal",
            self.equal
        )
    }
}

fn spread(run: &Value) -> Spread {
    let spread = run.get("spread").cloned();
    spread
        .and_then(|spread| serde_json::from_value(spread).ok())
        .unwrap_or_default()
}

fn meaning(figure: &str, sides: [(Option<f64>, Option<&Range>); 2]) -> Meaning {
    let [Some([a_low, a_high]), Some([b_low, b_high])] = sides.map(|(value, range)| {
        range
            .map(|range| [range.low, range.high])
            .or(value.map(|value| [value; 2]))
    }) else {
        return Meaning::Differs;
    };
    if a_low <= b_high && b_low <= a_high {
        return Meaning::Noise;
    }
    let is_time = ["_us", "_ns", "_s", "rss_", "kernel_cached"];
    let is_time = figure.split('.').any(|part| {
        is_time
            .iter()
            .any(|word| part.ends_with(word) || part.starts_with(word))
    });
    let is_once = sides.iter().any(|(_, range)| range.is_none());
    if is_time && is_once {
        Meaning::Once
    } else {
        Meaning::Differs
    }
}

/// Returns the settings that differ: texts, and fields that are no figures.
fn settings(a: &Value, b: &Value) -> Vec<(String, String, String)> {
    let (mut of_a, mut of_b) = (BTreeMap::new(), BTreeMap::new());
    for (run, settings) in [(a, &mut of_a), (b, &mut of_b)] {
        for (name, value) in run.as_object().into_iter().flatten() {
            let is_list = matches!(value, Value::Array(_));
            let is_setting = value.is_string()
                || ["seed", "machine", "knobs", "config", "runs"].contains(&name.as_str());
            if is_setting && !is_list {
                settings.insert(name.clone(), value.clone());
            }
        }
    }
    let text = |value: Option<&Value>| match value {
        None => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let mut names: Vec<&String> = of_a.keys().chain(of_b.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let differs = |name: &&&String| of_a.get(**name) != of_b.get(**name);
    let pair = |name: &String| (name.clone(), text(of_a.get(name)), text(of_b.get(name)));
    names
        .iter()
        .filter(differs)
        .map(|name| pair(name))
        .collect()
}

/// Wraps a comparison.
///
/// # Errors
///
/// When it cannot be represented.
pub(crate) fn envelope(comparison: &Comparison) -> Result<Envelope, String> {
    Envelope::new(Kind::Compare, comparison)
}

/// Returns the cells of a difference: figure, values, change, meaning.
pub(crate) fn cells(difference: &Difference) -> [String; 5] {
    let shown = |value: Option<f64>| {
        value.map_or_else(
            || "none".to_owned(),
            |value| leaves::shown(&difference.figure, value),
        )
    };
    let change = difference.change_percent;
    let change = change.map_or_else(String::new, |change| format!("{change:+.1} %"));
    let meaning = match difference.meaning {
        Meaning::Differs => "differs",
        Meaning::Noise => "noise",
        Meaning::Once => "once",
    };
    [
        difference.figure.clone(),
        shown(difference.a),
        shown(difference.b),
        change,
        meaning.to_owned(),
    ]
}

/// Draws the page.
///
/// # Errors
///
/// When a part of the data is missing.
pub(super) fn page(envelope: &Envelope) -> serde_json::Result<Page> {
    let comparison = Comparison::deserialize(&envelope.data)?;
    let line = |difference: &Difference| {
        let [figure, a, b, change, meaning] = cells(difference);
        let number = |text: String, value: Option<f64>| match value {
            Some(value) => Cell::number(text, value),
            None => Cell::text(text),
        };
        Line {
            cells: vec![
                Cell::text(figure),
                number(a, difference.a),
                number(b, difference.b),
                number(change, difference.change_percent),
                Cell::text(meaning),
            ],
            is_grey: difference.meaning != Meaning::Differs,
        }
    };
    let lines: Vec<Line> = comparison.differences.iter().map(line).collect();
    let setting =
        |(name, a, b): &(String, String, String)| Line::from([name, a, b].map(Cell::text).to_vec());
    let settings: Vec<Line> = comparison.settings.iter().map(setting).collect();
    let count = |meaning| comparison.count(meaning).to_string();
    let caption = "Grey: noise, or a time that was measured once";
    let headings = ["figure", "a", "b", "change", "meaning"];
    Ok(Page {
        title: "Comparison of two runs".to_owned(),
        subtitle: format!("a: {}; b: {}", comparison.a, comparison.b),
        verdict: (format!("{}.", comparison.verdict()), Mood::Neutral),
        tiles: vec![
            (count(Meaning::Differs), "figures differ".to_owned()),
            (count(Meaning::Noise), "within noise".to_owned()),
            (comparison.equal.to_string(), "equal".to_owned()),
        ],
        sections: vec![
            ("Figures".to_owned(), table(caption, &headings, &lines)),
            (
                "Settings".to_owned(),
                table("Settings that differ", &["setting", "a", "b"], &settings),
            ),
        ],
        foot: envelope.foot(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal: overlapping values are noise, separate ones are not, and a single time tells nothing.
    #[test]
    fn a_difference_within_the_spread_is_noise() {
        let range = |low: f64, high: f64| json!({"low": low, "median": low, "high": high});
        let spread = json!({"elapsed_s": range(1.0, 2.0), "hits": range(5.0, 5.0), "read_us": range(1.0, 2.0)});
        let a = json!({"elapsed_s": 1.0, "hits": 5, "read_us": 1.0, "policy": "clock", "spread": spread});
        let b = json!({"elapsed_s": 1.9, "hits": 6, "read_us": 3.0, "policy": "sieve"});
        let found = Comparison::new(("a", &a), ("b", &b));
        let meanings: Vec<_> = found
            .differences
            .iter()
            .map(|d| (d.figure.as_str(), d.meaning))
            .collect();
        let want = [
            ("elapsed_s", Meaning::Noise),
            ("hits", Meaning::Differs),
            ("read_us", Meaning::Once),
        ];
        assert_eq!(meanings, want);
        let setting = ["policy", "clock", "sieve"].map(str::to_owned);
        assert_eq!(found.settings, [setting.into()]);
        assert_eq!(Comparison::new(("a", &a), ("a", &a)).differences, []);
    }
}
