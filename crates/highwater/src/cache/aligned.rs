//! Memory aligned as direct I/O needs it.

use std::ops::{Deref, DerefMut};

use crate::units::PAGE_SIZE;

/// Memory aligned like a frame.
pub(super) struct AlignedBytes {
    memory: Box<[u8]>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    pub(super) fn zeroed(len: usize) -> Self {
        let memory = vec![0; len + PAGE_SIZE - 1].into_boxed_slice();
        Self {
            start: memory.as_ptr().align_offset(PAGE_SIZE),
            memory,
            len,
        }
    }

    pub(super) fn copy_of(bytes: &[u8]) -> Self {
        let mut copy = Self::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}
