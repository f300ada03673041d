//! [`CachePadded`]: a value on cache lines of its own.

use std::ops::{Deref, DerefMut};

/// A value on cache lines that it shares with nothing: CPUs that write its neighbours do not take
/// them away. Two lines, since x86-64 fetches them in pairs.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// Puts `value` on lines of its own.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
