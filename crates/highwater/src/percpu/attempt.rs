//! Operands and outcomes of a restartable sequence, the same on every architecture.

use crate::sync::atomic::AtomicI64;

/// The cells of one word: one for each CPU, `stride` bytes apart.
#[derive(Clone, Copy)]
#[cfg_attr(
    any(not(target_arch = "x86_64"), not(target_os = "linux"), loom, miri),
    expect(dead_code, reason = "read by the sequence, which this system lacks")
)]
pub(super) struct Column {
    pub(super) first: *const AtomicI64,
    pub(super) stride: usize,
    pub(super) nr_cpus: u32,
}

/// The outcome of one run of a sequence.
#[cfg_attr(
    any(not(target_arch = "x86_64"), not(target_os = "linux"), loom, miri),
    expect(dead_code, reason = "made by the sequence, which this system lacks")
)]
pub(super) enum Attempt {
    /// Stored on `cpu`, whose cell is now `new`.
    Committed { cpu: u32, new: i64 },
    /// The sequence's condition does not hold: nothing was stored, and a retry would fail too.
    Refused,
    /// Interrupted before the store: nothing was stored, retry.
    Aborted,
    /// The thread has no rseq, or runs on another CPU: nothing was stored.
    Elsewhere,
}
