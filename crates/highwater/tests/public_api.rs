//! Promise: the public API without the feature `lab` is what `public-api.txt` lists, and at most
//! 250 types and functions; and the library has at most 20 dependencies.
//!
//! Method: rustdoc's JSON of a build without features, one line for each item that a user can name.
//! After an intended change, renew the text and review its diff:
//! `PUBLIC_API=renew cargo test -p highwater --test public_api`.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

/// The most types, traits, functions and methods.
const ITEMS_MAX: usize = 250;

/// The most packages that the library needs, directly or not.
const DEPENDENCIES_MAX: usize = 20;

/// The version of rustdoc's JSON that [`Api`] reads.
const FORMAT: u64 = 57;

#[test]
fn the_public_api_is_as_written_down() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = home.join("public-api.txt");
    let doc = rustdoc(home);
    if doc["format_version"] != FORMAT {
        let format = &doc["format_version"];
        println!("not compared: this rustdoc writes JSON of format {format}, not {FORMAT}");
        return;
    }
    let api = Api::of(&doc);
    let found = api.to_string();
    if env::var("PUBLIC_API").is_ok_and(|wish| wish == "renew") {
        fs::write(&text, &found).unwrap();
    }
    let written = fs::read_to_string(&text).unwrap_or_default();
    let (old, new): (BTreeSet<_>, BTreeSet<_>) =
        (written.lines().collect(), found.lines().collect());
    let gone: Vec<_> = old
        .difference(&new)
        .map(|line| format!("- {line}"))
        .collect();
    let come: Vec<_> = new
        .difference(&old)
        .map(|line| format!("+ {line}"))
        .collect();
    assert!(
        written == found,
        "the public API differs from {}:\n{}\n{}\nIf that is intended, renew it: \
         PUBLIC_API=renew cargo test -p highwater --test public_api",
        text.display(),
        gone.join("\n"),
        come.join("\n")
    );
    assert!(
        api.counted <= ITEMS_MAX,
        "{} types, traits, functions and methods are public: {ITEMS_MAX} at most",
        api.counted
    );
}

// Goal: a program that links the library gets few others with it. Method: the tree of its
// dependencies without features, those of dependencies and of builds included.
#[test]
fn the_library_has_few_dependencies() {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--package",
            "highwater",
            "--locked",
            "--prefix",
            "none",
        ])
        .args(["--edges", "normal,build", "--format", "{p}", "--no-dedupe"])
        .args(["--target", "x86_64-unknown-linux-gnu", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree: {errors}");
    let tree = String::from_utf8(output.stdout).unwrap();
    let packages: BTreeSet<_> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(
        packages.contains("highwater") && packages.contains("libc"),
        "{tree}"
    );
    let count = packages.len() - 1;
    assert!(
        count <= DEPENDENCIES_MAX,
        "{count} dependencies: {packages:?}"
    );
}

/// The library as rustdoc describes it, built without features in a target directory of its own.
fn rustdoc(home: &Path) -> Value {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("public-api");
    let output = Command::new(env!("CARGO"))
        .args(["rustdoc", "--quiet", "--locked", "--lib", "--manifest-path"])
        .arg(home.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("RUSTDOCFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo rustdoc: {errors}");
    let json = fs::read(target.join("doc/highwater.json")).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// Lines of the text, and how many of them count.
struct Api<'a> {
    index: &'a Value,
    lines: BTreeSet<String>,
    counted: usize,
    seen: BTreeSet<u64>,
}

impl std::fmt::Display for Api<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "# {} types, traits, functions and methods; renewed by tests/public_api.rs",
            self.counted
        )?;
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl<'a> Api<'a> {
    fn of(doc: &'a Value) -> Self {
        let mut api = Self {
            index: &doc["index"],
            lines: BTreeSet::new(),
            counted: 0,
            seen: BTreeSet::new(),
        };
        for id in array(&api.item(&doc["root"])["inner"]["module"]["items"]) {
            api.visit(id, "highwater");
        }
        api
    }

    fn item(&self, id: &Value) -> &'a Value {
        &self.index[id.to_string()]
    }

    /// An item of a module or a type, under the path of that.
    fn visit(&mut self, id: &Value, parent: &str) {
        let item = self.item(id);
        let Some((kind, inner)) = item["inner"].as_object().and_then(|it| it.iter().next()) else {
            return; // of another crate
        };
        if kind == "use" {
            return self.follow(inner, parent);
        }
        let path = format!("{parent}::{}", item["name"].as_str().unwrap_or_default());
        // The documents of `docs/` are modules without items.
        if path == "highwater::docs" {
            return;
        }
        let is_new = self.seen.insert(id.as_u64().unwrap());
        if !is_new {
            self.lines.insert(format!("use {path}"));
            return;
        }
        let shape = match kind.as_str() {
            "function" => signature(&inner["sig"]),
            "constant" | "assoc_const" | "static" => format!(": {}", ty(&inner["type"])),
            "struct_field" => format!(": {}", ty(inner)),
            _ => String::new(),
        };
        let modifiers = if inner["header"]["is_const"] == true {
            "const "
        } else {
            ""
        };
        let extensible = match item["attrs"].to_string().contains("non_exhaustive") {
            true => "#[non_exhaustive] ",
            false => "",
        };
        self.lines
            .insert(format!("{extensible}{modifiers}{kind} {path}{shape}"));
        self.counted += usize::from(matches!(
            kind.as_str(),
            "struct" | "enum" | "union" | "trait" | "function" | "macro" | "type_alias"
        ));
        self.visit_inside(inner, &path);
    }

    /// What a reexport names, as an item of the module that reexports it.
    fn follow(&mut self, inner: &Value, parent: &str) {
        let target = self.item(&inner["id"]);
        if inner["is_glob"] == true {
            for id in array(&target["inner"]["module"]["items"]) {
                self.visit(id, parent);
            }
        } else if target["name"] == inner["name"] {
            self.visit(&inner["id"], parent);
        } else {
            let path = format!("use {parent}::{} as {}", inner["source"], inner["name"]);
            self.lines.insert(path);
        }
    }

    fn visit_inside(&mut self, inner: &Value, path: &str) {
        let parts = [
            &inner["items"],
            &inner["variants"],
            &inner["kind"]["plain"]["fields"],
            &inner["kind"]["struct"]["fields"],
            &inner["kind"]["tuple"],
        ];
        for id in parts.into_iter().flat_map(array).filter(|id| !id.is_null()) {
            self.visit(id, path);
        }
        for id in array(&inner["impls"]) {
            let found = self.item(id);
            let its = &found["inner"]["impl"];
            if its["trait"].is_null() {
                for id in array(&its["items"]) {
                    self.visit(id, path);
                }
            } else if its["is_synthetic"] != true
                && its["blanket_impl"].is_null()
                && !found["attrs"].to_string().contains("automatically_derived")
            {
                self.lines
                    .insert(format!("impl {} for {path}", named(&its["trait"])));
            }
        }
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn signature(sig: &Value) -> String {
    let inputs: Vec<_> = array(&sig["inputs"])
        .iter()
        .map(|input| match input[0].as_str() {
            Some("self") => format!("self: {}", ty(&input[1])),
            _ => ty(&input[1]),
        })
        .collect();
    let output = match &sig["output"] {
        Value::Null => String::new(),
        output => format!(" -> {}", ty(output)),
    };
    format!("({}){output}", inputs.join(", "))
}

/// A path without its modules, and its arguments.
fn named(path: &Value) -> String {
    let full = path["path"].as_str().unwrap_or_default();
    let name = full.rsplit("::").next().unwrap_or_default();
    let args = &path["args"];
    let list = array(&args["angle_bracketed"]["args"]);
    let mut shown: Vec<_> = list.iter().map(argument).collect();
    for bound in array(&args["angle_bracketed"]["constraints"]) {
        let is = &bound["binding"]["equality"]["type"];
        shown.push(format!("{} = {}", bound["name"].as_str().unwrap(), ty(is)));
    }
    let called = &args["parenthesized"];
    if called.is_object() {
        let inputs: Vec<_> = array(&called["inputs"]).iter().map(ty).collect();
        let output = match &called["output"] {
            Value::Null => String::new(),
            output => format!(" -> {}", ty(output)),
        };
        return format!("{name}({}){output}", inputs.join(", "));
    }
    match shown.is_empty() {
        true => name.to_string(),
        false => format!("{name}<{}>", shown.join(", ")),
    }
}

fn argument(arg: &Value) -> String {
    match (&arg["type"], arg["lifetime"].as_str()) {
        (_, Some(lifetime)) => lifetime.to_string(),
        (Value::Null, None) => arg["const"]["expr"].to_string(),
        (its, None) => ty(its),
    }
}

fn bounds(list: &Value) -> String {
    let shown: Vec<_> = array(list)
        .iter()
        .map(|bound| match &bound["trait_bound"]["trait"] {
            Value::Null => bound["outlives"].as_str().unwrap_or("?").to_string(),
            its => named(its),
        })
        .collect();
    shown.join(" + ")
}

/// A type as Rust writes it, but for modules.
fn ty(value: &Value) -> String {
    let Some((kind, inner)) = value.as_object().and_then(|it| it.iter().next()) else {
        return String::new();
    };
    match kind.as_str() {
        "resolved_path" => named(inner),
        "generic" | "primitive" => inner.as_str().unwrap().to_string(),
        "tuple" => {
            let parts: Vec<_> = array(inner).iter().map(ty).collect();
            format!("({})", parts.join(", "))
        }
        "slice" => format!("[{}]", ty(inner)),
        "array" => format!(
            "[{}; {}]",
            ty(&inner["type"]),
            inner["len"].as_str().unwrap()
        ),
        "impl_trait" => format!("impl {}", bounds(inner)),
        "dyn_trait" => {
            let traits: Vec<_> = array(&inner["traits"])
                .iter()
                .map(|its| named(&its["trait"]))
                .collect();
            format!("dyn {}", traits.join(" + "))
        }
        "borrowed_ref" => {
            let lifetime = inner["lifetime"].as_str().map(|name| format!("{name} "));
            let mutable = if inner["is_mutable"] == true {
                "mut "
            } else {
                ""
            };
            let to = ty(&inner["type"]);
            format!("&{}{mutable}{to}", lifetime.unwrap_or_default())
        }
        "qualified_path" => {
            let of = ty(&inner["self_type"]);
            format!("{of}::{}", inner["name"].as_str().unwrap())
        }
        _ => value.to_string(),
    }
}
