//! What never changes of a group while it lives: its key, its name and its place, and its settings,
//! counts and meters, which have atomics or locks of their own.

use std::fmt;

use crate::group::policy::pressure::LazyMeter;
use crate::group::stat::Stat;
use crate::percpu::Published;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Arc, OnceLock, order_of_seqcst};
use crate::units::{GroupId, OomScoreAdj};

use super::data::{Data, drop_data};
use super::limits::{Event, EventCounts, Limits, Settings};
use super::names::FullName;

/// Identifies one group of a tree: the id, and the incarnation that tells it from later groups of
/// the same id. Ordered by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    pub(in crate::group) id: GroupId,
    pub(in crate::group) incarnation: u64,
}

impl GroupKey {
    /// The group's number.
    #[must_use]
    pub const fn id(self) -> GroupId {
        self.id
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

/// The part of a group that never changes while it lives.
#[derive(Debug)]
pub(in crate::group) struct Meta {
    pub(in crate::group) key: GroupKey,
    pub(in crate::group) full_name: FullName,
    pub(in crate::group) parent: Option<Arc<Self>>,
    pub(in crate::group) depth: u32,
    pub(in crate::group) settings: Settings,
    /// Allocated when the first event is counted.
    events: Published<EventCounts>,
    pub(in crate::group) meter: LazyMeter,
    /// Made when something is first counted or read: many groups only charge.
    stat: OnceLock<Arc<Stat>>,
    /// Written by: its setter. Read by: victim selection, and the creation of a child. Publishes:
    /// nothing.
    oom_score_adj: AtomicU32,
    /// Whether the group is being stopped (OOM-killed). Written by: its setter. Read by: victim
    /// selection. Publishes: nothing.
    is_oom_victim: AtomicBool,
    /// Whether the group is removed with its last child. Written by: its setter, which tries to
    /// remove it then. Read by: the removal of a child, afterwards. Publishes: nothing.
    is_removed_when_unused: AtomicBool,
    /// Whether a layer above keeps something for the group. Written by: that layer, which then
    /// checks that the group lives. Read by: the group's removal, afterwards.
    is_tracked: AtomicBool,
    /// Data of the embedder, kept with the group.
    pub(in crate::group) data: Published<Data>,
}

impl Meta {
    pub(in crate::group) fn root(key: GroupKey, stat: Arc<Stat>) -> Self {
        Self {
            key,
            full_name: FullName::of_root(),
            parent: None,
            depth: 0,
            settings: Settings::new(Limits::default()),
            events: Published::empty(),
            meter: LazyMeter::default(),
            stat: OnceLock::from(stat),
            oom_score_adj: AtomicU32::new(0),
            is_oom_victim: AtomicBool::new(false),
            is_removed_when_unused: AtomicBool::new(false),
            is_tracked: AtomicBool::new(false),
            data: Published::empty(),
        }
    }

    /// Returns the `Meta` of a group that is about to be created.
    pub(in crate::group) fn child(
        parent: &Arc<Self>,
        full_name: FullName,
        limits: Limits,
        key: GroupKey,
    ) -> Self {
        Self {
            key,
            full_name,
            parent: Some(Arc::clone(parent)),
            depth: parent.depth + 1,
            settings: Settings::new(limits),
            events: Published::empty(),
            meter: LazyMeter::default(),
            stat: OnceLock::new(),
            oom_score_adj: AtomicU32::new(parent.oom_score_adj().get().cast_unsigned()),
            is_oom_victim: AtomicBool::new(false),
            is_removed_when_unused: AtomicBool::new(false),
            is_tracked: AtomicBool::new(false),
            data: Published::empty(),
        }
    }

    /// Returns the name among the group's siblings.
    pub(in crate::group) fn name(&self) -> &str {
        self.full_name.name.as_str()
    }

    /// Whether nothing was attached to the group, counted or measured.
    pub(in crate::group) fn is_plain(&self) -> bool {
        self.data.get().is_none()
            && self.stat.get().is_none()
            && self.events.get().is_none()
            && self.meter.is_unused()
    }

    /// Whether it can be renewed for a group below `parent`.
    pub(in crate::group) fn can_serve_below(&self, parent: &Self) -> bool {
        let above = self.parent.as_ref().map(|above| above.key);
        above == Some(parent.key) && self.is_plain()
    }

    /// Makes it that of another group below the same parent, as [`child`](Self::child) would.
    pub(in crate::group) fn renew(&mut self, full_name: FullName, limits: Limits, key: GroupKey) {
        debug_assert!(self.is_plain() && self.full_name.parent == full_name.parent);
        let above = self.parent.as_ref().map(|above| above.oom_score_adj());
        let adj = above.expect("the root is never renewed");
        self.key = key;
        self.full_name = full_name;
        self.settings = Settings::new(limits);
        self.set_oom_score_adj(adj);
        self.exit_oom_victim();
        self.is_removed_when_unused = AtomicBool::new(false);
        self.is_tracked = AtomicBool::new(false);
    }

    /// Returns this group and its ancestors.
    pub(in crate::group) fn up(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |meta| meta.parent.as_deref())
    }

    /// Counts an event at the group, and in the subtree of each ancestor.
    pub(in crate::group) fn record(&self, event: Event) {
        self.events_to_count().add_local(event);
        for meta in self.up() {
            meta.events_to_count().add_subtree(event);
        }
    }

    fn events_to_count(&self) -> &EventCounts {
        match self.events.get() {
            Some(events) => events,
            None => self.events.publish(Box::default()),
        }
    }

    /// Returns the event counts, if there was an event.
    pub(in crate::group) fn events(&self) -> Option<&EventCounts> {
        self.events.get()
    }

    /// Returns the statistics.
    #[inline]
    pub(in crate::group) fn stat(&self) -> &Arc<Stat> {
        match self.stat.get() {
            Some(stat) => stat,
            None => self.make_stat(),
        }
    }

    #[cold]
    #[inline(never)]
    fn make_stat(&self) -> &Arc<Stat> {
        self.stat.get_or_init(|| {
            let parent = self.parent.as_ref().expect("the root has its own");
            parent.stat().child()
        })
    }

    pub(in crate::group) fn oom_score_adj(&self) -> OomScoreAdj {
        // Relaxed: the setting stands alone; a concurrent selection may use the former one.
        let value = self.oom_score_adj.load(Ordering::Relaxed);
        OomScoreAdj::clamped(value.cast_signed())
    }

    pub(in crate::group) fn set_oom_score_adj(&self, adj: OomScoreAdj) {
        let value = adj.get().cast_unsigned();
        // Relaxed: see `oom_score_adj`.
        self.oom_score_adj.store(value, Ordering::Relaxed);
    }

    pub(in crate::group) fn is_oom_victim(&self) -> bool {
        // Relaxed: advice to wait; a selection that misses it chooses one victim more, as if it had
        // run earlier.
        self.is_oom_victim.load(Ordering::Relaxed)
    }

    pub(in crate::group) fn mark_oom_victim(&self) {
        // Relaxed: see `is_oom_victim`.
        self.is_oom_victim.store(true, Ordering::Relaxed);
    }

    pub(in crate::group) fn exit_oom_victim(&self) {
        // Relaxed: see `is_oom_victim`.
        self.is_oom_victim.store(false, Ordering::Relaxed);
    }

    pub(in crate::group) fn is_removed_when_unused(&self) -> bool {
        // Pairs with `set_removed_when_unused`. SeqCst: its setter stores this and then reads the
        // incarnations of children, the removal of the last child writes that and then reads this;
        // one of them sees the other.
        self.is_removed_when_unused.load(Ordering::SeqCst)
    }

    pub(in crate::group) fn set_removed_when_unused(&self) {
        // Pairs with `is_removed_when_unused`; SeqCst as there.
        self.is_removed_when_unused.store(true, Ordering::SeqCst);
    }

    pub(in crate::group) fn is_tracked(&self) -> bool {
        // Pairs with `track`. SeqCst: the removal steps the incarnation and then reads this, the
        // layer above writes this and then reads the incarnation; one of them sees the other.
        self.is_tracked.load(Ordering::SeqCst)
    }

    pub(in crate::group) fn track(&self) {
        // Pairs with `is_tracked`; SeqCst as there.
        self.is_tracked.store(true, Ordering::SeqCst);
        order_of_seqcst();
    }

    /// Returns this group or its nearest ancestor that is being stopped.
    pub(in crate::group) fn oom_victim(&self) -> Option<GroupKey> {
        let victim = self.up().find(|meta| meta.is_oom_victim());
        victim.map(|meta| meta.key)
    }
}

impl Drop for Meta {
    fn drop(&mut self) {
        if let Some(stat) = self.stat.get() {
            stat.retire();
        }
        if let Some(data) = self.data.take() {
            drop_data(*data);
        }
    }
}
