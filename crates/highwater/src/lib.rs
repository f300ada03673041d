//! Highwater: a memory manager that a many-core, multi-tenant program links in.
//!
//! A program that serves many tenants from one memory has to answer four questions: how much does
//! each one use, may it use more, what is taken back when memory is short, and whom to stop when
//! that is not enough. With one counter that all CPUs write, the first answer is slow; with one for
//! each CPU, it is wrong, or takes a walk over all of them. The others are no better than it.
//!
//! Highwater reserves one range of real memory and cuts it into *frames* of 4 KiB. Pages of files
//! are read into frames and charged to *groups*, a tree with a hard maximum at each node. Counts
//! are kept in per-CPU words and read as intervals that hold the exact value, so that a cheap read
//! says how far off it can be. When no frame is free, or a group is full, pages that were not read
//! lately are evicted; when nothing can be evicted, the group with most memory is named, and the
//! program decides what to do about it.
//!
//! # Groups
//!
//! A [`Group`] is what is accounted and limited together: a tenant, a query. What is charged to it
//! is charged to its ancestors, and none exceeds its maximum ([`Limits`]), not for one instruction.
//! A [`Charge`] is held for memory that the program has elsewhere; pages of files are charged by
//! reading them. [`Group::usage`] is an [`Estimate`], at once; [`Group::usage_precise`] is exact.
//!
//! # Files
//!
//! A [`File`] is opened to read, and then immutable, or to write. A [`Space`] says who pays; a
//! [`Mapping`] is a range of a file's pages in a space. Storage is a [`Backing`]: a file of the
//! system, or what the program brings.
//!
//! # Memory
//!
//! [`Space::map_anon`] maps memory without a file, [`Manager::shared_memory`] makes some that many
//! spaces map: zeros until they are written to, swapped out under pressure where the manager has a
//! swap area ([`Builder::swap`]).
//!
//! # Guards
//!
//! A [`Guard`] keeps the pages of read-only files where they are while they are read: a resident
//! read under it stores nothing that other threads write, once the page is marked as read. A
//! [`PinnedPage`](manager::PinnedPage) is for what outlives a guard. Pages of writable files are
//! held by their latch, [`PageRead`](cache::PageRead) or [`PageWrite`](cache::PageWrite).
//!
//! # Reclaim
//!
//! Each group has an active and an inactive list. Pages are evicted by the thread that needs
//! memory, or ahead of need by [`Background::Thread`]; dirty ones are written to their file first,
//! and stay if that fails. An evicted page leaves a shadow, by which it is known when it comes
//! back.
//!
//! # Victims
//!
//! When reclaim makes no room, the childless group with most memory is the [`Victim`]: found by
//! intervals, read exactly, and with a record of how far off the choice can be.
//! [`Manager::on_exhausted`] says what to do with it. When that does not help either, the request
//! fails, with the numbers in the error. Groups that can spill are asked first
//! ([`Group::on_reclaim`]); a task waits for memory in line ([`Group::charge_async`]).
//!
//! # Snapshots
//!
//! A [`Snapshot`] holds counters named as in `/proc/vmstat`, frames, watermarks, contention and
//! every group, as text or serialized (feature `serde`).
//!
//! # Layers
//!
//! Each layer is a module, uses only those above it in this table, and can be used without those
//! below it.
//!
//! | module | owns |
//! |---|---|
//! | [`units`], [`error`], [`sync`] | amounts and numbers as types, errors, the one door to atomics, locks and threads |
//! | [`topology`] | CPUs, and which share caches |
//! | [`memmap`] | the reserved range, and who may touch the bytes of a frame |
//! | [`percpu`] | a word for each CPU |
//! | [`counter`] | sums that are known as intervals |
//! | [`group`] | the tree of groups and its charges |
//! | [`frame`] | zones, free frames, watermarks |
//! | [`cache`] | pages of files, latches, write-back |
//! | [`reclaim`] | lists, scanning, shadows |
//! | [`victim`] | whom to stop |
//! | [`manager`] | all of them together |
//!
//! # Where to begin
//!
//! For most uses, start with [`Manager`]. The documents in `docs/` of this crate (the module `docs`
//! here) hold a guide, what the numbers promise, tuning, statistics, limitations and prior art.
//!
//! ```
//! use highwater::{Bytes, Limits, Manager};
//!
//! let hw = Manager::builder().capacity(Bytes::mib(64)).build()?;
//! let tenant = hw.root().child("tenant-a", Limits::max(Bytes::mib(4)))?;
//! let work = tenant.charge(Bytes::mib(3))?;
//! assert!(tenant.usage().contains(work.bytes()));
//! assert!(tenant.charge(Bytes::mib(2)).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Layer order, lowest first: a module may use only modules above it in this list.
pub mod units;
pub mod error;
pub mod sync;
pub mod topology;
#[expect(unsafe_code, reason = "maps memory and hands out the bytes of frames")]
pub mod memmap;
#[expect(
    unsafe_code,
    reason = "restartable sequences are assembly that writes raw cells"
)]
pub mod percpu;
pub mod counter;
pub mod group;
pub mod frame;
pub mod cache;
pub mod reclaim;
pub mod victim;
pub mod manager;

pub use cache::{Access, Backing, SyncError};
pub use group::Limits;
pub use manager::{
    Background, BuildError, Builder, Charge, ChargeFailed, ChargeWait, File, Group, GrowWait,
    Guard, Manager, Mapping, ReadError, Snapshot, Space, Victim,
};
pub use topology::Topology;
pub use units::{Bytes, Estimate, PAGE_SIZE, Pages};

/// The documents of `docs/`: their code runs as doctests.
#[cfg(doc)]
pub mod docs {
    #[doc = include_str!("../docs/guide.md")]
    pub mod guide {}
    #[doc = include_str!("../docs/guarantees.md")]
    pub mod guarantees {}
    #[doc = include_str!("../docs/accuracy.md")]
    pub mod accuracy {}
    #[doc = include_str!("../docs/tuning.md")]
    pub mod tuning {}
    #[doc = include_str!("../docs/stats.md")]
    pub mod stats {}
    #[doc = include_str!("../docs/limitations.md")]
    pub mod limitations {}
    #[doc = include_str!("../docs/measurements.md")]
    pub mod measurements {}
    #[doc = include_str!("../docs/prior-art.md")]
    pub mod prior_art {}
}

#[cfg(all(test, not(loom)))]
mod seed;
