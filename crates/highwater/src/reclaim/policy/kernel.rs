//! The two-list LRU by the rules of Linux, for experiments about its behaviour
//! (`folio_check_references`, `shrink_active_list`).
//!
//! The access that brings a page in counts, so that a page that comes in through a mapping is
//! scanned twice before it is evicted. Active pages are deactivated in the order in which they
//! became active, accessed or not; only code in use is rotated. At the tail of the inactive list:
//!
//! | condition, first match | fate |
//! |---|---|
//! | an area that maps it is locked | cull: it belongs on the unevictable list |
//! | its reverse map was contended | keep |
//! | it was accessed through its entries, and before; or through several entries | activate |
//! | it was accessed through an entry that maps code of a file | activate |
//! | it was accessed through an entry | keep: a second chance |
//! | it was accessed by other means, and is of a file | evict if it is clean |
//! | otherwise | evict |
//!
//! A scan that finds a page young marks it as referenced for the next scan, which clears the mark.
//!
//! Source: frames-and-reclaim specification, 9.3, 9.4 and 10.2. Deviations, unless
//! [`loses_contended`](KernelLists::loses_contended) is set: a contended page keeps its mark, and
//! is rotated on the active list, as the kernel intends; it clears the mark and deactivates the
//! page (10.3 a and b).

use super::{Departure, EvictionPolicy, Fate, Lens, Look, PolicyState, Side, TwoList};
use crate::cache::Referenced;
use crate::reclaim::lists::PageType;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelLists {
    /// Active pages for each inactive one above which active pages are scanned; `None` for the
    /// ratio by size. A larger ratio protects more of a working set from streams, and leaves new
    /// pages less time for a second access.
    pub inactive_ratio: Option<u64>,
    /// Whether the kernel's mistakes with contended pages are reproduced.
    pub loses_contended: bool,
}

impl KernelLists {
    const fn of_contended(self, from: Side, credit: u32) -> Fate {
        match self.loses_contended {
            true => Fate::to(Side::Inactive),
            false => Fate::Stay { to: from, credit },
        }
    }
}

impl EvictionPolicy for KernelLists {
    fn accesses_max(&self) -> u32 {
        1
    }

    fn ages(&self) -> bool {
        true
    }

    fn counts_first_access(&self) -> bool {
        true
    }

    fn completes_rounds(&self) -> bool {
        true
    }

    fn inactive_is_low(&self, lens: Lens) -> bool {
        match self.inactive_ratio {
            Some(ratio) => lens.inactive.saturating_mul(ratio) < lens.active,
            None => TwoList.inactive_is_low(lens),
        }
    }

    fn admit(&self, state: &PolicyState, lens: Lens, departure: Option<Departure>) -> Side {
        TwoList.admit(state, lens, departure)
    }

    fn is_near(&self, state: &PolicyState, lens: Lens, departure: Departure) -> bool {
        TwoList.is_near(state, lens, departure)
    }

    fn next(&self, _: &PolicyState, _: Lens) -> Side {
        Side::Inactive
    }

    fn decide(&self, _: &PolicyState, _: Lens, _: Side, accesses: u32) -> Fate {
        match accesses {
            0 => Fate::Evict,
            _ => Fate::to(Side::Inactive),
        }
    }

    fn judge(&self, _: &PolicyState, _: Lens, from: Side, look: Look) -> Fate {
        let Look {
            entries,
            credit,
            page_type,
        } = look;
        let is_file = page_type == PageType::File;
        match (from, entries) {
            (_, Referenced::Seen { locked: true, .. }) => Fate::Cull,
            (_, Referenced::Contended) => self.of_contended(from, credit),
            (Side::Inactive, Referenced::Seen { young: 0, .. }) => match credit > 0 && is_file {
                true => Fate::EvictClean,
                false => Fate::Evict,
            },
            (
                Side::Inactive,
                Referenced::Seen {
                    young, executable, ..
                },
            ) => {
                let is_activated = credit > 0 || young > 1 || (executable && is_file);
                let to = if is_activated {
                    Side::Active
                } else {
                    Side::Inactive
                };
                Fate::Stay { to, credit: 1 }
            }
            (
                Side::Active,
                Referenced::Seen {
                    young, executable, ..
                },
            ) => {
                let is_code_in_use = young > 0 && executable && is_file;
                let to = if is_code_in_use {
                    Side::Active
                } else {
                    Side::Inactive
                };
                Fate::Stay { to, credit }
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
    fn fates_are_those_of_the_table() {
        // Goal: every row of 9.3, for both types, with and without the mark, and the new mark; and
        // 9.4.
        use Fate::{Cull, Evict, EvictClean};
        use PageType::{Anon, File};
        let [keep, activate] =
            [Side::Inactive, Side::Active].map(|to| Fate::Stay { to, credit: 1 });
        let rows = [
            (LOCKED, true, File, Cull),
            (LOCKED, false, Anon, Cull),
            (Referenced::Contended, false, File, Fate::to(Side::Inactive)),
            (Referenced::Contended, true, File, keep),
            (Referenced::Contended, true, Anon, keep),
            (seen(1), true, File, activate),
            (seen(1), true, Anon, activate),
            (seen(2), false, File, activate),
            (seen(2), false, Anon, activate),
            (code(1), false, File, activate),
            (code(1), false, Anon, keep),
            (seen(1), false, File, keep),
            (seen(1), false, Anon, keep),
            (seen(0), true, File, EvictClean),
            (seen(0), true, Anon, Evict),
            (seen(0), false, File, Evict),
            (seen(0), false, Anon, Evict),
            (code(0), false, File, Evict),
        ];
        let (state, lens) = (PolicyState::default(), Lens::default());
        let fate = |policy: KernelLists, from, entries, is_marked, page_type| {
            let look = Look {
                entries,
                credit: u32::from(is_marked),
                page_type,
            };
            policy.judge(&state, lens, from, look)
        };
        let policy = KernelLists::default();
        for (entries, is_marked, page_type, expected) in rows {
            let found = fate(policy, Side::Inactive, entries, is_marked, page_type);
            assert_eq!(found, expected, "{entries:?} {is_marked} {page_type:?}");
        }
        // The active list, and the kernel's treatment of contended pages.
        let of_active = |entries| fate(policy, Side::Active, entries, true, File);
        assert_eq!(of_active(seen(3)), keep);
        assert_eq!(of_active(code(1)), activate);
        assert_eq!(of_active(Referenced::Contended), activate);
        let lossy = KernelLists {
            loses_contended: true,
            ..policy
        };
        for from in [Side::Inactive, Side::Active] {
            let found = fate(lossy, from, Referenced::Contended, true, File);
            assert_eq!(found, Fate::to(Side::Inactive));
        }
    }
}
