//! The data file: a system file whose pages carry checksums.

use std::io;
use std::sync::Arc;

use highwater::{Backing, FileBacking, FilePage};

/// Storage whose pages are sealed before they are written, and verified after they are read.
#[derive(Debug)]
pub(crate) struct DataFile<B = FileBacking>(pub(crate) Arc<B>);

/// Also of the page's number, so that a page in another's place is found.
fn checksum(page: FilePage, bytes: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc32fast::hash(&page.0.to_le_bytes()));
    hasher.update(&bytes[4..]);
    hasher.finalize().to_le_bytes()
}

impl<B: Backing> Backing for DataFile<B> {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn page_size(&self) -> usize {
        self.0.page_size()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_page(page, buf)
    }

    fn read_pages(&self, first: FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        self.0.read_pages(first, bufs)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.0.write_page(page, buf)
    }

    fn write_pages(&self, first: FilePage, bufs: &[&[u8]]) -> io::Result<usize> {
        self.0.write_pages(first, bufs)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn seals(&self) -> bool {
        true
    }

    fn seal(&self, page: FilePage, copy: &mut [u8]) {
        let sum = checksum(page, copy);
        copy[..4].copy_from_slice(&sum);
    }

    fn verify(&self, page: FilePage, bytes: &[u8]) -> io::Result<()> {
        // A page that was never written is zeros.
        if bytes[..4] == checksum(page, bytes) || bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let wrong = format!("the checksum of page {} does not match", page.0);
        Err(io::Error::new(io::ErrorKind::InvalidData, wrong))
    }
}
