//! Rules about code: layer order, the fence around `unsafe`, the one door to atomics, locks and
//! threads, the partners of memory orderings, and names.

use std::collections::BTreeMap;

use super::lexer::{Lexed, Token};
use super::parts::PARTS;
use super::tree::{CORE, File, Finding, Tree};

/// The layers of the core, lowest first. A module may use modules of lower rows and of its own.
const LAYERS: &[&[&str]] = &[
    // `seed` is for tests only: any of them may draw from it.
    &["units", "error", "sync", "seed"],
    &["topology", "memmap"],
    &["percpu"],
    &["counter"],
    &["group"],
    &["frame"],
    &["cache"],
    &["reclaim"],
    &["victim"],
    &["manager"],
    // Re-exports the layers below, for experiments.
    &["lab"],
];

/// Types that two files define, of which the platform selects one: the rseq area.
const ALTERNATIVES: &[&str] = &["Area"];

/// The modules of the core that may hold `unsafe`.
const UNSAFE_MODULES: &[&str] = &["memmap", "percpu"];
/// Types whose noun is the frame pool itself.
const OF_FRAME_POOL: &[&str] = &["FramePool", "PoolConfig", "PoolError"];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&module))
}

/// `crate::` and `super::` paths of a module name lower layers only, and name them by module.
pub(crate) fn layers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, lexed) in tree.rust() {
        let Some(module) = file.core_module() else {
            continue;
        };
        if module == "lib" {
            continue;
        }
        let Some(layer) = layer_of(module) else {
            let message = format!("module `{module}` has no layer: give it one in LAYERS of tidy");
            findings.push(file.finding(1, message));
            continue;
        };
        for (offset, path) in lexed.paths() {
            let Some(named) = from_root(file, &path) else {
                continue;
            };
            let line = lexed.line_of(offset);
            match layer_of(named) {
                Some(other) if other > layer => findings.push(file.finding(
                    line,
                    format!("`{module}` (layer {layer}) must not know `{named}` (layer {other})"),
                )),
                Some(_) => {}
                None if path[0] == "crate" => findings.push(file.finding(
                    line,
                    format!("`crate::{named}` hides its layer: name the module it comes from"),
                )),
                None => {}
            }
        }
    }
    findings
}

/// Returns the part of `path` directly under the root of the core.
fn from_root<'a>(file: &File, path: &[&'a str]) -> Option<&'a str> {
    if path[0] == "crate" {
        return path.get(1).copied();
    }
    let below = file.in_core_src()?;
    let is_module_root = below.ends_with("/mod.rs");
    let depth = below.matches('/').count() + usize::from(!is_module_root);
    let supers = path
        .iter()
        .take_while(|&&segment| segment == "super")
        .count();
    if supers < depth {
        return None;
    }
    path.get(supers).copied()
}

/// A module with layers of its own keeps them; see [`PARTS`].
pub(crate) fn parts(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, lexed) in tree.rust() {
        let Some((rows, place)) = place_in_parts(file) else {
            continue;
        };
        let row_of = |part: &str| rows.iter().position(|row| row.contains(&part));
        let (module, part) = (place[0], place[1]);
        let Some(row) = row_of(part) else {
            let message = format!("part `{part}` has no row: give it one in PARTS of tidy");
            findings.push(file.finding(1, message));
            continue;
        };
        let ground = types_of(tree, &format!("{CORE}src/{module}/mod.rs"));
        let siblings = declared_by(tree, &format!("{CORE}src/{module}/{part}/mod.rs"));
        let order_of = |name: &str| siblings.iter().position(|sibling| *sibling == name);
        let test_lines = lexed.test_lines();
        for (offset, path) in lexed.paths() {
            let line = lexed.line_of(offset);
            let path = absolute(&place, &path);
            let [_, named, rest @ ..] = &path[..] else {
                continue;
            };
            if path[0] != module || file.is_test_file() || test_lines[line] {
                continue;
            }
            let later = |name: &&str| match (place.get(2), order_of(name)) {
                (Some(own), Some(other)) => order_of(own).is_some_and(|own| other > own),
                _ => false,
            };
            let message = match row_of(named) {
                Some(other) if other > row || (other == row && *named != part) => {
                    format!("`{part}` must not know `{named}`")
                }
                Some(_) if named == &part && rest.first().is_some_and(later) => {
                    format!("`{}` is declared below `{}`", rest[0], place[2])
                }
                None if !ground.contains(named) => {
                    format!("`{module}::{named}` hides its part: name that")
                }
                _ => continue,
            };
            findings.push(file.finding(line, message));
        }
    }
    findings
}

/// Returns the rows of the file's module and the file's place: module, part, and the name of a file
/// within the part. `None` for files of no part.
fn place_in_parts(file: &File) -> Option<(&'static [&'static [&'static str]], Vec<&str>)> {
    let place = file.in_core_src()?.strip_suffix(".rs")?;
    let place: Vec<&str> = place.trim_end_matches("/mod").split('/').collect();
    let (_, rows) = PARTS.iter().find(|(module, _)| *module == place[0])?;
    (place.len() > 1 && !file.is_test_file()).then_some((rows, place))
}

/// Returns `path` from the root of the core, for a file at `place`; relative paths as they are.
fn absolute<'a>(place: &[&'a str], path: &[&'a str]) -> Vec<&'a str> {
    if path[0] == "crate" {
        return path[1..].to_vec();
    }
    let supers = path.iter().take_while(|&&name| name == "super").count();
    match supers {
        0 => Vec::new(),
        _ => [
            &place[..place.len().saturating_sub(supers)],
            &path[supers..],
        ]
        .concat(),
    }
}

/// Returns the modules that the file declares, in order.
fn declared_by<'a>(tree: &'a Tree, path: &str) -> Vec<&'a str> {
    let text = tree.get(path).map_or("", |file| &file.text);
    let declared = text.lines().filter_map(|line| {
        let name = line.strip_suffix(';')?;
        name.strip_prefix("mod ")
            .or(name.strip_prefix("pub(super) mod "))
    });
    declared.collect()
}

/// Returns the types that the file defines.
fn types_of<'a>(tree: &'a Tree, path: &str) -> Vec<&'a str> {
    let lexed = tree.get(path).and_then(|file| file.lexed.as_ref());
    let tokens = lexed.map(Lexed::tokens).unwrap_or_default();
    let defined = tokens.windows(2).filter_map(|pair| match pair {
        [
            (_, Token::Word("struct" | "enum" | "trait" | "type")),
            (_, Token::Word(name)),
        ] => Some(*name),
        _ => None,
    });
    defined.collect()
}

/// One name, one thing: no two files of the core define a type, trait or alias of the same name.
/// Left out are tests, stand-ins for the model checker, and two of one file: alternatives.
pub(crate) fn type_names(tree: &Tree) -> Vec<Finding> {
    let (mut findings, mut first) = (Vec::new(), BTreeMap::new());
    let left_out = test_modules(tree);
    for (file, lexed) in tree.rust() {
        let is_test = |prefix: &String| file.path.starts_with(prefix);
        if file.in_core_src().is_none() || left_out.iter().any(is_test) {
            continue;
        }
        let test_lines = lexed.test_lines();
        for pair in lexed.tokens().windows(2) {
            let [(offset, Token::Word(keyword)), (_, Token::Word(name))] = *pair else {
                continue;
            };
            let line = lexed.line_of(offset);
            let defines = match keyword {
                "struct" | "enum" | "trait" | "union" => true,
                // One that is indented belongs to a trait or an implementation.
                "type" => !lexed.code.lines().nth(line - 1).unwrap().starts_with(' '),
                _ => false,
            };
            if !defines || test_lines[line] || ALTERNATIVES.contains(&name) {
                continue;
            }
            let other: &String = first.entry(name.to_owned()).or_insert(file.path.clone());
            if *other != file.path {
                let message =
                    format!("`{name}` is defined in {other}, too: give one a name of its own");
                findings.push(file.finding(line, message));
            }
        }
    }
    findings
}

/// Returns the path, without its end, of each module of the core that is declared for tests or for
/// the model checker only.
fn test_modules(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (file, lexed) in tree.rust().filter(|(file, _)| file.in_core_src().is_some()) {
        let folder = file.path.trim_end_matches(".rs").trim_end_matches("/mod");
        let folder = folder.trim_end_matches("/lib");
        let lines = lexed
            .code
            .lines()
            .zip(lexed.test_lines().into_iter().skip(1));
        let mut is_model = false;
        for (line, is_test) in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [.., "mod", name] = words[..]
                && let Some(name) = name.strip_suffix(';')
                && (is_test || is_model)
            {
                found.extend([format!("{folder}/{name}.rs"), format!("{folder}/{name}/")]);
            }
            is_model = line.trim() == "#[cfg(loom)]";
        }
    }
    found
}

/// `unsafe` is allowed only in the two fenced modules, and in a test or bench of the core, or a
/// bench against foreign code, that declares it; the lint is lifted for those only.
pub(crate) fn unsafe_fence(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, lexed) in tree.rust() {
        let in_fence = file
            .core_module()
            .is_some_and(|module| UNSAFE_MODULES.contains(&module));
        let may_expect = file.path.starts_with("benches-external/")
            || ["tests/", "benches/"]
                .iter()
                .any(|part| file.path.starts_with(&format!("{CORE}{part}")));
        let compact: String = lexed.code.split_whitespace().collect();
        let expects = may_expect && compact.contains("#![expect(unsafe_code");
        let tokens = lexed.tokens();
        for (index, &(offset, token)) in tokens.iter().enumerate() {
            let line = lexed.line_of(offset);
            if token == Token::Word("unsafe") && !in_fence && !expects {
                let message = "`unsafe` outside memmap and percpu of the core";
                findings.push(file.finding(line, message));
            }
            if token == Token::Word("unsafe_code")
                && !expects
                && !lifts_for_fence(file, &tokens[..], index)
            {
                let message =
                    "`unsafe_code` is lifted only in the core's lib.rs, for memmap and percpu";
                findings.push(file.finding(line, message));
            }
        }
    }
    findings
}

/// Returns whether the lint named at `index` is made stricter, or lifted in `lib.rs` for a fenced
/// module.
fn lifts_for_fence(file: &File, tokens: &[(usize, Token<'_>)], index: usize) -> bool {
    let level = tokens[..index]
        .iter()
        .rev()
        .find_map(|&(_, token)| match token {
            Token::Word(word) => Some(word),
            _ => None,
        });
    if matches!(level, Some("deny" | "forbid")) {
        return true;
    }
    let mut later = tokens[index..].iter().map(|&(_, token)| token);
    let module = later
        .find(|&token| token == Token::Word("mod"))
        .and_then(|_| later.next());
    file.in_core_src() == Some("lib.rs")
        && matches!(module, Some(Token::Word(name)) if UNSAFE_MODULES.contains(&name))
}

/// Atomics, locks and threads of the core come through `crate::sync`.
pub(crate) fn one_door(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, lexed) in tree.rust() {
        if file.in_core_src().is_none() || file.core_module() == Some("sync") {
            continue;
        }
        let test_lines = lexed.test_lines();
        for (offset, path) in lexed.paths() {
            let line = lexed.line_of(offset);
            let in_test = file.is_test_file() || test_lines[line];
            if is_lock_or_atomic(&path) || (is_thread_or_model(&path) && !in_test) {
                let message = format!("`{}` goes through `crate::sync`", path.join("::"));
                findings.push(file.finding(line, message));
            }
        }
    }
    findings
}

/// Returns whether only `sync` may name `path`.
fn is_lock_or_atomic(path: &[&str]) -> bool {
    match path {
        ["std" | "core", "sync"] | ["parking_lot", ..] => true,
        ["std" | "core", "sync", name, ..] => {
            matches!(*name, "*" | "atomic" | "Mutex" | "RwLock" | "Condvar")
        }
        _ => false,
    }
}

/// Returns whether only `sync` and tests may name `path`: tests start threads and models by
/// themselves. Asking for the number of CPUs, or whether this thread panics, starts and orders
/// nothing.
fn is_thread_or_model(path: &[&str]) -> bool {
    matches!(path, ["loom", ..] | ["std", "thread", ..])
        && !matches!(
            path,
            ["std", "thread", "available_parallelism" | "panicking"]
        )
}

/// Each ordering stronger than relaxed has a comment that names its partner: within its statement,
/// or up to three lines above that.
pub(crate) fn pairs_with(tree: &Tree) -> Vec<Finding> {
    const ORDERINGS: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst"];
    let mut findings = Vec::new();
    for (file, lexed) in tree.rust() {
        if file.in_core_src().is_none() || file.is_test_file() {
            continue;
        }
        let test_lines = lexed.test_lines();
        let comments: Vec<&str> = lexed.comments.lines().collect();
        for (offset, word) in lexed.words() {
            let line = lexed.line_of(offset);
            if !ORDERINGS.contains(&word) || test_lines[line] {
                continue;
            }
            let (start, end) = statement(&lexed.code, offset);
            if lexed.code[start..end]
                .split_whitespace()
                .any(|word| word == "use")
            {
                continue;
            }
            let first = lexed.line_of(start).saturating_sub(3).max(1);
            let last = lexed.line_of(end);
            if !comments[first - 1..last]
                .iter()
                .any(|text| text.contains("Pairs with"))
            {
                let message = format!("`{word}` without a comment `Pairs with ...`");
                findings.push(file.finding(line, message));
            }
        }
    }
    findings
}

/// Returns the start (the first character that is no blank) and end of the statement around
/// `offset`.
fn statement(code: &str, offset: usize) -> (usize, usize) {
    let is_edge = |c: char| matches!(c, ';' | '{' | '}');
    let start = code[..offset].rfind(is_edge).map_or(0, |at| at + 1);
    // An import's braces are no block.
    let start = match code[..start].trim_end_matches('{').trim_end() {
        before if before.ends_with("::") => before.rfind([';', '}']).map_or(0, |at| at + 1),
        _ => start,
    };
    let start = start + code[start..].len() - code[start..].trim_start().len();
    let end = code[offset..]
        .find(is_edge)
        .map_or(code.len() - 1, |at| offset + at);
    (start, end)
}

/// Every `unsafe fn` states its caller's guarantees in `# Safety`.
pub(crate) fn safety_section(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, lexed) in tree.rust() {
        let tokens = lexed.tokens();
        for (index, &(offset, token)) in tokens.iter().enumerate() {
            if token != Token::Word("unsafe") || !declares_function(&tokens[index + 1..]) {
                continue;
            }
            let line = lexed.line_of(offset);
            if !has_safety_section(lexed, line) {
                let message = "`unsafe fn` without `# Safety` in its documentation";
                findings.push(file.finding(line, message));
            }
        }
    }
    findings
}

/// Returns whether the text after `unsafe` is the head of a function, and not a type of functions.
fn declares_function(after: &[(usize, Token<'_>)]) -> bool {
    let mut words = after
        .iter()
        .map(|&(_, token)| token)
        .skip_while(|&token| matches!(token, Token::Word("extern") | Token::Other(b'"')));
    words.next() == Some(Token::Word("fn")) && matches!(words.next(), Some(Token::Word(_)))
}

/// Walks up over the comments and attributes directly above `line`.
fn has_safety_section(lexed: &Lexed, line: usize) -> bool {
    let lines = lexed
        .code
        .lines()
        .zip(lexed.comments.lines())
        .take(line - 1);
    let above: Vec<(&str, &str)> = lines.collect();
    above
        .iter()
        .rev()
        .take_while(|(code, comment)| {
            let is_blank = code.trim().is_empty() && comment.trim().is_empty();
            !is_blank && !code.contains([';', '{', '}'])
        })
        .any(|(_, comment)| comment.contains("# Safety"))
}

/// Words for which the field has a better one are no part of an identifier (style annex A).
pub(crate) fn banned_words(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, lexed) in tree.rust() {
        for (offset, identifier) in lexed.words() {
            if is_foreign_module(lexed, offset, identifier) {
                continue;
            }
            if let Some((word, better)) = banned_word(identifier, file) {
                let line = lexed.line_of(offset);
                let message = format!("`{identifier}`: not `{word}` but {better}");
                findings.push(file.finding(line, message));
            }
        }
    }
    findings
}

/// Returns whether the identifier is a module on the way to an import from a crate of others.
fn is_foreign_module(lexed: &Lexed, offset: usize, identifier: &str) -> bool {
    let (before, after) = lexed.code.split_at(offset);
    let line = before.rsplit('\n').next().unwrap_or_default().trim_start();
    let Some((root, _)) = line
        .strip_prefix("use ")
        .and_then(|path| path.split_once("::"))
    else {
        return false;
    };
    let is_ours = matches!(root, "crate" | "self" | "super") || root.starts_with("highwater");
    !is_ours && after[identifier.len()..].starts_with("::")
}

fn banned_word(identifier: &str, file: &File) -> Option<(String, &'static str)> {
    // Names chosen elsewhere.
    const FOREIGN: &[&str] = &[
        "UnwindSafe",
        "RefUnwindSafe",
        "AssertUnwindSafe",
        "GlobalAlloc",
        "global_allocator",
        "QuotaExceeded",
        "crossbeam_utils",
        "datafusion_common",
    ];
    if FOREIGN.contains(&identifier) {
        return None;
    }
    let in_core_src = file.in_core_src().is_some();
    let is_type = identifier.starts_with(|c: char| c.is_uppercase());
    words_of(identifier).into_iter().find_map(|word| {
        let better = match word.as_str() {
            "quota" => "the limit",
            "evictor" | "gc" => "reclaim",
            "global" => "the object it belongs to",
            "safe" | "fast" | "smart" => "the exact property",
            "util" | "utils" | "common" => "its purpose",
            // The program's users say tenant; the library's noun is group.
            "tenant" | "tenants" if in_core_src => "group",
            // The pool of frames is the zones together; a type for one of them is a zone.
            "pool" if in_core_src && is_type && !OF_FRAME_POOL.contains(&identifier) => "zone",
            _ => return None,
        };
        Some((word, better))
    })
}

/// Returns the words of a `snake_case`, `CamelCase` or `UPPER_CASE` identifier, in lower case.
fn words_of(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in identifier.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        if let (Some(word), true) = (words.last_mut(), c != '_') {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words
}
