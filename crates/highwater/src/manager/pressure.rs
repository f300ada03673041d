//! Pressure stall information (PSI): stall and resume events of threads, for each group.
//!
//! A thread stalls for the group that it charges and for its ancestors: from the refusal of a
//! charge or frame until the request succeeds or fails, while it reclaims above a group's `high`,
//! and while it is throttled. It does not stall while the embedder's handler runs. A charge that
//! finds room runs none of this code.
//!
//! The *full* line covers threads that declare that they work for a group ([`Group::work`]): it
//! grows while none of them can run. A thread counts once in each group, however often it declares
//! itself.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::time::Duration;

use super::group::Group;
use super::{Core, Handle, Shared};
use crate::group::{Change, GroupNode, Stalls};
use crate::percpu::PercpuRef;

thread_local! {
    /// Whether this thread is in a stall. Stalls do not nest.
    static IS_STALLED: Cell<bool> = const { Cell::new(false) };
    /// The groups that this thread works for. Never dropped, so that destructors of other
    /// thread-locals can read it; the last [`Working`] frees its memory.
    static WORKS_FOR: ManuallyDrop<RefCell<Vec<GroupNode>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Returns the depth down to which this thread has declared to work for `group` and its ancestors;
/// `None` if it works for none of them.
fn known_depth(group: &GroupNode) -> Option<u32> {
    WORKS_FOR.with(|works_for| {
        let works_for = works_for.borrow();
        works_for
            .iter()
            .filter_map(|worked| group.depth_shared_with(worked))
            .max()
    })
}

/// A stall of this thread; ends on drop.
pub(super) struct Stalled<'a> {
    core: &'a Core,
    group: GroupNode,
    known_depth: Option<u32>,
    /// When it began, on the manager's clock.
    since: Duration,
    /// Whether it is part of a longer one, whose length is recorded when that ends.
    is_part: bool,
}

impl<'a> Stalled<'a> {
    /// As [`begin`](Self::begin), for a part of a request that stalls in several.
    pub(super) fn begin_part(core: &'a Core, group: &GroupNode) -> Option<Self> {
        let mut stalled = Self::begin(core, group)?;
        stalled.is_part = true;
        Some(stalled)
    }

    /// Begins a stall for a group and its ancestors, unless this thread is already in one.
    pub(super) fn begin(core: &'a Core, group: &GroupNode) -> Option<Self> {
        if IS_STALLED.replace(true) {
            return None;
        }
        let stalled = Self {
            core,
            group: group.clone(),
            known_depth: known_depth(group),
            since: core.now(),
            is_part: false,
        };
        stalled.tell(stalled.since, Change::Stall, Change::StallFromOutside);
        Some(stalled)
    }

    fn tell(&self, now: Duration, known: Change, outside: Change) {
        let is_known = |depth| self.known_depth.is_some_and(|known| depth <= known);
        self.group.change_stalls(now, |depth| {
            Some(if is_known(depth) { known } else { outside })
        });
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        debug_assert!(IS_STALLED.get(), "a stall ends on its thread");
        let now = self.core.now();
        self.tell(now, Change::Resume, Change::ResumeOutside);
        if !self.is_part {
            self.core.stats.stall_lasted(now.saturating_sub(self.since));
        }
        IS_STALLED.set(false);
    }
}

/// A stall of a task that no thread runs, a part of its request's; ends on drop.
pub(super) struct StalledTask {
    shared: PercpuRef<Shared>,
    group: GroupNode,
}

impl StalledTask {
    pub(super) fn begin(shared: &PercpuRef<Shared>, group: &GroupNode) -> Self {
        group.change_stalls(shared.core.now(), |_| Some(Change::StallFromOutside));
        Self {
            shared: shared.clone(),
            group: group.clone(),
        }
    }
}

impl Drop for StalledTask {
    fn drop(&mut self) {
        let now = self.shared.core.now();
        self.group
            .change_stalls(now, |_| Some(Change::ResumeOutside));
    }
}

impl Core {
    /// Returns the time since the manager was created: the clock that the layers below are given.
    pub(super) fn now(&self) -> Duration {
        #[cfg(feature = "lab")]
        if let Some(clock) = &self.clock {
            // Relaxed: a time.
            return Duration::from_nanos(clock.load(crate::sync::atomic::Ordering::Relaxed));
        }
        self.begun.elapsed()
    }
}

/// Declares that the thread works for a group, until dropped: [`Group::work`]. It is not `Send`:
///
/// ```compile_fail
/// fn is_sent(_: impl Send) {}
/// let hw = highwater::Manager::builder().build().unwrap();
/// is_sent(hw.root().work()); // error: `*const ()` cannot be sent between threads safely
/// ```
#[must_use = "the thread works for the group until this is dropped"]
pub struct Working {
    shared: Handle,
    group: GroupNode,
    _stays: PhantomData<*const ()>,
}

impl Group {
    /// Declares that this thread works for the group and its ancestors, until the result is
    /// dropped. With such threads, the *full* line of [`pressure`](Self::pressure) is the time in
    /// which none of them could run.
    ///
    /// # Cost
    ///
    /// A lock for each level of the tree, here and on drop, and an allocation unless the thread
    /// already works for a group: call it for each query or task, not for each charge.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let working = tenant.work();
    /// // ... runs the query; its stalls count in the `full` line of the tenant's pressure
    /// drop(working);
    /// assert_eq!(tenant.pressure().full.total_us, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn work(&self) -> Working {
        let shared = self.shared().clone();
        let group = self.node().clone();
        let known = known_depth(&group);
        group.change_stalls(shared.core.now(), |depth| {
            (known.is_none_or(|known| depth > known)).then_some(Change::Enter)
        });
        WORKS_FOR.with(|works_for| works_for.borrow_mut().push(group.clone()));
        Working {
            shared,
            group,
            _stays: PhantomData,
        }
    }

    /// Returns the time that the group and its descendants lost to memory stalls, as
    /// `memory.pressure` shows it. A thread stalls for the group while it makes room, waits for it,
    /// or is throttled, on behalf of the group or a descendant.
    ///
    /// # Accuracy
    ///
    /// *some* is exact to the clock. *full* is the part of it in which no thread that works for the
    /// group ([`work`](Self::work)) could run: all of it if no thread has declared itself. Averages
    /// lag by up to 2 s.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let pressure = tenant.pressure();
    /// assert_eq!(pressure.some.total_us, 0);
    /// println!("{pressure}"); // as `memory.pressure` shows it
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pressure(&self) -> Stalls {
        self.node().pressure(self.shared().core.now())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let forgotten = WORKS_FOR.with(|works_for| {
            let mut works_for = works_for.borrow_mut();
            let last = works_for.iter().rposition(|worked| *worked == self.group);
            debug_assert!(last.is_some(), "this thread works for the group");
            let forgotten = last.map(|last| works_for.remove(last));
            if works_for.is_empty() {
                // No destructor frees it at the thread's end.
                *works_for = Vec::new();
            }
            forgotten
        });
        // Dropped outside the borrow: the handle may own objects that end with it.
        drop(forgotten);
        let known = known_depth(&self.group);
        self.group.change_stalls(self.shared.core.now(), |depth| {
            (known.is_none_or(|known| depth > known)).then_some(Change::Leave)
        });
    }
}

impl fmt::Debug for Working {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Working").field(&self.group).finish()
    }
}
