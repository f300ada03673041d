//! The reclaim cursor (`mem_cgroup_iter`): the shared position of a target's reclaimers in the walk
//! over its groups.
//!
//! A reclaimer reads the cursor, computes without its lock how many pages that group has to give,
//! and then takes a cluster of them. If other reclaimers have moved the cursor meanwhile, it looks
//! again.
//!
//! A group that gives several shares at once gives them in one of as many laps, its *turns*. Groups
//! that come one after the other have their turns in laps that are spread evenly.

use super::balance::ScanCounts;

/// 2^64 over the golden ratio: multiples of it, of any consecutive numbers, are spread evenly.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A position in the walk over a target's groups.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// Index into the table of lruvecs.
    at: usize,
    /// Pages still to be scanned there.
    remaining: ScanCounts,
    /// Number of moves.
    moves: u64,
    /// Number of times that it has passed the end of the table.
    laps: u64,
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

    /// Takes the next cluster of a group that gives `every` shares before the next group's visit,
    /// in one of so many laps; in each, if no other group gives any. `None` if it has no turn, or
    /// the cursor has moved since the visit.
    pub(super) fn take(
        &mut self,
        visit: Visit,
        share: ScanCounts,
        every: u64,
        cluster: u64,
    ) -> Option<ScanCounts> {
        debug_assert!(visit.moves <= self.moves, "a cursor moves forward");
        if visit.moves != self.moves {
            return None;
        }
        let is_here = visit.at == self.at;
        if is_here && !self.remaining.is_spent() {
            return Some(self.remaining.take(cluster));
        }
        let laps = self.laps + u64::from(visit.at <= self.at);
        let gives = is_here || has_turn(visit.at, laps, every);
        let remaining = match gives {
            true => share.times(every),
            false => ScanCounts::default(),
        };
        *self = Self {
            at: visit.at,
            remaining,
            moves: self.moves + 1,
            laps,
        };
        gives.then(|| self.remaining.take(cluster))
    }
}

/// Returns whether a lap is a turn of the group at `at`: one of `every` consecutive laps is.
fn has_turn(at: usize, lap: u64, every: u64) -> bool {
    if every <= 1 {
        return true;
    }
    let part = u64::MAX / every + 1;
    GOLDEN
        .wrapping_mul(at as u64)
        .wrapping_add(part.wrapping_mul(lap))
        < part
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // Goal: among `every` laps exactly one is a group's turn, wherever they begin; and groups that
    // come one after the other have their turns so far apart that of 3 * `every` one has.
    #[test]
    fn turns_are_spread_evenly() {
        for every in 1..=32_u64 {
            let turns: Vec<Vec<bool>> = (0..300)
                .map(|at| {
                    (0..10 * every)
                        .map(|lap| has_turn(at, lap, every))
                        .collect()
                })
                .collect();
            let every = usize::try_from(every).unwrap();
            for laps in turns.iter().flat_map(|turns| turns.windows(every)) {
                assert_eq!(laps.iter().filter(|turn| **turn).count(), 1);
            }
            for groups in turns.windows(3 * every) {
                assert!(groups.iter().any(|turns| turns[0]), "one in {every}");
            }
        }
    }
}
