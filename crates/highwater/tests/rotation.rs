//! Promise: a page that reclaim finds under write-back is rotated, and evicted next when its
//! write-back ends, whichever thread writes it.

mod support;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use highwater::frame::Tunables;
use highwater::units::FilePage;
use highwater::{Access, Background, Backing, File, Manager, Mapping, Pages};
use support::{TestFile, assert_empty};

const FRAMES: u64 = 64;
const PAGES: u64 = 40;

type During = Box<dyn Fn() + Send>;
type Way = fn(&Scene);

/// Storage that runs a closure during a write of page 0, once.
struct Busy {
    storage: Arc<TestFile>,
    during: Mutex<Option<During>>,
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Busy")
    }
}

impl Backing for Busy {
    fn len(&self) -> u64 {
        self.storage.len()
    }
    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.storage.read_page(page, buf)
    }
    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> io::Result<usize> {
        if page == 0 {
            let during = self.during.lock().expect("no panic under the lock").take();
            during.iter().for_each(|during| during());
        }
        self.storage.write_page(FilePage(page), buf)
    }
    fn sync(&self) -> io::Result<()> {
        self.storage.sync()
    }
}

/// A manager in which reclaim runs while page 0 of a file is written back.
struct Scene {
    hw: Manager,
    storage: Arc<Busy>,
    file: File,
    map: Mapping,
}

impl Scene {
    fn new(tunables: Tunables) -> Self {
        let hw = Manager::builder()
            .capacity(Pages(FRAMES).bytes())
            .background(Background::Off)
            .tunables(tunables)
            .build()
            .expect("a small manager");
        let storage = Arc::new(Busy {
            storage: TestFile::new(PAGES),
            during: Mutex::new(None),
        });
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let file = hw.open_backing(backing, Access::ReadWrite).expect("a file");
        let space = hw.space(&hw.root());
        let map = space.map_file(&file, 0..PAGES).expect("the whole file");
        let scene = Self {
            hw,
            storage,
            file,
            map,
        };
        for page in 0..PAGES / 2 {
            drop(scene.map.read_latched(page).expect("there is memory"));
        }
        scene
    }

    /// Dirties page 0, and makes reclaim find it while it is written back.
    fn dirty(&self) {
        self.map.write(0).expect("it is there")[8] = 1;
        let root = self.hw.root();
        let during = Box::new(move || _ = root.reclaim(Pages(PAGES).bytes()));
        *self.storage.during.lock().expect("no panic under the lock") = Some(during);
    }

    fn rotated(&self) -> u64 {
        self.hw.snapshot().counter("pgrotated")
    }
}

fn tunables() -> Tunables {
    Tunables::default()
}

#[test]
fn whoever_writes_a_page_back_has_it_rotated() {
    // Goal: every way to write back rotates. Method: a sync, the tick that replaces the background
    // thread, a writer above the dirty limit, each while reclaim finds the page.
    let hasty = tunables()
        .with("dirty_expire_centisecs", 0)
        .expect("in range");
    let none_dirty = hasty.with("dirty_ratio", 0).expect("in range");
    let ways: [(Tunables, Way); 3] = [
        (tunables(), |scene| scene.file.sync().expect("it works")),
        (hasty, |scene| {
            assert_eq!(scene.hw.writeback_tick(), Pages(1))
        }),
        (none_dirty, |scene| {
            drop(scene.map.write(1).expect("there is memory"))
        }),
    ];
    for (nth, (tunables, write_back)) in ways.into_iter().enumerate() {
        let scene = Scene::new(tunables);
        scene.dirty();
        write_back(&scene);
        assert_eq!(scene.rotated(), 1, "way {nth}");
        assert_eq!(
            scene
                .storage
                .storage
                .pages
                .lock()
                .expect("no panic under the lock")[0][8],
            1
        );
        scene.hw.check_invariants();
        let hw = scene.hw.clone();
        drop(scene);
        assert_empty(&hw);
    }
}

#[test]
fn closing_a_file_has_its_pages_rotated_too() {
    // Goal: as above, for the write-back of a close. Method: the same; the page is gone right
    // after, so that only the counter tells.
    let scene = Scene::new(tunables());
    scene.dirty();
    let Scene { hw, file, map, .. } = scene;
    drop((file, map));
    assert_eq!(hw.snapshot().counter("pgrotated"), 1);
    assert_empty(&hw);
}

#[test]
fn a_page_that_its_storage_refuses_is_not_rotated() {
    // Goal: reclaim would find it dirty again at once; and the write-back leaves no state behind.
    // Method: storage that refuses, and takes only a part; reclaim finds the page each time. Then
    // it is written.
    let scene = Scene::new(tunables());
    let storage = Arc::clone(&scene.storage.storage);
    for misbehaviour in [&storage.fails_writes, &storage.falls_short] {
        misbehaviour.store(true, std::sync::atomic::Ordering::Relaxed);
        scene.dirty();
        scene.file.sync().expect_err("it was told to");
        misbehaviour.store(false, std::sync::atomic::Ordering::Relaxed);
        scene.hw.check_invariants();
        assert_eq!(scene.rotated(), 0);
    }
    scene.file.sync().expect("it works again");
    let hw = scene.hw.clone();
    drop(scene);
    assert_empty(&hw);
}
