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
pub(super) fn text((check, finding): &Checked) -> String {
    let mut text = format!("Check {}: {}\n\n", check.nr, check.title);
    let verdict = match &finding.figure {
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
    for (name, paragraph) in [
        ("Here", &*verdict),
        ("Mechanism", check.mechanism),
        ("Formula", check.formula),
        ("Numbers", &*finding.formula),
        ("Thresholds", &*limits),
        ("Advice", &*advice),
        ("Kernels", check.kernels),
        ("Discussion", check.thread),
    ] {
        if paragraph.is_empty() {
            continue;
        }
        let lines = wrapped(paragraph, COLUMNS - NAME_COLUMNS);
        for (index, line) in lines.iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<NAME_COLUMNS$}{line}");
        }
    }
    text
}

/// The sentence with a capital letter.
fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}
