//! Counters of `group="other"` that never fall, although groups join and leave the rest.
//!
//! A sum over the groups that happen to be unnamed would fall when one of them is named or removed,
//! and Prometheus takes a fall for a restart: rates would show the whole sum as news. So the rest
//! accumulates differences. Each scrape adds to the total by how much each group rose, since the
//! last one, that was or is in the rest. A group that appears has risen from zero, unless it was
//! hidden below a group of the rest, in whose count it was included.
//!
//! The rises between a group's last scrape and its removal show in its ancestors only.

use std::collections::HashMap;
use std::hash::BuildHasher;

use highwater::units::GroupId;

use crate::sample::Row;
use crate::walk::{Node, Tree};

/// Totals of the rest, and the counts of the last scrape.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    scrapes: u64,
    known: HashMap<Identity, Known>,
    total: Vec<u64>,
}

/// A group's number, and a hash that differs for another group that has the number later. A handle
/// would keep the group's data.
type Identity = (GroupId, u64);

/// How a group is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Named,
    /// In the rest, or below a group of the rest.
    Rest,
}

#[derive(Debug)]
struct Known {
    place: Place,
    scrape: u64,
    counts: Vec<u64>,
}

impl Rest {
    /// Begins a scrape with the rows of the named groups. Returns the place of each in the last
    /// scrape: its own, or that of its parent.
    pub(crate) fn begin(&mut self, tree: &Tree, rows: &[Row]) -> Vec<Place> {
        debug_assert!(rows.len() == tree.named.len(), "each named group has a row");
        self.scrapes += 1;
        let mut before: Vec<Place> = Vec::with_capacity(rows.len());
        for (node, row) in tree.named.iter().zip(rows) {
            let (group, above) = (self.identity(node), above(node, &before));
            before.push(self.known.get(&group).map_or(above, |known| known.place));
            self.learn(group, &row.counts, Place::Named, above);
        }
        before
    }

    /// Takes the counts of a group of the rest.
    pub(crate) fn add(&mut self, node: &Node, counts: &[u64], before: &[Place]) {
        self.learn(
            self.identity(node),
            counts,
            Place::Rest,
            above(node, before),
        );
    }

    /// Ends the scrape: forgets groups that are gone, and returns the totals.
    pub(crate) fn end(&mut self) -> &[u64] {
        let current = self.scrapes;
        self.known.retain(|_, known| known.scrape == current);
        &self.total
    }

    fn identity(&self, node: &Node) -> Identity {
        let group = &node.group;
        (group.id(), self.known.hasher().hash_one(group))
    }

    /// Takes the counts of a group; `above` is the place of its parent in the last scrape.
    fn learn(&mut self, group: Identity, counts: &[u64], place: Place, above: Place) {
        let known = self.known.entry(group).or_insert_with(|| Known {
            // A group that was hidden counted in its ancestor; a new one has risen from zero.
            place,
            scrape: self.scrapes,
            counts: match above {
                Place::Named => vec![0; counts.len()],
                Place::Rest => counts.to_vec(),
            },
        });
        if place == Place::Rest || known.place == Place::Rest {
            self.total.resize(counts.len(), 0);
            for ((total, count), last) in self.total.iter_mut().zip(counts).zip(&known.counts) {
                // Saturating: a sum over CPUs may fall for a moment.
                *total += count.saturating_sub(*last);
            }
        }
        known.counts.copy_from_slice(counts);
        known.place = place;
        known.scrape = self.scrapes;
    }
}

/// Returns the place of a group's parent in the last scrape.
fn above(node: &Node, before: &[Place]) -> Place {
    node.parent.map_or(Place::Named, |at| before[at])
}
