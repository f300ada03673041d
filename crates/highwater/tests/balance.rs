//! The promise: reclaim takes the memory that is cheapest to have back. Under every policy, a small
//! file cache beside much swappable memory stays, and so does memory beside a streaming file; a
//! group's swappiness takes precedence over the pool's.

#![expect(clippy::unwrap_used, reason = "a failure shows where it was")]

mod support;

use std::sync::Arc;

use highwater::lab::reclaim::ListSizes;
use highwater::lab::reclaim::policy::{EvictionPolicy, KernelLists, PolicyKind, TwoList};
use highwater::topology::Topology;
use highwater::{Access, Backing, Group, Limits, Manager, Mapping, Pages, RssMember, Space};
use support::{TestFile, assert_empty};

const POOL: u64 = 1024;

/// Returns every eviction policy, and the kernel's rules of the two lists.
fn policies() -> Vec<Arc<dyn EvictionPolicy>> {
    let mut policies = PolicyKind::ALL.map(PolicyKind::policy).to_vec();
    policies.push(Arc::new(KernelLists::default()));
    policies
}

fn swapping(policy: &Arc<dyn EvictionPolicy>) -> Manager {
    Manager::builder()
        .capacity(Pages(POOL).bytes())
        .topology(Topology::flat(1))
        .decided_by(Arc::clone(policy))
        .readahead(Pages(0))
        .swap_on(TestFile::new(4 * POOL) as Arc<dyn Backing>)
        .build()
        .unwrap()
}

/// Maps anonymous memory of a group, written once.
fn written(hw: &Manager, group: &Group, pages: u64) -> Mapping {
    let map = hw.space(group).map_anon(Pages(pages)).unwrap();
    for page in 0..pages {
        map.write(page).unwrap()[0] = 1;
    }
    map
}

fn resident(space: &Space) -> u64 {
    space.member_precise(RssMember::Anon).0 + space.member_precise(RssMember::File).0
}

/// Maps a separate file for a group.
fn mapped(hw: &Manager, group: &Group, pages: u64) -> Mapping {
    let file = hw.open_backing(TestFile::new(pages), Access::ReadOnly);
    let space = hw.space(group);
    space.map_file(&file.unwrap(), 0..pages).unwrap()
}

fn read_all(hw: &Manager, map: &Mapping) {
    for page in 0..map.pages() {
        map.read(&hw.enter(), page).unwrap();
    }
}

/// Returns the increase of counters during `work`.
fn counted<const N: usize>(hw: &Manager, names: [&str; N], work: impl FnOnce()) -> [u64; N] {
    let before = hw.snapshot();
    work();
    let after = hw.snapshot();
    names.map(|name| after.counter(name) - before.counter(name))
}

#[test]
fn a_tiny_file_cache_is_not_emptied_beside_memory_that_can_be_swapped() {
    // Goal: when files have no more pages than the reserve, anonymous memory is reclaimed. Method:
    // a file of so few pages, read twice when memory has filled the pool; then twice the pool is
    // written: the file's pages are there, and every evicted page was swapped. Not by the kernel's
    // rules: recently written pages are scanned twice there, so that passes reach their last
    // priority, at which both types are alike.
    let policies = policies().into_iter();
    for policy in policies.filter(|policy| !policy.counts_first_access()) {
        let hw = swapping(&policy);
        let memory = written(&hw, &hw.root(), 2 * POOL);
        let watermarks = hw.snapshot().watermarks();
        let tiny = (watermarks.high - watermarks.min).0;
        assert!(tiny >= 4, "{watermarks:?}");
        let map = mapped(&hw, &hw.root(), tiny);
        (0..2).for_each(|_| read_all(&hw, &map));
        let names = ["pgsteal_file", "pgsteal_anon"];
        let mut more = None;
        let [file, anon] = counted(&hw, names, || {
            more = Some(written(&hw, &hw.root(), 2 * POOL));
        });
        assert_eq!((resident(map.space()), file), (tiny, 0), "{policy:?}");
        assert!(anon >= 2 * POOL - 64, "{policy:?}: {anon}");
        drop((map, memory, more));
        assert_empty(&hw);
    }
}

#[test]
fn memory_stays_where_a_file_streams_by() {
    // Goal: with many file pages of which none refaults, only those are evicted. Method: some
    // memory, written once and never touched again, beside a file of four times the pool, when
    // another has filled it: nothing is swapped.
    for policy in policies() {
        let hw = swapping(&policy);
        let (first, stream) = (
            mapped(&hw, &hw.root(), 2 * POOL),
            mapped(&hw, &hw.root(), 4 * POOL),
        );
        read_all(&hw, &first);
        let memory = written(&hw, &hw.root(), POOL / 8);
        let [anon, file] = counted(&hw, ["pgsteal_anon", "pgsteal_file"], || {
            read_all(&hw, &stream);
        });
        assert_eq!(
            (resident(memory.space()), anon),
            (POOL / 8, 0),
            "{policy:?}"
        );
        assert!(file >= 4 * POOL - 64, "{policy:?}: {file}");
        drop((first, stream, memory));
        assert_empty(&hw);
    }
}

#[test]
fn memory_gives_way_to_a_file_that_comes_back() {
    // Goal: the above is no privilege: when pages of a file refault soon, idle memory is swapped.
    // Method: a file that fits without that memory is read over and over.
    for policy in policies() {
        let hw = swapping(&policy);
        let memory = written(&hw, &hw.root(), POOL / 2);
        let map = mapped(&hw, &hw.root(), POOL * 3 / 4);
        (0..20).for_each(|_| read_all(&hw, &map));
        let left = resident(memory.space());
        assert!(left <= POOL * 3 / 8, "{policy:?}: {left} of {}", POOL / 2);
        drop((map, memory));
        assert_empty(&hw);
    }
}

#[test]
fn a_group_is_swapped_as_it_is_set() {
    // Goal: a group's swappiness takes precedence over the pool's, for its descendants too, and 0
    // means never. Method: a group whose setting is 0, its child, and one without a setting hold as
    // much; another writes twice the pool. Then the setting is removed.
    for policy in policies() {
        let hw = swapping(&policy);
        let child = |of: &Group, name| of.child(name, Limits::default()).unwrap();
        let kept = child(&hw.root(), "kept");
        let groups = [&kept, &child(&kept, "below"), &child(&hw.root(), "plain")].map(Group::clone);
        assert_eq!(kept.set_swappiness(Some(201)).unwrap_err().asked, 201);
        assert_eq!(groups.each_ref().map(Group::swappiness), [60; 3]);
        kept.set_swappiness(Some(0)).unwrap();
        assert_eq!(groups.each_ref().map(Group::swappiness), [0, 0, 60]);
        let held = groups.each_ref().map(|group| written(&hw, group, 150));
        let left = || held.each_ref().map(|map| resident(map.space()));
        drop(written(&hw, &child(&hw.root(), "hungry"), 2 * POOL));
        let [own, below, plain] = left();
        assert_eq!((own, below), (150, 150), "{policy:?}");
        assert!(plain < 50, "{policy:?}: {plain}");
        kept.set_swappiness(None).unwrap();
        hw.set_swappiness(100);
        assert_eq!(kept.swappiness(), 100);
        drop(written(&hw, &child(&hw.root(), "again"), 2 * POOL));
        let [own, below, _] = left();
        assert!(own + below < 150, "{policy:?}: {own} + {below}");
        drop(held);
        assert_empty(&hw);
    }
}

#[test]
fn active_memory_is_aged_though_only_files_are_looked_at() {
    // Goal: there are inactive pages when memory has to be swapped, though none is now. Method: a
    // group's memory is active after it was reclaimed from; then a file streams by, and every
    // evicted page is a file's.
    let hw = swapping(&(Arc::new(TwoList) as Arc<dyn EvictionPolicy>));
    let group = hw.root().child("busy", Limits::default()).unwrap();
    let memory = written(&hw, &group, 400);
    let is_low = |sizes: ListSizes| sizes.inactive_anon < sizes.active_anon;
    for _ in 0..50 {
        (0..400).for_each(|page| drop(memory.read_latched(page).unwrap()));
        if is_low(group.list_sizes()) {
            break;
        }
        group.reclaim(Pages(4).bytes());
    }
    let sizes = group.list_sizes();
    assert!(is_low(sizes) && sizes.active_anon > Pages(100), "{sizes:?}");
    let stream = mapped(&hw, &group, 8 * POOL);
    let names = ["pgsteal_anon", "pgscan_anon", "pswpout"];
    let went = counted(&hw, names, || read_all(&hw, &stream));
    assert_eq!(went, [0; 3]);
    let sizes = group.list_sizes();
    assert!(!is_low(sizes), "{sizes:?}");
    drop((stream, memory));
    assert_empty(&hw);
}
