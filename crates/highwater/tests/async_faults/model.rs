//! Random steps beside storage that delays, shortens, fails and panics.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use highwater::{Backing, FilePage, ReadWait};

use super::*;

const PAGES: u64 = 96;
const STEPS: u32 = 50_000;

/// Storage of pages that begin with their number; its reads misbehave by a random number each.
#[derive(Debug)]
struct Moody {
    draws: AtomicU64,
    /// Of 1,000 reads.
    failures: u64,
}

impl Backing for Moody {
    fn len(&self) -> u64 {
        PAGES * 4096
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let draw = self.draws.fetch_add(1, Ordering::Relaxed);
        let mood = fastrand::Rng::with_seed(draw).u64(0..1000);
        if mood.is_multiple_of(16) {
            thread::sleep(Duration::from_micros(mood));
        }
        match mood {
            _ if mood >= self.failures => {}
            0..3 => std::panic::panic_any("moody"),
            _ if mood.is_multiple_of(2) => return Ok(buf.len() / 2),
            _ => return Err(io::Error::from_raw_os_error(5)),
        }
        buf.fill(0x5a);
        buf[..8].copy_from_slice(&page.0.to_le_bytes());
        Ok(buf.len())
    }

    fn write_page(&self, _: FilePage, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads in flight, by number.
type Reads = HashMap<u32, (u64, Pin<Box<ReadWait>>)>;

/// One thread's state.
struct Walk<'a> {
    hw: &'a Manager,
    maps: &'a [Mapping],
    seed: u64,
    reads: Reads,
    kept: Vec<PinnedPage>,
    failed: u64,
}

impl Walk<'_> {
    /// Polls the reads in flight, and checks those that have ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Self {
            reads,
            kept,
            failed,
            seed,
            ..
        } = self;
        reads.retain(|_, (page, read)| match read.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(Ok(read)) => {
                is_page(*page, &read, *seed);
                kept.push(read);
                kept.truncate(16);
                false
            }
            Poll::Ready(Err(ReadError::Io { .. } | ReadError::Short { .. })) => {
                *failed += 1;
                false
            }
            Poll::Ready(Err(error)) => panic!("seed {seed}: {error}"),
        });
        if reads.is_empty() {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn step(&mut self, step: u32, rng: &mut fastrand::Rng) {
        let (hw, seed, page) = (self.hw, self.seed, rng.u64(0..PAGES));
        let map = &self.maps[rng.usize(0..self.maps.len())];
        match rng.u32(0..100) {
            0..40 if self.reads.len() < 24 => {
                let read = Box::pin(map.read_async(page));
                self.reads.insert(step, (page, read));
            }
            40..44 => {
                let any = self.reads.keys().next().copied();
                any.map(|any| self.reads.remove(&any));
            }
            44..47 => map.prefetch((0..4).map(|_| rng.u64(0..PAGES))).unwrap(),
            47..50 => _ = hw.drop_caches(),
            50..56 => {
                let guard = hw.enter();
                // A panic of the storage is that of the thread that wants the page.
                let read = catch_unwind(AssertUnwindSafe(|| map.read(&guard, page)));
                if let Ok(Ok(bytes)) = read {
                    is_page(page, bytes, seed);
                }
            }
            56..60 => self.kept.clear(),
            60..62 => map.dont_need(page..page + 1).unwrap(),
            _ => {
                hw.block_on(poll_fn(|context| {
                    _ = self.poll(context);
                    Poll::Ready(())
                }));
            }
        }
    }
}

/// Checks a page of the storage or of the file.
fn is_page(page: u64, bytes: &[u8], seed: u64) {
    let got = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let is_right = got == page || got == word(page, 0);
    assert!(is_right, "seed {seed}: page {page} begins with {got}");
}

/// Takes random steps over two mappings, of storage and of a file.
fn walk(hw: &Manager, maps: &[Mapping], seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut walk = Walk {
        hw,
        maps,
        seed,
        reads: HashMap::new(),
        kept: Vec::new(),
        failed: 0,
    };
    for step in 0..STEPS {
        walk.step(step, &mut rng);
    }
    hw.block_on(poll_fn(|context| walk.poll(context)));
    assert!(walk.failed > 0, "seed {seed}: storage was meant to fail");
}

#[test]
fn random_steps_end_well() {
    // Two threads, so that completions are taken out of order and by others.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&"moody") {
            hook(info);
        }
    }));
    for (engine, builder) in engines() {
        let scene = Scene::new(builder.capacity(Bytes(64 * 4096)), PAGES);
        let storage = Arc::new(Moody {
            draws: AtomicU64::new(7),
            failures: 100,
        });
        let file = scene.hw.open_backing(storage, Access::ReadOnly).unwrap();
        let other = scene
            .hw
            .space(&scene.hw.root())
            .map_file(&file, 0..PAGES)
            .unwrap();
        let maps = [scene.map.clone(), other];
        thread::scope(|scope| {
            for seed in [1, 2] {
                let (hw, maps) = (&scene.hw, &maps);
                scope.spawn(move || walk(hw, maps, seed));
            }
        });
        println!("{engine}: {}", scene.hw.snapshot().counter("async_reads"));
        drop(maps);
        settle(&scene.hw);
    }
}
