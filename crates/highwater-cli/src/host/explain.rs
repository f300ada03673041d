//! The explanation of a check, with this machine's numbers.

use std::fmt::Write as _;

use highwater_host::Verdict;
use highwater_lab::report::wrapped;

use super::Checked;

/// Columns of a line.
const COLUMNS: usize = 80;

/// Columns of a paragraph's name.
const NAME_COLUMNS: usize = 12;

/// The mechanism, the formula with this machine's numbers, thresholds, discussion and kernels.
pub(super) fn text(checked: &Checked) -> String {
    let (check, _) = checked;
    let mut text = format!("Check {}: {}\n\n", check.nr, check.title);
    for (name, paragraph) in paragraphs(checked) {
        let lines = wrapped(&paragraph, COLUMNS - NAME_COLUMNS);
        for (index, line) in lines.iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<NAME_COLUMNS$}{line}");
        }
    }
    text
}

/// Returns the names and texts of the paragraphs that explain a check; none is empty.
pub(super) fn paragraphs((check, finding): &Checked) -> Vec<(&'static str, String)> {
    let here = match &finding.figure {
        Some(figure) => format!(
            "{}: {} ({}); {}",
            finding.verdict,
            figure.shown(),
            figure.limits(),
            finding.says
        ),
        None => format!("{}: {}", finding.verdict, finding.says),
    };
    let limits = match &finding.figure {
        Some(figure) => format!("{}. {}", figure.limits(), capital(check.thresholds)),
        None => capital(check.thresholds),
    };
    let has_advice = matches!(finding.verdict, Verdict::Bad | Verdict::Warn);
    let advice = match &finding.advice {
        Some(advice) if has_advice => format!("{advice}; {}", check.advice),
        _ => check.advice.to_owned(),
    };
    let paragraphs = [
        ("Here", here),
        ("Mechanism", check.mechanism.to_owned()),
        ("Formula", check.formula.to_owned()),
        ("Numbers", finding.formula.clone()),
        ("Thresholds", limits),
        ("Advice", advice),
        ("Kernels", check.kernels.to_owned()),
        ("Discussion", check.thread.to_owned()),
    ];
    let is_said = |(_, text): &(&str, String)| !text.is_empty();
    paragraphs.into_iter().filter(is_said).collect()
}

/// The sentence with a capital letter.
fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}
