//! Resettable peaks: the highest usage since a reader's last reset, as writing to `memory.peak`
//! gives it. Each reader resets only its own.
//!
//! The ledger keeps one recent peak. A reset takes it and merges it into the value of every other
//! reader of the group. So charges cost the same however many readers there are.

use std::fmt;

use crate::sync::{LockClass, Mutex, Rank, Sequence};
use crate::units::{Bytes, Estimate};

use super::node::GroupNode;

static PEAKS: LockClass = LockClass::new("group peaks", Rank::Leaf);

/// The readers of one group's peak.
#[derive(Debug)]
pub(super) struct Watches {
    /// For each reader, the highest reservation taken from the ledger since its reset.
    seen: Mutex<Vec<(u64, u64)>>,
    numbers: Sequence,
}

impl Watches {
    pub(super) fn new() -> Self {
        Self {
            seen: Mutex::new(&PEAKS, Vec::new()),
            numbers: Sequence::new(),
        }
    }
}

/// The highest usage of a group since this was made or last [reset](Self::reset).
pub struct PeakWatch {
    node: GroupNode,
    number: u64,
}

impl GroupNode {
    /// Starts watching the peak.
    ///
    /// # Cost
    ///
    /// As [`PeakWatch::reset`], and it allocates.
    #[must_use]
    pub fn watch_peak(&self) -> PeakWatch {
        let watches = &self.meta().peaks;
        let number = watches.numbers.next();
        watches.seen.lock().push((number, 0));
        let watch = PeakWatch {
            node: self.clone(),
            number,
        };
        watch.reset();
        watch
    }
}

impl PeakWatch {
    /// Returns the highest usage since the last reset.
    ///
    /// # Accuracy
    ///
    /// As [`GroupNode::peak`].
    ///
    /// # Cost
    ///
    /// A lock that only watches of the same group take; two loads. O(watches).
    #[must_use]
    pub fn peak(&self) -> Estimate<Bytes> {
        let (node, ledger) = (&self.node, &self.node.slot().ledger);
        let seen = node.meta().peaks.seen.lock();
        let own = seen.iter().find(|(number, _)| *number == self.number);
        let before = own.map_or(0, |(_, before)| *before);
        let peak = before.max(node.unless_gone(ledger.recent_peak(), 0));
        drop(seen);
        node.core().used_at_peak(node.id(), peak)
    }

    /// Restarts at the current usage. Other watches keep their values.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for reading, and one that only watches of the same group take; one
    /// swap of a line of the group. O(watches).
    pub fn reset(&self) {
        let node = &self.node;
        // Held so that no later group gets the slot meanwhile.
        let _shape = node.core().shape.read();
        let mut seen = node.meta().peaks.seen.lock();
        if !node.is_here() {
            return;
        }
        let taken = node.slot().ledger.take_recent_peak();
        for (number, before) in &mut *seen {
            *before = if *number == self.number {
                0
            } else {
                taken.max(*before)
            };
        }
    }

    /// Returns the group that is watched.
    #[must_use]
    pub fn group(&self) -> &GroupNode {
        &self.node
    }
}

impl Drop for PeakWatch {
    fn drop(&mut self) {
        let mut seen = self.node.meta().peaks.seen.lock();
        seen.retain(|(number, _)| *number != self.number);
    }
}

impl fmt::Debug for PeakWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeakWatch")
            .field("group", &self.node.id())
            .field("peak", &self.peak())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::group::{Charge, GroupTree};
    use crate::units::CpuId;

    // Goal: each watch shows the highest usage since its own reset, whatever the others do. Method:
    // random charges, uncharges and resets of three watches beside numbers kept by hand; a watch of
    // a group that is gone reads its last value.
    #[test]
    fn each_watch_has_a_peak_of_its_own() {
        let tree = GroupTree::new(4);
        let group = tree
            .root()
            .child("a", crate::group::Limits::default())
            .unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        let watches = [(); 3].map(|()| group.watch_peak());
        let (mut expected, mut used, mut held) = ([0; 3], 0, Vec::<Charge>::new());
        for _ in 0..5000 {
            match rng.u8(..8) {
                0 => {
                    let nth = rng.usize(..3);
                    watches[nth].reset();
                    expected[nth] = used;
                }
                1..5 => {
                    let bytes = rng.u64(..300);
                    let on = CpuId(rng.u32(..4));
                    held.push(group.try_charge_on(on, Bytes(bytes)).unwrap());
                    used += bytes;
                }
                _ if held.is_empty() => {}
                _ => used -= held.swap_remove(rng.usize(..held.len())).bytes().0,
            }
            for (watch, expected) in watches.iter().zip(&mut expected) {
                *expected = used.max(*expected);
                assert!(
                    watch.peak().contains(Bytes(*expected)),
                    "{} for {expected}",
                    watch.peak()
                );
                assert!(watch.peak().high <= group.peak().high);
            }
        }
        let last = watches[0].peak().high;
        drop(held);
        tree.remove(&group).unwrap();
        let next = tree
            .root()
            .child("b", crate::group::Limits::default())
            .unwrap();
        assert_eq!(next.id(), group.id());
        let _held = next.try_charge(Bytes(1 << 30)).unwrap();
        watches[1].reset();
        assert!(watches[0].peak().high <= last, "a later group was watched");
    }
}
