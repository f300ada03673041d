//! Check 14: flushes of group statistics. Needs the kernel's tracing.

use super::{Check, threads};
use crate::finding::Finding;
use crate::machine::Machine;

pub(super) const CHECK: Check = Check {
    nr: 14,
    id: "flush_storms",
    title: "flushes of group statistics",
    run,
    needs_interval: false,
    mechanism: "Reading memory.stat, reclaim and refaults flush the statistics of a subtree over \
        all CPUs. Many readers at once queue on one lock; before 6.8 each of them flushed the \
        whole tree or read stale numbers.",
    formula: "memcg:memcg_flush_stats events a second, over 5 s, by the process that flushes",
    thresholds: "the kernel itself flushes every 2 s; 100 a second is a reader that polls, 1,000 \
        a storm.",
    thread: threads::FLUSH,
    kernels: "where the event memcg:memcg_flush_stats exists",
    advice: "read the statistics of fewer groups, or less often",
};

fn run(_machine: &Machine) -> Finding {
    Finding::not_measurable("needs --trace and root")
}
