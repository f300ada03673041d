//! Workloads that are drawn from a seed: what CPUs, tasks and spaces do, one step at a time.

mod processes;

use highwater::units::CpuId;

use crate::baselines::{Count, Member, SpaceId, Writer};

pub use processes::{Life, Mix, Processes};

/// What happens next on a machine that counts the pages of its spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A CPU goes on in another space, or in none.
    Switch {
        /// The CPU.
        cpu: CpuId,
        /// The space.
        to: Option<SpaceId>,
    },
    /// A page fault is handled.
    Fault {
        /// Who faults.
        by: Writer,
        /// Whose pages it brings.
        to: Count,
        /// How many.
        pages: i64,
    },
    /// Pages are counted outside a fault.
    Add {
        /// Who counts them.
        by: Writer,
        /// Whose pages.
        to: Count,
        /// How many, either way.
        pages: i64,
    },
    /// A walk over page tables has unmapped pages.
    Unmap {
        /// Who unmaps.
        by: Writer,
        /// From which space.
        space: SpaceId,
        /// What that adds to each member.
        deltas: [i64; Member::ALL.len()],
    },
    /// A task leaves its space.
    Leave {
        /// The task, and the space.
        by: Writer,
    },
}
