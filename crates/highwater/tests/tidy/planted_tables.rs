//! Violations of the rules about reference tables, planted as in `planted.rs`.

use super::event_rules::EVENTS;
use super::planted::{Planted, plant, text};
use super::table_rules::{ARCHITECTURE, BUILDER};

const VMSTAT: &str = "crates/highwater/src/manager/vmstat.rs";
const ITEM: &str = "crates/highwater/src/group/stat/item.rs";
const STATS: &str = "crates/highwater/docs/stats.md";
const TUNING: &str = "crates/highwater/docs/tuning.md";
const GROUP: &str = "crates/highwater/src/manager/group.rs";
const ZONE: &str = "crates/highwater/src/frame/zone.rs";

/// Words of one letter, and then `tail`.
const fn words_before<const BYTES: usize>(tail: &[u8]) -> [u8; BYTES] {
    let mut text = [b' '; BYTES];
    let mut at = 0;
    while at < BYTES - tail.len() {
        text[at] = b'a';
        at += 2;
    }
    let mut nth = 0;
    while nth < tail.len() {
        text[BYTES - tail.len() + nth] = tail[nth];
        nth += 1;
    }
    text
}

/// Nine words: neither the address of the link nor the fenced ones count.
const NINE: &[u8] = b"1 2 [3](4 5) 6 7\n```text\n8 9\n```\n8 - 9 10 11\n";
const WORDS_700: &str = text(&words_before::<{ 2 * 691 + NINE.len() }>(NINE));
const WORDS_701: &str = text(&words_before::<{ 2 * 692 + NINE.len() }>(NINE));

/// Every planted workspace.
pub(crate) const PLANTED: &[Planted] = &[
    plant(
        "statistics",
        &[
            (
                VMSTAT,
                "//! V.\n    PgScan => \"pgscan\",\n    PgSteal => \"pgsteal\",\n",
            ),
            (
                ITEM,
                "//! I.\n    Scan => \"pgscan\",\n    File => \"file\",\n",
            ),
            (STATS, "# Statistics\n\n## `pgscan`\n\npgsteal\n"),
        ],
        &[(VMSTAT, 3), (ITEM, 3)],
    ),
    plant(
        "statistics",
        &[
            (VMSTAT, "//! V.\nconst NAMES: [&str; 1] = [\"pgscan\"];\n"),
            (ITEM, "//! I.\n    Scan => \"pgscan\",\n"),
            (STATS, "# pgscan\n"),
        ],
        &[(VMSTAT, 1)],
    ),
    plant(
        "statistics",
        &[
            (VMSTAT, "//! V.\n    A => \"a_b\", // => \"c\"\n"),
            (ITEM, "//! I.\n    A => \"a_b\",\n"),
            (STATS, "## `a_b`: how many\n"),
        ],
        &[],
    ),
    plant(
        "statistics",
        &[(STATS, "# pgscan\n")],
        &[(VMSTAT, 0), (ITEM, 0)],
    ),
    plant(
        "lock classes",
        &[
            (
                ZONE,
                "//! Z.\nstatic A: LockClass = LockClass::new(\"zone\", Rank::Zone);\n\
                 static B: LockClass = LockClass::new(\"pcp\", Rank::Pcp);\n",
            ),
            (ARCHITECTURE, "| `Pcp` | `pcp` | lists in a zone |\n"),
        ],
        &[(ZONE, 2)],
    ),
    plant(
        "lock classes",
        &[
            (
                ZONE,
                "//! Z.\nstatic A: LockClass = LockClass::new(\"zone\", Rank::Zone);\n\
                 #[cfg(test)]\nmod tests {\n    \
                 static B: LockClass = LockClass::new(\"mine\", Rank::Leaf);\n}\n",
            ),
            (ARCHITECTURE, "| `Zone` | `zone` | a zone |\n"),
        ],
        &[],
    ),
    plant(
        "events",
        &[
            (
                ZONE,
                "//! Z.\nfn f() {\n    tracing::warn!(%error, file = ?id(1, 2), \"lost, here\");\n    \
                 tracing::debug!(target: \"a::b\", cpu, \"came\");\n    \
                 tracing::debug!(cpu = f(g, h), \"went\");\n}\n",
            ),
            (
                EVENTS,
                "| level | message | fields | when |\n| `warn` | lost, there | `error`, `file` | now |\n\
                 | `debug` | came | `cpu` | then |\n| `debug` | went | `node` | later |\n",
            ),
        ],
        &[(ZONE, 3), (ZONE, 5), (EVENTS, 2), (EVENTS, 4)],
    ),
    plant(
        "events",
        &[
            (
                ZONE,
                "//! Z.\nfn f() {\n    tracing::warn!(%error, file = ?id(1, 2), \"lost, here\");\n}\n",
            ),
            (EVENTS, "| `warn` | lost, here | `error`, `file` | now |\n"),
        ],
        &[],
    ),
    plant("events", &[(ZONE, "//! Z.\n")], &[(EVENTS, 0)]),
    plant(
        "settings",
        &[
            (
                BUILDER,
                "//! B.\n    pub fn frames(mut self, frames: Bytes) -> Self {\n    \
                 pub fn timer<F>(mut self, timer: F) -> Self {\n    \
                 pub fn build(self) -> Manager {\n",
            ),
            (TUNING, "| [`frames`](x) | all | any | frames |\ntimer\n"),
        ],
        &[(BUILDER, 3)],
    ),
    plant(
        "examples",
        &[(
            GROUP,
            "//! G.\nimpl Group {\n    /// ```\n    /// ```\n    pub fn a(&self) {\n    }\n\n    \
             /// B.\n    pub fn b<T>(&self) {\n    }\n}\n",
        )],
        &[(GROUP, 9)],
    ),
    plant(
        "examples",
        &[(
            "crates/highwater/src/victim/select.rs",
            "//! S.\nimpl<Id: Copy + Ord> Selector<Id> {\n    pub const fn a() {\n    }\n}\n\n\
             impl Other {\n    pub fn b() {\n    }\n}\n",
        )],
        &[("crates/highwater/src/victim/select.rs", 3)],
    ),
    plant(
        "examples",
        &[(
            GROUP,
            "//! G.\nimpl Group {\n    /// ```\n    /// ```\n    #[must_use]\n    \
             pub fn a(&self) {\n    }\n\n    pub(super) fn b(&self) {\n    }\n}\n\n\
             impl Core {\n    pub fn c(&self) {\n    }\n}\n",
        )],
        &[],
    ),
    plant(
        "length of tests",
        &[(
            ZONE,
            "//! Z.\nfn a() {}\nfn b() {}\n\n#[cfg(test)]\nmod tests {}\n\n\
             /// ```text\n/// ```\nfn c() {}\n",
        )],
        &[(ZONE, 0)],
    ),
    plant(
        "length of tests",
        &[
            (
                ZONE,
                "//! Z.\n/// ```\n/// a();\n/// ```\nfn a() {}\nfn b() {}\n",
            ),
            (
                "crates/highwater/tests/zone.rs",
                "//! Promise: z.\nfn a() {}\n",
            ),
            ("crates/highwater-lab/src/lib.rs", "//! L.\nfn a() {}\n"),
        ],
        &[],
    ),
    plant(
        "long documents",
        &[("README.md", WORDS_701), ("ARCHITECTURE.md", WORDS_701)],
        &[("README.md", 0)],
    ),
    plant("long documents", &[("README.md", WORDS_700)], &[]),
    plant(
        "settings",
        &[(BUILDER, "//! B.\nfn x() {}\n"), (TUNING, "")],
        &[(BUILDER, 1)],
    ),
    plant(
        "settings",
        &[
            (
                BUILDER,
                "//! B.\n    pub fn frames(mut self, frames: Bytes) -> Self {\n",
            ),
            (TUNING, "| [`frames`](x) | all | any | frames |\n"),
        ],
        &[],
    ),
];
