//! Windows: parts of the ring that are read at once.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::format::{PAYLOAD_MAX, RECORD_HEAD, RING_AT};

/// Bytes read at once. Chosen: several of the longest records.
const WINDOW: usize = 1 << 20;
/// Longest record.
pub(super) const RECORD_MAX: usize = RECORD_HEAD + PAYLOAD_MAX;

/// A part of the ring in memory.
#[derive(Default)]
pub(super) struct RingWindow {
    bytes: Vec<u8>,
    /// Offset of `bytes` in the ring, and how many of them are read.
    start: u64,
    len: usize,
}

impl RingWindow {
    /// Returns the ring's bytes from `offset` on: enough for any record, as far as there are any.
    pub(super) fn at(&mut self, file: &File, ring: u64, offset: u64) -> io::Result<&[u8]> {
        let wanted = usize::try_from(ring - offset).map_or(RECORD_MAX, |left| left.min(RECORD_MAX));
        let skip = offset.checked_sub(self.start);
        let skip = skip.and_then(|skip| usize::try_from(skip).ok());
        if let Some(skip) = skip.filter(|skip| skip + wanted <= self.len) {
            return Ok(&self.bytes[skip..self.len]);
        }
        self.bytes.resize(WINDOW, 0);
        let len = usize::try_from(ring - offset).map_or(WINDOW, |left| left.min(WINDOW));
        self.bytes[..len].fill(0);
        read_some(file, &mut self.bytes[..len], RING_AT + offset)?;
        (self.start, self.len) = (offset, len);
        Ok(&self.bytes[..len])
    }
}

impl std::fmt::Debug for RingWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingWindow").finish_non_exhaustive()
    }
}

/// Reads until the buffer is full or the file ends.
pub(super) fn read_some(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<usize> {
    let mut total = 0;
    while !buffer.is_empty() {
        match file.read_at(buffer, offset) {
            Ok(0) => break,
            Ok(len) => {
                (total, offset) = (total + len, offset + len as u64);
                buffer = &mut buffer[len..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}
