//! Resettable peaks: the highest usage since a reader's last reset, as writing to `memory.peak`
//! gives it. Each reader resets only its own.

use std::fmt;

use super::node::GroupNode;
use crate::units::{Bytes, Estimate};

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
        let watch = PeakWatch {
            node: self.clone(),
            number: self.meta().peaks.add(),
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
        let node = &self.node;
        let recent = || node.unless_gone(node.slot().ledger.recent_peak(), 0);
        let peak = node.meta().peaks.peak(self.number, recent);
        node.groups().used_at_peak(node.id(), peak)
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
        let _shape = node.groups().shape.read();
        let ledger = &node.slot().ledger;
        let take = || node.is_here().then(|| ledger.take_recent_peak());
        node.meta().peaks.reset(self.number, take);
    }

    /// Returns the group that is watched.
    #[must_use]
    pub fn group(&self) -> &GroupNode {
        &self.node
    }
}

impl Drop for PeakWatch {
    fn drop(&mut self) {
        self.node.meta().peaks.remove(self.number);
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
    use crate::group::{GroupTree, NodeCharge};
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
        let (mut expected, mut used, mut held) = ([0; 3], 0, Vec::<NodeCharge>::new());
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
                    held.push(group.at(on).try_charge(Bytes(bytes)).unwrap());
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
