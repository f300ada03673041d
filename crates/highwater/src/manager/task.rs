//! Work of async tasks for a group, for the *full* line of its pressure (PSI).
//!
//! A thread that works for a group ([`Group::work`]) counts as runnable until it stalls. A task of
//! an async program has no thread of its own: it counts as runnable while it is polled, on any
//! thread. A task that waits for room in a wait queue stalls; a task that waits for anything else
//! does neither. So *full* is the time in which some task stalled and none was being polled.
//!
//! Deviation: a task that was woken and waits for a worker does not count as runnable; the kernel
//! counts every runnable thread.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::group::Group;

/// A future that works for a group while it is polled.
struct WorkOn<F> {
    group: Group,
    future: Pin<Box<F>>,
}

impl Group {
    /// Wraps a future so that it works for the group and its ancestors while it is polled:
    /// [`work`](Self::work) for tasks, which may move between threads.
    ///
    /// # Cost
    ///
    /// One allocation. For each poll, one more, and two locks for each level of the tree.
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
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(query)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn work_on<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
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
