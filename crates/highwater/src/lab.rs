//! The internals of the library, for `highwater-lab` and for this crate's own tests and benches.
//!
//! Unstable: the feature `lab` makes this module public, and with it every item that is marked
//! `visibility::make(pub)` elsewhere in the crate. Semantic versioning does not cover any of them;
//! a release may change or remove them without notice. Without the feature, the public API is the
//! one that `public-api.txt` lists.

/// Files, mappings and their page tables, the page index, latches, write-back.
pub mod cache {
    pub use crate::cache::*;
}
/// The reserved range, and the right to the bytes of its frames.
pub mod memmap {
    pub use crate::memmap::*;
}
/// Words and stacks for each CPU.
pub mod percpu {
    pub use crate::percpu::*;
}
/// Lists, scanning, shadows and eviction policies.
pub mod reclaim {
    pub use crate::reclaim::*;
}
/// Recordings, and reading them.
pub mod recording {
    pub use crate::manager::recorder::*;
}
/// Atomics, locks and threads.
pub mod sync {
    pub use crate::sync::*;
}
