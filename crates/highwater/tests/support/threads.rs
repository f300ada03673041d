//! Threads pinned to a CPU, and threads without rseq.

#![expect(
    unsafe_code,
    reason = "queries the system for a thread's CPU and rseq registration"
)]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::mem;
use std::thread;

use highwater::units::CpuId;

/// Returns the CPUs that the calling thread may run on.
pub(crate) fn allowed_cpus() -> Vec<CpuId> {
    // SAFETY: all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: writes at most the given size to `set`.
    let rc = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    assert_eq!(rc, 0, "the thread's own affinity is readable");
    let holds = |cpu: &usize| {
        // SAFETY: only reads `set`; the number is below the set's size.
        unsafe { libc::CPU_ISSET(*cpu, &set) }
    };
    let cpus = (0..8 * size_of_val(&set)).filter(holds);
    cpus.map(CpuId::from_index).collect()
}

/// Runs `work` on a thread of its own, pinned to `cpu`.
pub(crate) fn run_on<T: Send>(cpu: CpuId, work: impl FnOnce() -> T + Send) -> T {
    on_a_thread(|| {
        // SAFETY: all zeroes is the empty set.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: only writes `set`; the number is below the set's size.
        unsafe { libc::CPU_SET(cpu.index(), &mut set) };
        // SAFETY: reads at most the given size from `set`.
        let rc = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
        assert_eq!(rc, 0, "{cpu} is allowed");
        work()
    })
}

/// Runs `work` on a thread that is not registered for rseq; `None` if the system refuses to
/// unregister one.
pub(crate) fn run_unregistered<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    on_a_thread(|| {
        if highwater::lab::percpu::has_restartable_sequences() && !unregister() {
            return None;
        }
        assert!(!highwater::lab::percpu::has_restartable_sequences());
        Some(work())
    })
}

/// Unregisters the calling thread's rseq area, with the area and signature of the C library. Its
/// length is not exported: 32 at first, since then the size that the kernel needs, rounded up.
#[cfg(target_arch = "x86_64")]
fn unregister() -> bool {
    const UNREGISTER: libc::c_long = 1;
    const SIGNATURE: libc::c_long = 0x5305_3053;
    // SAFETY: `dlsym` takes a terminated string, and is thread-safe.
    let offset = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    if offset.is_null() {
        return false;
    }
    // SAFETY: the C library exports `extern const ptrdiff_t __rseq_offset`, which never changes.
    let offset = unsafe { offset.cast::<isize>().read() };
    let thread: isize;
    // SAFETY: the first word of a thread's control block is its own address; only reads it.
    unsafe {
        std::arch::asm!("mov {thread}, fs:0", thread = out(reg) thread, options(readonly, nostack));
    }
    [32, 64, 96, 28, 20]
        .into_iter()
        .any(|length: libc::c_long| {
            let area = thread + offset;
            // SAFETY: the call only tells the kernel to stop writing the thread's area, and is
            // refused unless area, length and signature are those of the registration.
            let rc = unsafe { libc::syscall(libc::SYS_rseq, area, length, UNREGISTER, SIGNATURE) };
            rc == 0
        })
}

#[cfg(not(target_arch = "x86_64"))]
fn unregister() -> bool {
    false
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
