//! Reference models: slow or simple, obviously correct, and exact. The library's behaviour under
//! real conditions is compared with theirs.

mod lru;
mod replacement;

pub use lru::Lru;
pub use replacement::{AccessTrace, Algorithm, Decided, Replacement, Work, misses};
