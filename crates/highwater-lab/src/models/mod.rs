//! Reference models: slow or simple, obviously right, and exact. What the library does under real
//! conditions is compared with what they say.

mod lru;
mod replacement;

pub use lru::Lru;
pub use replacement::{AccessTrace, Algorithm, Decided, Replacement, misses};
