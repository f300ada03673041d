//! Rules about prose: the width of its lines, words that treat threads and code as persons, and the
//! length of the documents that a newcomer reads first.

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

/// Words that a document has at most.
const WORDS_MAX: &[(&str, usize)] = &[("README.md", 700), ("ARCHITECTURE.md", 1_500)];

/// Comments, messages and documents hold no [`PERSONS`].
pub(crate) fn persons(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(persons_of).collect()
}

/// Lines of comments and documents have at most [`COLUMNS_MAX`] columns. Tables, fenced blocks
/// and a link alone on its line are exempt.
pub(crate) fn wide_lines(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(wide_lines_of).collect()
}

/// The documents of [`WORDS_MAX`] keep to it. A word holds a letter or digit; the address of a link
/// is no word, and fenced blocks hold none.
pub(crate) fn long_documents(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, words_max) in WORDS_MAX {
        let Some(file) = tree.get(path) else { continue };
        let words = words_of(&file.text);
        if words > *words_max {
            findings.push(file.finding(0, format!("{words} words (limit {words_max})")));
        }
    }
    findings
}

fn words_of(document: &str) -> usize {
    let unfenced = document.split("\n```").step_by(2);
    let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
    let words_in = |text: &str| text.split_whitespace().filter(is_word).count();
    let mut words = 0;
    for text in unfenced {
        let (first, linked) = text.split_once("](").unwrap_or((text, ""));
        let after_address = |text: &str| text.split_once(')').map_or(0, |(_, rest)| words_in(rest));
        words += words_in(first) + linked.split("](").map(after_address).sum::<usize>();
    }
    words
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
