//! Which group is told to stop next, and which were told already and are waited for.
//!
//! Stopping takes time: a task gives memory back when it is polled next, a thread when it looks.
//! Until then another request that finds the same group full would have a second one stopped, which
//! helps nobody. So a manager remembers the groups that were told, by whichever request, and those
//! that say themselves that they are being stopped ([`GroupNode::mark_oom_victim`]). Such a group
//! is *stopping* until
//!
//! - it uses nothing, or is removed: it has given back what it had;
//! - its embedder says that it is [not being stopped](super::Group::exit_oom_victim); or
//! - for the time of a grace it has given back nothing at all
//!   ([`Builder::grace`](super::Builder::grace)).
//!
//! While a group below the full one is stopping, no other one is chosen there: a charge that waits
//! in line waits for it, and a request that does not wait in line waits for it once, for as long as
//! for a victim of its own. What was told and was waited for in vain is spared by the request that
//! has waited, which turns to the next.
//!
//! Choosing, and remembering what was chosen, is one step under the lock of the selection: two
//! requests at once tell one victim.

use std::time::Duration;

use super::Core;
use super::slow::InHandler;
use crate::group::{GroupKey, GroupNode, GroupTree};
use crate::sync::Arc;
use crate::units::Bytes;
use crate::victim::{self, ChosenGroup, Decision, Policy, Selector};

/// Victims for one request, those of others that it waits for included. Chosen: a request that is
/// still short after four of the largest groups were told to stop is better served with an error.
const VICTIMS_MAX: usize = 4;

/// How victims are chosen, which are stopping, and the memory for the choice: reserved here,
/// because it is needed when there is none.
pub(super) struct Victims {
    policy: Policy,
    selector: Selector<GroupKey>,
    stopping: Vec<Stopping>,
}

/// A group that was told to stop, or says that it is being stopped.
struct Stopping {
    group: GroupNode,
    /// The least that it was seen to use since it was told.
    least: Bytes,
    /// When that was seen first.
    since: Duration,
}

/// What a request does next.
pub(super) enum Next {
    /// Wait: this group is stopping, and has until then to give more back.
    Wait(GroupNode, Duration),
    /// Tell this group. It counts as stopping from now on.
    Tell(Box<ChosenGroup>),
    /// There is no group whose stopping would help.
    Nothing,
}

impl Victims {
    /// Candidates kept in a pass. Chosen: four times what the default policy needs, so that a
    /// search for a proof rarely takes a second pass; 64 bytes each.
    const CAPACITY: usize = 68;
    /// Groups that are stopping at once, without an allocation. Chosen: there is one at most for
    /// each full group.
    const STOPPING: usize = 16;

    pub(super) fn new() -> Self {
        Self {
            policy: Policy::default(),
            selector: Selector::with_capacity(Self::CAPACITY),
            stopping: Vec::with_capacity(Self::STOPPING),
        }
    }

    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The group is not being stopped, or no longer.
    pub(super) fn exit(&mut self, group: &GroupNode) {
        self.stopping.retain(|stopping| stopping.group != *group);
    }

    /// What a request does that needs room in `target`, at `now`.
    fn next(
        &mut self,
        groups: &GroupTree,
        target: &GroupNode,
        total: Bytes,
        told: &Told,
        clock: Clock,
    ) -> Next {
        self.stopping.retain_mut(|stopping| stopping.goes_on(clock));
        let mut below = self
            .stopping
            .iter()
            .filter(|it| it.is_awaited(target, told));
        if let Some(first) = below.next() {
            return Next::Wait(first.group.clone(), first.since + clock.grace);
        }
        if told.is_full() {
            return Next::Nothing;
        }
        let policy = self.policy.total(total);
        let is_told = |key| told.contains(key);
        match victim::select(groups, target, is_told, &policy, &mut self.selector) {
            Decision::Chosen(victim) => {
                let group = victim.group.clone();
                self.stopping.push(Stopping::new(group, clock));
                Next::Tell(Box::new(victim))
            }
            Decision::Wait { dying, .. } => {
                self.stopping.push(Stopping::new(dying.clone(), clock));
                Next::Wait(dying, clock.now + clock.grace)
            }
            Decision::Nobody(_) => Next::Nothing,
        }
    }
}

/// The time, and how long a group that is stopping may give back nothing.
#[derive(Clone, Copy)]
struct Clock {
    now: Duration,
    grace: Duration,
}

impl Stopping {
    fn new(group: GroupNode, clock: Clock) -> Self {
        Self {
            least: group.usage_precise(),
            group,
            since: clock.now,
        }
    }

    /// Whether the group may still give something back. Notes what it has.
    fn goes_on(&mut self, clock: Clock) -> bool {
        let usage = self.group.usage_precise();
        if usage == Bytes::ZERO || self.group.is_removed() {
            return false;
        }
        if usage < self.least {
            (self.least, self.since) = (usage, clock.now);
        }
        clock.now < self.since + clock.grace
    }

    /// Whether a request that needs room in `target` waits for it.
    fn is_awaited(&self, target: &GroupNode, told: &Told) -> bool {
        self.group.is_descendant_of(target) && !told.is_over(self.group.key())
    }
}

/// Groups that one request has told to stop, or waits for.
#[derive(Default)]
pub(super) struct Told {
    keys: [Option<GroupKey>; VICTIMS_MAX],
    pub(super) victims: usize,
    pub(super) dying: usize,
    /// Whether the request stands in line, and waits for each as long as that gives memory back.
    /// One that does not waits once.
    stands_in_line: bool,
}

impl Told {
    /// For a request that stands in line.
    pub(super) fn in_line() -> Self {
        Self {
            stands_in_line: true,
            ..Self::default()
        }
    }

    /// How many, of either kind.
    pub(super) fn len(&self) -> usize {
        self.victims + self.dying
    }

    fn contains(&self, key: GroupKey) -> bool {
        self.keys.contains(&Some(key))
    }

    /// Whether the request has waited for the group as long as it does.
    fn is_over(&self, key: GroupKey) -> bool {
        !self.stands_in_line && self.contains(key)
    }

    fn is_full(&self) -> bool {
        self.len() == VICTIMS_MAX
    }

    /// Remembers a group that it waits for.
    fn wait_for(&mut self, key: GroupKey) {
        if !self.contains(key) && !self.is_full() {
            self.push(key);
            self.dying += 1;
        }
    }

    /// Remembers a group. There is room.
    fn push(&mut self, key: GroupKey) {
        let at = self.len();
        self.keys[at] = Some(key);
    }
}

/// What came of a look for a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// A group was told, or is stopping: it has until then to give memory back.
    Until(Duration),
    /// There is no group to tell, no handler to tell it, or the request has told as many as it may.
    Nothing,
}

impl Core {
    /// Tells the group that should be stopped for room in `target`, unless one is stopping there.
    /// No lock is held; `before` is called before the handler.
    pub(super) fn tell_one(
        &self,
        target: &GroupNode,
        told: &mut Told,
        before: impl FnOnce(),
    ) -> Telling {
        let handler = self.on_exhausted.read().as_ref().map(Arc::clone);
        let Some(handler) = handler.filter(|_| told.stands_in_line || !told.is_full()) else {
            return Telling::Nothing;
        };
        let Some(_in_handler) = InHandler::enter() else {
            return Telling::Nothing;
        };
        let total = target.limits().max.min(self.groups.root().limits().max);
        let clock = Clock {
            now: self.now(),
            grace: self.grace,
        };
        let next = self
            .victims
            .lock()
            .next(&self.groups, target, total, told, clock);
        match next {
            Next::Tell(victim) => {
                tracing::warn!(group = %victim.group.path(), decision = %victim.record, "memory is exhausted");
                told.push(victim.group.key());
                told.victims += 1;
                self.stats.oom_kill.add(1);
                target.record_oom();
                victim.group.record_oom_kill();
                before();
                handler(*victim);
                Telling::Until(clock.now + clock.grace)
            }
            Next::Wait(dying, until) => {
                tracing::info!(group = %dying.path(), "memory is exhausted, and a group is being stopped");
                told.wait_for(dying.key());
                Telling::Until(until)
            }
            Next::Nothing => Telling::Nothing,
        }
    }
}
