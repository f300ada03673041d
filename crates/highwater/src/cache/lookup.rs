//! Looking a page up: for threads and tasks that wait for its fill or eviction to end, or do not.

use std::task::{Context, Poll};
use std::time::Duration;

use super::{PageCache, PageKey, Presence};
use crate::sync::{WakerTicket, Woken};

impl PageCache {
    /// Looks a page up, after waiting for a fill or eviction of it.
    ///
    /// # Cost
    ///
    /// The lock of one index shard, and the file's I/O if another thread reads the page.
    pub fn lookup(&self, key: PageKey) -> Presence {
        self.index.lookup(key)
    }

    /// As [`lookup`](Self::lookup), but waits at most so long: `None` if it may go on.
    pub(crate) fn lookup_for(&self, key: PageKey, at_most: Duration) -> Option<Presence> {
        self.index.lookup_for(key, at_most)
    }

    /// Wakes those that wait for the fill or eviction of a page, to look again.
    pub(crate) fn wake_waiting(&self, key: PageKey) -> Woken {
        self.index.wake_waiting(key)
    }

    /// As [`lookup`](Self::lookup) for a task: does not wait, but wakes the task when the fill or
    /// eviction in progress ends, unless it [cancels](Self::cancel_lookup). `ticket` is `None` at
    /// first.
    pub fn poll_lookup(
        &self,
        key: PageKey,
        ticket: &mut Option<WakerTicket>,
        context: &mut Context<'_>,
    ) -> Poll<Presence> {
        self.index.poll_lookup(key, ticket, context)
    }

    /// Forgets a task that was to be woken by [`poll_lookup`](Self::poll_lookup), if it still is.
    pub fn cancel_lookup(&self, key: PageKey, ticket: WakerTicket) {
        self.index.cancel_lookup(key, ticket);
    }

    /// As [`lookup`](Self::lookup), without waiting: `None` during a fill or eviction.
    pub fn lookup_now(&self, key: PageKey) -> Option<Presence> {
        self.index.lookup_now(key)
    }
}
