//! The counters that a round reads.

/// The published ones, in their order.
pub(super) const KERNEL: [&str; 9] = [
    "allocstall_movable",
    "pgactivate",
    "pgdeactivate",
    "pgmajfault",
    "pgsteal_kswapd",
    "pgsteal_direct",
    "pgscan_kswapd",
    "pgscan_direct",
    "workingset_refault_file",
];

/// The library's counters of the reverse map.
pub(super) const RMAP: [&str; 6] = [
    "rmap_checks",
    "rmap_checks_contended",
    "rmap_unmaps_contended",
    "rmap_deferred",
    "rmap_settled",
    "rmap_over_debt",
];

/// All counters that are read after each run.
pub(super) const COUNTED: [&str; 15] = {
    let mut all = [""; 15];
    let mut at = 0;
    while at < all.len() {
        all[at] = match at < KERNEL.len() {
            true => KERNEL[at],
            false => RMAP[at - KERNEL.len()],
        };
        at += 1;
    }
    all
};
