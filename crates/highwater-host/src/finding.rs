//! The result of a check: a verdict, the number behind it, and its error.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value, json};

use crate::root::Missing;

/// How bad a finding is; the worst is the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The problem exists here and costs much.
    Bad,
    /// The problem exists here.
    Warn,
    /// No such problem was seen.
    Ok,
    /// This machine, or this user, does not give what the check needs.
    NotMeasurable,
}

impl Verdict {
    /// The word of a line of text.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Warn => "warn",
            Self::Ok => "ok",
            Self::NotMeasurable => "not measurable here",
        }
    }

    /// The value of `verdict` in JSON.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::NotMeasurable => "not_measurable",
            other => other.word(),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Unit of a number: how it is shown, and how a name in JSON ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Percent of something that the check names.
    Percent,
    /// A ratio, from 0 to 1 or above.
    Ratio,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Pages.
    Pages,
    /// Events a second.
    PerSecond,
    /// A number of things.
    Count,
}

impl Unit {
    /// End of a field's name in JSON.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Percent => "percent",
            Self::Ratio => "ratio",
            Self::Us => "us",
            Self::Ms => "ms",
            Self::Pages => "pages",
            Self::PerSecond => "per_s",
            Self::Count => "count",
        }
    }

    /// How the unit stands behind a number, with its blank.
    fn symbol(self) -> &'static str {
        match self {
            Self::Percent => " %",
            Self::Ratio | Self::Count => "",
            Self::Us => " us",
            Self::Ms => " ms",
            Self::Pages => " pages",
            Self::PerSecond => "/s",
        }
    }
}

/// Thresholds of a figure. A verdict changes above them; [`Scale::Falling`] below them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// From here on a warning.
    pub warn: f64,
    /// From here on bad; `None` for a check that only warns.
    pub bad: Option<f64>,
    /// Which side is worse.
    pub scale: Scale,
    /// The second number that makes it bad, as a short text, where the check has one.
    pub bad_beside: Option<&'static str>,
}

/// Which side of a threshold is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Larger values are worse.
    Rising,
    /// Smaller values are worse.
    Falling,
}

impl Thresholds {
    /// Larger values are worse: a warning above `warn`, bad above `bad`.
    #[must_use]
    pub const fn above(warn: f64, bad: f64) -> Self {
        Self {
            warn,
            bad: Some(bad),
            scale: Scale::Rising,
            bad_beside: None,
        }
    }

    /// Smaller values are worse: a warning below `warn`, bad below `bad`.
    #[must_use]
    pub const fn below(warn: f64, bad: f64) -> Self {
        Self {
            warn,
            bad: Some(bad),
            scale: Scale::Falling,
            bad_beside: None,
        }
    }

    /// Larger values are worse, and only a warning: above `warn`.
    #[must_use]
    pub const fn warn_above(warn: f64) -> Self {
        Self {
            warn,
            bad: None,
            scale: Scale::Rising,
            bad_beside: None,
        }
    }

    /// Adds the second number that makes it bad, which the check itself judges.
    #[must_use]
    pub const fn or_bad(mut self, beside: &'static str) -> Self {
        self.bad_beside = Some(beside);
        self
    }

    /// Returns the verdict of `value`. A value at a threshold is not beyond it; one that is no
    /// number is [`Verdict::NotMeasurable`].
    #[must_use]
    pub fn judge(&self, value: f64) -> Verdict {
        if value.is_nan() {
            return Verdict::NotMeasurable;
        }
        let worse = match self.scale {
            Scale::Rising => Ordering::Greater,
            Scale::Falling => Ordering::Less,
        };
        let is_beyond = |threshold: f64| value.partial_cmp(&threshold) == Some(worse);
        if self.bad.is_some_and(is_beyond) {
            Verdict::Bad
        } else if is_beyond(self.warn) {
            Verdict::Warn
        } else {
            Verdict::Ok
        }
    }
}

/// A measured number.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Name in JSON without its unit, such as `parked`.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// How far the value may be off, in the same unit: 0 for a count or a formula.
    pub error: f64,
    /// Its unit.
    pub unit: Unit,
    /// From which value on it is bad.
    pub thresholds: Thresholds,
}

impl Figure {
    /// The figure's line: value, error, thresholds.
    #[must_use]
    pub fn shown(&self) -> String {
        let unit = self.unit.symbol();
        let error = if self.error > 0.0 {
            format!(" ± {}", rounded(self.error))
        } else {
            String::new()
        };
        format!("{}{error}{unit}", rounded(self.value))
    }

    /// The thresholds as text, such as `> 2, > 5 %`.
    #[must_use]
    pub fn limits(&self) -> String {
        let Thresholds {
            warn,
            bad,
            scale,
            bad_beside,
        } = self.thresholds;
        let sign = match scale {
            Scale::Rising => '>',
            Scale::Falling => '<',
        };
        let bad = bad.map_or_else(String::new, |bad| format!(", {sign} {}", rounded(bad)));
        let beside = bad_beside.map_or_else(String::new, |beside| format!(", {beside}"));
        let unit = self.unit.symbol();
        format!("{sign} {}{bad}{unit}{beside}", rounded(warn))
    }
}

/// The result of a check on one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// How bad it is.
    pub verdict: Verdict,
    /// The number behind the verdict; none if nothing could or had to be measured.
    pub figure: Option<Figure>,
    /// One line that says what was seen, or why nothing could be.
    pub says: String,
    /// The check's formula with this machine's numbers.
    pub formula: String,
    /// Further values, by names that end in their unit.
    pub facts: Vec<(&'static str, Value)>,
    /// What to do, for this machine; the check's own advice stands beside it.
    pub advice: Option<String>,
}

impl Finding {
    /// Judges a figure by its thresholds. `says` describes it, `formula` shows its numbers.
    pub fn judged(figure: Figure, says: impl Into<String>, formula: impl Into<String>) -> Self {
        Self {
            verdict: figure.thresholds.judge(figure.value),
            figure: Some(figure),
            says: says.into(),
            formula: formula.into(),
            facts: Vec::new(),
            advice: None,
        }
    }

    /// Nothing is wrong, and there is no number to judge.
    pub fn fine(says: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Ok,
            figure: None,
            says: says.into(),
            formula: String::new(),
            facts: Vec::new(),
            advice: None,
        }
    }

    /// The check cannot be made here; `need` continues "not measurable here: ...".
    pub fn not_measurable(need: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::NotMeasurable,
            ..Self::fine(need)
        }
    }

    /// The result of a check that may lack what it needs.
    #[must_use]
    pub fn of(result: Result<Self, Missing>) -> Self {
        result.unwrap_or_else(|missing| Self::not_measurable(missing.need))
    }

    /// Adds a value; its name ends in its unit.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.facts.push((name, value.into()));
        self
    }

    /// Sets the advice.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// The finding's part of a JSON object. Names are stable and end in their unit.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Value> {
        let mut json = Map::new();
        json.insert("verdict".to_owned(), self.verdict.key().into());
        json.insert("says".to_owned(), self.says.clone().into());
        if let Some(figure) = &self.figure {
            let unit = figure.unit.suffix();
            let name = format!("{}_{unit}", figure.name);
            json.insert("figure".to_owned(), name.clone().into());
            json.insert(name, json!(figure.value));
            json.insert(format!("error_{unit}"), json!(figure.error));
            json.insert(format!("warn_{unit}"), json!(figure.thresholds.warn));
            json.insert(format!("bad_{unit}"), json!(figure.thresholds.bad));
        }
        for (name, value) in &self.facts {
            json.insert((*name).to_owned(), value.clone());
        }
        if let Some(advice) = &self.advice {
            json.insert("advice".to_owned(), advice.clone().into());
        }
        json
    }
}

/// Returns a sum that stays at its largest value instead of wrapping: a recorded machine may have
/// any numbers.
pub(crate) fn saturating_sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Returns a count as a float; exact below 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "figures of pages and events are shown with three digits"
)]
#[must_use]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Returns `part / whole`, or 0 if there is no whole.
#[must_use]
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        float(part) / float(whole)
    }
}

/// Formats a number with about three digits, and without zeros at the end of its fraction.
#[must_use]
pub fn rounded(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let text = match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => grouped(&text),
    };
    if text == "-0" { "0".to_owned() } else { text }
}

/// Returns a text with `?` for each control character: names come from other users, and a terminal
/// would obey the escape sequences in them.
#[must_use]
pub fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(shown).collect()
}

/// Formats a count with commas.
#[must_use]
pub fn counted(count: u64) -> String {
    grouped(&count.to_string())
}

/// Sets a comma before each three digits.
fn grouped(digits: &str) -> String {
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", digits),
    };
    let mut text = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats an amount of memory.
#[must_use]
pub fn amount(bytes: u64) -> String {
    let mut value = float(bytes);
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return format!("{} {unit}", rounded(value));
        }
        value /= 1024.0;
    }
    format!("{} TiB", rounded(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_a_threshold_is_not_beyond_it() {
        let rising = Thresholds::above(2.0, 5.0);
        let verdicts = [2.0, 2.01, 5.0, 5.01, f64::INFINITY].map(|value| rising.judge(value));
        use Verdict::{Bad, NotMeasurable, Ok, Warn};
        assert_eq!(verdicts, [Ok, Warn, Warn, Bad, Bad]);
        let falling = Thresholds::below(50.0, 20.0);
        assert_eq!(
            [50.0, 49.9, 20.0, 19.9].map(|value| falling.judge(value)),
            [Ok, Warn, Warn, Bad]
        );
        assert_eq!(rising.judge(f64::NAN), NotMeasurable);
        assert_eq!(Thresholds::warn_above(0.0).judge(1e9), Warn);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, -0.001, 1.5, 12.34, 99.96, 12_345.6, -1_234.0].map(rounded);
        assert_eq!(shown, ["0", "0", "1.5", "12.3", "100", "12,346", "-1,234"]);
        assert_eq!(counted(1_280_252), "1,280,252");
        assert_eq!(
            [0, 1023, 1536, 3 << 30].map(amount),
            ["0 B", "1,023 B", "1.5 KiB", "3 GiB"]
        );
    }

    // Symptom: a name with escape sequences moved the cursor, or cleared the screen.
    #[test]
    fn no_control_character_of_a_name_is_printed() {
        assert_eq!(printable("a\x1b[2J\tb\n\u{9b}c\x7f é"), "a?[2J?b??c? é");
    }

    #[test]
    fn json_names_end_in_their_unit() {
        let figure = Figure {
            name: "parked",
            value: 3.0,
            error: 0.5,
            unit: Unit::Percent,
            thresholds: Thresholds::above(2.0, 5.0),
        };
        assert_eq!(figure.shown(), "3 ± 0.5 %");
        assert_eq!(figure.limits(), "> 2, > 5 %");
        let thresholds = Thresholds::warn_above(10.0).or_bad("stall > 20 %");
        let other = Figure {
            thresholds,
            ..figure.clone()
        };
        assert_eq!(other.limits(), "> 10 %, stall > 20 %");
        let finding = Finding::judged(figure, "much", "3 / 100").with("count_pages", 3);
        let json = finding.to_json();
        assert_eq!(json["verdict"], "warn");
        assert_eq!(json["parked_percent"], 3.0);
        assert_eq!(json["bad_percent"], 5.0);
        assert_eq!(json["count_pages"], 3);
    }
}
