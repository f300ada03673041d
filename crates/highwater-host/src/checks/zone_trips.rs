//! Check 8: how often pages travel between per-CPU lists and zones. Needs the kernel's tracing.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, share};
use crate::machine::Machine;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 8,
    id: "zone_trips",
    title: "trips to the zones",
    run,
    needs_interval: false,
    mechanism: "Pages that one CPU allocates and another one frees pass through their zone, under \
        its lock, instead of staying on a per-CPU list.",
    formula: "mm_page_alloc_zone_locked / mm_page_alloc, and mm_page_pcpu_drain / mm_page_free, \
        over 5 s; the larger. In pages of blocks that per-CPU lists take: up to order 3",
    thresholds: "above 1/16 the lists save less than a small batch would; above 1/4 they hardly \
        save anything.",
    thread: threads::PCP,
    kernels: "all",
    advice: "memory is allocated and freed on different CPUs: look at the purge threads of \
        allocators",
};

const THRESHOLDS: Thresholds = Thresholds::above(1.0 / 16.0, 1.0 / 4.0);

/// Pages below which a share says nothing.
const PAGES_MIN: u64 = 10_000;

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let traced = machine.traced()?;
    let trips = traced.zone_trips.as_ref().map_err(Machine::untraced)?;
    let (allocated, from_zone) = (trips.allocated(), trips.from_zone());
    let (freed, drained) = (trips.freed(), trips.drained());
    if allocated.max(freed) < PAGES_MIN {
        return Ok(Finding::fine(format!(
            "too few pages to judge: {allocated} allocated, {freed} freed"
        )));
    }
    // A side with few pages moves batches, whose share says nothing.
    let of_side = |part, whole| {
        if whole < PAGES_MIN {
            0.0
        } else {
            share(part, whole)
        }
    };
    let (taken, returned) = (of_side(from_zone, allocated), of_side(drained, freed));
    let figure = Figure {
        name: "trips",
        value: taken.max(returned),
        // Lost events are of all kinds alike, or in the worst case all of one.
        error: traced.lost_share(),
        unit: Unit::Ratio,
        thresholds: THRESHOLDS,
    };
    let mut sides = [
        format!("{from_zone} of {allocated} pages came from a zone"),
        format!("{drained} of {freed} pages went to a zone"),
    ];
    // The side of the figure comes first: a line may be cut.
    if returned > taken {
        sides.reverse();
    }
    let says = sides.join(", ");
    let formula = format!(
        "larger of {from_zone} / {allocated} and {drained} / {freed} pages in {:.1} s; {} events \
         lost",
        traced.seconds, traced.lost_events
    );
    Ok(Finding::judged(figure, says, formula)
        .with("allocated_pages", allocated)
        .with("from_zone_pages", from_zone)
        .with("freed_pages", freed)
        .with("drained_pages", drained)
        .with("lost_events_count", traced.lost_events))
}
