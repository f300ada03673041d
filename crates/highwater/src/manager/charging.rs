//! Charging: the path that a charge of the manager takes when its group has room. Only a refusal
//! enters the slow path (`slow.rs`), and only a group above its `high` the throttling
//! (`throttle.rs`). A charge that finds tokens does not come here: `charge.rs`.

use std::time::Duration;

use super::Core;
use super::error::ChargeFailed;
use super::slow::Patience;
use super::throttle::Throttling;
use crate::group::{ChargeError, GroupNode, NodeCharge, Refilled};
use crate::reclaim::{Actor, OnItsWay};
use crate::units::{Bytes, GroupId};

impl Core {
    /// Charges a group for pages that count as in transit already; makes room if its maximum or an
    /// ancestor's is reached.
    pub(super) fn charge_for(
        &self,
        way: &OnItsWay<'_>,
        (group, bytes): (&GroupNode, Bytes),
        patience: Patience,
    ) -> Result<NodeCharge, ChargeFailed> {
        let charge = || group.try_charge_refilling(bytes);
        let (charge, refilled) = self.charging(group.id(), bytes, patience, charge)?;
        self.throttle_on_its_way(group, refilled, patience, way);
        Ok(charge)
    }

    /// Charges a group for the page of a fault, which counts as in transit from before the charge;
    /// makes room as [`charge_for`](Self::charge_for). The charge is to be dropped first.
    pub(super) fn charge_on_its_way(
        &self,
        group: &GroupNode,
        bytes: Bytes,
        patience: Patience,
    ) -> Result<(OnItsWay<'_>, NodeCharge), ChargeFailed> {
        let charge = || {
            let way = self.reclaim.page_on_its_way(group);
            let charged = group.try_charge_refilling(bytes)?;
            way.note_paid();
            Ok((way, charged))
        };
        let (way, (charge, refilled)) = self.charging(group.id(), bytes, patience, charge)?;
        self.throttle_on_its_way(group, refilled, patience, &way);
        Ok((way, charge))
    }

    /// Throttles a fault, whose pages are hidden while its thread sleeps. The program asks for the
    /// delay by `Group::throttle`.
    #[inline]
    fn throttle_on_its_way(
        &self,
        group: &GroupNode,
        refilled: Refilled,
        patience: Patience,
        way: &OnItsWay<'_>,
    ) {
        match patience {
            Patience::Polled => _ = self.throttle_polled(group, refilled, Actor::Clean),
            _ if self.may_throttle(refilled) => {
                _ = self.throttle_slow(group.id(), refilled.0, Some(way));
            }
            _ => {}
        }
    }

    /// Repeats a charge of `bytes` to `charged` until it succeeds or no step helps.
    #[inline]
    pub(super) fn charging<T>(
        &self,
        charged: GroupId,
        bytes: Bytes,
        patience: Patience,
        mut charge: impl FnMut() -> Result<T, ChargeError>,
    ) -> Result<T, ChargeFailed> {
        match charge() {
            Ok(charged) => Ok(charged),
            Err(refusal) => self.charging_again(charged, bytes, patience, refusal, charge),
        }
    }

    /// Reclaims the excess of a group and its ancestors over their `high`; returns the delay for
    /// the rest.
    #[inline]
    pub(super) fn throttle(&self, group: GroupId, refilled: Refilled) -> Duration {
        match self.may_throttle(refilled) {
            true => self.throttle_slow(group, refilled.0, None),
            false => Duration::ZERO,
        }
    }

    /// As [`throttle`](Self::throttle), with one round of reclaim and without sleeping: for threads
    /// that poll futures, as such an `actor`.
    pub(super) fn throttle_polled(
        &self,
        group: &GroupNode,
        refilled: Refilled,
        actor: Actor,
    ) -> Duration {
        let how = (1, Throttling::Report, actor);
        match self.may_throttle(refilled) {
            true => self.reclaim_for_charge(group, refilled.0, how),
            false => Duration::ZERO,
        }
    }

    #[inline]
    fn may_throttle(&self, refilled: Refilled) -> bool {
        refilled != Refilled::NOTHING && self.groups.has_high()
    }
}
