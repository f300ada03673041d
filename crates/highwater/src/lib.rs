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
pub mod frame;
