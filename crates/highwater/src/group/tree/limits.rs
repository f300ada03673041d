//! Setting the limits of a group; and the counts and indices of the groups that have one, so that
//! a charge and a reclaim see at once that none has.

use crate::group::error::MaxError;
use crate::group::state::{GroupPath, Groups, Meta, TreeShape};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::units::{Bytes, GroupId};

impl Groups {
    /// Installs a maximum. A maximum below the reservations first retires every token word of the
    /// subtree and keeps them retired: `charge/escrow.rs`, "above the maximum".
    pub(in crate::group) fn set_max(&self, group: &Arc<Meta>, max: Bytes) -> Result<(), MaxError> {
        let id = group.key.id;
        let slot = self.slot(id);
        let shape = self.write_shape();
        if !self.stays(group.key) {
            return Err(MaxError::Removed {
                group: GroupPath::of(group),
            });
        }
        if slot.ledger.set_max(max).is_err() {
            self.retire_subtree(&shape, id);
            slot.ledger.force_max(max);
        }
        drop(shape);
        self.notify_of_max(id);
        let usage = self.account(id).used;
        if usage <= max {
            return Ok(());
        }
        Err(MaxError::BelowUsage {
            group: GroupPath::of(group),
            max,
            usage,
            over: usage - max,
        })
    }

    /// Whether any group has a `min` or a `low`.
    pub(in crate::group) fn has_protection(&self) -> bool {
        // Relaxed: settings take effect for the reclaim that begins after them; a thread that
        // learns of them by synchronization sees this count too.
        self.nr_protected.load(Ordering::Relaxed) > 0
    }

    /// Whether any group has a `high`.
    pub(in crate::group) fn has_high(&self) -> bool {
        // Relaxed: a setting takes effect for the charges that begin after it; a thread that learns
        // of the setting by synchronization sees this count too.
        self.nr_throttled.load(Ordering::Relaxed) > 0
    }

    /// Changes a living group's `min` and `low`; those of a removed group protect nothing and stay
    /// unchanged.
    pub(in crate::group) fn set_protection(&self, group: &Meta, set: impl FnOnce()) {
        let mut shape = self.write_shape();
        if self.stays(group.key) {
            set();
            self.note_protection(&mut shape, group);
        }
    }

    /// Updates the index of protected children to a group's settings. The root has no siblings.
    pub(super) fn note_protection(&self, shape: &mut TreeShape, group: &Meta) {
        let is_protected = group.settings.protection() != (Bytes::ZERO, Bytes::ZERO);
        let Some(parent) = &group.parent else {
            return;
        };
        if !is_protected && shape.family(parent.key.id).protected.is_empty() {
            return;
        }
        let protected = &mut shape.family_mut(parent.key.id).protected;
        // Relaxed: see `has_protection`.
        if is_protected && protected.insert(group.key.id) {
            self.nr_protected.fetch_add(1, Ordering::Relaxed);
        } else if !is_protected && protected.remove(&group.key.id) {
            self.nr_protected.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes a group that is being removed from the index.
    pub(super) fn forget_protection(&self, shape: &mut TreeShape, parent: GroupId, group: GroupId) {
        if shape.family_mut(parent).protected.remove(&group) {
            // Relaxed: see `has_protection`.
            self.nr_protected.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(in crate::group) fn protected_children(&self, id: GroupId) -> Vec<Arc<Meta>> {
        let shape = self.read_shape();
        let ids = shape.family(id).protected.iter();
        ids.filter_map(|id| self.slot(*id).meta.read().clone())
            .collect()
    }

    /// Changes a living group's `high`; a removed group takes no more charges.
    pub(in crate::group) fn set_limit_high(&self, group: &Meta, limit_high: Bytes) {
        let shape = self.write_shape();
        if self.stays(group.key) {
            self.count_high(group.settings.replace_high(limit_high), limit_high);
        }
        drop(shape);
    }

    /// Counts a change of a group's `high`; a new or removed group has none before or after. The
    /// caller holds the tree's lock for writing.
    pub(super) fn count_high(&self, former: Bytes, new: Bytes) {
        // Relaxed: see `has_high`.
        match (former < Bytes::MAX, new < Bytes::MAX) {
            (false, true) => _ = self.nr_throttled.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.nr_throttled.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }
}
