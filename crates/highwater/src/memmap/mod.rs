//! Reserved address ranges, and exclusive or shared access to the bytes in them.
//!
//! - [`Reservation`] is a range of real memory: reserved at once, committed by the system page by
//!   page (or by 2 MiB, with huge pages), released on request.
//! - [`FrameMemory`] cuts a reservation into frames and keeps one rule about their bytes: at any
//!   moment a frame is *free* (no access), *owned* (only the holder of its [`Frame`] token reads
//!   and writes), or *published* under a tag (any thread may read, none may write). A [`Block`] is
//!   the right to 2^order neighbouring frames at once, and a large [`Frame`] such a block that can
//!   be published as one.
//! - [`Reader`] borrows the bytes of published frames by hazard pointers, without a store to shared
//!   memory; before a published frame is owned again, [`FrameMemory::retract`] checks for borrowers
//!   without blocking: it reports the frames that are still borrowed.
//!
//! - [`FrameRing`] reads into frames by io_uring, and owns them while the system may write to them.
//!   [`WriteRing`] writes many places at once.
//!
//! The layers above move tokens and numbers only; this module and `percpu` hold all `unsafe` code.

mod barrier;
mod block;
mod borrow;
mod decommit;
mod done;
mod frames;
mod free;
mod kernel_cache;
mod latched;
#[cfg(all(target_os = "linux", not(loom)))]
mod membarrier;
#[cfg(any(not(target_os = "linux"), loom, miri))]
mod no_ring;
mod racy;
mod reservation;
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
mod ring;
#[cfg(all(any(test, feature = "lab"), target_os = "linux", not(loom), not(miri)))]
pub(crate) mod sandbox;
mod seat;
mod sparse;
mod token;
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
mod tries;
mod vectored;
#[cfg(all(target_os = "linux", not(loom)))]
mod visit;
mod words;
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
mod write_ring;

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod refusal_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use block::Block;
pub use borrow::{Pinned, Reader};
pub use frames::{Frame, FrameMemory, Retracted};
pub(crate) use free::for_each_run;
#[cfg(feature = "lab")]
pub use kernel_cache::kernel_cached;
pub(crate) use kernel_cache::{Advice, DirectAlign, advise, direct_align, open_flags};
pub use latched::{FrameRead, FrameWrite, Glimpse, LATCH_LOCK, LatchTurn, MemoryRef};
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri)))]
pub(crate) use membarrier::Membarrier;
#[cfg(any(not(target_os = "linux"), loom, miri))]
pub(crate) use no_ring::{
    NoBell as Bell, NoRing as FrameRing, NoTakenRing as TakenRing, NoWriteRing as WriteRing,
};
pub(crate) use reservation::{HUGE_FRAMES, HugePages};
pub use reservation::{MapError, Reservation};
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
pub(crate) use ring::{Bell, FrameRing};
pub use seat::Seat;
pub(crate) use sparse::{SparseWords, WORDS_OF_PAGE};
pub use token::MemoryId;
pub(crate) use token::{ORDER_BITS, TAG_LARGE, TAG_ORDER_SHIFT, Token, order_of_bits};
pub(crate) use vectored::{PlacedWrite, read_vectored_at, write_vectored_at};
pub use words::{Zeroable, zeroed};
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
pub(crate) use write_ring::{TakenRing, WriteRing};

use std::io;

use thiserror::Error;

/// Other threads could not be made to pass a barrier, or to leave their sequences.
#[derive(Debug, Error)]
#[error(
    "membarrier(2) was granted before and is now refused ({refusal}), and CPUs cannot be visited \
     instead ({visiting}): allow membarrier, or sched_setaffinity and /proc/self/task"
)]
pub(crate) struct Unreached {
    /// Error of membarrier.
    refusal: io::Error,
    /// Error that kept the thread from visiting the CPUs.
    visiting: io::Error,
}
