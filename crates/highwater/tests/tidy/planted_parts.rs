//! Violations of the rules about parts of a module and about type names, planted as in
//! `planted.rs`.

use super::planted::{BUDDY, FRAME, LAB, Planted, plant};

/// Every planted workspace.
pub(crate) const PLANTED: &[Planted] = &[
    // Layers inside a module.
    plant(
        "parts",
        &[
            (
                "crates/highwater/src/group/state/cell.rs",
                "//! C.\nuse super::super::charge::take;\nuse super::tree::Groups;\nuse crate::group::api::GroupNode;\nuse crate::group::GroupNode;\n",
            ),
            (
                "crates/highwater/src/group/state/mod.rs",
                "//! S.\nmod cell;\nmod tree;\nuse super::tree::create;\n",
            ),
            ("crates/highwater/src/group/extra.rs", "//! E.\n"),
        ],
        &[
            ("crates/highwater/src/group/state/cell.rs", 2),
            ("crates/highwater/src/group/state/cell.rs", 3),
            ("crates/highwater/src/group/state/cell.rs", 4),
            ("crates/highwater/src/group/state/cell.rs", 5),
            ("crates/highwater/src/group/state/mod.rs", 4),
            ("crates/highwater/src/group/extra.rs", 1),
        ],
    ),
    plant(
        "parts",
        &[
            (
                "crates/highwater/src/group/state/tree.rs",
                "//! T.\nuse super::cell::Cell;\nuse crate::group::stat::Stat;\n#[cfg(test)]\nmod tests {\n    use crate::group::GroupTree;\n}\n",
            ),
            (
                "crates/highwater/src/group/state/mod.rs",
                "//! S.\nmod cell;\nmod tree;\npub(super) use tree::Groups;\n",
            ),
            (
                "crates/highwater/src/group/mod.rs",
                "//! G.\npub use api::GroupTree;\n",
            ),
        ],
        &[],
    ),
    plant(
        "parts",
        &[
            (
                "crates/highwater/src/manager/mapping.rs",
                "//! M.\nuse super::Core;\nuse super::Space;\nuse super::space::Space;\n",
            ),
            (
                "crates/highwater/src/manager/space.rs",
                "//! S.\nuse super::mapping::Mapping;\nuse super::file::File;\nuse super::Core;\n",
            ),
            (
                "crates/highwater/src/manager/mod.rs",
                "//! M.\npub use space::Space;\npub(crate) struct Core;\n",
            ),
        ],
        &[
            ("crates/highwater/src/manager/mapping.rs", 3),
            ("crates/highwater/src/manager/space.rs", 2),
            ("crates/highwater/src/manager/space.rs", 3),
        ],
    ),
    // One name, one thing.
    plant(
        "type names",
        &[
            (
                FRAME,
                "//! F.\npub(super) struct Pass<'a>(&'a u8);\ntype Half = u8;\n",
            ),
            (BUDDY, "//! B.\nenum Half {}\ntrait Pass {}\n"),
        ],
        &[(BUDDY, 2), (BUDDY, 3)],
    ),
    plant(
        "type names",
        &[
            (
                FRAME,
                "//! F.\nstruct Pass;\n#[cfg(loom)]\nmod model {\n    struct Pass;\n}\nimpl Iterator for Pass {\n    type Item = u8;\n}\n#[cfg(test)]\nmod extra;\n",
            ),
            (
                BUDDY,
                "//! B. A struct Pass.\nimpl Iterator for B {\n    type Item = u8;\n}\n#[cfg(test)]\nmod tests {\n    struct Pass;\n}\n",
            ),
            (
                "crates/highwater/src/frame/extra.rs",
                "//! E.\nstruct Pass;\n",
            ),
            (LAB, "//! L.\nstruct Pass;\n"),
        ],
        &[],
    ),
];
