//! Pacers: hooks that meter reclaim or simulate its time.
//!
//! A pacer limits reclaim (a share of a CPU, pages per second), or replaces time itself: in a
//! simulation, work takes as long as on the simulated machine.
//!
//! The reclaiming thread calls it: the background thread, a thread that needs memory, or one that
//! calls [`Manager::balance`](crate::Manager::balance). It blocks that thread for as long as it
//! takes.

use std::fmt;

use super::Reclaim;
use super::scan::Actor;
use crate::cache::RmapAccess;
use crate::sync::Arc;

/// Receives reclaim's work.
pub trait Pacer: fmt::Debug + Send + Sync {
    /// Called when the calling thread has scanned `pages` pages and freed the evicted ones. It
    /// holds no lock and no page: other threads make progress while the call blocks.
    fn looked(&self, actor: Actor, pages: u64);

    /// Called when the calling thread found a file's rmap lock contended, before it tries again. It
    /// holds no lock, and at most 128 isolated pages. Only policies that wait for the lock
    /// ([`RmapPolicy`](super::RmapPolicy)) call this, instead of waiting.
    fn contended(&self);
}

impl Reclaim {
    /// Sets the pacer.
    #[must_use]
    pub fn with_pacer(mut self, pacer: Option<Arc<dyn Pacer>>) -> Self {
        self.pacer = pacer;
        self
    }

    pub(super) fn note_looked(&self, actor: Actor, pages: u64) {
        if let Some(pacer) = &self.pacer {
            pacer.looked(actor, pages);
        }
    }

    /// Calls `look` with `access`. If that would wait for the lock and there is a pacer, tries the
    /// lock and calls the pacer until it succeeds.
    pub(super) fn look_paced<T: PartialEq>(
        &self,
        access: RmapAccess,
        contended: &T,
        look: impl Fn(RmapAccess) -> T,
    ) -> T {
        let Some(pacer) = self.pacer.as_ref().filter(|_| access == RmapAccess::Wait) else {
            return look(access);
        };
        // Terminates: when the holder releases the lock, as waiting does.
        loop {
            let looked = look(RmapAccess::Try);
            if looked != *contended {
                return looked;
            }
            pacer.contended();
        }
    }
}
