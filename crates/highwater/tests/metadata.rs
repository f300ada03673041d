//! Promise: the metadata of a frame, in memory and pool, takes at most 64 bytes; of that, at most
//! two bits in the trees of free frames.
#![expect(unsafe_code, reason = "counts the allocator's calls")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use highwater::frame::{FramePool, MakeBackend};
use highwater::lab::memmap::FrameMemory;
use highwater::units::Pages;

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

// Goal: the metadata of a frame is small, also with more CPUs than trees. Method: an allocator that
// counts, and memories and pools of two sizes, between which only per-frame metadata grows; then
// all of one pool, rings of its lists included. One test, so that nothing else is counted.
#[test]
fn what_is_kept_about_a_frame_takes_few_bytes() {
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
