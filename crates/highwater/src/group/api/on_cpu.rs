//! Groups and charges as a given CPU uses them.

use super::{GroupNode, NodeCharge, NodeChargeWait};
use crate::group::error::ChargeError;
use crate::group::stat::StatItem;
use crate::group::state::ActingCpu;
use crate::percpu::OnCpu;
use crate::units::{Bytes, CpuId};

impl GroupNode {
    /// Returns the group as the given CPU uses it. Any thread may act as any CPU at any time.
    #[inline]
    pub fn at(&self, cpu: CpuId) -> OnCpu<&Self> {
        OnCpu { of: self, cpu }
    }
}

impl NodeCharge {
    /// Returns the charge as the given CPU uses it.
    #[inline]
    pub fn at(&mut self, cpu: CpuId) -> OnCpu<&mut Self> {
        OnCpu { of: self, cpu }
    }
}

/// The operations of [`GroupNode`] as one CPU does them. They panic in the restartable regime,
/// where only the CPU itself steps its tokens, and when the tree has no such CPU.
impl OnCpu<&GroupNode> {
    fn actor(&self) -> ActingCpu {
        self.of.groups().acting_as(self.cpu)
    }

    /// As [`GroupNode::try_charge`].
    ///
    /// # Errors
    ///
    /// As [`GroupNode::try_charge`].
    pub fn try_charge(&self, bytes: Bytes) -> Result<NodeCharge, ChargeError> {
        let charged = self.of.charge_as(self.actor(), bytes);
        charged.map(|(charge, _throttles_nobody)| charge)
    }

    /// As [`GroupNode::force_charge`].
    pub fn force_charge(&self, bytes: Bytes) -> NodeCharge {
        self.of.force_charge_as(self.actor(), bytes)
    }

    /// As [`GroupNode::uncharge`].
    pub fn uncharge(&self, bytes: Bytes) {
        self.of.uncharge_as(self.actor(), bytes);
    }

    /// As [`GroupNode::charge_wait`].
    pub fn charge_wait(&self, bytes: Bytes) -> NodeChargeWait {
        self.of.charge_wait_as(self.actor(), bytes)
    }

    /// As [`GroupNode::add_stat`].
    #[inline]
    pub fn add_stat(&self, item: StatItem, delta: i64) {
        self.of.stat().add_on(self.cpu, item, delta);
    }
}

/// The operations of [`NodeCharge`] as one CPU does them. They panic where those of a group at a
/// CPU do.
impl OnCpu<&mut NodeCharge> {
    fn actor(&self) -> ActingCpu {
        self.of.groups().acting_as(self.cpu)
    }

    /// As [`NodeCharge::try_grow`].
    ///
    /// # Errors
    ///
    /// As [`NodeCharge::try_grow`].
    pub fn try_grow(self, bytes: Bytes) -> Result<(), ChargeError> {
        let actor = self.actor();
        let grown = self.of.held.grow_as(actor, bytes);
        grown.map(|_throttles_nobody| ())
    }

    /// As [`NodeCharge::force_grow`].
    ///
    /// # Errors
    ///
    /// As [`NodeCharge::force_grow`].
    pub fn force_grow(self, bytes: Bytes) -> Result<(), ChargeError> {
        let actor = self.actor();
        self.of.held.force_grow_as(actor, bytes)
    }

    /// As [`NodeCharge::shrink`].
    pub fn shrink(self, bytes: Bytes) {
        let actor = self.actor();
        self.of.held.shrink_as(actor, bytes);
    }

    /// As [`NodeCharge::transfer`].
    ///
    /// # Errors
    ///
    /// As [`NodeCharge::transfer`].
    pub fn transfer(self, to: &GroupNode, bytes: Bytes) -> Result<NodeCharge, ChargeError> {
        let actor = self.actor();
        self.of.transfer_as(actor, to, bytes)
    }
}
