//! Where the reclaimers of one target go on: a place in the walk over its groups that they share.
//!
//! Who reclaims looks where the cursor stands, works out without its lock how much that group has
//! to give, and then takes a cluster of that. If others have moved the cursor on meanwhile, it
//! stays where they left it.

use super::balance::ScanCounts;

/// A place in the walk over a target's groups.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// Index into the table of lruvecs.
    at: usize,
    /// Pages still to be scanned there.
    remaining: ScanCounts,
    /// How often it has moved.
    moves: u64,
}

/// What a reclaimer saw of the cursor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit {
    /// Where it goes.
    at: usize,
    moves: u64,
}

impl Cursor {
    /// Where to look for the next group.
    pub(super) fn next_at(&self) -> usize {
        if self.remaining.is_spent() {
            self.at + 1
        } else {
            self.at
        }
    }

    /// A visit to the group at `at`, which has been looked for from [`next_at`](Self::next_at).
    pub(super) fn visit(&self, at: usize) -> Visit {
        Visit {
            at,
            moves: self.moves,
        }
    }

    /// Takes the next clusters of a group of which `share` is to be scanned before the next group
    /// is.
    pub(super) fn take(&mut self, visit: Visit, share: ScanCounts, cluster: u64) -> ScanCounts {
        if visit.moves != self.moves {
            return { share }.take(cluster);
        }
        if visit.at != self.at || self.remaining.is_spent() {
            *self = Self {
                at: visit.at,
                remaining: share,
                moves: self.moves + 1,
            };
        }
        self.remaining.take(cluster)
    }
}
