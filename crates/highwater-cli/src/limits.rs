//! Process limits that a run can meet, on threads and address space: errors that name the limit and
//! the remedy, in place of a panic or an abort.

use std::error::Error;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater::units::Bytes;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGABRT;
use signal_hook::flag;

use crate::output::with_causes;

/// Memory of a run besides frames and threads: code that is not loaded yet, traces, page tables,
/// keys, the report. Chosen: three times the memory of the shipped trace's replay.
const BESIDE: Bytes = Bytes::mib(64);

/// Address space of a thread: its stack of 2 MiB, and 64 MiB that glibc reserves for its heap.
/// glibc does without the latter, but takes it if it can, and leaves so much less to all others.
const OF_A_THREAD: Bytes = Bytes::mib(68);

/// Address space of an experiment without its frames, whose refusal is an error. Chosen: above the
/// most that a quick run takes, 91 MiB for `victim` (`VmPeak` with one heap of glibc).
const OF_AN_EXPERIMENT: Bytes = Bytes::mib(128);

/// Address space of a thread with `--real`: its stack of 64 KiB, and what counts its pages.
const OF_A_REAL_THREAD: Bytes = Bytes::kib(256);

/// Text of the standard library's panics when a thread does not start.
const NO_THREAD: &str = "failed to spawn thread";

/// Formats an error and its causes in one line, with the remedy if one of them is a limit.
pub(crate) fn with_remedy(error: &(dyn Error + 'static)) -> String {
    let said = with_causes(error);
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(remedy) = error.downcast_ref().and_then(remedy) {
            return format!("{said}; {remedy}");
        }
        cause = error.source();
    }
    said
}

/// Formats the failure to start a thread, with the remedy.
pub(crate) fn no_thread(error: &io::Error) -> String {
    format!("cannot start a thread: {error}; {}", of_threads())
}

/// Returns the message that replaces a panic about a thread that did not start.
pub(crate) fn of_panic(message: &str) -> Option<String> {
    let is_thread = message.starts_with(NO_THREAD);
    is_thread.then(|| format!("cannot start a thread; {}", of_threads()))
}

/// Returns the remedy if the error comes from a limit of the process.
fn remedy(error: &io::Error) -> Option<String> {
    let raise = |resource, limited: &str| {
        let limit = Bytes(getrlimit(resource).current?);
        Some(format!("{limited}, which is {limit}: raise it"))
    };
    match Errno::from_io_error(error)? {
        Errno::AGAIN => Some(of_threads()),
        Errno::NOMEM => raise(
            Resource::As,
            "address space is limited by RLIMIT_AS (`ulimit -v`)",
        ),
        Errno::FBIG => raise(
            Resource::Fsize,
            "the size of files is limited by RLIMIT_FSIZE (`ulimit -f`)",
        ),
        _ => None,
    }
}

/// Describes the limits on threads.
fn of_threads() -> String {
    let shown = |resource| match getrlimit(resource).current {
        None => "unlimited".to_owned(),
        Some(limit) => limit.to_string(),
    };
    format!(
        "threads are limited by RLIMIT_NPROC (`ulimit -u`, {} now), by pids.max of the control group, and by \
         RLIMIT_AS (`ulimit -v`, {} bytes now): raise the one that is reached, or give fewer `--threads`",
        shown(Resource::Nproc),
        shown(Resource::As)
    )
}

/// Refuses a run whose memory exceeds the limit on address space.
/// Returns the address space of an experiment with so many real threads.
pub(crate) fn of_an_experiment(real_threads: u32) -> Bytes {
    Bytes(OF_AN_EXPERIMENT.0 + OF_A_REAL_THREAD.0 * u64::from(real_threads))
}

/// Returns the address space of a replay.
pub(crate) fn of_a_replay(capacity: Bytes, threads: usize) -> Bytes {
    let of_threads = OF_A_THREAD.0.saturating_mul(threads as u64 + 2);
    // Metadata of frames takes less than a sixteenth of their size.
    let of_frames = capacity.0.saturating_add(capacity.0 / 16);
    let needed = of_frames.saturating_add(of_threads);
    Bytes(needed.saturating_add(BESIDE.0))
}

/// Refuses a run whose memory exceeds the limit on address space; `remedy` names what needs less.
///
/// The standard library aborts a program when an allocation fails. So this reserves the memory that
/// the run will need, and releases it again. The answer is the system's own, and includes other
/// memory limits.
///
/// # Errors
///
/// The message for the user.
pub(crate) fn check_address_space(needed: Bytes, remedy: &str) -> Result<(), String> {
    let Some(limit) = getrlimit(Resource::As).current else {
        return Ok(());
    };
    let mut room: Vec<u8> = Vec::new();
    let wanted = usize::try_from(needed.0).unwrap_or(usize::MAX);
    if room.try_reserve_exact(wanted).is_ok() {
        return Ok(());
    }
    Err(format!(
        "the limit on address space, RLIMIT_AS (`ulimit -v`), is {}: this run needs {needed} more than \
         the program has; raise it, or {remedy}",
        Bytes(limit)
    ))
}

/// Whether an abort is attributed to a failed allocation: the standard library aborts then, after a
/// message with the size, and runs no code of the program.
///
/// That is so while memory is limited and nothing has panicked. Every other abort keeps its signal.
/// The safe interface to signals does not tell more, so a stack that overflows or a heap that is
/// damaged under such a limit counts as a failed allocation too.
#[derive(Clone, Debug)]
pub(crate) struct RefusedMemory {
    /// Both written by the panic hook, read by the handler of SIGABRT, and always opposite but
    /// while they are written. Neither publishes anything but itself.
    is_likely: Arc<AtomicBool>,
    is_ruled_out: Arc<AtomicBool>,
}

impl RefusedMemory {
    /// Makes an abort by refused memory end the program with status 2.
    ///
    /// # Errors
    ///
    /// When the system refuses the handler.
    pub(crate) fn ends_with_status_2() -> io::Result<Self> {
        let is_limited = is_memory_limited();
        let this = Self {
            is_likely: Arc::new(AtomicBool::new(is_limited)),
            is_ruled_out: Arc::new(AtomicBool::new(!is_limited)),
        };
        if is_limited {
            let is_likely = Arc::clone(&this.is_likely);
            flag::register_conditional_shutdown(SIGABRT, 2, is_likely)?;
            // A handler takes the place of what the signal does otherwise.
            let is_ruled_out = Arc::clone(&this.is_ruled_out);
            flag::register_conditional_default(SIGABRT, is_ruled_out)?;
        }
        Ok(this)
    }

    /// Records a panic: an abort that follows comes from it.
    pub(crate) fn rule_out(&self) {
        // Relaxed: an abort by this panic comes from the same thread.
        self.is_likely.store(false, Ordering::Relaxed);
        self.is_ruled_out.store(true, Ordering::Relaxed);
    }
}

/// Returns whether the system may refuse memory that it has.
fn is_memory_limited() -> bool {
    let is_limited = |resource| getrlimit(resource).current.is_some();
    is_limited(Resource::As) || is_limited(Resource::Data) || is_overcommit_refused()
}

/// Returns whether the system refuses address space that exceeds memory and swap.
fn is_overcommit_refused() -> bool {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory");
    mode.is_ok_and(|mode| mode.trim() == "2")
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_lab::replay::ReplayError;

    #[test]
    fn a_thread_that_did_not_start_is_found_among_the_causes() {
        let again = || io::Error::from_raw_os_error(Errno::AGAIN.raw_os_error());
        let spawn = ReplayError::Spawn {
            index: 3,
            source: again(),
        };
        let said = with_remedy(&spawn);
        assert!(
            said.contains("worker thread 3") && said.contains("RLIMIT_NPROC"),
            "{said}"
        );
        let other = ReplayError::Spawn {
            index: 3,
            source: io::ErrorKind::NotFound.into(),
        };
        assert!(!with_remedy(&other).contains("RLIMIT"));
    }
}
