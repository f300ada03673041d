//! The path of a group: its name from the root down, as cheap to keep as a handle.
//!
//! Errors and records carry paths, so that a message says `/tenant-a/query-7` although nothing is
//! allocated before it is shown. A path keeps the names of its group in memory, also after the
//! group is removed, and nothing else of it.

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::iter::successors;

use super::node::{GroupNode, Meta};
use super::tree::{Core, GroupKey, GroupTree};
use crate::sync::Arc;
use crate::units::GroupId;

/// The path of a group in its tree: `/` for the root, else such as `/tenant-a/query-42`.
///
/// Two paths are equal if they are of the same group: a later group of the same name has another.
///
/// # Cost
///
/// Cloning is one atomic addition. Showing it visits each ancestor.
#[derive(Clone)]
pub struct GroupPath {
    key: GroupKey,
    /// `None` if the group was gone, and its slot another group's, when the path was asked for.
    meta: Option<Arc<Meta>>,
}

impl GroupPath {
    pub(super) fn of(meta: &Arc<Meta>) -> Self {
        Self {
            key: meta.key,
            meta: Some(Arc::clone(meta)),
        }
    }

    /// The group's number.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.key.id
    }

    /// The group, and no later one of the same number, in a word.
    #[must_use]
    pub fn key(&self) -> GroupKey {
        self.key
    }
}

impl GroupTree {
    /// The living group of that path, such as `/tenant-a/query-42`; `/` is the root.
    ///
    /// # Cost
    ///
    /// The tree's lock for reading; O(depth x log(children)). No allocation.
    #[must_use]
    pub fn lookup(&self, path: &str) -> Option<GroupNode> {
        let names = path.strip_prefix('/')?;
        let core = &self.shared.core;
        let shape = core.shape.read();
        let mut at = GroupId(0);
        for name in names.split('/').filter(|_| !names.is_empty()) {
            at = *shape.families[at.index()].children.get(name)?;
        }
        let meta = core.slot(at).meta.read().clone();
        meta.map(|meta| GroupNode::new(&self.shared, meta))
    }
}

impl Core {
    /// The path of a group that lives or still has charges; of another one its number.
    pub(super) fn path(&self, key: GroupKey) -> GroupPath {
        let meta = self.slot(key.id).meta.read().clone();
        GroupPath {
            key,
            meta: meta.filter(|meta| meta.key == key),
        }
    }

    /// The path of the group that is number `id` at this moment.
    pub(super) fn path_now(&self, id: GroupId) -> GroupPath {
        let meta = self.slot(id).meta.read().clone();
        let gone = GroupKey { id, incarnation: 0 };
        GroupPath {
            key: meta.as_ref().map_or(gone, |meta| meta.key),
            meta,
        }
    }
}

impl fmt::Display for GroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(meta) = &self.meta else {
            return write!(f, "{} (gone)", self.key.id);
        };
        if meta.parent.is_none() {
            return f.write_str("/");
        }
        // Not allocated: as many steps up for each name as there are names above it.
        let name_at = |depth| {
            let mut up = successors(Some(&**meta), |meta| meta.parent.as_deref());
            up.find(|meta| meta.depth == depth)
        };
        (1..=meta.depth)
            .filter_map(name_at)
            .try_for_each(|meta| write!(f, "/{}", meta.name))
    }
}

impl fmt::Debug for GroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl PartialEq for GroupPath {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for GroupPath {}

/// What is left of a text to compare with: an error where they differ.
struct Rest<'a>(&'a str);

impl fmt::Write for Rest<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
        Ok(())
    }
}

impl PartialEq<str> for GroupPath {
    fn eq(&self, other: &str) -> bool {
        let mut rest = Rest(other);
        write!(rest, "{self}").is_ok() && rest.0.is_empty()
    }
}

impl PartialEq<&str> for GroupPath {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

impl Hash for GroupPath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for GroupPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
