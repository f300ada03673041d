//! Per-CPU words added to without a lock prefix: restartable sequences (rseq) where the system
//! supports them, atomic instructions elsewhere.
//!
//! An atomic read-modify-write costs several times a plain one even on a cache line that no other
//! CPU touches: 8.8 ns against 2.7 ns for a whole [`Cells::add`] (2 virtual CPUs of an Intel Xeon
//! with 105 MiB of L3, shared with other work, November 2026, `cargo bench --bench percpu_add`).
//! But a plain add is correct only if nothing else writes the word in between, that is, if the
//! thread stays on its CPU and no other thread runs there. A *restartable sequence* gets this
//! promise from the kernel after the fact: a thread that is preempted, migrated or interrupted by a
//! signal inside a registered range of instructions resumes at an abort handler, before the one
//! store that would have made its work visible (or knowing which of several were made).
//!
//! The ground floor is `rseq`: eight sequences, generic in the words that they check, load and
//! store, and one file for each architecture. The files above it give the words meaning: `cells`
//! and `home` (counters), `windowed`, `gated` and `refs`, `stacks`.
//!
//! **Invariant (single writer).** A [`Cells`] object lives in one [`Regime`], fixed when it is
//! built, and the two ways of writing never meet on one word:
//!
//! | regime | slot | added to by | how |
//! |---|---|---|---|
//! | [`Restartable`](Regime::Restartable) | `0..nr_cpus` | threads running on that CPU | plain add in a restartable sequence |
//! | | `nr_cpus`, the *extra slot* | threads without rseq, CPUs numbered `nr_cpus` or above, adds aborted too often | atomic add |
//! | [`Atomic`](Regime::Atomic) | `0..nr_cpus` | any thread, as any CPU | atomic add |
//!
//! Words that must occasionally be written from other CPUs have a gate: module `gated`. Reference
//! counts are such words: module `refs`.
//!
//! **Protocol.** Writer: [`Cells::add`]. Reader: [`Cells::load`] and [`Cells::precise_sum`], from
//! any thread, over every slot including the extra one; a reader never writes.
//!
//! **Orderings.** A reader that must see an addition has to be ordered after it by other means,
//! such as joining the thread that added. The module itself publishes one thing: that a slot is
//! marked as added to (module `cells`).
//!
//! **The CPU number is a hint** outside the sequence: [`current_cpu`] may be stale when it returns.
//! It decides which line is written, never whether the result is right.
//!
//! **Failure modes.** A thread, kernel or C library without rseq uses the extra slot, which costs
//! it an atomic add on a line that such threads share; [`ChosenRegime`] tells which of them lacks
//! it. So does a CPU that came online after the machine was detected, above those that were. A
//! descriptor must stay mapped while any thread's area points to it (comment on `rseq_cs` in
//! `linux/rseq.h`): a program that loads this code with `dlopen` and unloads it while threads that
//! counted live on would break that. Linked in as usual, it cannot happen.
//!
//! Source: Linux `include/uapi/linux/rseq.h`; the C library's manual, section "Restartable
//! Sequences"; librseq (MIT), for the division into one pseudo-code and one file per architecture.
//! Deviation: the sequence counts in a slot of its own when it cannot run, where librseq leaves the
//! fallback to the caller; it gives up after a fixed number of aborts, where librseq's users loop.

mod blocks;
mod cells;
mod fallback;
mod gated;
mod home;
#[cfg(all(test, loom))]
mod loom;
#[cfg(loom)]
mod model;
mod on_cpu;
mod published;
mod refs;
mod regime;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri)))]
mod rseq;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri)))]
mod rseq_symbols;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri)))]
mod rseq_x86_64;
mod sequences;
mod stacks;
mod touched;
mod windowed;
#[cfg(all(any(test, feature = "lab"), target_os = "linux", not(loom), not(miri)))]
pub mod harness;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod refs_tests;
#[cfg(all(
    test,
    target_arch = "x86_64",
    target_os = "linux",
    not(loom),
    not(miri)
))]
mod regime_tests;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests;

#[cfg(not(any(all(target_arch = "x86_64", target_os = "linux", not(miri)), loom)))]
use fallback::Area;
#[cfg(loom)]
use model::Area;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri)))]
use rseq::Area;

pub(crate) use blocks::Blocks;
pub use cells::{Added, Cells};
pub(crate) use gated::{Gated, Gates, Open, Raised};
pub use home::Home;
pub use on_cpu::OnCpu;
pub(crate) use published::Published;
pub(crate) use refs::{PercpuOwner, PercpuRef, PercpuView};
pub use regime::{ChosenRegime, Regime, RegimeReason};
#[cfg(feature = "lab")]
pub use sequences::GuardedStore;
pub use sequences::Sequences;
pub(crate) use stacks::{Header, Locked, Stacks, Tally};
pub(crate) use touched::Touched;
pub(crate) use windowed::Windowed;

use crate::sync::OnceLock;
use crate::units::CpuId;

/// Whether the calling thread can run restartable sequences.
#[must_use]
pub fn has_restartable_sequences() -> bool {
    area().and_then(Area::cpu).is_some()
}

/// Returns the CPU that the calling thread runs on, or ran on a moment ago: a hint.
///
/// The number is the system's and may be above those of a topology; callers clamp it. Where the
/// system cannot tell, it is CPU 0.
///
/// # Cost
///
/// Two loads of lines private to the thread or never written; without rseq, a call of
/// `sched_getcpu` (about 2 ns, no system call).
#[inline]
#[must_use]
pub fn current_cpu() -> CpuId {
    area()
        .and_then(Area::cpu)
        .unwrap_or_else(fallback::current_cpu)
}

/// Returns the location of the rseq areas of this process's threads, if the C library registers
/// any. Looked up once; whether a given thread is registered is read from its own area each time.
#[inline]
fn area() -> Option<Area> {
    static AREA: OnceLock<Option<Area>> = OnceLock::new();
    *AREA.get_or_init(|| Area::find().ok())
}

impl Area {
    /// Returns the CPU that the thread runs on, or `None` if the thread is not registered.
    #[inline]
    fn cpu(self) -> Option<CpuId> {
        // Negative numbers are the kernel's and the C library's ways to say "not registered".
        let cpu = self.cpu_number();
        (cpu.cast_signed() >= 0).then_some(CpuId(cpu))
    }
}

/// How the words of an object are written.
#[derive(Clone, Copy)]
struct Writer {
    /// The rseq area in which sequences run: in the restartable regime, if the system has any.
    area: Option<Area>,
    regime: Regime,
}

impl Writer {
    fn new(regime: Regime) -> Self {
        let area = match regime {
            Regime::Restartable => area(),
            Regime::Atomic => None,
        };
        Self { area, regime }
    }
}
