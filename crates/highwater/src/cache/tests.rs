//! The index against a map, files of odd lengths, and the reasons that keep a page from eviction.

use std::collections::HashMap;
use std::io::Write;

use super::backing::page_len;
use super::*;
use crate::units::{FilePage, PAGE_SIZE};

/// Storage in which every page begins with its number.
#[derive(Debug)]
struct Numbered(u64);

impl Backing for Numbered {
    fn len(&self) -> u64 {
        self.0
    }
    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> std::io::Result<usize> {
        buf[..8].copy_from_slice(&page.to_le_bytes());
        Ok(buf.len())
    }
    fn write_page(&self, _: FilePage, buf: &[u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(super) fn cache(frames: u64) -> (Arc<FrameMemory>, PageCache) {
    let memory = Arc::new(FrameMemory::new(Pages(frames)).expect("a small range"));
    let cache = PageCache::new(Arc::clone(&memory), &Topology::flat(1), Regime::Atomic);
    (memory, cache)
}

pub(super) fn fill(memory: &FrameMemory, cache: &PageCache, pfn: u32, key: PageKey) {
    let filling = cache
        .begin_fill(key, memory.claim(Pfn(pfn)), GroupId(0))
        .expect("absent");
    cache.finish_fill(filling);
}

fn evict(memory: &FrameMemory, cache: &PageCache, pfns: &[Pfn]) -> Vec<(Pfn, Kept)> {
    let mut batch = EvictBatch::default();
    cache.evict(pfns, &mut batch);
    for evicted in batch.evicted.drain(..) {
        memory.surrender(evicted.frame);
    }
    batch.kept
}

#[test]
fn the_index_agrees_with_a_map() {
    // Goal: a page is found in its frame and nowhere else, on any chain. Method: random fills and
    // removals in an index of few buckets, so that chains are long; a map is the oracle.
    let mut rng = crate::seed::rng(11);
    for frames in [1, 3, 64, 500] {
        let index = Index::new(Pages(frames));
        let file = FileId::new(0, FileKind::File, Access::ReadOnly, Order::ZERO);
        let mut model: HashMap<u64, Pfn> = HashMap::new();
        let mut free: Vec<Pfn> = (0..u32::try_from(frames).unwrap()).map(Pfn).collect();
        for step in 0..5000 {
            let page = rng.u64(..frames * 3) * 64;
            let key = PageKey::new(file, page);
            match model.get(&page) {
                Some(&pfn) if rng.bool() => {
                    assert_eq!(index.begin_evict(pfn), Some(key), "step {step}");
                    assert_eq!(index.begin_evict(pfn), None, "claimed once");
                    if rng.bool() {
                        drop(index.set_resident(pfn));
                    } else {
                        drop(index.remove(pfn));
                        model.remove(&page);
                        free.push(pfn);
                    }
                }
                Some(&pfn) => {
                    assert_eq!(index.lookup(key), Presence::Resident(pfn));
                    let seen = index.find(key, |at| (index.key_of(at) == Some(key)).then_some(at));
                    assert_eq!(seen, Some(pfn));
                }
                None => {
                    assert_eq!(index.lookup(key), Presence::Absent);
                    let Some(pfn) = free.pop() else { continue };
                    assert!(index.insert_filling(key, pfn));
                    assert!(!index.insert_filling(key, pfn), "entered once");
                    if rng.u8(..) < 200 {
                        drop(index.set_resident(pfn));
                        model.insert(page, pfn);
                    } else {
                        drop(index.remove(pfn));
                        free.push(pfn);
                    }
                }
            }
            if step % 500 == 0 {
                assert_eq!(index.check_invariants(), model.len() as u64);
            }
        }
    }
}

#[test]
fn keys_name_file_page_and_access() {
    // Goal: packing loses nothing. Method: the extremes of both ranges, opened for both accesses.
    let (_, cache) = cache(1);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let file = cache.open(Arc::new(Numbered(1)), access).unwrap();
        for page in [0, 1, PageKey::PAGES_MAX - 1] {
            let key = PageKey::new(file.id(), page);
            assert_eq!((key.file(), key.page()), (file.id(), FilePage(page)));
            assert_eq!(key.file().is_writable(), access == Access::ReadWrite);
            assert!(key.get() != 0);
        }
    }
    let many: Vec<_> = (0..100)
        .map(|_| {
            cache
                .open(Arc::new(Numbered(1)), Access::ReadOnly)
                .unwrap()
                .id()
        })
        .collect();
    let distinct: std::collections::BTreeSet<_> = many.iter().collect();
    assert_eq!(distinct.len(), many.len());
}

#[test]
fn numbers_of_closed_files_are_used_again_as_late_as_possible() {
    // Goal: every number can be used, and a closed one is reused after all others. Method: open and
    // close until the numbers run out.
    let (_, cache) = cache(1);
    let open = || cache.open(Arc::new(Numbered(1)), Access::ReadOnly);
    let kept = open().unwrap();
    let first = open().unwrap().id();
    cache.close(first);
    for _ in 0..FileId::MAX - 2 {
        let next = open().unwrap().id();
        assert!(next != first && next != kept.id());
        cache.close(next);
    }
    assert_eq!(open().unwrap().id(), first);
    let all: Vec<_> = std::iter::repeat_with(open).map_while(Result::ok).collect();
    assert_eq!(all.len(), FileId::MAX - 2);
    assert_eq!(open().unwrap_err(), TooManyFiles { max: FileId::MAX });
    cache.close(kept.id());
    assert_eq!(open().unwrap().id(), kept.id());
}

#[test]
fn eviction_says_why_a_page_stays() {
    // Method: one page for each reason, evicted in one batch with one that can be evicted.
    let (memory, cache) = cache(8);
    let fixed = cache
        .open(Arc::new(Numbered(8 * 4096)), Access::ReadOnly)
        .unwrap();
    let changing = cache
        .open(Arc::new(Numbered(8 * 4096)), Access::ReadWrite)
        .unwrap();
    let key = |file: &FileEntry, page| PageKey::new(file.id(), page);
    fill(&memory, &cache, 0, key(&fixed, 0));
    fill(&memory, &cache, 1, key(&fixed, 1));
    fill(&memory, &cache, 2, key(&changing, 0));
    fill(&memory, &cache, 3, key(&changing, 1));
    fill(&memory, &cache, 4, key(&changing, 2));
    let reader = memory.reader(memory.seat());
    assert!(cache.try_read(&reader, key(&fixed, 0)).is_some());
    cache
        .try_write(key(&changing, 0))
        .unwrap()
        .mark_dirty(&cache);
    let latched = cache.try_read_latched(key(&changing, 1)).unwrap();
    let kept = evict(&memory, &cache, &(0..6).map(Pfn).collect::<Vec<_>>());
    let mut kept = kept;
    kept.sort_by_key(|(pfn, _)| *pfn);
    let want = [
        (Pfn(0), Kept::Borrowed),
        (Pfn(2), Kept::Dirty),
        (Pfn(3), Kept::Borrowed),
        (Pfn(5), Kept::Busy),
    ];
    assert_eq!(kept, want);
    drop((reader, latched));
    assert_eq!(
        cache.try_write_back(Pfn(2), &mut Woken::default()).unwrap(),
        WrittenBack::Written
    );
    assert_eq!(
        cache.try_write_back(Pfn(2), &mut Woken::default()).unwrap(),
        WrittenBack::Clean
    );
    assert!(evict(&memory, &cache, &[Pfn(0), Pfn(2), Pfn(3)]).is_empty());
    cache.check_invariants();
    assert_eq!(memory.count_free(), Pages(8));
    assert_eq!(
        fixed.resident_precise(),
        -2,
        "counted by the manager's fill, which is not used here"
    );
}

#[test]
fn young_marks_are_set_by_reads_and_cleared_by_looking() {
    let (memory, cache) = cache(2);
    let file = cache
        .open(Arc::new(Numbered(4096)), Access::ReadOnly)
        .unwrap();
    let key = PageKey::new(file.id(), 0);
    fill(&memory, &cache, 1, key);
    assert!(
        !cache.test_and_clear_young(Pfn(1)),
        "not young by being filled"
    );
    assert!(cache.try_read(&memory.reader(memory.seat()), key).is_some());
    assert!(cache.test_and_clear_young(Pfn(1)));
    assert!(!cache.test_and_clear_young(Pfn(1)));
    assert!(evict(&memory, &cache, &[Pfn(1)]).is_empty());
}

#[test]
fn two_threads_that_miss_the_same_page_read_it_once() {
    // Method: both look the page up; the thread that is told that it is absent fills it slowly.
    let (memory, cache) = cache(64);
    let file = cache
        .open(Arc::new(Numbered(64 * 4096)), Access::ReadOnly)
        .unwrap();
    for page in 0..32 {
        let key = PageKey::new(file.id(), u64::from(page));
        let fills = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2_u32)
                .map(|thread| {
                    let (memory, cache) = (&memory, &cache);
                    scope.spawn(move || {
                        if cache.lookup(key) != Presence::Absent {
                            return 0;
                        }
                        let frame = memory.claim(Pfn(page * 2 + thread));
                        match cache.begin_fill(key, frame, GroupId(0)) {
                            Ok(filling) => {
                                std::thread::yield_now();
                                cache.finish_fill(filling);
                                1
                            }
                            Err(frame) => {
                                memory.surrender(frame);
                                assert!(matches!(cache.lookup(key), Presence::Resident(_)));
                                0
                            }
                        }
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum::<u32>()
        });
        assert_eq!(fills, 1, "page {page}");
    }
    let pfns: Vec<Pfn> = (0..64).map(Pfn).collect();
    assert_eq!(
        evict(&memory, &cache, &pfns).len(),
        32,
        "the frames that hold nothing"
    );
}

#[test]
fn files_of_odd_length_end_where_they_end() {
    // Goal: the last page is partial, reads stop there, and write-back writes no byte beyond it.
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 4096 + 100]).unwrap();
    let backing = FileBacking::new(file.try_clone().unwrap()).unwrap();
    assert_eq!(
        (
            pages_in(backing.len(), Order::ZERO),
            page_len(backing.len(), Order::ZERO, FilePage(0)),
            page_len(backing.len(), Order::ZERO, FilePage(1))
        ),
        (2, 4096, 100)
    );
    assert_eq!(page_len(backing.len(), Order::ZERO, FilePage(2)), 0);
    let mut buf = [0; PAGE_SIZE];
    assert_eq!(
        backing.read_page(FilePage(1), &mut buf[..100]).unwrap(),
        100
    );
    assert_eq!(
        backing.read_page(FilePage(1), &mut buf).unwrap(),
        100,
        "short beyond the end"
    );

    let (memory, cache) = cache(2);
    let entry = cache.open(Arc::new(backing), Access::ReadWrite).unwrap();
    let key = PageKey::new(entry.id(), 1);
    fill(&memory, &cache, 0, key);
    cache.try_write(key).unwrap().bytes_mut(&cache).fill(9);
    let dirty = cache.dirty_pages_of(entry.id());
    let written = cache.write_back_pages(&dirty);
    assert_eq!((dirty.len(), written.nr_written), (1, 1));
    assert_eq!(file.metadata().unwrap().len(), 4096 + 100);
    assert!(evict(&memory, &cache, &[Pfn(0)]).is_empty());
}

#[test]
fn a_page_behind_the_end_is_found_until_it_is_evicted() {
    // Symptom: a file was closed while a page that a shrink had left behind its end was in the
    // cache. Method: few frames, which are searched, and more, where keys are looked up.
    for frames in [2, 64] {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * 4096).unwrap();
        let (memory, cache) = cache(frames);
        let backing = FileBacking::new(file).unwrap();
        let entry = cache.open(Arc::new(backing), Access::ReadWrite).unwrap();
        fill(&memory, &cache, 0, entry.key(2));
        let resized = cache.resize(&entry, 4096).unwrap();
        assert_eq!(resized.behind, [(Pfn(0), entry.key(2))]);
        cache.end_resize(resized);
        let all = FilePage(0)..FilePage(9);
        assert_eq!(cache.pages_of(entry.id()).count(), 1);
        assert_eq!(cache.pages_within(&entry, &all).count(), 1);
        assert!(evict(&memory, &cache, &[Pfn(0)]).is_empty());
        assert_eq!(cache.pages_of(entry.id()).count(), 0);
        assert_eq!(entry.size.pages_max(), 3, "no resize has ended since");
        cache.end_resize(cache.resize(&entry, 0).unwrap());
        assert_eq!(entry.size.pages_max(), 0, "nothing is behind the end");
        cache.close(entry.id());
    }
}

#[test]
fn a_page_that_leaves_is_counted_before_it_is_gone() {
    // Goal: no file can be closed, and its number reused, between a page's removal and its being
    // counted. Method: check both while the page is about to be removed, by frames if those are
    // few, and by keys.
    let accesses = [Access::ReadOnly, Access::ReadWrite];
    for (frames, access) in [2, 64]
        .into_iter()
        .flat_map(|n| accesses.map(|how| (n, how)))
    {
        let (memory, cache) = cache(frames);
        let file = cache.open(Arc::new(Numbered(4096)), access).unwrap();
        fill(&memory, &cache, 1, PageKey::new(file.id(), 0));
        file.note_filled();
        let (mut batch, mut seen) = (EvictBatch::default(), 0);
        cache.evict_leaving(&[Pfn(1)], &mut batch, |leaving| {
            seen += leaving.len();
            assert_eq!(file.resident_precise(), 0);
            assert_eq!(cache.pages_of(file.id()).count(), 1);
        });
        assert_eq!(seen, 1);
        assert_eq!(cache.pages_of(file.id()).count(), 0);
        memory.surrender(batch.evicted.pop().unwrap().frame);
    }
}

#[test]
fn dirty_pages_of_a_removed_group_count_for_its_parent() {
    // Symptom: a new group that had a removed group's number had the dirty pages of that one, for
    // ever. Method: the group is removed, and a new one gets its number, after the number was read.
    let groups = crate::group::GroupTree::new(1);
    let child = |of: &crate::group::GroupNode, name| {
        let limits = crate::group::Limits::default();
        of.child(name, limits).expect("a new name")
    };
    let above = child(&groups.root(), "above");
    let removed = child(&above, "removed");
    let (mut reads, mut new) = (0, None);
    let payer = dirty::payer_of(&groups, || {
        reads += 1;
        if reads > 1 {
            return above.id();
        }
        groups.remove(&removed).expect("it has no child");
        new = Some(child(&above, "new"));
        removed.id()
    });
    assert_eq!(new.map(|new| new.id()), Some(removed.id()), "reused");
    assert_eq!(payer, above);
}
