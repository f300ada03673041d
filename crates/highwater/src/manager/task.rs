//! Tasks that work for a group, for the *full* line of its pressure (PSI).
//!
//! A thread says for which group it works ([`Group::work`]) and counts as one that could go on
//! until it stalls. A task of an async program has no thread of its own. It works while it is
//! polled, on whichever thread that is, and at no other time: one that waits for room in line
//! stalls, one that waits for anything else does neither. So *full* is the time in which some task
//! stalled and none was being polled.
//!
//! Deviation from the kernel: a task that was woken and waits for a worker does not count as one
//! that could go on; the kernel counts every runnable thread.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Group;

/// A future that works for a group whenever it is polled: [`Group::work_on`].
#[must_use = "a future does nothing unless it is polled"]
pub struct WorkOn<F> {
    group: Group,
    future: Pin<Box<F>>,
}

impl Group {
    /// Makes a future work for the group and those above it whenever it is polled:
    /// [`work`](Self::work) for a task, which may move from thread to thread.
    ///
    /// # Cost
    ///
    /// One allocation. For each poll, two locks for each level of the tree.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Bytes, Limits, Manager};
    ///
    /// let hw = Manager::builder().capacity(Bytes::mib(16)).build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes::mib(8)))?;
    /// let query = tenant.work_on({
    ///     let tenant = tenant.clone();
    ///     async move {
    ///         let charge = tenant.charge_async(Bytes::mib(4)).await?;
    ///         // ... work with 4 MiB
    ///         drop(charge);
    ///         Ok::<(), highwater::ChargeFailed>(())
    ///     }
    /// });
    /// # highwater::sync::block_on(query, None).unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn work_on<F: Future>(&self, future: F) -> WorkOn<F> {
        WorkOn {
            group: self.clone(),
            future: Box::pin(future),
        }
    }
}

impl<F: Future> Future for WorkOn<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let _working = this.group.work();
        this.future.as_mut().poll(context)
    }
}

impl<F> fmt::Debug for WorkOn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkOn").field(&self.group).finish()
    }
}
