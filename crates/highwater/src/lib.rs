//! Highwater: a memory manager that a many-core, multi-tenant program links in.
//!
//! A program that serves many tenants from one memory has to answer four questions: how much does
//! each one use, may it use more, which pages to reclaim when memory is short, and which tenant to
//! stop when reclaim is not enough. With one shared counter the first answer is slow; with per-CPU
//! counters it is inexact, or takes a walk over all CPUs. The other answers are as good as that
//! one.
//!
//! Highwater reserves one range of real memory and cuts it into *frames* of 4 KiB. File pages are
//! read into frames and charged to *groups* (memcgs): a tree with a hard maximum at each node.
//! Counts are kept in per-CPU words and read as intervals that contain the exact value, so a cheap
//! read states its own error. When no frame is free or a group is full, cold pages are evicted;
//! when nothing can be evicted, the group with most memory is selected as the victim, and the
//! program decides how to stop it.
//!
//! # Groups
//!
//! A [`Group`] accounts and limits memory together: a tenant, a query. A charge to a group is also
//! a charge to its ancestors, and none of them ever exceeds its maximum ([`Limits`]), not for one
//! instruction, except by [forced charges](Group::force_charge). A [`Charge`] accounts memory that
//! the program allocates elsewhere; reads charge file pages. [`Group::usage`] returns an
//! [`Estimate`] for a load for each CPU that has charged; [`Group::usage_precise`] is exact.
//!
//! # Files
//!
//! A [`File`] is opened read-only, and is then immutable, or writable. A [`Space`] names the group
//! that pays; a [`Mapping`] is a range of a file's pages in a space. Storage is a [`Backing`]: a
//! system file, or an implementation of the program's own.
//!
//! # Memory
//!
//! [`Space::map_anon`] maps anonymous memory, [`Manager::shared_memory`] creates memory that
//! several spaces can map: zero until written, and swapped out under pressure if the manager has a
//! swap area ([`Builder::swap`]).
//!
//! # Guards
//!
//! A [`Guard`] protects the pages of read-only files from eviction while they are read, with hazard
//! pointers: a resident read under it stores nothing that other threads write, once the page is
//! marked as read. A [`PinnedPage`] is a pin that outlives a guard. Pages of
//! writable files are held by their latch, [`PageRead`] or [`PageWrite`]; in tasks, such a guard is
//! [`Owned`].
//!
//! # Reclaim
//!
//! Each group has an active and an inactive list. Pages are evicted by direct reclaim, in the
//! thread that needs memory, or ahead of need by background reclaim ([`Background::Thread`]). Dirty
//! pages are written back first and stay if that fails. An evicted page leaves a shadow entry, by
//! which a refault is recognized.
//!
//! # Victims
//!
//! When reclaim makes no room, the childless group with most memory is the [`Victim`]: found by
//! intervals, read exactly, and with a record of the possible error of the choice. The handler set
//! by [`Group::on_exhausted`] stops it. When that does not help either, the request fails with an
//! error that carries the numbers. Groups that can spill are asked first ([`Group::on_reclaim`]); a
//! task waits for memory in a wait queue ([`Group::charge_async`]).
//!
//! # Snapshots
//!
//! A [`Snapshot`] holds counters named as in `/proc/vmstat`, frames, watermarks, lock contention
//! and every group, as text or serialized (feature `serde`).
//!
//! # Layers
//!
//! Each layer is a module and uses only the modules above it in this table. The modules without a
//! link are private; the feature `lab` shows them for experiments, without semver.
//!
//! | module | owns |
//! |---|---|
//! | [`units`], `error`, `sync` | amounts and numbers as types, errors, the one door to atomics, locks and threads |
//! | [`topology`] | CPUs, and which share caches |
//! | `memmap` | the reserved range, and access to the bytes of a frame |
//! | `percpu` | a word for each CPU |
//! | [`counter`] | sums that are known as intervals |
//! | [`group`] | the tree of groups and its charges |
//! | [`frame`] | zones, free frames, watermarks |
//! | `cache` | pages of files, latches, write-back |
//! | `reclaim` | LRU lists, scanning, shadows |
//! | [`victim`] | victim selection |
//! | `manager` | all of them together |
//!
//! # Where to begin
//!
//! For most uses, start with [`Manager`]. The documents in `docs/` of this crate (the module `docs`
//! here) hold a guide, the accuracy of each number, tuning, statistics, limitations and prior art.
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

#![cfg_attr(
    not(feature = "lab"),
    expect(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "items that only the feature `lab` makes public; a build with it reports the rest"
    )
)]
#![cfg_attr(
    all(doc, not(feature = "lab")),
    expect(
        rustdoc::private_intra_doc_links,
        reason = "the documentation links to what is public with the feature `lab`"
    )
)]

// Layer order, lowest first: a module may use only modules above it in this list.
pub mod units;
mod error;
mod sync;
pub mod topology;
#[expect(unsafe_code, reason = "maps memory and hands out the bytes of frames")]
mod memmap;
#[expect(
    unsafe_code,
    reason = "restartable sequences are assembly that writes raw cells"
)]
mod percpu;
pub mod counter;
pub mod group;
pub mod frame;
mod cache;
mod reclaim;
pub mod victim;
mod manager;
#[cfg(feature = "lab")]
pub mod lab;

#[cfg(feature = "lab")]
pub use cache::RssMember;
pub use cache::{Access, Backing, FileBacking, ReadPattern, SyncError, WriteBackError, WriteGate};
pub use group::Limits;
pub use manager::{
    Background, BuildError, Builder, CapacityError, Charge, ChargeFailed, ChargeWait, Counter,
    CounterKind, File, Group, GroupSnapshot, Guard, Manager, Mapping, MemoryError, OpenError,
    OptimisticRead, OutOfMemory, Owned, PageRead, PageWrite, PinnedPage, RangeError, ReadError,
    ReadWait, ReclaimRequest, Snapshot, Space, Throttling, Victim, Working,
};
#[cfg(feature = "lab")]
pub use reclaim::policy::ParsePolicyError;
pub use reclaim::policy::PolicyKind;
pub use topology::Topology;
pub use units::{Bytes, Estimate, FilePage, MapPage, PAGE_SIZE, Pages};

/// The documents of `docs/`: their code runs as doctests.
#[cfg(doc)]
pub mod docs {
    #[doc = include_str!("../docs/guide.md")]
    pub mod guide {}
    #[doc = include_str!("../docs/engine.md")]
    pub mod engine {}
    #[doc = include_str!("../docs/guarantees.md")]
    pub mod guarantees {}
    #[doc = include_str!("../docs/accuracy.md")]
    pub mod accuracy {}
    #[doc = include_str!("../docs/tuning.md")]
    pub mod tuning {}
    #[doc = include_str!("../docs/stats.md")]
    pub mod stats {}
    #[doc = include_str!("../docs/events.md")]
    pub mod events {}
    #[doc = include_str!("../docs/recorder.md")]
    pub mod recorder {}
    #[doc = include_str!("../docs/limitations.md")]
    pub mod limitations {}
    #[doc = include_str!("../docs/measurements.md")]
    pub mod measurements {}
    #[doc = include_str!("../docs/prior-art.md")]
    pub mod prior_art {}
}

#[cfg(all(test, not(loom)))]
mod seed;
