//! The interval tree against a list, and page tables against a map.

use std::collections::{BTreeMap, BTreeSet};

use super::super::table::{Installed, PageTable};
use super::super::*;
use super::*;
use crate::group::{GroupTree, Limits};

/// Storage that the tests do not read.
#[derive(Debug)]
struct Nothing;

impl Backing for Nothing {
    fn len(&self) -> u64 {
        1 << 40
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn write_page(&self, _: FilePage, buf: &[u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Scene {
    cache: PageCache,
    file: Arc<FileEntry>,
    groups: GroupTree,
}

impl Scene {
    fn new() -> Self {
        let memory = Arc::new(FrameMemory::new(Pages(16)).expect("a small range"));
        let topology = Topology::flat(1);
        let cache = PageCache::new(memory, &topology, Regime::Atomic);
        let file = cache.open(Arc::new(Nothing), Access::ReadOnly);
        let file = file.expect("the first file");
        let groups = GroupTree::with_regime(Regime::Atomic, 1);
        Self {
            cache,
            file,
            groups,
        }
    }

    fn spec(&self, pages: Range<u64>) -> AreaSpec {
        AreaSpec {
            file: Arc::clone(&self.file),
            space: self.cache.open_space(),
            group: self.groups.root(),
            pages: FilePage::range(pages),
            member: RssMember::File,
        }
    }
}

#[test]
fn accesses_of_other_groups_are_left_for_their_look() {
    // Goal: a look on behalf of a group counts no access by another one, and loses none. Method: a
    // page that areas of two groups have accessed, taken within each.
    let scene = Scene::new();
    let [one, other] = ["one", "other"].map(|name| {
        let group = scene.groups.root().child(name, Limits::default());
        group.expect("a new name")
    });
    let frame = scene.cache.memory.claim(Pfn(0));
    let page = PageKey::new(scene.file.id(), FilePage(0));
    let filling = scene.cache.begin_fill(page, frame, one.id());
    scene
        .cache
        .finish_fill(filling.expect("it is not in the cache"));
    for group in [&one, &other] {
        let area = scene.cache.map(AreaSpec {
            group: group.clone(),
            ..scene.spec(0..1)
        });
        scene.cache.install(&area, MapPage(0), Pfn(0));
    }
    let take = |within| scene.cache.take_accesses(Pfn(0), within);
    assert_eq!([take(Some(&one)), take(Some(&one))], [1, 0]);
    assert_eq!([take(None), take(None)], [1, 0], "the other group's");
}

fn depth(tree: &Tree) -> usize {
    tree.as_ref().map_or(0, |node| node.depth(depth))
}

#[test]
fn the_tree_agrees_with_a_list() {
    // Goal: the tree finds every area that maps a page, and no other, and an old root is immutable.
    // Method: insert and remove random ranges, beside a list; stabs everywhere; search an old root
    // again later.
    let scene = Scene::new();
    let mut rng = crate::seed::rng(31);
    let mut tree: Tree = None;
    let mut list: Vec<(Range<u64>, Arc<VmArea>)> = Vec::new();
    let stab = |tree: &Tree, page| {
        let mut found = Vec::new();
        tree::for_each_of(tree, page, &mut |area| found.push(area.number()));
        found.sort_unstable();
        found
    };
    let stab_list = |list: &[(Range<u64>, Arc<VmArea>)], page| {
        let areas = list.iter().filter(|(pages, _)| pages.contains(&page));
        let mut found: Vec<u64> = areas.map(|(_, area)| area.number()).collect();
        found.sort_unstable();
        found
    };
    let mut former = None;
    for step in 0..4000 {
        if list.len() < 400 && (list.is_empty() || rng.u8(..) < 140) {
            let start = rng.u64(..1000);
            let most = if rng.bool() { 4 } else { 500 };
            let pages = start..start + 1 + rng.u64(..most);
            let area = Arc::new(VmArea::new(scene.spec(pages.clone()), step, 1));
            tree = tree::with(&tree, FilePage::range(pages.clone()), &area);
            list.push((pages, area));
        } else {
            let (pages, area) = list.swap_remove(rng.usize(..list.len()));
            tree = tree::without(&tree, FilePage(pages.start), &area);
        }
        let page = rng.u64(..1500);
        assert_eq!(
            stab(&tree, FilePage(page)),
            stab_list(&list, page),
            "step {step}"
        );
        if step % 200 == 0 {
            if let Some((tree, list)) = former.replace((tree.clone(), list.clone())) {
                for page in 0..1500 {
                    assert_eq!(
                        stab(&tree, FilePage(page)),
                        stab_list(&list, page),
                        "of an old root"
                    );
                }
            }
            // For random trees: 2.99 log2(n) on average (Devroye, 1986); 26 at 400 nodes.
            assert!(depth(&tree) <= 50, "{} deep", depth(&tree));
        }
    }
}

#[test]
fn parts_of_areas_are_found_until_they_are_unmapped() {
    // Goal: splitting an area loses nothing and keeps nothing that was unmapped. Method: random
    // unmaps of one area, beside a set of pages; look every page up after each.
    let mut rng = crate::seed::rng(32);
    for _ in 0..20 {
        let scene = Scene::new();
        let area = scene.cache.map(scene.spec(100..400));
        let beside = scene.cache.map(scene.spec(0..1000));
        let mut mapped = [true; 300];
        for _ in 0..20 {
            let start = rng.u64(..300);
            let pages = start..start + rng.u64(..=(300 - start).min(60));
            let range = MapPage::range(pages.clone());
            scene.cache.unmap(&area, range, |_, _| ());
            for page in pages {
                mapped[usize::try_from(page).unwrap()] = false;
            }
            let tree = scene.file.rmap.snapshot();
            for (page, &is_mapped) in (0..).zip(&mapped) {
                let mut found = Vec::new();
                tree::for_each_of(&tree, FilePage(100 + page), &mut |area| {
                    found.push(area.number())
                });
                assert_eq!(found.contains(&area.number()), is_mapped, "page {page}");
                assert!(found.contains(&beside.number()));
                assert_eq!(area.is_hole(MapPage(page)), !is_mapped);
            }
        }
        scene
            .cache
            .unmap(&area, MapPage(0)..MapPage(300), |_, _| ());
        scene
            .cache
            .unmap(&beside, MapPage(0)..MapPage(1000), |_, _| ());
        assert!(!scene.file.is_mapped());
        scene.cache.check_invariants();
    }
}

#[test]
fn tables_agree_with_a_map() {
    // Goal: an entry reads back as written, in any leaf. Method: random transitions of entries in
    // tables of all shapes, beside a map.
    let mut rng = crate::seed::rng(33);
    for len in [
        1,
        511,
        512,
        513,
        5000,
        (1 << 18) + 300,
        1 << 30,
        1 << 34,
        1 << 44,
    ] {
        let table = PageTable::new(len, 2);
        let mut model: BTreeMap<u64, Option<Pfn>> = BTreeMap::new();
        for _ in 0..3000 {
            // Few distinct places, so that a large table allocates few leaves.
            let page = (rng.u64(..20) * (len / 20) + rng.u64(..200)) % len;
            let pfn = Pfn(rng.u32(..1000));
            match (rng.u8(..20), model.get(&page).copied()) {
                (0, _) => {
                    // Sometimes a whole leaf of a table of the middle length.
                    let page = if rng.bool() { page } else { page & !511 };
                    let end = (page + rng.u64(..1400)).min(len);
                    let mut taken = Vec::new();
                    table.punch(page..end, |page, was| taken.push((page, was.pfn())));
                    let held = model.range(page..end).filter(|(_, pfn)| pfn.is_some());
                    let held: Vec<_> = held.map(|(&page, &pfn)| (page, pfn)).collect();
                    assert_eq!(taken, held);
                    for page in page..end {
                        model.insert(page, None);
                    }
                }
                (1..12, None) => {
                    assert_eq!(table.install(page, pfn), Installed::Now(Entry::ABSENT));
                    model.insert(page, Some(pfn));
                }
                (_, None) => assert_eq!(table.get(page), Entry::ABSENT),
                (_, Some(None)) => assert_eq!(table.install(page, pfn), Installed::Hole),
                (1..8, Some(Some(there))) => {
                    assert_eq!(table.clear(page, Pfn(there.0 + 1), Left::Absent), None);
                    assert!(table.clear(page, there, Left::Absent).is_some());
                    model.remove(&page);
                }
                (_, Some(Some(there))) => {
                    assert_eq!(table.install(page, there), Installed::Before);
                    let seen = table.get(page);
                    table.touch(page, seen);
                    let young = table.get(page).young();
                    assert_eq!(young, (seen.young() + 1).min(2));
                    let often = table.get(page).often_accessed();
                    assert_eq!(often, (young == 2).then_some(there));
                    assert_eq!(table.take_young(page, there), young);
                    assert_eq!(table.get(page).young(), 0);
                }
            }
            let want = model.get(&page).copied();
            assert_eq!(table.get(page).pfn(), want.flatten());
            let at_once = table.get_at_once(page);
            assert!(at_once.is_none_or(|entry| entry.pfn() == want.flatten()));
            assert_eq!(table.is_hole(page), want == Some(None));
        }
        // Behind the end.
        for page in [len, len + 1, 2 * len + 512, u64::MAX] {
            assert_eq!(
                (table.get(page), table.is_hole(page)),
                (Entry::ABSENT, false)
            );
            table.touch(page, Entry::ABSENT);
        }
    }
}

#[test]
fn a_table_of_64_pib_is_walked_and_punched_at_once() {
    // Goal: the unused part of a long table costs neither memory nor time. Method: a few pages of a
    // table whose leaves would fill 2^47 bytes, visited by every kind of walk; only subtrees that
    // contain these pages are visited.
    let len = 1 << 44;
    let table = PageTable::new(len, 2);
    let pages = [0, 1 << 32, (1 << 32) + 5, 1 << 43, len - 1];
    let install = || {
        for (page, pfn) in pages.into_iter().zip(0..) {
            assert_eq!(table.install(page, Pfn(pfn)), Installed::Now(Entry::ABSENT));
        }
    };
    assert_eq!(table.nr_nodes(), 0);
    install();
    // Four leaves, and two nodes above each.
    assert_eq!(table.nr_nodes(), 12);
    let mut seen = Vec::new();
    table.for_each(|page, _| seen.push(page));
    assert_eq!(seen, pages);
    assert_eq!(table.take_swapped(0..len, |_| false), 0);
    let mut zapped = Vec::new();
    table.zap(0..len, |was| zapped.push(was.pfn()));
    assert_eq!(zapped, [0, 1, 2, 3, 4].map(|pfn| Some(Pfn(pfn))));
    assert_eq!(table.nr_nodes(), 0);
    install();
    let mut taken = Vec::new();
    table.punch(1..len, |page, _| taken.push(page));
    assert_eq!(taken, pages[1..]);
    for page in [1, 1 << 33, (1 << 43) + 1, len - 1] {
        assert!(table.is_hole(page), "page {page}");
        assert_eq!(table.install(page, Pfn(9)), Installed::Hole);
    }
    assert_eq!(table.get(0).pfn(), Some(Pfn(0)));
    // What is full of holes needs no node: those of page 0 are left.
    assert_eq!(table.nr_nodes(), 3);
    table.punch(0..1, |_, _| ());
    assert_eq!(table.nr_nodes(), 3);
    table.punch(0..len, |page, _| panic!("page {page} was a hole"));
    assert_eq!(table.nr_nodes(), 0);
    assert!(table.is_hole(0) && table.is_hole(len - 1));
}

#[test]
fn leaves_go_with_their_last_entry() {
    // Goal: a table has no more leaves than entries in use, and as many nodes above each as it has
    // levels, whatever was in use before. Method: random pages of tables of each depth come and go,
    // some by way of swap; what is in use is counted after each step.
    let mut rng = crate::seed::rng(34);
    for (len, levels) in [(1_u64 << 20, 0_usize), (1 << 30, 1), (1 << 44, 2)] {
        let table = PageTable::new(len, 2);
        let mut used = BTreeMap::new();
        for round in 0..4000 {
            let is_growing = round % 1000 < 500;
            if rng.u8(..4) > 0 || used.is_empty() {
                let (page, pfn) = (rng.u64(..len), Pfn(rng.u32(..1000)));
                if is_growing && !used.contains_key(&page) {
                    assert_eq!(table.install(page, pfn), Installed::Now(Entry::ABSENT));
                    used.insert(page, pfn);
                }
            }
            if (!is_growing || rng.bool())
                && let Some((page, pfn)) = used.pop_first()
            {
                let is_swap = rng.bool();
                let left = if is_swap { Left::Swapped } else { Left::Absent };
                assert!(table.clear(page, pfn, left).is_some());
                let was_swapped = table.take_swapped(page..page + 1, |_| false);
                assert_eq!(was_swapped, i64::from(is_swap));
            }
            let leaves = BTreeSet::from_iter(used.keys().map(|page| page >> 9));
            let nodes = table.nr_nodes();
            assert!(nodes >= leaves.len(), "{nodes} for {} leaves", leaves.len());
            assert!(
                nodes <= leaves.len() * (levels + 1),
                "{nodes} for {} leaves",
                leaves.len()
            );
        }
        for (page, pfn) in used {
            assert!(table.clear(page, pfn, Left::Absent).is_some());
        }
        assert_eq!(table.nr_nodes(), 0);
    }
}

#[test]
fn leaves_come_and_go_beside_readers() {
    // Goal: no entry is lost or found elsewhere while leaves become others, and readers see no page
    // but as it was at some time. Method: threads, each with pages of its own that share leaves
    // with others', install and clear them; one reads all of them, and pages that are holes.
    const THREADS: u64 = 3;
    let len = 1 << 30;
    let table = PageTable::new(len, 2);
    let hole = |nth: u64| (nth * 40 + 11) << 18;
    for nth in 0..8 {
        table.punch(hole(nth)..hole(nth) + 1, |_, _| ());
    }
    let page = |place: u64, thread: u64| ((place % 8) << 18) + ((place / 8) << 9) + thread;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers = (0..THREADS).map(|thread| {
            let table = &table;
            scope.spawn(move || {
                let mut rng = crate::seed::rng(35 + thread);
                let mut has = [false; 16];
                for _ in 0..20_000 {
                    let place = rng.u64(..16);
                    let (page, pfn) = (page(place, thread), Pfn(u32::try_from(place).unwrap()));
                    let has = &mut has[usize::try_from(place).unwrap()];
                    assert_eq!(table.get(page).pfn(), has.then_some(pfn));
                    match *has {
                        true => assert!(table.clear(page, pfn, Left::Absent).is_some()),
                        false => {
                            assert_eq!(table.install(page, pfn), Installed::Now(Entry::ABSENT))
                        }
                    }
                    *has = !*has;
                }
                for (place, _) in (0..).zip(has).filter(|(_, has)| *has) {
                    let pfn = Pfn(u32::try_from(place).unwrap());
                    assert!(
                        table
                            .clear(page(place, thread), pfn, Left::Absent)
                            .is_some()
                    );
                }
            })
        });
        let workers: Vec<_> = workers.collect();
        scope.spawn(|| {
            let mut nth = 0;
            while !is_over.load(Ordering::Relaxed) {
                nth += 1;
                assert!(table.is_hole(hole(nth % 8)));
                assert!(!table.is_hole(page(nth % 16, nth % THREADS)));
                // Becomes holes as a whole, with pages that were holes before.
                let leaf = hole(nth % 8) & !511;
                if nth < 8 * 1000 && nth.is_multiple_of(1000) {
                    table.punch(leaf..leaf + 512, |page, _| panic!("page {page} was in use"));
                }
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    table.for_each(|page, entry| panic!("page {page}: {entry:?}"));
    // The holes, each with a node above, of those that are not holes as a whole.
    assert!(table.nr_nodes() <= 16, "{}", table.nr_nodes());
    table.punch(0..len, |page, _| panic!("page {page} was in use"));
    assert_eq!(table.nr_nodes(), 0);
}

#[test]
fn unmapping_a_whole_leaf_writes_only_entries_in_use() {
    // Goal: a mapping with few pages in each of many leaves commits nothing when it goes. Method:
    // one page in each of 20 leaves, unmapped with all others: no page of the table is in use then.
    let len = 1 << 30;
    let table = PageTable::new(len, 2);
    let pages = (0..20).map(|leaf| (leaf << 16) + 7 * leaf);
    for page in pages.clone() {
        assert_eq!(table.install(page, Pfn(1)), Installed::Now(Entry::ABSENT));
    }
    let mut taken = Vec::new();
    table.punch(0..len, |page, was| taken.push((page, was.pfn())));
    let all = pages.clone().map(|page| (page, Some(Pfn(1))));
    assert_eq!(taken, Vec::from_iter(all));
    assert_eq!(table.nr_nodes(), 0);
    for page in pages.flat_map(|page| [page, page + 1, page + (1 << 15)]) {
        assert!(table.is_hole(page), "page {page}");
        assert_eq!(table.install(page, Pfn(2)), Installed::Hole);
    }
    table.punch(5..70_000, |page, _| panic!("page {page} was a hole"));
    assert_eq!(table.nr_nodes(), 0);
}
