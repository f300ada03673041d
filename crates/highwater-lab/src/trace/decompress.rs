//! The byte stream under a trace: the file, and a decoder selected by its first bytes.
//!
//! Memory is bounded for any stream: one 64 KiB buffer of compressed bytes, and the decoder's
//! window, at most [`WINDOW_KIB`]. Decoding continues after the end of a frame: concatenated zstd
//! frames (skippable ones are skipped), gzip members and xz streams are one trace, as for the tools
//! of these names.
//!
//! Corruption is detected where the stream allows it: checksums of zstd frames, gzip members and xz
//! blocks are compared, and an end inside a frame is an error, never a short trace.
//!
//! Sources: RFC 8878 (zstd), RFC 1952 (gzip), the xz file format 1.2.1, for the magic bytes.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::digest::{Digest, DigestedStream, Digesting};
use super::format::Compression;

/// Largest decoder window that a stream may ask for, in KiB: 129 MiB. `zstd --ultra -22` and
/// `--long` ask for 128 MiB, `xz -9` for 64 MiB and some overhead.
const WINDOW_KIB: u32 = 129 << 10;

/// Number of bytes that select the decoder.
const MAGIC_LEN: usize = 6;

/// The compressed bytes, counted; peeked bytes are returned again first.
pub(crate) struct Input {
    magic: [u8; MAGIC_LEN],
    magic_len: usize,
    magic_read: usize,
    inner: DigestedStream,
    bytes_read: u64,
    is_broken: bool,
}

impl Input {
    fn new(inner: DigestedStream) -> io::Result<Self> {
        let mut input = Self {
            magic: [0; MAGIC_LEN],
            magic_len: 0,
            magic_read: 0,
            inner,
            bytes_read: 0,
            is_broken: false,
        };
        while input.magic_len < MAGIC_LEN {
            match input.inner.read(&mut input.magic[input.magic_len..]) {
                Ok(0) => break,
                Ok(read) => input.magic_len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(input)
    }

    fn compression(&self) -> Compression {
        match self.magic[..self.magic_len] {
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            [0x1f, 0x8b, 8, ..] => Compression::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0] => Compression::Xz,
            _ => Compression::Plain,
        }
    }
}

impl Read for Input {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if self.magic_read < self.magic_len {
            let read = (&self.magic[self.magic_read..self.magic_len]).read(target)?;
            self.magic_read += read;
            self.bytes_read += read as u64;
            return Ok(read);
        }
        let result = self.inner.read(target);
        match &result {
            Ok(read) => self.bytes_read += *read as u64,
            Err(error) => self.is_broken = error.kind() != io::ErrorKind::Interrupted,
        }
        result
    }
}

type Buffered = BufReader<Input>;

/// A stream of decompressed bytes.
pub(crate) enum Decoder {
    Plain(Buffered),
    Zstd(Box<ZstdFrames>),
    Gzip(Box<MultiGzDecoder<Buffered>>),
    Xz(Box<XzReader<Buffered>>),
}

impl Decoder {
    /// Peeks at the first bytes and selects the decoder.
    pub(crate) fn new(inner: Box<dyn Read + Send>, digesting: Digesting) -> io::Result<Self> {
        let input = Input::new(DigestedStream::new(inner, digesting))?;
        let compression = input.compression();
        let buffered = BufReader::with_capacity(64 << 10, input);
        Ok(match compression {
            Compression::Plain => Self::Plain(buffered),
            Compression::Zstd => Self::Zstd(Box::new(ZstdFrames::new(buffered))),
            Compression::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(buffered))),
            Compression::Xz => {
                let streams = XzReader::new_mem_limit(buffered, true, WINDOW_KIB);
                Self::Xz(Box::new(streams))
            }
        })
    }

    pub(super) fn compression(&self) -> Compression {
        match self {
            Self::Plain(_) => Compression::Plain,
            Self::Zstd(_) => Compression::Zstd,
            Self::Gzip(_) => Compression::Gzip,
            Self::Xz(_) => Compression::Xz,
        }
    }

    fn input(&self) -> &Buffered {
        match self {
            Self::Plain(input) => input,
            Self::Zstd(frames) => &frames.input,
            Self::Gzip(members) => members.get_ref(),
            Self::Xz(streams) => streams.inner(),
        }
    }

    /// Returns the number of compressed bytes that the decoder has consumed.
    pub(super) fn compressed_bytes_read(&self) -> u64 {
        let input = self.input();
        input.get_ref().bytes_read - input.buffer().len() as u64
    }

    /// Returns the digest and length of the compressed stream, once it was read to its end.
    pub(super) fn digest(&self) -> Option<(Digest, u64)> {
        self.input().get_ref().inner.digest()
    }

    /// Returns whether the compressed stream failed, as opposed to being corrupt.
    pub(super) fn is_input_broken(&self) -> bool {
        self.input().get_ref().is_broken
    }
}

impl Read for Decoder {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.read(target),
            Self::Zstd(frames) => frames.read(target),
            Self::Gzip(members) => members.read(target),
            Self::Xz(streams) => streams.read(target),
        }
    }
}

/// A sequence of zstd frames; the decoder underneath knows one frame only.
pub(crate) struct ZstdFrames {
    decoder: FrameDecoder,
    input: Buffered,
    is_in_frame: bool,
}

impl ZstdFrames {
    fn new(input: Buffered) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(u64::from(WINDOW_KIB) << 10);
        Self {
            decoder,
            input,
            is_in_frame: false,
        }
    }

    /// Begins the next frame; returns `false` at the end of the stream.
    fn begin_frame(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            let header = self.decoder.reset(&mut self.input);
            match header {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => self.skip(u64::from(length))?,
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        Ok(false)
    }

    fn skip(&mut self, length: u64) -> io::Result<()> {
        let skipped = io::copy(&mut (&mut self.input).take(length), &mut io::sink())?;
        if skipped < length {
            let message = "the stream ends inside a skippable frame";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        Ok(())
    }

    /// Decodes until there is output or the frame ends.
    fn decode(&mut self) -> io::Result<()> {
        while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            self.decoder
                .decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        Ok(())
    }

    /// Compares the frame's checksum, if it has one.
    fn end_frame(&mut self) -> io::Result<()> {
        self.is_in_frame = false;
        let stored = self.decoder.get_checksum_from_data();
        if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
            let message = "the checksum of a zstd frame does not match its content";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(())
    }
}

impl Read for ZstdFrames {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if target.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_in_frame {
                self.is_in_frame = self.begin_frame()?;
                if !self.is_in_frame {
                    return Ok(0);
                }
            }
            self.decode()?;
            let read = self.decoder.read(target)?;
            if read > 0 {
                return Ok(read);
            }
            self.end_frame()?;
        }
    }
}
