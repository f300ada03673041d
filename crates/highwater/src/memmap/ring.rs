//! Reads into frames by io_uring: the ring owns the frames while the system may write to them.
//!
//! A read moves its [`Frame`] tokens into a slot of the ring and puts an entry with their addresses
//! on the submission queue; reaping its completion moves the tokens out. In between no other code
//! can reach them, so that nothing that the program drops frees memory that the system writes to.
//!
//! The system takes entries from the submission queue only in [`FrameRing::submit`], under the
//! queue's lock. So when it refuses that call (a sandbox; no memory, again and again), the entries
//! that it has not seen are known: their slots are emptied, the frames go back to the caller, and
//! the ring accepts no further reads. Reads that the system has are completed all the same.
//!
//! No more reads are in flight than the completion queue has entries, so that it never overflows.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use io_uring::{IoUring, opcode, types};

use super::done::{Broken, Done};
use super::frames::{Frame, FrameMemory};
use super::tries::RingTries;
use crate::sync::{Arc, LockClass, Mutex, Rank};

static SLOTS_LOCK: LockClass = LockClass::new("ring slots", Rank::Leaf);
static SUBMISSION_LOCK: LockClass = LockClass::new("ring submission", Rank::Leaf);
static COMPLETION_LOCK: LockClass = LockClass::new("ring completion", Rank::Leaf);

/// Entries of the submission queue; the completion queue has twice as many. Chosen: above the queue
/// depth of a device, and 24 KiB of memory.
const ENTRIES: u32 = 256;
/// Most reads in flight: those beyond wait in the caller.
pub(crate) const IN_FLIGHT_MAX: usize = 2 * ENTRIES as usize;

/// A ring whose reads carry a `T` each.
pub(crate) struct FrameRing<T> {
    ring: IoUring,
    memory: Arc<FrameMemory>,
    slots: Mutex<ReadSlots<T>>,
    submission: Mutex<Submission>,
    /// Held by the thread that takes completions.
    completion: Mutex<()>,
}

struct ReadSlots<T> {
    /// By number; the entry's `user_data`.
    slots: Vec<Option<ReadSlot<T>>>,
    free: Vec<u32>,
}

struct ReadSlot<T> {
    frames: Vec<Frame>,
    /// Addresses of the frames, if there are several: the system reads them from here.
    _iovecs: Iovecs,
    load: T,
}

#[derive(Default)]
struct Iovecs(Box<[libc::iovec]>);

// SAFETY: the addresses are read by the system alone; the frames that they point to are owned by
// the slot that holds them, and `Frame` is `Send`.
unsafe impl Send for Iovecs {}

struct Submission {
    /// Slots of the entries that the system has not taken yet, in order.
    queued: VecDeque<u32>,
    is_broken: bool,
}

impl<T> FrameRing<T> {
    /// Creates a ring for reads into frames of `memory`.
    ///
    /// # Errors
    ///
    /// When the system has no io_uring, or refuses it to this process.
    pub(crate) fn new(memory: Arc<FrameMemory>) -> io::Result<Self> {
        let ring = IoUring::builder().dontfork().build(ENTRIES)?;
        if !ring.params().is_feature_nodrop() {
            return Err(io::Error::other("this kernel's io_uring drops completions"));
        }
        let free = (0..).take(IN_FLIGHT_MAX).collect();
        let slots = (0..IN_FLIGHT_MAX).map(|_| None).collect();
        Ok(Self {
            ring,
            memory,
            slots: Mutex::new(&SLOTS_LOCK, ReadSlots { slots, free }),
            submission: Mutex::new(
                &SUBMISSION_LOCK,
                Submission {
                    queued: VecDeque::new(),
                    is_broken: false,
                },
            ),
            completion: Mutex::new(&COMPLETION_LOCK, ()),
        })
    }

    /// Queues a read of `file` at `offset` into whole frames, in order. The load keeps the file
    /// open.
    ///
    /// # Errors
    ///
    /// The frames and the load, if as many reads are in flight as there may be, the queue is full
    /// ([`submit`](Self::submit) empties it), or the ring is broken.
    ///
    /// # Panics
    ///
    /// When there is no frame, or one belongs to another memory.
    pub(crate) fn read(
        &self,
        file: &File,
        offset: u64,
        frames: Vec<Frame>,
        load: T,
    ) -> Result<(), (Vec<Frame>, T)> {
        assert!(!frames.is_empty(), "a read has a frame");
        let at = |frame: &Frame| {
            self.memory.check(frame);
            self.memory.reservation.frame_ptr(frame.pfn()).as_ptr()
        };
        let file = types::Fd(file.as_raw_fd());
        let (entry, iovecs) = if let [only] = &frames[..] {
            let len = u32::try_from(only.order().size()).expect("a page is small");
            let entry = opcode::Read::new(file, at(only), len).offset(offset);
            (entry.build(), Iovecs::default())
        } else {
            let iovec = |frame: &Frame| libc::iovec {
                iov_base: at(frame).cast(),
                iov_len: frame.order().size(),
            };
            let iovecs = Iovecs(frames.iter().map(iovec).collect());
            let count = u32::try_from(iovecs.0.len()).expect("fewer than 2^32 frames");
            let entry = opcode::Readv::new(file, iovecs.0.as_ptr(), count).offset(offset);
            (entry.build(), iovecs)
        };
        let slot = {
            let mut slots = self.slots.lock();
            let Some(number) = slots.free.pop() else {
                return Err((frames, load));
            };
            slots.slots[number as usize] = Some(ReadSlot {
                frames,
                _iovecs: iovecs,
                load,
            });
            number
        };
        let entry = entry.user_data(u64::from(slot));
        let mut submission = self.submission.lock();
        if !submission.is_broken {
            // SAFETY: the lock is held, and every use of the submission queue holds it.
            let mut queue = unsafe { self.ring.submission_shared() };
            // SAFETY: the entry's buffers are frames, and its iovecs a heap block, that the slot
            // owns; `reap` takes them out only after the entry's completion, `submit` only if the
            // system never took the entry. The memory of both outlives the slot: the ring holds
            // the frames' memory, and `drop` leaks it while the system may write.
            if unsafe { queue.push(&entry) }.is_ok() {
                submission.queued.push_back(slot);
                return Ok(());
            }
        }
        drop(submission);
        let ReadSlot { frames, load, .. } = self.slots.lock().take(slot);
        Err((frames, load))
    }

    /// Returns whether fewer reads are in flight than may be.
    pub(crate) fn has_room(&self) -> bool {
        !self.slots.lock().free.is_empty()
    }

    /// Returns the number of reads that have not ended, or that no thread has reaped.
    pub(crate) fn nr_in_flight(&self) -> usize {
        IN_FLIGHT_MAX - self.slots.lock().free.len()
    }

    /// Returns the number of reads that were queued and not submitted.
    pub(crate) fn nr_queued(&self) -> usize {
        self.submission.lock().queued.len()
    }

    /// Hands the queued reads to the system; returns their number.
    ///
    /// # Cost
    ///
    /// One system call; none if no read is queued.
    ///
    /// # Errors
    ///
    /// When the system refuses, also after some milliseconds: the ring is broken from then on.
    pub(crate) fn submit(&self) -> Result<usize, Broken<T>> {
        let (mut tries, mut count) = (RingTries::new(), 0);
        loop {
            let (taken, refusal) = self.submit_once();
            count += taken;
            match refusal {
                None => return Ok(count),
                Some(error) if tries.again(&error) => {}
                Some(error) => return self.give_up(error).map_or(Ok(count), Err),
            }
        }
    }

    /// Returns how many reads the system has taken, and why not more.
    fn submit_once(&self) -> (usize, Option<io::Error>) {
        let mut submission = self.submission.lock();
        let Submission { queued, is_broken } = &mut *submission;
        if queued.is_empty() || *is_broken {
            return (0, None);
        }
        let refusal = match self.ring.submit() {
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(error) => Some(error),
        };
        // SAFETY: the lock is held, and every use of the submission queue holds it.
        let left = unsafe { self.ring.submission_shared() }.len();
        debug_assert!(left <= queued.len(), "{left} entries have no slot");
        let taken = queued.len() - left;
        queued.drain(..taken);
        (taken, refusal)
    }

    /// Breaks the ring, unless other threads have handed over all reads meanwhile.
    fn give_up(&self, error: io::Error) -> Option<Broken<T>> {
        let mut submission = self.submission.lock();
        if submission.queued.is_empty() {
            return None;
        }
        submission.is_broken = true;
        let unseen = std::mem::take(&mut submission.queued);
        drop(submission);
        let mut slots = self.slots.lock();
        let unseen = unseen.into_iter().map(|slot| {
            let ReadSlot { frames, load, .. } = slots.take(slot);
            (frames, load)
        });
        let unseen = unseen.collect();
        Some(Broken { error, unseen })
    }

    /// Moves the reads that have ended to `done`, without waiting; returns their number. If another
    /// thread does so now, it does nothing.
    ///
    /// # Cost
    ///
    /// No system call.
    pub(crate) fn reap(&self, done: &mut Vec<Done<T>>) -> usize {
        let mut ended = [(0, 0); 64];
        let mut count = 0;
        {
            let Some(_locked) = self.completion.try_lock() else {
                return 0;
            };
            // SAFETY: the lock is held, and every use of the completion queue holds it.
            let queue = unsafe { self.ring.completion_shared() };
            for (place, entry) in ended.iter_mut().zip(queue) {
                *place = (entry.user_data(), entry.result());
                count += 1;
            }
        }
        if count == 0 {
            return 0;
        }
        let mut slots = self.slots.lock();
        for (slot, result) in &ended[..count] {
            let slot = u32::try_from(*slot).expect("the number of a slot");
            let ReadSlot { frames, load, .. } = slots.take(slot);
            let result =
                usize::try_from(*result).map_err(|_| io::Error::from_raw_os_error(-*result));
            done.push(Done {
                frames,
                load,
                result,
            });
        }
        count
    }

    /// Sleeps until a read has ended that was not reaped, or the bell was rung; returns whether it
    /// was.
    pub(crate) fn wait(&self, bell: &Bell) -> bool {
        let wants = |file| libc::pollfd {
            fd: file,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut files = [wants(self.ring.as_raw_fd()), wants(bell.0.as_raw_fd())];
        // SAFETY: an array of two, borrowed for the call; both files are open.
        let rc = unsafe { libc::poll(files.as_mut_ptr(), 2, -1) };
        // An interruption ends the wait early; its callers look again.
        debug_assert!(
            rc >= 0 || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted,
            "two open files can be polled"
        );
        files[1].revents != 0
    }
}

impl<T> ReadSlots<T> {
    fn take(&mut self, number: u32) -> ReadSlot<T> {
        let slot = self.slots[number as usize].take();
        self.free.push(number);
        slot.expect("a read that ends has a slot")
    }
}

impl<T> Drop for FrameRing<T> {
    /// Leaks what the system may still write to. The caller has waited for all reads.
    fn drop(&mut self) {
        let mut slots = self.slots.lock();
        let in_flight = slots.slots.iter_mut().filter_map(Option::take);
        let mut count = 0;
        for slot in in_flight {
            count += 1;
            std::mem::forget(slot);
            std::mem::forget(Arc::clone(&self.memory));
        }
        debug_assert!(
            count == 0 || std::thread::panicking(),
            "{count} reads in flight when their ring ends"
        );
    }
}

impl<T> fmt::Debug for FrameRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameRing").finish_non_exhaustive()
    }
}

/// Ends a [`FrameRing::wait`] of one thread.
#[derive(Debug)]
pub(crate) struct Bell(File);

impl Bell {
    /// Creates a bell that is silent.
    ///
    /// # Errors
    ///
    /// When the process has too many open files.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes numbers only.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nothing else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self(File::from(fd)))
    }

    /// Ends the current wait, or the next one if there is none.
    pub(crate) fn ring(&self) {
        // Fails only if it was rung 2^64 - 2 times.
        let _ = io::Write::write(&mut &self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets that it was rung.
    pub(crate) fn silence(&self) {
        // Fails if it was not rung.
        let _ = io::Read::read(&mut &self.0, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memmap::sandbox::refuse;
    use crate::sync::thread;
    use crate::units::{PAGE_SIZE, Pages, Pfn};

    fn ring() -> Option<(FrameRing<u32>, File)> {
        let memory = Arc::new(FrameMemory::new(Pages(4)).expect("address space"));
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(PAGE_SIZE as u64).expect("it can grow");
        match FrameRing::new(memory) {
            Ok(ring) => Some((ring, file)),
            Err(error) => {
                eprintln!("skipped: no io_uring here ({error})");
                None
            }
        }
    }

    fn queue(ring: &FrameRing<u32>, file: &File, load: u32) {
        let frame = ring.memory.claim(Pfn(load));
        let queued = ring.read(file, 0, vec![frame], load);
        assert!(queued.is_ok(), "there is room");
    }

    fn reap_all(ring: &FrameRing<u32>, count: usize) -> Vec<u32> {
        let mut done = Vec::new();
        while done.len() < count {
            ring.reap(&mut done);
        }
        let loads = done.into_iter().map(|done| {
            assert_eq!(done.result.expect("it was read"), PAGE_SIZE);
            done.frames
                .into_iter()
                .for_each(|frame| _ = ring.memory.surrender(frame));
            done.load
        });
        loads.collect()
    }

    // Goal: a refusal that passes breaks nothing. Method: the system refuses one thread for want of
    // memory, and takes the reads from another before the first one gives up.
    #[test]
    fn a_refusal_that_passes_leaves_the_ring_whole() {
        let Some((ring, file)) = ring() else { return };
        queue(&ring, &file, 0);
        let refused = thread::scope(|scope| {
            let refused = scope.spawn(|| {
                let is_refused = refuse(&[libc::SYS_io_uring_enter], libc::EAGAIN);
                is_refused.then(|| ring.submit_once())
            });
            refused.join().expect("it ends")
        });
        assert_eq!(ring.submit().expect("taken"), 1);
        if let Some((taken, error)) = refused {
            let error = error.expect("it was refused");
            assert_eq!((taken, error.raw_os_error()), (0, Some(libc::EAGAIN)));
            assert!(ring.give_up(error).is_none(), "all reads were handed over");
        } else {
            eprintln!("skipped: no seccomp here");
        }
        queue(&ring, &file, 1);
        assert_eq!(ring.submit().expect("taken"), 1);
        let mut loads = reap_all(&ring, 2);
        loads.sort_unstable();
        assert_eq!(loads, [0, 1]);
    }

    // Goal: a refusal that stays gives the reads back, and the ring takes no more.
    #[test]
    fn a_refusal_that_stays_gives_the_reads_back() {
        for errno in [libc::EPERM, libc::EAGAIN] {
            let Some((ring, file)) = ring() else { return };
            queue(&ring, &file, 0);
            let unseen = thread::scope(|scope| {
                let refused = scope.spawn(|| {
                    let is_refused = refuse(&[libc::SYS_io_uring_enter], errno);
                    is_refused.then(|| ring.submit().expect_err("refused").unseen)
                });
                refused.join().expect("it ends")
            });
            let Some(unseen) = unseen else {
                eprintln!("skipped: no seccomp here");
                ring.submit().expect("taken");
                reap_all(&ring, 1);
                return;
            };
            assert_eq!(unseen.len(), 1);
            let (frames, load) = unseen.into_iter().next().expect("one");
            let (frames, _) = ring.read(&file, 0, frames, load).expect_err("it is broken");
            frames
                .into_iter()
                .for_each(|frame| _ = ring.memory.surrender(frame));
        }
    }
}
