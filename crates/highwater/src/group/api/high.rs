//! Groups above their `high`, and the delay that they owe.

use std::time::Duration;

use super::charge::NodeCharge;
use super::node::GroupNode;
use crate::group::charge::Refilled;
use crate::group::error::ChargeError;
use crate::group::policy::throttle::Overage;
use crate::group::state::{ActingCpu, Meta};
use crate::units::Bytes;

/// A group that uses more than its `Limits::high`.
#[derive(Clone, Debug)]
pub struct OverHigh {
    /// The group.
    pub group: GroupNode,
    /// Its usage: [`GroupNode::usage_precise`].
    pub usage: Bytes,
    /// Its `Limits::high`.
    pub limit_high: Bytes,
}

impl OverHigh {
    /// Returns the bytes above `limit_high`.
    #[must_use]
    pub fn over(&self) -> Bytes {
        self.usage.saturating_sub(self.limit_high)
    }

    fn overage(&self) -> Overage {
        Overage::of(self.usage, self.limit_high)
    }
}

impl GroupNode {
    /// Like [`GroupNode::try_charge`], and returns what it reserved: if not zero, the group or one
    /// of its ancestors may be [over its `high`](Self::over_high).
    ///
    /// # Errors
    ///
    /// As [`GroupNode::try_charge`].
    pub fn try_charge_refilling(
        &self,
        bytes: Bytes,
    ) -> Result<(NodeCharge, Refilled), ChargeError> {
        self.charge_as(ActingCpu::Here, bytes)
    }

    /// Returns the group and those of its ancestors that exceed their `high`, the lowest first.
    ///
    /// # Cost
    ///
    /// A few loads for each; [`GroupNode::usage_precise`] for those that have a `high` and may
    /// exceed it.
    #[must_use]
    pub fn over_high(&self) -> Vec<OverHigh> {
        // Most are not above: checked without a handle to each.
        if !self.meta().up().any(|meta| self.may_be_over_high(meta)) {
            return Vec::new();
        }
        let up = std::iter::successors(Some(self.clone()), Self::parent);
        up.filter_map(|group| group.own_over_high()).collect()
    }

    /// Returns the delay that a charge of `bytes` owes now, before any reclaim, from the group or
    /// ancestor that is furthest above its `high`. Zero if that is 10 ms or less, and at most 2 s.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::over_high`].
    #[must_use]
    pub fn throttle_delay(&self, bytes: Bytes) -> Duration {
        let worst = self.furthest_over_high().map(|over| over.overage());
        worst.unwrap_or_default().delay(bytes)
    }

    /// Returns the group or ancestor that is furthest above its `high`, as a part of that.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::over_high`].
    #[must_use]
    pub fn furthest_over_high(&self) -> Option<OverHigh> {
        self.over_high().into_iter().max_by_key(OverHigh::overage)
    }

    fn own_over_high(&self) -> Option<OverHigh> {
        if !self.may_be_over_high(self.meta()) {
            return None;
        }
        let limit_high = self.meta().settings.high();
        let usage = self.usage_precise();
        (usage > limit_high).then(|| OverHigh {
            group: self.clone(),
            usage,
            limit_high,
        })
    }

    /// Whether this group or one above it has a `high` and may exceed it, tokens included.
    fn may_be_over_high(&self, group: &Meta) -> bool {
        let limit_high = group.settings.high();
        limit_high < Bytes::MAX && self.groups().usage(group.key.id).high > limit_high
    }
}
