//! Promise: a space knows its resident set, as an interval that contains the exact value, and
//! exactly on request; its peak never falls; and a space that is closed with pages still counted is
//! reported.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use highwater::units::MapPage;
use highwater::{Access, Manager, Pages, ReadError, RssMember};
use support::TestFile;

fn manager(pages: u64) -> Manager {
    let builder = Manager::builder().capacity(Pages(pages).bytes());
    builder.build().expect("a small manager is built")
}

fn anon(space: &highwater::Space, pages: i64) {
    space.add_rss(RssMember::Anon, pages);
}

#[test]
fn pages_are_counted_for_each_space_that_has_them_mapped() {
    // Goal: usage by space. Method: two spaces read overlapping parts of one file; one of them
    // unmaps some; then everything is evicted.
    let hw = manager(512);
    // No readahead: each space brings its own pages in.
    hw.set_readahead(Pages(0));
    let file = hw
        .open_backing(TestFile::new(300), Access::ReadOnly)
        .unwrap();
    let (first, second) = (hw.space(&hw.root()), hw.space(&hw.root()));
    let maps = [(&first, 0..200), (&second, 100..300)].map(|(space, pages)| {
        let map = space.map_file(&file, 0..300).unwrap();
        for page in pages {
            map.read(&hw.enter(), page).unwrap();
        }
        map
    });
    let resident = || (first.rss_precise(), second.rss_precise());
    assert_eq!(resident(), (Pages(200), Pages(200)));
    assert!(first.rss().contains(Pages(200)));
    assert_eq!(file.resident_precise(), 300);
    hw.check_invariants();
    maps[0].unmap(150..250).unwrap();
    assert_eq!(resident(), (Pages(150), Pages(200)));
    assert!(matches!(
        maps[0].read(&hw.enter(), 150),
        Err(ReadError::Unmapped { page: MapPage(150) })
    ));
    hw.check_invariants();
    hw.drop_caches();
    assert_eq!(
        (first.rss_precise(), second.rss_precise()),
        (Pages(0), Pages(0))
    );
    assert!(
        first.peak_rss().contains(Pages(200)),
        "{}",
        first.peak_rss()
    );
    hw.check_invariants();
}

#[test]
fn the_resident_set_is_files_anonymous_pages_and_shared_memory() {
    // Goal: swap is not resident. Method: one of each.
    let hw = manager(64);
    let space = hw.space(&hw.root());
    let members = [
        (RssMember::Anon, 5),
        (RssMember::Swap, 70),
        (RssMember::Shmem, 900),
    ];
    for (member, pages) in members {
        space.add_rss(member, pages);
        let pages = Pages(pages.unsigned_abs());
        assert_eq!(space.member_precise(member), pages);
        assert!(space.member(member).contains(pages));
    }
    assert_eq!(space.rss_precise(), Pages(905));
    assert!(space.rss().contains(Pages(905)) && space.peak_rss().contains(Pages(905)));
    for (member, pages) in members {
        space.add_rss(member, -pages);
    }
}

#[test]
fn pages_outlive_the_spaces_that_brought_them_in() {
    // Goal: mapped pages are uncounted when they are unmapped, and stay cached. Method: spaces come
    // and go, some of them with their mappings kept; invariants are checked throughout, and at the
    // end nothing is left.
    let hw = manager(256);
    let file = hw
        .open_backing(TestFile::new(200), Access::ReadOnly)
        .unwrap();
    let (mut ids, mut kept) = (Vec::new(), Vec::new());
    for turn in 0..20 {
        let space = hw.space(&hw.root());
        assert!(!ids.contains(&space.id()), "{} is in use", space.id());
        let map = space.map_file(&file, 0..200).unwrap();
        for page in turn * 10..turn * 10 + 10 {
            map.read(&hw.enter(), page).unwrap();
        }
        if turn % 2 == 0 {
            ids.push(space.id());
            kept.push(map);
        }
        hw.check_invariants();
    }
    assert_eq!(file.resident_precise(), 200);
    hw.drop_caches();
    drop(kept);
    let again = (0..40).map(|_| hw.space(&hw.root()).id());
    assert!(again.into_iter().any(|id| ids.contains(&id)));
    assert_eq!(hw.snapshot().counter("bad_rss_counter"), 0);
    hw.check_invariants();
}

#[test]
fn a_space_that_ends_with_pages_counted_is_reported() {
    // Goal: a leak in the embedder's counting is reported. Method: leave some, and subtract too
    // many.
    let hw = manager(64);
    for (left, reports) in [(0, 0), (7, 1), (-3, 2)] {
        let space = hw.space(&hw.root());
        anon(&space, 10 + left);
        anon(&space, -10);
        drop(space);
        assert_eq!(hw.snapshot().counter("bad_rss_counter"), reports);
    }
}

#[test]
#[should_panic(expected = "pages of files are counted by the cache")]
fn pages_of_files_are_not_counted_by_hand() {
    let hw = manager(64);
    hw.space(&hw.root()).add_rss(RssMember::File, 1);
}

#[test]
fn a_peak_never_falls_and_holds_what_was_seen() {
    // Goal: no peak that decreases, as the kernel's did. Method: threads count up and down; a
    // reader compares each peak with the one before and with exact readings.
    let hw = manager(64);
    let space = hw.space(&hw.root());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for step in 0..20_000 {
                        anon(&space, if step % 3 == 2 { -2 } else { 1 });
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut before = space.peak_rss();
            while !done.load(Ordering::Relaxed) {
                let now = space.peak_rss();
                assert!(before.low <= now.low && before.high <= now.high);
                assert!(now.low <= now.high);
                before = now;
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(space.rss().contains(space.rss_precise()));
    assert!(space.rss_precise() <= space.peak_rss().high);
    anon(&space, -i64::try_from(space.rss_precise().0).unwrap());
}

#[test]
fn threads_that_fault_and_evict_lose_no_page_of_the_books() {
    // Goal: conservation under concurrency. Method: more pages than frames, several spaces, four
    // threads; the cache compares every space with the frames at the end.
    let hw = manager(128);
    let file = hw
        .open_backing(TestFile::new(600), Access::ReadOnly)
        .unwrap();
    thread::scope(|scope| {
        for seed in 0..4 {
            let (hw, file) = (&hw, &file);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..30 {
                    let space = hw.space(&hw.root());
                    let map = space.map_file(file, 0..600).unwrap();
                    for _ in 0..100 {
                        map.read(&hw.enter(), random.u64(..600)).unwrap();
                    }
                    assert!(space.rss().low <= Pages(128), "{}", space.rss());
                }
            });
        }
    });
    hw.check_invariants();
    hw.drop_caches();
    hw.check_invariants();
    assert_eq!(hw.snapshot().counter("bad_rss_counter"), 0);
}
