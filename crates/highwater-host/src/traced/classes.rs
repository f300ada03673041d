//! Which lock a task waits for, by the functions on its stack.
//!
//! A lock has no name in the kernel's events. The innermost function that is not part of the
//! locking itself takes the lock, mostly inside a small helper that the compiler may have inlined;
//! so a few functions outwards are asked for names that take locks of one class only.

/// Functions outside the locking that are asked.
const DEPTH_MAX: usize = 4;

/// A class of locks of the kernel's memory management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockClass {
    /// Free pages: zones and per-CPU lists.
    Zone,
    /// Reverse maps of files and anonymous memory.
    Rmap,
    /// LRU lists.
    Lru,
    /// Statistics and charges of memory groups.
    Memcg,
    /// Any other lock of the kernel.
    Other,
}

impl LockClass {
    /// All classes of memory management.
    pub const OF_MEMORY: [Self; 4] = [Self::Zone, Self::Rmap, Self::Lru, Self::Memcg];

    /// The name in text and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zone => "zone",
            Self::Rmap => "rmap",
            Self::Lru => "LRU",
            Self::Memcg => "memcg",
            Self::Other => "other",
        }
    }

    /// Returns the class by the functions of a stack, innermost first.
    pub fn of_stack(functions: &[&str]) -> Self {
        let mut locking = "";
        let mut asked = 0;
        for &function in functions {
            if is_locking(function) {
                locking = function;
                continue;
            }
            if let Some(class) = of_function(function, locking) {
                return class;
            }
            asked += 1;
            if asked == DEPTH_MAX {
                break;
            }
        }
        Self::Other
    }
}

/// Functions of the lock itself, and of the tracing that recorded the stack.
fn is_locking(function: &str) -> bool {
    const PARTS: [&str; 16] = [
        "spin_lock",
        "spin_rq_lock",
        "spin_trylock",
        "read_lock",
        "write_lock",
        "queued_",
        "rwsem_",
        "mutex_",
        "contention_begin",
        "trace_event_",
        "event_triggers",
        "stacktrace_trigger",
        "stack_trace",
        "osq_lock",
        "rtlock_",
        "rt_spin_",
    ];
    const WHOLE: [&str; 3] = ["__mutex_lock", "__schedule", "schedule"];
    // These take locks of memory management, and their names say so.
    let is_own = function.contains("lruvec") || function.contains("folio");
    !is_own
        && (WHOLE.contains(&function)
            || function.starts_with("down_")
            || PARTS.iter().any(|part| function.contains(part)))
}

/// Names, or beginnings of names that end in `*`, of functions that take locks of one class.
const TAKERS: [(LockClass, &[&str]); 4] = [
    (
        LockClass::Zone,
        &[
            "rmqueue*",
            "__rmqueue*",
            "free_pcppages_bulk",
            "free_one_page",
            "free_unref_*",
            "free_frozen_page*",
            "__free_frozen_page*",
            "__free_pages_ok",
            "drain_pages*",
            "drain_zone_pages",
            "drain_local_pages*",
            "decay_pcp_high",
            "get_page_from_freelist",
            "__alloc_pages_bulk",
            "alloc_pages_bulk*",
            "unreserve_highatomic*",
            "reserve_highatomic*",
            "isolate_freepages*",
            "move_freepages*",
            "nr_free_zone_pages",
        ],
    ),
    (
        LockClass::Rmap,
        &[
            "rmap_walk*",
            "__rmap_walk*",
            "folio_referenced*",
            "page_referenced*",
            "folio_lock_anon_vma_read",
            "page_lock_anon_vma_read",
            "try_to_unmap*",
            "try_to_migrate*",
            "anon_vma_*",
            "__anon_vma_*",
            "unlink_anon_vmas",
            "unlink_file_vma*",
            "vma_link*",
            "__vma_link*",
            "vma_prepare",
            "vma_complete",
            "vma_interval_tree_*",
            "__vma_adjust",
            "unmap_mapping_*",
        ],
    ),
    (
        LockClass::Lru,
        &[
            "folio_lruvec_lock*",
            "folio_lruvec_relock*",
            "lock_page_lruvec*",
            "lruvec_lock*",
            "folio_batch_move_lru",
            "pagevec_lru_*",
            "lru_add_*",
            "__pagevec_lru_add",
            "lru_note_cost*",
            "folio_activate",
            "folio_isolate_lru",
            "isolate_lru_*",
            "isolate_migratepages*",
            "shrink_inactive_list",
            "shrink_active_list",
            "shrink_lruvec",
            "move_folios_to_lru",
            "evict_folios",
            "try_to_inc_max_seq",
            "try_to_inc_min_seq",
            "inc_max_seq",
            "lru_gen_*",
            "walk_mm",
            "__page_cache_release",
            "folios_put_refs",
            "release_pages",
            "check_move_unevictable*",
        ],
    ),
    (
        LockClass::Memcg,
        &[
            "mem_cgroup_flush_stats*",
            "__mem_cgroup_flush_stats",
            "do_flush_stats",
            "cgroup_rstat_*",
            "__cgroup_rstat_*",
            "css_rstat_*",
            "__css_rstat_*",
            "try_charge*",
            "drain_all_stock",
            "drain_stock",
            "drain_obj_stock",
            "refill_stock",
            "refill_obj_stock",
            "consume_stock",
            "consume_obj_stock",
            "obj_cgroup_*",
            "uncharge_batch",
            "page_counter_*",
            "memcg_stat_*",
            "memory_stat_show",
            "mem_cgroup_css_rstat_flush",
        ],
    ),
];

fn of_function(function: &str, locking: &str) -> Option<LockClass> {
    // A fork takes the map lock of its parent, killably, and the rmap locks of its files, not so.
    if function == "dup_mmap" {
        let is_rmap = locking == "down_write";
        return Some(if is_rmap {
            LockClass::Rmap
        } else {
            LockClass::Other
        });
    }
    let is_one = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(beginning) => function.starts_with(beginning),
        None => function == *pattern,
    };
    let found = TAKERS.iter().find(|(_, names)| names.iter().any(is_one));
    found.map(|(class, _)| *class)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(stack: &str) -> LockClass {
        LockClass::of_stack(&stack.split(' ').collect::<Vec<_>>())
    }

    #[test]
    fn a_stack_is_classed_by_the_function_that_takes_the_lock() {
        let spin = "native_queued_spin_lock_slowpath _raw_spin_lock_irqsave";
        let zone = class(&format!(
            "{spin} rmqueue_bulk __rmqueue_pcplist get_page_from_freelist"
        ));
        assert_eq!(zone, LockClass::Zone);
        // The pages of a batch go to the zone, although the LRU's function frees them.
        let freed = class(&format!("{spin} free_unref_folios folios_put_refs do_exit"));
        assert_eq!(freed, LockClass::Zone);
        let lru = class(&format!(
            "{spin} folio_lruvec_lock_irqsave folio_batch_move_lru"
        ));
        assert_eq!(lru, LockClass::Lru);
        let rmap = class("rwsem_down_read_slowpath down_read rmap_walk_file folio_referenced");
        assert_eq!(rmap, LockClass::Rmap);
        let memcg = class("__mutex_lock cgroup_rstat_flush mem_cgroup_flush_stats");
        assert_eq!(memcg, LockClass::Memcg);
    }

    #[test]
    fn a_fork_waits_for_rmap_or_for_its_parent() {
        let slow = "rwsem_down_write_slowpath";
        assert_eq!(
            class(&format!("{slow} down_write dup_mmap dup_mm")),
            LockClass::Rmap
        );
        let parent = class(&format!("{slow} down_write_killable dup_mmap dup_mm"));
        assert_eq!(parent, LockClass::Other);
    }

    #[test]
    fn far_callers_decide_nothing() {
        let stack = "_raw_spin_lock d_lru_add dput a b c evict_folios try_to_shrink_lruvec";
        assert_eq!(class(stack), LockClass::Other);
        assert_eq!(class("mutex_lock pipe_write vfs_write"), LockClass::Other);
        assert_eq!(class(""), LockClass::Other);
    }
}
