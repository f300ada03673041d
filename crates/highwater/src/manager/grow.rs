//! Charges that wait to grow: a [`ChargeWait`] whose result is merged into the charge.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use super::error::ChargeFailed;
use super::{Charge, ChargeWait};
use crate::units::Bytes;

/// A waiting charge's growth: a future for any runtime, or blocking by [`wait`](Self::wait).
/// Dropping it leaves the charge as it was.
#[must_use = "growth that is not awaited charges nothing"]
pub struct GrowWait<'a> {
    charge: &'a mut Charge,
    more: More,
}

/// State of the growth.
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the ordinary one"
)]
enum More {
    Waits(ChargeWait),
    /// The group is gone and nothing is charged to it: the error, until it is returned.
    Gone(Option<ChargeFailed>),
}

impl<'a> GrowWait<'a> {
    pub(super) fn new(charge: &'a mut Charge, bytes: Bytes) -> Self {
        let more = match charge.waiting(bytes) {
            Some(wait) => More::Waits(wait),
            None => More::Gone(charge.grow(bytes).err()),
        };
        Self { charge, more }
    }

    /// As [`ChargeWait::with_deadline`].
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        if let More::Waits(wait) = self.more {
            self.more = More::Waits(wait.with_deadline(deadline));
        }
        self
    }

    /// Blocks the thread until the charge has grown or cannot grow.
    ///
    /// # Errors
    ///
    /// As for [`ChargeWait`]; the charge stays as it was.
    pub fn wait(self) -> Result<(), ChargeFailed> {
        let Self { charge, more } = self;
        match more {
            More::Waits(wait) => charge.absorb(wait.wait()),
            More::Gone(failed) => failed.map_or(Ok(()), Err),
        }
    }

    /// As [`wait`](Self::wait), [with a deadline](Self::with_deadline).
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn wait_until(self, deadline: Instant) -> Result<(), ChargeFailed> {
        self.with_deadline(deadline).wait()
    }
}

impl Future for GrowWait<'_> {
    type Output = Result<(), ChargeFailed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        Poll::Ready(match &mut this.more {
            More::Waits(wait) => {
                let outcome = ready!(Pin::new(wait).poll(context));
                this.charge.absorb(outcome)
            }
            More::Gone(failed) => failed.take().map_or(Ok(()), Err),
        })
    }
}

impl fmt::Debug for GrowWait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("GrowWait");
        shown.field("charge", &self.charge);
        if let More::Waits(wait) = &self.more {
            shown.field("wait", wait);
        }
        shown.finish()
    }
}
