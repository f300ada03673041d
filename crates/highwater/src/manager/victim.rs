//! The group that is told to stop, as the embedder's handler sees it.

use super::Group;
use crate::group::GroupPath;
use crate::units::Bytes;
use crate::victim::{Choice, ChosenGroup};

/// The group that should be stopped, and on which numbers.
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

    /// The group. A handler whose victim gives memory back only later
    /// [marks it](Group::mark_oom_victim), so that no other one is stopped meanwhile.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// What the group used when it was chosen: exactly, unless the policy allows no exact read.
    #[must_use]
    pub fn usage(&self) -> Bytes {
        self.record.usage()
    }

    /// What the group was chosen by: its usage and its adjustment. Zero if that is negative.
    #[must_use]
    pub fn badness(&self) -> Bytes {
        not_negative(self.record.badness)
    }

    /// The most that the next candidate's badness can be: how clear the choice was.
    #[must_use]
    pub fn runner_up(&self) -> Bytes {
        let next = self.record.runner_up.as_ref();
        next.map_or(Bytes::ZERO, |next| not_negative(next.badness))
    }

    /// Groups that were considered.
    #[must_use]
    pub fn candidates(&self) -> usize {
        self.record.census.eligible
    }

    /// The whole record: numbers, how certain they make the choice, and what it cost. Shown, it is
    /// one line.
    #[must_use]
    pub fn record(&self) -> &Choice<GroupPath> {
        &self.record
    }
}

fn not_negative(badness: i64) -> Bytes {
    Bytes(u64::try_from(badness).unwrap_or(0))
}
