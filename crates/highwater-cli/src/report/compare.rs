//! The comparison of two runs: each figure that differs, and whether the difference is noise.
//!
//! Noise is known only for figures of runs that were repeated (`replay --runs N`, or several
//! outcomes in one file): if the values of the runs overlap, the difference is noise. A figure of a
//! run that was not repeated tells nothing by itself, and is marked so, if it is a time or a count
//! that another run need not repeat. Other counts that differ do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::counts::{RepeatedCounts, is_time};
use super::leaves::{self, Range, Spread};
use super::page::{Mood, Page};
use super::settings::{self, Settings};
use super::table::{Cell, Line, table};
use super::{Envelope, Kind};

/// The meaning of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Meaning {
    /// The runs' values do not overlap, or the figure is a count that each run repeats.
    Differs,
    /// The runs' values overlap.
    Noise,
    /// A time, or a count that differs from run to run, that was measured once on a side.
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

/// The runs of a file: of one kind, and one or several of each experiment.
#[derive(Debug)]
pub(crate) struct Runs {
    /// The subcommand that ran.
    kind: &'static str,
    /// Sides by experiment; those of other kinds have an empty name.
    sides: BTreeMap<String, Side>,
}

/// One run, or repeated runs, of one thing.
#[derive(Debug)]
struct Side {
    settings: Settings,
    /// Figures by their paths: medians if the runs are repeated.
    figures: BTreeMap<String, f64>,
    spread: Spread,
    counts: RepeatedCounts,
}

impl Runs {
    /// Sorts the outcomes of a file. Those of one kind and experiment are repeated runs.
    ///
    /// # Errors
    ///
    /// When there is none, one is of no known kind, or they are of several.
    pub(crate) fn new(outcomes: Vec<Value>) -> Result<Self, String> {
        let mut by_name: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let mut kind = None;
        for outcome in outcomes {
            let Some((own, name)) = identity(&outcome) else {
                return Err(
                    "it is no run: expected the JSON of `replay`, `curve`, `lab` or `host`, or \
                     a report of one"
                        .to_owned(),
                );
            };
            let first = *kind.get_or_insert(own);
            if first != own {
                return Err(format!("it has runs of both `{first}` and `{own}`"));
            }
            by_name.entry(name).or_default().push(outcome);
        }
        let kind = kind.ok_or("it holds no run")?;
        let sides = by_name.into_iter();
        Ok(Self {
            kind,
            sides: sides
                .filter_map(|(name, runs)| Some((name, Side::new(kind, &runs)?)))
                .collect(),
        })
    }
}

impl Side {
    /// `None` without a run.
    fn new(kind: &str, runs: &[Value]) -> Option<Self> {
        // A run may lack a figure: a check that was not measurable, a latency without a sample. One
        // that a single run has was measured once.
        let repeated = (runs.len() > 1).then(|| leaves::spread_of_at_least(2, runs));
        let all = leaves::spread_of_at_least(1, runs);
        let medians = all.into_iter().map(|(path, range)| (path, range.median));
        let figures = medians.collect();
        let run = runs.last()?;
        Some(Self {
            settings: settings::of(runs),
            spread: repeated.unwrap_or_else(|| spread(run)),
            counts: RepeatedCounts::of(kind, run),
            figures,
        })
    }
}

/// Returns the subcommand that printed an outcome, and the experiment's name.
fn identity(outcome: &Value) -> Option<(&'static str, String)> {
    let has = |fields: &[&str]| fields.iter().all(|field| outcome.get(field).is_some());
    let experiment = outcome.get("experiment").and_then(Value::as_str);
    match experiment {
        Some(name) if has(&["rows", "checks"]) => Some(("lab", name.to_owned())),
        _ if has(&["page_accesses", "policy"]) => Some(("replay", String::new())),
        _ if has(&["tenants", "samples_max"]) => Some(("curve", String::new())),
        _ if has(&["checks", "bad_count"]) => Some(("host", String::new())),
        _ => None,
    }
}

impl Comparison {
    /// Compares two files of runs under their names.
    ///
    /// # Errors
    ///
    /// When the two have nothing in common.
    pub(crate) fn new((a, of_a): (&str, &Runs), (b, of_b): (&str, &Runs)) -> Result<Self, String> {
        if of_a.kind != of_b.kind {
            return Err(format!(
                "cannot compare a run of `{}` ({a}) with one of `{}` ({b}): give two of one kind",
                of_a.kind, of_b.kind
            ));
        }
        let names: BTreeSet<&String> = of_a.sides.keys().chain(of_b.sides.keys()).collect();
        let is_alone = names.len() == 1;
        let mut this = Self {
            a: a.to_owned(),
            b: b.to_owned(),
            settings: Vec::new(),
            equal: 0,
            differences: Vec::new(),
        };
        let mut nr_met = 0;
        for name in &names {
            let prefix = match is_alone {
                true => String::new(),
                false => format!("{name}."),
            };
            let sides = [of_a, of_b].map(|runs| runs.sides.get(*name));
            if let [Some(a), Some(b)] = sides {
                this.add(&prefix, a, b);
                nr_met += 1;
            } else {
                let [a, b] = sides.map(|side| if side.is_some() { "ran" } else { "none" });
                let setting = [name.as_str(), a, b].map(str::to_owned);
                this.settings.push(setting.into());
            }
        }
        if nr_met == 0 {
            let of = |runs: &Runs| runs.sides.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(format!(
                "{a} has {} and {b} has {}: give two runs of one experiment",
                of(of_a),
                of(of_b)
            ));
        }
        Ok(this)
    }

    /// Compares two sides and adds their differences under names that begin with `prefix`.
    fn add(&mut self, prefix: &str, of_a: &Side, of_b: &Side) {
        let named = |(name, a, b)| (format!("{prefix}{name}"), a, b);
        let settings = settings::differing(&of_a.settings, &of_b.settings);
        self.settings.extend(settings.into_iter().map(named));
        let figures: BTreeSet<_> = of_a.figures.keys().chain(of_b.figures.keys()).collect();
        for figure in figures {
            let [a, b] = [of_a, of_b].map(|side| side.figures.get(figure).copied());
            if a == b {
                self.equal += 1;
                continue;
            }
            let sides = [(a, of_a.spread.get(figure)), (b, of_b.spread.get(figure))];
            let repeats = [of_a, of_b].iter().all(|side| side.counts.repeats(figure));
            let change = a.filter(|a| *a != 0.0).zip(b);
            self.differences.push(Difference {
                figure: format!("{prefix}{figure}"),
                a,
                b,
                change_percent: change.map(|(a, b)| (b / a - 1.0) * 100.0),
                meaning: match meaning(sides) {
                    Meaning::Once if repeats && !is_time(figure) => Meaning::Differs,
                    meaning => meaning,
                },
            });
        }
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
            _ => format!(
                ", {once} measured once (repeat with `replay --runs 5`, or put the JSON of several \
                 runs into one file)"
            ),
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

/// Returns the meaning of a difference in a figure that need not repeat.
fn meaning(sides: [(Option<f64>, Option<&Range>); 2]) -> Meaning {
    // Also on one side alone: a single run may have it by chance.
    let mut known = sides.iter().filter(|(value, _)| value.is_some());
    let apart = match known.any(|(_, range)| range.is_none()) {
        true => Meaning::Once,
        false => Meaning::Differs,
    };
    let [Some([a_low, a_high]), Some([b_low, b_high])] = sides.map(|(value, range)| {
        let range = range.map(|range| [range.low, range.high]);
        range.or(value.map(|value| [value; 2]))
    }) else {
        return apart;
    };
    match a_low <= b_high && b_low <= a_high {
        true => Meaning::Noise,
        false => apart,
    }
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
    let caption = "Grey: noise, or measured once where that tells nothing";
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
                "Settings and checks".to_owned(),
                table(
                    "Settings and checks that differ",
                    &["setting", "a", "b"],
                    &settings,
                ),
            ),
        ],
        foot: envelope.foot(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn runs(outcomes: &[Value]) -> Runs {
        Runs::new(outcomes.to_vec()).expect("runs")
    }

    fn compared(a: &[Value], b: &[Value]) -> Result<Comparison, String> {
        Comparison::new(("a", &runs(a)), ("b", &runs(b)))
    }

    fn meanings(found: &Comparison) -> Vec<(&str, Meaning)> {
        let of = found.differences.iter();
        of.map(|d| (d.figure.as_str(), d.meaning)).collect()
    }

    #[derive(PartialEq)]
    enum Check {
        Holds,
        Fails,
    }

    fn outcome(name: &str, cost_ns: f64, verdict: Check) -> Value {
        json!({
            "experiment": name,
            "rows": [{"part": "p", "variant": "v", "cost_ns": cost_ns}],
            "checks": [{"name": "c", "pass": verdict == Check::Holds}],
        })
    }

    /// Goal: overlapping values are noise, separate ones are not, and a single time tells nothing.
    #[test]
    fn a_difference_within_the_spread_is_noise() {
        let range = |low: f64, high: f64| json!({"low": low, "median": low, "high": high});
        let spread = json!({
            "elapsed_s": range(1.0, 2.0), "hits": range(5.0, 5.0), "read_us": range(1.0, 2.0)
        });
        let a = json!({
            "page_accesses": 9, "elapsed_s": 1.0, "hits": 5, "read_us": 1.0, "policy": "clock",
            "spread": spread
        });
        let b = json!({
            "page_accesses": 9, "elapsed_s": 1.9, "hits": 6, "read_us": 3.0, "policy": "sieve"
        });
        let found = compared(std::slice::from_ref(&a), &[b]).expect("one kind");
        let want = [
            ("elapsed_s", Meaning::Noise),
            ("hits", Meaning::Differs),
            ("read_us", Meaning::Once),
        ];
        assert_eq!(meanings(&found), want);
        let setting = ["policy", "clock", "sieve"].map(str::to_owned);
        assert_eq!(found.settings, [setting.into()]);
        let same = compared(std::slice::from_ref(&a), std::slice::from_ref(&a));
        assert_eq!(same.expect("one kind").differences, []);
    }

    // Symptom: the number of a process was a figure that differed, and counts of the checks
    // `rss_bound` and `rss_error` were times that were measured once.
    #[test]
    fn counts_of_checks_differ_and_pids_do_not() {
        let host = |pid: u64, cpus: u64| {
            let check = json!({"id": "rss_bound", "pid": pid, "cpus_count": cpus});
            json!({"checks": [check], "bad_count": 0})
        };
        let found = compared(&[host(7, 2)], &[host(9, 4)]).expect("one kind");
        let want = [("checks.rss_bound.cpus_count", Meaning::Differs)];
        assert_eq!(meanings(&found), want);
    }

    /// Goal: of a set-up, only the fields that differ are told, by their names.
    #[test]
    fn settings_are_told_one_by_one() {
        let run = |seed: u64| {
            json!({
                "tenants": [], "samples_max": 9, "trace": "t", "note_1": seed.to_string(),
                "config": {"seed": seed, "page": 4096, "sizes": [1, 2]}
            })
        };
        let found = compared(&[run(1)], &[run(2)]).expect("one kind");
        let setting = ["config.seed", "1", "2"].map(str::to_owned);
        assert_eq!(found.settings, [setting.into()]);
    }

    /// Goal: runs of different traces are told, also of traces of one name.
    #[test]
    fn different_traces_are_told() {
        let replay = |digest: &str| {
            let trace = json!({"name": "a.csv", "sha256": digest.repeat(32)});
            let tenants = json!([{"name": "web", "hits": 1, "trace": trace}]);
            json!({"page_accesses": 9, "policy": "clock", "tenants": tenants})
        };
        let found = compared(&[replay("1a")], &[replay("2b")]).expect("one kind");
        let sides = ["1a", "2b"].map(|it| format!("a.csv (sha256 {}...)", it.repeat(6)));
        let [a, b] = sides;
        assert_eq!(found.settings, [("trace of web".to_owned(), a, b)]);
        let same = compared(&[replay("1a")], &[replay("1a")]).expect("one kind");
        assert_eq!(same.settings, []);
        let curve = |trace: &str| {
            let tenants = json!([{"name": "web", "trace": trace, "requests": 1}]);
            json!({"tenants": tenants, "samples_max": 9})
        };
        let found = compared(&[curve("a.csv")], &[curve("b.csv")]).expect("one kind");
        assert_eq!(found.settings.len(), 1);
    }

    /// Goal: outcomes of one experiment in one file are repeated runs; experiments meet by name;
    /// checks that changed are told.
    #[test]
    fn experiments_meet_by_name_and_repeat_in_a_file() {
        let a = [
            outcome("x", 1.0, Check::Holds),
            outcome("x", 3.0, Check::Holds),
            outcome("y", 5.0, Check::Holds),
        ];
        let b = [
            outcome("x", 2.0, Check::Holds),
            outcome("y", 6.0, Check::Fails),
        ];
        let found = compared(&a, &b).expect("one kind");
        let want = [
            ("x.rows.p.v.cost_ns", Meaning::Noise),
            ("y.rows.p.v.cost_ns", Meaning::Once),
        ];
        assert_eq!(meanings(&found), want);
        let setting = ["y.check: c", "holds", "fails"].map(str::to_owned);
        assert_eq!(found.settings, [setting.into()]);
        let found = compared(&a[2..], &b).expect("y is common");
        assert_eq!(meanings(&found), want[1..]);
        assert_eq!(found.settings[0].0, "x");
    }

    // Symptom: the verdicts of repeated runs were those of the last one.
    #[test]
    fn a_check_of_repeated_runs_holds_if_it_does_in_each() {
        let [holds, fails] = [Check::Holds, Check::Fails].map(|verdict| outcome("x", 1.0, verdict));
        let b = [holds.clone(), holds.clone()];
        let found = compared(&[fails, holds], &b).expect("one kind");
        let setting = ["check: c", "fails", "holds"].map(str::to_owned);
        assert_eq!(found.settings, [setting.into()]);
    }

    // Symptom: a figure that one of several runs lacks was that of the last run alone, or missing.
    #[test]
    fn a_figure_that_a_run_lacks_has_the_spread_of_the_others() {
        let looked = |checks: Value| json!({"checks": checks, "bad_count": 0});
        let lacking = looked(json!([]));
        let drain = |name: &str, value: u64| looked(json!([{"id": "drain", name: value}]));
        let host = |value| drain("cpus_count", value);
        let b = [40, 45, 41].map(host);
        let found = compared(&[lacking.clone(), host(40), host(60)], &b).expect("one kind");
        let of = "checks.drain.cpus_count";
        assert_eq!(meanings(&found), [(of, Meaning::Noise)]);
        let found = compared(&[host(40), host(45), lacking.clone()], &b).expect("one kind");
        assert_eq!(meanings(&found), [(of, Meaning::Noise)]);
        assert_eq!(found.differences[0].a, Some(45.0));
        let b = [lacking.clone(), drain("parked_pages", 5)];
        let found = compared(&[lacking.clone(), lacking], &b).expect("one kind");
        let of = "checks.drain.parked_pages";
        assert_eq!(meanings(&found), [(of, Meaning::Once)]);
    }

    /// Goal: files that have nothing in common are errors that name both.
    #[test]
    fn unlike_files_are_errors() {
        let host = json!({"checks": [], "bad_count": 0});
        let x = outcome("x", 1.0, Check::Holds);
        let error = |a: &Value, b: &Value| {
            compared(std::slice::from_ref(a), std::slice::from_ref(b)).expect_err("unlike")
        };
        let said = error(&x, &host);
        assert!(said.contains("`lab`") && said.contains("`host`"), "{said}");
        let said = error(&x, &outcome("y", 1.0, Check::Holds));
        assert!(said.contains("a has x and b has y"), "{said}");
        assert!(Runs::new(vec![x, host]).is_err_and(|e| e.contains("both")));
        assert!(Runs::new(Vec::new()).is_err_and(|e| e.contains("no run")));
        assert!(Runs::new(vec![json!({})]).is_err_and(|e| e.contains("no run")));
    }
}
