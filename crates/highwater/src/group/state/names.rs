//! The names of all groups, each with its parent: whether a name is free, and which group has it.
//!
//! Groups come and go without the tree's lock (`parked.rs`), so names have locks of their own. They
//! are divided by their hashes, with a lock for each part, so that threads seldom meet.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use crate::sync::{CachePadded, LockClass, Mutex, Rank};
use crate::units::GroupId;

use super::name::Name;

static NAMES: LockClass = LockClass::new("group names", Rank::GroupNames);

/// Chosen: more than the threads that create groups at the same moment, and 8 KiB for a tree.
#[cfg(not(loom))]
const NR_PARTS: usize = 64;
#[cfg(loom)]
const NR_PARTS: usize = 1;

/// A group's name with its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::group) struct FullName {
    /// That of the other two, computed once.
    hash: u64,
    pub(in crate::group) parent: GroupId,
    pub(in crate::group) name: Name,
}

impl FullName {
    /// That of the root, which is below no group.
    pub(in crate::group) fn of_root() -> Self {
        Self {
            hash: 0,
            parent: GroupId(0),
            name: Name::new(""),
        }
    }
}

impl Hash for FullName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Returns the hash that it is given.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a name writes its hash alone");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type NamesPart = HashMap<FullName, GroupId, BuildHasherDefault<Hashed>>;

/// See the module.
#[derive(Debug)]
pub(in crate::group) struct Names {
    hasher: RandomState,
    parts: Box<[CachePadded<Mutex<NamesPart>>]>,
}

impl Names {
    pub(in crate::group) fn none() -> Self {
        let empty = |_| CachePadded::new(Mutex::new(&NAMES, NamesPart::default()));
        Self {
            hasher: RandomState::new(),
            parts: (0..NR_PARTS).map(empty).collect(),
        }
    }

    /// Returns a name with the group that it is below.
    pub(in crate::group) fn full_name(&self, parent: GroupId, name: &str) -> FullName {
        FullName {
            hash: self.hasher.hash_one((parent.0, name)),
            parent,
            name: Name::new(name),
        }
    }

    /// Gives a name to `id`; false if another group has it.
    pub(in crate::group) fn give(&self, name: &FullName, id: GroupId) -> bool {
        match self.part(name).lock().entry(name.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(id);
                true
            }
        }
    }

    pub(in crate::group) fn free(&self, name: &FullName) {
        let former = self.part(name).lock().remove(name);
        debug_assert!(former.is_some(), "{name:?} is freed twice");
    }

    /// Returns the group that has a name.
    pub(in crate::group) fn find(&self, name: &FullName) -> Option<GroupId> {
        self.part(name).lock().get(name).copied()
    }

    fn part(&self, name: &FullName) -> &Mutex<NamesPart> {
        // Neither the bits that choose a bucket nor those that are its tag.
        &self.parts[(name.hash >> 32) as usize % NR_PARTS]
    }
}
