//! Usage of a group and everything below it.

use super::node::GroupNode;
use super::tree::GroupTree;
use crate::group::charge::Account;
use crate::units::{Bytes, Estimate, GroupId};

impl GroupNode {
    /// Returns an estimate, with bounds, of the bytes that this group and its descendants use.
    ///
    /// # Accuracy
    ///
    /// `high` is the subtree's reservations; it exceeds the maximum only by the [debt](Self::debt),
    /// and is at every moment at least the usage. `low` is 224 KiB lower for each CPU of each group
    /// in the subtree that may hold tokens of this group, of which a CPU has at most 8 at a time:
    /// 1.75 MiB a CPU. (Threads without restartable sequences count as one CPU more.) It is at most
    /// the usage when nothing is in flight; operations in flight may raise it by the bytes that
    /// they are about to give back. `value`
    /// lies between them: the reservations less the tokens that a pass without proof finds. At rest
    /// it is exact, except for words that the pass does not reach, which count for half of what
    /// they may hold. Adversaries:
    /// `tests/limits.rs::the_interval_holds_the_usage_however_tokens_lie`,
    /// `tests/usage.rs::a_thousand_groups_on_384_cpus_park_no_more_than_a_stock`,
    /// `tests/usage_attacked.rs::no_operation_makes_an_interval_wider_than_the_stock`,
    /// `tests/usage_attacked.rs::the_bound_holds_at_every_moment_beside_threads_that_charge`,
    /// `tests/usage.rs::a_group_that_many_cpus_have_used_reads_as_what_it_uses`.
    ///
    /// # Cost
    ///
    /// One load for each CPU that has charged to this group. If groups below may hold tokens and
    /// the tree's lock is free, that lock for reading and the same for groups below, up to about
    /// 1,024 groups and words in all. Never waits. (Four loads give the interval; its width is 84
    /// MiB for a group that 384 CPUs have used. A pass over its words takes half a microsecond
    /// there, `cargo bench --bench usage_read`.)
    #[must_use]
    pub fn usage(&self) -> Estimate<Bytes> {
        self.unless_gone(self.groups().usage(self.id()), Estimate::exact(Bytes::ZERO))
    }

    /// Like [`usage`](Self::usage), with the middle of the interval as the value: for callers that
    /// need only the interval. Four loads.
    pub(crate) fn usage_bounds(&self) -> Estimate<Bytes> {
        let bounds = self.groups().usage_bounds(self.id());
        self.unless_gone(bounds, Estimate::exact(Bytes::ZERO))
    }

    /// Returns the bytes that this group and its descendants use, as an interval of at most that
    /// width.
    ///
    /// # Accuracy
    ///
    /// As [`usage`](Self::usage), with the middle of the interval as the value, where that is
    /// narrow enough; otherwise as [`usage_precise`](Self::usage_precise), with a width of zero.
    /// Adversary: `tests/usage.rs::a_read_within_a_tolerance_holds_the_usage`.
    ///
    /// # Cost
    ///
    /// Four loads where they suffice, otherwise as [`usage_precise`](Self::usage_precise).
    #[must_use]
    pub fn usage_within(&self, tolerance: Bytes) -> Estimate<Bytes> {
        let bounds = self.usage_bounds();
        if bounds.high - bounds.low <= tolerance {
            return bounds;
        }
        Estimate::exact(self.usage_precise())
    }

    /// Returns the bytes that this group and its descendants use.
    ///
    /// # Accuracy
    ///
    /// Exact at a moment within the call if two consecutive passes of at most 17 saw no change,
    /// which is certain when nothing is in flight. Otherwise off by at most the bytes that other
    /// threads charged and uncharged during the last pass.
    /// Adversary: `tests/limits.rs::precise_usage_is_exact_beside_other_groups`.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for reading; one load for each CPU that has charged to a group of the
    /// subtree, at least twice.
    #[must_use]
    pub fn usage_precise(&self) -> Bytes {
        self.account().used
    }

    /// Returns the reservations of this group and its descendants: used, in escrow, and above the
    /// maximum.
    ///
    /// # Accuracy
    ///
    /// As [`GroupNode::usage_precise`]; [`Account::is_exact`] tells which case applies.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::usage_precise`].
    #[must_use]
    pub fn account(&self) -> Account {
        self.unless_gone(self.groups().account(self.id()), Account::default())
    }

    /// Returns the bytes that are reserved in the subtree and not used: any charge that needs them
    /// takes them.
    ///
    /// # Accuracy
    ///
    /// Exact when nothing is in flight.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for reading; one load for each CPU that has charged to a group of the
    /// subtree.
    #[must_use]
    pub fn escrowed(&self) -> Bytes {
        self.unless_gone(self.groups().escrowed(self.id()), Bytes::ZERO)
    }

    /// Returns the highest usage since the group was created. Never decreases.
    ///
    /// # Accuracy
    ///
    /// `high` (and `value`) is the highest reservation that a successful charge has seen: at least
    /// the highest usage. `low` is 224 KiB lower for each CPU of each group in the subtree that
    /// held tokens at a time, 1.75 MiB a CPU at most, and is at most the highest usage, except that
    /// reservations in flight at that moment which were undone later raise it by their size.
    /// Adversary: `tests/limits.rs::the_interval_holds_the_usage_however_tokens_lie`.
    ///
    /// # Cost
    ///
    /// Two loads. O(1).
    #[must_use]
    pub fn peak(&self) -> Estimate<Bytes> {
        self.unless_gone(self.groups().peak(self.id()), Estimate::exact(Bytes::ZERO))
    }

    /// Returns the bytes by which this group and its descendants exceed the maximum, after forced
    /// charges or a maximum set below the usage. Uncharged bytes pay it first.
    ///
    /// # Accuracy
    ///
    /// Exact when nothing is in flight; operations in flight may raise it by the bytes that they
    /// are about to give back. Adversary: `tests/debt.rs::debt_is_what_is_used_above_the_maximum`.
    ///
    /// # Cost
    ///
    /// Four loads. O(1).
    #[must_use]
    pub fn debt(&self) -> Bytes {
        Bytes(self.unless_gone(self.slot().ledger.balance().debt(), 0))
    }
}

impl GroupTree {
    /// Returns the interval of a group's usage, with its middle as the value, and its maximum: by
    /// id, without a handle, so also of a group that is gone. Six loads.
    pub(crate) fn glance(&self, id: GroupId) -> (Estimate<Bytes>, Bytes) {
        let groups = self.groups();
        (
            groups.usage_bounds(id),
            groups.slot(id).ledger.balance().max,
        )
    }
}
