//! Rules about text: shape of files, references of documentation to tests and examples, leftovers,
//! and names that are specific to one machine.

use super::lexer::{Lexed, Token, is_word_byte, line_of};
use super::tree::{CORE, File, Finding, Tree};

/// Maximum number of lines of a Rust file.
const LINES_MAX: usize = 600;

/// A Rust file opens with `//!`, or with inner attributes and then `//!`.
pub(crate) fn header(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|(_, lexed)| !opens_with_documentation(lexed))
        .map(|(file, _)| file.finding(1, "a file opens with `//!`: its purpose and its invariant"))
        .collect()
}

fn opens_with_documentation(lexed: &Lexed) -> bool {
    let mut brackets = 0_i32;
    for (code, comment) in lexed.code.lines().zip(lexed.comments.lines()) {
        let code = code.trim();
        if code.is_empty() && brackets == 0 {
            if comment.trim().is_empty() {
                continue;
            }
            return comment.starts_with("//!");
        }
        if brackets == 0 && !code.starts_with("#![") {
            return false;
        }
        for byte in code.bytes() {
            brackets += i32::from(byte == b'[') - i32::from(byte == b']');
        }
    }
    false
}

/// A Rust file has at most [`LINES_MAX`] lines.
pub(crate) fn length(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .map(|(file, _)| (file, file.text.lines().count()))
        .filter(|&(_, lines)| lines > LINES_MAX)
        .map(|(file, lines)| {
            file.finding(
                LINES_MAX + 1,
                format!("{lines} lines: split the file (limit {LINES_MAX})"),
            )
        })
        .collect()
}

/// The library's tests, with the examples in its documentation, are at least as long as its code.
/// Blank lines and comments do not count.
pub(crate) fn length_of_tests(tree: &Tree) -> Vec<Finding> {
    let is_library = |file: &File| {
        let path = file.path.strip_prefix(CORE);
        path.is_some_and(|path| path.starts_with("src/") || path.starts_with("tests/"))
    };
    let (mut code, mut tests) = (0, 0);
    for (file, lexed) in tree.rust().filter(|(file, _)| is_library(file)) {
        let is_test_line = lexed.test_lines();
        for (index, line) in lexed.code.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            match file.is_test_file() || is_test_line[index + 1] {
                true => tests += 1,
                false => code += 1,
            }
        }
        tests += lines_of_examples(&lexed.comments);
    }
    let message = format!("{tests} lines of tests for {code} of code: test what is not tested");
    let is_short = tests < code;
    is_short
        .then(|| tree.rust().find(|(file, _)| is_library(file)))
        .flatten()
        .map(|(file, _)| file.finding(0, message))
        .into_iter()
        .collect()
}

/// Counts the lines of fenced blocks in documentation.
fn lines_of_examples(comments: &str) -> usize {
    let mut is_inside = false;
    let lines = comments.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or(line.strip_prefix("//!"))
    });
    let of_examples = lines.filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_inside ^= is_fence;
        is_inside && !is_fence && !line.trim().is_empty()
    });
    of_examples.count()
}

/// A test that prose names as `tests/<file>.rs::<function>` exists in one of the
/// crates.
pub(crate) fn named_tests(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree
        .files
        .iter()
        .filter(|file| has_extension(file, &["rs", "md"]))
    {
        let text = file.prose();
        for (at, _) in text.match_indices("tests/") {
            let mention = mention_at(&text[at..]);
            let Some((name, function)) = mention.split_once(".rs") else {
                continue;
            };
            let function = function.rsplit_once("::").map(|(_, function)| function);
            if !test_exists(tree, &format!("{name}.rs"), function) {
                let message = format!("`{mention}` does not exist");
                findings.push(file.finding(line_of(text, at), message));
            }
        }
    }
    findings
}

/// Returns the `tests/<file>.rs` or `tests/<file>.rs::<function>` at the start of `text`.
fn mention_at(text: &str) -> &str {
    let is_part = |byte: u8| is_word_byte(byte) || matches!(byte, b'/' | b'.' | b':');
    let end = text
        .bytes()
        .position(|byte| !is_part(byte))
        .unwrap_or(text.len());
    text[..end].trim_end_matches(['.', ':'])
}

fn test_exists(tree: &Tree, name: &str, function: Option<&str>) -> bool {
    let suffix = format!("/{name}");
    let mut files = tree.rust().filter(|(file, _)| file.path.ends_with(&suffix));
    files.any(|(_, lexed)| {
        let tokens = lexed.tokens();
        function.is_none_or(|function| {
            let head = [Token::Word("fn"), Token::Word(function)];
            tokens.windows(2).any(|pair| [pair[0].1, pair[1].1] == head)
        })
    })
}

/// A rule that a comment or document cites as `[X-ID]` is one of the table in CONTRIBUTING.md.
pub(crate) fn cited_ids(tree: &Tree) -> Vec<Finding> {
    let table = tree
        .get("CONTRIBUTING.md")
        .map_or("", |file| file.text.as_str());
    let mut findings = Vec::new();
    for file in tree
        .files
        .iter()
        .filter(|file| has_extension(file, &["rs", "md"]))
    {
        let text = file.prose();
        for (at, _) in text.match_indices('[') {
            let Some((id, _)) = text[at + 1..].split_once(']') else {
                continue;
            };
            if is_style_id(id) && !table.contains(&format!("\n| {id} |")) {
                let message = format!("`[{id}]` is no rule of CONTRIBUTING.md");
                findings.push(file.finding(line_of(text, at), message));
            }
        }
    }
    findings
}

/// Returns whether `text` looks like `N-FIELD`: one letter, a dash, capitals.
fn is_style_id(text: &str) -> bool {
    let Some((kind, name)) = text.split_once('-') else {
        return false;
    };
    kind.len() == 1
        && "NDUAETC".contains(kind)
        && name.len() > 1
        && name.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// No leftovers: unfinished work is an issue, not a comment.
pub(crate) fn leftovers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let notes = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
    ];
    for file in &tree.files {
        let text = file.prose();
        for note in notes {
            for at in words_at(text, note) {
                findings.push(file.finding(line_of(text, at), format!("leftover `{note}`")));
            }
        }
    }
    for (file, lexed) in tree.rust() {
        for pair in lexed.tokens().windows(2) {
            if let [
                (at, Token::Word(name @ ("todo" | "unimplemented"))),
                (_, Token::Other(b'!')),
            ] = *pair
            {
                findings.push(file.finding(lexed.line_of(at), format!("leftover `{name}!`")));
            }
        }
    }
    findings
}

/// Returns the offsets at which `word` occurs in `text` as a whole word.
fn words_at<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let follows_word = at > 0 && is_word_byte(bytes[at - 1]);
            let goes_on = bytes
                .get(at + word.len())
                .is_some_and(|&byte| is_word_byte(byte));
            !follows_word && !goes_on
        })
}

/// Nothing names a path of one machine or the host of a package registry.
pub(crate) fn machine_names(tree: &Tree) -> Vec<Finding> {
    // Concatenated here, so that this file does not contain the searched text.
    let paths = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/tm", "p/hw"),
    ];
    let hosts = [
        concat!("index.crates", ".io"),
        concat!("static.crates", ".io"),
        concat!("py", "pi.org"),
        concat!("python", "hosted.org"),
        concat!("registry.", "npmjs.org"),
        concat!("proxy.", "golang.org"),
        concat!("deb.", "debian.org"),
    ];
    let mut findings = Vec::new();
    for file in &tree.files {
        for path in paths {
            for (at, _) in file.text.match_indices(path) {
                let is_inner = at > 0 && is_path_byte(file.text.as_bytes()[at - 1]);
                if !is_inner {
                    let message = format!("`{path}` is a path of one machine");
                    findings.push(file.finding(line_of(&file.text, at), message));
                }
            }
        }
        for host in hosts {
            for (at, _) in file.text.match_indices(host) {
                let message = format!("`{host}` is the host of a registry");
                findings.push(file.finding(line_of(&file.text, at), message));
            }
        }
    }
    findings
}

const fn is_path_byte(byte: u8) -> bool {
    is_word_byte(byte) || matches!(byte, b'.' | b'-' | b'}' | b'*')
}

/// The README and its example.
pub(crate) const README: &str = "README.md";
pub(crate) const EXAMPLE: &str = "crates/highwater/examples/hello.rs";

/// The example of the README is `examples/hello.rs`, without that file's header: its documentation
/// and the lint expectations of the whole file, one line each.
pub(crate) fn readme_example(tree: &Tree) -> Vec<Finding> {
    let (readme, example) = match (tree.get(README), tree.get(EXAMPLE)) {
        (Some(readme), Some(example)) => (readme, example),
        (None, _) => return vec![missing(README)],
        (_, None) => return vec![missing(EXAMPLE)],
    };
    let Some((line, shown)) = first_rust_block(&readme.text) else {
        return vec![readme.finding(1, "no fenced `rust` block that shows examples/hello.rs")];
    };
    let is_header =
        |line: &&str| line.starts_with("//!") || line.starts_with("#![") || line.trim().is_empty();
    let wanted: Vec<&str> = example.text.lines().skip_while(is_header).collect();
    let shown: Vec<&str> = shown.lines().collect();
    let same = shown
        .iter()
        .zip(&wanted)
        .take_while(|(a, b)| a == b)
        .count();
    if same == wanted.len() && same == shown.len() {
        return Vec::new();
    }
    let message = format!(
        "differs from {} in line {} of the block",
        example.path,
        same + 1
    );
    vec![readme.finding(line + same, message)]
}

/// Returns the content of the first fenced `rust` block of `markdown`, and its first line.
fn first_rust_block(markdown: &str) -> Option<(usize, &str)> {
    let opening = markdown.find("```rust")?;
    let start = opening + markdown[opening..].find('\n')? + 1;
    let end = start + markdown[start..].find("```")?;
    Some((line_of(markdown, start), &markdown[start..end]))
}

/// The relative links of the project's documents resolve.
pub(crate) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    // The documents under `docs/` are part of rustdoc, which checks their links itself.
    let is_checked = |file: &&File| has_extension(file, &["md"]) && !file.path.contains("/docs/");
    for file in tree.files.iter().filter(is_checked) {
        let directory = file
            .path
            .rsplit_once('/')
            .map_or("", |(directory, _)| directory);
        for (at, target) in link_targets(&file.text) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if !resolve(directory, path).is_some_and(|path| tree.exists(&path)) {
                let message = format!("link to `{target}`, which does not exist");
                findings.push(file.finding(line_of(&file.text, at), message));
            }
        }
    }
    findings
}

/// Returns the targets of `[text](target)` outside fenced blocks, with their offsets.
fn link_targets(markdown: &str) -> Vec<(usize, &str)> {
    let (mut targets, mut offset, mut is_fenced) = (Vec::new(), 0, false);
    for line in markdown.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        }
        for (at, opening) in line.match_indices("](").filter(|_| !is_fenced) {
            let start = at + opening.len();
            if let Some(length) = line[start..].find([')', ' ']) {
                targets.push((offset + start, &line[start..start + length]));
            }
        }
        offset += line.len();
    }
    targets
}

/// Returns `path`, relative to `directory`, as a path relative to the workspace; `None` if it
/// leaves that.
fn resolve(directory: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = directory
        .split('/')
        .filter(|part| !part.is_empty())
        .collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

pub(crate) fn missing(path: &str) -> Finding {
    File::new(path, "").finding(0, "is missing")
}

pub(crate) fn has_extension(file: &File, extensions: &[&str]) -> bool {
    file.path
        .rsplit_once('.')
        .is_some_and(|(_, extension)| extensions.contains(&extension))
}
