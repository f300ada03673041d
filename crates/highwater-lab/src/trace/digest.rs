//! SHA-256 digest of a trace as it is stored, computed while its bytes are read, so that a pipe has
//! one too; `sha256sum` of the file prints the same.

use std::fmt;
use std::io::{self, Read};

use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest; formatted and serialized as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Whether a reader computes the digest of its trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Digesting {
    /// No digest, and no cost.
    #[default]
    Off,
    /// SHA-256 of every stored byte.
    Sha256,
}

/// A stream that digests the bytes read from it.
pub(super) struct DigestedStream {
    inner: Box<dyn Read + Send>,
    /// Boxed, because it is larger than all the rest.
    sum: Option<Box<Sha256>>,
    bytes: u64,
    is_at_end: bool,
}

impl DigestedStream {
    pub(super) fn new(inner: Box<dyn Read + Send>, digesting: Digesting) -> Self {
        Self {
            inner,
            sum: match digesting {
                Digesting::Off => None,
                Digesting::Sha256 => Some(Box::default()),
            },
            bytes: 0,
            is_at_end: false,
        }
    }

    /// Returns the digest and the number of bytes, once the stream was read to its end.
    pub(super) fn digest(&self) -> Option<(Digest, u64)> {
        let sum = self.sum.as_ref().filter(|_| self.is_at_end)?;
        Some((Digest(Sha256::clone(sum).finalize().into()), self.bytes))
    }
}

impl Read for DigestedStream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(target)?;
        if let Some(sum) = &mut self.sum {
            sum.update(&target[..read]);
            self.bytes += read as u64;
        }
        self.is_at_end |= read == 0 && !target.is_empty();
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the digest is that of FIPS 180-4, and of a whole stream only. Method: its example
    /// "abc".
    #[test]
    fn only_a_whole_stream_has_a_digest() {
        let mut stream = DigestedStream::new(Box::new(&b"abc"[..]), Digesting::Sha256);
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).unwrap();
        assert_eq!(stream.digest(), None);
        io::copy(&mut stream, &mut io::sink()).unwrap();
        let (digest, bytes) = stream.digest().unwrap();
        assert_eq!(
            (digest.to_string().as_str(), bytes),
            (
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                3
            )
        );
        let mut off = DigestedStream::new(Box::new(&b"abc"[..]), Digesting::Off);
        io::copy(&mut off, &mut io::sink()).unwrap();
        assert_eq!(off.digest(), None);
    }
}
