//! Highwater: a memory manager that a many-core, multi-tenant program links in.

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
    Background, BuildError, Builder, Charge, ChargeFailed, File, Group, Guard, Manager, Mapping,
    ReadError, Snapshot, Space,
};
pub use topology::Topology;
pub use units::{Bytes, Estimate, PAGE_SIZE, Pages};
pub use victim::Victim;

#[cfg(all(test, not(loom)))]
mod seed;
