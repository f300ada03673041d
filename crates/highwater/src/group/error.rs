//! Errors of operations on groups, with the numbers that explain them. No message allocates before
//! it is shown.

use thiserror::Error;

use super::state::{GroupPath, LimitsError};
use crate::units::Bytes;

/// Why bytes were not charged. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChargeError {
    /// The group `group`, the charged one or one of its ancestors, has no room.
    #[error(
        "group {group}: {requested} asked, {} free below its maximum of {max}; reclaim from it or raise its maximum", free(*.max, *.usage)
    )]
    OverMax {
        /// The group whose maximum refused: the lowest one on the way to the root.
        group: GroupPath,
        /// Bytes requested.
        requested: Bytes,
        /// The maximum of `group` at that moment.
        max: Bytes,
        /// Usage of its subtree at that moment.
        usage: Bytes,
        /// Escrow of its subtree: zero unless `requested` alone exceeds `max`, because tokens are
        /// taken back before a charge is refused.
        escrowed: Bytes,
    },
    /// Other charges wait for room at `group`, and are served first (FIFO).
    #[error(
        "group {group}: {requested} asked, behind charges that wait there ({nr_waiting}): wait in line with `charge_async`, or try later"
    )]
    Behind {
        /// The group that they wait for.
        group: GroupPath,
        /// Bytes requested.
        requested: Bytes,
        /// Charges that waited there a moment later.
        nr_waiting: usize,
    },
    /// The deadline of a waiting charge passed.
    #[error(
        "group {group}: {requested} asked, {} free below its maximum of {max} at the deadline, charges wait there ({nr_waiting}); reclaim from it or raise its maximum", free(*.max, *.usage)
    )]
    DeadlinePassed {
        /// The group that it waited for.
        group: GroupPath,
        /// Bytes requested.
        requested: Bytes,
        /// Usage of the subtree of `group` when the charge gave up.
        usage: Bytes,
        /// The maximum of `group`.
        max: Bytes,
        /// Charges that waited there, this one included.
        nr_waiting: usize,
    },
    /// The group is removed; charge its parent instead.
    #[error("group {group} is removed: charge its parent instead")]
    Removed {
        /// The removed group.
        group: GroupPath,
    },
    /// A thread that was charging or uncharging at the same time did not run again for a quarter of
    /// a second, and the bytes it carries decide whether there is room. Try again. (A charge that
    /// is polled in a handler does not pause, and is refused at once.)
    #[error(
        "group {group}: {requested} asked, overtaken in each of {attempts} attempts: try again"
    )]
    Contended {
        /// The group to charge.
        group: GroupPath,
        /// Bytes requested.
        requested: Bytes,
        /// Attempts made.
        attempts: u32,
    },
}

impl ChargeError {
    /// Returns the group that it names.
    pub(crate) const fn group(&self) -> &GroupPath {
        match self {
            Self::OverMax { group, .. }
            | Self::Behind { group, .. }
            | Self::DeadlinePassed { group, .. }
            | Self::Removed { group }
            | Self::Contended { group, .. } => group,
        }
    }
}

/// Returns the bytes free below a maximum; zero where forced charges exceed it.
fn free(max: Bytes, usage: Bytes) -> Bytes {
    max.saturating_sub(usage)
}

/// Why a maximum could not be met. It **is** installed if it is below the usage.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MaxError {
    /// The subtree uses more than the new maximum: it cannot grow, and must shrink.
    #[error("group {group}: {usage} used, {over} above its new maximum of {max}; reclaim from it")]
    BelowUsage {
        /// The group.
        group: GroupPath,
        /// The maximum, as installed.
        max: Bytes,
        /// Usage of the subtree just after.
        usage: Bytes,
        /// How far the usage exceeds the maximum.
        over: Bytes,
    },
    /// The group is removed; nothing was installed.
    #[error("group {group} is removed: it has no maximum to set")]
    Removed {
        /// The removed group.
        group: GroupPath,
    },
    /// The limits contradict each other; nothing was set.
    #[error(transparent)]
    Limits(#[from] LimitsError),
}

/// Why a group was not created.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChildError {
    /// The parent has a child of that name.
    #[error("group {parent} already has a child of that name")]
    DuplicateName {
        /// The parent.
        parent: GroupPath,
    },
    /// The name is empty, longer than 255 bytes, `.` or `..`, or holds `/` or a control character.
    #[error(
        "invalid name for a group: use 1 to 255 bytes without `/` and control characters, other than `.` and `..`"
    )]
    InvalidName,
    /// The limits contradict each other.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The parent is at the maximum depth.
    #[error("group {parent} is at depth {depth}, the deepest allowed")]
    TooDeep {
        /// The parent.
        parent: GroupPath,
        /// Its depth; the root's is 0.
        depth: u32,
    },
    /// The parent is removed.
    #[error("group {parent} is removed: it takes no children")]
    Removed {
        /// The parent.
        parent: GroupPath,
    },
    /// Every identifier is in use.
    #[error("the tree holds {count} groups, as many as it can: remove some")]
    TooMany {
        /// Groups in the tree.
        count: u64,
    },
}

/// Why a group was not removed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// It has children, which must be removed first.
    #[error("group {group} has children ({children}): remove them first")]
    HasChildren {
        /// The group.
        group: GroupPath,
        /// How many children it has.
        children: usize,
    },
    /// It is the root.
    #[error("the root group stays for as long as its tree")]
    IsRoot,
    /// It was already removed.
    #[error("group {group} is removed already")]
    Removed {
        /// The group.
        group: GroupPath,
    },
    /// It belongs to another tree.
    #[error("group {group} belongs to another tree")]
    OtherTree {
        /// The group.
        group: GroupPath,
    },
}
