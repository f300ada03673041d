//! Check 9: time spent waiting for memory locks. Needs the kernel's tracing.

use super::{Check, threads};
use crate::finding::Finding;
use crate::machine::Machine;

pub(super) const CHECK: Check = Check {
    nr: 9,
    id: "lock_waits",
    title: "waiting for memory locks",
    run,
    needs_interval: false,
    mechanism: "Zone locks, rmap locks, LRU locks and the locks of memory groups are shared by \
        CPUs or processes that otherwise have nothing in common; one that holds such a lock \
        stops them all.",
    formula: "time waited, by class of the caller / (time x CPUs), over 5 s of \
        lock:contention_begin and contention_end",
    thresholds: "1 % of all CPUs is a CPU of a hundred; at 5 % lock waits show in every profile.",
    thread: threads::RMAP,
    kernels: "5.19 and later",
    advice: "zone: fewer pages per drain; rmap: fewer mmap calls of shared files; LRU and memory \
        groups: fewer groups under pressure at once",
};

fn run(_machine: &Machine) -> Finding {
    Finding::not_measurable("needs --trace and root")
}
