//! The two-list LRU: pure decisions, without the mechanism.

use super::Placement;
use super::lists::PageType;
use super::shadow::Refault;
use super::verdict::{Accesses, Verdict};
use crate::cache::Referenced;

/// Rules by which pages move between the inactive and the active list of their type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TwoListRules {
    /// A page needs two accesses to stay: a page that was accessed through a mapping since it came
    /// in is activated at its first scan, and one that was not is evicted then. Active pages that
    /// were accessed since the last scan are rotated. So a stream is scanned once, and leaves the
    /// working set alone.
    #[default]
    ReadAgain,
    /// The rules of Linux. The access that brings a page in counts, so that a page that comes in
    /// through a mapping is scanned twice before it is evicted. Active pages are deactivated in the
    /// order in which they became active, accessed or not; only code in use is rotated.
    ///
    /// Source: frames-and-reclaim specification, 9.3 and 9.4. Deviation: an active page whose
    /// reverse map is contended is rotated (10.3 a), as the kernel intends; it deactivates those.
    Kernel,
}

impl TwoListRules {
    /// Returns whether the access that brings a page in counts as one. If not, a page that comes in
    /// through a mapping is not young.
    #[must_use]
    pub const fn counts_first_access(self) -> bool {
        matches!(self, Self::Kernel)
    }

    /// Returns the placement of a page that comes in.
    pub(super) const fn admit(self, refault: Option<Refault>) -> Placement {
        match refault {
            Some(Refault::WithinWorkingset | Refault::Restored) => Placement::Active,
            Some(Refault::Beyond) | None => Placement::Inactive,
        }
    }

    /// Returns the verdict for a page at the tail of the inactive list, and whether it is marked as
    /// referenced from then on.
    pub(super) const fn at_inactive_tail(self, accesses: Accesses) -> (Verdict, bool) {
        match (self, accesses.entries) {
            (
                Self::ReadAgain,
                Referenced::Seen {
                    locked: false,
                    young: 1..,
                    ..
                },
            ) => (Verdict::Activate, false),
            _ => accesses.judge(),
        }
    }

    /// Returns the placement of a page at the tail of the active list, and whether it is marked as
    /// referenced from then on.
    pub(super) const fn at_active_tail(self, accesses: Accesses) -> (Placement, bool) {
        let is_file = matches!(accesses.page_type, PageType::File);
        match (self, accesses.entries) {
            (_, Referenced::Seen { locked: true, .. }) => (Placement::Unevictable, false),
            (_, Referenced::Contended) => (Placement::Active, accesses.was_referenced),
            (
                Self::Kernel,
                Referenced::Seen {
                    young, executable, ..
                },
            ) => match young > 0 && executable && is_file {
                true => (Placement::Active, accesses.was_referenced),
                false => (Placement::Inactive, accesses.was_referenced),
            },
            (Self::ReadAgain, Referenced::Seen { young, .. }) => {
                match young > 0 || accesses.was_referenced {
                    true => (Placement::Active, false),
                    false => (Placement::Inactive, false),
                }
            }
        }
    }
}
