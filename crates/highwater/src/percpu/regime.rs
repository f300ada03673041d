//! The regime in which per-CPU words are written (rseq or atomics), and why it is not the cheapest
//! one.

use std::fmt;
use std::io;

use super::{Area, area, has_restartable_sequences};
use crate::topology::{Topology, TopologyKind};

/// How the words of one object are written. Fixed when the object is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Regime {
    /// Each CPU's words are written by threads that run on it, with plain adds in restartable
    /// sequences. Where the system has none, every add takes the extra slot: correct, but all
    /// threads then write one line. [`Regime::preferred`] avoids that.
    Restartable,
    /// Words are written with atomic adds, so that any thread may act as any CPU: for synthetic
    /// topologies, and for systems without restartable sequences.
    Atomic,
}

/// The regime of a manager, and why it is not the cheapest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ChosenRegime {
    /// How counters are added to.
    pub regime: Regime,
    /// The obstacle to restartable sequences for all words; none if there is none.
    pub reason: Option<RegimeReason>,
}

/// Why words are not all written in restartable sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RegimeReason {
    /// The program asked for atomics.
    Requested,
    /// The CPUs are virtual: any thread may act as any of them.
    SyntheticTopology,
    /// This build has no sequences: they are written for x86-64 Linux.
    Platform,
    /// The C library has no `__rseq_offset`: it is older than glibc 2.35, or another one. The same
    /// is reported for a statically linked program that is not built with the target feature
    /// `crt-static`.
    NoArea,
    /// The C library registers its threads with rseq(2), but was told not to, by the tunable
    /// `glibc.pthread.rseq`.
    TurnedOff,
    /// The kernel refused rseq(2) to the C library: Linux before 4.18, or a sandbox.
    RseqRefused {
        /// The kernel's error number.
        errno: i32,
    },
    /// The calling thread is not registered, unlike others of the process.
    ThreadUnregistered,
    /// The kernel refuses membarrier(2) for restartable sequences: Linux before 5.10, or a sandbox.
    /// Counters still use sequences. Charges, statistics and lists of free frames are atomic: they
    /// occasionally change words of another CPU, whose sequences have to be stopped.
    MembarrierRefused {
        /// The kernel's error number.
        errno: i32,
    },
}

impl Regime {
    /// Returns the cheapest regime that `topology` allows: restartable sequences if its CPU numbers
    /// are the system's own and the calling thread is registered for them, otherwise atomics.
    /// [`ChosenRegime::preferred`] also returns why.
    ///
    /// To force atomics, use [`Regime::Atomic`] itself.
    #[must_use]
    pub fn preferred(topology: &Topology) -> Self {
        ChosenRegime::preferred(topology).regime
    }
}

impl ChosenRegime {
    /// Returns the cheapest regime that `topology` allows, as [`Regime::preferred`], with the
    /// reason.
    #[must_use]
    pub fn preferred(topology: &Topology) -> Self {
        let reason = match topology.kind() {
            TopologyKind::Synthetic => Some(RegimeReason::SyntheticTopology),
            TopologyKind::Detected => shortcoming(),
        };
        let regime = match reason {
            None | Some(RegimeReason::MembarrierRefused { .. }) => Regime::Restartable,
            Some(_) => Regime::Atomic,
        };
        Self { regime, reason }
    }

    /// Returns the regime for a request, or for none, on `topology`; on failure, why it is not
    /// available.
    pub(crate) fn choose(
        requested: Option<Regime>,
        topology: &Topology,
    ) -> Result<Self, RegimeReason> {
        let preferred = Self::preferred(topology);
        match (requested, preferred.reason) {
            (Some(Regime::Restartable), Some(reason)) if preferred.regime == Regime::Atomic => {
                Err(reason)
            }
            (Some(Regime::Atomic), _) => Ok(Self {
                regime: Regime::Atomic,
                reason: Some(RegimeReason::Requested),
            }),
            _ => Ok(preferred),
        }
    }

    /// Whether it costs more than the requested regime, because the system lacks a feature that
    /// others have.
    #[must_use]
    pub fn is_fallback(self) -> bool {
        !matches!(
            self.reason,
            None | Some(RegimeReason::Requested | RegimeReason::SyntheticTopology)
        )
    }
}

/// Returns the feature that the system or the calling thread lacks to write every word in
/// restartable sequences.
fn shortcoming() -> Option<RegimeReason> {
    let Some(area) = area() else {
        return Some(Area::find().err().unwrap_or(RegimeReason::NoArea));
    };
    if !has_restartable_sequences() {
        return Some(RegimeReason::ThreadUnregistered);
    }
    let errno = area.membarrier_refusal()?;
    Some(RegimeReason::MembarrierRefused { errno })
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restartable => "restartable",
            Self::Atomic => "atomic",
        })
    }
}

impl fmt::Display for ChosenRegime {
    /// Writes the regime, and after a colon the reason if there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.regime)?;
        match self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for RegimeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error;
        match *self {
            Self::Requested => f.write_str("requested"),
            Self::SyntheticTopology => f.write_str("the topology is synthetic"),
            Self::Platform => f.write_str("sequences are for x86-64 Linux"),
            Self::NoArea => f.write_str("the C library has no rseq areas"),
            Self::TurnedOff => f.write_str("the C library was told not to register for rseq(2)"),
            Self::RseqRefused { errno } => {
                write!(f, "the kernel refused rseq(2): {}", error(errno))
            }
            Self::ThreadUnregistered => f.write_str("the thread is not registered for rseq(2)"),
            Self::MembarrierRefused { errno } => {
                let error = error(errno);
                write!(
                    f,
                    "only counters, the kernel refused membarrier(2): {error}"
                )
            }
        }
    }
}
