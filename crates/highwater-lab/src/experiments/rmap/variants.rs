//! The variants: reclaim's handling of a held reverse-map lock.

use std::time::Duration;

use highwater::lab::reclaim::{RmapConfig, RmapPolicy, RmapQuirks};

use super::clock::ClockKind;
use super::ground::Scenario;
use super::load::Churn;
use crate::experiments::Setup;

/// The published variants, by their names, on the simulated clock.
pub(crate) const VANILLA: &str = "vanilla";
pub(crate) const SKIP: &str = "rmap_skip";
pub(crate) const PRIORITY: &str = "priority";
/// The library's default handling of a held lock, on the same clock.
pub(crate) const OURS: &str = "Highwater";
/// The same on the system's clock.
pub(crate) const REAL_VANILLA: &str = "vanilla, system's clock";
pub(crate) const REAL_SKIP: &str = "rmap_skip, system's clock";
pub(crate) const REAL_OURS: &str = "Highwater, system's clock";
/// The library against a B that holds the lock almost always.
pub(crate) const HELD: &str = "Highwater, B holds 95 %";

/// B's load on the simulated clock. There a look takes the same time whether the lock is held or
/// not, so the length of a hold varies.
const SIMULATED: Churn = Churn {
    first: Duration::ZERO,
    hold_us: [1, 399],
    share: 0.43,
};

/// B's load beside C: it begins with a hold of a tenth of a second, and then holds the lock for
/// half as long as alone. Reclaim on phones is reported to have been stuck at this lock for 300 ms
/// and more (frames-and-reclaim specification, 10.3).
const SIMULATED_BESIDE_C: Churn = Churn {
    first: Duration::from_millis(110),
    hold_us: [1, 199],
    share: 0.36,
};

/// B's load on the system's clock, for a calibrated part of the time. Holds are long enough to
/// sleep: a thread that stayed on its CPU during a hold would be preempted now and then, on a
/// machine with fewer CPUs than tenants, and the lock would be held for other threads' time slices.
const fn calibrated(share: f64) -> Churn {
    Churn {
        first: Duration::ZERO,
        hold_us: [200, 200],
        share,
    }
}

/// B's load for starving reclaim: it never sleeps without the lock. The rest of its time is mapping
/// and unmapping, and paying its debt.
const STARVING: Churn = Churn {
    first: Duration::ZERO,
    hold_us: [24_000, 24_000],
    share: 1.0,
};

/// Handling of a held lock, load of the lock's holder, and clock.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) rmap: RmapConfig,
    pub(crate) clock: ClockKind,
    b: B,
}

/// Load of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum B {
    Absent,
    Calibrated,
    Starving,
}

impl Variant {
    fn kernel(name: &str, policy: RmapPolicy) -> Self {
        Self {
            name: name.to_owned(),
            rmap: RmapConfig {
                policy,
                quirks: RmapQuirks::KernelFaithful,
            },
            clock: ClockKind::Simulated,
            b: B::Calibrated,
        }
    }

    fn ours(name: &str, b: B) -> Self {
        Self {
            name: name.to_owned(),
            rmap: RmapConfig::default(),
            clock: ClockKind::Simulated,
            b,
        }
    }

    fn by_the_system(self) -> Self {
        Self {
            clock: ClockKind::System,
            ..self
        }
    }

    /// Returns the configuration of calibration, if B holds the lock for a `share` of the time.
    pub(super) fn calibration(share: f64) -> (RmapConfig, Churn) {
        (Self::kernel(SKIP, RmapPolicy::Skip).rmap, calibrated(share))
    }

    /// Returns B's load; `share` is its part of the time on the system's clock.
    pub(super) fn churn(&self, scenario: Scenario, share: f64) -> Option<Churn> {
        match (self.b, self.clock, scenario) {
            (B::Absent, ..) => None,
            (B::Calibrated, ClockKind::Simulated, Scenario::Mapped) => Some(SIMULATED),
            (B::Calibrated, ClockKind::Simulated, Scenario::Read) => Some(SIMULATED_BESIDE_C),
            (B::Calibrated, ClockKind::System, _) => Some(calibrated(share)),
            (B::Starving, ..) => Some(STARVING),
        }
    }
}

/// Returns the variants that the checks need, and more in a matrix run.
pub(super) fn variants(setup: &Setup) -> Vec<Variant> {
    let mut variants = vec![
        Variant::kernel(VANILLA, RmapPolicy::Blocking),
        Variant::kernel(SKIP, RmapPolicy::Skip),
        Variant::kernel(PRIORITY, RmapPolicy::Throttle),
        Variant::ours(OURS, B::Calibrated),
        Variant::kernel(REAL_VANILLA, RmapPolicy::Blocking).by_the_system(),
        Variant::kernel(REAL_SKIP, RmapPolicy::Skip).by_the_system(),
        Variant::ours(REAL_OURS, B::Calibrated).by_the_system(),
        Variant::ours(HELD, B::Starving).by_the_system(),
    ];
    if setup.options.is_matrix {
        variants.push(Variant::ours("Highwater, no B", B::Absent));
        variants.extend(
            [
                ("rmap_skip, mended", RmapPolicy::Skip),
                ("priority, mended", RmapPolicy::Throttle),
                ("snapshot", RmapPolicy::Snapshot),
            ]
            .map(|(name, policy)| Variant {
                rmap: RmapConfig {
                    policy,
                    quirks: RmapQuirks::Mended,
                },
                ..Variant::kernel(name, policy)
            }),
        );
    }
    variants
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the published variants are the kernel's, and ours is the library's default. Method:
    /// their settings.
    #[test]
    fn variants_are_what_their_names_say() {
        let (skip, _) = Variant::calibration(0.5);
        assert_eq!(skip.policy, RmapPolicy::Skip);
        assert_eq!(skip.quirks, RmapQuirks::KernelFaithful);
        let ours = Variant::ours(OURS, B::Calibrated);
        assert_eq!(ours.rmap, RmapConfig::default());
        let alone = Variant::ours("alone", B::Absent);
        assert!(alone.churn(Scenario::Mapped, 0.5).is_none());
        assert_eq!(ours.clone().by_the_system().clock, ClockKind::System);
        assert_eq!(ours.clock, ClockKind::Simulated);
    }
}
