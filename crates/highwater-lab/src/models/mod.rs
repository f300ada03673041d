//! Reference models: slow or simple, obviously right, and exact. What the library does under real
//! conditions is compared with what they say.

mod lru;

pub use lru::Lru;
