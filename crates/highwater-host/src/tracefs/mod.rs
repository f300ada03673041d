//! Kernel tracepoints through tracefs: a tracing instance of its own, format files, and the binary
//! ring buffers, merged over the CPUs by time.
//!
//! [`Tracefs`] finds the file system, or mounts it detached from any path. An [`Instance`] has
//! buffers, events, filters and a set of traced tasks of its own, and is removed when it is
//! dropped. A [`Stream`] reads `per_cpu/cpuN/trace_pipe_raw`: the kernel returns whole sub-buffers
//! as they lie in memory ([`page`]), and [`EventFormat`] says where an event's fields are.
//!
//! Everything is decoded from byte slices with checked indices: no content of a page or of a format
//! file makes a decoder panic (`tests/tracefs.rs::mutated_pages_never_panic`).
//!
//! ```no_run
//! use highwater_host::tracefs::Tracefs;
//!
//! let tracefs = Tracefs::open()?;
//! let mut instance = tracefs.instance()?;
//! let format = instance.enable("sched", "sched_process_fork", None)?;
//! let child = format.field("child_pid")?;
//! let mut stream = instance.stream()?;
//! instance.start()?;
//! stream.poll(|event| {
//!     let pid = child.unsigned(event.bytes);
//!     # let _ = pid;
//! })?;
//! # Ok::<(), highwater_host::tracefs::TracefsError>(())
//! ```

mod error;
mod format;
mod instance;
mod lost;
mod mount;
pub mod page;
mod stream;

pub use error::TracefsError;
pub use format::{EventFormat, Field, FormatError};
pub use instance::Instance;
pub use lost::Lost;
pub use mount::Tracefs;
pub use stream::{Event, Stream};
