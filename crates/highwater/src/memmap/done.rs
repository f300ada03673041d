//! Results of reads into frames that a ring owned.

use std::io;

use super::frames::Frame;

/// A read that has ended.
#[derive(Debug)]
pub(crate) struct Done<T> {
    /// Frames of the read, in order; owned again.
    pub(crate) frames: Vec<Frame>,
    /// The load of the read.
    pub(crate) load: T,
    /// Bytes read from the first frame on, or the error; fewer bytes than the frames have are the
    /// end of the file or an interruption.
    pub(crate) result: io::Result<usize>,
}

/// The system has refused the ring: the reads that it has not seen.
#[derive(Debug)]
pub(crate) struct Broken<T> {
    /// The refusal.
    pub(crate) error: io::Error,
    /// The reads, in order.
    pub(crate) unseen: Vec<(Vec<Frame>, T)>,
}
