//! Errors of frame allocation.

use thiserror::Error;

use crate::units::Pages;

/// Why no frame was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No more frames are free than ordinary requests must leave. Lists of other CPUs may hold
    /// some.
    #[error("no free frame: {free} of {managed} are free and {min} are kept in reserve")]
    Exhausted {
        /// Frames in the zones.
        free: Pages,
        /// The reserve, which ordinary requests must leave.
        min: Pages,
        /// All frames.
        managed: Pages,
    },
    /// Enough frames are free, but not contiguous, or concurrent requests are about to take them.
    #[error("{free} are free, but no block of {pages}")]
    Fragmented {
        /// The size of the requested block.
        pages: Pages,
        /// Frames in the zones.
        free: Pages,
    },
    /// Enough frames are free, but other threads hold every lock that the request would have to
    /// wait for.
    #[error("{free} are free, but others hold them at the moment and the request may not wait")]
    Contended {
        /// Frames in the zones.
        free: Pages,
    },
}
