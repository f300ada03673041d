//! Highwater: a memory manager that a many-core, multi-tenant program links in.

// Layer order, lowest first: a module may use only modules above it in this list.
pub mod units;
pub mod error;
pub mod sync;
pub mod topology;
#[expect(unsafe_code, reason = "maps memory and hands out the bytes of frames")]
pub mod memmap;
#[expect(unsafe_code, reason = "asks the C library for the current CPU")]
pub mod percpu;
pub mod counter;
pub mod group;
pub mod frame;
