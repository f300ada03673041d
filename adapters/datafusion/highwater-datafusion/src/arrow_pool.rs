//! Buffers of Arrow, charged to a query.

use std::sync::Arc;

use arrow_buffer::{MemoryPool, MemoryReservation};
use datafusion_execution::memory_pool::MemoryPool as _;

use crate::pool::HighwaterPool;

/// The pool of a query, for [`arrow_buffer::Buffer::claim`]: each buffer is charged as long as it
/// lives. A reservation is one allocation of two words, and no consumer is registered for it.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use arrow_buffer::Buffer;
/// use datafusion_execution::memory_pool::MemoryPool;
/// use highwater_datafusion::{ArrowPool, HighwaterPool};
///
/// let query = Arc::new(HighwaterPool::standalone(1 << 20));
/// let buffer = Buffer::from(vec![0_u8; 1000]);
/// buffer.claim(&ArrowPool::new(Arc::clone(&query)));
/// assert_eq!(query.reserved(), 1000);
/// drop(buffer);
/// assert_eq!(query.reserved(), 0);
/// ```
#[derive(Clone, Debug)]
pub struct ArrowPool(Arc<HighwaterPool>);

impl ArrowPool {
    /// Makes a pool for buffers of a query.
    #[must_use]
    pub const fn new(query: Arc<HighwaterPool>) -> Self {
        Self(query)
    }
}

/// Bytes of one buffer.
#[derive(Debug)]
struct Reservation {
    pool: Arc<HighwaterPool>,
    size: usize,
}

impl MemoryPool for ArrowPool {
    /// Charges `size` bytes, above a maximum if need be: the buffer exists already.
    fn reserve(&self, size: usize) -> Box<dyn MemoryReservation> {
        let pool = Arc::clone(&self.0);
        pool.force(size as u64);
        Box::new(Reservation { pool, size })
    }

    fn available(&self) -> isize {
        let capacity = self.capacity() as i128;
        let left = capacity - self.used() as i128;
        left.try_into().unwrap_or(isize::MIN)
    }

    fn used(&self) -> usize {
        self.0.reserved()
    }

    fn capacity(&self) -> usize {
        usize::try_from(self.0.limit().0).unwrap_or(usize::MAX)
    }
}

impl MemoryReservation for Reservation {
    fn size(&self) -> usize {
        self.size
    }

    fn resize(&mut self, new_size: usize) {
        match new_size.checked_sub(self.size) {
            Some(more) => self.pool.force(more as u64),
            None => self.pool.give_back((self.size - new_size) as u64),
        }
        self.size = new_size;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.give_back(self.size as u64);
    }
}

#[cfg(test)]
mod tests {
    use arrow_buffer::Buffer;

    use super::*;

    // Goal: buffers are charged while they live, also above the maximum, and slices of one buffer
    // once; what they grow and shrink by is charged exactly.
    #[test]
    fn buffers_are_charged_while_they_live() {
        let query = Arc::new(HighwaterPool::standalone(1500));
        let pool = ArrowPool::new(Arc::clone(&query));
        let [first, second] = [0, 1].map(|_| Buffer::from(vec![0_u8; 1000]));
        first.claim(&pool);
        first.slice(100).claim(&pool);
        assert_eq!((pool.used(), pool.available()), (1000, 500));
        second.claim(&pool);
        assert_eq!(
            (pool.used(), pool.available(), pool.capacity()),
            (2000, -500, 1500)
        );
        drop(first);
        let mut reservation = pool.reserve(7);
        reservation.resize(300);
        assert_eq!((reservation.size(), pool.used()), (300, 1300));
        reservation.resize(200);
        assert_eq!(query.reserved(), 1200);
        drop((second, reservation));
        assert_eq!(query.reserved(), 0);
    }
}
