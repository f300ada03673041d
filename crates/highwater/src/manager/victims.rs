//! Victim selection for the slow path: the next group to stop, and waiting for groups that stop.
//!
//! Stopping takes time: a task gives its memory back at its next poll, a thread at its next check.
//! Meanwhile another request that finds the same group full must not stop a second group in vain.
//! So a manager remembers the groups that any request told to stop, and those marked as being
//! stopped ([`GroupNode::mark_oom_victim`]). Such a group is *stopping* until
//!
//! - it uses nothing, or is removed: it has given its memory back;
//! - its embedder declares that it is [not being stopped](super::Group::exit_oom_victim); or
//! - it has given back nothing at all for a grace period
//!   ([`Builder::grace`](super::Builder::grace)).
//!
//! While a group below the full one is stopping, no other is selected there. A waiting charge waits
//! for it; a request outside the wait queue waits for it once, for as long as for a victim of its
//! own. A request that waited for a stopping group in vain ignores it and selects the next.
//!
//! Selecting a victim and recording it is one step under the selection lock: two concurrent
//! requests tell one victim.

use std::time::Duration;

use super::Core;
use super::exhausted::Stoppable;
use super::handler::InHandler;
use crate::group::{GroupKey, GroupNode, GroupTree};
use crate::units::Bytes;
use crate::victim::{self, ChosenGroup, Decision, Policy, Selector};

/// Victims for one request, including those of other requests that it waits for. Chosen: a request
/// that is still short after four of the largest groups were told to stop is better served with an
/// error.
const VICTIMS_MAX: usize = 4;

/// The selection policy, the stopping groups, and the memory for selection, which is reserved up
/// front because it is needed when memory is exhausted.
pub(super) struct Victims {
    policy: Policy,
    selector: Selector<GroupKey>,
    stopping: Vec<Stopping>,
    /// Handles of groups, to be dropped when the lock is released: one may be the last of its
    /// group, whose data is the program's.
    handles: Vec<GroupNode>,
}

/// A group that was told to stop, or is marked as being stopped.
struct Stopping {
    /// Not a handle: that would keep the group's data.
    group: GroupKey,
    /// Lowest usage seen since it was told.
    least: Bytes,
    /// Time at which that was first seen.
    since: Duration,
}

/// The next step of a request.
pub(super) enum Next {
    /// Wait: this group is stopping, and has until then to give more back.
    Wait(GroupNode, Duration),
    /// Tell this group. It counts as stopping from now on.
    Tell(Box<ChosenGroup>),
    /// No group whose stopping would help.
    Nothing,
}

impl Victims {
    /// Candidates kept in a pass. Chosen: four times the number that the default policy needs, so
    /// that a proof rarely takes a second pass; 64 bytes each.
    const CAPACITY: usize = 68;
    /// Stopping groups that are held without an allocation. Chosen: there is at most one for each
    /// full group.
    const STOPPING: usize = 16;

    pub(super) fn new() -> Self {
        Self {
            policy: Policy::default(),
            selector: Selector::with_capacity(Self::CAPACITY),
            stopping: Vec::with_capacity(Self::STOPPING),
            handles: Vec::with_capacity(Self::STOPPING),
        }
    }

    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Forgets a group that is not being stopped, or no longer, and those below it.
    fn exit(&mut self, groups: &GroupTree, group: &GroupNode) {
        let Self {
            stopping, handles, ..
        } = self;
        stopping.retain(|stopping| {
            let Some(stopping) = groups.find(stopping.group) else {
                return false;
            };
            let is_kept = !stopping.is_descendant_of(group);
            handles.push(stopping);
            is_kept
        });
    }

    /// Returns the next step of a request that needs room in `target`, at `now`.
    fn next(
        &mut self,
        groups: &GroupTree,
        target: &GroupNode,
        total: Bytes,
        (told, reach): (&Told, &Stoppable),
        clock: GraceClock,
    ) -> Next {
        let Self {
            stopping, handles, ..
        } = self;
        let mut first = None;
        stopping.retain_mut(|stopping| {
            let Some(group) = groups.find(stopping.group) else {
                return false;
            };
            let goes_on = stopping.goes_on(&group, clock);
            let is_awaited = group.is_descendant_of(target) && !told.is_over(stopping.group);
            if goes_on && is_awaited && first.is_none() {
                first = Some(Next::Wait(group.clone(), stopping.since + clock.grace));
            }
            handles.push(group);
            goes_on
        });
        if let Some(first) = first {
            return first;
        }
        if told.is_full() {
            return Next::Nothing;
        }
        let policy = Policy {
            total,
            ..self.policy
        };
        let is_spared = |key| told.contains(key) || !reach.includes(key);
        match victim::select(groups, target, is_spared, &policy, &mut self.selector) {
            Decision::Chosen(victim) => {
                debug_assert!(
                    victim.group.is_descendant_of(target),
                    "a victim elsewhere makes no room here"
                );
                self.begin_stopping(&victim.group, clock);
                Next::Tell(Box::new(victim))
            }
            Decision::Wait { dying, .. } => {
                debug_assert!(
                    dying.is_descendant_of(target) && !told.contains(dying.key()),
                    "the request waits in vain"
                );
                self.begin_stopping(&dying, clock);
                Next::Wait(dying, clock.now + clock.grace)
            }
            Decision::Nobody(_) => Next::Nothing,
        }
    }

    /// Forgets the groups that use nothing any more, or have given nothing for too long.
    fn look(&mut self, groups: &GroupTree, clock: GraceClock) {
        let Self {
            stopping, handles, ..
        } = self;
        stopping.retain_mut(|stopping| {
            let Some(group) = groups.find(stopping.group) else {
                return false;
            };
            let goes_on = stopping.goes_on(&group, clock);
            handles.push(group);
            goes_on
        });
    }

    fn begin_stopping(&mut self, group: &GroupNode, clock: GraceClock) {
        debug_assert!(
            self.stopping.iter().all(|it| it.group != group.key()),
            "a request waits for a group that is stopping, and does not choose it"
        );
        self.stopping.push(Stopping::new(group, clock));
    }
}

/// The time and the grace period.
#[derive(Clone, Copy)]
struct GraceClock {
    now: Duration,
    grace: Duration,
}

impl Stopping {
    fn new(group: &GroupNode, clock: GraceClock) -> Self {
        Self {
            least: group.usage_precise(),
            group: group.key(),
            since: clock.now,
        }
    }

    /// Returns whether the group is still stopping, and updates its lowest usage.
    fn goes_on(&mut self, group: &GroupNode, clock: GraceClock) -> bool {
        let usage = group.usage_precise();
        if usage == Bytes::ZERO || group.is_removed() {
            return false;
        }
        if usage < self.least {
            (self.least, self.since) = (usage, clock.now);
        }
        clock.now < self.since + clock.grace
    }
}

/// Groups that one request told to stop or waits for.
#[derive(Default)]
pub(super) struct Told {
    keys: [Option<GroupKey>; VICTIMS_MAX],
    pub(super) victims: usize,
    pub(super) dying: usize,
    /// Whether the request is in a wait queue: it then waits for each group as long as that gives
    /// memory back. Other requests wait once.
    stands_in_line: bool,
}

impl Told {
    /// Creates the record of a request in a wait queue.
    pub(super) fn in_line() -> Self {
        Self {
            stands_in_line: true,
            ..Self::default()
        }
    }

    /// Returns the number of groups, of both kinds.
    pub(super) fn len(&self) -> usize {
        self.victims + self.dying
    }

    fn contains(&self, key: GroupKey) -> bool {
        self.keys.contains(&Some(key))
    }

    /// Returns whether the request has finished waiting for the group.
    fn is_over(&self, key: GroupKey) -> bool {
        !self.stands_in_line && self.contains(key)
    }

    fn is_full(&self) -> bool {
        self.len() == VICTIMS_MAX
    }

    /// Records a group that the request waits for.
    fn wait_for(&mut self, key: GroupKey) {
        if !self.contains(key) && !self.is_full() {
            self.push(key);
            self.dying += 1;
        }
        debug_assert!(self.is_counted(), "each group is counted once");
    }

    /// Returns whether the counts are those of the groups.
    fn is_counted(&self) -> bool {
        self.keys.iter().flatten().count() == self.len()
    }

    /// Records a group. Requires room.
    fn push(&mut self, key: GroupKey) {
        debug_assert!(!self.contains(key), "a group that was told is spared");
        let at = self.len();
        self.keys[at] = Some(key);
    }
}

/// Result of looking for a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// A group was told, or is stopping: it has until then to give memory back.
    Until(Duration),
    /// No group can be told, no handler is set, or the request has reached its limit of victims.
    Nothing,
}

impl Core {
    /// Calls `work` under the selection lock.
    fn with_victims<R>(&self, work: impl FnOnce(&mut Victims) -> R) -> R {
        let mut victims = self.victims.lock();
        let done = work(&mut victims);
        let mut handles = std::mem::take(&mut victims.handles);
        drop(victims);
        handles.clear();
        // Memory for the next time; another thread may have left its own.
        self.victims.lock().handles = handles;
        done
    }

    /// Forgets that a group, or one below it, is being stopped.
    pub(super) fn exit_oom_victim(&self, group: &GroupNode) {
        self.with_victims(|victims| victims.exit(&self.groups, group));
    }

    /// Notes which groups have stopped by now: after a handler, and after a request that told one
    /// has succeeded.
    pub(super) fn look_at_stopping(&self) {
        let clock = GraceClock {
            now: self.now(),
            grace: self.grace,
        };
        self.with_victims(|victims| victims.look(&self.groups, clock));
    }

    /// Selects a victim for room in `target` and calls the handler, unless a group is stopping
    /// there. Holds no lock; calls `before` before the handler.
    pub(super) fn tell_one(
        &self,
        target: &GroupNode,
        told: &mut Told,
        before: impl FnOnce(),
    ) -> Telling {
        if told.is_full() && !told.stands_in_line {
            return Telling::Nothing;
        }
        let Some(handlers) = self.on_exhausted.now() else {
            return Telling::Nothing;
        };
        let Some(reach) = handlers.reach(&self.groups, target) else {
            return Telling::Nothing;
        };
        let Some(_in_handler) = InHandler::enter() else {
            return Telling::Nothing;
        };
        let total = target.limits().max.min(self.groups.root().limits().max);
        let clock = GraceClock {
            now: self.now(),
            grace: self.grace,
        };
        let next = self.with_victims(|victims| {
            victims.next(&self.groups, target, total, (told, &reach), clock)
        });
        match next {
            Next::Tell(victim) => {
                told.push(victim.group.key());
                told.victims += 1;
                let selection = self.now().saturating_sub(clock.now);
                self.report_victim(target, &victim, (told.len(), selection));
                debug_assert!(told.is_counted(), "each group is counted once");
                self.stats.oom_kill.add(1);
                target.record_oom();
                victim.group.record_oom_kill();
                self.record_victim(target, &victim.record);
                before();
                handlers.tell(*victim);
                // Later, a group that has given everything may use as much again.
                self.look_at_stopping();
                Telling::Until(clock.now + clock.grace)
            }
            Next::Wait(dying, until) => {
                self.report_dying(target, &dying, until.saturating_sub(clock.now));
                told.wait_for(dying.key());
                Telling::Until(until)
            }
            Next::Nothing => Telling::Nothing,
        }
    }
}
