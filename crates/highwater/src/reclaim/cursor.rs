//! The reclaim cursor (`mem_cgroup_iter`): the shared position of a target's reclaimers in the walk
//! over its groups.
//!
//! A reclaimer reads the cursor, computes without its lock how many pages that group has to give,
//! and then takes a cluster of them. If other reclaimers have moved the cursor meanwhile, it leaves
//! it there.

use super::balance::ScanCounts;

/// A position in the walk over a target's groups.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// Index into the table of lruvecs.
    at: usize,
    /// Pages still to be scanned there.
    remaining: ScanCounts,
    /// Number of moves.
    moves: u64,
}

/// A reclaimer's view of the cursor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit {
    /// The group's index.
    at: usize,
    moves: u64,
}

impl Cursor {
    /// Returns where to look for the next group.
    pub(super) fn next_at(&self) -> usize {
        if self.remaining.is_spent() {
            self.at + 1
        } else {
            self.at
        }
    }

    /// Returns a visit to the group at `at`, which was found from [`next_at`](Self::next_at).
    pub(super) fn visit(&self, at: usize) -> Visit {
        Visit {
            at,
            moves: self.moves,
        }
    }

    /// Takes the next cluster of a group, which gives `share` pages before the next group's visit;
    /// `None` if it gives none in this one.
    pub(super) fn take(
        &mut self,
        visit: Visit,
        share: impl FnOnce() -> Option<ScanCounts>,
        cluster: u64,
    ) -> Option<ScanCounts> {
        debug_assert!(visit.moves <= self.moves, "a cursor moves forward");
        if visit.moves != self.moves {
            return share().map(|mut share| share.take(cluster));
        }
        if visit.at == self.at && !self.remaining.is_spent() {
            return Some(self.remaining.take(cluster));
        }
        let share = share();
        *self = Self {
            at: visit.at,
            remaining: share.unwrap_or_default(),
            moves: self.moves + 1,
        };
        share.map(|_| self.remaining.take(cluster))
    }
}
