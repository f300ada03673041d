//! The order of the parts within a module of the core.

/// Modules with layers of their own: their parts, lowest first. A file of a part may use the parts
/// of lower rows, and of its own part the files that its `mod.rs` declares before it. Types that
/// the module's own `mod.rs` defines are the common ground of all parts.
pub(crate) const PARTS: &[(&str, &[&[&str]])] = &[
    (
        "group",
        &[
            &["policy", "stat"],
            &["state"],
            &["error"],
            &["charge"],
            &["tree"],
            &["api"],
        ],
    ),
    (
        "memmap",
        &[
            &[
                "free",
                "racy",
                "reservation",
                "sandbox",
                "token",
                "tries",
                "vectored",
                "visit",
                "words",
            ],
            &["kernel_cache", "membarrier", "sparse"],
            &["barrier"],
            &["seat"],
            &["frames"],
            &["block", "borrow", "done", "latched"],
            &["decommit", "no_ring", "ring", "write_ring"],
        ],
    ),
    (
        "reclaim",
        &[
            &["recency"],
            &["batch", "lists", "shadow", "transit"],
            &["policy", "stats"],
            &["sizes"],
            &["balance"],
            &["cursor"],
            &["lruvec"],
            &["control", "table"],
            &[
                "arrival",
                "contention",
                "isolate",
                "order",
                "pass",
                "refault",
                "rmap",
            ],
            &["round"],
            &["shrink", "throttle"],
            &["scan"],
        ],
    ),
    (
        "manager",
        &[
            // `zeros` is for tests.
            &[
                "cgroup", "error", "group", "guard", "handler", "paths", "source", "vmstat",
                "zeros",
            ],
            &[
                "events", "file", "flight", "limits", "pressure", "snapshot", "space", "spill",
            ],
            &["stat", "task", "usage", "victim"],
            &["exhausted"],
            &["victims"],
            &["lumpy"],
            &["slow"],
            &["throttle"],
            &["alloc", "capacity", "charge", "charging", "fill"],
            &["disowned"],
            &["background", "fault", "io", "mapping"],
            &["alarm", "latched"],
            &[
                "access",
                "anon",
                "fault_polled",
                "head",
                "read",
                "recorder",
                "writeback",
            ],
            &[
                "builder",
                "latched_async",
                "read_async",
                "resize",
                "sync",
                "wait",
            ],
            &["build", "grow", "handle"],
            &["late_cpus"],
        ],
    ),
];
