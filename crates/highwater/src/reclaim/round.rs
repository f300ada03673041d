//! The state of a pass, and of its rounds and steps: the mechanism in `scan.rs` and `shrink.rs`.

use super::LruvecRef;
use super::balance::{ScanCounts, ScanInput};
use super::control::{Outcome, PassPriority, ScanControl};
use super::lists::Placement;
use super::order::ScanNotes;
use super::pass::Pass;
use crate::cache::EvictBatch;
use crate::units::{Pages, Pfn};

/// Buffers of one pass.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) isolated: Vec<Pfn>,
    /// Pages to evict now.
    pub(super) candidates: Vec<Pfn>,
    /// Pages to write back before.
    pub(super) dirty: Vec<Pfn>,
    pub(super) putback: Vec<(Pfn, Placement)>,
    pub(super) evict: EvictBatch,
    pub(super) seen: ScanNotes,
    /// Pages of the cluster that were written back.
    pub(super) nr_written: u64,
}

/// The state of one pass.
pub(super) struct Scan<'a> {
    pub(super) control: &'a ScanControl<'a>,
    pub(super) pass: Pass<'a>,
    pub(super) scratch: Scratch,
    pub(super) outcome: Outcome,
    /// Whether active pages are scanned regardless of the lists' lengths.
    pub(super) forces_deactivation: bool,
    /// Whether active pages were spared.
    pub(super) has_spared_active: bool,
    pub(super) has_drained: bool,
    /// Whether it has waited for isolated pages.
    pub(super) has_waited: bool,
    /// Whether dirty pages of files are written back, so that they can be evicted.
    pub(super) writes_dirty: bool,
    /// Whether dirty pages were left where they were.
    pub(super) has_spared_dirty: bool,
}

/// Parameters of one round over the lists of each group.
pub(super) struct Round {
    pub(super) level: PassPriority,
    /// Lists of the target, which hold the cursor.
    pub(super) home: LruvecRef,
    /// Scan inputs that all groups share.
    pub(super) input: ScanInput,
}

/// Pages that one round scans.
pub(super) struct Budget {
    pub(super) pages: u64,
    /// Whether it is the sum of all groups' shares, and not an estimate.
    pub(super) is_exact: bool,
}

/// Part of one group's lists, scanned at once.
pub(super) struct Step {
    pub(super) lruvec: LruvecRef,
    /// At most a cluster of each list.
    pub(super) counts: ScanCounts,
    /// Pages that can be taken before the group is protected: at least one.
    pub(super) exposed: u64,
    /// Whether a cluster of active anonymous pages is aged although it is not scanned otherwise, so
    /// that there are inactive ones when they are needed.
    pub(super) trims_anon: bool,
}

impl Scan<'_> {
    pub(super) fn finds_none(&self) -> bool {
        self.outcome.nr_reclaimed == 0 && self.control.nr_to_reclaim > Pages::ZERO
    }
}
