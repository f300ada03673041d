//! Sandboxes in tests: from some moment on, the system refuses some calls of a thread (seccomp).

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io;

/// The call that is refused.
pub(crate) const MEMBARRIER: libc::c_long = libc::SYS_membarrier;
/// The call that its replacement needs.
pub(crate) const SETAFFINITY: libc::c_long = libc::SYS_sched_setaffinity;

/// Makes the system refuse `calls` of the calling thread with `errno`, for the life of the thread.
/// Returns whether it does: some systems have no such filters.
pub(crate) fn refuse(calls: &[libc::c_long], errno: libc::c_int) -> bool {
    const THIS_THREAD: libc::c_ulong = 0;
    install(calls, errno, THIS_THREAD)
}

/// As [`refuse`], for all threads of the process.
pub(crate) fn refuse_process(calls: &[libc::c_long], errno: libc::c_int) -> bool {
    install(calls, errno, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

fn install(calls: &[libc::c_long], errno: libc::c_int, threads: libc::c_ulong) -> bool {
    // From `linux/bpf_common.h`: load a word; jump if it equals a constant; return a constant.
    const LOAD: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    // A filter first sees the number of the call.
    let mut filter = vec![step(LOAD, 0, 0)];
    for (left, call) in (0..calls.len()).rev().zip(calls) {
        let to_end = u8::try_from(left + 1).expect("a few calls");
        let number = u32::try_from(*call).expect("a system call");
        filter.push(step(IF_EQUAL, to_end, number));
    }
    let errno = u32::try_from(errno).expect("a positive number");
    filter.push(step(RETURN, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(step(RETURN, 0, libc::SECCOMP_RET_ERRNO | errno));
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("a few steps"),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: takes numbers only. Its effect is that programs which this thread starts gain no
    // privileges.
    let is_meek = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: reads the program, which lives until it returns, and is checked by the system.
    let rc = unsafe { libc::syscall(libc::SYS_seccomp, mode, threads, &raw const program) };
    is_meek && rc == 0
}

/// As [`refuse`], for membarrier and `others`; prints a note if the system cannot do it.
#[expect(clippy::print_stderr, reason = "a test that skips something says so")]
pub(crate) fn refuse_membarrier(others: &[libc::c_long], errno: libc::c_int) -> bool {
    let calls = [&[MEMBARRIER], others].concat();
    let is_refused = refuse(&calls, errno);
    if !is_refused {
        let error = io::Error::last_os_error();
        eprintln!("skipped: this system does not filter system calls ({error})");
    }
    is_refused
}
