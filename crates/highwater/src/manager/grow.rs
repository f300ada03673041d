//! Charges that wait to grow: a [`ChargeWait`] whose result is merged into the charge.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use super::charge::Charge;
use super::error::ChargeFailed;
use super::wait::ChargeWait;
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

impl Charge {
    /// As [`grow`](Self::grow), but waits in the wait queue, as
    /// [`Group::charge_async`](super::Group::charge_async) does.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use highwater::{Bytes, Limits, Manager};
    ///
    /// let hw = Manager::builder().capacity(Bytes::mib(16)).build()?;
    /// let query = hw.root().child("query", Limits::max(Bytes(1000)))?;
    /// let mut work = query.charge(Bytes(600))?;
    /// work.grow_wait(Bytes(400)).wait()?;
    /// let soon = Instant::now() + Duration::from_millis(1);
    /// assert!(work.grow_wait(Bytes(1)).with_deadline(soon).wait().is_err());
    /// assert_eq!(work.bytes(), Bytes(1000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn grow_wait(&mut self, bytes: Bytes) -> GrowWait<'_> {
        GrowWait::new(self, bytes)
    }

    /// Merges a charge of the same group.
    fn absorb(&mut self, more: Result<Self, ChargeFailed>) -> Result<(), ChargeFailed> {
        let merged = self.merge(more?);
        merged.expect("it was charged to the same group");
        Ok(())
    }
}

impl<'a> GrowWait<'a> {
    fn new(charge: &'a mut Charge, bytes: Bytes) -> Self {
        let more = match charge.origin() {
            (keeper, Some(node)) => More::Waits(ChargeWait::new(keeper.clone(), node, bytes)),
            (_, None) => More::Gone(charge.grow(bytes).err()),
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
