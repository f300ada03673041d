//! Check 8: how often pages travel between per-CPU lists and zones. Needs the kernel's tracing.

use super::{Check, threads};
use crate::finding::Finding;
use crate::machine::Machine;

pub(super) const CHECK: Check = Check {
    nr: 8,
    id: "zone_trips",
    title: "trips to the zones",
    run,
    needs_interval: false,
    mechanism: "Pages that one CPU allocates and another one frees pass through their zone, under \
        its lock, instead of staying on a per-CPU list.",
    formula: "mm_page_alloc_zone_locked / mm_page_alloc, and mm_page_pcpu_drain / mm_page_free, \
        over 5 s; the larger",
    thresholds: "above 1/16 the lists save less than a small batch would; above 1/4 they hardly \
        save anything.",
    thread: threads::PCP,
    kernels: "all",
    advice: "memory is allocated and freed on different CPUs: look at the purge threads of \
        allocators",
};

fn run(_machine: &Machine) -> Finding {
    Finding::not_measurable("needs --trace and root")
}
