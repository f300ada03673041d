//! What a machine does next.

use highwater::units::CpuId;

use crate::baselines::{Count, Member, SpaceId, Writer};

/// Next step of a machine that counts the pages of its spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A CPU switches to another space, or to none.
    Switch {
        /// The CPU.
        cpu: CpuId,
        /// The space.
        to: Option<SpaceId>,
    },
    /// A page fault is handled.
    Fault {
        /// The task that faults.
        by: Writer,
        /// The counter of its pages.
        to: Count,
        /// Number of pages.
        pages: i64,
    },
    /// Pages are counted outside a fault.
    Add {
        /// The task that counts them.
        by: Writer,
        /// The counter.
        to: Count,
        /// Number of pages, positive or negative.
        pages: i64,
    },
    /// A walk over page tables has unmapped pages.
    Unmap {
        /// The task that unmaps.
        by: Writer,
        /// The space.
        space: SpaceId,
        /// Change of each member.
        deltas: [i64; Member::ALL.len()],
    },
    /// A task leaves its space.
    Leave {
        /// The task, and the space.
        by: Writer,
    },
}
