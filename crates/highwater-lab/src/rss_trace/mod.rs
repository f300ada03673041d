//! RSS traces: a kernel's counts of a workload's resident memory, and the address space that was
//! active on each CPU meanwhile, as a stream of events.
//!
//! A trace is opened by path ([`RssTrace::open`]), read from any stream
//! ([`RssTrace::from_reader`]), or is one of the two that ship with the project ([`Shipped`]).
//! Decompression is that of [`crate::trace`]. The first line selects one of two versions of a text
//! format; `traces/README.md` describes them.
//!
//! | line | event of the kernel | version |
//! |---|---|---|
//! | `R t cpu pid mm_id curr member size` | `kmem:rss_stat`: pages after the change | 1, 2 |
//! | `S t cpu prev state next` | `sched:sched_switch` | 1, 2 |
//! | `N t cpu pid child flags` | `task:task_newtask` | 2 |
//! | `X t cpu pid` | `sched:sched_prepare_exec` | 2 |
//! | `Z t cpu pid is_last` | `sched:sched_process_exit` | 2 |
//! | `K pid` | none: this task is a kernel thread; before the first event | 2 |
//! | `A` `F` `B` `D` `E` | others, such as the page allocator's: checked, then ignored | 1 |
//!
//! # Spaces
//!
//! `mm_id` names a structure that the kernel reuses as soon as its process is gone. A
//! [`SpaceId`] names one lifetime. A lifetime ends when every counter that the trace has shown of
//! it is zero, and the next event of its `mm_id` begins a new one, unless that event is a task's
//! change to the space that it is still in.
//!
//! Sizes are exact and of one member each, so a change is the difference to the size before. A
//! space that was born within the trace began at zero. One that was there before it has an unknown
//! size until each member's first event, whose [`delta_pages`](RssChange::delta_pages) is therefore
//! `None`: its `size` is where counting begins. Born are: a second lifetime of an `mm_id`, and a
//! space whose first event is another space's task filling it with at most 512 pages, which is how
//! a fork copies and an exec builds.
//!
//! Invariants, for every space and member, checked by
//! `tests/rss_traces.rs::changes_sum_to_the_last_size`: first size where unknown, plus the sum of
//! `delta_pages`, is the last `size`.
//!
//! # Active spaces
//!
//! [`RssEvent::active`] is the space whose pages a cache of the active space would hold on the
//! event's CPU. At most one is active on each CPU; threads of one process make it active on
//! several. The rules:
//!
//! - A task's space is learnt from a fork, and from its changes with `curr` set: the space is then
//!   active on that CPU according to the kernel.
//! - A switch to a task makes its space active. Kernel threads, the idle task, and a task that has
//!   given its space up at its exit have none and leave the previous one active.
//! - After `X`, a task is in the space it has built from its next change on that shows it, or its
//!   next switch. In version 1, which has no `X`, it has replaced its space when it has built
//!   another one and changes its old space with `curr` unset; otherwise such a change is of an
//!   exit.
//! - In version 2 a task that is no kernel thread and whose space is unknown was not recorded, and
//!   no space of the trace is active while it runs. In version 1, which declares no
//!   kernel threads, such a task leaves the previous space active: other processes than the
//!   recorded ones are not seen to displace it, and a parent that exits before its child has run is
//!   taken for one that has replaced its space. The cost, with the shipped traces cut down
//!   to version 1: the same spaces, and 114 misses for 199 in the build, none less for the server
//!   (`tests/rss_traces.rs::version_1_finds_the_same_spaces`).
//! - An event of a task that was not switched to on its CPU proves a switch that is not in the
//!   trace. The reader inserts it before the event and counts it
//!   ([`inferred_switches`](RssTrace::inferred_switches)).
//!
//! # Failure modes
//!
//! No content makes the reader panic: `tests/rss_traces.rs::mutations_never_panic_and_always_end`.
//! A line that the format does not allow is an error with its number, and ends the iteration.
//! Version 2 states the number of its events, so a lost line is detected too. A version 1 text that
//! is cut at a line end and not compressed looks whole.

mod error;
mod event;
mod line;
mod reader;
mod shipped;
mod spaces;
mod tally;

pub use error::RssTraceError;
pub use event::{Member, RssChange, RssEvent, RssEventKind, SpaceId};
pub use reader::RssTrace;
pub use shipped::Shipped;
pub use tally::RssTally;
