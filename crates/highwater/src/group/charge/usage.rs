//! Reads of usage: as an interval, by a pass without proof, and exactly.

use std::ops::ControlFlow;

use crate::group::state::{CELL_MAX, Cell, Groups, Slot, TreeShape, Words};
use crate::units::{Bytes, Estimate, GroupId};

/// A breakdown of the bytes that a group and its descendants have reserved, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Account {
    /// All bytes that count against the maximum: `used + escrowed`.
    pub reserved: Bytes,
    /// Bytes in use.
    pub used: Bytes,
    /// Bytes in per-CPU token words, not used: any charge that needs them takes them.
    pub escrowed: Bytes,
    /// Bytes reserved above the maximum. While not zero, nothing is in escrow.
    pub debt: Bytes,
    /// Whether all of these values held at one moment. Otherwise each is off by at most the bytes
    /// that other threads charged and uncharged meanwhile.
    pub is_exact: bool,
}

/// The result of a pass without proof.
#[derive(Default)]
struct Glance {
    tokens: u64,
    /// Words that may hold tokens.
    live: u64,
}

impl Glance {
    /// Adds the words of the group itself.
    fn at_top(&mut self, slot: &Slot) {
        match slot.has_own() {
            true => self.at_each(slot, Words::both),
            false => self.at_each(slot, |words| [&words.chain]),
        };
    }

    /// Adds the words of a group further down; returns how many there were.
    fn below(&mut self, slot: &Slot) -> usize {
        self.at_each(slot, |words| [&words.chain])
    }

    #[inline]
    fn at_each<'a, const N: usize>(
        &mut self,
        slot: &'a Slot,
        of: impl Fn(&'a Words) -> [&'a Cell; N],
    ) -> usize {
        let (mut tokens, mut live) = (0, 0);
        let count = slot.each_touched(|words| {
            for cell in of(words) {
                let word = cell.load();
                tokens += word.tokens();
                live += u64::from(word.is_live());
            }
        });
        self.tokens += tokens;
        self.live += live;
        count
    }
}

impl Groups {
    /// Returns the bytes in escrow below `group`: exact when nothing is in flight.
    pub(in crate::group) fn escrowed(&self, group: GroupId) -> Bytes {
        Bytes(self.look(&self.read_shape(), group).tokens)
    }

    /// See [`GroupNode::usage`](crate::group::GroupNode::usage).
    pub(in crate::group) fn usage(&self, group: GroupId) -> Estimate<Bytes> {
        let bounds = self.usage_bounds(group);
        let used = bounds.high.0.saturating_sub(self.tokens_about(group));
        Estimate {
            value: Bytes(used).max(bounds.low),
            ..bounds
        }
    }

    /// Like [`usage`](Self::usage), with the middle of the interval as the value, from four loads.
    pub(in crate::group) fn usage_bounds(&self, group: GroupId) -> Estimate<Bytes> {
        let slot = self.slot(group);
        let bounds = below(slot.ledger.balance().reserved, slot.holders());
        let middle = bounds.low.0.midpoint(bounds.high.0);
        Estimate {
            value: Bytes(middle),
            ..bounds
        }
    }

    /// Returns the tokens below `group` as far as a pass without proof sees them: those in its own
    /// words, and in words further down if the tree's lock is free. Each word not seen counts for
    /// half of what it may hold.
    fn tokens_about(&self, group: GroupId) -> u64 {
        /// Groups and words further down. Chosen: the words of two groups on 384 CPUs, a few
        /// microseconds; a read of the root of 50,000 groups must not become a walk.
        const LOOKS_MAX: usize = 1024;
        let slot = self.slot(group);
        let mut glance = Glance::default();
        glance.at_top(slot);
        let holders = slot.holders();
        if glance.live < holders
            && let Some(shape) = self.try_read_shape()
        {
            let mut looks = 0;
            let _: ControlFlow<()> = self.walk(&shape, group, &mut |id, slot| {
                if id != group {
                    looks += 1 + glance.below(slot);
                }
                match looks < LOOKS_MAX {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            });
        }
        let unseen = holders.saturating_sub(glance.live);
        glance.tokens + unseen.saturating_mul(CELL_MAX / 2)
    }

    /// See [`GroupNode::peak`](crate::group::GroupNode::peak).
    pub(in crate::group) fn peak(&self, group: GroupId) -> Estimate<Bytes> {
        let slot = self.slot(group);
        // In this order: the words that have a part of the peak were counted before it was raised.
        let peak = slot.ledger.peak();
        let bounds = below(peak, slot.holders_peak());
        let low = Bytes(slot.raise_peak_low(bounds.low.0));
        Estimate { low, ..bounds }
    }

    /// See [`GroupNode::account`](crate::group::GroupNode::account).
    pub(in crate::group) fn account(&self, group: GroupId) -> Account {
        self.account_within(&self.read_shape(), group)
    }

    /// Like [`account`](Self::account), for a caller that holds the tree's lock.
    pub(in crate::group) fn account_within(&self, shape: &TreeShape, group: GroupId) -> Account {
        /// Chosen: each costs one pass; a subtree that changes during this many passes is busy, and
        /// the caller not merely unlucky.
        const PASSES: usize = 16;
        let mut before = self.look(shape, group);
        let mut account = Account::default();
        for _ in 0..PASSES {
            let balance = self.slot(group).ledger.balance();
            let pass = self.look(shape, group);
            account = Account {
                reserved: Bytes(balance.reserved),
                used: Bytes(balance.reserved.saturating_sub(pass.tokens)),
                escrowed: Bytes(pass.tokens),
                debt: Bytes(balance.debt()),
                is_exact: pass.is_as_before(before),
            };
            if account.is_exact {
                break;
            }
            before = pass;
        }
        account
    }
}

/// Returns the used part of `reserved` bytes when `holders` words may hold tokens.
fn below(reserved: u64, holders: u64) -> Estimate<Bytes> {
    let tokens_max = holders.saturating_mul(CELL_MAX);
    Estimate {
        value: Bytes(reserved),
        low: Bytes(reserved.saturating_sub(tokens_max)),
        high: Bytes(reserved),
    }
}
