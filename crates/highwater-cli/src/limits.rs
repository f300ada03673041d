//! Process limits that a run can meet, on threads and address space: errors that name the limit and
//! the remedy, in place of a panic or an abort.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

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

/// Text of the standard library's panics when a thread does not start.
const NO_THREAD: &str = "failed to spawn thread";

/// Formats an error and its causes in one line, with the remedy if one of them is a limit.
pub(crate) fn with_remedy(error: &(dyn Error + 'static)) -> String {
    let said = with_causes(error);
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(is_refusal) {
            return format!("{said}; {}", of_threads());
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

fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::AGAIN.raw_os_error())
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
///
/// The standard library aborts a program when an allocation fails. So this reserves the memory that
/// the run will need, and releases it again. The answer is the system's own, and includes other
/// memory limits.
///
/// # Errors
///
/// The message for the user.
pub(crate) fn check_address_space(capacity: Bytes, threads: usize) -> Result<(), String> {
    let Some(limit) = getrlimit(Resource::As).current else {
        return Ok(());
    };
    let of_threads = Bytes(OF_A_THREAD.0.saturating_mul(threads as u64 + 2));
    // Metadata of frames takes less than a sixteenth of their size.
    let of_frames = Bytes(capacity.0.saturating_add(capacity.0 / 16));
    let needed = of_frames
        .0
        .saturating_add(of_threads.0)
        .saturating_add(BESIDE.0);
    let mut room: Vec<u8> = Vec::new();
    let wanted = usize::try_from(needed).unwrap_or(usize::MAX);
    if room.try_reserve_exact(wanted).is_ok() {
        return Ok(());
    }
    Err(format!(
        "the limit on address space, RLIMIT_AS (`ulimit -v`), is {}: this run needs {} more than the \
         program has; raise it, or give less `--capacity` or fewer `--threads`",
        Bytes(limit),
        Bytes(needed)
    ))
}

/// Makes an abort end the program with status 2. The standard library aborts, after a message with
/// the size, when an allocation fails that no check foresaw.
///
/// # Errors
///
/// When the system refuses the handler.
pub(crate) fn exit_on_abort() -> io::Result<()> {
    let is_on = Arc::new(AtomicBool::new(true));
    flag::register_conditional_shutdown(SIGABRT, 2, is_on).map(drop)
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
