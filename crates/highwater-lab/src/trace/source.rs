//! Sliding window of decompressed bytes over the stream, from which parsers read.
//!
//! Invariant: `start <= end <= window.len()`; `window[start..end]` are the next bytes of the
//! stream, the first of them at offset [`Source::offset`]. The window never grows, so a line is at
//! most [`WINDOW`] bytes; a longer one is reported, and skipped without being held.
//!
//! A failure of the stream is withheld until the bytes before it are consumed, so that every
//! complete record before a break is delivered and no torn one is.

use std::io::{self, Read};

use super::decompress::Decoder;
use super::digest::Digest;
use super::format::Compression;

/// Bytes held at a time, and the longest line: 256 KiB. Chosen: fits a level-2 cache beside the
/// replay's data, and holds a line of 30,000 hash ids, 15 million tokens.
pub(crate) const WINDOW: usize = 256 << 10;

/// The next line, as far as it was found.
pub(crate) enum Line {
    /// The line is the next `length` bytes, `ending` bytes (LF, or none at the end) follow.
    Whole { length: usize, ending: usize },
    /// No line end within the window.
    TooLong,
    /// The stream has ended, or failed inside a line.
    End,
}

/// The moving window.
pub(crate) struct Source {
    decoder: Decoder,
    window: Box<[u8]>,
    start: usize,
    end: usize,
    window_offset: u64,
    is_ended: bool,
    failure: Option<io::Error>,
}

impl Source {
    pub(crate) fn new(decoder: Decoder) -> Self {
        Self {
            decoder,
            window: vec![0; WINDOW].into_boxed_slice(),
            start: 0,
            end: 0,
            window_offset: 0,
            is_ended: false,
            failure: None,
        }
    }

    pub(super) fn compression(&self) -> Compression {
        self.decoder.compression()
    }

    pub(super) fn compressed_bytes_read(&self) -> u64 {
        self.decoder.compressed_bytes_read()
    }

    pub(super) fn digest(&self) -> Option<(Digest, u64)> {
        self.decoder.digest()
    }

    pub(super) fn is_input_broken(&self) -> bool {
        self.decoder.is_input_broken()
    }

    /// Returns the offset of the next byte in the decompressed stream.
    pub(super) fn offset(&self) -> u64 {
        self.window_offset + self.start as u64
    }

    /// Returns the stored bytes before the next byte; of a compressed stream, those that the
    /// decoder has taken.
    pub(super) fn stored_offset(&self) -> u64 {
        match self.compression() {
            Compression::Plain => self.offset(),
            _ => self.compressed_bytes_read(),
        }
    }

    /// Returns the bytes in the window.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.window[self.start..self.end]
    }

    /// Consumes `length` bytes of the window.
    #[inline]
    pub(crate) fn consume(&mut self, length: usize) {
        assert!(
            length <= self.end - self.start,
            "only bytes that were seen are consumed"
        );
        self.start += length;
    }

    /// Returns whether a failure ended the stream.
    pub(super) const fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns the failure that ended the stream, once.
    pub(crate) fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// Reads until the window holds `length` bytes (at most its size) or the stream has ended;
    /// returns whether it holds them.
    #[inline]
    pub(super) fn ensure(&mut self, length: usize) -> bool {
        self.end - self.start >= length || self.ensure_slowly(length)
    }

    #[cold]
    fn ensure_slowly(&mut self, length: usize) -> bool {
        while self.end - self.start < length && !self.is_ended {
            self.refill();
        }
        self.end - self.start >= length
    }

    /// Returns the next `N` bytes, if the stream still holds that many.
    #[inline]
    pub(super) fn first<const N: usize>(&mut self) -> Option<&[u8; N]> {
        if !self.ensure(N) {
            return None;
        }
        self.bytes().first_chunk()
    }

    /// Finds the end of the next line.
    #[inline]
    pub(crate) fn line(&mut self) -> Line {
        let mut searched = 0;
        loop {
            let bytes = &self.window[self.start..self.end];
            if let Some(at) = find_line_end(&bytes[searched..]) {
                let length = searched + at;
                return Line::Whole { length, ending: 1 };
            }
            searched = bytes.len();
            if self.is_ended {
                return self.last_line();
            }
            if searched == self.window.len() {
                return Line::TooLong;
            }
            self.refill();
        }
    }

    /// Returns the bytes after the last line end: a line, unless the stream failed in it.
    fn last_line(&self) -> Line {
        let length = self.end - self.start;
        if length == 0 || self.failure.is_some() {
            return Line::End;
        }
        Line::Whole { length, ending: 0 }
    }

    /// Skips the rest of a line that is longer than the window.
    pub(super) fn skip_line(&mut self) {
        loop {
            if let Some(at) = find_line_end(self.bytes()) {
                self.start += at + 1;
                return;
            }
            self.start = self.end;
            if self.is_ended {
                return;
            }
            self.refill();
        }
    }

    /// Moves the window to the next byte and reads once into its free end.
    fn refill(&mut self) {
        self.window.copy_within(self.start..self.end, 0);
        self.window_offset += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        match self.decoder.read(&mut self.window[self.end..]) {
            Ok(0) => self.is_ended = true,
            Ok(read) => self.end += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                self.failure = Some(error);
                self.is_ended = true;
            }
        }
    }
}

/// Returns the index of the first line feed. Eight bytes at a time: a byte equal to LF is zero
/// after the exclusive or, and the lowest zero byte is the lowest one whose top bit the classic
/// `(x - 0x01..) & !x & 0x80..` sets.
/// Source: the zero-byte test of Mycroft (1987), as in "Hacker's Delight", section 6-1.
#[inline]
fn find_line_end(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let (words, tail) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let differing = u64::from_le_bytes(*word) ^ (ONES * u64::from(b'\n'));
        let zeros = differing.wrapping_sub(ONES) & !differing & (ONES << 7);
        if zeros != 0 {
            return Some(index * 8 + zeros.trailing_zeros() as usize / 8);
        }
    }
    let at = tail.iter().position(|&byte| byte == b'\n')?;
    Some(words.len() * 8 + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_found_at_every_position() {
        for length in 0..40 {
            let mut bytes = vec![0x0b; length];
            assert_eq!(find_line_end(&bytes), None);
            for at in (0..length).rev() {
                bytes[at] = b'\n';
                assert_eq!(find_line_end(&bytes), Some(at), "of {length} bytes");
            }
        }
    }
}
