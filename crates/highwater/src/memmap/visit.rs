//! Visiting CPUs in turn: a membarrier by means of the scheduler, if the system call is refused.
//!
//! A thread that runs on a CPU has displaced the thread that ran there. The scheduler's switch is a
//! full barrier on that CPU, on both sides (membarrier itself relies on that: it skips CPUs that do
//! not run the process at the moment), and a thread that is displaced inside a restartable sequence
//! resumes at the sequence's abort.
//!
//! **Argument.** The visitor stores, visits CPUs, then looks. For another thread X of the process,
//! at the moment of that store:
//!
//! - If X is not running, it was switched from before, and will be switched to after: the look sees
//!   X's earlier stores, X's later loads see the store, and a sequence that X is in does not
//!   commit.
//! - If X is running on a CPU, it leaves that CPU before the visitor comes there, or the visitor
//!   displaces it. In both cases it is switched from between the store and the look, and the same
//!   holds on the two sides of that switch: its announcement is found, or its look finds the store;
//!   its sequence has committed before, which is seen, or aborts.
//!
//! So each CPU has to be visited on which a thread of the process was running. The visitor goes to
//! all CPUs that its affinity allows. The others do not exist or are offline, where no thread runs,
//! or are not allowed to this thread: cpusets can differ between threads. Those are safe if no
//! thread of the process is running there now, according to `/proc`: a thread that was there has
//! left. A thread that starts later starts after the store, as its creator does.
//!
//! **Failure modes.** An error if CPUs cannot be visited or threads cannot be listed; nothing was
//! ordered then. The visitor shares each CPU with the threads there, and runs when its turn comes:
//! under a real-time thread that never sleeps, when the system gives other threads their share.
//! Afterwards it restores its former affinity; if another thread changes that meanwhile, the change
//! is lost.

use std::fs;
use std::io;

use crate::sync::atomic::{Ordering, fence};
use crate::units::CpuId;

/// Maximum number of CPUs that Linux can be built for.
const CPUS_MAX: usize = 8192;
const BITS: usize = libc::c_ulong::BITS as usize;
/// Another thread can move the visitor away just after it arrived; this many times.
const TRIES: u32 = 16;

/// A set of CPUs, as the system calls take it.
#[derive(Clone)]
struct CpuSet(Box<[libc::c_ulong; CPUS_MAX / BITS]>);

/// Returns once every other thread of the process that runs on `cpu`, or on any CPU if `None`, has
/// been switched from since the call.
///
/// # Errors
///
/// When that is impossible.
pub(super) fn visit(cpu: Option<CpuId>) -> io::Result<()> {
    let mut visited = CpuSet::none();
    {
        let _home = FormerAffinity::of_this_thread()?;
        let reachable = match cpu {
            Some(cpu) => CpuSet::of(cpu),
            None => {
                CpuSet::all().let_this_thread_be()?;
                CpuSet::of_this_thread()?
            }
        };
        for cpu in reachable.iter() {
            if stand_on(cpu)? {
                visited.insert(cpu);
            }
        }
    }
    let is_missed = |other: CpuId| match cpu {
        Some(cpu) => other == cpu && !visited.contains(cpu),
        None => !visited.contains(other),
    };
    if cpu.is_some_and(|cpu| visited.contains(cpu)) {
        return Ok(());
    }
    match running_threads()?.into_iter().find(|cpu| is_missed(*cpu)) {
        None => Ok(()),
        Some(cpu) => Err(io::Error::other(format!(
            "a thread runs on {cpu}, which this one may not"
        ))),
    }
}

/// Runs on a CPU; returns false if this thread may not run there, or the CPU does not exist.
fn stand_on(cpu: CpuId) -> io::Result<bool> {
    for _ in 0..TRIES {
        match CpuSet::of(cpu).let_this_thread_be() {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(false),
            Err(error) => return Err(error),
        }
        // SAFETY: takes nothing, touches no memory of ours.
        let here = unsafe { libc::sched_getcpu() };
        if u32::try_from(here) == Ok(cpu.0) {
            // Pairs with: the scheduler's barriers, with which it switched to this thread here.
            fence(Ordering::SeqCst);
            return Ok(true);
        }
    }
    Err(io::Error::other(format!("this thread is moved from {cpu}")))
}

/// Returns the CPUs that threads of the process run on, or last ran on.
fn running_threads() -> io::Result<Vec<CpuId>> {
    let mut cpus = Vec::new();
    for thread in fs::read_dir("/proc/self/task")? {
        let stat = match fs::read(thread?.path().join("stat")) {
            Ok(stat) => stat,
            // It has ended.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        let (is_running, cpu) = parse(&stat).ok_or(io::ErrorKind::InvalidData)?;
        // A sleeping thread has passed a barrier since it ran. Seeing it asleep implies seeing all
        // its earlier stores only if stores become visible in order.
        if is_running || !cfg!(target_arch = "x86_64") {
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

/// Returns whether a thread is running or runnable, and the CPU that it runs on or ran on last:
/// fields 3 and 39 of `proc_pid_stat(5)`. The second field is the thread's name, in parentheses,
/// and may contain anything.
fn parse(stat: &[u8]) -> Option<(bool, CpuId)> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = str::from_utf8(&stat[after_name..])
        .ok()?
        .split_ascii_whitespace();
    let state = fields.next()?;
    let cpu = fields.nth(35)?.parse().ok()?;
    Some((state == "R", CpuId(cpu)))
}

/// The former affinity of this thread; restored on drop.
struct FormerAffinity(CpuSet);

impl FormerAffinity {
    fn of_this_thread() -> io::Result<Self> {
        CpuSet::of_this_thread().map(Self)
    }
}

impl Drop for FormerAffinity {
    fn drop(&mut self) {
        if self.0.let_this_thread_be().is_err() {
            // None of those CPUs exists any more: allow all.
            let _ = CpuSet::all().let_this_thread_be();
        }
    }
}

impl CpuSet {
    fn none() -> Self {
        Self(Box::new([0; CPUS_MAX / BITS]))
    }

    fn all() -> Self {
        Self(Box::new([!0; CPUS_MAX / BITS]))
    }

    fn of(cpu: CpuId) -> Self {
        let mut set = Self::none();
        set.insert(cpu);
        set
    }

    fn insert(&mut self, cpu: CpuId) {
        if let Some(word) = self.0.get_mut(cpu.index() / BITS) {
            *word |= 1 << (cpu.index() % BITS);
        }
    }

    fn contains(&self, cpu: CpuId) -> bool {
        let word = self.0.get(cpu.index() / BITS);
        word.is_some_and(|word| word >> (cpu.index() % BITS) & 1 == 1)
    }

    fn iter(&self) -> impl Iterator<Item = CpuId> {
        let all = (0..CPUS_MAX).map(CpuId::from_index);
        all.filter(|cpu| self.contains(*cpu))
    }

    /// Returns the CPUs that this thread may run on.
    fn of_this_thread() -> io::Result<Self> {
        let mut set = Self::none();
        let (len, bytes) = (size_of_val(&*set.0), set.0.as_mut_ptr().cast());
        // SAFETY: writes at most `len` bytes, which the set has.
        match unsafe { libc::sched_getaffinity(0, len, bytes) } {
            0 => Ok(set),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sets this thread's affinity; on return it runs on one of these CPUs.
    fn let_this_thread_be(&self) -> io::Result<()> {
        let (len, bytes) = (size_of_val(&*self.0), self.0.as_ptr().cast());
        // SAFETY: reads `len` bytes, which the set has.
        match unsafe { libc::sched_setaffinity(0, len, bytes) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_visitor_comes_home() {
        // Goal: the thread's affinity is restored. Method: one CPU, all, and none that exists.
        let home = CpuSet::of_this_thread().expect("its own");
        let first = home.iter().next().expect("it runs on one");
        for cpu in [Some(first), None, Some(CpuId(8191)), Some(CpuId(1 << 20))] {
            visit(cpu).expect("all of them can be visited, or nothing runs there");
            let after = CpuSet::of_this_thread().expect("its own");
            assert!(after.iter().eq(home.iter()), "{cpu:?}");
        }
        assert!(
            running_threads()
                .expect("they are listed")
                .iter()
                .any(|cpu| home.contains(*cpu))
        );
    }

    #[test]
    fn threads_are_found_whatever_their_names() {
        // Method: a line as the system writes it, with a name that looks like the fields behind it.
        let tail = (4..39)
            .map(|field| field.to_string())
            .collect::<Vec<_>>()
            .join(" ");
        for (state, is_running) in [("R", true), ("S", false), ("D", false)] {
            let line = format!("17 (a) R 1 (b) {state} {tail} 5 0 0\n");
            assert_eq!(parse(line.as_bytes()), Some((is_running, CpuId(5))));
        }
        assert_eq!(parse(b"17 (a) R 1 2"), None);
        assert_eq!(parse(b""), None);
    }
}
