//! Handlers for exhausted memory (OOM handlers): one of the manager, and one of each subtree that
//! has its own.
//!
//! A program in which several parts stop groups, such as two adapters, gives each part a subtree:
//! a victim is told to the handler of its nearest ancestor that has one, itself included. A group
//! for which there is none is never selected, because nothing would stop it.
//!
//! Handlers are a map that is replaced as a whole, so that no lock is held while a victim is
//! selected or told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::group::Group;
use super::victim::Victim;
use super::{Core, Shared, SharedOwner};
use crate::group::{GroupKey, GroupNode, GroupTree};
use crate::percpu::{Gates, PercpuOwner, Regime};
use crate::sync::{Arc, LockClass, Rank, RwLock, Weak};
use crate::victim::ChosenGroup;

static HANDLER_LOCK: LockClass = LockClass::new("on_exhausted", Rank::Victim);

type Tell = dyn Fn(&Victim) + Send + Sync;

/// A group that has a handler, and the handler.
#[derive(Clone)]
struct OfGroup {
    group: GroupNode,
    tell: Arc<Tell>,
    manager: Weak<PercpuOwner<Shared>>,
}

type Map = BTreeMap<GroupKey, OfGroup>;

/// The handlers of a manager.
pub(super) struct Handlers(RwLock<Arc<Map>>);

/// The handlers as they were when a request began to look for a victim, and the manager, kept for
/// them.
pub(super) struct HandlersNow(Arc<Map>, SharedOwner);

/// The groups below a target that a handler can stop.
pub(super) enum Stoppable {
    /// All.
    All,
    /// These, because the target has no handler at or above it.
    Some(BTreeSet<GroupKey>),
}

impl Handlers {
    pub(super) fn none() -> Self {
        Self(RwLock::new(&HANDLER_LOCK, Arc::default()))
    }

    /// Returns the handlers if there is one that can be called. Charges can outlive the last handle
    /// of the manager; they then select no victim.
    pub(super) fn now(&self) -> Option<HandlersNow> {
        let handlers = Arc::clone(&self.0.read());
        let manager = handlers.values().next()?.manager.upgrade()?;
        Some(HandlersNow(handlers, manager))
    }

    fn set(&self, group: &Group, tell: Arc<Tell>) {
        let manager = Arc::downgrade(group.shared());
        let group = group.node();
        let of_group = OfGroup {
            group: group.clone(),
            tell,
            manager,
        };
        // Before the check below: the group's removal sees this, or the check sees the removal.
        group.track();
        self.replace(|map| _ = map.insert(group.key(), of_group));
        if group.is_removed() {
            self.forget(group);
        }
    }

    /// Drops the handler of a removed group.
    pub(super) fn forget(&self, group: &GroupNode) {
        if self.0.read().contains_key(&group.key()) {
            self.replace(|map| _ = map.remove(&group.key()));
        }
    }

    fn replace(&self, change: impl FnOnce(&mut Map)) {
        let mut place = self.0.write();
        let mut map = Map::clone(&place);
        change(&mut map);
        let former = std::mem::replace(&mut *place, Arc::new(map));
        drop(place);
        // Dropped outside the lock: a former handler may own files or other handles that end with
        // it.
        drop(former);
    }
}

impl HandlersNow {
    /// Returns the groups below `target` that can be told; `None` if there is no handler for any.
    pub(super) fn reach(&self, groups: &GroupTree, target: &GroupNode) -> Option<Stoppable> {
        let has_handler = |group: GroupNode| self.0.contains_key(&group.key());
        if up(target.clone()).any(has_handler) {
            return Some(Stoppable::All);
        }
        let below = self.0.values().map(|of_group| &of_group.group);
        let below = below.filter(|group| group.is_descendant_of(target));
        let keys: BTreeSet<_> = below
            .flat_map(|top| groups.subtree(top))
            .map(|group| group.key())
            .collect();
        (!keys.is_empty()).then_some(Stoppable::Some(keys))
    }

    /// Tells a victim to the handler of its nearest ancestor that has one, itself included.
    pub(super) fn tell(&self, victim: ChosenGroup) {
        let nearest = up(victim.group.clone()).find_map(|group| self.0.get(&group.key()));
        debug_assert!(nearest.is_some(), "a victim is within reach of a handler");
        if let Some(nearest) = nearest {
            // Counted apart from other handles: these are few.
            let handles = PercpuOwner::new(Gates::new(Regime::Atomic, 1), Arc::clone(&self.1));
            let group = Group::new(&handles.reference(), victim.group.clone());
            (nearest.tell)(&Victim::new(group, victim));
        }
    }
}

impl Stoppable {
    pub(super) fn includes(&self, key: GroupKey) -> bool {
        match self {
            Self::All => true,
            Self::Some(keys) => keys.contains(&key),
        }
    }
}

/// A group and its ancestors.
fn up(group: GroupNode) -> impl Iterator<Item = GroupNode> {
    std::iter::successors(Some(group), GroupNode::parent)
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handlers = Arc::clone(&self.0.read());
        f.debug_set().entries(handlers.keys()).finish()
    }
}

impl Core {
    /// Drops what the manager keeps for a group that was removed.
    pub(super) fn forget_handlers(&self, group: &GroupNode) {
        self.spillers.forget(group);
        self.on_exhausted.forget(group);
    }
}

impl Group {
    /// Sets the handler that is called with a victim in this group or below it when memory is
    /// exhausted (the OOM handler). It runs on the thread that needs memory or polls the charge
    /// that does, with no lock held, and should make the victim give memory back, now or soon.
    /// Until the victim has given back nothing for a [grace period](super::Builder::grace), no
    /// waiting charge selects another victim below the full group. The handler may call any method;
    /// a request that it makes selects no further victim and fails if reclaim does not help. A
    /// handler that holds a [`Group`] keeps the manager alive.
    ///
    /// A victim is told to one handler, that of its nearest ancestor that has one; groups that have
    /// none are never selected. A handler of the root is told of every victim but those of subtrees
    /// with handlers of their own: two parts of a program, such as adapters for two engines, do not
    /// replace each other's. A group has one handler, which is dropped by [`remove`](Self::remove).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Mutex;
    /// # use highwater::{Bytes, Manager};
    /// let hw = Manager::builder().capacity(Bytes::mib(8)).build()?;
    /// let engine = hw.root().child("engine", Default::default())?;
    /// let query = engine.child("query-42", Default::default())?;
    /// let running = Mutex::new(Some(query.charge(Bytes::mib(6))?));
    /// hw.root().on_exhausted(|victim| unreachable!("{victim:?} belongs to the engine"));
    /// engine.on_exhausted(move |victim| {
    ///     assert_eq!(victim.group().path(), "/engine/query-42");
    ///     drop(running.lock().unwrap().take()); // cancels the query
    /// });
    /// assert!(hw.root().charge(Bytes::mib(4)).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_exhausted(&self, handler: impl Fn(&Victim) + Send + Sync + 'static) {
        let handlers = &self.shared().core.on_exhausted;
        handlers.set(self, Arc::new(handler));
    }
}
