//! Spill callbacks: asking groups to give memory back before a victim is selected.
//!
//! Reclaim cannot free memory that the program allocates elsewhere, but most engines can release
//! some of it: they spill to disk. Such a group has a handler ([`Group::on_reclaim`]). When a
//! request finds no room and reclaim makes none, the handlers below the full group are called, one
//! group after the other, before any group is told to stop.
//!
//! - The first is the group that uses most above its protection ([`GroupNode::protection_below`]
//!   the full one), as the largest is the first victim; ties go to the lowest number. A group
//!   within its protection is not asked.
//! - A handler returns the amount that the group gives back: memory that is free already, or will
//!   be by the deadline of the request. Until then, or until the group's usage has fallen by that
//!   amount, no other group is asked and no victim is selected.
//! - One request at a time asks a group. While its handler runs or its promise is open, other
//!   requests that need room there wait for it.
//! - A request asks a group again only after it kept a promise, to this request or another; a
//!   waiting charge also asks all groups again every 100 ms. A group whose handler runs past the
//!   deadline is passed over.
//!
//! No lock is held while a handler runs. A charge that the handler makes asks no group, selects no
//! victim, and does not wait in a queue: the asking request may be its head. A handler that panics
//! has promised nothing, and the panic propagates in the charging thread.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::mem;
use std::time::{Duration, Instant};

use super::Core;
use super::group::Group;
use super::handler::InHandler;
use crate::group::{Depth, GroupKey, GroupNode};
use crate::sync::{Arc, LockClass, Mutex, Rank};
use crate::units::Bytes;

static SPILLERS_LOCK: LockClass = LockClass::new("on_reclaim", Rank::Leaf);

/// A request to a group to give memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReclaimRequest {
    /// The requested amount. Less helps too.
    pub want: Bytes,
    /// The request waits until then for the memory that the handler promises.
    pub deadline: Instant,
}

type Handler = dyn Fn(&ReclaimRequest) -> Bytes + Send + Sync;

/// A group with a spill handler.
struct Spiller {
    group: GroupNode,
    handler: Arc<Handler>,
    asked: Option<Asked>,
    /// Promises of more than nothing that were kept.
    nr_kept: u64,
}

/// A request to a group that is not settled yet.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Asked {
    /// Usage when the group was asked.
    before: Bytes,
    /// The promised amount; `None` while the handler runs.
    promised: Option<Bytes>,
    until: Duration,
}

impl Asked {
    /// Returns whether usage has fallen by the promised amount: for nothing, at once.
    fn is_kept(&self, usage: Bytes) -> bool {
        self.promised.is_some_and(|promised| {
            promised == Bytes::ZERO || usage.saturating_add(promised) <= self.before
        })
    }

    /// Returns how much of the promise has been given.
    fn given(&self, usage: Bytes) -> Bytes {
        let promised = self.promised.unwrap_or(Bytes::ZERO);
        self.before.saturating_sub(usage).min(promised)
    }
}

/// The groups of a manager that have spill handlers.
pub(super) struct Spillers(Mutex<BTreeMap<GroupKey, Spiller>>);

impl fmt::Debug for Spillers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}

/// Groups that a request has asked, each with the number of promises that it had kept by then: it
/// asks them again when there are more.
#[derive(Default)]
pub(super) struct Passed {
    asked: Vec<(GroupKey, u64)>,
    has_asked: bool,
}

impl Passed {
    fn note(&mut self, group: GroupKey, nr_kept: u64) {
        self.remove(group);
        self.asked.push((group, nr_kept));
        self.has_asked = true;
    }

    /// Lets the request ask a group again.
    fn remove(&mut self, group: GroupKey) {
        self.asked.retain(|(key, _)| *key != group);
    }

    fn contains(&self, group: GroupKey) -> bool {
        self.asked.iter().any(|(key, _)| *key == group)
    }

    /// Lets the request ask a group again if it has kept a promise since; returns whether it has.
    fn has_given(&mut self, group: GroupKey, nr_kept: u64) -> bool {
        let before = self.asked.len();
        self.asked
            .retain(|(key, then)| *key != group || *then == nr_kept);
        self.asked.len() < before
    }

    /// Lets the request ask all groups again.
    pub(super) fn forget(&mut self) {
        self.asked.clear();
    }
}

/// Result of looking for a group to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// A group has answered: retry, and otherwise ask another group.
    Again,
    /// A group has until then to keep its promise.
    Until(Duration),
    /// No group is left that this request has not asked.
    Nothing,
}

/// State of a promise.
enum Promise {
    /// Open until then.
    Open(Duration),
    Kept,
    Broken,
}

impl Group {
    /// Sets the group's spill handler, which is called when reclaim makes no room and before any
    /// victim is selected. It receives the requested amount and a deadline ([`ReclaimRequest`]) and
    /// returns the amount that the group gives back: free already, or by the deadline; zero if it
    /// can give nothing now. A group has one handler, which is dropped by [`remove`](Self::remove).
    /// An open promise ends with its handler. A handler that replaces a running one is called after
    /// that has returned, and its promise was kept or has expired.
    ///
    /// The handler runs on the thread that needs memory or polls the charge, one call for the group
    /// at a time. No lock of the library is held, but locks of the program may be: a handler takes
    /// its own by `try_lock`, and returns zero if that fails. In an async program it starts the
    /// spill in a task and returns the amount that the task will free; a handler that blocks blocks
    /// a worker. A charge that the handler makes is refused if there is no room. A panic of the
    /// handler propagates in the charging thread.
    ///
    /// A handler that holds a [`Group`] keeps the manager alive until the group is removed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use highwater::{Bytes, Limits, Manager};
    ///
    /// let hw = Manager::builder().capacity(Bytes::mib(16)).build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes::mib(8)))?;
    /// let sort = tenant.child("sort", Limits::default())?;
    ///
    /// // Runs that are sorted, each of which can be written out.
    /// let runs: Vec<_> = (0..6).map(|_| sort.charge(Bytes::mib(1))).collect::<Result<_, _>>()?;
    /// let runs = Arc::new(Mutex::new(runs));
    /// let spilled = Arc::clone(&runs);
    /// sort.on_reclaim(move |request| {
    ///     let Ok(mut runs) = spilled.try_lock() else {
    ///         return Bytes(0);
    ///     };
    ///     let mut given = Bytes(0);
    ///     while given < request.want && let Some(_run) = runs.pop() {
    ///         given += Bytes::mib(1);
    ///     }
    ///     given
    /// });
    ///
    /// let _join = tenant.charge(Bytes::mib(4))?; // 2 MiB are free, 2 MiB are asked for
    /// assert_eq!(runs.lock().unwrap().len(), 4);
    /// assert_eq!(hw.snapshot().counter("on_reclaim_asked"), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_reclaim(&self, handler: impl Fn(&ReclaimRequest) -> Bytes + Send + Sync + 'static) {
        let spillers = &self.shared().core.spillers;
        let former = spillers.replace(self.node(), Arc::new(handler));
        // Dropped outside the lock: the former handler may own objects that end with it.
        drop(former);
        if self.node().is_removed() {
            spillers.forget(self.node());
        }
    }
}

impl Spillers {
    pub(super) fn none() -> Self {
        Self(Mutex::new(&SPILLERS_LOCK, BTreeMap::new()))
    }

    /// Sets a group's handler and returns the former one, whose promise ends. While the former one
    /// runs, the group stays marked, so that the request's result is not recorded over another's.
    fn replace(&self, group: &GroupNode, handler: Arc<Handler>) -> Option<Arc<Handler>> {
        // Before the caller's check: the group's removal sees this, or the check sees the removal.
        group.track();
        match self.0.lock().entry(group.key()) {
            Entry::Occupied(mut spiller) => {
                let spiller = spiller.get_mut();
                debug_assert_eq!(spiller.group.key(), group.key(), "a handler is its group's");
                spiller.asked = spiller.asked.filter(|asked| asked.promised.is_none());
                Some(mem::replace(&mut spiller.handler, handler))
            }
            Entry::Vacant(place) => {
                place.insert(Spiller {
                    group: group.clone(),
                    handler,
                    asked: None,
                    nr_kept: 0,
                });
                None
            }
        }
    }

    /// Drops the handler of a removed group.
    pub(super) fn forget(&self, group: &GroupNode) {
        debug_assert!(
            group.is_removed(),
            "the handler of a group stays until its removal"
        );
        let spiller = self.0.lock().remove(&group.key());
        // Dropped outside the lock: the handler may own objects that end with it.
        drop(spiller);
    }

    /// Returns the spilling groups below `target`, each with its open request and the number of
    /// promises that it has kept.
    fn below(&self, target: &GroupNode) -> Vec<(GroupNode, Option<Asked>, u64)> {
        let spillers = self.0.lock();
        let below = spillers.values().filter(|spiller| {
            !spiller.group.is_removed() && spiller.group.is_descendant_of(target)
        });
        below
            .map(|it| (it.group.clone(), it.asked, it.nr_kept))
            .collect()
    }

    /// Marks the group as being asked; returns the handler and the number of promises kept, unless
    /// another request has marked it.
    fn begin(&self, group: &GroupNode, asked: Asked) -> Option<(Arc<Handler>, u64)> {
        debug_assert!(
            asked.promised.is_none(),
            "a handler promises after it was called"
        );
        let mut spillers = self.0.lock();
        let spiller = spillers.get_mut(&group.key())?;
        if spiller.asked.is_some() {
            return None;
        }
        spiller.asked = Some(asked);
        Some((Arc::clone(&spiller.handler), spiller.nr_kept))
    }

    /// Takes the open request, unless another thread took it before, and may have made another.
    /// Counts its promise if the group's usage shows that it was kept.
    fn end(&self, group: &GroupNode, seen: Asked, usage: Bytes) -> Option<Asked> {
        let mut spillers = self.0.lock();
        let spiller = spillers.get_mut(&group.key())?;
        let ended = spiller
            .asked
            .take_if(|asked| *asked == seen && asked.promised.is_some())?;
        let has_given = ended.promised > Some(Bytes::ZERO) && ended.is_kept(usage);
        spiller.nr_kept += u64::from(has_given);
        Some(ended)
    }

    /// Sets or clears the open request.
    fn set_asked(&self, group: &GroupNode, asked: Option<Asked>) {
        debug_assert!(
            asked.is_none_or(|asked| asked.promised.is_some()),
            "a request without a promise stays open"
        );
        if let Some(spiller) = self.0.lock().get_mut(&group.key()) {
            spiller.asked = asked;
        }
    }
}

/// Marks a group as being asked, until dropped.
struct Asks<'a> {
    spillers: &'a Spillers,
    group: &'a GroupNode,
    asked: Asked,
}

impl Asks<'_> {
    /// Records the handler's result.
    fn promise(mut self, promised: Bytes) -> Asked {
        self.asked.promised = Some(promised);
        self.asked
    }
}

impl Drop for Asks<'_> {
    /// After a panic, no request is open.
    fn drop(&mut self) {
        let outstanding = self.asked.promised.map(|_| self.asked);
        self.spillers.set_asked(self.group, outstanding);
    }
}

impl Core {
    /// Asks a group below `target` for the missing part of a charge of `bytes`, unless one is being
    /// asked. Holds no lock; calls `before` before the handler.
    pub(super) fn ask_one(
        &self,
        target: &GroupNode,
        bytes: Bytes,
        passed: &mut Passed,
        before: impl FnOnce(),
    ) -> Asking {
        let spillers = self.spillers.below(target);
        if spillers.is_empty() || InHandler::is_running() {
            return Asking::Nothing;
        }
        let now = self.now();
        let (mut open, mut is_kept) = (None, false);
        for (group, asked, nr_kept) in &spillers {
            // Another request may have seen it.
            is_kept |= passed.has_given(group.key(), *nr_kept);
            match asked.map(|asked| self.settle(group, asked, now)) {
                Some(Promise::Open(until)) => open = open.min(Some(until)).or(Some(until)),
                Some(Promise::Kept) => {
                    passed.remove(group.key());
                    is_kept = true;
                }
                // Made to another request, it says nothing about an answer to this one.
                Some(Promise::Broken) | None => {}
            }
        }
        // Perhaps kept since the last refusal of this request.
        if is_kept {
            return Asking::Again;
        }
        if let Some(until) = open {
            return Asking::Until(until);
        }
        let can_answer = |asked: Option<Asked>| asked.is_none_or(|it| it.promised.is_some());
        let groups = spillers.iter().filter(|(_, asked, _)| can_answer(*asked));
        let groups = groups.map(|(group, ..)| group);
        let groups = groups.filter(|group| !passed.contains(group.key()));
        let Some((group, exposed)) = most_exposed(groups, target) else {
            return Asking::Nothing;
        };
        debug_assert!(
            group.is_descendant_of(target),
            "a group elsewhere makes no room here"
        );
        let room = target.limits().max.saturating_sub(target.usage_precise());
        let want = bytes.saturating_sub(room).max(Bytes(1)).min(exposed);
        self.ask(group, want, passed, (now, before))
    }

    fn ask(
        &self,
        group: &GroupNode,
        want: Bytes,
        passed: &mut Passed,
        (now, before): (Duration, impl FnOnce()),
    ) -> Asking {
        debug_assert!(want > Bytes::ZERO, "a group is asked for something");
        let asked = Asked {
            before: group.usage_precise(),
            promised: None,
            until: now + self.grace,
        };
        let Some(_in_handler) = InHandler::enter() else {
            return Asking::Nothing;
        };
        let Some((handler, nr_kept)) = self.spillers.begin(group, asked) else {
            return Asking::Again;
        };
        passed.note(group.key(), nr_kept);
        let asks = Asks {
            spillers: &self.spillers,
            group,
            asked,
        };
        before();
        self.stats.on_reclaim_asked.add(1);
        let request = ReclaimRequest {
            want,
            deadline: self.begun + asked.until,
        };
        let promised = handler(&request);
        let asked = asks.promise(promised);
        tracing::debug!(group = %group.path(), want_bytes = want.0, promised_bytes = promised.0, "a group was asked for memory");
        match self.settle(group, asked, self.now()) {
            Promise::Open(until) => Asking::Until(until),
            Promise::Kept | Promise::Broken => Asking::Again,
        }
    }

    /// Ends the promises that are kept by now, for a request that ends and has asked groups. What
    /// they use again later would look as if they had given nothing.
    pub(super) fn settle_kept(&self, passed: &Passed) {
        if !passed.has_asked {
            return;
        }
        let now = self.now();
        for (group, asked, _) in self.spillers.below(&self.groups.root()) {
            if let Some(asked) = asked {
                self.settle(&group, asked, now);
            }
        }
    }

    /// Checks whether a promise is kept or has expired; clears it if so.
    fn settle(&self, group: &GroupNode, asked: Asked, now: Duration) -> Promise {
        let usage = group.usage_precise();
        let is_kept = asked.is_kept(usage);
        if now < asked.until && !is_kept {
            return Promise::Open(asked.until);
        }
        if let Some(asked) = self.spillers.end(group, asked, usage) {
            self.stats.on_reclaim_given.add(asked.given(usage).0);
            self.stats.on_reclaim_late.add(u64::from(!is_kept));
        }
        match is_kept {
            true => Promise::Kept,
            false => Promise::Broken,
        }
    }
}

/// Returns the group that uses most above its protection from reclaim for `target`, and that
/// excess; ties go to the lowest number. `None` if no group exceeds its protection.
fn most_exposed<'a>(
    groups: impl Iterator<Item = &'a GroupNode>,
    target: &GroupNode,
) -> Option<(&'a GroupNode, Bytes)> {
    let mut most = None;
    let mut least = Bytes::ZERO;
    // In the order of their numbers.
    for group in groups {
        // The upper bound of the estimate saves most of the exact reads.
        if group.usage().high <= least {
            continue;
        }
        let protected = group.protection_below(target).at(Depth::AboveLow);
        let exposed = group.usage_precise().saturating_sub(protected);
        if exposed > least {
            (most, least) = (Some((group, exposed)), exposed);
        }
    }
    most
}
