//! Creating and removing groups.
//!
//! A removed group with bytes still charged stays in its parent's family (*zombie*, as a dying
//! memcg), so that a pass over a subtree still sees operations in flight in it. Its id is reused
//! once nothing is reserved and nothing is in flight there. Creating a group checks a few zombies,
//! so uncharging the last byte has nothing to do.

use crate::group::error::{ChildError, RemoveError};
use crate::group::stat::Stat;
use crate::group::state::{DEPTH_MAX, GroupKey, GroupPath, Groups, Limits, Meta, TreeShape, Wakes};
use crate::percpu::Regime;
use crate::sync::Arc;
use crate::units::{Bytes, GroupId};

/// Zombies that one creation checks: enough to reuse ids faster than removals use them up.
const REAP_BATCH: usize = 8;

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
        let incarnation = root.step_incarnation();
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
        let above = parent.key.id;
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
        if shape.family(above).children.contains_key(name.as_bytes()) {
            return Err(ChildError::DuplicateName {
                parent: GroupPath::of(parent),
            });
        }
        self.reap_some(&mut shape);
        let id = shape.free.pop().unwrap_or_else(|| shape.push_id());
        let Some(slot) = self.slots.make(id, self.gates) else {
            shape.pop_id();
            return Err(ChildError::TooMany {
                count: shape.nr_ids() as u64,
            });
        };
        slot.prepare(Some(above));
        if slot.ledger.balance().max != limits.max {
            slot.ledger.force_max(limits.max);
        }
        let incarnation = slot.incarnation() + 1;
        let key = GroupKey { id, incarnation };
        let meta = Arc::new(Meta::child(parent, name, limits, key));
        *slot.meta.write() = Some(Arc::clone(&meta));
        let stepped = slot.step_incarnation();
        debug_assert_eq!(stepped, incarnation, "one group for each life");
        let children = &mut shape.family_mut(above).children;
        children.insert(meta.name.clone(), id);
        self.note_protection(&mut shape, &meta);
        self.count_high(Bytes::MAX, limits.high);
        Ok(meta)
    }

    /// Returns the groups directly below, by name.
    pub(in crate::group) fn children(&self, key: GroupKey) -> Vec<Arc<Meta>> {
        let shape = self.shape.read();
        if self.slot(key.id).incarnation() != key.incarnation {
            return Vec::new();
        }
        let ids = shape.children(key.id);
        ids.filter_map(|id| self.slot(id).meta.read().clone())
            .collect()
    }

    pub(in crate::group) fn remove(&self, group: &Meta) -> Result<(), RemoveError> {
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
        let children = shape.family(id).children.len();
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
        shape.family_mut(above).children.remove(&group.name);
        self.forget_protection(&mut shape, above, id);
        self.count_high(group.settings.high(), Bytes::MAX);
        if !self.free_if_unused(&mut shape, id) {
            shape.family_mut(above).zombies.insert(id);
            shape.zombies.push_back(id);
        }
        drop(shape);
        wakes.wake();
        Ok(())
    }

    /// Frees the slots of a few zombies without charged bytes.
    fn reap_some(&self, shape: &mut TreeShape) {
        for _ in 0..shape.zombies.len().min(REAP_BATCH) {
            if let Some(id) = shape.zombies.pop_front()
                && !self.reap(shape, id)
            {
                shape.zombies.push_back(id);
            }
        }
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
            *slot.meta.write() = None;
            shape.free.push(id);
        }
        is_free
    }
}

fn is_valid_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.len() <= 255
        && !name.chars().any(|c| c == '/' || c.is_control())
}
