//! Allocation flags (GFP flags): what an allocation may do to be served.

use super::backend::Wait;

/// Allocation flags. By default a request may wait for locks, leaves the reserve alone, and takes
/// frames without zeroing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocFlags(u8);

impl AllocFlags {
    const NON_BLOCKING: u8 = 1;
    const USE_RESERVE: u8 = 2;
    const ZEROED: u8 = 4;

    /// Returns the flags of an ordinary request.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn new() -> Self {
        Self(0)
    }

    /// Waits for no lock: a list or zone whose lock is held counts as empty. For callers that
    /// may not sleep. Not for signal handlers: bookkeeping of
    /// a transfer may allocate from the global allocator, which waits for locks and may itself have
    /// been interrupted.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn non_blocking(self) -> Self {
        Self(self.0 | Self::NON_BLOCKING)
    }

    /// Allows the frames below [`Watermarks::min`](super::Watermarks::min): for requests that free
    /// memory when they are served (write-back, OOM victims).
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn use_reserve(self) -> Self {
        Self(self.0 | Self::USE_RESERVE)
    }

    /// Zeroes the frame, whatever the pool's policy.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn zero(self) -> Self {
        Self(self.0 | Self::ZEROED)
    }

    /// Whether the request may wait for a lock.
    #[inline]
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn may_block(self) -> bool {
        self.0 & Self::NON_BLOCKING == 0
    }

    pub(super) const fn wait(self) -> Wait {
        match self.may_block() {
            true => Wait::Allowed,
            false => Wait::Never,
        }
    }

    /// Whether the request may take the reserve.
    #[inline]
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn may_use_reserve(self) -> bool {
        self.0 & Self::USE_RESERVE != 0
    }

    /// Whether the frame must read as zeros.
    #[inline]
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn zeroed(self) -> bool {
        self.0 & Self::ZEROED != 0
    }
}
