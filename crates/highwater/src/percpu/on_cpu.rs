//! [`OnCpu`]: an object, used as if on a given CPU.

use crate::units::CpuId;

/// An object whose operations act as a given CPU, whichever CPU the thread runs on: for tests and
/// experiments with more CPUs than the machine has. Each operation is named as the object's own.
///
/// Objects of the atomic regime only, where any thread may act as any CPU: in the restartable
/// regime a CPU's words are written by that CPU alone, and operations panic. A pool of frames takes
/// the lock of the CPU's list instead, and works in both.
#[derive(Debug)]
#[must_use = "it does nothing by itself"]
pub struct OnCpu<R> {
    pub(crate) of: R,
    pub(crate) cpu: CpuId,
}
