//! The system call membarrier(2), and its replacement if it is refused later.
//!
//! Objects rely on it only if it was granted once ([`Membarrier::refusal`]), and cannot do without
//! it later: readers have run without a barrier of their own, and sequences without an atomic
//! instruction. It can still be refused in two ways:
//!
//! - While the kernel has no memory for a set of CPUs. That is temporary, and is waited out.
//! - For good, with any error: by a filter of system calls (seccomp) that the program installs
//!   after it has built its objects. Then the calling thread visits the CPUs itself, which has the
//!   same effect (module `visit`). If that is refused too, the caller gets an error and has changed
//!   nothing irreversibly.
//!
//! Cost of visits: a migration for each CPU, some 20 us if it is idle, otherwise a wait for its
//! turn there; and for all CPUs, a read of `/proc` for each thread.

use std::io;

use super::Unreached;
use super::visit::visit;
use crate::sync::OnceLock;
use crate::sync::thread::yield_now;
use crate::units::CpuId;

/// Calls that fail for lack of memory before visits replace them. Chosen: seconds, if each lets
/// another thread run.
const TRIES: u32 = 100_000;

/// Required of the other threads of the process before a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membarrier {
    /// Pass a full barrier.
    Fence,
    /// The same, and abort the restartable sequence that they are in, if any.
    #[cfg_attr(
        any(not(target_arch = "x86_64"), miri),
        expect(dead_code, reason = "for sequences, which this system lacks")
    )]
    Restart,
}

impl Membarrier {
    /// Returns the error with which the kernel refuses this process's calls, if it does. Registers
    /// the process and tries once; registration is for the life of the process.
    pub(crate) fn refusal(self) -> Option<i32> {
        static FENCE: OnceLock<Option<i32>> = OnceLock::new();
        static RESTART: OnceLock<Option<i32>> = OnceLock::new();
        let (refusal, register) = match self {
            Self::Fence => (&FENCE, libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED),
            Self::Restart => (
                &RESTART,
                libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ,
            ),
        };
        // Also tried on one CPU, if that will be needed: that flag is newer.
        let cpu = (self == Self::Restart).then_some(CpuId(0));
        *refusal.get_or_init(|| {
            let tried = call(register, None).and_then(|()| self.call(cpu));
            tried.err().map(|error| error.raw_os_error().unwrap_or(0))
        })
    }

    /// Returns once every thread of the process that runs on `cpu`, or on any CPU if `None`, has
    /// done so. An offline CPU runs no threads.
    ///
    /// # Errors
    ///
    /// When the system refuses both the call and its replacement.
    pub(crate) fn run(self, cpu: Option<CpuId>) -> Result<(), Unreached> {
        for _ in 0..TRIES {
            match self.call(cpu) {
                Ok(()) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => yield_now(),
                Err(error) => return self.run_by_visits(cpu, error),
            }
        }
        self.run_by_visits(cpu, io::ErrorKind::OutOfMemory.into())
    }

    #[cold]
    fn run_by_visits(self, cpu: Option<CpuId>, refusal: io::Error) -> Result<(), Unreached> {
        static TOLD: OnceLock<()> = OnceLock::new();
        TOLD.get_or_init(|| {
            tracing::warn!(error = %refusal, "membarrier is refused: CPUs are visited instead, which is slow");
        });
        visit(cpu).map_err(|visiting| Unreached { refusal, visiting })
    }

    fn call(self, cpu: Option<CpuId>) -> io::Result<()> {
        let command = match self {
            Self::Fence => libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED,
            Self::Restart => libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ,
        };
        call(command, cpu)
    }
}

fn call(command: libc::c_int, cpu: Option<CpuId>) -> io::Result<()> {
    /// `MEMBARRIER_CMD_FLAG_CPU` of `linux/membarrier.h`, Linux 5.10.
    const ONE_CPU: libc::c_int = 1;
    let (flags, cpu) = cpu.map_or((0, 0), |cpu| (ONE_CPU, cpu.0));
    // SAFETY: membarrier takes all of its arguments by value and touches no memory of ours.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
