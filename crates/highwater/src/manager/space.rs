//! Spaces: address spaces with their mappings, paying group and resident set.

use super::group::Group;
use super::{Handle, Manager};
use crate::cache::{RssMember, SpaceEntry, SpaceId};
use crate::group::{GroupNode, StatItem};
use crate::sync::Arc;
use crate::units::{Estimate, Pages};

/// An address space: mappings of files, whose pages are charged to one group. Cheap to clone;
/// closed with its last handle or mapping.
///
/// A space counts its resident set: entries in its mappings' page tables, and with the feature
/// `lab` pages that the program counts itself. A page in several mappings counts in each. A space
/// that one CPU uses costs a few cache lines; one that many CPUs use gets words for each of them.
///
/// # Examples
///
/// ```
/// use highwater::{Bytes, Manager, Pages};
///
/// let hw = Manager::builder().capacity(Bytes::mib(16)).build()?;
/// let space = hw.space(&hw.root());
/// let memory = space.map_anon(Pages(4))?;
/// memory.write(0)?[0] = 1;
/// memory.write(1)?[0] = 1;
/// assert!(space.rss().contains(Pages(2)));
/// memory.unmap(0..4)?;
/// assert!(space.rss().contains(Pages(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Space {
    open: Arc<OpenSpace>,
}

#[derive(Debug)]
struct OpenSpace {
    shared: Handle,
    group: GroupNode,
    entry: Arc<SpaceEntry>,
}

impl Manager {
    /// Creates an address space whose pages are charged to `group`.
    ///
    /// # Panics
    ///
    /// When the group belongs to another manager.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes::mib(1)))?;
    /// let file = hw.open(source.path())?;
    /// let map = hw.space(&tenant).map_file(&file, 0..file.pages())?;
    /// map.will_need(0..3)?;
    /// assert_eq!(tenant.usage_precise(), Bytes(3 * 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn space(&self, group: &Group) -> Space {
        assert!(
            Arc::ptr_eq(group.shared(), &*self.shared),
            "the group is of another manager"
        );
        Space {
            open: Arc::new(OpenSpace {
                shared: self.shared.clone(),
                group: group.node().clone(),
                entry: self.core().cache.open_space(),
            }),
        }
    }
}

impl Space {
    /// Returns the space's number. Numbers of closed spaces are reused.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn id(&self) -> SpaceId {
        self.open.entry.id()
    }

    /// Adds `pages` to the space's resident set; a negative number subtracts. For pages that the
    /// program itself holds for the space: they are counted, not charged ([`Group::charge`]).
    ///
    /// A space that is closed with pages still counted is reported as a `tracing` error with the
    /// numbers, and in the counter `bad_rss_counter`.
    ///
    /// # Cost
    ///
    /// A plain add to a cache line of this CPU; see
    /// [`CounterSet::add`](crate::counter::CounterSet::add).
    ///
    /// # Panics
    ///
    /// For [`RssMember::File`], which the cache counts.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn add_rss(&self, member: RssMember, pages: i64) {
        assert!(
            member != RssMember::File,
            "pages of files are counted by the cache"
        );
        self.open.entry.add_of_embedder(member, pages);
        let item = match member {
            RssMember::Anon => StatItem::Anon,
            RssMember::Shmem => StatItem::Shmem,
            RssMember::File | RssMember::Swap => return,
        };
        self.open.group.add_stat(item, pages);
    }

    /// Returns the resident set (file, anonymous and shared pages) as an interval, in O(1).
    #[must_use]
    pub fn rss(&self) -> Estimate<Pages> {
        self.open.entry.approximate_rss()
    }

    /// Returns the resident set by visiting the CPUs that counted; exact when quiescent.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn rss_precise(&self) -> Pages {
        self.open.entry.precise_rss()
    }

    /// Returns the peak of the resident set. Neither end of the interval ever falls.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn peak_rss(&self) -> Estimate<Pages> {
        self.open.entry.peak_rss()
    }

    /// Returns the pages of one member as an interval, in O(1).
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn member(&self, member: RssMember) -> Estimate<Pages> {
        self.open.entry.approximate(member)
    }

    /// Returns the pages of one member by visiting the CPUs that counted; exact when quiescent.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn member_precise(&self, member: RssMember) -> Pages {
        self.open.entry.precise(member)
    }

    pub(super) fn group(&self) -> &GroupNode {
        &self.open.group
    }

    pub(super) fn entry(&self) -> &Arc<SpaceEntry> {
        &self.open.entry
    }

    pub(super) fn shared(&self) -> &Handle {
        &self.open.shared
    }
}

impl Drop for OpenSpace {
    fn drop(&mut self) {
        if let Some(residue) = self.shared.core.cache.close_space(&self.entry) {
            tracing::error!(group = %self.group.path(), %residue, "bad rss counters");
        }
    }
}
