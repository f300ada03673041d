//! Promise: the metadata of a frame, in memory and pool, takes at most 64 bytes; of that, at most
//! two bits in the trees of free frames. A file costs no memory for its length, its page tables as
//! much as its mapped pages need, and the LSNs of pages 16 bytes a frame, once there is one.
#![expect(unsafe_code, reason = "counts the allocator's calls")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use highwater::frame::{FramePool, MakeBackend};
use highwater::lab::memmap::FrameMemory;
use highwater::units::{FilePage, Pages};
use highwater::{Access, Background, Backing, Bytes, Manager};

/// Counts the calls to the system's allocator.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    /// # Safety
    ///
    /// As for the trait.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    ///
    /// As for the trait.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    /// # Safety
    ///
    /// As for the trait.
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Between these sizes the rings of per-CPU lists, whose length is a power of two, do not grow.
const FEW: Pages = Pages(72_000);
const MANY: Pages = Pages(124_000);

fn allocated<T>(made: impl FnOnce() -> T) -> usize {
    let before = IN_USE.load(Ordering::Relaxed);
    let _made = made();
    IN_USE.load(Ordering::Relaxed) - before
}

/// Returns the bits that one more frame takes.
fn bits_a_frame<T>(make: impl Fn(Pages) -> T) -> f64 {
    let more = allocated(|| make(MANY)) - allocated(|| make(FEW));
    let [more, frames] =
        [more as u64, MANY.0 - FEW.0].map(|count| u32::try_from(count).expect("small"));
    8.0 * f64::from(more) / f64::from(frames)
}

fn memory(pages: Pages) -> Arc<FrameMemory> {
    Arc::new(FrameMemory::new(pages).expect("there is address space"))
}

/// Storage of any length, all zeros.
#[derive(Debug)]
struct Zeros(u64);

impl Backing for Zeros {
    fn len(&self) -> u64 {
        self.0
    }
    fn read_page(&self, _page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        Ok(buf.len())
    }
    fn write_page(&self, _page: FilePage, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

// Goal: a file of 2^44 pages, 64 PiB, costs as much as one of a page until it is mapped, a mapping
// of it at most 2 MiB, beside its leaves, and all of that is given back; LSNs cost nothing
// before the first, and then 16 bytes a frame. Method: the allocator's bytes, in a manager without
// threads.
#[expect(clippy::print_stdout, reason = "shown with the test's output")]
fn what_files_and_lsns_take() {
    let hw = Manager::builder()
        .capacity(Bytes::mib(16))
        .background(Background::Off);
    let hw = hw.build().expect("a small manager");
    let open = |pages: u64| {
        let storage = Arc::new(Zeros(pages * 4096));
        hw.open_backing(storage, Access::ReadWrite)
            .expect("one file more")
    };
    // The latches of all frames come with the first of these, and stay.
    let first = open(1);
    let one = hw
        .space(&hw.root())
        .map_file(&first, 0..1)
        .expect("the whole file");
    one.write(0).expect("there is memory")[0] = 1;
    drop((one, first));
    let (short, long) = (allocated(|| open(1)), allocated(|| open(1 << 44)));
    println!("a file takes {long} bytes, however long");
    assert_eq!(short, long, "bytes for files of one page and of 2^44");
    let file = open(1 << 44);
    let before = IN_USE.load(Ordering::Relaxed);
    let map = hw.space(&hw.root()).map_file(&file, 0..1 << 44);
    let map = map.expect("the whole file");
    map.write((1 << 44) - 1).expect("there is memory")[0] = 1;
    map.write(1 << 40).expect("there is memory")[0] = 1;
    let mapped = IN_USE.load(Ordering::Relaxed) - before;
    println!("a mapping of it takes {mapped} bytes, two pages in use");
    assert!(
        mapped < 2 << 20,
        "{mapped} bytes for a mapping of which two pages are in use"
    );
    let before_lsns = IN_USE.load(Ordering::Relaxed);
    map.write(1 << 40).expect("it is there").set_lsn(7);
    let lsns = IN_USE.load(Ordering::Relaxed) - before_lsns;
    assert!(
        lsns <= 16 * 4096 + 64,
        "{lsns} bytes for the LSNs of 4,096 frames"
    );
    drop(map);
    let left = IN_USE.load(Ordering::Relaxed).saturating_sub(before + lsns);
    assert!(left < 64 << 10, "{left} bytes stay behind a mapping");
    drop(file);
    hw.drop_caches();
}

/// Returns the bytes of the process that are in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("a Linux system");
    let pages = statm.split(' ').nth(1).expect("the second number");
    pages.parse::<u64>().expect("a number of pages") * 4096
}

// Goal: the page table of a sparse mapping takes memory for the pages that are mapped, and gives it
// back when they go. Method: random pages of a file of 2^44 pages, each of which has a leaf for
// itself and two nodes above it, through 4,096 frames; the process's memory after twice as many
// pages as there are frames, after ten times as many more, and when all have been evicted.
#[expect(clippy::print_stdout, reason = "shown with the test's output")]
fn what_a_sparse_mapping_takes() {
    const FRAMES: u64 = 4096;
    const PAGE: u64 = 4096;
    let hw = Manager::builder()
        .capacity(Pages(FRAMES).bytes())
        .background(Background::Off);
    let hw = hw.build().expect("a small manager");
    let len = 1 << 44;
    let storage = Arc::new(Zeros(len * PAGE));
    let file = hw.open_backing(storage, Access::ReadWrite).expect("a file");
    let map = hw.space(&hw.root()).map_file(&file, 0..len);
    let map = map.expect("the whole file");
    let mut state = 1_u64;
    let mut touch = |pages: u64| {
        for _ in 0..pages {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            map.read_latched(state >> 20)
                .expect("a clean page can be evicted");
        }
    };
    let before = resident();
    touch(2 * FRAMES);
    let warm = resident();
    touch(20 * FRAMES);
    let after = resident();
    assert!(hw.drop_caches() > Pages::ZERO);
    let empty = resident();
    println!(
        "a sparse mapping takes {} bytes, {} later, {empty} empty",
        warm - before,
        after - before
    );
    // The frames, three pages for each, the root, and what there is about frames, once.
    let most = FRAMES * PAGE + 3 * FRAMES * PAGE + (8 << 20);
    assert!(warm - before < most, "{} bytes", warm - before);
    let grown = after.saturating_sub(warm);
    assert!(
        grown < 4 << 20,
        "{grown} bytes more for pages that came and went"
    );
    let given = after.saturating_sub(empty);
    assert!(
        given > 2 * FRAMES * PAGE,
        "{given} bytes given back with the last pages"
    );
}

// Goal: the metadata of a frame is small, also with more CPUs than trees. Method: an allocator that
// counts, and memories and pools of two sizes, between which only per-frame metadata grows; then
// all of one pool, rings of its lists included. One test, so that nothing else is counted.
#[test]
fn what_is_kept_about_a_frame_takes_few_bytes() {
    what_files_and_lsns_take();
    what_a_sparse_mapping_takes();
    drop(FramePool::new(memory(FEW), 1).expect("for allocations that happen once"));
    let words = bits_a_frame(memory);
    let pool = |pages| FramePool::new(memory(pages), 1).expect("a pool");
    let free = bits_a_frame(pool) - words;
    let all = allocated(|| pool(MANY)) as u64;
    println!("of {words:.2} bits a frame in memories, {free:.2} in the pool; {all} bytes in all");
    assert!(all <= 64 * MANY.0, "{all} bytes for {MANY}");
    for nr_cpus in [1, 64] {
        let frames = |pages: Pages| u32::try_from(pages.0).expect("few frames");
        let trees = bits_a_frame(|pages| MakeBackend::TREES.build(frames(pages), nr_cpus));
        println!("{nr_cpus} CPUs: {trees:.2} in trees");
        assert!(trees <= 2.0, "{trees:.2} bits a frame in trees");
    }
    assert!(free <= 2.0, "{free:.2} bits a frame beside the memory");
}
