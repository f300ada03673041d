//! Input that can keep its reader waiting: a pipe, a terminal, a socket.
//!
//! A thread that is blocked in read(2) notices no request to stop. So the reader waits with a time
//! limit, and looks at the request in between.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::control::{Interrupted, Stop};

/// Time between two looks. Chosen: people take it for an immediate end.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

#[expect(
    clippy::cast_possible_wrap,
    reason = "one bit, which is not the highest"
)]
const NONBLOCK: i32 = OFlags::NONBLOCK.bits() as i32;

/// The bytes of a trace, and their number if they are a file's.
pub(super) type Stream = (Box<dyn Read + Send>, Option<u64>);

/// Opens a path: a file, or something to wait for.
pub(super) fn open(path: &Path, stop: &Stop) -> io::Result<Stream> {
    let mut options = OpenOptions::new();
    // So that opening a pipe does not wait for its writer.
    let file = options.read(true).custom_flags(NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok((Box::new(file), Some(metadata.len()))),
        false => Ok(waiting(file, stop)),
    }
}

pub(super) fn standard_input(stop: &Stop) -> io::Result<Stream> {
    let file = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(waiting(file.into(), stop))
}

fn waiting(file: File, stop: &Stop) -> Stream {
    let stop = stop.clone();
    (Box::new(Waiting { file, stop }), None)
}

/// A file whose reads end with an error once `stop` is requested.
#[derive(Debug)]
struct Waiting {
    file: File,
    stop: Stop,
}

impl Read for Waiting {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.is_requested() {
                return Err(io::Error::other(Interrupted));
            }
            let mut files = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut files, Some(&TICK)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match self.file.read(target) {
                // Another process has read the bytes.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}
