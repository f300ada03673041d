//! A diagnosis of the machine that a program runs on.
//!
//! Parsers of `/proc`, `/sys` and tracefs, and checks for the problems of the kernel's memory
//! management that Highwater's designs come from. Depends on nothing of the memory manager.

pub mod traced;
pub mod tracefs;
