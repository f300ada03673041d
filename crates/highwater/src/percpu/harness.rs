//! Test harness for per-CPU code: placing threads, and taking rseq and membarrier(2) away.

use std::iter;
use std::mem;
use std::time::{Duration, Instant};

use super::{area, has_restartable_sequences};
use crate::memmap::sandbox;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{LockClass, Mutex, Rank, thread};
use crate::units::CpuId;

static MOVED: LockClass = LockClass::new("moved threads", Rank::Leaf);

/// Prints on the test's output why a part of it did not run.
#[expect(clippy::print_stderr, reason = "a test that skips something says so")]
pub fn skipped(reason: &str) {
    eprintln!("skipped: {reason}");
}

/// Attempts of a test that must see a race lost once, to show that its traffic finds races: for a
/// minute, because a machine that does other work too may schedule threads so that none meet.
pub fn attempts() -> impl Iterator<Item = ()> {
    const TIME: Duration = Duration::from_secs(60);
    let begun = Instant::now();
    iter::repeat(()).take_while(move |()| begun.elapsed() < TIME)
}

/// The system call that visits to other CPUs need: see [`refuse_membarrier`].
pub const SETAFFINITY: libc::c_long = sandbox::SETAFFINITY;

/// Makes the system refuse membarrier(2), and `others`, to the calling thread with `errno`. Returns
/// whether it does; if not, prints so on the test's output.
#[must_use]
pub fn refuse_membarrier(others: &[libc::c_long], errno: libc::c_int) -> bool {
    sandbox::refuse_membarrier(others, errno)
}

/// Returns the CPUs that the calling thread may run on.
///
/// # Panics
///
/// When the system does not say.
pub fn allowed_cpus() -> Vec<CpuId> {
    // SAFETY: all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: writes at most the given size to `set`.
    let rc = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    assert_eq!(rc, 0, "the thread's own affinity is readable");
    let holds = |cpu: &usize| {
        // SAFETY: only reads `set`; the number is below the set's size.
        unsafe { libc::CPU_ISSET(*cpu, &set) }
    };
    (0..8 * size_of_val(&set))
        .filter(holds)
        .map(CpuId::from_index)
        .collect()
}

/// A thread that others can move.
#[derive(Clone, Copy, Debug)]
pub struct ThreadId(libc::pid_t);

/// The calling thread.
pub fn this_thread() -> ThreadId {
    // SAFETY: takes nothing and cannot fail.
    ThreadId(unsafe { libc::gettid() })
}

/// Moves a thread to `cpu`; a thread that has ended stays where it is.
pub fn pin(thread: ThreadId, cpu: CpuId) {
    // SAFETY: all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: only writes `set`; the number is below the set's size.
    unsafe { libc::CPU_SET(cpu.index(), &mut set) };
    // SAFETY: reads at most the given size from `set`. Numbers of ended threads are refused.
    unsafe { libc::sched_setaffinity(thread.0, size_of_val(&set), &raw const set) };
}

/// Runs `work` on a thread of its own that is pinned to `cpu`.
pub fn run_on<T: Send>(cpu: CpuId, work: impl FnOnce() -> T + Send) -> T {
    on_a_thread(|| {
        pin(this_thread(), cpu);
        work()
    })
}

/// Runs `work(0..threads)` on that many threads while another keeps moving each of them from CPU to
/// CPU, until all have returned.
///
/// # Panics
///
/// When one of them does.
pub fn while_moved_around(threads: u64, work: impl Fn(u64) + Sync) {
    let cpus = allowed_cpus();
    let moved = Mutex::new(&MOVED, Vec::<ThreadId>::new());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                let (moved, work) = (&moved, &work);
                scope.spawn(move || {
                    moved.lock().push(this_thread());
                    work(index);
                })
            })
            .collect();
        scope.spawn(|| {
            let mut random = 1_u64;
            // Relaxed: ends the loop, and publishes nothing.
            while !done.load(Ordering::Relaxed) {
                for &thread in &*moved.lock() {
                    pin(thread, cpus[draw(&mut random, cpus.len())]);
                }
                thread::sleep(Duration::from_micros(50));
            }
        });
        for worker in workers {
            worker.join().expect("a worker panicked");
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// One of `0..end`, drawn by xorshift: the library itself depends on no generator.
fn draw(random: &mut u64, end: usize) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (*random >> 32) as usize % end
}

/// Runs `work` on a thread that is not registered for rseq; `None` where there is no way to
/// unregister one.
///
/// # Panics
///
/// When `work` does.
#[cfg(target_arch = "x86_64")]
pub fn run_unregistered<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    on_a_thread(|| {
        if has_restartable_sequences() && !unregister() {
            skipped("the kernel refused to unregister a thread's rseq area");
            return None;
        }
        assert!(!has_restartable_sequences());
        Some(work())
    })
}

#[cfg(not(target_arch = "x86_64"))]
pub fn run_unregistered<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    Some(on_a_thread(work))
}

/// Takes the calling thread's registration back with the area, length and signature that the C
/// library gave. The length is not exported as such: it was 32 before the area had extensions, and
/// is the kernel's feature size rounded up to its alignment since.
#[cfg(target_arch = "x86_64")]
fn unregister() -> bool {
    const UNREGISTER: libc::c_long = 1;
    let Some(area) = area() else {
        return false;
    };
    [32_u32, 64, 96, 28, 20].into_iter().any(|length| {
        // SAFETY: the call only tells the kernel to stop writing the thread's area, and is refused
        // unless area, length and signature are those of the registration. Every user of the area
        // checks the CPU number, which the kernel sets to "not registered".
        let rc = unsafe {
            libc::syscall(
                libc::SYS_rseq,
                area.address(),
                libc::c_long::from(length),
                UNREGISTER,
                libc::c_long::from(super::rseq_x86_64::SIGNATURE),
            )
        };
        rc == 0
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
