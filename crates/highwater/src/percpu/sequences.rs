//! The condition of a restartable sequence (rseq), and sequences that other CPUs can stop.

use std::fmt;

use super::{Area, Regime, Writer};
use crate::sync::atomic::AtomicU64;
use crate::units::CpuId;

/// The condition of a sequence: the thread runs on a CPU; if `GUARDED`, a word has an expected
/// value.
#[derive(Clone, Copy)]
#[cfg_attr(
    all(
        any(not(target_arch = "x86_64"), not(target_os = "linux"), miri),
        not(loom)
    ),
    expect(dead_code, reason = "read by the sequences, which this system lacks")
)]
pub(super) struct On<'a, const GUARDED: bool> {
    pub(super) cpu: u32,
    pub(super) guard: Option<&'a AtomicU64>,
    pub(super) expected: u64,
}

impl On<'static, false> {
    #[inline(always)]
    pub(super) fn cpu(cpu: u32) -> Self {
        Self {
            cpu,
            guard: None,
            expected: cpu.into(),
        }
    }
}

impl<'a> On<'a, true> {
    #[inline(always)]
    pub(super) fn guarded(cpu: u32, guard: &'a AtomicU64, expected: u64) -> Self {
        Self {
            cpu,
            guard: Some(guard),
            expected,
        }
    }

    /// On `cpu`, with a gate that is down: its word holds the number of the CPU.
    #[inline(always)]
    pub(super) fn gate(cpu: u32, gate: &'a AtomicU64) -> Self {
        Self::guarded(cpu, gate, cpu.into())
    }
}

/// A word, and beside it its *station*: the CPU that it belongs to, as the lower half, and above it
/// how many threads have its gate up (module `gated`).
#[repr(C)]
pub(super) struct Stationed {
    pub(super) word: AtomicU64,
    pub(super) station: AtomicU64,
}

/// An addition to a word, if it holds `old` still. The two numbers differ, but for an addition that
/// commits its sequence.
#[derive(Clone, Copy)]
#[cfg_attr(
    all(
        any(not(target_arch = "x86_64"), not(target_os = "linux"), miri),
        not(loom)
    ),
    expect(dead_code, reason = "read by the sequences, which this system lacks")
)]
pub(super) struct Addition<'a> {
    pub(super) to: &'a Stationed,
    pub(super) old: u64,
    pub(super) delta: u64,
}

impl Addition<'_> {
    /// Whether a register that held the delta, and holds the former value, shows that the addition
    /// was made.
    #[inline(always)]
    pub(super) fn is_told_apart(&self) -> bool {
        self.delta != self.old
    }
}

/// Restartable sequences that other CPUs can make restart, or their absence.
#[derive(Clone, Copy)]
pub struct Sequences(Option<Area>);

impl Sequences {
    /// Returns the sequences of the restartable regime, where the system supports them.
    #[must_use]
    pub fn of(regime: Regime) -> Self {
        let area = Writer::new(regime).area;
        Self(area.filter(|area| area.membarrier_refusal().is_none()))
    }

    /// Returns the regime: restartable if that was requested and is possible.
    #[must_use]
    pub fn regime(self) -> Regime {
        match self.0 {
            Some(_) => Regime::Restartable,
            None => Regime::Atomic,
        }
    }

    /// Returns the CPU that the thread runs on, if it can run sequences there.
    #[inline]
    #[must_use]
    pub fn cpu(self) -> Option<CpuId> {
        self.0?.cpu()
    }

    #[inline]
    pub(super) fn area(self) -> Option<Area> {
        self.0
    }
}

/// A store that is made only if guard and word still hold the values that the caller has seen.
#[cfg(feature = "lab")]
#[derive(Clone, Copy, Debug)]
pub struct GuardedStore<'a> {
    /// Must be `expected`.
    pub guard: &'a AtomicU64,
    /// The value that the caller has seen in the guard.
    pub expected: u64,
    /// Must be `old`, and becomes `new` with release ordering.
    pub word: &'a AtomicU64,
    /// The value that the caller has seen in the word.
    pub old: u64,
    /// The new value of the word.
    pub new: u64,
}

/// Steps for designs of per-CPU words that are built outside the library.
#[cfg(feature = "lab")]
impl Sequences {
    /// Makes a store, if the calling thread runs on `cpu`, is not interrupted, and neither the word
    /// nor its guard has changed. Returns whether it was made; never in the atomic regime. `DELAY`
    /// is 0 outside tests: turns of a loop at each point where an interruption must restart the
    /// sequence.
    #[inline]
    #[must_use]
    pub fn try_store<const DELAY: u32>(self, cpu: CpuId, store: &GuardedStore<'_>) -> bool {
        let (on, values) = (
            On::guarded(cpu.0, store.guard, store.expected),
            [store.old, store.new],
        );
        self.0
            .is_some_and(|area| area.store::<DELAY, _, _>(on, store.word, values, []))
    }

    /// Exchanges `old` for `new` in `cell`, if the calling thread runs on `cpu` and is not
    /// interrupted. Returns the value that the cell held, `old` if it was exchanged; `None` where
    /// nothing happened, as always in the atomic regime.
    ///
    /// When it returns a value, every other thread of that CPU had been preempted at that moment,
    /// and will restart if it was in a sequence.
    #[must_use]
    pub fn exchange(self, cpu: CpuId, cell: &AtomicU64, old: u64, new: u64) -> Option<u64> {
        self.0?.exchange::<0, _>(On::cpu(cpu.0), cell, [old, new])
    }

    /// Returns when no thread of this process is inside a sequence on `cpu` that it entered before
    /// the call, other than to restart it. Nothing to do in the atomic regime.
    ///
    /// # Panics
    ///
    /// When the system refuses the membarrier that it granted before, and its substitute.
    pub fn restart_others(self, cpu: CpuId) {
        if let Some(area) = self.0 {
            let restarted = area.restart_others(Some(cpu));
            restarted.unwrap_or_else(|unreached| panic!("{unreached}"));
        }
    }
}

impl fmt::Debug for Sequences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.regime().fmt(f)
    }
}
