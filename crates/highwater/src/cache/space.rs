//! Spaces: resident sets (RSS counters) of address spaces.
//!
//! A space counts four members, as the kernel does: file pages, anonymous pages, swap entries and
//! shared memory. Its resident set is the first, second and fourth. The cache counts entries of the
//! space's page tables: an entry that names a frame counts for the member of its mapping, an entry
//! of a swapped-out page as *swap*. The embedder may add pages of its own to the last three.
//!
//! **Life.** A space is open while it has mappings. When it is closed, all counts should be zero; a
//! residue is reported, with numbers. Reclaim may be about to uncount pages that it unmapped just
//! before: it holds the area, and the area holds the entry. Then the entry stays and is checked
//! again when later spaces are opened or closed, a few at a time, until its last holder is gone;
//! then it is reported and removed.
//!
//! The bounds of a read are those of the counters: [`CounterSet`], [`Peak`].

use std::collections::VecDeque;
use std::fmt;

use super::key::FileKind;
use crate::counter::{CounterSet, Layout, Peak};
use crate::percpu::Regime;
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::{Arc, LockClass, Rank, RwLock, StatCell};
use crate::topology::Topology;
use crate::units::{Estimate, Pages};

static SPACES_LOCK: LockClass = LockClass::new("spaces", Rank::Spaces);

/// Closed spaces that are checked each time a space is opened or closed. Chosen: more than one, so
/// that the backlog shrinks.
const REAPED_AT_ONCE: usize = 4;

/// A member of a space's resident set. The order is the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RssMember {
    /// Pages of files, counted by the cache.
    File,
    /// Anonymous pages.
    Anon,
    /// Anonymous pages that were swapped out since their last access through this space's mappings.
    Swap,
    /// Shared memory.
    Shmem,
}

impl RssMember {
    /// All members, in order.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const ALL: [Self; 4] = [Self::File, Self::Anon, Self::Swap, Self::Shmem];

    /// The members of the resident set.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const RESIDENT: [Self; 3] = [Self::File, Self::Anon, Self::Shmem];

    const fn index(self) -> usize {
        self as usize
    }

    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Anon => "anon",
            Self::Swap => "swap",
            Self::Shmem => "shmem",
        }
    }
}

impl From<FileKind> for RssMember {
    fn from(kind: FileKind) -> Self {
        match kind {
            FileKind::File => Self::File,
            FileKind::Anon => Self::Anon,
            FileKind::Shmem => Self::Shmem,
        }
    }
}

impl fmt::Display for RssMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Number of a space in its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub(super) u32);

impl SpaceId {
    /// No space: for pages that are not counted.
    pub const NONE: Self = Self(0);

    fn new(slot: usize) -> Self {
        Self(u32::try_from(slot + 1).expect("fewer spaces than 2^32 fit memory"))
    }

    fn slot(self) -> Option<usize> {
        (self.0 as usize).checked_sub(1)
    }
}

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S{}", self.0)
    }
}

/// A space and its counters.
#[derive(Debug)]
pub struct SpaceEntry {
    id: SpaceId,
    counters: CounterSet<4>,
    peak: Peak,
    /// Whether the embedder has counted pages of its own.
    /// Written by: the embedder's calls, once. Read by: invariant checks. Publishes: nothing; they
    /// run at quiescent moments.
    is_added_to: AtomicBool,
}

impl SpaceEntry {
    /// Returns the space's number.
    #[must_use]
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// Adds `pages` to a member; a negative number subtracts.
    ///
    /// # Cost
    ///
    /// [`CounterSet::add`], and where the resident set grows a look at three sums.
    #[inline]
    pub fn add(&self, member: RssMember, pages: i64) {
        let _ = self.counters.add(member.index(), pages);
        if pages > 0 && member != RssMember::Swap {
            self.peak.observe(self.resident());
        }
    }

    /// As [`add`](Self::add), for pages that the embedder itself holds.
    pub fn add_of_embedder(&self, member: RssMember, pages: i64) {
        // Relaxed, both: see the field. Stored once.
        if !self.is_added_to.load(Ordering::Relaxed) {
            self.is_added_to.store(true, Ordering::Relaxed);
        }
        self.add(member, pages);
    }

    /// Checks that a member equals the number of entries, unless the embedder has added to it.
    /// Requires quiescence.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub(super) fn check(&self, member: RssMember, pages: i64) {
        // Relaxed: see the field.
        if member == RssMember::File || !self.is_added_to.load(Ordering::Relaxed) {
            let counted = self.counters.precise_sum_of(&[member.index()]);
            assert_eq!(pages, counted, "{member} pages of {}", self.id);
        }
    }

    /// Returns the pages of a member as an interval, in O(1).
    ///
    /// # Accuracy
    ///
    /// [`CounterSet::approximate_sum`].
    #[must_use]
    pub fn approximate(&self, member: RssMember) -> Estimate<Pages> {
        Estimate::from(self.counters.approximate_sum_of(&[member.index()]))
    }

    /// Returns the pages of a member, by visiting every CPU that counted; exact when quiescent.
    #[must_use]
    pub fn precise(&self, member: RssMember) -> Pages {
        positive(self.counters.precise_sum_of(&[member.index()]))
    }

    /// Returns the resident set as an interval, in O(1).
    #[must_use]
    pub fn approximate_rss(&self) -> Estimate<Pages> {
        Estimate::from(self.resident())
    }

    /// Returns the resident set, by visiting every CPU that counted; exact when quiescent.
    #[must_use]
    pub fn precise_rss(&self) -> Pages {
        positive(self.counters.precise_sum_of(&RESIDENT))
    }

    /// Returns the peak of the resident set, as an interval neither end of which ever falls.
    #[must_use]
    pub fn peak_rss(&self) -> Estimate<Pages> {
        Estimate::from(self.peak.get())
    }

    fn resident(&self) -> Estimate<i64> {
        self.counters.approximate_sum_of(&RESIDENT)
    }

    /// Returns the counts that are not back to zero.
    fn residue(&self) -> Option<RssResidue> {
        let sums = RssMember::ALL.map(|member| self.counters.precise_sum(member.index()));
        let is_clean = sums.iter().all(|sum| *sum == 0);
        (!is_clean).then_some(RssResidue {
            space: self.id,
            sums,
        })
    }
}

const RESIDENT: [usize; 3] = [
    RssMember::RESIDENT[0].index(),
    RssMember::RESIDENT[1].index(),
    RssMember::RESIDENT[2].index(),
];

/// A sum that others' counting may make negative for a moment.
fn positive(sum: i64) -> Pages {
    Estimate::from(Estimate::exact(sum)).value
}

/// A space was closed with pages still counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssResidue {
    /// The space.
    pub space: SpaceId,
    /// The residue of each member, in the order of [`RssMember::ALL`].
    pub sums: [i64; 4],
}

impl fmt::Display for RssResidue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was closed with", self.space)?;
        for (member, sum) in RssMember::ALL.iter().zip(self.sums) {
            if sum != 0 {
                write!(f, " {member}:{sum}")?;
            }
        }
        Ok(())
    }
}

/// The table of spaces, by number.
#[derive(Debug)]
pub(super) struct Spaces {
    table: RwLock<Table>,
    layout: Arc<Layout>,
    nr_residues: StatCell,
}

#[derive(Debug, Default)]
struct Table {
    /// By slot.
    entries: Vec<Option<Arc<SpaceEntry>>>,
    unused: Vec<usize>,
    closed: VecDeque<ClosedSpace>,
}

/// A closed space, until its last holder is gone and its residue is certain.
#[derive(Debug)]
struct ClosedSpace {
    entry: Arc<SpaceEntry>,
    is_certain: bool,
    /// To be reported.
    residue: Option<RssResidue>,
}

impl ClosedSpace {
    /// Determines the residue if the entry has only `holders` references; returns whether it is
    /// certain now.
    fn settle(&mut self, holders: usize) -> bool {
        if self.is_certain || Arc::strong_count(&self.entry) > holders {
            return self.is_certain;
        }
        // Acquire. Pairs with: the release with which other threads drop the entry, after they
        // counted.
        fence(Ordering::Acquire);
        (self.residue, self.is_certain) = (self.entry.residue(), true);
        true
    }
}

impl Spaces {
    pub(super) fn new(topology: &Topology, regime: Regime) -> Self {
        Self {
            table: RwLock::new(&SPACES_LOCK, Table::default()),
            layout: Layout::new(topology, regime),
            nr_residues: StatCell::new(),
        }
    }

    pub(super) fn open(&self) -> Arc<SpaceEntry> {
        let mut table = self.table.write();
        let gone = table.reap();
        let slot = table.unused.pop().unwrap_or(table.entries.len());
        let entry = Arc::new(SpaceEntry {
            id: SpaceId::new(slot),
            counters: CounterSet::new(&self.layout),
            peak: Peak::new(),
            is_added_to: AtomicBool::new(false),
        });
        if slot == table.entries.len() {
            table.entries.push(None);
        }
        table.entries[slot] = Some(Arc::clone(&entry));
        drop(table);
        self.forget(gone);
        entry
    }

    /// Closes a space without mappings. Returns its residue, if that is certain now.
    pub(super) fn close(&self, entry: &Arc<SpaceEntry>) -> Option<RssResidue> {
        let mut table = self.table.write();
        let mut closed = ClosedSpace {
            entry: Arc::clone(entry),
            is_certain: false,
            residue: None,
        };
        // The table, the caller, and this.
        closed.settle(3);
        let residue = closed.residue.take();
        table.closed.push_back(closed);
        let gone = table.reap();
        drop(table);
        self.nr_residues.add(u64::from(residue.is_some()));
        self.forget(gone);
        residue
    }

    /// Reports the residues of spaces that were closed before.
    fn forget(&self, gone: [Option<ClosedSpace>; REAPED_AT_ONCE]) {
        for residue in gone.iter().flatten().filter_map(|closed| closed.residue) {
            self.nr_residues.add(1);
            tracing::error!(%residue, "bad rss counters");
        }
    }

    pub(super) fn nr_residues(&self) -> u64 {
        self.nr_residues.get()
    }

    /// Returns the spaces that are open or have pages in the cache.
    pub(super) fn all(&self) -> Vec<Arc<SpaceEntry>> {
        self.table
            .read()
            .entries
            .iter()
            .flatten()
            .cloned()
            .collect()
    }
}

impl Table {
    /// Removes closed spaces without holders from the table.
    fn reap(&mut self) -> [Option<ClosedSpace>; REAPED_AT_ONCE] {
        let mut gone = [const { None }; REAPED_AT_ONCE];
        for gone in &mut gone {
            let Some(mut closed) = self.closed.pop_front() else {
                break;
            };
            // The table, and this.
            let is_held = Arc::strong_count(&closed.entry) > 2;
            if is_held || !closed.settle(2) {
                self.closed.push_back(closed);
                continue;
            }
            let slot = closed.entry.id.slot().expect("an entry has a slot");
            self.entries[slot] = None;
            self.unused.push(slot);
            *gone = Some(closed);
        }
        gone
    }
}
