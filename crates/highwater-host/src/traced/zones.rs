//! Pages that pass between the per-CPU lists and the zones.
//!
//! Blocks that no per-CPU list takes are left out: those above order 3, and before Linux 5.13 above
//! order 0. They go to the zone one by one, however the lists do.

use crate::tracefs::{Event, EventFormat, Field, Instance, Tracefs, TracefsError};

/// Pages allocated and freed through per-CPU lists, and those that a zone gave or took.
#[derive(Debug)]
pub struct ZoneTrips {
    events: [Counted; 4],
}

#[derive(Debug)]
struct Counted {
    id: u16,
    order: Field,
    pages: u64,
}

impl Counted {
    fn of(format: &EventFormat) -> Result<Self, TracefsError> {
        Ok(Self {
            id: format.id,
            order: format.field("order")?.clone(),
            pages: 0,
        })
    }
}

impl ZoneTrips {
    pub(super) fn enable(instance: &Instance, tracefs: &Tracefs) -> Result<Self, TracefsError> {
        let locked = tracefs.format("kmem", "mm_page_alloc_zone_locked")?;
        let (small, refill) = if locked.field("percpu_refill").is_ok() {
            ("order <= 3", "percpu_refill != 0")
        } else {
            ("order == 0", "order == 0")
        };
        let enable = |event, filter| instance.enable("kmem", event, Some(filter));
        Self::from_formats(&[
            enable("mm_page_alloc", small)?,
            enable("mm_page_alloc_zone_locked", refill)?,
            enable("mm_page_free", small)?,
            enable("mm_page_pcpu_drain", small)?,
        ])
    }

    /// Counts events of these formats: of allocation, of pages that a zone gave for it, of
    /// freeing, of pages that a zone took back.
    ///
    /// # Errors
    ///
    /// When an event has no field `order`.
    pub fn from_formats(formats: &[EventFormat; 4]) -> Result<Self, TracefsError> {
        let [alloc, locked, free, drain] = formats;
        let of = Counted::of;
        Ok(Self {
            events: [of(alloc)?, of(locked)?, of(free)?, of(drain)?],
        })
    }

    /// Counts an event; returns false if it is another one.
    pub fn count(&mut self, event: &Event<'_>) -> bool {
        let id = event.id();
        let Some(counted) = self.events.iter_mut().find(|counted| counted.id == id) else {
            return false;
        };
        // No order is above 10; a damaged event counts a page.
        let order = counted
            .order
            .unsigned(event.bytes)
            .filter(|order| *order < 20);
        counted.pages = counted.pages.saturating_add(1 << order.unwrap_or(0));
        true
    }

    /// Pages allocated that may come from a per-CPU list.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.events[0].pages
    }

    /// Pages that a zone gave to a per-CPU list.
    #[must_use]
    pub fn from_zone(&self) -> u64 {
        self.events[1].pages
    }

    /// Pages freed that may go to a per-CPU list.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.events[2].pages
    }

    /// Pages that a per-CPU list gave back to its zone.
    #[must_use]
    pub fn drained(&self) -> u64 {
        self.events[3].pages
    }
}
