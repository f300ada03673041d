//! Storage of zeros, for tests of the manager's own steps.

use std::io;

use crate::cache::Backing;
use crate::units::{FilePage, PAGE_BYTES};

/// A file of `pages` pages of zeros; discards writes.
#[derive(Debug)]
pub(super) struct Zeros {
    pub(super) pages: u64,
}

impl Backing for Zeros {
    fn len(&self) -> u64 {
        self.pages * PAGE_BYTES
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }
    fn write_page(&self, _: FilePage, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
