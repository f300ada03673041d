//! Why no frame was handed out.

use thiserror::Error;

use crate::units::Pages;

/// Nothing was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No more frames are free than ordinary requests must leave. Lists of other CPUs may hold
    /// some.
    #[error("no free frame: {free} of {managed} are free and {min} are kept in reserve")]
    Exhausted {
        /// Frames in the zones.
        free: Pages,
        /// What ordinary requests must leave.
        min: Pages,
        /// Frames in all.
        managed: Pages,
    },
    /// Enough frames are free, but not side by side, or others are about to take them.
    #[error("{free} are free, but no block of {pages}")]
    Fragmented {
        /// The size of the block that was asked for.
        pages: Pages,
        /// Frames in the zones.
        free: Pages,
    },
    /// Enough frames are free, and all that may be looked at without waiting is held by others.
    #[error("{free} are free, but others hold them at the moment and the request may not wait")]
    Contended {
        /// Frames in the zones.
        free: Pages,
    },
}
