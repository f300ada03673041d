//! The reclaim cursor (`mem_cgroup_iter`): the shared position of a target's reclaimers in the walk
//! over its groups.
//!
//! A reclaimer reads the cursor, computes without its lock how many pages that group has to give,
//! and then takes a cluster of them. If other reclaimers have moved the cursor meanwhile, it looks
//! again.
//!
//! A group that gives several shares at once gives them in one of as many laps, its *turns*. A
//! sequence over groups and laps decides which, that is spread evenly in both (Kronecker's): a lap
//! is a turn if its place is in the lowest part. So a group that gives more at once has fewer of
//! the same turns.

use super::balance::ScanCounts;

/// Steps of the sequence of turns for each group and each lap, in 1/2^64: the golden ratio's
/// fraction and that of the square root of two. Multiples of each are spread evenly.
const GROUP_STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const LAP_STEP: u64 = 0x6A09_E667_F3BC_C908;

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
    /// Whether pages were still to be scanned there.
    continues: bool,
}

/// What a reclaimer has of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VisitTaken {
    /// Pages to scan.
    Pages(ScanCounts),
    /// Nothing: it is not the group's turn.
    NoTurn,
    /// Nothing: other reclaimers have taken the pages, or moved the cursor.
    Moved,
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
            continues: at == self.at && !self.remaining.is_spent(),
        }
    }

    /// Takes the next `most` pages of each list, of a group that gives `every` shares before the
    /// next group's visit, in one of so many laps; in each, if no other group gives any. In other
    /// laps it gives none, or a share if it `must_give`.
    pub(super) fn take(
        &mut self,
        visit: Visit,
        share: ScanCounts,
        (every, must_give): (u64, bool),
        most: u64,
    ) -> VisitTaken {
        debug_assert!(visit.moves <= self.moves, "a cursor moves forward");
        if visit.moves != self.moves {
            return VisitTaken::Moved;
        }
        if visit.continues {
            // What a pass of another priority has left may be far more, or not be there any more.
            self.remaining = self.remaining.min(share.times(every));
            if self.remaining.is_spent() {
                return VisitTaken::Moved;
            }
        } else {
            let laps = self.laps + u64::from(visit.at <= self.at);
            let times = match visit.at == self.at || has_turn(visit.at, laps, every) {
                true => every,
                false => u64::from(must_give),
            };
            *self = Self {
                at: visit.at,
                remaining: share.times(times),
                moves: self.moves + 1,
                laps,
            };
            if times == 0 {
                return VisitTaken::NoTurn;
            }
        }
        VisitTaken::Pages(self.remaining.take(most))
    }
}

/// Returns whether a lap is a turn of the group at `at`: one in `every` laps is.
fn has_turn(at: usize, lap: u64, every: u64) -> bool {
    let place = GROUP_STEP
        .wrapping_mul(at as u64)
        .wrapping_add(LAP_STEP.wrapping_mul(lap));
    place <= u64::MAX / every
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::reclaim::lists::LruList;

    fn pages(count: u64) -> ScanCounts {
        let mut counts = ScanCounts::default();
        counts.set(LruList::InactiveFile, count);
        counts
    }

    // Goal: a group has its turns in one of `every` laps, with no more than three times as many
    // from one to the next; and so have groups that come one after the other.
    #[test]
    fn turns_are_spread_evenly() {
        for every in 1..=32 {
            let in_laps = (0..100).map(|at| (0..3_200).map(move |lap| (at, lap)).collect());
            let in_groups = (0..100).map(|lap| (0..3_200).map(move |at| (at, lap)).collect());
            for visits in in_laps.chain(in_groups) {
                let visits: Vec<(usize, usize)> = visits;
                let is_turn = |&&(at, lap): &&(usize, usize)| has_turn(at, lap as u64, every);
                let turns = visits.iter().filter(is_turn).count() as u64;
                assert!(
                    turns.abs_diff(3_200 / every) <= 6,
                    "{turns}, one in {every}"
                );
                let longest = usize::try_from(3 * every).unwrap();
                let has_turns = |visits: &[(usize, usize)]| visits.iter().any(|it| is_turn(&it));
                assert!(visits.windows(longest).all(has_turns), "one in {every}");
            }
        }
    }

    // Goal: each group gives as many shares as it has visits, wherever the groups are in the table,
    // also if the number of shares at once changes from visit to visit. Method: 100 groups at
    // equal distances, and reclaimers that take up to the bound on visits.
    #[test]
    fn groups_at_any_distance_give_alike() {
        const LAPS: usize = 1_000;
        for (distance, shares) in [(1, [16, 16]), (34, [32, 32]), (89, [20, 20]), (1, [8, 32])] {
            let mut cursor = Cursor::default();
            let (mut given, mut nr_passed) = ([0; 100], 0);
            for nth in 0..LAPS * given.len() {
                let group = nth % given.len();
                let visit = cursor.visit(1 + group * distance);
                let every = shares[nth / 7 % 2];
                match cursor.take(visit, pages(1), (every, nr_passed >= 96), 32) {
                    VisitTaken::Pages(taken) => {
                        (given[group], nr_passed) = (given[group] + taken.total(), 0)
                    }
                    VisitTaken::NoTurn => nr_passed += 1,
                    VisitTaken::Moved => panic!("there is one reclaimer"),
                }
            }
            let due = LAPS as u64;
            let alike = given
                .iter()
                .all(|given| (due * 3 / 4..due * 5 / 4).contains(given));
            assert!(alike, "{distance}, {shares:?}: {given:?}");
        }
    }

    // Goal: pages are taken once by reclaimers that have seen the same position, and a group that
    // is visited again has not passed the end of the table for that.
    #[test]
    fn a_visit_that_comes_late_takes_nothing() {
        let mut cursor = Cursor::default();
        let early = cursor.visit(1);
        let late = cursor.visit(1);
        let one = (1, false);
        assert_eq!(
            cursor.take(early, pages(40), one, 32),
            VisitTaken::Pages(pages(32))
        );
        assert_eq!(cursor.take(late, pages(40), one, 32), VisitTaken::Moved);
        let (first, second) = (cursor.visit(1), cursor.visit(1));
        assert_eq!(
            cursor.take(first, pages(40), one, 32),
            VisitTaken::Pages(pages(8))
        );
        assert_eq!(cursor.take(second, pages(40), one, 32), VisitTaken::Moved);
        assert_eq!((cursor.next_at(), cursor.laps), (2, 0));
    }

    // Goal: what a pass of the last priority has left of a whole list is cut to the share of the
    // present pass, and to nothing if the group has no pages any more.
    #[test]
    fn what_is_left_is_cut_to_the_present_share() {
        let mut cursor = Cursor::default();
        let one = (1, false);
        let visit = cursor.visit(1);
        let taken = cursor.take(visit, pages(5_000), one, 32);
        assert_eq!(taken, VisitTaken::Pages(pages(32)));
        let visit = cursor.visit(1);
        let taken = cursor.take(visit, pages(40), one, 32);
        assert_eq!(taken, VisitTaken::Pages(pages(32)));
        let visit = cursor.visit(1);
        assert_eq!(cursor.take(visit, pages(0), one, 32), VisitTaken::Moved);
        assert_eq!(cursor.next_at(), 2);
    }

    // Goal: a group gives all of its shares in its turn, none otherwise, and one if it must; the
    // only group that gives any has each turn.
    #[test]
    fn a_group_gives_in_its_turns() {
        let mut cursor = Cursor::default();
        for lap in 1..=64 {
            // Groups at 1 and at 2, which must give.
            let visit = cursor.visit(1);
            let expected = match has_turn(1, lap - 1, 8) {
                true => VisitTaken::Pages(pages(16)),
                false => VisitTaken::NoTurn,
            };
            assert_eq!(cursor.take(visit, pages(2), (8, false), 32), expected);
            let visit = cursor.visit(2);
            let expected = if has_turn(2, lap - 1, 8) { 16 } else { 2 };
            let taken = cursor.take(visit, pages(2), (8, true), 32);
            assert_eq!(taken, VisitTaken::Pages(pages(expected)));
        }
        for _ in 0..8 {
            let visit = cursor.visit(2);
            assert_eq!(
                cursor.take(visit, pages(2), (8, false), 32),
                VisitTaken::Pages(pages(16))
            );
        }
    }
}
