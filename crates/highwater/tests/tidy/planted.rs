//! Violations to plant, one by one: for each rule at least one small workspace in which it must
//! fire, at exactly the lines given, and one beside it in which it must stay silent.

/// A small workspace and where one rule must fire in it.
#[derive(Debug)]
pub(crate) struct Planted {
    pub(crate) rule: &'static str,
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// Paths and lines of the findings, in order; empty where the rule must stay silent.
    pub(crate) expected: &'static [(&'static str, usize)],
}

pub(crate) const fn plant(
    rule: &'static str,
    files: &'static [(&'static str, &'static str)],
    expected: &'static [(&'static str, usize)],
) -> Planted {
    Planted {
        rule,
        files,
        expected,
    }
}

const UNITS: &str = "crates/highwater/src/units.rs";
pub(super) const FRAME: &str = "crates/highwater/src/frame/mod.rs";
pub(super) const BUDDY: &str = "crates/highwater/src/frame/buddy.rs";
const PERCPU: &str = "crates/highwater/src/percpu/mod.rs";
const LIB: &str = "crates/highwater/src/lib.rs";
const LIMITS: &str = "crates/highwater/tests/limits.rs";
const EXTERNAL: &str = "benches-external/allocators/src/main.rs";
pub(super) const LAB: &str = "crates/highwater-lab/src/lib.rs";
const HELLO: &str = "crates/highwater/examples/hello.rs";

/// A file of a place of which `prose_rules` allows nothing.
const OUTSIDE: &str = "outside/src/x.rs";

/// A word of 90 columns.
macro_rules! columns_90 {
    () => {
        "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghij"
    };
}

const LINES_600: &str = text(&[b'\n'; 600]);
const LINES_601: &str = text(&[b'\n'; 601]);

pub(super) const fn text(bytes: &'static [u8]) -> &'static str {
    match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("not UTF-8"),
    }
}

/// Every planted workspace.
pub(crate) const PLANTED: &[Planted] = &[
    // Layers.
    plant(
        "layers",
        &[(UNITS, "//! U.\nuse crate::topology::Topology;\n")],
        &[(UNITS, 2)],
    ),
    plant(
        "layers",
        &[(
            FRAME,
            "//! F.\nuse crate::{\n    units::Pages,\n    reclaim::Lruvec,\n};\n",
        )],
        &[(FRAME, 4)],
    ),
    plant(
        "layers",
        &[(BUDDY, "//! B.\nfn f() { super::super::cache::fill() }\n")],
        &[(BUDDY, 2)],
    ),
    plant(
        "layers",
        &[(FRAME, "//! F.\nuse super::victim::select;\n")],
        &[(FRAME, 2)],
    ),
    plant(
        "layers",
        &[(FRAME, "//! F.\nuse crate::Manager;\n")],
        &[(FRAME, 2)],
    ),
    plant(
        "layers",
        &[("crates/highwater/src/extra.rs", "//! E.\n")],
        &[("crates/highwater/src/extra.rs", 1)],
    ),
    plant(
        "layers",
        &[
            (
                FRAME,
                "//! See crate::manager.\nuse crate::group::GroupId;\nfn f() { g(\"crate::cache::x\") }\n",
            ),
            (BUDDY, "//! B.\nuse super::cache;\nuse crate::frame::pcp;\n"),
            (LIB, "//! L.\npub use crate::manager::Manager;\n"),
            (LAB, "//! L.\nuse crate::manager::anything;\n"),
        ],
        &[],
    ),
    // The fence around `unsafe`.
    plant(
        "unsafe fence",
        &[(FRAME, "//! F.\nfn f() {\n    unsafe { g() }\n}\n")],
        &[(FRAME, 3)],
    ),
    plant(
        "unsafe fence",
        &[(LAB, "//! L.\nunsafe impl Send for X {}\n")],
        &[(LAB, 2)],
    ),
    plant(
        "unsafe fence",
        &[(FRAME, "//! F.\n#![expect(unsafe_code, reason = \"r\")]\n")],
        &[(FRAME, 2)],
    ),
    plant(
        "unsafe fence",
        &[(
            LIB,
            "//! L.\n#[expect(unsafe_code, reason = \"r\")]\npub mod frame;\n",
        )],
        &[(LIB, 2)],
    ),
    plant(
        "unsafe fence",
        &[(LIMITS, "//! L.\nunsafe fn f() {}\n")],
        &[(LIMITS, 2)],
    ),
    plant(
        "unsafe fence",
        &[(EXTERNAL, "//! E.\nunsafe fn f() {}\n")],
        &[(EXTERNAL, 2)],
    ),
    plant(
        "unsafe fence",
        &[
            (PERCPU, "//! P.\nunsafe fn f() {}\n"),
            (FRAME, "//! No unsafe.\nconst S: &str = \"unsafe\";\n"),
            (
                LIB,
                "//! L.\n#[expect(\n    unsafe_code,\n    reason = \"r\"\n)]\npub mod percpu;\n",
            ),
            (
                LIMITS,
                "//! L.\n#![expect(unsafe_code, reason = \"r\")]\nunsafe fn f() {}\n",
            ),
            (
                EXTERNAL,
                "//! E.\n#![expect(unsafe_code, reason = \"r\")]\nunsafe fn f() {}\n",
            ),
            (LAB, "//! L.\n#![forbid(unsafe_code)]\n"),
        ],
        &[],
    ),
    // One door to atomics, locks and threads.
    plant(
        "one door",
        &[(FRAME, "//! F.\nuse std::sync::{Arc, atomic::AtomicU64};\n")],
        &[(FRAME, 2)],
    ),
    plant(
        "one door",
        &[(FRAME, "//! F.\nuse core::sync::atomic::fence;\n")],
        &[(FRAME, 2)],
    ),
    plant(
        "one door",
        &[(FRAME, "//! F.\nstatic M: std::sync::Mutex<u8> = X;\n")],
        &[(FRAME, 2)],
    ),
    plant(
        "one door",
        &[(FRAME, "//! F.\nuse std::{thread, sync};\n")],
        &[(FRAME, 2), (FRAME, 2)],
    ),
    plant(
        "one door",
        &[(
            FRAME,
            "//! F.\nuse parking_lot::RwLock;\nuse loom::model;\n",
        )],
        &[(FRAME, 2), (FRAME, 3)],
    ),
    plant(
        "one door",
        &[(
            FRAME,
            "//! F.\n#[cfg(test)]\nmod tests {\n    use std::thread;\n    use std::sync::Condvar;\n}\n",
        )],
        &[(FRAME, 5)],
    ),
    plant(
        "one door",
        &[
            (
                FRAME,
                "//! As std::sync::Mutex.\nuse std::sync::{Arc, OnceLock};\nuse crate::sync::Mutex;\nuse std::thread::available_parallelism;\n",
            ),
            (
                "crates/highwater/src/frame/loom.rs",
                "//! L.\nuse loom::model;\nuse std::thread;\n",
            ),
            (
                "crates/highwater/src/sync/mod.rs",
                "//! S.\npub use std::sync::atomic::AtomicU8;\n",
            ),
            (LIMITS, "//! L.\nuse std::sync::Mutex;\n"),
        ],
        &[],
    ),
    // Partners of orderings.
    plant(
        "pairs with",
        &[(
            FRAME,
            "//! F.\nfn f() {\n    a.load(Ordering::Acquire);\n}\n",
        )],
        &[(FRAME, 3)],
    ),
    plant(
        "pairs with",
        &[(
            FRAME,
            "//! F.\n// Pairs with the store.\n\n\n\nfn f() {\n    fence(SeqCst);\n}\n",
        )],
        &[(FRAME, 7)],
    ),
    plant(
        "pairs with",
        &[(
            FRAME,
            "//! F.\nfn f() {\n    a.swap(\"Pairs with\", Ordering::AcqRel);\n}\n",
        )],
        &[(FRAME, 3)],
    ),
    plant(
        "pairs with",
        &[
            (
                FRAME,
                "//! F.\nuse crate::sync::atomic::Ordering::{self, Acquire, Release};\nfn f() {\n    \
                 // Pairs with the load in g.\n    a.store(1, Release);\n    b.store(2, Release); //
                 // Pairs with h.\n    \
                 let x = c\n        .b()\n        // Pairs with i.\n        .d()\n        .e()\n        .f()\n        .load(Acquire);\n    \
                 a.load(Ordering::Relaxed);\n}\n#[cfg(test)]\nmod tests {\n    fn t() { a.load(SeqCst) }\n}\n",
            ),
            (
                "crates/highwater/src/frame/tests.rs",
                "//! T.\nfn f() { a.load(SeqCst) }\n",
            ),
            (LAB, "//! L.\nfn f() { a.load(SeqCst) }\n"),
        ],
        &[],
    ),
    // Shape of files.
    plant("header", &[(UNITS, "// U.\n")], &[(UNITS, 1)]),
    plant(
        "header",
        &[(UNITS, "use std::fmt;\n//! U.\n")],
        &[(UNITS, 1)],
    ),
    plant(
        "header",
        &[(UNITS, "#![expect(a,\n    reason = \"r\")]\n\nfn f() {}\n")],
        &[(UNITS, 1)],
    ),
    plant("header", &[(UNITS, "")], &[(UNITS, 1)]),
    plant(
        "header",
        &[
            (
                UNITS,
                "#![expect(\n    a,\n    reason = \"]\"\n)]\n//! U.\n",
            ),
            (LAB, "//! L.\n"),
        ],
        &[],
    ),
    plant("length", &[(UNITS, LINES_601)], &[(UNITS, 601)]),
    plant(
        "length",
        &[(UNITS, LINES_600), ("data.txt", LINES_601)],
        &[],
    ),
    // `# Safety`.
    plant(
        "safety section",
        &[(PERCPU, "//! P.\n/// Adds.\nunsafe fn f() {}\n")],
        &[(PERCPU, 3)],
    ),
    plant(
        "safety section",
        &[(
            PERCPU,
            "//! P.\n/// # Safety\n/// S.\nunsafe fn f() {}\npub unsafe extern \"C\" fn g() {}\n",
        )],
        &[(PERCPU, 5)],
    ),
    plant(
        "safety section",
        &[(
            PERCPU,
            "//! P.\n/// Adds.\n///\n/// # Safety\n///\n/// The slot is mapped.\n#[inline]\npub(crate) unsafe fn f() {}\n\
             type F = unsafe fn(u8);\nfn g() { unsafe { f() } }\n",
        )],
        &[],
    ),
    // Promises of documentation.
    plant(
        "named tests",
        &[
            ("README.md", "See `tests/limits.rs::never_above`.\n"),
            (LIMITS, "//! L.\nfn other() {}\n"),
        ],
        &[("README.md", 1)],
    ),
    plant(
        "named tests",
        &[(
            FRAME,
            "//! F.\n//! Adversary: `tests/accuracy.rs::worst`.\n",
        )],
        &[(FRAME, 2)],
    ),
    plant(
        "named tests",
        &[
            (
                FRAME,
                "//! Adversary: tests/limits.rs::never_above. See `tests/*.rs`, tests/limits.rs.\nconst X: &str = \"tests/no.rs::f\";\n",
            ),
            (LIMITS, "//! L.\nfn never_above() {}\n"),
        ],
        &[],
    ),
    plant(
        "readme example",
        &[
            (
                "README.md",
                "# H\n\n```rust\nfn main() {\n    a();\n}\n```\n",
            ),
            (HELLO, "//! H.\n\nfn main() {\n    b();\n}\n"),
        ],
        &[("README.md", 5)],
    ),
    plant(
        "readme example",
        &[("README.md", "# H\n"), (HELLO, "//! H.\n\nfn main() {}\n")],
        &[("README.md", 1)],
    ),
    plant(
        "readme example",
        &[
            ("README.md", "# H\n\n```rust\nfn main() {}\n```\n"),
            (HELLO, "//! H.\n\n#![expect(lint)]\n\nfn main() {}\n"),
        ],
        &[],
    ),
    plant("readme example", &[("README.md", "# H\n")], &[(HELLO, 0)]),
    plant(
        "readme example",
        &[(HELLO, "//! H.\n")],
        &[("README.md", 0)],
    ),
    plant(
        "cited ids",
        &[
            (UNITS, "//! U.\n// So that [N-NONE] holds.\n"),
            ("CONTRIBUTING.md", "# C\n| N-UNIT | u |\n"),
        ],
        &[(UNITS, 2)],
    ),
    plant(
        "cited ids",
        &[
            (
                UNITS,
                "//! [N-UNIT], [x](y), [A-b], [Pages].\nconst S: &str = \"[N-NONE]\";\n",
            ),
            ("CONTRIBUTING.md", "# C\n| N-UNIT | u |\n"),
        ],
        &[],
    ),
    // Leftovers, names of one machine, words, links.
    plant(
        "leftovers",
        &[(
            UNITS,
            concat!("//! U.\n// TO", "DO: later\nfn f() { todo!() }\n"),
        )],
        &[(UNITS, 2), (UNITS, 3)],
    ),
    plant(
        "leftovers",
        &[("CHANGELOG.md", concat!("FIX", "ME\n\nX", "XX\n"))],
        &[("CHANGELOG.md", 1), ("CHANGELOG.md", 3)],
    ),
    plant(
        "leftovers",
        &[(
            UNITS,
            concat!(
                "//! U.\nconst S: &str = \"TO",
                "DO\"; // Xs: XXXXXX\nfn todo() {}\n"
            ),
        )],
        &[],
    ),
    plant(
        "machine names",
        &[("README.md", concat!("a\nrun /ro", "ot/x\n"))],
        &[("README.md", 2)],
    ),
    plant(
        "machine names",
        &[(UNITS, concat!("//! U.\nconst P: &str = \"/wo", "rk/y\";\n"))],
        &[(UNITS, 2)],
    ),
    plant(
        "machine names",
        &[(
            "Cargo.lock",
            concat!("source = \"sparse+https://index.crates", ".io/\"\n"),
        )],
        &[("Cargo.lock", 1)],
    ),
    plant(
        "machine names",
        &[(
            "README.md",
            concat!("tree/ro", "ot/x ../wo", "rk/ /tmp/hello\n"),
        )],
        &[],
    ),
    plant(
        "banned words",
        &[(FRAME, "//! F.\nfn f(quota: u8) {\n    isSmartList();\n}\n")],
        &[(FRAME, 2), (FRAME, 3)],
    ),
    plant(
        "banned words",
        &[(
            FRAME,
            "//! F.\nmod utils;\nstruct TenantTable;\nstruct ZonePool;\n",
        )],
        &[(FRAME, 2), (FRAME, 3), (FRAME, 4)],
    ),
    plant(
        "banned words",
        &[
            (
                FRAME,
                "//! The tenant's quota.\nfn unsafe_code(pool: &FramePool) { f(\"global\"); pool_of_breakfast(); }\nuse std::panic::UnwindSafe;\n",
            ),
            (LAB, "//! L.\nstruct Tenant;\n"),
        ],
        &[],
    ),
    plant(
        "banned words",
        &[(
            LAB,
            "//! L.\nuse arrow::util::pretty;\nuse crate::util::f;\nuse arrow::x as common;\n",
        )],
        &[(LAB, 3), (LAB, 4)],
    ),
    plant(
        "links",
        &[
            (
                "README.md",
                "See [a](CHANGELOG.md)\nand [b](docs/none.md#x).\n",
            ),
            ("CHANGELOG.md", "x\n"),
        ],
        &[("README.md", 2)],
    ),
    plant(
        "links",
        &[("traces/README.md", "[up](../../outside.md)\n")],
        &[("traces/README.md", 1)],
    ),
    plant(
        "links",
        &[
            (
                "traces/README.md",
                "[a](../crates/highwater/) [b](https://example.org/x) [c](#d) [e](../traces/README.md#f)\n```\n[g](h)\n```\n",
            ),
            (UNITS, "//! [x](y)\n"),
        ],
        &[],
    ),
    // Prose: outside the folders that are still allowed some.
    plant(
        "persons",
        &[
            (
                OUTSIDE,
                "//! Wakes whoever waits.\nfn f() {} // nobody\nconst M: &str = \"x: who waits\";\n",
            ),
            ("outside.toml", "# Someone's.\na = 1\n"),
            ("outside.md", "Waits.\n\nWho, and for whom?\n"),
        ],
        &[
            (OUTSIDE, 1),
            (OUTSIDE, 2),
            (OUTSIDE, 3),
            ("outside.toml", 1),
            ("outside.md", 3),
            ("outside.md", 3),
        ],
    ),
    plant(
        "persons",
        &[
            (OUTSIDE, "//! Whole.\nfn who() { nobody() }\n"),
            ("outside/tests/x.rs", "const M: &str = \"who\";\n"),
            ("outside.toml", "who = \"nobody\" \n"),
            ("outside.lock", "who\n"),
        ],
        &[],
    ),
    plant(
        "wide lines",
        &[
            (OUTSIDE, concat!("//! ", columns_90!(), " 67 90\nf(); // ", columns_90!(), "a b\n")),
            ("outside.md", concat!("```\n```\n- ", columns_90!(), " 34 67 90\n")),
            ("outside.toml", concat!("# ", columns_90!(), " 4 67 90\n# ", columns_90!(), " 34 67 90\n")),
        ],
        &[(OUTSIDE, 2), ("outside.md", 3), ("outside.toml", 2)],
    ),
    plant(
        "wide lines",
        &[
            (
                OUTSIDE,
                concat!(
                    "//! https://", columns_90!(), "/abcdefgh\n//! ```\n//! ", columns_90!(), " 4 67 90\n//! ```\n",
                    "const S: &str = \"", columns_90!(), " a b\";\n"
                ),
            ),
            ("outside.md", concat!("| ", columns_90!(), " | 5 67 90\n- [", columns_90!(), " 67](x)\n")),
            ("outside.toml", concat!("a = \"", columns_90!(), " 67 90\"\n")),
        ],
        &[],
    ),
];
