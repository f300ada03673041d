//! LLFree, the page-frame allocator of Wrenger and others (USENIX ATC 2023), as a child process of
//! the comparison in `benches-external/allocators`: `--llfree PROGRAM` there starts this program,
//! and `serving` says how the two talk.
//!
//! Command: `cargo build --release --locked`, in this folder. It needs
//! <https://github.com/luhsra/llfree-rs>, at the revision that `Cargo.toml` names. A mirror of it
//! serves as well: `git config --global url.MIRROR.insteadOf https://github.com/luhsra/llfree-rs`,
//! and `CARGO_NET_GIT_FETCH_WITH_CLI=true` for the build.
//!
//! LLFree hands out frame numbers, and is told the core that a request comes from. Each thread has
//! a core's number for itself here, which costs nothing to find; a kernel would ask for the CPU.
//! The frames are cut from memory like Highwater's: as much of it, reserved at once, with huge
//! pages advised.

#![expect(
    unsafe_code,
    reason = "the memory is mapped, and written through pointers"
)]
#![expect(clippy::print_stdout, reason = "the parent reads it")]

#[path = "../../../crates/highwater/benches/blocks/mod.rs"]
#[expect(dead_code, reason = "the parent prints the tables")]
mod blocks;
#[path = "../../allocators/src/serving.rs"]
mod serving;
#[path = "../../../crates/highwater/benches/timing/mod.rs"]
#[expect(dead_code, reason = "the parent puts the rounds together")]
mod timing;

use std::process::ExitCode;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};
use std::thread;

use llfree::{Alloc, Class, Classing, FrameId, Init, LLFree, MetaData, Request};

use blocks::Source;
use serving::{Timed, serve};

const FRAME_BYTES: usize = 4096;
/// As the pool that it is compared with.
const CAPACITY_BYTES: usize = 1 << 30;
const HUGE_BYTES: usize = 2 << 20;
/// The class of single frames in [`Classing::simple`].
const SMALL: Class = Class(0);

fn main() -> ExitCode {
    if serving::served().is_none() {
        println!("this serves `benches-external/allocators`: see its --llfree");
        return ExitCode::SUCCESS;
    }
    serve(&Timed::new(Frames::new()))
}

/// Memory, and LLFree to say which frames of it are free.
struct Frames {
    base: NonNull<u8>,
    allocator: LLFree<'static>,
    /// Cores that no thread has.
    cores: Arc<Mutex<Vec<usize>>>,
}

// SAFETY: a frame is written only by the thread that has it.
unsafe impl Sync for Frames {}

/// The core of one thread, until this is dropped.
struct Core {
    core: usize,
    home: Arc<Mutex<Vec<usize>>>,
}

impl Core {
    /// For one small frame.
    fn request(&self) -> Request {
        Request::new(0, SMALL, Some(self.core))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let mut cores = self.home.lock().expect("no panic under the lock");
        cores.push(self.core);
    }
}

impl Frames {
    fn new() -> Self {
        let nr_cores = thread::available_parallelism().map_or(1, usize::from);
        let nr_frames = CAPACITY_BYTES / FRAME_BYTES;
        let (classing, _) = Classing::simple(nr_cores);
        let sizes = LLFree::metadata_size(&classing, nr_frames);
        let books = MetaData::alloc(&sizes);
        let allocator = LLFree::new(nr_frames, Init::FreeAll, &classing, books);
        Self {
            base: map(),
            allocator: allocator.expect("books of the size that was asked for"),
            // The threads of a round are few; those of the next have the same cores.
            cores: Arc::new(Mutex::new((0..nr_cores).rev().collect())),
        }
    }
}

impl Source for Frames {
    type Block = FrameId;
    type Local = Core;

    fn local(&self) -> Core {
        let core = self.cores.lock().expect("no panic under the lock").pop();
        Core {
            core: core.expect("as many cores as threads"),
            home: Arc::clone(&self.cores),
        }
    }

    #[inline]
    fn alloc(&self, core: &mut Core) -> FrameId {
        let taken = self.allocator.get(None, core.request());
        taken.expect("there are free frames").0
    }

    #[inline]
    fn write(&self, _: &mut Core, frame: &mut FrameId) {
        // SAFETY: the frame is below the number of frames, so the byte is in the memory.
        let first = unsafe { self.base.add(frame.0 * FRAME_BYTES) };
        // SAFETY: the frame is this thread's. Volatile: it is never read.
        unsafe { first.write_volatile(1) };
    }

    #[inline]
    fn free(&self, core: &mut Core, frame: FrameId) {
        let freed = self.allocator.put(frame, core.request());
        freed.expect("it was allocated");
    }
}

/// Reserves the memory, which is never unmapped: the process ends with its last round.
fn map() -> NonNull<u8> {
    let length = CAPACITY_BYTES + HUGE_BYTES;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever the system has room.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED, "there is address space");
    let gap = start.cast::<u8>().align_offset(HUGE_BYTES);
    // SAFETY: the gap is less than a huge page, by which the mapping is longer.
    let base = unsafe { start.cast::<u8>().add(gap) };
    // SAFETY: the range is within the mapping. Refused where there are no huge pages.
    unsafe { libc::madvise(base.cast(), CAPACITY_BYTES, libc::MADV_HUGEPAGE) };
    NonNull::new(base).expect("a mapping is not at 0")
}
