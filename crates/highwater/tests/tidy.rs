//! Promise: the workspace follows its own rules: layers, fences, the one door to locks, documented
//! orderings, and documentation that matches the code. Text rules over every file, one pass.
//!
//! A rule is a function from a [`Tree`] to findings. `tidy/planted.rs` shows that each one fires on
//! a planted violation and is silent beside it.
#![expect(
    clippy::unwrap_used,
    reason = "a file that cannot be read fails the test"
)]

use std::env;
use std::path::Path;

mod tidy {
    pub(crate) mod code_rules;
    pub(crate) mod event_rules;
    pub(crate) mod lexer;
    pub(crate) mod parts;
    pub(crate) mod planted;
    pub(crate) mod planted_parts;
    pub(crate) mod planted_tables;
    pub(crate) mod prose_rules;
    pub(crate) mod table_rules;
    pub(crate) mod text_rules;
    pub(crate) mod tree;
}

use tidy::planted::Planted;
use tidy::tree::{Finding, Tree};
use tidy::{
    code_rules, event_rules, planted, planted_parts, planted_tables, prose_rules, table_rules,
    text_rules,
};

type Rule = fn(&Tree) -> Vec<Finding>;

/// Every rule, by name.
const RULES: &[(&str, Rule)] = &[
    ("layers", code_rules::layers),
    ("parts", code_rules::parts),
    ("type names", code_rules::type_names),
    ("unsafe fence", code_rules::unsafe_fence),
    ("one door", code_rules::one_door),
    ("pairs with", code_rules::pairs_with),
    ("safety section", code_rules::safety_section),
    ("banned words", code_rules::banned_words),
    ("header", text_rules::header),
    ("length", text_rules::length),
    ("length of tests", text_rules::length_of_tests),
    ("named tests", text_rules::named_tests),
    ("cited ids", text_rules::cited_ids),
    ("leftovers", text_rules::leftovers),
    ("machine names", text_rules::machine_names),
    ("readme example", text_rules::readme_example),
    ("statistics", table_rules::statistics),
    ("lock classes", table_rules::lock_classes),
    ("settings", table_rules::settings),
    ("examples", table_rules::examples),
    ("events", event_rules::events),
    ("links", text_rules::links),
    ("persons", prose_rules::persons),
    ("wide lines", prose_rules::wide_lines),
    ("long documents", prose_rules::long_documents),
];

/// Every planted workspace.
fn all_planted() -> impl Iterator<Item = &'static Planted> {
    let more = planted_parts::PLANTED.iter().chain(planted_tables::PLANTED);
    planted::PLANTED.iter().chain(more)
}

// Goal: the workspace has no violation. Method: every rule over every text file of it.
#[test]
fn workspace_is_tidy() {
    // Read at run time: checkouts that share a target directory share the compiled test too.
    let manifest = env::var("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").to_owned());
    let root = Path::new(&manifest).join("../..");
    let tree = Tree::load(&root);
    assert!(
        tree.rust().count() > 5 && tree.get("Cargo.toml").is_some(),
        "the workspace was not found at {}",
        root.display()
    );
    let mut findings = Vec::new();
    for (name, rule) in RULES {
        let found = rule(&tree);
        findings.extend(found.iter().map(|finding| format!("{finding} [{name}]")));
    }
    assert!(
        findings.is_empty(),
        "{} findings:\n{}",
        findings.len(),
        findings.join("\n")
    );
}

// Goal: every rule can fail. Method: plant violations, and neighbours that are none.
#[test]
fn each_rule_fires_where_it_must_and_only_there() {
    for planted in all_planted() {
        let (_, rule) = RULES
            .iter()
            .find(|(name, _)| *name == planted.rule)
            .unwrap();
        let findings = rule(&Tree::of(planted.files));
        let places: Vec<(&str, usize)> = findings
            .iter()
            .map(|finding| (finding.path.as_str(), finding.line))
            .collect();
        assert_eq!(places, planted.expected, "{planted:#?}\n{findings:#?}");
    }
}

// Goal: every new rule is planted too. Method: compare the two lists.
#[test]
fn each_rule_is_planted_both_ways() {
    for (name, _) in RULES {
        let cases = || all_planted().filter(|planted| planted.rule == *name);
        assert!(
            cases().any(|planted| !planted.expected.is_empty()),
            "no violation of `{name}` is planted"
        );
        assert!(
            cases().any(|planted| planted.expected.is_empty()),
            "no neighbour of `{name}` is planted"
        );
    }
}

// Goal: a message can be clicked. Method: its text begins with file and line.
#[test]
fn findings_name_file_and_line() {
    let tree = Tree::of(&[("crates/highwater/src/units.rs", "// no header\n")]);
    let finding = text_rules::header(&tree).remove(0).to_string();
    assert!(
        finding.starts_with("crates/highwater/src/units.rs:1: "),
        "{finding}"
    );
}
