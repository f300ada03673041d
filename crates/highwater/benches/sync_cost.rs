//! Question: how much does writing neighbouring pages back in one call gain, and writing scattered
//! pages of a direct file at once?
//!
//! Command: `cargo bench -p highwater --bench sync_cost`. Prints milliseconds to sync 64 MiB of
//! dirty pages of one file in the system's directory for temporary files, or in `DIR`, as the
//! median over interleaved rounds with the least and the most of them: by runs of pages, and page
//! by page, as storage without `write_pages` is given them. Without `--bench` (as under
//! `cargo test --benches`) it syncs 1 MiB, to show that it works.
//!
//! The file is new, and was written either at once or page by page: systems with large folios keep
//! the former in large pieces, and go through all of a piece for each page that is written to it;
//! so they do with files that they read ahead. Its pages come into the cache in order, or at
//! random; either way they are written back in order.
//!
//! In the last row every second page of a direct file is dirty, so that each run is a page: many at
//! once by io_uring, or one after the other, as where the system has none. `DIR` needs a file
//! system with direct I/O.
//!
//! What would change our mind: if runs were not at least 1.3 times as fast for a file that is kept
//! in large pieces, or slower for any by more than its rounds differ, holding the latches of
//! neighbours while they are written would not be worth it.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use highwater::frame::Tunables;
use highwater::units::{FilePage, PAGE_SIZE};
use highwater::{
    Access, Background, Backing, Builder, Bytes, File, FileBacking, Manager, Mapping, OpenError,
    Pages,
};

/// Rounds of each.
const ROUNDS: u8 = 9;

/// A file that receives its pages one by one.
#[derive(Debug)]
struct OneByOne(FileBacking);

impl Backing for OneByOne {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_page(page, buf)
    }
    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.0.write_page(page, buf)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// A manager of its own, and a file that is mapped in it.
struct Scene {
    _hw: Manager,
    file: File,
    map: Mapping,
    times: Vec<f64>,
}

impl Scene {
    fn new(
        pages: Pages,
        builder: Builder,
        open: impl FnOnce(&Manager) -> Result<File, OpenError>,
    ) -> Self {
        let all_dirty = Tunables::default()
            .with("dirty_ratio", 100)
            .and_then(|tunables| tunables.with("dirty_background_ratio", 100))
            .expect("in range");
        let hw = builder
            .capacity(Bytes(2 * pages.bytes().0))
            .background(Background::Off)
            .tunables(all_dirty)
            .build()
            .expect("there is memory");
        let file = open(&hw).expect("one file");
        let map = hw
            .space(&hw.root())
            .map_file(&file, 0..pages.0)
            .expect("the whole file");
        Self {
            _hw: hw,
            file,
            map,
            times: Vec::new(),
        }
    }

    /// Dirties all pages and syncs them.
    fn round(&mut self, order: &[u64], byte: u8) {
        for &page in order {
            self.map.write(page).expect("there is memory")[8] = byte;
        }
        let begun = Instant::now();
        self.file.sync().expect("the disk is not full");
        // The first brings the pages in.
        if byte > 0 {
            self.times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }

    fn median(&mut self) -> (f64, f64, f64) {
        self.times.sort_by(f64::total_cmp);
        let last = self.times.len() - 1;
        (self.times[last / 2], self.times[0], self.times[last])
    }
}

/// Returns a new file, written in pieces of that many bytes.
fn new_file(path: &PathBuf, pages: Pages, piece: usize) -> io::Result<FileBacking> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    std::fs::remove_file(path)?;
    let bytes = vec![7; usize::try_from(pages.bytes().0).expect("some MiB")];
    for piece in bytes.chunks(piece) {
        (&file).write_all(piece)?;
    }
    file.sync_all()?;
    FileBacking::new(file)
}

fn main() -> io::Result<()> {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let pages = Pages(if is_bench { 16_384 } else { 256 });
    let dir = std::env::var_os("DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    println!("{} KiB in {}", pages.bytes().0 >> 10, dir.display());
    println!("file written    pages in     by runs, ms           one by one, ms        gain");
    let pages_bytes = usize::try_from(pages.bytes().0).expect("some MiB");
    for (written, piece) in [("at once", pages_bytes), ("page by page", PAGE_SIZE)] {
        for order_name in ["in order", "at random"] {
            let mut order: Vec<u64> = (0..pages.0).collect();
            if order_name == "at random" {
                fastrand::Rng::with_seed(1).shuffle(&mut order);
            }
            let backing = |nth: u32| {
                let path = dir.join(format!("highwater-sync-{}-{nth}", std::process::id()));
                new_file(&path, pages, piece)
            };
            let (runs, single) = (backing(0)?, OneByOne(backing(1)?));
            let scene = |backing: Arc<dyn Backing>| {
                let open = |hw: &Manager| hw.open_backing(backing, Access::ReadWrite);
                Scene::new(pages, Manager::builder(), open)
            };
            let scenes = [scene(Arc::new(runs)), scene(Arc::new(single))];
            compare((written, order_name), &order, scenes);
        }
    }
    direct(&dir, pages);
    Ok(())
}

/// Runs the rounds of two scenes in turn, and prints a row.
fn compare((written, order_name): (&str, &str), order: &[u64], mut scenes: [Scene; 2]) {
    for round in 0..=ROUNDS {
        let scenes = scenes.iter_mut();
        scenes.for_each(|scene| scene.round(order, round));
    }
    let [first, second] = scenes.each_mut().map(Scene::median);
    let show = |(median, least, most)| format!("{median:5.1} ({least:.1} to {most:.1})");
    println!(
        "{written:15} {order_name:12} {:21} {:21} {:4.2}",
        show(first),
        show(second),
        second.0 / first.0
    );
}

/// Compares scattered pages of a direct file, at once and one after the other.
fn direct(dir: &Path, pages: Pages) {
    let order: Vec<u64> = (0..pages.0).step_by(2).collect();
    let builders = [Manager::builder(), Manager::builder().without_io_uring()];
    let bytes = vec![7; usize::try_from(pages.bytes().0).expect("some MiB")];
    let mut scenes = Vec::new();
    for (nth, builder) in builders.into_iter().enumerate() {
        let path = dir.join(format!("highwater-direct-{}-{nth}", std::process::id()));
        std::fs::write(&path, &bytes).expect("some MiB are free");
        let backing = FileBacking::open_direct(&path, Access::ReadWrite);
        std::fs::remove_file(&path).expect("just created");
        let backing = match backing {
            Ok(backing) => backing,
            Err(error) => {
                println!(
                    "not run: no direct I/O in {} ({error}); set DIR",
                    dir.display()
                );
                return;
            }
        };
        let open = |hw: &Manager| hw.open_file(backing, Access::ReadWrite);
        scenes.push(Scene::new(pages, builder, open));
    }
    println!(
        "\n{:29}at once, ms           one by one, ms        gain",
        ""
    );
    let Ok(scenes) = scenes.try_into() else {
        unreachable!("two builders make two scenes")
    };
    compare(("every second", "direct"), &order, scenes);
}
