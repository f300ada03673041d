//! What a sandbox does to a thread in tests: from some moment on, system calls are refused.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io;

/// The call that is refused.
pub(crate) const MEMBARRIER: libc::c_long = libc::SYS_membarrier;
/// What takes its place needs this one.
pub(crate) const SETAFFINITY: libc::c_long = libc::SYS_sched_setaffinity;

/// Has the system refuse `calls` of the calling thread with `errno`, as long as the thread lives.
/// Whether it does: there are systems that have no such filters.
pub(crate) fn refuse(calls: &[libc::c_long], errno: libc::c_int) -> bool {
    const THIS_THREAD: libc::c_ulong = 0;
    install(calls, errno, THIS_THREAD)
}

/// As [`refuse`], of all threads of the process.
pub(crate) fn refuse_process(calls: &[libc::c_long], errno: libc::c_int) -> bool {
    install(calls, errno, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

fn install(calls: &[libc::c_long], errno: libc::c_int, threads: libc::c_ulong) -> bool {
    // Of `linux/bpf_common.h`: a word at a place; a jump if it is a number; a result. Each by a
    // constant.
    const LOAD: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    // The number of the call is what a filter is shown first.
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
    // SAFETY: takes numbers only. What it takes away is that programs which this thread starts get
    // more rights than it.
    let is_meek = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: reads the program, which lives until it returns, and is checked by the system.
    let rc = unsafe { libc::syscall(libc::SYS_seccomp, mode, threads, &raw const program) };
    is_meek && rc == 0
}

/// As [`refuse`], of membarrier and `others`; says on the test's output where it cannot be done.
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
