//! What reclaim asks of the reverse map: whether a page was accessed through its mappings, and to unmap it.
//!
//! No lock of the lists is held here: the rmap lock ranks above them.

use super::Reclaim;
use crate::cache::{Referenced, RmapAccess};
use crate::units::Pfn;

impl Reclaim {
    /// Whether a page that this thread has isolated was accessed since reclaim last looked; clears the marks.
    pub(super) fn is_young(&self, pfn: Pfn) -> bool {
        let is_marked = self.cache.test_and_clear_young(pfn);
        let referenced = self.cache.referenced(pfn, RmapAccess::Wait, None);
        is_marked || matches!(referenced, Referenced::Seen { young: 1.., .. })
    }

    /// Clears the entries of a page that this thread has isolated.
    pub(super) fn unmap(&self, pfn: Pfn) {
        self.cache.unmap_page(pfn, RmapAccess::Wait);
    }
}
