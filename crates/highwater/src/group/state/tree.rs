//! The tree of groups as its state: the slots of all groups, the shape of the tree, the wait
//! queues, and the walks over them.
//!
//! One lock ([`Rank::Groups`]) guards the shape. Creating a group, removing one and setting a
//! maximum hold it for writing, and so does a charge that is overtaken too often; taking tokens
//! back and making a word live hold it for reading. Charges that find tokens, all uncharges, and
//! lookups of an id never wait for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

use crate::percpu::{Blocks, Gates, PercpuOwner, Regime};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Arc, LockClass, Mutex, MutexGuard, Rank, RwLock};
use crate::units::{CpuId, GroupId};

use super::cell::Site;
use super::gate::Gate;
use super::name::Name;
use super::slot::{ActingCpu, Slot, Slots};
use super::stock::TokenStock;
use super::waiters::Lines;

static SHAPE: LockClass = LockClass::new("group tree", Rank::Groups);

/// Deepest level of a group; the root's is 0. Chosen: above any nesting of tenants, sessions,
/// queries and operators in use, and small enough for a charge to keep one number per level on its
/// stack.
pub const DEPTH_MAX: u32 = 64;

/// A tree and the references to it, which the handles of the tree share. Handles of groups and
/// charges may outlive it.
pub(in crate::group) type TreeOwner = Arc<PercpuOwner<Groups>>;

/// The children of one group.
#[derive(Debug, Default)]
pub(in crate::group) struct Family {
    pub(in crate::group) children: BTreeMap<Name, GroupId>,
    pub(in crate::group) zombies: BTreeSet<GroupId>,
    /// Living children that have a `min` or a `low`.
    pub(in crate::group) protected: BTreeSet<GroupId>,
}

/// That of a group that never had children.
static NO_FAMILY: Family = Family {
    children: BTreeMap::new(),
    zombies: BTreeSet::new(),
    protected: BTreeSet::new(),
};

/// The state that the tree's lock guards.
#[derive(Debug, Default)]
pub(in crate::group) struct TreeShape {
    /// By id; allocated with the first child.
    families: Vec<Option<Box<Family>>>,
    pub(in crate::group) free: Vec<GroupId>,
    /// Every zombie, in the order in which they are checked.
    pub(in crate::group) zombies: VecDeque<GroupId>,
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

    /// Returns the living groups directly below `id`.
    pub(in crate::group) fn children(&self, id: GroupId) -> impl ExactSizeIterator<Item = GroupId> {
        self.family(id).children.values().copied()
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
    pub(in crate::group) shape: RwLock<TreeShape>,
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
            shape: RwLock::new(&SHAPE, shape),
            gate: Gate::open(),
            lines: Lines::none(),
            nr_protected: AtomicU64::new(0),
            nr_throttled: AtomicU64::new(0),
        }
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

    /// Visits `top` and everything below it, zombies included, parents first.
    pub(in crate::group) fn walk<'a, B>(
        &'a self,
        shape: &TreeShape,
        top: GroupId,
        visit: &mut dyn FnMut(GroupId, &'a Slot) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        visit(top, self.slot(top))?;
        let family = shape.family(top);
        for id in family.children.values().chain(&family.zombies) {
            self.walk(shape, *id, visit)?;
        }
        ControlFlow::Continue(())
    }

    /// Locks the wait queues.
    pub(in crate::group) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock()
    }
}
