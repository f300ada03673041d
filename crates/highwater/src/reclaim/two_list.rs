//! The decisions of the two-list LRU, apart from how they are carried out.

use super::Placement;
use super::lists::PageType;
use super::shadow::Refault;
use super::verdict::{Accesses, Verdict};
use crate::cache::Referenced;

/// By which rules pages move between the inactive and the active list of their type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TwoListRules {
    /// One access is not a reason to stay, two are: a page that was accessed through a mapping
    /// since it came in is activated at its first look, and one that was not goes then. Active
    /// pages that were accessed since the last look go round. So a stream is looked at once, and
    /// leaves the working set where it is.
    #[default]
    ReadAgain,
    /// Those of Linux. The access that brings a page in counts, so that what comes in through a
    /// mapping is looked at twice before it goes. Active pages come back to the inactive list in
    /// the order in which they became active, accessed or not; only code that is in use goes round.
    ///
    /// Source: frames-and-reclaim specification, 9.3 and 9.4. Deviation: an active page whose
    /// reverse map is contended goes round (10.3 a), which is what the kernel means to do; it
    /// deactivates those.
    Kernel,
}

impl TwoListRules {
    /// Whether the access that brings a page in counts as one. If not, a page that comes in through
    /// a mapping is not young.
    #[must_use]
    pub const fn counts_first_access(self) -> bool {
        matches!(self, Self::Kernel)
    }

    /// Where a page that comes in goes.
    pub(super) const fn admit(self, refault: Option<Refault>) -> Placement {
        match refault {
            Some(Refault::WithinWorkingset | Refault::Restored) => Placement::Active,
            Some(Refault::Beyond) | None => Placement::Inactive,
        }
    }

    /// What becomes of a page at the end of the inactive list, and whether it is marked as
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

    /// Where a page at the end of the active list goes, and whether it is marked as referenced from
    /// then on.
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
