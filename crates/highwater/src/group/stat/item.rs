//! The statistics of each group, by their names in `memory.stat`.
//!
//! `docs/stats.md` defines each one: its meaning, its unit, and the events that change it.

use std::fmt;

/// Declares the items, in the order in which they are shown.
macro_rules! items {
    ($($(#[doc = $doc:literal])+ $item:ident => $name:literal),* $(,)?) => {
        /// One statistic of a group and everything below it.
        ///
        /// Counted in pages or events; each is read at its own moment unless it is read together
        /// with others.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub enum StatItem {
            $($(#[doc = $doc])+ $item),*
        }

        impl StatItem {
            /// Every item, in the order in which they are shown.
            pub const ALL: &[Self] = &[$(Self::$item),*];

            /// Returns the item's name in `memory.stat`.
            #[must_use]
            #[cfg_attr(feature = "lab", visibility::make(pub))]
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$item => $name),*
                }
            }
        }

        impl fmt::Display for StatItem {
            /// Writes the item's name in `memory.stat`.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

items! {
    /// Anonymous pages.
    Anon => "anon",
    /// Pages of files.
    File => "file",
    /// Pages of shared memory.
    Shmem => "shmem",
    /// Pages of files on the inactive list.
    InactiveFile => "inactive_file",
    /// Pages of files on the active list.
    ActiveFile => "active_file",
    /// Refaults: pages read in again while their shadow was remembered.
    WorkingsetRefaultFile => "workingset_refault_file",
    /// Those of them that were activated at once.
    WorkingsetActivateFile => "workingset_activate_file",
    /// Pages that the background thread scanned on inactive lists.
    PgscanKswapd => "pgscan_kswapd",
    /// Pages that threads in direct reclaim scanned on inactive lists.
    PgscanDirect => "pgscan_direct",
    /// Pages that the background thread freed.
    PgstealKswapd => "pgsteal_kswapd",
    /// Pages that threads in direct reclaim freed.
    PgstealDirect => "pgsteal_direct",
    /// Reads and writes that did not find their page resident.
    Pgfault => "pgfault",
    /// Faults that read the page from its file.
    Pgmajfault => "pgmajfault",
    /// Pages scanned on active lists.
    Pgrefill => "pgrefill",
    /// Pages moved from an inactive to an active list.
    Pgactivate => "pgactivate",
    /// Pages moved from an active to an inactive list.
    Pgdeactivate => "pgdeactivate",
    /// Anonymous pages on the inactive list.
    InactiveAnon => "inactive_anon",
    /// Anonymous pages on the active list.
    ActiveAnon => "active_anon",
    /// Pages that reclaim does not scan.
    Unevictable => "unevictable",
    /// Dirty pages of files: written since they were last written back.
    FileDirty => "file_dirty",
    /// Pages of files under write-back.
    FileWriteback => "file_writeback",
    /// Pages of the working set that refaulted soon after they were evicted.
    WorkingsetRestoreFile => "workingset_restore_file",
    /// Refaults of anonymous pages: brought back while their shadow was remembered.
    WorkingsetRefaultAnon => "workingset_refault_anon",
    /// Those of them that were activated at once.
    WorkingsetActivateAnon => "workingset_activate_anon",
    /// Anonymous pages of the working set that were brought back soon.
    WorkingsetRestoreAnon => "workingset_restore_anon",
}

/// Number of items; the model checker uses the first only.
pub(super) const NR_ITEMS: usize = if cfg!(loom) { 1 } else { StatItem::ALL.len() };

/// Number of items that each CPU counts in cells of its own: the first ones. The others change by
/// the cluster and are counted in the group: a cell takes 20 bytes for each CPU and group.
pub(super) const NR_CELLS: usize = if cfg!(loom) { 1 } else { 16 };

impl StatItem {
    #[inline]
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// Whether CPUs have cells for it.
    #[inline]
    pub(super) const fn has_cells(self) -> bool {
        self.index() < NR_CELLS
    }
}
