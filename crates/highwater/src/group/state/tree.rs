//! The tree of groups as its state: the slots of all groups, the shape of the tree, the wait
//! queues, and the walks over them.
//!
//! One lock ([`Rank::Groups`]) guards the shape. Creating and removing a group, except by way of a
//! parked slot (`parked.rs`), and setting a maximum hold it for writing, and so does a charge that
//! is overtaken too often; taking tokens back and making a word live hold it for reading. Charges
//! that find tokens, all uncharges, and lookups never wait for it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;

use crate::percpu::{Blocks, Gates, PercpuOwner, PercpuRef, Regime};
use crate::sync::atomic::AtomicU64;
use crate::sync::{
    Arc, LockClass, Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, StatCell,
};
use crate::units::{CpuId, GroupId};

use super::cell::Site;
use super::gate::Gate;
use super::meta::{GroupKey, Meta};
use super::names::Names;
use super::parked::ParkedSlots;
use super::slot::{ActingCpu, Slot};
use super::slots::Slots;
use super::stock::TokenStock;
use super::waiters::Lines;

static SHAPE: LockClass = LockClass::new("group tree", Rank::Groups);

/// Deepest level of a group; the root's is 0. Chosen: above any nesting of tenants, sessions,
/// queries and operators in use, and small enough for a charge to keep one number per level on its
/// stack.
pub const DEPTH_MAX: u32 = 64;

/// A handle's reference to a tree, counted for each CPU as those of charges are. Charges may
/// outlive the last handle: theirs are to what it owns.
pub(in crate::group) type TreeOwner = PercpuRef<PercpuOwner<Groups>>;
/// Owns what handles refer to. Where the last clone of a tree's first handle is gone, the others
/// are counted in one place.
pub(in crate::group) type HandleOwner = Arc<PercpuOwner<PercpuOwner<Groups>>>;

/// The slots below one group.
#[derive(Debug, Default)]
pub(in crate::group) struct Family {
    /// The slots of its children, and parked ones.
    pub(in crate::group) members: BTreeSet<GroupId>,
    pub(in crate::group) zombies: BTreeSet<GroupId>,
    /// Living children that have a `min` or a `low`.
    pub(in crate::group) protected: BTreeSet<GroupId>,
}

/// That of a group that never had children.
static NO_FAMILY: Family = Family {
    members: BTreeSet::new(),
    zombies: BTreeSet::new(),
    protected: BTreeSet::new(),
};

/// The state that the tree's lock guards.
#[derive(Debug, Default)]
pub(in crate::group) struct TreeShape {
    /// By id; allocated with the first child.
    families: Vec<Option<Box<Family>>>,
    pub(in crate::group) free: Vec<GroupId>,
    /// Every zombie, in the order in which they are checked; and some that are none any more.
    pub(in crate::group) zombies: VecDeque<GroupId>,
    /// What was known of groups whose slots are free: dropped after the lock, for it may hold data
    /// of the embedder.
    pub(in crate::group) gone: Vec<Arc<Meta>>,
}

impl TreeShape {
    /// Returns the number of ids in use or free.
    pub(in crate::group) fn nr_ids(&self) -> usize {
        self.families.len()
    }

    /// Adds the lowest id that was never used.
    pub(in crate::group) fn push_id(&mut self) -> GroupId {
        self.families.push(None);
        GroupId::from_index(self.families.len() - 1)
    }

    /// Takes the id that was added last back.
    pub(in crate::group) fn pop_id(&mut self) {
        self.families.pop();
    }

    pub(in crate::group) fn family(&self, id: GroupId) -> &Family {
        self.families[id.index()].as_deref().unwrap_or(&NO_FAMILY)
    }

    pub(in crate::group) fn family_mut(&mut self, id: GroupId) -> &mut Family {
        self.families[id.index()].get_or_insert_default()
    }
}

/// The tree itself. Lives while a handle or a charge refers to it.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(in crate::group) nr_cpus: usize,
    /// How token words are stepped.
    pub(in crate::group) gates: Gates,
    pub(in crate::group) slots: Slots,
    /// By number of their words. Allocated when their CPU first charges.
    stocks: Blocks<TokenStock, 16>,
    /// By number of the words of the CPU that parked them.
    parked: Blocks<ParkedSlots, 16>,
    pub(in crate::group) names: Names,
    shape: RwLock<TreeShape>,
    /// How often the shape was locked.
    nr_shape_locks: StatCell,
    pub(in crate::group) gate: Gate,
    lines: Mutex<Lines>,
    /// Groups that have a `min` or a `low`. Written by: setters, under the tree's lock for writing.
    /// Read by: reclaim. Publishes: nothing.
    pub(in crate::group) nr_protected: AtomicU64,
    /// Groups that have a `high`. Written by: as `nr_protected`. Read by: charges that have
    /// reserved bytes. Publishes: nothing.
    pub(in crate::group) nr_throttled: AtomicU64,
}

impl Groups {
    /// Returns a tree whose root is yet to be made.
    pub(in crate::group) fn new(regime: Regime, nr_cpus: usize) -> Self {
        let shape = TreeShape {
            families: vec![None],
            ..TreeShape::default()
        };
        let gates = Gates::new(regime, nr_cpus);
        Self {
            nr_cpus,
            gates,
            slots: Slots::new(),
            stocks: Blocks::none(gates.nr_words()),
            parked: Blocks::none(gates.nr_words()),
            names: Names::none(),
            shape: RwLock::new(&SHAPE, shape),
            nr_shape_locks: StatCell::new(),
            gate: Gate::open(),
            lines: Lines::none(),
            nr_protected: AtomicU64::new(0),
            nr_throttled: AtomicU64::new(0),
        }
    }

    pub(in crate::group) fn read_shape(&self) -> RwLockReadGuard<'_, TreeShape> {
        self.nr_shape_locks.add(1);
        self.shape.read()
    }

    pub(in crate::group) fn try_read_shape(&self) -> Option<RwLockReadGuard<'_, TreeShape>> {
        self.nr_shape_locks.add(1);
        self.shape.try_read()
    }

    pub(in crate::group) fn write_shape(&self) -> RwLockWriteGuard<'_, TreeShape> {
        self.nr_shape_locks.add(1);
        self.shape.write()
    }

    /// Changes the shape under the lock for writing.
    pub(in crate::group) fn change_shape<R>(&self, change: impl FnOnce(&mut TreeShape) -> R) -> R {
        let mut shape = self.write_shape();
        let changed = change(&mut shape);
        let gone = std::mem::take(&mut shape.gone);
        drop(shape);
        drop(gone);
        changed
    }

    pub(in crate::group) fn nr_shape_locks(&self) -> u64 {
        self.nr_shape_locks.get()
    }

    /// Returns the slot of an id that is in use.
    #[inline]
    pub(in crate::group) fn slot(&self, id: GroupId) -> &Slot {
        match self.slots.get(id) {
            Some(slot) => slot,
            None => self.miss(id),
        }
    }

    #[cold]
    #[inline(never)]
    #[expect(clippy::unused_self, reason = "names the tree that lacks it")]
    fn miss(&self, id: GroupId) -> ! {
        panic!("{id} is not a group of this tree")
    }

    /// Settles a group: returns whether it lives, and then it stays while the caller holds the
    /// tree's lock.
    pub(in crate::group) fn stays(&self, key: GroupKey) -> bool {
        self.slot(key.id).settle(key.incarnation)
    }

    /// Returns the stock of the words of number `index`, allocated on first use.
    #[inline]
    pub(in crate::group) fn stock(&self, index: usize) -> &TokenStock {
        match self.stocks.get(index) {
            Some(stock) => stock,
            None => self.make_stock(index),
        }
    }

    #[cold]
    #[inline(never)]
    fn make_stock(&self, index: usize) -> &TokenStock {
        self.stocks.get_or_make(index, TokenStock::new)
    }

    /// Returns the parked slots of the CPU that the thread runs on.
    pub(in crate::group) fn parked_here(&self) -> &ParkedSlots {
        self.parked.get_or_make(self.gates.here(), ParkedSlots::new)
    }

    /// Returns the living groups directly below `id`, by number.
    pub(in crate::group) fn children<'a>(
        &'a self,
        shape: &'a TreeShape,
        id: GroupId,
    ) -> impl Iterator<Item = (GroupId, &'a Slot)> {
        let members = shape.family(id).members.iter();
        let slots = members.map(|id| (*id, self.slot(*id)));
        slots.filter(|(_, slot)| slot.is_alive())
    }

    /// Returns whether a group had children at one moment within the call: they may come and go.
    pub(in crate::group) fn has_children(&self, shape: &TreeShape, id: GroupId) -> bool {
        let members = || shape.family(id).members.iter().map(|id| self.slot(*id));
        // Incarnations only grow: where the sums are equal, none has changed.
        let lives = || members().map(|slot| u128::from(slot.incarnation())).sum();
        while !members().any(Slot::is_alive) {
            let before: u128 = lives();
            if !members().any(Slot::is_alive) && lives() == before {
                return false;
            }
        }
        true
    }

    /// Returns the living group directly below `parent` that has the name.
    pub(in crate::group) fn child_named(&self, parent: &Meta, name: &str) -> Option<Arc<Meta>> {
        let full_name = self.names.full_name(parent.key.id, name);
        let meta = self.slot(self.names.find(&full_name)?).living_meta()?;
        // Groups come and go meanwhile.
        let is_it = meta.full_name == full_name
            && meta.parent.as_ref().map(|above| above.key) == Some(parent.key);
        is_it.then_some(meta)
    }

    /// Returns what is known of the living groups directly below `id`, sorted by name.
    pub(in crate::group) fn children_by_name(
        &self,
        shape: &TreeShape,
        id: GroupId,
    ) -> Vec<Arc<Meta>> {
        let mut metas = Vec::with_capacity(shape.family(id).members.len());
        let children = self.children(shape, id);
        metas.extend(children.filter_map(|(_, slot)| slot.living_meta()));
        metas.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        metas
    }

    /// Returns the stocks that were allocated, with the numbers of their words.
    pub(in crate::group) fn stocks(&self) -> impl Iterator<Item = (usize, &TokenStock)> {
        self.stocks.iter()
    }

    /// Returns the slots of `id` and its ancestors, leaf first. A slot's parent is read before the
    /// slot is handed out: releasing the last byte of a removed group may let its slot be reused.
    pub(in crate::group) fn chain(&self, id: GroupId) -> impl Iterator<Item = (GroupId, &Slot)> {
        let mut next = Some(id);
        std::iter::from_fn(move || {
            let at = next?;
            let slot = self.slot(at);
            next = slot.parent();
            Some((at, slot))
        })
    }

    /// Returns the slots whose ledgers hold the reservations of a word's tokens, leaf first.
    pub(in crate::group) fn ledgers(&self, site: Site) -> impl Iterator<Item = (GroupId, &Slot)> {
        let nr = if site.is_own { 1 } else { usize::MAX };
        self.chain(site.id).take(nr)
    }

    /// Whether threads step only words of their own CPU, by plain stores.
    #[inline]
    pub(in crate::group) fn is_restartable(&self) -> bool {
        self.gates.regime() == Regime::Restartable
    }

    /// Returns the means of acting as `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when the tree has no such CPU.
    pub(in crate::group) fn acting_as(&self, cpu: CpuId) -> ActingCpu {
        assert!(
            !self.is_restartable(),
            "acting as {cpu} needs the atomic regime: tokens are taken and parked by their own CPU"
        );
        assert!(
            cpu.index() < self.nr_cpus,
            "{cpu} is not one of the {} CPUs of this tree",
            self.nr_cpus
        );
        ActingCpu::As(cpu)
    }

    /// Visits `top` and everything below it, zombies and parked slots included, parents first.
    pub(in crate::group) fn walk<'a, B>(
        &'a self,
        shape: &TreeShape,
        top: GroupId,
        visit: &mut dyn FnMut(GroupId, &'a Slot) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        visit(top, self.slot(top))?;
        let family = shape.family(top);
        for id in family.members.iter().chain(&family.zombies) {
            self.walk(shape, *id, visit)?;
        }
        ControlFlow::Continue(())
    }

    /// Locks the wait queues.
    pub(in crate::group) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock()
    }
}
