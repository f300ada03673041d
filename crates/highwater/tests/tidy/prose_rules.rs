//! Rules about prose: the width of its lines, and words that treat threads and code as persons.
//!
//! Both rules are ratchets. [`ALLOWED`] states for each folder how many violations are left; a
//! change may lower a number and never raises it. A file outside those folders is allowed none.

use super::text_rules::has_extension;
use super::tree::{File, Finding, Tree};

/// Columns of a line of prose at most, as of a line of code.
const COLUMNS_MAX: usize = 100;

/// Pronouns of persons. The subject of a sentence is a thing of the code: the thread, the
/// reclaimer, a waiter, the page.
const PERSONS: &[&str] = &[
    concat!("w", "ho"),
    concat!("w", "hom"),
    concat!("w", "hoever"),
    concat!("some", "body"),
    concat!("some", "one"),
    concat!("no", "body"),
    concat!("every", "body"),
    concat!("every", "one"),
    concat!("any", "body"),
];

/// How many violations of both rules a folder, or a single file, may still hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// A path from the root; that of a folder ends with a slash. The longest that fits counts.
    pub(crate) place: &'static str,
    pub(crate) persons: usize,
    pub(crate) wide_lines: usize,
}

const fn allow(place: &'static str, persons: usize, wide_lines: usize) -> Allowed {
    Allowed {
        place,
        persons,
        wide_lines,
    }
}

/// What is left, by place. The numbers only fall; a row that reaches 0 and 0 is deleted.
#[rustfmt::skip]
const ALLOWED: &[Allowed] = &[
    //    place                              persons  wide lines
    allow("crates/highwater/benches/",            6,    0),
    allow("crates/highwater/examples/",           0,    1),
];

/// Comments, messages and documents hold no [`PERSONS`].
pub(crate) fn persons(tree: &Tree) -> Vec<Finding> {
    let found = tree.files.iter().flat_map(persons_of).collect();
    above(found, ALLOWED, |allowed| allowed.persons)
}

/// Lines of comments and documents have at most [`COLUMNS_MAX`] columns. Tables, fenced blocks
/// and a link alone on its line are exempt.
pub(crate) fn wide_lines(tree: &Tree) -> Vec<Finding> {
    let found = tree.files.iter().flat_map(wide_lines_of).collect();
    above(found, ALLOWED, |allowed| allowed.wide_lines)
}

/// The findings that remain where `allowed` counts have been subtracted: each one of a place that
/// is allowed none, and a single one, on line 0, of a place that is above its count.
pub(crate) fn above(
    found: Vec<Finding>,
    allowed: &[Allowed],
    count: impl Fn(&Allowed) -> usize,
) -> Vec<Finding> {
    let place_of = |path: &str| {
        let holds = |place: &&Allowed| {
            path == place.place || (place.place.ends_with('/') && path.starts_with(place.place))
        };
        let places = allowed.iter().filter(holds);
        places.max_by_key(|place| place.place.len()).copied()
    };
    let is_free = |place: &Allowed| count(place) == 0;
    let mut findings = Vec::new();
    for place in allowed.iter().filter(|place| !is_free(place)) {
        let of_place = |finding: &&Finding| {
            place_of(&finding.path).is_some_and(|of_path| of_path.place == place.place)
        };
        let held = found.iter().filter(of_place).count();
        if held > count(place) {
            let message = format!("{held} findings, of which {} are allowed", count(place));
            findings.push(File::new(place.place, "").finding(0, message));
        }
    }
    let is_counted =
        |finding: &Finding| place_of(&finding.path).is_some_and(|place| !is_free(&place));
    findings.extend(found.into_iter().filter(|finding| !is_counted(finding)));
    findings
}

fn persons_of(file: &File) -> Vec<Finding> {
    let is_message = file.path.contains("/src/");
    let strings = file.lexed.as_ref().filter(|_| is_message);
    let strings = strings.map_or("", |lexed| lexed.strings.as_str());
    let of_strings = strings.lines().enumerate();
    let mut findings = Vec::new();
    for (index, line) in prose_lines(file).enumerate().chain(of_strings) {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let is_person = |word: &&str| {
            PERSONS
                .iter()
                .any(|person| person.eq_ignore_ascii_case(word))
        };
        for word in words.filter(is_person) {
            let message = format!("`{word}`: name the thing of the code that acts");
            findings.push(file.finding(index + 1, message));
        }
    }
    findings
}

fn wide_lines_of(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_fenced = false;
    for (index, (line, whole)) in prose_lines(file).zip(file.text.lines()).enumerate() {
        let text = line.trim_start().trim_start_matches(['/', '!', '#']).trim();
        if line.trim().is_empty() {
            // Code ends a comment; an empty line does not end a fenced block of a document.
            is_fenced = is_fenced && has_extension(file, &["md"]);
        } else if text.starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced && !is_table_or_link(text) {
            let columns = whole.chars().count();
            if columns > COLUMNS_MAX {
                let message = format!("{columns} columns (limit {COLUMNS_MAX})");
                findings.push(file.finding(index + 1, message));
            }
        }
    }
    findings
}

/// The lines of `file`, each without everything that is not prose: all of a document, comments of
/// code and of scripts, nothing of other files.
fn prose_lines(file: &File) -> impl Iterator<Item = &str> {
    let is_document = file.lexed.is_some() || has_extension(file, &["md"]);
    let is_script = has_extension(file, &["toml", "sh", "py"]) || file.path.starts_with(".ci/");
    let is_prose = move |line: &str| is_document || (is_script && line.trim().starts_with('#'));
    let lines = file.prose().lines();
    lines.map(move |line| if is_prose(line) { line } else { "" })
}

fn is_table_or_link(text: &str) -> bool {
    let item = text.trim_start_matches(['-', '*', ' ']);
    let is_link = item.starts_with('[') && item.ends_with(')');
    text.starts_with('|') || is_link || !item.contains(' ')
}
