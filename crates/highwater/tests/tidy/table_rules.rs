//! Rules about reference documentation: each statistic, lock class and setting of the code has its
//! row in the document that lists them, and each method of a handle its example.

use super::lexer::Lexed;
use super::text_rules::missing;
use super::tree::{CORE, File, Finding, Tree};

/// The tables of statistics: of the whole manager, and of a group.
pub(crate) const STATISTICS: [&str; 2] = [
    "crates/highwater/src/manager/vmstat.rs",
    "crates/highwater/src/group/stat/item.rs",
];

/// Each statistic has a heading in `docs/stats.md`.
pub(crate) fn statistics(tree: &Tree) -> Vec<Finding> {
    let documented: Vec<String> = tree
        .get(&format!("{CORE}docs/stats.md"))
        .map(|file| headings(&file.text))
        .unwrap_or_default();
    let mut findings = Vec::new();
    for table in STATISTICS {
        let Some((file, lexed)) = tree.rust().find(|(file, _)| file.path == table) else {
            findings.push(missing(table));
            continue;
        };
        let names = statistic_names(file, lexed);
        if names.is_empty() {
            let message = "no statistic found: has the shape of the table changed?";
            findings.push(file.finding(1, message));
        }
        let missing = names
            .into_iter()
            .filter(|(_, name)| !documented.iter().any(|heading| heading == name))
            .map(|(line, name)| {
                file.finding(line, format!("`{name}` has no heading in docs/stats.md"))
            });
        findings.extend(missing);
    }
    findings
}

/// Returns the names in a table of lines `... => "name"`, with their lines.
fn statistic_names<'a>(file: &'a File, lexed: &Lexed) -> Vec<(usize, &'a str)> {
    let lines = file.text.lines().zip(lexed.code.lines()).enumerate();
    lines
        .filter_map(|(index, (line, code))| {
            let opening = code.find("=> \"")? + "=> \"".len();
            let closing = opening + code[opening..].find('"')?;
            Some((index + 1, &line[opening..closing]))
        })
        .collect()
}

/// Returns every word of the headings of `markdown`.
fn headings(markdown: &str) -> Vec<String> {
    markdown
        .lines()
        .filter(|line| line.starts_with('#'))
        .flat_map(|line| line.split(|c: char| !(c.is_alphanumeric() || c == '_')))
        .map(str::to_owned)
        .collect()
}

/// The document whose section *Lock order* has a row for each lock class.
pub(crate) const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Each lock class outside of tests is named in ARCHITECTURE.md.
pub(crate) fn lock_classes(tree: &Tree) -> Vec<Finding> {
    let table = tree.get(ARCHITECTURE).map_or("", |file| file.text.as_str());
    let mut findings = Vec::new();
    for (file, lexed) in tree.rust() {
        if file.in_core_src().is_none() || file.is_test_file() {
            continue;
        }
        let is_test = lexed.test_lines();
        let lines = file.text.lines().zip(lexed.code.lines()).enumerate();
        for (index, (line, code)) in lines {
            let Some(name) = string_after(line, code, "LockClass::new(") else {
                continue;
            };
            if !is_test[index + 1] && !table.contains(&format!("`{name}`")) {
                let message = format!("lock class `{name}` has no row in {ARCHITECTURE}");
                findings.push(file.finding(index + 1, message));
            }
        }
    }
    findings
}

/// Returns the string literal after `call` in a line; `code` is that line with its strings blanked.
fn string_after<'a>(line: &'a str, code: &str, call: &str) -> Option<&'a str> {
    let opening = code.find(call)? + call.len();
    let opening = opening + code[opening..].find('"')? + 1;
    let closing = opening + code[opening..].find('"')?;
    Some(&line[opening..closing])
}

/// The builder of managers.
pub(crate) const BUILDER: &str = "crates/highwater/src/manager/builder.rs";

/// Each setting of the builder has a row in `docs/tuning.md`.
pub(crate) fn settings(tree: &Tree) -> Vec<Finding> {
    let Some(builder) = tree.get(BUILDER) else {
        return vec![missing(BUILDER)];
    };
    let tuning = tree
        .get(&format!("{CORE}docs/tuning.md"))
        .map_or("", |file| file.text.as_str());
    let settings: Vec<(usize, &str)> = builder
        .text
        .lines()
        .enumerate()
        .filter_map(|(index, line)| Some((index + 1, setting(line)?)))
        .collect();
    if settings.is_empty() {
        return vec![builder.finding(1, "no setting found: has the builder changed its shape?")];
    }
    settings
        .into_iter()
        .filter(|(_, name)| !tuning.contains(&format!("| [`{name}`]")))
        .map(|(line, name)| builder.finding(line, format!("`{name}` has no row in docs/tuning.md")))
        .collect()
}

/// Returns the name of a setter: a public method that takes and returns the builder by value.
fn setting(line: &str) -> Option<&str> {
    let (name, arguments) = line.trim_start().strip_prefix("pub fn ")?.split_once('(')?;
    let name = name.split_once('<').map_or(name, |(name, _)| name);
    arguments.starts_with("mut self").then_some(name)
}

/// Types with their modules, whose public methods each have an example: handles, and those that are
/// useful without a manager.
const EXEMPLARY: [(&str, &str); 14] = [
    ("manager", "Manager"),
    ("manager", "Builder"),
    ("manager", "Group"),
    ("manager", "Charge"),
    ("manager", "File"),
    ("manager", "Mapping"),
    ("counter", "CounterTree"),
    ("frame", "FramePool"),
    ("topology", "Topology"),
    ("units", "Bytes"),
    ("units", "Estimate"),
    ("units", "OomScoreAdj"),
    ("units", "Pages"),
    ("victim", "Selector"),
];

/// Returns the type of an inherent implementation, without its parameters; `of` is the line after
/// `impl`.
fn implemented(of: &str) -> &str {
    let of = match of.strip_prefix('<') {
        Some(parameters) => parameters.split_once("> ").map_or("", |(_, name)| name),
        None => of.trim_start(),
    };
    let name = of.strip_suffix(" {").unwrap_or("");
    match name.split_once('<') {
        Some((name, arguments)) if arguments.ends_with('>') => name,
        _ => name,
    }
}

/// Returns a line from the method's name on, if it begins a public method.
fn public_method(code: &str) -> Option<&str> {
    let function = code.strip_prefix("    pub ")?;
    function
        .strip_prefix("const ")
        .unwrap_or(function)
        .strip_prefix("fn ")
}

/// Each public method of these types has an example, which runs as a doctest.
pub(crate) fn examples(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, lexed) in tree.rust() {
        let module = file.core_module().filter(|_| !file.is_test_file());
        let Some(module) = module.filter(|module| EXEMPLARY.iter().any(|(of, _)| of == module))
        else {
            continue;
        };
        let (mut is_handle, mut has_example) = (false, false);
        for (index, (line, code)) in file.text.lines().zip(lexed.code.lines()).enumerate() {
            let code = code.trim_end();
            if let Some(of) = code.strip_prefix("impl") {
                is_handle = EXEMPLARY.contains(&(module, implemented(of)));
            } else if code == "}" {
                is_handle = false;
            } else if let Some(method) = public_method(code) {
                if is_handle && !has_example {
                    let end = method.find(['(', '<']).unwrap_or(method.len());
                    let message = format!("`{}` has no example", &method[..end]);
                    findings.push(file.finding(index + 1, message));
                }
                has_example = false;
            } else if line.starts_with("    /// ```") {
                has_example = true;
            } else if code == "    }" {
                has_example = false;
            }
        }
    }
    findings
}
