//! The pool of one task.

use std::fmt;
use std::io;
use std::sync::Arc;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use highwater_datafusion::HighwaterPool;

/// The memory pool of one task: a [`HighwaterPool`] whose refusals say how the task is to end.
///
/// Ballista decides by the kind of error. `ResourcesExhausted` ends the job. A task that was
/// stopped as a victim shall run again, but not without bound, as after a cancellation; so its
/// requests fail with an I/O error, of which Ballista counts. Nothing else ends the task: Ballista
/// runs a stage in tokio tasks that go on when the stage's future is dropped.
#[derive(Debug)]
pub struct TaskPool(Arc<HighwaterPool>);

impl TaskPool {
    pub(crate) const fn new(pool: Arc<HighwaterPool>) -> Self {
        Self(pool)
    }

    /// Returns the pool behind it.
    #[must_use]
    pub const fn pool(&self) -> &Arc<HighwaterPool> {
        &self.0
    }
}

impl MemoryPool for TaskPool {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.0.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.0.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.0.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.0.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let refused = match self.0.try_grow(reservation, additional) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        if !self.0.is_stopped() {
            return Err(refused);
        }
        let kind = io::ErrorKind::OutOfMemory;
        Err(DataFusionError::IoError(io::Error::new(
            kind,
            refused.to_string(),
        )))
    }

    fn reserved(&self) -> usize {
        self.0.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.0.memory_limit()
    }
}

impl fmt::Display for TaskPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
