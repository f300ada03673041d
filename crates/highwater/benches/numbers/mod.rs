//! Storage at the speed of memory: every page holds its number in each word.

use std::io;

use highwater::Backing;
use highwater::units::{FilePage, PAGE_BYTES};

use crate::places::content;

/// A file of so many pages, which cannot be written.
#[derive(Debug)]
pub(crate) struct Numbers(pub(crate) u32);

impl Backing for Numbers {
    fn len(&self) -> u64 {
        u64::from(self.0) * PAGE_BYTES
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let page = u32::try_from(page).expect("a page of the file");
        buf.copy_from_slice(&content(page)[..buf.len()]);
        Ok(buf.len())
    }

    fn write_page(&self, _: FilePage, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("nothing is written"))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
