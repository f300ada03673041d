//! The two flows, their CPUs and the size of their pool: shared by the counts and the threads.

use highwater::units::{CpuId, Pages};

use crate::experiments::Setup;
use crate::report::text::to_f64;

pub(super) const TENANTS: usize = 18;
pub(super) const PURGERS: usize = 2;

/// Which CPU frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Local,
    Remote,
}

impl Flow {
    pub(super) const ALL: [Self; 2] = [Self::Local, Self::Remote];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

/// Returns the CPU of a tenant, and of a thread that purges.
pub(super) fn tenant_cpu(tenant: usize) -> CpuId {
    CpuId::from_index(tenant)
}

pub(super) fn purger_cpu(purger: usize) -> CpuId {
    CpuId::from_index(TENANTS + purger)
}

/// Returns the frames of the pool: as many for each CPU on every machine, so that lists are as
/// large.
pub(super) fn frames(setup: &Setup) -> Pages {
    let nr_cpus = setup.topology.nr_cpus() as u64;
    Pages(setup.pick(1 << 19, 1 << 17) * nr_cpus / (TENANTS + PURGERS) as u64)
}

pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    to_f64(part) / to_f64(whole)
}
