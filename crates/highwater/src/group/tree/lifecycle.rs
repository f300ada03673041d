//! Creating and removing groups.
//!
//! A group that is *light* (`state/standing.rs`), with nothing charged to it and tokens that can be
//! passed on, is removed without the tree's lock: its slot is parked (`state/parked.rs`), and the
//! next group below the same parent begins there. All other removals, and creations that find no
//! parked slot, hold the lock for writing.
//!
//! A removed group with bytes still charged stays in its parent's family (*zombie*, as a dying
//! memcg), so that a pass over a subtree still sees operations in flight in it. Its id is reused
//! once nothing is reserved and nothing is in flight there. Creating a group checks a few zombies,
//! so uncharging the last byte has nothing to do.

use crate::group::charge::Attempts;
use crate::group::error::{ChildError, RemoveError};
use crate::group::stat::Stat;
use crate::group::state::{
    DEPTH_MAX, FullName, GroupKey, GroupPath, Groups, Limits, Meta, ParkedHint, Slot, SlotStanding,
    TreeShape, Wakes,
};
use crate::percpu::Regime;
use crate::sync::Arc;
use crate::units::{Bytes, GroupId};

/// Zombies that one creation checks: enough to reuse ids faster than removals use them up.
const REAP_BATCH: usize = 8;

/// A group to create.
struct Birth<'a> {
    parent: &'a Arc<Meta>,
    full_name: FullName,
    limits: Limits,
}

impl Birth<'_> {
    /// Makes the name the group's own.
    fn name(&self, groups: &Groups, id: GroupId) -> Result<(), ChildError> {
        match groups.names.give(&self.full_name, id) {
            true => Ok(()),
            false => Err(ChildError::DuplicateName {
                parent: GroupPath::of(self.parent),
            }),
        }
    }

    /// Begins the group in a slot that the caller has to itself. The name is the group's already.
    fn begin_in(&self, slot: &Slot, incarnation: u64) -> Arc<Meta> {
        let id = slot.id();
        let key = GroupKey { id, incarnation };
        let standing = match self.limits.is_max_alone() {
            true => SlotStanding::Light,
            false => SlotStanding::Settled,
        };
        let meta = self.put_meta(slot, key);
        slot.stand(incarnation, standing);
        slot.begin_incarnation(incarnation);
        meta
    }

    /// Renews the `Meta` of the slot's former group, if no handle has it still, or makes one.
    fn put_meta(&self, slot: &Slot, key: GroupKey) -> Arc<Meta> {
        let (parent, limits) = (self.parent, self.limits);
        let full_name = self.full_name.clone();
        let mut held = slot.meta.write();
        let former = held.as_mut().and_then(Arc::get_mut);
        if let Some(meta) = former.filter(|meta| meta.can_serve_below(parent)) {
            meta.renew(full_name, limits, key);
            return Option::clone(&held).expect("it was just renewed");
        }
        let meta = Arc::new(Meta::child(parent, full_name, limits, key));
        let former = held.replace(Arc::clone(&meta));
        drop(held);
        // Not under that lock: it may drop data of the embedder.
        drop(former);
        meta
    }
}

/// What is below a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    None,
    Children(usize),
    /// No children, but another thread is creating or removing one: it is between two steps, or
    /// waits for the tree's lock.
    InTransit,
}

impl Groups {
    /// Returns a tree of one group, the root, which has no limit.
    pub(in crate::group) fn with_root(regime: Regime, nr_cpus: usize) -> Self {
        let groups = Self::new(regime, nr_cpus);
        let id = GroupId(0);
        let root = groups
            .slots
            .make(id, groups.gates)
            .expect("the table holds the first id");
        root.prepare(None);
        let incarnation = 1;
        root.stand(incarnation, SlotStanding::Settled);
        root.begin_incarnation(incarnation);
        let stat = Stat::root(regime, nr_cpus);
        let key = GroupKey { id, incarnation };
        *root.meta.write() = Some(Arc::new(Meta::root(key, stat)));
        groups
    }

    pub(in crate::group) fn create(
        &self,
        parent: &Arc<Meta>,
        name: &str,
        limits: Limits,
    ) -> Result<Arc<Meta>, ChildError> {
        if !is_valid_name(name) {
            return Err(ChildError::InvalidName);
        }
        limits.check()?;
        if parent.depth >= DEPTH_MAX {
            return Err(ChildError::TooDeep {
                parent: GroupPath::of(parent),
                depth: parent.depth,
            });
        }
        let birth = Birth {
            parent,
            full_name: self.names.full_name(parent.key.id, name),
            limits,
        };
        let mut attempts = Attempts::new();
        loop {
            let made = match self.claim_fitting(&birth) {
                Some((hint, incarnation)) => self.create_in_parked(&birth, hint, incarnation),
                None => self.create_in_free(&birth),
            };
            // A removed group has its name for a moment longer.
            let is_taken = matches!(made, Err(ChildError::DuplicateName { .. }));
            if !is_taken || self.is_name_in_use(&birth.full_name) || !attempts.wait() {
                return made;
            }
        }
    }

    /// Whether a living group has the name.
    fn is_name_in_use(&self, full_name: &FullName) -> bool {
        let meta = self.names.find(full_name);
        let meta = meta.and_then(|id| self.slot(id).living_meta());
        meta.is_some_and(|meta| meta.full_name == *full_name)
    }

    /// Claims a slot that was parked on this CPU and fits; returns it with its incarnation.
    fn claim_fitting(&self, birth: &Birth<'_>) -> Option<(ParkedHint, u64)> {
        if !birth.limits.is_max_alone() {
            return None;
        }
        let (parent, max) = (birth.parent.key, birth.limits.max);
        let has_parent = || self.slot(parent.id).incarnation() == parent.incarnation;
        if !has_parent() {
            return None;
        }
        let (hint, incarnation) = self.claim_parked(parent.id)?;
        // From here on the parent stays: its removal finds a member that is not parked.
        let ledger = &self.slot(hint.id).ledger;
        let fits = has_parent() && (ledger.balance().max == max || ledger.set_max(max).is_ok());
        if !fits {
            self.park(self.slot(hint.id), hint, incarnation);
        }
        fits.then_some((hint, incarnation))
    }

    /// Creates a group in a slot that was parked, and is claimed.
    fn create_in_parked(
        &self,
        birth: &Birth<'_>,
        hint: ParkedHint,
        incarnation: u64,
    ) -> Result<Arc<Meta>, ChildError> {
        let slot = self.slot(hint.id);
        if let Err(taken) = birth.name(self, hint.id) {
            self.park(slot, hint, incarnation);
            return Err(taken);
        }
        slot.ledger.renew_peak();
        Ok(birth.begin_in(slot, incarnation + 1))
    }

    /// Claims a slot that was parked on this CPU below `parent`; returns it with its incarnation.
    fn claim_parked(&self, parent: GroupId) -> Option<(ParkedHint, u64)> {
        let parked = self.parked_here();
        loop {
            let hint = parked.take(parent)?;
            let slot = self.slot(hint.id);
            let incarnation = slot.incarnation();
            let is_parked = slot.stands(incarnation, SlotStanding::Parked);
            // While it is parked in that incarnation, it is below the same parent.
            let is_below = || slot.parent() == Some(parent);
            if is_parked && is_below() && slot.claim(incarnation, SlotStanding::Parked) {
                return Some((hint, incarnation));
            }
        }
    }

    fn create_in_free(&self, birth: &Birth<'_>) -> Result<Arc<Meta>, ChildError> {
        self.change_shape(|shape| self.create_below(shape, birth))
    }

    fn create_below(
        &self,
        shape: &mut TreeShape,
        birth: &Birth<'_>,
    ) -> Result<Arc<Meta>, ChildError> {
        let (parent, limits) = (birth.parent, birth.limits);
        let above = parent.key.id;
        if !self.stays(parent.key) {
            return Err(ChildError::Removed {
                parent: GroupPath::of(parent),
            });
        }
        self.reap_some(shape);
        let id = shape.free.pop().unwrap_or_else(|| shape.push_id());
        let Some(slot) = self.slots.make(id, self.gates) else {
            shape.pop_id();
            return Err(ChildError::TooMany {
                count: shape.nr_ids() as u64,
            });
        };
        if let Err(taken) = birth.name(self, id) {
            shape.free.push(id);
            return Err(taken);
        }
        slot.prepare(Some(above));
        if slot.ledger.balance().max != limits.max {
            slot.ledger.force_max(limits.max);
        }
        shape.family_mut(above).members.insert(id);
        let meta = birth.begin_in(slot, slot.incarnation() + 1);
        self.note_protection(shape, &meta);
        self.count_high(Bytes::MAX, limits.high);
        Ok(meta)
    }

    /// Returns the groups directly below, by name.
    pub(in crate::group) fn children_of(&self, key: GroupKey) -> Vec<Arc<Meta>> {
        let shape = self.read_shape();
        match self.slot(key.id).incarnation() == key.incarnation {
            true => self.children_by_name(&shape, key.id),
            false => Vec::new(),
        }
    }

    pub(in crate::group) fn remove(&self, group: &Arc<Meta>) -> Result<(), RemoveError> {
        let GroupKey { id, incarnation } = group.key;
        let Some(parent) = &group.parent else {
            return Err(RemoveError::IsRoot);
        };
        let parent = parent.key.id;
        let slot = self.slot(id);
        // Not that of a group that is about to begin: its creator is not done with the slot.
        let is_alive = slot.incarnation() == incarnation;
        if !(is_alive && slot.claim(incarnation, SlotStanding::Light)) {
            return self.remove_settled(group, parent);
        }
        slot.end_incarnation(incarnation);
        self.names.free(&group.full_name);
        if slot.pass_on() {
            if !group.is_plain() {
                drop(slot.take_meta());
            }
            self.park(slot, ParkedHint { parent, id }, incarnation + 1);
        } else {
            self.change_shape(|shape| {
                self.reap_some(shape);
                self.bury(shape, parent, id);
            });
        }
        Ok(())
    }

    /// Parks a slot that the caller has claimed. If the CPU has too many, all of them are freed.
    fn park(&self, slot: &Slot, hint: ParkedHint, incarnation: u64) {
        slot.stand(incarnation, SlotStanding::Parked);
        let parked = self.parked_here();
        if parked.add(hint) {
            return;
        }
        self.change_shape(|shape| {
            for hint in std::iter::from_fn(|| parked.take_any()).chain([hint]) {
                // Parked below another parent: then another hint says so.
                if self.slot(hint.id).parent() == Some(hint.parent) {
                    self.unpark(shape, hint);
                }
            }
        });
    }

    /// Frees a slot if it is parked. The caller holds the lock, so it stays below that parent.
    fn unpark(&self, shape: &mut TreeShape, ParkedHint { parent, id }: ParkedHint) {
        let slot = self.slot(id);
        if slot.claim(slot.incarnation(), SlotStanding::Parked) {
            self.bury(shape, parent, id);
        }
    }

    fn remove_settled(&self, group: &Arc<Meta>, parent: GroupId) -> Result<(), RemoveError> {
        let mut wakes = Wakes::default();
        let mut attempts = Attempts::new();
        loop {
            let children = self.change_shape(|shape| {
                let children = self.count_members(shape, group)?;
                if children == Below::None {
                    self.reap_some(shape);
                    self.remove_childless(shape, group, parent, &mut wakes);
                }
                Ok(children)
            })?;
            let children = match children {
                Below::None => break,
                Below::Children(children) => children,
                Below::InTransit if attempts.wait() => continue,
                Below::InTransit => 1,
            };
            return Err(RemoveError::HasChildren {
                group: GroupPath::of(group),
                children,
            });
        }
        wakes.wake();
        Ok(())
    }

    /// Counts what is below a living group, after its parked slots were freed if it has no
    /// children.
    fn count_members(
        &self,
        shape: &mut TreeShape,
        group: &Arc<Meta>,
    ) -> Result<Below, RemoveError> {
        if !self.stays(group.key) {
            return Err(RemoveError::Removed {
                group: GroupPath::of(group),
            });
        }
        let parent = group.key.id;
        let children = self.children(shape, parent).count();
        if children > 0 {
            return Ok(Below::Children(children));
        }
        for id in shape.family(parent).members.clone() {
            self.unpark(shape, ParkedHint { parent, id });
        }
        match shape.family(parent).members.is_empty() {
            true => Ok(Below::None),
            false => Ok(Below::InTransit),
        }
    }

    fn remove_childless(
        &self,
        shape: &mut TreeShape,
        group: &Meta,
        parent: GroupId,
        wakes: &mut Wakes,
    ) {
        let id = group.key.id;
        self.slot(id).end_incarnation(group.key.incarnation);
        self.turn_away(group.key, wakes);
        self.names.free(&group.full_name);
        self.forget_protection(shape, parent, id);
        self.count_high(group.settings.high(), Bytes::MAX);
        self.bury(shape, parent, id);
    }

    /// Makes a removed group a zombie, or frees its slot.
    fn bury(&self, shape: &mut TreeShape, parent: GroupId, id: GroupId) {
        let slot = self.slot(id);
        slot.stand(slot.incarnation() - 1, SlotStanding::Settled);
        self.retire(id);
        shape.family_mut(parent).members.remove(&id);
        if !self.free_if_unused(shape, id) {
            shape.family_mut(parent).zombies.insert(id);
            shape.zombies.push_back(id);
        }
    }

    /// Frees the slots of a few zombies without charged bytes.
    fn reap_some(&self, shape: &mut TreeShape) {
        for _ in 0..shape.zombies.len().min(REAP_BATCH) {
            if let Some(id) = shape.zombies.pop_front()
                && self.is_zombie(shape, id)
                && !self.reap(shape, id)
            {
                shape.zombies.push_back(id);
            }
        }
    }

    /// Frees the slot of a removed group whose last bytes have been uncharged, and those of removed
    /// groups above it.
    pub(in crate::group) fn reap_if_idle(&self, key: GroupKey) {
        let slot = self.slot(key.id);
        if slot.incarnation() == key.incarnation || !slot.is_idle() {
            return;
        }
        self.change_shape(|shape| {
            let mut id = key.id;
            while self.is_zombie(shape, id) && self.reap(shape, id) {
                id = self.slot(id).parent().expect("the root is never removed");
            }
        });
    }

    fn is_zombie(&self, shape: &TreeShape, id: GroupId) -> bool {
        let parent = self.slot(id).parent();
        parent.is_some_and(|parent| shape.family(parent).zombies.contains(&id))
    }

    /// Frees the slot of a zombie if that is possible.
    fn reap(&self, shape: &mut TreeShape, id: GroupId) -> bool {
        let parent = self.slot(id).parent().expect("the root is never removed");
        let is_free = self.free_if_unused(shape, id);
        if is_free {
            shape.family_mut(parent).zombies.remove(&id);
        }
        is_free
    }

    /// Frees the slot of a removed group unless bytes are charged to it, an operation is in flight
    /// in it, or a removed group below it is still in use.
    fn free_if_unused(&self, shape: &mut TreeShape, id: GroupId) -> bool {
        let slot = self.slot(id);
        let is_free = shape.family(id).zombies.is_empty() && slot.is_idle();
        if is_free {
            shape.gone.extend(slot.take_meta());
            shape.free.push(id);
        }
        is_free
    }
}

fn is_valid_name(name: &str) -> bool {
    let is_refused = |byte: u8| byte == b'/' || byte.is_ascii_control();
    !matches!(name, "" | "." | "..")
        && name.len() <= 255
        && !name.bytes().any(is_refused)
        && (name.is_ascii() || !name.chars().any(char::is_control))
}
