//! A diagnosis of the machine that a program runs on.
//!
//! Parsers of `/proc`, `/sys` and tracefs, and checks for the problems of the kernel's memory
//! management that Highwater's designs come from. Depends on nothing of the memory manager.
//!
//! - [`Root`] is the file system that is read: the machine's own, or a recorded one.
//! - [`Machine`] reads what several checks need once.
//! - [`CHECKS`] are the checks; each makes a [`Finding`] of a machine.
//! - [`parse`] are the parsers: pure functions from text to values.
//! - [`accesses`] decodes page-cache accesses from events of the kernel.
//! - [`tracefs`] records events of the kernel; [`traced`] counts some of them.
//!
//! ```
//! use highwater_host::{CHECKS, Machine, Root};
//!
//! let mut machine = Machine::open(Root::at("/")?)?;
//! machine.begin_interval();
//! // Checks 10 to 12, 16 and 18 count events between the two calls.
//! std::thread::sleep(std::time::Duration::from_millis(10));
//! machine.end_interval();
//! for check in CHECKS {
//!     let finding = (check.run)(&machine);
//!     println!("{} {}: {}", finding.verdict, check.title, finding.says);
//! }
//! # Ok::<(), highwater_host::RootError>(())
//! ```

pub mod accesses;
pub mod parse;
pub mod traced;
pub mod tracefs;

mod checks;
mod finding;
mod groups;
mod machine;
mod process;
mod root;

pub use checks::{CHECKS, Check};
pub use finding::{
    Figure, Finding, Scale, Thresholds, Unit, Verdict, amount, counted, printable, rounded,
};
pub use groups::{Group, GroupVersion, Groups};
pub use machine::{Interval, Machine};
pub use process::{Effort, Exact, ExactBy, Process, ProcessTable, bound_pages};
pub use root::{Missing, Root, RootError};

/// How to use it, and what each check means.
#[cfg(doc)]
#[doc = include_str!("../docs/host.md")]
pub mod guide {}
