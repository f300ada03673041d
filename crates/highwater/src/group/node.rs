//! Handles to groups: the API of the tree's users.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::percpu::{PercpuRef, Published};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU32};
use crate::units::{Bytes, CpuId, Estimate, GroupId};

use super::charge::Charge;
use super::error::{ChargeError, ChildError, MaxError};
use super::held::{Held, Keeper, Seat};
use super::judge::Account;
use super::limits::{Events, Limits, Settings};
use super::path::GroupPath;
use super::peak::Watches;
use super::pressure::LazyMeter;
use super::slot::{Actor, Slot};
use super::stat::Stat;
use super::throttle::Refilled;
use super::tree::{Core, GroupKey, GroupTree, Shared};

/// The part of a group that never changes while it lives.
#[derive(Debug)]
pub(super) struct Meta {
    pub(super) key: GroupKey,
    pub(super) name: Box<str>,
    pub(super) parent: Option<Arc<Self>>,
    pub(super) depth: u32,
    pub(super) settings: Settings,
    pub(super) events: Events,
    pub(super) meter: LazyMeter,
    pub(super) peaks: Watches,
    pub(super) stat: Arc<Stat>,
    /// Written by: its setter. Read by: victim selection, and the creation of a child. Publishes:
    /// nothing.
    pub(super) oom_score_adj: AtomicU32,
    /// Whether the group is being stopped (OOM-killed). Written by: its setter. Read by: victim
    /// selection. Publishes: nothing.
    pub(super) is_oom_victim: AtomicBool,
    /// Data of the embedder, kept with the group.
    data: Published<Box<dyn Any + Send + Sync>>,
}

impl Meta {
    pub(super) fn root(incarnation: u64, stat: Arc<Stat>) -> Self {
        let id = GroupId(0);
        Self {
            key: GroupKey { id, incarnation },
            name: "".into(),
            parent: None,
            depth: 0,
            settings: Settings::new(Limits::default()),
            events: Events::default(),
            meter: LazyMeter::default(),
            peaks: Watches::new(),
            stat,
            oom_score_adj: AtomicU32::new(0),
            is_oom_victim: AtomicBool::new(false),
            data: Published::empty(),
        }
    }

    /// Returns the `Meta` of a group that is about to move into `slot`.
    pub(super) fn child(
        parent: &Arc<Self>,
        name: &str,
        limits: Limits,
        (id, slot): (GroupId, &Slot),
    ) -> Self {
        let incarnation = slot.incarnation() + 1;
        Self {
            key: GroupKey { id, incarnation },
            name: name.into(),
            parent: Some(Arc::clone(parent)),
            depth: parent.depth + 1,
            settings: Settings::new(limits),
            events: Events::default(),
            meter: LazyMeter::default(),
            peaks: Watches::new(),
            stat: parent.stat.child(),
            oom_score_adj: AtomicU32::new(parent.oom_score_adj().get().cast_unsigned()),
            is_oom_victim: AtomicBool::new(false),
            data: Published::empty(),
        }
    }
}

impl Drop for Meta {
    fn drop(&mut self) {
        self.stat.retire();
    }
}

/// A group of a [`GroupTree`]. Cloning it gives another handle to the same group.
///
/// A handle stays valid when its group is removed: charging, setting limits and creating children
/// then fail; reads describe the bytes still charged, and return zero once none are.
#[derive(Clone)]
pub struct GroupNode {
    seat: Seat<Core>,
    shared: Arc<Shared>,
    meta: Arc<Meta>,
}

impl GroupNode {
    pub(super) fn new(shared: &Arc<Shared>, meta: Arc<Meta>) -> Self {
        Self {
            seat: Seat::new(shared.core.reference(), meta.key),
            shared: Arc::clone(shared),
            meta,
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns the key of the group, which no later group of the same id has.
    #[must_use]
    pub fn key(&self) -> GroupKey {
        self.seat.key()
    }

    /// Returns the group's identifier in its tree; reused some time after the group is removed.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.key().id
    }

    /// Returns the group's name among its siblings; empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.meta.name
    }

    /// Returns the names from the root: `/` for the root, otherwise such as `/tenant-a/query-42`.
    #[must_use]
    pub fn path(&self) -> GroupPath {
        GroupPath::of(&self.meta)
    }

    /// Returns the number of groups between this one and the root, the root included; 0 for the
    /// root.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.meta.depth
    }

    /// Returns the parent; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let meta = self.meta.parent.as_ref()?;
        Some(Self::new(&self.shared, Arc::clone(meta)))
    }

    /// Returns the tree that the group belongs to.
    #[must_use]
    pub fn tree(&self) -> GroupTree {
        GroupTree::of(&self.shared)
    }

    /// Attaches `data` to the group, once: state that the embedder has for each group, such as its
    /// query. Dropped with the last handle and charge of the group.
    ///
    /// # Errors
    ///
    /// Gives `data` back when the group already has data.
    #[cfg_attr(
        feature = "lab",
        expect(
            clippy::missing_panics_doc,
            reason = "what comes back is what was given"
        )
    )]
    pub fn set_data<T: Any + Send + Sync>(&self, data: T) -> Result<(), T> {
        let refused = self.meta.data.try_publish(Box::new(Box::new(data)));
        refused.map_err(|data| *data.downcast::<T>().expect("it is what was given"))
    }

    /// Returns the data [attached](Self::set_data) to the group, if it is a `T`.
    #[must_use]
    pub fn data<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.meta.data.get()?.downcast_ref()
    }

    /// Whether the group was removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.slot().incarnation() != self.key().incarnation
    }

    /// Whether `other` is this group or one of its ancestors.
    #[must_use]
    pub fn is_descendant_of(&self, other: &Self) -> bool {
        if !Arc::ptr_eq(&self.shared, &other.shared) {
            return false;
        }
        std::iter::successors(Some(&self.meta), |meta| meta.parent.as_ref())
            .any(|meta| meta.key == other.meta.key)
    }

    /// Creates a group below this one.
    ///
    /// # Errors
    ///
    /// When the name is taken or invalid, this group is removed or at depth 64, or no identifier is
    /// left.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for writing. Allocates a slot when more groups exist than ever before,
    /// otherwise reuses one with its per-CPU words.
    pub fn child(&self, name: &str, limits: Limits) -> Result<Self, ChildError> {
        let meta = self.core().create(&self.meta, name, limits)?;
        Ok(Self::new(&self.shared, meta))
    }

    /// Returns the groups directly below, by name; none when this one is removed.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for reading; O(children).
    #[must_use]
    pub fn children(&self) -> Vec<Self> {
        let metas = self.core().children(self.key());
        metas
            .into_iter()
            .map(|meta| Self::new(&self.shared, meta))
            .collect()
    }

    /// Charges `bytes` to this group and all its ancestors, never above any maximum.
    ///
    /// # Cost
    ///
    /// When the CPU holds enough tokens (fast path): one step on each of two lines that only this
    /// CPU writes, that of the tokens and that of the references to the tree. A step is a plain
    /// store in the restartable regime and an atomic operation in the other. Dropping the charge
    /// costs the same. Otherwise, at most once per 128 KiB while there is room: one step on a line
    /// of each ancestor, and for the first charge of a CPU the tree's lock for reading. Without
    /// room: passes over the words of all CPUs that have charged in the subtree of the group
    /// without room, under the tree's lock for reading (rank
    /// [`Groups`](crate::sync::Rank::Groups)); in the restartable regime one membarrier(2) for each
    /// 64 words of other CPUs that hold tokens. No allocation.
    ///
    /// # Errors
    ///
    /// [`ChargeError::OverMax`] only if at some moment of the call the named group had less than
    /// `bytes` left, counting all escrow as left; [`ChargeError::Contended`] when a thread was
    /// preempted for too long in the middle of a charge that decides; [`ChargeError::Removed`] when
    /// this group is removed. Nothing is charged then. Adversaries:
    /// `tests/limits.rs::tiny_limits_are_exact_on_every_cpu`,
    /// `tests/limits.rs::no_charge_is_refused_while_pages_are_free_or_parked`.
    // Always: a result that is returned in memory costs as much as the charge.
    #[inline(always)]
    pub fn try_charge(&self, bytes: Bytes) -> Result<Charge, ChargeError> {
        let held = match self.seat.take(bytes) {
            Some(held) => held,
            None => self.charge_slowly(bytes)?,
        };
        Ok(Charge::of(held))
    }

    #[inline(never)]
    fn charge_slowly(&self, bytes: Bytes) -> Result<Held<Core>, ChargeError> {
        self.charge_kept(&self.seat, bytes)
            .map(|(held, _throttles_nobody)| held)
    }

    /// Like [`GroupNode::try_charge`], acting as `cpu`. Any thread may act as any CPU at any time.
    ///
    /// # Errors
    ///
    /// As [`GroupNode::try_charge`].
    ///
    /// # Panics
    ///
    /// In the restartable regime, where only the CPU itself steps its tokens; and when the tree has
    /// no such CPU.
    pub fn try_charge_on(&self, cpu: CpuId, bytes: Bytes) -> Result<Charge, ChargeError> {
        self.charge_as(self.core().acting_as(cpu), bytes)
            .map(|(charge, _throttles_nobody)| charge)
    }

    /// Charges as `actor`; returns also what was reserved.
    pub(super) fn charge_as(
        &self,
        actor: Actor,
        bytes: Bytes,
    ) -> Result<(Charge, Refilled), ChargeError> {
        let charged = self.charge_kept_as(&self.seat, actor, bytes)?;
        Ok((Charge::of(charged.0), charged.1))
    }

    /// Charges at `seat`, which is this group's; returns also what was reserved.
    pub(crate) fn charge_kept<K: Keeper>(
        &self,
        seat: &Seat<K>,
        bytes: Bytes,
    ) -> Result<(Held<K>, Refilled), ChargeError> {
        self.charge_kept_as(seat, Actor::Here, bytes)
    }

    fn charge_kept_as<K: Keeper>(
        &self,
        seat: &Seat<K>,
        actor: Actor,
        bytes: Bytes,
    ) -> Result<(Held<K>, Refilled), ChargeError> {
        debug_assert_eq!(self.key(), seat.key(), "a group has one key");
        seat.charge_as(actor, bytes)
            .map_err(|error| self.named(error))
    }

    /// Returns the same error, naming this group if it is removed: the tree may have dropped its
    /// name.
    fn named(&self, error: ChargeError) -> ChargeError {
        match error {
            ChargeError::Removed { .. } => ChargeError::Removed { group: self.path() },
            other => other,
        }
    }

    /// Returns a reference that keeps the tree in memory.
    pub(super) fn keeper(&self) -> PercpuRef<Core> {
        self.shared.core.reference()
    }

    #[inline]
    pub(super) fn seat(&self) -> &Seat<Core> {
        &self.seat
    }

    /// Uncharges bytes whose guard was [disowned](Charge::disown). Works on removed groups.
    ///
    /// # Cost
    ///
    /// While the CPU's word has room: one step on a line that only this CPU writes, as for charges.
    /// Otherwise, at most once per 128 KiB, one on a line of each ancestor. Never waits for a lock.
    ///
    /// # Panics
    ///
    /// When more bytes are returned to the ancestors than they hold: the caller uncharged bytes
    /// that were never charged. Debug builds also notice a handle whose bytes are all uncharged
    /// already.
    #[inline]
    pub fn uncharge(&self, bytes: Bytes) {
        self.uncharge_as(Actor::Here, bytes);
    }

    /// Like [`GroupNode::uncharge`], acting as `cpu`.
    ///
    /// # Panics
    ///
    /// As [`GroupNode::uncharge`] and [`GroupNode::try_charge_on`].
    pub fn uncharge_on(&self, cpu: CpuId, bytes: Bytes) {
        self.uncharge_as(self.core().acting_as(cpu), bytes);
    }

    #[inline]
    fn uncharge_as(&self, actor: Actor, bytes: Bytes) {
        debug_assert!(self.is_here(), "nothing is charged to a group that is gone");
        self.core().uncharge(self.id(), actor, bytes.0);
    }

    /// Moves `bytes` that are charged to this group, and whose guard was disowned, to its parent:
    /// for emptying a group before it is removed. The ancestors' reservations do not change.
    ///
    /// # Cost
    ///
    /// One atomic operation on a line of this group.
    ///
    /// # Panics
    ///
    /// When this is the root, or fewer bytes are charged to this group.
    pub fn uncharge_to_parent(&self, bytes: Bytes) {
        debug_assert!(self.is_here(), "nothing is charged to a group that is gone");
        assert!(self.meta.parent.is_some(), "the root has no parent");
        self.core().release(self.id(), self.slot(), bytes.0);
    }

    /// Returns an estimate, with bounds, of the bytes that this group and its descendants use.
    ///
    /// # Accuracy
    ///
    /// `high` is the subtree's reservations; it exceeds the maximum only by the [debt](Self::debt),
    /// and is at every moment at least the usage. `low` is 256 KiB lower for each CPU of each group
    /// in the subtree that may hold tokens, and is at most the usage when nothing is in flight;
    /// operations in flight may raise it by the bytes that they are about to give back. `value`
    /// lies between them: the reservations less the tokens that a pass without proof finds. At rest
    /// it is exact, except for words that the pass does not reach, which count for half of what
    /// they may hold. Adversaries:
    /// `tests/limits.rs::the_interval_holds_the_usage_however_tokens_lie`,
    /// `tests/usage.rs::a_group_that_many_cpus_have_used_reads_as_what_it_uses`.
    ///
    /// # Cost
    ///
    /// One load for each CPU that has charged to this group. If groups below may hold tokens and
    /// the tree's lock is free, that lock for reading and the same for groups below, up to about
    /// 1,024 groups and words in all. Never waits. (Four loads give the interval; its width is 96
    /// MiB for a group that 384 CPUs have used. A pass over its words takes half a microsecond
    /// there, `cargo bench --bench usage_read`.)
    #[must_use]
    pub fn usage(&self) -> Estimate<Bytes> {
        self.unless_gone(self.core().usage(self.id()), Estimate::exact(Bytes::ZERO))
    }

    /// Like [`usage`](Self::usage), with the middle of the interval as the value: for callers that
    /// need only the interval. Four loads.
    pub(crate) fn usage_bounds(&self) -> Estimate<Bytes> {
        let bounds = self.core().usage_bounds(self.id());
        self.unless_gone(bounds, Estimate::exact(Bytes::ZERO))
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
        self.unless_gone(self.core().account(self.id()), Account::default())
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
        self.unless_gone(self.core().escrowed(self.id()), Bytes::ZERO)
    }

    /// Returns the highest usage since the group was created. Never decreases;
    /// [`GroupNode::watch_peak`] returns one that can be reset.
    ///
    /// # Accuracy
    ///
    /// `high` (and `value`) is the highest reservation that a successful charge has seen: at least
    /// the highest usage. `low` is 256 KiB lower for each CPU of each group in the subtree that
    /// held tokens at a time, and is at most the highest usage, except that reservations in flight
    /// at that moment which were undone later raise it by their size.
    /// Adversary: `tests/limits.rs::the_interval_holds_the_usage_however_tokens_lie`.
    ///
    /// # Cost
    ///
    /// Two loads. O(1).
    #[must_use]
    pub fn peak(&self) -> Estimate<Bytes> {
        self.unless_gone(self.core().peak(self.id()), Estimate::exact(Bytes::ZERO))
    }

    /// Returns the current maximum; zero when the group is gone.
    pub(super) fn max(&self) -> Bytes {
        self.unless_gone(self.slot().ledger.balance().max, Bytes::ZERO)
    }

    /// Sets the maximum. From the moment it is installed no charge brings the subtree above it.
    ///
    /// # Errors
    ///
    /// [`MaxError::BelowUsage`] when the subtree uses more: the maximum **is** installed, and
    /// nothing in the subtree can be charged until enough is uncharged. [`MaxError::Removed`] when
    /// the group is removed; nothing is installed.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for writing; if below the reservations, also a swap for each CPU that
    /// has charged to a group of the subtree. Loads as [`GroupNode::usage_precise`].
    pub fn set_max(&self, max: Bytes) -> Result<(), MaxError> {
        self.core().set_max(self.key(), max)
    }

    /// Returns `read`, just read from the slot, or `gone` when it may describe a later group.
    pub(super) fn unless_gone<T>(&self, read: T, gone: T) -> T {
        if self.is_here() { read } else { gone }
    }

    /// Whether the slot still belongs to this group: the group lives, or bytes may still be charged
    /// to it.
    pub(super) fn is_here(&self) -> bool {
        let incarnation = self.slot().incarnation();
        incarnation == self.key().incarnation || incarnation == self.key().incarnation + 1
    }

    #[inline]
    pub(super) fn slot(&self) -> &Slot {
        self.seat.slot()
    }

    #[inline]
    pub(super) fn core(&self) -> &Core {
        self.seat.tree()
    }
}

impl PartialEq for GroupNode {
    /// Whether both are the same group of the same tree.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.key() == other.key()
    }
}

impl Eq for GroupNode {}

impl Hash for GroupNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for GroupNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupNode")
            .field("id", &self.id())
            .field("path", &self.path())
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}
