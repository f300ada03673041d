//! Who is told of reclaim's work while it is done, and may let it take its time.
//!
//! A pacer meters reclaim (so much of a CPU, so many pages in a second), or takes the place of time
//! itself: in a simulation, work takes as long as the simulated machine takes for it, whatever it
//! takes here.
//!
//! It is called by the thread that reclaims: the background thread, one that needs memory, or one
//! that calls [`Manager::balance`](crate::Manager::balance). What it does, that thread waits for.

use std::fmt;

use super::Reclaim;
use super::scan::Actor;
use crate::cache::RmapAccess;
use crate::sync::Arc;

/// Is told of reclaim's work.
pub trait Pacer: fmt::Debug + Send + Sync {
    /// The calling thread has looked at so many pages, and what was to go of them is free. It holds
    /// no lock and no page: others get on while it is kept here.
    fn looked(&self, actor: Actor, pages: u64);

    /// The calling thread needs the lock of a file's reverse map, which somebody holds, and tries
    /// again after this. It holds no lock, and at most 128 pages that nobody else can evict. Called
    /// by policies that wait for the lock ([`RmapPolicy`](super::RmapPolicy)), instead of waiting.
    fn contended(&self);
}

impl Reclaim {
    /// Has somebody told of the work.
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

    /// What `look` says that is given the lock by `access`; where it would wait and there is a
    /// pacer, that waits.
    pub(super) fn look_paced<T: PartialEq>(
        &self,
        access: RmapAccess,
        contended: &T,
        look: impl Fn(RmapAccess) -> T,
    ) -> T {
        let Some(pacer) = self.pacer.as_ref().filter(|_| access == RmapAccess::Wait) else {
            return look(access);
        };
        // Ends: when the holder lets go, as waiting does.
        loop {
            let looked = look(RmapAccess::Try);
            if looked != *contended {
                return looked;
            }
            pacer.contended();
        }
    }
}
