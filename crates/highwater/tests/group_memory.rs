//! "A group that `k` CPUs have used costs O(k)": the memory of 50,000 groups on a machine of 384
//! CPUs.
#![expect(unsafe_code, reason = "counts the allocator's calls")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use highwater::group::{GroupTree, Limits, StatItem, Tolerance};
use highwater::units::{CpuId, Pages};

/// Bytes in use, with each allocation rounded up as the C library's allocator does: a header of 8
/// bytes, and multiples of 16.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

const fn size_of_chunk(layout: Layout) -> usize {
    let aligned = if layout.align() > 16 {
        layout.align()
    } else {
        0
    };
    (layout.size() + 8 + aligned).next_multiple_of(16)
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    /// # Safety
    ///
    /// As for the trait.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(size_of_chunk(layout), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    ///
    /// As for the trait.
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(size_of_chunk(layout), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

#[test]
fn fifty_thousand_groups_on_384_cpus_stay_below_200_mib() {
    // Goal: memory follows the CPUs that a group was used on, not those of the machine. Method:
    // 50,000 groups below 50 parents, each charged and counted on 2 of 384 CPUs that are far apart,
    // flushed, with handles and charges kept; bytes requested from the allocator, its own overhead
    // included.
    const GROUPS: u32 = 50_000;
    let mut groups = Vec::with_capacity(GROUPS as usize);
    let mut charges = Vec::with_capacity(2 * GROUPS as usize);
    let before = in_use();
    let tree = GroupTree::new(384);
    let parents: Vec<_> = (0..50)
        .map(|nth| {
            tree.root()
                .child(&format!("p{nth}"), Limits::default())
                .unwrap()
        })
        .collect();
    for nth in 0..GROUPS {
        let parent = &parents[nth as usize % parents.len()];
        let limits = Limits::max(Pages(1000).bytes());
        let group = parent.child(&format!("g{nth}"), limits).unwrap();
        for cpu in [nth % 384, (nth * 7 + 191) % 384] {
            charges.push(group.at(CpuId(cpu)).try_charge(Pages(3).bytes()).unwrap());
            group.at(CpuId(cpu)).add_stat(StatItem::Anon, 3);
            group.at(CpuId(cpu)).add_stat(StatItem::Pgfault, 1);
        }
        groups.push(group);
    }
    let root = tree.root();
    let stats = root.read_stats(Tolerance::EXACT, std::time::Duration::ZERO);
    assert_eq!(stats.get(StatItem::Anon), i64::from(GROUPS) * 6);
    assert_eq!(stats.get(StatItem::Pgfault), i64::from(GROUPS) * 2);
    let used = in_use() - before;
    println!(
        "{} MiB, {} bytes for each group",
        used >> 20,
        used / GROUPS as usize
    );
    assert!(used < 200 << 20, "{} MiB", used >> 20);
}
