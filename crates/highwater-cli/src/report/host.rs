//! The page of `highwater host`: the checks, worst first, each with its explanation.

use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Envelope;
use super::axis::coordinate;
use super::page::{Mood, Page};
use super::table::{Cell, Line, table};

/// Paragraphs that a check shows at once; the others unfold.
const SHOWN: [&str; 3] = ["Here", "Numbers", "Advice"];

/// Width and height of a gauge in its own units.
const GAUGE: [f64; 2] = [400.0, 24.0];

/// The checks of a machine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Data {
    /// The machine in a line.
    pub(crate) machine: String,
    /// The object of `host --json`, for other programs.
    pub(crate) result: Value,
    /// The checks, worst first.
    pub(crate) checks: Vec<Explained>,
}

/// A check with its result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Explained {
    pub(crate) nr: u8,
    pub(crate) title: String,
    /// `bad`, `warn`, `ok` or `not_measurable`.
    pub(crate) verdict: String,
    /// The observation in a line, or the reason why there is none.
    pub(crate) says: String,
    /// The number behind the verdict.
    pub(crate) gauge: Option<Gauge>,
    /// Names and texts of the explanation.
    pub(crate) paragraphs: Vec<(String, String)>,
}

/// A number with its error and thresholds, all in one unit.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Gauge {
    pub(crate) value: f64,
    /// The value with its unit.
    pub(crate) shown: String,
    pub(crate) error: f64,
    pub(crate) error_shown: String,
    /// Beyond this value the check warns.
    pub(crate) warn: f64,
    /// Beyond this value the check is bad.
    pub(crate) bad: Option<f64>,
    /// Whether beyond is below.
    pub(crate) is_falling: bool,
    /// The thresholds with their unit.
    pub(crate) limits: String,
}

/// Wraps the checks of a machine.
///
/// # Errors
///
/// When they cannot be represented.
pub(crate) fn envelope(data: &Data) -> Result<Envelope, String> {
    Envelope::new(super::Kind::Host, data)
}

/// Draws the page.
///
/// # Errors
///
/// When a part of the data is missing.
pub(super) fn page(envelope: &Envelope) -> serde_json::Result<Page> {
    let data = Data::deserialize(&envelope.data)?;
    let count = |verdict: &str| data.checks.iter().filter(|c| c.verdict == verdict).count();
    let all = data.checks.len();
    let made = all - count("not_measurable");
    let mut foot = envelope.foot();
    foot.push(("Machine".to_owned(), data.machine.clone()));
    foot.push((
        "Seed".to_owned(),
        "none: nothing is drawn at random".to_owned(),
    ));
    Ok(Page {
        title: "Is this kernel hurting you?".to_owned(),
        subtitle: data.machine.clone(),
        verdict: verdict(&data, made),
        tiles: vec![
            (count("bad").to_string(), "checks are bad".to_owned()),
            (count("warn").to_string(), "checks warn".to_owned()),
            (
                format!("{made} / {all}"),
                "checks could be made here".to_owned(),
            ),
        ],
        sections: vec![
            ("Worst first".to_owned(), overview(&data.checks)),
            (
                "Each check, with this machine's numbers".to_owned(),
                html! { div class="cards" { @for check in &data.checks { (card(check)) } } },
            ),
        ],
        foot,
    })
}

fn verdict(data: &Data, made: usize) -> (String, Mood) {
    let of = |verdict: &str| data.checks.iter().filter(|c| c.verdict == verdict).count();
    let (bad, warn) = (of("bad"), of("warn"));
    let worst = data.checks.first();
    let worst = worst.map_or_else(String::new, |check| {
        format!("{}: {}", check.title, check.says)
    });
    match (bad, warn, made) {
        (_, _, 0) => {
            let text = "No check could be made here: the table has the reasons.";
            (text.to_owned(), Mood::Neutral)
        }
        (0, 0, made) => {
            let text = format!("None of the {made} checks that could be made found a problem.");
            (text, Mood::Good)
        }
        (0, warn, made) => {
            let text = format!("Nothing is bad; {warn} of {made} checks warn. First, {worst}.");
            (text, Mood::Neutral)
        }
        (bad, warn, made) => {
            let text = format!("{bad} of {made} checks are bad, {warn} warn. Worst, {worst}.");
            (text, Mood::Bad)
        }
    }
}

/// Returns the words of a verdict, and its rank: the worst is lowest.
fn words(verdict: &str) -> (&str, f64) {
    match verdict {
        "bad" => ("bad", 0.0),
        "warn" => ("warns", 1.0),
        "ok" => ("ok", 2.0),
        _ => ("not measurable here", 3.0),
    }
}

fn overview(checks: &[Explained]) -> Markup {
    let line = |check: &Explained| {
        let (word, rank) = words(&check.verdict);
        let [number, error, limits] = match &check.gauge {
            None => [(); 3].map(|()| Cell::default()),
            Some(gauge) => [
                Cell::number(&gauge.shown, gauge.value),
                match gauge.error > 0.0 {
                    true => Cell::number(format!("± {}", gauge.error_shown), gauge.error),
                    false => Cell::number("exact", 0.0),
                },
                Cell::text(&gauge.limits),
            ],
        };
        Line {
            cells: vec![
                Cell::ranked(word, rank),
                Cell::number(check.nr.to_string(), f64::from(check.nr)),
                Cell::link(&check.title, id(check)),
                number,
                error,
                limits,
                Cell::text(&check.says),
            ],
            is_grey: check.verdict == "not_measurable",
        }
    };
    let lines: Vec<Line> = checks.iter().map(line).collect();
    let headings = [
        "verdict",
        "nr",
        "check",
        "number",
        "error",
        "warns, bad",
        "seen",
    ];
    table("The checks of this machine", &headings, &lines)
}

fn id(check: &Explained) -> String {
    format!("check-{}", check.nr)
}

fn card(check: &Explained) -> Markup {
    let is_shown = |name: &str| SHOWN.contains(&name);
    let paragraphs = || check.paragraphs.iter();
    html! {
        article id=(id(check)) class={ "card " (check.verdict) } {
            h3 { (check.nr) ". " (check.title) " " span class="word" { (words(&check.verdict).0) } }
            @if let Some(gauge) = &check.gauge { (gauge.svg(&check.title)) }
            dl class="said" {
                @for (name, text) in paragraphs().filter(|(name, _)| is_shown(name)) {
                    dt { (name) } dd { (text) }
                }
            }
            details {
                summary { "How and why" }
                dl class="said" {
                    @for (name, text) in paragraphs().filter(|(name, _)| !is_shown(name)) {
                        dt { (name) } dd { (text) }
                    }
                }
            }
        }
    }
}

impl Gauge {
    /// Draws the value and its error over the ranges of the verdicts.
    fn svg(&self, title: &str) -> Markup {
        let [width, height] = GAUGE;
        let [low, high] = self.extent();
        // No number is at the low end: `max` returns the other operand.
        let x = |value: f64| (value.max(low).min(high) - low) / (high - low) * width;
        let bad = self.bad.map(x);
        let warn = x(self.warn);
        // From the best to the worst: the ranges of each verdict from left to right.
        let ranges: [(&str, f64, f64); 3] = match self.is_falling {
            false => [
                ("ok", 0.0, warn),
                ("warn", warn, bad.unwrap_or(width)),
                ("bad", bad.unwrap_or(width), width),
            ],
            true => [
                ("bad", 0.0, bad.unwrap_or(0.0)),
                ("warn", bad.unwrap_or(0.0), warn),
                ("ok", warn, width),
            ],
        };
        let error = match self.error > 0.0 {
            true => format!(" ± {}", self.error_shown),
            false => String::new(),
        };
        let label = format!(
            "{title}: {}{error}; it warns or is bad {}",
            self.shown, self.limits
        );
        let at = x(self.value);
        let ends = [x(self.value - self.error), x(self.value + self.error)];
        html! {
            svg class="gauge" role="img" aria-label=(label) viewBox={ "0 0 " (width) " " (height) } {
                @for (class, from, to) in ranges.into_iter().filter(|(_, from, to)| to > from) {
                    rect class=(class) x=(coordinate(from)) y="6" width=(coordinate(to - from)) height="12" {}
                }
                @if self.error > 0.0 {
                    line class="error" x1=(coordinate(ends[0])) y1="12" x2=(coordinate(ends[1])) y2="12" {}
                }
                line class="value" x1=(coordinate(at)) y1="2" x2=(coordinate(at)) y2="22" {}
            }
        }
    }

    /// Returns the ends of the scale: zero or less, and beyond value and thresholds.
    fn extent(&self) -> [f64; 2] {
        let values = [
            self.value - self.error,
            self.value + self.error,
            self.warn,
            self.bad.unwrap_or(self.warn),
        ];
        let finite = values.into_iter().filter(|value| value.is_finite());
        let (low, high) = finite.fold((0.0_f64, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let margin = match high > low {
            true => (high - low) * 0.1,
            false => 1.0,
        };
        [if low < 0.0 { low - margin } else { low }, high + margin]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauge(value: f64, [warn, bad]: [f64; 2]) -> Gauge {
        Gauge {
            value,
            shown: value.to_string(),
            error: 0.5,
            error_shown: "0.5".to_owned(),
            warn,
            bad: Some(bad),
            is_falling: bad < warn,
            limits: "at <this>".to_owned(),
        }
    }

    /// Goal: each range has its place, in order, also for falling thresholds, and for values that
    /// are negative, zero or no number. Method: the rectangles fill the width without a gap.
    #[test]
    fn ranges_fill_a_gauge() {
        for value in [-5.0, 0.0, 3.0, 1e12, f64::INFINITY, f64::NAN] {
            for limits in [[2.0, 5.0], [50.0, 20.0], [0.0, 0.0]] {
                let svg = gauge(value, limits).svg("t").into_string();
                let number = |text: &str| text.split('"').nth(1)?.parse::<f64>().ok();
                let mut end = 0.0;
                for rect in svg.split("<rect ").skip(1) {
                    let mut fields = rect.split(' ').skip(1);
                    let x = fields.next().and_then(number);
                    let width = fields.nth(1).and_then(number);
                    assert!(x.is_some_and(|x| (x - end).abs() < 0.11), "{svg}");
                    end = x.unwrap_or(0.0) + width.unwrap_or(0.0);
                }
                assert!((end - GAUGE[0]).abs() < 0.11, "{svg}");
                let is_drawn = !svg.contains("\"inf") && !svg.contains("\"NaN");
                assert!(is_drawn && svg.contains("&lt;this&gt;"), "{svg}");
            }
        }
    }
}
