//! Two-list LRU: new pages are on the inactive list, from which alone pages are evicted; pages that
//! were accessed twice are on the active list, which is aged when it becomes the longer one.
//!
//! A page that was accessed through a mapping since it came in is activated at its first scan; one
//! that was not is evicted then. A second copying read activates at once. Active pages that were
//! accessed since the last scan are rotated, others are deactivated. So a stream is scanned once,
//! and leaves the working set alone. A page that refaults within the working set is activated.
//!
//! Source: the active and inactive lists and the workingset detection of Linux
//! (frames-and-reclaim specification, 9.3, 9.4, 11). Deviations: the access that brings a page in
//! does not count, and active pages in use are rotated; the feature `lab` has the kernel's rules.

use super::{Departure, EvictionPolicy, Fate, Lens, Look, PolicyState, Side, by_accesses};
use crate::cache::Referenced;
use crate::reclaim::lists::PageType;

/// Pages of 1 GiB, below which the lists may be equally long.
const GIB: u64 = 1 << 18;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct TwoList;

impl EvictionPolicy for TwoList {
    fn accesses_max(&self) -> u32 {
        1
    }

    fn ages(&self) -> bool {
        true
    }

    /// Compares by a factor that grows with both: 1 below 1 GiB, 3 at 1 GiB, 10 at 10 GiB.
    fn inactive_is_low(&self, lens: Lens) -> bool {
        let gib = lens.total() / GIB;
        lens.inactive.saturating_mul((10 * gib).isqrt().max(1)) < lens.active
    }

    fn admit(&self, state: &PolicyState, lens: Lens, departure: Option<Departure>) -> Side {
        match departure {
            Some(departure) if self.is_near(state, lens, departure) => Side::Active,
            _ => Side::Inactive,
        }
    }

    fn is_near(&self, _: &PolicyState, lens: Lens, departure: Departure) -> bool {
        departure.distance <= lens.capacity
    }

    fn next(&self, _: &PolicyState, _: Lens) -> Side {
        Side::Inactive
    }

    fn decide(&self, _: &PolicyState, _: Lens, from: Side, accesses: u32) -> Fate {
        match (from, accesses) {
            (Side::Inactive, 0) => Fate::Evict,
            (Side::Active, 0) => Fate::to(Side::Inactive),
            _ => Fate::to(Side::Active),
        }
    }

    fn judge(&self, state: &PolicyState, lens: Lens, from: Side, look: Look) -> Fate {
        let is_unseen = matches!(
            look.entries,
            Referenced::Seen {
                young: 0,
                locked: false,
                ..
            }
        );
        match (from, look.page_type) {
            (Side::Inactive, PageType::File) if is_unseen && look.credit > 0 => Fate::EvictClean,
            (Side::Inactive, _) if is_unseen => Fate::Evict,
            _ => by_accesses(self, state, lens, from, look),
        }
    }
}
