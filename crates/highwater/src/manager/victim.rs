//! The victim, as passed to the embedder's handler.

use super::group::Group;
use crate::group::GroupPath;
use crate::units::Bytes;
use crate::victim::{Choice, ChosenGroup};

/// The selected group, and the numbers that selected it.
#[derive(Clone, Debug)]
pub struct Victim {
    group: Group,
    record: Choice<GroupPath>,
}

impl Victim {
    pub(super) fn new(group: Group, chosen: ChosenGroup) -> Self {
        Self {
            group,
            record: chosen.record,
        }
    }

    /// Returns the group. If it gives its memory back only later, the handler should
    /// [mark it](Group::mark_oom_victim): other requests then wait for it, and select no other
    /// victim. This one selects the next after about 8 ms, or, awaited, after the grace period.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns the group's usage at selection: exact, unless the policy allows no exact read.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn usage(&self) -> Bytes {
        self.record.usage()
    }

    /// Returns the group's badness: usage plus adjustment, or zero if that is negative.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn badness(&self) -> Bytes {
        not_negative(self.record.badness)
    }

    /// Returns an upper bound of the next candidate's badness: the margin of the choice.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn runner_up(&self) -> Bytes {
        let next = self.record.runner_up.as_ref();
        next.map_or(Bytes::ZERO, |next| not_negative(next.badness))
    }

    /// Returns the number of groups considered.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn candidates(&self) -> usize {
        self.record.census.eligible
    }

    /// Returns the whole record: numbers, certainty of the choice, and its cost. Displays as one
    /// line.
    #[must_use]
    pub fn record(&self) -> &Choice<GroupPath> {
        &self.record
    }
}

fn not_negative(badness: i64) -> Bytes {
    Bytes(u64::try_from(badness).unwrap_or(0))
}
