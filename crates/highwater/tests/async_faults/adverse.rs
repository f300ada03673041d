//! Storage that fails, and memory that is short.

use super::*;
use crate::support::TestFile;

/// A mapping of storage that misbehaves on request, read by threads.
fn over_test_file(pages: u64) -> (Manager, Mapping, std::sync::Arc<TestFile>) {
    let hw = Manager::builder().build().unwrap();
    let storage = TestFile::new(pages);
    let file = hw.open_backing(storage.clone(), Access::ReadOnly).unwrap();
    let map = hw.space(&hw.root()).map_file(&file, 0..pages).unwrap();
    map.set_read_pattern(ReadPattern::Random);
    (hw, map, storage)
}

fn number_of(read: &Result<PinnedPage, ReadError>) -> u64 {
    let bytes: &[u8] = &read.as_ref().unwrap()[..];
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

#[test]
fn an_error_of_storage_is_the_readers() {
    let (hw, map, storage) = over_test_file(8);
    storage.fails_reads.store(true, Ordering::Relaxed);
    let failed = hw.block_on(map.read_async(2));
    assert!(matches!(failed, Err(ReadError::Io { .. })), "{failed:?}");
    storage.fails_reads.store(false, Ordering::Relaxed);
    storage.falls_short.store(true, Ordering::Relaxed);
    let short = hw.block_on(map.read_async(2));
    assert!(
        matches!(short, Err(ReadError::Short { got: 2048, .. })),
        "{short:?}"
    );
    storage.falls_short.store(false, Ordering::Relaxed);
    settle(&hw);
    assert_eq!(
        hw.root().usage_precise(),
        Bytes::ZERO,
        "nothing stays charged"
    );
    assert_eq!(number_of(&hw.block_on(map.read_async(2))), 2);
    settle(&hw);
}

#[test]
fn an_error_reaches_all_who_wait() {
    // Both tasks wait for one page: the second tries for itself, and fails too.
    let (hw, map, storage) = over_test_file(8);
    storage.read_pause_us.store(20_000, Ordering::Relaxed);
    storage.fails_reads.store(true, Ordering::Relaxed);
    let (mut one, mut other) = (Box::pin(map.read_async(2)), Box::pin(map.read_async(2)));
    hw.block_on(async {
        assert!(poll_fn(|it| Poll::Ready(one.as_mut().poll(it).is_pending())).await);
        assert!(poll_fn(|it| Poll::Ready(other.as_mut().poll(it).is_pending())).await);
        assert!(one.await.is_err());
        assert!(other.await.is_err());
    });
    settle(&hw);
}

#[test]
fn a_truncated_file_is_a_short_read() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder, 8);
        scene._file.as_file().set_len(5 * 4096 + 100).unwrap();
        let read = scene.hw.block_on(scene.map.read_async(5));
        assert!(
            matches!(read, Err(ReadError::Short { got: 100, .. })),
            "{engine}: {read:?}"
        );
        let read = scene.hw.block_on(scene.map.read_async(7));
        assert!(
            matches!(read, Err(ReadError::Short { got: 0, .. })),
            "{engine}: {read:?}"
        );
        // A window of which the first pages are there.
        scene.map.set_read_pattern(ReadPattern::Sequential);
        Scene::is_right(3, &scene.hw.block_on(scene.map.read_async(3)));
        Scene::is_right(4, &scene.hw.block_on(scene.map.read_async(4)));
        scene.settle();
    }
}

#[test]
fn the_last_page_may_be_partial() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder.clone(), 4);
        scene._file.as_file().set_len(3 * 4096 + 100).unwrap();
        for direct in [false, true] {
            let hw = builder.clone().build().unwrap();
            let open = match direct {
                false => hw.open(scene._file.path()),
                true => hw.open_direct(scene._file.path()),
            };
            let file = match open {
                Ok(file) => file,
                Err(error) => {
                    eprintln!("skipped: {error}");
                    continue;
                }
            };
            let map = hw.space(&hw.root()).map_file(&file, 0..4).unwrap();
            let read = hw.block_on(map.read_async(3)).unwrap();
            let mut expected = bytes_of(3);
            expected[100..].fill(0);
            assert!(read[..] == expected[..], "{engine}");
            Scene::is_right(2, &hw.block_on(map.read_async(2)));
        }
    }
}

#[test]
fn a_page_outside_the_mapping_is_refused() {
    let scene = Scene::new(Manager::builder(), 4);
    let read = |page| scene.hw.block_on(scene.map.read_async(page));
    assert!(matches!(read(4), Err(ReadError::OutOfRange { .. })));
    scene.map.unmap(1..2).unwrap();
    assert!(matches!(read(1), Err(ReadError::Unmapped { .. })));
    let copy = NamedTempFile::new().unwrap();
    std::fs::copy(scene._file.path(), copy.path()).unwrap();
    let writable = scene.hw.open_writable(copy.path()).unwrap();
    let map = scene
        .hw
        .space(&scene.hw.root())
        .map_file(&writable, 0..4)
        .unwrap();
    let read = scene.hw.block_on(map.read_async(0));
    assert!(matches!(read, Err(ReadError::Access { .. })));
    map.prefetch([3, 1]).unwrap();
    assert!(map.read_latched(3).unwrap()[..] == bytes_of(3)[..]);
    scene.settle();
}

#[test]
fn pinned_pages_leave_no_memory() {
    // Goal: an error, not a hang, and waiting while a read in flight may give memory.
    for (engine, builder) in engines() {
        let scene = Scene::new(builder, 64);
        let group = scene
            .hw
            .root()
            .child("small", Limits::max(Bytes(8 * 4096)))
            .unwrap();
        let file = scene.hw.open(scene._file.path()).unwrap();
        let map = scene.hw.space(&group).map_file(&file, 0..64).unwrap();
        map.set_read_pattern(ReadPattern::Random);
        let pinned: Vec<_> = (0..8).map(|page| map.pin(page).unwrap()).collect();
        let read = scene.hw.block_on(map.read_async(9));
        assert!(
            matches!(read, Err(ReadError::NoMemory { .. })),
            "{engine}: {read:?}"
        );
        drop(pinned);
        // Sixteen at once where eight have room: each finds it in the end.
        scene.hw.block_on(async {
            let mut reads: Vec<_> = (16..32)
                .map(|page| Box::pin(map.read_async(page)))
                .collect();
            poll_fn(|context| {
                reads.retain_mut(|read| match read.as_mut().poll(context) {
                    Poll::Pending => true,
                    Poll::Ready(read) => {
                        read.unwrap();
                        false
                    }
                });
                if reads.is_empty() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
        });
        settle(&scene.hw);
    }
}

/// A file of 64 pages, some of them dirty.
struct Dirty {
    _map: Mapping,
    _file: NamedTempFile,
}

impl Dirty {
    fn new(hw: &Manager, pages: u64) -> Self {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(64 * 4096).unwrap();
        let open = hw.open_writable(file.path()).unwrap();
        let map = hw.space(&hw.root()).map_file(&open, 0..64).unwrap();
        for page in 0..pages {
            map.write(page).unwrap()[0] = 1;
        }
        Self {
            _map: map,
            _file: file,
        }
    }
}

#[test]
fn where_only_dirty_pages_are_left_they_are_written() {
    for (engine, builder) in engines() {
        let scene = Scene::new(builder.capacity(Bytes(32 * 4096)), 64);
        let _dirty = Dirty::new(&scene.hw, 24);
        scene.hw.block_on(read_all(&scene.map, 0..64, 8));
        scene.settle();
        assert_eq!(scene.hw.snapshot().counter("oom_kill"), 0, "{engine}");
    }
}

#[test]
fn a_clean_page_goes_before_a_dirty_one_is_written() {
    // Goal: no write-back by the thread that polls while clean pages are left.
    for (engine, builder) in engines() {
        let scene = Scene::new(builder.capacity(Bytes(256 * 4096)), 512);
        let _dirty = Dirty::new(&scene.hw, 16);
        scene.hw.block_on(read_all(&scene.map, 0..512, 16));
        scene.settle();
        let snapshot = scene.hw.snapshot();
        assert_eq!(
            snapshot.counter("nr_vmscan_write"),
            0,
            "{engine}: {snapshot}"
        );
        assert_eq!(snapshot.counter("nr_dirty"), 16, "{engine}: {snapshot}");
    }
}

#[test]
fn anonymous_memory_is_prefetched_from_swap() {
    let dir = tempfile::tempdir().unwrap();
    for (engine, builder) in engines() {
        let builder = builder.capacity(Bytes(64 * 4096));
        let hw = builder.swap(dir.path(), Bytes::mib(1)).build().unwrap();
        let map = hw.space(&hw.root()).map_anon(Pages(128)).unwrap();
        for page in 0..128 {
            map.write(page).unwrap()[0] = u8::try_from(page).unwrap();
        }
        map.prefetch(0..16_u64).unwrap();
        for page in 0..16 {
            assert_eq!(
                u64::from(map.read_latched(page).unwrap()[0]),
                page,
                "{engine}"
            );
        }
        settle(&hw);
    }
}
