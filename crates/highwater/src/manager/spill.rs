//! Groups that are asked to give memory back: a program's spill.
//!
//! What reclaim cannot take back is memory that the program has elsewhere, and most engines can do
//! without some of it: they spill to disk. A group that can has a handler ([`Group::on_reclaim`]).
//! Where a request finds no room and reclaim makes none, the handlers below the full group are
//! asked, one group after the other, before any group is told to stop.
//!
//! - The group that uses most above its protection is asked first ([`GroupNode::protection_below`]
//!   the full one), as the largest is the first victim; among equals the one of the lowest number.
//!   A group that uses no more than its protection is not asked.
//! - A handler returns what the group gives back: memory that is free already, or that will be by
//!   the deadline of the request. Until then, or until the group's usage has fallen by that much,
//!   no other group is asked and none is told to stop.
//! - A group is asked by one request at a time. While its handler runs, or has promised something,
//!   others that need room there wait for that.
//! - A request asks a group again only after it kept its promise; a charge that waits in line also
//!   asks all again every 100 ms.
//!
//! No lock is held while a handler runs. What it charges itself asks no group and tells none to
//! stop, and does not wait in line: the request that asks may stand first in it. When it panics, it
//! has promised nothing, and the panic goes on in the thread that charges.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::slow::InHandler;
use super::{Core, Group};
use crate::group::{Depth, GroupKey, GroupNode};
use crate::sync::{Arc, LockClass, Mutex, Rank};
use crate::units::Bytes;

static SPILLERS_LOCK: LockClass = LockClass::new("on_reclaim", Rank::Leaf);

/// A request to a group: give memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReclaimRequest {
    /// How much is wanted. Less helps too.
    pub want: Bytes,
    /// Until when the request waits for what the handler says that it gives.
    pub deadline: Instant,
}

type Handler = dyn Fn(&ReclaimRequest) -> Bytes + Send + Sync;

/// A group that can give memory back.
struct Spiller {
    group: GroupNode,
    handler: Arc<Handler>,
    asked: Option<Asked>,
}

/// What a group was asked for and has not given yet.
#[derive(Clone, Copy)]
struct Asked {
    /// What it used when it was asked.
    before: Bytes,
    /// What it has promised; `None` while the handler runs.
    promised: Option<Bytes>,
    until: Duration,
}

impl Asked {
    /// Whether the group uses as little as it has promised.
    fn is_kept(&self, usage: Bytes) -> bool {
        self.promised
            .is_some_and(|promised| usage.saturating_add(promised) <= self.before)
    }

    /// What it has given of that.
    fn given(&self, usage: Bytes) -> Bytes {
        let promised = self.promised.unwrap_or(Bytes::ZERO);
        self.before.saturating_sub(usage).min(promised)
    }
}

/// The groups of a manager that can give memory back.
pub(super) struct Spillers(Mutex<BTreeMap<GroupKey, Spiller>>);

impl fmt::Debug for Spillers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}

/// Groups that one request does not ask again.
pub(super) type Passed = Vec<GroupKey>;

/// What came of a look for a group to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// A group has answered: look again, for room or for another group.
    Again,
    /// A group has until then to give what it has promised.
    Until(Duration),
    /// There is no group to ask that this request has not passed.
    Nothing,
}

/// What became of a promise.
enum Promise {
    /// It may still be kept until then.
    Open(Duration),
    Kept,
    Broken,
}

impl Group {
    /// Says how the group gives memory back when there is none: what an engine spills. The handler
    /// is called with what is wanted and until when ([`ReclaimRequest`]), and returns what the
    /// group gives back: free already, or by the deadline. Zero if it can give nothing now. It is
    /// called when reclaim does not make room, and before any group is told to stop. A group has
    /// one handler, which ends with [`remove`](Self::remove).
    ///
    /// It is called on the thread that needs memory, or that polls the charge that does, one call
    /// for the group at a time. No lock of the library is held, but locks of the program may be: a
    /// handler takes its own by `try_lock`, and returns zero where that fails. In an async program
    /// it begins the spill in a task and returns what that will free; a handler that blocks holds
    /// up a worker. What it charges itself is refused where there is no room. If it panics, the
    /// panic goes on in the thread that charges.
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
        let spiller = Spiller {
            group: self.node().clone(),
            handler: Arc::new(handler),
            asked: None,
        };
        let spillers = &self.shared().core.spillers;
        let former = spillers.0.lock().insert(self.node().key(), spiller);
        // Without the lock: what the former handler holds may end with it.
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

    /// Forgets the handler of a group that is removed.
    pub(super) fn forget(&self, group: &GroupNode) {
        let spiller = self.0.lock().remove(&group.key());
        // Without the lock: what the handler holds may end with it.
        drop(spiller);
    }

    /// Those below `target`, and what each was asked for.
    fn below(&self, target: &GroupNode) -> Vec<(GroupNode, Option<Asked>)> {
        let spillers = self.0.lock();
        let below = spillers.values().filter(|spiller| {
            !spiller.group.is_removed() && spiller.group.is_descendant_of(target)
        });
        below
            .map(|spiller| (spiller.group.clone(), spiller.asked))
            .collect()
    }

    /// Takes note that the group is being asked; the handler, unless another request is first.
    fn begin(&self, group: &GroupNode, asked: Asked) -> Option<Arc<Handler>> {
        let mut spillers = self.0.lock();
        let spiller = spillers.get_mut(&group.key())?;
        if spiller.asked.is_some() {
            return None;
        }
        spiller.asked = Some(asked);
        Some(Arc::clone(&spiller.handler))
    }

    /// Takes note that a promise is no longer outstanding: it, unless another request was first.
    fn end(&self, group: &GroupNode) -> Option<Asked> {
        let mut spillers = self.0.lock();
        let spiller = spillers.get_mut(&group.key())?;
        spiller.asked.take_if(|asked| asked.promised.is_some())
    }

    /// Takes note of what was promised, or that nothing is outstanding.
    fn set_asked(&self, group: &GroupNode, asked: Option<Asked>) {
        if let Some(spiller) = self.0.lock().get_mut(&group.key()) {
            spiller.asked = asked;
        }
    }
}

/// The group is being asked while this lives.
struct Asks<'a> {
    spillers: &'a Spillers,
    group: &'a GroupNode,
    asked: Asked,
}

impl Asks<'_> {
    /// The handler has returned.
    fn promise(mut self, promised: Bytes) -> Asked {
        self.asked.promised = Some(promised);
        self.asked
    }
}

impl Drop for Asks<'_> {
    /// After a panic nothing is outstanding.
    fn drop(&mut self) {
        let outstanding = self.asked.promised.map(|_| self.asked);
        self.spillers.set_asked(self.group, outstanding);
    }
}

impl Core {
    /// Asks a group below `target` for what a charge of `bytes` is short of there, unless one is
    /// being asked. No lock is held; `before` is called before the handler.
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
        for (group, asked) in &spillers {
            match asked.map(|asked| self.settle(group, asked, now)) {
                Some(Promise::Open(until)) => open = open.min(Some(until)).or(Some(until)),
                Some(Promise::Broken) => passed.push(group.key()),
                Some(Promise::Kept) => is_kept = true,
                None => {}
            }
        }
        // Perhaps since the request was refused last.
        if is_kept {
            return Asking::Again;
        }
        if let Some(until) = open {
            return Asking::Until(until);
        }
        let groups = spillers.iter().map(|(group, _)| group);
        let groups = groups.filter(|group| !passed.contains(&group.key()));
        let Some((group, exposed)) = most_exposed(groups, target) else {
            return Asking::Nothing;
        };
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
        let asked = Asked {
            before: group.usage_precise(),
            promised: None,
            until: now + self.grace,
        };
        let Some(_in_handler) = InHandler::enter() else {
            return Asking::Nothing;
        };
        let Some(handler) = self.spillers.begin(group, asked) else {
            return Asking::Again;
        };
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
        tracing::debug!(group = %group.id(), %want, %promised, "a group was asked for memory");
        match self.settle(group, asked, self.now()) {
            Promise::Open(until) => return Asking::Until(until),
            Promise::Kept if promised > Bytes::ZERO => {}
            Promise::Kept | Promise::Broken => passed.push(group.key()),
        }
        Asking::Again
    }

    /// Looks whether a promise is kept, or its time is over. Then it is no longer outstanding.
    fn settle(&self, group: &GroupNode, asked: Asked, now: Duration) -> Promise {
        let usage = group.usage_precise();
        let is_kept = asked.is_kept(usage);
        if now < asked.until && !is_kept {
            return Promise::Open(asked.until);
        }
        if let Some(asked) = self.spillers.end(group) {
            self.stats.on_reclaim_given.add(asked.given(usage).0);
            self.stats.on_reclaim_late.add(u64::from(!is_kept));
        }
        match is_kept {
            true => Promise::Kept,
            false => Promise::Broken,
        }
    }
}

/// The group that uses most above what protects it from reclaim for `target`, and how much that is;
/// among equals the one of the lowest number. `None` if none uses more than that.
fn most_exposed<'a>(
    groups: impl Iterator<Item = &'a GroupNode>,
    target: &GroupNode,
) -> Option<(&'a GroupNode, Bytes)> {
    let mut most = None;
    let mut least = Bytes::ZERO;
    // In the order of their numbers.
    for group in groups {
        // What is known at once spares most of the exact reads.
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
