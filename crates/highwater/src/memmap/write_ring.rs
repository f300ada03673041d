//! Writes of many places at once by io_uring, for a thread that waits for all of them.
//!
//! The buffers are borrowed: the call returns when the system has none of the writes any more,
//! whatever happens. If it refuses to take entries (a sandbox; no memory, again and again), those
//! that it has taken are waited for without it, the others stay unwritten, and the ring accepts no
//! further ones.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::tries::RingTries;
use super::vectored::PlacedWrite;
use crate::sync::{LockClass, Mutex, OnceLock, Rank};

static WRITE_RING_LOCK: LockClass = LockClass::new("write ring", Rank::Leaf);

/// Writes in flight. Chosen: where the devices that were measured reach their full speed.
const ENTRIES: u32 = 32;

/// A ring for one thread at a time, created by the first: empty while it is in use, once it was
/// refused, and where there are none.
pub(crate) struct WriteRing(OnceLock<Mutex<Option<IoUring>>>);

impl WriteRing {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Takes the ring, unless another thread has it or the system has none.
    pub(crate) fn take(&self) -> Option<TakenRing<'_>> {
        let mut refusal = None;
        let place = self.0.get_or_init(|| {
            let ring = IoUring::builder().dontfork().build(ENTRIES);
            let ring = ring.map_err(|error| refusal = Some(error));
            Mutex::new(&WRITE_RING_LOCK, ring.ok())
        });
        if let Some(error) = refusal {
            tracing::info!(%error, "no io_uring: pages are written back one run at a time");
        }
        let ring = place.lock().take();
        ring.is_some().then_some(TakenRing { ring, place })
    }
}

/// The ring, for the thread that has taken it, until dropped.
pub(crate) struct TakenRing<'a> {
    /// `None` once it was refused.
    ring: Option<IoUring>,
    place: &'a Mutex<Option<IoUring>>,
}

impl TakenRing<'_> {
    /// Writes to all places at once, as far as the system does, and returns when none of the writes
    /// is in flight.
    ///
    /// # Cost
    ///
    /// A system call for all that start, and one for each few that end.
    pub(crate) fn write_all(&mut self, writes: &mut [PlacedWrite<'_>]) {
        let Some(ring) = &mut self.ring else { return };
        if let Err(error) = run(ring, writes) {
            tracing::warn!(%error, "io_uring is refused: pages are written back one run at a time");
            // With it go the entries that the system has not taken.
            self.ring = None;
        }
    }
}

impl Drop for TakenRing<'_> {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            *self.place.lock() = Some(ring);
        }
    }
}

/// Writes to all places; returns when the system has none of them.
fn run(ring: &mut IoUring, writes: &mut [PlacedWrite<'_>]) -> io::Result<()> {
    let (mut begun, mut ended, mut tries) = (0, 0, RingTries::new());
    while ended < writes.len() {
        while begun < writes.len() && begun - ended < ENTRIES as usize {
            let entry = entry_of(&writes[begun], begun);
            // SAFETY: the buffers, and the array of their addresses, are borrowed until this
            // function returns, and it returns after the completion of each entry that the system
            // has taken; `write_all` drops the ring if it has left any untaken.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                break;
            }
            begun += 1;
        }
        let waits = ring.submit_and_wait(1);
        ended += take_completions(ring, writes);
        match waits {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted || tries.again(&error) => {}
            Err(error) => {
                let untaken = ring.submission().len();
                while ended < begun - untaken {
                    await_completion(ring);
                    ended += take_completions(ring, writes);
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

fn entry_of(write: &PlacedWrite<'_>, number: usize) -> io_uring::squeue::Entry {
    let file = types::Fd(write.file.as_raw_fd());
    let count = u32::try_from(write.bufs.len()).expect("a run is short");
    // An `IoSlice` has the layout of an `iovec`.
    let entry = opcode::Writev::new(file, write.bufs.as_ptr().cast(), count);
    entry.offset(write.offset).build().user_data(number as u64)
}

/// Notes what has ended; returns how many writes.
fn take_completions(ring: &mut IoUring, writes: &mut [PlacedWrite<'_>]) -> usize {
    let mut count = 0;
    for completion in ring.completion() {
        let number = usize::try_from(completion.user_data()).expect("the number of a write");
        // An error is found again, and reported, when the rest is written one by one.
        writes[number].taken = usize::try_from(completion.result()).unwrap_or(0);
        count += 1;
    }
    count
}

/// Sleeps until a write has ended, without handing over others.
fn await_completion(ring: &IoUring) {
    let mut wanted = libc::pollfd {
        fd: ring.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, borrowed for the call; the ring is open.
    let rc = unsafe { libc::poll(&raw mut wanted, 1, -1) };
    // An interruption ends the wait early; the caller looks again.
    debug_assert!(
        rc >= 0 || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted,
        "an open ring can be polled"
    );
}

impl fmt::Debug for WriteRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteRing").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::memmap::sandbox::refuse;
    use crate::sync::thread;

    /// Writes 100 runs of two small pieces in any order; returns the bytes that were taken, and
    /// those in the file.
    fn write_100(ring: &WriteRing) -> (Vec<usize>, Vec<u8>) {
        let file = tempfile::tempfile().expect("a temporary file");
        let pieces: Vec<[u8; 3]> = (0..100).map(|nth| [nth; 3]).collect();
        let slices: Vec<[IoSlice<'_>; 2]> = pieces
            .iter()
            .map(|piece| [IoSlice::new(&piece[..1]), IoSlice::new(piece)])
            .collect();
        let mut writes: Vec<_> = (0..)
            .zip(&slices)
            .map(|(nth, bufs)| PlacedWrite {
                file: &file,
                offset: 4 * (99 - nth),
                bufs,
                taken: 0,
            })
            .collect();
        if let Some(mut ring) = ring.take() {
            ring.write_all(&mut writes);
        }
        let taken = writes.iter().map(|write| write.taken).collect();
        let mut bytes = vec![0; 400];
        let len = file.read_at(&mut bytes, 0).expect("it can be read");
        bytes.truncate(len);
        (taken, bytes)
    }

    // Goal: each write is at its place, more of them than are in flight at once; again by the same
    // ring.
    #[test]
    fn all_writes_are_at_their_places() {
        let ring = WriteRing::new();
        for _ in 0..2 {
            let (taken, bytes) = write_100(&ring);
            if ring.0.get().is_some_and(|place| place.lock().is_none()) {
                eprintln!("skipped: no io_uring here");
                return;
            }
            assert_eq!(taken, [4; 100]);
            let want: Vec<u8> = (0..100).rev().flat_map(|nth| [nth; 4]).collect();
            assert_eq!(bytes, want);
        }
    }

    // Goal: a system that refuses the ring once it is in use has none of the writes when the call
    // returns, and is not asked again; also where the refusal could have passed.
    #[test]
    fn a_refused_ring_writes_nothing_more() {
        for errno in [libc::EPERM, libc::EAGAIN] {
            let ring = WriteRing::new();
            write_100(&ring);
            let is_refused = thread::scope(|scope| {
                let refused = scope.spawn(|| {
                    let is_refused = refuse(&[libc::SYS_io_uring_enter], errno);
                    is_refused.then(|| write_100(&ring))
                });
                refused.join().expect("it ends")
            });
            let Some(refused) = is_refused else {
                eprintln!("skipped: no seccomp here");
                return;
            };
            let nothing = (vec![0; 100], Vec::new());
            assert_eq!(refused, nothing);
            assert_eq!(write_100(&ring), nothing);
        }
    }
}
