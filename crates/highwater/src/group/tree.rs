//! The tree of groups: creating, removing and finding groups, walking subtrees, and checking every
//! invariant.
//!
//! One lock ([`Rank::Groups`]) guards the shape of the tree. Creating a group, removing one and
//! setting a maximum hold it for writing, and so does a charge that is overtaken too often; taking
//! tokens back and making a word live hold it for reading. Charges that find tokens, all uncharges,
//! and lookups of an id never wait for it.
//!
//! A removed group with bytes still charged stays in its parent's family (*zombie*, as a dying
//! memcg), so that a pass over a subtree still sees operations in flight in it. Its id is reused
//! once nothing is reserved and nothing is in flight there. Creating a group checks a few zombies,
//! so uncharging the last byte has nothing to do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::ControlFlow;

use crate::percpu::{Gates, PercpuOwner, Regime};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Arc, LockClass, Mutex, Rank, RwLock};
use crate::units::{Bytes, CpuId, GroupId};

use super::cell::CELL_MAX;
use super::error::{ChildError, MaxError, RemoveError};
use super::judge::Gate;
use super::ledger::RESERVED_MAX;
use super::line::{Lines, Wakes};
use super::node::{GroupNode, Meta};
use super::path::GroupPath;
use super::slot::{Actor, Slot, Table};
use super::stat::Stat;
use super::{DEPTH_MAX, Limits};

static SHAPE: LockClass = LockClass::new("group tree", Rank::Groups);

/// Zombies that one creation checks: enough to reuse ids faster than removals use them up.
const REAP_BATCH: usize = 8;

/// Identifies one group of a tree: the id, and the incarnation that tells it from later groups of
/// the same id. Ordered by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    pub(super) id: GroupId,
    pub(super) incarnation: u64,
}

/// The children of one group.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) children: BTreeMap<Box<str>, GroupId>,
    zombies: BTreeSet<GroupId>,
    /// Living children that have a `min` or a `low`.
    pub(super) protected: BTreeSet<GroupId>,
}

impl Shape {
    /// Returns the living groups directly below `id`.
    pub(super) fn children(&self, id: GroupId) -> impl ExactSizeIterator<Item = GroupId> {
        self.families[id.index()].children.values().copied()
    }
}

/// The state that the tree's lock guards.
#[derive(Debug)]
pub(super) struct Shape {
    /// By id.
    pub(super) families: Vec<Family>,
    free: Vec<GroupId>,
    /// Every zombie, in the order in which they are checked.
    zombies: VecDeque<GroupId>,
}

/// The tree itself. Lives while a handle or a charge refers to it.
#[derive(Debug)]
pub(crate) struct Core {
    nr_cpus: usize,
    /// How token words are stepped.
    gates: Gates,
    pub(super) table: Table,
    pub(super) shape: RwLock<Shape>,
    pub(super) gate: Gate,
    pub(super) lines: Mutex<Lines>,
    /// Groups that have a `min` or a `low`. Written by: setters, under the tree's lock for writing.
    /// Read by: reclaim. Publishes: nothing.
    pub(super) nr_protected: AtomicU64,
    /// Groups that have a `high`. Written by: as `nr_protected`. Read by: charges that have
    /// reserved bytes. Publishes: nothing.
    pub(super) nr_throttled: AtomicU64,
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

/// State that the handles of one tree share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Handles of groups and charges refer to it, and may outlive `Shared`.
    pub(super) core: PercpuOwner<Core>,
}

/// A tree of groups with hierarchical limits. Cloning it gives another handle to the same tree.
///
/// # Cost
///
/// For each group: two cache lines for each CPU that has charged to it, and their addresses: half a
/// byte for each CPU of the machine, and 128 bytes for each 16 CPUs of which one has charged. Later
/// groups reuse all of it.
#[derive(Clone, Debug)]
pub struct GroupTree {
    pub(super) shared: Arc<Shared>,
}

impl GroupTree {
    /// The most that a tree can have charged, whatever its limits: 256 TiB less a byte.
    pub const CHARGED_MAX: Bytes = Bytes(RESERVED_MAX);

    /// Returns a tree of one group, the root, which has no limit. CPU ids are below `nr_cpus`. The
    /// regime is the atomic one: any thread may act as any CPU at any time.
    ///
    /// # Panics
    ///
    /// When `nr_cpus` is zero.
    #[must_use]
    pub fn new(nr_cpus: usize) -> Self {
        Self::with_regime(Regime::Atomic, nr_cpus)
    }

    /// Like [`new`](Self::new), with tokens and statistics stepped as `regime` says. In the
    /// restartable regime charges, uncharges and updates are several times cheaper, and threads act
    /// only as the CPU that they run on. On a system without restartable sequences the tree uses
    /// the atomic regime.
    ///
    /// # Panics
    ///
    /// When `nr_cpus` is zero or does not fit in 31 bits.
    #[must_use]
    pub fn with_regime(regime: Regime, nr_cpus: usize) -> Self {
        assert!(nr_cpus > 0, "a tree of groups needs a CPU");
        let gates = Gates::new(regime, nr_cpus);
        let core = Core {
            nr_cpus,
            gates,
            table: Table::new(),
            shape: RwLock::new(
                &SHAPE,
                Shape {
                    families: vec![Family::default()],
                    free: Vec::new(),
                    zombies: VecDeque::new(),
                },
            ),
            gate: Gate::open(),
            lines: Lines::none(),
            nr_protected: AtomicU64::new(0),
            nr_throttled: AtomicU64::new(0),
        };
        let root = core
            .table
            .make(GroupId(0), gates)
            .expect("the table holds the first id");
        root.prepare(None);
        let incarnation = root.step_incarnation();
        let stat = Stat::root(regime, nr_cpus);
        *root.meta.write() = Some(Arc::new(Meta::root(incarnation, stat)));
        #[cfg(not(loom))]
        let core = PercpuOwner::new(gates, core);
        #[cfg(loom)]
        let core = PercpuOwner::unseen(core);
        Self {
            shared: Arc::new(Shared { core }),
        }
    }

    pub(super) fn of(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
        }
    }

    /// Returns the tree itself.
    #[inline]
    pub(crate) fn core(&self) -> &Core {
        &self.shared.core
    }

    /// Returns the number of references that handles and charges hold to the tree; exact if none is
    /// made or dropped meanwhile.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn nr_references(&self) -> i64 {
        self.shared.core.nr_references()
    }

    /// Returns the number of CPUs that the tree keeps tokens for.
    #[must_use]
    pub fn nr_cpus(&self) -> usize {
        self.shared.core.nr_cpus
    }

    /// Returns how token words are stepped.
    #[must_use]
    pub fn regime(&self) -> Regime {
        self.shared.core.gates.regime()
    }

    /// Returns the root group.
    ///
    /// # Panics
    ///
    /// Never: the root is never removed.
    #[must_use]
    pub fn root(&self) -> GroupNode {
        self.get(GroupId(0)).expect("the root is never removed")
    }

    /// Returns the group with this id, also a removed one while bytes are charged to it.
    ///
    /// # Cost
    ///
    /// Two loads, an uncontended lock of that group alone, two reference counts. Never waits for
    /// the tree's lock. [`GroupTree::uncharge`] needs none of these.
    #[must_use]
    pub fn get(&self, id: GroupId) -> Option<GroupNode> {
        let meta = self.shared.core.table.get(id)?.meta.read().clone()?;
        Some(GroupNode::new(&self.shared, meta))
    }

    /// Removes a group that has no children.
    ///
    /// New charges to it fail from now on; its tokens go back to its ancestors. Bytes still charged
    /// to it stay charged to its ancestors until they are uncharged; until then its id is not
    /// reused and [`GroupTree::get`] finds it.
    ///
    /// # Errors
    ///
    /// When it has children, is the root, is already removed, or belongs to another tree.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for writing; one swap for each CPU that has charged to it.
    pub fn remove(&self, group: &GroupNode) -> Result<(), RemoveError> {
        if !Arc::ptr_eq(&self.shared, group.shared()) {
            return Err(RemoveError::OtherTree {
                group: group.path(),
            });
        }
        self.shared.core.remove(group.meta())
    }

    /// Uncharges bytes whose guard was [disowned](super::Charge::disown), by the id of their group:
    /// for callers that keep ids, such as the owner of a page frame.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::uncharge`]; no reference count, no lock.
    ///
    /// # Panics
    ///
    /// When the group does not exist, or when more bytes are returned to the ancestors than they
    /// hold.
    pub fn uncharge(&self, id: GroupId, bytes: Bytes) {
        self.shared.core.uncharge(id, Actor::Here, bytes.0);
    }

    /// Returns `top` and its descendants, parents before children and children by name; nothing
    /// when `top` is removed.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for reading; O(groups in the subtree).
    #[must_use]
    pub fn subtree(&self, top: &GroupNode) -> Vec<GroupNode> {
        let core = &self.shared.core;
        let mut found = Vec::new();
        let shape = core.shape.read();
        if top.is_removed() {
            return found;
        }
        let _: ControlFlow<()> = core.walk(&shape, top.id(), &mut |_, slot| {
            if slot.is_alive()
                && let Some(meta) = slot.meta.read().clone()
            {
                found.push(GroupNode::new(&self.shared, meta));
            }
            ControlFlow::Continue(())
        });
        found
    }

    /// Checks the invariants at a moment when no operation is in flight: at every group
    /// `tokens + sum of the children's reservations <= reserved <= max + debt`; no word holds
    /// tokens below a group in debt; only live words hold tokens, never more than their cap, and
    /// none where a charge waits for room; live words are counted on every ancestor; nothing is in
    /// flight.
    ///
    /// # Panics
    ///
    /// When an invariant does not hold.
    pub fn check_invariants(&self) {
        let core = &self.shared.core;
        let shape = core.shape.read();
        core.check(&shape, GroupId(0));
        core.check_protection(&shape);
        for zombie in &shape.zombies {
            assert!(
                !core.slot(*zombie).is_alive(),
                "{zombie} is a living zombie"
            );
        }
    }
}

impl Core {
    /// Returns the slot of an id that is in use.
    pub(super) fn slot(&self, id: GroupId) -> &Slot {
        match self.table.get(id) {
            Some(slot) => slot,
            None => panic!("{id} is not a group of this tree"),
        }
    }

    /// Returns the slots of `id` and its ancestors, leaf first. A slot's parent is read before the
    /// slot is handed out: releasing the last byte of a removed group may let its slot be reused.
    pub(super) fn chain(&self, id: GroupId) -> impl Iterator<Item = (GroupId, &Slot)> {
        let mut next = Some((id, self.slot(id)));
        std::iter::from_fn(move || {
            let (at, slot) = next?;
            next = slot.parent().map(|parent| (parent, self.slot(parent)));
            Some((at, slot))
        })
    }

    /// Whether threads step only words of their own CPU, by plain stores.
    #[inline]
    pub(super) fn is_restartable(&self) -> bool {
        self.gates.regime() == Regime::Restartable
    }

    /// Returns the actor for `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when the tree has no such CPU.
    pub(super) fn acting_as(&self, cpu: CpuId) -> Actor {
        assert!(
            !self.is_restartable(),
            "acting as {cpu} needs the atomic regime: tokens are taken and parked by their own CPU"
        );
        assert!(
            cpu.index() < self.nr_cpus,
            "{cpu} is not one of the {} CPUs of this tree",
            self.nr_cpus
        );
        Actor::As(cpu)
    }

    /// Visits `top` and everything below it, zombies included, parents first.
    pub(super) fn walk<'a, B>(
        &'a self,
        shape: &Shape,
        top: GroupId,
        visit: &mut dyn FnMut(GroupId, &'a Slot) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        visit(top, self.slot(top))?;
        let family = &shape.families[top.index()];
        for id in family.children.values().chain(&family.zombies) {
            self.walk(shape, *id, visit)?;
        }
        ControlFlow::Continue(())
    }

    pub(super) fn create(
        &self,
        parent: &Arc<Meta>,
        name: &str,
        limits: Limits,
    ) -> Result<Arc<Meta>, ChildError> {
        if !is_valid_name(name) {
            return Err(ChildError::InvalidName);
        }
        limits.check()?;
        let GroupKey { id: above, .. } = parent.key;
        if parent.depth >= DEPTH_MAX {
            return Err(ChildError::TooDeep {
                parent: GroupPath::of(parent),
                depth: parent.depth,
            });
        }
        let mut shape = self.shape.write();
        if self.slot(above).incarnation() != parent.key.incarnation {
            return Err(ChildError::Removed {
                parent: GroupPath::of(parent),
            });
        }
        if shape.families[above.index()].children.contains_key(name) {
            return Err(ChildError::DuplicateName {
                parent: GroupPath::of(parent),
            });
        }
        self.reap_some(&mut shape);
        let id = shape.free.pop().unwrap_or_else(|| {
            shape.families.push(Family::default());
            GroupId::from_index(shape.families.len() - 1)
        });
        let Some(slot) = self.table.make(id, self.gates) else {
            shape.families.pop();
            return Err(ChildError::TooMany {
                count: shape.families.len() as u64,
            });
        };
        slot.prepare(Some(above));
        slot.ledger.force_max(limits.max);
        let meta = Arc::new(Meta::child(parent, name, limits, (id, slot)));
        *slot.meta.write() = Some(Arc::clone(&meta));
        let incarnation = slot.step_incarnation();
        debug_assert_eq!(incarnation, meta.key.incarnation, "one group for each life");
        shape.families[above.index()]
            .children
            .insert(name.into(), id);
        self.note_protection(&mut shape, &meta);
        self.count_high(Bytes::MAX, limits.high);
        Ok(meta)
    }

    /// Returns the groups directly below, by name.
    pub(super) fn children(&self, key: GroupKey) -> Vec<Arc<Meta>> {
        let shape = self.shape.read();
        if self.slot(key.id).incarnation() != key.incarnation {
            return Vec::new();
        }
        let ids = shape.families[key.id.index()].children.values();
        ids.filter_map(|id| self.slot(*id).meta.read().clone())
            .collect()
    }

    fn remove(&self, group: &Meta) -> Result<(), RemoveError> {
        let id = group.key.id;
        let Some(parent) = &group.parent else {
            return Err(RemoveError::IsRoot);
        };
        let above = parent.key.id;
        let mut shape = self.shape.write();
        let slot = self.slot(id);
        if slot.incarnation() != group.key.incarnation {
            return Err(RemoveError::Removed {
                group: self.path(group.key),
            });
        }
        let children = shape.families[id.index()].children.len();
        if children > 0 {
            return Err(RemoveError::HasChildren {
                group: self.path(group.key),
                children,
            });
        }
        slot.step_incarnation();
        self.retire(id);
        let mut wakes = Wakes::default();
        self.turn_away(group.key, &mut wakes);
        let family = &mut shape.families[above.index()];
        family.children.remove(&*group.name);
        family.zombies.insert(id);
        self.forget_protection(&mut shape, above, id);
        self.count_high(group.settings.high(), Bytes::MAX);
        if !self.reap(&mut shape, id) {
            shape.zombies.push_back(id);
        }
        drop(shape);
        wakes.wake();
        Ok(())
    }

    /// Installs a maximum. A maximum below the reservations first retires every token word of the
    /// subtree and keeps them retired: `escrow.rs`, "above the maximum".
    pub(super) fn set_max(&self, key: GroupKey, max: Bytes) -> Result<(), MaxError> {
        let group = key.id;
        let slot = self.slot(group);
        let shape = self.shape.write();
        if slot.incarnation() != key.incarnation {
            return Err(MaxError::Removed {
                group: self.path(key),
            });
        }
        if slot.ledger.set_max(max).is_err() {
            self.retire_subtree(&shape, group);
            slot.ledger.force_max(max);
        }
        drop(shape);
        // Waiting charges may fit now, or never again.
        self.notify(group);
        let usage = self.account(group).used;
        if usage <= max {
            return Ok(());
        }
        Err(MaxError::BelowUsage {
            group: self.path(key),
            max,
            usage,
            over: usage - max,
        })
    }

    /// Frees the slots of a few zombies without charged bytes.
    fn reap_some(&self, shape: &mut Shape) {
        for _ in 0..shape.zombies.len().min(REAP_BATCH) {
            if let Some(id) = shape.zombies.pop_front()
                && !self.reap(shape, id)
            {
                shape.zombies.push_back(id);
            }
        }
    }

    /// Frees the slot of a removed group unless bytes are charged to it, an operation is in flight
    /// in it, or a removed group below it is still in use.
    fn reap(&self, shape: &mut Shape, id: GroupId) -> bool {
        let slot = self.slot(id);
        if !shape.families[id.index()].zombies.is_empty() || !slot.is_idle() {
            return false;
        }
        let parent = slot.parent().expect("the root is never removed");
        shape.families[parent.index()].zombies.remove(&id);
        *slot.meta.write() = None;
        shape.free.push(id);
        true
    }

    /// Checks the subtree of `id`; returns its reservations and the number of its live words.
    fn check(&self, shape: &Shape, id: GroupId) -> (u64, u64) {
        let slot = self.slot(id);
        let (mut below, mut holders) = (0, 0);
        let family = &shape.families[id.index()];
        for child in family.children.values().chain(&family.zombies) {
            assert_eq!(self.slot(*child).parent(), Some(id), "{child} is elsewhere");
            let (reserved, live) = self.check(shape, *child);
            below += reserved;
            holders += live;
        }
        for cell in slot.all_cells() {
            let word = cell.load();
            assert!(word.tokens() <= CELL_MAX, "{id} holds too many tokens");
            assert!(word.is_live() || word.tokens() == 0, "{id} hides tokens");
            assert_eq!(word.in_flight(), 0, "an operation is in flight in {id}");
            below += word.tokens();
            holders += u64::from(word.is_live());
        }
        let balance = slot.ledger.balance();
        assert!(
            below <= balance.reserved,
            "{id} reserves {} bytes for {below} below it",
            balance.reserved
        );
        assert_eq!(slot.holders(), holders, "{id} miscounts its live words");
        self.check_line(id);
        assert!(
            balance.debt() == 0 || holders == 0,
            "{id} reserves {} bytes of {} and may hold tokens",
            balance.reserved,
            balance.max
        );
        (balance.reserved, holders)
    }
}

fn is_valid_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.len() <= 255
        && !name.chars().any(|c| c == '/' || c.is_control())
}
