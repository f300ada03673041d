//! The kernel's verdict on a page at the tail of an inactive list, by its accesses
//! (`folio_check_references`).
//!
//! | condition, first match | verdict |
//! |---|---|
//! | an area that maps it is locked | cull: it belongs on the unevictable list |
//! | its reverse map was contended | keep |
//! | it was accessed through its entries, and before; or through several entries | activate |
//! | it was accessed through an entry that maps code of a file | activate |
//! | it was accessed through an entry | keep: a second chance |
//! | it was accessed by other means, and is of a file | reclaim if it is clean |
//! | otherwise | reclaim |
//!
//! A scan that finds a page young marks it as referenced for the next scan, which clears the mark.
//! So a page that is read once through a mapping is scanned twice (the access that brought it in
//! counts), and one that is read once by a copying read is scanned once.
//!
//! Source: frames-and-reclaim specification, 9.3 and 10.2. Deviation: a contended page keeps its
//! mark; the kernel clears it (10.3 b).

use super::PageType;
use crate::cache::Referenced;

/// The decision for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Unevictable: move it to the unevictable list. The kernel activates it, and finds out later.
    Cull,
    /// Activate: it belongs to the working set.
    Activate,
    /// Keep it on the inactive list.
    Keep,
    /// Evict it.
    Reclaim,
    /// Evict it if it need not be written.
    ReclaimClean,
}

/// A page's accesses since the last scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accesses {
    /// State of its entries.
    pub entries: Referenced,
    /// Whether it was marked as referenced, by a copying read or by the last scan.
    pub was_referenced: bool,
    /// Its backing.
    pub page_type: PageType,
}

impl Accesses {
    /// Returns the verdict, and whether the page is marked as referenced from now on.
    #[must_use]
    pub const fn judge(self) -> (Verdict, bool) {
        let is_file = matches!(self.page_type, PageType::File);
        match self.entries {
            Referenced::Seen { locked: true, .. } => (Verdict::Cull, false),
            Referenced::Contended => (Verdict::Keep, self.was_referenced),
            Referenced::Seen { young: 0, .. } if self.was_referenced && is_file => {
                (Verdict::ReclaimClean, false)
            }
            Referenced::Seen { young: 0, .. } => (Verdict::Reclaim, false),
            Referenced::Seen {
                young, executable, ..
            } => {
                let is_activated = self.was_referenced || young > 1 || (executable && is_file);
                let verdict = if is_activated {
                    Verdict::Activate
                } else {
                    Verdict::Keep
                };
                (verdict, true)
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn seen(young: u32) -> Referenced {
        Referenced::Seen {
            young,
            executable: false,
            locked: false,
        }
    }

    const fn code(young: u32) -> Referenced {
        Referenced::Seen {
            young,
            executable: true,
            locked: false,
        }
    }

    const LOCKED: Referenced = Referenced::Seen {
        young: 3,
        executable: true,
        locked: true,
    };

    #[test]
    fn verdicts_are_those_of_the_table() {
        // Goal: every row of 9.3, for both types, with and without the mark, and the new mark.
        use PageType::{Anon, File};
        use Verdict::{Activate, Cull, Keep, Reclaim, ReclaimClean};
        let rows = [
            (LOCKED, true, File, Cull, false),
            (LOCKED, false, Anon, Cull, false),
            (Referenced::Contended, false, File, Keep, false),
            (Referenced::Contended, true, File, Keep, true),
            (Referenced::Contended, true, Anon, Keep, true),
            (seen(1), true, File, Activate, true),
            (seen(1), true, Anon, Activate, true),
            (seen(2), false, File, Activate, true),
            (seen(2), false, Anon, Activate, true),
            (code(1), false, File, Activate, true),
            (code(1), false, Anon, Keep, true),
            (seen(1), false, File, Keep, true),
            (seen(1), false, Anon, Keep, true),
            (seen(0), true, File, ReclaimClean, false),
            (seen(0), true, Anon, Reclaim, false),
            (seen(0), false, File, Reclaim, false),
            (seen(0), false, Anon, Reclaim, false),
            (code(0), false, File, Reclaim, false),
        ];
        for (entries, was_referenced, page_type, verdict, marked) in rows {
            let accesses = Accesses {
                entries,
                was_referenced,
                page_type,
            };
            assert_eq!(accesses.judge(), (verdict, marked), "{accesses:?}");
        }
    }
}
