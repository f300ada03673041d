//! The rule about events (`tracing`): each one of the library has its row in the document that
//! lists them, and each row its event.

use std::fmt;
use std::ops::Range;

use super::lexer::Lexed;
use super::text_rules::missing;
use super::tree::{File, Finding, Tree};

/// The document with a row for each event.
pub(crate) const EVENTS: &str = "crates/highwater/docs/events.md";

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// An event, as the code makes it or the document describes it.
#[derive(PartialEq)]
struct Event<'a> {
    level: &'a str,
    message: &'a str,
    /// In the order of the code.
    fields: Vec<&'a str>,
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.fields.join(", ");
        write!(f, "{} \"{}\" ({fields})", self.level, self.message)
    }
}

/// Each event of the library has a row with its level, message and fields, and each row an event.
pub(crate) fn events(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.get(EVENTS) else {
        return vec![missing(EVENTS)];
    };
    let mut rows: Vec<_> = rows(&page.text)
        .map(|(line, row)| (line, row, false))
        .collect();
    let mut findings = Vec::new();
    for (file, lexed) in tree.rust() {
        if file.in_core_src().is_none() || file.is_test_file() {
            continue;
        }
        for (line, event) in events_of(file, lexed) {
            match rows.iter_mut().find(|(_, row, _)| *row == event) {
                Some((_, _, is_used)) => *is_used = true,
                None => {
                    findings.push(file.finding(line, format!("{event} has no row in {EVENTS}")))
                }
            }
        }
    }
    let unused = rows.iter().filter(|(_, _, is_used)| !is_used);
    findings.extend(unused.map(|(line, row, _)| page.finding(*line, format!("no event is {row}"))));
    findings
}

/// Returns the rows ``| `level` | message | `field`, ... | when |`` with their lines.
fn rows(markdown: &str) -> impl Iterator<Item = (usize, Event<'_>)> {
    markdown.lines().enumerate().filter_map(|(index, line)| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let level = cells.next()?.strip_suffix('`')?;
        let (message, fields) = (cells.next()?, cells.next()?);
        let fields = fields.split('`').skip(1).step_by(2).collect();
        LEVELS.contains(&level).then_some((
            index + 1,
            Event {
                level,
                message,
                fields,
            },
        ))
    })
}

/// Returns the events that a file's code makes, with their lines.
fn events_of<'a>(file: &'a File, lexed: &'a Lexed) -> Vec<(usize, Event<'a>)> {
    let mut found = Vec::new();
    for level in LEVELS {
        let call = format!("tracing::{level}!(");
        for (at, _) in lexed.code.match_indices(&call) {
            let event = event(file, lexed, level, at + call.len() - 1);
            found.push((lexed.line_of(at), event));
        }
    }
    found
}

/// Returns the event of a call whose parenthesis is at `opening`.
fn event<'a>(file: &'a File, lexed: &'a Lexed, level: &'static str, opening: usize) -> Event<'a> {
    let (mut fields, mut message) = (Vec::new(), "");
    for argument in arguments(&lexed.code, opening) {
        let code = lexed.code[argument.clone()].trim();
        if code.starts_with('"') {
            message = file.text[argument].trim().trim_matches('"');
        } else if !code.is_empty() && !code.starts_with("target:") {
            let name = code.split_once('=').map_or(code, |(name, _)| name);
            fields.push(name.trim().trim_start_matches(['%', '?']));
        }
    }
    Event {
        level,
        message,
        fields,
    }
}

/// Returns the places of the arguments of a call: they are separated by commas outside of brackets.
fn arguments(code: &str, opening: usize) -> Vec<Range<usize>> {
    let (mut depth, mut begin, mut found) = (0_usize, opening + 1, Vec::new());
    for (at, byte) in code.bytes().enumerate().skip(opening) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 1 => {
                found.push(begin..at);
                begin = at + 1;
            }
            _ => {}
        }
        if depth == 0 {
            found.push(begin..at);
            break;
        }
    }
    found
}
