//! Where the reclaimers of one target go on: a place in the walk over its groups that they share.
//!
//! Who reclaims looks where the cursor stands, works out without its lock how much that group has to
//! give, and then takes a cluster of that. If others have moved the cursor on meanwhile, it stays where
//! they left it.

/// A place in the walk over a target's groups.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// Index into the table of lruvecs.
    at: usize,
    /// Pages still to be scanned there.
    remaining: u64,
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
        if self.remaining > 0 {
            self.at
        } else {
            self.at + 1
        }
    }

    /// A visit to the group at `at`, which has been looked for from [`next_at`](Self::next_at).
    pub(super) fn visit(&self, at: usize) -> Visit {
        Visit {
            at,
            moves: self.moves,
        }
    }

    /// Takes the next cluster of a group that has `share` pages to be scanned before the next group is.
    pub(super) fn take(&mut self, visit: Visit, share: u64, cluster: u64) -> u64 {
        if visit.moves != self.moves {
            return share.min(cluster);
        }
        if visit.at != self.at || self.remaining == 0 {
            *self = Self {
                at: visit.at,
                remaining: share,
                moves: self.moves + 1,
            };
        }
        let count = self.remaining.min(cluster);
        self.remaining -= count;
        count
    }
}
