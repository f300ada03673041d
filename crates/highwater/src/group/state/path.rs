//! [`GroupPath`]: the names of a group from the root down, as cheap to keep as a handle.
//!
//! Errors and records carry paths, so that a message says `/tenant-a/query-7` although nothing is
//! allocated before it is shown. A path keeps only the names of its group in memory, also after the
//! group is removed.

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};

use super::meta::{GroupKey, Meta};
use super::tree::Groups;
use crate::sync::Arc;
use crate::units::GroupId;

/// The path of a group in its tree: `/` for the root, otherwise such as `/tenant-a/query-42`.
///
/// Two paths are equal if they belong to the same group; that of a later group of the same name
/// differs.
///
/// # Cost
///
/// Cloning is one atomic addition. Displaying it visits each ancestor.
#[derive(Clone)]
pub struct GroupPath {
    key: GroupKey,
    /// `None` if the group was gone, and its slot in use by another group, when the path was
    /// requested.
    meta: Option<Arc<Meta>>,
}

impl GroupPath {
    pub(in crate::group) fn of(meta: &Arc<Meta>) -> Self {
        Self {
            key: meta.key,
            meta: Some(Arc::clone(meta)),
        }
    }

    /// Returns the group's id.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn id(&self) -> GroupId {
        self.key.id
    }

    /// Returns the key of the group, which no later group of the same id has.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn key(&self) -> GroupKey {
        self.key
    }
}

impl Groups {
    /// Returns the path of a group that lives or still has charges; otherwise a path that shows its
    /// id.
    pub(in crate::group) fn path(&self, key: GroupKey) -> GroupPath {
        let meta = self.slot(key.id).meta.read().clone();
        GroupPath {
            key,
            meta: meta.filter(|meta| meta.key == key),
        }
    }

    /// Returns the path of the group that currently has this id.
    pub(in crate::group) fn path_now(&self, id: GroupId) -> GroupPath {
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
        // Nothing is allocated: each name takes as many steps up as there are names below it.
        let name_at = |depth| meta.up().find(|meta| meta.depth == depth);
        (1..=meta.depth)
            .filter_map(name_at)
            .try_for_each(|meta| write!(f, "/{}", meta.name()))
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

/// The rest of a text to compare with; writing fails where the two differ.
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
