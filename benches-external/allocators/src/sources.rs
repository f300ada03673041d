//! Sources of blocks: the pool, the floor, and common allocators.
//!
//! Allocators are called by their interfaces for known size and alignment, if there are any: they
//! are the fastest. glibc is the system's; jemalloc 5.3, mimalloc 3, snmalloc 0.7 and tcmalloc (of
//! 2025, pages of 8 KiB) are built from the sources in their crates.

#![expect(unsafe_code, reason = "the allocators are C and C++")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use highwater::frame::{FramePool, PoolConfig};
use highwater::lab::memmap::{Frame, FrameMemory};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::Bytes;

use crate::blocks::Source;
use crate::serving::Timed;

const SIZE: usize = 4096;
/// Twice what two threads have out at a time.
const CAPACITY: Bytes = Bytes::gib(1);

/// Returns the source called `name`.
pub(crate) fn named(name: &str) -> Option<Timed> {
    Some(match name {
        "Highwater" => Timed::new(Highwater::new()),
        "stack" => Timed::new(Stack),
        "glibc" => Timed::new(Foreign {
            // SAFETY: the alignment is a power of two and the size a multiple of it.
            alloc: || unsafe { libc::aligned_alloc(SIZE, SIZE) },
            // SAFETY: it was allocated by the C library.
            free: |block| unsafe { libc::free(block) },
        }),
        "jemalloc" => Timed::new(Foreign {
            alloc: || {
                const LG_ALIGN: i32 = SIZE.ilog2().cast_signed();
                // SAFETY: the size is not 0.
                unsafe { tikv_jemalloc_sys::mallocx(SIZE, LG_ALIGN) }
            },
            free: |block| {
                const LG_ALIGN: i32 = SIZE.ilog2().cast_signed();
                // SAFETY: it was allocated with that size and alignment.
                unsafe { tikv_jemalloc_sys::sdallocx(block, SIZE, LG_ALIGN) }
            },
        }),
        "mimalloc" => Timed::new(Foreign {
            // SAFETY: the alignment is a power of two.
            alloc: || unsafe { libmimalloc_sys::mi_malloc_aligned(SIZE, SIZE) },
            // SAFETY: it was allocated by mimalloc.
            free: |block| unsafe { libmimalloc_sys::mi_free(block) },
        }),
        "snmalloc" => Timed::new(Foreign {
            // SAFETY: the alignment is a power of two.
            alloc: || unsafe { snmalloc_sys::sn_rust_alloc(SIZE, SIZE) }.cast(),
            free: |block: *mut c_void| {
                // SAFETY: it was allocated with that size and alignment.
                unsafe { snmalloc_sys::sn_rust_dealloc(block.cast(), SIZE, SIZE) };
            },
        }),
        "tcmalloc" => Timed::new(tcmalloc()),
        _ => return None,
    })
}

/// An allocator whose threads keep their blocks in thread-local variables.
struct Foreign<A, F> {
    alloc: A,
    free: F,
}

/// A block of one of those.
struct Block(NonNull<c_void>);

// SAFETY: the allocators accept a block from any thread, and only its holder writes it.
unsafe impl Send for Block {}

impl<A: Fn() -> *mut c_void + Sync, F: Fn(*mut c_void) + Sync> Source for Foreign<A, F> {
    type Block = Block;
    type Local = ();

    fn local(&self) {}

    #[inline]
    fn alloc(&self, (): &mut ()) -> Block {
        let block = NonNull::new((self.alloc)()).expect("there is memory");
        debug_assert!(block.addr().get().is_multiple_of(SIZE), "it is aligned");
        Block(block)
    }

    #[inline]
    fn write(&self, (): &mut (), block: &mut Block) {
        let first = block.0.cast::<u8>().as_ptr();
        // SAFETY: the block is this thread's, and larger than a byte. Volatile: it is never read.
        unsafe { first.write_volatile(1) };
    }

    #[inline]
    fn free(&self, (): &mut (), block: Block) {
        (self.free)(block.0.as_ptr());
    }
}

fn tcmalloc() -> impl Source {
    unsafe extern "C" {
        fn MallocExtension_Internal_GetPerCpuCachesActive() -> bool;
    }
    // SAFETY: the alignment is a power of two.
    let alloc = || unsafe { libtcmalloc_sys::BridgeTCMallocInternalNewAlignedNothrow(SIZE, SIZE) };
    // SAFETY: it was allocated with that size and alignment.
    let free = |block| unsafe {
        libtcmalloc_sys::TCMallocInternalDeleteSizedAligned(block, SIZE, SIZE);
    };
    free(alloc());
    // SAFETY: it only reads a flag.
    if unsafe { !MallocExtension_Internal_GetPerCpuCachesActive() } {
        eprintln!("tcmalloc has no per-CPU caches here");
    }
    Foreign { alloc, free }
}

/// The floor: each thread allocates the blocks that it freed; no other thread has them.
struct Stack;

impl Source for Stack {
    type Block = u32;
    type Local = Vec<u32>;

    const IS_MEMORY: bool = false;

    fn local(&self) -> Vec<u32> {
        (0..1 << 17).collect()
    }

    #[inline]
    fn alloc(&self, stack: &mut Vec<u32>) -> u32 {
        stack.pop().unwrap_or_default()
    }

    fn write(&self, _: &mut Vec<u32>, _: &mut u32) {}

    #[inline]
    fn free(&self, stack: &mut Vec<u32>, block: u32) {
        stack.push(block);
    }
}

struct Highwater(FramePool);

impl Highwater {
    fn new() -> Self {
        let memory = FrameMemory::new(CAPACITY.pages_floor()).expect("there is address space");
        let machine = Topology::detect();
        let config = PoolConfig {
            regime: Regime::preferred(&machine),
            ..PoolConfig::new(machine.nr_cpus())
        };
        let pool = FramePool::with_config(Arc::new(memory), config);
        Self(pool.expect("a pool of the usual kind"))
    }
}

impl Source for Highwater {
    type Block = Frame;
    type Local = ();

    fn local(&self) {}

    #[inline]
    fn alloc(&self, (): &mut ()) -> Frame {
        let taken = self.0.alloc();
        taken.expect("there are free frames")
    }

    #[inline]
    fn write(&self, (): &mut (), frame: &mut Frame) {
        self.0.memory().bytes_mut(frame)[0] = 1;
    }

    #[inline]
    fn free(&self, (): &mut (), frame: Frame) {
        self.0.free(frame);
    }
}
