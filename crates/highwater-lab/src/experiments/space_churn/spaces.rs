//! The designs: counters of one space, and a group, each from its creation to its end.
//!
//! Every design counts [`MEMBERS`] numbers. The published ones are here only as far as creation,
//! counting and the end need it; their reads are in `baselines`.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use highwater::counter::{CounterSet, Layout};
use highwater::group::{GroupNode, GroupTree, Limits};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::{Bytes, CpuId};

use super::per_cpu_areas::{Area, PerCpuAreas};

/// Counters of a space: files, anonymous, swap, shared memory.
pub(super) const MEMBERS: usize = 4;

/// Where a design makes spaces.
pub(super) trait Maker: Sync {
    /// Returns an empty space, for a number of CPUs.
    fn make(&self, nr_cpus: usize) -> Box<dyn Space + '_>;

    /// Returns how often a lock that all spaces share was taken; `None` where the design has none.
    fn locked(&self) -> Option<u64>;
}

/// Counters of one space, or a group. Dropping it ends it.
pub(super) trait Space: Send {
    /// Counts pages as a thread on `cpu`, the only one that runs there.
    fn add(&self, cpu: CpuId, pages: i64);

    /// Returns the sum of all additions.
    fn sum(&self) -> i64;

    /// Returns its memory in its authors' layout, now; `None` for the library's own, which the
    /// experiment measures.
    fn bytes(&self) -> Option<u64>;
}

/// The flat per-CPU counters of Linux since 6.2, four in one area.
pub(super) struct FlatMaker(Arc<PerCpuAreas>);

struct Flat {
    area: Area,
    /// Lock and total of each counter, 40 bytes in the kernel.
    totals: [AtomicI64; MEMBERS],
}

/// The kernel's words have 32 bits.
const FLAT_WORDS: usize = MEMBERS / 2;
/// A `struct percpu_counter`: lock, count, list, pointer.
const FLAT_HEAD: u64 = 40;

impl FlatMaker {
    pub(super) fn new(nr_cpus: usize, spaces: usize) -> Self {
        Self(PerCpuAreas::new(nr_cpus, FLAT_WORDS, spaces))
    }

    fn flat(&self) -> Flat {
        Flat {
            area: self.0.allocate(),
            totals: Default::default(),
        }
    }
}

impl Maker for FlatMaker {
    fn make(&self, _: usize) -> Box<dyn Space + '_> {
        Box::new(self.flat())
    }

    fn locked(&self) -> Option<u64> {
        Some(self.0.locked())
    }
}

impl Space for Flat {
    fn add(&self, cpu: CpuId, pages: i64) {
        // Relaxed: sums are read at rest. Two counters share a word; the experiment uses one.
        let word = &self.area.words(cpu.index())[0];
        let now = word.fetch_add(pages, Ordering::Relaxed) + pages;
        let batch = 2 * self.area.nr_cpus().max(16) as u64;
        if now.unsigned_abs() >= batch {
            word.fetch_sub(now, Ordering::Relaxed);
            self.totals[0].fetch_add(now, Ordering::Relaxed);
        }
    }

    fn sum(&self) -> i64 {
        let word = |cpu| self.area.words(cpu)[0].load(Ordering::Relaxed);
        let parked: i64 = (0..self.area.nr_cpus()).map(word).sum();
        parked + self.totals[0].load(Ordering::Relaxed)
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.area.bytes() + MEMBERS as u64 * FLAT_HEAD)
    }
}

/// The published tree: words of 8 bytes, and for each counter a line for each node.
pub(super) struct TreeMaker {
    areas: Arc<PerCpuAreas>,
    /// Nodes of each level, from the lowest; the root is the last.
    widths: Vec<usize>,
}

struct Tree {
    area: Area,
    nodes: Box<[Line]>,
    widths: Vec<usize>,
}

#[derive(Default)]
#[repr(align(64))]
struct Line(AtomicI64);

/// Pages between two carries of a word.
const BATCH: i64 = 32;

impl TreeMaker {
    pub(super) fn new(nr_cpus: usize, spaces: usize) -> Self {
        // Fan-ins of 8, the last one smaller: 64, 8 and 1 nodes for 257 to 512 CPUs.
        let mut widths = Vec::new();
        let mut width = nr_cpus.next_power_of_two();
        while width > 1 {
            width = width.div_ceil(8);
            widths.push(width);
        }
        Self {
            areas: PerCpuAreas::new(nr_cpus, MEMBERS, spaces),
            widths,
        }
    }
}

impl Maker for TreeMaker {
    fn make(&self, _: usize) -> Box<dyn Space + '_> {
        let lines = MEMBERS * self.widths.iter().sum::<usize>();
        Box::new(Tree {
            area: self.areas.allocate(),
            nodes: (0..lines).map(|_| Line::default()).collect(),
            widths: self.widths.clone(),
        })
    }

    fn locked(&self) -> Option<u64> {
        Some(self.areas.locked())
    }
}

impl Space for Tree {
    fn add(&self, cpu: CpuId, pages: i64) {
        let mut word = &self.area.words(cpu.index())[0];
        let (mut amount, mut modulus, mut begin) = (pages, BATCH, 0);
        for width in &self.widths {
            // Relaxed: a carry depends on its own addition alone.
            let old = word.fetch_add(amount, Ordering::Relaxed);
            amount =
                (old + amount).div_euclid(modulus) * modulus - old.div_euclid(modulus) * modulus;
            if amount == 0 {
                return;
            }
            word = &self.nodes[begin + cpu.index() % width].0;
            begin += width;
            modulus *= 8;
        }
        word.fetch_add(amount, Ordering::Relaxed);
    }

    fn sum(&self) -> i64 {
        let word = |cpu| self.area.words(cpu)[0].load(Ordering::Relaxed);
        (0..self.area.nr_cpus()).map(word).sum()
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.area.bytes() + size_of_val(&*self.nodes) as u64)
    }
}

/// The dual-mode counters as proposed: a plain word of the thread that owns the space and an atomic
/// one for others, until a second thread runs in it; flat ones from there on.
pub(super) struct DualMaker(FlatMaker);

struct Dual<'a> {
    maker: &'a FlatMaker,
    /// The CPU of the owner, plus 1.
    owner: AtomicUsize,
    local: [AtomicI64; MEMBERS],
    remote: [AtomicI64; MEMBERS],
    flat: OnceLock<Flat>,
}

impl DualMaker {
    pub(super) fn new(nr_cpus: usize, spaces: usize) -> Self {
        Self(FlatMaker::new(nr_cpus, spaces))
    }
}

impl Maker for DualMaker {
    fn make(&self, _: usize) -> Box<dyn Space + '_> {
        Box::new(Dual {
            maker: &self.0,
            owner: AtomicUsize::new(0),
            local: Default::default(),
            remote: Default::default(),
            flat: OnceLock::new(),
        })
    }

    fn locked(&self) -> Option<u64> {
        self.0.locked()
    }
}

impl Space for Dual<'_> {
    fn add(&self, cpu: CpuId, pages: i64) {
        if let Some(flat) = self.flat.get() {
            return flat.add(cpu, pages);
        }
        // Relaxed: the experiment's threads take turns in a space.
        let me = cpu.index() + 1;
        let owner = self.owner.load(Ordering::Relaxed);
        if owner == 0 {
            self.owner.store(me, Ordering::Relaxed);
        } else if owner != me {
            return self.flat.get_or_init(|| self.maker.flat()).add(cpu, pages);
        }
        let local = &self.local[0];
        local.store(local.load(Ordering::Relaxed) + pages, Ordering::Relaxed);
    }

    fn sum(&self) -> i64 {
        let own = [&self.local[0], &self.remote[0]].map(|word| word.load(Ordering::Relaxed));
        own.iter().sum::<i64>() + self.flat.get().map_or(0, Space::sum)
    }

    fn bytes(&self) -> Option<u64> {
        let own = size_of_val(&self.local) + size_of_val(&self.remote);
        let flat = self.flat.get().map_or(Some(0), Space::bytes);
        flat.map(|flat| flat + own as u64)
    }
}

/// The library's counters of a space.
pub(super) struct SetMaker(Arc<Layout>);

impl SetMaker {
    pub(super) fn new(topology: &Topology) -> Self {
        Self(Layout::new(topology, Regime::Atomic))
    }
}

impl Maker for SetMaker {
    fn make(&self, _: usize) -> Box<dyn Space + '_> {
        Box::new(CounterSet::<MEMBERS>::new(&self.0))
    }

    /// The module of counters has no lock at all (`tests::the_counters_have_no_lock`): the layout
    /// counts blocks in an atomic.
    fn locked(&self) -> Option<u64> {
        None
    }
}

impl Space for CounterSet<MEMBERS> {
    fn add(&self, cpu: CpuId, pages: i64) {
        self.at(cpu).add(0, pages);
    }

    fn sum(&self) -> i64 {
        self.precise_sum(0)
    }

    fn bytes(&self) -> Option<u64> {
        None
    }
}

/// The library's groups: below one tenant, as queries are.
pub(super) struct GroupMaker {
    /// For groups that one CPU uses: that on which the thread runs.
    own: Tenant,
    /// For groups that many virtual CPUs use.
    acting: Tenant,
    names: Vec<String>,
}

thread_local! {
    /// The name of this thread's next group: the threads begin far apart.
    static NEXT_NAME: Cell<usize> = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: a count.
        Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) * 1021)
    };
}

/// A tree with the group below which others come and go.
struct Tenant {
    tree: GroupTree,
    node: GroupNode,
}

struct Group<'a> {
    tenant: &'a Tenant,
    /// Whether virtual CPUs use it.
    is_acted_for: bool,
    node: GroupNode,
}

impl Tenant {
    fn new(regime: Regime, nr_cpus: usize) -> Self {
        let tree = GroupTree::with_regime(regime, nr_cpus);
        let node = tree.root().child("tenant", Limits::default());
        Self {
            node: node.expect("a name that is free"),
            tree,
        }
    }
}

impl GroupMaker {
    pub(super) fn new(nr_cpus: usize, spaces: usize) -> Self {
        Self {
            own: Tenant::new(Regime::Restartable, nr_cpus),
            acting: Tenant::new(Regime::Atomic, nr_cpus),
            // More than are kept.
            names: (0..2 * spaces).map(|nth| format!("q{nth}")).collect(),
        }
    }
}

impl Maker for GroupMaker {
    fn make(&self, nr_cpus: usize) -> Box<dyn Space + '_> {
        let is_acted_for = nr_cpus > 1;
        let tenant = match is_acted_for {
            true => &self.acting,
            false => &self.own,
        };
        // A name may be in use by another thread.
        let mut nodes = std::iter::from_fn(|| {
            let nth = NEXT_NAME.get();
            NEXT_NAME.set(nth + 1);
            let name = &self.names[nth % self.names.len()];
            Some(tenant.node.child(name, Limits::default()))
        });
        Box::new(Group {
            tenant,
            is_acted_for,
            node: nodes.find_map(Result::ok).expect("nothing else fails"),
        })
    }

    /// The lock of the tree. (Each name takes one of 64 locks besides, for a few instructions.)
    fn locked(&self) -> Option<u64> {
        Some(self.own.tree.nr_shape_locks() + self.acting.tree.nr_shape_locks())
    }
}

impl Space for Group<'_> {
    fn add(&self, cpu: CpuId, pages: i64) {
        let bytes = Bytes(pages.unsigned_abs() * Bytes::PAGE.0);
        let here = &self.node;
        let there = self.is_acted_for.then(|| here.at(cpu));
        if pages < 0 {
            return there.map_or_else(|| here.uncharge(bytes), |there| there.uncharge(bytes));
        }
        let charge = match there {
            Some(there) => there.try_charge(bytes),
            None => here.try_charge(bytes),
        };
        let _charged = charge.expect("no limit").disown();
    }

    fn sum(&self) -> i64 {
        (self.node.usage_precise().0 / Bytes::PAGE.0).cast_signed()
    }

    fn bytes(&self) -> Option<u64> {
        None
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // Nothing is below it, and nothing else removes it.
        let removed = self.tenant.tree.remove(&self.node);
        debug_assert!(removed.is_ok(), "{removed:?}");
    }
}
